//! What has to hold of what was measured.

use super::{
    Attack, Report,
    play::{DEFAULT_GRANT, FIRST_TRY_MS},
};
use crate::report::{Judge, rows::Case};
use sluicegate_site::cpu::Taken;
use sluicegate_traffic::{client::transfer::Transfer, sample::Percentiles};

/// Attackers of an imprecise policy; at least so many of a hundred have to be authorised at first.
const AUTHORISED: f64 = 0.95;
/// How long a disturbance may last (TVA V-E), and when a transfer is disturbed: against the median without attack.
const DISTURBANCE_S: f64 = 3.0;
const DISTURBED: u64 = 3;
/// What requests get of a link that others want, and a hundredth for what was under way.
const REQUEST_SHARE: f64 = 0.06;

/// What a phase showed.
#[derive(Debug, Default)]
pub(super) struct Phase {
    pub(super) transfers: Vec<Transfer>,
    pub(super) behind_spoofer: Vec<Transfer>,
    /// Bytes to the service and to the colluder on their wires while the transfers ran.
    pub(super) carried: (u64, u64),
    /// What came to the gate from outside while the flood lasted.
    pub(super) received_bps: f64,
    /// What its host took of the machine meanwhile.
    pub(super) taken: Taken,
    /// Bytes that left the gate towards the bottleneck in the request lane, and in all.
    pub(super) lanes: (u64, u64),
    pub(super) attack_began_ns: u64,
    /// Attackers, and those that were authorised before the flood began.
    pub(super) asked: u64,
    pub(super) granted: u64,
    /// For each attacker that got through, the bytes that arrived as regular packets.
    pub(super) attackers: Vec<u64>,
}

impl Phase {
    fn complete(&self) -> f64 {
        share(self.transfers.iter().filter(|one| one.error.is_none()).count(), self.transfers.len())
    }

    fn times(&self) -> Percentiles {
        Percentiles::of(
            &mut self.transfers.iter().filter(|one| one.error.is_none()).map(|one| one.ms).collect::<Vec<_>>(),
        )
    }

    fn first_try(&self) -> f64 {
        let at_first = |one: &&Transfer| one.connect_ms.is_some_and(|ms| ms < FIRST_TRY_MS);
        share(self.transfers.iter().filter(at_first).count(), self.transfers.len())
    }

    fn destination_share(&self) -> f64 {
        let (service, colluder) = self.carried;
        service as f64 / (service + colluder).max(1) as f64
    }
}

fn share(part: usize, whole: usize) -> f64 {
    if whole == 0 { f64::NAN } else { part as f64 / whole as f64 }
}

/// The phases of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shown<'p> {
    pub(super) plain: &'p Phase,
    pub(super) calm: &'p Phase,
    pub(super) attacked: &'p Phase,
    pub(super) link_bps: f64,
    /// The flood that has to have arrived, in multiples of the link.
    pub(super) ratio: f64,
}

