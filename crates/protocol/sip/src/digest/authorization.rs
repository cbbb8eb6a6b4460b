use alloc::{borrow::Cow, format, vec::Vec};

use super::{Algorithm, Challenge, DigestError, Ha1, fields, hash};
use crate::uri::Uri;

/// An authorisation: the value of Authorization or Proxy-Authorization. Quoted values are their insides, escapes as
/// they are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Authorization<'a> {
    /// The user's name. See [`Authorization::username`].
    pub username: &'a [u8],
    /// Which realm's user.
    pub realm: &'a [u8],
    /// The server's nonce.
    pub nonce: &'a [u8],
    /// The Request-URI that the client hashed.
    pub uri: &'a [u8],
    /// The client's nonce.
    pub cnonce: &'a [u8],
    /// Count of uses of the nonce: eight hexadecimal digits, never all zero.
    pub nc: &'a [u8],
    /// The hash used.
    pub algorithm: Algorithm,
    pub(super) response: &'a [u8],
}

impl<'a> Authorization<'a> {
    /// Parses a Digest authorisation with `qop=auth`.
    ///
    /// # Errors
    /// See [`DigestError`]. With [`DigestError::Scheme`] the field is to be ignored (RFC 4475 section 3.3.7).
    pub fn parse(value: &'a [u8]) -> Result<Self, DigestError> {
        let names = ["username", "realm", "nonce", "uri", "response", "algorithm", "cnonce", "nc", "qop"];
        let [username, realm, nonce, uri, response, algorithm, cnonce, nc, qop] = fields::read(value, names)?;
        let algorithm = algorithm.map_or(Some(Algorithm::Md5), Algorithm::of).ok_or(DigestError::Algorithm)?;
        match qop {
            Some(qop) if qop.eq_ignore_ascii_case(b"auth") => {}
            _ => return Err(DigestError::Qop),
        }
        let nc = nc.ok_or(DigestError::Missing("nc"))?;
        let is_count = nc.len() == 8 && nc.iter().all(u8::is_ascii_hexdigit) && nc.iter().any(|digit| *digit != b'0');
        if !is_count {
            return Err(DigestError::Malformed);
        }
        Ok(Self {
            username: username.ok_or(DigestError::Missing("username"))?,
            realm: realm.ok_or(DigestError::Missing("realm"))?,
            nonce: nonce.ok_or(DigestError::Missing("nonce"))?,
            uri: uri.ok_or(DigestError::Missing("uri"))?,
            cnonce: cnonce.ok_or(DigestError::Missing("cnonce"))?,
            nc,
            algorithm,
            response: response.ok_or(DigestError::Missing("response"))?,
        })
    }

    /// The user's name, escapes resolved; `None` if it is not UTF-8. Allocates only if there are escapes.
    #[must_use]
    pub fn username(&self) -> Option<Cow<'a, str>> {
        fields::text(self.username)
    }

    /// The realm as text, escapes resolved; `None` if it is not UTF-8.
    #[must_use]
    pub fn realm_text(&self) -> Option<Cow<'a, str>> {
        fields::text(self.realm)
    }

    /// Whether the client hashed the URI that the request now has (RFC 3261 section 22.4 (5)): the same bytes, or the
    /// same user, host and port.
    #[must_use]
    pub fn covers(&self, request_uri: &[u8]) -> bool {
        self.uri == request_uri
            || matches!((Uri::parse(self.uri), Uri::parse(request_uri)), (Ok(own), Ok(asked)) if own.names_same_address(&asked))
    }
}

/// The realm of an authorisation, its escapes as they are, whether the rest of it can be used or not: who it is for has to
/// be known first (RFC 3261 section 22.3).
///
/// # Errors
/// See [`DigestError`]. With [`DigestError::Scheme`] the field is to be ignored (RFC 4475 section 3.3.7).
pub fn realm_of(value: &[u8]) -> Result<&[u8], DigestError> {
    let [realm] = fields::read(value, ["realm"])?;
    realm.ok_or(DigestError::Missing("realm"))
}

impl core::fmt::Debug for Authorization<'_> {
    /// Without nonce and response, which could be replayed.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Authorization").field("username", &self.username()).finish_non_exhaustive()
    }
}

/// A client's answer to a challenge.
#[derive(Debug, Clone, Copy)]
pub struct Answer<'a> {
    /// What the server asked for.
    pub challenge: &'a Challenge<'a>,
    /// Who we are.
    pub username: &'a str,
    /// `H(user:realm:password)` with the challenge's realm and algorithm.
    pub ha1: &'a Ha1,
    /// The request's method.
    pub method: &'a [u8],
    /// The Request-URI.
    pub uri: &'a [u8],
    /// Random text without quotes or backslashes.
    pub cnonce: &'a str,
    /// How often the nonce was used, this time included; from 1.
    pub nc: u32,
}

impl Answer<'_> {
    /// Appends the value of Authorization or Proxy-Authorization to `out`.
    pub fn write(&self, out: &mut Vec<u8>) {
        let nc = format!("{:08x}", self.nc);
        let challenge = self.challenge;
        let response =
            hash::response(self.ha1, self.method, self.uri, challenge.nonce, nc.as_bytes(), self.cnonce.as_bytes());
        out.extend_from_slice(b"Digest username=");
        fields::push_quoted(out, self.username.as_bytes());
        for (name, value) in [("realm", challenge.realm), ("nonce", challenge.nonce), ("uri", self.uri)] {
            fields::push_param(out, name, value);
        }
        fields::push_param(out, "response", response.hex().as_bytes());
        out.extend_from_slice(b", algorithm=");
        out.extend_from_slice(challenge.algorithm.name().as_bytes());
        fields::push_param(out, "cnonce", self.cnonce.as_bytes());
        if let Some(opaque) = challenge.opaque {
            fields::push_param(out, "opaque", opaque);
        }
        out.extend_from_slice(b", qop=auth, nc=");
        out.extend_from_slice(nc.as_bytes());
    }
}
