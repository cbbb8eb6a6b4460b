use core::net::{Ipv4Addr, Ipv6Addr};
use std::{vec, vec::Vec};

use proptest::prelude::*;

use super::*;
use crate::{
    FrameBuf, build,
    capability::{Algorithm, CAPABILITY_ONLY, Capability, ClientId, FlowNonce, Kind, Return, tests::arbitrary},
    icmp, tcp,
};

mod quotes;

const CLIENT4: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const NAT4: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 9));
const SERVICE4: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 80));
const CLIENT6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));
const SERVICE6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 2));
const PATHS: [(IpAddr, IpAddr); 2] = [(CLIENT4, SERVICE4), (CLIENT6, SERVICE6)];
const CARRIAGES: [Carriage; 3] =
    [Carriage::Native, Carriage::Encapsulated { src_port: 40_000 }, Carriage::Answer { dst_port: 40_001 }];

/// An IP packet of this protocol.
fn packet(src: IpAddr, dst: IpAddr, protocol: IpProtocol, transport: &[u8]) -> Vec<u8> {
    build::packet(src, dst, &(protocol, transport))
}

fn udp_transport(src: IpAddr, dst: IpAddr, payload: &[u8]) -> Vec<u8> {
    let repr = udp::Repr { src_port: 5_000, dst_port: 5_060, payload };
    let mut bytes = vec![0; repr.buffer_len()];
    repr.emit(&mut udp::Packet::new_unchecked(&mut bytes[..]), src, dst);
    bytes
}

fn tcp_transport(src: IpAddr, dst: IpAddr, payload: &[u8]) -> Vec<u8> {
    let repr = tcp::Repr { payload, ..tcp::Repr::new(40_000, 22, tcp::Control::Syn, 7) };
    let mut bytes = vec![0; repr.buffer_len()];
    repr.emit(&mut tcp::Packet::new_unchecked(&mut bytes[..]), src, dst);
    bytes
}

/// An echo request: its ICMPv6 checksum covers the addresses, its ICMP checksum does not.
fn echo(src: IpAddr, dst: IpAddr, payload: &[u8]) -> (IpProtocol, Vec<u8>) {
    let message = icmp::Repr::EchoRequest { ident: 0, seq: 0, data: payload };
    let mut bytes = vec![0; message.buffer_len()];
    message.emit(&mut bytes, src, dst);
    (if src.is_ipv4() { IpProtocol::ICMP } else { IpProtocol::ICMPV6 }, bytes)
}

/// One plain packet of each protocol between these addresses.
fn plain_packets(src: IpAddr, dst: IpAddr, payload: &[u8]) -> Vec<Vec<u8>> {
    let (icmp, message) = echo(src, dst, payload);
    let unchecked = [&udp_transport(src, dst, payload)[..6], &[0, 0], payload].concat();
    let mut packets = vec![
        packet(src, dst, IpProtocol::UDP, &udp_transport(src, dst, payload)),
        packet(src, dst, IpProtocol::TCP, &tcp_transport(src, dst, payload)),
        packet(src, dst, icmp, &message),
        packet(src, dst, CAPABILITY_ONLY, &[]),
    ];
    if src.is_ipv4() {
        packets.push(packet(src, dst, IpProtocol::UDP, &unchecked));
    }
    packets
}

fn summary(bytes: &[u8]) -> ip::Summary {
    ip::Summary::parse(bytes).unwrap()
}

fn find_in(bytes: &[u8]) -> Result<Option<Found>, Reason> {
    find(&summary(bytes), bytes)
}

fn inserted(plain: &[u8], repr: &Repr, carriage: Carriage) -> FrameBuf {
    let mut frame = FrameBuf::from_bytes(plain);
    assert_eq!(frame.with(|frame| insert(frame, repr, carriage)), Ok(()));
    frame
}

fn nonce_only() -> Repr {
    Repr::nonce_only(Algorithm::SipHash, ClientId(7), FlowNonce(0x1122), IpProtocol::TCP)
}

