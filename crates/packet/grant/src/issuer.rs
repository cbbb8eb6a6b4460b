use alloc::vec::Vec;
use core::fmt;

use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::grant::{GRANT_LEN, Grant, GrantError};

/// Length in bytes of an issuer id.
pub const ISSUER_ID_LEN: usize = 8;
/// Length in bytes of a signature.
pub const SIGNATURE_LEN: usize = 64;
/// Length in bytes of a grant with its signature.
pub const SIGNED_GRANT_LEN: usize = GRANT_LEN + SIGNATURE_LEN;

const GRANT_CONTEXT: &[u8; 20] = b"sluicegate grant v1\0";
const BATCH_CONTEXT: &[u8] = b"sluicegate feed batch v1\0";

/// The key with which a frontend signs (Ed25519, RFC 8032). Erased from memory when dropped.
pub struct IssuerKey(SigningKey);

/// The public half of an [`IssuerKey`]: what gates keep of a frontend.
#[derive(Clone, PartialEq, Eq)]
pub struct IssuerPublic {
    key: VerifyingKey,
    id: [u8; ISSUER_ID_LEN],
}

/// A portable grant: its 136 bytes and the issuer's signature over them.
#[derive(Clone, PartialEq, Eq)]
pub struct SignedGrant {
    /// The encoded grant.
    pub body: [u8; GRANT_LEN],
    /// Ed25519 over `"sluicegate grant v1\0"` and the body.
    pub signature: [u8; SIGNATURE_LEN],
}

/// Why something signed was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// Not an Ed25519 public key, or one of small order that would accept forgeries.
    #[error("these 32 bytes are no usable Ed25519 public key")]
    Key,
    /// The signature does not fit the bytes and the key.
    #[error("the signature is wrong: altered on the way, or signed by another issuer")]
    Signature,
    /// The grant names another issuer than the key that signed it.
    #[error("the grant names another issuer than the one that signed it")]
    Issuer,
    /// Not 200 bytes.
    #[error("a signed grant is 200 bytes long, this has {0}")]
    Length(usize),
    /// Rightly signed, but the content is impossible.
    #[error(transparent)]
    Grant(#[from] GrantError),
}

impl IssuerKey {
    /// The key made from 32 secret random bytes.
    #[must_use]
    pub fn from_seed(seed: [u8; 32]) -> Self {
        let mut seed = seed;
        let key = SigningKey::from_bytes(&seed);
        zeroize::Zeroize::zeroize(&mut seed);
        Self(key)
    }

    /// The public half.
    #[must_use]
    pub fn public(&self) -> IssuerPublic {
        IssuerPublic::of(self.0.verifying_key())
    }

    /// Signs a grant. The caller sets `grant.issuer` to [`IssuerPublic::id`]; otherwise no one accepts it. About 20 us.
    #[must_use]
    pub fn sign(&self, grant: &Grant) -> SignedGrant {
        let body = grant.encode();
        let signature = self.0.sign(&grant_message(&body)).to_bytes();
        SignedGrant { body, signature }
    }

    /// Signs the bytes of a feed batch, under a context of its own: no batch can pass for a grant.
    #[must_use]
    pub fn sign_batch(&self, bytes: &[u8]) -> [u8; SIGNATURE_LEN] {
        self.0.sign(&batch_message(bytes)).to_bytes()
    }
}

impl fmt::Debug for IssuerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IssuerKey({:?})", self.public())
    }
}

impl IssuerPublic {
    /// The issuer with this public key.
    ///
    /// # Errors
    /// [`VerifyError::Key`] if it is no point of the curve or one of small order.
    pub fn from_bytes(bytes: &[u8; 32]) -> Result<Self, VerifyError> {
        let key = VerifyingKey::from_bytes(bytes).map_err(|_| VerifyError::Key)?;
        if key.is_weak() {
            return Err(VerifyError::Key);
        }
        Ok(Self::of(key))
    }

    fn of(key: VerifyingKey) -> Self {
        let digest = Sha256::digest(key.as_bytes());
        let mut id = [0; ISSUER_ID_LEN];
        id.copy_from_slice(&digest[..ISSUER_ID_LEN]);
        Self { key, id }
    }

    /// The public key.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 32] {
        self.key.to_bytes()
    }

    /// The name of this issuer in grants: the first 8 bytes of SHA-256 of the public key.
    #[must_use]
    pub const fn id(&self) -> [u8; ISSUER_ID_LEN] {
        self.id
    }

    /// The grant, if this issuer signed it. About 40 us: ask only after cheaper checks.
    ///
    /// # Errors
    /// Wrong signature, another issuer's name inside, or impossible content.
    pub fn verify(&self, signed: &SignedGrant) -> Result<Grant, VerifyError> {
        self.verify_message(&grant_message(&signed.body), &signed.signature)?;
        let grant = Grant::decode(&signed.body)?;
        if !bool::from(grant.issuer.ct_eq(&self.id)) {
            return Err(VerifyError::Issuer);
        }
        Ok(grant)
    }

    /// Whether this issuer signed the bytes of a feed batch.
    ///
    /// # Errors
    /// [`VerifyError::Signature`] if it did not.
    pub fn verify_batch(&self, bytes: &[u8], signature: &[u8; SIGNATURE_LEN]) -> Result<(), VerifyError> {
        self.verify_message(&batch_message(bytes), signature)
    }

    fn verify_message(&self, message: &[u8], signature: &[u8; SIGNATURE_LEN]) -> Result<(), VerifyError> {
        self.key.verify_strict(message, &Signature::from_bytes(signature)).map_err(|_| VerifyError::Signature)
    }
}

