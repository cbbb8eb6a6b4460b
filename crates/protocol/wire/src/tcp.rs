//! TCP (RFC 9293; options also RFC 2018, RFC 7323): header view and options.

use core::net::IpAddr;

use crate::{
    IpProtocol, Reason, checksum,
    field::{self, fill, packet_view, put, u8_at},
};

mod option;
mod repr;
pub use option::{Options, TcpOption, Timestamps, WindowScale};
pub use repr::{Control, Repr};

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;
/// Bytes of the longest header.
pub const HEADER_LEN_MAX: usize = 60;

pub(crate) const CHECKSUM_AT: usize = 16;

/// The control bits of a segment (RFC 9293 3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Flags(pub u8);

impl Flags {
    /// No more data from the sender.
    pub const FIN: Self = Self(0x01);
    /// Synchronise sequence numbers.
    pub const SYN: Self = Self(0x02);
    /// Reset the connection.
    pub const RST: Self = Self(0x04);
    /// Push the data to the receiver.
    pub const PSH: Self = Self(0x08);
    /// The acknowledgement number is significant.
    pub const ACK: Self = Self(0x10);
    /// The urgent pointer is significant.
    pub const URG: Self = Self(0x20);
    /// Congestion experienced (RFC 3168).
    pub const ECE: Self = Self(0x40);
    /// Congestion window reduced (RFC 3168).
    pub const CWR: Self = Self(0x80);

    /// Whether all of `other` are set.
    #[inline]
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both sets together.
    #[inline]
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether at most one of SYN, FIN and RST is set, and SYN or RST or ACK at all: what RFC 9293 3.10 lets a peer
    /// send. Scanners and broken stacks send the rest.
    #[inline]
    #[must_use]
    pub const fn are_consistent(self) -> bool {
        let control = self.0 & (Self::SYN.0 | Self::FIN.0 | Self::RST.0);
        control.count_ones() <= 1 && self.0 & (Self::SYN.0 | Self::RST.0 | Self::ACK.0) != 0
    }
}

packet_view! {
    /// A TCP segment: the whole buffer, as limited by the IP packet's length.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Packet {
        /// The source port.
        src_port, set_src_port: u16 = 0;
        /// The destination port.
        dst_port, set_dst_port: u16 = 2;
        /// The sequence number of the first byte of data, or of the SYN.
        seq, set_seq: u32 = 4;
        /// The acknowledgement number; means nothing without [`Flags::ACK`].
        ack, set_ack: u32 = 8;
        /// The control bits.
        flags, set_flags: Flags = 13;
        /// The window as sent, before scaling.
        window, set_window: u16 = 14;
        /// The checksum field.
        checksum, set_checksum: u16 = CHECKSUM_AT;
        /// The urgent pointer; means nothing without [`Flags::URG`].
        urgent, set_urgent: u16 = 18;
        ..|packet| packet.header_len()..usize::MAX
    }
}

impl<T: AsRef<[u8]>> Packet<T> {
    /// Whether header and options fit the buffer. No accessor panics afterwards.
    ///
    /// # Errors
    /// [`Reason::TransportHeaderInvalid`] if the buffer is shorter than the header, or the data offset is below 20
    /// bytes.
    #[inline]
    pub fn check_len(&self) -> Result<(), Reason> {
        field::at_least(self.bytes().len(), HEADER_LEN, Reason::TransportHeaderInvalid)?;
        field::at_least(self.header_len(), HEADER_LEN, Reason::TransportHeaderInvalid)?;
        field::at_least(self.bytes().len(), self.header_len(), Reason::TransportHeaderInvalid)
    }

    /// Header and options, in bytes.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(u8_at(self.bytes(), 12) >> 4) * 4
    }

    /// The options: at most 40 steps.
    #[inline]
    pub fn options(&self) -> Options<'_> {
        Options::new(self.bytes().get(HEADER_LEN..self.header_len()).unwrap_or_default())
    }

    /// How far this segment moves the sequence number: its data, and one each for SYN and FIN.
    #[inline]
    pub fn sequence_len(&self) -> u32 {
        let flags = self.flags();
        self.payload().len() as u32 + u32::from(flags.has(Flags::SYN)) + u32::from(flags.has(Flags::FIN))
    }

    /// Whether the checksum is right.
    pub fn verify_checksum(&self, src: IpAddr, dst: IpAddr) -> bool {
        !self.sum(src, dst) == 0
    }

    fn sum(&self, src: IpAddr, dst: IpAddr) -> u16 {
        checksum::transport(src, dst, IpProtocol::TCP, self.bytes().len(), self.bytes())
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Writes the data offset, in bytes: a multiple of 4 up to 60. Clears the reserved bits.
    #[inline]
    pub fn set_header_len(&mut self, value: usize) {
        put(self.buffer.as_mut(), 12, &[(value.min(HEADER_LEN_MAX) as u8 / 4) << 4]);
    }

    /// Computes and writes the checksum.
    pub fn fill_checksum(&mut self, src: IpAddr, dst: IpAddr) {
        self.set_checksum(0);
        let sum = self.sum(src, dst);
        self.set_checksum(!sum);
    }

    /// The room for options, writable.
    #[inline]
    pub fn options_mut(&mut self) -> &mut [u8] {
        let end = self.header_len();
        self.buffer.as_mut().get_mut(HEADER_LEN..end).unwrap_or_default()
    }

    /// Writes options and data into the room that the header length leaves for each.
    fn set_options_and_payload(&mut self, options: &[u8], payload: &[u8]) {
        fill(self.options_mut(), options);
        fill(self.payload_mut(), payload);
    }
}

#[cfg(test)]
mod tests;
