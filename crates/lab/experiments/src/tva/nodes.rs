//! The daemons of the live experiments, and the plain routers in their place.

use std::net::IpAddr;

use serde_json::Value;

use super::{
    Attack, Carriage, Mutant, Options,
    play::{DEFAULT_GRANT, LINK_BPS},
    site::{COLLUDER, NODES, SERVICE},
};
use sluicegate_site::{Lab, LabError, Node, NodeFile, Process, binary::Binary};

/// The file of an edge box for the hosts behind `lan`; `more` are further settings.
pub(super) fn edge(name: &str, datapath: &str, more: &str) -> NodeFile {
    NodeFile::new(name).gate(("wan", "lan"), datapath, &format!("role = \"edge\"\n{more}"))
}

/// The file of a router that sorts nothing.
pub(super) fn router(name: &str, datapath: &str, ports: (&str, &str), boundary: bool) -> NodeFile {
    let more = format!("role = \"router\"\nboundary = {boundary}\nlink_rate = \"none\"\n");
    NodeFile::new(name).gate(ports, datapath, &more)
}

/// The file of a gate in front of a link of `link_rate_bps`, with public services.
pub(super) fn gate(datapath: &str, link_rate_bps: u64, services: &[(&str, IpAddr)]) -> NodeFile {
    let more = format!("link_rate = \"{link_rate_bps}bit\"\nboundary = true\n");
    services.iter().fold(NodeFile::new("gate").gate(("wan", "down"), datapath, &more), |file, (name, address)| {
        file.service(name, address, "mode = \"filter\"\ndefault = \"open\"\n")
    })
}

/// The running daemons. Dropping them ends them as an operator would.
#[derive(Debug)]
pub(super) struct Nodes(Vec<Node>);

/// Lets the kernels forward, as a network without capabilities does; or stops them.
pub(super) fn forward_plainly(lab: &Lab, on: bool) -> Result<(), LabError> {
    NODES.iter().chain(&["edge-1"]).try_for_each(|name| lab.host(name)?.forward(on))
}

/// Starts edge boxes, routers and the gate of the experiment under attack. Under a flood of requests the honest hosts behind
/// the spoofing neighbour have an edge box too.
pub(super) fn start(lab: &Lab, binary: &Binary, options: &Options) -> Result<Nodes, LabError> {
    let behind_spoofer = (options.attack == Attack::Request).then_some("edge-1");
    let names = NODES.iter().copied().chain(behind_spoofer);
    Nodes::start(lab, binary, names.map(|name| node(options, name)))
}

fn node(options: &Options, name: &str) -> NodeFile {
    let datapath = &options.datapath;
    let (bytes, seconds) = DEFAULT_GRANT;
    let carriage = if options.carriage == Carriage::Udp { "encapsulated" } else { "native" };
    let grant =
        format!("carriage = \"{carriage}\"\ncapability_bytes = {bytes}\ncapability_s = {seconds}\npeers_max = 65536\n");
    match name {
        "edge" | "edge-1" => edge(name, datapath, &format!("policy = \"client\"\n{grant}")),
        "edge-s" => {
            let flood_rate = flood_rate(options);
            let server = format!("policy = \"server\"\nflood_rate = \"{flood_rate}\"\nblacklist_s = 60\n");
            edge(name, datapath, &(server + &grant))
        }
        "r1" => router(name, datapath, ("lan", "wan"), true),
        "r2" => router(name, datapath, ("wan", "down"), true),
        _ => {
            let services =
                [("web", SERVICE), ("colluder", COLLUDER)].map(|(name, v4)| (name, options.family.address(v4)));
            gate(datapath, LINK_BPS, &services)
        }
    }
}

/// From which rate a sender of the service floods, as the configuration says it.
const fn flood_rate(options: &Options) -> &'static str {
    match (options.attack, options.mutant) {
        (_, Mutant::Renews) => "none",
        // Above what an honest host needs over the time of a grant, and below its hundredth part of the link.
        (Attack::Imprecise | Attack::Reasking, _) => "64kbit",
        _ => "512kbit",
    }
}

impl Nodes {
    /// Starts daemons, each on the host of its name, and waits until each answers.
    pub(super) fn start(lab: &Lab, binary: &Binary, files: impl Iterator<Item = NodeFile>) -> Result<Self, LabError> {
        let start = |file: NodeFile| Node::start(binary, lab, file.name(), "gate", &file);
        let nodes = files.map(start).collect::<Result<Vec<_>, _>>()?;
        nodes.iter().try_for_each(|node| node.ready().map(drop))?;
        Ok(Self(nodes))
    }

    /// What a daemon says of itself.
    pub(super) fn status(&self, name: &str) -> Result<Value, LabError> {
        let node = self.0.iter().find(|node| node.name() == name);
        let status = node.and_then(Node::status).map(|mut status| {
            let gate = status.get_mut("gate").map(Value::take).filter(Value::is_object);
            gate.unwrap_or(status)
        });
        status.ok_or_else(|| LabError::process(name, "does not say how it is"))
    }

    /// The daemons' processes by name.
    pub(super) fn processes(&self) -> impl Iterator<Item = (&str, &Process)> {
        self.0.iter().map(|node| (node.name(), &node.process))
    }

    /// Bytes that left the gate towards the bottleneck in the request lane, and in all lanes.
    pub(super) fn request_lane(&self) -> Result<(u64, u64), LabError> {
        let status = self.status("gate")?;
        let missing = || LabError::process("gate", "says nothing of its lanes");
        let lanes = status["lanes"].as_array().ok_or_else(missing)?.iter().filter(|lane| lane["port"] == "inside");
        Ok(lanes.fold((0, 0), |(requests, all), lane| {
            let bytes = lane["bytes"].as_u64().unwrap_or(0);
            (requests + if lane["lane"] == "request" { bytes } else { 0 }, all + bytes)
        }))
    }
}
