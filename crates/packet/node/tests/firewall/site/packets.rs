//! Packets of all kinds.

use std::net::IpAddr;

use sluicegate_wire::{
    IpProtocol, build, dccp, icmp,
    ip::{Fragment, FragmentOffset, Summary},
    ipv4, ipv6, tcp, udplite,
};

pub type End = (IpAddr, u16);

/// An IP packet with a time to live of 64 that must not be fragmented (IPv4).
pub fn ip(src: IpAddr, dst: IpAddr, protocol: IpProtocol, payload: &[u8]) -> Vec<u8> {
    build::packet(src, dst, &(protocol, payload))
}

pub fn ipv4_packet(repr: &ipv4::Repr, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; repr.buffer_len()];
    packet.extend_from_slice(payload);
    repr.emit(&mut ipv4::Packet::new_unchecked(&mut packet));
    packet
}

pub fn udp(src: End, dst: End, payload: &[u8]) -> Vec<u8> {
    build::datagram(src, dst, payload)
}

pub fn udplite(src: End, dst: End, payload: &[u8]) -> Vec<u8> {
    build::packet(src.0, dst.0, &udplite::Repr { src_port: src.1, dst_port: dst.1, covered: 0, payload })
}

pub fn dccp(src: End, dst: End, kind: dccp::Type) -> Vec<u8> {
    let repr = dccp::Repr { src_port: src.1, dst_port: dst.1, kind, seq: 7, header_rest_len: 8, rest: &[1; 12] };
    build::packet(src.0, dst.0, &repr)
}

pub fn tcp(src: End, dst: End, repr: tcp::Repr<'_>) -> Vec<u8> {
    build::packet(src.0, dst.0, &tcp::Repr { src_port: src.1, dst_port: dst.1, ..repr })
}

pub fn echo(src: IpAddr, dst: IpAddr, ident: u16, is_request: bool) -> Vec<u8> {
    let (seq, data) = (1, &b"echo data"[..]);
    let repr = match is_request {
        true => icmp::Repr::EchoRequest { ident, seq, data },
        false => icmp::Repr::EchoReply { ident, seq, data },
    };
    build::packet(src, dst, &repr)
}

/// The identifier of an echo.
pub fn ident(packet: &[u8]) -> u16 {
    let at = if packet[0] >> 4 == 4 { 24 } else { 44 };
    u16::from_be_bytes([packet[at], packet[at + 1]])
}

/// "Port unreachable" about `quoted`, which is cut to `len` bytes behind its IP header.
pub fn unreachable(src: IpAddr, dst: IpAddr, quoted: &[u8], len: usize) -> Vec<u8> {
    let quote = icmp::Quote::new(&quoted[..quoted.len().min(20 + len)]).unwrap();
    build::packet(src, dst, &icmp::Repr::Unreachable { why: icmp::Unreachable::Port, quote })
}

/// "Packet too big" about `quoted`.
pub fn too_big(src: IpAddr, dst: IpAddr, mtu: u16, quoted: &[u8]) -> Vec<u8> {
    build::packet(src, dst, &icmp::Repr::PacketTooBig { mtu, quote: icmp::Quote::new(quoted).unwrap() })
}

/// The ICMP message in a packet.
pub fn message(packet: &[u8]) -> icmp::Packet<&[u8]> {
    let ip = Summary::parse(packet).unwrap();
    let message = icmp::Packet::new_checked(ip.version(), ip.transport(packet)).unwrap();
    assert!(message.verify_checksum(ip.src, ip.dst));
    message
}

/// Cuts a packet into fragments with `len` bytes of payload each, a multiple of 8.
pub fn fragments(packet: &[u8], id: u16, len: usize) -> Vec<Vec<u8>> {
    let total = packet.len();
    if packet[0] >> 4 == 4 {
        let whole = ipv4::Packet::new_checked(packet).unwrap();
        return chunks(total - 20, len)
            .map(|(start, end)| {
                let part = ipv4::Repr {
                    ident: id,
                    dont_fragment: false,
                    more_fragments: end < total - 20,
                    fragment_offset: FragmentOffset::from_bytes(start as u16).unwrap(),
                    ttl: whole.ttl(),
                    traffic_class: whole.traffic_class(),
                    ..ipv4::Repr::new(whole.src(), whole.dst(), whole.protocol(), (end - start) as u16)
                };
                ipv4_packet(&part, &packet[20 + start..20 + end])
            })
            .collect();
    }
    let whole = ipv6::Packet::new_checked(packet).unwrap();
    chunks(total - 40, len)
        .map(|(start, end)| {
            let offset = FragmentOffset::from_bytes(start as u16).unwrap();
            let fragment = Fragment { id: id.into(), offset, more: end < total - 40 };
            let header = ipv6::FragmentRepr { next_header: whole.next_header(), fragment }.to_bytes();
            let payload = [&header[..], &packet[40 + start..40 + end]].concat();
            ip(whole.src().into(), whole.dst().into(), IpProtocol::IPV6_FRAGMENT, &payload)
        })
        .collect()
}

fn chunks(total: usize, len: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..total).step_by(len).map(move |start| (start, (start + len).min(total)))
}

/// Puts fragments together again (any order, no gaps).
pub fn reassemble(parts: &[Vec<u8>]) -> Vec<u8> {
    if parts[0][0] >> 4 == 4 {
        let mut parts: Vec<_> = parts.iter().map(|part| ipv4::Packet::new_checked(&part[..]).unwrap()).collect();
        parts.sort_by_key(|part| part.fragment_offset());
        let mut payload = Vec::new();
        for part in &parts {
            assert_eq!(part.fragment_offset().bytes(), payload.len(), "no gap and no overlap");
            payload.extend_from_slice(part.payload());
        }
        assert!(!parts.last().unwrap().more_fragments());
        let first = &parts[0];
        assert!(first.verify_checksum());
        let whole = ipv4::Repr {
            ident: first.ident(),
            dont_fragment: first.dont_fragment(),
            ttl: first.ttl(),
            traffic_class: first.traffic_class(),
            ..ipv4::Repr::new(first.src(), first.dst(), first.protocol(), payload.len() as u16)
        };
        return ipv4_packet(&whole, &payload);
    }
    let mut parts: Vec<_> = parts
        .iter()
        .map(|part| {
            let packet = ipv6::Packet::new_checked(&part[..]).unwrap();
            let header = ipv6::FragmentRepr::parse(packet.payload()).unwrap();
            (header, packet.src(), packet.dst(), packet.payload()[8..].to_vec())
        })
        .collect();
    parts.sort_by_key(|part| part.0.fragment.offset);
    let payload: Vec<u8> = parts.iter().flat_map(|part| part.3.clone()).collect();
    ip(parts[0].1.into(), parts[0].2.into(), parts[0].0.next_header, &payload)
}
