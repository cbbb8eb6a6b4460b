//! Nodes of the binary under test: their configuration files, and the processes that run on them.

use std::{
    fmt::Display,
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::Value;
use toml::{Table, Value as Toml};

use crate::{
    During, Lab, LabError, Process,
    binary::{Binary, text},
    scratch::write_private,
    topology,
};

/// Where front ends of a lab take SIP.
pub const SIP_PORT: u16 = 5_060;
/// How long a gate may take to join a frontend.
const JOIN_MAX: Duration = Duration::from_secs(10);

/// A node's configuration file in the making.
///
/// Each part is TOML as an operator writes it. Parts add up: tables are joined, `[[service]]` and its like follow each other,
/// and of a key that is set twice the last value counts.
#[derive(Debug, Clone)]
pub struct NodeFile {
    name: String,
    parts: Vec<String>,
}

impl NodeFile {
    /// The file of the node called `name`, which keeps its state in `state-NAME` beside it.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), parts: Vec::new() }
    }

    /// The name of the node.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Adds any part.
    #[must_use]
    pub fn with(mut self, toml: &str) -> Self {
        self.parts.push(toml.to_owned());
        self
    }

    /// Makes it a gate, router or edge between two interfaces, with this back end and these further lines of `[gate]`.
    #[must_use]
    pub fn gate(self, (outside, inside): (&str, &str), datapath: &str, more: &str) -> Self {
        let datapath = topology::datapath(datapath);
        self.with(&format!("[gate]\noutside = \"{outside}\"\ninside = \"{inside}\"\ndatapath = \"{datapath}\"\n{more}"))
    }

    /// Makes it a frontend that takes SIP over UDP at this address, with these further lines of `[frontend]`.
    #[must_use]
    pub fn frontend(self, address: IpAddr, realm: &str, more: &str) -> Self {
        self.with(&format!("[frontend]\nlisten = [\"udp/{address}:{SIP_PORT}\"]\nrealm = \"{realm}\"\n{more}"))
    }

    /// Adds a service at this address, with these further lines of `[[service]]`.
    #[must_use]
    pub fn service(self, name: &str, address: impl Display, more: &str) -> Self {
        self.with(&format!("[[service]]\nname = \"{name}\"\naddress = \"{address}\"\n{more}"))
    }

    /// Where the node keeps its state if its file lies in `directory`.
    #[must_use]
    pub fn state(&self, directory: &Path) -> PathBuf {
        directory.join(format!("state-{}", self.name))
    }

    /// Writes it as `NAME.toml` into `directory`, which is made if need be, readable by this user alone.
    ///
    /// # Errors
    /// [`LabError::Plan`] if a part is no TOML; [`LabError::Kernel`] if the file cannot be written.
    pub fn write(&self, directory: &Path) -> Result<PathBuf, LabError> {
        let path = directory.join(format!("{}.toml", self.name));
        let mut all = Table::new();
        let node = [("name", self.name.clone()), ("state", text(&self.state(directory)))];
        let node = node.map(|(key, value)| (key.to_owned(), Toml::String(value)));
        all.insert("node".to_owned(), Toml::Table(node.into_iter().collect()));
        for part in &self.parts {
            let part: Table = part.parse().map_err(|error| LabError::Plan(format!("{error} in\n{part}")))?;
            join(&mut all, part);
        }
        fs::create_dir_all(directory)
            .and_then(|()| write_private(&path, &all.to_string()))
            .during(|| format!("writing {}", path.display()))?;
        Ok(path)
    }
}

fn join(all: &mut Table, part: Table) {
    for (key, value) in part {
        match (all.get_mut(&key), value) {
            (Some(Toml::Table(before)), Toml::Table(more)) => join(before, more),
            (Some(Toml::Array(before)), Toml::Array(more)) if !more.is_empty() && more.iter().all(Toml::is_table) => {
                before.extend(more);
            }
            (_, value) => drop(all.insert(key, value)),
        }
    }
}

/// A node that runs on a host of a lab. Dropping it ends it as an operator would: a gate that is killed keeps its link closed.
#[derive(Debug)]
pub struct Node {
    name: String,
    host: String,
    verb: &'static str,
    config: PathBuf,
    binary: Binary,
    /// Its process.
    pub process: Process,
}

impl Node {
    /// Writes the file and starts the node; `verb` is `up`, `gate` or `frontend`. It may not be ready yet.
    ///
    /// # Errors
    /// As [`NodeFile::write`] and [`Binary::spawn`].
    pub fn start(
        binary: &Binary,
        lab: &Lab,
        host: &str,
        verb: &'static str,
        file: &NodeFile,
    ) -> Result<Self, LabError> {
        let config = file.write(&binary.directory)?;
        let process = binary.spawn(lab, host, file.name(), &[verb.to_owned(), text(&config)])?;
        let (name, host) = (file.name().to_owned(), host.to_owned());
        Ok(Self { name, host, verb, config, binary: binary.clone(), process })
    }

    /// Starts it again; it may not be ready yet.
    ///
    /// # Errors
    /// As [`Binary::spawn`].
    pub fn restart(&mut self, lab: &Lab) -> Result<(), LabError> {
        self.process = self.binary.spawn(lab, &self.host, &self.name, &[self.verb.to_owned(), text(&self.config)])?;
        Ok(())
    }

