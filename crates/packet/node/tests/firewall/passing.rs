//! What needs no permission is forwarded as a router forwards it.

use crate::site::{packets::*, *};
use sluicegate_pinhole::{Service, ServiceMode, ServicesError};
use sluicegate_wire::{FrameBuf, IpProtocol, Port, Reason, Verdict, icmp, ip::Summary, ipv4};
use std::net::IpAddr;

const PUBLIC: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 81));

fn pass(site: &mut Site, port: Port, packet: &[u8]) -> Out {
    let mut frame = FrameBuf::from_bytes(packet);
    let mut ip = Summary::parse(packet).unwrap();
    let verdict = frame.with(|frame| site.gate.pass(site.now, port, frame, &mut ip));
    if matches!(verdict, Verdict::Forward(_) | Verdict::Reply) {
        check_checksums(frame.bytes());
    }
    Out { verdict, packet: frame.bytes().to_vec() }
}

/// `packet` with this time to live, and whether routers may cut it.
fn with_header(packet: &[u8], ttl: u8, dont_fragment: bool) -> Vec<u8> {
    let mut bytes = packet.to_vec();
    if bytes[0] >> 4 == 6 {
        bytes[7] = ttl;
        return bytes;
    }
    let mut header = ipv4::Packet::new_unchecked(&mut bytes[..]);
    header.set_ttl(ttl);
    header.set_fragmentation(dont_fragment, false, sluicegate_wire::ip::FragmentOffset::ZERO);
    header.fill_checksum();
    bytes
}

#[test]
fn a_packet_passes_both_ways_one_hop_older_and_otherwise_unchanged() {
    let mut site = Site::new();
    for (one, other) in [(CLIENT, STRANGER), (CLIENT_V6, STRANGER_V6)] {
        for port in [Port::OUTSIDE, Port::INSIDE] {
            let packet = with_header(&udp((one, 7), (other, 9), b"x"), 9, true);
            let passed = pass(&mut site, port, &packet).forwarded(port.opposite());
            assert_eq!(passed, with_header(&packet, 8, true));
        }
    }
}

#[test]
fn the_last_hop_is_answered_and_errors_are_not() {
    let mut site = Site::new();
    for (one, other) in [(CLIENT, STRANGER), (CLIENT_V6, STRANGER_V6)] {
        let packet = with_header(&udp((one, 7), (other, 9), b"x"), 1, true);
        let out = pass(&mut site, Port::OUTSIDE, &packet);
        assert_eq!(out.verdict, Verdict::Reply);
        let ip = Summary::parse(&out.packet).unwrap();
        assert_eq!(ip.dst, one);
        assert_eq!(message(&out.packet).kind(), icmp::Kind::TimeExceeded);
        let error = with_header(&out.packet, 1, true);
        let swapped = Summary::parse(&error).unwrap();
        assert_eq!(swapped.ttl, 1);
        assert_eq!(pass(&mut site, Port::INSIDE, &error).dropped(), Reason::TtlExpired);
    }
}

#[test]
fn a_packet_too_long_for_the_next_link_is_cut_or_answered() {
    let mut site = Site::with(sluicegate_nat::Config { mtu: [1_500, 1_000], ..config() });
    let packet = udp((CLIENT, 7), (STRANGER, 9), &payload(1_400));
    let out = pass(&mut site, Port::OUTSIDE, &with_header(&packet, 9, true));
    assert_eq!(out.verdict, Verdict::Reply);
    let ip = Summary::parse(&out.packet).unwrap();
    assert_eq!((ip.dst, ip.protocol), (CLIENT, IpProtocol::ICMP));
    let first = pass(&mut site, Port::OUTSIDE, &with_header(&packet, 9, false)).inside();
    let mut parts = vec![first];
    parts.extend(site.released().into_iter().map(|(_, part)| part));
    assert_eq!(parts.len(), 2);
    assert_eq!(reassemble(&parts)[ipv4::HEADER_LEN..], packet[ipv4::HEADER_LEN..]);
}

#[test]
fn an_address_that_may_not_cross_and_the_routers_own_are_not_forwarded() {
    let mut site = Site::new();
    let to_group = udp((CLIENT, 7), (IpAddr::from([224, 0, 0, 1]), 9), b"x");
    assert_eq!(pass(&mut site, Port::OUTSIDE, &to_group).dropped(), Reason::AddressInvalid);
    let to_gate = udp((CLIENT, 7), (GATE.into(), 9), b"x");
    assert_eq!(pass(&mut site, Port::OUTSIDE, &to_gate).dropped(), Reason::NotForService);
}

#[test]
fn an_open_service_is_known_as_such_and_an_address_is_open_or_not() {
    let mut site = Site::new();
    let open = |address, mode| Service { id: 9, mode, address, outbound_all: true, open: true };
    let with = |service: Service| [services(), vec![service]].concat();
    site.gate.translator.set_services(&with(open(PUBLIC, ServiceMode::Filter))).unwrap();
    assert!(
        site.gate.translator.pinholes().hosts.is_open(PUBLIC)
            && !site.gate.translator.pinholes().hosts.is_open(FILTERED)
            && !site.gate.translator.pinholes().hosts.is_open(STRANGER)
    );
    let wrong = [
        (open(FILTERED, ServiceMode::Filter), ServicesError::DefaultConflict(FILTERED)),
        (open(PUBLIC, ServiceMode::Nat), ServicesError::NatOpen(PUBLIC)),
    ];
    for (service, error) in wrong {
        assert_eq!(site.gate.translator.set_services(&with(service)), Err(error));
        assert!(site.gate.translator.pinholes().hosts.is_open(PUBLIC), "the old list stays");
    }
    site.gate.translator.set_services(&services()).unwrap();
    assert!(!site.gate.translator.pinholes().hosts.is_open(PUBLIC));
}
