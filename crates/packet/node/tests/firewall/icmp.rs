//! RFC 5508: echo for granted clients, errors only about live flows.

use crate::site::{packets::*, *};
use sluicegate_wire::{
    IpProtocol, Port, Reason, Verdict, icmp,
    ip::{Summary, Version},
    tcp::{Control, Repr},
};

const ROUTER: std::net::IpAddr = STRANGER;

/// Addresses and ports of the packet that an error quotes.
fn quoted(packet: &[u8]) -> (End, End) {
    let quoted = message(packet).quoted().to_vec();
    assert!(Summary::parse_quoted(&quoted).is_ok(), "the quoted header's checksum is right");
    ends_of_quoted(&quoted)
}

fn ends_of_quoted(quoted: &[u8]) -> (End, End) {
    let ip = Summary::parse_quoted(quoted).unwrap();
    let transport = ip.transport(quoted);
    let port = |at: usize| u16::from_be_bytes([transport[at], transport[at + 1]]);
    ((ip.src, port(0)), (ip.dst, port(2)))
}

#[test]
fn a_granted_client_may_ping_and_others_may_not() {
    let mut site = Site::new();
    let grant = site.grant(ICMP, CLIENT);
    let opened = site.install(grant, TARGET, (0, 0));
    let there = site.outside_sends(&echo(CLIENT, opened.address, 77, true)).inside();
    assert_eq!((Summary::parse(&there).unwrap().dst, ident(&there)), (TARGET, 77));
    let back = site.inside_sends(&echo(TARGET, CLIENT, 77, false)).outside();
    assert_eq!((Summary::parse(&back).unwrap().src, ident(&back)), (opened.address, 77));
    assert_eq!(site.outside_sends(&echo(STRANGER, opened.address, 77, true)).dropped(), Reason::NoPinhole);
    assert_eq!(site.outside_sends(&echo(CLIENT, opened.address, 78, false)).dropped(), Reason::NoPinhole);
    assert_eq!(site.inside_sends(&echo(TARGET, CLIENT, 78, false)).dropped(), Reason::OutboundDisabled);
    site.wait(std::time::Duration::from_secs(61));
    assert_eq!(site.used("flows"), 0);
}

#[test]
fn a_talker_pings_with_an_identifier_of_the_gate() {
    let mut site = Site::new();
    let there = site.inside_sends(&echo(TALKER, CLIENT, 5, true)).outside();
    let external = ident(&there);
    assert!((20_000..=20_999).contains(&external));
    let elsewhere = site.inside_sends(&echo(TALKER, STRANGER, 5, true)).outside();
    assert_eq!(ident(&elsewhere), external, "independent of the remote host (RFC 5508 REQ-1a)");
    let back = site.outside_sends(&echo(CLIENT, GATE.into(), external, false)).inside();
    assert_eq!((Summary::parse(&back).unwrap().dst, ident(&back)), (TALKER, 5));
    assert_eq!(site.outside_sends(&echo(CLIENT, GATE.into(), external, true)).dropped(), Reason::NoPinhole);
}

#[test]
fn an_error_outside_sends_about_a_live_flow_is_translated_inside_and_out() {
    let mut site = Site::new();
    let (_, gate) = site.open(UDP, 5_004);
    exchange(&mut site, (CLIENT, 9_000), gate, (TARGET, 5_004));
    let sent = site.inside_sends(&udp((TARGET, 5_004), (CLIENT, 9_000), &payload(100))).outside();
    for len in [8, 20, 108] {
        let error = site.outside_sends(&unreachable(ROUTER, gate.0, &sent, len)).inside();
        let outer = Summary::parse(&error).unwrap();
        assert_eq!((outer.src, outer.dst), (ROUTER, TARGET));
        assert_eq!(quoted(&error), ((TARGET, 5_004), (CLIENT, 9_000)));
    }
    let whole = site.outside_sends(&unreachable(ROUTER, gate.0, &sent, 108)).inside();
    let inner = message(&whole).quoted().to_vec();
    let ip = Summary::parse(&inner).unwrap();
    assert!(ip.verify_transport_checksum(&inner), "the quoted UDP checksum fits the quoted addresses");
    assert_eq!(site.used("flows"), 1, "errors end nothing");
}

