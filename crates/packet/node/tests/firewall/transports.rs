//! Every transport of the table: an exchange of `nat` and of `filter` services, strangers, errors, fragments, restarts.

use std::{net::IpAddr, time::Duration};

use crate::site::{packets::*, *};
use sluicegate_nat::Config;
use sluicegate_pinhole::InstallError;
use sluicegate_wire::{IpProtocol, Reason, dccp::Type, ip::Summary};

const ESP: IpProtocol = IpProtocol::ESP;
const AH: IpProtocol = IpProtocol::AUTHENTICATION;
const GRE: IpProtocol = IpProtocol::GRE;
/// OSPF: one of those without a row.
const OTHER: IpProtocol = IpProtocol(89);

/// A packet of a protocol that goes by its addresses.
fn plain(protocol: IpProtocol, src: IpAddr, dst: IpAddr) -> Vec<u8> {
    let header: &[u8] = match protocol {
        GRE => &[0, 0, 0x08, 0x00],
        AH => &[17, 4, 0, 0, 0, 0, 0x10, 1, 0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
        _ => &[0, 0, 0x10, 1, 0, 0, 0, 1],
    };
    ip(src, dst, protocol, &[header, &payload(40)].concat())
}

fn addresses(packet: &[u8]) -> (IpAddr, IpAddr) {
    let ip = Summary::parse_quoted(packet).unwrap();
    (ip.src, ip.dst)
}

#[test]
fn udplite_is_translated_with_its_own_ports_and_checksum() {
    let mut site = Site::new();
    let (_, udp_gate) = site.open(UDP, 5_004);
    let (_, gate) = site.open(IpProtocol::UDPLITE.0, 5_004);
    let client = (CLIENT, 40_000);
    let inside = site.outside_sends(&udplite(client, gate, b"voice")).inside();
    assert_eq!(ends(&inside), (client, (TARGET, 5_004)));
    let outside = site.inside_sends(&udplite((TARGET, 5_004), client, b"voice")).outside();
    assert_eq!(ends(&outside), (gate, client));
    let other = site.outside_sends(&udplite(client, udp_gate, b"x"));
    assert!(udp_gate.1 == gate.1 || other.dropped() == Reason::NoPinhole, "UDP has ports of its own");
    assert_eq!(site.outside_sends(&udplite((STRANGER, 40_000), gate, b"x")).dropped(), Reason::NoPinhole);
    assert_eq!(site.used("external_ports_udplite"), 1);
}

#[test]
fn a_dccp_connection_is_followed_and_nothing_else_opens_one() {
    let mut site = Site::new();
    let (_, gate) = site.open(IpProtocol::DCCP.0, 5_001);
    let (client, server) = ((CLIENT, 40_000), (TARGET, 5_001));
    assert_eq!(site.outside_sends(&dccp(client, gate, Type::DATA_ACK)).dropped(), Reason::TcpState);
    for (from_client, kind) in [
        (true, Type::REQUEST),
        (false, Type::RESPONSE),
        (true, Type::ACK),
        (false, Type::DATA_ACK),
        (true, Type::SYNC),
        (false, Type::CLOSE_REQ),
        (true, Type::CLOSE),
        (false, Type::RESET),
    ] {
        let out = if from_client {
            ends(&site.outside_sends(&dccp(client, gate, kind)).inside()) == (client, server)
        } else {
            ends(&site.inside_sends(&dccp(server, client, kind)).outside()) == (gate, client)
        };
        assert!(out, "{kind:?}");
    }
    site.wait(Duration::from_secs(300));
    assert_eq!(site.used("flows"), 0, "a closed connection ends soon");
}

#[test]
fn an_open_dccp_connection_lasts_two_hours() {
    let mut site = Site::new();
    let (mut grant, _) = site.open(IpProtocol::DCCP.0, 5_001);
    grant.id = sluicegate_grant::GrantId::of_call([8; 12], 1);
    grant.not_after = grant.not_before.plus_secs(20_000);
    let opened = site.install(grant, TARGET, (5_002, 5_002));
    let (client, server, gate) = ((CLIENT, 40_000), (TARGET, 5_002), (opened.address, opened.ports.0));
    site.outside_sends(&dccp(client, gate, Type::REQUEST)).inside();
    site.inside_sends(&dccp(server, client, Type::RESPONSE)).outside();
    site.outside_sends(&dccp(client, gate, Type::ACK)).inside();
    site.wait(Duration::from_secs(7_400));
    site.inside_sends(&dccp(server, client, Type::DATA_ACK)).outside();
    assert_eq!(site.outside_sends(&dccp(client, gate, Type::REQUEST)).dropped(), Reason::TcpState);
}

#[test]
fn what_has_no_ports_is_translated_for_the_client_that_a_grant_names() {
    for protocol in [ESP, GRE, OTHER] {
        let mut site = Site::new();
        let (grant, gate) = site.open(protocol.0, 0);
        assert_eq!(gate.0, IpAddr::from(GATE), "{protocol}");
        let inside = site.outside_sends(&plain(protocol, CLIENT, gate.0)).inside();
        assert_eq!(addresses(&inside), (CLIENT, TARGET), "{protocol}");
        let outside = site.inside_sends(&plain(protocol, TARGET, CLIENT)).outside();
        assert_eq!(addresses(&outside), (gate.0, CLIENT), "{protocol}");
        assert_eq!(site.used("flows"), 1);
        assert_eq!(site.outside_sends(&plain(protocol, STRANGER, gate.0)).dropped(), Reason::NoPinhole);
        assert_eq!(site.inside_sends(&plain(protocol, TARGET, STRANGER)).dropped(), Reason::OutboundDisabled);
        let other = if protocol == GRE { ESP } else { GRE };
        assert_eq!(site.outside_sends(&plain(other, CLIENT, gate.0)).dropped(), Reason::NoPinhole);
        // The budget pays.
        let usage = site.gate.translator.usage(grant.id).unwrap();
        assert!(usage.bytes_used > 40, "{usage:?}");
        site.gate.translator.revoke(site.now, grant.id).unwrap();
        assert_eq!(site.outside_sends(&plain(protocol, CLIENT, gate.0)).dropped(), Reason::GrantRevoked);
    }
}

#[test]
fn filter_services_have_every_transport_over_both_versions() {
    for (client, service) in [(CLIENT, FILTERED), (CLIENT_V6, FILTERED_V6)] {
        for protocol in [ESP, AH, GRE, OTHER] {
            let mut site = Site::new();
            let grant = site.grant(protocol.0, client);
            site.install(grant, service, (0, 0));
            let packet = plain(protocol, client, service);
            let inside = site.outside_sends(&packet).inside();
            assert_eq!(inside[40..], packet[40..], "{protocol}");
            site.inside_sends(&plain(protocol, service, client)).outside();
            let stranger = if client.is_ipv4() { STRANGER } else { STRANGER_V6 };
            assert_eq!(site.outside_sends(&plain(protocol, stranger, service)).dropped(), Reason::NoPinhole);
        }
        for protocol in [IpProtocol::UDPLITE, IpProtocol::DCCP] {
            let mut site = Site::new();
            let grant = site.grant(protocol.0, client);
            site.install(grant, service, (7, 7));
            let packet = |dst| match protocol {
                IpProtocol::DCCP => dccp((client, 9), dst, Type::REQUEST),
                _ => udplite((client, 9), dst, b"x"),
            };
            site.outside_sends(&packet((service, 7))).inside();
            assert_eq!(site.outside_sends(&packet((service, 8))).dropped(), Reason::NoPinhole);
        }
    }
}

#[test]
fn what_signs_its_addresses_is_not_opened_where_they_are_rewritten() {
    let mut site = Site::new();
    let grant = site.grant(AH.0, CLIENT);
    let refused = site.gate.translator.install(site.now, site.unix, spec(grant, TARGET, (0, 0)));
    assert_eq!(refused, Err(InstallError::Protocol(AH.0)));
    assert_eq!(site.inside_sends(&plain(AH, TALKER, CLIENT)).dropped(), Reason::ProtocolUnsupported);
}

#[test]
fn of_two_services_that_speak_by_addresses_with_the_same_host_the_first_keeps_it() {
    const SECOND: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 21));
    let mut site = Site::new();
    let mut all = services();
    all.push(sluicegate_pinhole::Service { id: 9, address: SECOND, outbound_all: true, ..all[1] });
    site.gate.translator.set_services(&all).unwrap();
    site.inside_sends(&plain(GRE, TALKER, CLIENT)).outside();
    assert_eq!(site.inside_sends(&plain(GRE, SECOND, CLIENT)).dropped(), Reason::NoExternalPort);
    let inside = site.outside_sends(&plain(GRE, CLIENT, GATE.into())).inside();
    assert_eq!(addresses(&inside), (CLIENT, TALKER));
    site.wait(Duration::from_secs(310));
    site.inside_sends(&plain(GRE, SECOND, CLIENT)).outside();
}

