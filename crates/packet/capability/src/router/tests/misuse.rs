use super::*;

/// Shows a valid capability, changed by `change`, and expects `reason`, the demotion bit, intact checksums and no line.
fn expect(reason: Reason, millis: u64, change: impl Fn(&mut Pair, &mut Granted)) {
    for original in Pair::all() {
        let mut router = router(1);
        let mut granted = original.acquire(at(0), &mut [&mut router], limits(100, 10));
        let mut pair = original;
        change(&mut pair, &mut granted);
        for kind in [Kind::Capabilities, Kind::Renewal] {
            let mut frame = pair.regular(kind, NONCE, &granted, 50);
            assert_eq!(judge(&mut router, at(millis), &mut frame), demoted(reason), "{pair:?} {kind:?}");
            assert!(header(&frame).is_demoted() && is_intact(&frame), "{pair:?}");
            assert_eq!(header(&frame).capability(0), granted.list.get(0), "no pre-capability for it");
        }
        assert_eq!(router.counters().demoted[reason as usize], 2);
        assert_eq!(router.gauges().map(|gauge| gauge.used), [0; 3], "nothing is remembered");
    }
}

fn vouches(gate: &mut Router, now: Instant, frame: &Frame<'_>) -> Result<(), Reason> {
    gate.vouches(now, frame, &Packet::parse(frame.bytes())?)
}

#[test]
fn a_capability_of_another_source_is_forged() {
    expect(Reason::CapabilityForged, 100, |pair, _| pair.src = neighbour_of(pair.src));
}

#[test]
fn a_capability_for_another_destination_is_forged() {
    expect(Reason::CapabilityForged, 100, |pair, _| pair.dst = neighbour_of(pair.dst));
}

#[test]
fn a_capability_of_another_client_is_forged() {
    expect(Reason::CapabilityForged, 100, |pair, _| pair.client = ClientId(ID.0 ^ 1));
}

#[test]
fn a_capability_with_another_n_is_forged() {
    expect(Reason::CapabilityForged, 100, |_, granted| granted.limits = limits(101, 10));
    expect(Reason::CapabilityForged, 100, |_, granted| granted.limits = limits(1_023, 10));
}

#[test]
fn a_capability_with_another_t_is_forged() {
    expect(Reason::CapabilityForged, 100, |_, granted| granted.limits = limits(100, 11));
    expect(Reason::CapabilityForged, 100, |_, granted| granted.limits = limits(100, 63));
}

#[test]
fn a_capability_of_the_other_algorithm_is_forged() {
    expect(Reason::CapabilityForged, 100, |pair, _| {
        pair.algorithm = if pair.algorithm == Algorithm::Aes { Algorithm::SipHash } else { Algorithm::Aes };
    });
}

#[test]
fn a_capability_with_any_bit_changed_does_not_pass() {
    let pair = Pair::new();
    let mut router = router(1);
    let granted = pair.acquire(at(0), &mut [&mut router], limits(100, 10));
    for bit in 0..64 {
        let changed = Capability(granted.list.get(0).unwrap().0 ^ 1 << bit);
        let mut frame =
            pair.regular(Kind::Capabilities, NONCE, &Granted { list: [changed].into_iter().collect(), ..granted }, 50);
        assert_eq!(judge(&mut router, at(0), &mut frame), demoted(Reason::CapabilityForged), "bit {bit}");
    }
}

#[test]
fn a_capability_is_worth_nothing_over_another_path() {
    for pair in Pair::all() {
        let (mut on_path, mut elsewhere) = (router(1), router(2));
        let granted = pair.acquire(at(0), &mut [&mut on_path], limits(100, 10));
        let mut frame = pair.regular(Kind::Capabilities, NONCE, &granted, 50);
        assert_eq!(judge(&mut elsewhere, at(0), &mut frame), demoted(Reason::CapabilityForged), "{pair:?}");
        // Once demoted, not even its own router takes it for regular.
        assert_eq!(judge(&mut on_path, at(0), &mut frame), demoted(Reason::AlreadyDemoted));
    }
}

