//! Nodes: the real binary under its own verbs.

use std::{
    fs,
    net::IpAddr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use super::{
    BINARY, PATIENCE,
    lab::{GATE, Lab, SERVICE},
    program::{Done, Program, run},
    until,
};

/// Realm of every user here.
pub(crate) const REALM: &str = "example.net";
/// The password of every user here.
pub(crate) const PASSWORD: &str = "correct-horse-battery-staple";

/// Within so many questions, one after the other, `trace` has been told: each takes about as long as it may be told late.
const ASKS_MAX: u32 = 20;

/// A node's configuration, as far as tests differ in it.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// `packet` or `xdp`.
    pub(crate) datapath: &'static str,
    /// More lines of `[frontend]`.
    pub(crate) frontend: String,
    /// More lines of `[gate]`.
    pub(crate) gate: String,
    /// `[[service]]` and `[[rule]]` tables.
    pub(crate) objects: String,
}

impl Config {
    /// A configuration with these services.
    pub(crate) fn new(datapath: &'static str, objects: &str) -> Self {
        let objects = objects.to_owned();
        Self { datapath, frontend: String::new(), gate: String::new(), objects }
    }

    /// Adds lines to `[frontend]`.
    pub(crate) fn frontend(mut self, lines: &str) -> Self {
        self.frontend.push_str(lines);
        self
    }

    /// Adds lines to `[gate]`.
    pub(crate) fn gate(mut self, lines: &str) -> Self {
        self.gate.push_str(lines);
        self
    }

    /// The file of a node that is gate and frontend.
    pub(crate) fn write_up(&self, lab: &Lab) -> PathBuf {
        let text = self.node(lab, "up") + &self.frontend_section(GATE.into()) + &self.gate_section() + &self.objects;
        lab.write("site.toml", &text)
    }

    /// The file of a frontend alone, at `address`.
    pub(crate) fn write_frontend(&self, lab: &Lab, address: IpAddr) -> PathBuf {
        let feed = format!("feed = \"{address}:7443\"\n");
        let text = self.node(lab, "frontend") + &self.frontend_section(address) + &feed + &self.objects;
        lab.write("frontend.toml", &text)
    }

    /// The file of a gate alone.
    pub(crate) fn write_gate(&self, lab: &Lab) -> PathBuf {
        lab.write("gate.toml", &(self.node(lab, "gate") + &self.gate_section()))
    }

    fn node(&self, lab: &Lab, name: &str) -> String {
        format!("[node]\nname = \"{name}-1\"\nstate = \"{}\"\n", lab.path(&format!("{name}.state")).display())
    }

    fn frontend_section(&self, address: IpAddr) -> String {
        let listens = self.frontend.contains("listen =");
        let listen = if listens { String::new() } else { format!("listen = [\"udp/{address}:5060\"]\n") };
        format!("[frontend]\n{listen}realm = \"{REALM}\"\n{}", self.frontend)
    }

    fn gate_section(&self) -> String {
        let local = if self.gate.contains("local =") { "" } else { "local = [\"udp/5060\"]\n" };
        format!(
            "[gate]\noutside = \"outside\"\ninside = \"inside\"\n{local}datapath = \"{}\"\n{}",
            self.datapath, self.gate
        )
    }
}

/// A `[[service]]` table that the group `staff` may use, with room for what tests send.
pub(crate) fn service(name: &str, ports: &str, more: &str) -> String {
    let address = if more.contains("address =") { String::new() } else { format!("address = \"{SERVICE}\"\n") };
    let limits = "grant = { bytes_max = \"500MB\", lifetime_s = 300, rate = \"400Mbit\" }\n";
    let limits = if more.contains("grant =") { "" } else { limits };
    let allow = if more.contains("allow =") { "" } else { "allow = [\"group:staff\"]\n" };
    format!("[[service]]\nname = \"{name}\"\nports = [{ports}]\n{address}{limits}{allow}{more}")
}

/// A running node.
#[derive(Debug)]
pub(crate) struct Node {
    host: String,
    verb: &'static str,
    config: PathBuf,
    pub(crate) program: Program,
}

impl Node {
    /// `sluicegate up` on the gate's host, ready, with the user `alice` of the group `staff`.
    pub(crate) fn up(lab: &Lab, config: &Config) -> Self {
        let node = Self::start(lab, "gate", "up", &config.write_up(lab));
        node.ready();
        node.add_people(lab);
        node
    }

    /// Starts a node; it may not be ready yet.
    pub(crate) fn start(lab: &Lab, host: &str, verb: &'static str, config: &Path) -> Self {
        let file = config.to_str().expect("a path in UTF-8");
        let program = Program::start(lab, host, &format!("sluicegate-{verb}"), BINARY, &[verb, file]);
        Self { host: host.to_owned(), verb, config: config.to_owned(), program }
    }

    /// Starts it again after its end, ready.
    pub(crate) fn restart(&mut self, lab: &Lab) {
        self.start_again(lab);
        self.ready();
    }

