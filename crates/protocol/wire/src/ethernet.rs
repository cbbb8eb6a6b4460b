//! Ethernet II frames (IEEE 802.3), with up to two VLAN tags (IEEE 802.1Q, 802.1ad) that are read, never written.

use core::fmt;

use crate::{
    Reason,
    field::{self, packet_view, put, u16_at},
};

/// Bytes of a header without tags.
pub const HEADER_LEN: usize = 14;
/// Bytes of one tag.
pub const TAG_LEN: usize = 4;
/// The most tags that a view looks through.
pub const TAGS_MAX: usize = 2;

/// A 48-bit hardware address.
pub type Address = [u8; 6];

/// The address of all stations.
pub const BROADCAST: Address = [0xff; 6];

/// What a frame carries. Every number is valid; the named ones are those that Sluicegate reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4.
    pub const IPV4: Self = Self(0x0800);
    /// ARP.
    pub const ARP: Self = Self(0x0806);
    /// A VLAN tag (802.1Q).
    pub const VLAN: Self = Self(0x8100);
    /// IPv6.
    pub const IPV6: Self = Self(0x86dd);
    /// A service VLAN tag (802.1ad).
    pub const SERVICE_VLAN: Self = Self(0x88a8);

    /// Whether a tag follows.
    #[inline]
    #[must_use]
    pub const fn is_tag(self) -> bool {
        matches!(self, Self::VLAN | Self::SERVICE_VLAN)
    }

    /// Whether the field is a type at all and not the length of an 802.3 frame.
    #[inline]
    #[must_use]
    pub const fn is_type(self) -> bool {
        self.0 >= 0x0600
    }
}

impl fmt::Display for EtherType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::IPV4 => f.write_str("ipv4"),
            Self::ARP => f.write_str("arp"),
            Self::IPV6 => f.write_str("ipv6"),
            Self(number) => write!(f, "ethertype/{number:04x}"),
        }
    }
}

packet_view! {
    /// An Ethernet frame without its check sequence.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Packet {
        /// The receiver's address.
        dst, set_dst: Address = 0;
        /// The sender's address.
        src, set_src: Address = 6;
        ..|packet| packet.header_len()..usize::MAX
    }
}

impl<T: AsRef<[u8]>> Packet<T> {
    /// Whether header and tags fit the buffer. No accessor panics afterwards.
    ///
    /// # Errors
    /// [`Reason::FrameTruncated`] if they do not.
    #[inline]
    pub fn check_len(&self) -> Result<(), Reason> {
        let len = self.bytes().len();
        field::at_least(len, HEADER_LEN, Reason::FrameTruncated)?;
        field::at_least(len, HEADER_LEN + TAG_LEN * self.tags_announced(), Reason::FrameTruncated)
    }

    /// How many of the first [`TAGS_MAX`] type fields announce a tag; bytes that are not there announce none.
    #[inline]
    fn tags_announced(&self) -> usize {
        let type_at = |at: usize| {
            let field = self.bytes().get(at..).and_then(|rest| rest.first_chunk());
            field.map_or(EtherType(0), |field| EtherType(u16::from_be_bytes(*field)))
        };
        match (type_at(12).is_tag(), type_at(12 + TAG_LEN).is_tag()) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => TAGS_MAX,
        }
    }

    /// How many tags there are, up to [`TAGS_MAX`].
    #[inline]
    pub fn tags(&self) -> usize {
        self.tags_announced()
    }

    /// Header and tags, in bytes.
    #[inline]
    pub fn header_len(&self) -> usize {
        HEADER_LEN + TAG_LEN * self.tags()
    }

    /// What the frame carries behind its tags. That is a tag again if there are more than [`TAGS_MAX`].
    #[inline]
    pub fn ethertype(&self) -> EtherType {
        EtherType(u16_at(self.bytes(), self.header_len() - 2))
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Writes the type of an untagged frame.
    #[inline]
    pub fn set_ethertype(&mut self, value: EtherType) {
        put(self.buffer.as_mut(), 12, &value.0.to_be_bytes());
    }
}

/// The header of an untagged frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repr {
    /// The receiver.
    pub dst: Address,
    /// The sender.
    pub src: Address,
    /// What the frame carries.
    pub ethertype: EtherType,
}

impl Repr {
    /// Reads a header.
    ///
    /// # Errors
    /// [`Reason::FrameTruncated`]; [`Reason::EthertypeUnsupported`] for tagged frames, because leaving the tag out
    /// would move a packet from one VLAN to another, and for 802.3 frames, which carry a length instead of a type.
    pub fn parse<T: AsRef<[u8]>>(packet: &Packet<T>) -> Result<Self, Reason> {
        packet.check_len()?;
        if packet.tags() > 0 || !packet.ethertype().is_type() {
            return Err(Reason::EthertypeUnsupported);
        }
        Ok(Self { dst: packet.dst(), src: packet.src(), ethertype: packet.ethertype() })
    }

