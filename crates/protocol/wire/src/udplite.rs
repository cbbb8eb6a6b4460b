//! UDP-Lite (RFC 3828): UDP whose checksum may leave out the end of the payload.

use core::net::IpAddr;

use crate::{
    IpProtocol, Reason, checksum,
    field::{self, fill, packet_view, put, u16_at},
};

/// Bytes of the header.
pub const HEADER_LEN: usize = 8;

const COVERAGE_AT: usize = 4;
const CHECKSUM_AT: usize = 6;

packet_view! {
    /// A UDP-Lite datagram: all of the buffer, as long as the IP header says.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Packet {
        /// The source port.
        src_port, set_src_port: u16 = 0;
        /// The destination port.
        dst_port, set_dst_port: u16 = 2;
        /// The checksum field, never zero.
        checksum, set_checksum: u16 = CHECKSUM_AT;
        ..|_| HEADER_LEN..usize::MAX
    }
}

impl<T: AsRef<[u8]>> Packet<T> {
    /// Whether the header fits the buffer and the checksum covers it, and nothing beyond the buffer. No accessor panics
    /// afterwards.
    ///
    /// # Errors
    /// [`Reason::TransportHeaderInvalid`].
    #[inline]
    pub fn check_len(&self) -> Result<(), Reason> {
        self.check_header()?;
        field::at_least(self.bytes().len(), self.coverage(), Reason::TransportHeaderInvalid)
    }

    /// As [`Self::check_len`], for a first fragment or a quoted datagram whose payload is cut short.
    ///
    /// # Errors
    /// [`Reason::TransportHeaderInvalid`].
    #[inline]
    pub fn check_header(&self) -> Result<(), Reason> {
        field::at_least(self.bytes().len(), HEADER_LEN, Reason::TransportHeaderInvalid)?;
        // RFC 3828 3.1: a coverage of 1 to 7 is an error.
        field::at_least(self.coverage(), HEADER_LEN, Reason::TransportHeaderInvalid)
    }

    /// How many bytes the checksum covers, from the header's first on; all where the field is zero.
    #[inline]
    pub fn coverage(&self) -> usize {
        match u16_at(self.bytes(), COVERAGE_AT) {
            0 => self.bytes().len(),
            bytes => usize::from(bytes),
        }
    }

    /// Whether the checksum is right. It may not be absent.
    pub fn verify_checksum(&self, src: IpAddr, dst: IpAddr) -> bool {
        self.checksum() != 0 && !self.sum(src, dst) == 0
    }

    fn sum(&self, src: IpAddr, dst: IpAddr) -> u16 {
        let bytes = self.bytes();
        let covered = bytes.get(..self.coverage()).unwrap_or(bytes);
        checksum::transport(src, dst, IpProtocol::UDPLITE, bytes.len(), covered)
    }
}

/// A datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repr<'a> {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Bytes of the payload that the checksum covers.
    pub covered: usize,
    /// Payload.
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
        let is_whole = self.covered >= self.payload.len();
        let coverage = if is_whole { 0 } else { field::length(HEADER_LEN + self.covered) };
        packet.set_src_port(self.src_port);
        packet.set_dst_port(self.dst_port);
        put(packet.buffer.as_mut(), COVERAGE_AT, &coverage.to_be_bytes());
        packet.set_checksum(0);
        fill(packet.payload_mut(), self.payload);
        let checksum = checksum::udp_nonzero(!packet.sum(src, dst));
        packet.set_checksum(checksum);
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
    // 192.0.2.1:49152 -> 198.51.100.1:5060, "hi!!" of which two bytes are covered.
    const BYTES: [u8; 12] = [0xc0, 0x00, 0x13, 0xc4, 0x00, 0x0a, 0xd6, 0xfc, b'h', b'i', b'!', b'!'];
    const REPR: Repr<'_> = Repr { src_port: 49152, dst_port: 5060, covered: 2, payload: b"hi!!" };

    #[test]
    fn deconstruct() {
        let packet = Packet::new_checked(&BYTES[..]).unwrap();
        assert_eq!((packet.src_port(), packet.dst_port(), packet.coverage()), (49152, 5060, 10));
        assert_eq!(packet.payload(), b"hi!!");
        assert!(packet.verify_checksum(SRC, DST));
    }

    #[test]
    fn what_is_not_covered_may_change() {
        let mut changed = BYTES;
        changed[11] = b'?';
        assert!(Packet::new_checked(&changed[..]).unwrap().verify_checksum(SRC, DST));
        changed[9] ^= 1;
        assert!(!Packet::new_checked(&changed[..]).unwrap().verify_checksum(SRC, DST));
    }

    #[test]
    fn emit() {
        let mut bytes = vec![0xa5; REPR.buffer_len()];
        REPR.emit(&mut Packet::new_unchecked(&mut bytes[..]), SRC, DST);
        assert_eq!(bytes, BYTES);
    }

    #[test]
    fn impossible_length_and_coverage() {
        for len in 0..HEADER_LEN + 2 {
            assert_eq!(Packet::new_checked(&BYTES[..len]), Err(Reason::TransportHeaderInvalid));
        }
        for coverage in [1, 7, 13] {
            let mut wrong = BYTES;
            wrong[5] = coverage;
            assert_eq!(Packet::new_checked(&wrong[..]), Err(Reason::TransportHeaderInvalid));
        }
    }

    #[test]
    fn a_checksum_may_not_be_absent() {
        let mut bytes = BYTES;
        bytes[CHECKSUM_AT..HEADER_LEN].copy_from_slice(&[0, 0]);
        assert!(!Packet::new_checked(&bytes[..]).unwrap().verify_checksum(SRC, DST));
    }

    proptest! {
        #[test]
        fn emitted_datagrams_say_what_they_were_made_of(src_port: u16, dst_port: u16, src: u128, dst: u128, covered in 0_usize..300,
            payload in proptest::collection::vec(any::<u8>(), 0..300)) {
            let repr = Repr { src_port, dst_port, covered: covered.min(payload.len()), payload: &payload };
            let (src, dst) = (IpAddr::V6(src.into()), IpAddr::V6(dst.into()));
            let mut bytes = vec![0; repr.buffer_len()];
            repr.emit(&mut Packet::new_unchecked(&mut bytes[..]), src, dst);
            let packet = Packet::new_checked(&bytes[..]).unwrap();
            prop_assert_eq!((packet.src_port(), packet.dst_port(), packet.payload()), (src_port, dst_port, &payload[..]));
            prop_assert_eq!(packet.coverage(), HEADER_LEN + repr.covered);
            prop_assert!(packet.verify_checksum(src, dst));
        }
    }
}
