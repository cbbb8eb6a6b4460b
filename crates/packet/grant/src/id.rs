use core::{fmt, str::FromStr};

/// Bytes of a grant id that all grants of one call share.
pub const CALL_ID_LEN: usize = 12;

/// The name of a grant: 16 random bytes, of which the first 12 are shared by all grants of one call.
///
/// Its text form is 32 lower-case hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GrantId(pub [u8; 16]);

/// A text that is no grant id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a grant id is 32 lower-case hexadecimal digits, as `sluicegate grant ls` prints them")]
pub struct GrantIdError;

impl GrantId {
    /// The grant number `index` of the call `call`.
    #[must_use]
    pub fn of_call(call: [u8; CALL_ID_LEN], index: u32) -> Self {
        let mut bytes = [0; 16];
        bytes[..CALL_ID_LEN].copy_from_slice(&call);
        bytes[CALL_ID_LEN..].copy_from_slice(&index.to_be_bytes());
        Self(bytes)
    }

    /// Which grant of its call it is.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.0.last_chunk().map_or(0, |index| u32::from_be_bytes(*index))
    }

    /// The part that all grants of one call share.
    #[must_use]
    pub fn call(&self) -> [u8; CALL_ID_LEN] {
        let mut call = [0; CALL_ID_LEN];
        call.copy_from_slice(&self.0[..CALL_ID_LEN]);
        call
    }
}

impl fmt::Display for GrantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for GrantId {
    type Err = GrantIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.as_bytes();
        if digits.len() != 32 {
            return Err(GrantIdError);
        }
        let mut bytes = [0; 16];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            for digit in pair {
                let value = match digit {
                    b'0'..=b'9' => digit - b'0',
                    b'a'..=b'f' => digit - b'a' + 10,
                    _ => return Err(GrantIdError),
                };
                *byte = *byte << 4 | value;
            }
        }
        Ok(Self(bytes))
    }
}

/// The text form where people read it, 16 bytes elsewhere.
#[cfg(feature = "serde")]
impl serde::Serialize for GrantId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() { serializer.collect_str(self) } else { self.0.serialize(serializer) }
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for GrantId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            alloc::string::String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
        } else {
            <[u8; 16]>::deserialize(deserializer).map(Self)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn the_text_form_is_read_back() {
        let id = GrantId(core::array::from_fn(|i| u8::try_from(i * 17).unwrap()));
        assert_eq!(id.to_string(), "00112233445566778899aabbccddeeff");
        assert_eq!(id.to_string().parse(), Ok(id));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "00",
            "00112233445566778899AABBCCDDEEFF",
            "00112233445566778899aabbccddeef",
            "g0112233445566778899aabbccddeeff",
        ] {
            assert_eq!(text.parse::<GrantId>(), Err(GrantIdError), "{text}");
        }
    }

    #[test]
    fn grants_of_one_call_share_the_call_part() {
        let call = [7; CALL_ID_LEN];
        assert_eq!(GrantId::of_call(call, 0).call(), call);
        assert_eq!(GrantId::of_call(call, 70_000).index(), 70_000);
        assert_ne!(GrantId::of_call(call, 0), GrantId::of_call(call, 1));
    }
}
