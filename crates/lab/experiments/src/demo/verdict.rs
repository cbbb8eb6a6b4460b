use super::{
    attacks::{ALL, CLASSES, FORGED_PHONE},
    files::{DECLARED, GRANT_RATE_BPS, SERVICES},
};
use crate::report::{InPhase, Judge, Report};
use sluicegate_site::cpu::Taken;
use sluicegate_traffic::client::{call::CallSummary, setup::SetupSummary, transfer::TransferSummary};

/// What was measured in one phase; arrays are in the order of [`SERVICES`].
#[derive(Debug, Clone, Default)]
pub(super) struct Measured {
    pub name: &'static str,
    pub calls: [CallSummary; SERVICES.len()],
    pub transfers: [TransferSummary; SERVICES.len()],
    pub setups: [SetupSummary; SERVICES.len()],
    /// Bytes of strangers at the services' own interfaces.
    pub stranger_bytes: u64,
    /// What became of each class of forged packets.
    pub forgeries: [Forgeries; ALL.len()],
    /// At the outside port of the gate or of the router in its place.
    pub offered_bps: f64,
    pub offered_pps: f64,
    /// How long the phase was measured.
    pub seconds: f64,
    /// What its host took of the machine meanwhile.
    pub taken: Taken,
    pub sip_attack: Option<SipAttack>,
    pub insider: Option<[Insider; DECLARED]>,
    /// Seconds until services could be called again before this phase, where they could not.
    pub back_s: Option<f64>,
}

/// A flood of the front end.
#[derive(Debug, Clone, Copy)]
pub(super) struct SipAttack {
    /// Datagrams a second that the front end itself counted, less what honest phones may have sent.
    pub received_per_s: f64,
    /// Requests that were answered with success.
    pub accepted: u64,
}

/// One class of forged packets in one phase.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Forgeries {
    pub name: &'static str,
    /// Frames that were sent.
    pub sent: u64,
    /// Bytes that reached the services.
    pub received_bytes: u64,
}

/// The insider's flood of one service, in IP bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Insider {
    pub received: u64,
    pub offered: u64,
    pub allowed: u64,
}

impl Measured {
    /// For what others on the machine may have disturbed.
    fn timed<'r>(&self, report: &'r mut Report) -> Judge<'r, InPhase> {
        report.of(self.name).disturbed(self.taken.is_much())
    }

    /// For how much was sent or arrived at least, which a machine without time left may bound.
    fn sent<'r>(&self, report: &'r mut Report) -> Judge<'r, InPhase> {
        report.of(self.name).disturbed(self.taken.bounds_senders())
    }
}

// What a run must show to be passed.

/// Call packets sent in a phase, per service.
const CALL_PACKETS_MIN: f64 = 1_500.0;
/// Transfers begun in a phase, per service.
const TRANSFERS_MIN: f64 = 40.0;
/// Set-ups begun in a phase, per service that the phase can reach.
const SETUPS_MIN: f64 = 1_000.0;
/// The flood in both gate phases, times the link.
pub(super) const FLOOD_RATIO_MIN: f64 = 10.0;
/// Difference of the two floods, as a share of the larger.
const FLOOD_DIFFERENCE_MAX: f64 = 0.1;
/// Loss of the call without the gate.
const LOSS_GATE_OFF_MIN: f64 = 0.5;
/// Loss of the call with the gate.
const LOSS_GATE_ON_MAX: f64 = 0.005;
/// Delay that the flood may add to the calm p99, milliseconds.
const DELAY_ADDED_MS_MAX: f64 = 2.0;
/// p99 of the delay under a flood, whatever it was before, milliseconds.
const DELAY_MS_MAX: f64 = 10.0;
/// Seconds until services that register can be called again, once the gate is back.
const BACK_S_MAX: f64 = 5.0;
/// Longest transfer, milliseconds.
const TRANSFER_MS_MAX: f64 = 3_000.0;
/// Rate of the attack on the front end, requests a second.
const SIP_FLOOD_PER_S_MIN: f64 = 25_000.0;
/// Frames of each class of forgeries sent in a phase.
const FORGED_FRAMES_MIN: f64 = 10_000.0;
/// Share of set-ups that succeed.
const SETUPS_SHARE_MIN: f64 = 0.99;
/// p99 of the set-up time under attack, milliseconds.
const SETUP_MS_MAX: f64 = 200.0;

