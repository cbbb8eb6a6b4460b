//! One attack from beginning to end: plain forwarding, calm, and under attack.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::{
    Attack, Options, Report,
    attackers::{self, Attackers},
    nodes::{Nodes, Settings, forward_plainly},
    site::{self, DELAY_US, SERVICE, SERVICE_PORT, USERS_BEHIND_SPOOFER},
};
use crate::{
    Lab, LabError, Process,
    binary::Binary,
    client::transfer::{self, ServeSpec, Transfer, TransferSpec},
    emulator::{EmulateSpec, LineOptions},
    report::Threshold,
    rtnetlink::Prefix,
    sample::Percentiles,
    worker,
};

/// The bottleneck, as the gate paces it. The emulated link is a little faster, so that the gate's queue is the one that
/// fills; plain forwarding has the same link.
const LINK_BPS: u64 = 10_000_000;
const WIRE_BPS: u64 = 10_300_000;
/// Waiting time of the emulated link's drop-tail queue.
const QUEUE_US: u64 = 50_000;
const FOREVER_S: u32 = 900;
const READY_MAX: Duration = Duration::from_secs(15);
/// The paper's file and patience.
const FILE_BYTES: u32 = 20_000;
const ABORT_MS: u32 = 10_000;
/// A connection that took this long needed a second SYN: the kernel repeats it after one second.
const FIRST_TRY_MS: u64 = 950;
/// Between the start of an attack and the first transfer that is judged.
const SETTLE: Duration = Duration::from_millis(1_500);
/// N and T that the service grants at first: the paper's 32 KB in 10 s.
const DEFAULT_GRANT: (u32, u32) = (32_000, 10);

/// What honest clients do in a phase.
#[derive(Debug, Clone, Copy)]
struct Load {
    per_minute: u32,
    parallel_max: usize,
    seconds: u32,
    bytes: u32,
    /// Addresses in turn.
    from: &'static str,
}

impl Load {
    const fn of(attack: Attack) -> Self {
        match attack {
            // A quarter of the link.
            Attack::Legacy => {
                Self { per_minute: 900, parallel_max: 0, seconds: 16, bytes: FILE_BYTES, from: "10.3.1.0/26" }
            }
            // Every connection from another host, so that each needs a request.
            Attack::Request => Self { per_minute: 3_600, parallel_max: 0, seconds: 18, bytes: 0, from: "10.3.0.0/17" },
            // As much as goes: the destination wants its half.
            Attack::Authorized => {
                Self { per_minute: 60_000, parallel_max: 24, seconds: 16, bytes: FILE_BYTES, from: "10.3.1.0/26" }
            }
            Attack::Imprecise => {
                Self { per_minute: 900, parallel_max: 0, seconds: 14, bytes: FILE_BYTES, from: "10.3.1.0/26" }
            }
        }
    }
}

/// What a phase showed.
#[derive(Debug, Default)]
struct Phase {
    transfers: Vec<Transfer>,
    behind_spoofer: Vec<Transfer>,
    /// Bytes to the service and to the colluder on their wires while the transfers ran.
    carried: (u64, u64),
    /// Frames that the attackers offered.
    offered_bps: f64,
    attack_began_ns: u64,
    /// Attackers that were authorised before the flood began.
    granted: u64,
    /// For each attacker that got through, the bytes that arrived as regular packets.
    attackers: Vec<u64>,
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
}

fn share(part: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

struct Stage<'a> {
    options: &'a Options,
    lab: Lab,
    binary: Binary,
    _standing: Vec<Process>,
}

