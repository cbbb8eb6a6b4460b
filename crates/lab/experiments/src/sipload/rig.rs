//! Where servers are loaded, and one trial.

use std::{
    net::{IpAddr, Ipv4Addr},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use sluicegate_site::{
    Lab, LabError, Node, Prefix, Process,
    binary::Binary,
    cpu::{StolenWatch, Taken},
    node::SIP_PORT,
    topology::{Host, Plan},
};
use sluicegate_traffic::{
    attack::{SipFloodSpec, SipKind},
    sipload::{CallRate, CalleesSpec, CallersSpec, LoadSum, LoadTick, Replying},
    stream::Over,
};

use super::server::{self, PRIORITY, Server, Wanted, place_load};
use crate::{
    certificate::Certificate,
    family::{self, Ahead, Awake},
};

pub(crate) const REALM: &str = "lab.example";
pub(crate) const SERVICE: &str = "office";
pub(crate) const SERVER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
pub(crate) const GATE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 129);
pub(crate) const CALLEES: Ipv4Addr = Ipv4Addr::new(10, 4, 0, 2);
/// Where callees are reached without a server between.
const REFLECTORS: Ipv4Addr = Ipv4Addr::new(198, 18, 2, 2);
/// Addresses that callers have.
const SOURCES: Prefix = Prefix::new_assert(IpAddr::V4(Ipv4Addr::new(198, 51, 101, 0)), 26);
const MEDIA_PORT: u16 = 10_000;
const LINES: u16 = 8;
const CALLS_MAX: u32 = 1 << 20;
pub(crate) const TICK_MS: u32 = 250;
/// Longer than any trial.
const FOREVER_S: u32 = 3_600;
/// How much longer than planned a trial may take.
const LATE_MAX: Duration = Duration::from_secs(30);

/// The lab, with a gate between server and callees or without one.
#[derive(Debug)]
pub(crate) struct Rig {
    pub(crate) binary: Binary,
    pub(crate) lab: Lab,
    certificate: Certificate,
    password: String,
    seed: std::cell::Cell<u64>,
    _ahead: Ahead,
    _awake: Option<Awake>,
    /// The server's processors, and those of who loads it.
    pub(crate) cpus: [Vec<usize>; 2],
}

/// What is asked of a server.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    pub(crate) rates: Vec<CallRate>,
    /// Of the times that are looked at, the first is that of which processor time is told.
    pub(crate) windows_ms: Vec<(u64, u64)>,
    pub(crate) manner: Replying,
    pub(crate) hold_ms: Option<u32>,
    pub(crate) media: bool,
    /// Each call has a connection of its own, where there are any.
    pub(crate) connect_each: bool,
    /// Whether callers answer challenges.
    pub(crate) has_password: bool,
    /// How long calls may take to end when no more are begun.
    pub(crate) drain_ms: u32,
}

/// What came of it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trial {
    pub(crate) windows: Vec<LoadSum>,
    pub(crate) ticks: Vec<LoadTick>,
    /// Length of the first window, and processor time of the server in it, in seconds.
    pub(crate) seconds: f64,
    pub(crate) cpu_s: f64,
    /// Memory of the server before, and at the end of the first window.
    pub(crate) memory_kb: [u64; 2],
    pub(crate) taken: Taken,
}

impl Load {
    /// A constant rate: half a second that does not count, and then so many milliseconds.
    pub(crate) fn constant(per_s: u32, settle_ms: u32, ms: u32) -> Self {
        let all = settle_ms + ms;
        Self {
            rates: vec![CallRate { per_s, ms: all }],
            windows_ms: vec![(settle_ms.into(), all.into())],
            manner: Replying::Answers,
            hold_ms: Some(0),
            media: false,
            connect_each: false,
            has_password: true,
            drain_ms: 0,
        }
    }
}

impl Trial {
    /// What happened in the first window.
    pub(crate) fn first(&self) -> LoadSum {
        self.windows.first().cloned().unwrap_or_default()
    }

    /// Calls that were completed in the first window, a second.
    pub(crate) fn goodput(&self) -> f64 {
        self.first().completed as f64 / self.seconds
    }