/// Adds the figures of all phases to the report. `measured` holds calm, gate off, gate on, both, insider.
pub(super) fn judge(report: &mut Report, measured: &[Measured]) {
    let [calm, off, on, both, insider] = measured else {
        report.of("verdict").at_least("phases", measured.len() as f64, 5.0);
        return;
    };
    measured.iter().for_each(|phase| report.of(phase.name).note_taken(&phase.taken));
    report.of(off.name).note("stranger_bytes", off.stranger_bytes as f64);
    for phase in [calm, on, both] {
        report.of(phase.name).at_most("stranger_bytes", phase.stranger_bytes as f64, 0.0);
    }
    for phase in [calm, off, on, both] {
        for service in 0..SERVICES.len() {
            amounts(report, phase, service);
            quality(report, phase, service, calm);
        }
    }
    on.timed(report).at_most("services_back_s", on.back_s.unwrap_or(f64::MAX), BACK_S_MAX);
    floods(report, off, on);
    let ratio = both.offered_bps / report.link_rate_bps as f64;
    both.sent(report).at_least("flood_to_link_ratio", ratio, FLOOD_RATIO_MIN);
    for phase in [on, both] {
        forgeries(report, phase);
    }
    let attack = both.sip_attack.unwrap_or(SipAttack { received_per_s: 0.0, accepted: u64::MAX });
    both.sent(report).at_least("sip_flood_received_per_s", attack.received_per_s, SIP_FLOOD_PER_S_MIN);
    report.of(both.name).at_most("sip_flood_accepted", attack.accepted as f64, 0.0);
    insiders(report, insider);
}

/// Whether enough was tried for the rest to mean something.
fn amounts(report: &mut Report, phase: &Measured, service: usize) {
    let what = SERVICES[service];
    let is_called = phase.name != "gate off" || what.is_declared();
    let counts = [
        (true, "call_packets", phase.calls[service].sent, CALL_PACKETS_MIN),
        (what.tcp.is_some(), "transfers", phase.transfers[service].started, TRANSFERS_MIN),
        (is_called, "setups", phase.setups[service].started, SETUPS_MIN),
    ];
    for (_, metric, count, least) in counts.into_iter().filter(|(is_offered, ..)| *is_offered) {
        phase.timed(report).at_least(&format!("{metric}.{}", what.label), count as f64, least);
    }
}

fn quality(report: &mut Report, phase: &Measured, service: usize, calm: &Measured) {
    let (what, mut judge) = (SERVICES[service], phase.timed(report));
    let (call, transfers, setups) = (&phase.calls[service], &phase.transfers[service], &phase.setups[service]);
    let name = |metric: &str| format!("{metric}.{}", what.label);
    let p99_ms = |call: &CallSummary| call.delay_us.p99 as f64 / 1_000.0;
    let complete = share(transfers.complete, transfers.started);
    let established = share(setups.established, setups.started);
    let setup_ms = setups.us.p99 as f64 / 1_000.0;
    for (status, count) in &setups.failed {
        judge.note(&name(&format!("setups_failed_{status}")), *count as f64);
    }
    if phase.name == "gate off" {
        judge.at_least(&name("call_loss_share"), call.loss, LOSS_GATE_OFF_MIN);
        judge.note(&name("call_delay_p99_ms"), p99_ms(call));
        judge.note(&name("transfers_complete_share"), complete);
        judge.note(&name("setups_established_share"), established);
        judge.note(&name("setup_p99_ms"), setup_ms);
        return;
    }
    judge.at_most(&name("call_loss_share"), call.loss, LOSS_GATE_ON_MAX);
    if phase.name != calm.name {
        judge.at_most(&name("call_delay_p99_ms_in_all"), p99_ms(call), DELAY_MS_MAX);
    }
    if phase.name == "gate on" {
        let most = p99_ms(&calm.calls[service]) + DELAY_ADDED_MS_MAX;
        judge.at_most(&name("call_delay_p99_ms"), p99_ms(call), most);
    } else {
        judge.note(&name("call_delay_p99_ms"), p99_ms(call));
    }
    if phase.name == calm.name {
        judge.note(&name("setup_p99_ms"), setup_ms);
    } else {
        judge.at_most(&name("setup_p99_ms"), setup_ms, SETUP_MS_MAX);
    }
    if what.tcp.is_some() {
        judge.at_least(&name("transfers_complete_share"), complete, 1.0);
        judge.at_most(&name("transfer_max_ms"), transfers.ms.max as f64, TRANSFER_MS_MAX);
    }
    judge.at_least(&name("setups_established_share"), established, SETUPS_SHARE_MIN);
}

