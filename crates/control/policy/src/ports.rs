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
}

impl PortProtocol {
    /// The IP protocol number for a service at `address`.
    #[must_use]
    pub const fn number(self, address: IpAddr) -> u8 {
        match (self, address) {
            (Self::Udp, _) => 17,
            (Self::Tcp, _) => 6,
            (Self::Icmp, IpAddr::V4(_)) => 1,
            (Self::Icmp, IpAddr::V6(_)) => 58,
        }
    }

    /// The name in configuration and logs.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
            Self::Icmp => "icmp",
        }
    }
}

/// One protocol and a range of its ports. Text form: `udp/5004-5100`, `tcp/22`, `icmp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortRange {
    /// The protocol.
    pub protocol: PortProtocol,
    /// First port; 0 for ICMP.
    pub first: u16,
    /// Last port, not below the first; 0 for ICMP.
    pub last: u16,
}

impl PortRange {
    /// ICMP echo.
    pub const ICMP: Self = Self { protocol: PortProtocol::Icmp, first: 0, last: 0 };

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
        let protocol = self.protocol.label();
        match self.protocol {
            PortProtocol::Icmp => f.write_str(protocol),
            _ if self.first == self.last => write!(f, "{protocol}/{}", self.first),
            _ => write!(f, "{protocol}/{}-{}", self.first, self.last),
        }
    }
}

const HINT: &str = "write \"udp/5004-5100\", \"tcp/22\" or \"icmp\", with ports from 1 to 65535, the lower one first";

impl FromStr for PortRange {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        let wrong = |hint| TextError::new(text, "port range", hint);
        if text == "icmp" {
            return Ok(Self::ICMP);
        }
        let (protocol, ports) = text.split_once('/').ok_or_else(|| wrong(HINT))?;
        let protocol = match protocol {
            "udp" => PortProtocol::Udp,
            "tcp" => PortProtocol::Tcp,
            "sctp" => return Err(wrong("this version forwards udp, tcp and icmp, but not sctp")),
            _ => return Err(wrong(HINT)),
        };
        let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
        let first = port(first).ok_or_else(|| wrong(HINT))?;
        let last = port(last).filter(|last| first <= *last).ok_or_else(|| wrong(HINT))?;
        Ok(Self { protocol, first, last })
    }
}

/// A decimal number from 1 to 65535 without sign or leading zero.
fn port(text: &str) -> Option<u16> {
    (text.starts_with(|c: char| ('1'..='9').contains(&c))).then(|| text.parse().ok())?
}

serde_as_text!(PortRange, "a port range such as \"udp/5004-5100\", \"tcp/22\" or \"icmp\"");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_ranges_are_read_back() {
        for text in ["udp/5004-5100", "tcp/22", "udp/1-65535", "icmp"] {
            assert_eq!(text.parse::<PortRange>().unwrap().to_string(), text);
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
            "22",
            "udp/1-2-3",
        ] {
            let error = text.parse::<PortRange>().unwrap_err().to_string();
            assert!(error.contains("\"udp/5004-5100\""), "{text}: {error}");
        }
        assert!("sctp/3868".parse::<PortRange>().unwrap_err().to_string().contains("not sctp"));
    }

    #[test]
    fn ranges_contain_and_overlap_only_within_a_protocol() {
        let range = |text: &str| text.parse::<PortRange>().unwrap();
        assert!(range("udp/10-20").contains(&range("udp/10-20")));
        assert!(!range("udp/10-20").contains(&range("udp/10-21")));
        assert!(!range("udp/10-20").contains(&range("tcp/12")));
        assert!(range("udp/10-20").overlaps(&range("udp/20-30")));
        assert!(!range("udp/10-20").overlaps(&range("udp/21-30")));
        assert!(PortRange::ICMP.contains(&PortRange::ICMP));
        assert_eq!(range("udp/1-65535").len(), 65_535);
    }
}
