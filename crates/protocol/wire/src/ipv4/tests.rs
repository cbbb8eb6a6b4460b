use std::{vec, vec::Vec};

use proptest::prelude::*;

use super::*;

// 192.0.2.1 -> 198.51.100.1, UDP, ttl 64, ident 0x1234, don't fragment, 4 bytes of payload and 3 of padding.
const BYTES: [u8; 27] = [
    0x45, 0xb8, 0x00, 0x18, 0x12, 0x34, 0x40, 0x00, 0x40, 0x11, 0x3b, 0xb3, 192, 0, 2, 1, 198, 51, 100, 1, 1, 2, 3, 4,
    0xee, 0xee, 0xee,
];
const REPR: Repr = Repr {
    src: Ipv4Addr::new(192, 0, 2, 1),
    dst: Ipv4Addr::new(198, 51, 100, 1),
    protocol: IpProtocol::UDP,
    ttl: 64,
    traffic_class: 0xb8,
    ident: 0x1234,
    dont_fragment: true,
    more_fragments: false,
    fragment_offset: FragmentOffset::ZERO,
    payload_len: 4,
};

/// What a packet's header says.
fn read(bytes: &[u8]) -> Repr {
    let packet = Packet::new_checked(bytes).unwrap();
    assert!(packet.verify_checksum());
    Repr {
        src: packet.src(),
        dst: packet.dst(),
        protocol: packet.protocol(),
        ttl: packet.ttl(),
        traffic_class: packet.traffic_class(),
        ident: packet.ident(),
        dont_fragment: packet.dont_fragment(),
        more_fragments: packet.more_fragments(),
        fragment_offset: packet.fragment_offset(),
        payload_len: packet.payload().len() as u16,
    }
}

/// A header with these options (padded to 4 bytes) and a right checksum.
fn with_options(options: &[u8]) -> Vec<u8> {
    let mut bytes = BYTES[..HEADER_LEN].to_vec();
    bytes.extend_from_slice(options);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    let len = bytes.len();
    let mut packet = Packet::new_unchecked(&mut bytes[..]);
    packet.set_version_and_header_len(len);
    packet.set_total_len(len as u16);
    packet.fill_checksum();
    bytes
}

#[test]
fn deconstruct() {
    let packet = Packet::new_checked(&BYTES[..]).unwrap();
    assert_eq!((packet.version(), packet.header_len(), packet.total_len()), (4, 20, 24));
    assert_eq!((packet.traffic_class(), packet.ident(), packet.ttl()), (0xb8, 0x1234, 64));
    assert_eq!((packet.dont_fragment(), packet.more_fragments()), (true, false));
    assert_eq!((packet.fragment_offset(), packet.fragment()), (FragmentOffset::ZERO, None));
    assert_eq!((packet.protocol(), packet.checksum()), (IpProtocol::UDP, 0x3bb3));
    assert_eq!((packet.src(), packet.dst()), (REPR.src, REPR.dst));
    assert_eq!(packet.payload(), [1, 2, 3, 4]);
    assert_eq!(packet.options().count(), 0);
    assert!(packet.verify_checksum());
}

#[test]
fn construct() {
    let mut packet = Packet::new_unchecked([0xee; 27]);
    packet.set_version_and_header_len(20);
    packet.set_traffic_class(0xb8);
    packet.set_total_len(24);
    packet.set_ident(0x1234);
    packet.set_fragmentation(true, false, FragmentOffset::ZERO);
    packet.set_ttl(64);
    packet.set_protocol(IpProtocol::UDP);
    packet.set_src(REPR.src);
    packet.set_dst(REPR.dst);
    packet.payload_mut().copy_from_slice(&[1, 2, 3, 4]);
    packet.fill_checksum();
    assert_eq!(packet.into_inner(), BYTES);
}

