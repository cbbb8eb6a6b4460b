use crate::{
    Crowd,
    door::{Door, Slack, Through},
    members::Members,
};

/// Weight of an interval in how many connections are usually taken.
const SMOOTHING: f64 = 0.1;
/// So many times as many as usual are taken in an interval at most, and so many whatever is usual. What those bring that were
/// taken shows only when their senders have answered.
const BURST: f64 = 2.0;
const BURST_MIN: f64 = 100.0;
/// Where those were not enough, and the thread has time left, it may be so many times as many in the next interval.
const GROWTH: f64 = 1.5;
/// Part of what is taken in an interval that may wait at its end: it keeps the thread busy, and is no fault.
const WAITING: f64 = 0.2;
/// What waits beyond that is worked off by letting in this part of it less, and never less than this of what each may have.
const DRAIN: f64 = 0.5;
const DRAINED_MIN: f64 = 0.1;
/// Least and most by which what a source may have is changed for what came, and for time that is left.
const CAME: (f64, f64) = (0.25, 1.25);
const LEFT: (f64, f64) = (1.05, 2.0);
/// How it is changed where more wait than the kernel holds, so that nobody knows how many came.
const FULL: f64 = 0.7;
/// A thread that is less busy than this part of what it may be keeps up.
const BUSY: f64 = 0.9;
/// What each source may have at first, of what the heaviest sends.
const BEGIN: f64 = 0.95;
/// So many are refused for one that is taken at most.
const REFUSED_MAX: u32 = 4;
/// Share of the places for strangers' connections from which on fewer are taken, and from which on half as many.
const STRANGERS: (f64, f64) = (0.125, 0.25);

/// Which connections are taken: as many as find their turn, and of all sources alike. The others wait in the kernel, where
/// nothing has been spent on them; by how many wait it is known how many more came than were taken.
#[derive(Debug)]
pub(crate) struct Connections {
    pub(crate) door: Door,
    /// In this interval.
    taken: u32,
    refused: u32,
    /// At the end of the one before, and whether that was too many.
    waiting: u32,
    is_behind: bool,
    /// Taken in an interval.
    usual: f64,
}

impl Connections {
    pub(crate) fn new() -> Self {
        Self { door: Door::new(Slack::CONNECTIONS), taken: 0, refused: 0, waiting: 0, is_behind: false, usual: 0.0 }
    }

    /// Whether to take one of a source of so many members. `chance` is random, below 1.
    pub(crate) fn take(&mut self, chance: f64, source: u64, members: f64, through: Through) -> bool {
        let is_taken = chance < self.door.share(source, members, through);
        *(if is_taken { &mut self.taken } else { &mut self.refused }) += 1;
        is_taken
    }

    /// How many more may be taken in this interval.
    pub(crate) fn left(&self) -> u32 {
        (self.most() as u32).saturating_sub(self.taken)
    }

    fn most(&self) -> f64 {
        (self.usual * BURST).max(BURST_MIN)
    }

    /// Ends an interval. A thread is to be busy for so much of its time at most.
    pub(crate) fn measure(&mut self, busy_max: f64, crowd: Crowd, members: &Members) {
        let taken = f64::from(self.taken.max(1));
        let waiting = f64::from(crowd.waiting);
        let beyond = waiting - WAITING * taken;
        let step = if crowd.waiting == 0 {
            (busy_max / crowd.busy.max(0.01)).clamp(LEFT.0, LEFT.1)
        } else {
            // Those that were let in, of which as many as were taken should have been.
            let came = f64::from(self.taken + self.refused) + waiting - f64::from(self.waiting);
            // Half of the way, as counts of an interval are uneven.
            let step = f64::midpoint(1.0, (taken / came.max(1.0)).clamp(CAME.0, CAME.1));
            let step = if crowd.is_full { step.min(FULL) } else { step };
            if beyond < 0.0 { step.max(LEFT.0) } else { step }
        };
        let (from, to) = STRANGERS;
        // Beyond that they would have to give way to others after something was spent on them.
        let crowding = 1.0 - ((crowd.strangers - from) / (to - from)).clamp(0.0, 1.0) / 2.0;
        // While there is time for all, those who only stand give way to each other.
        let crowding = if crowd.busy < busy_max / 2.0 { 1.0 } else { crowding };
        let drained = (1.0 - DRAIN * beyond.max(0.0) / taken).max(DRAINED_MIN);
        // Who could take more and did not cannot.
        let is_behind = beyond > 0.0 && (self.left() > 0 || crowd.busy >= BUSY * busy_max);
        let was_behind = core::mem::replace(&mut self.is_behind, is_behind);
        if self.door.level().is_some() {
            // Where refusing takes all the time, nobody is served: the kernel drops the rest.
            let step = if self.refused > REFUSED_MAX * self.taken.max(1) { LEFT.0 } else { step };
            self.door.step(step, drained * crowding);
        } else if crowding < 1.0 || is_behind && (was_behind || crowd.is_full) {
            // A burst that a thread keeps up with, or that is over in the next interval, is no reason to refuse anybody.
            self.door.step(step.min(BEGIN), drained * crowding);
        }
        self.door.fade(members);
        let grown = if self.left() == 0 && crowd.busy < BUSY * busy_max { self.most() * GROWTH / BURST } else { 0.0 };
        self.usual = (self.usual + SMOOTHING * (f64::from(self.taken) - self.usual)).max(grown);
        (self.taken, self.refused, self.waiting) = (0, 0, crowd.waiting);
    }
}
