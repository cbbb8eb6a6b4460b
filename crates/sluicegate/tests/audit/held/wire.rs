//! Frames as an attacker writes them, byte by byte.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV4};

use sluicegate_datapath::raw::{Options, Socket};
use sluicegate_wire::{IpProtocol, build, checksum, icmp, ip::FragmentOffset, ipv4, tcp, udp};

use crate::support::lab::Lab;

/// A raw socket on the wire in front of the gate's outside port.
pub(super) struct Wire {
    socket: Socket,
    gate: [u8; 6],
    own: [u8; 6],
    pub(super) sent: u64,
}

impl Wire {
    pub(super) fn new(lab: &Lab) -> Self {
        let socket = lab.host("core").run_in(|| Socket::open("to_gate", &Options::send_only())).expect("a namespace");
        let (gate, own) = (lab.mac("gate", "outside"), lab.mac("core", "to_gate"));
        Self { socket: socket.expect("a raw socket"), gate, own, sent: 0 }
    }

    /// Sends IP packets to the gate, in frames as they should be.
    pub(super) fn packets(&mut self, packets: &[Vec<u8>]) {
        let ethertype = |packet: &[u8]| if packet.first().is_some_and(|byte| byte >> 4 == 6) { 0x86dd } else { 0x0800 };
        let gate = self.gate;
        packets.iter().for_each(|packet| self.frame(gate, &u16::to_be_bytes(ethertype(packet)), packet));
    }

    /// Sends a packet behind whatever follows the link addresses: tags, a foreign type.
    pub(super) fn typed(&mut self, header: &[u8], packet: &[u8]) {
        self.frame(self.gate, header, packet);
    }

    /// Sends one frame to any link address.
    pub(super) fn frame(&mut self, to: [u8; 6], header: &[u8], packet: &[u8]) {
        let frame = [&to[..], &self.own, header, packet].concat();
        self.sent += self.socket.send(&[frame]).expect("the interface is up").sent as u64;
    }
}

/// An IPv4 packet with any payload.
pub(super) fn packet(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    build::packet(src, dst, &(IpProtocol(protocol), payload))
}

/// The same packet with its header changed, and the checksum right again.
pub(super) fn changed(mut bytes: Vec<u8>, change: impl FnOnce(&mut ipv4::Packet<&mut [u8]>)) -> Vec<u8> {
    let mut header = ipv4::Packet::new_unchecked(&mut bytes[..]);
    change(&mut header);
    header.fill_checksum();
    bytes
}

/// The same packet with options of a multiple of four bytes.
pub(super) fn with_options(bytes: &[u8], options: &[u8]) -> Vec<u8> {
    let (header, payload) = bytes.split_at(ipv4::HEADER_LEN);
    let whole = [header, options, payload].concat();
    let len = u16::try_from(whole.len()).expect("short");
    changed(whole, |header| {
        header.set_version_and_header_len(ipv4::HEADER_LEN + options.len());
        header.set_total_len(len);
    })
}

/// A part of a packet: `range` of its payload, in bytes, more to follow or not.
pub(super) fn fragment(bytes: &[u8], range: std::ops::Range<usize>, more: bool, ident: u16) -> Vec<u8> {
    let (header, payload) = bytes.split_at(ipv4::HEADER_LEN);
    let offset = u16::try_from(range.start).ok().and_then(FragmentOffset::from_bytes).expect("a multiple of eight");
    let part = [header, &payload[range]].concat();
    let len = u16::try_from(part.len()).expect("short");
    changed(part, |header| {
        header.set_total_len(len);
        header.set_ident(ident);
        header.set_fragmentation(false, more, offset);
    })
}

/// A UDP header and payload for these ends, checksum right.
pub(super) fn udp(from: SocketAddrV4, to: SocketAddrV4, payload: &[u8]) -> Vec<u8> {
    let datagram = udp::Repr { src_port: from.port(), dst_port: to.port(), payload };
    let mut bytes = vec![0; datagram.buffer_len()];
    let ends = (IpAddr::V4(*from.ip()), IpAddr::V4(*to.ip()));
    datagram.emit(&mut udp::Packet::new_unchecked(&mut bytes[..]), ends.0, ends.1);
    bytes
}

/// A UDP datagram.
pub(super) fn datagram(from: SocketAddrV4, to: SocketAddrV4, payload: &[u8]) -> Vec<u8> {
    build::datagram(from, to, payload)
}

/// A TCP segment with some payload.
pub(super) fn segment(from: SocketAddrV4, to: SocketAddrV4, flags: tcp::Flags, (seq, ack): (u32, u32)) -> Vec<u8> {
    let payload: &[u8] = if flags.has(tcp::Flags::PSH) { b"forged" } else { b"" };
    let mut bytes = vec![0; tcp::HEADER_LEN + payload.len()];
    let mut segment = tcp::Packet::new_unchecked(&mut bytes[..]);
    segment.set_header_len(tcp::HEADER_LEN);
    segment.set_src_port(from.port());
    segment.set_dst_port(to.port());
    segment.set_seq(seq);
    segment.set_ack(ack);
    segment.set_flags(flags);
    segment.set_window(1_000);
    segment.payload_mut().copy_from_slice(payload);
    segment.fill_checksum((*from.ip()).into(), (*to.ip()).into());
    packet(*from.ip(), *to.ip(), 6, &bytes)
}

/// An ICMP message of any type and code.
pub(super) fn icmp(src: Ipv4Addr, dst: Ipv4Addr, kind: u8, code: u8, rest: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; icmp::HEADER_LEN.max(4 + rest.len())];
    bytes[0] = kind;
    bytes[1] = code;
    bytes[4..4 + rest.len()].copy_from_slice(rest);
    let sum = checksum::internet(&bytes);
    bytes[2..4].copy_from_slice(&sum.to_be_bytes());
    packet(src, dst, 1, &bytes)
}

/// An IPv6 packet with any next header.
pub(super) fn packet_v6(src: Ipv6Addr, dst: Ipv6Addr, next: u8, payload: &[u8]) -> Vec<u8> {
    build::packet(src, dst, &(IpProtocol(next), payload))
}
