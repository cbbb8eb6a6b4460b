//! Building packets from real bytes, in buffers that are used again.

use std::net::IpAddr;

use sluicegate_wire::{FrameBuf, HEADROOM, IpProtocol, ipv4, ipv6, tcp, udp};

/// The longest packet that a pool's buffer holds, in bytes; capability headers go into the headroom.
pub const PACKET_BYTES_MAX: usize = 1_600;

/// Buffers that packets have left behind, to be used again: a world in steady state allocates nothing per packet.
#[derive(Debug, Default)]
pub struct Pool {
    free: Vec<FrameBuf>,
}

impl Pool {
    /// An empty packet with all its headroom.
    pub fn take(&mut self) -> FrameBuf {
        let mut packet = self.free.pop().unwrap_or_else(|| FrameBuf::from_bytes(&[0; PACKET_BYTES_MAX]));
        empty(&mut packet);
        packet
    }

    /// Gives a buffer back.
    pub fn put(&mut self, packet: FrameBuf) {
        self.free.push(packet);
    }

    /// A copy of a packet.
    pub fn copy(&mut self, packet: &FrameBuf) -> FrameBuf {
        let mut copy = self.take();
        copy.with(|frame| fits(frame.extend_back(packet.bytes().len())).copy_from_slice(packet.bytes()));
        copy
    }

    /// A TCP segment in an IP packet.
    pub fn tcp(&mut self, src: IpAddr, dst: IpAddr, segment: &tcp::Repr<'_>) -> FrameBuf {
        self.ip(src, dst, IpProtocol::TCP, segment.buffer_len(), |payload| {
            segment.emit(&mut tcp::Packet::new_unchecked(payload), src, dst);
        })
    }

    /// A UDP datagram in an IP packet.
    pub fn udp(&mut self, src: IpAddr, dst: IpAddr, datagram: &udp::Repr<'_>) -> FrameBuf {
        self.ip(src, dst, IpProtocol::UDP, datagram.buffer_len(), |payload| {
            datagram.emit(&mut udp::Packet::new_unchecked(payload), src, dst);
        })
    }

    /// An IP packet whose payload of `len` bytes `fill` writes. Addresses of different versions make no packet that
    /// anyone forwards: the source decides.
    pub fn ip(
        &mut self,
        src: IpAddr,
        dst: IpAddr,
        protocol: IpProtocol,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> FrameBuf {
        let mut packet = self.take();
        let payload_len = u16::try_from(len).expect("the simulator builds no jumbograms");
        packet.with(|frame| match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let bytes = fits(frame.extend_back(ipv4::HEADER_LEN + len));
                fill(&mut bytes[ipv4::HEADER_LEN..]);
                ipv4::Repr::new(src, dst, protocol, payload_len).emit(&mut ipv4::Packet::new_unchecked(bytes));
            }
            (src, dst) => {
                let bytes = fits(frame.extend_back(ipv6::HEADER_LEN + len));
                fill(&mut bytes[ipv6::HEADER_LEN..]);
                ipv6::Repr::new(v6(src), v6(dst), protocol, payload_len).emit(&mut ipv6::Packet::new_unchecked(bytes));
            }
        });
        packet
    }
}

fn v6(address: IpAddr) -> std::net::Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

fn fits(room: Option<&mut [u8]>) -> &mut [u8] {
    room.expect("packets are at most PACKET_BYTES_MAX long")
}

/// Takes all bytes out of a packet and gives it its headroom back.
fn empty(packet: &mut FrameBuf) {
    packet.with(|frame| {
        frame.truncate(0);
        let start = frame.start();
        if start > HEADROOM {
            frame.push_front(start - HEADROOM);
            frame.truncate(0);
        } else {
            let missing = HEADROOM - start;
            frame.extend_back(missing);
            frame.pull_front(missing);
        }
    });
}

#[cfg(test)]
mod tests {
    use sluicegate_wire::ip::Summary;

    use super::*;

    #[test]
    fn a_buffer_is_used_again_with_its_whole_headroom() {
        let mut pool = Pool::default();
        let (src, dst) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let datagram = udp::Repr { src_port: 1, dst_port: 2, payload: b"data" };
        for shift in [0, 40] {
            let mut packet = pool.udp(src, dst, &datagram);
            assert_eq!(Summary::parse(packet.bytes()).unwrap().total_len, 32);
            packet.with(|frame| {
                assert_eq!(frame.start(), HEADROOM);
                frame.push_front(100 - shift).unwrap();
                frame.pull_front(shift).unwrap();
            });
            pool.put(packet);
        }
        let mut pulled = pool.udp(src, dst, &datagram);
        pulled.with(|frame| frame.pull_front(32)).unwrap();
        pool.put(pulled);
        pool.udp(src, dst, &datagram).with(|frame| assert_eq!((frame.start(), frame.len()), (HEADROOM, 32)));
    }

    #[test]
    fn both_address_families_make_packets_that_parse() {
        let mut pool = Pool::default();
        let segment = tcp::Repr::new(1, 2, tcp::Control::Syn, 7);
        for (src, dst) in [("10.0.0.1", "10.0.0.2"), ("2001:db8::1", "2001:db8::2")] {
            let (src, dst) = (src.parse().unwrap(), dst.parse().unwrap());
            let packet = pool.tcp(src, dst, &segment);
            let summary = Summary::parse(packet.bytes()).unwrap();
            let parsed = tcp::Packet::new_checked(summary.transport(packet.bytes())).unwrap();
            assert_eq!(tcp::Repr::parse(&parsed, src, dst), Ok(segment));
        }
    }
}