    /// Waits until it answers; what it says of itself.
    ///
    /// # Errors
    /// [`LabError::Process`] with what it said last, if that takes too long.
    pub fn answers(&self) -> Result<Value, LabError> {
        self.binary.wait_for(&self.name, || self.status())
    }

    /// Waits until it answers and each frontend that feeds it is connected; what it says of itself.
    ///
    /// # Errors
    /// [`LabError::Process`] with what it said last, if that takes too long.
    pub fn ready(&self) -> Result<Value, LabError> {
        self.binary.wait_for(&self.name, || {
            let status = self.status()?;
            let feeds = status["gate"]["feeds"].as_array();
            let is_connected = |feed: &Value| feed["state"] == "connected";
            // A node that is gate and frontend is not ready before its gate has dialled.
            let fed =
                feeds.is_none_or(|feeds| (self.verb != "up" || !feeds.is_empty()) && feeds.iter().all(is_connected));
            fed.then_some(status)
        })
    }

    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its configuration file.
    #[must_use]
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// What it says of itself; `None` while it does not answer.
    #[must_use]
    pub fn status(&self) -> Option<Value> {
        self.binary.status(&self.config)
    }

    /// Runs a verb about this node; what it printed.
    ///
    /// # Errors
    /// As [`Binary::run`].
    pub fn run(&self, arguments: &[&str]) -> Result<String, LabError> {
        let config = text(&self.config);
        self.binary.run(&[arguments, &["--config", &config]].concat())
    }

    /// Adds a group, and users with this password to it; `more` are further arguments of `user add`.
    ///
    /// # Errors
    /// As [`Binary::run`].
    pub fn add_users(
        &self,
        group: &str,
        users: impl IntoIterator<Item = (String, String)>,
        more: &[&str],
    ) -> Result<(), LabError> {
        let list = self.binary.directory.join(format!("{group}.users"));
        let lines: String = users.into_iter().map(|(name, password)| format!("{name}:{password}\n")).collect();
        write_private(&list, &lines).during(|| format!("writing {}", list.display()))?;
        self.run(&["group", "add", group])?;
        let list = text(&list);
        self.run(&[&["user", "add", "--from", &list, "--group", group], more].concat()).map(drop)
    }

    /// Lets the gate of this file, which is to run on `host`, join this frontend: a token here, its use there.
    ///
    /// # Errors
    /// If a step fails.
    pub fn admit(&self, lab: &Lab, host: &str, gate: &NodeFile) -> Result<(), LabError> {
        let config = gate.write(&self.binary.directory)?;
        let said = self.run(&["gate-join", "--new"])?;
        let token = self.binary.directory.join("join-token");
        let line = said.lines().find(|line| line.starts_with("sgjoin1.")).unwrap_or_default();
        write_private(&token, line).during(|| format!("writing {}", token.display()))?;
        // Joining talks to the frontend, so it runs on the gate's host.
        let words = ["gate-join", "--token-file", &text(&token), "--config", &text(&config)].map(str::to_owned);
        let is_content = self.binary.spawn(lab, host, "gate-join", &words)?.wait(JOIN_MAX)?;
        let refused = || LabError::process("gate-join", self.binary.last_words("gate-join"));
        is_content.then_some(()).ok_or_else(refused)
    }

    /// Ends it: SIGTERM, and SIGKILL if it has not gone two seconds later.
    pub fn end(&mut self) {
        self.process.end();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scratch;

    #[test]
    fn parts_of_a_file_add_up_and_the_last_value_of_a_key_counts() {
        let scratch = Scratch::make("node-file").unwrap();
        let file = NodeFile::new("site")
            .frontend(IpAddr::from([203, 0, 113, 1]), "example.net", "digest = [\"MD5\"]\n")
            .gate(("outside", "inside"), "packet", "local = [\"udp/5060\"]\n")
            .with("[gate]\nlocal = []\nmode = \"observe\"\n")
            .service("web", "10.4.0.2", "ports = [\"tcp/80\"]\n")
            .service("pbx", "10.4.0.3", "grant = { lifetime_s = 10 }\n");
        let written: Table = fs::read_to_string(file.write(scratch.path()).unwrap()).unwrap().parse().unwrap();
        assert_eq!(written["node"]["state"].as_str(), scratch.path().join("state-site").to_str());
        assert_eq!(written["frontend"]["listen"][0].as_str(), Some("udp/203.0.113.1:5060"));
        assert_eq!(written["gate"]["local"].as_array().map(Vec::len), Some(0));
        assert_eq!(written["gate"]["mode"].as_str(), Some("observe"));
        assert_eq!(written["service"].as_array().map(Vec::len), Some(2));
        assert_eq!(written["service"][1]["grant"]["lifetime_s"].as_integer(), Some(10));
    }

    #[test]
    fn a_part_that_is_no_toml_is_named() {
        let scratch = Scratch::make("node-file").unwrap();
        let error = NodeFile::new("site").with("[gate\n").write(scratch.path()).unwrap_err();
        assert!(error.to_string().contains("[gate"), "{error}");
    }
}
