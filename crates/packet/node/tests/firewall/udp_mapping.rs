//! RFC 4787: how UDP is mapped and filtered.

use std::time::Duration;

use crate::site::{packets::*, *};
use sluicegate_wire::{Port, Reason, Verdict};

#[test]
fn a_client_with_a_grant_reaches_the_service_and_gets_answers() {
    let mut site = Site::new();
    let (_, gate) = site.open(UDP, 5_004);
    assert!((20_000..=20_999).contains(&gate.1));
    exchange(&mut site, (CLIENT, 40_000), gate, (TARGET, 5_004));
    assert_eq!((site.used("flows"), site.used("pinholes")), (1, 2), "one is the talker's own");
}

#[test]
fn the_time_to_live_is_taken_down_by_one_and_an_expired_packet_dies() {
    let mut site = Site::new();
    let (_, gate) = site.open(UDP, 5_004);
    let mut packet = udp((CLIENT, 40_000), gate, b"x");
    assert_eq!(site.outside_sends(&packet).inside()[8], 63);
    packet[8] = 1;
    sluicegate_wire::ipv4::Packet::new_unchecked(&mut packet[..]).fill_checksum();
    assert_eq!(site.outside_sends(&packet).dropped(), Reason::TtlExpired);
}

#[test]
fn a_stranger_gets_no_pinhole() {
    let mut site = Site::new();
    let (_, gate) = site.open(UDP, 5_004);
    exchange(&mut site, (CLIENT, 40_000), gate, (TARGET, 5_004));
    for port in 1..=u16::MAX {
        let packet = udp((STRANGER, 40_000), (GATE.into(), port), b"let me in");
        assert_eq!(site.outside_sends(&packet).dropped(), Reason::NoPinhole);
    }
    assert_eq!(site.outside_sends(&udp((CLIENT, 40_000), (TARGET, 5_004), b"x")).dropped(), Reason::NotForService);
    assert_eq!(site.drops(Reason::NoPinhole), 65_535);
    assert_eq!(site.used("flows"), 1);
}

#[test]
fn a_client_reaches_only_the_ports_of_its_grant() {
    let mut site = Site::new();
    let (_, gate) = site.open(UDP, 5_004);
    let other = site.grant(UDP, OTHER_CLIENT);
    let others = site.install(other, TARGET, (22, 22));
    assert_ne!(others.ports.0, gate.1);
    let reason = site.outside_sends(&udp((CLIENT, 40_000), (others.address, others.ports.0), b"x")).dropped();
    assert_eq!(reason, Reason::NoPinhole);
    let tcp_syn = tcp((CLIENT, 1), gate, segment_syn());
    assert_eq!(site.outside_sends(&tcp_syn).dropped(), Reason::NoPinhole, "same port, other protocol");
}

fn segment_syn() -> sluicegate_wire::tcp::Repr<'static> {
    sluicegate_wire::tcp::Repr::new(0, 0, sluicegate_wire::tcp::Control::Syn, 1)
}

#[test]
fn a_grant_for_certain_client_ports_admits_no_others() {
    let mut site = Site::new();
    let mut grant = site.grant(UDP, CLIENT);
    grant.client_ports = (4_000, 4_001);
    let opened = site.install(grant, TARGET, (53, 53));
    let gate = (opened.address, opened.ports.0);
    assert_eq!(site.outside_sends(&udp((CLIENT, 3_999), gate, b"x")).dropped(), Reason::NoPinhole);
    exchange(&mut site, (CLIENT, 4_001), gate, (TARGET, 53));
}

#[test]
fn a_port_range_is_mapped_in_order_to_a_block_of_the_same_length() {
    let mut site = Site::new();
    let grant = site.grant(UDP, CLIENT);
    let opened = site.install(grant, TARGET, (5_004, 5_100));
    assert_eq!(opened.ports.1 - opened.ports.0, 96);
    assert_eq!(opened.ports.0 % 2, 0, "RTP stays on an even port");
    for port in [5_004, 5_005, 5_050, 5_100] {
        let gate = (opened.address, opened.ports.0 + (port - 5_004));
        exchange(&mut site, (CLIENT, 7_000), gate, (TARGET, port));
    }
    let behind = (opened.address, opened.ports.1 + 1);
    assert_eq!(site.outside_sends(&udp((CLIENT, 7_000), behind, b"x")).dropped(), Reason::NoPinhole);
}

#[test]
fn the_service_may_speak_first_and_uses_the_grants_binding() {
    let mut site = Site::new();
    let (_, gate) = site.open(UDP, 5_004);
    let out = site.inside_sends(&udp((TARGET, 5_004), (CLIENT, 9_000), b"hello")).outside();
    assert_eq!(ends(&out), (gate, (CLIENT, 9_000)));
    let back = site.outside_sends(&udp((CLIENT, 9_000), gate, b"hi")).inside();
    assert_eq!(ends(&back), ((CLIENT, 9_000), (TARGET, 5_004)));
    let reason = site.inside_sends(&udp((TARGET, 5_006), (CLIENT, 9_000), b"x")).dropped();
    assert_eq!(reason, Reason::OutboundDisabled, "a port that the grant does not name");
}

