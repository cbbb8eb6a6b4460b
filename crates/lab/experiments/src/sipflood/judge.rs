//! What has to hold of what was measured.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    FloodOptions,
    cases::{Attackers, Case, Crowd},
    site::{INSIDER, PER_SOURCE_MAX, PER_SOURCE_PER_S, SHARDS, UNPROVED_PER_S},
};
use crate::report::{
    Judge,
    rows::{Case as About, Report},
};
use sluicegate_site::cpu::Taken;
use sluicegate_traffic::{
    attack::Manner,
    client::setup::{EndedCall, Setup},
    sample::Percentiles,
    stream::Over,
};

/// A flood that is slower tries nothing, messages a second; of one account, whose nonces bound it, fewer.
const FLOOD_PER_S_MIN: f64 = 10_000.0;
const ACCOUNT_PER_S_MIN: f64 = 1_000.0;
/// The same over connections, where the front end reads as fast as it can work and no faster.
const STREAMED_PER_S_MIN: f64 = 2_000.0;
const ACCOUNT_STREAMED_PER_S_MIN: f64 = 200.0;
/// Buckets that one address draws on for connections, and for how many seconds each is full.
const BUCKETS: f64 = 2.0;
const BUCKET_S: f64 = 10.0;
/// Connections of honest telephones that have not signed in yet.
const BEGINNING_MAX: f64 = 64.0;
/// How long a flood lasts before anything is counted, in seconds.
const SETTLE_S: f64 = 1.5;
/// Calls that were begun of those that were to be.
const BEGUN_MIN: f64 = 0.95;
/// INVITE, ACK and BYE, and one of them again.
const MESSAGES_PER_CALL: u64 = 4;
/// Datagrams of media that came back.
const MEDIA_MIN: f64 = 0.99;
/// What a flood may add to the front end's memory, of which most is taken at the start: the tables' own growth.
const MEMORY_GROWTH_KB: f64 = 16_384.0;
/// Tables that forget nothing by time alone: the last decisions, and nonces until somebody signs in again.
const KEPT: [&str; 2] = ["decisions", "replays"];
/// What is beside the tables in what a front end holds.
pub(super) const MEMORY: &str = "memory_kb";
/// What may remain, when all that was remembered has ended, beyond what it held when its tables had been filled once.
const MEMORY_LEFT_KB: f64 = 16_384.0;
/// Bytes of an answer for which a front end's limit counts one.
const ANSWER_BYTES: f64 = 512.0;
/// What a bucket of answers holds, and what a tick of the counter may be late, in seconds.
const BURST_S: f64 = 2.0 + 0.5;
const TICK_S: f64 = 0.5;
/// Ethernet, IPv4 and UDP.
const HEADERS_LEN: u64 = 42;

/// What became of honest calls.
#[derive(Debug, Default)]
pub(super) struct Honest {
    pub(super) begun: u64,
    established: u64,
    /// Those whose BYE was answered with success.
    ended: u64,
    media_sent: u64,
    media_heard: u64,
    setup_us: Vec<u64>,
    /// Set-ups that failed, and BYEs that were not answered so, by status; 0: no answer.
    failed: BTreeMap<String, u64>,
}

impl Honest {
    pub(super) fn set_up(&mut self, setup: &Setup) {
        self.established += u64::from(setup.us.is_some());
        self.setup_us.extend(setup.us);
        if setup.us.is_none() {
            *self.failed.entry(format!("setups_failed_{}", setup.status)).or_insert(0) += 1;
        }
    }

    pub(super) fn end(&mut self, ended: &EndedCall) {
        self.media_sent += u64::from(ended.media_sent);
        self.media_heard += u64::from(ended.media_heard);
        if (200..300).contains(&ended.status) {
            self.ended += 1;
        } else {
            *self.failed.entry(format!("byes_failed_{}", ended.status)).or_insert(0) += 1;
        }
    }
}

