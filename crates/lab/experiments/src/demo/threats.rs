//! Threats one after the other, each with everything that it needs to succeed, under a flood of ten times the link:
//! `lab run threats`.
//!
//! The lab, the services and their honest users are those of the demo. In each case somebody tries one thing; what is
//! judged is what of it arrived at the services, and whether the others noticed.

use std::time::Duration;

use clap::Args;

use super::{
    Event,
    attacks::{self, ALL, Class, FORGED_AGENT, FORGED_INFRASTRUCTURE, FORGED_PHONE, ONLOOKER, SPOOFED},
    cast::{FOREVER_S, calling},
    files::{FEED_PORT, GRANT_RATE_BPS, REALM, SERVICES},
    ledger::Origin,
    on_stage,
    phases::Stage,
    verdict::{Measured, share},
};
use crate::{
    demo,
    report::{
        Judge,
        rows::{self, Report},
    },
};
use sluicegate_site::{LabError, binary::Binary, clock::unix_ns, node::SIP_PORT, topology::Site};
use sluicegate_traffic::{
    attack::{Does, IdleSpec, Kind, RelaySpec},
    client::setup::SetupSpec,
};

/// The name of the run.
pub const NAME: &str = "threats";
/// How long a killed gate stays down, and how long an interface that went may take to be taken up again.
const DOWN: Duration = Duration::from_secs(3);
const TAKEN_UP: Duration = Duration::from_secs(2);
/// Frames a second of each of two strangers: ten times the link also without the forgeries of a case.
const STRANGERS_PER_S: u64 = 10_500;
/// Sign-ins a second of the user who spends what all share.
const GREEDY_PER_S: u32 = 3_000;
/// Sign-ins a second of the user who never hangs up.
const HOLDING_PER_S: u32 = 100;
/// Connections of whoever holds the feed's door shut.
const IDLE_CONNECTIONS: u16 = 64;
/// Bytes of clients that a disturbed machine may lose in a phase, for a copy to arrive in their place.
const LOST_BYTES_MAX: u64 = 2_500;
/// Packets in the control lane beyond those of the front end that arrived: what is under way when counters are read.
const CONTROL_SLACK: f64 = 20.0;

/// A threat.
struct Case {
    label: &'static str,
    /// Whose packets are counted at the services, if the threat is one of packets, and what of them may arrive.
    packets: Option<(Class, Allowed)>,
    begin: fn(&mut Stage<'_>, &mut Report) -> Result<(), LabError>,
    /// What has to hold besides.
    also: fn(&Stage<'_>, &Before, &mut Judge<'_, rows::Case>),
}

/// What of an attacker's packets may arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Allowed {
    Nothing,
    /// Exact copies of a client's own packets that the machine lost on the way, in their place.
    Copies,
    /// What the grants are worth: a telephone proves nothing but its address.
    Rate,
    /// Resets and SYNs: the service's own stack judges them better than any box on the way.
    Anything,
}

/// How things stood before a threat.
struct Before {
    control: u64,
    from_ns: u64,
    results: usize,
}

impl Case {
    const fn new(label: &'static str, begin: fn(&mut Stage<'_>, &mut Report) -> Result<(), LabError>) -> Self {
        Self { label, packets: None, begin, also: |_, _, _| () }
    }

    const fn packets(self, class: Class, allowed: Allowed) -> Self {
        Self { packets: Some((class, allowed)), ..self }
    }

    const fn also(self, also: fn(&Stage<'_>, &Before, &mut Judge<'_, rows::Case>)) -> Self {
        Self { also, ..self }
    }
}

