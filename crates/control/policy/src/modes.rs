//! Which data mode a client's packets can have.

use sluicegate_grant::DataMode;

use crate::PortProtocol;

/// The data mode of packets of `protocol` from a client that can prove as much as `client`: packet MACs are for UDP,
/// agents send capabilities for UDP and TCP, and what else there is proves nothing but its address.
#[must_use]
pub const fn data_mode(client: DataMode, protocol: PortProtocol) -> DataMode {
    match (client, protocol) {
        (DataMode::Capability, PortProtocol::Udp | PortProtocol::Tcp) => DataMode::Capability,
        (DataMode::Mac, PortProtocol::Udp) => DataMode::Mac,
        _ => DataMode::Pinhole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_proves_what_client_and_protocol_both_can() {
        let all = [PortProtocol::Udp, PortProtocol::Tcp, PortProtocol::Icmp];
        assert_eq!(all.map(|protocol| data_mode(DataMode::Pinhole, protocol)), [DataMode::Pinhole; 3]);
        assert_eq!(
            all.map(|protocol| data_mode(DataMode::Mac, protocol)),
            [DataMode::Mac, DataMode::Pinhole, DataMode::Pinhole]
        );
        let capable = [DataMode::Capability, DataMode::Capability, DataMode::Pinhole];
        assert_eq!(all.map(|protocol| data_mode(DataMode::Capability, protocol)), capable);
    }
}
