//! One flood after the other, in one lab.

use std::{
    cell::Cell,
    collections::BTreeMap,
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;
use serde_json::Value;

use super::{
    FloodOptions, Mutant, NAME,
    cases::{Attackers, CASES, Case},
    judge::{Flood, Honest, MEMORY, Memory, Played, is_at_rest, judge, judge_rest},
    memory::resident_kb,
    recorded::record,
    site::{self, BOTNET, Exchange, FRONTEND, INSIDER, MEDIA_PORT, REALM, VICTIMS, frontend},
};
use crate::report::rows::Report;
use sluicegate_site::{Lab, LabError, Node, Prefix, Process, binary::Binary, cpu::StolenWatch, worker::said};
use sluicegate_traffic::{
    attack::{FloodSpec, SipFloodSpec, SipKind, Target},
    client::{
        answer::AnswerSpec,
        call::SinkSpec,
        exchange::MirrorSpec,
        setup::{EndedCall, Setup, SetupSpec, opened},
    },
    count::{Class, CountSpec},
};

/// Longer than any run; workers end when they are told to.
const FOREVER_S: u32 = 3_600;
/// Users who call, each call another.
const PHONES: usize = 100;
const CALLS_PER_S: u32 = 50;
const TALK_MS: u32 = 2_000;
/// An honest telephone waits so long for each answer.
const GIVE_UP_MS: u32 = 8_000;
const MEDIA_MS: u32 = 100;
/// Between the beginning of a flood and that of the calls.
const SETTLE: Duration = Duration::from_secs(1);
/// How often memory is looked at.
const LOOK: Duration = Duration::from_millis(250);
/// How long the last calls may take to end, and attackers to tell what they did.
const DRAIN_MAX: Duration = Duration::from_secs(15);
/// How long what the floods left may take to end: calls that nobody ended and whose media do not flow.
const REST_MAX: Duration = Duration::from_secs(260);
const REST_LOOK: Duration = Duration::from_secs(5);
/// Sockets of a flood.
const SOCKETS: u16 = 200;
/// Branches of the front end that attackers have seen.
const BRANCHES: u32 = 64;
/// The attacker with an account.
const MALLORY: &str = "mallory";
/// Different requests of those who make themselves out to be others.
const SPOOFED: usize = 256;

struct Scene<'a> {
    options: &'a FloodOptions,
    frontend: Node,
    _gate: Node,
    exchanges: Vec<Process>,
    branches: Vec<String>,
    users: Vec<(String, String)>,
    mallory: String,
    seeds: Cell<u64>,
    binary: Binary,
    lab: Lab,
}

/// Plays the floods that are asked for and returns what was measured; `tell` hears each step. All daemons and workers are
/// processes of `binary`, whose directory is empty and of this user alone.
///
/// # Errors
/// If no flood is called so, the lab cannot be built, or a process of it fails: the run then shows nothing.
pub fn run(binary: &Binary, options: &FloodOptions, tell: &mut dyn FnMut(&str)) -> Result<Report, LabError> {
    let only = options.only.as_deref().unwrap_or_default();
    let is_chosen = |case: &Case| (case.is_brief || !options.short) && case.name.contains(only);
    let chosen: Vec<Case> = CASES.into_iter().filter(is_chosen).collect();
    if chosen.is_empty() {
        let names = CASES.map(|case| case.name).join(", ");
        return Err(LabError::Plan(format!("no flood is called so; there are {names}")));
    }
    tell("building the lab: 8 network namespaces, a front end, a gate, three exchanges");
    let scene = Scene::build(binary.clone(), options)?;
    let mut report = Report::new(NAME);
    let before = scene.rest()?;
    for case in &chosen {
        tell(&format!("{}: {}", case.name, case.about));
        let mut played = scene.play(case)?;
        judge(&mut report, case, options, &mut played);
    }
    if !options.short {
        tell("at rest: what the floods left has to end");
        judge_rest(&mut report, &before, &scene.come_to_rest(&before)?);
    }
    Ok(report)
}