/// What was sent at the front end.
#[derive(Debug, Default)]
pub(super) struct Flood {
    /// Frames that came to its host, those of honest calls included.
    pub(super) offered_per_s: f64,
    /// Datagrams that it took from its sockets.
    pub(super) received_per_s: f64,
    sent_per_s: f64,
    answers: BTreeMap<String, u64>,
    accepted: u64,
    /// Connections that it took, and that it refused at once.
    pub(super) opened_per_s: f64,
    pub(super) refused_per_s: f64,
    /// Most connections at one time over which nobody had signed in.
    pub(super) held_max: u64,
    /// Messages of others than attacking accounts that the exchanges had, those of honest calls included.
    pub(super) relayed: u64,
    /// Those of the account that attacks.
    pub(super) of_account: u64,
    /// What happened there, by its own names.
    pub(super) events: BTreeMap<String, u64>,
    /// Packets and bytes that it sent those whose addresses were forged, in each half second.
    pub(super) victims: Vec<(u64, u64)>,
}

impl Flood {
    /// Adds what an attacker says that it did.
    pub(super) fn add(&mut self, result: &Value) {
        let sent = result["requests"].as_f64().or_else(|| result["frames"].as_f64()).unwrap_or_default();
        self.sent_per_s += sent * 1e3 / result["ms"].as_f64().unwrap_or(1.0).max(1.0);
        self.accepted += result["accepted"].as_u64().unwrap_or_default();
        for (status, count) in result["answers"].as_object().into_iter().flatten() {
            *self.answers.entry(status.clone()).or_insert(0) += count.as_u64().unwrap_or_default();
        }
    }

    /// The highest rate, in bytes of SIP a second, of a bucket that would have let all of it pass to the victims.
    fn victims_per_s(&self) -> f64 {
        let payload: Vec<f64> =
            self.victims.iter().map(|(packets, bytes)| bytes.saturating_sub(packets * HEADERS_LEN) as f64).collect();
        let mut worst: f64 = 0.0;
        for start in 0..payload.len() {
            let (mut bytes, mut time) = (0.0, BURST_S);
            for tick in &payload[start..] {
                (bytes, time) = (bytes + tick, time + TICK_S);
                worst = worst.max(bytes / time);
            }
        }
        worst
    }
}

/// Resident memory of the front end, kB.
#[derive(Debug, Default)]
pub(super) struct Memory {
    pub(super) before_kb: u64,
    pub(super) during_kb: Vec<u64>,
    pub(super) after_kb: u64,
}

/// One flood, and what happened meanwhile.
#[derive(Debug)]
pub(super) struct Played {
    pub(super) honest: Honest,
    pub(super) flood: Flood,
    pub(super) memory: Memory,
    pub(super) seconds: f64,
    /// From before the attackers were there until all that came of them was counted.
    pub(super) flood_seconds: f64,
    pub(super) taken: Taken,
    /// Calls that were to be begun.
    pub(super) planned: u32,
}

/// Adds the figures of one flood.
pub(super) fn judge(report: &mut Report, (case, over): (&Case, Over), options: &FloodOptions, played: &mut Played) {
    let Played { honest, flood, memory, taken, .. } = played;
    let about = (case.name, over.name());
    let mut judge = report.of(about);
    judge.note_taken(taken);
    judge.note("seconds", played.seconds);
    judge.note("flood_sent_per_s", flood.sent_per_s);
    judge.note("flood_offered_per_s", flood.offered_per_s);
    for (status, count) in &flood.answers {
        judge.note(&format!("flood_answered_{status}"), *count as f64);
    }
    let beyond = match case.account(over) {
        Some(_) => flood.of_account,
        None => flood.relayed.saturating_sub(honest.begun * MESSAGES_PER_CALL),
    };
    let beyond = beyond as f64 / played.seconds;
    match case.reaches {
        Some(most) => {
            let most = (most.at_once + most.per_s * played.flood_seconds) / played.seconds;
            judge.at_most("reached_exchange_per_s", beyond, most);
        }
        None => judge.note("reached_exchange_per_s", beyond),
    }
    for (name, count) in flood.events.iter().filter(|(_, count)| **count > 0) {
        judge.note(&format!("frontend_{name}"), *count as f64);
    }
    judge_arrivals(&mut judge, (case, over), options, flood, played.seconds, honest.begun);
    if !case.may_succeed {
        judge.at_most("flood_accepted", flood.accepted as f64, 0.0);
    }
    if matches!(case.by, Attackers::Spoofers) {
        let most = f64::from(SHARDS * UNPROVED_PER_S) * ANSWER_BYTES;
        judge.at_most("victims_bytes_per_s", flood.victims_per_s(), most);
        let sent: u64 = flood.victims.iter().map(|(packets, _)| packets).sum();
        judge.timed(true).at_least("victims_packets", sent as f64, 1.0);
    }
    let mut timed = report.of(about).disturbed(taken.is_much());
    timed.at_least("calls_begun_share", share(honest.begun, played.planned.into()), BEGUN_MIN);
    timed.at_least("calls_established_share", share(honest.established, honest.begun), case.least);
    timed.at_least("calls_ended_share", share(honest.ended, honest.established), case.least);
    timed.at_least("media_share", share(honest.media_heard, honest.media_sent), MEDIA_MIN);
    timed.note("calls", honest.begun as f64);
    timed.note("setup_p99_ms", Percentiles::of(&mut honest.setup_us).p99 as f64 / 1e3);
    for (what, count) in &honest.failed {
        timed.note(what, *count as f64);
    }
    let most = memory.during_kb.iter().copied().max().unwrap_or(u64::MAX);
    let mut judge = report.of(about);
    judge.note("memory_before_kb", memory.before_kb as f64);
    judge.at_most("memory_growth_kb", most as f64 - memory.before_kb as f64, MEMORY_GROWTH_KB);
    judge.note("memory_after_kb", memory.after_kb as f64);
}

