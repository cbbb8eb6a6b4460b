use sluicegate_wire::{IpProtocol, checksum::Delta, ip, tcp};

/// Lowers the largest segment that a SYN or SYN/ACK announces to `largest`, and keeps the checksum right. A segment
/// without the option stays: its default of 536 bytes fits every path.
pub(super) fn clamp(bytes: &mut [u8], summary: &ip::Summary, largest: u16) {
    if summary.protocol != IpProtocol::TCP || summary.fragment.is_some() {
        return;
    }
    let segment = summary.transport_mut(bytes);
    let Ok(view) = tcp::Packet::new_checked(&*segment) else { return };
    if !view.flags().has(tcp::Flags::SYN) {
        return;
    }
    let (header_len, checksum) = (view.header_len(), view.checksum());
    let Some(at) = option_at(segment.get(..header_len).unwrap_or_default()) else { return };
    let Some(&[high, low]) = segment.get(at..).and_then(|rest| rest.first_chunk::<2>()) else { return };
    let announced = u16::from_be_bytes([high, low]);
    if announced <= largest {
        return;
    }
    let [new_high, new_low] = largest.to_be_bytes();
    let delta = if at % 2 == 0 {
        Delta::NONE.u16(announced, largest)
    } else {
        // At an odd offset the two bytes belong to two words of the sum.
        Delta::NONE.u16(u16::from(high), u16::from(new_high)).u16(u16::from(low) << 8, u16::from(new_low) << 8)
    };
    if let Some(option) = segment.get_mut(at..at + 2) {
        option.copy_from_slice(&[new_high, new_low]);
    }
    tcp::Packet::new_unchecked(segment).set_checksum(delta.apply(checksum));
}

/// Where the value of the option "maximum segment size" lies: at most 40 steps.
fn option_at(header: &[u8]) -> Option<usize> {
    const END: u8 = 0;
    const NOTHING: u8 = 1;
    const MAXIMUM_SEGMENT_SIZE: u8 = 2;
    let mut at = tcp::HEADER_LEN;
    loop {
        match *header.get(at..)? {
            [END, ..] | [] => return None,
            [NOTHING, ..] => at += 1,
            [MAXIMUM_SEGMENT_SIZE, 4, _, _, ..] => return Some(at + 2),
            [_, len, ..] if len >= 2 => at += usize::from(len),
            _ => return None,
        }
    }
}
