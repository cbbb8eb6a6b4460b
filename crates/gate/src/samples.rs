//! Grants, services and packets for the tests.

use sluicegate_capability::{ANY_PORTS, Grant, GrantId, Mode, Protocol};
use sluicegate_policy::{Outbound, ServiceMode};
use sluicegate_store::feed::{FeedService, GrantDelta};
use sluicegate_wire::UnixTime;
use std::net::{IpAddr, Ipv4Addr};

pub(crate) const GATE_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1));
pub(crate) const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 7));
pub(crate) const TARGET: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
/// Not before and not after of every sample grant.
pub(crate) const VALID: (UnixTime, UnixTime) = (UnixTime(1_900_000_000), UnixTime(1_900_003_600));

/// A UDP grant of the call `number`.
pub(crate) fn grant(number: u8) -> Grant {
    Grant {
        flags: 0,
        least_mode: Mode::Pinhole,
        protocol: Protocol::UDP,
        id: GrantId::of_call([number; 12], 0),
        issuer: [9; 8],
        epoch: 0,
        not_before: VALID.0,
        not_after: VALID.1,
        bytes: 1_000_000,
        client_id: 0,
        flows: 4,
        rate_100kbps: 0,
        client_address: CLIENT,
        client_ports: ANY_PORTS,
        gate_address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        gate_ports: (0, 0),
        holder: [0; 32],
        user_pseudonym: [0; 8],
    }
}

/// The grant on its way to the service "web" at [`TARGET`], port 5004.
pub(crate) fn delta(grant: Grant) -> GrantDelta {
    GrantDelta {
        body: grant.encode(),
        user: "alice".into(),
        service: "web".into(),
        target: TARGET,
        target_ports: (5004, 5004),
        mode: ServiceMode::Nat,
    }
}

/// A NAT service at [`TARGET`].
pub(crate) fn service(name: &str) -> FeedService {
    FeedService {
        name: name.into(),
        mode: ServiceMode::Nat,
        address: TARGET,
        ports: Vec::new(),
        outbound: Outbound::None,
        sip: None,
    }
}
