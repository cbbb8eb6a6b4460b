//! What is kept of a password.

use md5::Md5;
use sha2::{Digest, Sha256};
use sluicegate_policy::Credentials;
use zeroize::Zeroizing;

/// Shortest password in bytes. Digest access lets whoever records one login try passwords at leisure.
pub const PASSWORD_LEN_MIN: usize = 8;
/// Longest password in bytes.
pub const PASSWORD_LEN_MAX: usize = 1_024;

/// Why a password cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PasswordError {
    /// Too short or too long.
    #[error("a password has {PASSWORD_LEN_MIN} to {PASSWORD_LEN_MAX} bytes, this has {0}")]
    Length(usize),
    /// Holds a line break or another control character, which telephones cannot send.
    #[error("the password holds a control character, such as a line break; type it without")]
    Control,
}

/// What the store keeps of the password of a user who may have telephones: `ha1 = H(user:realm:password)` (RFC 7616
/// section 3.4.2) with SHA-256 and MD5. Either can stand in for the password within this realm.
///
/// # Errors
/// As [`check`].
pub fn credentials(user: &str, realm: &str, password: &str) -> Result<Credentials, PasswordError> {
    check(password)?;
    let text = Zeroizing::new([user, ":", realm, ":", password].concat());
    Ok(Credentials { ha1_sha256: Sha256::digest(text.as_bytes()).into(), ha1_md5: Md5::digest(text.as_bytes()).into() })
}

/// Whether this can be a password.
///
/// # Errors
/// If it is too short, too long or holds control characters.
pub fn check(password: &str) -> Result<(), PasswordError> {
    if !(PASSWORD_LEN_MIN..=PASSWORD_LEN_MAX).contains(&password.len()) {
        return Err(PasswordError::Length(password.len()));
    }
    if password.chars().any(char::is_control) {
        return Err(PasswordError::Control);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7616 section 3.9.1: user "Mufasa", realm "http-auth@example.org", password "Circle of Life".
    #[test]
    fn the_hashes_are_those_of_digest_access() {
        let credentials = credentials("Mufasa", "http-auth@example.org", "Circle of Life").unwrap();
        assert_eq!(hex(&credentials.ha1_md5), "3d78807defe7de2157e2b0b6573a855f");
        assert_eq!(hex(&credentials.ha1_sha256), "7987c64c30e25f1b74be53f966b49b90f2808aa92faf9a00262392d7b4794232");
    }

    #[test]
    fn a_password_that_cannot_serve_is_refused() {
        assert_eq!(credentials("a", "r", "short"), Err(PasswordError::Length(5)));
        assert_eq!(credentials("a", "r", &"x".repeat(1_025)), Err(PasswordError::Length(1_025)));
        assert_eq!(credentials("a", "r", "long enough\n"), Err(PasswordError::Control));
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
