use core::net::Ipv4Addr;
use std::{vec, vec::Vec};

use proptest::prelude::*;

use super::*;
use crate::{IpProtocol, ip::Summary, ipv4};

// "Fragmentation needed", next hop's MTU 1400, quoting the header and 8 bytes of a UDP packet of 1,500 bytes.
#[rustfmt::skip]
const BYTES: [u8; 36] = [
    3, 4, 0x72, 0x29, 0, 0, 0x05, 0x78,
    0x45, 0, 0x05, 0xdc, 0, 1, 0x40, 0, 64, 17, 0x48, 0xda, 192, 0, 2, 1, 198, 51, 100, 1,
    0xc0, 0x00, 0x13, 0xc4, 0x05, 0xc8, 0xab, 0xcd,
];

fn repr() -> Repr<'static> {
    const QUOTED: [u8; 28] = *BYTES.last_chunk().unwrap();
    let why = Unreachable::FragmentationNeeded { next_hop_mtu: 1400 };
    Repr::Unreachable { why, quote: Quote::new(&QUOTED).unwrap() }
}

/// A UDP packet with this many bytes of payload.
fn ipv4_packet(payload_len: usize) -> Vec<u8> {
    let (src, dst) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(198, 51, 100, 1));
    let repr = ipv4::Repr::new(src, dst, IpProtocol::UDP, payload_len as u16);
    let mut bytes = vec![7; repr.buffer_len() + payload_len];
    repr.emit(&mut ipv4::Packet::new_unchecked(&mut bytes[..]));
    bytes
}

fn emitted(repr: &Repr<'_>) -> Vec<u8> {
    let mut bytes = vec![0xa5; repr.buffer_len()];
    repr.emit(&mut Packet::new_unchecked(&mut bytes[..]));
    bytes
}

#[test]
fn deconstruct() {
    let packet = Packet::new_checked(&BYTES[..]).unwrap();
    assert_eq!((packet.kind(), packet.code(), packet.checksum()), (Type::UNREACHABLE, 4, 0x7229));
    assert_eq!((packet.next_hop_mtu(), packet.pointer(), packet.ident(), packet.seq()), (1400, 0, 0, 1400));
    assert_eq!((packet.payload(), packet.quoted()), (&BYTES[8..], &BYTES[8..]));
    assert!(packet.verify_checksum());
    let inner = Summary::parse_quoted(packet.quoted()).unwrap();
    assert_eq!((inner.total_len, inner.protocol), (1500, IpProtocol::UDP));
    assert_eq!(ip::Ports::parse(inner.transport(packet.quoted())), Ok(ip::Ports { src: 49152, dst: 5060 }));
}

#[test]
fn construct() {
    let mut packet = Packet::new_unchecked([0xa5; 36]);
    packet.set_kind_and_code(Type::UNREACHABLE, 4);
    packet.set_rest([0, 0, 0x05, 0x78]);
    packet.payload_mut().copy_from_slice(&BYTES[8..]);
    packet.fill_checksum();
    assert_eq!(packet.into_inner(), BYTES);
}

#[test]
fn parse() {
    assert_eq!(Repr::parse(&Packet::new_unchecked(&BYTES[..])), Ok(repr()));
    let mut wrong = BYTES;
    wrong[7] ^= 1;
    assert_eq!(Repr::parse(&Packet::new_unchecked(&wrong[..])), Err(Reason::TransportHeaderInvalid));
}

#[test]
fn emit() {
    assert_eq!(emitted(&repr()), BYTES);
}

#[test]
fn impossible_length() {
    for len in 0..HEADER_LEN {
        assert_eq!(Packet::new_checked(&BYTES[..len]), Err(Reason::TransportHeaderInvalid));
    }
    for len in HEADER_LEN..BYTES.len() {
        let mut cut = BYTES[..len].to_vec();
        Packet::new_unchecked(&mut cut[..]).fill_checksum();
        assert_eq!(Repr::parse(&Packet::new_unchecked(&cut[..])), Err(Reason::FrameTruncated), "{len} bytes");
    }
}

