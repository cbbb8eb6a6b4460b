//! Relayed SIP: every datagram between a frontend and a service's gate ends with a packet MAC (see [`crate::mac`]), so that
//! the frontend's address, which everybody knows, is worth nothing by itself.
//!
//! The feed brings the gate a pair of keys for each frontend, start of it, gate and service. The gate draws a salt whenever it
//! takes up such a pair, and says it in its answer; what is used comes from both, so that sequence numbers begin anew and
//! nothing that was captured before a restart of either end passes after it:
//! `HKDF-SHA256(ikm = key, salt = salt 8, info = "sluicegate relay v1" ‖ direction)`, 20 bytes: the key, and a sender id of
//! which the last byte is left for the frontend's shard. Each shard counts for itself.

use hkdf::Hkdf;
use sha2::Sha256;

use crate::mac::{SESSION_KEY_LEN, SessionKey, SessionKeys};

const INFO: &[u8] = b"sluicegate relay v1";
const SHARD_BITS: u32 = 0xff;

/// The keys of one frontend's relayed SIP at one gate, for one service. Compared in constant time; `Debug` shows nothing of
/// the keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayKeys {
    keys: SessionKeys,
    sender: u32,
}

impl RelayKeys {
    /// From what the feed brought, and the salt that the gate drew.
    #[must_use]
    pub fn derive(brought: &SessionKeys, salt: u64) -> Self {
        let (to_service, sender) = expand(&brought.to_service, salt, 0);
        let (to_client, _) = expand(&brought.to_client, salt, 1);
        Self { keys: SessionKeys { to_service, to_client }, sender: sender & !SHARD_BITS }
    }

    /// The keys: `to_service` of what the frontend sends, `to_client` of what the gate sends to it.
    #[must_use]
    pub const fn keys(&self) -> &SessionKeys {
        &self.keys
    }

    /// The client id in trailers of the frontend's shard number `shard`; those to the frontend have that of shard 0.
    #[must_use]
    pub const fn sender(&self, shard: u8) -> u32 {
        self.sender | shard as u32
    }

    /// The shard that a client id names, if it is one of this frontend.
    #[must_use]
    pub const fn shard_of(&self, client_id: u32) -> Option<u8> {
        if client_id & !SHARD_BITS == self.sender { Some((client_id & SHARD_BITS) as u8) } else { None }
    }
}

fn expand(key: &SessionKey, salt: u64, direction: u8) -> (SessionKey, u32) {
    let hkdf = Hkdf::<Sha256>::new(Some(&salt.to_be_bytes()), key.expose());
    let mut out = zeroize::Zeroizing::new([0; SESSION_KEY_LEN + 4]);
    // 20 bytes of at most 8,160: this cannot fail.
    let _ = hkdf.expand_multi_info(&[INFO, &[direction]], &mut *out);
    let (key, sender) = out.split_at(SESSION_KEY_LEN);
    let key = SessionKey::from_bytes(core::array::from_fn(|at| key.get(at).copied().unwrap_or(0)));
    (key, sender.iter().fold(0, |number, byte| number << 8 | u32::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_salt_and_direction_has_keys_of_its_own_and_each_shard_its_id() {
        let brought = SessionKeys::from_bytes([[1; 16], [1; 16]]);
        let (one, two) = (RelayKeys::derive(&brought, 1), RelayKeys::derive(&brought, 2));
        assert_eq!(one, RelayKeys::derive(&brought, 1));
        assert_ne!(one.keys().to_service, two.keys().to_service);
        assert_ne!(one.keys().to_service, one.keys().to_client);
        assert_eq!(one.shard_of(one.sender(7)), Some(7));
        assert_eq!(two.shard_of(one.sender(7)), None);
    }
}
