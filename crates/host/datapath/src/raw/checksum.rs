//! Completes checksums that a local sender left to a network card.

/// Computes the TCP or UDP checksum of an IPv4 or IPv6 frame that carries only the pseudo-header sum so far.
///
/// `frame` starts at its Ethernet header. `false` (and no change) if it is no unfragmented TCP or UDP packet.
pub fn complete_checksum(frame: &mut [u8]) -> bool {
    let Some((offset, len, protocol, pseudo)) = transport(frame) else { return false };
    let field = match protocol {
        6 => 16,
        17 => 6,
        _ => return false,
    };
    let Some(segment) = frame.get_mut(offset..offset + len) else { return false };
    if segment.len() < field + 2 {
        return false;
    }
    segment[field..field + 2].fill(0);
    let mut sum = pseudo;
    add(&mut sum, segment);
    let mut checksum = !fold(sum);
    if checksum == 0 && protocol == 17 {
        checksum = 0xffff;
    }
    segment[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
    true
}

/// As [`complete_checksum`], if the checksum looks as a local sender leaves it: the pseudo-header's sum alone. A finished
/// checksum looks so once in 65,536 packets, and completing it again changes nothing.
pub(crate) fn complete_if_partial(frame: &mut [u8]) {
    let Some((offset, _, protocol, pseudo)) = transport(frame) else { return };
    let field = offset
        + match protocol {
            6 => 16,
            17 => 6,
            _ => return,
        };
    if frame.get(field..field + 2).is_some_and(|checksum| checksum == fold(pseudo).to_be_bytes()) {
        complete_checksum(frame);
    }
}

/// Offset, length, protocol and pseudo-header sum of the transport segment.
fn transport(frame: &[u8]) -> Option<(usize, usize, u8, u32)> {
    let ip = frame.get(14..)?;
    let (header, len, protocol, addresses) = match frame.get(12..14)? {
        [0x08, 0x00] => {
            let header = usize::from(ip.first()? & 15) * 4;
            let total = usize::from(u16::from_be_bytes([*ip.get(2)?, *ip.get(3)?]));
            let fragment = u16::from_be_bytes([*ip.get(6)?, *ip.get(7)?]) & 0x3fff;
            if fragment != 0 || header < 20 {
                return None;
            }
            (header, total.checked_sub(header)?, *ip.get(9)?, ip.get(12..20)?)
        }
        [0x86, 0xdd] => {
            let len = usize::from(u16::from_be_bytes([*ip.get(4)?, *ip.get(5)?]));
            (40, len, *ip.get(6)?, ip.get(8..40)?)
        }
        _ => return None,
    };
    let mut pseudo = u32::from(protocol) + u32::try_from(len).ok()?;
    add(&mut pseudo, addresses);
    ip.get(header..header + len)?;
    Some((14 + header, len, protocol, pseudo))
}

fn add(sum: &mut u32, bytes: &[u8]) {
    for pair in bytes.chunks(2) {
        *sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    }
}

fn fold(mut sum: u32) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A UDP packet 10.0.0.1:1 -> 10.0.0.2:2 with payload "ab" and a checksum field of 0xdead.
    fn udp_frame() -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([0x08, 0x00]);
        frame.extend([0x45, 0, 0, 30, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0, 1, 0, 2, 0, 10, 0xde, 0xad, b'a', b'b']);
        frame
    }

    #[test]
    fn a_partial_udp_checksum_is_completed() {
        let mut frame = udp_frame();
        assert!(complete_checksum(&mut frame));
        // The sum over pseudo-header and segment, checksum included, is all ones.
        let (offset, len, _, mut sum) = transport(&frame).unwrap();
        add(&mut sum, &frame[offset..offset + len]);
        assert_eq!(fold(sum), 0xffff);
    }

    #[test]
    fn only_checksums_that_look_partial_are_completed() {
        let mut finished = udp_frame();
        assert!(complete_checksum(&mut finished));
        let mut partial = udp_frame();
        let (_, _, _, pseudo) = transport(&partial).unwrap();
        partial[40..42].copy_from_slice(&fold(pseudo).to_be_bytes());
        complete_if_partial(&mut partial);
        assert_eq!(partial, finished);
        complete_if_partial(&mut partial);
        assert_eq!(partial, finished, "a finished one stays");
        let mut wrong = udp_frame();
        complete_if_partial(&mut wrong);
        assert_eq!(wrong, udp_frame(), "a wrong one stays wrong");
    }

    #[test]
    fn cut_or_fragmented_packets_stay_as_they_are() {
        for cut in 0..udp_frame().len() {
            let mut frame = udp_frame();
            frame.truncate(cut);
            let before = frame.clone();
            assert!(!complete_checksum(&mut frame), "cut at {cut}");
            assert_eq!(frame, before);
        }
        let mut fragment = udp_frame();
        fragment[20] = 0x20;
        assert!(!complete_checksum(&mut fragment));
    }
}
