//! Stateless nonces: nothing is remembered of a client before its digest is right.
//!
//! A nonce carries its time and number, and a MAC over both, the client's address, and the replica, start and shard that
//! made it. Only that shard accepts it; [`crate::replay`] sees to it that it does so once. Time and number are encrypted
//! under the MAC, so that nobody reads off it how long a frontend runs, how many shards it has and how many it challenged.

use core::{fmt, net::IpAddr};

use siphasher::sip::SipHasher24;
use sluicegate_wire::{UnixTime, ip};
use subtle::ConstantTimeEq as _;
use zeroize::Zeroize as _;

use crate::base64url::{Base64Url, decode};

/// How long a nonce may be used, in seconds.
pub const WINDOW_S: u64 = 60;
/// Length of the text form.
pub const NONCE_TEXT_LEN: usize = 22;

const PLACE_LEN: usize = 8;
const ID_LEN: usize = 8;
const MAC_LEN: usize = 8;
const NONCE_LEN: usize = ID_LEN + MAC_LEN;

/// Makes and checks nonces. One per shard and process start; the keys are never shared or stored.
pub struct NonceKey {
    mac: [u8; 16],
    cipher: [u8; 16],
    place: [u8; PLACE_LEN],
    counter: u32,
}

/// A nonce as it stands in a header field.
pub type NonceText = Base64Url<NONCE_TEXT_LEN>;

/// Names one nonce of one [`NonceKey`]: the second in which it was made, and its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NonceId(pub(crate) u64);

/// Why a nonce is not accepted. Challenge again with `stale=true`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NonceError {
    /// Made up, of another replica, start or shard, or given to another address: without the key these look alike.
    #[error("the nonce is not of this shard and start, or was given to another address")]
    Foreign,
    /// Ours, but older than [`WINDOW_S`].
    #[error("the nonce is too old")]
    Expired,
}

impl NonceKey {
    /// `key` is random and new at each start of the process; `replica` differs between frontends, `boot` between starts
    /// of one, `shard` between threads.
    #[must_use]
    pub fn new(key: &[u8; 32], replica: u16, boot: u32, shard: u16) -> Self {
        let mut place = [0; PLACE_LEN];
        place[..2].copy_from_slice(&replica.to_be_bytes());
        place[2..6].copy_from_slice(&boot.to_be_bytes());
        place[6..].copy_from_slice(&shard.to_be_bytes());
        let (mut mac, mut cipher) = ([0; 16], [0; 16]);
        mac.copy_from_slice(&key[..16]);
        cipher.copy_from_slice(&key[16..]);
        Self { mac, cipher, place, counter: 0 }
    }

    /// A new nonce for this client. `now` must not go back while the key lives: take it from a monotonic clock.
    pub fn mint(&mut self, now: UnixTime, client: IpAddr) -> NonceText {
        let id = NonceId::new(now, self.counter);
        self.counter = self.counter.wrapping_add(1);
        let mac = self.mac(id, client);
        let mut bytes = [0; NONCE_LEN];
        bytes[..ID_LEN].copy_from_slice(&self.mask(mac, id.0).to_be_bytes());
        bytes[ID_LEN..].copy_from_slice(&mac);
        Base64Url::encode(&bytes)
    }

    /// Whether `text` is a nonce that this key gave to this client not longer than [`WINDOW_S`] ago.
    ///
    /// # Errors
    /// See [`NonceError`].
    pub fn check(&self, text: &[u8], now: UnixTime, client: IpAddr) -> Result<NonceId, NonceError> {
        let bytes: [u8; NONCE_LEN] = decode(text).ok_or(NonceError::Foreign)?;
        let (masked, mac) = bytes.split_first_chunk::<ID_LEN>().ok_or(NonceError::Foreign)?;
        let sent: [u8; MAC_LEN] = mac.try_into().map_err(|_| NonceError::Foreign)?;
        let id = NonceId(self.mask(sent, u64::from_be_bytes(*masked)));
        if !bool::from(self.mac(id, client).ct_eq(&sent)) {
            return Err(NonceError::Foreign);
        }
        if id.age_s(now) > WINDOW_S { Err(NonceError::Expired) } else { Ok(id) }
    }

    /// Encrypts and decrypts: the MAC, which no two nonces share but by chance, is the initialisation vector.
    fn mask(&self, mac: [u8; MAC_LEN], id: u64) -> u64 {
        id ^ SipHasher24::new_with_key(&self.cipher).hash(&mac)
    }

