//! What a packet costs a node in memory: link header off, every scene of its role, next hop, link header on.
//!
//! Packets are as short as a 64-byte Ethernet frame allows, and written before the clock starts. `.hot`: one flow again and
//! again. `.random_1m`: 2^20 flows in random order, each of which was seen before.

use std::net::{IpAddr, Ipv4Addr};

use sluicegate_bounded::Gauge;
use sluicegate_capability::{
    host::{self, ClientIds, ClientPolicy, Host},
    router::{Router, RouterConfig},
    secrets::Seed,
};
use sluicegate_grant::{ANY_PORTS, DataMode, Grant, GrantId};
use sluicegate_nat::{Config, Translator};
use sluicegate_node::{
    EdgePipeline, Fairness, Firewall, Forwarder, Forwarding, GatePipeline, HostPolicy, Labels, NextHop, Node, Pipeline,
    RouterPipeline,
};
use sluicegate_pinhole::{PinholeSpec, Service, ServiceMode};
use sluicegate_site::LabError;
use sluicegate_wire::{
    Frame, FrameBuf, HEADROOM, Instant, IpProtocol, Port, Reason, UnixTime, build,
    capability::{Algorithm, ClientId, Limits, Repr, shim},
    ethernet::{self, EtherType},
    ipv4,
};

use super::{Median, Options, RUNS, Row, Run, Summary, busy_before, no_row};

const FLOWS: u32 = 1 << 20;
const CLIENTS: u32 = 1 << 14;
/// Packets of a run, and of a short one.
const PACKETS: u32 = 1 << 21;
const PACKETS_SHORT: u32 = 1 << 17;
const BATCH: usize = 128;
const BUFFER: usize = 2 * HEADROOM + 128;
const NOW: Instant = Instant::from_secs(1_000);
const UNIX: UnixTime = UnixTime(1_800_000_000);
const LINKS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const GATE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
const FILTERED: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 80);
const TRANSLATED: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 10);
const PORT: u16 = 53;
const KEY: [u8; 16] = [3; 16];
/// Bytes of the payload behind IPv4 and UDP in a 64-byte frame.
const PAYLOAD: [u8; 18] = [0x55; 18];

/// What packets come to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Of flows through a gate's address, by this port.
    Translated(Port),
    /// Of flows to a service behind a gate that keeps its address.
    Filtered,
    /// Of strangers, to a gate.
    Refused,
    /// Without a capability header, through a router.
    Plain,
    /// Requests, to which a router adds its capability.
    Request,
    /// Without a capability header, through an edge by this port: those of its hosts get one.
    Edge(Port),
}

const KINDS: [(&str, Kind); 8] = [
    ("gate.nat_in", Kind::Translated(Port::OUTSIDE)),
    ("gate.nat_out", Kind::Translated(Port::INSIDE)),
    ("gate.filter_in", Kind::Filtered),
    ("gate.refused", Kind::Refused),
    ("router.plain", Kind::Plain),
    ("router.request", Kind::Request),
    ("edge.out", Kind::Edge(Port::INSIDE)),
    ("edge.in", Kind::Edge(Port::OUTSIDE)),
];
const ORDERS: [(&str, bool); 2] = [("hot", false), ("random_1m", true)];

/// Measures, and hands each row to `tell`.
///
/// # Errors
/// [`LabError::Plan`] for a row that does not exist. A row whose packets did not pass as they should is no error: it is
/// [`Summary::missing`].
pub fn node(options: &Options, tell: &mut dyn FnMut(Row)) -> Result<Summary, LabError> {
    let only = options.only.as_deref().unwrap_or_default();
    let all = KINDS
        .into_iter()
        .flat_map(|(name, kind)| ORDERS.map(|(order, is_random)| (format!("{name}.{order}"), kind, is_random)));
    let wanted: Vec<_> = all.filter(|(row, ..)| row.starts_with(only)).collect();
    if wanted.is_empty() {
        return Err(no_row(only, &format!("{}, each .hot and .random_1m", KINDS.map(|(name, _)| name).join(", "))));
    }
    let mut run = Run::begin("node", busy_before()?, tell);
    let packets = if options.short { PACKETS_SHORT } else { PACKETS };
    for (row, kind, is_random) in wanted {
        let mut scene = Scene::new(kind);
        scene.open(0..1);
        if is_random {
            scene.open(0..FLOWS);
        }
        let order = |n: u32| if is_random { n.wrapping_mul(1_664_525).wrapping_add(1_013_904_223) % FLOWS } else { 0 };
        let costs: Vec<_> = (0..RUNS).map(|_| scene.cost((0..packets).map(order))).collect();
        match Median::of(&costs.iter().filter_map(|cost| *cost).collect::<Vec<_>>()) {
            Some(median) => run.row(&row, "ns", median, None, None),
            None => run.miss(format!("{row}: packets did not pass as they should")),
        }
    }
    Ok(run.end())
}

