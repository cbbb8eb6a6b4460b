//! ICMP errors that quote a capability packet: the host that gets the error sent a plain one.

use core::net::IpAddr;

use super::{Carriage, Found, UNKNOWN_V4, carriage, found, located, protocol_at};
use crate::{
    Frame, IpProtocol,
    capability::packet::UPPER_AT,
    checksum::Delta,
    field::{length, put, u8_at, u16_at},
    icmpv4, icmpv6, ip, ipv4, ipv6,
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
    let transport = summary.transport(bytes);
    let len = match summary.protocol {
        IpProtocol::ICMP => {
            let packet = icmpv4::Packet::new_checked(transport).ok()?;
            if !packet.kind().is_error() || !packet.verify_checksum() {
                return None;
            }
            packet.quoted().len()
        }
        IpProtocol::ICMPV6 => {
            let packet = icmpv6::Packet::new_checked(transport).ok()?;
            if !packet.kind().is_error() || !packet.verify_checksum(summary.src, summary.dst) {
                return None;
            }
            packet.quoted().len()
        }
        _ => return None,
    };
    Some((summary.transport_offset + icmpv4::HEADER_LEN, len))
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
    match (summary.protocol, summary.src, summary.dst) {
        (IpProtocol::ICMP, ..) => finish_v4(message, removed),
        (_, src, dst) => finish_v6(message, src, dst, removed),
    }
}

fn finish_v4(message: &mut [u8], removed: usize) {
    const FRAGMENTATION_NEEDED: u8 = 4;
    const STATED_LEN_AT: usize = 5;
    const MTU_AT: usize = 6;
    let (kind, code) = (icmpv4::Type(u8_at(message, 0)), u8_at(message, 1));
    if matches!(kind, icmpv4::Type::UNREACHABLE | icmpv4::Type::TIME_EXCEEDED | icmpv4::Type::PARAMETER_PROBLEM) {
        put(message, STATED_LEN_AT, &[0]);
    }
    let mtu = u16_at(message, MTU_AT);
    if kind == icmpv4::Type::UNREACHABLE && code == FRAGMENTATION_NEEDED && mtu != 0 {
        let mtu = mtu.saturating_sub(length(removed)).max(length(ipv4::HEADER_LEN));
        put(message, MTU_AT, &mtu.to_be_bytes());
    }
    icmpv4::Packet::new_unchecked(message).fill_checksum();
}

fn finish_v6(message: &mut [u8], src: IpAddr, dst: IpAddr, removed: usize) {
    const STATED_LEN_AT: usize = 4;
    let mut packet = icmpv6::Packet::new_unchecked(message);
    if packet.kind() == icmpv6::Type::PACKET_TOO_BIG {
        let mtu = packet.mtu();
        let shrunk = mtu.saturating_sub(u32::from(length(removed)));
        packet.set_rest(shrunk.max(IPV6_MTU_MIN.min(mtu)).to_be_bytes());
    } else if matches!(packet.kind(), icmpv6::Type::UNREACHABLE | icmpv6::Type::TIME_EXCEEDED) {
        let message = packet.into_inner();
        put(message, STATED_LEN_AT, &[0]);
        packet = icmpv6::Packet::new_unchecked(message);
    }
    packet.fill_checksum(src, dst);
}

const _: () = assert!(icmpv4::HEADER_LEN == icmpv6::HEADER_LEN && ipv6::HEADER_LEN == 40);