impl fmt::Debug for IssuerPublic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("issuer ")?;
        self.id.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl SignedGrant {
    /// Body and signature, 200 bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; SIGNED_GRANT_LEN] {
        let mut bytes = [0; SIGNED_GRANT_LEN];
        bytes[..GRANT_LEN].copy_from_slice(&self.body);
        bytes[GRANT_LEN..].copy_from_slice(&self.signature);
        bytes
    }

    /// Splits 200 bytes into body and signature; checks neither.
    ///
    /// # Errors
    /// [`VerifyError::Length`] for any other length.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, VerifyError> {
        let wrong = || VerifyError::Length(bytes.len());
        let (body, signature) = bytes.split_at_checked(GRANT_LEN).ok_or_else(wrong)?;
        Ok(Self { body: body.try_into().map_err(|_| wrong())?, signature: signature.try_into().map_err(|_| wrong())? })
    }
}

impl fmt::Debug for SignedGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SignedGrant").field("grant", &Grant::decode(&self.body)).finish_non_exhaustive()
    }
}

fn grant_message(body: &[u8; GRANT_LEN]) -> [u8; GRANT_CONTEXT.len() + GRANT_LEN] {
    let mut message = [0; GRANT_CONTEXT.len() + GRANT_LEN];
    message[..GRANT_CONTEXT.len()].copy_from_slice(GRANT_CONTEXT);
    message[GRANT_CONTEXT.len()..].copy_from_slice(body);
    message
}

fn batch_message(bytes: &[u8]) -> Vec<u8> {
    [BATCH_CONTEXT, bytes].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grant::tests::example;
    use std::{format, string::String};

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn signed() -> (IssuerKey, SignedGrant) {
        let key = IssuerKey::from_seed([1; 32]);
        let signed = key.sign(&Grant { issuer: key.public().id(), ..example() });
        (key, signed)
    }

    #[test]
    fn a_signed_grant_is_read_back_by_its_issuer_only() {
        let (key, signed) = signed();
        assert_eq!(key.public().verify(&signed).unwrap().bytes, 10_000_000);
        assert_eq!(IssuerKey::from_seed([2; 32]).public().verify(&signed), Err(VerifyError::Signature));
    }

    #[test]
    fn no_bit_of_a_signed_grant_can_be_changed() {
        let (key, signed) = signed();
        let public = key.public();
        let bytes = signed.to_bytes();
        for at in 0..SIGNED_GRANT_LEN {
            let mut altered = bytes;
            altered[at] ^= 1 << (at % 8);
            assert_eq!(public.verify(&SignedGrant::from_bytes(&altered).unwrap()), Err(VerifyError::Signature), "{at}");
        }
    }

    #[test]
    fn a_grant_that_names_another_issuer_is_refused() {
        let key = IssuerKey::from_seed([1; 32]);
        assert_eq!(key.public().verify(&key.sign(&example())), Err(VerifyError::Issuer));
    }

    #[test]
    fn a_batch_signature_never_passes_for_a_grant() {
        let (key, signed) = signed();
        let public = key.public();
        let signature = key.sign_batch(&signed.body);
        assert_eq!(public.verify_batch(&signed.body, &signature), Ok(()));
        assert_eq!(public.verify_batch(&signed.body[1..], &signature), Err(VerifyError::Signature));
        assert_eq!(public.verify_batch(&signed.body, &signed.signature), Err(VerifyError::Signature));
        assert_eq!(public.verify(&SignedGrant { signature, ..signed }), Err(VerifyError::Signature));
    }

    #[test]
    fn a_public_key_of_small_order_is_refused() {
        let mut identity = [0; 32];
        identity[0] = 1;
        assert_eq!(IssuerPublic::from_bytes(&identity), Err(VerifyError::Key));
        let public = IssuerKey::from_seed([1; 32]).public();
        assert_eq!(IssuerPublic::from_bytes(&public.to_bytes()), Ok(public));
    }

    #[test]
    fn debug_output_holds_no_secret() {
        let text = format!("{:?}", IssuerKey::from_seed([0x5A; 32]));
        assert!(!text.contains("5a5a") && !text.contains("90, 90"), "{text}");
    }

    #[test]
    fn the_published_test_vector_holds() {
        let (key, signed) = signed();
        assert_eq!(hex(&key.public().to_bytes()), "8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c");
        assert_eq!(hex(&key.public().id()), "34750f98bd59fcfc");
        assert_eq!(
            hex(&signed.body),
            concat!(
                "01000011a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a134750f98bd59fcfc00004e20",
                "684ee180684ee2ac000000000098968000000007004000140000000000000000",
                "0000ffffc63364070000ffff00000000000000000000ffffcb0071014e204e80",
                "0000000000000000000000000000000000000000000000000000000000000000",
                "736f6d6575736572",
            )
        );
        assert_eq!(
            hex(&signed.signature),
            "ab4395484b89c42afad1498e5929cafad7d4ea0091929902ec4ffc32ec86dea71020af26ab783af574472ec61a3c08e689ff3ac7a9bc8ccaea0fe966785d2d05"
        );
    }
}
