use core::{fmt, net::IpAddr, str::FromStr};

use crate::{TextError, text::serde_as_text};

/// A transport that a service can be reached by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PortProtocol {
    /// UDP.
    Udp,
    /// TCP.
    Tcp,
    /// ICMP or ICMPv6 echo, by the service's address family; has no ports.
    Icmp,
    /// UDP-Lite.
    UdpLite,
    /// DCCP.
    Dccp,
    /// GRE; this and what follows has no ports.
    Gre,
    /// IPsec's ESP.
    Esp,
    /// IPsec's AH, for `filter` services: it signs the addresses.
    Ah,
    /// Another IP protocol, by its number.
    Ip(u8),
}

/// All that have a name.
const NAMED: [(PortProtocol, &str, u8); 8] = [
    (PortProtocol::Udp, "udp", 17),
    (PortProtocol::Tcp, "tcp", 6),
    (PortProtocol::Icmp, "icmp", 1),
    (PortProtocol::UdpLite, "udplite", 136),
    (PortProtocol::Dccp, "dccp", 33),
    (PortProtocol::Gre, "gre", 47),
    (PortProtocol::Esp, "esp", 50),
    (PortProtocol::Ah, "ah", 51),
];
/// ICMP for IPv6, which has the name of that for IPv4.
const ICMPV6: u8 = 58;
/// What is no transport, IGMP, SCTP and capability headers: no gate opens them.
const NEVER: [u8; 9] = [0, 2, 43, 44, 59, 60, 132, 253, 255];

impl PortProtocol {
    /// The IP protocol number for a service at `address`.
    #[must_use]
    pub fn number(self, address: IpAddr) -> u8 {
        match self {
            Self::Icmp if address.is_ipv6() => ICMPV6,
            Self::Ip(number) => number,
            _ => NAMED.iter().find(|(known, ..)| *known == self).map_or(0, |(.., number)| *number),
        }
    }

    /// The protocol with this IP protocol number; `None` for what no service can be reached by.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        let number = if number == ICMPV6 { 1 } else { number };
        let named = NAMED.iter().find(|(.., known)| *known == number).map(|(protocol, ..)| *protocol);
        named.or_else(|| (!NEVER.contains(&number)).then_some(Self::Ip(number)))
    }

    /// The protocol of this name, such as `esp`; or, as people give it, of this number: `ip/89` or `89`.
    #[must_use]
    pub fn named(text: &str) -> Option<Self> {
        let named = NAMED.iter().find(|(_, name, _)| *name == text).map(|(protocol, ..)| *protocol);
        named.or_else(|| Self::from_number(text.strip_prefix("ip/").unwrap_or(text).parse().ok()?))
    }

    /// Whether it has ports.
    #[must_use]
    pub const fn has_ports(self) -> bool {
        matches!(self, Self::Udp | Self::Tcp | Self::UdpLite | Self::Dccp)
    }

    /// Whether its packets can pass with rewritten addresses.
    #[must_use]
    pub const fn is_translatable(self) -> bool {
        !matches!(self, Self::Ah)
    }
}

impl fmt::Display for PortProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, NAMED.iter().find(|(known, ..)| known == self)) {
            (Self::Ip(number), _) => write!(f, "ip/{number}"),
            (_, named) => f.write_str(named.map_or("", |(_, name, _)| name)),
        }
    }
}

/// One protocol and a range of its ports. Text form: `udp/5004-5100`, `tcp/22`, `icmp`, `esp`, `ip/89`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortRange {
    /// The protocol.
    pub protocol: PortProtocol,
    /// First port; 0 for what has none.
    pub first: u16,
    /// Last port, not below the first; 0 for what has none.
    pub last: u16,
}

impl PortRange {
    /// All of a protocol that has no ports.
    #[must_use]
    pub const fn whole(protocol: PortProtocol) -> Self {
        Self { protocol, first: 0, last: 0 }
    }

    /// Whether such a range can be: real ports in order, or none where there are none.
    #[must_use]
    pub const fn is_right(&self) -> bool {
        if self.protocol.has_ports() { self.first != 0 && self.first <= self.last } else { self.last == 0 }
    }

    /// One port.
    #[must_use]
    pub const fn single(protocol: PortProtocol, port: u16) -> Self {
        Self { protocol, first: port, last: port }
    }

    /// How many ports it covers.
    #[must_use]
    pub const fn len(&self) -> u32 {
        (self.last as u32 + 1).saturating_sub(self.first as u32)
    }

