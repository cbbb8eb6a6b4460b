//! What the gate asks of every IP packet, whatever its version: one [`Summary`], parsed once, and rewriting with it.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{
    Checksum, IpProtocol, Reason,
    checksum::{self, Delta},
    dccp,
    field::{Field, within, within_mut},
    icmp, ipv4, ipv6, tcp, udp, udplite,
};

mod fragment;
pub use fragment::{Fragment, FragmentOffset};

/// What one host can choose its address among is one sender: an IPv4 address, however it is written, or an IPv6 /64.
#[must_use]
pub const fn sender_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// Version of the Internet protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Version {
    /// Of packets from or to this address.
    #[inline]
    #[must_use]
    pub const fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

/// An address in 16 bytes, IPv4 as IPv4-mapped (RFC 4291 2.5.5.2).
#[inline]
#[must_use]
pub const fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// How often [`Summary::parse`] was called, in all threads; for tests, and in builds with debug assertions only.
#[cfg(debug_assertions)]
pub static PARSES: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(0);

/// What there is to know about an IP packet before its transport header is read.
///
/// Offsets count from the first byte of the IP header and are right for the bytes that were parsed; whoever moves
/// headers parses again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// The upper protocol: behind all IPv6 extension headers that could be walked.
    pub protocol: IpProtocol,
    /// Hops that the packet may still make.
    pub ttl: u8,
    /// Whether routers must not fragment the packet; always so for IPv6.
    pub dont_fragment: bool,
    /// Whether there are IPv4 options, or IPv6 extension headers other than the fragment header.
    pub has_options: bool,
    /// Whether there is a loose or strict source route, or an IPv6 routing header of whatever type.
    pub source_route: bool,
    /// Where the transport header, or the data of a fragment that is not the first, starts.
    pub transport_offset: usize,
    /// Where the packet ends by its own length field. What lies behind is padding.
    pub total_len: usize,
    /// What this is a fragment of. IPv6 "atomic" fragments (RFC 6946) are whole packets, so `None`.
    pub fragment: Option<Fragment>,
}

impl Summary {
    /// Of no packet yet.
    pub(crate) const UNREAD: Self = Self {
        src: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        dst: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        protocol: IpProtocol(0),
        ttl: 0,
        dont_fragment: false,
        has_options: false,
        source_route: false,
        transport_offset: 0,
        total_len: 0,
        fragment: None,
    };