/// Each class was sent, and nothing of it arrived; of a telephone's address no more than its grants are worth, because
/// a telephone proves nothing but its address.
fn forgeries(report: &mut Report, phase: &Measured) {
    for class in &phase.forgeries[..CLASSES.len()] {
        let metric = |what: &str| format!("{}_{what}", class.name);
        phase.sent(report).at_least(&metric("frames_sent"), class.sent as f64, FORGED_FRAMES_MIN);
        if class.name == FORGED_PHONE.name {
            let most = GRANT_RATE_BPS as f64 * SERVICES.len() as f64;
            let bps = class.received_bytes as f64 * 8.0 / phase.seconds.max(1.0);
            report.of(phase.name).at_most(&metric("received_bps"), bps, most);
        } else {
            report.of(phase.name).at_most(&metric("received_bytes"), class.received_bytes as f64, 0.0);
        }
    }
}

/// The same flood must have been there without and with the gate.
fn floods(report: &mut Report, off: &Measured, on: &Measured) {
    for phase in [off, on] {
        report.of(phase.name).note("flood_bps", phase.offered_bps);
        report.of(phase.name).note("flood_packets_per_s", phase.offered_pps);
        let ratio = phase.offered_bps / report.link_rate_bps as f64;
        phase.sent(report).at_least("flood_to_link_ratio", ratio, FLOOD_RATIO_MIN);
    }
    let larger = off.offered_bps.max(on.offered_bps);
    let difference = if larger > 0.0 { (off.offered_bps - on.offered_bps).abs() / larger } else { 1.0 };
    on.timed(report).at_most("flood_difference_share", difference, FLOOD_DIFFERENCE_MAX);
}

fn insiders(report: &mut Report, phase: &Measured) {
    for (service, insider) in SERVICES.iter().zip(phase.insider.into_iter().flatten()) {
        let metric = |what: &str| format!("insider_{what}_bytes.{}", service.label);
        let (allowed, received) = (insider.allowed as f64, insider.received as f64);
        // Less would not have tried the budget.
        phase.sent(report).at_least(&metric("offered"), insider.offered as f64, 2.0 * allowed);
        report.of(phase.name).at_most(&metric("received"), received, allowed);
        // Whose flood is not let in at all is no insider.
        phase.timed(report).at_least(&metric("let_in"), received, allowed / 2.0);
    }
    if phase.insider.is_none() {
        report.of(phase.name).at_least("insider_measured", 0.0, 1.0);
    }
    report.of(phase.name).at_most("stranger_bytes", phase.stranger_bytes as f64, 0.0);
}

