//! The lab of the experiment, and the files of its gate.

use std::net::Ipv4Addr;

use super::{CASES, Mutant};
use sluicegate_site::{
    LabError, NodeFile,
    topology::{Host, Plan},
};

pub(super) const GATE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
pub(super) const CLIENT: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 2);
pub(super) const STRANGER: Ipv4Addr = Ipv4Addr::new(198, 18, 2, 2);
pub(super) const REALM: &str = "example.net";

/// A service of the lab; both are on one host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Service {
    /// Its name, that of its mode, and the scheme in reports.
    pub(super) name: &'static str,
    pub(super) address: Ipv4Addr,
}

pub(super) const SERVICES: [Service; 2] = [
    Service { name: "nat", address: Ipv4Addr::new(10, 4, 0, 2) },
    Service { name: "filter", address: Ipv4Addr::new(192, 0, 2, 10) },
];

impl Service {
    pub(super) fn is_translated(self) -> bool {
        self == SERVICES[0]
    }
}

/// ```text
/// client   ─┐
///           ├─ core ── gate ── service
/// stranger ─┘
/// ```
pub(super) fn plan() -> Result<Plan, LabError> {
    let hosts = vec![
        Host::with_routes("client", &[("0.0.0.0/0", "198.18.1.1")])?,
        Host::with_routes("stranger", &[("0.0.0.0/0", "198.18.2.1")])?,
        Host::with_routes("core", &[("192.0.2.0/24", "203.0.113.1")])?.forwarding(),
        Host::with_routes("gate", &[("0.0.0.0/0", "203.0.113.254"), ("192.0.2.0/24", "10.4.0.2")])?,
        Host::with_routes("service", &[("0.0.0.0/0", "10.4.0.1")])?,
    ];
    let wires = [
        ("core:client 198.18.1.1/24", "client:eth0 198.18.1.2/24"),
        ("core:stranger 198.18.2.1/24", "stranger:eth0 198.18.2.2/24"),
        ("core:gate 203.0.113.254/24", "gate:outside 203.0.113.1/24"),
        ("gate:inside 10.4.0.1/24", "service:eth0 10.4.0.2/24 192.0.2.10/32"),
    ];
    Plan::of(hosts, &wires)
}

/// The file of the gate and its frontend.
pub(super) fn file(datapath: &str, mutant: Mutant) -> NodeFile {
    let mode = if mutant == Mutant::Observing { "observe" } else { "enforce" };
    let gate = format!("mode = \"{mode}\"\nlocal = [\"udp/5060\"]\n");
    let file = NodeFile::new("site").frontend(GATE.into(), REALM, "").gate(("outside", "inside"), datapath, &gate);
    SERVICES.into_iter().fold(file, |file, service| {
        let Service { name, address } = service;
        let ports: Vec<_> = CASES.iter().filter(|case| case.is_for(service)).map(|case| case.opens).collect();
        let more = format!("mode = \"{name}\"\nports = {ports:?}\nallow = [\"group:staff\"]\n");
        file.service(name, address, &more)
    })
}