fn request(slots: u8) -> Repr {
    Repr::request(Algorithm::SipHash, ClientId(7), slots, IpProtocol::TCP)
}

/// Checks everything that a router or host looks at in a packet with a header.
fn assert_carries(bytes: &[u8], repr: &Repr, carriage: Carriage, plain: &[u8]) {
    let (summary, before) = (summary(bytes), summary(plain));
    let found = find(&summary, bytes).unwrap().unwrap();
    assert_eq!((found.carriage, found.header_len), (carriage, repr.buffer_len()));
    assert_eq!(found.overhead(), overhead(repr, carriage));
    assert_eq!(summary.total_len, before.total_len + overhead(repr, carriage));
    assert_eq!((summary.src, summary.dst, summary.ttl), (before.src, before.dst, before.ttl));
    assert_eq!(found.packet(bytes).upper_protocol(), before.protocol);
    assert_eq!(found.header_at, before.transport_offset + carriage.outer_len());
    if carriage == Carriage::Native {
        assert_eq!(summary.protocol, PROTOCOL);
        assert_eq!(&bytes[found.payload_at..summary.total_len], before.transport(plain));
    } else {
        assert_eq!(summary.protocol, IpProtocol::UDP);
        assert!(summary.verify_transport_checksum(bytes), "the outer UDP checksum");
        let zero = if before.src.is_ipv4() { UNKNOWN_V4 } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
        let inner = packet(zero, zero, before.protocol, &bytes[found.payload_at..summary.total_len]);
        let has_checksum = before.protocol != IpProtocol::UDP || u16_at(before.transport(plain), 6) != 0;
        assert!(!has_checksum || ip_parts(&inner).verify_transport_checksum(&inner), "zero addresses inside");
    }
}

fn ip_parts(bytes: &[u8]) -> ip::Summary {
    ip::Summary::parse(bytes).unwrap()
}

#[test]
fn a_header_is_put_in_found_and_taken_out_of_every_kind_of_packet() {
    for (src, dst) in PATHS {
        for plain in plain_packets(src, dst, b"seventeen bytes !") {
            for carriage in CARRIAGES {
                for repr in [nonce_only(), request(8), nonce_only().with_return(Some(Return::demotion()))] {
                    let mut frame = inserted(&plain, &repr, carriage);
                    assert_carries(frame.bytes(), &repr, carriage, &plain);
                    let found = find_in(frame.bytes()).unwrap().unwrap();
                    assert_eq!(frame.with(|frame| strip(frame, &found)), Ok(()));
                    assert_eq!(frame.bytes(), plain);
                }
            }
        }
    }
}

#[test]
fn options_and_extension_headers_stay_in_front_of_the_header() {
    let mut v4 = vec![0; 24];
    v4[20..].copy_from_slice(&[1, 1, 1, 0]);
    ipv4::Repr::new(Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(198, 51, 100, 80), IpProtocol::UDP, 0)
        .emit(&mut ipv4::Packet::new_unchecked(&mut v4[..]));
    v4.extend(udp_transport(CLIENT4, SERVICE4, b"options"));
    let mut view = ipv4::Packet::new_unchecked(&mut v4[..]);
    view.set_version_and_header_len(24);
    view.set_total_len(39);
    view.fill_checksum();

    // Destination options, then an atomic fragment header, then UDP.
    let udp = udp_transport(CLIENT6, SERVICE6, b"extension");
    let options = [&[44, 0, 1, 4, 0, 0, 0, 0][..], &[17, 0, 0, 0, 0, 0, 0, 9], &udp].concat();
    let v6 = packet(CLIENT6, SERVICE6, IpProtocol::DESTINATION_OPTIONS, &options);
    for plain in [v4, v6] {
        for carriage in CARRIAGES {
            let mut frame = inserted(&plain, &request(3), carriage);
            assert_carries(frame.bytes(), &request(3), carriage, &plain);
            let found = find_in(frame.bytes()).unwrap().unwrap();
            frame.with(|frame| strip(frame, &found)).unwrap();
            assert_eq!(frame.bytes(), plain);
        }
    }
}

