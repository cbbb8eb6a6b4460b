use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    vec,
};

use sluicegate_wire::{
    IpProtocol, Reason, dccp as wire_dccp,
    ip::{Ports, Summary},
    tcp as wire_tcp, udp as wire_udp, udplite as wire_udplite,
};

use super::{bounded, icmp, look};

const ADDRESSES: [(IpAddr, IpAddr); 2] = [
    (IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1))),
    (
        IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
        IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 2)),
    ),
];

/// The transport of a packet, by its protocol.
pub(super) fn any(summary: &Summary, bytes: &[u8]) {
    let transport = summary.transport(bytes);
    match summary.protocol {
        IpProtocol::UDP => udp(transport),
        IpProtocol::UDPLITE => udplite(transport),
        IpProtocol::DCCP => dccp(transport),
        IpProtocol::TCP => tcp(transport),
        IpProtocol::ICMP | IpProtocol::ICMPV6 => icmp(transport),
        _ => look(Ports::parse(transport)),
    }
}

/// A UDP datagram as it is, and with a right checksum.
pub(crate) fn udp(bytes: &[u8]) {
    let packet = wire_udp::Packet::new_unchecked(bytes);
    if packet.check_header().is_err() {
        assert_eq!(packet.check_len(), Err(Reason::TransportHeaderInvalid));
        return;
    }
    look((packet.src_port(), packet.dst_port(), packet.total_len(), packet.checksum(), packet.payload().len()));
    let ports = Ports { src: packet.src_port(), dst: packet.dst_port() };
    assert_eq!(Ports::parse(bytes), Ok(ports));
    for (src, dst) in ADDRESSES {
        look(packet.verify_checksum(src, dst));
        let mut fixed = bytes.to_vec();
        let mut packet = wire_udp::Packet::new_unchecked(&mut fixed[..]);
        packet.fill_checksum(src, dst);
        look(packet.payload_mut().len());
        assert_ne!(packet.checksum(), 0);
        if packet.check_len().is_err() {
            continue;
        }
        let (src_port, dst_port, payload) = (packet.src_port(), packet.dst_port(), packet.payload());
        let repr = wire_udp::Repr { src_port, dst_port, payload };
        let mut emitted = vec![0xa5; repr.buffer_len()];
        repr.emit(&mut wire_udp::Packet::new_unchecked(&mut emitted[..]), src, dst);
        assert_eq!(emitted, fixed[..emitted.len()]);
    }
    let mut copy = bytes.to_vec();
    let mut packet = wire_udp::Packet::new_unchecked(&mut copy[..]);
    for len in [0, 7, u16::MAX] {
        packet.set_total_len(len);
        look((packet.payload().len(), packet.payload_mut().len()));
        look(packet.verify_checksum(ADDRESSES[0].0, ADDRESSES[0].1));
    }
}

/// A TCP segment as it is, and with a right checksum.
pub(crate) fn tcp(bytes: &[u8]) {
    let Ok(packet) = wire_tcp::Packet::new_checked(bytes) else { return };
    look((packet.src_port(), packet.dst_port(), packet.seq(), packet.ack(), packet.flags(), packet.window()));
    look((packet.checksum(), packet.urgent(), packet.sequence_len(), packet.flags().are_consistent()));
    assert_eq!(packet.header_len() + packet.payload().len(), bytes.len());
    bounded(packet.options(), 40);
    for (src, dst) in ADDRESSES {
        look((packet.verify_checksum(src, dst), wire_tcp::Repr::parse(&packet, src, dst).is_ok()));
        let mut fixed = bytes.to_vec();
        let mut packet = wire_tcp::Packet::new_unchecked(&mut fixed[..]);
        packet.fill_checksum(src, dst);
        look((packet.options_mut().len(), packet.payload_mut().len()));
        assert!(packet.verify_checksum(src, dst));
        let Ok(repr) = wire_tcp::Repr::parse(&wire_tcp::Packet::new_unchecked(&fixed[..]), src, dst) else { continue };
        let mut emitted = vec![0xa5; repr.buffer_len()];
        repr.emit(&mut wire_tcp::Packet::new_unchecked(&mut emitted[..]), src, dst);
        assert_eq!(wire_tcp::Repr::parse(&wire_tcp::Packet::new_unchecked(&emitted[..]), src, dst), Ok(repr));
    }
    let mut copy = bytes.to_vec();
    let mut packet = wire_tcp::Packet::new_unchecked(&mut copy[..]);
    for len in [0, 60, usize::MAX] {
        packet.set_header_len(len);
        look((packet.options().count(), packet.payload().len(), packet.options_mut().len()));
        look((packet.payload_mut().len(), packet.sequence_len()));
    }
}

/// A UDP-Lite datagram as it is, and as it would be with a right checksum over all of it.
pub(crate) fn udplite(bytes: &[u8]) {
    let packet = wire_udplite::Packet::new_unchecked(bytes);
    look(packet.check_header().is_ok());
    if packet.check_len().is_err() {
        return;
    }
    look((packet.src_port(), packet.dst_port(), packet.coverage(), packet.payload().len()));
    for (src, dst) in ADDRESSES {
        look(packet.verify_checksum(src, dst));
        let (src_port, dst_port, payload) = (packet.src_port(), packet.dst_port(), packet.payload());
        let repr = wire_udplite::Repr { src_port, dst_port, covered: payload.len(), payload };
        let mut emitted = vec![0xa5; repr.buffer_len()];
        repr.emit(&mut wire_udplite::Packet::new_unchecked(&mut emitted[..]), src, dst);
        let again = wire_udplite::Packet::new_checked(&emitted[..]).unwrap();
        assert!(again.verify_checksum(src, dst));
        assert_eq!((again.src_port(), again.dst_port(), again.payload()), (src_port, dst_port, payload));
    }
}

/// A DCCP packet.
pub(crate) fn dccp(bytes: &[u8]) {
    let packet = wire_dccp::Packet::new_unchecked(bytes);
    look(packet.check_header().is_ok());
    if packet.check_len().is_err() {
        return;
    }
    look((packet.src_port(), packet.dst_port(), packet.kind(), packet.data_offset(), packet.coverage()));
    for (src, dst) in ADDRESSES {
        look(packet.verify_checksum(src, dst));
    }
}
