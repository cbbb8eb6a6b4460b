use alloc::{boxed::Box, vec};

/// Counters a row: a power of two.
pub(crate) const WIDTH: usize = 4_096;
pub(crate) const ROWS: usize = 2;

/// How much each source sends, within fixed memory: a count-min sketch (Cormode, Muthukrishnan) whose counters fade. A source
/// is never counted too low; one that shares all of its counters with others is counted too high.
#[derive(Debug)]
pub(crate) struct Sources {
    counters: Box<[f32]>,
    heaviest: f64,
}

/// Where a source, which is a keyed hash of it, is counted: row after row.
pub(crate) fn cells(source: u64) -> impl Iterator<Item = usize> {
    (0..ROWS).map(move |row| row * WIDTH + (source >> (row * 16)) as usize % WIDTH)
}

impl Sources {
    pub(crate) fn new() -> Self {
        Self { counters: vec![0.0; WIDTH * ROWS].into_boxed_slice(), heaviest: 0.0 }
    }

    /// Counts what came from a source, and stands for so many: how many it has sent lately for each of its members.
    pub(crate) fn count(&mut self, source: u64, members: f64, stands_for: f32) -> f64 {
        let mut least = f32::MAX;
        for cell in cells(source) {
            if let Some(counter) = self.counters.get_mut(cell) {
                *counter += stands_for;
                least = least.min(*counter);
            }
        }
        let each = f64::from(least) / members;
        self.heaviest = self.heaviest.max(each);
        each
    }

    /// What the source that sends most has sent lately, for each of its members.
    pub(crate) const fn heaviest(&self) -> f64 {
        self.heaviest
    }

    /// What was counted in each cell.
    pub(crate) fn counted(&self) -> impl Iterator<Item = f32> {
        self.counters.iter().copied()
    }

    /// Half of what was counted is forgotten.
    pub(crate) fn fade(&mut self) {
        for counter in &mut self.counters {
            *counter = if *counter < 2.0 { 0.0 } else { *counter / 2.0 };
        }
        self.heaviest /= 2.0;
    }
}
