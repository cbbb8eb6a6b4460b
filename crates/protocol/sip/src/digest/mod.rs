//! Digest authentication (RFC 7616, in SIP by RFC 3261 section 22 and RFC 8760): SHA-256 and MD5, `qop=auth` only.

mod authorization;
mod challenge;
mod fields;
mod hash;

pub use authorization::{Answer, Authorization, realm_of};
pub use challenge::{Challenge, strongest};
pub use hash::{Ha1, ha1};

use subtle::ConstantTimeEq;

/// A hash that a challenge may ask for. Ordered by strength.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Algorithm {
    /// For old phones only.
    Md5,
    /// The usual one.
    Sha256,
}

impl Algorithm {
    /// The name in the `algorithm` parameter.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Md5 => "MD5",
            Self::Sha256 => "SHA-256",
        }
    }

    /// The algorithm of this name, in any case. `None` for those that we do not do, the `-sess` variants among them.
    #[must_use]
    pub fn of(name: &[u8]) -> Option<Self> {
        [Self::Md5, Self::Sha256].into_iter().find(|own| name.eq_ignore_ascii_case(own.name().as_bytes()))
    }
}

/// Why a challenge or an authorisation cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DigestError {
    /// Another scheme than Digest.
    #[error("the scheme is not Digest")]
    Scheme,
    /// Longer than [`VALUE_LEN_MAX`] or more than [`PARAMS_MAX`] parameters.
    #[error("the header field is too long")]
    Length,
    /// Not a list of `name=value`, or a parameter twice.
    #[error("the parameters are malformed")]
    Malformed,
    /// A parameter that must be there is not.
    #[error("the parameter `{0}` is missing")]
    Missing(&'static str),
    /// An algorithm other than MD5 and SHA-256.
    #[error("the algorithm is not supported")]
    Algorithm,
    /// A quality of protection other than `auth`.
    #[error("the quality of protection is not `auth`")]
    Qop,
}

/// The longest value of a Digest header field, in bytes.
pub const VALUE_LEN_MAX: usize = 2_048;
/// The most parameters in one.
pub const PARAMS_MAX: usize = 24;

/// Whether `authorization` proves that its sender knows `ha1` for this method.
///
/// With no `ha1` (unknown user), or one made for another algorithm, the same hashes are computed over a dummy, so that
/// an unknown user and a wrong password cost the same. Compares in constant time. Three hash calls at most.
#[must_use]
pub fn verify(authorization: &Authorization<'_>, method: &[u8], ha1: Option<&Ha1>) -> bool {
    let dummy = Ha1::dummy(authorization.algorithm);
    let usable = ha1.filter(|ha1| ha1.algorithm() == authorization.algorithm);
    let expected = hash::response(
        usable.unwrap_or(&dummy),
        method,
        authorization.uri,
        authorization.nonce,
        authorization.nc,
        authorization.cnonce,
    );
    let (sent, is_hex) = fields::hex_bytes(authorization.response, authorization.algorithm);
    let equal = expected.as_bytes().ct_eq(sent.as_bytes());
    bool::from(equal) & is_hex & usable.is_some()
}

#[cfg(test)]
mod tests;
