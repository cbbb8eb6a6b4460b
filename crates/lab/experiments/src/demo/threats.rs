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
    verdict::Measured,
};
use crate::{
    demo,
    report::{
        Demand,
        Threshold::{self, AtLeast, AtMost},
        rows::Report,
    },
};
use sluicegate_site::{LabError, binary::Binary, node::SIP_PORT, topology::Site};
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    ForgedPhone,
    ForgedAgent,
    ForgedFrontend,
    Fragments,
    Replay,
    Ask,
    Icmp,
    Reset,
    Nonces,
    Places,
    FeedDoor,
    RelayedSignIn,
    Killed,
    KilledWithoutProgram,
    InterfaceRecreated,
}

impl Case {
    const ALL: [Self; 15] = [
        Self::ForgedPhone,
        Self::ForgedAgent,
        Self::ForgedFrontend,
        Self::Fragments,
        Self::Replay,
        Self::Ask,
        Self::Icmp,
        Self::Reset,
        Self::Nonces,
        Self::Places,
        Self::FeedDoor,
        Self::RelayedSignIn,
        Self::Killed,
        Self::KilledWithoutProgram,
        Self::InterfaceRecreated,
    ];

    const fn label(self) -> &'static str {
        match self {
            Self::ForgedPhone => "forged_phone",
            Self::ForgedAgent => "forged_agent",
            Self::ForgedFrontend => "forged_frontend",
            Self::Fragments => "fragments",
            Self::Replay => "sniffer_replays",
            Self::Ask => "sniffer_asks",
            Self::Icmp => "icmp_errors",
            Self::Reset => "rst_and_syn",
            Self::Nonces => "one_users_nonces",
            Self::Places => "one_users_places_and_ports",
            Self::FeedDoor => "feed_door",
            Self::RelayedSignIn => "relayed_sign_in",
            Self::Killed => "gate_killed",
            Self::KilledWithoutProgram => "gate_killed_without_bpf",
            Self::InterfaceRecreated => "interface_recreated",
        }
    }

    /// Whose packets are counted at the services, if the threat is one of packets.
    const fn class(self) -> Option<Class> {
        match self {
            Self::ForgedPhone => Some(FORGED_PHONE),
            Self::ForgedAgent | Self::Fragments => Some(FORGED_AGENT),
            Self::ForgedFrontend => Some(FORGED_INFRASTRUCTURE),
            Self::Replay | Self::Ask | Self::Icmp | Self::Reset => Some(ONLOOKER),
            _ => None,
        }
    }
}

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
        Case::ALL.into_iter().filter(|case| only.is_none_or(|only| case.label().contains(only))).collect();
    if chosen.is_empty() {
        let names = Case::ALL.map(Case::label).join(", ");
        return Err(LabError::Plan(format!("no threat is called so; there are {names}")));
    }
    let demo = demo::Options {
        seed: options.seed,
        phase_s: options.seconds,
        scheduled: true,
        datapath: options.datapath.clone(),
        ..demo::Options::new(binary.program.clone(), binary.directory.clone())
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
        Judge::new(&mut report, stage, "calm").honest(&calm);
        for case in chosen {
            stage.face(case, &mut report)?;
        }
        Ok(report)
    })?;
    Ok(report)
}

