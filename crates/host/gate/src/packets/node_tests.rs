//! The whole packet path of a node, from frame to frame.

use crate::samples::{self, Hops, NEXT, OWN, VALID, read_udp, udp_frame};
use sluicegate_api::Role;
use sluicegate_grant::{
    mac::{Ends, Purpose, SessionKeys},
    relay::RelayKeys,
};
use sluicegate_nat::Config;
use sluicegate_node::{Egress, Node, Sent};
use sluicegate_pinhole::{PinholeSpec, Relay, Service, ServiceMode, StandingSpec};
use sluicegate_wire::{FrameBuf, Instant, IpProtocol, Port, Reason, UnixTime, ethernet, ip::Summary};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

const NOW: Instant = Instant::from_secs(100);
const CLIENT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(198, 51, 100, 7), 4000);
const STRANGER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(198, 51, 100, 66), 4000);
const SERVICE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 5004);

/// A node with one open grant, and where it listens.
fn node_with(known: bool, egress: [Option<Egress>; 2]) -> (Node<Hops>, SocketAddrV4) {
    let IpAddr::V4(gate) = samples::GATE_ADDRESS else { panic!() };
    let config = Config { gate_address: gate, ..Config::default() };
    let service = Service { id: 0, mode: ServiceMode::Nat, address: samples::TARGET, outbound_all: false, open: false };
    let mut firewall = samples::firewall(config, &[service]);
    let spec = PinholeSpec {
        grant: samples::grant(1),
        service: 0,
        target: samples::TARGET,
        target_ports: (5004, 5004),
        filter: false,
        keys: None,
    };
    let opened = firewall.translator.install(NOW, UnixTime(VALID.0.0 + 10), spec).unwrap();
    (
        Node::new(samples::pipeline(Role::Gate, firewall), egress, Hops { known }),
        SocketAddrV4::new(gate, opened.ports.0),
    )
}

fn pass(node: &mut Node<Hops>, port: Port, frame: &[u8]) -> Option<(Port, Vec<u8>)> {
    let mut owned = FrameBuf::from_bytes(frame);
    let out = owned.with(|frame| node.on_frame(NOW, port, frame));
    out.map(|out| (out, owned.bytes().to_vec()))
}

fn dropped(node: &Node<Hops>, reason: Reason) -> u64 {
    node.published(NOW, &[]).0.dropped[reason as usize]
}

#[test]
fn a_granted_packet_and_its_answer_pass_with_the_gates_link_addresses() {
    let (mut node, gate) = node_with(true, [None, None]);
    let (out, inside) = pass(&mut node, Port::OUTSIDE, &udp_frame(Port::OUTSIDE, CLIENT, gate, b"hello")).unwrap();
    assert_eq!(out, Port::INSIDE);
    assert_eq!(read_udp(&inside), (CLIENT, SERVICE, b"hello".to_vec(), (OWN[1], NEXT[1])));
    let (out, outside) = pass(&mut node, Port::INSIDE, &udp_frame(Port::INSIDE, SERVICE, CLIENT, b"hi")).unwrap();
    assert_eq!(out, Port::OUTSIDE);
    assert_eq!(read_udp(&outside), (gate, CLIENT, b"hi".to_vec(), (OWN[0], NEXT[0])));
    let (reading, _) = node.published(NOW, &[]);
    assert_eq!((reading.received, reading.sent[0].packets, reading.sent[1].packets), (2, 1, 1));
    assert_eq!(reading.sent[1].bytes, inside.len() as u64);
}

#[test]
fn a_strangers_packet_is_dropped_counted_and_remembered_with_its_ends() {
    let (mut node, gate) = node_with(true, [None, None]);
    assert!(pass(&mut node, Port::OUTSIDE, &udp_frame(Port::OUTSIDE, STRANGER, gate, b"x")).is_none());
    assert_eq!(dropped(&node, Reason::NoPinhole), 1);
    let last = node.drops.recent(1, |_| true)[0];
    let tuple = last.tuple.unwrap();
    assert_eq!((last.port, last.reason), (Port::OUTSIDE, Reason::NoPinhole));
    assert_eq!(tuple.src, (IpAddr::V4(*STRANGER.ip()), STRANGER.port()));
    assert_eq!(tuple.dst, (IpAddr::V4(*gate.ip()), gate.port()));
}

#[test]
fn a_packet_whose_next_hop_is_unknown_is_dropped_for_that_reason() {
    let (mut node, gate) = node_with(false, [None, None]);
    assert!(pass(&mut node, Port::OUTSIDE, &udp_frame(Port::OUTSIDE, CLIENT, gate, b"hello")).is_none());
    assert_eq!(dropped(&node, Reason::NoNeighbour), 1);
    assert_eq!(node.published(NOW, &[]).0.sent, [Sent::default(); 2]);
    assert_eq!(
        samples::translator(&mut node).usage(samples::grant(1).id).unwrap().bytes_used,
        0,
        "and costs its grant nothing"
    );
}

