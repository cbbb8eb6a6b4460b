//! What has to hold of what was measured.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{AttackOptions, play::tables};
use crate::{
    report::{
        Judge,
        rows::{Case, Report},
    },
    sipflood::{
        play::CALLS_PER_S,
        site::{FRONTENDS, SHARDS, UNPROVED_PER_S},
    },
};
use sluicegate_site::cpu::Taken;
use sluicegate_traffic::{
    client::setup::{EndedCall, Setup, SetupSummary},
    sipload::LoadSum,
};

/// Of all calls that must be set up, and of those that were, whose BYE must be answered.
const SET_UP_MIN: f64 = 0.99;
const ENDED_MIN: f64 = 0.999;
/// Calls that were begun of those that were to be.
const BEGUN_MIN: f64 = 0.95;
/// How far the calls that are let in may be from those that are made, in any ten seconds.
const RATE_RANGE: [f64; 2] = [0.9, 1.1];
const WINDOW_NS: u64 = 10_000_000_000;
/// What the attack may add to a front end's memory once it has gone on for a quarter of the first part.
const MEMORY_GROWTH_KB: f64 = 16_384.0;
/// What the calls of a crowd may add, which are let in as far as they can be served: grants, stories, used nonces.
const MEMORY_GROWTH_IN_SURGE_KB: f64 = 98_304.0;
/// M_max: exchanges under way, of those that there is room for.
const EXCHANGES_MAX: f64 = 0.5;
/// An attack that sends less tries nothing, messages a second and front end.
const FLOOD_PER_S_MIN: f64 = 5_000.0;
/// What the crowd has to ask for, calls a second; less than can be served asks for no control of overload.
const CROWD_PER_S_MIN: f64 = 4_000.0;
/// Whose calls all fail is refused for something else.
const CROWD_ESTABLISHED_PER_S_MIN: f64 = 20.0;
/// Most answers to strangers of one /24: of both front ends together, by what each of their threads may send there, in answers of
/// half the length that one counts for, and by the few that each address of it gets.
const ANSWERS_PER_S_MAX: f64 = FRONTENDS.len() as f64 * (SHARDS * (2 * UNPROVED_PER_S + 5 * 254)) as f64;
/// Calls that end when their front end is killed say no BYE that is answered.
const MARGIN_NS: u64 = 5_000_000_000;

/// Part of the attack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Both front ends live.
    Both,
    /// One is dead.
    Killed,
    /// It lives again.
    Back,
    /// A crowd calls beside all that.
    Surge,
    /// The last calls end.
    After,
}

impl Part {
    const fn name(self) -> &'static str {
        match self {
            Self::Both => "both",
            Self::Killed => "killed",
            Self::Back => "back",
            Self::Surge => "surge",
            Self::After => "after",
        }
    }
}

/// One look at a front end.
#[derive(Debug, Clone)]
pub(super) struct Look {
    part: Part,
    place: usize,
    resident_kb: u64,
    /// Exchanges under way, of those that there is room for.
    exchanges: f64,
    datagrams: u64,
    /// Requests and events since its start, by what became of them.
    counted: BTreeMap<String, u64>,
}

impl Look {
    pub(super) fn of(part: Part, place: usize, resident_kb: u64, status: &Value) -> Self {
        let exchanges = tables(status).get("exchanges").map_or(0.0, |(used, max)| *used as f64 / *max as f64);
        let of = |what: &str| status["frontend"][what].as_object().cloned().unwrap_or_default();
        let counted = of("requests").into_iter().chain(of("events"));
        let counted = counted.filter_map(|(name, count)| Some((name, count.as_u64()?))).collect();
        let datagrams = status["frontend"]["events"]["datagrams"].as_u64().unwrap_or_default();
        Self { part, place, resident_kb, exchanges, datagrams, counted }
    }

    fn refused_for_overload(&self) -> u64 {
        self.counted.iter().filter(|(name, _)| name.contains("overload")).map(|(_, count)| count).sum()
    }
}

