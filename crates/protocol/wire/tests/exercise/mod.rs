//! Puts arbitrary bytes through every view, every accessor and every `Repr`. Nothing here may panic except the
//! assertions: what a `Repr` emits parses to the same `Repr`, and rewriting keeps right checksums right.
//!
//! The property tests and the fuzz targets share these functions.

mod capability;
mod icmp;
mod transport;

use std::{
    hint::black_box,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    vec::Vec,
};

pub(crate) use capability::capability;
pub(crate) use icmp::icmp;
use sluicegate_wire::{
    IpProtocol, Reason, ethernet as wire_ethernet,
    ip::{FragmentOffset, Ports, Summary},
    ipv4 as wire_ipv4, ipv6 as wire_ipv6,
};
pub(crate) use transport::{dccp, tcp, udp, udplite};

const NEW4: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::new(203, 0, 113, 250)), IpAddr::V4(Ipv4Addr::new(10, 255, 255, 255))];
const NEW6: [IpAddr; 2] = [
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 0xffff)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1)),
];

/// Looks at a value so that reading it is not optimised away.
fn look<T>(value: T) {
    black_box(value);
}

/// Walks a list and checks that it takes no more steps than it has bytes.
fn bounded<T>(list: impl Iterator<Item = T>, bytes: usize) {
    assert!(list.map(black_box).count() <= bytes);
}

/// A frame, and what it carries.
pub(crate) fn ethernet(bytes: &[u8]) {
    let Ok(packet) = wire_ethernet::Packet::new_checked(bytes) else { return };
    look((packet.dst(), packet.src(), packet.ethertype(), packet.tags(), packet.header_len()));
    assert_eq!(packet.header_len() + packet.payload().len(), bytes.len());
    if let Ok(repr) = wire_ethernet::Repr::parse(&packet) {
        let mut copy = bytes.to_vec();
        repr.emit(&mut wire_ethernet::Packet::new_unchecked(&mut copy[..]));
        assert_eq!(copy, bytes, "the header is all that there is");
    }
    let mut copy = bytes.to_vec();
    let mut packet = wire_ethernet::Packet::new_unchecked(&mut copy[..]);
    packet.set_ethertype(wire_ethernet::EtherType::VLAN);
    look((packet.tags(), packet.payload_mut().len()));
    let packet = wire_ethernet::Packet::new_unchecked(bytes);
    match packet.ethertype() {
        wire_ethernet::EtherType::IPV4 => ipv4(packet.payload()),
        wire_ethernet::EtherType::IPV6 => ipv6(packet.payload()),
        _ => {}
    }
}

/// An IPv4 packet as it is, and with a right header checksum.
pub(crate) fn ipv4(bytes: &[u8]) {
    ipv4_view(bytes);
    summary(bytes);
    let mut fixed = bytes.to_vec();
    let mut packet = wire_ipv4::Packet::new_unchecked(&mut fixed[..]);
    if packet.check_header().is_err() {
        return;
    }
    packet.fill_checksum();
    assert!(packet.verify_checksum());
    ipv4_view(&fixed);
    summary(&fixed);
}

fn ipv4_view(bytes: &[u8]) {
    let packet = wire_ipv4::Packet::new_unchecked(bytes);
    if packet.check_header().is_err() {
        assert!(packet.check_len().is_err());
        return;
    }
    look((packet.version(), packet.header_len(), packet.traffic_class(), packet.total_len(), packet.ident()));
    look((packet.dont_fragment(), packet.more_fragments(), packet.fragment_offset(), packet.fragment()));
    look((packet.ttl(), packet.protocol(), packet.checksum(), packet.src(), packet.dst(), packet.verify_checksum()));
    look((packet.header(), packet.source_route()));
    bounded(packet.options(), 40);
    assert!(packet.header_len() + packet.payload().len() <= packet.total_len());
    // Lengths written later may lie; no accessor may panic for that.
    let mut copy = bytes.to_vec();
    let mut packet = wire_ipv4::Packet::new_unchecked(&mut copy[..]);
    packet.set_version_and_header_len(60);
    packet.set_total_len(u16::MAX);
    look((packet.header().len(), packet.payload_mut().len(), packet.verify_checksum(), packet.source_route()));
    packet.set_total_len(0);
    look((packet.payload().len(), packet.payload_mut().len()));
    packet.set_fragmentation(true, true, FragmentOffset::from_units(u16::MAX));
    assert!(packet.fragment().is_some());
}

