//! The daemons of the live experiments, and the plain routers in their place.

use std::{
    fs,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{
    Family,
    site::{COLLUDER, NODES, SERVICE},
};
use sluicegate_site::{
    During, Lab, LabError, Process,
    binary::{Binary, text},
    scratch::unmount_below,
};

/// What the daemons have in common.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) binary: Binary,
    /// The back end as the configuration names it.
    pub(super) datapath: String,
    /// What the gate paces its egress to, bit/s.
    pub(super) link_rate_bps: u64,
    /// The destination's default grant: N and T.
    pub(super) default_grant: (u32, u32),
    /// From which rate a sender of the service floods, as the configuration says it.
    pub(super) flood_rate: &'static str,
    /// Whether the honest hosts behind the spoofing neighbour have their edge box.
    pub(super) edge_behind_spoofer: bool,
    pub(super) family: Family,
    /// Whether edge boxes put capability headers into UDP.
    pub(super) encapsulated: bool,
}

/// A daemon that is to run on the host of the same name: what its configuration file says beside `[node]`.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) name: &'static str,
    pub(super) toml: String,
}

impl Node {
    /// An edge box for the hosts behind `lan`; `more` are further settings.
    pub(super) fn edge(name: &'static str, datapath: &str, more: &str) -> Self {
        Self { name, toml: section("edge", ("wan", "lan"), datapath, more) }
    }

    /// A router that sorts nothing.
    pub(super) fn router(name: &'static str, datapath: &str, (outside, inside): (&str, &str), boundary: bool) -> Self {
        let more = format!("boundary = {boundary}\nlink_rate = \"none\"\n");
        Self { name, toml: section("router", (outside, inside), datapath, &more) }
    }

    /// A gate in front of a link of `link_rate_bps`, with public services.
    pub(super) fn gate(datapath: &str, link_rate_bps: u64, services: &[(&str, std::net::IpAddr)]) -> Self {
        let more = format!("link_rate = \"{link_rate_bps}bit\"\nboundary = true\n");
        let services = services.iter().map(|(name, address)| {
            format!(
                "\n[[service]]\nname = \"{name}\"\nmode = \"filter\"\ndefault = \"open\"\naddress = \"{address}\"\n"
            )
        });
        let toml = section("gate", ("wan", "down"), datapath, &more);
        Self { name: "gate", toml: toml + &services.collect::<String>() }
    }
}

fn section(role: &str, (outside, inside): (&str, &str), datapath: &str, more: &str) -> String {
    let datapath = sluicegate_site::topology::datapath(datapath);
    format!(
        "[gate]\nrole = \"{role}\"\noutside = \"{outside}\"\ninside = \"{inside}\"\ndatapath = \"{datapath}\"\n{more}"
    )
}

/// The running daemons. Dropping them ends them as an operator would.
#[derive(Debug)]
pub(super) struct Nodes {
    directory: PathBuf,
    running: Vec<(&'static str, PathBuf, Process)>,
    binary: Binary,
}

/// Lets the kernels forward, as a network without capabilities does; or stops them.
pub(super) fn forward_plainly(lab: &Lab, on: bool) -> Result<(), LabError> {
    NODES.iter().chain(&["edge-1"]).try_for_each(|name| lab.host(name)?.forward(on))
}

/// Starts edge boxes, routers and the gate of the experiment under attack.
pub(super) fn start(lab: &Lab, settings: &Settings) -> Result<Nodes, LabError> {
    let names = NODES.iter().copied().chain(settings.edge_behind_spoofer.then_some("edge-1"));
    Nodes::start(lab, &settings.binary, names.map(|name| node(settings, name)))
}

fn node(settings: &Settings, name: &'static str) -> Node {
    let datapath = &settings.datapath;
    let (bytes, seconds) = settings.default_grant;
    let carriage = if settings.encapsulated { "encapsulated" } else { "native" };
    let grant =
        format!("carriage = \"{carriage}\"\ncapability_bytes = {bytes}\ncapability_s = {seconds}\npeers_max = 65536\n");
    match name {
        "edge" | "edge-1" => Node::edge(name, datapath, &format!("policy = \"client\"\n{grant}")),
        "edge-s" => {
            let server = format!("policy = \"server\"\nflood_rate = \"{}\"\nblacklist_s = 60\n", settings.flood_rate);
            Node::edge(name, datapath, &(server + &grant))
        }
        "r1" => Node::router(name, datapath, ("lan", "wan"), true),
        "r2" => Node::router(name, datapath, ("wan", "down"), true),
        _ => {
            let services =
                [("web", SERVICE), ("colluder", COLLUDER)].map(|(name, v4)| (name, settings.family.address(v4)));
            Node::gate(datapath, settings.link_rate_bps, &services)
        }
    }
}

impl Nodes {
    /// Starts daemons and waits until each answers.
    pub(super) fn start(lab: &Lab, binary: &Binary, nodes: impl Iterator<Item = Node>) -> Result<Self, LabError> {
        let mut running = Self { directory: binary.directory.clone(), running: Vec::new(), binary: binary.clone() };
        for node in nodes {
            running.start_one(lab, &node)?;
        }
        for (name, config, _) in &running.running {
            running.binary.wait_for(name, || running.binary.status(config))?;
        }
        Ok(running)
    }

    /// What a daemon says of itself.
    pub(super) fn status(&self, name: &str) -> Result<Value, LabError> {
        let node = self.running.iter().find(|(found, ..)| *found == name);
        let status = node.and_then(|(_, config, _)| self.binary.status(config)).map(|mut status| {
            let gate = status.get_mut("gate").map(Value::take).filter(Value::is_object);
            gate.unwrap_or(status)
        });
        let reason = "does not say how it is".to_owned();
        status.ok_or_else(|| LabError::Process { name: name.to_owned(), reason })
    }

    /// The daemons' processes by name.
    pub(super) fn processes(&self) -> impl Iterator<Item = (&'static str, &Process)> {
        self.running.iter().map(|(name, _, process)| (*name, process))
    }

    /// Bytes that left the gate towards the bottleneck in the request lane, and in all lanes.
    pub(super) fn request_lane(&self) -> Result<(u64, u64), LabError> {
        let status = self.status("gate")?;
        let missing = || LabError::Process { name: "gate".to_owned(), reason: "says nothing of its lanes".to_owned() };
        let lanes = status["lanes"].as_array().ok_or_else(missing)?.iter().filter(|lane| lane["port"] == "inside");
        Ok(lanes.fold((0, 0), |(requests, all), lane| {
            let bytes = lane["bytes"].as_u64().unwrap_or(0);
            (requests + if lane["lane"] == "request" { bytes } else { 0 }, all + bytes)
        }))
    }

    fn start_one(&mut self, lab: &Lab, node: &Node) -> Result<(), LabError> {
        let name = node.name;
        let state = state_of(&self.directory, name);
        if !state.exists() {
            let made = fs::DirBuilder::new().mode(0o700).create(&state);
            made.during(|| format!("making {}", state.display()))?;
        }
        let config = self.directory.join(format!("{name}.toml"));
        let toml = format!("[node]\nname = \"{name}\"\nstate = {state:?}\n\n{}", node.toml);
        fs::write(&config, toml).during(|| format!("writing {}", config.display()))?;
        let process = self.binary.spawn(lab, name, name, &["gate".to_owned(), text(&config)])?;
        self.running.push((name, config, process));
        Ok(())
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.running.iter_mut().for_each(|(.., process)| process.end());
        unmount_below(&self.directory);
    }
}

/// The state directory of a daemon.
pub(super) fn state_of(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("state-{name}"))
}
