use core::net::{Ipv4Addr, Ipv6Addr};
use std::{vec, vec::Vec};

use proptest::prelude::*;

use super::*;
use crate::{ip::Summary, ipv4, ipv6};

const SRC4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const DST4: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
const SRC6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const DST6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 2);
const VERSIONS: [Version; 2] = [Version::V4, Version::V6];

// "Fragmentation needed", next hop's MTU 1400, quoting the header and 8 bytes of a UDP packet of 1,500 bytes.
#[rustfmt::skip]
const BYTES4: [u8; 36] = [
    3, 4, 0x72, 0x29, 0, 0, 0x05, 0x78,
    0x45, 0, 0x05, 0xdc, 0, 1, 0x40, 0, 64, 17, 0x48, 0xda, 192, 0, 2, 1, 198, 51, 100, 1,
    0xc0, 0x00, 0x13, 0xc4, 0x05, 0xc8, 0xab, 0xcd,
];
// "Packet too big", MTU 1400, quoting the header and 8 bytes of a UDP packet of 1,500 bytes.
#[rustfmt::skip]
const BYTES6: [u8; 56] = [
    2, 0, 0x43, 0xf2, 0, 0, 0x05, 0x78,
    0x60, 0, 0, 0, 0x05, 0xb4, 17, 64,
    0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
    0x20, 0x01, 0x0d, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2,
    0xc0, 0x00, 0x13, 0xc4, 0x05, 0xb4, 0xab, 0xcd,
];

fn bytes(version: Version) -> &'static [u8] {
    if version == Version::V4 { &BYTES4 } else { &BYTES6 }
}

/// A router that sends errors, and to whom.
fn ends(version: Version) -> (IpAddr, IpAddr) {
    match version {
        Version::V4 => (Ipv4Addr::new(192, 0, 2, 254).into(), SRC4.into()),
        Version::V6 => (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0xff).into(), SRC6.into()),
    }
}

/// A UDP packet with this many bytes of payload.
fn udp_packet(version: Version, payload_len: usize) -> Vec<u8> {
    let len = payload_len as u16;
    let mut bytes = vec![7; if version == Version::V4 { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN } + payload_len];
    if version == Version::V4 {
        ipv4::Repr::new(SRC4, DST4, IpProtocol::UDP, len).emit(&mut ipv4::Packet::new_unchecked(&mut bytes[..]));
    } else {
        ipv6::Repr::new(SRC6, DST6, IpProtocol::UDP, len).emit(&mut ipv6::Packet::new_unchecked(&mut bytes[..]));
    }
    bytes
}

fn emitted(version: Version, repr: &Repr<'_>) -> Vec<u8> {
    let mut bytes = vec![0xa5; repr.buffer_len()];
    let (src, dst) = ends(version);
    repr.emit(&mut bytes, src, dst);
    bytes
}

#[test]
fn deconstruct() {
    for version in VERSIONS {
        let (bytes, (src, dst)) = (bytes(version), ends(version));
        let packet = Packet::new_checked(version, bytes).unwrap();
        let code = if version == Version::V4 { (4, 0x7229) } else { (0, 0x43f2) };
        assert_eq!((packet.kind(), (packet.code(), packet.checksum())), (Kind::PacketTooBig, code));
        assert_eq!((packet.mtu(), packet.ident(), packet.seq()), (1400, 0, 1400));
        assert_eq!((packet.payload(), packet.quoted()), (&bytes[8..], &bytes[8..]));
        assert!(packet.verify_checksum(src, dst));
        assert_eq!(packet.verify_checksum(dst, Ipv6Addr::LOCALHOST.into()), version == Version::V4, "pseudo-header");
        let inner = Summary::parse_quoted(packet.quoted()).unwrap();
        assert_eq!((inner.total_len, inner.protocol), (1500, IpProtocol::UDP));
        assert_eq!(ip::Ports::parse(inner.transport(packet.quoted())), Ok(ip::Ports { src: 49152, dst: 5060 }));
    }
}

#[test]
fn emit() {
    for version in VERSIONS {
        let quote = Quote::new(&bytes(version)[8..]).unwrap();
        assert_eq!(emitted(version, &Repr::PacketTooBig { mtu: 1400, quote }), bytes(version));
    }
}

#[test]
fn every_message_is_what_it_was_written_as() {
    for version in VERSIONS {
        let (packet, data) = (udp_packet(version, 100), &b"data"[..]);
        let quote = Quote::new(&packet).unwrap();
        let is_v4 = version == Version::V4;
        for (repr, kind, code) in [
            (Repr::EchoRequest { ident: 1, seq: 2, data }, Kind::EchoRequest, 0),
            (Repr::EchoReply { ident: 1, seq: 2, data: &[] }, Kind::EchoReply, 0),
            (Repr::TimeExceeded { quote }, Kind::TimeExceeded, 0),
            (Repr::PacketTooBig { mtu: 1280, quote }, Kind::PacketTooBig, if is_v4 { 4 } else { 0 }),
            (Repr::Unreachable { why: Unreachable::Port, quote }, Kind::Unreachable, if is_v4 { 3 } else { 4 }),
            (Repr::Unreachable { why: Unreachable::Prohibited, quote }, Kind::Unreachable, if is_v4 { 13 } else { 1 }),
        ] {
            let message = Packet::new_checked(version, emitted(version, &repr)).unwrap();
            assert_eq!((message.kind(), message.code()), (kind, code));
            assert_eq!(message.payload(), repr.payload());
            assert!(message.verify_checksum(ends(version).0, ends(version).1));
            if kind.is_echo() {
                assert_eq!((message.ident(), message.seq(), message.quoted()), (1, 2, &[][..]));
            } else {
                assert_eq!(message.quoted(), packet);
            }
        }
    }
}