#[test]
fn frames_that_carry_no_ip_packet_for_the_gate_are_dropped() {
    let (mut node, gate) = node_with(true, [None, None]);
    let good = udp_frame(Port::OUTSIDE, CLIENT, gate, b"hello");
    for len in 0..ethernet::HEADER_LEN {
        assert!(pass(&mut node, Port::OUTSIDE, &good[..len]).is_none(), "{len}");
    }
    assert_eq!(dropped(&node, Reason::FrameTruncated), ethernet::HEADER_LEN as u64);
    let mut arp = good.clone();
    arp[12..14].copy_from_slice(&[0x08, 0x06]);
    assert!(pass(&mut node, Port::OUTSIDE, &arp).is_none());
    let mut tagged = good.clone();
    tagged[12..14].copy_from_slice(&[0x81, 0x00]);
    assert!(pass(&mut node, Port::OUTSIDE, &tagged).is_none());
    assert_eq!(dropped(&node, Reason::EthertypeUnsupported), 2);
    let mut others = good;
    others[5] ^= 1;
    assert!(pass(&mut node, Port::OUTSIDE, &others).is_none());
    assert_eq!(dropped(&node, Reason::NotForService), 1);
}

#[test]
fn a_packet_cut_short_anywhere_is_dropped_with_one_reason() {
    let (mut node, gate) = node_with(true, [None, None]);
    let good = udp_frame(Port::OUTSIDE, CLIENT, gate, b"hello");
    for len in ethernet::HEADER_LEN..good.len() {
        let before: u64 = node.published(NOW, &[]).0.dropped.iter().sum();
        assert!(pass(&mut node, Port::OUTSIDE, &good[..len]).is_none(), "{len}");
        let after: u64 = node.published(NOW, &[]).0.dropped.iter().sum();
        assert_eq!(after, before + 1, "{len}");
    }
}

#[test]
fn what_the_device_dropped_is_counted_with_the_rest() {
    let (mut node, gate) = node_with(true, [None, None]);
    pass(&mut node, Port::OUTSIDE, &udp_frame(Port::OUTSIDE, STRANGER, gate, b"x"));
    let (reading, gauges) = node.published(NOW, &[(Reason::NoPinhole, 5), (Reason::TransmitFull, 2)]);
    assert_eq!(reading.dropped[Reason::NoPinhole as usize], 6);
    assert_eq!(reading.dropped[Reason::TransmitFull as usize], 2);
    assert!(
        gauges.len() <= crate::published::GAUGES_MAX - 3,
        "room for the neighbour table's two gauges and the device's"
    );
}

/// A node with one open grant, a public service beside it, and a link of 1 Mbit/s behind it.
fn scheduled() -> (Node<Hops>, SocketAddrV4) {
    use sluicegate_scheduler::{Config as Link, KnownPaths};
    let link = Egress::new(&Link::for_rate(1_000_000), KnownPaths::default(), 1_514, &[7; 16]);
    let (mut node, gate) = node_with(true, [None, Some(link)]);
    let private = Service { id: 0, mode: ServiceMode::Nat, address: samples::TARGET, outbound_all: false, open: false };
    let public = Service {
        id: 1,
        mode: ServiceMode::Filter,
        address: IpAddr::V4(*PUBLIC.ip()),
        outbound_all: false,
        open: true,
    };
    samples::translator(&mut node).set_services(&[private, public]).unwrap();
    (node, gate)
}

const FRONTEND: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(203, 0, 113, 60), 5060);
const PUBLIC: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 80), 80);

/// Fills the link with packets of strangers for the public service.
fn fill(node: &mut Node<Hops>) {
    let legacy = udp_frame(Port::OUTSIDE, STRANGER, PUBLIC, &[0; 1_000]);
    for _ in 0..20 {
        pass(node, Port::OUTSIDE, &legacy);
    }
}

/// Everything that leaves inwards in the first `time` from now on: the destinations.
fn leaving(node: &mut Node<Hops>, time: std::time::Duration) -> Vec<SocketAddrV4> {
    let mut destinations = Vec::new();
    node.release(NOW + time, &mut [0; 4_096], &mut |port, frame| {
        assert_eq!(port, Port::INSIDE);
        destinations.push(read_udp(frame).1);
    });
    destinations
}

