//! The start checks: a gate that could be walked around does not start.

use crate::{config::Config, error::StartError};
use sluicegate_datapath::{OWN_MAX, OwnAddress, Side};
use sluicegate_netlink::{Error, Rtnetlink};
use std::net::IpAddr;

/// One interface of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) up: bool,
    pub(crate) addresses: Vec<IpAddr>,
}

/// The interfaces of a host, as far as the checks look at them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Host {
    pub(crate) interfaces: Vec<Interface>,
}

impl Host {
    /// Reads the interfaces of this network namespace.
    pub(crate) fn read() -> Result<Self, Error> {
        let mut netlink = Rtnetlink::open()?;
        let mut interfaces = Vec::new();
        for link in netlink.links()? {
            let addresses = netlink.addresses(link.index)?.into_iter().map(|(address, _)| address).collect();
            interfaces.push(Interface { name: link.name, up: link.up, addresses });
        }
        Ok(Self { interfaces })
    }

    /// The addresses under which the gate's own host can be reached through the gate: as many as the device takes,
    /// those of its two interfaces first. Those of the inside interface are reached from inside alone.
    pub(crate) fn own_addresses(&self, config: &Config) -> Vec<OwnAddress> {
        let is_port = |interface: &&Interface| interface.name == config.outside || interface.name == config.inside;
        let ports = self.interfaces.iter().filter(is_port);
        let others = self.interfaces.iter().filter(|interface| !is_port(interface));
        let mut own: Vec<OwnAddress> = Vec::with_capacity(OWN_MAX);
        for interface in ports.chain(others) {
            let side = if interface.name == config.inside { Side::Inside } else { Side::Both };
            for address in interface.addresses.iter().copied().filter(|address| !address.is_loopback()) {
                if own.len() < OWN_MAX && !own.iter().any(|known| known.address == address) {
                    own.push(OwnAddress { address, side });
                }
            }
        }
        own
    }

    fn interface(&self, field: &'static str, name: &str) -> Result<&Interface, StartError> {
        let Some(interface) = self.interfaces.iter().find(|interface| interface.name == name) else {
            let present: Vec<&str> = self.interfaces.iter().map(|interface| interface.name.as_str()).collect();
            return Err(StartError::NoInterface { field, name: name.to_owned(), present: present.join(", ") });
        };
        if !interface.up {
            return Err(StartError::InterfaceDown(field, name.to_owned()));
        }
        Ok(interface)
    }

    /// Whether the configured interfaces and addresses are there.
    pub(crate) fn check(&self, config: &Config) -> Result<(), StartError> {
        self.interface("outside", &config.outside)?;
        let inside = self.interface("inside", &config.inside)?;
        for address in &config.addresses {
            if inside.addresses.contains(address) {
                return Err(StartError::AddressInside {
                    address: *address,
                    inside: config.inside.clone(),
                    outside: config.outside.clone(),
                });
            }
            if !self.interfaces.iter().any(|interface| interface.addresses.contains(address)) {
                return Err(StartError::AddressAbsent(*address, config.outside.clone()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> Host {
        let interface = |name: &str, up, address: &str| Interface {
            name: name.to_owned(),
            up,
            addresses: vec![address.parse().unwrap()],
        };
        Host {
            interfaces: vec![
                interface("lo", true, "127.0.0.1"),
                interface("out", true, "203.0.113.1"),
                interface("in", true, "10.0.0.1"),
                interface("off", false, "10.0.1.1"),
            ],
        }
    }

    fn config(outside: &str, inside: &str, address: &str) -> Config {
        let mut config = Config::new("g", outside, inside, "/nowhere");
        config.addresses = vec![address.parse().unwrap()];
        config
    }

    #[test]
    fn a_gate_between_two_present_interfaces_is_accepted() {
        assert!(host().check(&config("out", "in", "203.0.113.1")).is_ok());
    }

    #[test]
    fn an_absent_interface_is_named_with_those_that_exist() {
        let error = host().check(&config("eth7", "in", "203.0.113.1")).unwrap_err();
        assert!(matches!(error, StartError::NoInterface { field: "outside", .. }));
        let text = error.to_string();
        assert!(text.contains("eth7") && text.contains("lo, out, in, off"), "{text}");
    }

    #[test]
    fn an_interface_that_is_down_is_refused() {
        let error = host().check(&config("out", "off", "203.0.113.1")).unwrap_err();
        assert!(matches!(error, StartError::InterfaceDown("inside", _)));
    }

    #[test]
    fn an_external_address_must_be_on_the_host_and_not_inside() {
        let absent = host().check(&config("out", "in", "203.0.113.9")).unwrap_err();
        assert!(matches!(absent, StartError::AddressAbsent(..)));
        let inside = host().check(&config("out", "in", "10.0.0.1")).unwrap_err();
        assert!(matches!(inside, StartError::AddressInside { .. }));
        assert_eq!(inside.field(), Some("address"));
    }

    #[test]
    fn the_addresses_of_the_two_ports_come_first_and_are_never_too_many() {
        let mut host = host();
        let many = (0..200).map(|n| IpAddr::from([172, 16, 0, n])).collect();
        host.interfaces.insert(0, Interface { name: "docker0".into(), up: true, addresses: many });
        let own = host.own_addresses(&config("out", "in", "203.0.113.1"));
        assert_eq!(own.len(), OWN_MAX);
        let first = [("203.0.113.1", Side::Both), ("10.0.0.1", Side::Inside), ("172.16.0.0", Side::Both)];
        assert_eq!(own[..3], first.map(|(text, side)| OwnAddress { address: text.parse().unwrap(), side }));
        assert!(!own.iter().any(|own| own.address.is_loopback()));
    }

    #[test]
    fn this_host_has_a_loopback_interface() {
        let host = Host::read().unwrap();
        assert!(host.interfaces.iter().any(|interface| interface.name == "lo"));
    }
}