#[test]
fn a_capability_ends_with_its_seconds_whoever_replays_it_later() {
    let pair = Pair::new();
    let mut router = router(1);
    let granted = pair.acquire(at(0), &mut [&mut router], limits(100, 10));
    assert_eq!(judge(&mut router, at(100), &mut pair.regular(Kind::Capabilities, NONCE, &granted, 50)), REGULAR);
    assert_eq!(judge(&mut router, at(10_999), &mut pair.nonce_only(NONCE, 50)), REGULAR);
    assert_eq!(judge(&mut router, at(11_000), &mut pair.nonce_only(NONCE, 50)), demoted(Reason::CapabilityExpired));
    for seconds in 11..600 {
        let mut frame = pair.regular(Kind::Capabilities, NONCE, &granted, 50);
        let verdict = judge(&mut router, Instant::from_secs(seconds), &mut frame);
        let expected = [demoted(Reason::CapabilityExpired), demoted(Reason::CapabilityForged)];
        assert!(expected.contains(&verdict), "after {seconds} s: {verdict:?}");
    }
}

#[test]
fn a_guessed_nonce_passes_nothing() {
    let pair = Pair::new();
    let mut router = router(1);
    assert_eq!(judge(&mut router, at(0), &mut pair.nonce_only(NONCE, 50)), demoted(Reason::CapabilityUnknown));
    let granted = pair.acquire(at(0), &mut [&mut router], limits(100, 10));
    assert_eq!(judge(&mut router, at(0), &mut pair.regular(Kind::Capabilities, NONCE, &granted, 50)), REGULAR);
    for guess in (0..48).map(|bit| NONCE.0 ^ 1 << bit).chain(0..10_000) {
        let mut frame = pair.nonce_only(FlowNonce(guess), 50);
        assert_eq!(judge(&mut router, at(0), &mut frame), demoted(Reason::CapabilityUnknown), "{guess:x}");
    }
    let other = Pair { client: ClientId(ID.0 + 1), ..pair };
    assert_eq!(judge(&mut router, at(0), &mut other.nonce_only(NONCE, 50)), demoted(Reason::CapabilityUnknown));
    assert_eq!(judge(&mut router, at(0), &mut pair.nonce_only(NONCE, 50)), REGULAR, "and the flow goes on");
}

#[test]
fn bytes_beyond_n_are_demoted() {
    let pair = Pair::new();
    let mut router = router(1);
    let granted = pair.acquire(at(0), &mut [&mut router], limits(4, 10));
    assert_eq!(judge(&mut router, at(0), &mut pair.regular(Kind::Capabilities, NONCE, &granted, 3_900)), REGULAR);
    let spent = demoted(Reason::CapabilitySpent);
    assert_eq!(judge(&mut router, at(0), &mut pair.nonce_only(NONCE, 100)), spent);
    assert_eq!(judge(&mut router, at(0), &mut pair.regular(Kind::Capabilities, NONCE, &granted, 100)), spent);
    assert_eq!(judge(&mut router, at(0), &mut pair.regular(Kind::Renewal, FlowNonce(1), &granted, 100)), spent);
}

#[test]
fn a_list_without_an_entry_for_this_router_is_demoted_with_that_reason() {
    let pair = Pair::new();
    let (mut first, mut second) = (router(1), router(2));
    let granted = pair.acquire(at(0), &mut [&mut first], limits(100, 10));
    let mut frame = pair.regular(Kind::Capabilities, NONCE, &granted, 50);
    assert_eq!(judge(&mut first, at(0), &mut frame), REGULAR);
    assert_eq!(judge(&mut second, at(0), &mut frame), demoted(Reason::CapabilityList));
    let mut frame = pair.request(1);
    assert!(matches!(judge(&mut first, at(0), &mut frame), Ok(Class::Request { .. })));
    assert_eq!(judge(&mut second, at(0), &mut frame), demoted(Reason::CapabilityList), "no slot is left");
    assert!(header(&frame).is_demoted() && is_intact(&frame));
}

