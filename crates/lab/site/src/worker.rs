//! Parts of a lab that are processes of their own: `sluicegate lab-worker ROLE JSON`.
//!
//! A worker prints one JSON object per line on standard output, each with an `event`: `ready` once its sockets are
//! open, role-specific ones while it works, and `result` last. It stops early when its standard input ends or brings a
//! line `stop`, and dies with the lab that started it.

use std::{
    io::{self, BufRead, Write},
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    LabError,
    clock::{Paced, Pacer},
};

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
pub struct Context {
    role: String,
    stop: Arc<AtomicBool>,
}

impl Context {
    /// Of a worker of a lab: it stops when its standard input ends or brings `stop`.
    #[must_use]
    pub fn of_lab(role: &str) -> Self {
        Self { role: role.to_owned(), stop: stop_with_input() }
    }

    /// Of a worker that a person started: nothing stops it early.
    #[must_use]
    pub fn by_hand(role: &str) -> Self {
        Self { role: role.to_owned(), stop: Arc::default() }
    }

    /// What the worker is to do.
    #[must_use]
    pub fn role(&self) -> &str {
        &self.role
    }

    /// Prints one line.
    pub fn print(&self, value: &Value) {
        let mut out = io::stdout().lock();
        // Nobody reads any more: the lab is gone, and so is the reason to go on.
        if writeln!(out, "{value}").and_then(|()| out.flush()).is_err() {
            self.stop.store(true, Ordering::Relaxed);
        }
    }

    /// Prints a line about an event; `value` must be an object.
    pub fn say(&self, event: &str, value: &impl Serialize) {
        let mut line = json!(value);
        line["event"] = json!(event);
        self.print(&line);
    }

    /// Says that the worker is about to begin.
    pub fn ready(&self) {
        self.print(&json!({ "event": "ready", "role": self.role }));
    }

    /// Prints the last line; `value` must be an object.
    pub fn result(&self, value: &Value) {
        let mut line = value.clone();
        line["role"] = json!(self.role);
        self.say("result", &line);
    }

    /// Whether the worker should end now.
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// What is due for so long, unless the worker is to stop earlier.
    #[must_use]
    pub fn paced(&self, pacer: Pacer, time: Duration) -> Paced {
        Paced::new(pacer, time, Arc::clone(&self.stop))
    }

    /// An error about the specification.
    #[must_use]
    pub fn refuse(&self, reason: &str) -> LabError {
        LabError::Spec { role: self.role.clone(), reason: reason.to_owned() }
    }
}

/// What a line of a worker says of this event; `None` if it is about another.
#[must_use]
pub fn said<T: DeserializeOwned>(line: &str, event: &str) -> Option<T> {
    let value: Value = serde_json::from_str(line).ok()?;
    (value["event"] == event).then(|| serde_json::from_value(value).ok())?
}

/// The command that runs a worker: `program lab-worker ROLE JSON`, where `program` is the `sluicegate` binary.
///
/// # Panics
/// Never for the specifications of this crate: all of them can be written as JSON.
#[must_use]
pub fn command<S: Serialize>(program: &Path, role: &str, spec: &S) -> Command {
    let json = serde_json::to_string(spec).expect("specifications are plain data");
    let mut command = Command::new(program);
    command.args(["lab-worker", role, &json]);
    command
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
