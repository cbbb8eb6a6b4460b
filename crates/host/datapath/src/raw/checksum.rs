//! Completes checksums that a local sender left to a network card.

use sluicegate_wire::{
    IpProtocol,
    checksum::{self, udp_nonzero},
    ethernet,
    ip::Summary,
};

/// Computes the TCP or UDP checksum of an IPv4 or IPv6 frame that carries only the pseudo-header sum so far.
///
/// `frame` starts at its Ethernet header. `false` (and no change) if it is no unfragmented TCP or UDP packet.
pub(crate) fn complete_checksum(frame: &mut [u8]) -> bool {
    complete(frame, |_, _| true)
}

/// As [`complete_checksum`], if the checksum looks as a local sender leaves it: the pseudo-header's sum alone. A finished
/// checksum looks so once in 65,536 packets, and completing it again changes nothing.
pub(crate) fn complete_if_partial(frame: &mut [u8]) {
    complete(frame, |checksum, pseudo| checksum == pseudo.to_be_bytes());
}

/// Computes the checksum if `is_open` says so of what stands there and of the pseudo-header's sum.
fn complete(frame: &mut [u8], is_open: impl FnOnce([u8; 2], u16) -> bool) -> bool {
    let Some(packet) = frame.get_mut(ethernet::HEADER_LEN..) else { return false };
    let Ok(ip) = Summary::parse(packet) else { return false };
    let at = match ip.protocol {
        IpProtocol::TCP => 16,
        IpProtocol::UDP => 6,
        _ => return false,
    };
    let segment = ip.transport_mut(packet);
    let pseudo = checksum::pseudo(ip.src, ip.dst, ip.protocol, segment.len() as u32);
    let field = segment.get(at..).and_then(|rest| rest.first_chunk().copied());
    if ip.fragment.is_some() || !field.is_some_and(|field| is_open(field, pseudo)) {
        return false;
    }
    segment[at..at + 2].fill(0);
    let sum = !checksum::combine(&[pseudo, checksum::ones_complement(segment)]);
    let sum = if ip.protocol == IpProtocol::UDP { udp_nonzero(sum) } else { sum };
    segment[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    true
}

#[cfg(test)]
mod tests {
    use sluicegate_wire::build;

    use super::*;

    /// Where the UDP checksum of [`udp_frame`] stands.
    const FIELD: std::ops::Range<usize> = 40..42;

    /// A UDP packet 10.0.0.1:1 -> 10.0.0.2:2 with payload "abc" and this checksum field.
    fn udp_frame(checksum: [u8; 2]) -> Vec<u8> {
        let mut frame = [0; ethernet::HEADER_LEN].to_vec();
        frame[12] = 0x08;
        frame.extend(build::datagram(([10, 0, 0, 1], 1), ([10, 0, 0, 2], 2), b"abc"));
        frame[FIELD].copy_from_slice(&checksum);
        frame
    }

    fn is_right(frame: &[u8]) -> bool {
        let packet = &frame[ethernet::HEADER_LEN..];
        Summary::parse(packet).unwrap().verify_transport_checksum(packet)
    }

    #[test]
    fn a_partial_udp_checksum_is_completed() {
        let mut frame = udp_frame([0xde, 0xad]);
        assert!(!is_right(&frame) && complete_checksum(&mut frame) && is_right(&frame));
    }

    #[test]
    fn only_checksums_that_look_partial_are_completed() {
        let mut finished = udp_frame([0xde, 0xad]);
        assert!(complete_checksum(&mut finished));
        // Addresses, protocol and length: what a local sender leaves.
        let pseudo = 0x0a00 + 0x0001 + 0x0a00 + 0x0002 + 17 + 11_u16;
        let mut partial = udp_frame(pseudo.to_be_bytes());
        complete_if_partial(&mut partial);
        assert_eq!(partial, finished);
        complete_if_partial(&mut partial);
        assert_eq!(partial, finished, "a finished one stays");
        let mut wrong = udp_frame([0xde, 0xad]);
        complete_if_partial(&mut wrong);
        assert_eq!(wrong, udp_frame([0xde, 0xad]), "a wrong one stays wrong");
    }

    #[test]
    fn cut_or_fragmented_packets_stay_as_they_are() {
        let whole = udp_frame([0xde, 0xad]);
        for cut in 0..whole.len() {
            let mut frame = whole[..cut].to_vec();
            assert!(!complete_checksum(&mut frame), "cut at {cut}");
            assert_eq!(frame, whole[..cut]);
        }
        let mut fragment = whole;
        let mut header = sluicegate_wire::ipv4::Packet::new_unchecked(&mut fragment[ethernet::HEADER_LEN..]);
        header.set_fragmentation(false, true, sluicegate_wire::ip::FragmentOffset::from_units(0));
        header.fill_checksum();
        assert!(!complete_checksum(&mut fragment));
    }
}