    /// Whether callers did what they were told to.
    pub(crate) fn kept_up(&self) -> bool {
        let first = self.first();
        first.not_begun * 50 <= first.offered && first.unsent * 200 <= first.offered
    }
}

impl Rig {
    pub(crate) fn build(binary: &Binary, seed: u64, has_gate: bool) -> Result<Self, LabError> {
        let lab = plan(has_gate)?.build()?;
        let mut random = fastrand::Rng::with_seed(seed);
        let password = format!("{:016x}{:016x}", random.u64(..), random.u64(..));
        let certificate = Certificate::make(&binary.directory, &[SERVER])?;
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        // A processor for the server, and the others for the load.
        let cpus = if cpus > 1 { [vec![0], (1..cpus).collect()] } else { [Vec::new(), Vec::new()] };
        Ok(Self {
            binary: binary.clone(),
            lab,
            certificate,
            password,
            seed: seed.into(),
            _ahead: Ahead::go(PRIORITY),
            _awake: Awake::keep(),
            cpus,
        })
    }

    /// Loads a fresh server.
    pub(crate) fn trial(&self, wanted: &Wanted, load: &Load) -> Result<Trial, LabError> {
        let server = self.start(wanted)?;
        let _gate = self.gate(wanted, &server)?;
        self.load(Some(&server), wanted.over, load)
    }

    pub(crate) fn start(&self, wanted: &Wanted) -> Result<Server, LabError> {
        Server::start((&self.binary, &self.lab), wanted, (&self.certificate, &self.password))
    }

    fn gate(&self, wanted: &Wanted, server: &Server) -> Result<Option<Node>, LabError> {
        let gate = if wanted.grants { server::gate((&self.binary, &self.lab), server)? } else { None };
        // On another host, it has nothing of the server's processor.
        gate.iter().try_for_each(|gate| place_load(&gate.process, &self.cpus[1]))?;
        Ok(gate)
    }

    /// What callers reach at callees without any server between: their own limit.
    pub(crate) fn reflected(&self, load: &Load) -> Result<Trial, LabError> {
        self.load(None, Over::Udp, load)
    }

    /// Loads a server that runs, or the callees themselves.
    pub(crate) fn load(&self, server: Option<&Server>, over: Over, load: &Load) -> Result<Trial, LabError> {
        self.seed.set(self.seed.get() + 1);
        let at = if server.is_some() { CALLEES } else { REFLECTORS };
        let (listen, media) = ((at, SIP_PORT).into(), (at, MEDIA_PORT).into());
        let callees = CalleesSpec { listen, media, manner: load.manner, seconds: FOREVER_S };
        let callees = self.worker("callees", "callees", &callees)?;
        let spec = CallersSpec {
            to: vec![server.map_or(listen, Server::address)],
            way: self.certificate.way(over),
            sources: Some(SOURCES),
            lines: LINES,
            connect_each: load.connect_each && over.is_stream(),
            realm: REALM.to_owned(),
            service: SERVICE.to_owned(),
            users: server::users(&self.password),
            rates: load.rates.clone(),
            hold_ms: load.hold_ms,
            has_no_password: !load.has_password,
            media_port: if load.media { MEDIA_PORT } else { 0 },
            calls_max: CALLS_MAX,
            drain_ms: load.drain_ms,
            tick_ms: TICK_MS,
            windows_ms: load.windows_ms.clone(),
            seed: self.seed.get(),
            ..CallersSpec::default()
        };
        let pid = server.map(Server::pid);
        let memory = || pid.map_or(Ok(0), family::proportional_kb);
        let cpu = || pid.map_or(Ok(Duration::ZERO), family::cpu);
        let before_kb = memory()?;
        let watch = StolenWatch::start();
        let callers = self.worker("callers", "callers", &spec)?;
        let began = Instant::now();
        let until = |ms: u64| thread::sleep(Duration::from_millis(ms).saturating_sub(began.elapsed()));
        let (from_ms, to_ms) = load.windows_ms.first().copied().unwrap_or_default();
        until(from_ms);
        let (cpu_before, at) = (cpu()?, Instant::now());
        until(to_ms);
        let (cpu_after, measured) = (cpu()?, at.elapsed());
        let memory_kb = [before_kb, memory()?];
        let ms: u64 = load.rates.iter().map(|rate| u64::from(rate.ms)).sum();
        let planned = Duration::from_millis(ms + u64::from(load.drain_ms));
        let result = callers.event("result", planned.saturating_sub(began.elapsed()) + LATE_MAX)?;
        drop(callees);
        let seconds = to_ms.saturating_sub(from_ms) as f64 / 1e3;
        // Of what was measured for a little longer or shorter.
        let cpu_s = (cpu_after.saturating_sub(cpu_before)).as_secs_f64() * seconds / measured.as_secs_f64().max(1e-3);
        let taken = watch.end().taken();
        let part = |name: &str| result.get(name).cloned().unwrap_or(Value::Null);
        let unread = |error: serde_json::Error| callers.failed(&format!("said what cannot be read: {error}"));
        Ok(Trial {
            windows: serde_json::from_value(part("windows")).map_err(unread)?,
            ticks: serde_json::from_value(part("ticks")).map_err(unread)?,
            seconds,
            cpu_s,
            memory_kb,
            taken,
        })
    }

