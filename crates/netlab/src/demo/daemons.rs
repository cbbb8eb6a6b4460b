use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{
    Options,
    files::{Files, METRICS_PORT, SIP_PORT, write_private},
};
use crate::{
    LabError, Process,
    scratch::unmount_below,
    topology::Site,
    worker::{self, ExecSpec},
};

/// How long a daemon may take to answer.
const START_MAX: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(50);
/// Longest text of metrics that is read.
const METRICS_LEN_MAX: u64 = 4 << 20;

/// The system under test.
#[derive(Debug)]
pub(super) struct Daemons {
    pub files: Files,
    pub frontend: SocketAddr,
    /// The gate's back end and why that one.
    pub backend: String,
    program: PathBuf,
    directory: PathBuf,
    gate: Process,
    frontend_process: Process,
}

/// Starts front end and gate as a person would: configuration files, users by the command line, a join token.
pub(super) fn start(options: &Options, site: &Site) -> Result<Daemons, LabError> {
    let files = Files::write(options)?;
    let program = options.program.clone();
    let log = |name: &str| options.directory.join(format!("{name}.log"));
    let frontend = daemon(site, "frontend", &program, &["frontend", &text(&files.frontend)], &log("frontend"))?;
    wait_for("the front end", || run(&program, &["status", "--config", &text(&files.frontend), "--json"]).is_ok())
        .map_err(|error| with_log(&error, &log("frontend")))?;
    for group in ["people", "phones", "insiders"] {
        run(&program, &["group", "add", group, "--config", &text(&files.frontend)])?;
    }
    for user in &files.users {
        let password = text(&user.password_file);
        let config = text(&files.frontend);
        run(
            &program,
            &["user", "add", &user.name, "--group", user.group, "--password-file", &password, "--config", &config],
        )?;
    }
    let token = run(&program, &["gate-join", "--new", "--config", &text(&files.frontend)])?;
    let token = token.lines().find(|line| line.starts_with("sgjoin1.")).unwrap_or_default();
    write_private(&files.token, token).map_err(|error| failed("gate-join", &error.to_string()))?;
    // Joining talks to the front end, so it runs on the gate's host.
    let join = ["gate-join", "--token-file", &text(&files.token), "--config", &text(&files.gate)].map(str::to_owned);
    finish(&mut spawn(site, "gate", &program, &join, &log("gate-join"))?, &log("gate-join"))?;
    let gate = daemon(site, "gate", &program, &["gate", &text(&files.gate)], &log("gate"))?;
    let mut backend = String::new();
    let mut answers = || match run(&program, &["status", "--config", &text(&files.gate), "--json"]) {
        Ok(status) => {
            backend = backend_of(&status);
            true
        }
        Err(_) => false,
    };
    wait_for("the gate", &mut answers).map_err(|error| with_log(&error, &log("gate")))?;
    let frontend_address = SocketAddr::from((Site::address("frontend")?, SIP_PORT));
    Ok(Daemons {
        files,
        frontend: frontend_address,
        backend,
        program,
        directory: options.directory.clone(),
        gate,
        frontend_process: frontend,
    })
}

impl Daemons {
    /// The command of a lab worker.
    pub(super) fn worker<S: serde::Serialize>(&self, role: &str, spec: &S) -> Command {
        worker::command(&self.program, role, spec)
    }

    /// The command of a program that dies with the lab: this binary with `arguments`.
    pub(super) fn client(&self, arguments: &[String]) -> Command {
        let spec = ExecSpec { program: text(&self.program), arguments: arguments.to_vec() };
        self.worker("exec", &spec)
    }

    /// What the gate dropped since its start, by reason, from its metrics; empty if they cannot be read.
    pub(super) fn drops(&self, site: &Site) -> Vec<(String, u64)> {
        let Ok(gate) = site.lab.host("gate") else { return Vec::new() };
        let text = gate.run_in(|| metrics((Ipv4Addr::LOCALHOST, METRICS_PORT).into()));
        text.ok().and_then(Result::ok).map(|text| drops_of(&text)).unwrap_or_default()
    }
}

