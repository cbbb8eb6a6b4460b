//! One long attack, part after part, in one lab.

use std::{
    cell::Cell,
    collections::BTreeMap,
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;
use serde_json::Value;

use super::{
    AttackOptions, Mutant, NAME,
    attack::{CROWD, STRANGERS_OVER_UDP, to},
    judge::{Look, Part, Played, judge},
};
use crate::{
    certificate::Certificate,
    report::rows::Report,
    sipflood::{
        play::{exchanges, telephones},
        site::{self, FRONTENDS, FrontEnd},
    },
};
use sluicegate_site::{
    Lab, LabError, Node, Process, binary::Binary, clock::unix_ns, cpu::StolenWatch, programs::resident_kb, worker::said,
};
use sluicegate_traffic::{
    client::setup::{EndedCall, Setup, SetupSpec, opened},
    stream::Over,
};

const NODES: [&str; 2] = ["frontend", "frontend-2"];
/// Users who call, each call another.
const PHONES: usize = 100;
/// A telephone tries the other front end after this, as long as four sends of its request take.
const GIVE_UP_MS: u32 = 4_000;
/// Between the beginning of the attack and that of the calls.
const SETTLE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(500);
/// So much longer calls begin than the parts last.
const BETWEEN_S: u32 = 4;
/// How long the last calls may take to end, and attackers to tell what they did.
const DRAIN_MAX: Duration = Duration::from_secs(15);

pub(super) struct Siege<'a> {
    pub(super) options: &'a AttackOptions,
    frontends: Vec<Node>,
    gate: Node,
    _exchanges: Vec<Process>,
    pub(super) users: Vec<(String, String)>,
    /// Accounts that attackers have stolen.
    pub(super) stolen: Vec<(String, String)>,
    pub(super) certificate: Certificate,
    seeds: Cell<u64>,
    binary: Binary,
    lab: Lab,
}

/// Plays the attack and returns what was measured; `tell` hears each step. All daemons and workers are processes of `binary`,
/// whose directory is empty and of this user alone.
///
/// # Errors
/// If the lab cannot be built, or a process of it fails: the run then shows nothing.
pub fn run(binary: &Binary, options: &AttackOptions, tell: &mut dyn FnMut(&str)) -> Result<Report, LabError> {
    tell("building the lab: 9 network namespaces, two front ends, a gate, three exchanges");
    let mut scene = Siege::build(binary.clone(), options)?;
    let played = scene.play(tell)?;
    let mut report = Report::new(NAME);
    judge(&mut report, options, &played);
    Ok(report)
}

impl<'a> Siege<'a> {
    fn build(binary: Binary, options: &'a AttackOptions) -> Result<Self, LabError> {
        let lab = site::plan()?.build()?;
        let mut random = fastrand::Rng::with_seed(options.seed);
        let mut accounts = |name: &str, count: usize| -> Vec<(String, String)> {
            let mut account = |number| (format!("{name}{number:03}"), format!("{:032x}", random.u128(..)));
            (0..count).map(&mut account).collect()
        };
        let (users, stolen) = (accounts("phone", PHONES), accounts("stolen", CROWD));
        let certificate = Certificate::make(&binary.directory, &FRONTENDS)?;
        let is_unbounded = options.mutant == Mutant::Unbounded;
        let more = if options.mutant == Mutant::NoOverload { "" } else { "overload = { mode = \"adaptive\" }\n" };
        let gate = site::gate_file(&options.datapath);
        let mut frontends = Vec::new();
        for (name, address) in NODES.into_iter().zip(FRONTENDS) {
            let file = FrontEnd { name, address, is_unbounded, is_unshared: is_unbounded, more }.file(&certificate);
            let node = Node::start(&binary, &lab, name, "frontend", &file)?;
            node.answers()?;
            // Telephones need no key for agents, and making one takes a quarter of a second.
            node.add_users("phones", users.iter().cloned(), &["--no-agent"])?;
            node.add_users("insiders", stolen.iter().cloned(), &["--no-agent"])?;
            node.admit(&lab, "gate", &gate)?;
            frontends.push(node);
        }
        let gate = Node::start(&binary, &lab, "gate", "gate", &gate)?;
        gate.ready()?;
        let exchanges = exchanges(&binary, &lab)?;
        let scene = Self {
            options,
            frontends,
            gate,
            _exchanges: exchanges,
            users,
            stolen,
            certificate,
            seeds: Cell::new(0),
            binary,
            lab,
        };
        for place in 0..FRONTENDS.len() {
            scene.binary.wait_for("gate", || scene.call_once(place).ok())?;
        }
        Ok(scene)
    }

    pub(super) fn worker<S: Serialize>(&self, host: &str, role: &str, spec: &S) -> Result<Process, LabError> {
        self.binary.worker(&self.lab, host, role, spec)
    }

    /// Another one for each worker: two that begin alike would send the same requests.
    pub(super) fn seed(&self) -> u64 {
        self.seeds.set(self.seeds.get() + 1);
        self.options.seed << 32 | self.seeds.get()
    }

    fn call_once(&self, place: usize) -> Result<(), LabError> {
        let to = vec![to(Over::Udp)[place]];
        let spec = SetupSpec { to, calls: 1, talk_ms: Some(0), media_ms: 0, sockets: 1, ..self.calls(10) };
        opened(&self.worker("phones", "setup", &spec)?).map(drop)
    }

