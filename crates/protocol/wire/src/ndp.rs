//! Neighbour discovery for IPv6 (RFC 4861) over Ethernet: solicitations and advertisements of neighbours and routers.

use core::net::{IpAddr, Ipv6Addr};

use crate::{
    Reason,
    field::{self, array, packet_view, put, u8_at, u16_at, u32_at},
    icmpv6::{self, Type},
};

mod option;
mod repr;
pub use option::{NdpOption, Options, Prefix, PrefixInformation};
pub use repr::{Repr, RouterAdvertisement, Target};

/// The hop limit of every valid message: it has crossed no router.
pub const HOP_LIMIT: u8 = 255;

/// What a message's validity depends on besides its own bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Envelope {
    /// Source address of the IP packet.
    pub src: Ipv6Addr,
    /// Destination address of the IP packet.
    pub dst: Ipv6Addr,
    /// Hop limit of the IP packet.
    pub hop_limit: u8,
}

/// The multicast address that solicitations for `target` are sent to (RFC 4291 2.7.1).
#[must_use]
pub const fn solicited_node(target: Ipv6Addr) -> Ipv6Addr {
    let low = target.to_bits() & 0x00ff_ffff;
    Ipv6Addr::from_bits(0xff02_0000_0000_0000_0000_0001_ff00_0000 | low)
}

/// The flags of a neighbour advertisement (RFC 4861 4.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Flags {
    /// The sender is a router.
    pub router: bool,
    /// The message answers a solicitation.
    pub solicited: bool,
    /// The message overrides what the receiver has cached.
    pub override_cache: bool,
}

packet_view! {
    /// A neighbour discovery message: the whole ICMPv6 message, as limited by the IP packet's length.
}

impl<T: AsRef<[u8]>> Packet<T> {
    /// Whether the fixed part of the message is there. No accessor panics afterwards.
    ///
    /// # Errors
    /// [`Reason::IcmpType`] if it is no neighbour discovery, [`Reason::TransportHeaderInvalid`] if it is too short.
    #[inline]
    pub fn check_len(&self) -> Result<(), Reason> {
        let len = self.bytes().len();
        field::at_least(len, icmpv6::HEADER_LEN, Reason::TransportHeaderInvalid)?;
        let fixed_len = fixed_len(self.kind()).ok_or(Reason::IcmpType)?;
        field::at_least(len, fixed_len, Reason::TransportHeaderInvalid)
    }

    /// The type.
    #[inline]
    pub fn kind(&self) -> Type {
        Type(u8_at(self.bytes(), 0))
    }

    /// The code; 0 in valid messages.
    #[inline]
    pub fn code(&self) -> u8 {
        u8_at(self.bytes(), 1)
    }

    /// The address that a neighbour message or redirect is about.
    #[inline]
    pub fn target(&self) -> Option<Ipv6Addr> {
        let has = matches!(self.kind(), Type::NEIGHBOR_SOLICITATION | Type::NEIGHBOR_ADVERTISEMENT | Type::REDIRECT);
        has.then(|| Ipv6Addr::from(array::<16>(self.bytes(), 8)))
    }

    /// The flags of a neighbour advertisement.
    #[inline]
    pub fn flags(&self) -> Option<Flags> {
        let byte = u8_at(self.bytes(), 4);
        let flags = Flags { router: byte & 0x80 != 0, solicited: byte & 0x40 != 0, override_cache: byte & 0x20 != 0 };
        (self.kind() == Type::NEIGHBOR_ADVERTISEMENT).then_some(flags)
    }

    /// The fixed fields of a router advertisement; options are not read.
    #[inline]
    pub fn router(&self) -> Option<RouterAdvertisement> {
        if self.kind() != Type::ROUTER_ADVERTISEMENT {
            return None;
        }
        let bytes = self.bytes();
        let flags = u8_at(bytes, 5);
        Some(RouterAdvertisement {
            hop_limit: u8_at(bytes, 4),
            managed: flags & 0x80 != 0,
            other_configuration: flags & 0x40 != 0,
            lifetime_s: u16_at(bytes, 6),
            reachable_ms: u32_at(bytes, 8),
            retransmit_ms: u32_at(bytes, 12),
            link_layer: None,
            mtu: None,
            prefix: None,
        })
    }

    /// The options: each is at least 8 bytes.
    #[inline]
    pub fn options(&self) -> Options<'_> {
        let fixed_len = fixed_len(self.kind()).unwrap_or(usize::MAX);
        Options::new(self.bytes().get(fixed_len..).unwrap_or_default())
    }

    /// Whether the ICMPv6 checksum is right.
    pub fn verify_checksum(&self, envelope: &Envelope) -> bool {
        let (src, dst) = (IpAddr::V6(envelope.src), IpAddr::V6(envelope.dst));
        icmpv6::Packet::new_unchecked(self.bytes()).verify_checksum(src, dst)
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Writes the type, and zero to code and the reserved bytes behind the checksum.
    #[inline]
    pub fn set_kind(&mut self, kind: Type) {
        let mut packet = icmpv6::Packet::new_unchecked(self.buffer.as_mut());
        packet.set_kind_and_code(kind, 0);
        packet.set_rest([0; 4]);
    }

    /// Writes the target of a neighbour message.
    #[inline]
    pub fn set_target(&mut self, target: Ipv6Addr) {
        put(self.buffer.as_mut(), 8, &target.octets());
    }

    /// Writes the flags of a neighbour advertisement.
    #[inline]
    pub fn set_flags(&mut self, flags: Flags) {
        let bit = |on: bool, bit: u8| if on { bit } else { 0 };
        let byte = bit(flags.router, 0x80) | bit(flags.solicited, 0x40) | bit(flags.override_cache, 0x20);
        put(self.buffer.as_mut(), 4, &[byte]);
    }

    /// Writes the fixed fields of a router advertisement.
    pub fn set_router(&mut self, router: &RouterAdvertisement) {
        let bit = |on: bool, bit: u8| if on { bit } else { 0 };
        let flags = bit(router.managed, 0x80) | bit(router.other_configuration, 0x40);
        let bytes = self.buffer.as_mut();
        put(bytes, 4, &[router.hop_limit, flags]);
        put(bytes, 6, &router.lifetime_s.to_be_bytes());
        put(bytes, 8, &router.reachable_ms.to_be_bytes());
        put(bytes, 12, &router.retransmit_ms.to_be_bytes());
    }

    /// What follows the fixed part, writable.
    #[inline]
    pub fn options_mut(&mut self) -> &mut [u8] {
        let start = fixed_len(self.kind()).unwrap_or(usize::MAX);
        self.buffer.as_mut().get_mut(start..).unwrap_or_default()
    }

    /// Computes and writes the ICMPv6 checksum.
    pub fn fill_checksum(&mut self, envelope: &Envelope) {
        let (src, dst) = (IpAddr::V6(envelope.src), IpAddr::V6(envelope.dst));
        icmpv6::Packet::new_unchecked(self.buffer.as_mut()).fill_checksum(src, dst);
    }
}

/// Bytes before the options; `None` for types that are no neighbour discovery.
#[inline]
const fn fixed_len(kind: Type) -> Option<usize> {
    match kind {
        Type::ROUTER_SOLICITATION => Some(8),
        Type::ROUTER_ADVERTISEMENT => Some(16),
        Type::NEIGHBOR_SOLICITATION | Type::NEIGHBOR_ADVERTISEMENT => Some(24),
        Type::REDIRECT => Some(40),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
