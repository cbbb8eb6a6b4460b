use std::{vec, vec::Vec};

use proptest::prelude::*;

use super::*;

const SRC: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const DST: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 2);
// 2001:db8::1 -> 2001:db8:1::2, UDP, hop limit 64, class 0xb8, label 0x12345, 4 bytes of payload and 2 of padding.
#[rustfmt::skip]
const BYTES: [u8; 46] = [
    0x6b, 0x81, 0x23, 0x45, 0x00, 0x04, 0x11, 0x40,
    0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
    0x20, 0x01, 0x0d, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2,
    1, 2, 3, 4, 0xee, 0xee,
];
const REPR: Repr = Repr {
    src: SRC,
    dst: DST,
    next_header: IpProtocol::UDP,
    hop_limit: 64,
    traffic_class: 0xb8,
    flow_label: 0x12345,
    payload_len: 4,
};

/// A packet with this payload, which starts with a header of this kind.
fn packet(next_header: IpProtocol, payload: &[u8]) -> Vec<u8> {
    let repr = Repr::new(SRC, DST, next_header, payload.len() as u16);
    let mut bytes = vec![0; repr.buffer_len()];
    repr.emit(&mut Packet::new_unchecked(&mut bytes[..]));
    bytes.extend_from_slice(payload);
    bytes
}

fn upper(next_header: IpProtocol, payload: &[u8]) -> Result<Upper, Reason> {
    Packet::new_checked(packet(next_header, payload)).unwrap().upper()
}

/// What a packet's fixed header says.
fn read(bytes: &[u8]) -> Repr {
    let packet = Packet::new_checked(bytes).unwrap();
    Repr {
        src: packet.src(),
        dst: packet.dst(),
        next_header: packet.next_header(),
        hop_limit: packet.hop_limit(),
        traffic_class: packet.traffic_class(),
        flow_label: packet.flow_label(),
        payload_len: packet.payload().len() as u16,
    }
}

#[test]
fn deconstruct() {
    let packet = Packet::new_checked(&BYTES[..]).unwrap();
    assert_eq!((packet.version(), packet.traffic_class(), packet.flow_label()), (6, 0xb8, 0x12345));
    assert_eq!((packet.payload_len(), packet.total_len()), (4, 44));
    assert_eq!((packet.next_header(), packet.hop_limit()), (IpProtocol::UDP, 64));
    assert_eq!((packet.src(), packet.dst()), (SRC, DST));
    assert_eq!(packet.payload(), [1, 2, 3, 4]);
}

#[test]
fn construct() {
    let mut packet = Packet::new_unchecked([0xee; 46]);
    packet.set_version_class_and_label(0xb8, 0x12345);
    packet.set_payload_len(4);
    packet.set_next_header(IpProtocol::UDP);
    packet.set_hop_limit(64);
    packet.set_src(SRC);
    packet.set_dst(DST);
    packet.payload_mut().copy_from_slice(&[1, 2, 3, 4]);
    assert_eq!(packet.into_inner(), BYTES);
}

#[test]
fn emit() {
    let mut bytes = BYTES;
    bytes[..REPR.buffer_len()].fill(0xa5);
    REPR.emit(&mut Packet::new_unchecked(&mut bytes[..]));
    assert_eq!(bytes, BYTES);
}

#[test]
fn impossible_length() {
    for len in 0..44 {
        assert_eq!(Packet::new_checked(&BYTES[..len]), Err(Reason::FrameTruncated), "{len} bytes");
    }
    let mut wrong = BYTES;
    wrong[0] = 0x45;
    assert_eq!(Packet::new_checked(&wrong[..]), Err(Reason::IpHeaderInvalid), "another version");
    wrong = BYTES;
    wrong[5] = 7;
    assert_eq!(Packet::new_checked(&wrong[..]), Err(Reason::FrameTruncated), "payload beyond the buffer");
}

#[test]
fn a_packet_without_extension_headers_has_its_transport_behind_the_fixed_header() {
    let upper = Packet::new_checked(&BYTES[..]).unwrap().upper().unwrap();
    assert_eq!((upper.protocol, upper.offset, upper.extension_headers), (IpProtocol::UDP, 40, 0));
    assert_eq!((upper.fragment, upper.routing, upper.fragment_header), (None, None, None));
}

#[test]
fn all_kinds_of_extension_headers_are_walked() {
    #[rustfmt::skip]
    let chain = [
        60, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // hop-by-hop, 16 bytes
        43, 0, 1, 4, 0, 0, 0, 0,                          // destination options, 8 bytes
        44, 0, 4, 2, 0, 0, 0, 0,                          // routing type 4, 2 segments left
        6, 0, 0, 1, 0xde, 0xad, 0xbe, 0xef,               // first fragment
        1, 2, 3, 4,                                       // start of TCP
    ];
    let upper = upper(IpProtocol::HOP_BY_HOP, &chain).unwrap();
    assert_eq!((upper.protocol, upper.offset, upper.extension_headers), (IpProtocol::TCP, 40 + 40, 4));
    assert_eq!(upper.routing, Some(Routing { kind: 4, segments_left: 2 }));
    let fragment = Fragment { id: 0xdead_beef, offset: FragmentOffset::ZERO, more: true };
    assert_eq!((upper.fragment, upper.fragment_header), (Some(fragment), Some(40 + 32)));
}