    /// What honest telephones do.
    fn calls(&self, seconds: u32) -> SetupSpec {
        let mut to = to(Over::Udp);
        if self.options.mutant == Mutant::NoReplica {
            to.truncate(1);
        }
        SetupSpec { to, fails_over: true, give_up_ms: GIVE_UP_MS, ..telephones(&self.users, seconds, self.seed()) }
    }

    fn play(&mut self, tell: &mut dyn FnMut(&str)) -> Result<Played, LabError> {
        let parts = self.options.parts_s();
        let mut played = Played::default();
        tell("all attack at once: strangers over UDP, TCP and TLS, and somebody with a stolen account");
        let attackers = self.attack()?;
        let watch = StolenWatch::start();
        thread::sleep(SETTLE);
        // To kill and start a front end takes time, too.
        let all = parts.iter().sum::<u32>() + BETWEEN_S;
        let mut phones = self.worker("phones", "setup", &self.calls(all))?;
        let time = |part: usize| Duration::from_secs(parts[part].into());
        self.look_for(time(0), Part::Both, &mut phones, &mut played)?;
        tell("one of the two front ends is killed");
        self.frontends[0].process.kill();
        self.look_for(time(1), Part::Killed, &mut phones, &mut played)?;
        tell("it is started anew");
        self.frontends[0].restart(&self.lab)?;
        self.look_for(time(2), Part::Back, &mut phones, &mut played)?;
        tell("two hundred stolen accounts call all at once, more than can be served");
        let crowd = match self.options.mutant {
            Mutant::NoFlood => None,
            _ => Some(self.crowd(time(3))?),
        };
        self.look_for(time(3), Part::Surge, &mut phones, &mut played)?;
        self.look_for(DRAIN_MAX, Part::After, &mut phones, &mut played)?;
        played.taken = watch.end().taken();
        let gate = self.gate.status().unwrap_or_default();
        played.openings_refused = refusals(&gate);
        played.dropped_at_gate = drops(&gate);
        for (place, mut attacker) in attackers.into_iter().enumerate() {
            attacker.close_input();
            let result = attacker.event("result", DRAIN_MAX)?;
            played.sent += result["requests"].as_u64().unwrap_or_default();
            if place == STRANGERS_OVER_UDP {
                let answers = result["answers"].as_object().into_iter().flatten();
                let sum: u64 = answers.filter_map(|(_, count)| count.as_u64()).sum();
                played.answers_per_s = sum as f64 * 1e3 / result["ms"].as_f64().unwrap_or(1.0);
            }
        }
        if let Some(mut crowd) = crowd {
            crowd.close_input();
            let result = crowd.event("result", DRAIN_MAX)?;
            played.crowd = serde_json::from_value(result["windows"][0].clone())
                .map_err(|error| crowd.failed(&format!("says not what became of its calls: {error}")))?;
        }
        Ok(played)
    }

    /// Looks at both front ends, and takes in what the telephones say, for so long, or until they have said all.
    fn look_for(&self, time: Duration, part: Part, phones: &mut Process, played: &mut Played) -> Result<(), LabError> {
        let (from_ns, began) = (unix_ns(), Instant::now());
        while began.elapsed() < time && !played.are_done {
            for (place, node) in self.frontends.iter().enumerate() {
                // One that is dead says nothing.
                if let Some(status) = node.status() {
                    let resident_kb = resident_kb(node.process.pid())?;
                    played.looks.push(Look::of(part, place, resident_kb, &status));
                }
            }
            while let Some(line) = phones.line_now() {
                if let Some(setup) = said::<Setup>(&line, "setup") {
                    played.setups.push(setup);
                } else if let Some(ended) = said::<EndedCall>(&line, "ended") {
                    played.ended.push(ended);
                } else if said::<Value>(&line, "result").is_some() {
                    played.are_done = true;
                }
            }
            thread::sleep(LOOK);
        }
        played.parts.push((part, from_ns, unix_ns()));
        Ok(())
    }
}

/// The openings that a gate refused, by reason.
fn refusals(gate: &Value) -> BTreeMap<String, u64> {
    let mut by_reason = BTreeMap::new();
    for feed in gate["gate"]["feeds"].as_array().into_iter().flatten() {
        for (reason, count) in feed["refusals"].as_object().into_iter().flatten() {
            *by_reason.entry(reason.clone()).or_default() += count.as_u64().unwrap_or_default();
        }
    }
    by_reason
}

/// What a gate dropped, by reason.
fn drops(gate: &Value) -> BTreeMap<String, u64> {
    let dropped = gate["gate"]["dropped"].as_object().into_iter().flatten();
    dropped.filter_map(|(reason, count)| Some((reason.clone(), count.as_u64()?))).collect()
}

/// What each table of a front end holds.
pub(super) fn tables(status: &Value) -> BTreeMap<String, (u64, u64)> {
    let tables = status["frontend"]["tables"].as_array().cloned().unwrap_or_default();
    let entry =
        |table: &Value| Some((table["table"].as_str()?.to_owned(), (table["used"].as_u64()?, table["max"].as_u64()?)));
    tables.iter().filter_map(entry).collect()
}
