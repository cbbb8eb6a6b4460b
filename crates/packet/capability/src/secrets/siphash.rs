//! SipHash-2-4 (Aumasson and Bernstein 2012) over a few words that lie in registers.
//!
//! One message keeps most of the processor's adders busy, and independent messages in a row overlap by themselves.
//! Lanes would gain nothing: without AVX2 a vector rotation costs three instructions for two lanes.

use sluicegate_wire::capability::{Capability, Limits};
use zeroize::{Zeroize, ZeroizeOnDrop};

use super::message::Message;

/// A key of 16 bytes, as two little-endian words.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub(super) struct Key {
    k0: u64,
    k1: u64,
}

impl Key {
    pub(super) fn new(bytes: &[u8; 16]) -> Self {
        let value = u128::from_le_bytes(*bytes);
        Self { k0: value as u64, k1: (value >> 64) as u64 }
    }

    #[inline]
    pub(super) fn hash(&self, message: &Message) -> u64 {
        match *message {
            Message::V4(block) => sip24(self.k0, self.k1, &Message::words_v4(block)),
            Message::V6(blocks) => sip24(self.k0, self.k1, &Message::words_v6(blocks)),
        }
    }

    /// The hash of 8 bytes: `value`, big-endian.
    #[inline]
    pub(super) fn hash_u64(&self, value: u64) -> u64 {
        const LEN: u64 = 8;
        sip24(self.k0, self.k1, &[value.swap_bytes(), LEN << 56])
    }
}

/// The second hash: keyed with the pre-capability and 8 zero bytes, over N and T as 2 bytes.
#[inline]
pub(super) fn seal(pre: Capability, limits: Limits) -> Capability {
    const LEN: u64 = 2;
    let word = u64::from(limits.bits().swap_bytes()) | LEN << 56;
    Capability::new(pre.timestamp(), sip24(pre.0.swap_bytes(), 0, &[word]))
}

/// The hash of a message: its little-endian words, the last one padded and with the length modulo 256 in its top byte.
#[inline]
fn sip24<const W: usize>(k0: u64, k1: u64, words: &[u64; W]) -> u64 {
    let mut state = State {
        v0: k0 ^ 0x736f_6d65_7073_6575,
        v1: k1 ^ 0x646f_7261_6e64_6f6d,
        v2: k0 ^ 0x6c79_6765_6e65_7261,
        v3: k1 ^ 0x7465_6462_7974_6573,
    };
    for word in words {
        state.v3 ^= word;
        state.round();
        state.round();
        state.v0 ^= word;
    }
    state.v2 ^= 0xff;
    for _ in 0..4 {
        state.round();
    }
    state.v0 ^ state.v1 ^ state.v2 ^ state.v3
}

struct State {
    v0: u64,
    v1: u64,
    v2: u64,
    v3: u64,
}

impl State {
    #[inline(always)]
    const fn round(&mut self) {
        self.v0 = self.v0.wrapping_add(self.v1);
        self.v2 = self.v2.wrapping_add(self.v3);
        self.v1 = self.v1.rotate_left(13) ^ self.v0;
        self.v3 = self.v3.rotate_left(16) ^ self.v2;
        self.v0 = self.v0.rotate_left(32);
        self.v2 = self.v2.wrapping_add(self.v1);
        self.v0 = self.v0.wrapping_add(self.v3);
        self.v1 = self.v1.rotate_left(17) ^ self.v2;
        self.v3 = self.v3.rotate_left(21) ^ self.v0;
        self.v2 = self.v2.rotate_left(32);
    }
}

#[cfg(test)]
mod tests {
    use core::hash::Hasher as _;

    use proptest::prelude::*;
    use siphasher::sip::SipHasher24;

    use super::*;

    const KEY: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

    #[test]
    fn the_example_of_the_siphash_paper_appendix_a_hashes_to_a129ca6149be45e5() {
        // Key 00..0f, message 00..0e (15 bytes).
        let key = Key::new(&KEY);
        let words = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        assert_eq!(sip24(key.k0, key.k1, &words), 0xa129_ca61_49be_45e5);
    }

    #[test]
    fn eight_bytes_hash_as_in_the_reference_vectors() {
        // vectors_sip64[8] of the reference implementation: bytes 62 24 93 9a 79 f5 f5 93.
        assert_eq!(
            Key::new(&KEY).hash_u64(0x0001_0203_0405_0607),
            u64::from_le_bytes([0x62, 0x24, 0x93, 0x9a, 0x79, 0xf5, 0xf5, 0x93])
        );
    }

    proptest! {
        #[test]
        fn words_hash_as_the_general_implementation_hashes_their_bytes(
            key: [u8; 16], message: [u8; 38], limits in (1u16..1024, 1u8..64),
        ) {
            let general = |key: &[u8; 16], message: &[u8]| {
                let mut hasher = SipHasher24::new_with_key(key);
                hasher.write(message);
                hasher.finish()
            };
            let words: [u64; 5] = core::array::from_fn(|word| {
                let mut bytes = [0; 40];
                bytes[..38].copy_from_slice(&message);
                bytes[39] = 38;
                u64::from_le_bytes(bytes[word * 8..][..8].try_into().unwrap())
            });
            let own = Key::new(&key);
            let hash = sip24(own.k0, own.k1, &words);
            prop_assert_eq!(hash, general(&key, &message));

            let (pre, limits) = (Capability(hash), Limits::new(limits.0, limits.1).unwrap());
            let key: [u8; 16] = [pre.0.to_be_bytes(), [0; 8]].concat().try_into().unwrap();
            prop_assert_eq!(seal(pre, limits).hash(), general(&key, &limits.bits().to_be_bytes()) & Capability::HASH_MASK);
            prop_assert_eq!(seal(pre, limits).timestamp(), pre.timestamp());
        }
    }
}