const CASES: [Case; 15] = [
    Case::new("forged_phone", |stage, _| stage.start_forged(FORGED_PHONE)).packets(FORGED_PHONE, Allowed::Rate),
    Case::new("forged_agent", |stage, _| stage.start_forged(FORGED_AGENT)).packets(FORGED_AGENT, Allowed::Nothing),
    Case::new("forged_frontend", |stage, _| stage.start_forged(FORGED_INFRASTRUCTURE))
        .packets(FORGED_INFRASTRUCTURE, Allowed::Nothing)
        .also(|stage, before, judge| stage.control_lane(before, judge)),
    Case::new("fragments", |stage, _| stage.start_fragments()).packets(FORGED_AGENT, Allowed::Nothing),
    Case::new("sniffer_replays", |stage, _| stage.start_onlooker(Does::Replay)).packets(ONLOOKER, Allowed::Copies),
    Case::new("sniffer_asks", |stage, _| stage.start_onlooker(Does::Ask)).packets(ONLOOKER, Allowed::Nothing),
    Case::new("icmp_errors", |stage, _| stage.start_onlooker(Does::Icmp)).packets(ONLOOKER, Allowed::Nothing),
    Case::new("rst_and_syn", |stage, _| stage.start_onlooker(Does::Reset)).packets(ONLOOKER, Allowed::Anything),
    Case::new("one_users_nonces", |stage, _| stage.start_greedy("mallory", GREEDY_PER_S, Some(0)))
        .also(|stage, before, judge| stage.greedy(before, judge, GREEDY_PER_S)),
    Case::new("one_users_places_and_ports", |stage, _| stage.start_greedy("trudy", HOLDING_PER_S, None))
        .also(|stage, before, judge| stage.greedy(before, judge, HOLDING_PER_S)),
    Case::new("feed_door", |stage, _| stage.without_next_door(Stage::hold_the_door)),
    Case::new("relayed_sign_in", |stage, _| stage.relay_sign_in())
        .also(|stage, before, judge| stage.relayed(before, judge)),
    Case::new("gate_killed", |stage, report| stage.without_next_door(|stage| stage.kill_gate("gate_killed", report))),
    Case::new("gate_killed_without_bpf", |stage, report| {
        stage.without_next_door(|stage| stage.kill_plain_gate(report))
    }),
    Case::new("interface_recreated", |stage, _| stage.without_next_door(Stage::recreate_interface)),
];

/// How to run it, as arguments of its command.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Only the threats whose name contains this, such as `sniffer`.
    #[arg(long, value_name = "NAME")]
    pub only: Option<String>,
    /// Seconds measured in each case.
    #[arg(long, default_value_t = 8)]
    pub seconds: u32,
    /// The gate's packet I/O back end: auto, xdp or packet.
    #[arg(long, default_value = "auto")]
    pub datapath: String,
    /// Seed of everything random in the lab.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Runs all cases that are asked for and returns what was measured; `tell` hears each step. All daemons, agents and workers
/// are processes of `binary`, whose directory is empty and of this user alone.
///
/// # Errors
/// If no case has that name, the lab cannot be built, or a process of it fails: the run then shows nothing.
pub fn run(binary: &Binary, options: &Options, tell: &mut dyn FnMut(&str)) -> Result<Report, LabError> {
    let only = options.only.as_deref();
    let chosen: Vec<Case> =
        CASES.into_iter().filter(|case| only.is_none_or(|only| case.label.contains(only))).collect();
    if chosen.is_empty() {
        let names = CASES.map(|case| case.label).join(", ");
        return Err(LabError::Plan(format!("no threat is called so; there are {names}")));
    }
    let demo = demo::Options {
        seed: options.seed,
        phase_s: options.seconds,
        scheduled: true,
        datapath: options.datapath.clone(),
        ..demo::Options::new(binary.clone())
    };
    let mut tell = |event| match event {
        Event::Step(text) => tell(&text),
        Event::Phase(name, _) => tell(name),
        Event::Second(_) | Event::Figure(_) => {}
    };
    let (report, _) = on_stage(&demo, &mut tell, |stage| {
        let mut report = Report::new(NAME);
        stage.start_strangers()?;
        let calm = stage.measure("calm", true)?;
        stage.honest(&calm, &mut stage.judge(&mut report, "calm"));
        chosen.iter().try_for_each(|case| stage.face(case, &mut report))?;
        Ok(report)
    })?;
    Ok(report)
}

