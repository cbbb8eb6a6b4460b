//! What the machine itself takes: one block of AES, one read from memory that is in no cache.

use std::{hint::black_box, time::Instant};

use aes::{
    Aes128, Block,
    cipher::{BlockCipherEncrypt as _, KeyInit as _},
};

/// Cache lines in the memory that is read at random: 128 MB, as large as the router's table of a million lines.
const LINES: usize = 1 << 21;
/// Steps between two looks at the clock.
const STEPS: u32 = 512;
const CHUNKS: usize = 800;

type Line = [u64; 8];

pub(super) struct Floors {
    /// Each line holds the index of the next, in one random circle.
    lines: Vec<Line>,
    aes: Aes128,
    aes_block: Vec<f64>,
    memory_access: Vec<f64>,
}

impl Floors {
    pub(super) fn new() -> Self {
        let mut order: Vec<usize> = (0..LINES).collect();
        fastrand::Rng::with_seed(1).shuffle(&mut order);
        let mut lines = vec![[0; 8]; LINES];
        for (from, to) in order.iter().zip(order.iter().cycle().skip(1)) {
            lines[*from][0] = *to as u64;
        }
        Self { lines, aes: Aes128::new(&[7; 16].into()), aes_block: Vec::new(), memory_access: Vec::new() }
    }

    /// One sample of each, of dependent steps.
    pub(super) fn measure(&mut self) {
        let mut block = Block::from([1; 16]);
        self.aes_block.push(per_step(|| {
            for _ in 0..STEPS {
                self.aes.encrypt_block(&mut block);
            }
            black_box(&block);
        }));
        let mut at = 0;
        self.memory_access.push(per_step(|| {
            for _ in 0..STEPS {
                at = self.lines[at as usize % LINES][0];
            }
            black_box(at);
        }));
    }

    pub(super) fn values(&self) -> impl Iterator<Item = (&'static str, &[f64])> {
        [("aes_block", &self.aes_block[..]), ("memory_access", &self.memory_access[..])].into_iter()
    }
}

/// The median over chunks, as the rows are measured: what interrupts the thread does not count.
fn per_step(mut chunk: impl FnMut()) -> f64 {
    let mut costs: Vec<u128> = (0..CHUNKS)
        .map(|_| {
            let start = Instant::now();
            chunk();
            start.elapsed().as_nanos()
        })
        .collect();
    costs.sort_unstable();
    costs[CHUNKS / 2] as f64 / f64::from(STEPS)
}
