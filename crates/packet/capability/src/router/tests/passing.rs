use super::*;

#[test]
fn a_request_gets_a_pre_capability_and_at_a_boundary_the_neighbours_tag() {
    for pair in Pair::all() {
        let (mut border, mut inner) =
            (router(1), Router::new(RouterConfig { boundary: [false; 2], ..config(2) }, [2; 16]));
        let mut frame = pair.request(3);
        let Ok(Class::Request { path }) = judge(&mut border, at(0), &mut frame) else { panic!("{pair:?}") };
        assert!(path[0] != PathId::NONE && path[1..] == [PathId::NONE; PATH_MAX - 1]);
        let Ok(Class::Request { path: same }) = judge(&mut inner, at(0), &mut frame) else { panic!("{pair:?}") };
        assert_eq!(same, path, "a router inside tags nothing");
        let Ok(Class::Request { path: longer }) = judge(&mut router(3), at(0), &mut frame) else { panic!("{pair:?}") };
        assert_eq!(longer[1], path[0], "the most recent tag comes first");
        assert!(longer[0] != longer[1] && longer[2] == PathId::NONE);
        let header = header(&frame);
        assert_eq!((header.pointer(), header.count()), (3, 3));
        assert!((0..3).all(|slot| header.capability(slot).unwrap() != Capability::BLANK));
        assert_eq!(header.path_id(1), Some(PathId::NONE));
        assert!(is_intact(&frame), "{pair:?}");
    }
}