/// Everybody's link address is known.
struct Neighbour;

impl NextHop for Neighbour {
    fn link_address(&mut self, _: Port, _: IpAddr) -> Result<[u8; 6], Reason> {
        Ok([2, 0, 0, 0, 0, 9])
    }

    fn own_link_address(&self, port: Port) -> [u8; 6] {
        LINKS[usize::from(port.0)]
    }

    fn gauges(&self) -> Vec<Gauge> {
        Vec::new()
    }
}

/// A node, and the packets that come to it.
struct Scene {
    kind: Kind,
    node: Node<Neighbour>,
    port: Port,
    template: Vec<u8>,
    /// By client: the gate's ports.
    external: Vec<u16>,
    buffers: Vec<[u8; BUFFER]>,
}

impl Scene {
    fn new(kind: Kind) -> Self {
        let forwarding = Forwarding { address: GATE, ..Forwarding::default() };
        let labels = || Labels::new(Fairness::default());
        let forwarder = |forwarding| Forwarder::new(forwarding, &KEY);
        let mut external = Vec::new();
        let (port, pipeline) = match kind {
            Kind::Translated(_) | Kind::Filtered | Kind::Refused => {
                let (translator, ports) = translator(kind == Kind::Filtered);
                external = ports;
                let host = Host::new(host::Config { answers_only: true, ..host::Config::default() }, [5; 32]);
                let gate = Firewall::new(translator, forwarding, &KEY);
                let port = if let Kind::Translated(port) = kind { port } else { Port::OUTSIDE };
                (port, Pipeline::Gate(Box::new(GatePipeline::new(router(), host, gate, labels(), false))))
            }
            Kind::Plain | Kind::Request => {
                let router = RouterPipeline::new(router(), forwarder(forwarding), labels(), false);
                (Port::OUTSIDE, Pipeline::Router(Box::new(router)))
            }
            Kind::Edge(port) => {
                let grants = Limits::new(100, 10).expect("a possible N and T");
                let policy = ClientPolicy::new(ClientIds::Fixed(ClientId(1)), grants);
                let host = Host::new(host::Config::default(), [5; 32]);
                let edge = EdgePipeline::new(host, HostPolicy::Client(policy), forwarder(forwarding));
                (port, Pipeline::Edge(Box::new(edge)))
            }
        };
        let node = Node::new(pipeline, [None, None], Neighbour);
        Self { kind, node, port, template: template_of(kind, port), external, buffers: vec![[0; BUFFER]; BATCH] }
    }

    /// Lets flows begin, as their clients do.
    fn open(&mut self, flows: impl IntoIterator<Item = u32>) {
        let (kind, port, template) = (self.kind, self.port, self.template.clone());
        if let Kind::Translated(_) = kind {
            (self.kind, self.port) = (Kind::Translated(Port::OUTSIDE), Port::OUTSIDE);
            self.template = template_of(self.kind, self.port);
        }
        let _ = self.cost(flows);
        (self.kind, self.port, self.template) = (kind, port, template);
    }

    /// Nanoseconds a packet of these flows: the median over batches, so that what interrupts the thread does not count.
    /// `None` if one did not pass, or did, against its kind.
    fn cost(&mut self, flows: impl IntoIterator<Item = u32>) -> Option<f64> {
        let (mut flows, mut costs) = (flows.into_iter(), Vec::new());
        let passes = self.kind != Kind::Refused;
        loop {
            let mut ready = 0;
            let mut buffers = std::mem::take(&mut self.buffers);
            for (buffer, flow) in buffers.iter_mut().zip(&mut flows) {
                self.write(&mut buffer[HEADROOM..], flow);
                ready += 1;
            }
            let start = std::time::Instant::now();
            for buffer in &mut buffers[..ready] {
                let mut frame = Frame::new(buffer, HEADROOM, self.template.len())?;
                if self.node.on_frame(NOW, self.port, &mut frame).is_some() != passes {
                    return None;
                }
            }
            costs.push(start.elapsed().as_nanos() as f64);
            self.buffers = buffers;
            if ready < BATCH {
                break;
            }
        }
        // The last batch is not full.
        costs.pop();
        costs.sort_by(f64::total_cmp);
        costs.get(costs.len() / 2).map(|cost| cost / BATCH as f64)
    }

