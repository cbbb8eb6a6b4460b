use super::*;

const ROUTER4: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1));
const ROUTER6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, 1));

/// An ICMP error from a router to the sender of `quoted`, with these four bytes behind its checksum.
fn error(kind: u8, code: u8, rest: [u8; 4], quoted: &[u8], behind: &[u8]) -> Vec<u8> {
    let mut message = [&[kind, code, 0, 0], &rest[..], quoted, behind].concat();
    let (router, client, protocol) = match quoted[0] >> 4 {
        4 => (ROUTER4, CLIENT4, IpProtocol::ICMP),
        _ => (ROUTER6, CLIENT6, IpProtocol::ICMPV6),
    };
    icmp::Packet::new_unchecked(ip::Version::of(router), &mut message[..]).fill_checksum(router, client);
    packet(router, client, protocol, &message)
}

fn unreachable(quoted: &[u8]) -> Vec<u8> {
    let kind = if quoted[0] >> 4 == 4 { 3 } else { 1 };
    error(kind, 1, [0; 4], quoted, &[])
}

fn stripped(error: &[u8]) -> Option<Vec<u8>> {
    let mut frame = FrameBuf::from_bytes(error);
    let changed =
        frame.with(|frame| ip::Summary::parse(frame.bytes()).is_ok_and(|summary| strip_quote(frame, &summary)));
    assert!(changed || frame.bytes() == error);
    changed.then(|| frame.bytes().to_vec())
}

#[test]
fn an_error_about_a_capability_packet_becomes_one_about_the_plain_packet() {
    for (src, dst) in PATHS {
        for plain in plain_packets(src, dst, b"payload of the quoted packet") {
            for carriage in CARRIAGES {
                for repr in [nonce_only(), request(5), nonce_only().with_return(Some(Return::demotion()))] {
                    let sent = inserted(&plain, &repr, carriage);
                    assert_eq!(stripped(&unreachable(sent.bytes())), Some(unreachable(&plain)), "{carriage:?}");
                }
            }
        }
    }
}

#[test]
fn a_quote_that_was_cut_behind_the_header_is_stripped_and_one_cut_inside_is_left() {
    for (src, dst) in PATHS {
        let plain = &plain_packets(src, dst, b"payload of the quoted packet")[1];
        for carriage in CARRIAGES {
            let sent = inserted(plain, &request(2), carriage);
            let found = find_in(sent.bytes()).unwrap().unwrap();
            for len in found.ip_len()..sent.bytes().len() {
                let expected = (len >= found.payload_at).then(|| len - found.overhead());
                let stripped = stripped(&unreachable(&sent.bytes()[..len]));
                assert_eq!(stripped.as_ref().map(Vec::len), expected.map(|len| unreachable(&plain[..len]).len()));
                let Some(stripped) = stripped else { continue };
                let summary = summary(&stripped);
                assert!(summary.verify_transport_checksum(&stripped), "cut at {len}");
                let quoted = &summary.transport(&stripped)[8..];
                let has_checksum = quoted.len() >= found.ip_len() + 18;
                assert!(!has_checksum || quoted == &plain[..quoted.len()]);
            }
        }
    }
}

#[test]
fn the_mtu_in_too_big_shrinks_by_what_the_header_takes() {
    let encapsulated = Carriage::Encapsulated { src_port: 5 };
    let plain = &plain_packets(CLIENT4, SERVICE4, &[0; 100])[1];
    let sent = inserted(plain, &nonce_only(), encapsulated);
    let too_big = error(3, 4, [0, 0, 5, 0], sent.bytes(), &[]);
    assert_eq!(stripped(&too_big), Some(error(3, 4, [0, 0, 4, 236], plain, &[])), "1,280 - 20 = 1,260");

    let plain = &plain_packets(CLIENT6, SERVICE6, &[0; 100])[1];
    let sent = inserted(plain, &nonce_only(), encapsulated);
    let mtu = |mtu: u32| mtu.to_be_bytes();
    let shrunk = |from, to| {
        assert_eq!(stripped(&error(2, 0, mtu(from), sent.bytes(), &[])), Some(error(2, 0, mtu(to), plain, &[])));
    };
    shrunk(1_500, 1_480);
    // RFC 8201 4: a host ignores less than 1,280.
    shrunk(1_290, 1_280);
    shrunk(1_200, 1_200);
}

#[test]
fn extensions_behind_the_quote_are_given_up() {
    let plain = &plain_packets(CLIENT4, SERVICE4, b"quoted")[1];
    let sent = inserted(plain, &nonce_only(), Carriage::Native);
    let mut quoted = sent.bytes().to_vec();
    quoted.resize(128, 0);
    let extended = error(3, 1, [0, 32, 0, 0], &quoted, &[0x20, 0, 0xdf, 0xff]);
    assert_eq!(stripped(&extended), Some(unreachable(plain)));
}

#[test]
fn what_is_no_error_about_a_capability_packet_is_left_alone() {
    for (src, dst) in PATHS {
        for plain in plain_packets(src, dst, b"plain") {
            assert_eq!(stripped(&plain), None);
            assert_eq!(stripped(&unreachable(&plain)), None);
            let sent = inserted(&plain, &nonce_only(), Carriage::Native);
            assert_eq!(stripped(sent.bytes()), None);
            let mut wrong = unreachable(sent.bytes());
            let last = wrong.len() - 1;
            wrong[last] ^= 1;
            assert_eq!(stripped(&wrong), None, "an error with a wrong checksum is not repaired");
        }
    }
}

proptest! {
    #[test]
    fn random_errors_are_stood(kind in 0u8..16, rest: [u8; 4], mut quoted in proptest::collection::vec(any::<u8>(), 20..160), cut in 0usize..160) {
        for sent in [
            inserted(&plain_packets(CLIENT4, SERVICE4, b"quoted")[1], &request(3), Carriage::Native),
            inserted(&plain_packets(CLIENT6, SERVICE6, b"quoted")[0], &nonce_only(), Carriage::Answer { dst_port: 3 }),
        ] {
            let keep = cut.min(sent.bytes().len()).min(quoted.len());
            quoted[..keep].copy_from_slice(&sent.bytes()[..keep]);
            let _ = stripped(&error(kind, 4, rest, &quoted, &[]));
        }
    }
}
