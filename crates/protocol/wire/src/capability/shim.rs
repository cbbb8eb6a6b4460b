//! Capability headers in IP packets: found, put in, taken out and changed, with every length and checksum right.
//!
//! A header lies directly in front of the transport header, behind IPv4 options and IPv6 extension headers. Natively
//! the transport's bytes stay as they are. Encapsulated, the transport's own checksum is computed with zero addresses
//! in its pseudo-header, so that a NAT which rewrites only what it knows (IP and the outer UDP) does not break it.
//!
//! Fragments are never capability packets: only the first would hold the header, and none its whole packet. Nor are
//! source-routed packets, whose path is not the one that was asked (TVA VII).

use core::net::{IpAddr, Ipv4Addr};

use super::{
    HEADER_LEN_MAX, MALFORMED, PROTOCOL, Packet, Repr, UDP_PORT,
    packet::{Layout, UPPER_AT, may_follow},
};
use crate::{
    Frame, IpProtocol, Reason,
    checksum::{self, Delta},
    field::{self, put, u8_at, u16_at},
    ip, ipv4, ipv6, udp,
};

mod quote;
pub use quote::strip_quote;

/// Bytes that encapsulation adds: the outer UDP header.
pub const ENCAPSULATION_LEN: usize = udp::HEADER_LEN;

/// How a capability header travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Carriage {
    /// As IP protocol 253.
    Native,
    /// In UDP to port 7253.
    Encapsulated {
        /// The sender's port. NATs on the way may change it.
        src_port: u16,
    },
    /// In UDP from port 7253: the answer of a gate to the port that the other side was last seen at.
    Answer {
        /// The outer port of the other side.
        dst_port: u16,
    },
}

impl Carriage {
    /// Bytes in front of the capability header.
    #[inline]
    #[must_use]
    pub const fn outer_len(self) -> usize {
        match self {
            Self::Native => 0,
            Self::Encapsulated { .. } | Self::Answer { .. } => ENCAPSULATION_LEN,
        }
    }

    const fn ports(self) -> Option<ip::Ports> {
        match self {
            Self::Native => None,
            Self::Encapsulated { src_port } => Some(ip::Ports { src: src_port, dst: UDP_PORT }),
            Self::Answer { dst_port } => Some(ip::Ports { src: UDP_PORT, dst: dst_port }),
        }
    }
}

/// Where a packet has its capability header. Offsets count from the first byte of the IP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// How it travels.
    pub carriage: Carriage,
    /// Where it starts.
    pub header_at: usize,
    /// Header and return information, in bytes.
    pub header_len: usize,
    /// Where the transport header starts.
    pub payload_at: usize,
}

impl Found {
    /// The header, as [`find`] checked it in the same bytes.
    #[inline]
    #[must_use]
    pub fn packet<'a>(&self, bytes: &'a [u8]) -> Packet<&'a [u8]> {
        Packet::new_unchecked(bytes.get(self.header_at..self.payload_at).unwrap_or_default())
    }

    /// Where the IP header with its options ends: where what this module adds starts.
    const fn ip_len(&self) -> usize {
        self.header_at.saturating_sub(self.carriage.outer_len())
    }

    /// All bytes that the carriage costs the packet.
    #[must_use]
    pub const fn overhead(&self) -> usize {
        self.payload_at.saturating_sub(self.ip_len())
    }
}

/// Bytes that `repr` adds to a packet.
#[must_use]
pub const fn overhead(repr: &Repr, carriage: Carriage) -> usize {
    carriage.outer_len() + repr.buffer_len()
}

/// Finds and checks the capability header of a packet that [`ip::Summary::parse`] read. `None` for a plain packet: one
/// without a header, a fragment, a source-routed packet, or UDP *from* port 7253 that carries no valid header (the port
/// may be anybody's).
///
/// Costs no pass over the payload; checksums other than IPv4's are not looked at.
///
/// # Errors
/// [`Reason::CapabilityHeader`] if protocol or destination port announce a header and there is no valid one.
#[inline]
pub fn find(summary: &ip::Summary, bytes: &[u8]) -> Result<Option<Found>, Reason> {
    if summary.fragment.is_some() || summary.source_route {
        return Ok(None);
    }
    let transport = summary.transport(bytes);
    let Some(carriage) = carriage(summary.protocol, transport) else { return Ok(None) };
    match found(carriage, summary.transport_offset, transport) {
        Err(_) if matches!(carriage, Carriage::Answer { .. }) => Ok(None),
        found => found.map(Some),
    }
}

