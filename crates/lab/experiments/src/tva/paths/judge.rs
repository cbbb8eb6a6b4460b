//! What has to hold of what was seen.

use std::ops::Range;

use super::{
    Row,
    talk::{DIRECTIONS, Heard, PER_S},
};
use crate::report::{
    Judge,
    rows::{Case, Report},
};
use sluicegate_traffic::{passing::Weak, sample::Percentiles};

/// Beyond two round trips (TVA III-H).
const MORE_MS: f64 = 10.0;
/// Of the packets that ought to have passed, so many at least have to be seen: a run in which nothing happened fails.
const MOST: f64 = 0.8;
/// How far the clocks of neighbouring routers are apart at least, in seconds.
const APART_S: f64 = 85.0;
/// How often each router's secret has to turn.
const TURNS: f64 = 2.0;

/// A row as it was played; times in nanoseconds since 1970.
#[derive(Debug)]
pub(super) struct Played {
    pub(super) row: Row,
    pub(super) heard: Heard,
    /// Before anything happened.
    pub(super) calm: Range<u64>,
    /// While it happened.
    pub(super) active: Range<u64>,
    /// When it was over.
    pub(super) after: Range<u64>,
    /// When the path changed.
    pub(super) changes: Vec<u64>,
    /// Packets that the routers of the new path judged, by direction; of the one that judged fewest.
    pub(super) by_new_path: [u64; 2],
    /// Frames that went to the old path while the new one was chosen.
    pub(super) by_old_path: u64,
    /// Packets that the routers of the first chain and the gate demoted themselves, meanwhile.
    pub(super) demoted_by_routers: u64,
}

impl Played {
    /// Every threshold of the row.
    pub(super) fn judge(&self, report: &mut Report) {
        let about = (self.row.label(), "tva");
        let all = self.heard.calls.summary(self.calm.start, self.after.end, |_| true);
        let taken = self.heard.stolen.taken_between(self.calm.start, self.after.end);
        report.of(about).note_taken(&taken);
        let is_disturbed = taken.is_much();
        let mut judge = report.of(about);
        // Hosts that do not run do not talk either.
        let least = self.expected(self.calm.start..self.after.end) * if is_disturbed { 0.5 } else { 1.0 };
        judge.at_least("packets", all.sent as f64, least);
        judge.at_most("lost_packets", (all.sent - all.received) as f64, 0.0);
        judge.at_most("frames_missed_by_listeners", self.heard.missed as f64, 0.0);
        let (rtt_ms, usual_ms, extra_ms) = self.delays();
        let most_ms = 2.0 * rtt_ms + MORE_MS;
        judge.note("rtt_ms", rtt_ms);
        judge.note("calm_extra_ms_p99", usual_ms);
        // Of times nothing is judged that others on the machine disturbed.
        judge.timed(is_disturbed).at_most("extra_delay_ms_max", extra_ms, most_ms);
        let active = self.calm.end..self.after.start;
        judge.note("packets_without_capability", self.weak(&active, |_| true) as f64);
        let demoted = self.weak(&active, |what| what == Weak::Demoted) as f64;
        match self.row {
            Row::Switch => {
                self.new_path(&mut judge, MOST / 2.0);
                judge.at_most("frames_by_old_path", self.by_old_path as f64, 0.0);
                // Each of them is a chain that does not know the flow, in both directions.
                let least = self.changes.len().max(1) * DIRECTIONS.len();
                judge.at_least("demoted_packets", demoted, least as f64);
                let worst = self.repairs_ms().into_iter().fold(f64::NAN, f64::max) - usual_ms;
                judge.timed(is_disturbed).at_most("capable_again_ms_max", worst, most_ms);
            }
            Row::Flap => {
                self.new_path(&mut judge, MOST / 2.0);
                judge.at_least("changes", self.changes.len() as f64, 3.0 * self.active_s());
            }
            Row::Asymmetric => {
                judge.at_most("requests_by_other_chain", self.by_new_path[0] as f64, 0.0);
                let least = MOST * self.active_s() * f64::from(PER_S);
                judge.at_least("answers_by_other_chain", self.by_new_path[1] as f64, least);
            }
            Row::Clocks | Row::Soak => {
                judge.at_most("demoted_by_routers", self.demoted_by_routers as f64, 0.0);
                judge.at_most("demoted_packets", demoted, 0.0);
                let clocks = &self.heard.clocks[0];
                let routers = clocks.turns.get(1..).unwrap_or_default();
                let turns = routers.iter().min().map_or(f64::NAN, |turns| f64::from(*turns));
                judge.at_least("secret_turns_min", turns, TURNS);
                judge.at_least("clocks_apart_s_min", apart_s(&clocks.seconds), APART_S);
            }
        }
        judge.at_most("packets_without_capability_after", self.weak(&self.after, |_| true) as f64, 0.0);
        for (direction, metric) in DIRECTIONS.into_iter().zip(["regular_requests_after", "regular_answers_after"]) {
            let sent =
                self.heard.calls.summary(self.after.start, self.after.end, |flow| flow as usize == direction).sent;
            judge.at_least(metric, self.regular(direction) as f64, (MOST * sent as f64).max(1.0));
        }
    }

