use super::*;

fn rules() -> Rules {
    Rules {
        own: vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()],
        local: vec![
            LocalRule { protocol: 6, first: 22, last: 22 },
            LocalRule { protocol: 17, first: 5060, last: 5061 },
        ],
        local_rate_pps: 100,
        peers: vec!["203.0.113.9:7443".parse().unwrap(), "[2001:db8::9]:7443".parse().unwrap()],
    }
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
        assert_eq!(classify(&rules, &frame(source, own, 17, 1024, 5062)), Class::Gate);
        assert_eq!(classify(&rules, &frame(source, own, 6, 1024, 5060)), Class::Gate);
        assert_eq!(classify(&rules, &frame(source, own, 132, 1024, 22)), Class::Gate);
        assert_eq!(classify(&rules, &frame(source, other, 6, 1024, 22)), Class::Gate);
    }
}

#[test]
fn a_peer_is_known_by_address_and_port() {
    let rules = rules();
    assert_eq!(classify(&rules, &frame("203.0.113.9", "192.0.2.1", 6, 7443, 40_000)), Class::Peer);
    assert_eq!(classify(&rules, &frame("2001:db8::9", "2001:db8::1", 6, 7443, 40_000)), Class::Peer);
    assert_eq!(classify(&rules, &frame("203.0.113.9", "192.0.2.1", 6, 7444, 40_000)), Class::Gate);
    assert_eq!(classify(&rules, &frame("203.0.113.8", "192.0.2.1", 6, 7443, 40_000)), Class::Gate);
    assert_eq!(classify(&rules, &frame("203.0.113.9", "192.0.2.2", 6, 7443, 40_000)), Class::Gate);
}

#[test]
fn icmp_is_local_only_if_listed_and_one_entry_serves_both_families() {
    let mut rules = rules();
    let (v4, v6) = (frame("198.51.100.7", "192.0.2.1", 1, 0, 0), frame("2001:db8:7::7", "2001:db8::1", 58, 0, 0));
    assert_eq!((classify(&rules, &v4), classify(&rules, &v6)), (Class::Gate, Class::Gate));
    rules.local.push(LocalRule { protocol: 1, first: 0, last: 0 });
    assert_eq!((classify(&rules, &v4), classify(&rules, &v6)), (Class::Local, Class::Local));
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
fn a_cut_frame_is_never_local_and_never_panics() {
    let whole = frame("198.51.100.7", "192.0.2.1", 17, 1024, 5060);
    for len in 0..38 {
        assert_eq!(classify(&rules(), &whole[..len]), Class::Gate, "{len} bytes");
    }
    assert_eq!(classify(&rules(), &whole[..38]), Class::Local, "both ports are there");
}