/// What happened.
#[derive(Debug, Default)]
pub(super) struct Played {
    pub(super) setups: Vec<Setup>,
    pub(super) ended: Vec<EndedCall>,
    pub(super) looks: Vec<Look>,
    /// Each part, and when it began and ended, nanoseconds since 1970.
    pub(super) parts: Vec<(Part, u64, u64)>,
    /// Messages and connections of the attackers.
    pub(super) sent: u64,
    /// What strangers of one /24 were answered over UDP, where nobody knows whose addresses those are, a second.
    pub(super) answers_per_s: f64,
    /// Openings that the gate refused, by reason.
    pub(super) openings_refused: BTreeMap<String, u64>,
    /// Packets that the gate dropped, by reason.
    pub(super) dropped_at_gate: BTreeMap<String, u64>,
    /// What became of the crowd's calls.
    pub(super) crowd: LoadSum,
    /// Whether the telephones have said all.
    pub(super) are_done: bool,
    pub(super) taken: Taken,
}

/// Adds the figures of all parts.
pub(super) fn judge(report: &mut Report, options: &AttackOptions, played: &Played) {
    for (part, from_ns, to_ns) in &played.parts {
        if *part != Part::After {
            judge_part(report, played, *part, (*from_ns, *to_ns));
        }
    }
    let [parts @ .., _, surge_s] = options.parts_s();
    for place in 0..2 {
        let about = ("memory", if place == 0 { "first" } else { "second" });
        judge_memory(&mut report.of(about), played, place);
        let floods_s: u32 = parts.iter().sum::<u32>() * u32::from(place == 1);
        if floods_s > 0 {
            let looks = || played.looks.iter().filter(|look| look.place == place);
            let datagrams = looks().map(|look| look.datagrams).max().unwrap_or_default();
            let per_s = datagrams as f64 / f64::from(floods_s + surge_s);
            report.of(about).timed(true).at_least("flood_received_per_s", per_s, FLOOD_PER_S_MIN);
        }
    }
    let mut judge = report.of(("surge", "crowd"));
    judge.note_taken(&played.taken);
    let per_s = |calls: u64| calls as f64 / f64::from(surge_s);
    let crowd = &played.crowd;
    judge.timed(true).at_least("calls_offered_per_s", per_s(crowd.offered), CROWD_PER_S_MIN);
    judge.timed(true).at_least("calls_established_per_s", per_s(crowd.established), CROWD_ESTABLISHED_PER_S_MIN);
    judge.note("challenges_answered_per_s", per_s(crowd.challenged));
    judge.note("requests_again_per_s", per_s(crowd.retransmissions));
    for (status, count) in &crowd.refused {
        judge.note(&format!("refused_{status}_per_s"), per_s(*count));
    }
    // Of the front end that was not killed.
    let looks = || played.looks.iter().filter(|look| look.place == 1);
    let before = looks().rfind(|look| look.part != Part::Surge && look.part != Part::After);
    let (Some(before), Some(after)) = (before, looks().next_back()) else { return };
    judge.at_least(
        "refused_for_overload",
        after.refused_for_overload().saturating_sub(before.refused_for_overload()) as f64,
        1.0,
    );
    for (name, count) in &after.counted {
        let more = count - before.counted.get(name).copied().unwrap_or_default().min(*count);
        if more > 0 {
            judge.note(&format!("counted_{}", name.replace(' ', "_")), more as f64);
        }
    }
    for (reason, count) in &played.openings_refused {
        judge.note(&format!("openings_refused_{reason}"), *count as f64);
    }
    for (reason, count) in played.dropped_at_gate.iter().filter(|(_, count)| **count > 0) {
        judge.note(&format!("gate_dropped_{reason}"), *count as f64);
    }
    judge.note("attackers_sent", played.sent as f64);
    judge.at_most("strangers_answers_per_s", played.answers_per_s, ANSWERS_PER_S_MAX);
}