    /// Parses a packet that starts at `bytes[0]`; bytes behind its total length are left alone.
    ///
    /// Costs one pass over the headers, and over the payload nothing. The IPv4 header checksum is verified
    /// (RFC 1812 5.2.2); transport checksums are not.
    ///
    /// # Errors
    /// - [`Reason::FrameTruncated`]: the bytes end before the packet does.
    /// - [`Reason::IpHeaderInvalid`]: version, lengths, checksum, options or extension headers contradict themselves.
    /// - [`Reason::IpOptions`]: more than [`ipv6::EXTENSION_HEADERS_MAX`] extension headers.
    /// - [`Reason::FragmentInvalid`]: a fragment that is empty, ends past the largest packet, or is not the last but
    ///   no multiple of 8 bytes long.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, Reason> {
        let mut summary = Self::UNREAD;
        summary.read(bytes)?;
        Ok(summary)
    }

    /// [`Self::parse`] in place: a summary that moves from where it is made to where it stays is copied in other pieces
    /// than it was written in, and the processor waits for each of them longer than the whole header takes to parse. What
    /// stands here after an error means nothing.
    #[inline]
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Result<(), Reason> {
        #[cfg(debug_assertions)]
        PARSES.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
        match bytes.first().map(|byte| byte >> 4) {
            Some(4) => self.read_ipv4(&ipv4::Packet::new_checked(bytes)?)?,
            Some(6) => self.read_ipv6(&ipv6::Packet::new_checked(bytes)?)?,
            Some(_) => return Err(Reason::IpHeaderInvalid),
            None => return Err(Reason::FrameTruncated),
        }
        if let Some(fragment) = self.fragment {
            let header_len = if self.src.is_ipv4() { self.transport_offset } else { 0 };
            fragment.check(header_len, self.transport_len())?;
        }
        Ok(())
    }

    /// Parses a packet as an ICMP error quotes it: cut short anywhere behind its IP header. `total_len` is what the
    /// packet once had, and [`Self::transport`] what is left.
    ///
    /// # Errors
    /// As [`Self::parse`], except that the payload may be missing. RFC 5508 REQ-3a: a quoted IPv4 header with a wrong
    /// checksum is [`Reason::IpHeaderInvalid`].
    pub fn parse_quoted(bytes: &[u8]) -> Result<Self, Reason> {
        let mut summary = Self::UNREAD;
        match bytes.first().map(|byte| byte >> 4) {
            Some(4) => {
                let packet = ipv4::Packet::new_unchecked(bytes);
                packet.check_header()?;
                summary.read_ipv4(&packet)?;
            }
            Some(6) => {
                let packet = ipv6::Packet::new_unchecked(bytes);
                packet.check_header()?;
                summary.read_ipv6(&packet)?;
            }
            Some(_) => return Err(Reason::IpHeaderInvalid),
            None => return Err(Reason::FrameTruncated),
        }
        Ok(summary)
    }

    #[inline]
    fn read_ipv4(&mut self, packet: &ipv4::Packet<&[u8]>) -> Result<(), Reason> {
        if !packet.verify_checksum() {
            return Err(Reason::IpHeaderInvalid);
        }
        let has_options = packet.header_len() > ipv4::HEADER_LEN;
        *self = Self {
            src: IpAddr::V4(packet.src()),
            dst: IpAddr::V4(packet.dst()),
            protocol: packet.protocol(),
            ttl: packet.ttl(),
            dont_fragment: packet.dont_fragment(),
            has_options,
            source_route: has_options && packet.source_route()?,
            transport_offset: packet.header_len(),
            total_len: packet.total_len(),
            fragment: packet.fragment(),
        };
        Ok(())
    }

    #[inline]
    fn read_ipv6(&mut self, packet: &ipv6::Packet<&[u8]>) -> Result<(), Reason> {
        let upper = packet.upper()?;
        *self = Self {
            src: IpAddr::V6(packet.src()),
            dst: IpAddr::V6(packet.dst()),
            protocol: upper.protocol,
            ttl: packet.hop_limit(),
            dont_fragment: true,
            has_options: upper.extension_headers > usize::from(upper.fragment.is_some()),
            source_route: upper.routing.is_some(),
            transport_offset: upper.offset,
            total_len: packet.total_len(),
            fragment: upper.fragment.filter(Fragment::is_partial),
        };
        Ok(())
    }

    /// The packet's version.
    #[inline]
    #[must_use]
    pub const fn version(&self) -> Version {
        Version::of(self.src)
    }

    /// Whether the transport header starts at [`Self::transport_offset`]: the packet is whole or the first fragment.
    #[inline]
    #[must_use]
    pub fn has_transport_header(&self) -> bool {
        self.fragment.is_none_or(|fragment| fragment.offset == FragmentOffset::ZERO)
    }

    /// The transport header and payload, without padding.
    #[inline]
    #[must_use]
    pub fn transport<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        within(bytes, self.transport_offset..self.total_len)
    }

    /// The transport header and payload, writable.
    #[inline]
    #[must_use]
    pub fn transport_mut<'a>(&self, bytes: &'a mut [u8]) -> &'a mut [u8] {
        within_mut(bytes, self.transport_offset..self.total_len)
    }

    /// Transport header and payload, in bytes.
    #[inline]
    #[must_use]
    pub const fn transport_len(&self) -> usize {
        self.total_len.saturating_sub(self.transport_offset)
    }

    /// Whether the addresses may cross a gate: unicast, of global or private scope, and different.
    ///
    /// # Errors
    /// [`Reason::AddressInvalid`] for unspecified, loopback, multicast, broadcast, link-local, reserved (240/4, 0/8)
    /// and IPv4-mapped addresses, and for a packet to its own source.
    #[inline]
    pub fn check_addresses(&self) -> Result<(), Reason> {
        if self.src != self.dst && may_cross(self.src) && may_cross(self.dst) {
            Ok(())
        } else {
            Err(Reason::AddressInvalid)
        }
    }

    /// Takes one hop off the packet and keeps the header checksum right. Returns the new time to live.
    ///
    /// # Errors
    /// [`Reason::TtlExpired`] (and no change) if none would be left.
    #[inline]
    pub fn decrement_ttl(&mut self, bytes: &mut [u8]) -> Result<u8, Reason> {
        if self.ttl <= 1 {
            return Err(Reason::TtlExpired);
        }
        self.ttl -= 1;
        match self.version() {
            Version::V4 => {
                let mut packet = ipv4::Packet::new_unchecked(bytes);
                let protocol = u16::from(packet.protocol().0);
                let (old, new) = (u16::from(packet.ttl()) << 8 | protocol, u16::from(self.ttl) << 8 | protocol);
                packet.set_ttl(self.ttl);
                packet.set_checksum(checksum::update_u16(packet.checksum(), old, new));
            }
            Version::V6 => ipv6::Packet::new_unchecked(bytes).set_hop_limit(self.ttl),
        }
        Ok(self.ttl)
    }

    /// Writes the source address, keeps the IPv4 header checksum right, and returns what the change adds to the
    /// transport checksum. An address of the other version changes nothing.
    #[inline]
    pub fn set_src(&mut self, bytes: &mut [u8], new: IpAddr) -> Delta {
        set_address(bytes, [12, 8], &mut self.src, new)
    }

    /// Writes the destination address; otherwise like [`Self::set_src`].
    #[inline]
    pub fn set_dst(&mut self, bytes: &mut [u8], new: IpAddr) -> Delta {
        set_address(bytes, [16, 24], &mut self.dst, new)
    }

    /// Corrects the checksum of the transport header by `delta`, if the header is here and its checksum field was not cut
    /// off. Protocols whose checksum covers no address are left alone.
    #[inline]
    pub fn adjust_transport_checksum(&self, bytes: &mut [u8], delta: Delta) {
        self.adjust_checksum(self.protocol.checksum(), bytes, delta);
    }

    /// As [`Self::adjust_transport_checksum`], for a protocol whose checksum stands elsewhere.
    #[inline]
    pub fn adjust_checksum(&self, checksum: Checksum, bytes: &mut [u8], delta: Delta) {
        if self.has_transport_header() {
            checksum.adjust(self.transport_mut(bytes), delta);
        }
    }

    /// Whether the transport checksum of a whole packet is right. Fragments and protocols whose checksum is not known cannot be
    /// verified here and count as right.
    #[must_use]
    pub fn verify_transport_checksum(&self, bytes: &[u8]) -> bool {
        if self.fragment.is_some() {
            return true;
        }
        let (src, dst, transport) = (self.src, self.dst, self.transport(bytes));
        match self.protocol {
            IpProtocol::UDP => udp::Packet::new_checked(transport).is_ok_and(|packet| packet.verify_checksum(src, dst)),
            IpProtocol::TCP => tcp::Packet::new_checked(transport).is_ok_and(|packet| packet.verify_checksum(src, dst)),
            IpProtocol::UDPLITE => {
                udplite::Packet::new_checked(transport).is_ok_and(|packet| packet.verify_checksum(src, dst))
            }
            IpProtocol::DCCP => {
                dccp::Packet::new_checked(transport).is_ok_and(|packet| packet.verify_checksum(src, dst))
            }
            protocol => icmp::version(protocol).is_none_or(|version| {
                icmp::Packet::new_checked(version, transport).is_ok_and(|packet| packet.verify_checksum(src, dst))
            }),
        }
    }
}

