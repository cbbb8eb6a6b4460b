use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Bottleneck, Host, Lab, Plan, prefix, text::next_hop};
use crate::{LabError, Prefix};

const ALL: &str = "0.0.0.0/0";
const ALL_V6: &str = "::/0";
/// Where the public address behind which the gate translates leads.
const PUBLIC: &str = "203.0.113.10/32";
/// The networks of the two services.
const PBX_NET: &str = "10.4.3.0/30";
const PBX_NET_V6: &str = "2001:db8:63::/64";
const WEB_NET: &str = "203.0.113.64/30";
const WEB_NET_V6: &str = "2001:db8:66::/64";

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
    /// Sources that attackers spoof: the range for benchmarks (RFC 2544). No host of the lab answers to it.
    pub const SPOOFED: Prefix = Prefix::new_assert(IpAddr::V4(Ipv4Addr::new(198, 18, 0, 0)), 15);
    /// Addresses of which the host `botnet` owns every one.
    pub const BOTNET: Prefix = Prefix::new_assert(IpAddr::V4(Ipv4Addr::new(198, 51, 101, 0)), 24);
    /// The IPv6 address of the `filter` service.
    pub const WEB_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x66, 0, 0, 0, 0, 2);

    /// Sources of the neighbours on a service's own wire, such as multicast reports of the router there. No forged
    /// packet from outside can carry them this far: routers do not forward link-local and unspecified sources.
    #[must_use]
    pub fn own_wire() -> Vec<Prefix> {
        let link_local = Prefix::new_assert(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0).into(), 10);
        vec![link_local, IpAddr::from(Ipv6Addr::UNSPECIFIED).into()]
    }

    /// The address of a host in [`Site::EDGE`].
    ///
    /// # Errors
    /// [`LabError::Plan`] if it is none of them.
    pub fn address(host: &str) -> Result<Ipv4Addr, LabError> {
        Self::edge(host).map(|index| Ipv4Addr::new(198, 51, 100, index * 4 + 2))
    }

    /// The IPv6 address of a host in [`Site::EDGE`].
    ///
    /// # Errors
    /// [`LabError::Plan`] if it is none of them.
    pub fn address_v6(host: &str) -> Result<Ipv6Addr, LabError> {
        Self::edge(host).map(|index| Ipv6Addr::new(0x2001, 0xdb8, u16::from(index) + 1, 0, 0, 0, 0, 2))
    }

    /// The plan of the lab.
    ///
    /// # Errors
    /// [`LabError::Plan`] if a text in it is no address.
    pub fn plan(options: SiteOptions) -> Result<Plan, LabError> {
        let (mut hosts, mut wires) = (inner_hosts()?, inner_wires());
        for name in Self::EDGE {
            let (own, own_v6) = (Self::address(name)?, Self::address_v6(name)?);
            let (core, core_v6) = (own.to_bits() - 1, own_v6.to_bits() - 1);
            let (core, core_v6) = (Ipv4Addr::from_bits(core), Ipv6Addr::from_bits(core_v6));
            let mut host = Host::with_routes(name, &[(ALL, &core.to_string()), (ALL_V6, &core_v6.to_string())])?;
            if name == "botnet" {
                host = host.route(Self::BOTNET, next_hop("itself")?);
                hosts[0].routes.push((Self::BOTNET, next_hop(&own.to_string())?));
            }
            hosts.push(host);
            wires.push((format!("core:to_{name} {core}/30 {core_v6}/64"), format!("{name}:eth0 {own}/30 {own_v6}/64")));
        }
        let mut plan = Plan::of(hosts, &wires)?;
        let bottleneck = Bottleneck { rate_bps: options.link_rate_bps, queue_packets: options.queue_packets };
        let ends = plan.wires.iter_mut().flat_map(|wire| &mut wire.ends);
        ends.filter(|end| end.host == "link").for_each(|end| end.bottleneck = Some(bottleneck));
        Ok(plan)
    }

    /// Builds the lab.
    ///
    /// # Errors
    /// As [`Plan::build`].
    pub fn build(options: SiteOptions) -> Result<Self, LabError> {
        Ok(Self { lab: Self::plan(options)?.build()? })
    }

    /// The site as it would be without a gate: all traffic goes by way of the plain router `bypass`, and the public
    /// address itself is on `pbx`. A gate process keeps running, aside.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn gate_off(&self) -> Result<(), LabError> {
        self.add_routes(&BYPASS.routes())?;
        self.add_routes(&PUBLIC_ON_PBX)
    }

    /// Leads all traffic by way of the gate again.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn gate_on(&self) -> Result<(), LabError> {
        for (host, to, next) in PUBLIC_ON_PBX {
            self.lab.remove_route(host, prefix(to)?, next_hop(next)?)?;
        }
        self.add_routes(&GATE.routes())
    }

    fn add_routes(&self, routes: &[Turn]) -> Result<(), LabError> {
        routes.iter().try_for_each(|(host, to, next)| self.lab.add_route(host, prefix(to)?, next_hop(next)?))
    }

    fn edge(host: &str) -> Result<u8, LabError> {
        let index = Self::EDGE.iter().position(|name| *name == host);
        let index = index.and_then(|index| u8::try_from(index).ok());
        index.ok_or_else(|| {
            LabError::Plan(format!("{host} is no host at the edge; there are {}", Self::EDGE.join(", ")))
        })
    }
}

