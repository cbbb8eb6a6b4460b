/// A seeded source of randomness. No cryptographic strength: it plays the world, not its secrets.
#[derive(Debug, Clone)]
pub struct Rng(fastrand::Rng);

impl Rng {
    /// The stream that belongs to `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    /// An independent stream, such as that of one node: what others draw does not change it.
    #[must_use]
    pub fn of(seed: u64, stream: u64) -> Self {
        let odd = stream.wrapping_mul(0xd6e8_feb8_6659_fd93);
        Self::new(fastrand::Rng::with_seed(seed ^ odd).u64(..))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// A number below `limit`; 0 if `limit` is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0.u64(..limit.max(1))
    }

    /// True with this probability, in parts per million.
    pub fn chance(&mut self, ppm: u32) -> bool {
        // Nothing is drawn for an impossible event: switching a fault off does not shift the others.
        ppm > 0 && self.below(1_000_000) < ppm.into()
    }

    /// 32 random bytes, such as the seed of a router's secrets.
    pub fn seed(&mut self) -> [u8; 32] {
        let mut seed = [0; 32];
        self.0.fill(&mut seed);
        seed
    }

    /// 16 random bytes, such as the key of a hash table.
    pub fn key(&mut self) -> [u8; 16] {
        self.0.u128(..).to_be_bytes()
    }
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