/// How protocol and ports announce a header.
#[inline]
fn carriage(protocol: IpProtocol, transport: &[u8]) -> Option<Carriage> {
    match protocol {
        PROTOCOL => Some(Carriage::Native),
        IpProtocol::UDP => match ip::Ports::parse(transport).map(|ports| (ports.src, ports.dst)) {
            Ok((src_port, UDP_PORT)) => Some(Carriage::Encapsulated { src_port }),
            Ok((UDP_PORT, dst_port)) => Some(Carriage::Answer { dst_port }),
            _ => None,
        },
        _ => None,
    }
}

// Called, these two would hand back a result that is copied in other pieces than it was written in, see [`ip::Summary::read`].
#[inline(always)]
fn found(carriage: Carriage, at: usize, transport: &[u8]) -> Result<Found, Reason> {
    // A datagram shorter than its packet would leave bytes that belong to no one.
    let is_whole = || udp::Packet::new_checked(transport).is_ok_and(|datagram| datagram.total_len() == transport.len());
    if carriage == Carriage::Native || is_whole() { located(carriage, at, transport) } else { Err(MALFORMED) }
}

/// As [`found`], whatever a datagram's length field says.
#[inline(always)]
fn located(carriage: Carriage, at: usize, transport: &[u8]) -> Result<Found, Reason> {
    let before = if carriage == Carriage::Native { 0 } else { ENCAPSULATION_LEN };
    let header = transport.get(before..).ok_or(MALFORMED)?;
    let (header_at, header_len) = (at + before, Layout::of(header)?.len);
    Ok(Found { carriage, header_at, header_len, payload_at: header_at + header_len })
}

/// Puts a capability header into a plain IP packet, in front of its transport header; the IP header moves into the
/// headroom. The upper protocol is the packet's own, whatever `repr` says.
///
/// # Errors
/// The packet is unchanged then.
/// - Those of [`ip::Summary::parse`].
/// - [`Reason::SourceRoute`], [`Reason::FragmentInvalid`]: such packets carry no capabilities.
/// - [`Reason::ProtocolUnsupported`]: the upper protocol is a capability header already, or IPv4 carries what is an
///   IPv6 extension header (such as AH).
/// - [`Reason::CapabilityHeader`]: `repr` contradicts itself, is longer than [`HEADER_LEN_MAX`] or than the headroom,
///   or the packet has an encapsulated header already.
/// - [`Reason::PacketTooBig`]: the length field of IP cannot hold the sum.
pub fn insert(frame: &mut Frame<'_>, repr: &Repr, carriage: Carriage) -> Result<(), Reason> {
    let summary = ip::Summary::parse(frame.bytes())?;
    insert_into(frame, &summary, repr, carriage)
}