#[test]
fn only_ports_at_a_boundary_tag_and_every_neighbour_has_its_own_tag() {
    let mut router = router(1);
    let mut path = |port, neighbour| {
        let arrival = Arrival { port, neighbour, verified_source: false };
        match Pair::new().request(1).with(|frame| router.on_packet(at(0), &arrival, frame)) {
            Ok(Class::Request { path }) => path[0],
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(path(Port::INSIDE, 1), PathId::NONE);
    assert_ne!(path(Port::OUTSIDE, 1), path(Port::OUTSIDE, 2));
    assert_eq!(path(Port::OUTSIDE, 1), path(Port::OUTSIDE, 1));
}

#[test]
fn a_granted_flow_shows_its_capability_once_and_then_its_nonce() {
    for pair in Pair::all() {
        let (mut first, mut second) = (router(1), router(2));
        let granted = pair.acquire(at(0), &mut [&mut first, &mut second], limits(100, 10));
        let mut frame = pair.regular(Kind::Capabilities, NONCE, &granted, 100);
        assert_eq!(judge(&mut first, at(100), &mut frame), REGULAR, "{pair:?}");
        assert_eq!(header(&frame).pointer(), 1, "the next router checks the next one");
        assert_eq!(judge(&mut second, at(100), &mut frame), REGULAR, "{pair:?}");
        assert!(is_intact(&frame));
        for _ in 0..10 {
            let mut frame = pair.nonce_only(NONCE, 100);
            let before = frame.clone();
            assert_eq!(judge(&mut first, at(200), &mut frame), REGULAR, "{pair:?}");
            assert_eq!(judge(&mut second, at(200), &mut frame), REGULAR, "{pair:?}");
            assert_eq!(frame.bytes(), before.bytes(), "nothing is changed");
        }
        assert_eq!(
            (first.counters().passed[Kind::Nonce as usize], first.counters().passed[Kind::Capabilities as usize]),
            (10, 1)
        );
        assert_eq!(
            (first.counters().passed[Kind::Request as usize], second.counters().passed[Kind::Nonce as usize]),
            (1, 10)
        );
    }
}

#[test]
fn a_renewal_brings_the_destination_fresh_pre_capabilities_that_replace_the_old() {
    for pair in Pair::all() {
        let (mut first, mut second) = (router(1), router(2));
        let granted = pair.acquire(at(0), &mut [&mut first, &mut second], limits(4, 10));
        let mut frame = pair.regular(Kind::Renewal, NONCE, &granted, 3_000);
        assert_eq!(judge(&mut first, at(2_000), &mut frame), REGULAR);
        assert_eq!(judge(&mut second, at(2_000), &mut frame), REGULAR);
        assert!(is_intact(&frame));
        let header = header(&frame);
        assert_eq!(header.pointer(), 2);
        let fresh = Granted {
            limits: limits(50, 20),
            list: (0..2).map(|n| seal(pair.algorithm, header.capability(n).unwrap(), limits(50, 20))).collect(),
        };
        let new_nonce = FlowNonce(7);
        let mut frame = pair.regular(Kind::Capabilities, new_nonce, &fresh, 3_000);
        assert_eq!(judge(&mut first, at(2_100), &mut frame), REGULAR);
        assert_eq!(judge(&mut second, at(2_100), &mut frame), REGULAR);
        assert_eq!(judge(&mut first, at(2_200), &mut pair.nonce_only(new_nonce, 3_000)), REGULAR);
        assert_eq!(judge(&mut first, at(5_000), &mut pair.nonce_only(NONCE, 10)), demoted(Reason::CapabilityUnknown));
        let mut old = pair.regular(Kind::Capabilities, NONCE, &granted, 10);
        assert_eq!(judge(&mut first, at(5_000), &mut old), demoted(Reason::CapabilitySpent), "it was replaced");
    }
}

#[test]
fn what_a_newer_list_overtook_is_charged_to_the_capability_that_it_was_sent_with() {
    for pair in Pair::all() {
        let mut router = router(1);
        let lists = [0, 2_000, 4_000].map(|millis| pair.acquire(at(millis), &mut [&mut router], limits(10, 10)));
        let nonces = [NONCE, FlowNonce(7), FlowNonce(0)];
        let list = |index: usize| pair.regular(Kind::Capabilities, nonces[index], &lists[index], 100);
        let nonce = |index: usize, payload| pair.nonce_only(nonces[index], payload);
        let unknown = demoted(Reason::CapabilityUnknown);
        assert_eq!(judge(&mut router, at(4_000), &mut list(0)), REGULAR);
        assert_eq!(judge(&mut router, at(4_000), &mut nonce(2, 100)), unknown, "none before");
        assert_eq!(judge(&mut router, at(4_000), &mut list(1)), REGULAR);
        assert_eq!(judge(&mut router, at(4_900), &mut nonce(0, 100)), REGULAR, "{pair:?}");
        assert_eq!(judge(&mut router, at(4_900), &mut list(0)), REGULAR);
        let overtaken = (0..20).filter(|_| judge(&mut router, at(4_900), &mut nonce(0, 1_000)) == REGULAR).count();
        assert!((8..10).contains(&overtaken), "{overtaken}: N is 10,000 bytes");
        let newer = (0..20).filter(|_| judge(&mut router, at(4_900), &mut nonce(1, 1_000)) == REGULAR).count();
        assert!((8..10).contains(&newer), "{newer}: and so is that of the newer one");
        assert_eq!(judge(&mut router, at(4_900), &mut list(2)), REGULAR);
        assert_eq!(judge(&mut router, at(4_950), &mut nonce(0, 10)), unknown, "two before");
        assert_eq!(judge(&mut router, at(7_000), &mut nonce(1, 10)), unknown, "overtaken for two seconds");
    }
}

#[test]
fn a_renewal_of_a_cached_flow_needs_no_check_of_its_capability() {
    let (mut router, pair) = (router(1), Pair::new());
    let granted = pair.acquire(at(0), &mut [&mut router], limits(100, 10));
    assert_eq!(judge(&mut router, at(0), &mut pair.regular(Kind::Capabilities, NONCE, &granted, 10)), REGULAR);
    let other = Granted { list: [Capability::new(1, 2)].into_iter().collect(), ..granted };
    let mut frame = pair.regular(Kind::Renewal, NONCE, &other, 10);
    assert_eq!(judge(&mut router, at(1_000), &mut frame), REGULAR);
    assert!(header(&frame).capability(0) != Some(Capability::new(1, 2)));
}

#[test]
fn secrets_change_every_128_seconds_and_no_valid_capability_notices() {
    let (mut router, pair) = (router(1), Pair::new());
    for start in 0..300 {
        let granted = pair.acquire(Instant::from_secs(start * 7), &mut [&mut router], limits(10, 63));
        let nonce = FlowNonce(start);
        let later = Instant::from_secs(start * 7 + 62);
        assert_eq!(judge(&mut router, later, &mut pair.regular(Kind::Capabilities, nonce, &granted, 10)), REGULAR);
        router = super::router(1);
    }
}

#[test]
fn a_flow_that_sends_what_was_granted_is_never_demoted() {
    let (mut router, pair) = (router(1), Pair::new());
    let mut granted = pair.acquire(at(0), &mut [&mut router], limits(10, 10));
    let mut nonce = 0;
    for packet in 0..1_000 {
        let now = at(packet * 50);
        let mut frame = match packet % 20 {
            0 => pair.regular(Kind::Capabilities, FlowNonce(nonce), &granted, 100),
            19 => pair.regular(Kind::Renewal, FlowNonce(nonce), &granted, 100),
            _ => pair.nonce_only(FlowNonce(nonce), 100),
        };
        assert_eq!(judge(&mut router, now, &mut frame), REGULAR, "packet {packet}");
        if packet % 20 == 19 {
            let pre = header(&frame).capability(0).unwrap();
            granted.list = [seal(pair.algorithm, pre, granted.limits)].into_iter().collect();
            nonce += 1;
        }
    }
}

#[test]
fn icmp_errors_lose_the_header_that_they_quote_and_stay_legacy() {
    let (mut router, pair) = (router(1), Pair::new());
    let sent = pair.nonce_only(NONCE, 100);
    let (IpAddr::V4(hop), IpAddr::V4(client)) = ("192.0.2.77".parse().unwrap(), pair.src) else { panic!() };
    let quote = icmp::Quote::new(&sent.bytes()[..60]).unwrap();
    let mut error = FrameBuf::from_bytes(&build::packet(hop, client, &icmp::Repr::TimeExceeded { quote }));
    assert_eq!(judge(&mut router, at(0), &mut error), Ok(Class::Legacy { demoted: None }));
    assert_eq!(router.counters().quotes_stripped, 1);
    let quoted = &error.bytes()[20 + icmp::HEADER_LEN..];
    assert_eq!(quoted[9], IpProtocol::UDP.0, "the quoted packet is a plain one again");
}

#[test]
fn plain_packets_fragments_and_packets_with_options_are_legacy_and_untouched() {
    let (mut router, pair) = (router(1), Pair::new());
    let granted = pair.acquire(at(0), &mut [&mut router], limits(100, 10));
    let good = pair.regular(Kind::Capabilities, NONCE, &granted, 64);
    let mut fragment = good.bytes().to_vec();
    fragment[6] = 0x20; // more fragments
    let fragment = with_total_len(fragment);
    for (name, bytes) in [
        ("plain", pair.plain(10).bytes().to_vec()),
        ("first fragment", fragment),
        ("record route", with_option(good.bytes(), &[7, 4, 4, 0])),
        ("loose source route", with_option(good.bytes(), &[131, 4, 4, 0])),
        ("strict source route", with_option(good.bytes(), &[137, 4, 4, 0])),
    ] {
        let mut frame = FrameBuf::from_bytes(&bytes);
        assert_eq!(judge(&mut router, at(0), &mut frame), Ok(Class::Legacy { demoted: None }), "{name}");
        assert_eq!(frame.bytes(), bytes, "{name}");
    }
    assert_eq!(router.counters().plain, 5);
}

/// The packet with four bytes of IPv4 options.
fn with_option(packet: &[u8], option: &[u8; 4]) -> Vec<u8> {
    let mut bytes = packet.to_vec();
    bytes.splice(20..20, *option);
    bytes[0] = 0x46;
    with_total_len(bytes)
}

fn with_total_len(mut bytes: Vec<u8>) -> Vec<u8> {
    let len = bytes.len() as u16;
    let mut view = ipv4::Packet::new_unchecked(&mut bytes[..]);
    view.set_total_len(len);
    view.fill_checksum();
    bytes
}

#[test]
fn the_next_timeout_is_the_next_second() {
    let mut router = router(1);
    router.handle_timeout(at(1_500));
    assert_eq!(router.poll_timeout(), Some(at(2_000)));
    assert_eq!(router.seconds(), 12_346);
    router.handle_timeout(at(1_999) + Duration::from_millis(1));
    assert_eq!(router.seconds(), 12_347);
}