    /// Sends a server messages of one kind that nothing comes of, until what is returned is dropped.
    pub(crate) fn flood(&self, kind: SipKind, per_s: u64) -> Result<Process, LabError> {
        self.seed.set(self.seed.get() + 1);
        let spec = SipFloodSpec {
            to: vec![server::address(Over::Udp)],
            sources: SOURCES,
            sockets: LINES,
            per_s,
            seconds: FOREVER_S,
            requests_max: u64::MAX,
            realm: REALM.to_owned(),
            service: SERVICE.to_owned(),
            users: server::users("").into_iter().map(|(name, _)| name).collect(),
            mix: vec![(kind, 1)],
            seed: self.seed.get(),
            ..SipFloodSpec::default()
        };
        self.worker("callers", "sip_flood", &spec)
    }

    fn worker<S: serde::Serialize>(&self, host: &str, role: &str, spec: &S) -> Result<Process, LabError> {
        let process = self.binary.worker(&self.lab, host, role, spec)?;
        place_load(&process, &self.cpus[1])?;
        Ok(process)
    }
}

/// ```text
/// callers ── server ── [router ──] callees
///    └─────────────────────────────────┘
/// ```
/// The wire past the server is for what the generator can do.
fn plan(has_gate: bool) -> Result<Plan, LabError> {
    let sources = SOURCES.to_string();
    let mut hosts = vec![
        Host::with_routes("callers", &[(&sources, "itself"), ("0.0.0.0/0", "198.18.1.1")])?,
        Host::with_routes("callees", &[("0.0.0.0/0", "10.4.0.1"), (&sources, "198.18.2.1")])?,
    ];
    let past = ("callers:past 198.18.2.1/24", "callees:past 198.18.2.2/24");
    let own = [(sources.as_str(), "198.18.1.2")];
    if has_gate {
        hosts.push(Host::with_routes("server", &[own[0], ("10.4.0.0/24", "203.0.113.129")])?);
        hosts.push(Host::with_routes("router", &[("0.0.0.0/0", "203.0.113.1")])?);
        let wires = [
            ("server:left 198.18.1.1/24", "callers:eth0 198.18.1.2/24"),
            ("server:right 203.0.113.1/24", "router:outside 203.0.113.129/24"),
            ("router:inside 10.4.0.1/24", "callees:eth0 10.4.0.2/24"),
            past,
        ];
        return Plan::of(hosts, &wires);
    }
    hosts.push(Host::with_routes("server", &own)?);
    let wires = [
        ("server:left 198.18.1.1/24 203.0.113.1/32", "callers:eth0 198.18.1.2/24"),
        ("server:right 10.4.0.1/24", "callees:eth0 10.4.0.2/24"),
        ("server:spare 198.18.3.1/24", "callers:spare 198.18.3.2/24"),
        past,
    ];
    Plan::of(hosts, &wires)
}
