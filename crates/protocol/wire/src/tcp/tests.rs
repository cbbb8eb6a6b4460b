use core::net::Ipv4Addr;
use std::{vec, vec::Vec};

use proptest::prelude::*;

use super::*;

const SRC: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const DST: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1));
// 192.0.2.1:49152 -> 198.51.100.1:22, SYN, MSS 1460, window scale 7, SACK permitted, timestamps, "hi".
const BYTES: [u8; 46] = [
    0xc0, 0x00, 0x00, 0x16, 0x01, 0x02, 0x03, 0x04, 0x00, 0x00, 0x00, 0x00, 0xb0, 0x02, 0xfa, 0xf0, 0x22, 0x42, 0x00,
    0x00, 2, 4, 0x05, 0xb4, 1, 3, 3, 7, 1, 1, 4, 2, 1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 0, b'h', b'i',
];

fn repr() -> Repr<'static> {
    Repr {
        window: 0xfaf0,
        mss: Some(1460),
        window_scale: Some(WindowScale::new(7)),
        sack_permitted: true,
        timestamps: Some(Timestamps { value: 9, echo: 0 }),
        payload: b"hi",
        ..Repr::new(49152, 22, Control::Syn, 0x0102_0304)
    }
}

#[test]
fn deconstruct() {
    let packet = Packet::new_checked(&BYTES[..]).unwrap();
    assert_eq!((packet.src_port(), packet.dst_port()), (49152, 22));
    assert_eq!((packet.seq(), packet.ack(), packet.header_len()), (0x0102_0304, 0, 44));
    assert_eq!((packet.flags(), packet.window(), packet.urgent()), (Flags::SYN, 0xfaf0, 0));
    assert_eq!((packet.payload(), packet.sequence_len()), (&b"hi"[..], 3));
    let options: Vec<_> = packet.options().map(Result::unwrap).collect();
    let expected = [
        TcpOption::MaximumSegmentSize(1460),
        TcpOption::WindowScale(WindowScale::new(7)),
        TcpOption::SackPermitted,
        TcpOption::Timestamps(Timestamps { value: 9, echo: 0 }),
    ];
    assert_eq!(options, expected);
    assert!(packet.verify_checksum(SRC, DST));
}

#[test]
fn construct() {
    let mut packet = Packet::new_unchecked([0xa5; 46]);
    packet.set_src_port(49152);
    packet.set_dst_port(22);
    packet.set_seq(0x0102_0304);
    packet.set_ack(0);
    packet.set_header_len(44);
    packet.set_flags(Flags::SYN);
    packet.set_window(0xfaf0);
    packet.set_urgent(0);
    packet.options_mut().copy_from_slice(&BYTES[20..44]);
    packet.payload_mut().copy_from_slice(b"hi");
    packet.fill_checksum(SRC, DST);
    assert_eq!(packet.into_inner(), BYTES);
}

#[test]
fn parse() {
    assert_eq!(Repr::parse(&Packet::new_unchecked(&BYTES[..]), SRC, DST), Ok(repr()));
    let mut wrong = BYTES;
    wrong[4] ^= 1;
    let parsed = Repr::parse(&Packet::new_unchecked(&wrong[..]), SRC, DST);
    assert_eq!(parsed, Err(Reason::TransportHeaderInvalid));
}

#[test]
fn emit() {
    let mut bytes = vec![0xa5; repr().buffer_len()];
    repr().emit(&mut Packet::new_unchecked(&mut bytes[..]), SRC, DST);
    assert_eq!(bytes, BYTES);
}

#[test]
fn impossible_length() {
    for len in 0..44 {
        assert_eq!(Packet::new_checked(&BYTES[..len]), Err(Reason::TransportHeaderInvalid));
    }
    let mut short = BYTES;
    short[12] = 0x40;
    assert_eq!(Packet::new_checked(&short[..]), Err(Reason::TransportHeaderInvalid), "offset below 20 bytes");
    let mut long = BYTES;
    long[12] = 0xc0;
    assert_eq!(Packet::new_checked(&long[..]), Err(Reason::TransportHeaderInvalid), "offset beyond the segment");
}

#[test]
fn options_of_a_wrong_length_end_the_list_with_an_error() {
    let wrong = [&[2u8, 3, 0][..], &[3, 4, 1, 1], &[4, 3, 0], &[5, 9, 0, 0, 0, 0, 0, 0, 0], &[8, 2], &[99, 1], &[99]];
    for options in wrong {
        let listed: Vec<_> = Options::new(options).collect();
        assert_eq!(listed, [Err(Reason::TransportHeaderInvalid)], "{options:?}");
    }
}

#[test]
fn options_behind_the_end_marker_are_ignored() {
    let listed: Vec<_> = Options::new(&[1, 253, 4, 0xab, 0xcd, 0, 2, 4, 5, 180]).collect();
    assert_eq!(listed, [Ok(TcpOption::Other { kind: 253, data: &[0xab, 0xcd] })]);
}

#[test]
fn a_window_shift_above_14_counts_as_14() {
    assert_eq!(WindowScale::new(255), WindowScale::MAX);
    assert_eq!(WindowScale::new(255).apply(u16::MAX), 65_535 << 14);
}

#[test]
fn flags_that_no_peer_may_send_are_inconsistent() {
    for consistent in [Flags::SYN, Flags::RST, Flags::ACK, Flags::FIN.with(Flags::ACK), Flags::SYN.with(Flags::ACK)] {
        assert!(consistent.are_consistent());
    }
    let christmas_tree = Flags::FIN.with(Flags::PSH).with(Flags::URG);
    for broken in [Flags(0), Flags::FIN, christmas_tree, Flags::SYN.with(Flags::FIN), Flags::SYN.with(Flags::RST)] {
        assert!(!broken.are_consistent(), "{broken:?}");
    }
}

prop_compose! {
    fn any_repr()(
        ports: (u16, u16), control in 0usize..4, bits: (bool, bool, bool, bool), seq: u32, ack: Option<u32>,
        window: u16, urgent: Option<u16>, mss: Option<u16>, shift in proptest::option::of(0u8..15),
        timestamps: Option<(u32, u32)>,
    ) -> Repr<'static> {
        Repr {
            push: bits.0, congestion: (bits.1, bits.2), ack, window, urgent, mss,
            window_scale: shift.map(WindowScale::new), sack_permitted: bits.3,
            timestamps: timestamps.map(|(value, echo)| Timestamps { value, echo }),
            ..Repr::new(ports.0, ports.1, [Control::None, Control::Syn, Control::Fin, Control::Rst][control], seq)
        }
    }
}

proptest! {
    #[test]
    fn emitted_segments_parse_to_the_same(
        repr in any_repr(), src: u32, dst: u32, payload in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let repr = Repr { payload: &payload, ..repr };
        let (src, dst) = (IpAddr::V4(src.into()), IpAddr::V4(dst.into()));
        let mut bytes = vec![0xa5; repr.buffer_len()];
        repr.emit(&mut Packet::new_unchecked(&mut bytes[..]), src, dst);
        prop_assert_eq!(Repr::parse(&Packet::new_unchecked(&bytes[..]), src, dst), Ok(repr));
    }
}