impl Shown<'_> {
    /// Every threshold of an attack.
    pub(super) fn judge(&self, report: &mut Report, attack: Attack) {
        let case = if attack == Attack::Imprecise { "imprecise-high" } else { attack.label() };
        self.both(report, case, Some(self.ratio));
        match attack {
            Attack::Legacy => self.legacy(report),
            Attack::Request => self.requests(report),
            Attack::Authorized => self.authorized(report),
            Attack::Imprecise | Attack::Reasking => {
                self.timed(report, case, "plain").at_most("complete_share", self.plain.complete(), 0.5);
                self.imprecise(report, case);
            }
        }
    }

    /// The attackers of an imprecise policy, group after group: each group's flood is a tenth.
    pub(super) fn judge_in_turn(&self, report: &mut Report) {
        self.both(report, "imprecise-low", None);
        self.imprecise(report, "imprecise-low");
    }

    /// Judges times, losses and rates, which others on the machine may have disturbed.
    fn timed<'r>(&self, report: &'r mut Report, case: &str, scheme: &'static str) -> Judge<'r, Case> {
        let phases = [self.plain, self.calm, self.attacked];
        report.of((case, scheme)).disturbed(phases.iter().any(|phase| phase.taken.is_much()))
    }

    /// What every attack reports of both schemes; the flood has to have arrived `ratio` times as fast as the link is.
    fn both(&self, report: &mut Report, case: &str, ratio: Option<f64>) {
        for (scheme, phase) in [("plain", self.plain), ("tva", self.attacked)] {
            let (times, mut judge) = (phase.times(), report.of((case, scheme)));
            judge.note_taken(&phase.taken);
            let received = phase.received_bps / self.link_bps;
            match ratio {
                Some(ratio) => {
                    let is_disturbed = phase.taken.bounds_senders();
                    judge.timed(is_disturbed).at_least("received_over_link", received, ratio);
                }
                None => judge.note("received_over_link", received),
            }
            judge.note("transfers", phase.transfers.len() as f64);
            judge.note("median_ms", times.p50 as f64);
            judge.note("p99_ms", times.p99 as f64);
        }
    }

    fn legacy(&self, report: &mut Report) {
        let calm_median = self.calm.times().p50 as f64;
        let mut calm = self.timed(report, "calm", "tva");
        calm.note("median_ms", calm_median);
        calm.at_least("complete_share", self.calm.complete(), 1.0);
        let mut tva = self.timed(report, "legacy", "tva");
        tva.at_least("transfers_judged", self.attacked.transfers.len() as f64, 150.0);
        tva.at_least("complete_share", self.attacked.complete(), 1.0);
        let slower = self.attacked.times().p50 as f64 / calm_median.max(1.0);
        tva.at_most("median_over_calm", slower, 1.5);
        self.timed(report, "legacy", "plain").at_most("complete_share", self.plain.complete(), 0.05);
    }

    fn requests(&self, report: &mut Report) {
        let mut tva = self.timed(report, "request", "tva");
        tva.at_least("requests_judged", self.attacked.transfers.len() as f64, 1_000.0);
        tva.at_least("first_try_share", self.attacked.first_try(), 0.99);
        let (requests, all) = self.attacked.lanes;
        tva.note("link_used_mbps", all as f64 * 8.0 / 1e6);
        tva.at_most("request_lane_share", requests as f64 / all as f64, REQUEST_SHARE);
        let behind = Phase { transfers: self.attacked.behind_spoofer.clone(), ..Phase::default() };
        tva.note("first_try_share_behind_spoofer", behind.first_try());
        self.timed(report, "request", "plain").at_most("first_try_share", self.plain.first_try(), 0.2);
    }

    fn authorized(&self, report: &mut Report) {
        let mut tva = self.timed(report, "authorized", "tva");
        tva.at_least("attackers_authorised_share", self.authorised(), AUTHORISED);
        tva.at_least("complete_share", self.attacked.complete(), 1.0);
        tva.at_least("destination_share", self.attacked.destination_share(), 0.48);
        let mut plain = self.timed(report, "authorized", "plain");
        plain.note("complete_share", self.plain.complete());
        plain.at_most("destination_share", self.plain.destination_share(), 0.1);
    }

    /// An attack by those who are not let in shows nothing.
    fn authorised(&self) -> f64 {
        self.attacked.granted as f64 / self.attacked.asked as f64
    }

    fn imprecise(&self, report: &mut Report, case: &str) {
        let (calm, attacked) = (self.calm, self.attacked);
        let usual_ms = calm.times().p50 * DISTURBED;
        let disturbed = attacked.transfers.iter().filter(|one| one.started_ns >= attacked.attack_began_ns);
        let disturbed = disturbed.filter(|one| one.error.is_some() || one.ms > usual_ms);
        let last_ns = disturbed.map(|one| one.started_ns).max().unwrap_or(attacked.attack_began_ns);
        let mut tva = self.timed(report, case, "tva");
        tva.note("usual_ms", usual_ms as f64);
        tva.at_least("complete_share", attacked.complete(), 1.0);
        tva.at_most("disturbance_s", (last_ns - attacked.attack_began_ns) as f64 / 1e9, DISTURBANCE_S);
        tva.at_least("attackers_authorised_share", self.authorised(), AUTHORISED);
        // Nobody seen is nothing measured.
        let most = attacked.attackers.iter().max().map_or(f64::NAN, |most| *most as f64);
        let bound = 2.0 * f64::from(DEFAULT_GRANT.0);
        tva.timed(false).at_most("regular_bytes_of_an_attacker_max", most, bound);
        let mean = attacked.attackers.iter().sum::<u64>() as f64 / attacked.attackers.len().max(1) as f64;
        tva.note("regular_bytes_of_an_attacker_mean", mean);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Verdict;

    fn transfers(count: u64, ms: u64, complete: bool) -> Vec<Transfer> {
        let error = (!complete).then(|| "late".to_owned());
        (0..count)
            .map(|n| Transfer { started_ns: n * 66_000_000, ms, connect_ms: Some(ms), error: error.clone() })
            .collect()
    }

    /// What an attack shows when all is well.
    fn good(attack: Attack) -> [Phase; 3] {
        let plain = Phase {
            transfers: transfers(100, 9_000, false),
            received_bps: 102e6,
            carried: (5, 95),
            ..Phase::default()
        };
        let calm = Phase { transfers: transfers(100, 80, true), ..Phase::default() };
        let attacked = Phase {
            transfers: transfers(if attack == Attack::Request { 1_000 } else { 180 }, 82, true),
            received_bps: 101e6,
            carried: (50, 50),
            lanes: (50, 1_000),
            asked: 100,
            granted: 99,
            attackers: vec![56_000; 99],
            attack_began_ns: 3_000_000_000,
            ..Phase::default()
        };
        [plain, calm, attacked]
    }

    fn passes(attack: Attack, spoil: impl FnOnce(&mut [Phase; 3])) -> bool {
        let mut phases = good(attack);
        spoil(&mut phases);
        let [plain, calm, attacked] = &phases;
        let mut report = Report::default();
        Shown { plain, calm, attacked, link_bps: 10e6, ratio: 10.0 }.judge(&mut report, attack);
        report.figures.verdict() == Verdict::Holds
    }

    const ALL: [Attack; 5] = [Attack::Legacy, Attack::Request, Attack::Authorized, Attack::Imprecise, Attack::Reasking];

    #[test]
    fn a_good_run_passes_and_one_whose_flood_did_not_arrive_never_does() {
        assert_eq!(Attack::Reasking.label(), "reasking");
        for attack in ALL {
            assert!(passes(attack, |_| {}), "{attack:?}");
            assert!(!passes(attack, |[plain, ..]| plain.received_bps = 99e6), "{attack:?}, plain");
            assert!(!passes(attack, |[_, _, attacked]| attacked.received_bps = 0.0), "{attack:?}");
            assert!(
                !passes(attack, |[plain, ..]| plain.transfers = transfers(100, 90, true))
                    || attack == Attack::Authorized
            );
        }
    }

    #[test]
    fn attackers_who_were_not_let_in_or_not_seen_show_nothing() {
        for attack in [Attack::Authorized, Attack::Imprecise, Attack::Reasking] {
            assert!(!passes(attack, |[_, _, attacked]| attacked.granted = 94), "{attack:?}");
            assert!(!passes(attack, |[_, _, attacked]| (attacked.asked, attacked.granted) = (0, 0)), "{attack:?}");
        }
        assert!(!passes(Attack::Reasking, |[_, _, attacked]| attacked.attackers.clear()));
        assert!(!passes(Attack::Authorized, |[plain, ..]| plain.carried = (20, 80)));
    }

    #[test]
    fn who_gets_more_than_twice_n_or_disturbs_for_longer_fails() {
        for attack in [Attack::Imprecise, Attack::Reasking] {
            assert!(!passes(attack, |[_, _, attacked]| attacked.attackers.push(64_001)), "{attack:?}");
            // Calm outliers change nothing: the median counts.
            let late = |[_, calm, attacked]: &mut [Phase; 3]| {
                calm.transfers[0].ms = 9_000;
                attacked.transfers[120].ms = 241;
            };
            assert!(!passes(attack, late), "{attack:?}: disturbed after five seconds");
            assert!(passes(attack, |[_, _, attacked]| attacked.transfers[60].ms = 5_000), "{attack:?}");
        }
    }

    #[test]
    fn requests_may_not_have_more_than_their_share_of_a_link_that_others_want() {
        assert!(!passes(Attack::Request, |[_, _, attacked]| attacked.lanes = (70, 1_000)));
        assert!(!passes(Attack::Request, |[_, _, attacked]| attacked.lanes = (0, 0)));
    }
}