#[test]
fn every_message_survives_emitting_and_parsing() {
    let (packet, data) = (ipv4_packet(100), &b"data"[..]);
    let quote = Quote::new(&packet).unwrap();
    let mut messages = vec![
        Repr::EchoRequest { ident: 1, seq: 2, data },
        Repr::EchoReply { ident: 1, seq: 2, data: &[] },
        Repr::TimeExceeded { which: TimeExceeded::InTransit, quote },
        Repr::TimeExceeded { which: TimeExceeded::Reassembly, quote },
        Repr::ParameterProblem { what: ParameterProblem::Pointer(9), quote },
        Repr::ParameterProblem { what: ParameterProblem::MissingOption, quote },
        Repr::ParameterProblem { what: ParameterProblem::BadLength, quote },
    ];
    for code in 0..16 {
        let mut bytes = emitted(&repr());
        let mut packet = Packet::new_unchecked(&mut bytes[..]);
        packet.set_kind_and_code(Type::UNREACHABLE, code);
        packet.fill_checksum();
        let Ok(Repr::Unreachable { why, .. }) = Repr::parse(&Packet::new_unchecked(&bytes[..])) else {
            panic!("code {code}")
        };
        let again = Repr::Unreachable { why, quote };
        assert_eq!(emitted(&again)[..2], [3, code]);
        messages.push(again);
    }
    for message in messages {
        assert_eq!(Repr::parse(&Packet::new_unchecked(&emitted(&message)[..])), Ok(message));
    }
}

#[test]
fn types_and_codes_that_no_gate_sends_are_refused() {
    for (kind, code) in [(3, 16), (4, 0), (5, 1), (8, 1), (11, 2), (12, 3), (13, 0), (255, 0)] {
        let mut bytes = emitted(&repr());
        let mut packet = Packet::new_unchecked(&mut bytes[..]);
        packet.set_kind_and_code(Type(kind), code);
        packet.fill_checksum();
        assert_eq!(Repr::parse(&Packet::new_unchecked(&bytes[..])), Err(Reason::IcmpType), "type {kind} code {code}");
    }
}

#[test]
fn a_quote_is_cut_to_what_an_error_may_carry() {
    assert_eq!(Quote::new(&ipv4_packet(1400)).unwrap().bytes().len(), Quote::LEN_MAX);
    let mut padded = ipv4_packet(4);
    padded.resize(60, 0xee);
    assert_eq!(Quote::new(&padded).unwrap().bytes().len(), 24, "a short packet is quoted whole and without padding");
}

#[test]
fn a_quote_whose_header_checksum_is_wrong_is_refused() {
    let mut packet = ipv4_packet(100);
    packet[8] ^= 1;
    assert_eq!(Quote::new(&packet), Err(Reason::IpHeaderInvalid));
}

#[test]
fn extensions_behind_the_quoted_packet_are_not_part_of_it() {
    let quoted = ipv4_packet(200);
    let quote = Quote::new(&quoted[..128]).unwrap();
    let mut bytes = emitted(&Repr::TimeExceeded { which: TimeExceeded::InTransit, quote });
    bytes.extend_from_slice(&[0x20, 0, 0, 0, 0, 8, 1, 1, 0, 0, 0, 0]);
    bytes[5] = 128 / 4;
    let mut packet = Packet::new_unchecked(&mut bytes[..]);
    packet.fill_checksum();
    assert_eq!(packet.quoted(), &quoted[..128]);
    assert_eq!(packet.quoted_mut().len(), 128);
    packet.set_rest([0, 255, 0, 0]);
    assert_eq!(packet.quoted().len(), 140, "a length that cannot be means all of it");
}

#[test]
fn only_errors_quote() {
    let packet = Packet::new_unchecked(emitted(&Repr::EchoRequest { ident: 1, seq: 2, data: b"data" }));
    assert!(packet.quoted().is_empty());
    assert!(packet.kind().is_echo() && !packet.kind().is_error());
}

proptest! {
    #[test]
    fn a_replaced_identifier_keeps_the_checksum_right(
        ident: u16, new: u16, seq: u16, data in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        let mut bytes = emitted(&Repr::EchoRequest { ident, seq, data: &data });
        Packet::new_unchecked(&mut bytes[..]).replace_ident(new);
        prop_assert_eq!(bytes, emitted(&Repr::EchoRequest { ident: new, seq, data: &data }));
    }
}
