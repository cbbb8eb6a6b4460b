//! The same lab in either version of IP.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use clap::ValueEnum;
use sluicegate_site::{
    LabError, Prefix,
    topology::{Plan, prefix},
};

/// An IP version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Family {
    /// IPv4.
    #[default]
    #[value(name = "4")]
    V4,
    /// IPv6.
    #[value(name = "6")]
    V6,
}

/// The first half of every IPv6 network of a lab; the IPv4 address that it stands for is the second.
const UNIQUE_LOCAL: u16 = 0xfd00;
/// Bits of that half.
const UNIQUE_LOCAL_LEN: u8 = 32;

impl Family {
    /// The address that stands for this one: in IPv6 the first of a /64 of its own, as each user of the Internet has.
    pub(super) fn address(self, address: Ipv4Addr) -> IpAddr {
        let [a, b, c, d] = address.octets();
        let (high, low) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        match self {
            Self::V4 => address.into(),
            Self::V6 => Ipv6Addr::new(UNIQUE_LOCAL, 0, high, low, 0, 0, 0, 1).into(),
        }
    }

    /// The network that stands for this one.
    ///
    /// # Errors
    /// If the text is no prefix.
    pub(super) fn prefix(self, text: &str) -> Result<Prefix, LabError> {
        Ok(self.of(prefix(text)?))
    }

    /// The lab with these addresses.
    pub(super) fn plan(self, plan: Plan) -> Plan {
        plan.with_addresses(|prefix| self.of(prefix))
    }

    fn of(self, prefix: Prefix) -> Prefix {
        match (self, prefix) {
            (Self::V6, Prefix::V4(prefix)) => {
                Prefix::new_assert(self.address(prefix.addr()), UNIQUE_LOCAL_LEN + prefix.prefix_len())
            }
            _ => prefix,
        }
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_site::nth;

    use super::*;

    #[test]
    fn every_host_of_an_ipv6_lab_has_a_network_of_its_own() {
        let of = |text: &str| Family::V6.prefix(text).unwrap();
        assert_eq!(of("10.30.0.1/30").to_string(), "fd00:0:a1e:1::1/62");
        assert!(of("10.30.0.1/30").contains(&of("10.30.0.2/32")));
        assert!(!of("10.30.0.1/30").contains(&of("10.30.0.4/32")));
        assert_eq!(nth(of("10.3.1.0/26"), 5), Family::V6.address(Ipv4Addr::new(10, 3, 1, 5)));
        assert!(of("0.0.0.0/0").contains(&of("10.70.0.2/24").addr()));
        assert_eq!(Family::V4.prefix("10.3.1.0/26").unwrap().to_string(), "10.3.1.0/26");
    }
}
