//! The site's key, and what it says about the frontends: an agent that knows the one trusts the others.

use alloc::{string::String, vec::Vec};
use core::{fmt, str::FromStr};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use sluicegate_wire::UnixTime;
use snow::{
    params::DHChoice,
    resolvers::{CryptoResolver as _, DefaultResolver},
};
use zeroize::{Zeroize as _, Zeroizing};

/// Length of an encoded certificate.
pub const CERTIFICATE_LEN: usize = 132;

const CONTEXT: &[u8] = b"sluicegate replica v1\0";

/// The key of a site (Ed25519), held by its key holder: a key of its own, because each frontend has an issuer key, and who
/// steals that must not be able to name frontends.
pub struct SiteKey(SigningKey);

impl SiteKey {
    /// The key made from 32 secret random bytes.
    #[must_use]
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        Self(SigningKey::from_bytes(seed))
    }

    /// What agents pin.
    #[must_use]
    pub fn public(&self) -> SitePublic {
        SitePublic(self.0.verifying_key().to_bytes())
    }

    /// Says that the holder of `replica` is a frontend of `realm` until `not_after`.
    #[must_use]
    pub fn certify(&self, realm: &str, replica: [u8; 32], not_after: UnixTime) -> Certificate {
        let not_after = u32::try_from(not_after.0).unwrap_or(u32::MAX);
        let signature = self.sign(&signed_text(realm, &replica, not_after));
        Certificate { site: self.public(), replica, not_after, signature }
    }

    pub(crate) fn sign(&self, text: &[u8]) -> [u8; 64] {
        self.0.sign(text).to_bytes()
    }
}

impl fmt::Debug for SiteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SiteKey({})", self.public())
    }
}

/// The public half of a [`SiteKey`]. Text form: 43 characters of base64url.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SitePublic([u8; 32]);

impl SitePublic {
    pub(crate) const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub(crate) const fn to_bytes(self) -> [u8; 32] {
        self.0
    }

    pub(crate) fn verifies(&self, text: &[u8], signature: &[u8; 64]) -> bool {
        let key = VerifyingKey::from_bytes(&self.0);
        key.is_ok_and(|key| key.verify_strict(text, &Signature::from_bytes(signature)).is_ok())
    }
}

impl fmt::Display for SitePublic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&key_text(&self.0))
    }
}

impl FromStr for SitePublic {
    type Err = CertificateError;

    fn from_str(text: &str) -> Result<Self, CertificateError> {
        key_of(text).map(Self)
    }
}

/// A public key as text: 43 characters of base64url.
#[must_use]
pub fn key_text(key: &[u8; 32]) -> String {
    URL_SAFE_NO_PAD.encode(key)
}

/// The public key that stands in a text.
///
/// # Errors
/// [`CertificateError::Key`].
pub fn key_of(text: &str) -> Result<[u8; 32], CertificateError> {
    let mut key = [0; 32];
    match URL_SAFE_NO_PAD.decode_slice(text.trim(), &mut key) {
        Ok(32) => Ok(key),
        _ => Err(CertificateError::Key),
    }
}

/// Why a frontend's certificate is not believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CertificateError {
    /// Not the text form of a certificate.
    #[error("the frontend's certificate cannot be read")]
    Malformed,
    /// Not the text form of a site key.
    #[error(
        "a key of a site or frontend is 43 letters, digits, '-' and '_', as `sluicegate status` at the frontend shows it"
    )]
    Key,
    /// The signature does not fit.
    #[error("the frontend's certificate is not signed by the key of the site that it names")]
    Signature,
    /// Its time is over.
    #[error("the frontend's certificate has ended; check the clocks of this host and of the site")]
    Expired,
}

/// What the site says about a frontend: `site key 32 | replica key 32 | not after 4 | Ed25519 signature 64` over
/// `"sluicegate replica v1\0" ‖ realm ‖ 0 ‖ replica key ‖ not after`, big-endian.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// Who says so.
    pub site: SitePublic,
    /// The frontend's X25519 key.
    pub replica: [u8; 32],
    not_after: u32,
    signature: [u8; 64],
}

impl Certificate {
    /// As it stands in a challenge: base64url, no padding.
    #[must_use]
    pub fn to_text(&self) -> String {
        let parts = [&self.site.0[..], &self.replica, &self.not_after.to_be_bytes(), &self.signature];
        URL_SAFE_NO_PAD.encode(parts.concat())
    }

