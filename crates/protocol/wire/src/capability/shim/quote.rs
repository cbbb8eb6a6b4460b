//! ICMP errors that quote a capability packet: the host that gets the error sent a plain one.

use super::{Carriage, Found, UNKNOWN_V4, carriage, found, located, protocol_at};
use crate::{
    Frame, IpProtocol,
    capability::packet::UPPER_AT,
    checksum::Delta,
    field::{length, put},
    icmp, ip, ipv4,
};

/// The smallest MTU that an IPv6 host believes (RFC 8201 4).
const IPV6_MTU_MIN: u32 = 1_280;

/// Takes the capability header out of the packet that an ICMP error quotes, so that the error fits the plain packet
/// that the host sent; the MTU in "too big" shrinks by what the header takes. `false` (and no change) for everything
/// else: no ICMP error, a wrong checksum, no header in the quote, or one that was cut off before its end.
///
/// Extensions behind the quote (RFC 4884) are given up.
pub fn strip_quote(frame: &mut Frame<'_>, summary: &ip::Summary) -> bool {
    strip(frame, summary).is_some()
}

fn strip(frame: &mut Frame<'_>, summary: &ip::Summary) -> Option<()> {
    if summary.fragment.is_some() {
        return None;
    }
    let (quoted_at, quoted_len) = quoted(summary, frame.bytes())?;
    let quote = frame.bytes().get(quoted_at..quoted_at + quoted_len)?;
    let inner = ip::Summary::parse_quoted(quote).ok()?;
    let quoted_len = quote.len().min(inner.total_len);
    let found = find_quoted(&inner, quote.get(..quoted_len)?)?;
    let removed = found.overhead();

    let total_len = quoted_at + quoted_len - removed;
    let quote = frame.bytes_mut().get_mut(quoted_at..quoted_at + quoted_len)?;
    strip_from_quote(quote, &inner, &found)?;
    let front = quoted_at + found.ip_len();
    frame.bytes_mut().copy_within(..front, removed);
    frame.pull_front(removed)?;
    finish(frame.bytes_mut(), summary, total_len, removed);
    // What lay behind the quote is gone; shorter than the shortest Ethernet frame is the sender's matter.
    frame.truncate(total_len);
    Some(())
}

/// Where an ICMP error with a right checksum has its quoted packet, and how long that is.
fn quoted(summary: &ip::Summary, bytes: &[u8]) -> Option<(usize, usize)> {
    let packet = icmp::Packet::new_checked(icmp::version(summary.protocol)?, summary.transport(bytes)).ok()?;
    let is_error = packet.kind().is_error() && packet.verify_checksum(summary.src, summary.dst);
    is_error.then(|| (summary.transport_offset + icmp::HEADER_LEN, packet.quoted().len()))
}

/// As [`super::find`], where the packet may end before its length field says.
fn find_quoted(inner: &ip::Summary, quote: &[u8]) -> Option<Found> {
    if inner.fragment.is_some() {
        return None;
    }
    let transport = inner.transport(quote);
    let carriage = carriage(inner.protocol, transport)?;
    let found = if transport.len() == inner.transport_len() { found } else { located };
    found(carriage, inner.transport_offset, transport).ok()
}

/// Writes the plain packet's protocol, length and checksums into the quote, whose header is about to go.
fn strip_from_quote(quote: &mut [u8], inner: &ip::Summary, found: &Found) -> Option<()> {
    let upper = IpProtocol(*quote.get(found.header_at + UPPER_AT)?);
    let protocol_at = protocol_at(quote, found.ip_len()).ok()?;
    if found.carriage != Carriage::Native {
        let shown = Delta::NONE.address(UNKNOWN_V4, inner.src).address(UNKNOWN_V4, inner.dst);
        upper.checksum().adjust(quote.get_mut(found.payload_at..)?, shown);
    }
    put(quote, protocol_at, &[upper.0]);
    super::put_total_len(quote, inner.total_len - found.overhead());
    Some(())
}

/// Corrects the error around the shortened quote.
fn finish(bytes: &mut [u8], summary: &ip::Summary, total_len: usize, removed: usize) {
    super::put_total_len(bytes, total_len);
    let Some(message) = bytes.get_mut(summary.transport_offset..total_len) else { return };
    let Some(version) = icmp::version(summary.protocol) else { return };
    let mut message = icmp::Packet::new_unchecked(version, message);
    message.clear_quoted_length();
    let mtu = message.mtu();
    // Zero is no MTU: old routers name none.
    if message.kind() == icmp::Kind::PacketTooBig && mtu != 0 {
        let least = if version == ip::Version::V4 { ipv4::HEADER_LEN as u32 } else { IPV6_MTU_MIN.min(mtu) };
        message.set_mtu(mtu.saturating_sub(u32::from(length(removed))).max(least));
    }
    message.fill_checksum(summary.src, summary.dst);
}
