use core::time::Duration;

use sluicegate_bounded::Gauge;
use sluicegate_wire::Instant;

use crate::{
    Thresholds, Used, Verdict, chance,
    connections::Connections,
    door::{Door, Slack, Through},
    knee::Knee,
    members::Members,
    sources::Sources,
};

/// Most and least by which what a source may have is changed in an interval.
const STEPS: (f64, f64) = (0.5, 2.0);
/// How many times its level a source may have by its luck: twice, since what was counted before counts for half.
const LUCKY_MAX: f64 = 4.0;
/// How much less a source may send in the next interval while all wait for too long, and how much more once nobody does.
const PACES: (f64, f64) = (0.5, 1.25);
/// A source where nobody signed in may send this part of what others may.
const STRANGER: f64 = 0.125;
/// Where less of a thread's time goes into what can be refused, refusing it would leave the thread as busy as before.
const BEGUN_MIN: f64 = 0.25;

/// What a server is held to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Aims {
    /// Between two measurements.
    pub interval: Duration,
    /// Share of its time that a thread is to be busy at most.
    pub busy: f64,
    /// How long a request may wait for its turn: from the first on less is let in, beyond the second half of it.
    pub sojourn: (Duration, Duration),
    /// Bytes of transactions from which on new ones are refused by chance, and all (equation 1).
    pub memory: Thresholds,
}

/// How a request came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Came {
    /// From where it says, which was proved.
    Shown,
    /// Through a [sieve](Adaptive::sieves).
    Sieved,
    /// Otherwise.
    Past,
}

/// Overload control by what the server is measured to do, not by what it was engineered for.
///
/// R-SOCA refuses with a probability that grows with the resources used, so that it settles below what the server can do, and
/// the further below the more arrives. Here the share that is let in follows what is used until the server is as busy as it is
/// to be (integral control by occupancy: Cyr, Kaufman, Lee 1990), and less where requests wait. It is let in by *source*: all
/// get the same, and who sends more than that is refused the rest. Who sends little is refused last. A source from which several
/// users signed in gets as much as so many sources: a hundred telephones behind one address are no flood.
#[derive(Debug)]
pub struct Adaptive {
    aims: Aims,
    /// Requests, by what each source sent; how much of it is served as it comes; and what was let in.
    requests: Door,
    knee: Knee,
    passed: Sources,
    connections: Connections,
    members: Members,
    /// Datagrams of each source, and how many each of its members may send in an interval; all while datagrams are read in time.
    datagrams: Sources,
    pace: Option<f64>,
    /// Probability by which memory alone has everybody refused.
    memory: f64,
    /// How long requests waited in the interval before.
    sojourn: Duration,
    /// For how much longer than they may what is let in waited for others, in this interval and in the one before.
    others: (Duration, Duration),
    measured_at: Instant,
}

impl Adaptive {
    /// A server that is not overloaded.
    #[must_use]
    pub fn new(aims: Aims, now: Instant) -> Self {
        Self {
            aims,
            requests: Door::new(Slack::REQUESTS),
            knee: Knee::new(),
            passed: Sources::new(),
            connections: Connections::new(),
            members: Members::new(),
            datagrams: Sources::new(),
            pace: None,
            memory: 0.0,
            sojourn: Duration::ZERO,
            others: (Duration::ZERO, Duration::ZERO),
            measured_at: now,
        }
    }

    /// A datagram arrives, of which nothing is known but its source: whether to look at it. Even to refuse costs something, and
    /// where more comes than can be refused, all wait, and what waits for too long is refused whoever sent it. So those who send
    /// most are not heard then, and of sources where nobody signed in an eighth of what others may send. `draw` gives another random number for each datagram.
    #[must_use]
    pub fn hears(&mut self, draw: impl FnOnce() -> u64, source: u64) -> bool {
        let members = self.members.of(source);
        let sent = self.datagrams.count(source, if members == 0 { STRANGER } else { members.into() }, 1.0);
        self.pace.is_none_or(|pace| chance(draw()) < pace / sent)
    }

