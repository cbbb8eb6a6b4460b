use core::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::TextError;

/// A number of bytes. Text form: `10MB` (10^6), `64KiB` (2^10), or plain bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(pub u64);

/// A rate in bit/s. Text form: `1Mbit`, `500kbit`, plain bit/s, or `none` for no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(pub u64);

impl Rate {
    /// No limit.
    pub const UNLIMITED: Self = Self(u64::MAX);
}

/// Unit names in lower case with the number of base units each stands for; the largest first within a family.
type Units = &'static [(&'static str, u64)];

const BYTE_UNITS: Units = &[
    ("tb", 1_000_000_000_000),
    ("gb", 1_000_000_000),
    ("mb", 1_000_000),
    ("kb", 1_000),
    ("tib", 1 << 40),
    ("gib", 1 << 30),
    ("mib", 1 << 20),
    ("kib", 1 << 10),
    ("b", 1),
    ("", 1),
];
const RATE_UNITS: Units = &[("gbit", 1_000_000_000), ("mbit", 1_000_000), ("kbit", 1_000), ("bit", 1), ("", 1)];

const BYTES_HINT: &str = "write \"10MB\", \"64KiB\", \"1GB\" or a whole number of bytes";
const RATE_HINT: &str = "write \"1Mbit\", \"500kbit\", a whole number of bit/s, or \"none\" for no limit";

/// Reads `<digits>[.<digits>] [unit]`; exact, no floating point. `None` if it is anything else or does not fit.
fn parse(text: &str, units: Units) -> Option<u64> {
    let text = text.trim();
    let number_len = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(number_len);
    let unit = unit.trim_start().to_ascii_lowercase();
    let scale = units.iter().find(|(name, _)| *name == unit)?.1;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let mut value = whole.parse::<u64>().ok()?.checked_mul(scale)?;
    if number.contains('.') {
        let digits = u32::try_from(fraction.len()).ok().filter(|n| (1..=9).contains(n))?;
        let part = fraction.parse::<u64>().ok()?.checked_mul(scale)?;
        let divisor = 10u64.pow(digits);
        if part % divisor != 0 {
            return None;
        }
        value = value.checked_add(part / divisor)?;
    }
    Some(value)
}

fn write(f: &mut fmt::Formatter<'_>, value: u64, units: [(&str, u64); 4], base: &str) -> fmt::Result {
    let unit = units.into_iter().find(|(_, scale)| value >= *scale && value.is_multiple_of(*scale));
    match unit {
        Some((name, scale)) => write!(f, "{}{name}", value / scale),
        None => write!(f, "{value}{base}"),
    }
}

impl FromStr for Bytes {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        parse(text, BYTE_UNITS).map(Self).ok_or_else(|| TextError::new(text, "size", BYTES_HINT))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(f, self.0, [("TB", 1_000_000_000_000), ("GB", 1_000_000_000), ("MB", 1_000_000), ("KB", 1_000)], "B")
    }
}

impl FromStr for Rate {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        if text.trim() == "none" {
            return Ok(Self::UNLIMITED);
        }
        let number = text.strip_suffix("/s").unwrap_or(text);
        parse(number, RATE_UNITS).map(Self).ok_or_else(|| TextError::new(text, "rate", RATE_HINT))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::UNLIMITED {
            return f.write_str("none");
        }
        write(
            f,
            self.0,
            [("Tbit", 1_000_000_000_000), ("Gbit", 1_000_000_000), ("Mbit", 1_000_000), ("kbit", 1_000)],
            "bit",
        )
    }
}

/// A number in compact formats; a number or a text with a unit where people read and write.
macro_rules! serde_as_quantity {
    ($type:ident, $what:literal, $hint:ident) => {
        impl From<$type> for u64 {
            fn from(quantity: $type) -> Self {
                quantity.0
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                if serializer.is_human_readable() {
                    serializer.collect_str(self)
                } else {
                    serializer.serialize_u64(self.0)
                }
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Quantity;
                impl de::Visitor<'_> for Quantity {
                    type Value = $type;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        write!(f, concat!("a ", $what, ": {}"), $hint)
                    }

                    fn visit_u64<E: de::Error>(self, value: u64) -> Result<$type, E> {
                        Ok($type(value))
                    }

                    fn visit_i64<E: de::Error>(self, value: i64) -> Result<$type, E> {
                        u64::try_from(value)
                            .map($type)
                            .map_err(|_| E::custom(TextError::new(&value.to_string(), $what, $hint)))
                    }

                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$type, E> {
                        text.parse().map_err(E::custom)
                    }
                }
                if deserializer.is_human_readable() {
                    deserializer.deserialize_any(Quantity)
                } else {
                    deserializer.deserialize_u64(Quantity)
                }
            }
        }
    };
}

serde_as_quantity!(Bytes, "size", BYTES_HINT);
serde_as_quantity!(Rate, "rate", RATE_HINT);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_rates_are_read_with_their_units() {
        let sizes = [("10MB", 10_000_000), ("64KiB", 65_536), ("1.5 GB", 1_500_000_000), ("7", 7), ("0.001kb", 1)];
        for (text, bytes) in sizes {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        let rates = [("1Mbit", 1_000_000), ("500kbit/s", 500_000), ("2 Gbit", 2_000_000_000), ("64000", 64_000)];
        for (text, bps) in rates {
            assert_eq!(text.parse(), Ok(Rate(bps)), "{text}");
        }
        assert_eq!("none".parse(), Ok(Rate::UNLIMITED));
    }

    #[test]
    fn what_is_no_quantity_is_refused_with_an_example() {
        for text in ["", "MB", "-1MB", "10 MBit", "1.MB", ".5MB", "1e6", "1.5B", "99999999TB", "10Mb ps"] {
            let error = text.parse::<Bytes>().unwrap_err().to_string();
            assert!(error.contains("\"10MB\""), "{text}: {error}");
        }
        for text in ["1MB", "fast", "", "1.0000000001Gbit", "None"] {
            let error = text.parse::<Rate>().unwrap_err().to_string();
            assert!(error.contains("\"1Mbit\""), "{text}: {error}");
        }
    }

    #[test]
    fn the_text_form_is_exact() {
        for value in [0, 1, 999, 1_000, 1_500, 10_000_000, u64::MAX] {
            assert_eq!(Bytes(value).to_string().parse(), Ok(Bytes(value)));
            assert_eq!(Rate(value).to_string().parse(), Ok(Rate(value)));
        }
    }
}
