//! What has to hold of a server under more than it can serve.

use super::{
    capacity::Capacity,
    rig::{TICK_MS, Trial},
    server::Scheme,
};
use crate::report::rows::Report;

/// Goodput that ours must have, in capacities, from this load on.
const AT_TWICE: (f64, f64) = (2.0, 0.95);
const AT_MOST_LOAD: (f64, f64) = (5.0, 0.85);
/// What a server that is not overloaded serves of what is offered.
const CALM: (f64, f64) = (0.8, 0.99);
/// The part of a load that has to come, at least.
const CAME_MIN: f64 = 0.95;
/// How soon after an overload everybody must be served again, in seconds; and what counts as everybody.
const NORMAL_AFTER_S: f64 = 2.0;
const EVERYBODY: f64 = 0.99;

/// One offered load, and what came of it.
#[derive(Debug, Clone)]
pub(super) struct Point {
    /// Offered load in capacities.
    pub(super) load: f64,
    /// The capacity, calls a second.
    pub(super) capacity: f64,
    /// How long the load lasted, in milliseconds.
    pub(super) under_ms: u64,
    pub(super) trial: Trial,
    /// Whether the capacity was another one afterwards.
    pub(super) has_moved: bool,
}

impl Point {
    /// Completed calls in capacities.
    pub(super) fn goodput(&self) -> f64 {
        self.trial.goodput() / self.capacity
    }

    /// Offered calls in capacities, as they really were.
    pub(super) fn offered(&self) -> f64 {
        self.trial.first().offered as f64 / self.trial.seconds / self.capacity
    }

    /// Whether the load came. One that came but for a little is no excuse for what was not served of it. What the server keeps
    /// callers from beginning is offered all the same: where less was, callers had no time for it.
    pub(super) fn came(&self) -> bool {
        let offered = self.offered();
        let shows_nothing = needs(self.load).is_some_and(|least| offered < least) && self.goodput() >= CALM.1 * offered;
        offered >= CAME_MIN * self.load && !shows_nothing
    }

    /// How long after the overload ended it was until everybody who called was served, and stayed so; in seconds. `None`
    /// if that was never so.
    fn normal_after_s(&self) -> Option<f64> {
        let last = self.trial.ticks.iter().rposition(|tick| tick.sum.offered > 0)?;
        // Those who call at the very end are not through with it.
        let after = self.trial.ticks.get(..last)?.iter().filter(|tick| tick.at_ms >= self.under_ms);
        let served = after.map(|tick| {
            let served = tick.sum.established_of_offered as f64 >= EVERYBODY * tick.sum.offered as f64;
            (tick.at_ms, served)
        });
        let served: Vec<_> = served.collect();
        let from = match served.iter().rposition(|(_, served)| !served) {
            Some(at) => served.get(at + 1)?.0,
            None => served.first()?.0,
        };
        Some(from.saturating_sub(self.under_ms) as f64 / 1e3)
    }
}

/// Goodput that ours must have at this load, in capacities, if anything is asked of it there.
pub(super) fn needs(load: f64) -> Option<f64> {
    match load {
        load if load >= AT_MOST_LOAD.0 => Some(AT_MOST_LOAD.1),
        load if load >= AT_TWICE.0 && load < 3.0 => Some(AT_TWICE.1),
        load if load <= CALM.0 => Some(CALM.1 * load),
        _ => None,
    }
}

/// Adds what a server serves at most.
pub(super) fn note_capacity(report: &mut Report, scheme: Scheme, capacity: &Capacity, ceiling: f64) {
    let Capacity { per_s, trial } = capacity;
    let sum = trial.first();
    let mut judge = report.of(("capacity", scheme.name())).disturbed(trial.taken.is_much());
    judge.note("calls_per_s", *per_s);
    judge.note("cpu_us_per_call", trial.cpu_s * 1e6 / (sum.completed.max(1) as f64));
    judge.note("setup_p50_ms", sum.setup_us.p50 as f64 / 1e3);
    judge.note("setup_p99_ms", sum.setup_us.p99 as f64 / 1e3);
    judge.note("memory_kb", trial.memory_kb[1] as f64);
    judge.note_taken(&trial.taken);
    // A generator that is not well above what it drives measures itself.
    if scheme.is_ours() {
        judge.at_least("generator_headroom", ceiling / per_s, 1.3);
    } else {
        judge.note("generator_headroom", ceiling / per_s);
    }
}