impl Stage<'_> {
    /// The flood that goes on in all cases.
    fn start_strangers(&mut self) -> Result<(), LabError> {
        for (number, host) in (1..).zip(["storm_a", "storm_b"]) {
            let mut spec = attacks::spoofed(self.daemons, host, number)?;
            // Mostly large: what floods a link, and leaves the machine time for everybody else on it.
            (spec.per_s, spec.frame_bytes) = (STRANGERS_PER_S, vec![100, 1_450, 1_450, 1_450, 1_450, 1_450]);
            self.start(Origin::Flood(SPOOFED), host, "flood", &spec)?;
        }
        self.start_flood_next_door("gate", "to_gate", Site::GATE)
    }

    fn face(&mut self, case: &Case, report: &mut Report) -> Result<(), LabError> {
        let before = Before {
            control: self.daemons.control_packets(),
            from_ns: unix_ns(),
            results: self.ledger.results(Origin::Insider).count(),
        };
        (case.begin)(self, report)?;
        let measured = self.measure(case.label, true)?;
        for class in ALL.into_iter().filter(|class| *class != SPOOFED) {
            self.stop(Origin::Flood(class), "")?;
        }
        for origin in [Origin::Insider, Origin::Door] {
            self.stop(origin, "")?;
        }
        let mut judge = self.judge(report, case.label);
        self.honest(&measured, &mut judge);
        if let Some((class, allowed)) = case.packets {
            attacker(&measured, class, allowed, &mut judge);
        }
        (case.also)(self, &before, &mut judge);
        Ok(())
    }

    /// What one user tried, got, and was not given: else nobody spent anything.
    fn greedy(&self, before: &Before, judge: &mut Judge<'_, rows::Case>, per_s: u32) {
        let sum = |field: &str| {
            let ended = self.ledger.results(Origin::Insider).skip(before.results);
            ended.filter_map(|result| result[field].as_f64()).sum::<f64>()
        };
        let (tried, given) = (sum("begun"), sum("established"));
        let least = f64::from(per_s) * f64::from(self.daemons.options.phase_s) / 2.0;
        judge.at_least("greedy_sign_ins_tried", tried, least);
        judge.at_least("greedy_sign_ins_given", given, 10.0);
        judge.at_least("greedy_sign_ins_refused", tried - given, 1.0);
    }

    /// Of what bears the front end's address, only what it sent is in the control lane.
    fn control_lane(&self, before: &Before, judge: &mut Judge<'_, rows::Case>) {
        let to_ns = unix_ns();
        let relayed = |host| self.ledger.counted(host, "frontend", before.from_ns, to_ns).0;
        let most = (relayed(0) + relayed(1)) as f64 + CONTROL_SLACK;
        let control = self.daemons.control_packets().saturating_sub(before.control);
        judge.at_most("control_lane_packets", control as f64, most);
    }

    fn relayed(&self, before: &Before, judge: &mut Judge<'_, rows::Case>) {
        let to_ns = unix_ns();
        let relayed = self.ledger.results(Origin::Door).filter_map(|result| result["requests"].as_f64()).sum();
        let sent = self.ledger.sent(ONLOOKER, before.from_ns, to_ns) as f64;
        let arrived = self.counted(ONLOOKER.name, before.from_ns, to_ns) as f64;
        judge.at_least("requests_relayed", relayed, 2.0);
        judge.at_least("attacker_frames_sent", sent, 100.0);
        judge.at_most("attacker_received_bytes", arrived, 0.0);
    }

    /// Forged packets of one class, from where the demo's flood sends them.
    fn start_forged(&mut self, wanted: Class) -> Result<(), LabError> {
        let specs = attacks::forged(self.daemons, &self.cast)?;
        let wanted = specs.into_iter().filter(|(class, _)| *class == wanted).collect();
        self.start_forgeries(wanted)
    }

    /// Nothing but fragments, in the name of a host whose flows are open.
    fn start_fragments(&mut self) -> Result<(), LabError> {
        let mut specs = attacks::forged(self.daemons, &self.cast)?;
        specs.retain(|(class, _)| *class == FORGED_AGENT);
        specs.iter_mut().for_each(|(_, spec)| spec.mix = vec![(Kind::Fragment, 1)]);
        self.start_forgeries(specs)
    }

    fn start_onlooker(&mut self, does: Does) -> Result<(), LabError> {
        let spec = attacks::onlooker(self.daemons, "bob", does)?;
        self.start(Origin::Flood(ONLOOKER), "core", "onlooker", &spec)
    }

    /// One user, whom the insiders' rule lets in, signs in to every service again and again, from mallory's host, and
    /// keeps what it gets for `talk_ms`.
    fn start_greedy(&mut self, user: &str, per_s: u32, talk_ms: Option<u32>) -> Result<(), LabError> {
        for (port, service) in (43_000..).step_by(200).zip(SERVICES) {
            let spec = SetupSpec {
                sockets: 16,
                per_s: per_s / u32::try_from(SERVICES.len()).unwrap_or(1),
                calls: u32::MAX,
                talk_ms,
                give_up_ms: 1_000,
                ..calling(self.daemons, user, service, port)?
            };
            self.start(Origin::Insider, "mallory", "setup", &spec)?;
        }
        Ok(())
    }

    /// Strangers hold connections to the feed's port while the gate comes back from a restart.
    fn hold_the_door(&mut self) -> Result<(), LabError> {
        let to = (Site::address("frontend")?, FEED_PORT).into();
        let spec = IdleSpec { to, connections: IDLE_CONNECTIONS, seconds: FOREVER_S };
        self.start(Origin::Door, "botnet", "idle", &spec)?;
        self.run_for(Duration::from_secs(1))?;
        self.daemons.gate.process.kill();
        self.daemons.start_gate()?;
        self.run_for(TAKEN_UP)
    }

    /// Bob is led to believe that mallory is his front end; mallory passes everything on.
    fn relay_sign_in(&mut self) -> Result<(), LabError> {
        let rogue = (Site::address("mallory")?, SIP_PORT).into();
        for downgrade in [false, true] {
            let spec = RelaySpec { listen: rogue, to: self.daemons.frontend, downgrade, seconds: FOREVER_S };
            self.start(Origin::Door, "mallory", "relay", &spec)?;
            let mut agent =
                self.daemons.site.lab.host("bob")?.spawn("misled agent", self.daemons.misled_agent(rogue, REALM)?)?;
            self.run_for(TAKEN_UP)?;
            self.spray_from("mallory")?;
            agent.end();
            self.stop(Origin::Door, "mallory")?;
        }
        Ok(())
    }

    /// Datagrams from a host's own address to every port that the gate may have opened for it.
    fn spray_from(&mut self, host: &str) -> Result<(), LabError> {
        let spec = attacks::own(self.daemons, host)?;
        self.start(Origin::Flood(ONLOOKER), host, "flood", &spec)?;
        self.run_for(TAKEN_UP)?;
        self.stop(Origin::Flood(ONLOOKER), host)
    }

    /// Who floods over a wire that goes away floods no more.
    fn without_next_door(&mut self, act: impl FnOnce(&mut Self) -> Result<(), LabError>) -> Result<(), LabError> {
        self.stop(Origin::Flood(SPOOFED), "core")?;
        act(self)?;
        self.start_flood_next_door("gate", "to_gate", Site::GATE)
    }

    /// While the gate is dead nothing passes; then it comes back.
    fn kill_gate(&mut self, case: &'static str, report: &mut Report) -> Result<(), LabError> {
        self.daemons.gate.process.kill();
        // What was on the link arrives first.
        self.run_for(Duration::from_millis(700))?;
        let from_ns = unix_ns();
        self.run_for(DOWN)?;
        let arrived = self.everything_counted(from_ns);
        self.daemons.start_gate()?;
        self.run_for(TAKEN_UP)?;
        self.judge(report, case).at_most("bytes_while_dead", arrived as f64, 0.0);
        Ok(())
    }

    /// The same of a gate that has no program in the kernel, which the filter's rules alone outlive.
    fn kill_plain_gate(&mut self, report: &mut Report) -> Result<(), LabError> {
        self.restart_gate("packet")?;
        self.kill_gate("gate_killed_without_bpf", report)?;
        self.restart_gate(&self.daemons.options.datapath.clone())
    }

    fn restart_gate(&mut self, datapath: &str) -> Result<(), LabError> {
        self.daemons.change_gate(datapath)?;
        self.daemons.gate.end();
        self.daemons.start_gate()?;
        self.run_for(TAKEN_UP)
    }

    /// Bytes of every class but the services' own wires.
    fn everything_counted(&self, from_ns: u64) -> u64 {
        let classes = ALL.map(|class| class.name).into_iter().chain(["stranger", "clients", "insider", "frontend"]);
        classes.map(|class| self.counted(class, from_ns, u64::MAX)).sum()
    }

    fn recreate_interface(&mut self) -> Result<(), LabError> {
        self.daemons.site.lab.lay_again(&Site::plan(self.daemons.options.site)?, "gate", Site::OUTSIDE)?;
        self.run_for(TAKEN_UP)
    }

    fn judge<'r>(&self, report: &'r mut Report, case: &str) -> Judge<'r, rows::Case> {
        report.of((case, if self.daemons.backend.starts_with("xdp") { "xdp" } else { "packet" }))
    }

    /// The flood was there, no stranger came through, and honest users had what is theirs.
    fn honest(&self, measured: &Measured, judge: &mut Judge<'_, rows::Case>) {
        judge.note_taken(&measured.taken);
        let ratio = measured.offered_bps / self.daemons.options.site.link_rate_bps as f64;
        judge.timed(measured.taken.bounds_senders()).at_least("flood_to_link_ratio", ratio, 10.0);
        judge.at_most("stranger_bytes", measured.stranger_bytes as f64, 0.0);
        let spoofed = measured.forgeries.iter().find(|class| class.name == SPOOFED.name);
        judge.at_most("spoofed_bytes", spoofed.map_or(f64::MAX, |class| class.received_bytes as f64), 0.0);
        // What others did to this machine is not judged.
        let mut judge = judge.timed(measured.taken.is_much());
        for (service, what) in SERVICES.iter().enumerate() {
            let (calls, setups) = (&measured.calls[service], &measured.setups[service]);
            let name = |metric: &str| format!("{metric}.{}", what.label);
            judge.at_most(&name("call_loss_share"), calls.loss, 0.005);
            judge.at_least(&name("setups_established_share"), share(setups.established, setups.started), 0.99);
            for (status, count) in &setups.failed {
                judge.note(&name(&format!("setups_failed_{status}")), *count as f64);
            }
            if what.tcp.is_some() {
                let transfers = &measured.transfers[service];
                let complete = share(transfers.complete, transfers.started);
                judge.at_least(&name("transfers_complete_share"), complete, 1.0);
            }
        }
    }
}

/// The attacker tried, and no more of it arrived than may.
fn attacker(measured: &Measured, class: Class, allowed: Allowed, judge: &mut Judge<'_, rows::Case>) {
    let Some(forged) = measured.forgeries.iter().find(|one| one.name == class.name) else { return };
    judge.at_least("attacker_frames_sent", forged.sent as f64, 100.0);
    let bytes = forged.received_bytes as f64;
    match allowed {
        Allowed::Anything => {}
        Allowed::Rate => {
            let most = GRANT_RATE_BPS as f64 * SERVICES.len() as f64;
            judge.at_most("attacker_received_bps", bytes * 8.0 / measured.seconds.max(1.0), most);
        }
        Allowed::Nothing | Allowed::Copies => {
            let is_of_lost = allowed == Allowed::Copies && forged.received_bytes <= LOST_BYTES_MAX;
            let mut judge = judge.timed(is_of_lost && measured.taken.is_much());
            judge.at_most("attacker_received_bytes", bytes, 0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_threat_has_a_name_of_its_own() {
        let mut names = CASES.map(|case| case.label).to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CASES.len());
    }
}
