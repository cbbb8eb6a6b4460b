use siphasher::sip::SipHasher13;

/// The keyed hash behind every index: SipHash-1-3, so that no sender can choose where its packets land.
///
/// An index needs speed and unpredictability, not a tag that convinces anyone; tags use SipHash-2-4 with other keys.
#[derive(Clone)]
pub struct Hasher {
    bytes: SipHasher13,
    /// The state that the key makes.
    start: [u64; 4],
}

impl Hasher {
    /// A hasher under a secret key.
    #[must_use]
    pub fn new(key: &[u8; 16]) -> Self {
        let [k0, k1] = [0, 8].map(|at| u64::from_le_bytes(core::array::from_fn(|n| key[at + n])));
        let start = [
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ];
        Self { bytes: SipHasher13::new_with_key(key), start }
    }

    /// The hash of `bytes`.
    #[inline]
    #[must_use]
    pub fn hash(&self, bytes: &[u8]) -> u64 {
        self.bytes.hash(bytes)
    }

    /// The hash of the bytes of `words` as they lie in memory: half the time of [`Self::hash`], for keys of lines.
    #[inline]
    #[must_use]
    pub(crate) fn hash_words<const N: usize>(&self, words: [u64; N]) -> u64 {
        let mut v = self.start;
        for word in words {
            v = absorb(v, word.to_le());
        }
        v = absorb(v, (N as u64 * 8) << 56);
        v[2] ^= 0xff;
        v = round(round(round(v)));
        v[0] ^ v[1] ^ v[2] ^ v[3]
    }
}

#[inline]
const fn absorb(mut v: [u64; 4], word: u64) -> [u64; 4] {
    v[3] ^= word;
    v = round(v);
    v[0] ^= word;
    v
}

/// SipRound.
#[inline]
const fn round([mut v0, mut v1, mut v2, mut v3]: [u64; 4]) -> [u64; 4] {
    v0 = v0.wrapping_add(v1);
    v2 = v2.wrapping_add(v3);
    v1 = v1.rotate_left(13) ^ v0;
    v3 = v3.rotate_left(16) ^ v2;
    v0 = v0.rotate_left(32).wrapping_add(v3);
    v2 = v2.wrapping_add(v1);
    v3 = v3.rotate_left(21) ^ v0;
    v1 = v1.rotate_left(17) ^ v2;
    [v0, v1, v2.rotate_left(32), v3]
}

impl core::fmt::Debug for Hasher {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Hasher(keyed)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_hash_as_their_bytes_do() {
        let hasher = Hasher::new(&core::array::from_fn(|n| n as u8 * 17));
        for n in 0..1_000u64 {
            let words = [n, n.wrapping_mul(0x9e37_79b9_7f4a_7c15), !n, n << 40, n ^ 0xff];
            let mut bytes = [0; 40];
            for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
                to.copy_from_slice(&word.to_ne_bytes());
            }
            assert_eq!(hasher.hash_words(words), hasher.hash(&bytes));
            assert_eq!(hasher.hash_words([words[0], words[1]]), hasher.hash(&bytes[..16]));
        }
    }
}
