//! IPv4 (RFC 791): header view, options, fragments.

use core::net::Ipv4Addr;

use crate::{
    IpProtocol, Reason, checksum,
    field::{self, packet_view, put, u8_at, u16_at},
    ip::{Fragment, FragmentOffset},
};

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;
/// Bytes of the longest header.
pub const HEADER_LEN_MAX: usize = 60;
/// The most payload that a packet with [`HEADER_LEN`] bytes of header carries.
pub const PAYLOAD_LEN_MAX: usize = 65_535 - HEADER_LEN;

pub(crate) const CHECKSUM_AT: usize = 10;
const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const OFFSET_MASK: u16 = 0x1fff;

packet_view! {
    /// An IPv4 packet. Bytes of the buffer beyond the total length (link-layer padding) belong to no accessor.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Packet {
        /// The differentiated services code point and ECN bits (RFC 3168).
        traffic_class, set_traffic_class: u8 = 1;
        /// Header and payload, in bytes.
        total_len, set_total_len: u16 as usize = 2;
        /// The identification that fragments of one packet share.
        ident, set_ident: u16 = 4;
        /// Hops that the packet may still make.
        ttl, set_ttl: u8 = 8;
        /// The protocol of the payload.
        protocol, set_protocol: IpProtocol = 9;
        /// The header checksum field.
        checksum, set_checksum: u16 = CHECKSUM_AT;
        /// The source address.
        src, set_src: Ipv4Addr = 12;
        /// The destination address.
        dst, set_dst: Ipv4Addr = 16;
        ..|packet| packet.header_len()..packet.total_len()
    }
}

impl<T: AsRef<[u8]>> Packet<T> {
    /// Whether version and lengths fit the buffer. No accessor panics afterwards.
    ///
    /// # Errors
    /// [`Reason::FrameTruncated`] if the buffer ends too soon, [`Reason::IpHeaderInvalid`] for another version, a
    /// header shorter than 20 bytes or longer than the packet.
    #[inline]
    pub fn check_len(&self) -> Result<(), Reason> {
        self.check_header()?;
        field::at_least(self.bytes().len(), self.total_len(), Reason::FrameTruncated)
    }

    /// Like [`Self::check_len`] for a packet whose payload may be cut short, as ICMP errors quote it.
    ///
    /// # Errors
    /// As [`Self::check_len`], but a buffer shorter than the total length is accepted.
    #[inline]
    pub fn check_header(&self) -> Result<(), Reason> {
        field::at_least(self.bytes().len(), HEADER_LEN, Reason::FrameTruncated)?;
        let header_len = self.header_len();
        if self.version() != 4 || header_len < HEADER_LEN || self.total_len() < header_len {
            return Err(Reason::IpHeaderInvalid);
        }
        field::at_least(self.bytes().len(), header_len, Reason::FrameTruncated)
    }

    /// The version field; 4 after [`Self::check_len`].
    #[inline]
    pub fn version(&self) -> u8 {
        u8_at(self.bytes(), 0) >> 4
    }