    fn mac(&self, id: NonceId, client: IpAddr) -> [u8; MAC_LEN] {
        let mut input = [0; PLACE_LEN + ID_LEN + 16];
        input[..PLACE_LEN].copy_from_slice(&self.place);
        input[PLACE_LEN..PLACE_LEN + ID_LEN].copy_from_slice(&id.0.to_be_bytes());
        // One form for both families, so that a client on a dual-stack socket stays the same.
        input[PLACE_LEN + ID_LEN..].copy_from_slice(&ip::octets(client));
        SipHasher24::new_with_key(&self.mac).hash(&input).to_be_bytes()
    }
}

impl NonceId {
    pub(crate) const fn new(minted: UnixTime, counter: u32) -> Self {
        Self(minted.0 << 32 | counter as u64)
    }

    /// How old it is, in seconds: it carries the lower 32 bits of its time, and `now` has the upper ones.
    pub(crate) const fn age_s(self, now: UnixTime) -> u64 {
        (now.0 as u32).wrapping_sub((self.0 >> 32) as u32) as u64
    }
}

impl Drop for NonceKey {
    fn drop(&mut self) {
        self.mac.zeroize();
        self.cipher.zeroize();
    }
}

impl fmt::Debug for NonceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NonceKey").field("place", &self.place).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};

    use super::*;

    const NOW: UnixTime = UnixTime(1_800_000_000);

    fn key() -> NonceKey {
        NonceKey::new(&[7; 32], 1, 2, 3)
    }

    fn client() -> IpAddr {
        "192.0.2.1".parse().unwrap()
    }

    #[test]
    fn a_nonce_is_accepted_from_its_client_within_the_window() {
        let mut key = key();
        let nonce = key.mint(NOW, client());
        let id = key.check(nonce.as_bytes(), NOW, client()).unwrap();
        assert_eq!(key.check(nonce.as_bytes(), NOW.plus_secs(WINDOW_S), client()), Ok(id));
        assert_eq!(key.check(nonce.as_bytes(), NOW, "::ffff:192.0.2.1".parse().unwrap()), Ok(id));
        assert_eq!(key.check(nonce.as_bytes(), NOW.plus_secs(WINDOW_S + 1), client()), Err(NonceError::Expired));
        assert_eq!(key.check(nonce.as_bytes(), UnixTime(NOW.0 - 1), client()), Err(NonceError::Expired));
        assert_eq!(key.check(nonce.as_bytes(), NOW, "192.0.2.2".parse().unwrap()), Err(NonceError::Foreign));
    }

    #[test]
    fn another_replica_start_or_shard_calls_it_foreign() {
        let nonce = key().mint(NOW, client());
        for (replica, boot, shard) in [(2, 2, 3), (1, 3, 3), (1, 2, 4)] {
            let other = NonceKey::new(&[7; 32], replica, boot, shard);
            assert_eq!(other.check(nonce.as_bytes(), NOW, client()), Err(NonceError::Foreign));
        }
        for text in [&b""[..], b"f84f1cec41e6cbe5aea9c8e88d359", &[b'!'; 32], &[b'A'; 33]] {
            assert_eq!(key().check(text, NOW, client()), Err(NonceError::Foreign));
        }
        let same_place = NonceKey::new(&[8; 32], 1, 2, 3);
        assert_eq!(same_place.check(nonce.as_bytes(), NOW, client()), Err(NonceError::Foreign));
    }

    #[test]
    fn no_bit_can_be_changed() {
        let mut key = key();
        let nonce: [u8; NONCE_LEN] = decode(key.mint(NOW, client()).as_bytes()).unwrap();
        for bit in 0..NONCE_LEN * 8 {
            let mut changed = nonce;
            changed[bit / 8] ^= 1 << (bit % 8);
            let text = URL_SAFE_NO_PAD.encode(changed);
            assert!(key.check(text.as_bytes(), NOW, client()).is_err());
        }
    }

    /// The bits of the nonces of a second, of one client: time, counter and place cannot be read off, nor can two nonces
    /// be told to be neighbours.
    #[test]
    fn a_nonce_tells_nothing_of_its_time_number_and_maker() {
        let mut key = key();
        let all: Vec<[u8; NONCE_LEN]> =
            (0..4_096).map(|_| decode(key.mint(NOW, client()).as_bytes()).unwrap()).collect();
        for bit in 0..NONCE_LEN * 8 {
            let of = |nonce: &[u8; NONCE_LEN]| u32::from(nonce[bit / 8] >> (bit % 8) & 1);
            let set: u32 = all.iter().map(of).sum();
            let changes: u32 = all.windows(2).map(|pair| of(&pair[0]) ^ of(&pair[1])).sum();
            // Half of them, five standard deviations wide.
            assert!((1_888..=2_208).contains(&set) && (1_888..=2_208).contains(&changes), "bit {bit}: {set} {changes}");
        }
    }

    #[test]
    fn no_two_nonces_are_alike() {
        let mut key = key();
        assert_ne!(key.mint(NOW, client()).as_str(), key.mint(NOW, client()).as_str());
    }
}