fn judge_part(report: &mut Report, played: &Played, part: Part, (from_ns, to_ns): (u64, u64)) {
    let mut judge = report.of((part.name(), "telephones")).disturbed(played.taken.is_much());
    let summary = SetupSummary::of(&played.setups, from_ns, to_ns);
    let seconds = (to_ns - from_ns) as f64 / 1e9;
    let planned = seconds * f64::from(CALLS_PER_S);
    judge.at_least("calls_begun_share", summary.started as f64 / planned, BEGUN_MIN);
    judge.at_least("calls_established_share", summary.established as f64 / summary.started as f64, SET_UP_MIN);
    for (status, count) in &summary.failed {
        judge.note(&format!("setups_failed_{status}"), *count as f64);
    }
    judge.note("setup_p50_ms", summary.us.p50 as f64 / 1e3);
    judge.note("setup_p99_ms", summary.us.p99 as f64 / 1e3);
    // Who was calling through a front end that dies hangs up alone.
    let (from_ns, to_ns) = match part {
        Part::Both => (from_ns, to_ns - MARGIN_NS),
        _ => (from_ns + MARGIN_NS, to_ns),
    };
    let was_begun = |at_ns: u64| (from_ns..to_ns).contains(&at_ns);
    let ended = || played.ended.iter().filter(|ended| was_begun(ended.started_ns));
    let answered = ended().filter(|ended| (200..300).contains(&ended.status)).count();
    let established = SetupSummary::of(&played.setups, from_ns, to_ns).established;
    let mut unanswered = BTreeMap::<u16, u64>::new();
    ended()
        .filter(|ended| !(200..300).contains(&ended.status))
        .for_each(|ended| *unanswered.entry(ended.status).or_default() += 1);
    for (status, count) in unanswered {
        judge.note(&format!("byes_failed_{status}"), count as f64);
    }
    judge.at_least("calls_ended_share", answered as f64 / established as f64, ENDED_MIN);
    let (sent, heard) = ended().fold((0, 0), |(sent, heard), ended| {
        (sent + u64::from(ended.media_sent), heard + u64::from(ended.media_heard))
    });
    let silent = ended().filter(|ended| ended.media_sent > 0 && ended.media_heard == 0).count();
    judge.note("calls_without_media", silent as f64);
    judge.note(
        "calls_with_more_media_than_sent",
        ended().filter(|ended| ended.media_heard > ended.media_sent).count() as f64,
    );
    judge.at_least("media_share", heard as f64 / sent as f64, SET_UP_MIN);
    if part == Part::Both {
        let rates = (from_ns..to_ns.saturating_sub(WINDOW_NS)).step_by(WINDOW_NS as usize).map(|from_ns| {
            let summary = SetupSummary::of(&played.setups, from_ns, from_ns + WINDOW_NS);
            summary.established as f64 * 1e9 / WINDOW_NS as f64 / f64::from(CALLS_PER_S)
        });
        let rates: Vec<f64> = rates.collect();
        let (least, most) = rates.iter().fold((f64::MAX, 0.0), |(least, most), rate| (rate.min(least), rate.max(most)));
        judge.at_least("accepted_of_engineered_min", least, RATE_RANGE[0]);
        judge.at_most("accepted_of_engineered_max", most, RATE_RANGE[1]);
    }
}

