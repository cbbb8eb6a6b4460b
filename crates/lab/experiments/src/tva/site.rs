//! The lab of the live experiment: three neighbours, two routers, a gate, a bottleneck, a service and a colluder.

use std::net::Ipv4Addr;

use sluicegate_site::{
    LabError,
    topology::{Host, Plan},
};

/// The service, an unmodified host.
pub(super) const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 70, 0, 2);
pub(super) const SERVICE_PORT: u16 = 80;
/// Another destination behind the same bottleneck, in league with the attackers. No host's kernel has this address.
pub(super) const COLLUDER: Ipv4Addr = Ipv4Addr::new(10, 61, 0, 2);
/// Hosts that run a daemon of ours, or forward packets as plain routers.
pub(super) const NODES: [&str; 5] = ["edge", "r1", "r2", "gate", "edge-s"];
/// Honest hosts of the third neighbour, and honest hosts behind the first one, which spoofs.
pub(super) const USERS: &str = "10.3.0.0/16";
pub(super) const USERS_BEHIND_SPOOFER: &str = "10.4.0.0/16";
/// The attackers' prefixes: behind the first and the second neighbour.
pub(super) const ATTACKERS: [&str; 2] = ["10.41.0.0/16", "10.42.0.0/16"];

/// Delay of the bottleneck in each direction: a round trip of 20 ms.
pub(super) const DELAY_US: u64 = 10_000;

/// Clients behind a neighbour each, two routers, a gate; behind the bottleneck a service with an edge box, and a
/// colluder.
///
/// ```text
/// users ── edge ── r1 ─┐
/// a1 ── n1 ────────────┼─ ix ── r2 ── gate ── link ── site ─┬─ edge-s ── service
/// users-1 ── edge-1 ┘  │                                    └─ colluder
/// a2 ── n2 ────────────┘
/// ```
pub(super) fn plan() -> Result<Plan, LabError> {
    let hosts = vec![
        Host::with_routes("users", &[(USERS, "itself"), ("0.0.0.0/0", "10.30.0.1")])?,
        Host::with_routes("edge", &[(USERS, "10.30.0.2"), ("0.0.0.0/0", "10.31.0.1")])?,
        Host::with_routes("r1", &[(USERS, "10.31.0.2"), ("0.0.0.0/0", "10.40.0.1")])?,
        Host::with_routes("ix", &[])?.switching(),
        Host::with_routes(
            "n1",
            &[(ATTACKERS[0], "10.41.255.2"), (USERS_BEHIND_SPOOFER, "10.32.0.2"), ("0.0.0.0/0", "10.40.0.1")],
        )?
        .forwarding(),
        Host::with_routes("n2", &[(ATTACKERS[1], "10.42.255.2"), ("0.0.0.0/0", "10.40.0.1")])?.forwarding(),
        Host::with_routes("a1", &[("0.0.0.0/0", "10.41.255.1")])?,
        Host::with_routes("a2", &[("0.0.0.0/0", "10.42.255.1")])?,
        Host::with_routes("users-1", &[(USERS_BEHIND_SPOOFER, "itself"), ("0.0.0.0/0", "10.33.0.1")])?,
        Host::with_routes("edge-1", &[(USERS_BEHIND_SPOOFER, "10.33.0.2"), ("0.0.0.0/0", "10.32.0.1")])?,
        Host::with_routes(
            "r2",
            &[
                (USERS, "10.40.0.3"),
                (USERS_BEHIND_SPOOFER, "10.40.0.11"),
                (ATTACKERS[0], "10.40.0.11"),
                (ATTACKERS[1], "10.40.0.12"),
                ("0.0.0.0/0", "10.50.0.2"),
            ],
        )?,
        Host::with_routes(
            "gate",
            &[("10.70.0.0/24", "10.60.0.2"), ("10.61.0.0/24", "10.60.0.9"), ("0.0.0.0/0", "10.50.0.1")],
        )?,
        Host::with_routes("link", &[])?,
        Host::with_routes("site", &[])?.switching(),
        Host::with_routes("edge-s", &[("0.0.0.0/0", "10.60.0.1")])?,
        Host::with_routes("colluder", &[("0.0.0.0/0", "10.60.0.1")])?,
        Host::with_routes("service", &[("0.0.0.0/0", "10.70.0.1")])?,
    ];
    let wires = [
        ("users:eth0 10.30.0.2/30", "edge:lan 10.30.0.1/30"),
        ("edge:wan 10.31.0.2/30", "r1:lan 10.31.0.1/30"),
        ("r1:wan 10.40.0.3/24", "ix:r1"),
        ("n1:wan 10.40.0.11/24", "ix:n1"),
        ("n2:wan 10.40.0.12/24", "ix:n2"),
        ("a1:eth0 10.41.255.2/24", "n1:lan 10.41.255.1/24"),
        ("a2:eth0 10.42.255.2/24", "n2:lan 10.42.255.1/24"),
        ("users-1:eth0 10.33.0.2/30", "edge-1:lan 10.33.0.1/30"),
        ("edge-1:wan 10.32.0.2/30", "n1:edge 10.32.0.1/30"),
        ("r2:wan 10.40.0.1/24", "ix:r2"),
        ("r2:down 10.50.0.1/30", "gate:wan 10.50.0.2/30"),
        ("gate:down 10.60.0.1/24", "link:up"),
        ("link:down", "site:link"),
        ("edge-s:wan 10.60.0.2/24", "site:edge"),
        ("colluder:eth0 10.60.0.9/24", "site:col"),
        ("edge-s:lan 10.70.0.1/24", "service:eth0 10.70.0.2/24"),
    ];
    Plan::of(hosts, &wires)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_end_of_a_wire_is_a_host_and_every_daemon_has_one() {
        let plan = plan().unwrap();
        let is_host = |name: &str| plan.hosts.iter().any(|host| host.name == name);
        assert!(plan.wires.iter().flat_map(|wire| &wire.ends).all(|end| is_host(&end.host)));
        assert!(NODES.iter().all(|name| is_host(name)));
    }
}