    /// Writes the packet of a flow.
    fn write(&self, to: &mut [u8], flow: u32) {
        let frame = &mut to[..self.template.len()];
        frame.copy_from_slice(&self.template);
        let packet = &mut frame[ethernet::HEADER_LEN..];
        let client = Ipv4Addr::from_bits(0x6440_0000 + flow % CLIENTS);
        let client_port = 10_000 + (flow / CLIENTS) as u16;
        let gate_port = self.external.get((flow % CLIENTS) as usize).copied().unwrap_or(PORT);
        let (src, dst, ports) = match self.kind {
            Kind::Translated(Port::OUTSIDE) => (client, GATE, (client_port, gate_port)),
            Kind::Translated(_) => (TRANSLATED, client, (PORT, client_port)),
            Kind::Refused => (Ipv4Addr::from_bits(0x0b00_0000 + flow), GATE, (client_port, 9)),
            Kind::Filtered | Kind::Plain | Kind::Request | Kind::Edge(Port::OUTSIDE) => {
                (client, FILTERED, (client_port, PORT))
            }
            // One far end: what an edge knows of it serves all flows.
            Kind::Edge(_) => (client, FILTERED, (client_port, PORT)),
        };
        let mut header = ipv4::Packet::new_unchecked(&mut *packet);
        header.set_src(src);
        header.set_dst(dst);
        header.fill_checksum();
        if self.kind != Kind::Request {
            // The template has no UDP checksum.
            packet[20..22].copy_from_slice(&ports.0.to_be_bytes());
            packet[22..24].copy_from_slice(&ports.1.to_be_bytes());
        }
    }
}

/// A frame of 64 bytes for a node that gets it by `port`, without the check sequence.
fn template_of(kind: Kind, port: Port) -> Vec<u8> {
    let mut packet = build::datagram((TRANSLATED, 1), (FILTERED, 1), &PAYLOAD);
    packet[26..28].copy_from_slice(&[0, 0]);
    if kind == Kind::Request {
        let mut frame = FrameBuf::from_bytes(&build::packet(TRANSLATED, FILTERED, &(IpProtocol::UDP, &[][..])));
        let request = Repr::request(Algorithm::SipHash, ClientId::NONE, 1, IpProtocol::UDP);
        frame.with(|frame| shim::insert(frame, &request, shim::Carriage::Native)).expect("a packet takes a header");
        packet = frame.bytes().to_vec();
    }
    let link = ethernet::Repr { dst: LINKS[usize::from(port.0)], src: [2, 0, 0, 0, 0, 8], ethertype: EtherType::IPV4 };
    let mut frame = vec![0; ethernet::HEADER_LEN];
    link.emit(&mut ethernet::Packet::new_unchecked(&mut frame[..]));
    frame.extend_from_slice(&packet);
    frame
}

fn router() -> Router {
    let config = RouterConfig {
        lines_max: 1_024,
        lines6_max: 1,
        revocations_max: 16,
        boundary: [true, true],
        least: Limits::LEAST,
        seed: Seed([1; 32]),
        tag_key: [2; 16],
        first_seconds: 1_000,
        started_at: NOW,
    };
    Router::new(config, KEY)
}

/// A gate's permissions for all clients to one service, and where each finds it.
fn translator(filter: bool) -> (Translator, Vec<u16>) {
    let config = Config {
        gate_address: GATE,
        external_ports: (10_000, 60_000),
        flows_max: FLOWS + FLOWS / 8,
        pinholes_max: CLIENTS + 16,
        ..Config::default()
    };
    let mut translator = Translator::new(config, KEY, 1);
    let (mode, target) = if filter { (ServiceMode::Filter, FILTERED) } else { (ServiceMode::Nat, TRANSLATED) };
    let service = Service { id: 1, mode, address: target.into(), outbound_all: false, open: false };
    translator.set_services(&[service]).expect("one service fits");
    let ports = (0..CLIENTS).map(|n| {
        let grant = Grant {
            flags: 0,
            least_mode: DataMode::Pinhole,
            protocol: IpProtocol::UDP.0,
            id: GrantId::of_call([9; 12], n),
            issuer: [1; 8],
            epoch: 0,
            not_before: UNIX,
            not_after: UNIX.plus_secs(86_400),
            bytes: 1 << 50,
            client_id: 0,
            flows: (FLOWS / CLIENTS) as u16,
            rate_100kbps: 0,
            client_address: Ipv4Addr::from_bits(0x6440_0000 + n).into(),
            client_ports: ANY_PORTS,
            gate_address: Ipv4Addr::UNSPECIFIED.into(),
            gate_ports: (0, 0),
            holder: [0; 32],
            user_pseudonym: u64::from(n).to_be_bytes(),
        };
        let ports = (PORT, PORT);
        let spec = PinholeSpec { grant, service: 1, target: target.into(), target_ports: ports, filter, keys: None };
        translator.install(NOW, UNIX, spec).expect("a gate has room for its clients").ports.0
    });
    let ports = ports.collect();
    (translator, ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_takes_the_way_through_the_node_that_its_name_says() {
        for (name, kind) in KINDS {
            let mut scene = Scene::new(kind);
            scene.open(0..7);
            assert!(scene.cost((0..4 * BATCH as u32).map(|n| n % 7)).is_some(), "{name}");
        }
    }
}
