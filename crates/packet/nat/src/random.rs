use sluicegate_flow::Hasher;

/// Unpredictable numbers from a seed: a keyed hash of a counter. The same key and seed give the same numbers, so that
/// a simulation can be replayed.
#[derive(Debug)]
pub(crate) struct Random {
    hasher: Hasher,
    seed: u64,
    count: u64,
}

impl Random {
    pub(crate) fn new(key: &[u8; 16], seed: u64) -> Self {
        // Another key than the tables', so that what is seen of the ports tells nothing about them.
        let mut key = *key;
        key.iter_mut().for_each(|byte| *byte ^= 0x5c);
        Self { hasher: Hasher::new(&key), seed, count: 0 }
    }

    /// A number below `end`, which is at least 1.
    pub(crate) fn below(&mut self, end: u32) -> u32 {
        self.count += 1;
        let mut input = [0; 16];
        input[..8].copy_from_slice(&self.seed.to_le_bytes());
        input[8..].copy_from_slice(&self.count.to_le_bytes());
        ((u128::from(self.hasher.hash(&input)) * u128::from(end)) >> 64) as u32
    }
}
