use alloc::{boxed::Box, vec};

use crate::{
    members::Members,
    sources::{ROWS, Sources, WIDTH, cells},
};

/// Least that each of a source may have of an interval: one in a thousand.
const LEVEL_MIN: f64 = 1e-3;
/// A source has sent so many times what was left of the count at the start of an interval when half of that has passed.
const MIDDLE: f64 = 1.5;
/// A sieve lets one in so many through of whoever sends most, by which it is known what that sends.
const SAMPLED: f64 = 256.0;

/// How exact a door and its sieve are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slack {
    /// How many times what is let in the sieve lets through: beyond once it is the door that decides.
    through: f64,
    /// How many times what it may have a source is let in that came through the sieve: beyond once it is the sieve that decides.
    in_again: f64,
}

impl Slack {
    /// To refuse a request costs little.
    pub(crate) const REQUESTS: Self = Self { through: 1.05, in_again: 1.0 };
    /// To refuse a connection that the kernel has made costs a good part of what it takes to serve it.
    pub(crate) const CONNECTIONS: Self = Self { through: 1.0, in_again: 2.0 };
}

/// What something came through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Through {
    /// No sieve.
    Nothing,
    /// The one that is in place.
    Sieve,
    /// The one that was in place in the interval before.
    SieveBefore,
}

/// What of one kind is let in by source: all sources, or each of their members, get the same, and who sends more is refused the
/// rest. A [sieve](Self::sieve) in front of it may refuse most of that already; what comes through then stands for what did not.
#[derive(Debug)]
pub(crate) struct Door {
    slack: Slack,
    sent: Sources,
    level: Option<f64>,
    /// Part of that which is let in for as long as what waits is worked off.
    held: f64,
    /// Probability that a source's are let through, by the cells that it is counted in: the greatest of them. In 2^32nds, and
    /// `u32::MAX` for certainty. Of this interval and of the one before, if there was a sieve.
    sieve: Box<[u32]>,
    sieve_before: Box<[u32]>,
    is_sieving: bool,
    was_sieving: bool,
}

impl Door {
    pub(crate) fn new(slack: Slack) -> Self {
        let sieve = vec![u32::MAX; WIDTH * ROWS].into_boxed_slice();
        Self {
            slack,
            sent: Sources::new(),
            level: None,
            held: 1.0,
            sieve_before: sieve.clone(),
            sieve,
            is_sieving: false,
            was_sieving: false,
        }
    }

    /// One more comes from a source of so many members: with which probability it is let in.
    pub(crate) fn share(&mut self, source: u64, members: f64, through: Through) -> f64 {
        let sieve = match through {
            Through::Sieve if self.is_sieving => Some(&self.sieve),
            Through::SieveBefore if self.was_sieving => Some(&self.sieve_before),
            _ => None,
        };
        let (let_through, again) = sieve.map_or((1.0, 1.0), |sieve| (lets_through(sieve, source), self.slack.in_again));
        let sent = self.sent.count(source, members, (1.0 / let_through) as f32);
        self.level().map_or(1.0, |level| (again * level / sent / let_through).min(1.0))
    }

    /// What each may have is changed by this factor, and held at a part of it for an interval.
    pub(crate) fn step(&mut self, step: f64, held: f64) {
        let heaviest = self.sent.heaviest();
        self.held = held;
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
        core::mem::swap(&mut self.sieve, &mut self.sieve_before);
        self.was_sieving = self.is_sieving;
        let level = self.level();
        self.is_sieving = level.is_some();
        let Some(level) = level else { return };
        let cells = self.sieve.iter_mut().zip(self.sent.counted()).zip(members.counted());
        for ((share, sent), members) in cells {
            let may = self.slack.through * level * f64::from(members.max(1));
            let expected = MIDDLE * f64::from(sent);
            *share = if may < expected {
                // Rounding ends at what fits.
                ((may / expected).max(1.0 / SAMPLED) * 4_294_967_296.0) as u32
            } else {
                u32::MAX
            };
        }
    }

    /// What each may have, if that is less than everything.
    pub(crate) fn level(&self) -> Option<f64> {
        self.level.map(|level| (level * self.held).max(LEVEL_MIN))
    }

    /// See [`Self::sieve`](field); nothing while all are let through.
    pub(crate) fn sieve(&self) -> Option<&[u32]> {
        self.is_sieving.then_some(&self.sieve)
    }
}

fn lets_through(sieve: &[u32], source: u64) -> f64 {
    let shares = cells(source).filter_map(|cell| sieve.get(cell));
    shares.max().map_or(1.0, |share| (f64::from(*share) + 1.0) / 4_294_967_296.0)
}
