//! One flood after the other, in one lab.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;
use serde_json::Value;

use super::{
    FloodOptions, Mutant, NAME,
    cases::{Attackers, CASES, Case, MALLORY},
    judge::{Flood, Honest, MEMORY, Memory, Played, is_at_rest, judge, judge_rest},
    site::{self, Exchange, FRONTEND, FRONTENDS, FrontEnd, MEDIA_PORT, REALM, frontend},
};
use crate::{certificate::Certificate, report::rows::Report};
use sluicegate_site::{
    Lab, LabError, Node, Process, binary::Binary, cpu::StolenWatch, programs::resident_kb, worker::said,
};
use sluicegate_traffic::{
    client::{
        answer::AnswerSpec,
        call::SinkSpec,
        exchange::MirrorSpec,
        setup::{EndedCall, Setup, SetupSpec, opened},
    },
    count::{Class, CountSpec},
    stream::Over,
};

/// Longer than any run; workers end when they are told to.
pub(crate) const FOREVER_S: u32 = 3_600;
/// Users who call, each call another.
const PHONES: usize = 100;
pub(crate) const CALLS_PER_S: u32 = 50;
const TALK_MS: u32 = 1_000;
/// An honest telephone waits so long for each answer.
const GIVE_UP_MS: u32 = 8_000;
const MEDIA_MS: u32 = 100;
/// Between the beginning of a flood and that of the calls.
const SETTLE: Duration = Duration::from_secs(1);
/// How long each account fills tables before any are measured, and how often: a second time still adds some megabytes, as
/// freed memory comes in pieces, and a third one hardly any.
const TOUCH: Duration = Duration::from_secs(4);
const TOUCHES: usize = 3;
/// How often memory is looked at.
const LOOK: Duration = Duration::from_millis(250);
/// How long the last calls may take to end, and attackers to tell what they did.
const DRAIN_MAX: Duration = Duration::from_secs(15);
/// How long what the floods left may take to end: calls that nobody ended and whose media do not flow.
const REST_MAX: Duration = Duration::from_secs(260);
const REST_LOOK: Duration = Duration::from_secs(5);
/// Branches of the front end that attackers have seen.
const BRANCHES: u32 = 64;
/// Exchanges tell whose messages came so often, and a little later.
const TOLD: Duration = Duration::from_millis(400);

pub(super) struct Scene<'a> {
    pub(super) options: &'a FloodOptions,
    frontend: Node,
    _gate: Node,
    exchanges: Vec<Process>,
    /// Messages that each exchange has had, by caller.
    callers: RefCell<[BTreeMap<String, u64>; 2]>,
    pub(super) branches: Vec<String>,
    pub(super) users: Vec<(String, String)>,
    /// Of all accounts that attack.
    pub(super) password: String,
    pub(super) certificate: Certificate,
    seeds: Cell<u64>,
    pub(super) binary: Binary,
    pub(super) lab: Lab,
}

/// Plays the floods that are asked for and returns what was measured; `tell` hears each step. All daemons and workers are
/// processes of `binary`, whose directory is empty and of this user alone.
///
/// # Errors
/// If no flood is called so, the lab cannot be built, or a process of it fails: the run then shows nothing.
pub fn run(binary: &Binary, options: &FloodOptions, tell: &mut dyn FnMut(&str)) -> Result<Report, LabError> {
    let only = options.only.as_deref().unwrap_or_default();
    let is_chosen = |case: &Case, over: Over| {
        let played = if options.short { case.brief } else { case.over };
        played.contains(&over) && case.name.contains(only) && options.over.is_none_or(|only| only == over)
    };
    let plays = CASES.into_iter().flat_map(|case| Over::ALL.map(|over| (case, over)));
    let mut chosen: Vec<(Case, Over)> = plays.filter(|(case, over)| is_chosen(case, *over)).collect();
    // What takes longest to end is begun first; the rest goes by transport.
    chosen.sort_by_key(|(case, over)| (!case.lasts(), *over));
    if chosen.is_empty() {
        let names = CASES.map(|case| case.name).join(", ");
        return Err(LabError::Plan(format!("no flood that is played so is called so; there are {names}")));
    }
    tell("building the lab: 9 network namespaces, a front end, a gate, three exchanges");
    let scene = Scene::build(binary.clone(), options, &chosen)?;
    let mut report = Report::new(NAME);
    let mut before = scene.rest()?;
    tell("tables are filled, so that their memory does not count as what a flood takes");
    let lasting: Vec<_> = chosen.iter().filter(|(case, _)| case.lasts()).collect();
    for (case, over) in (0..TOUCHES).flat_map(|_| &lasting) {
        scene.touch(case, *over)?;
    }
    before.insert(MEMORY.to_owned(), scene.resident()?);
    for (case, over) in (0..options.rounds).flat_map(|_| &chosen) {
        tell(&format!("{} over {}: {}", case.name, over.name(), case.about));
        let mut played = scene.play(case, *over)?;
        judge(&mut report, (case, *over), options, &mut played);
    }
    if !options.short {
        tell("at rest: what the floods left has to end");
        judge_rest(&mut report, &before, &scene.come_to_rest(&before)?);
    }
    Ok(report)
}

