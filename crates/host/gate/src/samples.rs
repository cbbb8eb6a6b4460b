//! Grants, services and packets for the tests.

use crate::{
    assemble, clock,
    config::{Capabilities, Config},
    secrets::Seeds,
};
use sluicegate_api::Role;
use sluicegate_bounded::Gauge;
use sluicegate_feed::{FeedService, GrantDelta};
use sluicegate_grant::{ANY_PORTS, DataMode, Grant, GrantId, Protocol};
use sluicegate_nat::{self as nat, Translator};
use sluicegate_node::{Firewall, Forwarding, NextHop, Node, Pipeline};
use sluicegate_pinhole::Service;
use sluicegate_policy::{Outbound, ServiceDefault, ServiceMode};
use sluicegate_wire::{
    Port, Reason, UnixTime, build,
    ethernet::{self, EtherType},
    ipv4, udp,
};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

pub(crate) const GATE_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1));
pub(crate) const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 7));
pub(crate) const TARGET: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
/// Not before and not after of every sample grant.
pub(crate) const VALID: (UnixTime, UnixTime) = (UnixTime(1_900_000_000), UnixTime(1_900_003_600));

/// A UDP grant of the call `number`.
pub(crate) fn grant(number: u8) -> Grant {
    Grant {
        flags: 0,
        least_mode: DataMode::Pinhole,
        protocol: Protocol::UDP,
        id: GrantId::of_call([number; 12], 0),
        issuer: [9; 8],
        epoch: 0,
        not_before: VALID.0,
        not_after: VALID.1,
        bytes: 1_000_000,
        client_id: 0,
        flows: 4,
        rate_100kbps: 0,
        client_address: CLIENT,
        client_ports: ANY_PORTS,
        gate_address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        gate_ports: (0, 0),
        holder: [0; 32],
        user_pseudonym: [0; 8],
    }
}

/// The grant on its way to the service "web" at [`TARGET`], port 5004.
pub(crate) fn delta(grant: Grant) -> GrantDelta {
    GrantDelta {
        grant,
        user: "alice".into(),
        service: "web".into(),
        target: TARGET,
        target_ports: (5004, 5004),
        mode: ServiceMode::Nat,
        keys: None,
    }
}

/// A NAT service at [`TARGET`].
pub(crate) fn service(name: &str) -> FeedService {
    FeedService {
        name: name.into(),
        mode: ServiceMode::Nat,
        address: TARGET,
        default: ServiceDefault::Off,
        ports: ["udp/1-65535", "tcp/1-65535", "icmp"].map(|range| range.parse().unwrap()).into(),
        outbound: Outbound::None,
        sip: None,
    }
}

/// Grant number `number`, valid now and for the next hour.
pub(crate) fn current_grant(number: u8) -> Grant {
    let now = clock::unix();
    Grant { not_before: now, not_after: now.plus_secs(3_600), ..grant(number) }
}

/// The gate's link addresses, by port.
pub(crate) const OWN: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
/// Link address of every next hop, by port.
pub(crate) const NEXT: [[u8; 6]; 2] = [[2, 0, 0, 0, 1, 1], [2, 0, 0, 0, 1, 2]];

/// Next hops that are always known, or never.
pub(crate) struct Hops {
    pub(crate) known: bool,
}

impl NextHop for Hops {
    fn link_address(&mut self, port: Port, _: IpAddr) -> Result<[u8; 6], Reason> {
        if self.known { Ok(NEXT[usize::from(port.0)]) } else { Err(Reason::NoNeighbour) }
    }

    fn own_link_address(&self, port: Port) -> [u8; 6] {
        OWN[usize::from(port.0)]
    }

    fn gauges(&self) -> Vec<Gauge> {
        Vec::new()
    }
}

/// A firewall with tables of this size, in front of these services.
pub(crate) fn firewall(tables: nat::Config, services: &[Service]) -> Firewall {
    let forwarding = Forwarding { address: tables.gate_address, ..Forwarding::default() };
    let mut translator = Translator::new(tables, [7; 16], 7);
    translator.set_services(services).unwrap();
    Firewall::new(translator, forwarding, &[7; 16])
}

/// What a gate permits.
pub(crate) fn translator<N>(node: &mut Node<N>) -> &mut Translator {
    &mut node.pipeline.firewall_mut().unwrap().translator
}

/// What the packet path of a node does, of a gate with this firewall; no link is scheduled.
pub(crate) fn pipeline(role: Role, firewall: Firewall) -> Pipeline {
    let mut config = Config::new("node", "out", "in", "/nowhere");
    config.role = role;
    config.capabilities = Capabilities { lines_max: Some(1_024), peers_max: 64, ..Capabilities::new(role) };
    assemble::pipeline(
        &config,
        &Seeds::draw((sluicegate_wire::Instant::ZERO, VALID.0)).unwrap(),
        firewall,
        [1_500; 2],
        std::iter::empty(),
    )
    .unwrap()
}

/// A UDP datagram as it arrives at `port`.
pub(crate) fn udp_frame(port: Port, from: SocketAddrV4, to: SocketAddrV4, payload: &[u8]) -> Vec<u8> {
    let link =
        ethernet::Repr { dst: OWN[usize::from(port.0)], src: NEXT[usize::from(port.0)], ethertype: EtherType::IPV4 };
    let mut bytes = vec![0; ethernet::HEADER_LEN];
    link.emit(&mut ethernet::Packet::new_unchecked(&mut bytes[..]));
    bytes.extend(build::datagram(from, to, payload));
    bytes
}

/// Source and destination link address.
pub(crate) type Link = ([u8; 6], [u8; 6]);

/// Source, destination and payload of a UDP frame whose checksums are right, and its link addresses.
pub(crate) fn read_udp(frame: &[u8]) -> (SocketAddrV4, SocketAddrV4, Vec<u8>, Link) {
    let link = ethernet::Repr::parse(&ethernet::Packet::new_checked(frame).unwrap()).unwrap();
    let packet = ipv4::Packet::new_checked(&frame[ethernet::HEADER_LEN..]).unwrap();
    let udp = udp::Packet::new_checked(packet.payload()).unwrap();
    assert!(packet.verify_checksum() && udp.verify_checksum(packet.src().into(), packet.dst().into()));
    let from = SocketAddrV4::new(packet.src(), udp.src_port());
    let to = SocketAddrV4::new(packet.dst(), udp.dst_port());
    (from, to, udp.payload().to_vec(), (link.src, link.dst))
}