#[test]
fn slots_that_the_sender_filled_itself_are_worth_nothing() {
    let pair = Pair::new();
    let mut router = router(1);
    let entries: SlotList = (0..8).map(|_| Default::default()).collect();
    let (algorithm, client_id) = (pair.algorithm, pair.client);
    let repr =
        Repr::Request { algorithm, client_id, slots: 8, entries, demoted: false, upper: IpProtocol::UDP, ret: None };
    assert_eq!(judge(&mut router, at(0), &mut pair.with(&repr, 10)), demoted(Reason::CapabilityList));
}

#[test]
fn a_header_cut_at_any_byte_passes_as_nothing() {
    for pair in Pair::all() {
        let mut router = router(1);
        let granted = pair.acquire(at(0), &mut [&mut router], limits(100, 10));
        for whole in [pair.regular(Kind::Renewal, NONCE, &granted, 0), pair.nonce_only(NONCE, 0), pair.request(4)] {
            let summary = ip::Summary::parse(whole.bytes()).unwrap();
            let found = shim::find(&summary, whole.bytes()).unwrap().unwrap();
            for len in found.header_at..found.payload_at {
                let mut frame = FrameBuf::from_bytes(&cut(&whole, summary.transport_offset, len));
                let before = frame.clone();
                assert_eq!(judge(&mut router, at(0), &mut frame), demoted(Reason::CapabilityHeader), "{pair:?} {len}");
                assert_eq!(frame.bytes(), before.bytes(), "what is no header is not written to");
            }
        }
    }
}

#[test]
fn no_packet_however_mangled_passes_as_regular_or_panics() {
    let pair = Pair::new();
    let mut router = router(1);
    let granted = pair.acquire(at(0), &mut [&mut router], limits(100, 10));
    let good = pair.regular(Kind::Capabilities, NONCE, &granted, 20);
    for at_byte in 20..good.bytes().len() {
        for value in 0..=255u8 {
            let mut bytes = good.bytes().to_vec();
            if bytes[at_byte] == value {
                continue;
            }
            bytes[at_byte] = value;
            let verdict = judge(&mut router, at(0), &mut FrameBuf::from_bytes(&bytes));
            // The kind, the return bit, the upper protocol, the nonce, how many capabilities follow the first, and the
            // payload are the sender's to choose.
            let free = matches!(at_byte, 20..28 | 32) || at_byte >= 20 + 24;
            assert!(verdict != REGULAR || free, "byte {at_byte} = {value:#x}");
            router = super::router(1);
            assert!(matches!(judge(&mut router, at(0), &mut pair.request(1)), Ok(Class::Request { .. })));
        }
    }
}

#[test]
fn a_revoked_flow_is_demoted_at_once_and_may_be_granted_anew() {
    for pair in Pair::all() {
        let mut router = router(1);
        let granted = pair.acquire(at(0), &mut [&mut router], limits(100, 63));
        assert_eq!(judge(&mut router, at(0), &mut pair.regular(Kind::Capabilities, NONCE, &granted, 50)), REGULAR);
        router.revoke(at(1_000), pair.src, pair.dst, pair.client);
        assert_eq!(judge(&mut router, at(1_000), &mut pair.nonce_only(NONCE, 50)), demoted(Reason::CapabilityUnknown));
        for second in 1..=62 {
            let mut frame = pair.regular(Kind::Capabilities, NONCE, &granted, 50);
            assert_eq!(judge(&mut router, Instant::from_secs(second), &mut frame), demoted(Reason::CapabilityRevoked));
        }
        let anew = pair.acquire(at(62_500), &mut [&mut router], limits(100, 10));
        assert_eq!(judge(&mut router, at(62_600), &mut pair.regular(Kind::Capabilities, NONCE, &anew, 50)), REGULAR);
        assert_eq!(router.counters().demoted[Reason::CapabilityRevoked as usize], 62);
    }
}

