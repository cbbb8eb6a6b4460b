//! ICMP for IPv6 (RFC 4443; multi-part messages RFC 4884). Neighbour discovery is in [`crate::ndp`].

use core::net::IpAddr;

use crate::{
    IpProtocol, Reason, checksum,
    field::{self, packet_view, put, u8_at, u16_at, u32_at},
    ip,
};

mod repr;
pub use repr::{ParameterProblem, Quote, Repr, TimeExceeded, Unreachable};

/// Bytes of the header that all messages share, with the four bytes whose meaning depends on the type.
pub const HEADER_LEN: usize = 8;

pub(crate) const CHECKSUM_AT: usize = 2;

/// The type of a message. Every number is valid; the named ones are those that Sluicegate reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Type(pub u8);

impl Type {
    /// Error: destination unreachable.
    pub const UNREACHABLE: Self = Self(1);
    /// Error: packet too big.
    pub const PACKET_TOO_BIG: Self = Self(2);
    /// Error: time exceeded.
    pub const TIME_EXCEEDED: Self = Self(3);
    /// Error: parameter problem.
    pub const PARAMETER_PROBLEM: Self = Self(4);
    /// Echo request.
    pub const ECHO_REQUEST: Self = Self(128);
    /// Answer to an echo request.
    pub const ECHO_REPLY: Self = Self(129);
    /// Whether such a message quotes the packet that caused it: types 0 to 127 (RFC 4443 2.1).
    #[inline]
    #[must_use]
    pub const fn is_error(self) -> bool {
        self.0 < 128
    }

    /// Whether such a message is an echo request or reply.
    #[inline]
    #[must_use]
    pub const fn is_echo(self) -> bool {
        matches!(self, Self::ECHO_REQUEST | Self::ECHO_REPLY)
    }
}

packet_view! {
    /// An ICMPv6 message: the whole buffer, as limited by the IP packet's length.
}

impl<T: AsRef<[u8]>> Packet<T> {
    /// Whether the 8 header bytes are there. No accessor panics afterwards.
    ///
    /// # Errors
    /// [`Reason::TransportHeaderInvalid`] if they are not.
    #[inline]
    pub fn check_len(&self) -> Result<(), Reason> {
        field::at_least(self.bytes().len(), HEADER_LEN, Reason::TransportHeaderInvalid)
    }

    /// The type.
    #[inline]
    pub fn kind(&self) -> Type {
        Type(u8_at(self.bytes(), 0))
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
        u16_at(self.bytes(), 4)
    }

    /// Sequence number of an echo.
    #[inline]
    pub fn seq(&self) -> u16 {
        u16_at(self.bytes(), 6)
    }

    /// MTU of the link that a packet was too big for, in bytes.
    #[inline]
    pub fn mtu(&self) -> u32 {
        u32_at(self.bytes(), 4)
    }

    /// Which byte of the quoted packet a parameter problem is about.
    #[inline]
    pub fn pointer(&self) -> u32 {
        u32_at(self.bytes(), 4)
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

    #[inline]
    fn quoted_len(&self) -> usize {
        if !self.kind().is_error() {
            return 0;
        }
        let extensible = matches!(self.kind(), Type::UNREACHABLE | Type::TIME_EXCEEDED);
        let words = if extensible { u8_at(self.bytes(), 4) } else { 0 };
        ip::quoted_len(self.payload().len(), usize::from(words) * 8)
    }

    /// Whether the checksum, with the pseudo-header of these addresses, is right.
    pub fn verify_checksum(&self, src: IpAddr, dst: IpAddr) -> bool {
        !self.sum(src, dst) == 0
    }

    fn sum(&self, src: IpAddr, dst: IpAddr) -> u16 {
        let bytes = self.bytes();
        let pseudo = checksum::pseudo(src, dst, IpProtocol::ICMPV6, bytes.len() as u32);
        checksum::combine(&[pseudo, checksum::ones_complement(bytes)])
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Sets the MTU of "packet too big"; the checksum is the caller's.
    pub fn set_mtu(&mut self, value: u32) {
        put(self.buffer.as_mut(), 4, &value.to_be_bytes());
    }

    /// Writes type and code.
    #[inline]
    pub fn set_kind_and_code(&mut self, kind: Type, code: u8) {
        put(self.buffer.as_mut(), 0, &[kind.0, code]);
    }

    /// Writes the checksum.
    #[inline]
    pub fn set_checksum(&mut self, value: u16) {
        put(self.buffer.as_mut(), CHECKSUM_AT, &value.to_be_bytes());
    }

    /// Writes the identifier of an echo.
    #[inline]
    pub fn set_ident(&mut self, value: u16) {
        put(self.buffer.as_mut(), 4, &value.to_be_bytes());
    }

    /// Writes the sequence number of an echo.
    #[inline]
    pub fn set_seq(&mut self, value: u16) {
        put(self.buffer.as_mut(), 6, &value.to_be_bytes());
    }

    /// Writes the four bytes behind the checksum, whose meaning depends on the type.
    #[inline]
    pub fn set_rest(&mut self, value: [u8; 4]) {
        put(self.buffer.as_mut(), 4, &value);
    }

    /// Takes back the length of the quoted packet (RFC 4884 5.2): all that follows is the quote.
    #[inline]
    pub fn clear_quoted_length(&mut self) {
        if matches!(self.kind(), Type::UNREACHABLE | Type::TIME_EXCEEDED) {
            put(self.buffer.as_mut(), 4, &[0]);
        }
    }

    /// Computes and writes the checksum.
    pub fn fill_checksum(&mut self, src: IpAddr, dst: IpAddr) {
        self.set_checksum(0);
        let sum = self.sum(src, dst);
        self.set_checksum(!sum);
    }

    /// What follows the header, writable.
    #[inline]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        self.buffer.as_mut().get_mut(HEADER_LEN..).unwrap_or_default()
    }

    /// The quoted packet, writable. Whoever changes it calls [`Self::fill_checksum`].
    #[inline]
    pub fn quoted_mut(&mut self) -> &mut [u8] {
        let len = self.quoted_len();
        self.payload_mut().get_mut(..len).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