/// As [`insert`], into a packet that was parsed already.
///
/// # Errors
/// As [`insert`].
pub fn insert_into(
    frame: &mut Frame<'_>,
    summary: &ip::Summary,
    repr: &Repr,
    carriage: Carriage,
) -> Result<(), Reason> {
    if summary.source_route {
        return Err(Reason::SourceRoute);
    }
    if summary.fragment.is_some() {
        return Err(Reason::FragmentInvalid);
    }
    if !may_follow(summary.protocol) {
        return Err(Reason::ProtocolUnsupported);
    }
    repr.check()?;
    let (header_len, added) = (repr.buffer_len(), overhead(repr, carriage));
    if header_len > HEADER_LEN_MAX || find(summary, frame.bytes())?.is_some() {
        return Err(MALFORMED);
    }
    let len_max = match summary.version() {
        ip::Version::V4 => usize::from(u16::MAX),
        ip::Version::V6 => ipv6::HEADER_LEN + ipv6::PAYLOAD_LEN_MAX,
    };
    let total_len = summary.total_len + added;
    if total_len > len_max {
        return Err(Reason::PacketTooBig);
    }
    let ip_len = summary.transport_offset;
    let protocol_at = protocol_at(frame.bytes(), ip_len)?;
    if carriage != Carriage::Native {
        let hidden = Delta::NONE.address(summary.src, UNKNOWN_V4).address(summary.dst, UNKNOWN_V4);
        summary.adjust_transport_checksum(frame.bytes_mut(), hidden);
    }
    let Some(bytes) = frame.push_front(added) else {
        if carriage != Carriage::Native {
            let shown = Delta::NONE.address(UNKNOWN_V4, summary.src).address(UNKNOWN_V4, summary.dst);
            summary.adjust_transport_checksum(frame.bytes_mut(), shown);
        }
        return Err(MALFORMED);
    };
    bytes.copy_within(added..added + ip_len, 0);
    let outer = if carriage == Carriage::Native { PROTOCOL } else { IpProtocol::UDP };
    put(bytes, protocol_at, &[outer.0]);
    let header_at = ip_len + carriage.outer_len();
    let mut header = Packet::new_unchecked(bytes.get_mut(header_at..header_at + header_len).unwrap_or_default());
    repr.emit(&mut header);
    header.put(UPPER_AT, &[summary.protocol.0]);
    if let Some(ports) = carriage.ports() {
        let mut datagram = udp::Packet::new_unchecked(bytes.get_mut(ip_len..).unwrap_or_default());
        datagram.set_src_port(ports.src);
        datagram.set_dst_port(ports.dst);
    }
    put_outer_len(bytes, summary, (carriage, ip_len), total_len);
    Ok(())
}

/// The address in the pseudo-header of an encapsulated transport. Zero of either version adds nothing to a sum.
const UNKNOWN_V4: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// Takes the capability header out: the plain packet is back, with the outer addresses as they are now. Of a
/// capability-only packet an IP header with upper protocol 59 is left, which its receiver consumes.
///
/// # Errors
/// [`Reason::CapabilityHeader`] (and no change) if `found` does not fit the packet.
pub fn strip(frame: &mut Frame<'_>, found: &Found) -> Result<(), Reason> {
    let (ip_len, removed) = (found.ip_len(), found.overhead());
    let bytes = frame.bytes_mut();
    let upper =
        IpProtocol(*bytes.get(found.header_at..found.payload_at).and_then(|h| h.get(UPPER_AT)).ok_or(MALFORMED)?);
    let (src, dst, total_len) = outer(bytes).ok_or(MALFORMED)?;
    let protocol_at = protocol_at(bytes, ip_len)?;
    if !(found.payload_at..=bytes.len()).contains(&total_len) {
        return Err(MALFORMED);
    }
    if found.carriage != Carriage::Native {
        let shown = Delta::NONE.address(UNKNOWN_V4, src).address(UNKNOWN_V4, dst);
        let transport = bytes.get_mut(found.payload_at..total_len).ok_or(MALFORMED)?;
        upper.checksum().adjust(transport, shown);
    }
    put(bytes, protocol_at, &[upper.0]);
    put_total_len(bytes, total_len - removed);
    bytes.copy_within(..ip_len, removed);
    frame.pull_front(removed).ok_or(MALFORMED)
}

/// Changes the header in place: `bytes` is the IP packet that `found` was found in. Keeps the UDP checksum of an
/// encapsulated header right, at the cost of one pass over the header, before and after.
#[inline]
pub fn edit<R>(bytes: &mut [u8], found: &Found, f: impl FnOnce(&mut Packet<&mut [u8]>) -> R) -> R {
    let header = bytes.get_mut(found.header_at..found.payload_at).unwrap_or_default();
    if found.carriage == Carriage::Native {
        return f(&mut Packet::new_unchecked(header));
    }
    let before = checksum::ones_complement(header);
    let result = f(&mut Packet::new_unchecked(&mut *header));
    let change = Delta::NONE.u16(before, checksum::ones_complement(header));
    let checksum_at = found.ip_len() + udp::CHECKSUM_AT;
    let old = u16_at(bytes, checksum_at);
    put(bytes, checksum_at, &change.apply_udp(old).to_be_bytes());
    result
}

fn is_v4(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(|first| first >> 4 == 4)
}

