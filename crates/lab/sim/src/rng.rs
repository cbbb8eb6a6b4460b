/// A seeded source of randomness (xoshiro256**, seeded by SplitMix64). No cryptographic strength: it plays the world,
/// not its secrets.
#[derive(Debug, Clone)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The stream that belongs to `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut at = seed;
        Self { state: std::array::from_fn(|_| split_mix(&mut at)) }
    }

    /// An independent stream, such as that of one node: what others draw does not change it.
    #[must_use]
    pub fn of(seed: u64, stream: u64) -> Self {
        let mut at = seed ^ stream.wrapping_mul(0xd6e8_feb8_6659_fd93);
        Self::new(split_mix(&mut at))
    }

    /// 64 random bits.
    pub const fn bits(&mut self) -> u64 {
        let [s0, s1, s2, s3] = &mut self.state;
        let result = s1.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = *s1 << 17;
        *s2 ^= *s0;
        *s3 ^= *s1;
        *s1 ^= *s2;
        *s0 ^= *s3;
        *s2 ^= shifted;
        *s3 = s3.rotate_left(45);
        result
    }

    /// A number below `limit`; 0 if `limit` is 0.
    pub const fn below(&mut self, limit: u64) -> u64 {
        ((self.bits() as u128 * limit as u128) >> 64) as u64
    }

    /// True with this probability, in parts per million.
    pub const fn chance(&mut self, ppm: u32) -> bool {
        // Nothing is drawn for an impossible event: switching a fault off does not shift the others.
        ppm > 0 && self.below(1_000_000) < ppm as u64
    }

    /// 32 random bytes, such as the seed of a router's secrets.
    pub fn seed(&mut self) -> [u8; 32] {
        let mut seed = [0; 32];
        for chunk in seed.chunks_exact_mut(8) {
            chunk.copy_from_slice(&self.bits().to_le_bytes());
        }
        seed
    }

    /// 16 random bytes, such as the key of a hash table.
    pub fn key(&mut self) -> [u8; 16] {
        let mut key = [0; 16];
        key.copy_from_slice(&self.seed()[..16]);
        key
    }
}

const fn split_mix(at: &mut u64) -> u64 {
    *at = at.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *at;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_one_seed_differ_and_repeat() {
        let draw = |stream| {
            let mut rng = Rng::of(7, stream);
            [rng.bits(), rng.bits(), rng.bits()]
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn chances_come_true_as_often_as_they_say() {
        let mut rng = Rng::new(1);
        let hits = (0..100_000).filter(|_| rng.chance(250_000)).count();
        assert!((24_500..25_500).contains(&hits), "{hits}");
        assert!(!rng.chance(0) && rng.chance(1_000_000));
    }
}
