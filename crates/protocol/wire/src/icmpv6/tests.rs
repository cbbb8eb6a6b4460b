use core::net::Ipv6Addr;
use std::{vec, vec::Vec};

use proptest::prelude::*;

use super::*;
use crate::{ip::Summary, ipv6};

const ROUTER: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0xff));
const SRC: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const DST: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 2);
const TO: IpAddr = IpAddr::V6(SRC);
// "Packet too big", MTU 1400, quoting the header and 8 bytes of a UDP packet of 1,500 bytes.
#[rustfmt::skip]
const BYTES: [u8; 56] = [
    2, 0, 0x43, 0xf2, 0, 0, 0x05, 0x78,
    0x60, 0, 0, 0, 0x05, 0xb4, 17, 64,
    0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
    0x20, 0x01, 0x0d, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2,
    0xc0, 0x00, 0x13, 0xc4, 0x05, 0xb4, 0xab, 0xcd,
];

fn repr() -> Repr<'static> {
    const QUOTED: [u8; 48] = *BYTES.last_chunk().unwrap();
    Repr::PacketTooBig { mtu: 1400, quote: Quote::new(&QUOTED).unwrap() }
}

/// A UDP packet with this many bytes of payload.
fn ipv6_packet(payload_len: usize) -> Vec<u8> {
    let repr = ipv6::Repr::new(SRC, DST, IpProtocol::UDP, payload_len as u16);
    let mut bytes = vec![7; repr.buffer_len() + payload_len];
    repr.emit(&mut ipv6::Packet::new_unchecked(&mut bytes[..]));
    bytes
}

fn emitted(repr: &Repr<'_>) -> Vec<u8> {
    let mut bytes = vec![0xa5; repr.buffer_len()];
    repr.emit(&mut Packet::new_unchecked(&mut bytes[..]), ROUTER, TO);
    bytes
}

fn parsed(bytes: &[u8]) -> Result<Repr<'_>, Reason> {
    Repr::parse(&Packet::new_unchecked(bytes), ROUTER, TO)
}

#[test]
fn deconstruct() {
    let packet = Packet::new_checked(&BYTES[..]).unwrap();
    assert_eq!((packet.kind(), packet.code(), packet.checksum()), (Type::PACKET_TOO_BIG, 0, 0x43f2));
    assert_eq!((packet.mtu(), packet.pointer(), packet.ident(), packet.seq()), (1400, 1400, 0, 1400));
    assert_eq!((packet.payload(), packet.quoted()), (&BYTES[8..], &BYTES[8..]));
    assert!(packet.verify_checksum(ROUTER, TO));
    let inner = Summary::parse_quoted(packet.quoted()).unwrap();
    assert_eq!((inner.total_len, inner.protocol), (1500, IpProtocol::UDP));
}

#[test]
fn construct() {
    let mut packet = Packet::new_unchecked([0xa5; 56]);
    packet.set_kind_and_code(Type::PACKET_TOO_BIG, 0);
    packet.set_rest(1400u32.to_be_bytes());
    packet.payload_mut().copy_from_slice(&BYTES[8..]);
    packet.fill_checksum(ROUTER, TO);
    assert_eq!(packet.into_inner(), BYTES);
}

#[test]
fn parse() {
    assert_eq!(parsed(&BYTES), Ok(repr()));
    let mut wrong = BYTES;
    wrong[7] ^= 1;
    assert_eq!(parsed(&wrong), Err(Reason::TransportHeaderInvalid));
    let other = Repr::parse(&Packet::new_unchecked(&BYTES[..]), TO, IpAddr::V6(DST));
    assert_eq!(other, Err(Reason::TransportHeaderInvalid), "the pseudo-header counts");
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
        Packet::new_unchecked(&mut cut[..]).fill_checksum(ROUTER, TO);
        assert_eq!(parsed(&cut), Err(Reason::FrameTruncated), "{len} bytes");
    }
}