impl<'a> Scene<'a> {
    fn build(binary: Binary, options: &'a FloodOptions, plays: &[(Case, Over)]) -> Result<Self, LabError> {
        let lab = site::plan()?.build()?;
        let mut random = fastrand::Rng::with_seed(options.seed);
        let mut password = || format!("{:016x}{:016x}", random.u64(..), random.u64(..));
        let users: Vec<_> = (0..PHONES).map(|number| (format!("phone{number:02}"), password())).collect();
        let password = password();
        let certificate = Certificate::make(&binary.directory, &FRONTENDS)?;
        let node = Node::start(&binary, &lab, "frontend", "frontend", &front_end(options.mutant).file(&certificate))?;
        node.answers()?;
        // Telephones need no key for agents, and making one takes a quarter of a second.
        node.add_users("phones", users.iter().cloned(), &["--no-agent"])?;
        // Each flood that needs an account has one of its own: what is left of another must not count.
        let accounts = plays.iter().filter_map(|(case, over)| case.account(*over));
        let accounts = accounts.flat_map(|name| [name_before(&name), name]).map(|name| (name, password.clone()));
        node.add_users("insiders", accounts, &["--no-agent"])?;
        let gate = site::gate_file(&options.datapath);
        node.admit(&lab, "gate", &gate)?;
        let gate = Node::start(&binary, &lab, "gate", "gate", &gate)?;
        gate.ready()?;
        let exchanges = exchanges(&binary, &lab)?;
        let mut scene = Self {
            options,
            frontend: node,
            _gate: gate,
            exchanges,
            callers: RefCell::default(),
            seeds: Cell::new(0),
            branches: Vec::new(),
            users,
            password,
            certificate,
            binary,
            lab,
        };
        scene.binary.wait_for("gate", || scene.call_once().ok())?;
        scene.see_branches()?;
        Ok(scene)
    }

    pub(super) fn worker<S: Serialize>(&self, host: &str, role: &str, spec: &S) -> Result<Process, LabError> {
        self.binary.worker(&self.lab, host, role, spec)
    }

    fn call_once(&self) -> Result<(), LabError> {
        let spec = SetupSpec { calls: 1, talk_ms: Some(0), seconds: 10, media_ms: 0, ..self.calls(Over::Udp, 1) };
        opened(&self.worker("phones", "setup", &spec)?).map(drop)
    }

