//! The lab that every candidate stands in: `gen -- gate -- sink`.

use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4},
};

use sluicegate_datapath::{
    IngressFilter, LocalRule, OwnAddress, Rules, Side,
    raw::{self, Socket},
};

use super::frame::Macs;
use sluicegate_netlink::Rtnetlink;
use sluicegate_site::{
    During, Lab, LabError, Node, Process,
    topology::{Host, Plan},
};

pub(super) const GEN: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
pub(super) const OUTSIDE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
pub(super) const SINK: Ipv4Addr = Ipv4Addr::new(10, 4, 0, 2);
pub(super) const SIP_PORT: u16 = 5_060;
/// Ports of the service: the first carries the established flows, the others the new ones. A grant is for one port, and
/// a user's grant for at most 1,024 flows.
pub(super) const FIRST_PORT: u16 = 5_001;
pub(super) const PORTS: u16 = 51;
/// Where the kernel takes the ports from that programs do not choose, and how many answers a second come to them.
const EPHEMERAL_FIRST: u16 = 32_768;
const ANSWERS_PPS: u32 = 1_000;
/// The interface of `gen` and `sink`.
const ETH: &str = "eth0";

/// A lab with whatever forwards in the middle.
pub(super) struct BenchLab {
    /// What is measured: a peer's name or a back end.
    pub name: String,
    /// Where the generator sends to reach each port of the service.
    pub targets: Vec<SocketAddrV4>,
    pub macs: Macs,
    pub sender: Socket,
    counter: Rtnetlink,
    pub lab: Lab,
    processes: Vec<Process>,
    nodes: Vec<Node>,
}

impl BenchLab {
    /// The lab with nothing but addresses and routes, in which only the generator sends and nobody answers.
    pub(super) fn build(name: &str, forwards: bool) -> Result<Self, LabError> {
        let mut gate = Host::new("gate");
        gate.forwards = forwards;
        let hosts = vec![
            gate,
            Host::with_routes("gen", &[("0.0.0.0/0", "198.51.100.1")])?,
            Host::with_routes("sink", &[("0.0.0.0/0", "10.4.0.1")])?,
        ];
        let wires = [
            ("gen:eth0 198.51.100.2/24", "gate:outside 198.51.100.1/24"),
            ("gate:inside 10.4.0.1/24", "sink:eth0 10.4.0.2/24"),
        ];
        let lab = Plan::of(hosts, &wires)?.build()?;
        // The generator's kernel hears the answers of the frontend, which lets `connect` sign in, and neither's kernel
        // answers data.
        let own = vec![OwnAddress { address: GEN.into(), side: Side::Both }];
        let answers = LocalRule {
            protocol: 17,
            first: EPHEMERAL_FIRST,
            last: u16::MAX,
            side: Side::Both,
            address: None,
            rate_pps: ANSWERS_PPS,
        };
        let rules = Rules { own, local: vec![answers], ..Rules::default() };
        for (host, rules) in [("gen", rules), ("sink", Rules::default())] {
            let install = || IngressFilter::install("bench", &[ETH], &rules).map(drop).map_err(io::Error::other);
            lab.host(host)?.run_in(install).and_then(|done| done).during(|| format!("{host}: keeping it silent"))?;
        }
        let macs = Macs { source: lab.mac("gen", ETH)?, destination: lab.mac("gate", "outside")? };
        let sender = lab.host("gen")?.run_in(|| Socket::open(ETH, &raw::Options::send_only()));
        let sender = sender.and_then(|opened| opened).during(|| "opening the generator's socket".to_owned())?;
        let counter = lab.host("sink")?.run_in(|| Ok(Rtnetlink::open()?)).and_then(|opened| opened);
        let counter = counter.during(|| "opening netlink".to_owned())?;
        let targets = (FIRST_PORT..FIRST_PORT + PORTS).map(|port| SocketAddrV4::new(SINK, port)).collect();
        Ok(Self {
            name: name.to_owned(),
            targets,
            macs,
            sender,
            counter,
            lab,
            processes: Vec::new(),
            nodes: Vec::new(),
        })
    }

    /// Keeps a process running until the lab ends; the newest ends first.
    pub(super) fn keep(&mut self, process: Process) {
        self.processes.push(process);
    }

    /// Keeps a node running until the lab and its processes end.
    pub(super) fn keep_node(&mut self, node: Node) {
        self.nodes.push(node);
    }

    /// Packets that have reached the sink.
    pub(super) fn received(&mut self) -> Result<u64, LabError> {
        let link = self.counter.link(ETH).during(|| "reading the sink's counters".to_owned())?;
        Ok(link.counters.rx_packets)
    }

    /// A socket that sees what reaches the sink.
    pub(super) fn sink_socket(&self) -> Result<Socket, LabError> {
        let opened = self.lab.host("sink")?.run_in(|| Socket::open(ETH, &raw::Options::default()));
        opened.and_then(|opened| opened).during(|| "opening the sink's socket".to_owned())
    }
}

impl Drop for BenchLab {
    fn drop(&mut self) {
        while let Some(mut process) = self.processes.pop() {
            process.end();
        }
        self.nodes.clear();
    }
}