    /// Header and options, in bytes.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(u8_at(self.bytes(), 0) & 0x0f) * 4
    }

    /// Whether routers must not fragment this packet.
    #[inline]
    pub fn dont_fragment(&self) -> bool {
        u16_at(self.bytes(), 6) & DONT_FRAGMENT != 0
    }

    /// Whether fragments follow this one.
    #[inline]
    pub fn more_fragments(&self) -> bool {
        u16_at(self.bytes(), 6) & MORE_FRAGMENTS != 0
    }

    /// Where this fragment's payload belongs in the whole packet's.
    #[inline]
    pub fn fragment_offset(&self) -> FragmentOffset {
        FragmentOffset::from_units(u16_at(self.bytes(), 6) & OFFSET_MASK)
    }

    /// What this packet is a fragment of, if it is one.
    #[inline]
    pub fn fragment(&self) -> Option<Fragment> {
        let fragment =
            Fragment { id: u32::from(self.ident()), offset: self.fragment_offset(), more: self.more_fragments() };
        fragment.is_partial().then_some(fragment)
    }

    /// The header with its options.
    #[inline]
    pub fn header(&self) -> &[u8] {
        self.bytes().get(..self.header_len()).unwrap_or_default()
    }

    /// Whether the header checksum is right.
    #[inline]
    pub fn verify_checksum(&self) -> bool {
        match self.bytes().first_chunk::<HEADER_LEN>() {
            Some(header) if self.header_len() == HEADER_LEN => !checksum::ones_complement_of_header(header) == 0,
            _ => checksum::internet(self.header()) == 0,
        }
    }

    /// The options, each at most once: at most 40 steps.
    #[inline]
    pub fn options(&self) -> Options<'_> {
        Options { rest: self.header().get(HEADER_LEN..).unwrap_or_default() }
    }

    /// Whether a loose or strict source route is among the options (RFC 791 3.1).
    ///
    /// # Errors
    /// [`Reason::IpHeaderInvalid`] if an option ends outside the header.
    pub fn source_route(&self) -> Result<bool, Reason> {
        for option in self.options() {
            if matches!(option?.kind, IpOption::LOOSE_SOURCE_ROUTE | IpOption::STRICT_SOURCE_ROUTE) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Writes version 4 and the header length, in bytes: a multiple of 4 up to 60.
    #[inline]
    pub fn set_version_and_header_len(&mut self, header_len: usize) {
        put(self.buffer.as_mut(), 0, &[0x40 | (header_len.min(HEADER_LEN_MAX) / 4) as u8]);
    }

    /// Writes the flags and the fragment offset.
    #[inline]
    pub fn set_fragmentation(&mut self, dont_fragment: bool, more_fragments: bool, offset: FragmentOffset) {
        let dont_fragment = if dont_fragment { DONT_FRAGMENT } else { 0 };
        let more_fragments = if more_fragments { MORE_FRAGMENTS } else { 0 };
        put(self.buffer.as_mut(), 6, &(dont_fragment | more_fragments | offset.units()).to_be_bytes());
    }

    /// Computes and writes the header checksum.
    pub fn fill_checksum(&mut self) {
        self.set_checksum(0);
        self.set_checksum(checksum::internet(self.header()));
    }
}

/// One option of a header: its kind and the bytes after kind and length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpOption<'a> {
    /// The whole option type byte, with the copied flag.
    pub kind: u8,
    /// What follows kind and length.
    pub data: &'a [u8],
}

impl IpOption<'_> {
    /// Loose source and record route.
    pub const LOOSE_SOURCE_ROUTE: u8 = 131;
    /// Strict source and record route.
    pub const STRICT_SOURCE_ROUTE: u8 = 137;
    /// Router alert (RFC 2113).
    pub const ROUTER_ALERT: u8 = 148;
}

/// Iterates over options; padding is left out, and the first malformed option ends the list with an error.
#[derive(Debug, Clone)]
pub struct Options<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Options<'a> {
    type Item = Result<IpOption<'a>, Reason>;

    fn next(&mut self) -> Option<Self::Item> {
        let option = field::next_option(&mut self.rest, Reason::IpHeaderInvalid)?;
        Some(option.map(|(kind, data)| IpOption { kind, data }))
    }
}

/// A header without options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repr {
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
    /// Protocol of the payload.
    pub protocol: IpProtocol,
    /// Hops that the packet may make.
    pub ttl: u8,
    /// Code point and ECN bits.
    pub traffic_class: u8,
    /// Identification.
    pub ident: u16,
    /// Whether routers must not fragment the packet.
    pub dont_fragment: bool,
    /// Whether fragments follow this one.
    pub more_fragments: bool,
    /// Where this fragment's payload belongs in the whole packet's.
    pub fragment_offset: FragmentOffset,
    /// Payload in bytes, at most [`PAYLOAD_LEN_MAX`]; what does not fit is cut when emitting.
    pub payload_len: u16,
}

impl Repr {
    /// A whole packet that must not be fragmented, with a time to live of 64.
    #[must_use]
    pub const fn new(src: Ipv4Addr, dst: Ipv4Addr, protocol: IpProtocol, payload_len: u16) -> Self {
        Self {
            src,
            dst,
            protocol,
            ttl: 64,
            traffic_class: 0,
            ident: 0,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: FragmentOffset::ZERO,
            payload_len,
        }
    }

    /// Bytes of the header that [`Self::emit`] writes.
    #[must_use]
    pub const fn buffer_len(&self) -> usize {
        HEADER_LEN
    }

    /// Writes the header with its checksum. The payload is the caller's.
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, packet: &mut Packet<T>) {
        packet.set_version_and_header_len(HEADER_LEN);
        packet.set_traffic_class(self.traffic_class);
        packet.set_total_len(field::length(HEADER_LEN + usize::from(self.payload_len)));
        packet.set_ident(self.ident);
        packet.set_fragmentation(self.dont_fragment, self.more_fragments, self.fragment_offset);
        packet.set_ttl(self.ttl);
        packet.set_protocol(self.protocol);
        packet.set_src(self.src);
        packet.set_dst(self.dst);
        packet.fill_checksum();
    }
}

#[cfg(test)]
mod tests;
