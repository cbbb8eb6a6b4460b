//! ICMP for IPv4 (RFC 792; multi-part messages RFC 4884; how a NAT treats them: RFC 5508).

use crate::{
    Reason, checksum,
    field::{self, packet_view, put, u8_at, u16_at},
    ip,
};

mod repr;
pub use repr::{ParameterProblem, Quote, Repr, TimeExceeded, Unreachable};

/// Bytes of the header that all messages share.
pub const HEADER_LEN: usize = 8;

const CHECKSUM_AT: usize = 2;

/// The type of a message. Every number is valid; the named ones are those that Sluicegate reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Type(pub u8);

impl Type {
    /// Answer to an echo request.
    pub const ECHO_REPLY: Self = Self(0);
    /// Error: destination unreachable.
    pub const UNREACHABLE: Self = Self(3);
    /// Error: source quench, deprecated (RFC 6633).
    pub const SOURCE_QUENCH: Self = Self(4);
    /// Error: redirect.
    pub const REDIRECT: Self = Self(5);
    /// Echo request.
    pub const ECHO_REQUEST: Self = Self(8);
    /// Error: time exceeded.
    pub const TIME_EXCEEDED: Self = Self(11);
    /// Error: parameter problem.
    pub const PARAMETER_PROBLEM: Self = Self(12);

    /// Whether such a message quotes the packet that caused it.
    #[inline]
    #[must_use]
    pub const fn is_error(self) -> bool {
        matches!(
            self,
            Self::UNREACHABLE | Self::SOURCE_QUENCH | Self::REDIRECT | Self::TIME_EXCEEDED | Self::PARAMETER_PROBLEM
        )
    }

    /// Whether such a message is an echo request or reply, the queries that a NAT maps by identifier.
    #[inline]
    #[must_use]
    pub const fn is_echo(self) -> bool {
        matches!(self, Self::ECHO_REQUEST | Self::ECHO_REPLY)
    }
}

packet_view! {
    /// An ICMP message: the whole buffer, as limited by the IP packet's length.
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

    /// Which byte of the quoted packet a parameter problem is about.
    #[inline]
    pub fn pointer(&self) -> u8 {
        u8_at(self.bytes(), 4)
    }

    /// The next hop's MTU in "fragmentation needed" (RFC 1191 4), in bytes; zero from old routers.
    #[inline]
    pub fn next_hop_mtu(&self) -> u16 {
        u16_at(self.bytes(), 6)
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
        let extensible = matches!(self.kind(), Type::UNREACHABLE | Type::TIME_EXCEEDED | Type::PARAMETER_PROBLEM);
        let words = if extensible { u8_at(self.bytes(), 5) } else { 0 };
        ip::quoted_len(self.payload().len(), usize::from(words) * 4)
    }

    /// Whether the checksum is right.
    pub fn verify_checksum(&self) -> bool {
        checksum::internet(self.bytes()) == 0
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Sets the next hop's MTU in "fragmentation needed"; the checksum is the caller's.
    pub fn set_next_hop_mtu(&mut self, value: u16) {
        put(self.buffer.as_mut(), 6, &value.to_be_bytes());
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

    /// Writes the identifier of an echo and keeps the checksum right by RFC 1624, as a NAT does.
    #[inline]
    pub fn replace_ident(&mut self, value: u16) {
        let checksum = checksum::update_u16(self.checksum(), self.ident(), value);
        self.set_ident(value);
        self.set_checksum(checksum);
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

    /// Takes back the length of the quoted packet (RFC 4884 5.1): all that follows is the quote.
    #[inline]
    pub fn clear_quoted_length(&mut self) {
        if matches!(self.kind(), Type::UNREACHABLE | Type::TIME_EXCEEDED | Type::PARAMETER_PROBLEM) {
            put(self.buffer.as_mut(), 5, &[0]);
        }
    }

    /// Computes and writes the checksum.
    pub fn fill_checksum(&mut self) {
        self.set_checksum(0);
        self.set_checksum(checksum::internet(self.bytes()));
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
