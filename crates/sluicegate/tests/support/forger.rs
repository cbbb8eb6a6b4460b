//! Somebody on the way to the gate who writes whatever he likes into an IP packet, its source included.

use std::net::{IpAddr, SocketAddr};

use sluicegate_datapath::raw::{Options, Socket};
use sluicegate_wire::{IpProtocol, ipv4, udp};

use super::lab::Lab;

/// A raw socket on the wire in front of the gate's outside port.
#[derive(Debug)]
pub(crate) struct Forger {
    socket: Socket,
    ethernet: Vec<u8>,
}

impl Forger {
    pub(crate) fn new(lab: &Lab) -> Self {
        let socket = lab.host("core").run_in(|| Socket::open("to_gate", &Options::send_only())).expect("a namespace");
        let ethernet = [&lab.mac("gate", "outside")[..], &lab.mac("core", "to_gate"), &[0x08, 0x00]].concat();
        Self { socket: socket.expect("a raw socket"), ethernet }
    }

    /// Sends IPv4 packets to the gate.
    pub(crate) fn send(&mut self, packets: &[Vec<u8>]) {
        let frames: Vec<Vec<u8>> = packets.iter().map(|packet| [&self.ethernet[..], packet].concat()).collect();
        assert_eq!(self.socket.send(&frames).expect("the interface is up").sent, frames.len());
    }
}

/// A UDP datagram over IPv4, checksums right.
pub(crate) fn datagram(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let (IpAddr::V4(src), IpAddr::V4(dst)) = (from.ip(), to.ip()) else { panic!("IPv4") };
    let datagram = udp::Repr { src_port: from.port(), dst_port: to.port(), payload };
    let len = u16::try_from(datagram.buffer_len()).expect("short");
    let mut packet = vec![0; ipv4::HEADER_LEN + datagram.buffer_len()];
    ipv4::Repr::new(src, dst, IpProtocol::UDP, len).emit(&mut ipv4::Packet::new_unchecked(&mut packet[..]));
    datagram.emit(&mut udp::Packet::new_unchecked(&mut packet[ipv4::HEADER_LEN..]), src.into(), dst.into());
    packet
}
