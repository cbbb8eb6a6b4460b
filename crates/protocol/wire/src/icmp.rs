//! ICMP of both versions (RFC 792, RFC 4443; multi-part messages RFC 4884; how a NAT treats them: RFC 5508).
//!
//! The versions say the same things under other numbers. Here a message has one [`Kind`], whatever its version.

use core::net::IpAddr;

use crate::{
    IpProtocol, Reason, checksum,
    field::{self, Field, fill, put, u8_at, u16_at},
    ip::{self, Version},
};

/// Bytes of the header that all messages share, with the four bytes whose meaning depends on the type.
pub const HEADER_LEN: usize = 8;

const CHECKSUM_AT: usize = 2;
const IDENT_AT: usize = 4;
const SEQ_AT: usize = 6;

/// Of the messages in an IP packet of this protocol; `None` if it carries something else.
#[inline]
#[must_use]
pub const fn version(protocol: IpProtocol) -> Option<Version> {
    match protocol {
        IpProtocol::ICMP => Some(Version::V4),
        IpProtocol::ICMPV6 => Some(Version::V6),
        _ => None,
    }
}

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Echo request.
    EchoRequest,
    /// Answer to an echo request.
    EchoReply,
    /// Error: destination unreachable, for another reason than the packet's size.
    Unreachable,
    /// Error: the packet is larger than the next link carries and must not be fragmented.
    PacketTooBig,
    /// Error: time exceeded.
    TimeExceeded,
    /// Error: parameter problem.
    ParameterProblem,
    /// Another error: source quench (deprecated, RFC 6633), redirect, and all types of ICMPv6 below 128 (RFC 4443 2.1).
    OtherError,
    /// No error, and no echo.
    Other,
}

impl Kind {
    /// What the type and code of a message say.
    #[inline]
    #[must_use]
    pub const fn of(version: Version, number: u8, code: u8) -> Self {
        match (version, number) {
            (Version::V4, 8) | (Version::V6, 128) => Self::EchoRequest,
            (Version::V4, 0) | (Version::V6, 129) => Self::EchoReply,
            // RFC 1191: "fragmentation needed", which names the next link's MTU.
            (Version::V4, 3) if code == 4 => Self::PacketTooBig,
            (Version::V6, 2) => Self::PacketTooBig,
            (Version::V4, 3) | (Version::V6, 1) => Self::Unreachable,
            (Version::V4, 11) | (Version::V6, 3) => Self::TimeExceeded,
            (Version::V4, 12) | (Version::V6, 4) => Self::ParameterProblem,
            (Version::V4, 4 | 5) | (Version::V6, 0..=127) => Self::OtherError,
            _ => Self::Other,
        }
    }

    /// Whether such a message quotes the packet that caused it.
    #[inline]
    #[must_use]
    pub const fn is_error(self) -> bool {
        !matches!(self, Self::EchoRequest | Self::EchoReply | Self::Other)
    }

    /// Whether such a message is an echo request or reply, the queries that a NAT maps by identifier.
    #[inline]
    #[must_use]
    pub const fn is_echo(self) -> bool {
        matches!(self, Self::EchoRequest | Self::EchoReply)
    }
}

/// A message: the whole buffer, as limited by the IP packet's length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<T> {
    version: Version,
    buffer: T,
}

impl<T: AsRef<[u8]>> Packet<T> {
    /// Views `buffer` without looking at it; of fewer bytes than [`HEADER_LEN`] no accessor may be called.
    #[inline]
    pub const fn new_unchecked(version: Version, buffer: T) -> Self {
        Self { version, buffer }
    }

    /// Views `buffer` if the [`HEADER_LEN`] bytes of the header are there.
    ///
    /// # Errors
    /// [`Reason::TransportHeaderInvalid`] if they are not.
    #[inline]
    pub fn new_checked(version: Version, buffer: T) -> Result<Self, Reason> {
        field::at_least(buffer.as_ref().len(), HEADER_LEN, Reason::TransportHeaderInvalid)?;
        Ok(Self { version, buffer })
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        self.buffer.as_ref()
    }

    /// The type, as its version numbers it.
    #[inline]
    pub fn number(&self) -> u8 {
        u8_at(self.bytes(), 0)
    }

    /// What it is, by type and code.
    #[inline]
    pub fn kind(&self) -> Kind {
        Kind::of(self.version, self.number(), self.code())
    }

    /// The code: a refinement of the type.
    #[inline]
    pub fn code(&self) -> u8 {
        u8_at(self.bytes(), 1)
    }

    /// The checksum field.
    #[inline]
    pub fn checksum(&self) -> u16 {
        u16_at(self.bytes(), CHECKSUM_AT)
    }