    /// A request that begins something arrives. `draw` is a keyed hash of its Call-ID: what comes again, here or at a replica,
    /// is judged alike. `source` is one of whom it is from; what is shown to come from there does not compete with what anybody
    /// may have sent in its name, and came past the [sieve](Self::sieves) too.
    pub fn arrive(&mut self, draw: u64, source: u64, came: Came) -> Verdict {
        let members = f64::from(self.members.of(source).max(1));
        let source = if came == Came::Shown { !source } else { source };
        let through = if came == Came::Sieved { Through::Sieve } else { Through::Nothing };
        let share = self.requests.share(source, members, through) * (1.0 - self.memory);
        if chance(draw) >= share {
            return rejection(draw, share);
        }
        // Who has found a Call-ID that passes, and keeps to it, gains nothing.
        let passed = self.passed.count(source, members, 1.0);
        if self.requests.level().is_some_and(|level| passed > LUCKY_MAX * level.max(1.0 / members)) {
            return rejection(draw, share);
        }
        Verdict::Pass
    }

    /// A connection arrives, of which nothing is known but its source, and when it came through the [sieve](Self::sieves) if it
    /// did: whether to take it. `draw` is a random number.
    #[must_use]
    pub fn connects(&mut self, draw: u64, source: u64, sieved_at: Option<Instant>) -> bool {
        let members = f64::from(self.members.of(source).max(1));
        let through = match sieved_at {
            None => Through::Nothing,
            Some(at) if at < self.measured_at => Through::SieveBefore,
            Some(_) => Through::Sieve,
        };
        self.connections.take(chance(draw) / (1.0 - self.memory), source, members, through)
    }

    /// How many connections may still be taken in this interval: not many more than usually. The others are to wait where
    /// nothing has been spent on them.
    #[must_use]
    pub fn connections_left(&self) -> u32 {
        self.connections.left()
    }

    /// Whether connections are refused, so that those that are taken need not be judged again by what they bring first.
    #[must_use]
    pub fn is_choosing_connections(&self) -> bool {
        self.connections.door.level().is_some()
    }

    /// With which probability a sieve in front is to let requests and connections through, by the cells of their sources (two
    /// rows of 4,096; a source's column in row r is its bits from 16 r on, and the greater probability counts), in 2^32nds. Nothing
    /// where it is to let all through.
    #[must_use]
    pub fn sieves(&self) -> [Option<&[u32]>; 2] {
        [self.requests.sieve(), self.connections.door.sieve()]
    }

    /// A user, which is a keyed hash of its name, has proved itself from a source.
    pub fn sign_in(&mut self, user: u64, source: u64) {
        self.members.sign_in(user, source);
    }

    /// Whether a user was last seen at this source, or at one that shares all of its counters.
    #[must_use]
    pub fn has_members(&self, source: u64) -> bool {
        self.members.of(source) > 0
    }

    /// Refuses what has waited for too long.
    pub fn reject(&self, draw: u64) -> Verdict {
        rejection(draw, 0.0)
    }

    /// When to measure next.
    #[must_use]
    pub fn due(&self) -> Instant {
        self.measured_at + self.aims.interval
    }

    /// In this interval what was let in waited for others, who do a part of its work, so much longer than it may.
    pub const fn wait_for_others(&mut self, beyond: Duration) {
        self.others.0 = beyond;
    }

