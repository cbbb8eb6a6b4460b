//! How types of other crates are written in feed messages.

use core::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, SeqAccess, Visitor},
    ser::SerializeTuple,
};

/// A fixed number of bytes, longer than the arrays that serde knows; written as they are.
pub(super) mod array {
    use super::{Deserializer, Error, PhantomData, SeqAccess, SerializeTuple, Serializer, Visitor, fmt};

    pub(crate) fn serialize<S: Serializer, const N: usize>(bytes: &[u8; N], s: S) -> Result<S::Ok, S::Error> {
        let mut tuple = s.serialize_tuple(N)?;
        bytes.iter().try_for_each(|byte| tuple.serialize_element(byte))?;
        tuple.end()
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>, const N: usize>(d: D) -> Result<[u8; N], D::Error> {
        struct Array<const N: usize>(PhantomData<[u8; N]>);
        impl<'de, const N: usize> Visitor<'de> for Array<N> {
            type Value = [u8; N];

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{N} bytes")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<[u8; N], A::Error> {
                let mut bytes = [0; N];
                for (at, byte) in bytes.iter_mut().enumerate() {
                    *byte = seq.next_element()?.ok_or_else(|| A::Error::invalid_length(at, &self))?;
                }
                Ok(bytes)
            }
        }
        d.deserialize_tuple(N, Array(PhantomData))
    }
}

/// A list of at most `MAX` elements. Room is made as elements arrive, never for a length that a peer merely claims.
pub(super) fn bounded<'de, D, T, const MAX: usize>(d: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct List<T, const MAX: usize>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for List<T, MAX> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {MAX} elements")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
            let mut list = Vec::new();
            while let Some(element) = seq.next_element()? {
                if list.len() == MAX {
                    return Err(A::Error::invalid_length(MAX + 1, &self));
                }
                list.push(element);
            }
            Ok(list)
        }
    }
    d.deserialize_seq(List::<T, MAX>(PhantomData))
}

/// A grant as it is signed, whether its fields agree with each other or not.
pub(super) mod grant {
    use super::{Deserializer, Error, Serializer, array};
    use sluicegate_grant::{GRANT_LEN, Grant};

    pub(crate) fn serialize<S: Serializer>(grant: &Grant, s: S) -> Result<S::Ok, S::Error> {
        array::serialize(&grant.encode(), s)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Grant, D::Error> {
        Grant::read(&array::deserialize::<D, GRANT_LEN>(d)?).map_err(D::Error::custom)
    }
}

/// The session keys of both directions or none: 16 bytes each.
pub(super) mod session_keys {
    use super::{Deserialize, Deserializer, Serialize, Serializer};
    use sluicegate_grant::mac::SessionKeys;

    pub(crate) fn serialize<S: Serializer>(keys: &Option<SessionKeys>, s: S) -> Result<S::Ok, S::Error> {
        keys.as_ref().map(|keys| [keys.to_service.expose(), keys.to_client.expose()]).serialize(s)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<SessionKeys>, D::Error> {
        Option::deserialize(d).map(|bytes| bytes.map(SessionKeys::from_bytes))
    }
}