    /// Identifier of an echo.
    #[inline]
    pub fn ident(&self) -> u16 {
        u16_at(self.bytes(), IDENT_AT)
    }

    /// Sequence number of an echo.
    #[inline]
    pub fn seq(&self) -> u16 {
        u16_at(self.bytes(), SEQ_AT)
    }

    /// MTU of the link that a packet was too big for, in bytes (RFC 1191 4, RFC 4443 3.2); zero from old IPv4 routers.
    #[inline]
    pub fn mtu(&self) -> u32 {
        match self.version {
            Version::V4 => u16_at(self.bytes(), 6).into(),
            Version::V6 => u32::read(self.bytes(), 4),
        }
    }

    /// What follows the header.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        self.bytes().get(HEADER_LEN..).unwrap_or_default()
    }

    /// The packet that an error quotes, without the extensions that may follow it (RFC 4884 5): read it with
    /// [`ip::Summary::parse_quoted`]. Empty unless the message is an error.
    #[inline]
    pub fn quoted(&self) -> &[u8] {
        self.payload().get(..self.quoted_len()).unwrap_or_default()
    }

    /// A stated length of zero means all of the payload, and so does one that cannot be.
    #[inline]
    fn quoted_len(&self) -> usize {
        if !self.kind().is_error() {
            return 0;
        }
        let words = self.stated_len_at().map_or(0, |at| usize::from(u8_at(self.bytes(), at)));
        let (len, stated) = (self.payload().len(), words * if self.version == Version::V4 { 4 } else { 8 });
        if stated == 0 || stated > len { len } else { stated }
    }

    /// Where the message says how long the quoted packet is, in words of its version (RFC 4884 4), if it may say so.
    #[inline]
    fn stated_len_at(&self) -> Option<usize> {
        match (self.version, self.number()) {
            (Version::V4, 3 | 11 | 12) => Some(5),
            (Version::V6, 1 | 3) => Some(4),
            _ => None,
        }
    }

    /// Whether the checksum is right; that of ICMPv6 covers the pseudo-header of these addresses.
    pub fn verify_checksum(&self, src: IpAddr, dst: IpAddr) -> bool {
        self.sum(src, dst) == u16::MAX
    }

    fn sum(&self, src: IpAddr, dst: IpAddr) -> u16 {
        let bytes = self.bytes();
        let sum = checksum::ones_complement(bytes);
        match self.version {
            Version::V4 => sum,
            Version::V6 => {
                checksum::combine(&[checksum::pseudo(src, dst, IpProtocol::ICMPV6, bytes.len() as u32), sum])
            }
        }
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Sets the MTU of "packet too big"; the checksum is the caller's.
    #[inline]
    pub fn set_mtu(&mut self, value: u32) {
        match self.version {
            Version::V4 => u16::try_from(value).unwrap_or(u16::MAX).write(self.buffer.as_mut(), 6),
            Version::V6 => value.write(self.buffer.as_mut(), 4),
        }
    }

    /// Writes the identifier of an echo and keeps the checksum right by RFC 1624, as a NAT does.
    #[inline]
    pub fn replace_ident(&mut self, value: u16) {
        let checksum = checksum::update_u16(self.checksum(), self.ident(), value);
        value.write(self.buffer.as_mut(), IDENT_AT);
        checksum.write(self.buffer.as_mut(), CHECKSUM_AT);
    }

    /// Takes back the length of the quoted packet (RFC 4884 5.1, 5.2): all that follows is the quote.
    #[inline]
    pub fn clear_quoted_length(&mut self) {
        if let Some(at) = self.stated_len_at() {
            put(self.buffer.as_mut(), at, &[0]);
        }
    }

    /// Computes and writes the checksum.
    pub fn fill_checksum(&mut self, src: IpAddr, dst: IpAddr) {
        put(self.buffer.as_mut(), CHECKSUM_AT, &[0, 0]);
        let checksum = !self.sum(src, dst);
        checksum.write(self.buffer.as_mut(), CHECKSUM_AT);
    }

    /// The quoted packet, writable. Whoever changes it calls [`Self::fill_checksum`].
    #[inline]
    pub fn quoted_mut(&mut self) -> &mut [u8] {
        let end = HEADER_LEN + self.quoted_len();
        self.buffer.as_mut().get_mut(HEADER_LEN..end).unwrap_or_default()
    }
}

/// Why the destination cannot be reached (RFC 792, RFC 1812 5.2.7.1, RFC 4443 3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unreachable {
    /// No program has the port.
    Port,
    /// Somebody does not allow it.
    Prohibited,
}

/// The start of the packet that an error is about: the IP header, with a right checksum if it has one and with all
/// extension headers, and 8 bytes or more behind it unless the packet had fewer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quote<'a>(&'a [u8]);

