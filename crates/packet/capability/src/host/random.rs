use core::hash::Hasher as _;

use siphasher::sip::SipHasher24;
use sluicegate_wire::capability::FlowNonce;
use zeroize::Zeroizing;

/// The host's randomness and its keyed hashes, all from one seed: SipHash-2-4 in counter mode is a pseudo-random
/// function, and a table index needs no more than one.
pub(super) struct Random {
    draw_key: Zeroizing<[u8; 16]>,
    index_key: Zeroizing<[u8; 16]>,
    drawn: u64,
}

impl Random {
    pub(super) fn new(seed: &[u8; 32]) -> Self {
        let mut random = Self { draw_key: Zeroizing::new([0; 16]), index_key: Zeroizing::new([0; 16]), drawn: 0 };
        random.draw_key.copy_from_slice(&seed[..16]);
        random.index_key.copy_from_slice(&seed[16..]);
        random
    }

    /// 64 bits that nobody without the seed can guess.
    pub(super) fn draw(&mut self) -> u64 {
        self.drawn += 1;
        let mut hasher = SipHasher24::new_with_key(&self.draw_key);
        hasher.write_u64(self.drawn);
        hasher.finish()
    }

    /// A fresh flow nonce.
    pub(super) fn nonce(&mut self) -> FlowNonce {
        FlowNonce::from_low_bits(self.draw())
    }

    /// A keyed hash: for indices, for the digests of what was granted, and for client ids of a LAN's hosts.
    pub(super) fn index(&self, bytes: &[u8]) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.index_key);
        hasher.write(bytes);
        hasher.finish()
    }
}

impl core::fmt::Debug for Random {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Random(keyed)")
    }
}
