use alloc::{boxed::Box, vec};

/// Counters a row: a power of two.
const WIDTH: usize = 4_096;
const ROWS: usize = 2;

/// How much each source sends, within fixed memory: a count-min sketch (Cormode, Muthukrishnan) whose counters fade. A source
/// is never counted too low; one that shares all of its counters with others is counted too high.
#[derive(Debug)]
pub(crate) struct Sources {
    counters: Box<[u16]>,
    heaviest: f64,
}

impl Sources {
    pub(crate) fn new() -> Self {
        Self { counters: vec![0; WIDTH * ROWS].into_boxed_slice(), heaviest: 0.0 }
    }

    /// Counts a request of a source, which is a keyed hash of it: how many it has sent lately for each of its members.
    pub(crate) fn count(&mut self, source: u64, members: f64) -> f64 {
        let mut least = u16::MAX;
        for row in 0..ROWS {
            let column = (source >> (row * 16)) as usize % WIDTH;
            if let Some(counter) = self.counters.get_mut(row * WIDTH + column) {
                *counter = counter.saturating_add(1);
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

    /// Half of what was counted is forgotten.
    pub(crate) fn fade(&mut self) {
        for counter in &mut self.counters {
            *counter /= 2;
        }
        self.heaviest /= 2.0;
    }
}