#[test]
fn endpoint_independent_mapping_gives_a_talker_one_external_port_for_all_remotes() {
    let mut site = Site::new();
    let first = ends(&site.inside_sends(&udp((TALKER, 123), (CLIENT, 1), b"x")).outside()).0;
    let second = ends(&site.inside_sends(&udp((TALKER, 123), (STRANGER, 2), b"x")).outside()).0;
    let other = ends(&site.inside_sends(&udp((TALKER, 124), (STRANGER, 2), b"x")).outside()).0;
    assert_eq!(first, second);
    assert_ne!(first, other);
    assert_eq!(site.used("bindings"), 2);
    let back = site.outside_sends(&udp((STRANGER, 2), first, b"x")).inside();
    assert_eq!(ends(&back), ((STRANGER, 2), (TALKER, 123)));
}

#[test]
fn the_return_filter_is_by_address_and_port() {
    let mut site = Site::new();
    let gate = ends(&site.inside_sends(&udp((TALKER, 123), (CLIENT, 1), b"x")).outside()).0;
    assert_eq!(site.outside_sends(&udp((CLIENT, 2), gate, b"x")).dropped(), Reason::NoPinhole);
    assert_eq!(site.outside_sends(&udp((STRANGER, 1), gate, b"x")).dropped(), Reason::NoPinhole);
    site.outside_sends(&udp((CLIENT, 1), gate, b"x")).inside();
}

#[test]
fn a_service_without_outbound_starts_nothing() {
    let mut site = Site::new();
    let reason = site.inside_sends(&udp((TARGET, 123), (STRANGER, 1), b"x")).dropped();
    assert_eq!(reason, Reason::OutboundDisabled);
}

#[test]
fn a_binding_ends_with_its_last_flow_and_its_port_can_be_used_again() {
    let mut site = Site::new();
    site.inside_sends(&udp((TALKER, 123), (CLIENT, 1), b"x")).outside();
    site.inside_sends(&udp((TALKER, 123), (STRANGER, 1), b"x")).outside();
    assert_eq!((site.used("bindings"), site.used("external_ports_udp")), (1, 1));
    site.wait(Duration::from_secs(200));
    site.inside_sends(&udp((TALKER, 123), (CLIENT, 1), b"x")).outside();
    site.wait(Duration::from_secs(200));
    assert_eq!((site.used("flows"), site.used("bindings")), (1, 1));
    site.wait(Duration::from_secs(200));
    assert_eq!((site.used("flows"), site.used("bindings"), site.used("external_ports_udp")), (0, 0, 0));
}

#[test]
fn a_udp_flow_lives_five_minutes_after_its_last_packet_of_either_direction() {
    let mut site = Site::new();
    let (_, gate) = site.open(UDP, 5_004);
    exchange(&mut site, (CLIENT, 40_000), gate, (TARGET, 5_004));
    site.wait(Duration::from_secs(290));
    site.inside_sends(&udp((TARGET, 5_004), (CLIENT, 40_000), b"x")).outside();
    site.wait(Duration::from_secs(290));
    assert_eq!(site.used("flows"), 1, "refreshed from inside");
    site.outside_sends(&udp((CLIENT, 40_000), gate, b"x")).inside();
    site.wait(Duration::from_secs(290));
    assert_eq!(site.used("flows"), 1, "refreshed from outside");
    site.wait(Duration::from_secs(11));
    assert_eq!(site.used("flows"), 0);
}

#[test]
fn an_absent_udp_checksum_stays_absent() {
    let mut site = Site::new();
    let (_, gate) = site.open(UDP, 5_004);
    let mut packet = udp((CLIENT, 40_000), gate, b"no checksum");
    packet[26..28].fill(0);
    assert_eq!(site.outside_sends(&packet).inside()[26..28], [0, 0]);
}

#[test]
fn a_damaged_packet_is_not_laundered_into_a_valid_one() {
    let mut site = Site::new();
    let (_, gate) = site.open(UDP, 5_004);
    let mut packet = udp((CLIENT, 40_000), gate, b"damage on the way");
    site.outside_sends(&packet).inside();
    packet[30] ^= 0x10;
    let mut frame = sluicegate_wire::FrameBuf::from_bytes(&packet);
    let verdict = frame.with(|frame| site.gate.on_packet(site.now, Port::OUTSIDE, frame));
    assert_eq!(verdict, Verdict::Forward(Port::INSIDE));
    let ip = sluicegate_wire::ip::Summary::parse(frame.bytes()).unwrap();
    assert!(!ip.verify_transport_checksum(frame.bytes()));
}

