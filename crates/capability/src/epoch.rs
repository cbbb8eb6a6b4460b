//! Epochs of user secrets (NUTSS 3.1): a frontend holds, of every user, only the password of this epoch. Who breaks into
//! it learns nothing that is worth anything tomorrow, and nothing about the user's own password.

use core::{fmt, num::ParseIntError, str::FromStr};

use sha2::{Digest, Sha256};
use sluicegate_wire::UnixTime;
use zeroize::Zeroizing;

/// How long an epoch lasts, in seconds.
pub const EPOCH_SECS: u64 = 86_400;

/// Number of an epoch: Unix time divided by [`EPOCH_SECS`]. Text form: decimal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch(pub u32);

impl Epoch {
    /// The epoch that `now` lies in.
    #[must_use]
    pub fn at(now: UnixTime) -> Self {
        Self(u32::try_from(now.0 / EPOCH_SECS).unwrap_or(u32::MAX))
    }

    /// The epoch after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// Its first second.
    #[must_use]
    pub const fn start(self) -> UnixTime {
        UnixTime(self.0 as u64 * EPOCH_SECS)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Epoch {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

/// `SK_user`, the long-lived secret behind an agent's passwords:
/// `SHA-256("sluicegate user secret v1\0" ‖ user ‖ 0 ‖ realm ‖ 0 ‖ password)`.
#[must_use]
pub fn agent_secret(user: &str, realm: &str, password: &[u8]) -> Zeroizing<[u8; 32]> {
    let mut hash = Sha256::new();
    hash.update(b"sluicegate user secret v1\0");
    hash.update(user.as_bytes());
    hash.update([0]);
    hash.update(realm.as_bytes());
    hash.update([0]);
    hash.update(password);
    Zeroizing::new(hash.finalize().into())
}

/// The digest password of one epoch, 64 lower-case hexadecimal digits:
/// `hex(SHA-256("sluicegate agent password v1\0" ‖ SK_user ‖ epoch, 4 bytes big-endian))`.
#[must_use]
pub fn agent_password(sk_user: &[u8; 32], epoch: Epoch) -> Zeroizing<[u8; 64]> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut hash = Sha256::new();
    hash.update(b"sluicegate agent password v1\0");
    hash.update(sk_user);
    hash.update(epoch.0.to_be_bytes());
    let digest = Zeroizing::new(<[u8; 32]>::from(hash.finalize()));
    let mut password = Zeroizing::new([0; 64]);
    for (pair, byte) in password.chunks_exact_mut(2).zip(digest.iter()) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    password
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_a_day() {
        assert_eq!(Epoch::at(UnixTime(86_399)), Epoch(0));
        assert_eq!(Epoch::at(UnixTime(86_400)), Epoch(1));
        assert_eq!(Epoch(1).start(), UnixTime(86_400));
        assert_eq!("20000".parse(), Ok(Epoch(20_000)));
        assert_eq!(Epoch::at(UnixTime(u64::MAX)).next(), Epoch(u32::MAX));
    }

    #[test]
    fn the_published_test_vectors_hold() {
        let secret = agent_secret("alice", "example.net", b"correct horse");
        let password = agent_password(&secret, Epoch(20_000));
        assert_eq!(
            core::str::from_utf8(&*password).unwrap(),
            "e5a1b7c25fcb46c30fcf88867259299a5cce7fdfc914902d05825f7607f474c8"
        );
    }

    #[test]
    fn another_epoch_user_realm_or_password_gives_another_password() {
        let secret = agent_secret("alice", "example.net", b"pw");
        let others = [
            agent_secret("bob", "example.net", b"pw"),
            agent_secret("alice", "example.org", b"pw"),
            agent_secret("alice", "example.net", b"pW"),
        ];
        let password = agent_password(&secret, Epoch(1));
        assert_ne!(password, agent_password(&secret, Epoch(2)));
        for other in others {
            assert_ne!(password, agent_password(&other, Epoch(1)));
        }
    }
}
