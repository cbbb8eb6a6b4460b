use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    vec,
    vec::Vec,
};

use sluicegate_wire::{
    FrameBuf, IpProtocol, Reason,
    capability::{Capability, HEADER_LEN_MAX, Packet, PathId, Repr, shim},
    ip::Summary,
    ipv4, ipv6,
};

use super::look;

/// A capability header: through its view, its value, and in and out of packets that carry it.
pub(crate) fn capability(bytes: &[u8]) {
    let Ok(packet) = Packet::new_checked(bytes) else {
        assert_eq!(Repr::parse(&Packet::new_unchecked(bytes)), Err(Reason::CapabilityHeader));
        return;
    };
    let len = packet.header_len();
    assert!((12..=bytes.len()).contains(&len));
    assert!(Packet::new_checked(&bytes[..len - 1]).is_err(), "a shorter header is none");
    look((packet.algorithm(), packet.kind(), packet.is_demoted(), packet.upper_protocol(), packet.client_id()));
    look((packet.nonce(), packet.limits(), packet.return_info(), packet.path_id(0), packet.path_id(usize::MAX)));
    assert!(packet.pointer() <= packet.count() && packet.count() <= 8);
    assert!((0..usize::from(packet.count())).all(|index| packet.capability(index).is_some()));
    assert_eq!(packet.capability(usize::from(packet.count())), None);

    let repr = Repr::parse(&packet).unwrap();
    assert_eq!((repr.check(), repr.buffer_len()), (Ok(()), len));
    let mut emitted = vec![0xa5; len];
    repr.emit(&mut Packet::new_unchecked(&mut emitted[..]));
    assert_eq!(Repr::parse(&Packet::new_unchecked(&emitted[..])), Ok(repr));

    let mut copy = bytes.to_vec();
    stamp(&mut Packet::new_unchecked(&mut copy[..]));
    assert_eq!(copy[len..], bytes[len..], "nothing behind the header changes");
    assert_eq!(Packet::new_checked(&copy[..]).map(|packet| packet.header_len()), Ok(len));
    if len <= HEADER_LEN_MAX {
        carry(&repr, &bytes[len..]);
    }
}

/// What a router does to a header.
fn stamp(packet: &mut Packet<&mut [u8]>) {
    let index = packet.pointer();
    packet.set_capability(usize::from(index), Capability(u64::MAX));
    packet.set_path_id(usize::from(index), PathId(u16::MAX));
    packet.set_pointer(index.saturating_add(1));
    packet.set_demoted(true);
}

/// An IP packet of an unassigned protocol, whose transport no checksum covers.
fn plain(v6: bool, payload: &[u8]) -> Vec<u8> {
    const UNASSIGNED: IpProtocol = IpProtocol(200);
    let len = payload.len() as u16;
    let mut bytes;
    if v6 {
        let (src, dst) =
            (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 2));
        bytes = vec![0; ipv6::HEADER_LEN];
        ipv6::Repr::new(src, dst, UNASSIGNED, len).emit(&mut ipv6::Packet::new_unchecked(&mut bytes[..]));
    } else {
        let (src, dst) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(198, 51, 100, 1));
        bytes = vec![0; ipv4::HEADER_LEN];
        ipv4::Repr::new(src, dst, UNASSIGNED, len).emit(&mut ipv4::Packet::new_unchecked(&mut bytes[..]));
    }
    bytes.extend_from_slice(payload);
    bytes
}

/// Into a packet, changed by a router, and out again: the plain packet is back.
fn carry(repr: &Repr, payload: &[u8]) {
    let payload = &payload[..payload.len().min(64)];
    for v6 in [false, true] {
        for carriage in [shim::Carriage::Native, shim::Carriage::Encapsulated { src_port: 40_000 }] {
            let plain = plain(v6, payload);
            let mut frame = FrameBuf::from_bytes(&plain);
            frame.with(|frame| shim::insert(frame, repr, carriage)).unwrap();
            let summary = Summary::parse(frame.bytes()).unwrap();
            let found = shim::find(&summary, frame.bytes()).unwrap().unwrap();
            assert_eq!((found.carriage, found.header_len), (carriage, repr.buffer_len()));
            frame.with(|frame| shim::edit(frame.bytes_mut(), &found, stamp));
            assert!(summary.verify_transport_checksum(frame.bytes()));
            frame.with(|frame| shim::strip(frame, &found)).unwrap();
            assert_eq!(frame.bytes(), plain);
        }
    }
}

/// Whatever lies in an IP packet: found, stamped and taken out, or refused; and as the quote of an ICMP error.
pub(super) fn in_packet(summary: &Summary, bytes: &[u8]) {
    let mut frame = FrameBuf::from_bytes(bytes);
    if let Ok(Some(found)) = shim::find(summary, bytes) {
        assert!(found.payload_at <= summary.total_len);
        look(found.packet(bytes));
        let right = summary.verify_transport_checksum(bytes);
        frame.with(|frame| shim::edit(frame.bytes_mut(), &found, stamp));
        assert_eq!(summary.verify_transport_checksum(frame.bytes()), right);
        frame.with(|frame| shim::strip(frame, &found)).unwrap();
        let plain = Summary::parse(frame.bytes()).unwrap();
        assert_eq!((plain.src, plain.dst), (summary.src, summary.dst));
        assert_eq!(plain.total_len, summary.total_len - found.overhead());
    } else if matches!(summary.protocol, IpProtocol::ICMP | IpProtocol::ICMPV6)
        && frame.with(|frame| shim::strip_quote(frame, summary))
    {
        let stripped = Summary::parse(frame.bytes()).unwrap();
        assert!(stripped.verify_transport_checksum(frame.bytes()));
        assert!(stripped.total_len < summary.total_len);
        look::<IpAddr>(stripped.src);
    }
}
