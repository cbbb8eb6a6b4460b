//! What has to hold of what was measured, beside what the paper has.

use std::ops::Range;

use super::{
    Mode, RsocaOptions,
    play::{CPU, Played},
    sample::Second,
    scenes::Calls,
    site::TRANSACTION_BYTES,
};
use crate::report::{
    Judge,
    rows::{Case, Report},
};

/// B_en: how many times the engineered load may come in.
pub(super) const BURST: f64 = 1.7;
/// T_I in seconds, and B: how many times as long INVITEs may last.
const RINGS_S: f64 = 10.0;
const STRETCH: f64 = 2.0;
/// Seconds that averages leave out at the beginning; and of those with silent callees, which fill memory first, twice as long as a
/// call may take when memory is full (B times T_I).
const SETTLES_S: f64 = 4.0;
const FILLS_S: f64 = 2.0 * STRETCH * RINGS_S;
/// Seconds of one value of a rate that has to hold throughout (RS-2).
const MEAN_S: usize = 5;
/// Of the offered calls and BYEs so many have to have come: with fewer a run shows nothing.
const CAME: f64 = 0.9;

/// What the target was measured to do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Capacity {
    /// What a call takes of its SIP thread, in seconds.
    pub(super) call_s: f64,
    /// The same where many come: then it is woken for several at once.
    pub(super) busy_call_s: f64,
    /// What refusing a call takes of it, in seconds.
    pub(super) refusal_s: f64,
    /// Calls a second that it is engineered for (E_I).
    pub(super) load: f64,
}

/// M_min and M_max (equations 8 and 9): what INVITEs of the engineered load take that last for T_I, and B times as much.
pub(super) fn memory(load: f64) -> Range<f64> {
    let min = load * RINGS_S * TRANSACTION_BYTES;
    min..STRETCH * min
}

/// Adds the figures of all that was played.
pub(super) fn judge(report: &mut Report, options: &RsocaOptions, capacity: Capacity, all: &[Played]) {
    let mut judge = report.of(("capacity", "off"));
    judge.beside("200 us").note("call_us", capacity.call_s * 1e6);
    judge.note("busy_call_us", capacity.busy_call_s * 1e6);
    judge.note("refusal_us", capacity.refusal_s * 1e6);
    judge.note("capacity_per_s", 1.0 / capacity.busy_call_s);
    judge.beside("1000/s").note("engineered_per_s", capacity.load);
    for played in all {
        let mut judge = report.of((played.scene.name, played.by.label()));
        judge.note_taken(&played.taken);
        let mut judge = judge.timed(played.taken.is_much());
        let run = Run { played, load: capacity.load, most: 1.0 / capacity.busy_call_s };
        run.note(&mut judge);
        run.came(&mut judge);
        match (played.by, played.scene.name) {
            (Mode::Paper, name) => run.paper(&mut judge, name),
            (Mode::Unavailable, name) => run.unavailable(&mut judge, name),
            (Mode::Default, name) => run.default(&mut judge, name),
        }
    }
    let of = |mode: Mode| all.iter().find(|played| played.by == mode && played.scene.name == "heavy");
    if let (Mode::Unavailable, Some(with), Some(without)) = (options.mode, of(Mode::Paper), of(Mode::Unavailable)) {
        let swing = |played| Run { played, load: capacity.load, most: 1.0 / capacity.busy_call_s }.variation();
        let is_disturbed = with.taken.is_much() || without.taken.is_much();
        let mut judge = report.of(("fig-13", Mode::Unavailable.label())).disturbed(is_disturbed);
        judge.note("accepted_variation_of_rsoca", swing(with));
        judge.note("accepted_variation", swing(without));
        judge.beside("swings").at_least("accepted_variation_to_rsoca", swing(without) / swing(with), 5.0);
    }
}

/// A scenario at a target that is engineered for so many calls a second, and can answer so many at most.
#[derive(Debug, Clone, Copy)]
struct Run<'p> {
    played: &'p Played,
    load: f64,
    most: f64,
}

