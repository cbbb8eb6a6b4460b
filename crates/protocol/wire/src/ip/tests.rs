use core::net::{Ipv4Addr, Ipv6Addr};
use std::{vec, vec::Vec};

use proptest::prelude::*;

use super::*;
use crate::build;

const CLIENT4: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const GATE4: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1));
const SERVICE4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 80));
const CLIENT6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));
const SERVICE6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 2));

/// A packet of this protocol; the transport is the caller's.
fn packet(src: IpAddr, dst: IpAddr, protocol: IpProtocol, transport: &[u8]) -> Vec<u8> {
    build::packet(src, dst, &(protocol, transport))
}

fn udp_packet(src: IpAddr, dst: IpAddr, payload: &[u8]) -> Vec<u8> {
    let repr = udp::Repr { src_port: 40_000, dst_port: 5060, payload };
    let mut transport = vec![0; repr.buffer_len()];
    repr.emit(&mut udp::Packet::new_unchecked(&mut transport[..]), src, dst);
    packet(src, dst, IpProtocol::UDP, &transport)
}

fn tcp_packet(src: IpAddr, dst: IpAddr, payload: &[u8]) -> Vec<u8> {
    let repr = tcp::Repr { payload, ..tcp::Repr::new(40_000, 22, tcp::Control::Syn, 7) };
    let mut transport = vec![0; repr.buffer_len()];
    repr.emit(&mut tcp::Packet::new_unchecked(&mut transport[..]), src, dst);
    packet(src, dst, IpProtocol::TCP, &transport)
}

/// A packet whose IPv4 fragmentation fields are these.
fn ipv4_fragment(offset: u16, more: bool, len: usize) -> Vec<u8> {
    let mut bytes = packet(CLIENT4, GATE4, IpProtocol::UDP, &vec![0; len]);
    let mut view = ipv4::Packet::new_unchecked(&mut bytes[..]);
    view.set_ident(77);
    view.set_fragmentation(false, more, FragmentOffset::from_bytes(offset).unwrap());
    view.fill_checksum();
    bytes
}

#[test]
fn a_summary_of_ipv4_stops_where_padding_begins() {
    let mut bytes = udp_packet(CLIENT4, GATE4, b"hi");
    bytes.resize(60, 0xee);
    let summary = Summary::parse(&bytes).unwrap();
    assert_eq!((summary.version(), summary.src, summary.dst), (Version::V4, CLIENT4, GATE4));
    assert_eq!((summary.protocol, summary.ttl), (IpProtocol::UDP, 64));
    assert_eq!((summary.transport_offset, summary.total_len, summary.transport_len()), (20, 30, 10));
    assert!(summary.dont_fragment && !summary.has_options && !summary.source_route);
    assert_eq!(summary.transport(&bytes), &bytes[20..30]);
    assert!(summary.verify_transport_checksum(&bytes));
    assert_eq!(Ports::parse(summary.transport(&bytes)), Ok(Ports { src: 40_000, dst: 5060 }));
}

#[test]
fn a_summary_of_ipv6_stops_where_padding_begins() {
    let mut bytes = tcp_packet(CLIENT6, SERVICE6, b"hi");
    bytes.resize(90, 0xee);
    let summary = Summary::parse(&bytes).unwrap();
    assert_eq!((summary.version(), summary.src, summary.dst), (Version::V6, CLIENT6, SERVICE6));
    assert_eq!((summary.protocol, summary.ttl, summary.fragment), (IpProtocol::TCP, 64, None));
    assert_eq!((summary.transport_offset, summary.total_len, summary.transport_len()), (40, 62, 22));
    assert!(summary.verify_transport_checksum(&bytes));
}

#[test]
fn impossible_packets_have_their_reasons() {
    assert_eq!(Summary::parse(&[]), Err(Reason::FrameTruncated));
    assert_eq!(Summary::parse(&[0x55; 60]), Err(Reason::IpHeaderInvalid));
    let whole = udp_packet(CLIENT4, GATE4, b"hi");
    assert_eq!(Summary::parse(&whole[..29]), Err(Reason::FrameTruncated));
    let mut wrong = whole;
    wrong[8] ^= 1;
    assert_eq!(Summary::parse(&wrong), Err(Reason::IpHeaderInvalid), "header checksum");
    let chain = [60, 0, 1, 4, 0, 0, 0, 0].repeat(9);
    let chained = packet(CLIENT6, SERVICE6, IpProtocol::DESTINATION_OPTIONS, &chain);
    assert_eq!(Summary::parse(&chained), Err(Reason::IpOptions));
}

