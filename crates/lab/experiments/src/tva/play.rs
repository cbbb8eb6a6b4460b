//! One attack from beginning to end: plain forwarding, calm, and under attack.

use std::{
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use super::{
    Attack, Family, Mutant, Options, Report,
    attackers::{self, Attackers},
    judge::{Phase, Shown},
    nodes::{self, Nodes, forward_plainly},
    site::{self, DELAY_US, SERVICE, SERVICE_PORT, USERS_BEHIND_SPOOFER},
};
use sluicegate_site::{Lab, LabError, Process, binary::Binary, cpu::StolenWatch, worker};
use sluicegate_traffic::{
    client::{
        haul::ServeSpec,
        transfer::{Transfer, TransferSpec},
    },
    emulator::{EmulateSpec, LineOptions},
};

/// The bottleneck, as the gate paces it. The emulated link is a little faster, so that the gate's queue is the one that
/// fills; plain forwarding has the same link.
pub(super) const LINK_BPS: u64 = 10_000_000;
const WIRE_BPS: u64 = 10_300_000;
/// Waiting time of the emulated link's drop-tail queue.
const QUEUE_US: u64 = 50_000;
const FOREVER_S: u32 = 900;
const READY_MAX: Duration = Duration::from_secs(15);
/// The paper's file and patience.
const FILE_BYTES: u32 = 20_000;
const ABORT_MS: u32 = 10_000;
/// A connection that took this long needed a second SYN: the kernel repeats it after one second.
pub(super) const FIRST_TRY_MS: u64 = 950;
/// Between the start of an attack and the first transfer that is judged.
const SETTLE: Duration = Duration::from_millis(1_500);
/// The flood is this much more than what has to be received: not all of it is Ethernet frames.
const MORE: f64 = 1.25;
/// For how long what the gate receives is measured: attackers who spend are done a second later.
const MEASURED: Duration = Duration::from_secs(4);
/// N and T that the service grants at first: the paper's 32 KB in 10 s.
pub(super) const DEFAULT_GRANT: (u32, u32) = (32_000, 10);

/// What honest clients do in a phase.
#[derive(Debug, Clone, Copy)]
struct Load {
    per_minute: u32,
    parallel_max: usize,
    seconds: u32,
    bytes: u32,
    /// Addresses in turn.
    from: Hosts,
}

/// The honest hosts of a phase, one after the other. Each phase has its own, so that no host begins with what it got or
/// spent in the phase before.
#[derive(Debug, Clone, Copy)]
struct Hosts {
    /// Third byte of the first phase's first host.
    first: u8,
    /// Length of the prefix of each phase.
    len: u8,
}

/// What is played, in this order.
#[derive(Debug, Clone, Copy)]
enum Scene {
    Plain,
    Calm,
    Attacked,
    InTurn,
}

impl Hosts {
    fn of(self, scene: Scene) -> String {
        let step = 1 << 24_u8.saturating_sub(self.len);
        format!("10.3.{}.0/{}", self.first + scene as u8 * step, self.len)
    }
}

impl Load {
    const fn of(attack: Attack) -> Self {
        // A quarter of the link.
        let quarter = Self { per_minute: 900, parallel_max: 0, seconds: 12, bytes: FILE_BYTES, from: Self::FEW };
        match attack {
            Attack::Legacy => quarter,
            // Every connection from another host, so that each needs a request.
            Attack::Request => Self { per_minute: 6_000, bytes: 0, from: Self::MANY, ..quarter },
            Attack::Authorized => Self::SATURATING,
            Attack::Imprecise | Attack::Reasking => quarter,
        }
    }

    /// As much as goes.
    const SATURATING: Self =
        Self { per_minute: 60_000, parallel_max: 24, seconds: 12, bytes: FILE_BYTES, from: Self::FEW };
    /// 64 hosts a phase, and 8,192.
    const FEW: Hosts = Hosts { first: 1, len: 26 };
    const MANY: Hosts = Hosts { first: 128, len: 19 };
    /// Of plain forwarding under attack, and of nodes without attack, less shows enough.
    const SHORT_S: u32 = 6;
}

struct Stage<'a> {
    options: &'a Options,
    lab: Lab,
    binary: Binary,
    _standing: Vec<Process>,
}

