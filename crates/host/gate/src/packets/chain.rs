//! A chain of nodes on the way between a client and a server, in memory: what each makes of what the one before sent.

mod forging;
mod sharing;
mod tables;

use crate::{
    assemble,
    config::{Capabilities, Config, EdgePolicy},
    samples::{self, Hops, NEXT, OWN},
    secrets::Seeds,
};
use sluicegate_api::Role;
use sluicegate_capability::host::{ClientIds, ClientPolicy, Host};
use sluicegate_grant::{
    DataMode, FLAG_PROVES_ADDRESS, Grant,
    mac::{Ends, Purpose, SessionKeys},
};
use sluicegate_node::{EdgePipeline, Firewall, Forwarder, Forwarding, HostPolicy, Node, Pipeline};
use sluicegate_pinhole::{PinholeSpec, Service, ServiceMode};
use sluicegate_wire::{
    FrameBuf, Instant, IpProtocol, Port, Reason, UnixTime, build,
    capability::{ClientId, Kind, Limits, shim},
    ethernet::{self, EtherType},
    ip::Summary,
    ipv4, udp,
};
use std::{
    collections::VecDeque,
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

const START: Instant = Instant::from_secs(100);
const CLIENT: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 80);
const CLIENT_ID: u32 = 77;

/// An end of a cable.
type End = (usize, Port);

/// Nodes and the cables between them; an end without cable belongs to the client or the server.
struct Chain {
    nodes: Vec<Node<Hops>>,
    cables: Vec<(End, End)>,
    now: Instant,
    /// What came out at ends without cable.
    arrived: Vec<(End, Vec<u8>)>,
    /// Client ids of those agents that have session keys, and how many requests they have sealed.
    agents: std::ops::Range<u32>,
    sealed: u64,
}

/// The session keys of the agent with this client id.
fn keys_of(client_id: u32) -> SessionKeys {
    SessionKeys::from_bytes([[client_id as u8; 16], [!client_id as u8; 16]])
}

/// As a frontend issues it: whoever signs in with an agent proves where its packets come from; a telephone cannot.
fn grant_for(client_id: u32, least_mode: DataMode) -> (Grant, Option<SessionKeys>) {
    let is_agent = least_mode != DataMode::Pinhole;
    let flags = if is_agent { FLAG_PROVES_ADDRESS } else { 0 };
    let grant = Grant { client_id, client_address: CLIENT.into(), least_mode, flags, ..samples::grant(1) };
    (grant, is_agent.then(|| keys_of(client_id)))
}

fn node(role: Role, change: impl FnOnce(&mut Capabilities)) -> Node<Hops> {
    node_with(role, firewall(&[]), change)
}

fn firewall(services: &[Service]) -> Firewall {
    let tables = sluicegate_nat::Config { flows_max: 1_024, flows_v6_max: 64, pinholes_max: 16, ..Default::default() };
    samples::firewall(tables, services)
}

fn node_with(role: Role, firewall: Firewall, change: impl FnOnce(&mut Capabilities)) -> Node<Hops> {
    let mut config = Config::new("node", "out", "in", "/nowhere");
    config.role = role;
    // N/T so small that a packet every 10 ms keeps its line.
    config.capabilities =
        Capabilities { lines_max: Some(1_024), peers_max: 64, limits: (100, 10), ..Capabilities::new(role) };
    change(&mut config.capabilities);
    let seeds = Seeds::draw((START, samples::VALID.0)).unwrap();
    let pipeline = assemble::pipeline(&config, &seeds, firewall, [1_500; 2], std::iter::empty()).unwrap();
    let egress = assemble::egress(&config, [1_500; 2]).unwrap();
    Node::new(pipeline, egress, Hops { known: true })
}

fn gate(open: bool) -> Node<Hops> {
    node_with(Role::Gate, firewall(&[service(open)]), |_| {})
}

fn service(open: bool) -> Service {
    Service { id: 0, mode: ServiceMode::Filter, address: SERVER.into(), outbound_all: false, open }
}

fn forwarder() -> Forwarder {
    Forwarder::new(Forwarding::default(), &[7; 16])
}

/// A node in front of one client that has a grant with this id.
fn agent(client_id: u32) -> Node<Hops> {
    let mut node = node(Role::Edge, |_| {});
    let host = Host::new(Default::default(), [9; 32]);
    let policy = ClientPolicy::new(ClientIds::Fixed(ClientId(client_id)), Limits::new(100, 10).unwrap());
    node.pipeline = Pipeline::Edge(Box::new(EdgePipeline::new(host, HostPolicy::Client(policy), forwarder())));
    node
}

fn datagram(from: Ipv4Addr, to: Ipv4Addr, payload: &[u8]) -> Vec<u8> {
    build::datagram((IpAddr::V4(from), 5_000), (IpAddr::V4(to), 5_000), payload)
}

