use std::{
    io::{BufReader, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;
use serde_json::Value;

use super::{
    Options,
    files::{Files, METRICS_PORT, PHONES_GROUP, gate},
};
use sluicegate_site::{
    LabError, Node, Process,
    binary::{connect, text},
    node::SIP_PORT,
    scratch::unmount_below,
    topology::Site,
};

/// How long a daemon may take to answer.
const START_MAX: Duration = Duration::from_secs(10);
/// The front end's counter of what it received.
const DATAGRAMS: &str = "sluicegate_frontend_events_total{event=\"datagrams\"}";
/// The gate's counter of the protected link's control lane.
const CONTROL_LANE: &str = "sluicegate_gate_lane_packets_total{lane=\"inside/control\"}";
const POLL: Duration = Duration::from_millis(50);
/// Longest text of metrics that is read.
const METRICS_LEN_MAX: u64 = 4 << 20;

/// The system under test.
#[derive(Debug)]
pub(super) struct Daemons {
    pub options: Options,
    pub files: Files,
    pub frontend: SocketAddr,
    /// The gate's back end and why that one.
    pub backend: String,
    pub gate: Node,
    frontend_node: Node,
    /// Outlives the processes in it.
    pub site: Site,
}

/// Starts front end and gate as a person would: configuration files, users by the command line, a join token.
pub(super) fn start(options: &Options, site: Site) -> Result<Daemons, LabError> {
    let files = Files::write(options)?;
    let binary = &options.binary;
    let frontend_node = Node::start(binary, &site.lab, "frontend", "frontend", &files.frontend)?;
    frontend_node.answers()?;
    for group in ["people", PHONES_GROUP, "insiders"] {
        // Telephones need no key for agents, and making one takes a quarter of a second.
        let more: &[&str] = if group == PHONES_GROUP { &["--no-agent"] } else { &[] };
        frontend_node.add_users(group, files.members(group), more)?;
    }
    frontend_node.admit(&site.lab, "gate", &files.gate)?;
    let gate = Node::start(binary, &site.lab, "gate", "gate", &files.gate)?;
    let backend = backend_of(&gate.answers()?);
    let frontend = SocketAddr::from((Site::address("frontend")?, SIP_PORT));
    Ok(Daemons { options: options.clone(), site, files, frontend, backend, gate, frontend_node })
}

impl Daemons {
    /// Starts a worker on a host and waits until it is ready.
    pub(super) fn worker<S: Serialize>(&self, host: &str, role: &str, spec: &S) -> Result<Process, LabError> {
        self.options.binary.worker(&self.site.lab, host, role, spec)
    }

    /// The command of an agent of bob's that takes `frontend` for its front end.
    pub(super) fn misled_agent(&self, frontend: SocketAddr, realm: &str) -> Result<Command, LabError> {
        let password_file = &self.files.user("bob")?.password_file;
        let forward = ["-L", "127.0.0.1:8999:5004/udp"];
        Ok(self.options.binary.command(&connect("bob@web", (&frontend.to_string(), realm), password_file, &forward)))
    }

    /// Starts the gate again, and waits until it answers.
    pub(super) fn start_gate(&mut self) -> Result<(), LabError> {
        self.gate.restart(&self.site.lab)?;
        self.gate.answers().map(drop)
    }

    /// Gives the gate another back end, from its next start on.
    pub(super) fn change_gate(&self, datapath: &str) -> Result<(), LabError> {
        gate(&self.options, datapath).write(&self.options.binary.directory).map(drop)
    }

    /// Packets that have left over the protected link in the control lane.
    pub(super) fn control_packets(&self) -> u64 {
        counter(&metrics_of(&self.site, "gate"), CONTROL_LANE)
    }

    /// Starts the agent beside the service of kind `agent`, on that service's host.
    pub(super) fn serve(&self, host: &str) -> Result<Process, LabError> {
        let arguments = ["agent".to_owned(), text(&self.files.agent), "--serve".to_owned()];
        self.options.binary.spawn(&self.site.lab, host, "agent", &arguments)
    }

    /// The UDP addresses and ports that the gate opened for a user, as the front end's `grant ls` tells them.
    pub(super) fn told(&self, user: &str) -> Result<Vec<SocketAddr>, LabError> {
        const UDP: u64 = 17;
        let text = self.frontend_node.run(&["grant", "ls", "--json"])?;
        let rows: Value =
            serde_json::from_str(&text).map_err(|error| LabError::process("grant ls", error.to_string()))?;
        let place = |row: &Value| {
            let address = row["gate_address"].as_str()?.parse().ok()?;
            Some(SocketAddr::new(address, u16::try_from(row["gate_ports"][0].as_u64()?).ok()?))
        };
        let of_user = rows.as_array().into_iter().flatten().filter(|row| row["user"] == user);
        Ok(of_user.filter(|row| row["protocol"] == UDP).filter_map(place).collect())
    }

    /// Datagrams that the front end has received since its start, as it counts them itself.
    pub(super) fn datagrams_at_frontend(&self) -> u64 {
        counter(&metrics_of(&self.site, "frontend"), DATAGRAMS)
    }

    /// What the gate dropped since its start, by reason, from its metrics; empty if they cannot be read.
    pub(super) fn drops(&self) -> Vec<(String, u64)> {
        drops_of(&metrics_of(&self.site, "gate"))
    }
}

impl Drop for Daemons {
    /// Ends them as an operator would: a gate that is killed keeps its link closed.
    fn drop(&mut self) {
        self.gate.end();
        self.frontend_node.end();
        unmount_below(&self.options.binary.directory);
    }
}

fn backend_of(status: &Value) -> String {
    let text = |field: &str| status["gate"][field].as_str().unwrap_or("unknown").to_owned();
    format!("{}: {}", text("backend"), text("backend_why"))
}

/// The metrics of the daemon on a host; empty if they cannot be read.
fn metrics_of(site: &Site, host: &str) -> String {
    let metrics = || -> std::io::Result<String> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, METRICS_PORT));
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_millis(200))?;
        stream.set_read_timeout(Some(Duration::from_millis(500)))?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
        let mut text = String::new();
        BufReader::new(stream).take(METRICS_LEN_MAX).read_to_string(&mut text)?;
        Ok(text)
    };
    let read = site.lab.host(host).ok().and_then(|host| host.run_in(metrics).ok()?.ok());
    read.unwrap_or_default()
}

/// The value of the counter with this name and these labels; 0 if it is not there.
fn counter(metrics: &str, name: &str) -> u64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|value| value.trim().parse::<f64>().ok()).map_or(0, |value| value as u64)
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

/// Waits for what no log tells.
pub(super) fn wait_for(what: &str, mut done: impl FnMut() -> bool) -> Result<(), LabError> {
    let end = Instant::now() + START_MAX;
    while !done() {
        if Instant::now() >= end {
            return Err(LabError::process(what, format!("did not answer within {START_MAX:?}")));
        }
        thread::sleep(POLL);
    }
    Ok(())
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
