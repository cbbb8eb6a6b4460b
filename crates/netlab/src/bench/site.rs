//! Our side: the real binary as gate and frontend in one, opened by a real `connect`.

use std::{
    fs,
    net::SocketAddrV4,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{
    Options,
    lab::{BenchLab, FIRST_PORT, OUTSIDE, PORTS, SINK, SIP_PORT},
};
use crate::{
    LabError, Process,
    clock::{Random, unix_ns},
    error::During,
    worker::{self, ExecSpec},
};

const REALM: &str = "bench.example";
/// One client may have 64 SIP requests under way, and a port takes two: one is challenged, one answered.
const PORTS_PER_CLIENT: usize = 26;
/// How long a daemon may take to be ready, and the grants to be open.
const PATIENCE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(50);

/// A lab with our gate, whose grants are open.
pub(super) fn start(options: &Options, backend: &str) -> Result<BenchLab, LabError> {
    let mut lab = BenchLab::build(backend, false)?;
    lab.targets.clear();
    let files = Files::write(&options.directory.join(backend), backend)?;
    let binary = Binary { program: &options.program, files: &files };
    binary.run(&["user", "add", "bench", "--password-file", &text(&files.password), "--config", &text(&files.site)])?;
    let up = ["up".to_owned(), text(&files.site)];
    lab.keep(binary.spawn(&lab, "gate", "up", &up)?);
    wait_for("up", &files.log("up"), || binary.is_ready().then_some(()))?;
    let ports: Vec<_> = (FIRST_PORT..FIRST_PORT + PORTS).collect();
    for (number, ports) in ports.chunks(PORTS_PER_CLIENT).enumerate() {
        let name = format!("connect{number}");
        lab.keep(binary.spawn(&lab, "gen", &name, &connect(&files, ports))?);
        let log = files.log(&name);
        let opened = || opened(&fs::read_to_string(&log).unwrap_or_default(), ports);
        lab.targets.extend(wait_for(&name, &log, opened)?);
    }
    Ok(lab)
}

fn connect(files: &Files, ports: &[u16]) -> Vec<String> {
    let frontend = format!("{OUTSIDE}:{SIP_PORT}");
    let password = text(&files.password);
    let mut arguments =
        ["connect", "bench@sink", "--frontend", &frontend, "--realm", REALM, "--password-file", &password]
            .map(str::to_owned)
            .to_vec();
    for port in ports {
        arguments.extend(["-L".to_owned(), format!("{port}:{port}/udp")]);
    }
    arguments
}

/// Where the gate lets each of `ports` be reached, once `log` names all of them.
fn opened(log: &str, ports: &[u16]) -> Option<Vec<SocketAddrV4>> {
    ports
        .iter()
        .map(|port| {
            let range = format!(" range=udp/{port} ");
            let line = log.lines().find(|line| line.contains(" open ") && line.contains(&range))?;
            let (_, rest) = line.split_once(" gate=")?;
            rest.split(' ').next()?.parse().ok()
        })
        .collect()
}

struct Files {
    directory: PathBuf,
    site: PathBuf,
    password: PathBuf,
}

impl Files {
    fn write(directory: &Path, backend: &str) -> Result<Self, LabError> {
        let files = Self {
            directory: directory.to_owned(),
            site: directory.join("site.toml"),
            password: directory.join("password"),
        };
        let password = format!("{:016x}", Random::new(unix_ns()).next());
        fs::create_dir_all(directory)
            .and_then(|()| fs::write(&files.site, site_toml(&directory.join("state"), backend)))
            .and_then(|()| fs::write(&files.password, password))
            .during(|| format!("writing into {}", directory.display()))?;
        Ok(files)
    }

    fn log(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.log"))
    }
}

fn site_toml(state: &Path, backend: &str) -> String {
    let last = FIRST_PORT + PORTS - 1;
    format!(
        "[node]\nname = \"bench\"\nstate = {state:?}\n\
         [frontend]\nlisten = [\"udp/{OUTSIDE}:{SIP_PORT}\"]\nrealm = \"{REALM}\"\n\
         [gate]\noutside = \"outside\"\ninside = \"inside\"\nlocal = [\"udp/{SIP_PORT}\"]\ndatapath = \"{backend}\"\n\
         flows_max = 131072\n\
         [[service]]\nname = \"sink\"\naddress = \"{SINK}\"\nports = [\"udp/{FIRST_PORT}-{last}\"]\n\
         grant = {{ bytes_max = \"1TB\", lifetime_s = 3600, rate = \"none\", flows_max = 65535 }}\n\
         allow = [\"user:bench\"]\n"
    )
}

/// The binary under test.
struct Binary<'a> {
    program: &'a Path,
    files: &'a Files,
}

impl Binary<'_> {
    fn run(&self, arguments: &[&str]) -> Result<String, LabError> {
        let output = Command::new(self.program).args(arguments).stdin(Stdio::null()).output();
        let output = output.during(|| format!("running {}", self.program.display()))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let name = format!("sluicegate {}", arguments.join(" "));
        Err(LabError::Process { name, reason: String::from_utf8_lossy(&output.stderr).trim().to_owned() })
    }

    /// Starts it on a host; it dies with the lab, and what it says goes to a log file.
    fn spawn(&self, lab: &BenchLab, host: &str, name: &str, arguments: &[String]) -> Result<Process, LabError> {
        let spec = ExecSpec { program: text(self.program), arguments: arguments.to_vec() };
        let mut command = worker::command(self.program, "exec", &spec);
        let log = self.files.log(name);
        command.stderr(fs::File::create(&log).during(|| format!("making {}", log.display()))?);
        lab.lab.host(host)?.spawn(name, command)
    }

    /// Whether the node answers and its gate holds its feed.
    fn is_ready(&self) -> bool {
        let status = self.run(&["status", "--json", "--config", &text(&self.files.site)]);
        let status: Value = status.ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        let feeds = status["gate"]["feeds"].as_array().cloned().unwrap_or_default();
        !feeds.is_empty() && feeds.iter().all(|feed| feed["state"] == "connected")
    }
}

/// Waits for `done`; the error ends with what the process said last.
fn wait_for<T>(name: &str, log: &Path, mut done: impl FnMut() -> Option<T>) -> Result<T, LabError> {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = done() {
            return Ok(value);
        }
        if Instant::now() >= end {
            let said = fs::read_to_string(log).unwrap_or_default();
            let last = said.lines().rev().take(3).collect::<Vec<_>>().join(" | ");
            let reason = format!("not ready within {PATIENCE:?}; it said: {last}");
            return Err(LabError::Process { name: name.to_owned(), reason });
        }
        thread::sleep(POLL);
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gates_ports_are_known_once_the_log_names_all_of_them() {
        let line = |port: u16| {
            let gate = 20_000 + port;
            format!(
                "2026-01-01T00:00:00Z  INFO open service=sink range=udp/{port} gate=198.51.100.1:{gate} lasts_s=9\n"
            )
        };
        let log = line(5_002) + &line(5_001);
        let expected = ["198.51.100.1:25001", "198.51.100.1:25002"].map(|text| text.parse().unwrap());
        assert_eq!(opened(&log, &[5_001, 5_002]).unwrap(), expected);
        assert!(opened(&log, &[5_001, 5_003]).is_none());
    }
}