pub(super) fn play(options: &Options, tell: &mut dyn FnMut(&str)) -> Result<Report, LabError> {
    tell("building the lab: 17 network namespaces and the wires between them");
    let stage = Stage::build(options)?;
    let (mut report, attack) = (Report::default(), options.attack.label());

    tell("plain forwarding, under attack");
    forward_plainly(&stage.lab, true)?;
    let plain = stage.phase(Some((options.attack, false)))?;
    forward_plainly(&stage.lab, false)?;
    report.add_distribution((attack, "plain"), &plain.transfers);

    tell("starting edge boxes, routers and the gate");
    let settings = Settings {
        binary: stage.binary.clone(),
        datapath: options.datapath.clone(),
        link_rate_bps: LINK_BPS,
        default_grant: DEFAULT_GRANT,
        edge_behind_spoofer: options.attack == Attack::Request,
    };
    let nodes = Nodes::start(&stage.lab, &settings)?;
    tell("capabilities, no attack");
    let calm = stage.phase(None)?;
    report.add_distribution(("calm", "tva"), &calm.transfers);
    tell("capabilities, under attack");
    let attacked = stage.phase(Some((options.attack, false)))?;
    report.add_distribution((attack, "tva"), &attacked.transfers);
    match options.attack {
        Attack::Legacy => legacy(&mut report, &plain, &calm, &attacked),
        Attack::Request => requests(&mut report, &plain, &attacked),
        Attack::Authorized => authorized(&mut report, &plain, &attacked),
        Attack::Imprecise => {
            imprecise(&mut report, "imprecise-high", &plain, &calm, &attacked);
            tell("capabilities, the same attackers group after group");
            // What they were granted has to be over.
            thread::sleep(Duration::from_secs(DEFAULT_GRANT.1.into()));
            let low = stage.phase(Some((Attack::Imprecise, true)))?;
            report.add_distribution(("imprecise-low", "tva"), &low.transfers);
            imprecise(&mut report, "imprecise-low", &plain, &calm, &low);
        }
    }
    drop(nodes);
    Ok(report)
}

impl<'a> Stage<'a> {
    fn build(options: &'a Options) -> Result<Self, LabError> {
        let lab = site::plan()?.build()?;
        let binary = Binary { program: options.program.clone(), directory: options.directory.clone() };
        let mut stage = Self { options, lab, binary, _standing: Vec::new() };
        let down = LineOptions { delay_us: DELAY_US, rate_bps: WIRE_BPS, queue_us: QUEUE_US, ..LineOptions::default() };
        let up = LineOptions { delay_us: DELAY_US, ..LineOptions::default() };
        let link = EmulateSpec { a: "up".into(), b: "down".into(), a_to_b: down, b_to_a: up, seconds: FOREVER_S };
        let serve = ServeSpec { listen: vec![(SERVICE, SERVICE_PORT).into()], seconds: FOREVER_S };
        let standing = [stage.start("link", "emulate", &link)?, stage.start("service", "serve", &serve)?];
        stage._standing = standing.into();
        Ok(stage)
    }

    fn start<S: serde::Serialize>(&self, host: &str, role: &str, spec: &S) -> Result<Process, LabError> {
        let command = worker::command(&self.binary.program, role, spec);
        let process = self.lab.host(host)?.spawn(&format!("{role} on {host}"), command)?;
        process.event("ready", READY_MAX)?;
        Ok(process)
    }

