//! The binary under test: commands that end, and daemons on hosts of a lab with what they say in log files.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;
use serde_json::Value;

use crate::{
    During, Lab, LabError, Process,
    worker::{self, ExecSpec},
};

/// How long a daemon may take to be ready.
const PATIENCE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(50);
/// Lines of a log that an error quotes.
const LAST_LINES: usize = 5;

/// The `sluicegate` binary, and the directory where its processes' logs go.
#[derive(Debug, Clone)]
pub struct Binary {
    /// The program.
    pub program: PathBuf,
    /// Where logs go, and the home of every process.
    pub directory: PathBuf,
}

impl Binary {
    /// Where the process called `name` writes what it says on standard error.
    #[must_use]
    pub fn log(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.log"))
    }

    /// Runs it and returns its standard output.
    ///
    /// # Errors
    /// [`LabError::Process`] with what it said on standard error, if it failed.
    pub fn run(&self, arguments: &[&str]) -> Result<String, LabError> {
        let name = format!("sluicegate {}", arguments.join(" "));
        let output = Command::new(&self.program).args(arguments).stdin(Stdio::null()).output();
        LabError::printed(&name, &output.during(|| format!("running {}", self.program.display()))?)
    }

    /// Starts it on a host; it dies with the lab.
    ///
    /// # Errors
    /// If there is no such host, no place for its log, or it cannot be started.
    pub fn spawn(&self, lab: &Lab, host: &str, name: &str, arguments: &[String]) -> Result<Process, LabError> {
        let log = self.log(name);
        let mut command = self.command(arguments);
        command.stderr(fs::File::create(&log).during(|| format!("making {}", log.display()))?);
        lab.host(host)?.spawn(&format!("{} on {host}", arguments.first().map_or("", String::as_str)), command)
    }

    /// Starts one of its workers on a host and waits until it is ready.
    ///
    /// # Errors
    /// If there is no such host, or the worker does not say that it is ready.
    pub fn worker<S: Serialize>(&self, lab: &Lab, host: &str, role: &str, spec: &S) -> Result<Process, LabError> {
        let command = worker::command(&self.program, role, spec);
        let process = lab.host(host)?.spawn(&format!("{role} on {host}"), command)?;
        process.event("ready", PATIENCE)?;
        Ok(process)
    }

    /// The command that is this binary with `arguments` and dies with the lab.
    #[must_use]
    pub fn command(&self, arguments: &[String]) -> Command {
        let spec = ExecSpec { program: text(&self.program), arguments: arguments.to_vec() };
        let mut command = worker::command(&self.program, "exec", &spec);
        // Sites that agents met are remembered by lab, not by person.
        command.env("HOME", &self.directory);
        command
    }

    /// What the node with this configuration file says of itself; `None` while it does not answer.
    #[must_use]
    pub fn status(&self, config: &Path) -> Option<Value> {
        let status = self.run(&["status", "--json", "--config", &text(config)]).ok()?;
        serde_json::from_str(&status).ok()
    }

    /// Waits until the process called `name` is ready.
    ///
    /// # Errors
    /// [`LabError::Process`], which ends with what it said last.
    pub fn wait_for<T>(&self, name: &str, mut done: impl FnMut() -> Option<T>) -> Result<T, LabError> {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(value) = done() {
                return Ok(value);
            }
            if Instant::now() >= end {
                let reason = format!("not ready within {PATIENCE:?}; it said:\n{}", self.last_words(name));
                return Err(LabError::process(name, reason));
            }
            thread::sleep(POLL);
        }
    }

    /// The last lines of a log.
    #[must_use]
    pub fn last_words(&self, name: &str) -> String {
        let said = fs::read_to_string(self.log(name)).unwrap_or_default();
        let lines: Vec<_> = said.lines().collect();
        lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
    }
}

/// The path as an argument of a command.
#[must_use]
pub fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// The arguments of `connect` to a service as `user@service`, with `more` behind them.
#[must_use]
pub fn connect(to: &str, (frontend, realm): (&str, &str), password_file: &Path, more: &[&str]) -> Vec<String> {
    let password = text(password_file);
    let fixed = ["connect", to, "--frontend", frontend, "--realm", realm, "--password-file", &password];
    fixed.iter().chain(more).map(|word| (*word).to_owned()).collect()
}
