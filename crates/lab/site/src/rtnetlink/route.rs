use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use super::{
    Netlink,
    message::{CREATE, Message, REPLACE},
};

const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_NEWNEIGH: u16 = 28;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
/// No duplicate address detection: the address works at once.
const IFA_F_NODAD: u8 = 0x02;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const TABLE_MAIN: u8 = 254;
const PROTOCOL_STATIC: u8 = 4;
const TABLE_LOCAL: u8 = 255;
const TYPE_UNICAST: u8 = 1;
const TYPE_LOCAL: u8 = 2;
const TYPE_BLACKHOLE: u8 = 6;
const SCOPE_UNIVERSE: u8 = 0;
const SCOPE_LINK: u8 = 253;
const SCOPE_HOST: u8 = 254;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NUD_PERMANENT: u16 = 0x80;

/// An address with the length of its network part, such as `10.0.0.1/24` or `fd00::1/64`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    /// The address.
    pub address: IpAddr,
    /// Bits of the network part.
    pub len: u8,
}

impl Prefix {
    /// A prefix; `None` if `len` is longer than the address.
    #[must_use]
    pub const fn new(address: IpAddr, len: u8) -> Option<Self> {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        if len > bits { None } else { Some(Self { address, len }) }
    }

    /// The prefix that holds this address alone.
    #[must_use]
    pub const fn host(address: IpAddr) -> Self {
        Self { address, len: if address.is_ipv4() { 32 } else { 128 } }
    }

    /// Whether `address` has the same network part.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.address.is_ipv4() == address.is_ipv4() && (bits(self.address) ^ bits(address)) & !self.host_mask() == 0
    }

    /// The `index`-th address of the network, counted round its size. In IPv6 a network of several /64 has one address
    /// in each, as so many users have.
    #[must_use]
    pub fn nth(&self, index: u64) -> IpAddr {
        let host = if !self.address.is_ipv4() && self.len < 64 { u128::from(index) << 64 | 1 } else { index.into() };
        self.with_host(host)
    }

    /// The network with its host part cleared.
    #[must_use]
    pub fn network(&self) -> Self {
        Self { address: self.with_host(0), len: self.len }
    }

    fn with_host(&self, host: u128) -> IpAddr {
        let mask = self.host_mask();
        let all = bits(self.address) & !mask | host & mask;
        if self.address.is_ipv4() { Ipv4Addr::from(all as u32).into() } else { Ipv6Addr::from(all).into() }
    }

    /// The bits of the host part.
    fn host_mask(&self) -> u128 {
        let width = if self.address.is_ipv4() { 32 } else { 128 };
        1u128.checked_shl(width - u32::from(self.len)).map_or(u128::MAX, |size| size - 1)
    }

    const fn family(&self) -> u8 {
        if self.address.is_ipv4() { AF_INET } else { AF_INET6 }
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.len)
    }
}

/// A text that is no [`Prefix`].
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is no address with a prefix length, such as 10.0.0.1/24")]
pub struct PrefixParseError(String);

impl FromStr for Prefix {
    type Err = PrefixParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let Some((address, len)) = text.split_once('/') else { return Some(Self::host(text.parse().ok()?)) };
            Self::new(address.parse().ok()?, len.parse().ok()?)
        };
        parse().ok_or_else(|| PrefixParseError(text.to_owned()))
    }
}

impl serde::Serialize for Prefix {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Prefix {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Where a route leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// To this neighbour, found by address among the connected networks.
    Via(IpAddr),
    /// Straight out of this interface (its index).
    Interface(u32),
    /// To this host itself, by this interface (its index): every address of the prefix is its own.
    Local(u32),
    /// Nowhere: packets are discarded without an answer.
    Blackhole,
}

impl Netlink {
    /// Gives an interface an address.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn add_address(&mut self, interface: u32, prefix: Prefix) -> io::Result<()> {
        let message = address_message(RTM_NEWADDR, CREATE | REPLACE, interface, prefix);
        self.request(message, &format!("adding address {prefix}"))
    }

