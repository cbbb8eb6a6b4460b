//! Secrets of users, and what a frontend is given of them.

use alloc::format;
use core::fmt;

use argon2::{Algorithm, Argon2, Params, Version};
use sha2::{Digest as _, Sha256};
use sluicegate_grant::epoch::Epoch;
use subtle::ConstantTimeEq as _;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// Length of a user's secret.
pub const SECRET_LEN: usize = 32;
/// Memory that one guess of a password costs, in KiB.
const MEMORY_KIB: u32 = 64 * 1024;
const PASSES: u32 = 3;
const LANES: u32 = 1;

/// `SK_user`: what an agent's passwords come from. Known to the agent and to the site's key holder, and to nobody else.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct UserSecret([u8; SECRET_LEN]);

impl UserSecret {
    /// From a password: Argon2id, version 1.3, 64 MiB, 3 passes, 1 lane, salt =
    /// `SHA-256("sluicegate user secret v2\0" ‖ user ‖ 0 ‖ realm)`. Takes some 100 ms, which is what one guess at a stolen
    /// handshake costs too.
    #[must_use]
    pub fn from_password(user: &str, realm: &str, password: &[u8]) -> Self {
        let mut salt = Sha256::new();
        salt.update(b"sluicegate user secret v2\0");
        salt.update(user.as_bytes());
        salt.update([0]);
        salt.update(realm.as_bytes());
        let mut secret = Self([0; SECRET_LEN]);
        let made = Params::new(MEMORY_KIB, PASSES, LANES, Some(SECRET_LEN)).and_then(|params| {
            Argon2::new(Algorithm::Argon2id, Version::V0x13, params).hash_password_into(
                password,
                &salt.finalize(),
                &mut secret.0,
            )
        });
        // Parameters and salt are fixed here, and no password is as long as Argon2 allows.
        assert!(made.is_ok(), "fixed Argon2 parameters");
        secret
    }

    /// 32 random bytes, as in a key file.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; SECRET_LEN]) -> Self {
        Self(bytes)
    }

    /// For the key holder's store and key files.
    #[must_use]
    pub const fn expose(&self) -> &[u8; SECRET_LEN] {
        &self.0
    }

    /// What the digest of one epoch is made with at one frontend: `SHA-256(user:realm;e=EPOCH:password)`, the password
    /// being 64 lower-case hexadecimal digits of `SHA-256("sluicegate agent password v2\0" ‖ SK_user ‖ epoch, 4 bytes
    /// big-endian ‖ replica key)`. Bound to the frontend's key, so that what one frontend holds opens no other.
    #[must_use]
    pub fn ha1(&self, user: &str, realm: &str, epoch: Epoch, replica: &[u8; 32]) -> EpochHa1 {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut hash = Sha256::new();
        hash.update(b"sluicegate agent password v2\0");
        hash.update(self.0);
        hash.update(epoch.0.to_be_bytes());
        hash.update(replica);
        let digest = Zeroizing::new(<[u8; 32]>::from(hash.finalize()));
        let mut password = Zeroizing::new([0; 64]);
        for (pair, byte) in password.chunks_exact_mut(2).zip(digest.iter()) {
            pair.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        }
        let mut hash = Sha256::new();
        hash.update(format!("{user}:{realm};e={epoch}:").as_bytes());
        hash.update(*password);
        EpochHa1(hash.finalize().into())
    }
}

impl fmt::Debug for UserSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UserSecret(..)")
    }
}

/// What a frontend checks an agent's digest against, for one user and one epoch. Signs in at this frontend in this epoch,
/// and is worth nothing afterwards and elsewhere.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct EpochHa1([u8; 32]);

impl EpochHa1 {
    /// As the key holder sends it.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Its bytes. Secret.
    #[must_use]
    pub const fn expose(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for EpochHa1 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EpochHa1(..)")
    }
}

impl PartialEq for EpochHa1 {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for EpochHa1 {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_secret_of_a_password_depends_on_user_realm_and_password() {
        let secret = UserSecret::from_password("alice", "example.net", b"correct horse");
        assert_eq!(*UserSecret::from_password("alice", "example.net", b"correct horse").expose(), *secret.expose());
        for (user, realm, password) in [
            ("bob", "example.net", "correct horse"),
            ("alice", "example.org", "correct horse"),
            ("alice", "example.net", "x"),
        ] {
            assert_ne!(*UserSecret::from_password(user, realm, password.as_bytes()).expose(), *secret.expose());
        }
    }

    #[test]
    fn what_a_frontend_holds_is_for_one_epoch_one_user_and_one_frontend() {
        let secret = UserSecret::from_bytes([1; 32]);
        let own = secret.ha1("alice", "example.net", Epoch(20_000), &[2; 32]);
        assert_eq!(own, secret.ha1("alice", "example.net", Epoch(20_000), &[2; 32]));
        assert_ne!(own, secret.ha1("alice", "example.net", Epoch(20_001), &[2; 32]));
        assert_ne!(own, secret.ha1("alice", "example.net", Epoch(20_000), &[3; 32]));
        assert_ne!(own, secret.ha1("bob", "example.net", Epoch(20_000), &[2; 32]));
        assert_ne!(own, UserSecret::from_bytes([2; 32]).ha1("alice", "example.net", Epoch(20_000), &[2; 32]));
    }
}