#[test]
fn an_error_inside_sends_comes_from_the_gates_address() {
    let mut site = Site::new();
    let (_, gate) = site.open(UDP, 5_004);
    let received = site.outside_sends(&udp((CLIENT, 9_000), gate, b"x")).inside();
    let error = site.inside_sends(&unreachable(TARGET, CLIENT, &received, 8)).outside();
    let outer = Summary::parse(&error).unwrap();
    assert_eq!((outer.src, outer.dst), (gate.0, CLIENT));
    assert_eq!(quoted(&error), ((CLIENT, 9_000), gate));
    let router: std::net::IpAddr = "10.0.0.254".parse().unwrap();
    let error = site.inside_sends(&unreachable(router, CLIENT, &received, 8)).outside();
    assert_eq!(Summary::parse(&error).unwrap().src, gate.0, "a router's inside address stays inside");
}

/// An error about a flow that is not translated leaves with the source that it has.
#[test]
fn a_host_with_a_private_address_says_nothing_about_the_flows_of_others() {
    let mut site = Site::new();
    let grant = site.grant(UDP, CLIENT);
    site.install(grant, FILTERED, (53, 53));
    let received = site.outside_sends(&udp((CLIENT, 7), (FILTERED, 53), b"x")).inside();
    for hidden in [TARGET, TALKER, GATE.into()] {
        let error = unreachable(hidden, CLIENT, &received, 8);
        assert_eq!(site.inside_sends(&error).dropped(), Reason::AddressInvalid, "{hidden}");
    }
    let router = "198.51.100.254".parse().unwrap();
    for source in [FILTERED, router] {
        let error = site.inside_sends(&unreachable(source, CLIENT, &received, 8)).outside();
        assert_eq!(Summary::parse(&error).unwrap().src, source);
    }
    site.gate.translator.observe(true);
    let other = udp((CLIENT, 7), (FILTERED, 54), b"x");
    assert_eq!(site.inside_sends(&unreachable(TARGET, FILTERED, &other, 8)).dropped(), Reason::IcmpNoFlow);
}

#[test]
fn errors_about_pings_are_translated_too() {
    let mut site = Site::new();
    let sent = site.inside_sends(&echo(TALKER, CLIENT, 5, true)).outside();
    let error = site.outside_sends(&unreachable(ROUTER, GATE.into(), &sent, 8)).inside();
    assert_eq!(ident(message(&error).quoted()), 5);
}

#[test]
fn spoofed_errors_die() {
    let mut site = Site::new();
    let (_, gate) = site.open(UDP, 5_004);
    exchange(&mut site, (CLIENT, 9_000), gate, (TARGET, 5_004));
    let mut refused = |src, dst, packet: &[u8]| site.outside_sends(&unreachable(src, dst, packet, 8)).dropped();
    let other_port = udp(gate, (CLIENT, 9_001), b"x");
    assert_eq!(refused(ROUTER, gate.0, &other_port), Reason::IcmpNoFlow, "no such flow");
    let other_source = udp((OTHER_CLIENT, gate.1), (CLIENT, 9_000), b"x");
    assert_eq!(refused(ROUTER, gate.0, &other_source), Reason::IcmpNoFlow, "not from the gate");
    let inside = udp((TARGET, 5_004), (CLIENT, 9_000), b"x");
    assert_eq!(refused(ROUTER, TARGET, &inside), Reason::IcmpNoFlow, "inside addresses are unknown outside");
    let backwards = udp((CLIENT, 9_000), gate, b"x");
    assert_eq!(refused(ROUTER, CLIENT, &backwards), Reason::IcmpNoFlow);
    let real = udp(gate, (CLIENT, 9_000), b"x");
    assert_eq!(refused(TARGET, gate.0, &real), Reason::AddressInvalid, "from an inside address");
    assert_eq!(refused(ROUTER, FILTERED, &real), Reason::IcmpNoFlow, "to another address than its packet came from");
    let mut damaged = unreachable(ROUTER, gate.0, &real, 8);
    damaged[40] ^= 1;
    assert_eq!(site.outside_sends(&damaged).dropped(), Reason::TransportHeaderInvalid);
    site.outside_sends(&unreachable(ROUTER, gate.0, &real, 8)).inside();
}

#[test]
fn an_error_about_tcp_must_quote_a_segment_that_may_be_in_flight() {
    let mut site = Site::new();
    let (_, gate) = site.open(TCP, 22);
    let (client, server) = ((CLIENT, 9), (TARGET, 22));
    site.outside_sends(&tcp(client, gate, Repr::new(0, 0, Control::Syn, 100))).inside();
    let answer = Repr { ack: Some(101), ..Repr::new(0, 0, Control::Syn, 5_000_000) };
    let sent = site.inside_sends(&tcp(server, client, answer)).outside();
    site.outside_sends(&unreachable(ROUTER, gate.0, &sent, 8)).inside();
    for seq in [5_000_002u32, 5_000_000 - 70_000, 77] {
        let guess = tcp(gate, client, Repr { ack: Some(101), ..Repr::new(0, 0, Control::None, seq) });
        let reason = site.outside_sends(&unreachable(ROUTER, gate.0, &guess, 8)).dropped();
        assert_eq!(reason, Reason::IcmpNoFlow, "{seq}");
    }
}

