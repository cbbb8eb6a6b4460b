use core::{fmt, net::SocketAddr, str::FromStr};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};
use sluicegate_grant::IssuerPublic;
use subtle::ConstantTimeEq;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

const PREFIX: &str = "sgjoin1.";
/// Longest token text in bytes; a real one has less than 150.
const TEXT_LEN_MAX: usize = 512;

/// The one-time secret that lets a new gate in. Erased when dropped, never printed.
#[derive(Clone, Eq, Zeroize, ZeroizeOnDrop, Serialize, Deserialize)]
pub struct JoinSecret([u8; 16]);

impl JoinSecret {
    /// The secret made of these random bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub const fn expose(&self) -> &[u8; 16] {
        &self.0
    }
}

impl PartialEq for JoinSecret {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Debug for JoinSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JoinSecret(..)")
    }
}

/// All that a new gate needs to know to join a frontend. Text form: `sgjoin1.` and base64url; it holds a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// Where the frontend's feed listens.
    pub feed: SocketAddr,
    /// SHA-256 of the frontend's TLS certificate (DER).
    pub certificate: [u8; 32],
    /// The public key that the frontend's grants are signed with.
    pub issuer: IssuerPublic,
    /// What the gate proves with that it may join, once.
    pub secret: JoinSecret,
}

/// Why a text is no join token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JoinTokenError {
    /// Does not begin like one.
    #[error("a join token begins with \"sgjoin1.\"; copy the whole line that `sluicegate gate-join` printed")]
    Prefix,
    /// A token of a later version.
    #[error("this join token is of a newer version; upgrade sluicegate on the gate")]
    Version,
    /// Cut short, or altered.
    #[error("the join token is incomplete or altered; copy the whole line that `sluicegate gate-join` printed")]
    Damaged,
}

#[derive(Serialize, Deserialize)]
struct Content {
    feed: SocketAddr,
    certificate: [u8; 32],
    issuer: [u8; 32],
    secret: JoinSecret,
}

impl JoinToken {
    /// The text to hand to the gate. It holds the secret: print it once, log it never.
    #[must_use]
    pub fn to_text(&self) -> Zeroizing<String> {
        let content = Content {
            feed: self.feed,
            certificate: self.certificate,
            issuer: self.issuer.to_bytes(),
            secret: self.secret.clone(),
        };
        let bytes = Zeroizing::new(postcard::to_allocvec(&content).unwrap_or_default());
        debug_assert!(!bytes.is_empty());
        let mut text = Zeroizing::new(String::with_capacity(TEXT_LEN_MAX));
        text.push_str(PREFIX);
        URL_SAFE_NO_PAD.encode_string(&bytes, &mut text);
        text
    }
}

impl FromStr for JoinToken {
    type Err = JoinTokenError;

    fn from_str(text: &str) -> Result<Self, JoinTokenError> {
        let text = text.trim();
        let Some(encoded) = text.strip_prefix(PREFIX) else {
            return Err(if text.starts_with("sgjoin") { JoinTokenError::Version } else { JoinTokenError::Prefix });
        };
        if text.len() > TEXT_LEN_MAX {
            return Err(JoinTokenError::Damaged);
        }
        let bytes = Zeroizing::new(URL_SAFE_NO_PAD.decode(encoded).map_err(|_| JoinTokenError::Damaged)?);
        let Ok((content, [])) = postcard::take_from_bytes::<Content>(&bytes) else {
            return Err(JoinTokenError::Damaged);
        };
        Ok(Self {
            feed: content.feed,
            certificate: content.certificate,
            issuer: IssuerPublic::from_bytes(&content.issuer).map_err(|_| JoinTokenError::Damaged)?,
            secret: content.secret,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_grant::IssuerKey;

    fn token(feed: &str) -> JoinToken {
        JoinToken {
            feed: feed.parse().unwrap(),
            certificate: [7; 32],
            issuer: IssuerKey::from_seed([1; 32]).public(),
            secret: JoinSecret::new([0xEE; 16]),
        }
    }

    #[test]
    fn a_token_is_read_back_with_the_space_around_it() {
        for feed in ["203.0.113.1:7443", "[2001:db8::1]:7443"] {
            let text = token(feed).to_text();
            assert!(text.starts_with("sgjoin1.") && text.len() < 150, "{}", text.len());
            assert_eq!(format!(" {}\n", *text).parse(), Ok(token(feed)));
        }
    }

    #[test]
    fn what_is_no_whole_token_is_refused() {
        let text = token("203.0.113.1:7443").to_text();
        assert_eq!("".parse::<JoinToken>(), Err(JoinTokenError::Prefix));
        assert_eq!("password".parse::<JoinToken>(), Err(JoinTokenError::Prefix));
        assert_eq!(text.replacen('1', "2", 1).parse::<JoinToken>(), Err(JoinTokenError::Version));
        for len in PREFIX.len()..text.len() {
            assert_eq!(text[..len].parse::<JoinToken>(), Err(JoinTokenError::Damaged), "{len}");
        }
        assert_eq!(format!("{}AAAA", *text).parse::<JoinToken>(), Err(JoinTokenError::Damaged));
        assert_eq!(format!("{PREFIX}{}", "A".repeat(10_000)).parse::<JoinToken>(), Err(JoinTokenError::Damaged));
    }

    #[test]
    fn the_secret_is_never_printed() {
        let text = format!("{:?}", token("203.0.113.1:7443"));
        assert!(text.contains("JoinSecret(..)") && !text.contains("238"), "{text}");
    }
}