    /// When it ends.
    #[must_use]
    pub const fn not_after(&self) -> UnixTime {
        UnixTime(self.not_after as u64)
    }

    /// Reads the text form. Nothing is believed before [`Certificate::verify`].
    ///
    /// # Errors
    /// [`CertificateError::Malformed`].
    pub fn from_text(text: &[u8]) -> Result<Self, CertificateError> {
        let mut bytes = [0; CERTIFICATE_LEN];
        let len = URL_SAFE_NO_PAD.decode_slice(text, &mut bytes).map_err(|_| CertificateError::Malformed)?;
        if len != CERTIFICATE_LEN {
            return Err(CertificateError::Malformed);
        }
        let field = |at: usize| <[u8; 32]>::try_from(&bytes[at..at + 32]).unwrap_or_default();
        let mut signature = [0; 64];
        signature.copy_from_slice(&bytes[68..]);
        let not_after = u32::from_be_bytes([bytes[64], bytes[65], bytes[66], bytes[67]]);
        Ok(Self { site: SitePublic(field(0)), replica: field(32), not_after, signature })
    }

    /// Whether the site key in it signed it for this realm and now. Whether that is the right site key is for the caller.
    ///
    /// # Errors
    /// [`CertificateError::Signature`] or [`CertificateError::Expired`].
    pub fn verify(&self, realm: &str, now: UnixTime) -> Result<(), CertificateError> {
        let text = signed_text(realm, &self.replica, self.not_after);
        if !self.site.verifies(&text, &self.signature) {
            return Err(CertificateError::Signature);
        }
        if now.0 > u64::from(self.not_after) { Err(CertificateError::Expired) } else { Ok(()) }
    }
}

fn signed_text(realm: &str, replica: &[u8; 32], not_after: u32) -> Vec<u8> {
    [CONTEXT, realm.as_bytes(), &[0], replica, &not_after.to_be_bytes()].concat()
}

/// A frontend's own key (X25519). Erased when dropped.
pub struct ReplicaKey {
    secret: Zeroizing<[u8; 32]>,
    public: [u8; 32],
}

impl ReplicaKey {
    /// The key made from 32 secret random bytes.
    #[must_use]
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        let mut public = [0; 32];
        if let Some(mut dh) = DefaultResolver.resolve_dh(&DHChoice::Curve25519) {
            dh.set(seed);
            public.copy_from_slice(dh.pubkey());
            dh.set(&[0; 32]);
        }
        let mut copy = *seed;
        let secret = Zeroizing::new(copy);
        copy.zeroize();
        Self { secret, public }
    }

    /// Its public half, which also names the frontend.
    #[must_use]
    pub const fn public(&self) -> &[u8; 32] {
        &self.public
    }

    pub(crate) fn secret(&self) -> &[u8; 32] {
        &self.secret
    }
}

impl fmt::Debug for ReplicaKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReplicaKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString as _;

    use super::*;

    const NOW: UnixTime = UnixTime(1_800_000_000);

    #[test]
    fn a_certificate_holds_for_its_realm_key_and_time_and_no_bit_can_be_changed() {
        let site = SiteKey::from_seed(&[1; 32]);
        let certificate = site.certify("example.net", [2; 32], NOW);
        let text = certificate.to_text();
        assert_eq!(Certificate::from_text(text.as_bytes()), Ok(certificate.clone()));
        assert_eq!(certificate.verify("example.net", NOW), Ok(()));
        assert_eq!(certificate.verify("example.net", NOW.plus_secs(1)), Err(CertificateError::Expired));
        assert_eq!(certificate.verify("example.org", NOW), Err(CertificateError::Signature));
        let bytes = URL_SAFE_NO_PAD.decode(&text).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let read = Certificate::from_text(URL_SAFE_NO_PAD.encode(&changed).as_bytes()).unwrap();
            assert!(read.verify("example.net", NOW).is_err(), "bit {bit}");
        }
        for wrong in [&b""[..], b"!", &text.as_bytes()[1..]] {
            assert_eq!(Certificate::from_text(wrong), Err(CertificateError::Malformed));
        }
    }

    #[test]
    fn a_site_key_is_read_back_from_its_text() {
        let public = SiteKey::from_seed(&[1; 32]).public();
        assert_eq!(public.to_string().parse(), Ok(public));
        assert_eq!("short".parse::<SitePublic>(), Err(CertificateError::Key));
    }
}