#[test]
fn an_error_about_each_transport_reaches_who_sent_the_packet() {
    let router: IpAddr = STRANGER;
    for protocol in [IpProtocol::UDPLITE, IpProtocol::DCCP, ESP, GRE, OTHER] {
        let mut site = Site::new();
        let (_, gate) = site.open(protocol.0, 7);
        let client = (CLIENT, 9);
        let from_client = match protocol {
            IpProtocol::UDPLITE => udplite(client, gate, &payload(40)),
            IpProtocol::DCCP => dccp(client, gate, Type::REQUEST),
            _ => plain(protocol, CLIENT, gate.0),
        };
        let answer = match protocol {
            IpProtocol::UDPLITE => udplite((TARGET, 7), client, &payload(40)),
            IpProtocol::DCCP => dccp((TARGET, 7), client, Type::RESPONSE),
            _ => plain(protocol, TARGET, CLIENT),
        };
        let seen_inside = site.outside_sends(&from_client).inside();
        let seen_outside = site.inside_sends(&answer).outside();
        // From a router outside, about what the service sent.
        let error = unreachable(router, gate.0, &seen_outside, 8);
        let inside = site.outside_sends(&error).inside();
        assert_eq!(addresses(&inside), (router, TARGET), "{protocol}");
        assert_eq!(addresses(&inside[28..]), (TARGET, CLIENT), "{protocol}");
        // From the service, about what the client sent.
        let error = unreachable(TARGET, CLIENT, &seen_inside, 8);
        let outside = site.inside_sends(&error).outside();
        assert_eq!(addresses(&outside), (gate.0, CLIENT), "{protocol}");
        assert_eq!(addresses(&outside[28..]), (CLIENT, gate.0), "{protocol}");
        // About nobody's packet.
        let strange = unreachable(router, gate.0, &plain(protocol, gate.0, router), 8);
        assert_eq!(site.outside_sends(&strange).dropped(), Reason::IcmpNoFlow, "{protocol}");
    }
}