    /// Both directions went over the new path for this share of the time at least.
    fn new_path(&self, judge: &mut Judge<'_, Case>, share: f64) {
        let least = share * self.active_s() * f64::from(PER_S) * 0.9;
        for (packets, metric) in self.by_new_path.into_iter().zip(["requests_by_new_path", "answers_by_new_path"]) {
            judge.at_least(metric, packets as f64, least);
        }
    }

    fn active_s(&self) -> f64 {
        (self.active.end - self.active.start) as f64 / 1e9
    }

    /// Packets of both directions that must have been sent in this time.
    fn expected(&self, time: Range<u64>) -> f64 {
        MOST * (time.end - time.start) as f64 / 1e9 * f64::from(PER_S) * DIRECTIONS.len() as f64
    }

    /// The usual round trip before anything happened, what the 99th of a hundred packets took beyond it on this machine,
    /// and what any packet took later beyond that, in milliseconds. What the host of this machine took away while a packet
    /// was under way is no delay of the path.
    fn delays(&self) -> (f64, f64, f64) {
        let of = |direction: usize| {
            let flow = |flow: u32| flow as usize == direction;
            let delays = |time: Range<u64>, delay: &dyn Fn((u64, u64)) -> u64| -> Percentiles {
                let mut delays: Vec<u64> =
                    self.heard.calls.flights(time.start, time.end, flow).map(|flight| delay(flight) / 1_000).collect();
                Percentiles::of(&mut delays)
            };
            let own = |(sent, arrived): (u64, u64)| self.own_time(sent, arrived);
            let usual = delays(self.calm.clone(), &|(sent, arrived)| arrived.saturating_sub(sent)).p50;
            let calm = delays(self.calm.clone(), &own);
            let worst = delays(self.calm.end..self.after.end, &own).max;
            let ms = |us: u64| us as f64 / 1e3;
            (ms(usual), ms(calm.p99.saturating_sub(usual)), ms(worst.saturating_sub(calm.p99)))
        };
        let [(to, usual_to, late_to), (back, usual_back, late_back)] = DIRECTIONS.map(of);
        (to + back, usual_to + usual_back, late_to.max(late_back))
    }

    /// Nanoseconds of this time in which the machine was not taken away.
    fn own_time(&self, from_ns: u64, to_ns: u64) -> u64 {
        to_ns.saturating_sub(from_ns) - self.heard.stolen.between(from_ns, to_ns)
    }

    fn weak(&self, time: &Range<u64>, which: impl Fn(Weak) -> bool) -> usize {
        let weak = self.heard.weak.iter().flatten();
        weak.filter(|(at, what)| time.contains(at) && which(*what)).count()
    }

    fn regular(&self, direction: usize) -> u64 {
        let ticks = self.heard.regular[direction].iter();
        ticks.filter(|(at, _)| self.after.contains(at)).map(|(_, packets)| packets).sum()
    }