#[test]
fn tva_20_a_restarted_router_demotes_and_the_flow_comes_back_within_one_request() {
    for pair in Pair::all() {
        let mut router = router(1);
        let granted = pair.acquire(at(0), &mut [&mut router], limits(100, 10));
        assert_eq!(judge(&mut router, at(0), &mut pair.regular(Kind::Capabilities, NONCE, &granted, 50)), REGULAR);

        let mut router = super::router(99);
        let mut frame = pair.nonce_only(NONCE, 50);
        assert_eq!(judge(&mut router, at(10), &mut frame), demoted(Reason::CapabilityUnknown));
        assert!(header(&frame).is_demoted() && is_intact(&frame), "the destination sees it, whole");
        let mut frame = pair.regular(Kind::Renewal, NONCE, &granted, 50);
        assert_eq!(judge(&mut router, at(20), &mut frame), demoted(Reason::CapabilityForged));
        let anew = pair.acquire(at(30), &mut [&mut router], limits(100, 10));
        assert_eq!(judge(&mut router, at(40), &mut pair.regular(Kind::Capabilities, NONCE, &anew, 50)), REGULAR);
    }
}

#[test]
fn tva_20_a_gate_vouches_for_demoted_packets_of_its_own_lines_only() {
    for pair in Pair::all() {
        let (mut upstream, mut gate) = (router(1), router(2));
        let granted = pair.acquire(at(0), &mut [&mut upstream, &mut gate], limits(4, 10));
        let mut frame = pair.regular(Kind::Capabilities, NONCE, &granted, 1_000);
        assert_eq!(judge(&mut upstream, at(0), &mut frame), REGULAR);
        assert_eq!(judge(&mut gate, at(0), &mut frame), REGULAR);

        let mut upstream = router(77);
        let mut vouched = 0;
        for _ in 0..10 {
            let mut frame = pair.nonce_only(NONCE, 1_000);
            assert_eq!(judge(&mut upstream, at(10), &mut frame), demoted(Reason::CapabilityUnknown));
            assert_eq!(judge(&mut gate, at(10), &mut frame), demoted(Reason::AlreadyDemoted));
            vouched += u32::from(frame.with(|frame| vouches(&mut gate, at(10), frame)).is_ok());
        }
        assert_eq!(vouched, 2, "as many as N still allows");
        let mut vouch = |mut frame: FrameBuf, millis| frame.with(|frame| vouches(&mut gate, at(millis), frame));
        assert_eq!(vouch(pair.nonce_only(FlowNonce(1), 10), 10), Err(Reason::CapabilityUnknown));
        assert_eq!(vouch(pair.request(3), 10), Err(Reason::CapabilityUnknown));
        assert_eq!(vouch(pair.plain(10), 10), Err(Reason::CapabilityUnknown));
        assert_eq!(vouch(pair.nonce_only(NONCE, 10), 11_000), Err(Reason::CapabilityExpired));
    }
}

fn neighbour_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(v4) => IpAddr::V4((v4.to_bits() + 1).into()),
        IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() + 1).into()),
    }
}

/// The first `len` bytes of the packet, with lengths and checksums that fit.
fn cut(whole: &FrameBuf, transport_at: usize, len: usize) -> Vec<u8> {
    let summary = ip::Summary::parse(whole.bytes()).unwrap();
    let mut transport = whole.bytes()[transport_at..len].to_vec();
    if summary.protocol == IpProtocol::UDP {
        let udp_len = transport.len() as u16;
        let mut datagram = udp::Packet::new_unchecked(&mut transport[..]);
        datagram.set_total_len(udp_len);
        datagram.fill_checksum(summary.src, summary.dst);
    }
    ip_packet(summary.src, summary.dst, summary.protocol, &transport)
}