#[test]
fn the_walk_ends_at_a_fragment_that_is_not_the_first() {
    // Behind it lies what would be a malformed header if it were one.
    let upper = upper(IpProtocol::IPV6_FRAGMENT, &[60, 0, 0, 0x10, 0, 0, 0, 7, 0xff, 0xff]).unwrap();
    assert_eq!((upper.protocol, upper.offset), (IpProtocol::DESTINATION_OPTIONS, 48));
    let fragment = upper.fragment.unwrap();
    assert_eq!((fragment.id, fragment.offset.bytes(), fragment.more), (7, 16, false));
}

#[test]
fn eight_extension_headers_are_walked_and_nine_refused() {
    let chain = |headers: usize| {
        let mut payload = [60, 0, 1, 4, 0, 0, 0, 0].repeat(headers);
        payload[(headers - 1) * 8] = IpProtocol::UDP.0;
        upper(IpProtocol::DESTINATION_OPTIONS, &payload)
    };
    let longest = chain(EXTENSION_HEADERS_MAX).unwrap();
    assert_eq!((longest.protocol, longest.extension_headers), (IpProtocol::UDP, EXTENSION_HEADERS_MAX));
    assert_eq!(chain(EXTENSION_HEADERS_MAX + 1), Err(Reason::IpOptions));
}

#[test]
fn an_extension_header_that_ends_outside_the_packet_is_refused() {
    for (kind, payload) in [
        (IpProtocol::HOP_BY_HOP, &[17, 1, 0, 0, 0, 0, 0, 0][..]),
        (IpProtocol::DESTINATION_OPTIONS, &[17, 255, 0, 0, 0, 0, 0, 0]),
        (IpProtocol::IPV6_FRAGMENT, &[17, 0, 0, 0, 0, 0, 0]),
        (IpProtocol::IPV6_ROUTE, &[]),
    ] {
        assert_eq!(upper(kind, payload), Err(Reason::IpHeaderInvalid), "{kind}");
    }
}

#[test]
fn hop_by_hop_options_must_be_first_and_fragment_headers_single() {
    let late = [0, 0, 1, 4, 0, 0, 0, 0, 17, 0, 1, 4, 0, 0, 0, 0];
    assert_eq!(upper(IpProtocol::DESTINATION_OPTIONS, &late), Err(Reason::IpHeaderInvalid));
    let twice = [44, 0, 0, 1, 0, 0, 0, 1, 17, 0, 0, 1, 0, 0, 0, 2];
    assert_eq!(upper(IpProtocol::IPV6_FRAGMENT, &twice), Err(Reason::IpHeaderInvalid));
}

#[test]
fn nothing_is_walked_behind_opaque_or_final_headers() {
    for kind in
        [IpProtocol::ESP, IpProtocol::AUTHENTICATION, IpProtocol::NO_NEXT_HEADER, IpProtocol(135), IpProtocol::TCP]
    {
        let upper = upper(kind, &[60, 0]).unwrap();
        assert_eq!((upper.protocol, upper.offset, upper.extension_headers), (kind, 40, 0));
    }
}

#[test]
fn fragment_headers_survive_emitting_and_parsing() {
    let fragment = Fragment { id: 0xdead_beef, offset: FragmentOffset::from_bytes(1448).unwrap(), more: true };
    let repr = FragmentRepr { next_header: IpProtocol::UDP, fragment };
    assert_eq!(repr.to_bytes(), [17, 0, 0x05, 0xa9, 0xde, 0xad, 0xbe, 0xef]);
    assert_eq!(FragmentRepr::parse(&repr.to_bytes()), Ok(repr));
    assert_eq!(FragmentRepr::parse(&repr.to_bytes()[..7]), Err(Reason::IpHeaderInvalid));
}

proptest! {
    #[test]
    fn emitted_headers_read_as_they_were_written(
        addresses: (u128, u128), next_header: u8, hop_limit: u8, traffic_class: u8, label: u32, payload_len in 0u16..500,
    ) {
        let repr = Repr {
            src: Ipv6Addr::from_bits(addresses.0), dst: Ipv6Addr::from_bits(addresses.1),
            next_header: IpProtocol(next_header), hop_limit, traffic_class,
            flow_label: label & 0x000f_ffff, payload_len,
        };
        let mut bytes = vec![0; repr.buffer_len() + usize::from(payload_len)];
        repr.emit(&mut Packet::new_unchecked(&mut bytes[..]));
        prop_assert_eq!(read(&bytes), repr);
    }

    #[test]
    fn walks_of_random_chains_end_inside_the_packet(
        kinds in proptest::collection::vec(prop::sample::select(vec![0u8, 43, 44, 51, 60, 17]), 1..12),
        noise in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let mut payload = Vec::new();
        for kind in &kinds[1..] {
            payload.extend_from_slice(&[*kind, 0, 0, 0, 0, 0, 0, 0]);
        }
        payload.extend_from_slice(&noise);
        if let Ok(upper) = upper(IpProtocol(kinds[0]), &payload) {
            prop_assert!(upper.offset <= HEADER_LEN + payload.len());
            prop_assert!(upper.extension_headers <= EXTENSION_HEADERS_MAX);
        }
    }
}