#[test]
fn options_and_source_routes_of_both_versions_are_seen() {
    let mut options = packet(CLIENT4, GATE4, IpProtocol::UDP, &[148, 4, 0, 0, 131, 7, 4, 203, 0, 113, 1, 0]);
    let mut view = ipv4::Packet::new_unchecked(&mut options[..]);
    view.set_version_and_header_len(32);
    view.fill_checksum();
    let summary = Summary::parse(&options).unwrap();
    assert!(summary.has_options && summary.source_route);
    assert_eq!(summary.transport_offset, 32);

    let routed = packet(CLIENT6, SERVICE6, IpProtocol::IPV6_ROUTE, &[17, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4]);
    let summary = Summary::parse(&routed).unwrap();
    assert!(summary.has_options && summary.source_route);
    assert_eq!((summary.protocol, summary.transport_offset), (IpProtocol::UDP, 48));
}

#[test]
fn fragments_that_cannot_be_are_refused() {
    let summary = Summary::parse(&ipv4_fragment(0, true, 16)).unwrap();
    assert!(summary.has_transport_header() && summary.fragment.is_some());
    let summary = Summary::parse(&ipv4_fragment(16, false, 5)).unwrap();
    assert!(!summary.has_transport_header());
    assert_eq!(summary.fragment.map(|fragment| (fragment.id, fragment.offset.bytes())), Some((77, 16)));

    let refused = |bytes: &[u8]| assert_eq!(Summary::parse(bytes), Err(Reason::FragmentInvalid));
    refused(&ipv4_fragment(0, true, 15));
    refused(&ipv4_fragment(8, false, 0));
    refused(&ipv4_fragment(65_512, false, 4));
    assert!(Summary::parse(&ipv4_fragment(65_512, false, 3)).is_ok(), "65,535 bytes with the header");
    refused(&packet(CLIENT6, SERVICE6, IpProtocol::IPV6_FRAGMENT, &[17, 0, 0, 1, 0, 0, 0, 1, 9]));
}

#[test]
fn an_atomic_ipv6_fragment_is_a_whole_packet() {
    let bytes = packet(CLIENT6, SERVICE6, IpProtocol::IPV6_FRAGMENT, &[17, 0, 0, 0, 0, 0, 0, 1, 9]);
    let summary = Summary::parse(&bytes).unwrap();
    assert_eq!((summary.fragment, summary.has_options), (None, false));
    assert!(summary.has_transport_header());
}

#[test]
fn a_quoted_packet_may_be_cut_short_anywhere_behind_its_header() {
    for whole in [udp_packet(CLIENT4, GATE4, &[7; 100]), tcp_packet(CLIENT6, SERVICE6, &[7; 100])] {
        let summary = Summary::parse(&whole).unwrap();
        for cut in summary.transport_offset..whole.len() {
            assert_eq!(Summary::parse_quoted(&whole[..cut]), Ok(summary));
            assert_eq!(summary.transport(&whole[..cut]).len(), cut - summary.transport_offset);
        }
        assert_eq!(Summary::parse_quoted(&whole[..19]), Err(Reason::FrameTruncated));
    }
}

#[test]
fn addresses_that_may_not_cross_are_refused() {
    let check = |src: &str, dst: &str| {
        let (src, dst): (IpAddr, IpAddr) = (src.parse().unwrap(), dst.parse().unwrap());
        Summary::parse(&packet(src, dst, IpProtocol::UDP, &[])).unwrap().check_addresses()
    };
    assert_eq!(check("192.0.2.1", "10.0.0.80"), Ok(()));
    assert_eq!(check("2001:db8::1", "fd00::80"), Ok(()));
    let never = ["0.0.0.0", "0.1.2.3", "127.0.0.1", "169.254.1.1", "224.0.0.1", "240.0.0.1", "255.255.255.255"];
    for address in never {
        assert_eq!(check(address, "10.0.0.80"), Err(Reason::AddressInvalid), "{address}");
        assert_eq!(check("192.0.2.1", address), Err(Reason::AddressInvalid), "{address}");
    }
    for address in ["::", "::1", "::192.0.2.1", "::ffff:192.0.2.1", "fe80::1", "ff02::1"] {
        assert_eq!(check(address, "2001:db8::1"), Err(Reason::AddressInvalid), "{address}");
        assert_eq!(check("2001:db8::1", address), Err(Reason::AddressInvalid), "{address}");
    }
    assert_eq!(check("192.0.2.1", "192.0.2.1"), Err(Reason::AddressInvalid), "a packet to its own source");
}

