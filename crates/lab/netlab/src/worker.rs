//! Clients and attackers as processes of their own: `sluicegate lab-worker ROLE JSON`.
//!
//! A worker prints one JSON object per line on standard output, each with an `event`: `ready` once its sockets are
//! open, role-specific ones while it works, and `result` last. It stops early when its standard input ends or brings a
//! line `stop`, and dies with the lab that started it.

use std::{
    io::{self, BufRead, Write},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{LabError, attack, client, count, emulator, passing, process, seen};

/// Specification of the worker `exec`: becomes another program, which then dies with the lab.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecSpec {
    /// The program.
    pub program: String,
    /// Its arguments.
    #[serde(default)]
    pub arguments: Vec<String>,
}

/// What every worker needs: its name, where it prints, whether it should stop.
#[derive(Debug, Clone)]
pub(crate) struct Context {
    role: String,
    stop: Arc<AtomicBool>,
}

impl Context {
    /// Prints one line.
    pub(crate) fn print(&self, value: &Value) {
        let mut out = io::stdout().lock();
        // Nobody reads any more: the lab is gone, and so is the reason to go on.
        if writeln!(out, "{value}").and_then(|()| out.flush()).is_err() {
            self.stop.store(true, Ordering::Relaxed);
        }
    }

    /// Says that the worker is about to begin.
    pub(crate) fn ready(&self) {
        self.print(&json!({ "event": "ready", "role": self.role }));
    }

    /// Prints the last line; `value` must be an object.
    pub(crate) fn result(&self, value: &Value) {
        let mut line = value.clone();
        line["event"] = json!("result");
        line["role"] = json!(self.role);
        self.print(&line);
    }

    /// Whether the worker should end now.
    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// An error about the specification.
    pub(crate) fn refuse(&self, reason: &str) -> LabError {
        LabError::Spec { role: self.role.clone(), reason: reason.to_owned() }
    }
}

/// Runs the worker `role` with its specification, until its time is over or it is told to stop.
///
/// # Errors
/// [`LabError::Spec`] for an unknown role or a specification that does not fit it; what the role itself meets.
pub fn run(role: &str, spec_json: &str) -> Result<(), LabError> {
    process::die_with_the_lab()?;
    if role == "exec" {
        let spec: ExecSpec = parse(role, spec_json)?;
        return Err(process::become_program(&spec.program, &spec.arguments));
    }
    play(&Context { role: role.to_owned(), stop: stop_with_input() }, spec_json)
}

/// Runs the worker `role` for a person or a script: until its time is over, whatever becomes of standard input and of
/// the process that started it.
///
/// # Errors
/// As [`run`].
pub fn run_by_hand(role: &str, spec_json: &str) -> Result<(), LabError> {
    play(&Context { role: role.to_owned(), stop: Arc::default() }, spec_json)
}

fn play(context: &Context, spec_json: &str) -> Result<(), LabError> {
    let role = context.role.as_str();
    match role {
        "call" => client::call::call(&parse(role, spec_json)?, context),
        "answer" => client::answer::answer(&parse(role, spec_json)?, context),
        "sink" => client::call::sink(&parse(role, spec_json)?, context),
        "transfer" => client::transfer::transfer(&parse(role, spec_json)?, context),
        "serve" => client::transfer::serve(&parse(role, spec_json)?, context),
        "haul" => client::haul::haul(&parse(role, spec_json)?, context),
        "haul_serve" => client::haul::serve(&parse(role, spec_json)?, context),
        "exchange" => client::exchange::exchange(&parse(role, spec_json)?, context),
        "mirror" => client::exchange::mirror(&parse(role, spec_json)?, context),
        "setup" => client::setup::setup(&parse(role, spec_json)?, context),
        "count" => count::count(&parse(role, spec_json)?, context),
        "emulate" => emulator::emulate(&parse(role, spec_json)?, context),
        "flood" => attack::flood(&parse(role, spec_json)?, context),
        "sip_flood" => attack::sip_flood(&parse(role, spec_json)?, context),
        "capability_flood" => attack::capability_flood(&parse(role, spec_json)?, context),
        "colluder" => attack::colluder(&parse(role, spec_json)?, context),
        "onlooker" => attack::onlooker(&parse(role, spec_json)?, context),
        "idle" => attack::idle(&parse(role, spec_json)?, context),
        "relay" => attack::relay(&parse(role, spec_json)?, context),
        "seen" => seen::seen(&parse(role, spec_json)?, context),
        "passing" => passing::passing(&parse(role, spec_json)?, context),
        "insider" => attack::insider(&parse(role, spec_json)?, context),
        _ => Err(context.refuse("there is no such role")),
    }
}

/// The command that runs a worker: `program lab-worker ROLE JSON`, where `program` is the `sluicegate` binary.
///
/// # Panics
/// Never for the specifications of this crate: all of them can be written as JSON.
#[must_use]
pub fn command<S: Serialize>(program: &std::path::Path, role: &str, spec: &S) -> Command {
    let json = serde_json::to_string(spec).expect("specifications are plain data");
    let mut command = Command::new(program);
    command.args(["lab-worker", role, &json]);
    command
}

fn parse<S: DeserializeOwned>(role: &str, json: &str) -> Result<S, LabError> {
    serde_json::from_str(json).map_err(|error| LabError::Spec { role: role.to_owned(), reason: error.to_string() })
}

/// A flag that is set when standard input ends or brings `stop`.
fn stop_with_input() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            match line {
                Ok(line) if line.trim() != "stop" => {}
                _ => break,
            }
        }
        flag.store(true, Ordering::Relaxed);
    });
    stop
}
