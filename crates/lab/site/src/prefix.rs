use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

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
