//! UDP (RFC 768; checksum rules also RFC 8200 8.1).

use core::net::IpAddr;

use crate::{
    IpProtocol, Reason, checksum,
    field::{self, fill, packet_view, within},
};

/// Bytes of the header.
pub const HEADER_LEN: usize = 8;
/// The most payload that a datagram carries.
pub const PAYLOAD_LEN_MAX: usize = 65_535 - HEADER_LEN;

pub(crate) const CHECKSUM_AT: usize = 6;

packet_view! {
    /// A UDP datagram. Bytes of the buffer beyond the length field belong to no accessor.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Packet {
        /// The source port.
        src_port, set_src_port: u16 = 0;
        /// The destination port.
        dst_port, set_dst_port: u16 = 2;
        /// The length field: header and payload, in bytes.
        total_len, set_total_len: u16 as usize = 4;
        /// The checksum field; zero means that there is none.
        checksum, set_checksum: u16 = CHECKSUM_AT;
        ..|packet| HEADER_LEN..packet.total_len()
    }
}

impl<T: AsRef<[u8]>> Packet<T> {
    /// Whether header and length field fit the buffer. No accessor panics afterwards.
    ///
    /// # Errors
    /// [`Reason::TransportHeaderInvalid`] if the buffer is shorter than the header or than the length field says, or
    /// that field is below 8.
    #[inline]
    pub fn check_len(&self) -> Result<(), Reason> {
        self.check_header()?;
        field::at_least(self.total_len(), HEADER_LEN, Reason::TransportHeaderInvalid)?;
        field::at_least(self.bytes().len(), self.total_len(), Reason::TransportHeaderInvalid)
    }

    /// Whether the 8 header bytes are there, for a first fragment or a quoted datagram whose payload is cut short.
    ///
    /// # Errors
    /// [`Reason::TransportHeaderInvalid`] if they are not.
    #[inline]
    pub fn check_header(&self) -> Result<(), Reason> {
        field::at_least(self.bytes().len(), HEADER_LEN, Reason::TransportHeaderInvalid)
    }

    /// Whether the checksum is right, or absent where that is allowed: over IPv4 only.
    pub fn verify_checksum(&self, src: IpAddr, dst: IpAddr) -> bool {
        if self.checksum() == 0 {
            return src.is_ipv4() && dst.is_ipv4();
        }
        !self.sum(src, dst) == 0
    }

    fn sum(&self, src: IpAddr, dst: IpAddr) -> u16 {
        let len = self.total_len();
        checksum::transport(src, dst, IpProtocol::UDP, len, within(self.bytes(), 0..len))
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Computes and writes the checksum, never zero.
    pub fn fill_checksum(&mut self, src: IpAddr, dst: IpAddr) {
        self.set_checksum(0);
        let sum = self.sum(src, dst);
        self.set_checksum(checksum::udp_nonzero(!sum));
    }
}

/// A datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repr<'a> {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Payload, at most [`PAYLOAD_LEN_MAX`] bytes; what does not fit is cut when emitting.
    pub payload: &'a [u8],
}

impl Repr<'_> {
    /// Bytes that [`Self::emit`] writes.
    #[must_use]
    pub const fn buffer_len(&self) -> usize {
        HEADER_LEN + self.payload.len()
    }

    /// Writes the datagram with its checksum.
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, packet: &mut Packet<T>, src: IpAddr, dst: IpAddr) {
        packet.set_src_port(self.src_port);
        packet.set_dst_port(self.dst_port);
        packet.set_total_len(field::length(self.buffer_len()));
        fill(packet.payload_mut(), self.payload);
        packet.fill_checksum(src, dst);
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;
    use std::vec;

    use proptest::prelude::*;

    use super::*;

    const SRC: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    const DST: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1));
    // 192.0.2.1:49152 -> 198.51.100.1:5060, "hi!".
    const BYTES: [u8; 11] = [0xc0, 0x00, 0x13, 0xc4, 0x00, 0x0b, 0xb6, 0x73, b'h', b'i', b'!'];
    const REPR: Repr<'_> = Repr { src_port: 49152, dst_port: 5060, payload: b"hi!" };

    #[test]
    fn deconstruct() {
        let packet = Packet::new_checked(&BYTES[..]).unwrap();
        assert_eq!((packet.src_port(), packet.dst_port()), (49152, 5060));
        assert_eq!((packet.total_len(), packet.checksum()), (11, 0xb673));
        assert_eq!(packet.payload(), b"hi!");
        assert!(packet.verify_checksum(SRC, DST));
    }

    #[test]
    fn construct() {
        let mut packet = Packet::new_unchecked([0xa5; 11]);
        packet.set_src_port(49152);
        packet.set_dst_port(5060);
        packet.set_total_len(11);
        packet.payload_mut().copy_from_slice(b"hi!");
        packet.fill_checksum(SRC, DST);
        assert_eq!(packet.into_inner(), BYTES);
    }

    #[test]
    fn a_changed_datagram_has_a_wrong_checksum() {
        let mut wrong = BYTES;
        wrong[9] ^= 1;
        assert!(!Packet::new_checked(&wrong[..]).unwrap().verify_checksum(SRC, DST));
    }

    #[test]
    fn emit() {
        let mut bytes = vec![0xa5; REPR.buffer_len()];
        REPR.emit(&mut Packet::new_unchecked(&mut bytes[..]), SRC, DST);
        assert_eq!(bytes, BYTES);
    }

    #[test]
    fn impossible_length() {
        for len in 0..BYTES.len() {
            assert_eq!(Packet::new_checked(&BYTES[..len]), Err(Reason::TransportHeaderInvalid));
        }
        let mut short = BYTES;
        short[5] = 7;
        assert_eq!(Packet::new_checked(&short[..]), Err(Reason::TransportHeaderInvalid));
    }

    #[test]
    fn bytes_behind_the_length_field_are_no_payload() {
        let mut padded = [0xee; 20];
        padded[..11].copy_from_slice(&BYTES);
        let packet = Packet::new_checked(&padded[..]).unwrap();
        assert_eq!(packet.payload(), b"hi!");
        assert!(packet.verify_checksum(SRC, DST));
    }

    #[test]
    fn an_absent_checksum_is_accepted_over_ipv4_only() {
        let mut bytes = BYTES;
        bytes[6..8].copy_from_slice(&[0, 0]);
        let packet = Packet::new_checked(&bytes[..]).unwrap();
        assert!(packet.verify_checksum(SRC, DST));
        let v6 = "2001:db8::1".parse().unwrap();
        assert!(!packet.verify_checksum(v6, v6));
    }

    proptest! {
        #[test]
        fn emitted_datagrams_say_what_they_were_made_of(src_port: u16, dst_port: u16, src: u128, dst: u128,
            payload in proptest::collection::vec(any::<u8>(), 0..300)) {
            let repr = Repr { src_port, dst_port, payload: &payload };
            let (src, dst) = (IpAddr::V6(src.into()), IpAddr::V6(dst.into()));
            let mut bytes = vec![0; repr.buffer_len()];
            repr.emit(&mut Packet::new_unchecked(&mut bytes[..]), src, dst);
            let packet = Packet::new_checked(&bytes[..]).unwrap();
            prop_assert_eq!((packet.src_port(), packet.dst_port(), packet.payload()), (src_port, dst_port, &payload[..]));
            prop_assert!(packet.verify_checksum(src, dst));
        }
    }
}