#[test]
fn an_open_connection_hears_only_that_packets_are_too_big_and_that_seldom() {
    let mut site = Site::new();
    let (_, gate) = site.open(TCP, 22);
    let (client, server) = ((CLIENT, 9), (TARGET, 22));
    site.outside_sends(&tcp(client, gate, Repr::new(0, 0, Control::Syn, 100))).inside();
    let answer = Repr { ack: Some(101), ..Repr::new(0, 0, Control::Syn, 5_000_000) };
    let answered = site.inside_sends(&tcp(server, client, answer)).outside();
    // A client that is not there yet may say so.
    site.outside_sends(&unreachable(ROUTER, gate.0, &answered, 8)).inside();
    let last = Repr { ack: Some(5_000_001), ..Repr::new(0, 0, Control::None, 101) };
    site.outside_sends(&tcp(client, gate, last)).inside();
    let data = Repr { ack: Some(101), ..Repr::new(0, 0, Control::None, 5_000_001) };
    let sent = site.inside_sends(&tcp(server, client, data)).outside();
    assert_eq!(site.outside_sends(&unreachable(ROUTER, gate.0, &sent, 8)).dropped(), Reason::IcmpType);
    let too_big = too_big(ROUTER, gate.0, 1_400, &sent);
    let passed = (0..3_000).filter(|_| {
        site.wait(std::time::Duration::from_millis(1));
        site.outside_sends(&too_big).verdict == Verdict::Forward(Port::INSIDE)
    });
    assert!((3..=4).contains(&passed.count()));
}

#[test]
fn an_error_about_a_hairpin_packet_turns_round() {
    let mut site = Site::new();
    let grant = site.grant(UDP, GATE.into());
    let opened = site.install(grant, TARGET, (80, 80));
    let gate = (opened.address, opened.ports.0);
    let arrived = site.inside_sends(&udp((TALKER, 500), gate, b"x")).inside();
    let error = site.inside_sends(&unreachable(TARGET, GATE.into(), &arrived, 8)).inside();
    let outer = Summary::parse(&error).unwrap();
    assert_eq!((outer.src, outer.dst), (gate.0, TALKER));
    assert_eq!(quoted(&error), ((TALKER, 500), gate));
}

#[test]
fn errors_are_rate_limited_by_grant_and_then_in_common() {
    let mut site = Site::with(sluicegate_nat::Config { icmp_errors_per_s: 1_000, ..config() });
    let (_, noisy) = site.open(UDP, 5_004);
    exchange(&mut site, (CLIENT, 9_000), noisy, (TARGET, 5_004));
    let (_, quiet) = site.open(UDP, 5_006);
    exchange(&mut site, (CLIENT, 9_000), quiet, (TARGET, 5_006));
    let about = |gate: End| unreachable(ROUTER, gate.0, &udp(gate, (CLIENT, 9_000), b"x"), 8);
    let mut passed = 0;
    for _ in 0..20_000 {
        match site.outside_sends(&about(noisy)).verdict {
            Verdict::Forward(_) => passed += 1,
            Verdict::Drop(reason) => assert_eq!(reason, Reason::IcmpRate),
            other => panic!("{other:?}"),
        }
        site.wait(std::time::Duration::from_micros(100));
    }
    assert!((100..=106).contains(&passed), "{passed}: 50 a second for two seconds and a burst of 5");
    site.outside_sends(&about(quiet)).inside();
    // All together: 1,000 a second.
    let mut site = Site::with(sluicegate_nat::Config { icmp_errors_per_s: 20, ..config() });
    let ends: Vec<End> = (0..10).map(|at| site.open(UDP, 5_000 + at).1).collect();
    for (at, gate) in (0..).zip(&ends) {
        exchange(&mut site, (CLIENT, 9_000), *gate, (TARGET, 5_000 + at));
    }
    let passed =
        ends.iter().filter(|gate| site.outside_sends(&about(**gate)).verdict == Verdict::Forward(Port::INSIDE));
    assert_eq!(passed.count(), 2);
}

