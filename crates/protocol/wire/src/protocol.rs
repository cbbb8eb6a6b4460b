use core::fmt;

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
    /// IPv6 routing header (RFC 8200 4.4).
    pub const IPV6_ROUTE: Self = Self(43);
    /// IPv6 fragment header (RFC 8200 4.5).
    pub const IPV6_FRAGMENT: Self = Self(44);
    /// Encapsulating security payload (RFC 4303); opaque, so never walked.
    pub const ESP: Self = Self(50);
    /// Authentication header (RFC 4302).
    pub const AUTHENTICATION: Self = Self(51);
    /// ICMP for IPv6 (RFC 4443).
    pub const ICMPV6: Self = Self(58);
    /// Nothing follows (RFC 8200 4.7).
    pub const NO_NEXT_HEADER: Self = Self(59);
    /// IPv6 destination options (RFC 8200 4.6).
    pub const DESTINATION_OPTIONS: Self = Self(60);
    /// SCTP (RFC 9260).
    pub const SCTP: Self = Self(132);
    /// The native capability header (RFC 3692 experiment number).
    pub const CAPABILITY: Self = Self(253);

    /// Whether the first four bytes of the transport header are source and destination port.
    #[inline]
    #[must_use]
    pub const fn has_ports(self) -> bool {
        matches!(self, Self::TCP | Self::UDP | Self::SCTP)
    }
}

impl fmt::Display for IpProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ICMP => f.write_str("icmp"),
            Self::TCP => f.write_str("tcp"),
            Self::UDP => f.write_str("udp"),
            Self::ICMPV6 => f.write_str("icmpv6"),
            Self::SCTP => f.write_str("sctp"),
            Self(number) => write!(f, "ip/{number}"),
        }
    }
}