impl Stage<'_> {
    /// The flood that goes on in all cases.
    fn start_strangers(&mut self) -> Result<(), LabError> {
        for (number, host) in (1..).zip(["storm_a", "storm_b"]) {
            let mut spec = attacks::spoofed(self.options, self.site, host, number)?;
            // Mostly large: what floods a link, and leaves the machine time for everybody else on it.
            (spec.per_s, spec.frame_bytes) = (STRANGERS_PER_S, vec![100, 1_450, 1_450, 1_450, 1_450, 1_450]);
            self.start(Origin::Flood(SPOOFED), host, "flood", &spec)?;
        }
        self.start_flood_next_door("gate", "to_gate", Site::GATE)
    }

    fn face(&mut self, case: Case, report: &mut Report) -> Result<(), LabError> {
        let control = self.daemons.control_packets(self.site);
        let from_ns = sluicegate_site::clock::unix_ns();
        let results = self.ledger.results(Origin::Insider).count();
        match case {
            Case::ForgedPhone | Case::ForgedAgent | Case::ForgedFrontend => self.start_forged(case)?,
            Case::Fragments => self.start_fragments()?,
            Case::Replay => self.start_onlooker(Does::Replay)?,
            Case::Ask => self.start_onlooker(Does::Ask)?,
            Case::Icmp => self.start_onlooker(Does::Icmp)?,
            Case::Reset => self.start_onlooker(Does::Reset)?,
            Case::Nonces => self.start_greedy("mallory", GREEDY_PER_S, Some(0))?,
            Case::Places => self.start_greedy("trudy", HOLDING_PER_S, None)?,
            Case::FeedDoor => self.without_next_door(Self::hold_the_door)?,
            Case::RelayedSignIn => self.relay_sign_in()?,
            Case::Killed => self.without_next_door(|stage| stage.kill_gate(case, report))?,
            Case::KilledWithoutProgram => self.without_next_door(|stage| stage.kill_plain_gate(report))?,
            Case::InterfaceRecreated => self.without_next_door(Self::recreate_interface)?,
        }
        let measured = self.measure(case.label(), true)?;
        for class in ALL.into_iter().filter(|class| *class != SPOOFED) {
            self.stop(Origin::Flood(class), "")?;
        }
        for origin in [Origin::Insider, Origin::Door] {
            self.stop(origin, "")?;
        }
        let to_ns = sluicegate_site::clock::unix_ns();
        let relayed =
            self.ledger.counted(0, "frontend", from_ns, to_ns).0 + self.ledger.counted(1, "frontend", from_ns, to_ns).0;
        let control = self.daemons.control_packets(self.site).saturating_sub(control);
        let mut judge = Judge::new(report, self, case.label());
        judge.honest(&measured);
        if let Some(class) = case.class() {
            judge.attacker(&measured, class);
        }
        if matches!(case, Case::Nonces | Case::Places) {
            // What one user tried, got, and was not given: else nobody spent anything.
            let sum = |field: &str| {
                let ended = self.ledger.results(Origin::Insider).skip(results);
                ended.filter_map(|result| result[field].as_f64()).sum::<f64>()
            };
            let (tried, given) = (sum("begun"), sum("established"));
            let per_s = if case == Case::Nonces { GREEDY_PER_S } else { HOLDING_PER_S };
            let least = f64::from(per_s) * f64::from(self.options.phase_s) / 2.0;
            let mut judge = Judge::new(report, self, case.label());
            judge.require("greedy_sign_ins_tried", tried, AtLeast(least));
            judge.require("greedy_sign_ins_given", given, AtLeast(10.0));
            judge.require("greedy_sign_ins_refused", tried - given, AtLeast(1.0));
        }
        let mut judge = Judge::new(report, self, case.label());
        if case == Case::ForgedFrontend {
            let most = AtMost(relayed as f64 + CONTROL_SLACK);
            judge.require("control_lane_packets", control as f64, most);
        }
        if case == Case::RelayedSignIn {
            let relayed = self.ledger.results(Origin::Door).filter_map(|result| result["requests"].as_f64()).sum();
            let sent = self.ledger.sent(ONLOOKER, from_ns, to_ns) as f64;
            let arrived = self.counted(ONLOOKER.name, from_ns, to_ns) as f64;
            let mut judge = Judge::new(report, self, case.label());
            judge.require("requests_relayed", relayed, AtLeast(2.0));
            judge.require("attacker_frames_sent", sent, AtLeast(100.0));
            judge.require("attacker_received_bytes", arrived, AtMost(0.0));
        }
        Ok(())
    }

    fn start_forged(&mut self, case: Case) -> Result<(), LabError> {
        let wanted = case.class();
        let specs = attacks::forged(self.options, self.site, self.daemons, &self.cast)?;
        for (class, spec) in specs.into_iter().filter(|(class, _)| Some(*class) == wanted) {
            let host = if class == FORGED_INFRASTRUCTURE { "storm_b" } else { "storm_a" };
            self.start(Origin::Flood(class), host, "flood", &spec)?;
        }
        Ok(())
    }

    /// Nothing but fragments, in the name of a host whose flows are open.
    fn start_fragments(&mut self) -> Result<(), LabError> {
        let specs = attacks::forged(self.options, self.site, self.daemons, &self.cast)?;
        for (class, mut spec) in specs.into_iter().filter(|(class, _)| *class == FORGED_AGENT) {
            spec.mix = vec![(Kind::Fragment, 1)];
            self.start(Origin::Flood(class), "storm_a", "flood", &spec)?;
        }
        Ok(())
    }

    fn start_onlooker(&mut self, does: Does) -> Result<(), LabError> {
        let spec = attacks::onlooker(self.options, self.site, "bob", does)?;
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
                ..calling(self.options, self.daemons, user, service, port)?
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
        self.daemons.kill_gate();
        self.daemons.start_gate(self.site)?;
        self.run_for(TAKEN_UP)
    }

    /// Bob is led to believe that mallory is his front end; mallory passes everything on.
    fn relay_sign_in(&mut self) -> Result<(), LabError> {
        let rogue = (Site::address("mallory")?, SIP_PORT).into();
        for downgrade in [false, true] {
            let spec = RelaySpec { listen: rogue, to: self.daemons.frontend, downgrade, seconds: FOREVER_S };
            self.start(Origin::Door, "mallory", "relay", &spec)?;
            let mut agent =
                self.site.lab.host("bob")?.spawn("misled agent", self.daemons.misled_agent(rogue, REALM)?)?;
            self.run_for(TAKEN_UP)?;
            self.spray_from("mallory")?;
            agent.end();
            self.stop(Origin::Door, "mallory")?;
        }
        Ok(())
    }

    /// Datagrams from a host's own address to every port that the gate may have opened for it.
    fn spray_from(&mut self, host: &str) -> Result<(), LabError> {
        let spec = attacks::own(self.options, self.site, host)?;
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
    fn kill_gate(&mut self, case: Case, report: &mut Report) -> Result<(), LabError> {
        self.daemons.kill_gate();
        // What was on the link arrives first.
        self.run_for(Duration::from_millis(700))?;
        let from_ns = sluicegate_site::clock::unix_ns();
        self.run_for(DOWN)?;
        let arrived = self.everything_counted(from_ns);
        self.daemons.start_gate(self.site)?;
        self.run_for(TAKEN_UP)?;
        Judge::new(report, self, case.label()).require("bytes_while_dead", arrived as f64, AtMost(0.0));
        Ok(())
    }

    /// The same of a gate that has no program in the kernel, which the filter's rules alone outlive.
    fn kill_plain_gate(&mut self, report: &mut Report) -> Result<(), LabError> {
        self.restart_gate("packet")?;
        self.kill_gate(Case::KilledWithoutProgram, report)?;
        self.restart_gate(&self.options.datapath.clone())
    }

    fn restart_gate(&mut self, datapath: &str) -> Result<(), LabError> {
        self.daemons.change_gate(self.options, datapath)?;
        self.daemons.end_gate();
        self.daemons.start_gate(self.site)?;
        self.run_for(TAKEN_UP)
    }

    /// Bytes of every class but the services' own wires.
    fn everything_counted(&self, from_ns: u64) -> u64 {
        let classes = ALL.map(|class| class.name).into_iter().chain(["stranger", "clients", "insider", "frontend"]);
        classes.map(|class| self.counted(class, from_ns, u64::MAX)).sum()
    }

    fn recreate_interface(&mut self) -> Result<(), LabError> {
        self.site.lab.lay_again(&Site::plan(self.options.site), "gate", Site::OUTSIDE)?;
        self.run_for(TAKEN_UP)
    }
}

