//! The lab of the experiment: a client's host for each way, a router that may translate, the gate, and the service.

use std::net::Ipv4Addr;

use strum::VariantArray as _;

use super::ways::Way;
use sluicegate_site::{
    Lab, LabError,
    topology::{Host, Plan},
};

pub(super) const GATE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
pub(super) const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 4, 0, 2);
/// The service's host past the gate.
pub(super) const BESIDE: Ipv4Addr = Ipv4Addr::new(10, 5, 0, 2);

/// ```text
/// forward ─┐
/// socks   ─┤        ┌── gate ── service
/// ...     ─┼─ core ─┤              │
/// nat     ─┘        └──────────────┘ beside
/// ```
pub(super) fn plan() -> Result<Plan, LabError> {
    let mut hosts = vec![
        Host::with_routes("core", &[])?.forwarding(),
        Host::with_routes("gate", &[("0.0.0.0/0", "203.0.113.254")])?,
        Host::with_routes("service", &[("0.0.0.0/0", "10.4.0.1"), ("198.19.0.0/24", "10.5.0.1")])?,
    ];
    let mut wires = vec![
        ("core:gate 203.0.113.254/24".to_owned(), "gate:outside 203.0.113.1/24".to_owned()),
        ("gate:inside 10.4.0.1/24".to_owned(), "service:eth0 10.4.0.2/24".to_owned()),
        ("core:beside 10.5.0.1/24".to_owned(), "service:beside 10.5.0.2/24".to_owned()),
    ];
    for way in Way::VARIANTS.iter().copied() {
        let (name, net) = (way.into_str(), net(way));
        hosts.push(Host::with_routes(name, &[("0.0.0.0/0", &format!("{net}.1"))])?);
        wires.push((format!("core:{name} {net}.1/24"), format!("{name}:eth0 {net}.2/24")));
    }
    Plan::of(hosts, &wires)
}

/// The network of a way's host, without its last number. Only the direct one is answered past the gate.
fn net(way: Way) -> String {
    if way == Way::Direct { "198.19.0".to_owned() } else { format!("198.18.{}", way as usize) }
}

/// Gives the host of a way its other address and takes the one it had: as a laptop that goes to another network.
pub(super) fn move_host(lab: &Lab, way: Way, turn: usize) -> Result<(), LabError> {
    let address = |turn: usize| format!("{}.{}/24", net(way), 2 + turn % 2);
    lab.host(way.into_str())?.set("net/ipv4/conf/all/promote_secondaries", "1")?;
    lab.run(way.into_str(), &["ip", "address", "add", &address(turn), "dev", "eth0"])?;
    lab.run(way.into_str(), &["ip", "address", "del", &address(turn + 1), "dev", "eth0"])?;
    Ok(())
}

/// The router translates these hosts from now on, to other addresses in each turn, and knows nothing of connections that
/// it translated before.
pub(super) fn translate(lab: &Lab, hosts: &[Way], turn: usize) -> Result<(), LabError> {
    let public = |way: Way, turn: usize| format!("203.0.113.{}", 10 + 2 * way as usize + turn % 2);
    let (mut zones, mut sources) = (String::new(), String::new());
    for way in hosts {
        let (name, address, zone) =
            (way.into_str(), public(*way, turn), 1 + turn * Way::VARIANTS.len() + *way as usize);
        zones += &format!("iifname {name} ct zone set {zone}\niifname gate ip daddr {address} ct zone set {zone}\n");
        sources += &format!("oifname gate ip saddr 198.18.{}.0/24 counter snat to {address}\n", *way as usize);
        lab.run("core", &["ip", "address", "replace", &format!("{address}/24"), "dev", "gate"])?;
        if turn > 0 {
            let old = format!("{}/24", public(*way, turn + 1));
            lab.run("core", &["ip", "address", "del", &old, "dev", "gate"])?;
        }
    }
    // Strangers' packets to a router at home end there.
    let rules = format!(
        "flush ruleset\ntable ip nat {{\n\
         chain zone {{\ntype filter hook prerouting priority raw\n{zones}}}\n\
         chain in {{\ntype filter hook input priority 0\niifname gate meta l4proto {{ tcp, udp }} drop\n}}\n\
         chain out {{\ntype nat hook postrouting priority srcnat\n{sources}}}\n}}\n"
    );
    lab.run("core", &["nft", &rules]).map(drop)
}

/// How many of the translated hosts have used their address of now.
pub(super) fn translated(lab: &Lab) -> Result<usize, LabError> {
    let rules = lab.run("core", &["nft", "list", "table", "ip", "nat"])?;
    Ok(rules.matches("counter packets ").count() - rules.matches("counter packets 0 ").count())
}

/// No host is translated any more.
pub(super) fn translate_nothing(lab: &Lab) -> Result<(), LabError> {
    lab.run("core", &["nft", "flush", "ruleset"]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_has_a_host_at_the_router() {
        assert_eq!([Way::Forward, Way::Native, Way::Nat].map(|way| way.into_str()), ["forward", "tun", "tun-nat"]);
        let plan = plan().unwrap();
        for way in Way::VARIANTS {
            assert!(plan.hosts.iter().any(|host| host.name == way.into_str()));
            let ends = plan.wires.iter().flat_map(|wire| &wire.ends);
            assert_eq!(ends.filter(|end| end.interface == way.into_str() && end.host == "core").count(), 1);
        }
    }
}
