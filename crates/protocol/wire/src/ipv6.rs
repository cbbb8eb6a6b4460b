//! IPv6 (RFC 8200): header view and the bounded walk over extension headers.

use core::net::Ipv6Addr;

use crate::{
    IpProtocol, Reason,
    field::{self, packet_view, put, u8_at, u16_at, u32_at},
    ip::{Fragment, FragmentOffset},
};

/// Bytes of the fixed header.
pub const HEADER_LEN: usize = 40;
/// Bytes of a fragment extension header.
pub const FRAGMENT_HEADER_LEN: usize = 8;
/// The most extension headers that [`Packet::upper`] walks.
pub const EXTENSION_HEADERS_MAX: usize = 8;
/// The most that the payload length field can say: extension headers and payload, in bytes.
pub const PAYLOAD_LEN_MAX: usize = 65_535;

packet_view! {
    /// An IPv6 packet. Bytes of the buffer beyond the payload length (link-layer padding) belong to no accessor.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Packet {
        /// Extension headers and payload, in bytes.
        payload_len, set_payload_len: u16 as usize = 4;
        /// What follows the fixed header: an extension header or the upper protocol.
        next_header, set_next_header: IpProtocol = 6;
        /// Hops that the packet may still make.
        hop_limit, set_hop_limit: u8 = 7;
        /// The source address.
        src, set_src: Ipv6Addr = 8;
        /// The destination address.
        dst, set_dst: Ipv6Addr = 24;
        ..|packet| HEADER_LEN..packet.total_len()
    }
}

impl<T: AsRef<[u8]>> Packet<T> {
    /// Whether version and lengths fit the buffer. No accessor panics afterwards.
    ///
    /// # Errors
    /// [`Reason::FrameTruncated`] if the buffer ends too soon, [`Reason::IpHeaderInvalid`] for another version.
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
        if self.version() == 6 { Ok(()) } else { Err(Reason::IpHeaderInvalid) }
    }

    /// The version field; 6 after [`Self::check_len`].
    #[inline]
    pub fn version(&self) -> u8 {
        u8_at(self.bytes(), 0) >> 4
    }

    /// The differentiated services code point and ECN bits.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        (u16_at(self.bytes(), 0) >> 4) as u8
    }

    /// The flow label, 20 bits (RFC 6437).
    #[inline]
    pub fn flow_label(&self) -> u32 {
        u32_at(self.bytes(), 0) & 0x000f_ffff
    }

    /// Fixed header, extension headers and payload, in bytes.
    #[inline]
    pub fn total_len(&self) -> usize {
        HEADER_LEN + self.payload_len()
    }

    /// Walks the extension headers to the upper protocol: at most [`EXTENSION_HEADERS_MAX`] steps.
    ///
    /// The walk ends behind the fragment header of a fragment that is not the first: what follows there is the middle
    /// of something. ESP and unknown next headers count as upper protocols.
    ///
    /// # Errors
    /// [`Reason::IpOptions`] for more headers than that; [`Reason::IpHeaderInvalid`] for a header that ends outside
    /// the packet, hop-by-hop options that are not first, or a second fragment header.
    #[inline]
    pub fn upper(&self) -> Result<Upper, Reason> {
        let mut upper = Upper {
            protocol: self.next_header(),
            offset: HEADER_LEN,
            fragment: None,
            routing: None,
            extension_headers: 0,
            fragment_header: None,
        };
        while upper.step(self.payload())? {}
        Ok(upper)
    }
}

/// What the walk over the extension headers found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Upper {
    /// The protocol behind the last header that was walked. Behind a fragment that is not the first it may name an
    /// extension header.
    pub protocol: IpProtocol,
    /// Where that protocol's header, or the fragment's data, starts: bytes from the fixed header's first byte.
    pub offset: usize,
    /// What the fragment header says, also if the packet is the only, "atomic" fragment (RFC 6946).
    pub fragment: Option<Fragment>,
    /// The first routing header: its type and how many segments are left.
    pub routing: Option<Routing>,
    /// How many extension headers were walked, the fragment header included.
    pub extension_headers: usize,
    /// Where the fragment header starts: bytes from the fixed header's first byte.
    pub fragment_header: Option<usize>,
}

/// A routing header (RFC 8200 4.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Routing {
    /// The variant; type 0 is deprecated as an amplifier (RFC 5095).
    pub kind: u8,
    /// Nodes still to be visited.
    pub segments_left: u8,
}

