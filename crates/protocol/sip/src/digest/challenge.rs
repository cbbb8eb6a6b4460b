use alloc::{borrow::Cow, vec::Vec};

use super::{Algorithm, DigestError, fields};

/// A challenge: the value of WWW-Authenticate or Proxy-Authenticate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Challenge<'a> {
    /// The inside of the quoted string, escapes as they are. See [`Challenge::realm_text`].
    pub realm: &'a [u8],
    /// The server's nonce, as it has to come back.
    pub nonce: &'a [u8],
    /// To be sent back as it is.
    pub opaque: Option<&'a [u8]>,
    /// The hash to use.
    pub algorithm: Algorithm,
    /// The nonce was too old, the digest perhaps right: try again without asking the user.
    pub stale: bool,
}

impl<'a> Challenge<'a> {
    /// Parses one challenge. Only those that offer `qop=auth` can be answered.
    ///
    /// # Errors
    /// See [`DigestError`].
    pub fn parse(value: &'a [u8]) -> Result<Self, DigestError> {
        let names = ["realm", "nonce", "opaque", "algorithm", "qop", "stale"];
        let [realm, nonce, opaque, algorithm, qop, stale] = fields::read(value, names)?;
        let algorithm = algorithm.map_or(Some(Algorithm::Md5), Algorithm::of).ok_or(DigestError::Algorithm)?;
        let offers_auth = qop.is_some_and(|qop: &[u8]| {
            qop.split(|byte| *byte == b',').any(|one| one.trim_ascii().eq_ignore_ascii_case(b"auth"))
        });
        if !offers_auth {
            return Err(DigestError::Qop);
        }
        Ok(Self {
            realm: realm.ok_or(DigestError::Missing("realm"))?,
            nonce: nonce.ok_or(DigestError::Missing("nonce"))?,
            opaque,
            algorithm,
            stale: stale.is_some_and(|flag: &[u8]| flag.eq_ignore_ascii_case(b"true")),
        })
    }

    /// The realm as text, escapes resolved; `None` if it is not UTF-8.
    #[must_use]
    pub fn realm_text(&self) -> Option<Cow<'a, str>> {
        fields::text(self.realm)
    }

    /// Appends the value of the header field to `out`. `realm` and `nonce` are taken as the inside of quoted strings:
    /// a realm from configuration has neither quotes nor backslashes.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"Digest realm=");
        fields::push_requoted(out, self.realm);
        fields::push_param(out, "nonce", self.nonce);
        if let Some(opaque) = self.opaque {
            fields::push_param(out, "opaque", opaque);
        }
        out.extend_from_slice(b", algorithm=");
        out.extend_from_slice(self.algorithm.name().as_bytes());
        out.extend_from_slice(b", qop=\"auth\"");
        if self.stale {
            out.extend_from_slice(b", stale=true");
        }
    }
}

/// The strongest of several challenges that we can answer; among equals the first (RFC 8760 section 2.4).
/// Takes the values of all WWW-Authenticate or Proxy-Authenticate header fields.
pub fn strongest<'a>(values: impl Iterator<Item = &'a [u8]>) -> Option<Challenge<'a>> {
    values
        .filter_map(|value| Challenge::parse(value).ok())
        .reduce(|best, next| if next.algorithm > best.algorithm { next } else { best })
}