#[test]
fn a_nat_that_knows_only_the_outer_headers_breaks_nothing() {
    for plain in plain_packets(CLIENT4, SERVICE4, b"through a NAT") {
        let mut frame = inserted(&plain, &nonce_only(), Carriage::Encapsulated { src_port: 40_000 });
        frame.with(|frame| {
            let mut summary = summary(frame.bytes());
            let moved = summary.set_src(frame.bytes_mut(), NAT4);
            let ports = ip::Ports { src: 40_000, dst: UDP_PORT };
            let change = ports.replace(summary.transport_mut(frame.bytes_mut()), ip::Ports { src: 61_234, ..ports });
            summary.adjust_transport_checksum(frame.bytes_mut(), moved.and(change));
        });
        let found = find_in(frame.bytes()).unwrap().unwrap();
        assert_eq!(found.carriage, Carriage::Encapsulated { src_port: 61_234 });
        frame.with(|frame| strip(frame, &found)).unwrap();
        let after = summary(frame.bytes());
        assert_eq!((after.src, after.dst, after.protocol), (NAT4, SERVICE4, summary(&plain).protocol));
        assert!(after.verify_transport_checksum(frame.bytes()));
    }
}

#[test]
fn an_edit_keeps_the_udp_checksum_right() {
    for (src, dst) in PATHS {
        for carriage in CARRIAGES {
            let plain = &plain_packets(src, dst, b"odd")[1];
            let repr = request(2).with_return(Some(Return::demotion()));
            let mut frame = inserted(plain, &repr, carriage);
            let found = find_in(frame.bytes()).unwrap().unwrap();
            let kind = frame.with(|frame| {
                edit(frame.bytes_mut(), &found, |header| {
                    header.set_capability(0, Capability(0x0102_0304_0506_0708));
                    header.set_path_id(0, crate::capability::PathId(77));
                    header.set_pointer(1);
                    header.set_demoted(true);
                    header.kind()
                })
            });
            assert_eq!(kind, Kind::Request);
            assert!(summary(frame.bytes()).verify_transport_checksum(frame.bytes()));
            let header = found.packet(frame.bytes());
            assert_eq!((header.pointer(), header.is_demoted()), (1, true));
            assert_eq!(header.capability(0), Some(Capability(0x0102_0304_0506_0708)));
            assert_eq!(header.return_info(), Some(Return::demotion()));
            frame.with(|frame| strip(frame, &found)).unwrap();
            assert_eq!(frame.bytes(), plain);
        }
    }
}

#[test]
fn a_header_cut_at_every_byte_is_never_found() {
    for carriage in CARRIAGES {
        let mut frame = inserted(&plain_packets(CLIENT4, SERVICE4, b"")[1], &request(2), carriage);
        let found = find_in(frame.bytes()).unwrap().unwrap();
        for len in (found.header_at..found.payload_at).rev() {
            frame.with(|frame| {
                frame.truncate(len);
                put_total_len(frame.bytes_mut(), len);
                if carriage != Carriage::Native {
                    let udp_len = field::length(len - found.ip_len());
                    udp::Packet::new_unchecked(&mut frame.bytes_mut()[found.ip_len()..]).set_total_len(udp_len);
                }
            });
            // From port 7253 it may be anybody's datagram: plain, and so nothing that passes as regular.
            let expected = match carriage {
                Carriage::Answer { .. } => Ok(None),
                _ => Err(Reason::CapabilityHeader),
            };
            assert_eq!(find_in(frame.bytes()), expected, "cut at {len}");
        }
    }
}

#[test]
fn plain_packets_have_no_header() {
    for (src, dst) in PATHS {
        for plain in plain_packets(src, dst, b"plain") {
            assert_eq!(find_in(&plain), Ok(None));
        }
    }
    let stub = packet(CLIENT4, SERVICE4, IpProtocol::UDP, &[0x1c, 0x55, 0x1c]);
    assert_eq!(find_in(&stub), Ok(None));
}