    /// Ends an interval. Before any time has passed nothing happens.
    pub fn measure(&mut self, now: Instant, used: Used) {
        if now <= self.measured_at {
            return;
        }
        self.measured_at = now;
        self.memory = self.aims.memory.rejection(used.memory as f64);
        // What cannot be told counts as all of it.
        let cpu = if used.cpu.is_nan() { 1.0 } else { used.cpu.clamp(0.01, 1.0) };
        let helps = used.begun.is_nan() || used.begun >= BEGUN_MIN;
        self.connections.measure(self.aims.busy, used.crowd, &self.members);
        let cpu = if helps { cpu } else { cpu.min(self.aims.busy) };
        let (others, others_before) = self.others;
        self.others = (Duration::ZERO, others);
        // Bursts that fill the room for a moment leave a thread that is not behind: to let in less would leave it idle.
        let lost = if helps && used.sojourn > self.aims.sojourn.0 { used.lost.clamp(0.0, 1.0) } else { 0.0 };
        // Where requests wait although the thread was not busy, it did not get the time that it needed.
        let is_late = used.sojourn.max(others) > self.aims.sojourn.0;
        let most = if is_late { 1.0 } else { STEPS.1 };
        // What waits less than before is being worked off: to let in still less would leave the thread idle afterwards. Where
        // some was lost as much waits as can, and by how much less was too much does not show in how long it waits.
        let is_worked_off = used.sojourn < self.sojourn && lost == 0.0;
        let waiting = if helps { self.waiting(used.sojourn) * (1.0 - lost) } else { 1.0 };
        let waiting_for_others = if others < others_before { 1.0 } else { self.waiting(others) };
        self.sojourn = used.sojourn;
        let growth = (self.aims.busy / cpu).min(most);
        let step = self.knee.step(self.level(), growth, waiting, is_worked_off);
        let step = if waiting_for_others < 1.0 { step.min(waiting_for_others) } else { step };
        self.requests.step(step.max(STEPS.0), 1.0);
        self.pace = self.next_pace(used.sojourn);
        self.passed.fade();
        self.datagrams.fade();
        self.requests.fade(&self.members);
    }

    fn next_pace(&self, sojourn: Duration) -> Option<f64> {
        let heaviest = self.datagrams.heaviest();
        let pace = match self.pace {
            pace if sojourn > self.aims.sojourn.1 => pace.unwrap_or(heaviest).min(heaviest) * PACES.0,
            Some(pace) if sojourn <= self.aims.sojourn.0 => pace * PACES.1,
            pace => pace?,
        };
        // Where somebody has signed in, one datagram is always heard.
        (pace < heaviest).then_some(pace.max(1.0))
    }

    /// 1 where nothing waits, one half where requests wait as long as they may at most.
    fn waiting(&self, sojourn: Duration) -> f64 {
        let (from, to) = self.aims.sojourn;
        let share = sojourn.saturating_sub(from).as_secs_f64() / to.saturating_sub(from).as_secs_f64();
        1.0 - share.min(1.0) / 2.0
    }

    /// Requests that each source, or each of its members, may have of an interval, about, since what was counted before counts
    /// for half; none while all are let in.
    #[must_use]
    pub fn level(&self) -> Option<f64> {
        self.requests.level()
    }

    /// Datagrams of each source, or of each of its members, that are heard in an interval, about; none while all are.
    #[must_use]
    pub const fn pace(&self) -> Option<f64> {
        self.pace
    }

    /// Users whose source is remembered.
    #[must_use]
    pub fn gauge(&self) -> Gauge {
        self.members.gauge()
    }

    /// Whether there is memory for few more.
    #[must_use]
    pub fn is_memory_short(&self) -> bool {
        self.memory > 0.0
    }

    /// Whether anybody is refused at the moment.
    #[must_use]
    pub fn is_overloaded(&self) -> bool {
        let is_choosing = self.level().is_some() || self.is_choosing_connections();
        is_choosing || self.memory > 0.0 || self.pace.is_some()
    }
}

/// The more is refused, the later it is to come again, and not all at once.
fn rejection(draw: u64, share: f64) -> Verdict {
    let least = 1 + (4.0 * (1.0 - share)) as u64;
    let spread = draw & u64::from(u32::MAX);
    Verdict::Reject { status: 500, retry_after_s: (least + spread % (least + 1)) as u32 }
}

#[cfg(test)]
mod tests;