    /// Honest clients at work, with an attack or without. An imprecise attack begins in the middle, so that its
    /// beginning and end show; the others before the first transfer. The flag: group after group.
    fn phase(&self, attack: Option<(Attack, bool)>) -> Result<Phase, LabError> {
        let load = Load::of(self.options.attack);
        let plan = attackers::Plan {
            lab: &self.lab,
            binary: &self.binary,
            seed: self.options.seed,
            // Until the last transfer has ended or given up.
            seconds: load.seconds + ABORT_MS / 1_000 + 4,
        };
        let flood_bps = (LINK_BPS as f64 * self.options.ratio) as u64;
        let mut attackers = None;
        if let Some((attack, in_turn)) = attack.filter(|(attack, _)| *attack != Attack::Imprecise) {
            attackers = Some(Attackers::start(&plan, attack, in_turn, flood_bps)?);
            thread::sleep(SETTLE);
        }
        let before = self.carried()?;
        let clients = self.start("users", "transfer", &transfers(&load, load.from)?)?;
        let others = match self.options.attack {
            Attack::Request => {
                let few = Load { per_minute: load.per_minute / 6, ..load };
                Some(self.start("users-1", "transfer", &transfers(&few, USERS_BEHIND_SPOOFER)?)?)
            }
            _ => None,
        };
        if let Some((Attack::Imprecise, in_turn)) = attack {
            thread::sleep(SETTLE * 2);
            attackers = Some(Attackers::start(&plan, Attack::Imprecise, in_turn, flood_bps)?);
        }
        // What the last transfers carry after the others have ended is no fair share of anything.
        let (transfers, after) = collect(&clients, load.seconds, || self.carried())?;
        let behind_spoofer =
            others.map_or(Ok(Vec::new()), |others| Ok(collect(&others, load.seconds, || Ok(()))?.0))?;
        let mut phase = Phase { transfers, behind_spoofer, ..Phase::default() };
        phase.carried = (after.0 - before.0, after.1 - before.1);
        if let Some(attackers) = attackers {
            let stopped = attackers.stop()?;
            phase.offered_bps = stopped.bytes as f64 * 8.0 / stopped.seconds.max(0.001);
            phase.attack_began_ns = stopped.began_ns;
            phase.attackers = stopped.arrived;
            phase.granted = stopped.granted;
        }
        Ok(phase)
    }

    /// Bytes that reached the service's edge box and the colluder.
    fn carried(&self) -> Result<(u64, u64), LabError> {
        Ok((self.lab.counters("site", "edge")?.tx_bytes, self.lab.counters("site", "col")?.tx_bytes))
    }
}

fn transfers(load: &Load, from: &str) -> Result<TransferSpec, LabError> {
    let from: Prefix = from.parse().map_err(|error| LabError::Plan(format!("{from}: {error}")))?;
    Ok(TransferSpec {
        to: (SERVICE, SERVICE_PORT).into(),
        from: Some(from),
        bytes: load.bytes,
        upload: true,
        deadline_ms: ABORT_MS,
        per_minute: load.per_minute,
        parallel_max: load.parallel_max,
        seconds: load.seconds,
    })
}

/// Every transfer of a worker that starts them for `seconds`, until the last has ended or given up; and what `then`
/// says at the end of those seconds.
fn collect<R>(
    clients: &Process,
    seconds: u32,
    then: impl FnOnce() -> Result<R, LabError>,
) -> Result<(Vec<Transfer>, R), LabError> {
    let mark = Instant::now() + Duration::from_secs(seconds.into());
    let end = mark + Duration::from_millis(ABORT_MS.into()) + READY_MAX;
    let (mut transfers, mut then, mut said) = (Vec::new(), Some(then), None);
    let mut ended = false;
    while Instant::now() < end {
        if Instant::now() >= mark
            && let Some(then) = then.take()
        {
            said = Some(then()?);
        }
        if ended && let Some(said) = said {
            return Ok((transfers, said));
        }
        let Some(line) = clients.line(Duration::from_millis(100)) else { continue };
        ended |= line.contains("\"event\":\"result\"");
        transfers.extend(transfer::parse_line(&line));
    }
    Err(LabError::Process { name: clients.name().to_owned(), reason: "ended without a result".to_owned() })
}

/// What every attack reports of both schemes.
fn both(report: &mut Report, attack: &str, plain: &Phase, attacked: &Phase) {
    for (scheme, phase) in [("plain", plain), ("tva", attacked)] {
        let times = phase.times();
        let about = (attack, scheme);
        report.add(about, "flood_mbps", phase.offered_bps / 1e6, None);
        report.add(about, "transfers", phase.transfers.len() as f64, None);
        report.add(about, "median_ms", times.p50 as f64, None);
        report.add(about, "p99_ms", times.p99 as f64, None);
    }
}

