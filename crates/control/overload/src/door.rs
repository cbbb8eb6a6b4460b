use alloc::{boxed::Box, vec};

use crate::{
    members::Members,
    sources::{ROWS, Sources, WIDTH, cells},
};

/// Least that each of a source may have of an interval: one in a thousand.
const LEVEL_MIN: f64 = 1e-3;
/// What a sieve lets through beyond what is let in, so that it is the door that decides.
const SLACK: f64 = 1.05;
/// A source has sent so many times what was left of the count at the start of an interval when half of that has passed.
const MIDDLE: f64 = 1.5;
/// A sieve lets one in so many through of whoever sends most, by which it is known what that sends.
const SAMPLED: f64 = 256.0;

/// What of one kind is let in by source: all sources, or each of their members, get the same, and who sends more is refused the
/// rest. A [sieve](Self::sieve) in front of it may refuse most of that already; what comes through then stands for what did not.
#[derive(Debug)]
pub(crate) struct Door {
    sent: Sources,
    level: Option<f64>,
    /// Probability that a source's are let through, by the cells that it is counted in: the greatest of them. In 2^32nds, and
    /// `u32::MAX` for certainty.
    sieve: Box<[u32]>,
    is_sieving: bool,
}

impl Door {
    pub(crate) fn new() -> Self {
        let sieve = vec![u32::MAX; WIDTH * ROWS].into_boxed_slice();
        Self { sent: Sources::new(), level: None, sieve, is_sieving: false }
    }

    /// One more comes from a source of so many members, through the sieve or past it: with which probability it is let in.
    pub(crate) fn share(&mut self, source: u64, members: f64, is_sieved: bool) -> f64 {
        let let_through = if is_sieved { self.lets_through(source) } else { 1.0 };
        let sent = self.sent.count(source, members, (1.0 / let_through) as f32);
        self.level.map_or(1.0, |level| (level / sent / let_through).min(1.0))
    }

    fn lets_through(&self, source: u64) -> f64 {
        if !self.is_sieving {
            return 1.0;
        }
        let shares = cells(source).filter_map(|cell| self.sieve.get(cell));
        shares.max().map_or(1.0, |share| (f64::from(*share) + 1.0) / 4_294_967_296.0)
    }

    /// What each may have is changed by this factor.
    pub(crate) fn step(&mut self, step: f64) {
        let heaviest = self.sent.heaviest();
        self.level = match self.level {
            None if step < 1.0 => Some(heaviest * step),
            None => None,
            // Nobody sends as much as all may.
            Some(level) if level * step >= heaviest => None,
            Some(level) => Some((level * step).max(LEVEL_MIN)),
        };
    }

    /// Ends an interval.
    pub(crate) fn fade(&mut self, members: &Members) {
        self.sent.fade();
        match self.level {
            Some(level) => {
                let cells = self.sieve.iter_mut().zip(self.sent.counted()).zip(members.counted());
                for ((share, sent), members) in cells {
                    let may = SLACK * level * f64::from(members.max(1));
                    let expected = MIDDLE * f64::from(sent);
                    *share = if may < expected {
                        // Rounding ends at what fits.
                        ((may / expected).max(1.0 / SAMPLED) * 4_294_967_296.0) as u32
                    } else {
                        u32::MAX
                    };
                }
                self.is_sieving = true;
            }
            None if self.is_sieving => {
                self.sieve.fill(u32::MAX);
                self.is_sieving = false;
            }
            None => {}
        }
    }

    pub(crate) const fn level(&self) -> Option<f64> {
        self.level
    }

    /// See [`Self::sieve`](field); nothing while all are let through.
    pub(crate) fn sieve(&self) -> Option<&[u32]> {
        self.is_sieving.then_some(&self.sieve)
    }
}
