use super::*;

fn own(address: &str, side: Side) -> OwnAddress {
    OwnAddress { address: address.parse().unwrap(), side }
}

fn local(protocol: u8, first: u16, last: u16) -> LocalRule {
    LocalRule { protocol, first, last, side: Side::Both, address: None, rate_pps: 100 }
}

fn rules() -> Rules {
    let peer = |remote: &str| Peer { remote: remote.parse().unwrap(), own_port: 40_000 };
    Rules {
        own: vec![own("192.0.2.1", Side::Both), own("2001:db8::1", Side::Both), own("10.0.0.1", Side::Inside)],
        local: vec![local(6, 22, 22), local(17, 5060, 5061)],
        peers: vec![peer("203.0.113.9:7443"), peer("[2001:db8::9]:7443")],
        translated: Some(Translated { address: [192, 0, 2, 1].into(), first: 20_000, last: 20_999 }),
        pings: vec![1, 1 << 63],
    }
}

/// What comes from outside, unless a test is about sides.
fn classify(rules: &Rules, frame: &[u8]) -> Class {
    super::classify(rules, Port::OUTSIDE, frame)
}

/// An Ethernet frame with an IP header and the first bytes of a transport header.
fn frame(source: &str, destination: &str, protocol: u8, source_port: u16, port: u16) -> Vec<u8> {
    let mut frame = vec![0; 12];
    let (source, destination): (IpAddr, IpAddr) = (source.parse().unwrap(), destination.parse().unwrap());
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            frame.extend([0x08, 0x00, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, protocol, 0, 0]);
            frame.extend(source.octets());
            frame.extend(destination.octets());
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, protocol, 64]);
            frame.extend(source.octets());
            frame.extend(destination.octets());
        }
        _ => panic!("mixed families"),
    }
    frame.extend(source_port.to_be_bytes());
    frame.extend(port.to_be_bytes());
    frame.extend([0; 4]);
    frame
}

#[test]
fn listed_ports_of_own_addresses_are_local_in_both_families() {
    let rules = rules();
    for (source, own, other) in
        [("198.51.100.7", "192.0.2.1", "192.0.2.2"), ("2001:db8:7::7", "2001:db8::1", "2001:db8::2")]
    {
        assert_eq!(classify(&rules, &frame(source, own, 6, 1024, 22)), Class::Local);
        assert_eq!(classify(&rules, &frame(source, own, 17, 1024, 5061)), Class::Local);
        assert_eq!(classify(&rules, &frame(source, own, 17, 1024, 5062)), Class::Answer);
        assert_eq!(classify(&rules, &frame(source, own, 6, 1024, 5060)), Class::Answer);
        assert_eq!(classify(&rules, &frame(source, own, 132, 1024, 22)), Class::Gate);
        assert_eq!(classify(&rules, &frame(source, other, 6, 1024, 22)), Class::Gate);
    }
}

#[test]
fn a_peer_is_known_by_both_ends_of_its_connection() {
    let rules = rules();
    assert_eq!(classify(&rules, &frame("203.0.113.9", "192.0.2.1", 6, 7443, 40_000)), Class::Peer);
    assert_eq!(classify(&rules, &frame("2001:db8::9", "2001:db8::1", 6, 7443, 40_000)), Class::Peer);
    for (source, own, protocol, port, own_port, expected) in [
        ("203.0.113.9", "192.0.2.1", 6, 7443, 40_001, Class::Answer),
        ("203.0.113.9", "192.0.2.1", 17, 7443, 40_000, Class::Answer),
        ("203.0.113.9", "192.0.2.1", 6, 7444, 40_000, Class::Answer),
        ("203.0.113.8", "192.0.2.1", 6, 7443, 40_000, Class::Answer),
        ("203.0.113.9", "192.0.2.2", 6, 7443, 40_000, Class::Gate),
    ] {
        assert_eq!(classify(&rules, &frame(source, own, protocol, port, own_port)), expected);
    }
}