/// The payload of a plain datagram whose checksums are right.
#[track_caller]
fn payload(packet: &[u8]) -> Vec<u8> {
    let ip = Summary::parse(packet).unwrap();
    assert_eq!(ip.protocol, IpProtocol::UDP);
    assert!(ip.verify_transport_checksum(packet));
    ip.transport(packet)[udp::HEADER_LEN..].to_vec()
}

impl Chain {
    fn new(nodes: Vec<Node<Hops>>, cables: &[(End, End)]) -> Self {
        Self { nodes, cables: cables.to_vec(), now: START, arrived: Vec::new(), agents: 0..0, sealed: 0 }
    }

    fn far_end(&self, end: End) -> Option<End> {
        self.cables.iter().find_map(|(one, other)| match end {
            end if end == *one => Some(*other),
            end if end == *other => Some(*one),
            _ => None,
        })
    }

    /// Lets an IP packet arrive at an end and follows everything that comes of it.
    fn send(&mut self, end: End, packet: &[u8]) {
        let mut queue = VecDeque::from([(end, packet.to_vec())]);
        while let Some(((index, port), packet)) = queue.pop_front() {
            let node = &mut self.nodes[index];
            let ethertype = EtherType::IPV4;
            let side = usize::from(port.0);
            let link = ethernet::Repr { dst: OWN[side], src: NEXT[side], ethertype };
            let mut bytes = vec![0; ethernet::HEADER_LEN];
            link.emit(&mut ethernet::Packet::new_unchecked(&mut bytes[..]));
            bytes.extend_from_slice(&packet);
            let mut frame = FrameBuf::from_bytes(&bytes);
            let out = frame.with(|frame| node.on_frame(self.now, port, frame));
            let mut sent: Vec<(Port, Vec<u8>)> = out.map(|out| (out, frame.bytes().to_vec())).into_iter().collect();
            sent.extend(released(node, self.now));
            self.pass_on(index, sent, &mut queue);
        }
    }

    fn pass_on(&mut self, index: usize, sent: Vec<(Port, Vec<u8>)>, queue: &mut VecDeque<(End, Vec<u8>)>) {
        for (out, frame) in sent {
            let packet = frame[ethernet::HEADER_LEN..].to_vec();
            let is_agents = matches!(self.nodes[index].pipeline, Pipeline::Edge(_)) && out == Port::OUTSIDE;
            let packet = if is_agents { self.seal_request(packet) } else { packet };
            match self.far_end((index, out)) {
                Some(far) => queue.push_back((far, packet)),
                None => self.arrived.push(((index, out), packet)),
            }
        }
    }

    /// What an agent makes of its own request for a capability.
    fn seal_request(&mut self, packet: Vec<u8>) -> Vec<u8> {
        let ip = Summary::parse(&packet).unwrap();
        let Ok(Some(found)) = shim::find(&ip, &packet) else { return packet };
        let header = found.packet(&packet);
        if header.kind() != Kind::Request || !self.agents.contains(&header.client_id().0) {
            return packet;
        }
        self.sealed += 1;
        let ClientId(id) = header.client_id();
        let ends = Ends::of_request(ip.dst, header.upper_protocol());
        let text = &packet[found.payload_at..];
        let trailer = keys_of(id).to_service.trailer(id, Purpose::Request, self.sealed, &ends, text);
        let mut frame = FrameBuf::from_bytes(&packet);
        frame.with(|frame| shim::append(frame, &found, &trailer)).unwrap();
        frame.bytes().to_vec()
    }

    /// Lets time pass and does what falls due.
    fn wait(&mut self, time: Duration) {
        self.now = self.now + time;
        for index in 0..self.nodes.len() {
            self.nodes[index].handle_timeout(self.now);
            let sent = released(&mut self.nodes[index], self.now);
            let mut queue = VecDeque::new();
            self.pass_on(index, sent, &mut queue);
            for (end, packet) in queue {
                self.send(end, &packet);
            }
        }
    }

    /// What came out at `end` since the last time, as payloads.
    #[track_caller]
    fn arrivals(&mut self, end: End) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.arrived)
            .into_iter()
            .map(|(at, packet)| {
                assert_eq!(at, end);
                payload(&packet)
            })
            .collect()
    }

    fn passed(&self, index: usize) -> [u64; 5] {
        self.nodes[index].published(self.now, &[]).0.passed
    }

    fn dropped(&self, index: usize, reason: Reason) -> u64 {
        self.nodes[index].published(self.now, &[]).0.dropped[reason as usize]
    }
}

fn released(node: &mut Node<Hops>, now: Instant) -> Vec<(Port, Vec<u8>)> {
    let mut sent = Vec::new();
    node.release(now, &mut [0; 2_048], &mut |port, bytes| sent.push((port, bytes.to_vec())));
    sent
}

