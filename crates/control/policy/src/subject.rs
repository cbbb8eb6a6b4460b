use core::{fmt, str::FromStr};

use crate::{TextError, is_name, text::serde_as_text};

/// Whom a permission is about. Text form: `user:alice`, `group:phones` or `peer:carrier`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Subject {
    /// The user with this name.
    User(String),
    /// Every user in the group with this name.
    Group(String),
    /// The peer with this name.
    Peer(String),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(name) => write!(f, "user:{name}"),
            Self::Group(name) => write!(f, "group:{name}"),
            Self::Peer(name) => write!(f, "peer:{name}"),
        }
    }
}

impl FromStr for Subject {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        match text.split_once(':') {
            Some(("user", name)) if is_name(name) => Ok(Self::User(name.into())),
            Some(("group", name)) if is_name(name) => Ok(Self::Group(name.into())),
            Some(("peer", name)) if is_name(name) => Ok(Self::Peer(name.into())),
            _ => {
                let hint = "write \"user:alice\", \"group:phones\" or \"peer:carrier\"";
                Err(TextError::new(text, "user, group or peer", hint))
            }
        }
    }
}

serde_as_text!(Subject, "a user, group or peer such as \"user:alice\", \"group:phones\" or \"peer:carrier\"");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_are_read_back() {
        for text in ["user:alice", "group:phones", "user:+49.30-1", "peer:carrier"] {
            assert_eq!(text.parse::<Subject>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_subject_without_its_kind_is_refused_with_an_example() {
        for text in ["", "alice", "phones:group", "user:", "user:a b", "*", "everyone", "user:a:b"] {
            assert!(text.parse::<Subject>().unwrap_err().to_string().contains("\"group:phones\""), "{text}");
        }
    }
}