#[test]
fn on_a_busy_link_what_a_grant_opened_leaves_before_what_strangers_send() {
    let (mut node, gate) = scheduled();
    fill(&mut node);
    assert!(pass(&mut node, Port::OUTSIDE, &udp_frame(Port::OUTSIDE, CLIENT, gate, b"wanted")).is_none());
    let due = node.poll_timeout().unwrap();
    assert!(due > NOW && due < NOW + std::time::Duration::from_millis(20), "{due:?}");
    // One packet of a kilobyte takes 8 ms.
    let left = leaving(&mut node, std::time::Duration::from_millis(20));
    assert_eq!(left[0], SERVICE);
    assert!(left[1..].iter().all(|to| *to == PUBLIC));
    let lanes = node.published(NOW, &[]).0.lanes[1].unwrap();
    assert_eq!((lanes[2].packets, lanes[2].dropped), (1, 0));
    assert!(lanes[3].waiting > 0 && node.published(NOW, &[]).0.lanes[0].is_none());
}

#[test]
fn what_the_frontends_send_rides_the_control_lane() {
    let (mut node, gate) = scheduled();
    let brought = SessionKeys::from_bytes([[3; 16], [4; 16]]);
    let (keys, peers) = (RelayKeys::derive(&brought, 1), vec![IpAddr::V4(*FRONTEND.ip())]);
    let relays = vec![Relay { peers: peers.clone(), keys: keys.clone(), shards: 1 }];
    let (target, target_port) = (samples::TARGET, SERVICE.port());
    let spec = StandingSpec { service: 0, target, target_port, peers, rate_bytes_per_s: 0, relays };
    let opened = samples::translator(&mut node).install_standing(NOW, spec).unwrap();
    let IpAddr::V4(address) = opened.address else { panic!("{opened:?}") };
    let signalling = SocketAddrV4::new(address, opened.ports.0);
    fill(&mut node);
    // Whoever only has the address rides in no lane at all.
    assert!(pass(&mut node, Port::OUTSIDE, &udp_frame(Port::OUTSIDE, FRONTEND, signalling, b"INVITE")).is_none());
    assert_eq!(dropped(&node, Reason::MacMissing), 1);
    assert!(pass(&mut node, Port::OUTSIDE, &udp_frame(Port::OUTSIDE, CLIENT, gate, b"wanted")).is_none());
    let ends = Ends { client: (IpAddr::V4(*FRONTEND.ip()), FRONTEND.port()), gate_port: signalling.port() };
    let trailer = keys.keys().to_service.trailer(keys.sender(0), Purpose::Datagram, 1, &ends, b"INVITE");
    let sealed = [&b"INVITE"[..], &trailer].concat();
    pass(&mut node, Port::OUTSIDE, &udp_frame(Port::OUTSIDE, FRONTEND, signalling, &sealed));
    assert_eq!(leaving(&mut node, std::time::Duration::from_millis(20))[0], SERVICE);
    assert_eq!(node.published(NOW, &[]).0.lanes[1].unwrap()[0].packets, 1);
}

#[test]
fn a_lane_without_room_drops_with_its_own_reason_and_keeps_the_ends() {
    let (mut node, _) = scheduled();
    (0..20).for_each(|_| fill(&mut node));
    let dropped = dropped(&node, Reason::LegacyQueue);
    assert!(dropped > 100);
    let last = node.drops.recent(1, |_| true)[0];
    assert_eq!((last.reason, last.port), (Reason::LegacyQueue, Port::OUTSIDE));
    assert_eq!(last.tuple.unwrap().dst.0, IpAddr::V4(*PUBLIC.ip()));
}

#[test]
fn a_router_and_an_edge_forward_strangers_and_answer_what_is_too_old() {
    for role in [Role::Router, Role::Edge] {
        let pipeline = samples::pipeline(role, samples::firewall(Config::default(), &[]));
        let mut node = Node::new(pipeline, [None, None], Hops { known: true });
        let stranger = udp_frame(Port::OUTSIDE, STRANGER, SERVICE, b"hello");
        let (out, frame) = pass(&mut node, Port::OUTSIDE, &stranger).unwrap();
        assert_eq!((out, read_udp(&frame).2), (Port::INSIDE, b"hello".to_vec()));
        let mut old = stranger;
        let header = &mut old[ethernet::HEADER_LEN..];
        let mut packet = sluicegate_wire::ipv4::Packet::new_unchecked(header);
        packet.set_ttl(1);
        packet.fill_checksum();
        let (out, answer) = pass(&mut node, Port::OUTSIDE, &old).unwrap();
        assert_eq!(out, Port::OUTSIDE);
        assert_eq!(Summary::parse(&answer[ethernet::HEADER_LEN..]).unwrap().protocol, IpProtocol::ICMP);
        assert_eq!(dropped(&node, Reason::TtlExpired), 1);
    }
}
