//! What the types that are written as text in configuration share.

/// A text in the configuration that cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is no {what}: {hint}")]
pub struct TextError {
    /// What was written, cut to a sane length.
    pub given: String,
    /// What it should have been.
    pub what: &'static str,
    /// What to write instead.
    pub hint: &'static str,
}

impl TextError {
    pub(crate) fn new(given: &str, what: &'static str, hint: &'static str) -> Self {
        Self { given: given.chars().take(80).collect(), what, hint }
    }
}

/// Serializes by `Display`, deserializes by `FromStr`, whatever the format.
macro_rules! serde_as_text {
    ($type:ty, $what:literal) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Text;
                impl serde::de::Visitor<'_> for Text {
                    type Value = $type;

                    fn expecting(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                        f.write_str($what)
                    }

                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
                        text.parse().map_err(E::custom)
                    }
                }
                deserializer.deserialize_str(Text)
            }
        }
    };
}

pub(crate) use serde_as_text;
