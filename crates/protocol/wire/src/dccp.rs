//! DCCP (RFC 4340): the header that all its packets have.

use core::net::IpAddr;

use crate::{
    IpProtocol, Reason, checksum,
    field::{self, fill, packet_view, put, u8_at},
};

/// Bytes of the shortest header, with sequence numbers of 24 bits.
pub const HEADER_LEN_MIN: usize = 12;
/// Bytes of the header with sequence numbers of 48 bits.
pub const HEADER_LEN: usize = 16;

const CHECKSUM_AT: usize = 6;

/// The type of a packet (RFC 4340 5.1). Every number of four bits is valid; types from 10 on are reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Type(pub u8);

impl Type {
    /// Opens a connection.
    pub const REQUEST: Self = Self(0);
    /// Answers a request.
    pub const RESPONSE: Self = Self(1);
    /// Data.
    pub const DATA: Self = Self(2);
    /// An acknowledgement.
    pub const ACK: Self = Self(3);
    /// Data with an acknowledgement.
    pub const DATA_ACK: Self = Self(4);
    /// A server asks for the end.
    pub const CLOSE_REQ: Self = Self(5);
    /// Ends the connection.
    pub const CLOSE: Self = Self(6);
    /// Ends it at once, or answers a close.
    pub const RESET: Self = Self(7);
    /// Finds the sequence numbers again.
    pub const SYNC: Self = Self(8);
    /// Answers that.
    pub const SYNC_ACK: Self = Self(9);
}

packet_view! {
    /// A DCCP packet: all of the buffer, as long as the IP header says.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Packet {
        /// The source port.
        src_port: u16 = 0;
        /// The destination port.
        dst_port: u16 = 2;
    }
}

impl<T: AsRef<[u8]>> Packet<T> {
    /// Whether the header fits the buffer and the checksum covers nothing beyond it. No accessor panics afterwards.
    ///
    /// # Errors
    /// [`Reason::TransportHeaderInvalid`].
    #[inline]
    pub fn check_len(&self) -> Result<(), Reason> {
        self.check_header()?;
        field::at_least(self.bytes().len(), self.coverage(), Reason::TransportHeaderInvalid)
    }

    /// As [`Self::check_len`], for a first fragment whose payload is cut short.
    ///
    /// # Errors
    /// [`Reason::TransportHeaderInvalid`].
    #[inline]
    pub fn check_header(&self) -> Result<(), Reason> {
        field::at_least(self.bytes().len(), HEADER_LEN_MIN, Reason::TransportHeaderInvalid)?;
        // RFC 4340 5.1: requests and the like have long sequence numbers, and the data offset counts the header in.
        let kind = self.kind();
        let is_data = matches!(kind, Type::DATA | Type::ACK | Type::DATA_ACK);
        let is_long = u8_at(self.bytes(), 8) & 1 != 0;
        if kind.0 > Type::SYNC_ACK.0 || !(is_long || is_data) {
            return Err(Reason::TransportHeaderInvalid);
        }
        let header_len = if is_long { HEADER_LEN } else { HEADER_LEN_MIN };
        field::at_least(self.data_offset(), header_len, Reason::TransportHeaderInvalid)?;
        field::at_least(self.bytes().len(), self.data_offset(), Reason::TransportHeaderInvalid)
    }

    /// Where the payload starts, in bytes.
    #[inline]
    pub fn data_offset(&self) -> usize {
        usize::from(u8_at(self.bytes(), 4)) * 4
    }

    /// How many bytes the checksum covers (RFC 4340 9.2): header and options, and of the payload what the field says.
    #[inline]
    pub fn coverage(&self) -> usize {
        match u8_at(self.bytes(), 5) & 0x0f {
            0 => self.bytes().len(),
            words => self.data_offset() + (usize::from(words) - 1) * 4,
        }
    }

    /// What it is.
    #[inline]
    pub fn kind(&self) -> Type {
        Type(u8_at(self.bytes(), 8) >> 1 & 0x0f)
    }

    /// Whether the checksum is right.
    pub fn verify_checksum(&self, src: IpAddr, dst: IpAddr) -> bool {
        !self.sum(src, dst) == 0
    }

    fn sum(&self, src: IpAddr, dst: IpAddr) -> u16 {
        let bytes = self.bytes();
        let covered = bytes.get(..self.coverage()).unwrap_or(bytes);
        checksum::transport(src, dst, IpProtocol::DCCP, bytes.len(), covered)
    }
}