    /// For each change, how long packets went without a capability that held.
    fn repairs_ms(&self) -> Vec<f64> {
        let ends = self.changes.iter().skip(1).copied().chain([self.after.end]);
        let repair = |(began, ends): (&u64, u64)| {
            let weak = self.heard.weak.iter().flatten().map(|(at, _)| *at).filter(|at| (*began..ends).contains(at));
            weak.max().map_or(0.0, |last| self.own_time(*began, last) as f64 / 1e6)
        };
        self.changes.iter().zip(ends).map(repair).collect()
    }
}

/// The least difference between the clocks of two neighbouring routers of the first three, the sender's own slot and the
/// gate left out.
fn apart_s(seconds: &[u8]) -> f64 {
    let Some([a, b, c]) = seconds.get(1..4) else { return f64::NAN };
    let apart = |a: u8, b: u8| f64::from(a.wrapping_sub(b).min(b.wrapping_sub(a)));
    apart(*a, *b).min(apart(*b, *c))
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;
    use crate::report::Verdict;
    use sluicegate_traffic::{client::call::Calls, passing::Clocks};

    const MS: u64 = 1_000_000;

    /// 20 s of two calls of 20 ms each way: 5 s calm, 12 s in which something happens, 3 s afterwards.
    fn good(row: Row) -> Played {
        let mut heard = Heard { calls: Calls::default(), ..Heard::default() };
        let all: Vec<(u32, u32, u64)> =
            (0..2).flat_map(|flow| (0..2_000).map(move |n| (flow, n, u64::from(n) * 10 * MS))).collect();
        let late: Vec<_> = all.iter().map(|(flow, n, at)| (*flow, *n, at + 20 * MS)).collect();
        heard.calls.take(&serde_json::json!({ "event": "sent", "packets": all }).to_string());
        heard.calls.take(&serde_json::json!({ "event": "received", "packets": late }).to_string());
        heard.regular = [vec![(18_500 * MS, 270)], vec![(18_500 * MS, 270)]];
        let clocks = Clocks { seconds: vec![1, 190, 100, 10, 77], turns: vec![9, 2, 2, 3, 2] };
        heard.clocks = [clocks.clone(), clocks];
        let changes = if matches!(row, Row::Switch | Row::Flap) { vec![6_000 * MS, 11_000 * MS] } else { Vec::new() };
        if row == Row::Switch {
            for change in &changes {
                heard.weak.iter_mut().for_each(|weak| {
                    weak.extend([(change + MS, Weak::Demoted), (change + 70 * MS, Weak::Demoted)]);
                });
            }
        }
        Played {
            row,
            heard,
            calm: 0..5_000 * MS,
            active: 5_000 * MS..17_000 * MS,
            after: 17_000 * MS..19_900 * MS,
            changes: if row == Row::Flap { (0..40).map(|n| (5_000 + 200 * n) * MS).collect() } else { changes },
            by_new_path: [
                if row == Row::Asymmetric { 0 } else { 600 },
                if row == Row::Asymmetric { 1_200 } else { 600 },
            ],
            by_old_path: 0,
            demoted_by_routers: 0,
        }
    }

    fn passes(row: Row, spoil: impl FnOnce(&mut Played)) -> bool {
        let (mut played, mut report) = (good(row), Report::default());
        spoil(&mut played);
        played.judge(&mut report);
        report.figures.verdict() == Verdict::Holds
    }

    #[test]
    fn a_good_run_passes_and_one_that_lost_or_delayed_a_packet_never_does() {
        for row in Row::value_variants().iter().copied() {
            assert!(passes(row, |_| {}), "{row:?}");
            let sent = |n: u32| format!(r#"{{"event":"sent","packets":[[0,{n},9000000000]]}}"#);
            assert!(!passes(row, |played| played.heard.calls.take(&sent(5_000))), "{row:?}, lost");
            let late = r#"{"event":"received","packets":[[0,5000,9120000000]]}"#;
            let extra = |played: &mut Played| {
                played.heard.calls.take(&sent(5_000));
                played.heard.calls.take(late);
            };
            assert!(!passes(row, extra), "{row:?}, 100 ms more");
            assert!(!passes(row, |played| played.heard.weak[1].push((18_000 * MS, Weak::Plain))), "{row:?}, not again");
            assert!(!passes(row, |played| played.heard.regular[0].clear()), "{row:?}, not seen again");
            assert!(!passes(row, |played| played.heard.calls = Calls::default()), "{row:?}, nobody talked");
            assert!(!passes(row, |played| played.heard.missed = 1), "{row:?}");
        }
    }

    #[test]
    fn a_run_in_which_nothing_changed_never_passes() {
        for row in [Row::Switch, Row::Flap, Row::Asymmetric] {
            assert!(!passes(row, |played| played.by_new_path = [0; 2]), "{row:?}");
        }
        assert!(!passes(Row::Flap, |played| played.changes.truncate(20)));
        assert!(!passes(Row::Asymmetric, |played| played.by_new_path[0] = 1));
        assert!(!passes(Row::Switch, |played| played.heard.weak = [Vec::new(), Vec::new()]));
        assert!(!passes(Row::Switch, |played| played.by_old_path = 1));
        for row in [Row::Clocks, Row::Soak] {
            assert!(!passes(row, |played| played.heard.clocks[0].turns[2] = 1), "{row:?}");
            assert!(!passes(row, |played| played.demoted_by_routers = 1), "{row:?}");
            assert!(!passes(row, |played| played.heard.clocks[0].seconds = vec![1, 100, 100, 100, 77]), "{row:?}");
            assert!(!passes(row, |played| played.heard.clocks[0] = Clocks::default()), "{row:?}");
            assert!(!passes(row, |played| played.heard.weak[0].push((9_000 * MS, Weak::Demoted))), "{row:?}");
        }
    }

    #[test]
    fn what_the_host_took_away_is_no_delay_of_the_path_and_excuses_nothing_at_another_time() {
        let late = |at_ms: u64, delay_ms: u64, stolen_at_ms: u64| {
            passes(Row::Switch, |played| {
                let (at, arrived) = (at_ms * MS, (at_ms + delay_ms) * MS);
                played.heard.calls.take(&format!(r#"{{"event":"sent","packets":[[0,5000,{at}]]}}"#));
                played.heard.calls.take(&format!(r#"{{"event":"received","packets":[[0,5000,{arrived}]]}}"#));
                played.heard.stolen.note(0, 0);
                played.heard.stolen.note(stolen_at_ms * MS, 150 * MS);
            })
        };
        assert!(late(9_000, 200, 9_100));
        assert!(!late(9_000, 200, 8_900), "before it left");
        assert!(!late(9_000, 200, 9_300), "after it came");
        assert!(!late(9_000, 400, 9_100), "more than was taken");
    }

    #[test]
    fn a_run_that_the_host_disturbed_is_named_and_loses_nothing_either() {
        let spoiled = |spoil: &dyn Fn(&mut Played)| {
            let (mut played, mut report) = (good(Row::Switch), Report::default());
            played.heard.stolen.note(0, 0);
            played.heard.stolen.note(10_000 * MS, 10_000 * MS);
            spoil(&mut played);
            played.judge(&mut report);
            let missed = report.figures.iter().filter(|figure| figure.verdict == Some(Verdict::Missed));
            missed.map(|figure| figure.metric.clone()).collect::<Vec<_>>()
        };
        assert_eq!(spoiled(&|_| {}), [] as [&str; 0]);
        let lost = r#"{"event":"sent","packets":[[0,5000,9000000000]]}"#;
        assert_eq!(spoiled(&|played| played.heard.calls.take(lost)), ["lost_packets"]);
    }

    #[test]
    fn capabilities_that_hold_again_too_late_fail() {
        assert!(passes(Row::Switch, |played| played.heard.weak[0].push((6_089 * MS, Weak::Demoted))));
        assert!(!passes(Row::Switch, |played| played.heard.weak[0].push((6_091 * MS, Weak::Demoted))));
    }
}