impl<'a> Quote<'a> {
    /// RFC 792 and RFC 5508 4.2: what a NAT needs behind the quoted IP header to find the flow.
    const TRANSPORT_LEN_MIN: usize = 8;

    /// The most that is quoted, so that an error has 576 bytes at most (RFC 1812 4.3.2.3), or fits the smallest MTU of
    /// 1,280 bytes (RFC 4443 2.4(c)).
    #[must_use]
    pub const fn len_max(version: Version) -> usize {
        match version {
            Version::V4 => 576 - 20 - HEADER_LEN,
            Version::V6 => 1280 - 40 - HEADER_LEN,
        }
    }

    /// Quotes `packet`, for an error of its own version: its own bytes without padding, at most [`Self::len_max`].
    ///
    /// # Errors
    /// Those of [`ip::Summary::parse_quoted`], and [`Reason::FrameTruncated`] if less than 8 bytes of the transport
    /// header are there.
    pub fn new(packet: &'a [u8]) -> Result<Self, Reason> {
        let is_v6 = packet.first().is_some_and(|first| first >> 4 == 6);
        let len_max = Self::len_max(if is_v6 { Version::V6 } else { Version::V4 });
        let packet = packet.get(..len_max).unwrap_or(packet);
        let summary = ip::Summary::parse_quoted(packet)?;
        let least = summary.transport_len().min(Self::TRANSPORT_LEN_MIN);
        field::at_least(summary.transport(packet).len(), least, Reason::FrameTruncated)?;
        Ok(Self(packet.get(..summary.total_len).unwrap_or(packet)))
    }

    /// The quoted bytes; read them with [`ip::Summary::parse_quoted`].
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.0
    }
}

/// A message of the kinds that are sent by somebody here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repr<'a> {
    /// Echo request.
    EchoRequest {
        /// Identifier, shared by request and reply.
        ident: u16,
        /// Sequence number.
        seq: u16,
        /// Data to be echoed.
        data: &'a [u8],
    },
    /// Echo reply.
    EchoReply {
        /// Identifier of the request.
        ident: u16,
        /// Sequence number of the request.
        seq: u16,
        /// The request's data.
        data: &'a [u8],
    },
    /// Destination unreachable.
    Unreachable {
        /// Why.
        why: Unreachable,
        /// The packet that did not arrive.
        quote: Quote<'a>,
    },
    /// The packet is larger than the next link carries and must not be fragmented.
    PacketTooBig {
        /// MTU of the next link, in bytes.
        mtu: u16,
        /// The packet that did not arrive.
        quote: Quote<'a>,
    },
    /// Time exceeded: the packet's hops.
    TimeExceeded {
        /// The packet that did not arrive.
        quote: Quote<'a>,
    },
}

impl<'a> Repr<'a> {
    const fn payload(&self) -> &'a [u8] {
        match self {
            Self::EchoRequest { data, .. } | Self::EchoReply { data, .. } => data,
            Self::Unreachable { quote, .. } | Self::PacketTooBig { quote, .. } | Self::TimeExceeded { quote } => {
                quote.bytes()
            }
        }
    }

    /// Bytes that [`Self::emit`] writes.
    #[must_use]
    pub const fn buffer_len(&self) -> usize {
        HEADER_LEN + self.payload().len()
    }

    /// Writes the message, with its checksum, of the version of `src`. The buffer is [`Self::buffer_len`] bytes long.
    pub fn emit(&self, bytes: &mut [u8], src: IpAddr, dst: IpAddr) {
        // Type and code of ICMP, those of ICMPv6, and what stands behind the checksum.
        let (v4, v6, [high, low]) = match *self {
            Self::EchoRequest { ident, seq, .. } => ([8, 0], [128, 0], [ident, seq]),
            Self::EchoReply { ident, seq, .. } => ([0, 0], [129, 0], [ident, seq]),
            Self::Unreachable { why: Unreachable::Port, .. } => ([3, 3], [1, 4], [0, 0]),
            Self::Unreachable { why: Unreachable::Prohibited, .. } => ([3, 13], [1, 1], [0, 0]),
            Self::PacketTooBig { mtu, .. } => ([3, 4], [2, 0], [0, mtu]),
            Self::TimeExceeded { .. } => ([11, 0], [3, 0], [0, 0]),
        };
        let version = Version::of(src);
        put(bytes, 0, if version == Version::V4 { &v4 } else { &v6 });
        high.write(bytes, IDENT_AT);
        low.write(bytes, SEQ_AT);
        fill(bytes.get_mut(HEADER_LEN..).unwrap_or_default(), self.payload());
        Packet::new_unchecked(version, bytes).fill_checksum(src, dst);
    }
}

#[cfg(test)]
mod tests;