fn judge_memory(judge: &mut Judge<'_, Case>, played: &Played, place: usize) {
    let exchanges = played.looks.iter().filter(|look| look.place == place).map(|look| look.exchanges);
    judge.at_most("exchanges_share_max", exchanges.fold(0.0, f64::max), EXCHANGES_MAX);
    let all = || played.looks.iter().filter(|look| look.place == place && (place == 1 || look.part == Part::Both));
    let is_surge = |look: &&Look| matches!(look.part, Part::Surge | Part::After);
    let kb: Vec<u64> = all().filter(|look| !is_surge(look)).map(|look| look.resident_kb).collect();
    // Tables get their memory when they are filled first.
    let (filling, rest) = kb.split_at(kb.len() / 4);
    let (Some(before), Some(most)) = (filling.iter().max(), rest.iter().max()) else { return };
    judge.note("memory_before_kb", *before as f64);
    judge.at_most("memory_growth_kb", *most as f64 - *before as f64, MEMORY_GROWTH_KB);
    if let Some(surge) = all().filter(is_surge).map(|look| look.resident_kb).max() {
        judge.at_most("memory_growth_in_surge_kb", surge as f64 - *before as f64, MEMORY_GROWTH_IN_SURGE_KB);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{
        super::{AttackOptions, Mutant},
        *,
    };

    const SECOND_NS: u64 = 1_000_000_000;

    fn options() -> AttackOptions {
        AttackOptions { short: true, per_s: 30_000, datapath: "packet".to_owned(), seed: 1, mutant: Mutant::None }
    }

    fn crowd(offered: u64) -> LoadSum {
        LoadSum { offered, established: offered / 50, ..LoadSum::default() }
    }

    fn good() -> Played {
        let options = options();
        let mut played = Played { crowd: crowd(100_000), sent: 1, are_done: true, ..Played::default() };
        let mut at_ns = SECOND_NS;
        let mut overloads = 0;
        for (part, seconds) in [Part::Both, Part::Killed, Part::Back, Part::Surge].into_iter().zip(options.parts_s()) {
            let end_ns = at_ns + u64::from(seconds) * SECOND_NS;
            played.parts.push((part, at_ns, end_ns));
            for call in 0..seconds * CALLS_PER_S {
                let started_ns = at_ns + u64::from(call) * SECOND_NS / u64::from(CALLS_PER_S);
                let (us, user, media) = (Some(900), String::new(), None);
                played.setups.push(Setup { started_ns, us, user, status: 200, media });
                played.ended.push(EndedCall { started_ns, status: 200, media_sent: 10, media_heard: 10 });
            }
            for place in 0..2 {
                overloads += u64::from(part == Part::Surge) * 100;
                let status = json!({ "frontend": {
                    "tables": [{ "table": "exchanges", "used": 100, "max": 1_000 }],
                    "events": { "datagrams": 2_000_000 }, "requests": { "invite overload": overloads },
                } });
                let look = Look::of(part, place, 20_000, &status);
                played.looks.extend(std::iter::repeat_n(look, 8));
            }
            at_ns = end_ns;
        }
        played
    }

    fn failures(change: impl FnOnce(&mut Played)) -> Vec<String> {
        let (mut report, mut played) = (Report::default(), good());
        change(&mut played);
        judge(&mut report, &options(), &played);
        report.figures.failed().map(|figure| figure.metric.clone()).collect()
    }

    #[test]
    fn a_good_run_holds() {
        assert_eq!(failures(|_| ()), [] as [&str; 0]);
    }

    #[test]
    fn each_promise_that_is_broken_fails_by_its_own_name() {
        let of = |part: Part| move |look: &&mut Look| look.part == part;
        assert_eq!(
            failures(|run| run.setups.iter_mut().rev().take(40).for_each(|setup| setup.us = None)),
            ["calls_established_share"]
        );
        assert_eq!(
            failures(|run| run.ended.iter_mut().take(3).for_each(|ended| ended.status = 481)),
            ["calls_ended_share"]
        );
        assert_eq!(
            failures(|run| run.setups.iter_mut().skip(500).take(100).for_each(|setup| setup.us = None)),
            ["calls_established_share", "accepted_of_engineered_min"]
        );
        assert_eq!(
            failures(|run| run.looks.iter_mut().filter(of(Part::Killed)).for_each(|look| look.exchanges = 0.6)),
            ["exchanges_share_max", "exchanges_share_max"]
        );
        let grown =
            failures(|run| run.looks.iter_mut().filter(of(Part::Back)).for_each(|look| look.resident_kb = 90_000));
        assert_eq!(grown, ["memory_growth_kb"]);
        let grown =
            failures(|run| run.looks.iter_mut().filter(of(Part::Surge)).for_each(|look| look.resident_kb = 200_000));
        assert_eq!(grown, ["memory_growth_in_surge_kb"]);
        assert_eq!(failures(|run| run.answers_per_s = 20_000.0), ["strangers_answers_per_s"]);
        assert_eq!(
            failures(|run| run.looks.iter_mut().for_each(|look| look.counted.clear())),
            ["refused_for_overload"]
        );
    }

    #[test]
    fn an_attack_that_does_not_arrive_shows_nothing() {
        assert_eq!(failures(|run| run.crowd = crowd(0)), ["calls_offered_per_s", "calls_established_per_s"]);
        assert_eq!(failures(|run| run.looks.iter_mut().for_each(|look| look.datagrams = 0)), ["flood_received_per_s"]);
    }
}