impl Drop for Daemons {
    /// Ends them as an operator would: a gate that is killed keeps its link closed.
    fn drop(&mut self) {
        self.gate.end();
        self.frontend_process.end();
        unmount_below(&self.directory);
    }
}

fn backend_of(status: &str) -> String {
    let status: Value = serde_json::from_str(status).unwrap_or_default();
    let text = |field: &str| status["gate"][field].as_str().unwrap_or("unknown").to_owned();
    format!("{}: {}", text("backend"), text("backend_why"))
}

fn metrics(address: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_millis(200))?;
    stream.set_read_timeout(Some(Duration::from_millis(500)))?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut text = String::new();
    BufReader::new(stream).take(METRICS_LEN_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// The counters with a `reason` label among Prometheus metrics about drops.
fn drops_of(metrics: &str) -> Vec<(String, u64)> {
    let line = |line: &str| {
        let (name, rest) = line.split_once('{')?;
        let (labels, value) = rest.split_once("} ")?;
        let (_, reason) = labels.split_once("reason=\"")?;
        let (reason, _) = reason.split_once('"')?;
        let value: f64 = value.split(' ').next()?.parse().ok()?;
        (name.contains("drop") && value >= 0.0).then(|| (reason.to_owned(), value as u64))
    };
    metrics.lines().filter_map(line).collect()
}

fn daemon(site: &Site, host: &str, program: &Path, arguments: &[&str], log: &Path) -> Result<Process, LabError> {
    let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    spawn(site, host, program, &arguments, log)
}

/// Starts this binary on a host, with what it says on standard error in a log file.
fn spawn(site: &Site, host: &str, program: &Path, arguments: &[String], log: &Path) -> Result<Process, LabError> {
    let file = fs::File::create(log).map_err(|error| failed(host, &error.to_string()))?;
    let spec = ExecSpec { program: text(program), arguments: arguments.to_vec() };
    let mut command = worker::command(program, "exec", &spec);
    command.stderr(file);
    site.lab.host(host)?.spawn(&format!("{} on {host}", arguments.first().map_or("", String::as_str)), command)
}

fn finish(process: &mut Process, log: &Path) -> Result<(), LabError> {
    if process.wait(START_MAX)? { Ok(()) } else { Err(with_log(&failed(process.name(), "failed"), log)) }
}

/// Runs this binary and returns its standard output.
fn run(program: &Path, arguments: &[&str]) -> Result<String, LabError> {
    let name = format!("sluicegate {}", arguments.join(" "));
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| failed(&name, &error.to_string()))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(failed(&name, String::from_utf8_lossy(&output.stderr).trim()))
    }
}

pub(super) fn wait_for(what: &str, mut done: impl FnMut() -> bool) -> Result<(), LabError> {
    let end = Instant::now() + START_MAX;
    while !done() {
        if Instant::now() >= end {
            return Err(failed(what, &format!("did not answer within {START_MAX:?}")));
        }
        thread::sleep(POLL);
    }
    Ok(())
}

fn failed(name: &str, reason: &str) -> LabError {
    LabError::Process { name: name.to_owned(), reason: reason.to_owned() }
}

/// The error with the last lines of the process's log.
fn with_log(error: &LabError, log: &Path) -> LabError {
    let lines: Vec<String> = fs::File::open(log)
        .map(|file| BufReader::new(file).lines().map_while(Result::ok).collect())
        .unwrap_or_default();
    let last = lines.iter().rev().take(5).rev().cloned().collect::<Vec<_>>().join("\n");
    failed("the system under test", &format!("{error}\n{last}"))
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_the_counters_with_a_reason() {
        let metrics = "HTTP/1.0 200 OK\r\n\r\n# TYPE sluicegate_dropped_packets counter\n\
            sluicegate_dropped_packets_total{reason=\"no_pinhole\"} 12\n\
            sluicegate_dropped_packets_total{port=\"outside\",reason=\"tcp_window\"} 3 1700000000\n\
            sluicegate_forwarded_packets_total{port=\"inside\"} 9\nsluicegate_other{reason=\"x\"} 1\n";
        assert_eq!(drops_of(metrics), [("no_pinhole".to_owned(), 12), ("tcp_window".to_owned(), 3)]);
    }
}
