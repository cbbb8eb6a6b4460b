use core::fmt;

use crate::{
    checksum::{Delta, udp_nonzero},
    field::{put, u16_at},
};

/// An IP protocol number, also used for IPv6 next headers. Every number is valid; the named ones are those that
/// Sluicegate treats specially.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IpProtocol(pub u8);

impl IpProtocol {
    /// IPv6 hop-by-hop options (RFC 8200 4.3).
    pub const HOP_BY_HOP: Self = Self(0);
    /// ICMP for IPv4 (RFC 792).
    pub const ICMP: Self = Self(1);
    /// TCP (RFC 9293).
    pub const TCP: Self = Self(6);
    /// UDP (RFC 768).
    pub const UDP: Self = Self(17);
    /// DCCP (RFC 4340).
    pub const DCCP: Self = Self(33);
    /// IPv6 routing header (RFC 8200 4.4).
    pub const IPV6_ROUTE: Self = Self(43);
    /// IPv6 fragment header (RFC 8200 4.5).
    pub const IPV6_FRAGMENT: Self = Self(44);
    /// Generic routing encapsulation (RFC 2784).
    pub const GRE: Self = Self(47);
    /// Encapsulating security payload (RFC 4303); opaque, so never walked.
    pub const ESP: Self = Self(50);
    /// Authentication header (RFC 4302); what it protects is opaque, so never walked either.
    pub const AUTHENTICATION: Self = Self(51);
    /// ICMP for IPv6 (RFC 4443).
    pub const ICMPV6: Self = Self(58);
    /// Nothing follows (RFC 8200 4.7).
    pub const NO_NEXT_HEADER: Self = Self(59);
    /// IPv6 destination options (RFC 8200 4.6).
    pub const DESTINATION_OPTIONS: Self = Self(60);
    /// SCTP (RFC 9260).
    pub const SCTP: Self = Self(132);
    /// UDP-Lite (RFC 3828).
    pub const UDPLITE: Self = Self(136);
    /// The native capability header (RFC 3692 experiment number).
    pub const CAPABILITY: Self = Self(253);

    /// Whether the first four bytes of the transport header are source and destination port.
    #[inline]
    #[must_use]
    pub const fn has_ports(self) -> bool {
        matches!(self, Self::TCP | Self::UDP | Self::SCTP | Self::UDPLITE | Self::DCCP)
    }

    /// Where the transport header has a checksum that covers addresses, and so changes with them.
    #[inline]
    #[must_use]
    pub const fn checksum(self) -> Checksum {
        match self {
            Self::UDP => Checksum::Optional(6),
            // RFC 3828 3.1: whatever is covered, the pseudo-header and the header are.
            Self::UDPLITE => Checksum::Nonzero(6),
            Self::TCP => Checksum::Plain(16),
            // RFC 4340 9.2: as UDP-Lite.
            Self::DCCP => Checksum::Plain(6),
            Self::ICMPV6 => Checksum::Plain(2),
            _ => Checksum::None,
        }
    }
}

/// A checksum of addresses, ports and more: where it stands in the transport header, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checksum {
    /// There is none that covers addresses.
    None,
    /// Any value, zero too.
    Plain(usize),
    /// Never zero.
    Nonzero(usize),
    /// Zero says that there is none.
    Optional(usize),
}

impl Checksum {
    /// Corrects it by `delta` in a transport header; one that was cut off is left alone.
    #[inline]
    pub fn adjust(self, transport: &mut [u8], delta: Delta) {
        let (Self::Plain(at) | Self::Nonzero(at) | Self::Optional(at)) = self else { return };
        if transport.len() < at + 2 {
            return;
        }
        let old = u16_at(transport, at);
        let new = match self {
            Self::Optional(_) => delta.apply_udp(old),
            Self::Nonzero(_) => udp_nonzero(delta.apply(old)),
            _ => delta.apply(old),
        };
        put(transport, at, &new.to_be_bytes());
    }
}

impl fmt::Display for IpProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ICMP => f.write_str("icmp"),
            Self::TCP => f.write_str("tcp"),
            Self::DCCP => f.write_str("dccp"),
            Self::GRE => f.write_str("gre"),
            Self::ESP => f.write_str("esp"),
            Self::AUTHENTICATION => f.write_str("ah"),
            Self::UDPLITE => f.write_str("udplite"),
            Self::UDP => f.write_str("udp"),
            Self::ICMPV6 => f.write_str("icmpv6"),
            Self::SCTP => f.write_str("sctp"),
            Self(number) => write!(f, "ip/{number}"),
        }
    }
}