/// Whether no table holds more than it did before, but for those that forget nothing by time.
pub(super) fn is_at_rest(before: &BTreeMap<String, u64>, now: &BTreeMap<String, u64>) -> bool {
    tables(before, now).all(|(_, used, before)| used <= before)
}

fn tables<'t>(
    before: &'t BTreeMap<String, u64>,
    now: &'t BTreeMap<String, u64>,
) -> impl Iterator<Item = (&'t str, u64, u64)> {
    let is_table = |name: &str| name != MEMORY && !KEPT.contains(&name);
    let tables = now.iter().filter(move |(name, _)| is_table(name));
    tables.map(|(name, used)| (name.as_str(), *used, before.get(name).copied().unwrap_or_default()))
}

/// Adds what the front end still holds when all has ended, against what it held before.
pub(super) fn judge_rest(report: &mut Report, before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) {
    let mut judge = report.of(("rest", "all"));
    for (name, used, before) in tables(before, after) {
        judge.at_most(&format!("used_{name}"), used as f64, before as f64);
    }
    let memory = |of: &BTreeMap<String, u64>| of.get(MEMORY).map_or(f64::NAN, |kb| *kb as f64);
    judge.at_most("memory_left_kb", memory(after) - memory(before), MEMORY_LEFT_KB);
}