#[test]
fn the_last_hop_is_not_taken() {
    let mut bytes = udp_packet(CLIENT4, GATE4, b"hi");
    let mut summary = Summary::parse(&bytes).unwrap();
    for left in (1..64).rev() {
        assert_eq!(summary.decrement_ttl(&mut bytes), Ok(left));
        assert_eq!(Summary::parse(&bytes), Ok(summary), "header checksum stays right");
    }
    let before = bytes.clone();
    assert_eq!(summary.decrement_ttl(&mut bytes), Err(Reason::TtlExpired));
    assert_eq!(bytes, before);
}

#[test]
fn an_address_of_the_other_version_changes_nothing() {
    let mut bytes = udp_packet(CLIENT4, GATE4, b"hi");
    let before = bytes.clone();
    let mut summary = Summary::parse(&bytes).unwrap();
    assert_eq!(summary.set_src(&mut bytes, CLIENT6), Delta::NONE);
    assert_eq!(summary.set_dst(&mut bytes, CLIENT6), Delta::NONE);
    assert_eq!((bytes, summary.src), (before, CLIENT4));
}

#[test]
fn a_checksum_field_that_was_cut_off_is_left_alone() {
    let whole = tcp_packet(CLIENT4, GATE4, b"hi");
    let summary = Summary::parse(&whole).unwrap();
    let mut quoted = whole[..20 + 8].to_vec();
    let before = quoted.clone();
    summary.adjust_transport_checksum(&mut quoted, Delta::NONE.u16(1, 2));
    assert_eq!(quoted, before);
}

proptest! {
    #[test]
    fn rewritten_packets_keep_right_checksums(
        tcp: bool, v6: bool, addresses: (u128, u128), ports: (u16, u16),
        payload in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let (src, dst) = if v6 { (CLIENT6, SERVICE6) } else { (CLIENT4, SERVICE4) };
        let mut bytes = if tcp { tcp_packet(src, dst, &payload) } else { udp_packet(src, dst, &payload) };
        let mut summary = Summary::parse(&bytes).unwrap();
        let new = |bits: u128| match v6 {
            true => IpAddr::V6(Ipv6Addr::from_bits(bits)),
            false => IpAddr::V4(Ipv4Addr::from_bits(bits as u32)),
        };

        let mut delta = summary.set_src(&mut bytes, new(addresses.0));
        delta = delta.and(summary.set_dst(&mut bytes, new(addresses.1)));
        let transport = summary.transport_mut(&mut bytes);
        let old = Ports::parse(transport).unwrap();
        delta = delta.and(old.replace(transport, Ports { src: ports.0, dst: ports.1 }));
        summary.adjust_transport_checksum(&mut bytes, delta);

        prop_assert_eq!(Summary::parse(&bytes), Ok(summary));
        prop_assert_eq!((summary.src, summary.dst), (new(addresses.0), new(addresses.1)));
        prop_assert!(summary.verify_transport_checksum(&bytes));
        prop_assert_eq!(Ports::parse(summary.transport(&bytes)), Ok(Ports { src: ports.0, dst: ports.1 }));
        // The incremental result is, bit for bit, the one computed afresh.
        let mut fresh = bytes.clone();
        let transport = summary.transport_mut(&mut fresh);
        match tcp {
            true => tcp::Packet::new_unchecked(transport).fill_checksum(summary.src, summary.dst),
            false => udp::Packet::new_unchecked(transport).fill_checksum(summary.src, summary.dst),
        }
        prop_assert_eq!(fresh, bytes);
    }
}

#[test]
fn a_network_of_ipv6_is_one_sender() {
    let of = |text: &str| sender_of(text.parse().unwrap());
    assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
    assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
    assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
    assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
}