/// Adds the figures of one case.
struct Judge<'r> {
    report: &'r mut Report,
    scheme: &'static str,
    case: &'static str,
    link_rate_bps: f64,
}

impl<'r> Judge<'r> {
    fn new(report: &'r mut Report, stage: &Stage<'_>, case: &'static str) -> Self {
        let scheme = if stage.daemons.backend.starts_with("xdp") { "xdp" } else { "packet" };
        Self { report, scheme, case, link_rate_bps: stage.options.site.link_rate_bps as f64 }
    }

    fn require(&mut self, metric: &str, value: f64, demand: impl Into<Demand>) {
        self.report.require((self.case, self.scheme), metric, value, demand);
    }

    /// The flood was there, no stranger came through, and honest users had what is theirs.
    fn honest(&mut self, measured: &Measured) {
        self.report.note_taken((self.case, self.scheme), &measured.taken);
        // What others did to this machine is not judged.
        let timed = |threshold: Threshold| threshold.disturbed(measured.taken.is_much());
        let sent = AtLeast(10.0).disturbed(measured.taken.bounds_senders());
        self.require("flood_to_link_ratio", measured.offered_bps / self.link_rate_bps, sent);
        self.require("stranger_bytes", measured.stranger_bytes as f64, AtMost(0.0));
        let spoofed = measured.forgeries.iter().find(|class| class.name == SPOOFED.name);
        self.require("spoofed_bytes", spoofed.map_or(f64::MAX, |class| class.received_bytes as f64), AtMost(0.0));
        for (service, what) in SERVICES.iter().enumerate() {
            let (calls, setups) = (&measured.calls[service], &measured.setups[service]);
            let share = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
            let name = |metric: &str| format!("{metric}.{}", what.label);
            self.require(&name("call_loss_share"), calls.loss, timed(AtMost(0.005)));
            let established = share(setups.established, setups.started);
            self.require(&name("setups_established_share"), established, timed(AtLeast(0.99)));
            for (status, count) in &setups.failed {
                self.report.note((self.case, self.scheme), &name(&format!("setups_failed_{status}")), *count as f64);
            }
            if what.tcp.is_some() {
                let transfers = &measured.transfers[service];
                let complete = share(transfers.complete, transfers.started);
                self.require(&name("transfers_complete_share"), complete, timed(AtLeast(1.0)));
            }
        }
    }

