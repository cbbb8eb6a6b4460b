//! Trailers of packet MACs: cut off what comes in, and put behind what goes out. Permission says whether, and makes them.

use sluicegate_grant::mac::{Ends, TRAILER_LEN};
use sluicegate_pinhole::{Pinholes, payload};
use sluicegate_wire::{
    Frame, Reason,
    checksum::{Delta, ones_complement},
    ip::Summary,
    udp,
};

use crate::rewrite::set_len;

/// Cuts the trailer off a whole UDP datagram and puts lengths and checksums right, by what changed: a payload that was
/// damaged on the way stays recognisable.
pub(crate) fn strip(ip: &mut Summary, frame: &mut Frame<'_>) {
    let bytes = frame.bytes_mut();
    let mut datagram = udp::Packet::new_unchecked(ip.transport_mut(bytes));
    let old_len = datagram.total_len();
    let new_len = old_len.saturating_sub(TRAILER_LEN);
    let trailer =
        ones_complement(datagram.payload().last_chunk::<TRAILER_LEN>().map_or(&[], <[u8; TRAILER_LEN]>::as_slice));
    // Behind an odd number of bytes the trailer's halves of words are swapped (RFC 1071 section 2 (B)).
    let trailer = if new_len.is_multiple_of(2) { trailer } else { trailer.swap_bytes() };
    // The length stands in the header and in the pseudo-header.
    let (old, new) = (old_len as u16, new_len as u16);
    let delta = Delta::NONE.u16(old, new).u16(old, new).u16(trailer, 0);
    datagram.set_total_len(new);
    ip.adjust_transport_checksum(bytes, delta);
    set_len(ip, frame, ip.transport_offset + new_len);
}

/// Puts a trailer behind a whole UDP datagram for the client of `slot`, whose addresses and ports are those of the outside
/// by now. Lengths and checksums change by what is added.
///
/// # Errors
/// [`Reason::ModeTooWeak`] without the key, [`Reason::PacketTooBig`] without room.
pub(crate) fn add(pinholes: &mut Pinholes, slot: u32, ip: &mut Summary, frame: &mut Frame<'_>) -> Result<(), Reason> {
    let datagram = udp::Packet::new_unchecked(ip.transport(frame.bytes()));
    let old_len = datagram.total_len();
    let ends = Ends { client: (ip.dst, datagram.dst_port()), gate_port: datagram.src_port() };
    let text = payload(ip.transport(frame.bytes()));
    let trailer = pinholes.macs.trailer(slot, &ends, text).ok_or(Reason::ModeTooWeak)?;
    let at = ip.transport_offset + old_len;
    frame.truncate(at);
    let bytes = frame.extend_back(TRAILER_LEN).ok_or(Reason::PacketTooBig)?;
    if let Some(place) = bytes.get_mut(at..) {
        place.copy_from_slice(&trailer);
    }
    let (old, new) = (old_len as u16, (old_len + TRAILER_LEN) as u16);
    let added = ones_complement(&trailer);
    // Behind an odd number of bytes the trailer's halves of words are swapped (RFC 1071 section 2 (B)).
    let added = if old_len.is_multiple_of(2) { added } else { added.swap_bytes() };
    udp::Packet::new_unchecked(ip.transport_mut(bytes)).set_total_len(new);
    ip.adjust_transport_checksum(bytes, Delta::NONE.u16(old, new).u16(old, new).u16(0, added));
    set_len(ip, frame, at + TRAILER_LEN);
    Ok(())
}