impl Upper {
    /// Walks one header of `payload` (what follows the fixed header); `false` at the upper protocol.
    #[inline]
    fn step(&mut self, payload: &[u8]) -> Result<bool, Reason> {
        if !matches!(
            self.protocol,
            IpProtocol::HOP_BY_HOP
                | IpProtocol::IPV6_ROUTE
                | IpProtocol::IPV6_FRAGMENT
                | IpProtocol::DESTINATION_OPTIONS
        ) {
            return Ok(false);
        }
        if self.extension_headers == EXTENSION_HEADERS_MAX {
            return Err(Reason::IpOptions);
        }
        let rest = payload.get(self.offset - HEADER_LEN..).ok_or(Reason::IpHeaderInvalid)?;
        let header: &[u8; 8] = rest.first_chunk().ok_or(Reason::IpHeaderInvalid)?;
        let len = match self.protocol {
            IpProtocol::IPV6_FRAGMENT => FRAGMENT_HEADER_LEN,
            _ => (usize::from(header[1]) + 1) * 8,
        };
        field::at_least(rest.len(), len, Reason::IpHeaderInvalid)?;
        let more_to_walk = self.note(header)?;
        self.protocol = IpProtocol(header[0]);
        self.offset += len;
        self.extension_headers += 1;
        Ok(more_to_walk)
    }

    /// Remembers what the header tells; `false` if nothing behind it can be walked.
    #[inline]
    fn note(&mut self, header: &[u8; 8]) -> Result<bool, Reason> {
        match self.protocol {
            IpProtocol::HOP_BY_HOP if self.extension_headers > 0 => Err(Reason::IpHeaderInvalid),
            IpProtocol::IPV6_ROUTE => {
                self.routing = self.routing.or(Some(Routing { kind: header[2], segments_left: header[3] }));
                Ok(true)
            }
            IpProtocol::IPV6_FRAGMENT if self.fragment.is_some() => Err(Reason::IpHeaderInvalid),
            IpProtocol::IPV6_FRAGMENT => {
                let fragment = FragmentRepr::parse(header)?.fragment;
                self.fragment = Some(fragment);
                self.fragment_header = Some(self.offset);
                Ok(fragment.offset == FragmentOffset::ZERO)
            }
            _ => Ok(true),
        }
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Writes version 6, traffic class and the lower 20 bits of `flow_label`.
    #[inline]
    pub fn set_version_class_and_label(&mut self, traffic_class: u8, flow_label: u32) {
        let word = 6 << 28 | u32::from(traffic_class) << 20 | flow_label & 0x000f_ffff;
        put(self.buffer.as_mut(), 0, &word.to_be_bytes());
    }
}

/// A fixed header. Extension headers belong to its payload; see [`FragmentRepr`] for the one that Sluicegate writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repr {
    /// Source address.
    pub src: Ipv6Addr,
    /// Destination address.
    pub dst: Ipv6Addr,
    /// What follows the fixed header.
    pub next_header: IpProtocol,
    /// Hops that the packet may make.
    pub hop_limit: u8,
    /// Code point and ECN bits.
    pub traffic_class: u8,
    /// Flow label: the lower 20 bits.
    pub flow_label: u32,
    /// Extension headers and payload, in bytes.
    pub payload_len: u16,
}

impl Repr {
    /// A packet with a hop limit of 64, no class and no label.
    #[must_use]
    pub const fn new(src: Ipv6Addr, dst: Ipv6Addr, next_header: IpProtocol, payload_len: u16) -> Self {
        Self { src, dst, next_header, hop_limit: 64, traffic_class: 0, flow_label: 0, payload_len }
    }

    /// Bytes of the header that [`Self::emit`] writes.
    #[must_use]
    pub const fn buffer_len(&self) -> usize {
        HEADER_LEN
    }

    /// Writes the header. The payload is the caller's.
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, packet: &mut Packet<T>) {
        packet.set_version_class_and_label(self.traffic_class, self.flow_label);
        packet.set_payload_len(self.payload_len);
        packet.set_next_header(self.next_header);
        packet.set_hop_limit(self.hop_limit);
        packet.set_src(self.src);
        packet.set_dst(self.dst);
    }
}

/// A fragment extension header (RFC 8200 4.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FragmentRepr {
    /// What follows in the whole packet.
    pub next_header: IpProtocol,
    /// Identification and place.
    pub fragment: Fragment,
}

impl FragmentRepr {
    /// Reads a fragment header.
    ///
    /// # Errors
    /// [`Reason::IpHeaderInvalid`] if `bytes` is shorter than [`FRAGMENT_HEADER_LEN`].
    pub fn parse(bytes: &[u8]) -> Result<Self, Reason> {
        field::at_least(bytes.len(), FRAGMENT_HEADER_LEN, Reason::IpHeaderInvalid)?;
        let field = u16_at(bytes, 2);
        let offset = FragmentOffset::from_units(field >> 3);
        let fragment = Fragment { id: u32_at(bytes, 4), offset, more: field & 1 != 0 };
        Ok(Self { next_header: IpProtocol(u8_at(bytes, 0)), fragment })
    }

    /// The header's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; FRAGMENT_HEADER_LEN] {
        let [o0, o1] = (self.fragment.offset.units() << 3 | u16::from(self.fragment.more)).to_be_bytes();
        let [i0, i1, i2, i3] = self.fragment.id.to_be_bytes();
        [self.next_header.0, 0, o0, o1, i0, i1, i2, i3]
    }
}

#[cfg(test)]
mod tests;
