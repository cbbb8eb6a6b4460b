//! The lab of the experiment with paths: two edge boxes, and between them two chains of routers that share nothing.

use std::net::Ipv4Addr;

use sluicegate_site::{
    Lab, LabError,
    topology::{Host, Plan, Via, prefix},
};

/// The two hosts that talk, which know nothing of capabilities.
pub(super) const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 30, 0, 2);
pub(super) const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 70, 0, 2);
/// Further addresses of the client's host.
pub(super) const USERS: &str = "10.3.0.0/16";
const CLIENTS: &str = "10.30.0.0/30";
const SERVICES: &str = "10.70.0.0/24";
/// Delay of each of the two emulated links in each direction.
pub(super) const DELAY_US: u64 = 10_000;

/// The routers of each chain, as a packet to the service meets them.
pub(super) const CHAIN_A: [&str; 3] = ["a1", "a2", "a3"];
pub(super) const CHAIN_B: [&str; 2] = ["b1", "b2"];

/// One of the chains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Chain {
    A,
    B,
}

impl Chain {
    pub(super) const fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    /// Its first router for packets to the service, and for those to the client.
    const fn ends(self) -> (Ipv4Addr, Ipv4Addr) {
        match self {
            Self::A => (Ipv4Addr::new(10, 32, 0, 2), Ipv4Addr::new(10, 35, 0, 2)),
            Self::B => (Ipv4Addr::new(10, 33, 0, 2), Ipv4Addr::new(10, 37, 0, 2)),
        }
    }
}

/// ```text
///                                ┌─ a1 ── a2 ── a3 ─┐
/// client ── edge ── near ── in ──┤                  ├── out ── gate ── far ── edge-s ── service
///                                └─ b1 ── b2 ───────┘
/// ```
///
/// `near` and `far` delay; `in` and `out` are plain routers that choose the chain.
pub(super) fn plan() -> Result<Plan, LabError> {
    let chain = |name: &str, next: &str, back: &str| {
        Host::with_routes(name, &[(USERS, back), (CLIENTS, back), ("0.0.0.0/0", next)])
    };
    let hosts = vec![
        Host::with_routes("client", &[(USERS, "itself"), ("0.0.0.0/0", "10.30.0.1")])?,
        Host::with_routes("edge", &[(USERS, "10.30.0.2"), ("0.0.0.0/0", "10.31.0.1")])?,
        Host::with_routes("near", &[])?,
        Host::with_routes("in", &[(USERS, "10.31.0.2"), (CLIENTS, "10.31.0.2"), (SERVICES, "10.32.0.2")])?.forwarding(),
        chain("a1", "10.34.0.2", "10.32.0.1")?,
        chain("a2", "10.34.0.6", "10.34.0.1")?,
        chain("a3", "10.35.0.1", "10.34.0.5")?,
        chain("b1", "10.36.0.2", "10.33.0.1")?,
        chain("b2", "10.37.0.1", "10.36.0.1")?,
        Host::with_routes("out", &[(USERS, "10.35.0.2"), (CLIENTS, "10.35.0.2"), (SERVICES, "10.50.0.2")])?
            .forwarding(),
        Host::with_routes("gate", &[(SERVICES, "10.60.0.2"), ("0.0.0.0/0", "10.50.0.1")])?,
        Host::with_routes("far", &[])?,
        Host::with_routes("edge-s", &[("0.0.0.0/0", "10.60.0.1")])?,
        Host::with_routes("service", &[("0.0.0.0/0", "10.70.0.1")])?,
    ];
    let wires = [
        ("client:eth0 10.30.0.2/30", "edge:lan 10.30.0.1/30"),
        ("edge:wan 10.31.0.2/30", "near:client"),
        ("near:service", "in:edge 10.31.0.1/30"),
        ("in:a 10.32.0.1/30", "a1:lan 10.32.0.2/30"),
        ("a1:wan 10.34.0.1/30", "a2:lan 10.34.0.2/30"),
        ("a2:wan 10.34.0.5/30", "a3:lan 10.34.0.6/30"),
        ("a3:wan 10.35.0.2/30", "out:a 10.35.0.1/30"),
        ("in:b 10.33.0.1/30", "b1:lan 10.33.0.2/30"),
        ("b1:wan 10.36.0.1/30", "b2:lan 10.36.0.2/30"),
        ("b2:wan 10.37.0.2/30", "out:b 10.37.0.1/30"),
        ("out:gate 10.50.0.1/30", "gate:wan 10.50.0.2/30"),
        ("gate:down 10.60.0.1/30", "far:client"),
        ("far:service", "edge-s:wan 10.60.0.2/30"),
        ("edge-s:lan 10.70.0.1/24", "service:eth0 10.70.0.2/24"),
    ];
    Plan::of(hosts, &wires)
}

/// Sends what goes to the service through this chain.
pub(super) fn requests_by(lab: &Lab, chain: Chain) -> Result<(), LabError> {
    lab.add_route("in", prefix(SERVICES)?, Via::Gateway(chain.ends().0.into()))
}

/// Sends what goes to the client through this chain.
pub(super) fn answers_by(lab: &Lab, chain: Chain) -> Result<(), LabError> {
    let next = Via::Gateway(chain.ends().1.into());
    [USERS, CLIENTS].into_iter().try_for_each(|to| lab.add_route("out", prefix(to)?, next))
}

/// Loses what goes to the service until a chain is chosen again.
pub(super) fn requests_nowhere(lab: &Lab) -> Result<(), LabError> {
    lab.add_route("in", prefix(SERVICES)?, Via::Blackhole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chains_share_no_router_and_every_end_of_a_wire_is_a_host() {
        let plan = plan().unwrap();
        let is_host = |name: &str| plan.hosts.iter().any(|host| host.name == name);
        assert!(plan.wires.iter().flat_map(|wire| &wire.ends).all(|end| is_host(&end.host)));
        assert!(CHAIN_A.iter().all(|name| is_host(name) && !CHAIN_B.contains(name)));
        assert_eq!(Chain::A.other().other(), Chain::A);
    }
}
