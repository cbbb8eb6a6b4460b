use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Bottleneck, End, Host, Lab, Plan, Via, Wire};
use crate::{LabError, Prefix};

/// Sizes of a [`Site`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SiteOptions {
    /// Rate of the protected link, in both directions, bits a second.
    pub link_rate_bps: u64,
    /// Packets that wait before the protected link, in each direction.
    pub queue_packets: u32,
}

impl Default for SiteOptions {
    /// 5 Mbit/s with 60 packets: small, so that any laptop can overload it many times over.
    fn default() -> Self {
        Self { link_rate_bps: 5_000_000, queue_packets: 60 }
    }
}

/// The lab of the demo and the end-to-end tests.
///
/// ```text
/// alice bob phones mallory ─┐      ┌─ gate ───┐         ┌─ pbx   (nat service)
/// storm_a storm_b botnet ───┼─ core┤          ├link ══ lan┤
/// frontend ─────────────────┘      └─ bypass ─┘         └─ web   (filter service)
/// ```
///
/// `link` is the bottleneck in both directions. Every host has IPv4 and IPv6. `gate` forwards nothing until a gate
/// process runs in it; `bypass` is a plain router that can take its place, see [`Site::gate_off`].
#[derive(Debug)]
pub struct Site {
    /// The running lab.
    pub lab: Lab,
}

impl Site {
    /// Hosts with one wire to `core`, in the order of their addresses.
    pub const EDGE: [&'static str; 8] =
        ["alice", "bob", "phones", "mallory", "storm_a", "storm_b", "botnet", "frontend"];
    /// The gate's interface towards the Internet.
    pub const OUTSIDE: &'static str = "outside";
    /// The gate's interface towards the protected link.
    pub const INSIDE: &'static str = "inside";
    /// The gate host's own address.
    pub const GATE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 2);
    /// The own address of the plain router beside the gate.
    pub const BYPASS: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 6);
    /// The public address behind which the gate translates.
    pub const NAT: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 10);
    /// The private address of the `nat` service.
    pub const PBX: Ipv4Addr = Ipv4Addr::new(10, 4, 3, 2);
    /// The public address of the `filter` service.
    pub const WEB: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 66);
    /// The IPv6 address of the `filter` service.
    pub const WEB_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x66, 0, 0, 0, 0, 2);

    /// Sources that attackers spoof: the range for benchmarks (RFC 2544). No host of the lab answers to it.
    #[must_use]
    pub fn spoofed() -> Prefix {
        prefix(Ipv4Addr::new(198, 18, 0, 0).into(), 15)
    }

    /// Addresses of which the host `botnet` owns every one.
    #[must_use]
    pub fn botnet() -> Prefix {
        prefix(Ipv4Addr::new(198, 51, 101, 0).into(), 24)
    }

    /// Sources of the neighbours on a service's own wire, such as multicast reports of the router there. No forged
    /// packet from outside can carry them this far: routers do not forward link-local and unspecified sources.
    #[must_use]
    pub fn own_wire() -> Vec<Prefix> {
        let link_local = prefix(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0).into(), 10);
        vec![link_local, Prefix::host(Ipv6Addr::UNSPECIFIED.into())]
    }

    /// The address of a host in [`Site::EDGE`].
    ///
    /// # Errors
    /// [`LabError::Plan`] if it is none of them.
    pub fn address(host: &str) -> Result<Ipv4Addr, LabError> {
        Self::edge(host).map(|index| edge_v4(index, 2))
    }

    /// The IPv6 address of a host in [`Site::EDGE`].
    ///
    /// # Errors
    /// [`LabError::Plan`] if it is none of them.
    pub fn address_v6(host: &str) -> Result<Ipv6Addr, LabError> {
        Self::edge(host).map(|index| edge_v6(index, 2))
    }

    /// The plan of the lab.
    #[must_use]
    pub fn plan(options: SiteOptions) -> Plan {
        let mut plan = Plan { hosts: inner_hosts(), wires: inner_wires(options) };
        for (index, name) in (0u8..).zip(Self::EDGE) {
            let mut host = Host::new(name)
                .route(all_v4(), Via::Gateway(edge_v4(index, 1).into()))
                .route(all_v6(), Via::Gateway(edge_v6(index, 1).into()));
            if name == "botnet" {
                host = host.route(Self::botnet(), Via::Itself);
                plan.hosts[0].routes.push((Self::botnet(), Via::Gateway(edge_v4(index, 2).into())));
            }
            plan.hosts.push(host);
            plan.wires.push(Wire {
                ends: [
                    End::new("core", &format!("to_{name}"), &[edge_v4_prefix(index, 1), edge_v6_prefix(index, 1)]),
                    End::new(name, "eth0", &[edge_v4_prefix(index, 2), edge_v6_prefix(index, 2)]),
                ],
            });
        }
        plan
    }

    /// Builds the lab.
    ///
    /// # Errors
    /// As [`Plan::build`].
    pub fn build(options: SiteOptions) -> Result<Self, LabError> {
        Ok(Self { lab: Self::plan(options).build()? })
    }

    /// The site as it would be without a gate: all traffic goes by way of the plain router `bypass`, and the public
    /// address itself is on `pbx`. A gate process keeps running, aside.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn gate_off(&self) -> Result<(), LabError> {
        self.add_routes(&turns(BYPASS))?;
        self.add_routes(&public_on_pbx())
    }

    /// Leads all traffic by way of the gate again.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn gate_on(&self) -> Result<(), LabError> {
        for (host, prefix, via) in public_on_pbx() {
            self.lab.remove_route(host, prefix, via)?;
        }
        self.add_routes(&turns(GATE))
    }

    fn add_routes(&self, routes: &[Turn]) -> Result<(), LabError> {
        routes.iter().try_for_each(|(host, prefix, via)| self.lab.add_route(host, *prefix, *via))
    }

    fn edge(host: &str) -> Result<u8, LabError> {
        let index = Self::EDGE.iter().position(|name| *name == host);
        let index = index.and_then(|index| u8::try_from(index).ok());
        index.ok_or_else(|| {
            LabError::Plan(format!("{host} is no host at the edge; there are {}", Self::EDGE.join(", ")))
        })
    }
}