#[test]
fn oversized_packets_of_one_client_leave_answers_for_others() {
    let mut site = Site::with(sluicegate_nat::Config { mtu: [9_000, 1_400], ..config() });
    let (_, noisy) = site.open(UDP, 5_004);
    let (_, quiet) = site.open(UDP, 5_006);
    let long = |gate: End| udp((CLIENT, 9_000), gate, &payload(1_373));
    let replies = (0..10_000).filter(|_| site.outside_sends(&long(noisy)).verdict == Verdict::Reply).count();
    assert!(replies <= 6, "{replies}");
    assert_eq!(site.outside_sends(&long(quiet)).verdict, Verdict::Reply);
}

#[test]
fn an_error_from_outside_is_paid_by_its_flow_and_refused_when_that_is_spent() {
    let mut site = Site::new();
    let base = site.grant(UDP, CLIENT);
    let grant = sluicegate_grant::Grant { bytes: 1_000, ..base };
    let opened = site.install(grant.clone(), TARGET, (5_004, 5_004));
    let gate = (opened.address, opened.ports.0);
    exchange(&mut site, (CLIENT, 9_000), gate, (TARGET, 5_004));
    let usage = |site: &Site| {
        let usage = site.gate.translator.usage(grant.id).unwrap();
        (usage.bytes_used, usage.error_bytes)
    };
    let (used, _) = usage(&site);
    let error = unreachable(ROUTER, gate.0, &udp(gate, (CLIENT, 9_000), &payload(400)), 428);
    let len = error.len() as u64;
    site.outside_sends(&error).inside();
    assert_eq!(usage(&site), (used + len, len));
    site.outside_sends(&error).inside();
    let before = error.clone();
    assert_eq!(site.outside_sends(&error).dropped(), Reason::BudgetSpent);
    assert_eq!(error, before);
    assert_eq!(usage(&site), (used + 2 * len, 2 * len));
    let outward = unreachable(TARGET, CLIENT, &udp((CLIENT, 9_000), (TARGET, 5_004), b"ping"), 8);
    site.inside_sends(&outward).outside();
}

#[test]
fn errors_keep_no_flow_alive() {
    let mut site = Site::new();
    let (_, gate) = site.open(UDP, 5_004);
    exchange(&mut site, (CLIENT, 9_000), gate, (TARGET, 5_004));
    let error = unreachable(ROUTER, gate.0, &udp(gate, (CLIENT, 9_000), b"x"), 8);
    for _ in 0..31 {
        let _ = site.outside_sends(&error);
        site.wait(std::time::Duration::from_secs(10));
    }
    assert_eq!(site.used("flows"), 0);
}

#[test]
fn the_quote_is_cut_to_what_a_host_must_take() {
    let mut site = Site::new();
    let (_, gate) = site.open(UDP, 5_004);
    exchange(&mut site, (CLIENT, 9_000), gate, (TARGET, 5_004));
    let error = unreachable(ROUTER, gate.0, &udp(gate, (CLIENT, 9_000), &payload(1_400)), 1_428);
    let inside = site.outside_sends(&error).inside();
    assert_eq!(inside.len(), 576);
    assert_eq!(quoted(&inside), ((TARGET, 5_004), (CLIENT, 9_000)));
    let grant = site.grant(UDP, CLIENT_V6);
    site.install(grant, FILTERED_V6, (53, 53));
    site.outside_sends(&udp((CLIENT_V6, 7), (FILTERED_V6, 53), b"x")).inside();
    let answer = udp((FILTERED_V6, 53), (CLIENT_V6, 7), &payload(1_400));
    let mut message = too_big(STRANGER_V6, FILTERED_V6, 1_280, &answer)[40..].to_vec();
    message.extend_from_slice(&payload(200));
    icmp::Packet::new_unchecked(Version::V6, &mut message[..]).fill_checksum(STRANGER_V6, FILTERED_V6);
    let error = ip(STRANGER_V6, FILTERED_V6, IpProtocol::ICMPV6, &message);
    assert!(error.len() > 1_280);
    assert_eq!(site.outside_sends(&error).inside().len(), 1_280);
}