impl<'a> Scene<'a> {
    fn build(binary: Binary, options: &'a FloodOptions) -> Result<Self, LabError> {
        let lab = site::plan()?.build()?;
        let mut random = fastrand::Rng::with_seed(options.seed);
        let mut password = || format!("{:016x}{:016x}", random.u64(..), random.u64(..));
        let users: Vec<_> = (0..PHONES).map(|number| (format!("phone{number:02}"), password())).collect();
        let mallory = password();
        let node = Node::start(&binary, &lab, "frontend", "frontend", &site::frontend_file(options))?;
        node.answers()?;
        // Telephones need no key for agents, and making one takes a quarter of a second.
        node.add_users("phones", users.iter().cloned(), &["--no-agent"])?;
        node.add_users("insiders", [(MALLORY.to_owned(), mallory.clone())], &["--no-agent"])?;
        let gate = site::gate_file(options);
        node.admit(&lab, "gate", &gate)?;
        let gate = Node::start(&binary, &lab, "gate", "gate", &gate)?;
        gate.ready()?;
        let exchanges = exchanges(&binary, &lab)?;
        let mut scene = Self {
            options,
            frontend: node,
            _gate: gate,
            exchanges,
            seeds: Cell::new(0),
            branches: Vec::new(),
            users,
            mallory,
            binary,
            lab,
        };
        scene.binary.wait_for("gate", || scene.call_once().ok())?;
        scene.see_branches()?;
        Ok(scene)
    }

    fn worker<S: Serialize>(&self, host: &str, role: &str, spec: &S) -> Result<Process, LabError> {
        self.binary.worker(&self.lab, host, role, spec)
    }

    fn call_once(&self) -> Result<(), LabError> {
        let spec = SetupSpec { calls: 1, talk_ms: Some(0), seconds: 10, media_ms: 0, ..self.calls() };
        opened(&self.worker("phones", "setup", &spec)?).map(drop)
    }

    /// Another one for each worker: two that begin alike would send the same requests.
    fn seed(&self) -> u64 {
        self.seeds.set(self.seeds.get() + 1);
        self.options.seed << 32 | self.seeds.get()
    }

    /// What attackers know who were called once, or stand beside the exchange.
    fn see_branches(&mut self) -> Result<(), LabError> {
        self.call_once()?;
        let office = self.exchanges.first();
        let lines = office.into_iter().flat_map(|office| std::iter::from_fn(|| office.line_now()));
        let branch = |line: String| said::<Value>(&line, "branch")?["branch"].as_str().map(str::to_owned);
        self.branches =
            lines.filter_map(branch).filter_map(|text| Some(text.strip_prefix("z9hG4bK")?.to_owned())).collect();
        Ok(())
    }

    /// What honest telephones do while a flood lasts.
    fn calls(&self) -> SetupSpec {
        let seconds = self.options.flood_s();
        SetupSpec {
            to: vec![frontend()],
            sockets: 32,
            realm: REALM.to_owned(),
            service: Exchange::Office.name().to_owned(),
            users: self.users.clone(),
            per_s: CALLS_PER_S,
            calls: CALLS_PER_S * seconds,
            seconds: seconds + 1,
            talk_ms: Some(TALK_MS),
            give_up_ms: GIVE_UP_MS,
            media_port: 41_000,
            media_ms: MEDIA_MS,
            seed: self.seed(),
            ..SetupSpec::default()
        }
    }

    fn play(&self, case: &Case) -> Result<Played, LabError> {
        let memory_before = self.resident()?;
        let counters = ["victims", "exchange"].map(|host| self.worker(host, "count", &counted()));
        let [victims, exchange] = counters;
        let (victims, exchange) = (victims?, exchange?);
        let events = self.events(&BTreeMap::new())?;
        let (watch, attackers) = (StolenWatch::start(), self.attack(case)?);
        thread::sleep(SETTLE);
        let before = self.arrived()?;
        let mut phones = Phones { process: self.worker("phones", "setup", &self.calls())?, honest: Honest::default() };
        let (began, mut memory) = (Instant::now(), Memory { before_kb: memory_before, ..Memory::default() });
        let time = Duration::from_secs(self.options.flood_s().into());
        // The flood goes on until the last call is over.
        while !phones.are_done() && began.elapsed() < time + DRAIN_MAX {
            memory.during_kb.push(self.resident()?);
            thread::sleep(LOOK);
        }
        let (seconds, after) = (began.elapsed().as_secs_f64(), self.arrived()?);
        let taken = watch.end().taken();
        let mut flood = Flood::default();
        flood.offered_per_s = after.0.saturating_sub(before.0) as f64 / seconds;
        flood.received_per_s = after.1.saturating_sub(before.1) as f64 / seconds;
        for attacker in attackers {
            flood.add(&ended(attacker)?);
        }
        flood.victims = per_s(victims);
        flood.relayed = per_s(exchange).iter().map(|(packets, _)| packets).sum();
        flood.events = self.events(&events)?;
        memory.after_kb = self.resident()?;
        let planned = CALLS_PER_S * self.options.flood_s();
        Ok(Played { honest: phones.honest, flood, memory, seconds, taken, planned })
    }