#[test]
fn fragments_of_each_transport_follow_the_first() {
    for protocol in [IpProtocol::UDPLITE, ESP, GRE, OTHER] {
        let mut site = Site::new();
        let (_, gate) = site.open(protocol.0, 7);
        let whole = match protocol {
            IpProtocol::UDPLITE => udplite((CLIENT, 9), gate, &payload(200)),
            _ => plain(protocol, CLIENT, gate.0),
        };
        let mut parts = Vec::new();
        for part in fragments(&whole, 5, 24) {
            parts.push(site.outside_sends(&part).inside());
        }
        let together = reassemble(&parts);
        assert_eq!(addresses(&together), (CLIENT, TARGET), "{protocol}");
        check_checksums(&together);
    }
}

#[test]
fn flows_of_each_transport_survive_a_restart() {
    for protocol in [IpProtocol::UDPLITE, ESP, OTHER] {
        let mut site = Site::new();
        let (_, gate) = site.open(protocol.0, 7);
        let packet = match protocol {
            IpProtocol::UDPLITE => udplite((CLIENT, 9), gate, b"x"),
            _ => plain(protocol, CLIENT, gate.0),
        };
        site.outside_sends(&packet).inside();
        let mut bytes = Vec::new();
        sluicegate_nat::Export::whole(&site.gate.translator, &mut |part| bytes.extend_from_slice(part));
        site.gate = firewall(config(), [9; 16], 9);
        site.gate.translator.set_services(&services()).unwrap();
        let imported = sluicegate_nat::import(&mut site.gate.translator, site.now, site.unix, &bytes).unwrap();
        assert_eq!((imported.pinholes, imported.flows), (1, 1), "{protocol}");
        site.outside_sends(&packet).inside();
    }
}

#[test]
fn headers_that_no_host_would_take_are_dropped() {
    let mut site = Site::new();
    let zero_index = ip(CLIENT, GATE.into(), ESP, &[0; 40]);
    let version_7 = ip(CLIENT, GATE.into(), GRE, &[0, 7, 8, 0]);
    let short = [ip(CLIENT, GATE.into(), ESP, &[1; 7]), ip(CLIENT, GATE.into(), GRE, &[0; 3])];
    for packet in [zero_index, version_7].iter().chain(&short) {
        assert_eq!(site.outside_sends(packet).dropped(), Reason::TransportHeaderInvalid);
    }
    assert_eq!(site.used("flows"), 0);
}

#[test]
fn ports_of_a_new_transport_are_refused_when_all_are_taken() {
    let mut site = Site::with(Config { external_ports: (20_000, 20_001), ..config() });
    for port in [1, 2] {
        site.open(IpProtocol::UDPLITE.0, port);
    }
    let third = site.grant(IpProtocol::UDPLITE.0, CLIENT);
    let refused = site.gate.translator.install(site.now, site.unix, spec(third, TARGET, (3, 3)));
    assert_eq!(refused, Err(InstallError::NoExternalPort));
    site.open(IpProtocol::DCCP.0, 3);
}
