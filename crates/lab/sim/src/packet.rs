//! Building packets from real bytes, in buffers that are used again.

use std::net::IpAddr;

use sluicegate_wire::{
    FrameBuf, HEADROOM,
    build::{self, Body},
};

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

    /// An IP packet that carries this.
    ///
    /// # Panics
    /// If the addresses are of different versions, or the packet is longer than [`PACKET_BYTES_MAX`].
    pub fn ip(&mut self, src: IpAddr, dst: IpAddr, body: &impl Body) -> FrameBuf {
        let mut packet = self.take();
        packet.with(|frame| {
            let bytes = fits(frame.extend_back(build::header_len(src) + body.len()));
            build::write(bytes, src, dst, body).expect("two addresses of one version");
        });
        packet
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
    use sluicegate_wire::{ip::Summary, tcp, udp};

    use super::*;

    #[test]
    fn a_buffer_is_used_again_with_its_whole_headroom() {
        let mut pool = Pool::default();
        let (src, dst) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let datagram = udp::Repr { src_port: 1, dst_port: 2, payload: b"data" };
        for shift in [0, 40] {
            let mut packet = pool.ip(src, dst, &datagram);
            assert_eq!(Summary::parse(packet.bytes()).unwrap().total_len, 32);
            packet.with(|frame| {
                assert_eq!(frame.start(), HEADROOM);
                frame.push_front(100 - shift).unwrap();
                frame.pull_front(shift).unwrap();
            });
            pool.put(packet);
        }
        let mut pulled = pool.ip(src, dst, &datagram);
        pulled.with(|frame| frame.pull_front(32)).unwrap();
        pool.put(pulled);
        pool.ip(src, dst, &datagram).with(|frame| assert_eq!((frame.start(), frame.len()), (HEADROOM, 32)));
    }

    #[test]
    fn both_address_families_make_packets_that_parse() {
        let mut pool = Pool::default();
        let segment = tcp::Repr::new(1, 2, tcp::Control::Syn, 7);
        for (src, dst) in [("10.0.0.1", "10.0.0.2"), ("2001:db8::1", "2001:db8::2")] {
            let (src, dst) = (src.parse().unwrap(), dst.parse().unwrap());
            let packet = pool.ip(src, dst, &segment);
            let summary = Summary::parse(packet.bytes()).unwrap();
            let parsed = tcp::Packet::new_checked(summary.transport(packet.bytes())).unwrap();
            assert_eq!(tcp::Repr::parse(&parsed, src, dst), Ok(segment));
        }
    }
}