/// A packet with a sequence number of 48 bits and whatever follows it: acknowledgement, service code, options, data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repr<'a> {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// What it is.
    pub kind: Type,
    /// Sequence number, 48 bits.
    pub seq: u64,
    /// What of `rest` belongs to the header, in bytes: a multiple of 4.
    pub header_rest_len: usize,
    /// What follows the sequence number.
    pub rest: &'a [u8],
}

impl Repr<'_> {
    /// Bytes that [`Self::emit`] writes.
    #[must_use]
    pub const fn buffer_len(&self) -> usize {
        HEADER_LEN + self.rest.len()
    }

    /// Writes the packet with its checksum, which covers all of it.
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, packet: &mut Packet<T>, src: IpAddr, dst: IpAddr) {
        let bytes = packet.buffer.as_mut();
        put(bytes, 0, &self.src_port.to_be_bytes());
        put(bytes, 2, &self.dst_port.to_be_bytes());
        let offset = ((HEADER_LEN + self.header_rest_len) / 4) as u8;
        put(bytes, 4, &[offset, 0, 0, 0]);
        put(bytes, 8, &(self.seq & 0xffff_ffff_ffff).to_be_bytes());
        put(bytes, 8, &[self.kind.0 << 1 | 1, 0]);
        fill(bytes.get_mut(HEADER_LEN..).unwrap_or_default(), self.rest);
        let checksum = !packet.sum(src, dst);
        put(packet.buffer.as_mut(), CHECKSUM_AT, &checksum.to_be_bytes());
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
    // A request from 192.0.2.1:49152 to 198.51.100.1:5001 for the service "RTPA".
    const BYTES: [u8; 20] = [0xc0, 0, 0x13, 0x89, 5, 0, 0x97, 0x6d, 1, 0, 0, 0, 0, 0, 0, 7, b'R', b'T', b'P', b'A'];
    const REPR: Repr<'_> =
        Repr { src_port: 49152, dst_port: 5001, kind: Type::REQUEST, seq: 7, header_rest_len: 4, rest: b"RTPA" };

    #[test]
    fn deconstruct() {
        let packet = Packet::new_checked(&BYTES[..]).unwrap();
        assert_eq!((packet.src_port(), packet.dst_port(), packet.kind()), (49152, 5001, Type::REQUEST));
        assert_eq!((packet.data_offset(), packet.coverage()), (20, 20));
        assert!(packet.verify_checksum(SRC, DST));
    }

    #[test]
    fn a_changed_packet_has_a_wrong_checksum() {
        let mut wrong = BYTES;
        wrong[19] ^= 1;
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
        // Data offset inside the header and behind the packet, coverage behind the packet, a reserved type, a short
        // sequence number of a request.
        for (at, value) in [(4, 3), (4, 6), (5, 2), (8, 10 << 1 | 1), (8, 0)] {
            let mut wrong = BYTES;
            wrong[at] = value;
            assert_eq!(Packet::new_checked(&wrong[..]), Err(Reason::TransportHeaderInvalid), "{at} {value}");
        }
    }

    #[test]
    fn data_with_a_short_sequence_number_is_a_packet() {
        let bytes = [0xc0, 0, 0x13, 0x89, 3, 0, 0, 0, Type::DATA.0 << 1, 0, 0, 1];
        assert_eq!(Packet::new_checked(&bytes[..]).unwrap().kind(), Type::DATA);
    }

    proptest! {
        #[test]
        fn emitted_packets_say_what_they_were_made_of(src_port: u16, dst_port: u16, src: u128, dst: u128, kind in 0_u8..10,
            seq in 0_u64..1 << 48, words in 0_usize..20, data in proptest::collection::vec(any::<u8>(), 80..300)) {
            let repr = Repr { src_port, dst_port, kind: Type(kind), seq, header_rest_len: words * 4, rest: &data };
            let (src, dst) = (IpAddr::V6(src.into()), IpAddr::V6(dst.into()));
            let mut bytes = vec![0; repr.buffer_len()];
            repr.emit(&mut Packet::new_unchecked(&mut bytes[..]), src, dst);
            let packet = Packet::new_checked(&bytes[..]).unwrap();
            prop_assert_eq!((packet.src_port(), packet.dst_port(), packet.kind()), (src_port, dst_port, Type(kind)));
            prop_assert_eq!((packet.data_offset(), &bytes[HEADER_LEN..]), (HEADER_LEN + words * 4, &data[..]));
            prop_assert_eq!(&bytes[10..HEADER_LEN], &seq.to_be_bytes()[2..]);
            prop_assert!(packet.verify_checksum(src, dst));
        }
    }
}