    /// Whether it covers no port: a range that ends before it begins.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.last < self.first
    }

    /// Whether all of `other` lies inside.
    #[must_use]
    pub fn contains(&self, other: &Self) -> bool {
        !other.is_empty() && self.protocol == other.protocol && self.first <= other.first && other.last <= self.last
    }

    /// Whether a port lies in both.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.protocol == other.protocol && self.first <= other.last && other.first <= self.last
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = self.protocol;
        match protocol.has_ports() {
            false => write!(f, "{protocol}"),
            true if self.first == self.last => write!(f, "{protocol}/{}", self.first),
            true => write!(f, "{protocol}/{}-{}", self.first, self.last),
        }
    }
}

const HINT: &str = "write \"udp/5004-5100\", \"tcp/22\", \"udplite/5004\", \"dccp/5001\", \"icmp\", \"gre\", \"esp\", \"ah\" or \"ip/89\", with ports from 1 to 65535, the lower one first";

impl FromStr for PortRange {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        let wrong = |hint| TextError::new(text, "port range", hint);
        let (protocol, ports) = text.split_once('/').map_or((text, None), |(protocol, ports)| (protocol, Some(ports)));
        let named = NAMED.iter().find(|(_, name, _)| *name == protocol).map(|(protocol, ..)| *protocol);
        match (protocol, named, ports) {
            ("sctp", ..) | ("ip", _, Some("132")) => Err(wrong("this version does not forward sctp")),
            ("ip", _, Some(number)) => match port(number).and_then(|number| u8::try_from(number).ok()) {
                Some(number) => match PortProtocol::from_number(number) {
                    Some(protocol @ PortProtocol::Ip(_)) => Ok(Self::whole(protocol)),
                    Some(_) => Err(wrong("this protocol has a name of its own: write that instead of its number")),
                    None => Err(wrong("this number is no transport that a service could be reached by")),
                },
                None => Err(wrong(HINT)),
            },
            (_, Some(protocol), None) if !protocol.has_ports() => Ok(Self::whole(protocol)),
            (_, Some(protocol), Some(ports)) if protocol.has_ports() => {
                let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
                let first = port(first).ok_or_else(|| wrong(HINT))?;
                let last = port(last).filter(|last| first <= *last).ok_or_else(|| wrong(HINT))?;
                Ok(Self { protocol, first, last })
            }
            _ => Err(wrong(HINT)),
        }
    }
}

/// A decimal number from 1 to 65535 without sign or leading zero.
fn port(text: &str) -> Option<u16> {
    (text.starts_with(|c: char| ('1'..='9').contains(&c))).then(|| text.parse().ok())?
}

serde_as_text!(PortRange, "a port range such as \"udp/5004-5100\", \"tcp/22\", \"icmp\" or \"esp\"");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_ranges_are_read_back() {
        for text in
            ["udp/5004-5100", "tcp/22", "udp/1-65535", "udplite/9", "dccp/5-6", "icmp", "gre", "esp", "ah", "ip/89"]
        {
            let range: PortRange = text.parse().unwrap();
            assert_eq!(range.to_string(), text);
            assert!(range.is_right());
            let service = "10.0.0.1".parse().unwrap();
            assert_eq!(PortProtocol::from_number(range.protocol.number(service)), Some(range.protocol));
        }
    }

    #[test]
    fn what_is_no_port_range_is_refused_with_an_example() {
        for text in [
            "",
            "udp",
            "udp/",
            "udp/0",
            "udp/70000",
            "udp/9-8",
            "udp/+9",
            "UDP/9",
            "udp/9-",
            "icmp/1",
            "gre/1",
            "ip",
            "ip/",
            "ip/300",
            "22",
            "udp/1-2-3",
        ] {
            let error = text.parse::<PortRange>().unwrap_err().to_string();
            assert!(error.contains("\"udp/5004-5100\""), "{text}: {error}");
        }
        assert_eq!(PortProtocol::named("esp"), PortProtocol::named("50"));
        assert_eq!(PortProtocol::named("ip/89"), Some(PortProtocol::Ip(89)));
        assert_eq!((PortProtocol::named("sctp"), PortProtocol::named("132")), (None, None));
        let error = |text: &str| text.parse::<PortRange>().unwrap_err().to_string();
        assert!(error("sctp/3868").contains("sctp") && error("ip/132").contains("sctp"));
        assert!(error("ip/50").contains("name of its own") && error("ip/44").contains("no transport"));
    }

    #[test]
    fn ranges_contain_and_overlap_only_within_a_protocol() {
        let range = |text: &str| text.parse::<PortRange>().unwrap();
        assert!(range("udp/10-20").contains(&range("udp/10-20")));
        assert!(!range("udp/10-20").contains(&range("udp/10-21")));
        assert!(!range("udp/10-20").contains(&range("tcp/12")));
        assert!(range("udp/10-20").overlaps(&range("udp/20-30")));
        assert!(!range("udp/10-20").overlaps(&range("udp/21-30")));
        assert!(range("icmp").contains(&range("icmp")));
        assert_eq!(range("udp/1-65535").len(), 65_535);
    }
}