/// An IPv6 packet.
pub(crate) fn ipv6(bytes: &[u8]) {
    summary(bytes);
    let packet = wire_ipv6::Packet::new_unchecked(bytes);
    if packet.check_header().is_err() {
        assert!(packet.check_len().is_err());
        return;
    }
    look((packet.version(), packet.traffic_class(), packet.flow_label(), packet.payload_len(), packet.total_len()));
    look((packet.next_header(), packet.hop_limit(), packet.src(), packet.dst(), packet.payload().len()));
    if let Ok(upper) = packet.upper() {
        assert!(upper.extension_headers <= wire_ipv6::EXTENSION_HEADERS_MAX);
        assert!(upper.offset <= packet.total_len().min(bytes.len()));
        if let Some(at) = upper.fragment_header {
            let repr = wire_ipv6::FragmentRepr::parse(&bytes[at..]).unwrap();
            assert_eq!(Some(repr.fragment), upper.fragment);
            assert_eq!(wire_ipv6::FragmentRepr::parse(&repr.to_bytes()), Ok(repr));
        }
    }
    let mut copy = bytes.to_vec();
    wire_ipv6::Repr {
        hop_limit: packet.hop_limit(),
        traffic_class: packet.traffic_class(),
        flow_label: packet.flow_label(),
        ..wire_ipv6::Repr::new(packet.src(), packet.dst(), packet.next_header(), packet.payload_len() as u16)
    }
    .emit(&mut wire_ipv6::Packet::new_unchecked(&mut copy[..]));
    assert_eq!(copy, bytes, "the fixed header is all that there is");
    let mut copy = bytes.to_vec();
    let mut packet = wire_ipv6::Packet::new_unchecked(&mut copy[..]);
    packet.set_payload_len(u16::MAX);
    look((packet.payload_mut().len(), packet.upper()));
    packet.set_payload_len(0);
    look((packet.payload().len(), packet.upper()));
}

/// Whether a whole packet or a quoted one, the summary's promises hold, and translation keeps checksums right.
fn summary(bytes: &[u8]) {
    if let Ok(quoted) = Summary::parse_quoted(bytes) {
        assert!(quoted.transport(bytes).len() <= quoted.transport_len());
        rewrite(quoted, bytes);
    }
    let Ok(whole) = Summary::parse(bytes) else { return };
    assert_eq!(Summary::parse_quoted(bytes), Ok(whole));
    assert_eq!(whole.transport(bytes).len(), whole.transport_len());
    assert_eq!(Summary::parse(&bytes[..whole.total_len]), Ok(whole), "padding does not count");
    look((whole.version(), whole.has_transport_header(), whole.check_addresses()));

    let rewritten = rewrite(whole, bytes);
    let again = Summary::parse(&rewritten).unwrap();
    assert_eq!((again.protocol, again.transport_offset), (whole.protocol, whole.transport_offset));
    if whole.verify_transport_checksum(bytes) {
        assert!(again.verify_transport_checksum(&rewritten), "{whole:?}");
    }
    transport::any(&whole, bytes);
    capability::in_packet(&whole, bytes);
}

/// What a translator does to a packet: a hop less, other addresses, other ports.
fn rewrite(mut summary: Summary, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    match summary.decrement_ttl(&mut bytes) {
        Ok(left) => assert_eq!(left, summary.ttl),
        Err(reason) => assert_eq!(reason, Reason::TtlExpired),
    }
    let [src, dst] = if summary.src.is_ipv4() { NEW4 } else { NEW6 };
    let mut delta = summary.set_src(&mut bytes, src).and(summary.set_dst(&mut bytes, dst));
    assert_eq!((summary.src, summary.dst), (src, dst));
    // SCTP has ports too, but a checksum that no delta can correct.
    if matches!(summary.protocol, IpProtocol::TCP | IpProtocol::UDP) && summary.has_transport_header() {
        let transport = summary.transport_mut(&mut bytes);
        if let Ok(ports) = Ports::parse(transport) {
            delta = delta.and(ports.replace(transport, Ports { src: 1, dst: 65_535 }));
        }
    }
    summary.adjust_transport_checksum(&mut bytes, delta);
    bytes
}