/// A route of a host.
type Turn = (&'static str, Prefix, Via);

/// One of the two ways between `core` and `link`: its addresses on either side.
#[derive(Clone, Copy)]
struct Way {
    outside_v4: Ipv4Addr,
    outside_v6: Ipv6Addr,
    inside_v4: Ipv4Addr,
    inside_v6: Ipv6Addr,
}

const GATE: Way = Way {
    outside_v4: Site::GATE,
    outside_v6: inner_v6(0x60, 2),
    inside_v4: Ipv4Addr::new(10, 4, 1, 1),
    inside_v6: inner_v6(0x61, 1),
};
const BYPASS: Way = Way {
    outside_v4: Site::BYPASS,
    outside_v6: inner_v6(0x67, 2),
    inside_v4: Ipv4Addr::new(10, 4, 4, 1),
    inside_v6: inner_v6(0x64, 1),
};

/// The routes that decide which way is taken.
fn turns(way: Way) -> Vec<Turn> {
    let v4 = |address: Ipv4Addr| Via::Gateway(address.into());
    let v6 = |address: Ipv6Addr| Via::Gateway(address.into());
    vec![
        ("core", Prefix::host(Site::NAT.into()), v4(way.outside_v4)),
        ("core", filter_v4(), v4(way.outside_v4)),
        ("core", filter_v6(), v6(way.outside_v6)),
        ("link", all_v4(), v4(way.inside_v4)),
        ("link", all_v6(), v6(way.inside_v6)),
    ]
}

/// The public address moved to the service that it stands for.
fn public_on_pbx() -> [Turn; 4] {
    let public = Prefix::host(Site::NAT.into());
    let v4 = |text: [u8; 4]| Via::Gateway(Ipv4Addr::from(text).into());
    [
        ("bypass", public, v4([10, 4, 4, 2])),
        ("link", public, v4([10, 4, 2, 2])),
        ("lan", public, v4(Site::PBX.octets())),
        ("pbx", public, Via::Itself),
    ]
}

fn inner_hosts() -> Vec<Host> {
    let v4 = |text: [u8; 4]| Via::Gateway(Ipv4Addr::from(text).into());
    let v6 = |net: u16, host: u16| Via::Gateway(inner_v6(net, host).into());
    let pbx_v4 = prefix(Ipv4Addr::new(10, 4, 3, 0).into(), 30);
    let pbx_v6 = prefix(inner_v6(0x63, 0).into(), 64);
    let router = |name, outside_v4, outside_net, link_v4, link_net| {
        Host::new(name)
            .route(all_v4(), v4(outside_v4))
            .route(all_v6(), v6(outside_net, 1))
            .route(prefix(Ipv4Addr::new(10, 4, 0, 0).into(), 16), v4(link_v4))
            .route(filter_v4(), v4(link_v4))
            .route(filter_v6(), v6(link_net, 2))
            .route(pbx_v6, v6(link_net, 2))
    };
    let service = |name, gateway_v4, gateway_v6| {
        // A service must not answer the flood: its answers would be a second flood, and the lab would measure that.
        Host::new(name)
            .route(all_v4(), v4(gateway_v4))
            .route(all_v6(), v6(gateway_v6, 1))
            .route(Site::spoofed(), Via::Blackhole)
    };
    let mut hosts = vec![
        Host::new("core").forwarding().route(Site::spoofed(), Via::Blackhole),
        router("gate", [203, 0, 113, 1], 0x60, [10, 4, 1, 2], 0x61),
        router("bypass", [203, 0, 113, 5], 0x67, [10, 4, 4, 2], 0x64).forwarding(),
        Host::new("link")
            .forwarding()
            .route(pbx_v4, v4([10, 4, 2, 2]))
            .route(filter_v4(), v4([10, 4, 2, 2]))
            .route(filter_v6(), v6(0x62, 2))
            .route(pbx_v6, v6(0x62, 2)),
        Host::new("lan").forwarding().route(all_v4(), v4([10, 4, 2, 1])).route(all_v6(), v6(0x62, 1)),
        service("pbx", [10, 4, 3, 1], 0x63),
        service("web", [203, 0, 113, 65], 0x66),
    ];
    for (name, prefix, via) in turns(GATE) {
        hosts.iter_mut().filter(|host| host.name == name).for_each(|host| host.routes.push((prefix, via)));
    }
    hosts
}

fn inner_wires(options: SiteOptions) -> Vec<Wire> {
    let bottleneck = Bottleneck { rate_bps: options.link_rate_bps, queue_packets: options.queue_packets };
    let end = |host, interface, v4: [u8; 4], net, number| {
        let v4 = prefix(Ipv4Addr::from(v4).into(), 30);
        End::new(host, interface, &[v4, prefix(inner_v6(net, number).into(), 64)])
    };
    let mut gate = end("gate", Site::OUTSIDE, GATE.outside_v4.octets(), 0x60, 2);
    gate.addresses.push(Prefix::host(Site::NAT.into()));
    let (bypass_outside, bypass_inside) = (BYPASS.outside_v4.octets(), BYPASS.inside_v4.octets());
    vec![
        Wire { ends: [end("core", "to_gate", [203, 0, 113, 1], 0x60, 1), gate] },
        Wire {
            ends: [
                end("core", "to_bypass", [203, 0, 113, 5], 0x67, 1),
                end("bypass", Site::OUTSIDE, bypass_outside, 0x67, 2),
            ],
        },
        Wire {
            ends: [
                end("gate", Site::INSIDE, GATE.inside_v4.octets(), 0x61, 1),
                end("link", "to_gate", [10, 4, 1, 2], 0x61, 2).limited(bottleneck),
            ],
        },
        Wire {
            ends: [
                end("bypass", Site::INSIDE, bypass_inside, 0x64, 1),
                end("link", "to_bypass", [10, 4, 4, 2], 0x64, 2).limited(bottleneck),
            ],
        },
        Wire {
            ends: [
                end("link", "to_lan", [10, 4, 2, 1], 0x62, 1).limited(bottleneck),
                end("lan", "to_link", [10, 4, 2, 2], 0x62, 2),
            ],
        },
        Wire { ends: [end("lan", "to_pbx", [10, 4, 3, 1], 0x63, 1), end("pbx", "eth0", [10, 4, 3, 2], 0x63, 2)] },
        Wire {
            ends: [end("lan", "to_web", [203, 0, 113, 65], 0x66, 1), end("web", "eth0", [203, 0, 113, 66], 0x66, 2)],
        },
    ]
}

const fn filter_v4() -> Prefix {
    prefix(IpAddr::V4(Ipv4Addr::new(203, 0, 113, 64)), 30)
}

const fn filter_v6() -> Prefix {
    prefix(IpAddr::V6(inner_v6(0x66, 0)), 64)
}

const fn prefix(address: IpAddr, len: u8) -> Prefix {
    Prefix { address, len }
}

const fn all_v4() -> Prefix {
    prefix(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0)
}

const fn all_v6() -> Prefix {
    prefix(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0)
}

const fn inner_v6(net: u16, host: u16) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, net, 0, 0, 0, 0, host)
}

