use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address with the length of its network part, such as `10.0.0.1/24` or `fd00::1/64`.
pub use ipnet::IpNet as Prefix;

/// The `index`-th address of the network, counted round its size. In IPv6 a network of several /64 has one address in
/// each, as so many users have.
#[must_use]
pub fn nth(prefix: Prefix, index: u64) -> IpAddr {
    match prefix {
        Prefix::V4(prefix) => (prefix.network() | Ipv4Addr::from_bits(index as u32) & prefix.hostmask()).into(),
        Prefix::V6(prefix) => {
            let host = if prefix.prefix_len() < 64 { u128::from(index) << 64 | 1 } else { index.into() };
            (prefix.network() | Ipv6Addr::from_bits(host) & prefix.hostmask()).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_read_written_and_counted_round() {
        let prefix: Prefix = "198.18.3.7/15".parse().unwrap();
        assert_eq!(prefix.to_string(), "198.18.3.7/15");
        assert_eq!(prefix.trunc().to_string(), "198.18.0.0/15");
        assert_eq!(nth(prefix, 1 << 17).to_string(), "198.18.0.0");
        assert!(prefix.contains(&"198.19.255.255".parse::<IpAddr>().unwrap()));
        assert!(!prefix.contains(&"198.20.0.0".parse::<IpAddr>().unwrap()));
        assert!(!prefix.contains(&"::1".parse::<IpAddr>().unwrap()));
        let several: Prefix = "2001:db8:0:40::1/58".parse().unwrap();
        assert_eq!(several.trunc().to_string(), "2001:db8:0:40::/58");
        assert_eq!(nth(several, 65).to_string(), "2001:db8:0:41::1");
        assert_eq!(nth("2001:db8::/64".parse().unwrap(), 65).to_string(), "2001:db8::41");
        let all: Prefix = "::/0".parse().unwrap();
        assert!(all.contains(&"2001:db8::1".parse::<IpAddr>().unwrap()));
    }
}