/// Source, destination and total length of an IP packet.
fn outer(bytes: &[u8]) -> Option<(IpAddr, IpAddr, usize)> {
    if is_v4(bytes) {
        let packet = ipv4::Packet::new_unchecked(bytes.get(..ipv4::HEADER_LEN)?);
        return Some((packet.src().into(), packet.dst().into(), packet.total_len()));
    }
    let packet = ipv6::Packet::new_unchecked(bytes.get(..ipv6::HEADER_LEN)?);
    Some((packet.src().into(), packet.dst().into(), packet.total_len()))
}

/// Puts `bytes` behind the packet in which [`find`] found a header. All lengths and checksums in front of the header
/// cover them; none behind it does.
///
/// # Errors
/// [`Reason::PacketTooBig`] (and no change) if IP's length or the buffer has no room for them.
pub fn append(frame: &mut Frame<'_>, found: &Found, bytes: &[u8]) -> Result<(), Reason> {
    let summary = ip::Summary::parse(frame.bytes())?;
    let total_len = summary.total_len + bytes.len();
    if total_len > usize::from(u16::MAX) {
        return Err(Reason::PacketTooBig);
    }
    frame.truncate(summary.total_len);
    let packet = frame.extend_back(bytes.len()).ok_or(Reason::PacketTooBig)?;
    put(packet, summary.total_len, bytes);
    put_outer_len(packet, &summary, (found.carriage, found.ip_len()), total_len);
    Ok(())
}

/// Undoes [`append`] for the last `len` bytes, which must lie behind the header.
///
/// # Errors
/// [`Reason::CapabilityHeader`] (and no change) if they do not.
pub fn cut_back(frame: &mut Frame<'_>, summary: &mut ip::Summary, found: &Found, len: usize) -> Result<(), Reason> {
    let total_len = summary.total_len.checked_sub(len).filter(|end| *end >= found.payload_at).ok_or(MALFORMED)?;
    frame.truncate(total_len);
    put_outer_len(frame.bytes_mut(), summary, (found.carriage, found.ip_len()), total_len);
    summary.total_len = total_len;
    Ok(())
}

/// Writes the lengths in front of the header, and the checksums over them.
fn put_outer_len(bytes: &mut [u8], summary: &ip::Summary, (carriage, ip_len): (Carriage, usize), total_len: usize) {
    put_total_len(bytes, total_len);
    if carriage != Carriage::Native {
        let mut datagram = udp::Packet::new_unchecked(bytes.get_mut(ip_len..total_len).unwrap_or_default());
        datagram.set_total_len(field::length(total_len - ip_len));
        datagram.fill_checksum(summary.src, summary.dst);
    }
}

/// Writes the length field of IP and the IPv4 header checksum; the caller has bounded the length.
fn put_total_len(bytes: &mut [u8], len: usize) {
    if is_v4(bytes) {
        let mut packet = ipv4::Packet::new_unchecked(bytes);
        packet.set_total_len(field::length(len));
        packet.fill_checksum();
    } else {
        ipv6::Packet::new_unchecked(bytes).set_payload_len(field::length(len - ipv6::HEADER_LEN));
    }
}

/// Where an IP header of `ip_len` bytes names the protocol that follows: in the fixed header, or in the last IPv6
/// extension header. At most [`ipv6::EXTENSION_HEADERS_MAX`] steps.
fn protocol_at(bytes: &[u8], ip_len: usize) -> Result<usize, Reason> {
    const IPV4_PROTOCOL_AT: usize = 9;
    const NEXT_HEADER_AT: usize = 6;
    if is_v4(bytes) {
        return Ok(IPV4_PROTOCOL_AT);
    }
    let (mut field_at, mut next_at) = (NEXT_HEADER_AT, ipv6::HEADER_LEN);
    for _ in 0..=ipv6::EXTENSION_HEADERS_MAX {
        if next_at == ip_len {
            return Ok(field_at);
        }
        let [_, len, ..] = *bytes.get(next_at..ip_len).and_then(|rest| rest.first_chunk::<8>()).ok_or(MALFORMED)?;
        let kind = IpProtocol(u8_at(bytes, field_at));
        field_at = next_at;
        next_at += match kind {
            IpProtocol::IPV6_FRAGMENT => ipv6::FRAGMENT_HEADER_LEN,
            _ => (usize::from(len) + 1) * 8,
        };
    }
    Err(MALFORMED)
}

#[cfg(test)]
mod tests;