#[test]
fn a_datagram_shorter_than_its_packet_hides_nothing_behind_it() {
    let mut frame =
        inserted(&plain_packets(CLIENT4, SERVICE4, b"tail")[0], &nonce_only(), Carriage::Encapsulated { src_port: 1 });
    frame.with(|frame| {
        let mut datagram = udp::Packet::new_unchecked(&mut frame.bytes_mut()[20..]);
        datagram.set_total_len(20);
    });
    assert_eq!(find_in(frame.bytes()), Err(Reason::CapabilityHeader));
}

#[test]
fn tva_21_source_routed_packets_are_legacy_whatever_header_they_carry() {
    let header = inserted(&plain_packets(CLIENT6, SERVICE6, b"routed")[1], &request(1), Carriage::Native);
    let header = &header.bytes()[ipv6::HEADER_LEN..];
    let routed6 =
        packet(CLIENT6, SERVICE6, IpProtocol::IPV6_ROUTE, &[&[PROTOCOL.0, 0, 4, 0, 0, 0, 0, 0], header].concat());
    // A loose source route of no hops, where the payload began.
    let mut routed4 = packet(CLIENT4, SERVICE4, PROTOCOL, &[&[131, 3, 4, 0][..], header].concat());
    let mut view = ipv4::Packet::new_unchecked(&mut routed4[..]);
    view.set_version_and_header_len(24);
    view.fill_checksum();
    for routed in [routed4, routed6] {
        assert!(summary(&routed).source_route);
        assert_eq!(summary(&routed).protocol, PROTOCOL);
        assert_eq!(find_in(&routed), Ok(None));
    }
}

#[test]
fn fragments_are_plain_and_get_no_header() {
    let mut fragment = packet(CLIENT4, SERVICE4, PROTOCOL, &[0; 24]);
    let mut view = ipv4::Packet::new_unchecked(&mut fragment[..]);
    view.set_fragmentation(false, true, ip::FragmentOffset::ZERO);
    view.fill_checksum();
    assert_eq!(find_in(&fragment), Ok(None));
    assert_eq!(refused(&fragment, &nonce_only(), Carriage::Native), Reason::FragmentInvalid);
}

/// Why `insert` refuses; the packet must be as it was.
fn refused(plain: &[u8], repr: &Repr, carriage: Carriage) -> Reason {
    let mut frame = FrameBuf::from_bytes(plain);
    let reason = frame.with(|frame| insert(frame, repr, carriage)).unwrap_err();
    assert_eq!(frame.bytes(), plain);
    reason
}