    /// Another one for each worker: two that begin alike would send the same requests.
    pub(super) fn seed(&self) -> u64 {
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
    fn calls(&self, over: Over, seconds: u32) -> SetupSpec {
        SetupSpec {
            to: vec![frontend(over)],
            way: self.certificate.way(over),
            ..telephones(&self.users, seconds, self.seed())
        }
    }

    /// Tables have their memory from the start, but the system gives it to them when they are filled first, and what is freed
    /// stays with the process: another account does all that before, so that what is measured is what a second one adds.
    fn touch(&self, case: &Case, over: Over) -> Result<(), LabError> {
        let account = case.account(over).unwrap_or_default();
        let attackers = self.attack(case, over, &name_before(&account))?;
        thread::sleep(TOUCH);
        attackers.into_iter().try_for_each(|attacker| ended(attacker).map(drop))
    }

    fn play(&self, case: &Case, over: Over) -> Result<Played, LabError> {
        let heard = self.heard();
        let memory_before = self.resident()?;
        let victims = self.worker("victims", "count", &counted())?;
        let events = self.events(&BTreeMap::new())?;
        let account = case.account(over);
        let flood_began = Instant::now();
        let attackers = self.attack(case, over, account.as_deref().unwrap_or_default())?;
        let watch = StolenWatch::start();
        thread::sleep(SETTLE);
        let before = self.arrived()?;
        let calls = self.calls(over, self.options.flood_s(case));
        let planned = calls.calls;
        let mut phones = Phones { process: self.worker("phones", "setup", &calls)?, honest: Honest::default() };
        let (began, mut memory) = (Instant::now(), Memory { before_kb: memory_before, ..Memory::default() });
        let time = Duration::from_secs(self.options.flood_s(case).into());
        let (mut flood, is_crowd) = (Flood::default(), matches!(case.by, Attackers::Crowd(_)));
        // The flood goes on until the last call is over.
        while !phones.are_done() && began.elapsed() < time + DRAIN_MAX {
            memory.during_kb.push(self.resident()?);
            if is_crowd {
                let held = self.rest()?.get("unproved_connections").copied().unwrap_or_default();
                flood.held_max = flood.held_max.max(held);
            }
            thread::sleep(LOOK);
        }
        let (seconds, after) = (began.elapsed().as_secs_f64(), self.arrived()?);
        let taken = watch.end().taken();
        let per_second = |of: fn(&Arrived) -> u64| of(&after).saturating_sub(of(&before)) as f64 / seconds;
        flood.offered_per_s = per_second(|arrived| arrived.frames);
        flood.received_per_s = per_second(|arrived| arrived.messages);
        flood.opened_per_s = per_second(|arrived| arrived.opened);
        flood.refused_per_s = per_second(|arrived| arrived.refused);
        for attacker in attackers {
            flood.add(&ended(attacker)?);
        }
        flood.victims = per_s(victims);
        thread::sleep(TOLD);
        for (caller, messages) in self.heard() {
            let messages = messages - heard.get(&caller).copied().unwrap_or_default();
            match &account {
                Some(account) if caller == *account => flood.of_account += messages,
                _ if caller.starts_with(MALLORY) => {}
                _ => flood.relayed += messages,
            }
        }
        let flood_seconds = flood_began.elapsed().as_secs_f64();
        flood.events = self.events(&events)?;
        memory.after_kb = self.resident()?;
        Ok(Played { honest: phones.honest, flood, memory, seconds, flood_seconds, taken, planned })
    }

    fn resident(&self) -> Result<u64, LabError> {
        resident_kb(self.frontend.process.pid())
    }

    /// Messages that the exchanges have had so far, by caller.
    fn heard(&self) -> BTreeMap<String, u64> {
        let mut callers = self.callers.borrow_mut();
        for (exchange, told) in self.exchanges.iter().zip(callers.iter_mut()) {
            for line in std::iter::from_fn(|| exchange.line_now()) {
                let messages = said::<Value>(&line, "callers").map(|value| value["messages"].clone());
                *told =
                    messages.and_then(|messages| serde_json::from_value(messages).ok()).unwrap_or_else(|| told.clone());
            }
        }
        let mut all = BTreeMap::new();
        for (caller, messages) in callers.iter().flatten() {
            *all.entry(caller.clone()).or_insert(0) += messages;
        }
        all
    }

    fn arrived(&self) -> Result<Arrived, LabError> {
        let frames = self.lab.counters("frontend", "eth0")?.rx_packets;
        let status = self.frontend.status().unwrap_or_default();
        let messages = status["frontend"]["events"]["datagrams"].as_u64().unwrap_or_default();
        let connections = status["frontend"]["connections"].as_object().cloned().unwrap_or_default();
        let sum = |what: &str| {
            let of = connections.iter().filter(|(name, _)| name.starts_with(what));
            of.filter_map(|(_, count)| count.as_u64()).sum()
        };
        Ok(Arrived { frames, messages, opened: sum("opened"), refused: sum("refused") })
    }

    /// What happened at the front end since `before`, by its own names.
    fn events(&self, before: &BTreeMap<String, u64>) -> Result<BTreeMap<String, u64>, LabError> {
        let status = self.frontend.answers()?;
        let all = ["events", "requests", "connections"]
            .map(|part| status["frontend"][part].as_object().cloned().unwrap_or_default());
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
}

/// What has come to the front end so far: frames to its host, messages, connections that it took, and that it did not.
#[derive(Debug, Clone, Copy)]
struct Arrived {
    frames: u64,
    messages: u64,
    opened: u64,
    refused: u64,
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

/// The account that does the same as this one before anything is measured.
fn name_before(account: &str) -> String {
    format!("{account}-before")
}

fn front_end(mutant: Mutant) -> FrontEnd<'static> {
    let (is_unbounded, is_unshared) = (mutant == Mutant::Unbounded, mutant == Mutant::Unshared);
    FrontEnd { name: "frontend", address: FRONTEND, is_unbounded, is_unshared, more: "" }
}

/// What honest telephones do for so long, at whichever front end.
pub(crate) fn telephones(users: &[(String, String)], seconds: u32, seed: u64) -> SetupSpec {
    SetupSpec {
        sockets: 32,
        realm: REALM.to_owned(),
        service: Exchange::Office.name().to_owned(),
        users: users.to_vec(),
        per_s: CALLS_PER_S,
        calls: CALLS_PER_S * seconds,
        seconds: seconds + 1,
        talk_ms: Some(TALK_MS),
        give_up_ms: GIVE_UP_MS,
        // None that the system takes for its own.
        media_port: 20_000,
        media_ms: MEDIA_MS,
        seed,
        ..SetupSpec::default()
    }
}

/// The exchanges, and what sends their media back.
pub(crate) fn exchanges(binary: &Binary, lab: &Lab) -> Result<Vec<Process>, LabError> {
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