#[test]
fn a_changed_header_has_a_wrong_checksum() {
    assert_eq!(read(&BYTES), REPR);
    let mut wrong = BYTES;
    wrong[8] = 63;
    assert!(!Packet::new_checked(&wrong[..]).unwrap().verify_checksum());
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
    for len in 0..24 {
        assert_eq!(Packet::new_checked(&BYTES[..len]), Err(Reason::FrameTruncated), "{len} bytes");
    }
    let refused = |at: usize, value: u8| {
        let mut bytes = BYTES;
        bytes[at] = value;
        Packet::new_checked(bytes).unwrap_err()
    };
    assert_eq!(refused(0, 0x44), Reason::IpHeaderInvalid, "header shorter than 20 bytes");
    assert_eq!(refused(0, 0x4f), Reason::IpHeaderInvalid, "header longer than the packet");
    assert_eq!(refused(0, 0x65), Reason::IpHeaderInvalid, "another version");
    assert_eq!(refused(3, 19), Reason::IpHeaderInvalid, "total length shorter than the header");
    assert_eq!(refused(3, 28), Reason::FrameTruncated, "total length beyond the buffer");
}

#[test]
fn a_quoted_packet_may_be_cut_short_behind_its_header() {
    let mut quoted = BYTES;
    quoted[2] = 5;
    let packet = Packet::new_unchecked(&quoted[..]);
    assert_eq!(packet.check_len(), Err(Reason::FrameTruncated));
    assert_eq!(packet.check_header(), Ok(()));
    assert_eq!(packet.payload().len(), 7);
}

#[test]
fn options_are_listed_without_padding() {
    let bytes = with_options(&[1, 1, 148, 4, 0, 0, 94, 2, 7, 7, 4, 1, 2, 3, 4, 0, 99, 99, 99, 99]);
    let packet = Packet::new_checked(&bytes[..]).unwrap();
    let options: Vec<_> = packet.options().map(Result::unwrap).collect();
    let alert = IpOption { kind: IpOption::ROUTER_ALERT, data: &[0, 0] };
    let (empty, route) = (IpOption { kind: 94, data: &[] }, IpOption { kind: 7, data: &[4, 1, 2, 3, 4] });
    assert_eq!(options, [alert, empty, route]);
    assert_eq!(packet.source_route(), Ok(false));
}

#[test]
fn source_routes_are_found_behind_other_options() {
    for kind in [IpOption::LOOSE_SOURCE_ROUTE, IpOption::STRICT_SOURCE_ROUTE] {
        let bytes = with_options(&[1, 148, 4, 0, 0, kind, 7, 4, 203, 0, 113, 1]);
        let packet = Packet::new_checked(&bytes[..]).unwrap();
        assert_eq!(packet.source_route(), Ok(true));
    }
}

#[test]
fn an_option_that_ends_outside_the_header_is_an_error() {
    for options in [&[148, 1, 0, 0][..], &[148, 0, 0, 0], &[148, 5, 0, 0], &[1, 1, 1, 148]] {
        let bytes = with_options(options);
        let packet = Packet::new_checked(&bytes[..]).unwrap();
        assert_eq!(packet.source_route(), Err(Reason::IpHeaderInvalid), "{options:?}");
        assert!(packet.options().count() <= 40);
    }
}

#[test]
fn fragments_tell_their_place() {
    let mut packet = Packet::new_unchecked(BYTES);
    packet.set_fragmentation(false, true, FragmentOffset::from_bytes(1480).unwrap());
    let fragment = packet.fragment().unwrap();
    assert_eq!((fragment.id, fragment.offset.bytes(), fragment.more), (0x1234, 1480, true));
    packet.set_fragmentation(false, false, FragmentOffset::from_bytes(65528).unwrap());
    assert_eq!(packet.fragment_offset().bytes(), 65528);
    assert!(!packet.dont_fragment());
}

proptest! {
    #[test]
    fn emitted_headers_read_as_they_were_written(
        addresses: (u32, u32), protocol: u8, ttl: u8, traffic_class: u8, ident: u16, flags: (bool, bool),
        units in 0u16..0x2000, payload_len in 0u16..500,
    ) {
        let repr = Repr {
            src: Ipv4Addr::from_bits(addresses.0), dst: Ipv4Addr::from_bits(addresses.1),
            protocol: IpProtocol(protocol), ttl, traffic_class, ident,
            dont_fragment: flags.0, more_fragments: flags.1,
            fragment_offset: FragmentOffset::from_units(units), payload_len,
        };
        let mut bytes = vec![0; repr.buffer_len() + usize::from(payload_len)];
        repr.emit(&mut Packet::new_unchecked(&mut bytes[..]));
        prop_assert_eq!(read(&bytes), repr);
    }
}