    /// The same; it may not be ready yet.
    pub(crate) fn start_again(&mut self, lab: &Lab) {
        *self = Self::start(lab, &self.host.clone(), self.verb, &self.config.clone());
    }

    /// Waits until the node answers and, if it is a gate, holds its feed.
    pub(crate) fn ready(&self) {
        until(&format!("`{}` is ready", self.verb), || {
            let done = self.cli(&["status", "--json"]);
            let status: Value = serde_json::from_str(&done.out).ok()?;
            let feeds = &status["gate"]["feeds"];
            let connected = |feed: &Value| feed["state"] == "connected";
            let fed = feeds.as_array().is_none_or(|feeds| !feeds.is_empty() && feeds.iter().all(connected));
            (done.status.success() && fed).then_some(())
        });
    }

    /// Waits until the frontend has a gate.
    pub(crate) fn has_gate(&self) {
        until("a gate is connected", || {
            let gates = self.json(&["status"])["frontend"]["gates"].clone();
            gates.as_array()?.iter().any(|gate| gate["connected"] == true).then_some(())
        });
    }

    /// `alice` and `bob`, both of `staff`; `mallory`, of no group.
    pub(crate) fn add_people(&self, lab: &Lab) {
        self.cli(&["group", "add", "staff"]).expect("group add");
        for (name, group) in [("alice", Some("staff")), ("bob", Some("staff")), ("mallory", None)] {
            self.add_user(lab, name, group);
        }
    }

    /// Adds a user whose password is [`PASSWORD`].
    pub(crate) fn add_user(&self, lab: &Lab, name: &str, group: Option<&str>) {
        let password = password_file(lab);
        let password = password.to_str().expect("a path in UTF-8");
        let mut arguments = vec!["user", "add", name, "--password-file", password];
        arguments.extend(group.into_iter().flat_map(|group| ["--group", group]));
        self.cli(&arguments).expect("user add");
    }

    /// Runs a verb about this node.
    pub(crate) fn cli(&self, arguments: &[&str]) -> Done {
        let mut command = Command::new(BINARY);
        command.args(arguments).arg("--config").arg(&self.config);
        run(&mut command, PATIENCE)
    }

    /// Runs a reading verb about this node.
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let arguments: Vec<&str> = arguments.iter().copied().chain(["--json"]).collect();
        let out = self.cli(&arguments).expect("a reading verb");
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {out}"))
    }

    /// What this `trace` says, which is to say `text` soon: decisions are told to it together, every few milliseconds.
    pub(crate) fn traced(&self, arguments: &[&str], text: &str) -> String {
        let mut asked = 0;
        until(&format!("{arguments:?} says {text:?}"), || {
            let says = self.cli(arguments).expect("trace");
            asked += 1;
            let is_told = says.contains(text);
            assert!(is_told || asked < ASKS_MAX, "{text:?} is not in\n{says}");
            is_told.then_some(says)
        })
    }

    /// The gate's counter of drops for a reason.
    pub(crate) fn dropped(&self, reason: &str) -> u64 {
        self.json(&["status"])["gate"]["dropped"][reason].as_u64().unwrap_or(0)
    }

    /// The same, if the node answers.
    pub(crate) fn try_dropped(&self, reason: &str) -> Option<u64> {
        let done = self.cli(&["status", "--json"]);
        let status: Value = serde_json::from_str(&done.out).ok()?;
        status["gate"]["dropped"][reason].as_u64()
    }

    /// Ids of all live grants, in order.
    pub(crate) fn grants(&self) -> Vec<String> {
        let rows = self.json(&["grant", "ls"]);
        let rows = rows.as_array().expect("a list of grants");
        let id = |row: &Value| row["id"].as_str().map(str::to_owned);
        let mut ids: Vec<String> = rows.iter().filter(|row| row["state"] != "ended").filter_map(id).collect();
        ids.sort();
        ids
    }
}

/// A file with [`PASSWORD`], mode 0600.
pub(crate) fn password_file(lab: &Lab) -> PathBuf {
    let path = lab.path("password");
    fs::write(&path, format!("{PASSWORD}\n")).expect("the lab's directory is writable");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("a mode");
    path
}

/// Binds the gate to the frontend, as an operator does it: a token there, its use here.
pub(crate) fn join(lab: &Lab, frontend: &Node, gate: &Path) {
    join_on(lab, "gate", frontend, gate);
}

/// The same for a gate on this host.
pub(crate) fn join_on(lab: &Lab, host: &str, frontend: &Node, gate: &Path) {
    let token = frontend.cli(&["gate-join", "--new"]).expect("a join token");
    let token = lab.write("token", &token).display().to_string();
    let mut command = Command::new(BINARY);
    command.args(["gate-join", "--token-file", &token, "--config"]).arg(gate);
    let joined = lab.host(host).run_in(|| run(&mut command, PATIENCE)).expect("a namespace");
    joined.expect("gate-join");
    // One token, one gate.
    let again = lab.host(host).run_in(|| run(&mut command, PATIENCE)).expect("a namespace");
    assert!(!again.status.success(), "a token is good once");
}
