//! The generator's frames: UDP over IPv4, valid to the last checksum.

use std::net::SocketAddrV4;

use sluicegate_wire::{IpProtocol, build, ipv4, udp};

const ETHERNET_LEN: usize = 14;
/// Where the UDP payload of a frame starts; IPv4 options are not used.
const PAYLOAD: usize = ETHERNET_LEN + ipv4::HEADER_LEN + udp::HEADER_LEN;
const IPV4: [u8; 2] = [0x08, 0x00];

/// The two ends of the wire that a frame is sent into.
#[derive(Debug, Clone, Copy)]
pub(super) struct Macs {
    pub source: [u8; 6],
    pub destination: [u8; 6],
}

/// A frame of `len` bytes, Ethernet header included, whose payload starts with `stamp`.
pub(super) fn datagram(macs: Macs, from: SocketAddrV4, to: SocketAddrV4, len: usize, stamp: u64) -> Vec<u8> {
    let mut payload = vec![0; len.saturating_sub(PAYLOAD).max(size_of::<u64>())];
    payload[..size_of::<u64>()].copy_from_slice(&stamp.to_be_bytes());
    [&macs.destination[..], &macs.source, &IPV4, &build::datagram(from, to, &payload)].concat()
}

/// The stamp of a received frame; `None` if it is no such frame.
pub(super) fn stamp(frame: &[u8]) -> Option<u64> {
    let is_udp = frame.get(12..14)? == IPV4 && frame.get(23) == Some(&IpProtocol::UDP.0);
    let stamp = frame.get(PAYLOAD..)?.first_chunk()?;
    is_udp.then(|| u64::from_be_bytes(*stamp))
}

/// The frame that answers `frame`: all addresses and ports exchanged, which keeps its checksums valid.
pub(super) fn answer(frame: &[u8]) -> Option<Vec<u8>> {
    stamp(frame)?;
    let mut answer = frame.to_vec();
    for (first, second, len) in [(0, 6, 6), (26, 30, 4), (34, 36, 2)] {
        answer[first..first + len].copy_from_slice(&frame[second..second + len]);
        answer[second..second + len].copy_from_slice(&frame[first..first + len]);
    }
    Some(answer)
}

#[cfg(test)]
mod tests {
    use sluicegate_wire::ip::Summary;

    use std::net::IpAddr;

    use super::*;

    const MACS: Macs = Macs { source: [2; 6], destination: [4; 6] };

    #[test]
    fn frames_and_their_answers_have_valid_checksums() {
        let (from, to) = ("198.51.100.2:4000".parse().unwrap(), "10.4.0.2:5001".parse().unwrap());
        for len in [64, 1_400] {
            let frame = datagram(MACS, from, to, len, 77);
            assert_eq!((frame.len(), stamp(&frame)), (len, Some(77)));
            let back = answer(&frame).unwrap();
            for (frame, source) in [(frame, from), (back, to)] {
                let packet = &frame[ETHERNET_LEN..];
                let summary = Summary::parse(packet).unwrap();
                assert!(summary.verify_transport_checksum(packet));
                assert!(ipv4::Packet::new_unchecked(packet).verify_checksum());
                assert_eq!(summary.src, IpAddr::V4(*source.ip()));
            }
        }
    }

    #[test]
    fn other_frames_have_no_stamp() {
        assert_eq!(stamp(&[0; 60]), None);
        assert_eq!(stamp(&[]), None);
    }
}