#[test]
fn a_flow_under_a_mac_hears_only_that_packets_are_too_big_and_that_seldom() {
    let mut site = Site::new();
    let keys = sluicegate_grant::mac::SessionKeys::from_bytes([[7; 16]; 2]);
    let base = site.grant(UDP, CLIENT);
    let grant = sluicegate_grant::Grant { least_mode: sluicegate_grant::DataMode::Mac, client_id: 77, ..base };
    let mut spec = spec(grant, TARGET, (5_004, 5_004));
    spec.keys = Some(keys.clone());
    let opened = site.gate.translator.install(site.now, site.unix, spec).unwrap();
    let gate = (opened.address, opened.ports.0);
    let ends = sluicegate_grant::mac::Ends { client: (CLIENT, 9_000), gate_port: gate.1 };
    let purpose = sluicegate_grant::mac::Purpose::Datagram;
    let text = [&b"hello"[..], &keys.to_service.trailer(77, purpose, 1, &ends, b"hello")].concat();
    site.outside_sends(&udp((CLIENT, 9_000), gate, &text)).inside();
    let answer = site.inside_sends(&udp((TARGET, 5_004), (CLIENT, 9_000), b"answer")).outside();
    assert_eq!(site.outside_sends(&unreachable(ROUTER, gate.0, &answer, 8)).dropped(), Reason::IcmpType);
    let too_big = too_big(ROUTER, gate.0, 1_400, &answer);
    let mut passed = 0;
    for _ in 0..3_000 {
        let out = site.outside_sends(&too_big);
        if out.verdict == Verdict::Forward(Port::INSIDE) {
            passed += 1;
            assert_eq!(message(&out.packet).mtu(), 1_380, "with room for the trailer that the gate adds");
        }
        site.wait(std::time::Duration::from_millis(1));
    }
    assert!((3..=4).contains(&passed), "{passed}");
    site.inside_sends(&unreachable(TARGET, CLIENT, &udp((CLIENT, 9_000), (TARGET, 5_004), b"hello"), 8)).outside();
}

#[test]
fn other_icmp_types_do_not_pass() {
    let mut site = Site::new();
    let grant = site.grant(ICMP, CLIENT);
    let opened = site.install(grant, TARGET, (0, 0));
    for kind in [4u8, 5, 9, 10, 13, 15, 17, 30, 255] {
        let mut message = vec![kind, 0, 0, 0, 0, 1, 0, 1];
        icmp::Packet::new_unchecked(Version::V4, &mut message[..]).fill_checksum(CLIENT, opened.address);
        let packet = ip(CLIENT, opened.address, IpProtocol::ICMP, &message);
        assert_eq!(site.outside_sends(&packet).dropped(), Reason::IcmpType, "{kind}");
    }
}

#[test]
fn a_packet_too_long_for_the_protected_link_is_answered_with_its_mtu() {
    let mut site = Site::with(sluicegate_nat::Config { mtu: [9_000, 1_400], ..config() });
    let (_, gate) = site.open(UDP, 5_004);
    let packet = udp((CLIENT, 9_000), gate, &payload(1_373));
    let out = site.outside_sends(&packet);
    assert_eq!(out.verdict, Verdict::Reply);
    let outer = Summary::parse(&out.packet).unwrap();
    assert_eq!((outer.src, outer.dst), (gate.0, CLIENT));
    let message = message(&out.packet);
    assert_eq!((message.kind(), message.code(), message.mtu()), (icmp::Kind::PacketTooBig, 4, 1_400));
    assert_eq!(quoted(&out.packet), ((CLIENT, 9_000), gate), "as its sender sent it");
    assert_eq!(site.drops(Reason::PacketTooBig), 1);
    let stranger = udp((STRANGER, 9_000), gate, &payload(1_373));
    assert_eq!(site.outside_sends(&stranger).dropped(), Reason::NoPinhole, "strangers get no answer");
    site.outside_sends(&udp((CLIENT, 9_000), gate, &payload(1_372))).inside();
}

#[test]
fn a_long_packet_that_may_be_fragmented_is_cut() {
    let mut site = Site::with(sluicegate_nat::Config { mtu: [9_000, 1_000], ..config() });
    let (_, gate) = site.open(UDP, 5_004);
    let mut packet = udp((CLIENT, 9_000), gate, &payload(3_000));
    packet[6] = 0;
    sluicegate_wire::ipv4::Packet::new_unchecked(&mut packet[..]).fill_checksum();
    let mut parts = vec![site.outside_sends(&packet).inside()];
    parts.extend(site.released().into_iter().map(|(port, part)| {
        assert_eq!(port, Port::INSIDE);
        part
    }));
    assert_eq!(parts.len(), 4);
    assert!(parts.iter().all(|part| part.len() <= 1_000));
    let whole = reassemble(&parts);
    check_checksums(&whole);
    assert_eq!(whole[28..], payload(3_000));
}