impl Run<'_> {
    /// What is told of every scenario.
    fn note(&self, judge: &mut Judge<'_, Case>) {
        let tally = &self.played.tally;
        judge.note("calls", tally.offered as f64);
        judge.note("calls_answered", tally.answered as f64);
        judge.note("calls_ended", tally.ended as f64);
        judge.note("calls_without_answer", tally.timeouts as f64);
        judge.note("requests_repeated", tally.retransmissions as f64);
        for (status, count) in &tally.refused {
            judge.note(&format!("calls_refused_{status}"), *count as f64);
        }
        judge.note("accepted_per_load", self.rate(SETTLES_S, |second| second.accepted));
        judge.note("refused_per_load", self.rate(SETTLES_S, |second| second.refused));
        judge.note("held_per_load", self.rate(SETTLES_S, |second| second.held));
        judge.note("resident_most_kb", self.most(|second| second.resident_kb as f64));
    }

    /// Too little that comes shows nothing, whoever is to blame for it.
    fn came(&self, judge: &mut Judge<'_, Case>) {
        let scene = &self.played.scene;
        let offered = self.rate(SETTLES_S, |second| second.offered);
        match scene.calls {
            Calls::Steady(times) => {
                judge.timed(true).at_least("offered_per_load", offered, CAME * times);
            }
            Calls::Ramp(most) => {
                let offered = self.most(|second| second.offered as f64 / second.span_s) / self.load;
                judge.timed(true).at_least("offered_most_per_load", offered, CAME * f64::from(most));
            }
        }
        if scene.byes > 0.0 {
            let byes = self.rate(SETTLES_S, |second| second.byes);
            judge.timed(true).at_least("byes_per_load", byes, CAME * scene.byes);
        }
    }

    fn paper(&self, judge: &mut Judge<'_, Case>, name: &str) {
        // Whoever else had the machine, no more may be let in.
        judge.timed(false).beside("1.7").at_most("accepted_most_per_load", self.burst(), BURST);
        match name {
            "ramp" => {
                judge.beside(">= 1").at_least("accepted_least_per_load", self.least_mean(), 0.95);
                judge.beside("<= C_max").at_most("cpu_mean", self.cpu(), CPU.1);
            }
            "heavy" => {
                judge.beside("1.5").at_least("accepted_mean_per_load", self.accepted(), 0.5);
                judge.beside("C_max").at_most("cpu_mean", self.cpu(), CPU.1 + 0.05);
            }
            "byes" => {
                judge.beside("0.819").at_least("calls_answered_share", self.answered(), 0.8);
                judge.beside("0.931").at_least("calls_ended_share", self.ended(), 0.9);
                judge.beside("0.23").at_most("cpu_mean", self.cpu(), 0.28);
            }
            "byes-2" => {
                judge.beside("1").at_least("accepted_mean_per_load", self.accepted(), 0.95);
                judge.beside("0.507").note("calls_answered_share", self.answered());
                judge.beside("0.916").at_least("calls_ended_share", self.ended(), 0.9);
                judge.beside("0.30").at_most("cpu_mean", self.cpu(), CPU.1);
            }
            _ => self.silent(judge, name),
        }
    }

    /// The fixed point of equation 1 under silent callees: `a = 2 L / (1 + 2 L / E_I)` (RS-7).
    fn silent(&self, judge: &mut Judge<'_, Case>, name: &str) {
        let (paper, fixed) = if name == "silent" { ("0.72", 2.0 / 3.0) } else { ("0.78", 0.8) };
        let sizes = memory(self.load);
        let accepted = self.rate(FILLS_S, |second| second.accepted);
        judge.beside(paper).at_least("accepted_mean_per_load", accepted, 0.9 * fixed);
        judge.beside(paper).at_most("accepted_mean_per_load", accepted, 1.1 * fixed);
        let steady = || self.from(FILLS_S).map(|second| second.memory_bytes);
        judge.beside("> 1").at_least("memory_least_to_min", steady().fold(f64::INFINITY, f64::min) / sizes.start, 1.0);
        judge.beside("< 1").at_most("memory_most_to_max", steady().fold(0.0, f64::max) / sizes.end, 1.0);
    }

    fn unavailable(&self, judge: &mut Judge<'_, Case>, name: &str) {
        match name {
            "ramp" => {
                judge.note("accepted_least_per_load", self.least_mean());
                judge.beside("often").note("cpu_above_max_share", self.share(|second| second.cpu > CPU.1));
                judge.note("cpu_mean", self.cpu());
            }
            "heavy" => {
                judge.beside("0.168").note("calls_answered_share", self.answered());
                // The paper's target could answer half of what came, and this one as much as its calls are cheaper.
                let offered = self.rate(SETTLES_S, |second| second.offered) * self.load;
                let of_capacity = self.answered() * offered / self.most.min(offered);
                judge.beside("0.336").at_most("calls_answered_of_capacity", of_capacity, 0.5);
                judge.beside("often").note("cpu_above_max_share", self.share(|second| second.cpu > CPU.1));
                judge.note("cpu_mean", self.cpu());
            }
            // A BYE whose cookie is nobody's costs too little here to use the target up, as it did the paper's.
            "byes" => {
                judge.beside("0.168").note("calls_answered_share", self.answered());
                judge.beside("1").note("calls_ended_share", self.ended());
                judge.beside("C_max").note("cpu_mean", self.cpu());
            }
            _ => {
                let sizes = memory(self.load);
                let accepted = self.rate(FILLS_S, |second| second.accepted);
                judge.beside("0.92").at_least("accepted_mean_per_load", accepted, 0.9 * 0.92);
                judge.beside("0.92").at_most("accepted_mean_per_load", accepted, 1.1 * 0.92);
                let full = self.from(FILLS_S).map(|second| second.memory_bytes / sizes.end);
                let mean = full.clone().sum::<f64>() / full.count().max(1) as f64;
                judge.beside("1").at_least("memory_mean_to_max", mean, 0.9);
            }
        }
    }

    fn default(&self, judge: &mut Judge<'_, Case>, name: &str) {
        judge.note("cpu_mean", self.cpu());
        match name {
            "ramp" => judge.at_least("accepted_least_per_load", self.least_mean(), 0.95),
            // More than R-SOCA ever lets in.
            "heavy" => judge.beside("1.5").at_least("accepted_mean_per_load", self.accepted(), BURST),
            "byes" | "byes-2" => {
                let paper = if name == "byes" { ["0.819", "0.931"] } else { ["0.507", "0.916"] };
                judge.beside(paper[0]).at_least("calls_answered_share", self.answered(), 0.99);
                judge.beside(paper[1]).at_least("calls_ended_share", self.ended(), 0.999);
            }
            _ => {
                judge.note("accepted_mean_per_load", self.rate(FILLS_S, |second| second.accepted));
                judge.note("memory_most_mb", self.most(|second| second.memory_bytes / 1e6));
            }
        }
    }

    /// Seconds in which calls begin, from this one on.
    fn from(&self, at_s: f64) -> impl Iterator<Item = &Second> + Clone {
        let until = f64::from(self.played.calls_s);
        self.played.seconds.iter().filter(move |second| (at_s..=until).contains(&second.at_s))
    }

    /// How many a second, in multiples of the engineered load.
    fn rate(&self, from_s: f64, of: fn(&Second) -> u64) -> f64 {
        let (count, span) =
            self.from(from_s).fold((0, 0.0), |(count, span), second| (count + of(second), span + second.span_s));
        count as f64 / span / self.load
    }

    fn accepted(&self) -> f64 {
        self.rate(SETTLES_S, |second| second.accepted)
    }

    fn most(&self, of: fn(&Second) -> f64) -> f64 {
        self.from(0.0).map(of).fold(0.0, f64::max)
    }

    fn share(&self, of: fn(&Second) -> bool) -> f64 {
        self.from(SETTLES_S).filter(|second| of(second)).count() as f64 / self.from(SETTLES_S).count().max(1) as f64
    }

    fn cpu(&self) -> f64 {
        let (busy, span) = self
            .from(SETTLES_S)
            .fold((0.0, 0.0), |(busy, span), second| (busy + second.cpu * second.span_s, span + second.span_s));
        busy / span
    }

    /// The least of some seconds' mean rate of accepted calls, in multiples of the engineered load.
    fn least_mean(&self) -> f64 {
        let seconds: Vec<&Second> = self.from(SETTLES_S).collect();
        let mean = |part: &[&Second]| {
            part.iter().map(|second| second.accepted as f64).sum::<f64>()
                / part.iter().map(|second| second.span_s).sum::<f64>()
        };
        seconds.windows(MEAN_S).map(mean).fold(f64::INFINITY, f64::min) / self.load
    }

    /// The most that came in, in multiples of the engineered load: the rate that a bucket of one interval would have to have
    /// (T is a second), since the target's intervals and those in which it is looked at do not begin together.
    fn burst(&self) -> f64 {
        let seconds: Vec<&Second> = self.played.seconds.iter().collect();
        let mut worst: f64 = 0.0;
        for start in 0..seconds.len() {
            let (mut count, mut span) = (0, 1.0);
            for second in seconds.get(start..).unwrap_or_default() {
                (count, span) = (count + second.accepted, span + second.span_s);
                worst = worst.max(count as f64 / span);
            }
        }
        worst / self.load
    }

    /// How far the rate of accepted calls lies from its mean, as a share of it.
    fn variation(&self) -> f64 {
        let rates: Vec<f64> = self.from(SETTLES_S).map(|second| second.accepted as f64 / second.span_s).collect();
        let count = rates.len().max(1) as f64;
        let mean = rates.iter().sum::<f64>() / count;
        (rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / count).sqrt() / mean
    }

    fn answered(&self) -> f64 {
        share(self.played.tally.answered, self.played.tally.offered)
    }

    fn ended(&self) -> f64 {
        share(self.played.tally.ended, self.played.tally.answered)
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { f64::NAN } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use sluicegate_site::cpu::Taken;

    use super::{
        super::{Mutant, load::Tally, scenes::Scene},
        *,
    };
    use crate::report::Verdict;

    const LOAD: f64 = 100.0;

    /// What a scenario looks like at a target that does as the paper says.
    fn good((scene, by): (Scene, Mode)) -> Played {
        let times = match scene.calls {
            Calls::Steady(times) => times,
            Calls::Ramp(most) => f64::from(most),
        };
        let accepted = |at: u32| match (by, scene.name) {
            (Mode::Paper, "silent") => 67,
            (Mode::Paper, "silent-2") => 80,
            (Mode::Unavailable, "silent-2") => 92,
            // On and off.
            (Mode::Unavailable, _) => 80 * u64::from(at.is_multiple_of(4)),
            (Mode::Default, "heavy") => 400,
            // A little more and a little less.
            _ => 100 + u64::from(at % 2),
        };
        let sizes = memory(LOAD);
        let second = |at: u32| Second {
            at_s: f64::from(at),
            span_s: 1.0,
            cpu: 0.22,
            accepted: accepted(at),
            byes: (scene.byes * LOAD) as u64,
            offered: (times * LOAD) as u64,
            memory_bytes: if by == Mode::Unavailable { sizes.end } else { 1.3 * sizes.start },
            ..Second::default()
        };
        let calls_s = scene.seconds.0;
        let answered = match (by, scene.name) {
            (Mode::Unavailable, _) => 170,
            (Mode::Default, _) => 1_000,
            _ => 820,
        };
        let ended = if by == Mode::Paper { answered * 93 / 100 } else { answered };
        let tally = Tally { offered: 1_000, answered, ended, ..Tally::default() };
        Played { scene, by, tally, seconds: (1..=calls_s).map(second).collect(), calls_s, taken: Taken::default() }
    }

    fn failures(mode: Mode, change: impl Fn(&mut Played)) -> Vec<(String, Verdict)> {
        let options = RsocaOptions {
            mode,
            only: None,
            short: false,
            datapath: "packet".to_owned(),
            seed: 1,
            mutant: Mutant::None,
        };
        let mut all: Vec<Played> = mode.plays().iter().copied().map(good).collect();
        all.iter_mut().for_each(change);
        let mut report = Report::default();
        judge(
            &mut report,
            &options,
            Capacity { call_s: 0.002, busy_call_s: 0.001, refusal_s: 0.0001, load: LOAD },
            &all,
        );
        let named = |figure: &crate::report::Figure<Case>| {
            (format!("{}: {}", figure.about.case, figure.metric), figure.verdict.unwrap())
        };
        report.figures.failed().map(named).collect()
    }

    fn missed(name: &str) -> Vec<(String, Verdict)> {
        vec![(name.to_owned(), Verdict::Missed)]
    }

    #[test]
    fn what_the_paper_says_holds() {
        for mode in [Mode::Paper, Mode::Unavailable, Mode::Default] {
            assert_eq!(failures(mode, |_| ()), [], "{mode:?}");
        }
    }

    #[test]
    fn each_promise_that_is_broken_fails_by_its_own_name() {
        type Change = fn(&mut Played);
        let cases: [(Mode, &str, Change, &str); 12] = [
            (Mode::Paper, "heavy", |run| run.seconds[9].accepted = 600, "accepted_most_per_load"),
            (Mode::Paper, "heavy", |run| run.seconds.iter_mut().for_each(|at| at.cpu = 0.5), "cpu_mean"),
            (Mode::Paper, "ramp", |run| run.seconds[20].accepted = 70, "accepted_least_per_load"),
            (Mode::Paper, "byes", |run| run.tally.ended = 700, "calls_ended_share"),
            (Mode::Paper, "byes-2", |run| run.tally.ended = 700, "calls_ended_share"),
            (Mode::Paper, "silent", |run| run.seconds[50].memory_bytes = 0.0, "memory_least_to_min"),
            (Mode::Paper, "silent-2", |run| run.seconds[50].memory_bytes *= 9.0, "memory_most_to_max"),
            (
                Mode::Unavailable,
                "silent-2",
                |run| run.seconds.iter_mut().for_each(|at| at.accepted = 120),
                "accepted_mean_per_load",
            ),
            (Mode::Default, "ramp", |run| run.seconds[20].accepted = 70, "accepted_least_per_load"),
            (
                Mode::Default,
                "heavy",
                |run| run.seconds.iter_mut().for_each(|at| at.accepted = 150),
                "accepted_mean_per_load",
            ),
            (Mode::Default, "byes", |run| run.tally.ended = 998, "calls_ended_share"),
            (Mode::Default, "byes-2", |run| run.tally.answered = 989, "calls_answered_share"),
        ];
        for (mode, scene, change, metric) in cases {
            let of = |played: &mut Played| {
                if played.scene.name == scene {
                    change(played);
                }
            };
            let failed = failures(mode, of);
            assert!(failed.starts_with(&missed(&format!("{scene}: {metric}"))), "{metric}: {failed:?}");
        }
    }

    #[test]
    fn a_baseline_that_serves_more_or_swings_less_than_the_papers_misses() {
        let of = |change: fn(&mut Played)| {
            failures(Mode::Unavailable, |played| {
                if played.by == Mode::Unavailable && played.scene.name == "heavy" {
                    change(played);
                }
            })
        };
        assert_eq!(
            of(|run| (run.tally.answered, run.tally.ended) = (600, 600)),
            missed("heavy: calls_answered_of_capacity")
        );
        let steady = of(|run| (0..).zip(&mut run.seconds).for_each(|(at, second)| second.accepted = 80 + at % 2));
        assert_eq!(steady, missed("fig-13: accepted_variation_to_rsoca"));
    }

    #[test]
    fn an_attack_or_calls_that_did_not_come_show_nothing() {
        let weak = failures(Mode::Paper, |run| run.seconds.iter_mut().for_each(|second| second.byes /= 2));
        let disturbed = |name: &str| (format!("{name}: byes_per_load"), Verdict::Disturbed);
        assert_eq!(weak, [disturbed("byes"), disturbed("byes-2")]);
        let few = failures(Mode::Paper, |run| run.seconds.iter_mut().for_each(|second| second.offered /= 2));
        assert!(few.len() == 6 && few.iter().all(|(_, verdict)| *verdict == Verdict::Disturbed), "{few:?}");
    }
}