fn legacy(report: &mut Report, plain: &Phase, calm: &Phase, attacked: &Phase) {
    both(report, "legacy", plain, attacked);
    let calm_median = calm.times().p50 as f64;
    report.add(("calm", "tva"), "median_ms", calm_median, None);
    report.add(("calm", "tva"), "complete_share", calm.complete(), Some(Threshold::AtLeast(1.0)));
    let tva = ("legacy", "tva");
    report.add(tva, "transfers_judged", attacked.transfers.len() as f64, Some(Threshold::AtLeast(200.0)));
    report.add(tva, "complete_share", attacked.complete(), Some(Threshold::AtLeast(1.0)));
    let slower = attacked.times().p50 as f64 / calm_median.max(1.0);
    report.add(tva, "median_over_calm", slower, Some(Threshold::AtMost(1.5)));
    report.add(("legacy", "plain"), "complete_share", plain.complete(), Some(Threshold::AtMost(0.05)));
}

fn requests(report: &mut Report, plain: &Phase, attacked: &Phase) {
    both(report, "request", plain, attacked);
    let first_try = |transfers: &[Transfer]| {
        let at_first = transfers.iter().filter(|one| one.connect_ms.is_some_and(|ms| ms < FIRST_TRY_MS)).count();
        share(at_first, transfers.len())
    };
    let tva = ("request", "tva");
    report.add(tva, "requests_judged", attacked.transfers.len() as f64, Some(Threshold::AtLeast(1_000.0)));
    report.add(tva, "first_try_share", first_try(&attacked.transfers), Some(Threshold::AtLeast(0.99)));
    report.add(tva, "first_try_share_behind_spoofer", first_try(&attacked.behind_spoofer), None);
    report.add(("request", "plain"), "first_try_share", first_try(&plain.transfers), None);
}

fn authorized(report: &mut Report, plain: &Phase, attacked: &Phase) {
    both(report, "authorized", plain, attacked);
    let destination = |phase: &Phase| {
        let (service, colluder) = phase.carried;
        service as f64 / (service + colluder).max(1) as f64
    };
    let tva = ("authorized", "tva");
    report.add(tva, "attackers_authorised", attacked.granted as f64, Some(Threshold::AtLeast(1.0)));
    report.add(tva, "complete_share", attacked.complete(), Some(Threshold::AtLeast(1.0)));
    report.add(tva, "destination_share", destination(attacked), Some(Threshold::AtLeast(0.48)));
    report.add(("authorized", "plain"), "complete_share", plain.complete(), None);
    report.add(("authorized", "plain"), "destination_share", destination(plain), None);
}

fn imprecise(report: &mut Report, case: &str, plain: &Phase, calm: &Phase, attacked: &Phase) {
    both(report, case, plain, attacked);
    // A transfer is disturbed if it took longer than any without attack, with as much again for the machine.
    let usual_ms = calm.times().max * 2;
    let disturbed = attacked.transfers.iter().filter(|one| one.started_ns >= attacked.attack_began_ns);
    let disturbed = disturbed.filter(|one| one.error.is_some() || one.ms > usual_ms);
    let last_ns = disturbed.map(|one| one.started_ns).max().unwrap_or(attacked.attack_began_ns);
    let lasted_s = (last_ns - attacked.attack_began_ns) as f64 / 1e9;
    let tva = (case, "tva");
    report.add(tva, "usual_ms", usual_ms as f64, None);
    report.add(tva, "complete_share", attacked.complete(), Some(Threshold::AtLeast(1.0)));
    report.add(tva, "disturbance_s", lasted_s, Some(Threshold::AtMost(3.0)));
    report.add(tva, "attackers_authorised", attacked.granted as f64, Some(Threshold::AtLeast(1.0)));
    let most = attacked.attackers.iter().max().copied().unwrap_or(0) as f64;
    report.add(
        tva,
        "regular_bytes_of_an_attacker_max",
        most,
        Some(Threshold::AtMost(2.0 * f64::from(DEFAULT_GRANT.0))),
    );
    let mean = attacked.attackers.iter().sum::<u64>() as f64 / attacked.attackers.len().max(1) as f64;
    report.add(tva, "regular_bytes_of_an_attacker_mean", mean, None);
}