#[test]
fn ethernet_padding_is_cut_off() {
    let mut site = Site::new();
    let (_, gate) = site.open(UDP, 5_004);
    let mut packet = udp((CLIENT, 40_000), gate, b"x");
    let len = packet.len();
    packet.extend_from_slice(&[0xee; 17]);
    assert_eq!(site.outside_sends(&packet).inside().len(), len);
}

#[test]
fn hairpin_shows_the_external_source_and_needs_a_pinhole() {
    let mut site = Site::new();
    let grant = site.grant(UDP, GATE.into());
    let opened = site.install(grant, TARGET, (80, 80));
    let gate = (opened.address, opened.ports.0);
    let there = site.inside_sends(&udp((TALKER, 500), gate, b"x")).inside();
    let (src, dst) = ends(&there);
    assert_eq!((src.0, dst), (GATE.into(), (TARGET, 80)));
    let back = site.inside_sends(&udp((TARGET, 80), src, b"y")).inside();
    assert_eq!(ends(&back), (gate, (TALKER, 500)));
    for forged in [udp(src, gate, b"z"), udp(gate, src, b"z")] {
        assert_eq!(site.outside_sends(&forged).dropped(), Reason::AddressInvalid, "nobody outside is the gate");
    }
    let closed = (GATE.into(), if gate.1 == 20_999 { 20_000 } else { gate.1 + 1 });
    assert_eq!(site.inside_sends(&udp((TALKER, 500), closed, b"x")).dropped(), Reason::NoPinhole);
    assert_eq!(site.used("flows"), 2);
}

#[test]
fn hairpin_works_for_a_client_that_the_frontend_knows_by_its_inside_address() {
    let mut site = Site::new();
    let grant = site.grant(UDP, TARGET);
    let opened = site.install(grant, TALKER, (80, 80));
    let gate = (opened.address, opened.ports.0);
    let there = site.inside_sends(&udp((TARGET, 500), gate, b"x")).inside();
    let (src, dst) = ends(&there);
    assert_eq!((src.0, dst), (GATE.into(), (TALKER, 80)));
    let back = site.inside_sends(&udp((TALKER, 80), src, b"y")).inside();
    assert_eq!(ends(&back), (gate, (TARGET, 500)));
}

#[test]
fn spoofed_and_impossible_addresses_are_refused() {
    let mut site = Site::new();
    let (_, gate) = site.open(UDP, 5_004);
    for source in [
        "10.0.0.10",
        "10.0.0.20",
        "192.0.2.80",
        "192.0.2.1",
        "127.0.0.1",
        "224.0.0.1",
        "0.0.0.0",
        "255.255.255.255",
        "240.0.0.1",
        "169.254.3.4",
    ] {
        let source = (source.parse().unwrap(), 1);
        assert_eq!(site.outside_sends(&udp(source, gate, b"x")).dropped(), Reason::AddressInvalid, "{source:?}");
    }
    for source in ["10.0.0.11", "198.51.100.7", "127.0.0.1"] {
        let source = (source.parse().unwrap(), 5_004);
        assert_eq!(site.inside_sends(&udp(source, (CLIENT, 1), b"x")).dropped(), Reason::AddressInvalid, "{source:?}");
    }
    assert_eq!(site.used("flows"), 0);
}

#[test]
fn packets_with_options_source_routes_or_other_protocols_are_refused() {
    use sluicegate_wire::{IpProtocol, ipv4};
    let mut site = Site::new();
    let (_, gate) = site.open(UDP, 5_004);
    let with_options = |options: [u8; 4]| {
        let plain = udp((CLIENT, 40_000), gate, b"x");
        let mut packet = [&plain[..20], &options, &plain[20..]].concat();
        let mut view = ipv4::Packet::new_unchecked(&mut packet[..]);
        view.set_version_and_header_len(24);
        view.set_total_len(plain.len() as u16 + 4);
        view.fill_checksum();
        packet
    };
    assert_eq!(site.outside_sends(&with_options([148, 4, 0, 0])).dropped(), Reason::IpOptions);
    assert_eq!(site.outside_sends(&with_options([131, 3, 4, 0])).dropped(), Reason::SourceRoute);
    for number in [2, 59, 132, 253] {
        let other = ip(CLIENT, gate.0, IpProtocol(number), &[0; 20]);
        assert_eq!(site.outside_sends(&other).dropped(), Reason::ProtocolUnsupported, "{number}");
    }
    let icmpv6_in_ipv4 = ip(CLIENT, gate.0, IpProtocol::ICMPV6, &[128, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(site.outside_sends(&icmpv6_in_ipv4).dropped(), Reason::ProtocolUnsupported);
    let port_zero = udp((CLIENT, 0), gate, b"x");
    assert_eq!(site.outside_sends(&port_zero).dropped(), Reason::TransportHeaderInvalid);
}