pub(super) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::{super::Options, *};
    use crate::report::Verdict;
    use sluicegate_site::binary::Binary;
    use sluicegate_traffic::sample::Percentiles;

    fn good(name: &'static str) -> Measured {
        let percentiles = |value| Percentiles { count: 2_000, p50: value, p90: value, p99: value, max: value };
        let call = CallSummary { sent: 1_500, received: 1_500, duplicates: 0, loss: 0.0, delay_us: percentiles(400) };
        let transfers = TransferSummary { started: 45, complete: 45, ms: percentiles(80) };
        let setups = SetupSummary { started: 2_250, established: 2_250, failed: [].into(), us: percentiles(3_000) };
        Measured {
            calls: [call; SERVICES.len()],
            transfers: [transfers; SERVICES.len()],
            setups: std::array::from_fn(|_| setups.clone()),
            forgeries: ALL.map(|class| Forgeries { name: class.name, sent: 20_000, received_bytes: 0 }),
            offered_bps: 1.6e8,
            seconds: 15.0,
            name,
            ..Measured::default()
        }
    }

    fn run() -> Vec<Measured> {
        let mut run = ["calm", "gate off", "gate on", "both", "insider"].map(good).to_vec();
        for call in &mut run[1].calls {
            call.loss = 0.9;
        }
        run[1].stranger_bytes = 1_000_000;
        run[2].back_s = Some(1.5);
        run[3].sip_attack = Some(SipAttack { received_per_s: 30_000.0, accepted: 0 });
        run[4].insider = Some([Insider { received: 490_000, offered: 5_000_000, allowed: 500_000 }; 2]);
        run
    }

    fn failures(change: impl FnOnce(&mut Vec<Measured>)) -> Vec<String> {
        let mut measured = run();
        change(&mut measured);
        let options = Options::new(Binary { program: "sluicegate".into(), directory: "/nowhere".into() });
        let mut report = Report { link_rate_bps: options.site.link_rate_bps, ..Report::default() };
        judge(&mut report, &measured);
        let failed = report.figures.iter().filter(|figure| figure.verdict == Some(Verdict::Missed));
        failed.map(|figure| format!("{}: {}", figure.about.phase, figure.metric)).collect()
    }

    #[test]
    fn a_good_run_passes() {
        assert_eq!(failures(|_| ()), [] as [&str; 0]);
    }

    #[test]
    fn each_promise_that_is_broken_fails_by_its_own_name() {
        type Change = fn(&mut Vec<Measured>);
        let cases: [(Change, &str); 22] = [
            (|run| run[1].calls[0].loss = 0.4, "gate off: call_loss_share.nat"),
            (|run| run[2].calls[1].loss = 0.006, "gate on: call_loss_share.filter"),
            (|run| run[2].calls[0].delay_us.p99 = 2_500, "gate on: call_delay_p99_ms.nat"),
            (|run| run[2].transfers[0].complete = 44, "gate on: transfers_complete_share.nat"),
            (|run| run[2].stranger_bytes = 1, "gate on: stranger_bytes"),
            (|run| run[2].back_s = Some(5.1), "gate on: services_back_s"),
            (|run| run[3].calls[2].delay_us.p99 = 10_001, "both: call_delay_p99_ms_in_all.agent"),
            (|run| run[3].offered_bps = 1.39e8, "both: flood_to_link_ratio"),
            (|run| run[2].forgeries[0].received_bytes = 1, "gate on: spoofed_received_bytes"),
            (|run| run[2].forgeries[1].received_bytes = 16_000_000, "gate on: forged_phone_received_bps"),
            (|run| run[3].forgeries[2].received_bytes = 1, "both: forged_agent_received_bytes"),
            (|run| run[3].forgeries[3].received_bytes = 1, "both: forged_infrastructure_received_bytes"),
            (|run| run[2].forgeries[3].sent = 0, "gate on: forged_infrastructure_frames_sent"),
            (|run| run[3].setups[0].established = 2_200, "both: setups_established_share.nat"),
            (|run| run[3].setups[1].us.p99 = 201_000, "both: setup_p99_ms.filter"),
            (|run| run[3].sip_attack.as_mut().unwrap().received_per_s = 24_999.0, "both: sip_flood_received_per_s"),
            (|run| run[3].sip_attack.as_mut().unwrap().accepted = 1, "both: sip_flood_accepted"),
            (|run| run[4].insider.as_mut().unwrap()[0].received = 500_001, "insider: insider_received_bytes.nat"),
            (|run| run[4].insider.as_mut().unwrap()[1].received = 0, "insider: insider_let_in_bytes.filter"),
            (|run| run[0].calls[0].sent = 1_499, "calm: call_packets.nat"),
            (|run| run[2].offered_bps = 1.42e8, "gate on: flood_difference_share"),
            (|run| run[4].stranger_bytes = 60, "insider: stranger_bytes"),
        ];
        for (change, name) in cases {
            assert_eq!(failures(change), [name]);
        }
    }

    #[test]
    fn what_is_missed_while_others_had_the_machine_is_not_held_against_it_and_bytes_of_attackers_are() {
        let disturbed = |spoil: fn(&mut Measured)| {
            failures(move |run| {
                run[2].taken.share = 0.06;
                spoil(&mut run[2]);
            })
        };
        assert_eq!(disturbed(|_| ()), [] as [&str; 0]);
        assert_eq!(disturbed(|on| on.calls[0].loss = 0.4), [] as [&str; 0]);
        assert_eq!(disturbed(|on| on.stranger_bytes = 1), ["gate on: stranger_bytes"]);
    }

    #[test]
    fn a_flood_that_a_full_machine_could_not_send_shows_nothing_and_excuses_no_loss() {
        let full = |spoil: fn(&mut Measured)| {
            failures(move |run| {
                run[3].taken.busy = 0.9;
                spoil(&mut run[3]);
            })
        };
        assert_eq!(full(|both| both.sip_attack.as_mut().unwrap().received_per_s = 11_000.0), [] as [&str; 0]);
        assert_eq!(full(|both| both.calls[0].loss = 0.4), ["both: call_loss_share.nat"]);
    }

    #[test]
    fn a_weak_flood_or_a_missing_phase_is_no_proof() {
        let weak = |run: &mut Vec<Measured>| run.iter_mut().for_each(|phase| phase.offered_bps = 1.39e8);
        assert_eq!(
            failures(weak),
            ["gate off: flood_to_link_ratio", "gate on: flood_to_link_ratio", "both: flood_to_link_ratio"]
        );
        assert_eq!(failures(|run| drop(run.pop())), ["verdict: phases"]);
        assert_eq!(failures(|run| run[4].insider = None), ["insider: insider_measured"]);
    }
}
