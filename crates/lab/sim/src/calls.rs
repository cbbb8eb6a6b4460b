//! A SIP server that has more calls than it can carry, on a virtual clock: what it accepts, and what that costs it.
//!
//! Callers send through forwarding proxies, which honour 503; callees answer or are silent; an attacker sends BYEs. What the
//! server's processor spends follows from a few constants ([`Costs`]); whom it refuses is [`sluicegate_overload`]'s to say.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    time::Duration,
};

use sluicegate_overload::{Class, Crowd, Engineered, InDialog, Refusing, Rsoca, Used, Verdict};
use sluicegate_wire::Instant;

use crate::Rng;

/// Forwarding proxies in front of the server (Figure 2 of the R-SOCA paper).
const PROXIES: usize = 2;
/// When an in-dialog request is sent again, after the send before (RFC 3261 section 17.1.2.2: T1 doubling up to T2).
const AGAIN: [u64; 9] = [500, 1_000, 2_000, 4_000, 4_000, 4_000, 4_000, 4_000, 4_000];

/// What the server spends on a request, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Costs {
    /// An INVITE, its responses and its ACK.
    pub(crate) invite: u64,
    /// A request within a dialog.
    pub(crate) in_dialog: u64,
    /// A rejection.
    pub(crate) reject: u64,
    /// A drop.
    pub(crate) drop: u64,
}

/// Who calls, and what else arrives.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Traffic {
    /// Calls a second, by the second.
    pub(crate) calls: fn(u64) -> u64,
    /// BYEs a second that belong to no call.
    pub(crate) byes: u64,
    /// Whether anybody answers.
    pub(crate) answered: bool,
    /// How long it goes on, in seconds.
    pub(crate) seconds: u64,
}

/// What came of it.
#[derive(Debug, Default, Clone)]
pub(crate) struct Tally {
    /// Calls begun, answered, and ended by a BYE that arrived, of those that were to end in time.
    pub(crate) sent: u64,
    pub(crate) succeeded: u64,
    pub(crate) terminated: u64,
    /// Answered calls that never could be ended.
    pub(crate) stuck: u64,
    /// For each second: INVITEs that the server took, its processor's share, and its transactions' bytes at the end.
    pub(crate) accepted: Vec<u64>,
    pub(crate) cpu: Vec<f64>,
    pub(crate) memory: Vec<u64>,
}

impl Tally {
    /// The mean of a series from this second on.
    pub(crate) fn mean<T: Copy + Into<f64>>(series: &[T], from: usize) -> f64 {
        let rest = series.get(from..).unwrap_or_default();
        rest.iter().map(|value| (*value).into()).sum::<f64>() / rest.len().max(1) as f64
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Answer,
    /// A call's BYE, sent for the nth time.
    Bye(usize),
}

/// The server and its world.
struct Server {
    controller: Rsoca,
    engineered: Engineered,
    costs: Costs,
    traffic: Traffic,
    rng: Rng,
    /// Milliseconds since the start.
    now: u64,
    busy: u64,
    measured: u64,
    /// In milliseconds, soonest first; the number keeps the order of what is due at once.
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    queued: u64,
    /// When the transactions of silent callees began, oldest first.
    open: VecDeque<u64>,
    paused_until: [u64; PROXIES],
    taken: u64,
    tally: Tally,
}

/// Ringing, and how long a call lasts then.
const RINGS_MS: u64 = 100;
const TALKS_MS: u64 = 5_000;
/// Timer C: how long an unanswered INVITE is kept at most (RFC 3261 section 16.6).
const TIMER_C_MS: u64 = 180_000;

/// Plays `traffic` at a server.
pub(crate) fn play(seed: u64, (engineered, refusing): (Engineered, Refusing), costs: Costs, traffic: Traffic) -> Tally {
    let Ok(controller) = Rsoca::new(engineered, refusing, Instant::ZERO) else { return Tally::default() };
    let mut server = Server {
        controller,
        engineered,
        costs,
        traffic,
        rng: Rng::new(seed),
        now: 0,
        busy: 0,
        measured: 0,
        events: BinaryHeap::new(),
        queued: 0,
        open: VecDeque::new(),
        paused_until: [0; PROXIES],
        taken: 0,
        tally: Tally::default(),
    };
    server.run();
    server.tally
}

impl Server {
    fn run(&mut self) {
        let (mut calls, mut byes) = (0, 0);
        while self.now < self.traffic.seconds * 1_000 {
            // As many in each millisecond as make up the rate.
            calls += (self.traffic.calls)(self.now / 1_000);
            byes += self.traffic.byes;
            for _ in 0..calls / 1_000 {
                self.call();
            }
            for _ in 0..byes / 1_000 {
                self.in_dialog();
            }
            (calls, byes) = (calls % 1_000, byes % 1_000);
            while let Some(Reverse((at, _, event))) = self.events.peek().copied() {
                if at > self.now {
                    break;
                }
                self.events.pop();
                self.take(event);
            }
            self.end_old();
            self.now += 1;
            if Instant::from_millis(self.now) >= self.controller.due() {
                self.measure();
            }
        }
    }