/// Client, edge, router, gate in front of an open service, edge, server.
fn public() -> (Chain, End, End) {
    let nodes = vec![
        node(Role::Edge, |_| {}),
        node(Role::Router, |told| told.boundary = [true, false]),
        gate(true),
        node(Role::Edge, |told| told.policy = EdgePolicy::Server),
    ];
    let cables = [
        ((0, Port::OUTSIDE), (1, Port::OUTSIDE)),
        ((1, Port::INSIDE), (2, Port::OUTSIDE)),
        ((2, Port::INSIDE), (3, Port::OUTSIDE)),
    ];
    (Chain::new(nodes, &cables), (0, Port::INSIDE), (3, Port::INSIDE))
}

/// Client, agent, router, gate in front of a private service.
fn private(client_id: u32, least_mode: DataMode) -> (Chain, End, End) {
    let mut gate = gate(false);
    let (grant, keys) = grant_for(CLIENT_ID, least_mode);
    let spec = PinholeSpec {
        grant: grant.clone(),
        service: 0,
        target: SERVER.into(),
        target_ports: (5_000, 5_000),
        filter: true,
        keys,
    };
    samples::translator(&mut gate).install(START, UnixTime(samples::VALID.0.0 + 10), spec).unwrap();
    gate.pipeline.opened(&grant);
    let nodes = vec![agent(client_id), node(Role::Router, |_| {}), gate];
    let cables = [((0, Port::OUTSIDE), (1, Port::OUTSIDE)), ((1, Port::INSIDE), (2, Port::OUTSIDE))];
    let mut chain = Chain::new(nodes, &cables);
    chain.agents = if grant.proves_address() { CLIENT_ID..CLIENT_ID + 1 } else { 0..0 };
    (chain, (0, Port::INSIDE), (2, Port::INSIDE))
}

/// Sends `count` datagrams with an answer to each, 10 ms apart.
#[track_caller]
fn converse(chain: &mut Chain, (client, server): (End, End), count: u8) {
    for number in 0..count {
        chain.send(client, &datagram(CLIENT, SERVER, &[number; 400]));
        assert_eq!(chain.arrivals(server), [vec![number; 400]], "packet {number}");
        chain.send(server, &datagram(SERVER, CLIENT, &[number; 300]));
        assert_eq!(chain.arrivals(client), [vec![number; 300]], "answer {number}");
        chain.wait(Duration::from_millis(10));
    }
}

#[test]
fn two_unmodified_hosts_talk_with_capabilities_through_edges_a_router_and_a_gate() {
    let (mut chain, client, server) = public();
    converse(&mut chain, (client, server), 60);
    for index in [1, 2] {
        let [requests, lists, nonces, _, plain] = chain.passed(index);
        assert!((1..=4).contains(&requests) && lists > 0 && nonces > 90, "{:?}", chain.passed(index));
        assert_eq!(plain, 0);
        let reading = chain.nodes[index].published(chain.now, &[]).0;
        assert_eq!(reading.demoted.iter().sum::<u64>(), 0);
    }
}

#[test]
fn a_router_that_forgot_everything_demotes_and_loses_nothing() {
    let (mut chain, client, server) = public();
    converse(&mut chain, (client, server), 20);
    chain.nodes[1] = node(Role::Router, |_| {});
    converse(&mut chain, (client, server), 20);
    let reading = chain.nodes[1].published(chain.now, &[]).0;
    let demoted: u64 = reading.demoted.iter().sum();
    assert!(demoted > 0 && demoted <= 6, "both directions, until each sender has heard of it: {demoted}");
    assert!(reading.passed[2] > 10, "{:?}", reading.passed);
}

#[test]
fn legacy_packets_reach_an_open_service_and_pass_a_router_as_what_they_are() {
    let (mut chain, _, server) = public();
    chain.send((1, Port::OUTSIDE), &datagram(CLIENT, SERVER, b"old"));
    assert_eq!(chain.arrivals(server), [b"old".to_vec()]);
    assert_eq!((chain.passed(1)[4], chain.passed(2)[4]), (1, 1));
}

#[test]
fn the_gate_answers_for_a_private_service_and_takes_the_header_off() {
    let (mut chain, client, server) = private(CLIENT_ID, DataMode::Pinhole);
    converse(&mut chain, (client, server), 40);
    let [requests, lists, nonces, ..] = chain.passed(2);
    assert!(requests <= 3 && lists > 0 && nonces > 20, "{:?}", chain.passed(2));
}

