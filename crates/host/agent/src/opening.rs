//! What a grant opened: which address and port of the gate stands for which port of the service.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use sluicegate_grant::DataMode;
use sluicegate_policy::{PortProtocol, PortRange};

use crate::seal::Sealer;

/// One range of the service's ports and where the gate offers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OpenRange {
    /// The service's own ports.
    pub(crate) service: PortRange,
    /// The gate's address.
    pub(crate) address: IpAddr,
    /// The gate's port that stands for the first port of `service`; the others follow in order.
    pub(crate) external_first: u16,
    /// What the sender's capabilities name it by; 0 if the frontend sent no grant.
    pub(crate) client_id: u32,
    /// The least that packets have to prove.
    pub(crate) mode: DataMode,
    /// Seals datagrams, where the grant demands packet MACs.
    pub(crate) seal: Option<Arc<Sealer>>,
}

/// Where to send traffic for one port of the service, as whom, and with what proof.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reach {
    /// The gate's address and port, or the service's own if the gate only filters.
    pub(crate) address: SocketAddr,
    /// The client id of the grant; 0 without one.
    pub(crate) client_id: u32,
    /// What seals datagrams, and proves where they come from; `None` if nothing need.
    pub(crate) seal: Option<Arc<Sealer>>,
}

/// Everything one sign-in opened.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Opening {
    /// The open ranges, in the order of the session description.
    pub(crate) ranges: Vec<OpenRange>,
    /// How often this host's address has changed since.
    pub(crate) moves: u32,
}

impl Opening {
    /// Whether something is open at this address and port of a gate.
    pub(crate) fn is_at(&self, gate: SocketAddr) -> bool {
        self.ranges.iter().any(|range| {
            let ports =
                range.external_first..=range.external_first.saturating_add(range.service.last - range.service.first);
            range.address == gate.ip() && ports.contains(&gate.port())
        })
    }

    /// Where to send traffic for `port` of the service; `None` if the grant does not cover it.
    #[must_use]
    pub(crate) fn reach(&self, protocol: PortProtocol, port: u16) -> Option<Reach> {
        let covers = |range: &&OpenRange| {
            range.service.protocol == protocol && (range.service.first..=range.service.last).contains(&port)
        };
        let range = self.ranges.iter().find(covers)?;
        let external = range.external_first.checked_add(port - range.service.first)?;
        let address = SocketAddr::new(range.address, external);
        Some(Reach { address, client_id: range.client_id, seal: range.seal.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str, external_first: u16) -> OpenRange {
        OpenRange {
            service: text.parse().unwrap(),
            address: "192.0.2.1".parse().unwrap(),
            external_first,
            client_id: 9,
            mode: DataMode::Pinhole,
            seal: None,
        }
    }

    #[test]
    fn ports_keep_their_order_inside_a_range() {
        let opening = Opening { ranges: vec![range("tcp/22", 31_000), range("udp/5004-5010", 25_000)], moves: 0 };
        let reach = Reach { address: "192.0.2.1:25002".parse().unwrap(), client_id: 9, seal: None };
        assert_eq!(opening.reach(PortProtocol::Udp, 5006), Some(reach));
        assert_eq!(opening.reach(PortProtocol::Tcp, 5006), None);
        assert_eq!(opening.reach(PortProtocol::Udp, 5011), None);
    }
}