#[test]
fn types_are_told_apart_by_version() {
    use Kind::{EchoReply, EchoRequest, Other, OtherError, PacketTooBig, ParameterProblem, TimeExceeded, Unreachable};
    for (number, code, v4, v6) in [
        (0, 0, EchoReply, OtherError),
        (1, 0, Other, Unreachable),
        (2, 7, Other, PacketTooBig),
        (3, 0, Unreachable, TimeExceeded),
        (3, 4, PacketTooBig, TimeExceeded),
        (4, 0, OtherError, ParameterProblem),
        (5, 1, OtherError, OtherError),
        (8, 0, EchoRequest, OtherError),
        (11, 1, TimeExceeded, OtherError),
        (12, 2, ParameterProblem, OtherError),
        (13, 0, Other, OtherError),
        (128, 0, Other, EchoRequest),
        (129, 0, Other, EchoReply),
        (135, 0, Other, Other),
    ] {
        assert_eq!(Kind::of(Version::V4, number, code), v4, "{number}");
        assert_eq!(Kind::of(Version::V6, number, code), v6, "{number}");
    }
}

#[test]
fn impossible_length() {
    for version in VERSIONS {
        for len in 0..HEADER_LEN {
            let cut = Packet::new_checked(version, &bytes(version)[..len]);
            assert_eq!(cut, Err(Reason::TransportHeaderInvalid));
        }
        let quoted = &bytes(version)[8..];
        for len in 0..quoted.len() {
            assert_eq!(Quote::new(&quoted[..len]), Err(Reason::FrameTruncated), "{len} bytes");
        }
    }
}

#[test]
fn a_quote_is_cut_to_what_an_error_may_carry() {
    for (version, header_len) in VERSIONS.into_iter().zip([20, 40]) {
        let long = udp_packet(version, 1400);
        assert_eq!(Quote::new(&long).unwrap().bytes().len(), Quote::len_max(version));
        let mut padded = udp_packet(version, 4);
        padded.resize(60, 0xee);
        let quoted = Quote::new(&padded).unwrap().bytes().len();
        assert_eq!(quoted, header_len + 4, "a short packet is quoted whole and without padding");
    }
}

#[test]
fn a_quote_whose_header_checksum_is_wrong_is_refused() {
    let mut packet = udp_packet(Version::V4, 100);
    packet[8] ^= 1;
    assert_eq!(Quote::new(&packet), Err(Reason::IpHeaderInvalid));
}

#[test]
fn extensions_behind_the_quoted_packet_are_not_part_of_it() {
    // Where the length of the quote is stated, and in words of how many bytes.
    for (version, (at, word)) in VERSIONS.into_iter().zip([(5, 4), (4, 8)]) {
        let (quoted, (src, dst)) = (udp_packet(version, 200), ends(version));
        let quote = Quote::new(&quoted[..128]).unwrap();
        let mut bytes = emitted(version, &Repr::TimeExceeded { quote });
        bytes.extend_from_slice(&[0x20, 0, 0, 0, 0, 8, 1, 1, 0, 0, 0, 0]);
        bytes[at] = 128 / word;
        let mut packet = Packet::new_unchecked(version, &mut bytes[..]);
        packet.fill_checksum(src, dst);
        assert_eq!(packet.quoted(), &quoted[..128]);
        assert_eq!(packet.quoted_mut().len(), 128);
        packet.clear_quoted_length();
        assert_eq!(packet.quoted().len(), 140);
        bytes[at] = 255;
        let packet = Packet::new_unchecked(version, &bytes[..]);
        assert_eq!(packet.quoted().len(), 140, "a length that cannot be means all of it");
    }
    let mut bytes = BYTES6.to_vec();
    bytes[4] = 1;
    let quoted = Packet::new_unchecked(Version::V6, &bytes).quoted().len();
    assert_eq!(quoted, 48, "packet too big has no length attribute");
}

proptest! {
    #[test]
    fn a_replaced_identifier_keeps_the_checksum_right(
        reply: bool, v6: bool, ident: u16, new: u16, seq: u16, data in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        let (version, data) = (VERSIONS[usize::from(v6)], &data[..]);
        let echo = |ident| if reply { Repr::EchoReply { ident, seq, data } } else { Repr::EchoRequest { ident, seq, data } };
        let mut bytes = emitted(version, &echo(ident));
        Packet::new_unchecked(version, &mut bytes[..]).replace_ident(new);
        prop_assert_eq!(bytes, emitted(version, &echo(new)));
    }

    #[test]
    fn an_mtu_is_read_as_it_was_written(v6: bool, mtu: u16) {
        let version = VERSIONS[usize::from(v6)];
        let mut bytes = bytes(version).to_vec();
        let mut packet = Packet::new_unchecked(version, &mut bytes[..]);
        packet.set_mtu(mtu.into());
        prop_assert_eq!(packet.mtu(), u32::from(mtu));
    }
}