/// Runs one attack and returns what was measured; `tell` hears each step. All daemons, agents and
/// workers are processes of `binary`, whose directory is empty and of this user alone.
///
/// # Errors
/// If the lab cannot be built, or a process of it fails: the run then shows nothing.
pub fn run(binary: &Binary, options: &Options, tell: &mut dyn FnMut(&str)) -> Result<Report, LabError> {
    if !(0.1..=50.0).contains(&options.ratio) {
        return Err(LabError::Plan(format!("a flood of {} times the bottleneck: use 0.1 to 50", options.ratio)));
    }
    tell("building the lab: 17 network namespaces and the wires between them");
    let stage = Stage::build(binary.clone(), options)?;
    let (mut report, attack) = (Report::new(super::NAME), options.attack.label());
    let load = Load::of(options.attack);
    let short = Load { seconds: Load::SHORT_S, ..load };

    tell("plain forwarding, under attack");
    forward_plainly(&stage.lab, true)?;
    let plain = stage.phase(Scene::Plain, &short, Some(options.attack), None)?;
    forward_plainly(&stage.lab, false)?;
    report.add_distribution((attack, "plain"), &plain.transfers);

    tell("starting edge boxes, routers and the gate");
    let nodes = nodes::start(&stage.lab, &stage.binary, options)?;
    tell("capabilities, no attack");
    let calm = stage.phase(Scene::Calm, &short, None, Some(&nodes))?;
    report.add_distribution(("calm", "tva"), &calm.transfers);
    tell("capabilities, under attack");
    let attacked = stage.phase(Scene::Attacked, &load, Some(options.attack), Some(&nodes))?;
    report.add_distribution((attack, "tva"), &attacked.transfers);
    let shown =
        Shown { plain: &plain, calm: &calm, attacked: &attacked, link_bps: LINK_BPS as f64, ratio: options.ratio };
    shown.judge(&mut report, options.attack);
    if options.attack == Attack::Imprecise {
        tell("capabilities, the same attackers group after group");
        // What they were granted has to be over.
        thread::sleep(Duration::from_secs(DEFAULT_GRANT.1.into()));
        let low = stage.phase(Scene::InTurn, &load, Some(Attack::Imprecise), Some(&nodes))?;
        report.add_distribution(("imprecise-low", "tva"), &low.transfers);
        Shown { attacked: &low, ..shown }.judge_in_turn(&mut report);
    }
    drop(nodes);
    Ok(report)
}

impl<'a> Stage<'a> {
    fn build(binary: Binary, options: &'a Options) -> Result<Self, LabError> {
        let lab = options.family.plan(site::plan()?).build()?;
        let mut stage = Self { options, lab, binary, _standing: Vec::new() };
        let down = LineOptions { delay_us: DELAY_US, rate_bps: WIRE_BPS, queue_us: QUEUE_US, ..LineOptions::default() };
        let up = LineOptions { delay_us: DELAY_US, ..LineOptions::default() };
        let link = EmulateSpec { a: "up".into(), b: "down".into(), a_to_b: down, b_to_a: up, seconds: FOREVER_S };
        let serve =
            ServeSpec { listen: vec![service(options.family)], silence_s: ABORT_MS / 1_000, seconds: FOREVER_S };
        let standing = [
            stage.binary.worker(&stage.lab, "link", "emulate", &link)?,
            stage.binary.worker(&stage.lab, "service", "serve", &serve)?,
        ];
        stage._standing = standing.into();
        Ok(stage)
    }