/// Adds what came of a flood. Who sent too little has shown nothing, whoever is to blame for it.
fn judge_arrivals(
    judge: &mut Judge<'_, About>,
    (case, over): (&Case, Over),
    options: &FloodOptions,
    flood: &Flood,
    seconds: f64,
    calls: u64,
) {
    let half = options.per_s as f64 / 2.0;
    let (received, offered) = (flood.received_per_s, flood.opened_per_s + flood.refused_per_s);
    let least = match (case.by, over.is_stream()) {
        (Attackers::Nobody, _) => 0.0,
        (Attackers::Account(..), false) => ACCOUNT_PER_S_MIN.min(half),
        (Attackers::Account(..), true) => ACCOUNT_STREAMED_PER_S_MIN.min(half),
        (_, false) => FLOOD_PER_S_MIN.min(half),
        (_, true) => STREAMED_PER_S_MIN.min(half),
    };
    let Attackers::Crowd(Crowd { manner, sources, least_per_s, .. }) = case.by else {
        judge.timed(true).at_least("flood_received_per_s", received, least);
        return;
    };
    // Each honest call has a connection, too.
    let of_strangers = |all: f64| (all - calls as f64 / seconds).max(0.0);
    judge.note("connections_refused_per_s", flood.refused_per_s);
    if manner == Manner::Deaf {
        judge.timed(true).at_least("flood_received_per_s", received, least_per_s);
    } else {
        judge.timed(true).at_least("connections_offered_per_s", of_strangers(offered), least_per_s);
    }
    if sources == INSIDER {
        let threads = f64::from(SHARDS);
        let may_open = threads * BUCKETS * f64::from(PER_SOURCE_PER_S) * (BUCKET_S + SETTLE_S + seconds) / seconds;
        judge.at_most("connections_opened_per_s", of_strangers(flood.opened_per_s), may_open);
        let may_hold = threads * f64::from(PER_SOURCE_MAX) + BEGINNING_MAX;
        judge.at_most("connections_held", flood.held_max as f64, may_hold);
    } else {
        judge.note("connections_opened_per_s", of_strangers(flood.opened_per_s));
        judge.note("connections_held", flood.held_max as f64);
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { f64::NAN } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        report::Verdict,
        sipflood::{Mutant, cases::CASES},
    };

    fn options() -> FloodOptions {
        let (only, over, datapath) = (None, None, "packet".to_owned());
        FloodOptions { only, over, short: false, rounds: 1, per_s: 100_000, datapath, seed: 1, mutant: Mutant::None }
    }

    fn good() -> Played {
        let honest = Honest {
            begun: 1_000,
            established: 1_000,
            ended: 1_000,
            media_sent: 20_000,
            media_heard: 20_000,
            setup_us: vec![900; 1_000],
            failed: BTreeMap::new(),
        };
        let flood = Flood {
            offered_per_s: 50_000.0,
            received_per_s: 50_000.0,
            opened_per_s: 200.0,
            refused_per_s: 2_000.0,
            held_max: 512,
            relayed: 3_100,
            victims: vec![(500, 500 * (HEADERS_LEN + 450)); 40],
            ..Flood::default()
        };
        let memory = Memory { before_kb: 20_000, during_kb: vec![20_000, 21_000, 21_000], after_kb: 21_000 };
        Played { honest, flood, memory, seconds: 20.0, flood_seconds: 24.0, taken: Taken::default(), planned: 1_000 }
    }

    fn failures(name: &str, change: impl FnOnce(&mut Played)) -> Vec<(String, Verdict)> {
        failures_over(Over::Udp, name, change)
    }

    fn failures_over(over: Over, name: &str, change: impl FnOnce(&mut Played)) -> Vec<(String, Verdict)> {
        let case = CASES.iter().find(|case| case.name == name).unwrap();
        let (mut report, mut played) = (Report::default(), good());
        change(&mut played);
        judge(&mut report, (case, over), &options(), &mut played);
        report.figures.failed().map(|figure| (figure.metric.clone(), figure.verdict.unwrap())).collect()
    }

    #[test]
    fn a_good_run_of_every_flood_holds() {
        for case in CASES {
            for over in case.over {
                assert_eq!(failures_over(*over, case.name, |_| ()), [], "{} over {}", case.name, over.name());
            }
        }
    }

    #[test]
    fn each_promise_that_is_broken_fails_by_its_own_name() {
        type Change = fn(&mut Played);
        let cases: [(&str, Change, &str); 10] = [
            ("bye", |run| run.honest.established = 998, "calls_established_share"),
            ("bye", |run| run.honest.ended = 998, "calls_ended_share"),
            ("ack", |run| run.honest.established = 989, "calls_established_share"),
            ("ack", |run| run.honest.media_heard = 19_700, "media_share"),
            ("ack", |run| run.flood.relayed = 4_001, "reached_exchange_per_s"),
            ("in_dialog", |run| run.flood.of_account = 14_000, "reached_exchange_per_s"),
            ("invite", |run| run.flood.accepted = 1, "flood_accepted"),
            ("spoofed", |run| run.flood.victims[20].1 += 3_000_000, "victims_bytes_per_s"),
            ("garbage", |run| run.memory.during_kb.push(60_000), "memory_growth_kb"),
            ("unanswered", |run| run.memory.during_kb.push(55_000), "memory_growth_kb"),
        ];
        for (name, change, metric) in cases {
            assert_eq!(failures(name, change), [(metric.to_owned(), Verdict::Missed)]);
        }
        assert_eq!(failures("ack", |run| run.honest.established = 998), [], "one in a hundred may fail there");
    }

    #[test]
    fn a_flood_that_did_not_come_shows_nothing_whoever_is_to_blame() {
        let weak = |run: &mut Played| run.flood.received_per_s = 900.0;
        assert_eq!(failures("bye", weak), [("flood_received_per_s".to_owned(), Verdict::Disturbed)]);
        assert_eq!(failures("calm", weak), []);
        let weak = |run: &mut Played| (run.flood.opened_per_s, run.flood.refused_per_s) = (55.0, 0.0);
        for name in ["silent", "slow", "half", "no_sip", "endless", "one_source"] {
            let failed = failures_over(Over::Tcp, name, weak);
            assert_eq!(failed, [("connections_offered_per_s".to_owned(), Verdict::Disturbed)], "{name}");
        }
        for name in ["begun", "handshakes"] {
            let failed = failures_over(Over::Tls, name, weak);
            assert_eq!(failed, [("connections_offered_per_s".to_owned(), Verdict::Disturbed)], "{name}");
        }
        let deaf = failures_over(Over::Tcp, "deaf", |run| run.flood.received_per_s = 900.0);
        assert_eq!(deaf, [("flood_received_per_s".to_owned(), Verdict::Disturbed)]);
    }

    #[test]
    fn a_source_that_holds_or_opens_more_than_its_share_is_named() {
        let missed = |name: &str| [(name.to_owned(), Verdict::Missed)];
        let held = failures_over(Over::Tls, "one_source", |run| run.flood.held_max = 1_024);
        assert_eq!(held, missed("connections_held"));
        let opened = failures_over(Over::Tls, "one_source", |run| run.flood.opened_per_s = 3_000.0);
        assert_eq!(opened, missed("connections_opened_per_s"));
        assert_eq!(
            failures_over(Over::Tls, "begun", |run| run.flood.held_max = 2_048),
            [],
            "many sources may have more"
        );
    }

    #[test]
    fn what_is_left_of_another_flood_is_not_held_against_one() {
        assert_eq!(failures("bye", |run| run.flood.of_account = 90_000), []);
    }

    #[test]
    fn calls_that_fail_while_others_have_the_machine_are_not_held_against_it() {
        let taken = Taken { share: 0.3, ..Taken::default() };
        let spoiled = failures("bye", |run| (run.taken, run.honest.established) = (taken, 900));
        assert_eq!(spoiled, [("calls_established_share".to_owned(), Verdict::Disturbed)]);
        let reached = failures("bye", |run| (run.taken, run.flood.relayed) = (taken, 90_000));
        assert_eq!(reached, [("reached_exchange_per_s".to_owned(), Verdict::Missed)]);
    }

    #[test]
    fn a_bucket_may_be_full_at_first_and_no_more() {
        let with = |victims| Flood { victims, ..Flood::default() }.victims_per_s();
        let tick = |bytes: u64| (0, bytes);
        assert!((with(vec![tick(3_000)]) - 1_000.0).abs() < 1e-9, "two and a half seconds' worth at once");
        let steady: Vec<_> = [tick(3_000)].into_iter().chain(vec![tick(500); 100]).collect();
        assert!((with(steady) - 1_000.0).abs() < 1e-9);
        assert!(with(vec![tick(600); 1_000]) > 1_190.0);
    }

    #[test]
    fn what_is_held_at_rest_was_held_before_or_forgets_nothing_by_time() {
        let held = |calls, replays, memory| {
            [("calls", calls), ("replays", replays), (MEMORY, memory)]
                .map(|(name, used)| (name.to_owned(), used))
                .into()
        };
        let failed = |after: &BTreeMap<String, u64>| {
            let mut report = Report::default();
            judge_rest(&mut report, &held(1, 0, 20_000), after);
            report.figures.failed().map(|figure| figure.metric.clone()).collect::<Vec<_>>()
        };
        assert_eq!(failed(&held(1, 4_096, 24_000)), [] as [&str; 0]);
        assert_eq!(failed(&held(2, 0, 20_000)), ["used_calls"]);
        assert_eq!(failed(&held(0, 0, 90_000)), ["memory_left_kb"]);
        assert!(is_at_rest(&held(1, 0, 0), &held(1, 9, 9)) && !is_at_rest(&held(1, 0, 0), &held(2, 0, 0)));
    }
}
