//! SipHash-2-4 (Aumasson and Bernstein 2012) over a few words, for one message or several in lanes.
//!
//! The lanes are independent, so the processor works on all of them at once: that is what makes batches cheap.

use sluicegate_wire::capability::{Capability, Limits};
use zeroize::{Zeroize, ZeroizeOnDrop};

use super::message::Message;

/// A key of 16 bytes, as two little-endian words.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub(super) struct Key {
    pub(super) k0: u64,
    pub(super) k1: u64,
}

impl Key {
    pub(super) fn new(bytes: &[u8; 16]) -> Self {
        let value = u128::from_le_bytes(*bytes);
        Self { k0: value as u64, k1: (value >> 64) as u64 }
    }

    #[inline]
    pub(super) fn hash(&self, message: &Message) -> u64 {
        let [hash] = match *message {
            Message::V4(block) => sip24([self.k0], [self.k1], &Message::words_v4(block).map(|word| [word])),
            Message::V6(blocks) => sip24([self.k0], [self.k1], &Message::words_v6(blocks).map(|word| [word])),
        };
        hash
    }

    /// The hash of 8 bytes: `value`, big-endian.
    #[inline]
    pub(super) fn hash_u64(&self, value: u64) -> u64 {
        const LEN: u64 = 8;
        let [hash] = sip24([self.k0], [self.k1], &[[value.swap_bytes()], [LEN << 56]]);
        hash
    }
}

/// The second hash: keyed with the pre-capability and 8 zero bytes, over N and T as 2 bytes.
#[inline]
pub(super) fn seal(pre: Capability, limits: Limits) -> Capability {
    let [sealed] = seal_lanes([pre], [limits]);
    sealed
}

/// [`seal`] in lanes.
#[inline]
pub(super) fn seal_lanes<const L: usize>(pre: [Capability; L], limits: [Limits; L]) -> [Capability; L] {
    const LEN: u64 = 2;
    let k0 = pre.map(|pre| pre.0.swap_bytes());
    let word = limits.map(|limits| u64::from(limits.bits().swap_bytes()) | LEN << 56);
    let hashes = sip24(k0, [0; L], &[word]);
    let mut sealed = pre;
    for (sealed, hash) in sealed.iter_mut().zip(hashes) {
        *sealed = Capability::new(sealed.timestamp(), hash);
    }
    sealed
}

/// The hash of one message in each lane. `words` are its little-endian words, the last one padded and with the length
/// modulo 256 in its top byte.
#[inline]
pub(super) fn sip24<const L: usize, const W: usize>(k0: [u64; L], k1: [u64; L], words: &[[u64; L]; W]) -> [u64; L] {
    let mut state = State {
        v0: k0.map(|key| key ^ 0x736f_6d65_7073_6575),
        v1: k1.map(|key| key ^ 0x646f_7261_6e64_6f6d),
        v2: k0.map(|key| key ^ 0x6c79_6765_6e65_7261),
        v3: k1.map(|key| key ^ 0x7465_6462_7974_6573),
    };
    for word in words {
        state.v3 = xor(state.v3, *word);
        state.round();
        state.round();
        state.v0 = xor(state.v0, *word);
    }
    state.v2 = state.v2.map(|v2| v2 ^ 0xff);
    for _ in 0..4 {
        state.round();
    }
    xor(xor(state.v0, state.v1), xor(state.v2, state.v3))
}

struct State<const L: usize> {
    v0: [u64; L],
    v1: [u64; L],
    v2: [u64; L],
    v3: [u64; L],
}

impl<const L: usize> State<L> {
    #[inline(always)]
    fn round(&mut self) {
        self.v0 = add(self.v0, self.v1);
        self.v2 = add(self.v2, self.v3);
        self.v1 = xor(rotate::<L, 13>(self.v1), self.v0);
        self.v3 = xor(rotate::<L, 16>(self.v3), self.v2);
        self.v0 = rotate::<L, 32>(self.v0);
        self.v2 = add(self.v2, self.v1);
        self.v0 = add(self.v0, self.v3);
        self.v1 = xor(rotate::<L, 17>(self.v1), self.v2);
        self.v3 = xor(rotate::<L, 21>(self.v3), self.v0);
        self.v2 = rotate::<L, 32>(self.v2);
    }
}

#[inline(always)]
fn add<const L: usize>(mut a: [u64; L], b: [u64; L]) -> [u64; L] {
    for (a, b) in a.iter_mut().zip(b) {
        *a = a.wrapping_add(b);
    }
    a
}

#[inline(always)]
fn xor<const L: usize>(mut a: [u64; L], b: [u64; L]) -> [u64; L] {
    for (a, b) in a.iter_mut().zip(b) {
        *a ^= b;
    }
    a
}

#[inline(always)]
fn rotate<const L: usize, const BITS: u32>(mut a: [u64; L]) -> [u64; L] {
    for a in &mut a {
        *a = a.rotate_left(BITS);
    }
    a
}

#[cfg(test)]
mod tests {
    use core::hash::Hasher as _;
    use std::vec::Vec;

    use proptest::prelude::*;
    use siphasher::sip::SipHasher24;

    use super::*;

    const KEY: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

    #[test]
    fn the_example_of_the_siphash_paper_appendix_a_hashes_to_a129ca6149be45e5() {
        // Key 00..0f, message 00..0e (15 bytes).
        let key = Key::new(&KEY);
        let words = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        assert_eq!(sip24([key.k0], [key.k1], &words.map(|word| [word])), [0xa129_ca61_49be_45e5]);
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
        fn lanes_hash_as_the_general_implementation_does(
            keys: [[u8; 16]; 3], messages: [[u8; 38]; 3], limits in (1u16..1024, 1u8..64),
        ) {
            let general = |key: &[u8; 16], message: &[u8]| {
                let mut hasher = SipHasher24::new_with_key(key);
                hasher.write(message);
                hasher.finish()
            };
            let expected: Vec<u64> = keys.iter().zip(&messages).map(|(key, message)| general(key, message)).collect();
            let words: [[u64; 3]; 5] = core::array::from_fn(|word| core::array::from_fn(|lane| {
                let mut bytes = [0; 40];
                bytes[..38].copy_from_slice(&messages[lane]);
                bytes[39] = 38;
                u64::from_le_bytes(bytes[word * 8..][..8].try_into().unwrap())
            }));
            let keys = keys.map(|key| Key::new(&key));
            let hashes = sip24(keys.each_ref().map(|key| key.k0), keys.each_ref().map(|key| key.k1), &words);
            prop_assert_eq!(&hashes[..], &expected[..]);

            let (pre, limits) = (Capability(hashes[0]), Limits::new(limits.0, limits.1).unwrap());
            let key: [u8; 16] = [pre.0.to_be_bytes(), [0; 8]].concat().try_into().unwrap();
            prop_assert_eq!(seal(pre, limits).hash(), general(&key, &limits.bits().to_be_bytes()) & Capability::HASH_MASK);
            prop_assert_eq!(seal(pre, limits).timestamp(), pre.timestamp());
        }
    }
}