/// Adds the figures of one load, and what has to hold of ours.
pub(super) fn judge(report: &mut Report, scheme: Scheme, point: &Point, is_short: bool) {
    let (trial, sum) = (&point.trial, point.trial.first());
    let case = format!("load_{}", point.load);
    let is_disturbed = trial.taken.is_much() || point.has_moved || !point.came();
    let mut judge = report.of((&case, scheme.name())).disturbed(is_disturbed);
    match needs(point.load).filter(|_| scheme.is_ours()) {
        Some(least) => judge.at_least("goodput_capacities", point.goodput(), least),
        None => judge.note("goodput_capacities", point.goodput()),
    }
    judge.note("capacity_calls_per_s", point.capacity);
    judge.note("offered_capacities", point.offered());
    judge.note("offered_calls_per_s", sum.offered as f64 / trial.seconds);
    judge.note("goodput_calls_per_s", trial.goodput());
    judge.note("setup_p50_ms", sum.setup_us.p50 as f64 / 1e3);
    judge.note("setup_p99_ms", sum.setup_us.p99 as f64 / 1e3);
    judge.note("cpu_us_per_completed_call", trial.cpu_s * 1e6 / sum.completed.max(1) as f64);
    judge.note("server_busy_share", trial.cpu_s / trial.seconds);
    judge.note("retransmissions_per_s", sum.retransmissions as f64 / trial.seconds);
    for (status, count) in &sum.refused {
        judge.note(&format!("refused_{status}_per_s"), *count as f64 / trial.seconds);
    }
    judge.note("timeouts", sum.timeouts as f64);
    judge.note("connections_broken", sum.broken as f64);
    judge.note("not_begun", sum.not_begun as f64);
    judge.note("memory_kb", trial.memory_kb[1] as f64);
    judge.note("memory_before_kb", trial.memory_kb[0] as f64);
    judge.note_taken(&trial.taken);
    if point.load > 1.0 {
        let tick_s = f64::from(TICK_MS) / 1e3;
        let after = point.normal_after_s().unwrap_or(f64::INFINITY);
        // A tick that began in time is in time; the short form is over before anything later could be told.
        let most = NORMAL_AFTER_S + if is_short { tick_s } else { 0.0 };
        if scheme.is_ours() {
            judge.at_most("normal_after_s", after, most);
        } else {
            judge.note("normal_after_s", after);
        }
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_site::cpu::Taken;
    use sluicegate_traffic::sipload::{LoadSum, LoadTick};

    use super::*;
    use crate::report::Verdict;

    /// A load of which so much was completed, in capacities of 1,000, and ticks after it of which this share was served.
    fn point(load: f64, goodput: f64, after: &[f64]) -> Point {
        let offered = (load * 2_000.0) as u64;
        let sum = LoadSum { offered, completed: (goodput * 2_000.0) as u64, ..LoadSum::default() };
        let tick = |(place, share): (u64, &f64)| {
            let sum = LoadSum { offered: 100, established_of_offered: (share * 100.0) as u64, ..LoadSum::default() };
            LoadTick { at_ms: 2_000 + place * u64::from(TICK_MS), sum }
        };
        let ticks = (0..).zip(after).map(tick).collect();
        let trial = Trial { windows: vec![sum], ticks, seconds: 2.0, ..Trial::default() };
        Point { load, capacity: 1_000.0, under_ms: 2_000, trial, has_moved: false }
    }

    fn failed(point: &Point, scheme: Scheme) -> Vec<(String, Verdict)> {
        let mut report = Report::default();
        judge(&mut report, scheme, point, false);
        report.figures.failed().map(|figure| (figure.metric.clone(), figure.verdict.unwrap())).collect()
    }

    fn missed(metric: &str) -> Vec<(String, Verdict)> {
        vec![(metric.to_owned(), Verdict::Missed)]
    }

    #[test]
    fn goodput_below_its_threshold_misses_and_the_peers_is_only_told() {
        let ours = Scheme::Sluicegate;
        assert_eq!(failed(&point(2.0, 0.96, &[1.0; 10]), ours), []);
        assert_eq!(failed(&point(2.0, 0.94, &[1.0; 10]), ours), missed("goodput_capacities"));
        assert_eq!(failed(&point(5.0, 0.86, &[1.0; 10]), ours), []);
        assert_eq!(failed(&point(5.0, 0.8, &[1.0; 10]), ours), missed("goodput_capacities"));
        assert_eq!(failed(&point(0.5, 0.4, &[]), ours), missed("goodput_capacities"));
        assert_eq!(failed(&point(5.0, 0.0, &[0.0; 10]), Scheme::KamailioTlsf), []);
    }

    #[test]
    fn it_is_normal_again_once_everybody_is_served_and_stays_so() {
        let after = |shares: &[f64]| point(2.0, 1.0, shares).normal_after_s();
        assert_eq!(after(&[1.0; 12]), Some(0.0));
        assert_eq!(after(&[0.5, 1.0, 0.9, 1.0, 1.0, 0.0]), Some(0.75), "the last tick is not over");
        assert_eq!(after(&[0.5; 12]), None);
        let late: Vec<f64> = [0.5; 9].into_iter().chain([1.0; 4]).collect();
        assert_eq!(failed(&point(2.0, 1.0, &late), Scheme::Sluicegate), missed("normal_after_s"));
    }

    #[test]
    fn a_load_that_did_not_come_or_was_disturbed_shows_nothing() {
        let mut weak = point(5.0, 0.5, &[1.0; 10]);
        weak.trial.windows[0].offered = 4_000;
        assert_eq!(failed(&weak, Scheme::Sluicegate), [("goodput_capacities".to_owned(), Verdict::Disturbed)]);
        let mut weak = point(0.8, 0.78, &[]);
        weak.trial.windows[0].offered = 1_570;
        assert_eq!(failed(&weak, Scheme::Sluicegate), [("goodput_capacities".to_owned(), Verdict::Disturbed)]);
        let mut failing = point(0.8, 0.7, &[]);
        failing.trial.windows[0].offered = 1_570;
        assert_eq!(failed(&failing, Scheme::Sluicegate), missed("goodput_capacities"), "not even what came");
        weak.trial.windows[0].offered = 1_590;
        assert_eq!(failed(&weak, Scheme::Sluicegate), missed("goodput_capacities"), "what is needed came");
        let mut disturbed = point(5.0, 0.5, &[1.0; 10]);
        disturbed.trial.taken = Taken { share: 0.3, ..Taken::default() };
        assert_eq!(failed(&disturbed, Scheme::Sluicegate), [("goodput_capacities".to_owned(), Verdict::Disturbed)]);
        let moved = Point { has_moved: true, ..point(5.0, 0.5, &[1.0; 10]) };
        assert_eq!(failed(&moved, Scheme::Sluicegate), [("goodput_capacities".to_owned(), Verdict::Disturbed)]);
    }
}
