//! A path of edges and routers with places to stand beside it.

use std::{
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use serde_json::Value;
use sluicegate_datapath::raw::{Options, Socket};
use sluicegate_site::topology::Host;
use sluicegate_wire::{
    FrameBuf, build,
    capability::{Repr, shim},
    ip::Summary,
    ipv4, udp,
};

use crate::support::{
    capture::Seen,
    lab::{Lab, host},
    let_run,
    node::Node,
    until,
};

pub(super) const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 2);
/// An address on the LAN of the sniffer, which is not the client's.
pub(super) const LAN_MATE: Ipv4Addr = Ipv4Addr::new(10, 2, 0, 66);
pub(super) const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 2);
/// Another destination behind the same gate.
pub(super) const OTHER_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 3);
pub(super) const UDP_PORT: u16 = 5_000;
pub(super) const TCP_PORT: u16 = 5_001;
/// What the receiver's edge grants.
pub(super) const GRANT_BYTES: u64 = 100_000;

const ETHERTYPE: [u8; 2] = [0x08, 0x00];
/// Frames of an attack that are sent at once, and the pause after them.
const BATCH: usize = 20;
const PAUSE: Duration = Duration::from_millis(10);

/// ```text
/// client ── edge ── snoop ── r1 ─┐
///                    elsewhere ── r2 ── ix ── gate ── site ── edge-s ── service
/// ```
///
/// `snoop`, `ix` and `site` are switches: whoever owns one sees and sends what it likes there.
pub(super) struct Site {
    pub(super) lab: Lab,
    pub(super) r1: Node,
    pub(super) r2: Node,
    pub(super) gate: Node,
    _edges: [Node; 2],
}

impl Site {
    /// The site with grants that last so many seconds.
    pub(super) fn new(datapath: &str, grant_s: u8) -> Self {
        let lab = lab();
        introduce(&lab);
        let start = |name: &str, lines: &str| {
            let state = lab.path(&format!("{name}.state"));
            let text = format!(
                "[node]\nname = \"{name}\"\nstate = \"{}\"\n[gate]\ndatapath = \"{datapath}\"\n{lines}",
                state.display()
            );
            Node::start(&lab, name, "gate", &lab.write(&format!("{name}.toml"), &text))
        };
        let edge = |policy: &str| {
            format!(
                "role = \"edge\"\noutside = \"wan\"\ninside = \"lan\"\npolicy = \"{policy}\"\n\
                 capability_bytes = {GRANT_BYTES}\ncapability_s = {grant_s}\n"
            )
        };
        let router =
            "role = \"router\"\noutside = \"lan\"\ninside = \"wan\"\nboundary = true\nlink_rate = \"100Mbit\"\n";
        let open = |name: &str, address: Ipv4Addr| {
            format!("[[service]]\nname = \"{name}\"\nmode = \"filter\"\ndefault = \"open\"\naddress = \"{address}\"\n")
        };
        let gate = ["outside = \"wan\"\ninside = \"down\"\n", &open("web", SERVICE), &open("other", OTHER_SERVICE)];
        let edges = [start("edge", &edge("client")), start("edge-s", &edge("server"))];
        let [r1, r2] = ["r1", "r2"].map(|name| start(name, router));
        let gate = start("gate", &gate.concat());
        let site = Self { r1, r2, gate, _edges: edges, lab };
        site._edges.iter().chain([&site.r1, &site.r2, &site.gate]).for_each(answers);
        site
    }

    /// Kills the first router. It comes back with [`Self::restart_r1`].
    pub(super) fn kill_r1(&mut self) {
        self.r1.program.kill();
    }

    pub(super) fn restart_r1(&mut self) {
        let config = self.lab.path("r1.toml");
        self.r1 = Node::start(&self.lab, "r1", "gate", &config);
        answers(&self.r1);
    }

    /// Sends packets out of an interface towards the owner of `to`, as fast as every node can take them.
    pub(super) fn inject(&self, (host, interface): (&str, &str), to: (&str, &str), packets: &[Vec<u8>]) {
        let (dst, src) = (self.lab.mac(to.0, to.1), self.lab.mac(host, interface));
        let frames: Vec<Vec<u8>> = packets.iter().map(|packet| [&dst[..], &src, &ETHERTYPE, packet].concat()).collect();
        let send = || -> std::io::Result<()> {
            let mut socket = Socket::open(interface, &Options::send_only())?;
            for batch in frames.chunks(BATCH) {
                socket.send(batch)?;
                let_run(PAUSE);
            }
            Ok(())
        };
        self.lab.host(host).run_in(send).and_then(|sent| sent).expect("the attacker's interface sends");
        // What is on the way arrives, and what nodes count is published.
        let_run(Duration::from_millis(500));
    }
}