#[test]
fn every_message_survives_emitting_and_parsing() {
    let packet = ipv6_packet(100);
    let quote = Quote::new(&packet).unwrap();
    let mut messages = vec![
        Repr::EchoRequest { ident: 1, seq: 2, data: b"data" },
        Repr::EchoReply { ident: 1, seq: 2, data: &[] },
        Repr::PacketTooBig { mtu: 1280, quote },
        Repr::TimeExceeded { which: TimeExceeded::InTransit, quote },
        Repr::TimeExceeded { which: TimeExceeded::Reassembly, quote },
    ];
    for (kind, codes) in [(Type::UNREACHABLE, 7), (Type::PARAMETER_PROBLEM, 4)] {
        for code in 0..codes {
            let mut bytes = emitted(&repr());
            let mut view = Packet::new_unchecked(&mut bytes[..]);
            view.set_kind_and_code(kind, code);
            view.set_rest([0; 4]);
            view.fill_checksum(ROUTER, TO);
            let message = match parsed(&bytes).unwrap() {
                Repr::Unreachable { why, .. } => Repr::Unreachable { why, quote },
                Repr::ParameterProblem { what, .. } => Repr::ParameterProblem { what, pointer: 40, quote },
                other => panic!("{other:?}"),
            };
            assert_eq!(emitted(&message)[..2], [kind.0, code]);
            messages.push(message);
        }
    }
    for message in messages {
        assert_eq!(parsed(&emitted(&message)), Ok(message));
    }
}

#[test]
fn types_and_codes_that_no_gate_sends_are_refused() {
    for (kind, code) in [(1, 7), (3, 2), (4, 4), (100, 0), (128, 1), (135, 0), (255, 0)] {
        let mut bytes = emitted(&repr());
        let mut packet = Packet::new_unchecked(&mut bytes[..]);
        packet.set_kind_and_code(Type(kind), code);
        packet.fill_checksum(ROUTER, TO);
        assert_eq!(parsed(&bytes), Err(Reason::IcmpType), "type {kind} code {code}");
    }
}

#[test]
fn a_quote_is_cut_to_what_an_error_may_carry() {
    assert_eq!(Quote::new(&ipv6_packet(1400)).unwrap().bytes().len(), Quote::LEN_MAX);
    let mut padded = ipv6_packet(4);
    padded.resize(60, 0xee);
    assert_eq!(Quote::new(&padded).unwrap().bytes().len(), 44, "a short packet is quoted whole and without padding");
    let mut ipv4 = [0; 28];
    ipv4[..4].copy_from_slice(&[0x45, 0, 0, 28]);
    assert!(Quote::new(&ipv4).is_err(), "no other version is quoted");
}

#[test]
fn extensions_behind_the_quoted_packet_are_not_part_of_it() {
    let quoted = ipv6_packet(200);
    let quote = Quote::new(&quoted[..128]).unwrap();
    let mut bytes = emitted(&Repr::Unreachable { why: Unreachable::Port, quote });
    bytes.extend_from_slice(&[0x20, 0, 0, 0, 0, 8, 1, 1, 0, 0, 0, 0]);
    bytes[4] = 128 / 8;
    let mut packet = Packet::new_unchecked(&mut bytes[..]);
    packet.fill_checksum(ROUTER, TO);
    assert_eq!(packet.quoted(), &quoted[..128]);
    assert_eq!(packet.quoted_mut().len(), 128);
    packet.set_kind_and_code(Type::PACKET_TOO_BIG, 0);
    assert_eq!(packet.quoted().len(), 140, "packet too big has no length attribute");
}

proptest! {
    #[test]
    fn echoes_survive_emitting_and_parsing(
        reply: bool, ident: u16, seq: u16, data in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let data = &data[..];
        let repr = if reply { Repr::EchoReply { ident, seq, data } } else { Repr::EchoRequest { ident, seq, data } };
        let bytes = emitted(&repr);
        prop_assert_eq!(parsed(&bytes), Ok(repr));
    }
}
