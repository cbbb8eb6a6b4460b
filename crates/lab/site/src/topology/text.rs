//! Plans in a few lines: routes as `(prefix, next hop)`, the ends of a wire as `"host:interface address..."`.

use std::net::IpAddr;

use super::{End, Host, Plan, Via, Wire};
use crate::{LabError, Prefix};

impl Plan {
    /// A lab of these hosts and wires.
    ///
    /// # Errors
    /// [`LabError::Plan`] with the text that is no end of a wire.
    pub fn of<S: AsRef<str>>(hosts: Vec<Host>, wires: &[(S, S)]) -> Result<Self, LabError> {
        let wires = wires.iter().map(|(a, b)| Wire::between(a.as_ref(), b.as_ref())).collect::<Result<_, _>>()?;
        Ok(Self { hosts, wires })
    }
}

impl Host {
    /// A host with these routes; the next hop may be `itself` or `nowhere`.
    ///
    /// # Errors
    /// [`LabError::Plan`] with the text that is no prefix or no address.
    pub fn with_routes(name: &str, routes: &[(&str, &str)]) -> Result<Self, LabError> {
        routes.iter().try_fold(Self::new(name), |host, (to, next)| Ok(host.route(prefix(to)?, next_hop(next)?)))
    }
}

impl Wire {
    /// A wire between two ends, each `"host:interface address..."`; there may be no address, or several.
    ///
    /// # Errors
    /// [`LabError::Plan`] with the text that is no end.
    pub fn between(a: &str, b: &str) -> Result<Self, LabError> {
        Ok(Self { ends: [end(a)?, end(b)?] })
    }
}

fn end(text: &str) -> Result<End, LabError> {
    let (name, addresses) = text.split_once(' ').unwrap_or((text, ""));
    let (host, interface) = name.split_once(':').ok_or_else(|| LabError::Plan(format!("{text} names no interface")))?;
    let addresses = addresses.split_whitespace().map(prefix).collect::<Result<Vec<_>, _>>()?;
    Ok(End::new(host, interface, &addresses))
}

/// Reads a prefix of a plan.
///
/// # Errors
/// [`LabError::Plan`] with the text that is none.
pub fn prefix(text: &str) -> Result<Prefix, LabError> {
    let parsed = text.parse().or_else(|_| text.parse().map(|address: IpAddr| address.into()));
    parsed.map_err(|_| LabError::Plan(format!("`{text}` is no address with a prefix length, such as 10.0.0.1/24")))
}

/// Reads the next hop of a route.
pub(super) fn next_hop(text: &str) -> Result<Via, LabError> {
    match text {
        "itself" => Ok(Via::Itself),
        "nowhere" => Ok(Via::Blackhole),
        address => {
            let address = address.parse().map_err(|_| LabError::Plan(format!("{address} is no address")))?;
            Ok(Via::Gateway(address))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wire_has_as_many_addresses_as_its_ends_name() {
        let wire = Wire::between("gate:inside 10.4.0.1/24 2001:db8::1/64", "switch:gate").unwrap();
        let [a, b] = &wire.ends;
        assert_eq!((a.host.as_str(), a.interface.as_str(), a.addresses.len()), ("gate", "inside", 2));
        assert_eq!((b.host.as_str(), b.addresses.len()), ("switch", 0));
        for wrong in ["gate", "gate:inside 10.4.0.1/33", "gate:inside x/8"] {
            assert!(matches!(Wire::between(wrong, "b:eth0"), Err(LabError::Plan(_))), "{wrong}");
        }
    }

    #[test]
    fn a_prefix_longer_than_its_address_is_refused() {
        assert!(prefix("10.0.0.1/33").is_err());
        assert!(prefix("10.0.0/8").is_err());
        assert_eq!(prefix("fd00::1").unwrap().prefix_len(), 128);
    }

    #[test]
    fn a_next_hop_is_an_address_or_the_host_itself() {
        let host = Host::with_routes("a", &[("10.3.0.0/16", "itself"), ("0.0.0.0/0", "10.0.0.1")]).unwrap();
        assert_eq!(host.routes[0].1, Via::Itself);
        assert_eq!(host.routes[1].1, Via::Gateway(IpAddr::from([10, 0, 0, 1])));
        assert!(Host::with_routes("a", &[("0.0.0.0/0", "there")]).is_err());
    }
}