    /// Bytes of the header that [`Self::emit`] writes.
    #[must_use]
    pub const fn buffer_len(&self) -> usize {
        HEADER_LEN
    }

    /// Writes the header.
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, packet: &mut Packet<T>) {
        packet.set_dst(self.dst);
        packet.set_src(self.src);
        packet.set_ethertype(self.ethertype);
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    const BYTES: [u8; 16] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00, 0x45, 0x00];
    const REPR: Repr = Repr { dst: [2, 0, 0, 0, 0, 1], src: [2, 0, 0, 0, 0, 2], ethertype: EtherType::IPV4 };

    /// The frame with these type fields and VLAN 5, 6, … behind each that announces a tag.
    fn tagged(types: &[u16]) -> Vec<u8> {
        let mut bytes = BYTES[..12].to_vec();
        for (index, ethertype) in types.iter().enumerate() {
            bytes.extend_from_slice(&ethertype.to_be_bytes());
            if EtherType(*ethertype).is_tag() {
                bytes.extend_from_slice(&[0xe0, 5 + index as u8]);
            }
        }
        bytes.extend_from_slice(&[0x45, 0x00]);
        bytes
    }

    #[test]
    fn deconstruct() {
        let packet = Packet::new_checked(&BYTES[..]).unwrap();
        assert_eq!((packet.dst(), packet.src(), packet.ethertype()), (REPR.dst, REPR.src, EtherType::IPV4));
        assert_eq!((packet.tags(), packet.header_len()), (0, 14));
        assert_eq!(packet.payload(), [0x45, 0x00]);
    }

    #[test]
    fn construct() {
        let mut packet = Packet::new_unchecked([0xa5; 16]);
        packet.set_dst(REPR.dst);
        packet.set_src(REPR.src);
        packet.set_ethertype(EtherType::IPV4);
        packet.payload_mut().copy_from_slice(&[0x45, 0x00]);
        assert_eq!(packet.into_inner(), BYTES);
    }

    #[test]
    fn parse() {
        assert_eq!(Repr::parse(&Packet::new_unchecked(&BYTES[..])), Ok(REPR));
        for types in [&[0x8100, 0x0800][..], &[0x05dc]] {
            let parsed = Repr::parse(&Packet::new_unchecked(tagged(types)));
            assert_eq!(parsed, Err(Reason::EthertypeUnsupported), "{types:x?}");
        }
    }

    #[test]
    fn emit() {
        let mut bytes = BYTES;
        bytes[..REPR.buffer_len()].fill(0xa5);
        REPR.emit(&mut Packet::new_unchecked(&mut bytes[..]));
        assert_eq!(bytes, BYTES);
    }

    #[test]
    fn impossible_length() {
        for len in 0..HEADER_LEN {
            assert_eq!(Packet::new_checked(&BYTES[..len]), Err(Reason::FrameTruncated));
        }
        let double = tagged(&[0x88a8, 0x8100, 0x0800]);
        for len in 0..HEADER_LEN + 2 * TAG_LEN {
            assert_eq!(Packet::new_checked(&double[..len]), Err(Reason::FrameTruncated), "{len} bytes");
        }
    }

    #[test]
    fn one_and_two_tags_are_looked_through() {
        let single = Packet::new_checked(tagged(&[0x8100, 0x86dd])).unwrap();
        assert_eq!((single.tags(), single.header_len()), (1, 18));
        assert_eq!((single.ethertype(), single.payload()), (EtherType::IPV6, &[0x45, 0x00][..]));
        let double = Packet::new_checked(tagged(&[0x88a8, 0x8100, 0x0800])).unwrap();
        assert_eq!((double.tags(), double.header_len()), (2, 22));
        assert_eq!((double.ethertype(), double.payload()), (EtherType::IPV4, &[0x45, 0x00][..]));
        let triple = Packet::new_checked(tagged(&[0x88a8, 0x8100, 0x8100, 0x0800])).unwrap();
        assert!(triple.ethertype().is_tag());
    }

    proptest! {
        #[test]
        fn emitted_headers_parse_to_the_same(dst: Address, src: Address, ethertype in 0x0600u16..) {
            let repr = Repr { dst, src, ethertype: EtherType(ethertype) };
            prop_assume!(!repr.ethertype.is_tag());
            let mut bytes = [0; HEADER_LEN];
            repr.emit(&mut Packet::new_unchecked(&mut bytes[..]));
            prop_assert_eq!(Repr::parse(&Packet::new_unchecked(&bytes[..])), Ok(repr));
        }
    }
}