/// Makes neighbours across a switch known to each other: a first packet that is lost to its next hop's silence, and
/// what senders make of that, is not what these tests are about.
fn introduce(lab: &Lab) {
    let ends = [
        (("edge", "wan", "10.2.0.2"), ("r1", "lan", "10.2.0.1")),
        (("r1", "wan", "10.5.0.3"), ("gate", "wan", "10.5.0.1")),
        (("r2", "wan", "10.5.0.4"), ("gate", "wan", "10.5.0.1")),
        (("gate", "down", "10.6.0.1"), ("edge-s", "wan", "10.6.0.2")),
    ];
    for (a, b) in ends.into_iter().flat_map(|(a, b)| [(a, b), (b, a)]) {
        let (address, mac) = (b.2.parse().expect("an address"), lab.mac(b.0, b.1));
        let known = lab.host(a.0).netlink("adding a neighbour", |netlink| netlink.add_neighbour(a.1, address, mac));
        known.expect("a neighbour");
    }
}

fn answers(node: &Node) {
    until("the node answers", || node.cli(&["status", "--json"]).status.success().then_some(()));
}

/// What a capability router has counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) regular: u64,
    pub(super) forged: u64,
    pub(super) expired: u64,
    pub(super) spent: u64,
    pub(super) demoted: u64,
}

impl Count {
    pub(super) fn of(node: &Node) -> Self {
        let router = node.json(&["status"])["gate"]["router"].clone();
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let demoted = |reason: &str| number(&router["demoted"][reason]);
        Self {
            regular: ["capabilities", "nonce", "renewal"].iter().map(|kind| number(&router["passed"][*kind])).sum(),
            forged: demoted("capability_forged"),
            expired: demoted("capability_expired"),
            spent: demoted("capability_spent"),
            demoted: router["demoted"].as_object().map_or(0, |all| all.values().map(number).sum()),
        }
    }

    pub(super) fn since(self, before: Self) -> Self {
        Self {
            regular: self.regular - before.regular,
            forged: self.forged - before.forged,
            expired: self.expired - before.expired,
            spent: self.spent - before.spent,
            demoted: self.demoted - before.demoted,
        }
    }
}

/// The capability header of a captured packet.
pub(super) fn header(seen: &Seen) -> Option<Repr> {
    let ip = Summary::parse(&seen.bytes).ok()?;
    let found = shim::find(&ip, &seen.bytes).ok()??;
    Repr::parse(&found.packet(&seen.bytes)).ok()
}

/// A datagram with this header, so long that `len` bytes are charged for it.
pub(super) fn packet(src: Ipv4Addr, dst: Ipv4Addr, header: &Repr, len: usize) -> Vec<u8> {
    let payload = vec![0; len - ipv4::HEADER_LEN - udp::HEADER_LEN - header.buffer_len()];
    let bytes = build::datagram((IpAddr::V4(src), UDP_PORT), (IpAddr::V4(dst), UDP_PORT), &payload);
    let mut frame = FrameBuf::from_bytes(&bytes);
    frame.with(|frame| shim::insert(frame, header, shim::Carriage::Native)).expect("room for the header");
    frame.bytes().to_vec()
}

fn lab() -> Lab {
    let all = "0.0.0.0/0";
    let hosts = vec![
        host("client", &[(all, "10.1.0.1")]),
        host("edge", &[(all, "10.2.0.1")]),
        Host::new("snoop").switching(),
        host("r1", &[("10.1.0.0/16", "10.2.0.2"), (all, "10.5.0.1")]),
        host("elsewhere", &[(all, "10.3.0.1")]),
        host("r2", &[(all, "10.5.0.1")]),
        Host::new("ix").switching(),
        host(
            "gate",
            &[("10.7.0.0/16", "10.6.0.2"), ("10.1.0.0/16", "10.5.0.3"), ("10.2.0.0/16", "10.5.0.3"), (all, "10.5.0.4")],
        ),
        Host::new("site").switching(),
        host("edge-s", &[(all, "10.6.0.1")]),
        host("service", &[(all, "10.7.0.1")]),
    ];
    let wires = [
        ("client:eth0 10.1.0.2/24", "edge:lan 10.1.0.1/24"),
        ("edge:wan 10.2.0.2/24", "snoop:to_edge"),
        ("r1:lan 10.2.0.1/24", "snoop:to_r1"),
        ("r1:wan 10.5.0.3/24", "ix:to_r1"),
        ("elsewhere:eth0 10.3.0.2/24", "r2:lan 10.3.0.1/24"),
        ("r2:wan 10.5.0.4/24", "ix:to_r2"),
        ("gate:wan 10.5.0.1/24", "ix:to_gate"),
        ("gate:down 10.6.0.1/24", "site:to_gate"),
        ("edge-s:wan 10.6.0.2/24", "site:to_edge"),
        ("edge-s:lan 10.7.0.1/24", "service:eth0 10.7.0.2/24 10.7.0.3/24"),
    ];
    Lab::of(hosts, &wires)
}