/// Writes an address that stands at these places of an IPv4 and of an IPv6 header.
#[inline]
fn set_address(bytes: &mut [u8], [v4_at, v6_at]: [usize; 2], old: &mut IpAddr, new: IpAddr) -> Delta {
    let delta = Delta::NONE.address(*old, new);
    match (*old, new) {
        (IpAddr::V4(_), IpAddr::V4(address)) => {
            address.write(bytes, v4_at);
            let mut packet = ipv4::Packet::new_unchecked(bytes);
            packet.set_checksum(delta.apply(packet.checksum()));
        }
        (IpAddr::V6(_), IpAddr::V6(address)) => address.write(bytes, v6_at),
        _ => return Delta::NONE,
    }
    *old = new;
    delta
}

#[inline]
fn may_cross(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [first, ..] = v4.octets();
            !matches!(first, 0 | 127 | 224..) && !v4.is_link_local()
        }
        IpAddr::V6(v6) => {
            let link_local = v6.segments()[0] & 0xffc0 == 0xfe80;
            let low = v6.to_bits() >> 32;
            // ::/96 holds the unspecified, loopback and IPv4-compatible addresses, ::ffff:0:0/96 the mapped ones.
            !v6.is_multicast() && !link_local && low != 0 && low != 0xffff
        }
    }
}

/// Source and destination port of a TCP, UDP or SCTP header: its first four bytes, also where an ICMP error quotes
/// no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ports {
    /// Source port.
    pub src: u16,
    /// Destination port.
    pub dst: u16,
}

impl Ports {
    /// Reads the ports at the start of a transport header.
    ///
    /// # Errors
    /// [`Reason::TransportHeaderInvalid`] if it is shorter than four bytes.
    #[inline]
    pub fn parse(transport: &[u8]) -> Result<Self, Reason> {
        let [s0, s1, d0, d1] = *transport.first_chunk().ok_or(Reason::TransportHeaderInvalid)?;
        Ok(Self { src: u16::from_be_bytes([s0, s1]), dst: u16::from_be_bytes([d0, d1]) })
    }

    /// Writes the ports to the start of a transport header (no change if it is shorter than four bytes) and returns
    /// what the change from `self` adds to its checksum.
    #[inline]
    pub fn replace(self, transport: &mut [u8], new: Self) -> Delta {
        let Some(place) = transport.first_chunk_mut::<4>() else { return Delta::NONE };
        let ([s0, s1], [d0, d1]) = (new.src.to_be_bytes(), new.dst.to_be_bytes());
        *place = [s0, s1, d0, d1];
        Delta::NONE.u16(self.src, new.src).u16(self.dst, new.dst)
    }
}

#[cfg(test)]
mod tests;