/// A route: the host that has it, where to, and its next hop.
type Turn = (&'static str, &'static str, &'static str);

/// One of the two ways between `core` and `link`: the addresses of the router on it, IPv4 and IPv6.
struct Way {
    outside: [&'static str; 2],
    inside: [&'static str; 2],
}

const GATE: Way = Way { outside: ["203.0.113.2", "2001:db8:60::2"], inside: ["10.4.1.1", "2001:db8:61::1"] };
const BYPASS: Way = Way { outside: ["203.0.113.6", "2001:db8:67::2"], inside: ["10.4.4.1", "2001:db8:64::1"] };

impl Way {
    /// The routes that decide that this way is taken.
    const fn routes(&self) -> [Turn; 5] {
        [
            ("core", PUBLIC, self.outside[0]),
            ("core", WEB_NET, self.outside[0]),
            ("core", WEB_NET_V6, self.outside[1]),
            ("link", ALL, self.inside[0]),
            ("link", ALL_V6, self.inside[1]),
        ]
    }
}

/// The public address moved to the service that it stands for.
const PUBLIC_ON_PBX: [Turn; 4] = [
    ("bypass", PUBLIC, "10.4.4.2"),
    ("link", PUBLIC, "10.4.2.2"),
    ("lan", PUBLIC, "10.4.3.2"),
    ("pbx", PUBLIC, "itself"),
];

fn inner_hosts() -> Result<Vec<Host>, LabError> {
    let router = |name, [out, out_v6]: [&str; 2], [link, link_v6]: [&str; 2]| {
        let services = [("10.4.0.0/16", link), (WEB_NET, link), (WEB_NET_V6, link_v6), (PBX_NET_V6, link_v6)];
        Host::with_routes(name, &[&[(ALL, out), (ALL_V6, out_v6)], &services[..]].concat())
    };
    // A service must not answer the flood: its answers would be a second flood, and the lab would measure that.
    let spoofed = Site::SPOOFED.to_string();
    let service = |name, gateway, gateway_v6| {
        Host::with_routes(name, &[(ALL, gateway), (ALL_V6, gateway_v6), (&spoofed, "nowhere")])
    };
    let (lan, lan_v6) = ("10.4.2.2", "2001:db8:62::2");
    let to_services = [(PBX_NET, lan), (WEB_NET, lan), (WEB_NET_V6, lan_v6), (PBX_NET_V6, lan_v6)];
    let mut hosts = vec![
        Host::with_routes("core", &[(&spoofed, "nowhere")])?.forwarding(),
        router("gate", ["203.0.113.1", "2001:db8:60::1"], ["10.4.1.2", "2001:db8:61::2"])?,
        router("bypass", ["203.0.113.5", "2001:db8:67::1"], ["10.4.4.2", "2001:db8:64::2"])?.forwarding(),
        Host::with_routes("link", &to_services)?.forwarding(),
        Host::with_routes("lan", &[(ALL, "10.4.2.1"), (ALL_V6, "2001:db8:62::1")])?.forwarding(),
        service("pbx", "10.4.3.1", "2001:db8:63::1")?,
        service("web", "203.0.113.65", "2001:db8:66::1")?,
    ];
    for (name, to, next) in GATE.routes() {
        let route = (prefix(to)?, next_hop(next)?);
        hosts.iter_mut().filter(|host| host.name == name).for_each(|host| host.routes.push(route));
    }
    Ok(hosts)
}

fn inner_wires() -> Vec<(String, String)> {
    let wires = [
        (
            "core:to_gate 203.0.113.1/30 2001:db8:60::1/64",
            "gate:outside 203.0.113.2/30 2001:db8:60::2/64 203.0.113.10/32",
        ),
        ("core:to_bypass 203.0.113.5/30 2001:db8:67::1/64", "bypass:outside 203.0.113.6/30 2001:db8:67::2/64"),
        ("gate:inside 10.4.1.1/30 2001:db8:61::1/64", "link:to_gate 10.4.1.2/30 2001:db8:61::2/64"),
        ("bypass:inside 10.4.4.1/30 2001:db8:64::1/64", "link:to_bypass 10.4.4.2/30 2001:db8:64::2/64"),
        ("link:to_lan 10.4.2.1/30 2001:db8:62::1/64", "lan:to_link 10.4.2.2/30 2001:db8:62::2/64"),
        ("lan:to_pbx 10.4.3.1/30 2001:db8:63::1/64", "pbx:eth0 10.4.3.2/30 2001:db8:63::2/64"),
        ("lan:to_web 203.0.113.65/30 2001:db8:66::1/64", "web:eth0 203.0.113.66/30 2001:db8:66::2/64"),
    ];
    wires.map(|(a, b)| (a.to_owned(), b.to_owned())).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_interfaces_share_an_address() {
        let plan = Site::plan(SiteOptions::default()).unwrap();
        let mut addresses: Vec<_> = plan
            .wires
            .iter()
            .flat_map(|wire| &wire.ends)
            .flat_map(|end| &end.addresses)
            .map(|prefix| prefix.addr())
            .collect();
        let all = addresses.len();
        addresses.sort_unstable();
        addresses.dedup();
        assert_eq!(addresses.len(), all);
    }

    #[test]
    fn every_wire_ends_at_hosts_of_the_plan() {
        let plan = Site::plan(SiteOptions::default()).unwrap();
        for end in plan.wires.iter().flat_map(|wire| &wire.ends) {
            assert!(plan.hosts.iter().any(|host| host.name == end.host), "{}", end.host);
            assert!(end.interface.len() < 16);
        }
    }
}