    fn resident(&self) -> Result<u64, LabError> {
        resident_kb(self.frontend.process.pid())
    }

    /// Frames that came to the front end's host, and datagrams that the front end took.
    fn arrived(&self) -> Result<(u64, u64), LabError> {
        let frames = self.lab.counters("frontend", "eth0")?.rx_packets;
        let status = self.frontend.status().unwrap_or_default();
        Ok((frames, status["frontend"]["events"]["datagrams"].as_u64().unwrap_or_default()))
    }

    /// What happened at the front end since `before`, by its own names.
    fn events(&self, before: &BTreeMap<String, u64>) -> Result<BTreeMap<String, u64>, LabError> {
        let status = self.frontend.answers()?;
        let all = ["events", "requests"].map(|part| status["frontend"][part].as_object().cloned().unwrap_or_default());
        let since = |(name, count): (String, Value)| {
            let count =
                count.as_u64()?.saturating_sub(before.get(&name.replace(" ", "_")).copied().unwrap_or_default());
            Some((name.replace(' ', "_"), count))
        };
        Ok(all.into_iter().flatten().filter_map(since).collect())
    }

    /// What the front end holds: the fill of each table, and its memory.
    fn rest(&self) -> Result<BTreeMap<String, u64>, LabError> {
        let status = self.frontend.answers()?;
        let tables = status["frontend"]["tables"].as_array().cloned().unwrap_or_default();
        let used = |table: &Value| Some((table["table"].as_str()?.to_owned(), table["used"].as_u64()?));
        let memory = (MEMORY.to_owned(), self.resident()?);
        Ok(tables.iter().filter_map(used).chain([memory]).collect())
    }

    /// The same once nothing is held beyond `before` any more, or enough time has passed.
    fn come_to_rest(&self, before: &BTreeMap<String, u64>) -> Result<BTreeMap<String, u64>, LabError> {
        let end = Instant::now() + REST_MAX;
        loop {
            let now = self.rest()?;
            if Instant::now() >= end || is_at_rest(before, &now) {
                return Ok(now);
            }
            thread::sleep(REST_LOOK);
        }
    }

    fn attack(&self, case: &Case) -> Result<Vec<Process>, LabError> {
        if self.options.mutant == Mutant::NoFlood {
            return Ok(Vec::new());
        }
        let flood = |host: &str, spec: SipFloodSpec| Ok(vec![self.worker(host, "sip_flood", &spec)?]);
        match case.by {
            Attackers::Nobody => Ok(Vec::new()),
            Attackers::Strangers(kinds) => flood("botnet", self.flood(kinds, BOTNET)),
            Attackers::Account(kind, exchange) => {
                let service = exchange.name().to_owned();
                let account = Some((MALLORY.to_owned(), self.mallory.clone()));
                flood("insider", SipFloodSpec { service, account, ..self.flood(&[kind], INSIDER) })
            }
            Attackers::Caller(kinds, calls) => {
                let seen = record((&self.binary, &self.lab), (MALLORY, &self.mallory), calls, self.seed())?;
                let sockets = u16::try_from(seen.from.len()).unwrap_or(SOCKETS);
                let spec =
                    SipFloodSpec { sockets, from: seen.from, recorded: seen.messages, ..self.flood(kinds, INSIDER) };
                flood("insider", spec)
            }
            Attackers::Spoofers => Ok(vec![self.worker("botnet", "flood", &self.spoofed()?)?]),
        }
    }

    fn flood(&self, kinds: &[SipKind], sources: Prefix) -> SipFloodSpec {
        SipFloodSpec {
            to: vec![frontend()],
            sources,
            sockets: SOCKETS,
            per_s: self.options.per_s,
            seconds: FOREVER_S,
            requests_max: u64::MAX,
            realm: REALM.to_owned(),
            service: Exchange::Office.name().to_owned(),
            users: self.users.iter().map(|(name, _)| name.clone()).collect(),
            mix: kinds.iter().map(|kind| (*kind, 1)).collect(),
            branches: self.branches.clone(),
            seed: self.seed(),
            ..SipFloodSpec::default()
        }
    }