const fn edge_v4(index: u8, host: u8) -> Ipv4Addr {
    Ipv4Addr::new(198, 51, 100, index * 4 + host)
}

const fn edge_v6(index: u8, host: u16) -> Ipv6Addr {
    inner_v6(index as u16 + 1, host)
}

const fn edge_v4_prefix(index: u8, host: u8) -> Prefix {
    prefix(IpAddr::V4(edge_v4(index, host)), 30)
}

const fn edge_v6_prefix(index: u8, host: u16) -> Prefix {
    prefix(IpAddr::V6(edge_v6(index, host)), 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_interfaces_share_an_address() {
        let plan = Site::plan(SiteOptions::default());
        let mut addresses: Vec<_> = plan
            .wires
            .iter()
            .flat_map(|wire| &wire.ends)
            .flat_map(|end| &end.addresses)
            .map(|prefix| prefix.address)
            .collect();
        let all = addresses.len();
        addresses.sort_unstable();
        addresses.dedup();
        assert_eq!(addresses.len(), all);
    }

    #[test]
    fn every_wire_ends_at_hosts_of_the_plan() {
        let plan = Site::plan(SiteOptions::default());
        for end in plan.wires.iter().flat_map(|wire| &wire.ends) {
            assert!(plan.hosts.iter().any(|host| host.name == end.host), "{}", end.host);
            assert!(end.interface.len() < 16);
        }
    }
}