    /// Honest clients at work, with an attack or without. Against nodes, attackers of an imprecise policy begin in the
    /// middle, so that beginning and end of what they do show; all others before the first transfer.
    fn phase(
        &self,
        scene: Scene,
        load: &Load,
        attack: Option<Attack>,
        nodes: Option<&Nodes>,
    ) -> Result<Phase, LabError> {
        let in_turn = matches!(scene, Scene::InTurn);
        let plan = attackers::Plan {
            lab: &self.lab,
            binary: &self.binary,
            options: self.options,
            // Until the last transfer has ended or given up.
            seconds: load.seconds + ABORT_MS / 1_000 + 8,
            // Without capabilities nobody is ever spent.
            endless: nodes.is_none(),
        };
        let flood_bps = (LINK_BPS as f64 * self.options.ratio * MORE) as u64;
        let attack = attack.filter(|_| self.options.mutant != Mutant::NoFlood);
        let is_imprecise = |attack| matches!(attack, Attack::Imprecise | Attack::Reasking);
        let in_the_middle = attack.filter(|attack| nodes.is_some() && is_imprecise(*attack));
        let (mut attackers, mut received_bps) = (None, 0.0);
        if let Some(attack) = attack.filter(|_| in_the_middle.is_none()) {
            attackers = Some(Attackers::start(&plan, attack, in_turn, flood_bps)?);
            thread::sleep(SETTLE);
            received_bps = self.received_bps()?;
        }
        let lanes = |nodes: Option<&Nodes>| nodes.map_or(Ok((0, 0)), Nodes::request_lane);
        let others = self.others(scene)?;
        let watch = StolenWatch::start();
        let (before, lanes_before) = (self.carried()?, lanes(nodes)?);
        let clients = self.transfers("users", load, &load.from.of(scene))?;
        let started = Instant::now();
        if let Some(attack) = in_the_middle {
            thread::sleep(SETTLE * 2);
            attackers = Some(Attackers::start(&plan, attack, in_turn, flood_bps)?);
            received_bps = self.received_bps()?;
        }
        let left_s = load.seconds.saturating_sub(u32::try_from(started.elapsed().as_secs()).unwrap_or(u32::MAX));
        // What the last transfers carry after the others have ended is no fair share of anything.
        let (transfers, after) = collect(&clients, left_s, || Ok((self.carried()?, lanes(nodes)?)))?;
        let behind_spoofer = match &others {
            Some((behind, _)) => collect(behind, 0, || Ok(()))?.0,
            None => Vec::new(),
        };
        let taken = watch.end().taken();
        let mut phase = Phase { transfers, behind_spoofer, received_bps, taken, ..Phase::default() };
        phase.carried = (after.0.0 - before.0, after.0.1 - before.1);
        phase.lanes = (after.1.0 - lanes_before.0, after.1.1 - lanes_before.1);
        if let Some(attackers) = attackers {
            let stopped = attackers.stop()?;
            phase.attack_began_ns = stopped.began_ns;
            phase.attackers = stopped.arrived;
            phase.granted = stopped.granted;
            phase.asked = u64::from(stopped.attackers);
        }
        Ok(phase)
    }

    /// Under a flood of requests: hosts behind the spoofing neighbour, and hosts that want all the rest of the link, so
    /// that requests get no more than their share.
    fn others(&self, scene: Scene) -> Result<Option<(Process, Process)>, LabError> {
        if self.options.attack != Attack::Request {
            return Ok(None);
        }
        let load = Load::of(Attack::Request);
        let few = Load { per_minute: load.per_minute / 6, ..load };
        let behind = self.transfers("users-1", &few, USERS_BEHIND_SPOOFER)?;
        let longer = Load { seconds: load.seconds + 4, ..Load::SATURATING };
        let saturating = self.transfers("users", &longer, &longer.from.of(scene))?;
        thread::sleep(SETTLE);
        Ok(Some((behind, saturating)))
    }

    /// A worker that transfers files to the service from these addresses of a host.
    fn transfers(&self, host: &str, load: &Load, from: &str) -> Result<Process, LabError> {
        let spec = TransferSpec {
            to: service(self.options.family),
            from: Some(self.options.family.prefix(from)?),
            bytes: load.bytes,
            upload: true,
            deadline_ms: ABORT_MS,
            per_minute: load.per_minute,
            parallel_max: load.parallel_max,
            seconds: load.seconds,
        };
        self.binary.worker(&self.lab, host, "transfer", &spec)
    }

    /// What comes to the gate from outside, over the next seconds.
    fn received_bps(&self) -> Result<f64, LabError> {
        let (from, before) = (Instant::now(), self.lab.counters("gate", "wan")?.rx_bytes);
        thread::sleep(MEASURED);
        let bytes = self.lab.counters("gate", "wan")?.rx_bytes - before;
        Ok(bytes as f64 * 8.0 / from.elapsed().as_secs_f64())
    }

    /// Bytes that reached the service's edge box and the colluder.
    fn carried(&self) -> Result<(u64, u64), LabError> {
        Ok((self.lab.counters("site", "edge")?.tx_bytes, self.lab.counters("site", "col")?.tx_bytes))
    }
}

fn service(family: Family) -> SocketAddr {
    (family.address(SERVICE), SERVICE_PORT).into()
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
        transfers.extend(worker::said::<Transfer>(&line, "transfer"));
    }
    Err(clients.failed("ended without a result"))
}