    /// Short requests whose answers are long, with the addresses of one network.
    fn spoofed(&self) -> Result<FloodSpec, LabError> {
        let request = |number: usize| {
            let method = ["INVITE", "OPTIONS", "REGISTER", "BYE"][number % 4];
            let to_tag = if method == "BYE" { ";tag=b" } else { "" };
            format!(
                "{method} sip:{REALM} SIP/2.0\r\nv:SIP/2.0/UDP h;branch=z9hG4bK{number};rport\r\nf:<sip:a@{REALM}>;tag=a\r\n\
                 t:<sip:a@{REALM}>{to_tag}\r\ni:{number}\r\nCSeq:1 {method}\r\nMax-Forwards:9\r\nl:0\r\n\r\n"
            )
        };
        Ok(FloodSpec {
            interface: "eth0".to_owned(),
            destination_mac: self.lab.mac("core", "botnet")?,
            source_mac: self.lab.mac("botnet", "eth0")?,
            targets: vec![Target { address: FRONTEND.into(), first: frontend().port(), last: frontend().port() }],
            mix: Vec::new(),
            datagrams: (0..SPOOFED).map(|number| (None, request(number))).collect(),
            sources: vec![VICTIMS],
            clients: Vec::new(),
            clients_percent: 0,
            mark: 0,
            frame_bytes: vec![200],
            per_s: self.options.per_s,
            seconds: FOREVER_S,
            frames_max: u64::MAX,
            seed: self.seed(),
        })
    }
}

/// The honest telephones, and what they said.
struct Phones {
    process: Process,
    honest: Honest,
}

impl Phones {
    /// Takes in what they said; whether that was the last.
    fn are_done(&mut self) -> bool {
        while let Some(line) = self.process.line_now() {
            if let Some(setup) = said::<Setup>(&line, "setup") {
                self.honest.set_up(&setup);
            } else if let Some(ended) = said::<EndedCall>(&line, "ended") {
                self.honest.end(&ended);
            } else if let Some(result) = said::<Value>(&line, "result") {
                self.honest.begun = result["begun"].as_u64().unwrap_or_default();
                return true;
            }
        }
        false
    }
}

fn exchanges(binary: &Binary, lab: &Lab) -> Result<Vec<Process>, LabError> {
    let answering = |exchange: Exchange| {
        let media = (exchange.address(), MEDIA_PORT).into();
        let (rings, record) = (exchange == Exchange::Ringing, BRANCHES);
        let spec = AnswerSpec { listen: exchange.sip(), media, rings, record, seconds: FOREVER_S };
        binary.worker(lab, "exchange", "answer", &spec)
    };
    let silent = SinkSpec { listen: vec![Exchange::Silent.sip()], seconds: FOREVER_S };
    let media =
        MirrorSpec { protocol: 17, at: vec![std::net::SocketAddrV4::new(Exchange::Office.address(), MEDIA_PORT)] };
    Ok(vec![
        answering(Exchange::Office)?,
        answering(Exchange::Ringing)?,
        binary.worker(lab, "exchange", "sink", &silent)?,
        binary.worker(lab, "exchange", "mirror", &media)?,
    ])
}

/// What the victims of forged addresses get.
fn counted() -> CountSpec {
    let classes = vec![("frontend".to_owned(), vec![std::net::IpAddr::from(FRONTEND).into()])];
    CountSpec { interface: "eth0".to_owned(), classes, marks: Vec::new(), seconds: FOREVER_S }
}

/// Packets and bytes of the front end in each half second.
fn per_s(mut counter: Process) -> Vec<(u64, u64)> {
    counter.close_input();
    let mut ticks = Vec::new();
    while let Some(line) = counter.line(DRAIN_MAX) {
        let Some(value) = said::<Value>(&line, "tick") else {
            if said::<Value>(&line, "result").is_some() {
                break;
            }
            continue;
        };
        let classes: Vec<Class> = serde_json::from_value(value["classes"].clone()).unwrap_or_default();
        ticks.extend(classes.first().map(|class| (class.packets, class.bytes)));
    }
    ticks
}

/// Ends an attacker: what it did.
fn ended(mut attacker: Process) -> Result<Value, LabError> {
    attacker.close_input();
    attacker.event("result", DRAIN_MAX)
}