    /// Takes an address from an interface.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn remove_address(&mut self, interface: u32, prefix: Prefix) -> io::Result<()> {
        self.request(address_message(RTM_DELADDR, 0, interface, prefix), &format!("removing address {prefix}"))
    }

    /// Adds or replaces a route.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn add_route(&mut self, prefix: Prefix, to: Destination) -> io::Result<()> {
        let message = route_message(RTM_NEWROUTE, CREATE | REPLACE, prefix, to);
        self.request(message, &format!("adding route {prefix} {to:?}"))
    }

    /// Removes a route.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn remove_route(&mut self, prefix: Prefix, to: Destination) -> io::Result<()> {
        self.request(route_message(RTM_DELROUTE, 0, prefix, to), &format!("removing route {prefix} {to:?}"))
    }

    /// Fixes a neighbour's Ethernet address, so that a flood causes no address resolution.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn add_neighbour(&mut self, interface: u32, address: IpAddr, mac: [u8; 6]) -> io::Result<()> {
        let mut fixed = [0; 12];
        fixed[0] = Prefix::host(address).family();
        fixed[4..8].copy_from_slice(&interface.to_ne_bytes());
        fixed[8..10].copy_from_slice(&NUD_PERMANENT.to_ne_bytes());
        let mut message = Message::new(RTM_NEWNEIGH, CREATE | REPLACE, &fixed);
        message.address(NDA_DST, address).attribute(NDA_LLADDR, &mac);
        self.request(message, &format!("adding neighbour {address}"))
    }
}

fn address_message(kind: u16, flags: u16, interface: u32, prefix: Prefix) -> Message {
    let mut fixed = [prefix.family(), prefix.len, IFA_F_NODAD, 0, 0, 0, 0, 0];
    fixed[4..8].copy_from_slice(&interface.to_ne_bytes());
    let mut message = Message::new(kind, flags, &fixed);
    message.address(IFA_LOCAL, prefix.address).address(IFA_ADDRESS, prefix.address);
    message
}

fn route_message(kind: u16, flags: u16, prefix: Prefix, to: Destination) -> Message {
    let is_v4 = prefix.address.is_ipv4();
    let (table, scope, route_type) = match to {
        Destination::Via(_) => (TABLE_MAIN, SCOPE_UNIVERSE, TYPE_UNICAST),
        Destination::Interface(_) => (TABLE_MAIN, if is_v4 { SCOPE_LINK } else { SCOPE_UNIVERSE }, TYPE_UNICAST),
        Destination::Local(_) => (TABLE_LOCAL, if is_v4 { SCOPE_HOST } else { SCOPE_UNIVERSE }, TYPE_LOCAL),
        Destination::Blackhole => (TABLE_MAIN, SCOPE_UNIVERSE, TYPE_BLACKHOLE),
    };
    let fixed = [prefix.family(), prefix.len, 0, 0, table, PROTOCOL_STATIC, scope, route_type, 0, 0, 0, 0];
    let mut message = Message::new(kind, flags, &fixed);
    message.address(RTA_DST, prefix.network().address);
    match to {
        Destination::Via(gateway) => {
            message.address(RTA_GATEWAY, gateway);
        }
        Destination::Interface(index) | Destination::Local(index) => {
            message.attribute(RTA_OIF, &index.to_ne_bytes());
        }
        Destination::Blackhole => {}
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_read_written_and_counted_round() {
        let prefix: Prefix = "198.18.3.7/15".parse().unwrap();
        assert_eq!(prefix.to_string(), "198.18.3.7/15");
        assert_eq!(prefix.network().to_string(), "198.18.0.0/15");
        assert_eq!(prefix.nth(1 << 17).to_string(), "198.18.0.0");
        assert!(prefix.contains("198.19.255.255".parse().unwrap()));
        assert!(!prefix.contains("198.20.0.0".parse().unwrap()));
        assert!(!prefix.contains("::1".parse().unwrap()));
        let several: Prefix = "2001:db8:0:40::1/58".parse().unwrap();
        assert_eq!(several.network().to_string(), "2001:db8:0:40::/58");
        assert_eq!(several.nth(65).to_string(), "2001:db8:0:41::1");
        assert_eq!("2001:db8::/64".parse::<Prefix>().unwrap().nth(65).to_string(), "2001:db8::41");
        let all: Prefix = "::/0".parse().unwrap();
        assert!(all.contains("2001:db8::1".parse().unwrap()));
    }

    #[test]
    fn a_prefix_longer_than_its_address_is_refused() {
        assert!("10.0.0.1/33".parse::<Prefix>().is_err());
        assert!("10.0.0/8".parse::<Prefix>().is_err());
        assert_eq!("fd00::1".parse::<Prefix>().unwrap().len, 128);
    }
}
