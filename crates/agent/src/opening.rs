//! What a grant opened: which address and port of the gate stands for which port of the service.

use std::net::{IpAddr, SocketAddr};

use sluicegate_policy::{PortProtocol, PortRange};

/// One range of the service's ports and where the gate offers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OpenRange {
    /// The service's own ports.
    pub(crate) service: PortRange,
    /// The gate's address.
    pub(crate) address: IpAddr,
    /// The gate's port that stands for the first port of `service`; the others follow in order.
    pub(crate) external_first: u16,
}

/// Everything one sign-in opened.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Opening {
    /// The open ranges, in the order of the session description.
    pub(crate) ranges: Vec<OpenRange>,
}

impl Opening {
    /// Where to send traffic for `port` of the service; `None` if the grant does not cover it.
    #[must_use]
    pub(crate) fn address(&self, protocol: PortProtocol, port: u16) -> Option<SocketAddr> {
        let range = self.ranges.iter().find(|range| {
            range.service.protocol == protocol && (range.service.first..=range.service.last).contains(&port)
        })?;
        let external = range.external_first.checked_add(port - range.service.first)?;
        Some(SocketAddr::new(range.address, external))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str, external_first: u16) -> OpenRange {
        OpenRange { service: text.parse().unwrap(), address: "192.0.2.1".parse().unwrap(), external_first }
    }

    #[test]
    fn ports_keep_their_order_inside_a_range() {
        let opening = Opening { ranges: vec![range("tcp/22", 31_000), range("udp/5004-5010", 25_000)] };
        assert_eq!(opening.address(PortProtocol::Udp, 5006), Some("192.0.2.1:25002".parse().unwrap()));
        assert_eq!(opening.address(PortProtocol::Tcp, 5006), None);
        assert_eq!(opening.address(PortProtocol::Udp, 5011), None);
    }
}
