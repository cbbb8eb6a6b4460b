use std::{
    collections::BTreeMap,
    net::SocketAddr,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;
use serde_json::Value;

use super::{
    Options,
    files::{Files, PHONES_GROUP, gate},
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
const POLL: Duration = Duration::from_millis(50);

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
        let status = self.gate.status().unwrap_or_default();
        let lanes = status["gate"]["lanes"].as_array().into_iter().flatten();
        let control = lanes.filter(|lane| lane["port"] == "inside" && lane["lane"] == "control");
        control.filter_map(|lane| lane["packets"].as_u64()).sum()
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
        let status = self.frontend_node.status().unwrap_or_default();
        status["frontend"]["events"]["datagrams"].as_u64().unwrap_or_default()
    }

    /// What the gate dropped since its start, by reason; empty while it does not answer.
    pub(super) fn drops(&self) -> BTreeMap<String, u64> {
        let status = self.gate.status().unwrap_or_default();
        let dropped = status["gate"]["dropped"].as_object().into_iter().flatten();
        dropped.filter_map(|(reason, count)| Some((reason.clone(), count.as_u64()?))).collect()
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