#[test]
fn an_entry_holds_on_its_side_and_for_its_address() {
    let mut rules = rules();
    let to = |address: &str| frame("198.51.100.7", address, 6, 1024, 22);
    let both = |rules: &Rules, address: &str| {
        [Port::OUTSIDE, Port::INSIDE].map(|port| super::classify(rules, port, &to(address)))
    };
    assert_eq!(both(&rules, "192.0.2.1"), [Class::Local; 2]);
    assert_eq!(both(&rules, "10.0.0.1"), [Class::Gate, Class::Local], "an inside address is reached from inside");
    rules.local[0].side = Side::Outside;
    assert_eq!(both(&rules, "192.0.2.1"), [Class::Local, Class::Answer]);
    rules.local[0] = LocalRule { side: Side::Both, address: Some("10.0.0.1".parse().unwrap()), ..rules.local[0] };
    assert_eq!(both(&rules, "192.0.2.1"), [Class::Answer; 2]);
    assert_eq!(both(&rules, "10.0.0.1"), [Class::Gate, Class::Local]);
}

#[test]
fn neighbours_may_say_who_has_an_address_but_not_where_routes_lead() {
    for kind in 130..=140u8 {
        let mut discovery = frame("fe80::7", "ff02::1", 58, u16::from(kind) << 8, 0);
        discovery[21] = 255;
        let expected = if matches!(kind, 135 | 136) { Class::Link } else { Class::Gate };
        assert_eq!(classify(&rules(), &discovery), expected, "type {kind}");
    }
}

#[test]
fn icmp_is_local_only_if_listed_and_one_entry_serves_both_families() {
    let mut rules = rules();
    let ping = |source, own, protocol, kind: u16| frame(source, own, protocol, kind << 8, 0);
    let v4 = ping("198.51.100.7", "192.0.2.1", 1, 8);
    let v6 = ping("2001:db8:7::7", "2001:db8::1", 58, 128);
    assert_eq!((classify(&rules, &v4), classify(&rules, &v6)), (Class::Gate, Class::Gate));
    rules.local.push(local(1, 0, 0));
    assert_eq!((classify(&rules, &v4), classify(&rules, &v6)), (Class::Local, Class::Local));
}

/// An ICMP message of this type that quotes a packet from `port` of the host.
fn error(source: &str, own: &str, kind: u8, protocol: u8, port: u16) -> Vec<u8> {
    let v6 = own.contains(':');
    let quoted = frame(own, source, protocol, port, 7);
    let mut frame = frame(source, own, if v6 { 58 } else { 1 }, u16::from(kind) << 8, 0);
    frame.extend(&quoted[14..]);
    if matches!(protocol, 1 | 58) {
        // An echo request.
        let at = frame.len() - 8;
        frame[at..].copy_from_slice(&[8, 0, 0, 0, (port >> 8) as u8, port as u8, 0, 1]);
    }
    frame
}

#[test]
fn nat_09_errors_about_the_hosts_own_packets_are_the_hosts_and_those_about_translations_the_gates() {
    let (mut rules, client, gate) = (rules(), "198.51.100.7", "192.0.2.1");
    for listed in [false, true] {
        let otherwise = if listed { Class::Local } else { Class::Gate };
        if listed {
            rules.local.push(local(1, 0, 0));
        }
        for kind in [3, 11, 12] {
            for (protocol, port, expected) in [
                (6, 40_000, Class::Error),
                (17, 19_999, Class::Error),
                (1, 21_000, Class::Error),
                (6, 20_000, Class::Gate),
                (17, 20_999, Class::Gate),
                (1, 20_500, Class::Gate),
                (17, 7_253, Class::Gate),
                (253, 40_000, Class::Gate),
                (132, 40_000, otherwise),
            ] {
                assert_eq!(classify(&rules, &error(client, gate, kind, protocol, port)), expected, "{protocol} {port}");
            }
        }
        // No error, and one that quotes too little to tell.
        assert_eq!(classify(&rules, &error(client, gate, 5, 6, 40_000)), otherwise);
        let whole = error(client, gate, 3, 6, 40_000);
        assert_eq!(classify(&rules, &whole[..14 + 20 + 28 + 3]), otherwise);
        assert_eq!(classify(&rules, &whole[..14 + 20 + 28 + 4]), Class::Error);
        // Answers to the pings of services and of the host, whose identifiers may be any.
        for (ident, expected) in [
            (19_999, Class::Answer),
            (20_000u16, Class::Gate),
            (20_001, Class::Answer),
            (20_127, Class::Gate),
            (20_128, Class::Answer),
            (40_000, Class::Answer),
        ] {
            let mut reply = frame(client, gate, 1, 0, 0);
            reply[38..40].copy_from_slice(&ident.to_be_bytes());
            assert_eq!(classify(&rules, &reply), expected, "{ident}");
        }
        // Another address of the host's, by the side where it is, and IPv6: nothing is translated there.
        let inside = error("10.0.0.2", "10.0.0.1", 3, 6, 20_000);
        assert_eq!(super::classify(&rules, Port::INSIDE, &inside), Class::Error);
        assert_eq!(super::classify(&rules, Port::OUTSIDE, &inside), Class::Gate);
        for (kind, protocol, expected) in [
            (1, 17, Class::Error),
            (2, 6, Class::Error),
            (4, 58, Class::Error),
            (2, 253, Class::Gate),
            (128, 6, otherwise),
        ] {
            let packet = error("2001:db8:7::7", "2001:db8::1", kind, protocol, 20_000);
            assert_eq!(classify(&rules, &packet), expected, "{kind} {protocol}");
        }
        assert_eq!(classify(&rules, &error(client, "192.0.2.2", 3, 6, 40_000)), Class::Gate, "not the host's");
    }
}

