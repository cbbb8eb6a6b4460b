//! A gate, routers and edges without links: frames are handed to them, and what leaves is taken.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]

#[path = "../firewall/site/packets.rs"]
pub mod packets;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sluicegate_bounded::Gauge;
use sluicegate_capability::{
    host::{self, ClientIds, ClientPolicy, Host, ServerConfig, ServerPolicy},
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
use sluicegate_wire::{
    FrameBuf, HEADROOM, Instant, Port, Reason, UnixTime,
    capability::{ClientId, Limits, shim::Carriage},
    ethernet::{self, EtherType},
};

pub const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 7));
pub const CLIENT6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 7, 0, 0, 0, 0, 1));
/// Private and routed, private and translated, open.
pub const FILTERED: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 80));
pub const FILTERED6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 8, 0, 0, 0, 0, 1));
pub const HIDDEN: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 10));
pub const OPEN: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 90));
pub const GATE: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1));
pub const CLIENT_ID: u32 = 77;
pub const PORT: u16 = 5_000;
pub const START: Instant = Instant::from_secs(100);
pub const UNIX: UnixTime = UnixTime(1_800_000_000);
pub const LINKS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];

/// Everybody is the next hop.
pub struct Anywhere;

impl NextHop for Anywhere {
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

/// Few peers: whoever makes nodes by the thousand waits for nothing but their tables.
fn host(config: host::Config, key: u8) -> Host {
    Host::new(host::Config { peers_max: 64, remotes_max: 64, ..config }, [key; 32])
}

pub fn a_router() -> Router {
    Router::new(
        RouterConfig {
            lines_max: 256,
            lines6_max: 256,
            revocations_max: 16,
            boundary: [true, true],
            least: Limits::LEAST,
            seed: Seed([1; 32]),
            tag_key: [2; 16],
            first_seconds: UNIX.0,
            started_at: START,
        },
        [3; 16],
    )
}

pub fn config() -> Config {
    let IpAddr::V4(gate_address) = GATE else { unreachable!("the gate's address is one of IPv4") };
    Config { gate_address, flows_max: 4_096, flows_v6_max: 512, pinholes_max: 64, ..Config::default() }
}

pub fn node(pipeline: Pipeline) -> Node<Anywhere> {
    Node::new(pipeline, [None, None], Anywhere)
}

pub fn forwarding() -> Forwarding {
    Forwarding { address: config().gate_address, ..Forwarding::default() }
}

fn forwarder() -> Forwarder {
    Forwarder::new(forwarding(), &[4; 16])
}

/// A gate that nothing is granted at yet.
pub fn gate_of(config: Config, forwarding: Forwarding, services: &[Service]) -> Node<Anywhere> {
    let host = host(host::Config { answers_only: true, ..host::Config::default() }, 5);
    let mut translator = Translator::new(config, [4; 16], 4);
    translator.set_services(services).unwrap();
    let firewall = Firewall::new(translator, forwarding, &[4; 16]);
    let gate = GatePipeline::new(a_router(), host, firewall, labels(), false);
    node(Pipeline::Gate(Box::new(gate)))
}

/// What a gate permits.
pub fn translator<N>(node: &mut Node<N>) -> &mut Translator {
    &mut node.pipeline.firewall_mut().unwrap().translator
}

pub fn router() -> Node<Anywhere> {
    node(Pipeline::Router(Box::new(RouterPipeline::new(a_router(), forwarder(), labels(), false))))
}

pub fn labels() -> Labels {
    Labels::new(Fairness::default())
}

pub fn grant(number: u32, client: IpAddr, protocol: u8) -> Grant {
    let any = if client.is_ipv4() { IpAddr::from(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
    Grant {
        flags: 0,
        least_mode: DataMode::Pinhole,
        protocol,
        id: GrantId::of_call([9; 12], number),
        issuer: [1; 8],
        epoch: 0,
        not_before: UNIX,
        not_after: UNIX.plus_secs(3_600),
        bytes: 100_000_000,
        client_id: CLIENT_ID,
        flows: 0,
        rate_100kbps: 0,
        client_address: client,
        client_ports: ANY_PORTS,
        gate_address: any,
        gate_ports: (0, 0),
        holder: [0; 32],
        user_pseudonym: u64::from(number).to_be_bytes(),
    }
}

/// A gate with all kinds of services, which the client may use by UDP, TCP and ping; and its external UDP port.
pub fn a_gate(config: Config) -> (Node<Anywhere>, u16) {
    a_gate_with(config, forwarding())
}

/// As [`a_gate`], with other tables for fragments.
pub fn a_gate_with(config: Config, forwarding: Forwarding) -> (Node<Anywhere>, u16) {
    let service = |id, mode, address, open: bool| Service { id, mode, address, outbound_all: !open, open };
    let mut node = gate_of(
        config,
        forwarding,
        &[
            service(0, ServiceMode::Filter, FILTERED, false),
            service(1, ServiceMode::Nat, HIDDEN, false),
            service(2, ServiceMode::Filter, OPEN, true),
            service(3, ServiceMode::Filter, FILTERED6, false),
        ],
    );
    let mut external = 0;
    let mut number = 0;
    for (service, target, client) in [(0, FILTERED, CLIENT), (1, HIDDEN, CLIENT), (3, FILTERED6, CLIENT6)] {
        for protocol in [17, 6, if client.is_ipv4() { 1 } else { 58 }] {
            number += 1;
            let grant = grant(number, client, protocol);
            let spec = PinholeSpec {
                grant: grant.clone(),
                service,
                target,
                target_ports: (PORT, PORT),
                filter: service != 1,
                keys: None,
            };
            let opened = translator(&mut node).install(START, UNIX, spec).unwrap();
            node.pipeline.opened(&Grant { gate_address: opened.address, ..grant });
            if service == 1 && protocol == 17 {
                external = opened.ports.0;
            }
        }
    }
    (node, external)
}

pub fn edge(carriage: Carriage) -> Node<Anywhere> {
    let host = host(host::Config { carriage, ..host::Config::default() }, 6);
    let policy = ClientPolicy::new(ClientIds::Fixed(ClientId(CLIENT_ID)), Limits::new(100, 10).unwrap());
    node(Pipeline::Edge(Box::new(EdgePipeline::new(host, HostPolicy::Client(policy), forwarder()))))
}

pub fn server_edge() -> Node<Anywhere> {
    let policy = ServerPolicy::new(ServerConfig { paths_max: 64, senders_max: 64, ..ServerConfig::default() }, [7; 16]);
    let host = host(host::Config::default(), 8);
    node(Pipeline::Edge(Box::new(EdgePipeline::new(host, HostPolicy::Server(Box::new(policy)), forwarder()))))
}

/// An IP packet for a node that gets it by `port`.
pub fn frame(port: Port, packet: &[u8]) -> FrameBuf {
    let is_v4 = packet.first().is_some_and(|first| first >> 4 == 4);
    let ethertype = if is_v4 { EtherType::IPV4 } else { EtherType::IPV6 };
    let link = ethernet::Repr { dst: LINKS[usize::from(port.0)], src: [2, 0, 0, 0, 0, 8], ethertype };
    let mut bytes = vec![0; ethernet::HEADER_LEN];
    link.emit(&mut ethernet::Packet::new_unchecked(&mut bytes[..]));
    bytes.extend_from_slice(packet);
    FrameBuf::from_bytes(&bytes)
}

/// Hands a frame to a node; gives the IP packets that leave.
pub fn step(node: &mut Node<Anywhere>, now: Instant, port: Port, mut frame: FrameBuf) -> Vec<(Port, Vec<u8>)> {
    let out = frame.with(|frame| node.on_frame(now, port, frame));
    let mut left: Vec<(Port, Vec<u8>)> =
        out.map(|out| (out, frame.bytes()[ethernet::HEADER_LEN..].to_vec())).into_iter().collect();
    left.extend(released(node, now));
    left
}

/// What a node let go since.
pub fn released(node: &mut Node<Anywhere>, now: Instant) -> Vec<(Port, Vec<u8>)> {
    let mut left = Vec::new();
    let mut buffer = [0; 2 * HEADROOM + 4_096];
    node.release(now, &mut buffer, &mut |out, bytes| left.push((out, bytes[ethernet::HEADER_LEN..].to_vec())));
    left
}