#[test]
fn what_cannot_carry_a_header_is_left_as_it_is() {
    let plain = &plain_packets(CLIENT4, SERVICE4, b"x")[1];
    let encapsulated = Carriage::Encapsulated { src_port: 9 };
    let has_one = inserted(plain, &nonce_only(), Carriage::Native);
    assert_eq!(refused(has_one.bytes(), &nonce_only(), Carriage::Native), Reason::ProtocolUnsupported);
    let authenticated = packet(CLIENT4, SERVICE4, IpProtocol::AUTHENTICATION, &[0; 24]);
    assert_eq!(refused(&authenticated, &nonce_only(), Carriage::Native), Reason::ProtocolUnsupported);
    let has_one = inserted(plain, &nonce_only(), encapsulated);
    assert_eq!(refused(has_one.bytes(), &nonce_only(), Carriage::Native), Reason::CapabilityHeader);

    let routed = packet(CLIENT6, SERVICE6, IpProtocol::IPV6_ROUTE, &[59, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(refused(&routed, &nonce_only(), Carriage::Native), Reason::SourceRoute);

    let huge = packet(CLIENT4, SERVICE4, IpProtocol::ICMP, &[0; 65_510]);
    assert_eq!(refused(&huge, &nonce_only(), Carriage::Native), Reason::PacketTooBig);

    assert_eq!(refused(plain, &request(9), Carriage::Native), Reason::CapabilityHeader);
    let long = Return::granted(crate::capability::Limits::new(1, 1).unwrap(), (0..4).map(Capability).collect());
    let long = request(8).with_return(Some(long));
    assert_eq!(long.buffer_len(), 128);
    assert_eq!(refused(plain, &long, Carriage::Native), Reason::CapabilityHeader);
}

#[test]
fn the_longest_header_fits_the_headroom_and_without_headroom_nothing_changes() {
    let granted = Return::granted(crate::capability::Limits::new(1, 1).unwrap(), (0..3).map(Capability).collect());
    let longest = request(8).with_return(Some(granted));
    assert_eq!(longest.buffer_len(), HEADER_LEN_MAX);
    let encapsulated = Carriage::Encapsulated { src_port: 9 };
    let plain = &plain_packets(CLIENT6, SERVICE6, b"x")[1];
    let frame = inserted(plain, &longest, encapsulated);
    assert_carries(frame.bytes(), &longest, encapsulated, plain);

    let mut narrow = [&[0; 19], &plain[..]].concat();
    let mut frame = Frame::new(&mut narrow, 19, plain.len()).unwrap();
    assert_eq!(insert(&mut frame, &nonce_only(), encapsulated), Err(Reason::CapabilityHeader));
    assert_eq!(frame.bytes(), plain);
}

#[test]
fn padding_behind_the_packet_stays_behind_it() {
    let plain = &plain_packets(CLIENT4, SERVICE4, b"")[0];
    let padded = [&plain[..], &[0xee; 18]].concat();
    for carriage in CARRIAGES {
        let mut frame = inserted(&padded, &nonce_only(), carriage);
        assert_carries(&frame.bytes()[..frame.bytes().len() - 18], &nonce_only(), carriage, plain);
        let found = find_in(frame.bytes()).unwrap().unwrap();
        frame.with(|frame| strip(frame, &found)).unwrap();
        assert_eq!(frame.bytes(), padded);
    }
}

#[test]
fn a_find_of_another_packet_takes_nothing_out() {
    let long = inserted(&plain_packets(CLIENT4, SERVICE4, b"long")[1], &request(8), Carriage::Native);
    let found = find_in(long.bytes()).unwrap().unwrap();
    let short = plain_packets(CLIENT4, SERVICE4, b"")[0].clone();
    let mut frame = FrameBuf::from_bytes(&short);
    assert_eq!(frame.with(|frame| strip(frame, &found)), Err(Reason::CapabilityHeader));
    assert_eq!(frame.bytes(), short);
}

proptest! {
    #[test]
    fn insert_then_strip_gives_back_the_same_packet(
        repr in arbitrary::repr(), payload in proptest::collection::vec(any::<u8>(), 0..200), port: u16, path in 0usize..2,
    ) {
        prop_assume!(repr.buffer_len() <= HEADER_LEN_MAX && port != UDP_PORT);
        let (src, dst) = PATHS[path];
        for plain in plain_packets(src, dst, &payload) {
            for carriage in
                [Carriage::Native, Carriage::Encapsulated { src_port: port }, Carriage::Answer { dst_port: port }]
            {
                let mut frame = inserted(&plain, &repr, carriage);
                assert_carries(frame.bytes(), &repr, carriage, &plain);
                let found = find_in(frame.bytes()).unwrap().unwrap();
                frame.with(|frame| strip(frame, &found)).unwrap();
                // An ICMPv6 or TCP checksum of all ones may come back as zero, which is the same number.
                prop_assert!(frame.bytes() == plain || same_but_for_the_sign_of_zero(frame.bytes(), &plain));
            }
        }
    }
}

/// Whether both packets are the same with a right transport checksum, which ones' complement can write in two ways.
fn same_but_for_the_sign_of_zero(a: &[u8], b: &[u8]) -> bool {
    let differences = a.iter().zip(b).filter(|(a, b)| a != b).count();
    a.len() == b.len() && differences <= 2 && summary(a).verify_transport_checksum(a)
}