    fn at(&mut self, after_ms: u64, event: Event) {
        self.queued += 1;
        self.events.push(Reverse((self.now + after_ms, self.queued, event)));
    }

    /// A caller calls, by one of the proxies; one that was told to wait answers for the server.
    fn call(&mut self) {
        self.tally.sent += 1;
        let proxy = (self.tally.sent % PROXIES as u64) as usize;
        if self.paused_until.get(proxy).is_some_and(|until| *until > self.now) {
            return;
        }
        match self.controller.arrive(Class::Invite, self.rng.bits()) {
            Verdict::Pass => {
                self.busy += self.costs.invite;
                self.taken += 1;
                if self.traffic.answered {
                    self.at(RINGS_MS, Event::Answer);
                }
                self.open.push_back(self.now);
            }
            Verdict::Reject { status, retry_after_s } => {
                self.busy += self.costs.reject;
                if let (503, Some(until)) = (status, self.paused_until.get_mut(proxy)) {
                    *until = self.now + u64::from(retry_after_s) * 1_000;
                }
            }
            Verdict::Drop => self.busy += self.costs.drop,
        }
    }

    /// A BYE arrives. Whether it passes.
    fn in_dialog(&mut self) -> bool {
        let (cost, passes) = match self.controller.arrive(Class::InDialog(InDialog::Bye), self.rng.bits()) {
            Verdict::Pass => (self.costs.in_dialog, true),
            Verdict::Reject { .. } => (self.costs.reject, false),
            Verdict::Drop => (self.costs.drop, false),
        };
        self.busy += cost;
        passes
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Answer => {
                // The callees of one run all answer, and after the same time: the oldest is the one.
                self.open.pop_front();
                self.controller.succeed(1);
                self.tally.succeeded += 1;
                self.at(TALKS_MS, Event::Bye(0));
            }
            Event::Bye(sent) => {
                if self.in_dialog() {
                    self.tally.terminated += 1;
                } else if let Some(wait) = AGAIN.get(sent) {
                    self.at(*wait, Event::Bye(sent + 1));
                } else {
                    self.tally.stuck += 1;
                }
            }
        }
    }

    /// Ends the transactions that are too old, each with a rejection.
    fn end_old(&mut self) {
        let age_max = self.controller.age_max(Class::Invite).unwrap_or(Duration::from_millis(TIMER_C_MS));
        while let Some(begun) = self.open.front() {
            if u128::from(self.now - begun) < age_max.as_millis() {
                break;
            }
            self.open.pop_front();
            self.busy += self.costs.reject;
        }
    }

    fn measure(&mut self) {
        let span = (self.now - self.measured) * 1_000_000;
        // More than there is time for waits.
        let cpu = (self.busy as f64 / span as f64).min(1.0);
        let memory = (self.open.len() as f64 * self.engineered.transaction_bytes) as u64;
        self.controller.measure(
            Instant::from_millis(self.now),
            Used { cpu, begun: 1.0, memory, sojourn: Duration::ZERO, lost: 0.0, crowd: Crowd::NONE },
        );
        self.tally.accepted.push(self.taken);
        self.tally.cpu.push(cpu);
        self.tally.memory.push(memory);
        (self.busy, self.taken, self.measured) = (self.busy.saturating_sub(span), 0, self.now);
    }
}