#[test]
fn fragments_are_never_local() {
    let mut first = frame("198.51.100.7", "192.0.2.1", 17, 1024, 5060);
    first[20] = 0x20;
    let mut later = frame("198.51.100.7", "192.0.2.1", 17, 1024, 5060);
    later[21] = 1;
    assert_eq!((classify(&rules(), &first), classify(&rules(), &later)), (Class::Gate, Class::Gate));
    let mut whole = frame("198.51.100.7", "192.0.2.1", 17, 1024, 5060);
    whole[20] = 0x40;
    assert_eq!(classify(&rules(), &whole), Class::Local, "do not fragment is no fragment");
}

#[test]
fn arp_and_discovery_are_the_kernels_but_only_from_the_link() {
    let mut arp = vec![0xff; 12];
    arp.extend([0x08, 0x06]);
    assert_eq!(classify(&rules(), &arp), Class::Link);
    let mut solicitation = frame("fe80::7", "ff02::1:ff00:1", 58, 0x8700, 0);
    assert_eq!(classify(&rules(), &solicitation), Class::Gate, "hop limit 64: it came from afar");
    solicitation[21] = 255;
    assert_eq!(classify(&rules(), &solicitation), Class::Link);
    let mut query = frame("fe80::7", "ff02::1", 0, 0x3a00, 0);
    query[21] = 1;
    assert_eq!(classify(&rules(), &query), Class::Link);
    query[22] = 0x20;
    assert_eq!(classify(&rules(), &query), Class::Gate, "not from a link-local address");
}

#[test]
fn what_may_answer_the_host_is_neither_a_translations_nor_has_a_capability_header() {
    let rules = rules();
    for (protocol, port, own_port, expected) in [
        (17, 53, 40_000, Class::Answer),
        (6, 80, 40_001, Class::Answer),
        (17, 53, 20_000, Class::Gate),
        (6, 80, 20_999, Class::Gate),
        (17, 7_253, 40_000, Class::Gate),
        (17, 40_000, 7_253, Class::Gate),
        (132, 80, 40_001, Class::Gate),
    ] {
        let packet = frame("198.51.100.7", "192.0.2.1", protocol, port, own_port);
        assert_eq!(classify(&rules, &packet), expected, "{protocol} {port} {own_port}");
    }
    let reply = frame("2001:db8:7::7", "2001:db8::1", 58, 129 << 8, 0);
    assert_eq!(classify(&rules, &reply), Class::Answer);
}

#[test]
fn a_listed_protocol_without_ports_is_local_whatever_its_first_bytes_say() {
    let mut rules = rules();
    let packet = |protocol, first| frame("198.51.100.7", "192.0.2.1", protocol, first, !first);
    assert_eq!(classify(&rules, &packet(47, 0)), Class::Gate);
    rules.local.push(local(47, 0, u16::MAX));
    for first in [0, 0x2000, 0x6558, u16::MAX] {
        assert_eq!(classify(&rules, &packet(47, first)), Class::Local);
        assert_eq!(classify(&rules, &packet(50, first)), Class::Gate);
    }
}

#[test]
fn a_cut_frame_is_never_local_and_never_panics() {
    let whole = frame("198.51.100.7", "192.0.2.1", 17, 1024, 5060);
    for len in 0..38 {
        assert_eq!(classify(&rules(), &whole[..len]), Class::Gate, "{len} bytes");
    }
    assert_eq!(classify(&rules(), &whole[..38]), Class::Local, "both ports are there");
}
