use sha2::{Digest, Sha256};

/// The 8 bytes that stand for a user in a grant: stable for one site, meaningless to everyone without `key`.
///
/// `SHA-256("sluicegate pseudonym v1\0" ‖ key ‖ realm ‖ 0 ‖ user)`, first 8 bytes. Without the key a list of likely user
/// names would be enough to find the user behind a grant.
#[must_use]
pub fn pseudonym(key: &[u8; 32], realm: &str, user: &str) -> [u8; 8] {
    let mut hash = Sha256::new();
    hash.update(b"sluicegate pseudonym v1\0");
    hash.update(key);
    hash.update(realm.as_bytes());
    hash.update([0]);
    hash.update(user.as_bytes());
    let digest = hash.finalize();
    core::array::from_fn(|i| digest[i])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pseudonym_is_stable_and_depends_on_key_realm_and_user() {
        let of = |key, realm, user| pseudonym(&[key; 32], realm, user);
        assert_eq!(of(1, "example.net", "alice"), of(1, "example.net", "alice"));
        assert_ne!(of(1, "example.net", "alice"), of(2, "example.net", "alice"));
        assert_ne!(of(1, "example.net", "alice"), of(1, "example.org", "alice"));
        assert_ne!(of(1, "example.net", "alice"), of(1, "example.net", "bob"));
    }
}