#[test]
fn a_grant_that_demands_capabilities_lets_nothing_else_in() {
    let (mut chain, client, server) = private(CLIENT_ID, DataMode::Capability);
    chain.send((1, Port::OUTSIDE), &datagram(CLIENT, SERVER, b"plain"));
    assert_eq!(chain.dropped(2, Reason::NoPinhole), 1, "nobody has proved to be at this address");
    chain.send(client, &datagram(CLIENT, SERVER, b"request"));
    assert_eq!(chain.arrivals(server), [b"request".to_vec()], "a sealed request is proof enough for what it rides on");
    chain.send((1, Port::OUTSIDE), &datagram(CLIENT, SERVER, b"plain"));
    assert_eq!(chain.dropped(2, Reason::ModeTooWeak), 1);
    assert_eq!(chain.arrivals(server), Vec::<Vec<u8>>::new());
    chain.wait(Duration::from_millis(50));
    chain.send(client, &datagram(CLIENT, SERVER, b"capable"));
    assert_eq!(chain.arrivals(server), [b"capable".to_vec()]);
}

#[test]
fn a_strangers_request_never_reaches_the_protected_link() {
    let (mut chain, _, server) = private(CLIENT_ID, DataMode::Pinhole);
    let stranger = Ipv4Addr::new(203, 0, 113, 66);
    chain.send((0, Port::INSIDE), &datagram(stranger, SERVER, b"let me in"));
    assert_eq!(chain.arrivals(server), Vec::<Vec<u8>>::new());
    assert_eq!((chain.passed(2)[0], chain.dropped(2, Reason::RequestRefused)), (1, 1));
    assert_eq!(chain.nodes[2].published(chain.now, &[]).0.sent[1].packets, 0);
}

#[test]
fn another_client_id_behind_the_same_address_gets_no_capability_and_keeps_its_pinhole() {
    let (mut chain, client, server) = private(CLIENT_ID + 1, DataMode::Pinhole);
    chain.send(client, &datagram(CLIENT, SERVER, b"via the pinhole"));
    assert_eq!(chain.arrivals(server), [b"via the pinhole".to_vec()]);
    chain.wait(Duration::from_millis(50));
    chain.send(client, &datagram(CLIENT, SERVER, b"again"));
    let [_, lists, nonces, ..] = chain.passed(2);
    assert_eq!((lists, nonces), (0, 0));
}

#[test]
fn a_revoked_grant_ends_its_capabilities_at_once() {
    let (mut chain, client, server) = private(CLIENT_ID, DataMode::Capability);
    chain.send(client, &datagram(CLIENT, SERVER, b"request"));
    chain.wait(Duration::from_millis(50));
    chain.send(client, &datagram(CLIENT, SERVER, b"capable"));
    assert_eq!(chain.arrivals(server).len(), 2);
    let id = samples::grant(1).id;
    let gate = &mut chain.nodes[2];
    let left = samples::translator(gate).allowance(chain.now, id).map(|left| (left.client, left.address));
    assert_eq!(left, Some((Some(CLIENT.into()), SERVER.into())));
    gate.pipeline.revoke(chain.now, id).expect("it was open");
    chain.send(client, &datagram(CLIENT, SERVER, b"too late"));
    assert_eq!(chain.arrivals(server), Vec::<Vec<u8>>::new());
    let demoted = chain.nodes[2].published(chain.now, &[]).0.demoted;
    assert_eq!(demoted[Reason::CapabilityRevoked as usize] + demoted[Reason::CapabilityUnknown as usize], 1);
}

#[test]
fn a_packet_that_another_router_demoted_passes_a_gate_whose_line_knows_it() {
    let (mut chain, client, server) = private(CLIENT_ID, DataMode::Capability);
    chain.send(client, &datagram(CLIENT, SERVER, b"request"));
    chain.wait(Duration::from_millis(50));
    chain.arrived.clear();
    for number in 0..12 {
        chain.send(client, &datagram(CLIENT, SERVER, &[number]));
        assert_eq!(chain.arrivals(server), [vec![number]]);
        chain.send(server, &datagram(SERVER, CLIENT, &[number]));
        assert_eq!(chain.arrivals(client), [vec![number]]);
        chain.wait(Duration::from_millis(10));
    }
    chain.nodes[1] = node(Role::Router, |_| {});
    for number in 0..12 {
        chain.send(client, &datagram(CLIENT, SERVER, &[number]));
        assert_eq!(chain.arrivals(server), [vec![number]], "none is lost");
        chain.send(server, &datagram(SERVER, CLIENT, &[number]));
        assert_eq!(chain.arrivals(client), [vec![number]]);
        chain.wait(Duration::from_millis(10));
    }
    let before = chain.nodes[1].published(chain.now, &[]).0.demoted.iter().sum::<u64>();
    assert!((1..=4).contains(&before), "{before}");
    assert_eq!(chain.dropped(2, Reason::ModeTooWeak), 0);
}