    /// The attacker tried, and nothing of it arrived; of a telephone's address no more than the grants' rate. Of resets and
    /// SYNs some may: the service's own stack judges them better than any box on the way.
    fn attacker(&mut self, measured: &Measured, class: Class) {
        let Some(forged) = measured.forgeries.iter().find(|one| one.name == class.name) else { return };
        self.require("attacker_frames_sent", forged.sent as f64, AtLeast(100.0));
        if self.case == Case::Reset.label() {
            return;
        }
        if class == FORGED_PHONE {
            let bps = forged.received_bytes as f64 * 8.0 / measured.seconds.max(1.0);
            self.require("attacker_received_bps", bps, AtMost(GRANT_RATE_BPS as f64 * SERVICES.len() as f64));
            return;
        }
        // Where the machine lost a client's own packet on the way, an exact copy of it arrives in its place.
        let in_place_of_lost = self.case == Case::Replay.label() && forged.received_bytes <= LOST_BYTES_MAX;
        let demand = AtMost(0.0).disturbed(in_place_of_lost && measured.taken.is_much());
        self.require("attacker_received_bytes", forged.received_bytes as f64, demand);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_threat_has_a_name_of_its_own() {
        let mut names = Case::ALL.map(Case::label).to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Case::ALL.len());
    }
}
