//! Labs as data: hosts, wires, routes and bottlenecks; and the lab built from them.

mod site;
mod text;

use std::{
    collections::BTreeMap,
    net::IpAddr,
    os::fd::AsFd,
    process::{Command, Stdio},
};

pub use site::{Site, SiteOptions};
pub use text::prefix;

use sluicegate_datapath::offload;
use sluicegate_netlink::{Error, Link, LinkCounters, NextHop, QueueCounters, Route, Rtnetlink};

use crate::{During, LabError, Namespace, Prefix};

/// The bucket of a bottleneck must hold the largest frame and enough for a timer tick of a virtual machine.
const BURST_BYTES_MIN: u32 = 3_200;
/// The bridge of a switch.
const SWITCH: &str = "switch";
/// Hosts of one lab.
const HOSTS_MAX: usize = 64;
/// Wires of one lab.
const WIRES_MAX: usize = 255;

/// A lab to build.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// Its hosts.
    pub hosts: Vec<Host>,
    /// The wires between them.
    pub wires: Vec<Wire>,
}

/// One host: a network namespace.
#[derive(Debug, Clone, Default)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Whether its kernel forwards packets.
    pub forwards: bool,
    /// Whether it is a switch: all its interfaces are ports of one bridge.
    pub switches: bool,
    /// Its routes beside those of its wires.
    pub routes: Vec<(Prefix, Via)>,
}

/// Where a route of a [`Plan`] leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    /// To this neighbour.
    Gateway(IpAddr),
    /// The host itself: every address of the prefix is its own.
    Itself,
    /// Nowhere.
    Blackhole,
}

/// A wire between two hosts.
#[derive(Debug, Clone)]
pub struct Wire {
    /// Its two ends.
    pub ends: [End; 2],
}

/// One end of a wire: an interface.
#[derive(Debug, Clone)]
pub struct End {
    /// The host's name.
    pub host: String,
    /// The interface's name, at most 15 bytes.
    pub interface: String,
    /// Its addresses.
    pub addresses: Vec<Prefix>,
    /// What limits the packets that the host sends into the wire.
    pub bottleneck: Option<Bottleneck>,
}

/// A link of limited rate with a queue limited in packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bottleneck {
    /// Bits a second, counted as Ethernet frames.
    pub rate_bps: u64,
    /// Packets that wait; more are dropped.
    pub queue_packets: u32,
}

impl Host {
    /// A host that does not forward, without routes.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// Makes its kernel forward packets.
    #[must_use]
    pub const fn forwarding(mut self) -> Self {
        self.forwards = true;
        self
    }

    /// Makes it a switch.
    #[must_use]
    pub const fn switching(mut self) -> Self {
        self.switches = true;
        self
    }

    /// Adds a route.
    #[must_use]
    pub fn route(mut self, prefix: Prefix, via: Via) -> Self {
        self.routes.push((prefix, via));
        self
    }
}

impl End {
    /// An end with addresses and without a bottleneck.
    #[must_use]
    pub fn new(host: &str, interface: &str, addresses: &[Prefix]) -> Self {
        Self { host: host.to_owned(), interface: interface.to_owned(), addresses: addresses.to_vec(), bottleneck: None }
    }
}

impl Plan {
    /// The same lab with other addresses. A gateway is passed as a prefix of its whole length.
    #[must_use]
    pub fn with_addresses(mut self, other: impl Fn(Prefix) -> Prefix) -> Self {
        for (prefix, via) in self.hosts.iter_mut().flat_map(|host| &mut host.routes) {
            *prefix = other(*prefix);
            if let Via::Gateway(address) = via {
                *address = other((*address).into()).addr();
            }
        }
        let ends = self.wires.iter_mut().flat_map(|wire| &mut wire.ends);
        ends.flat_map(|end| &mut end.addresses).for_each(|prefix| *prefix = other(*prefix));
        self
    }

    /// Builds the lab: namespaces, wires with offloads off, addresses, fixed neighbours, bottlenecks, routes.
    ///
    /// # Errors
    /// [`LabError::Namespace`] without the right to make namespaces; [`LabError::Plan`] or [`LabError::Kernel`] with
    /// the step that failed. What was built is gone then.
    pub fn build(&self) -> Result<Lab, LabError> {
        if self.hosts.len() > HOSTS_MAX || self.wires.len() > WIRES_MAX {
            return Err(LabError::Plan(format!("more than {HOSTS_MAX} hosts or {WIRES_MAX} wires")));
        }
        let mut lab = Lab { hosts: BTreeMap::new() };
        for host in &self.hosts {
            if lab.hosts.insert(host.name.clone(), Namespace::new(&host.name)?).is_some() {
                return Err(LabError::Plan(format!("two hosts are called {}", host.name)));
            }
        }
        for (index, wire) in self.wires.iter().enumerate() {
            lab.lay(u8::try_from(index).unwrap_or(u8::MAX), wire)?;
        }
        for host in &self.hosts {
            let namespace = lab.host(&host.name)?;
            if host.switches {
                namespace.netlink("making a switch", switch)?;
            }
            namespace.forward(host.forwards)?;
            namespace.netlink("adding routes", |netlink| {
                host.routes.iter().try_for_each(|(prefix, via)| netlink.add_route(&via.route(*prefix)))
            })?;
        }
        Ok(lab)
    }
}

impl Via {
    fn route(self, prefix: Prefix) -> Route<'static> {
        let by = match self {
            Self::Gateway(address) => NextHop::Gateway(address, None),
            Self::Itself => NextHop::Local("lo"),
            Self::Blackhole => NextHop::Blackhole,
        };
        Route::new((prefix.network(), prefix.prefix_len()), by)
    }
}

/// A lab that runs. Dropping it ends its processes and removes its namespaces.
#[derive(Debug)]
pub struct Lab {
    hosts: BTreeMap<String, Namespace>,
}

impl Lab {
    /// The host called `name`.
    ///
    /// # Errors
    /// [`LabError::Plan`] if there is none.
    pub fn host(&self, name: &str) -> Result<&Namespace, LabError> {
        self.hosts.get(name).ok_or_else(|| LabError::Plan(format!("there is no host {name}")))
    }

    fn link(&self, host: &str, interface: &str) -> Result<Link, LabError> {
        self.host(host)?.netlink("reading an interface", |netlink| netlink.link(interface))
    }

    /// Ethernet address of an interface.
    ///
    /// # Errors
    /// If there is no such host or interface, or it has none.
    pub fn mac(&self, host: &str, interface: &str) -> Result<[u8; 6], LabError> {
        let none = || LabError::Plan(format!("{interface} of {host} has no Ethernet address"));
        self.link(host, interface)?.mac.ok_or_else(none)
    }

    /// Runs a command to its end on a host; what it printed.
    ///
    /// # Errors
    /// If there is no such host or program; [`LabError::Process`] with what it said on standard error if it failed.
    pub fn run(&self, host: &str, words: &[&str]) -> Result<String, LabError> {
        let what = format!("{host}: {}", words.join(" "));
        let Some((program, arguments)) = words.split_first() else {
            return Err(LabError::Plan("no command".to_owned()));
        };
        let run = || Command::new(program).args(arguments).stdin(Stdio::null()).output();
        let output = self.host(host)?.run_in(run).and_then(|result| result).during(|| what.clone())?;
        LabError::printed(&what, &output)
    }

    /// Counters of an interface.
    ///
    /// # Errors
    /// If there is no such host or interface.
    pub fn counters(&self, host: &str, interface: &str) -> Result<LinkCounters, LabError> {
        Ok(self.link(host, interface)?.counters)
    }

    /// Counters of the bottleneck of an interface.
    ///
    /// # Errors
    /// If there is no such host or interface.
    pub fn queue_counters(&self, host: &str, interface: &str) -> Result<QueueCounters, LabError> {
        self.host(host)?.netlink("reading a queue", |netlink| netlink.queue_counters(interface))
    }

    /// Adds or replaces a route of a running host.
    ///
    /// # Errors
    /// If there is no such host or the kernel refuses.
    pub fn add_route(&self, host: &str, prefix: Prefix, via: Via) -> Result<(), LabError> {
        self.host(host)?.netlink("adding a route", |netlink| netlink.add_route(&via.route(prefix)))
    }

    /// Removes a route of a running host.
    ///
    /// # Errors
    /// If there is no such host or route.
    pub fn remove_route(&self, host: &str, prefix: Prefix, via: Via) -> Result<(), LabError> {
        self.host(host)?.netlink("removing a route", |netlink| netlink.delete_route(&via.route(prefix)))
    }

    /// Removes a wire of the plan and lays it again, as when a tunnel or a card goes and comes back: the same names,
    /// addresses and routes, new interfaces.
    ///
    /// # Errors
    /// If the plan has no wire that ends at this interface of this host, or the kernel refuses.
    pub fn lay_again(&self, plan: &Plan, host: &str, interface: &str) -> Result<(), LabError> {
        let is_end = |end: &End| end.host == host && end.interface == interface;
        let (index, wire) = (0..)
            .zip(&plan.wires)
            .find(|(_, wire)| wire.ends.iter().any(is_end))
            .ok_or_else(|| LabError::Plan(format!("the plan has no wire that ends at {interface} of {host}")))?;
        self.host(host)?.netlink("removing a wire", |netlink| netlink.delete_link(interface))?;
        self.lay(index, wire)?;
        // The routes over the wire went with it; the others are replaced by themselves.
        for end in &wire.ends {
            let routes = plan.hosts.iter().find(|one| one.name == end.host).map_or(&[][..], |one| &one.routes);
            routes.iter().try_for_each(|(prefix, via)| self.add_route(&end.host, *prefix, *via))?;
        }
        Ok(())
    }

    /// Lays a wire. No other of the lab may have its number, which is in the Ethernet addresses of its ends; those of a plan
    /// are numbered from zero.
    ///
    /// # Errors
    /// If a host is missing or the kernel refuses.
    pub fn lay(&self, number: u8, wire: &Wire) -> Result<(), LabError> {
        let [a, b] = &wire.ends;
        let (host_a, host_b) = (self.host(&a.host)?, self.host(&b.host)?);
        let (mac_a, mac_b) = (mac(number, 0), mac(number, 1));
        host_a.netlink("making a wire", |netlink| {
            netlink.create_veth(&a.interface, &b.interface, Some(host_b.as_fd()))
        })?;
        connect(host_a, (a, mac_a), (b, mac_b))?;
        connect(host_b, (b, mac_b), (a, mac_a))
    }
}

/// The back end of a node in a lab: `auto` takes `packet` on any veth, whose sender may leave tags and checksums beside the
/// packets. Wires of a lab do not, so there `xdp` will do where it works.
#[must_use]
pub fn datapath(asked: &str) -> &str {
    match asked {
        "auto" if sluicegate_datapath::xdp_works() => "xdp",
        "auto" => "packet",
        asked => asked,
    }
}

/// Switches one end of a new wire on; each end comes with its Ethernet address.
fn connect(host: &Namespace, (end, mac): (&End, [u8; 6]), peer: (&End, [u8; 6])) -> Result<(), LabError> {
    host.set(&format!("net/ipv4/conf/{}/rp_filter", end.interface), "0")?;
    host.set(&format!("net/ipv6/conf/{}/accept_dad", end.interface), "0")?;
    host.set(&format!("net/ipv6/conf/{}/router_solicitations", end.interface), "0")?;
    let configure = || -> std::io::Result<()> {
        let (mut netlink, name) = (Rtnetlink::open()?, end.interface.as_str());
        offload::disable(name)?;
        netlink.set_mac(name, mac)?;
        netlink.set_up(name)?;
        end.addresses.iter().try_for_each(|prefix| netlink.add_address(name, prefix.addr(), prefix.prefix_len()))?;
        peer.0.addresses.iter().try_for_each(|prefix| netlink.add_neighbour(name, prefix.addr(), peer.1))?;
        if let Some(Bottleneck { rate_bps, queue_packets }) = end.bottleneck {
            let burst_bytes = u32::try_from(rate_bps / 8 / 500).unwrap_or(u32::MAX).max(BURST_BYTES_MIN);
            netlink.limit_rate(name, rate_bps, burst_bytes, queue_packets)?;
        }
        Ok(())
    };
    host.run_in(configure).and_then(|done| done).during(|| format!("{}: setting up {}", end.host, end.interface))
}

/// Makes every wire of this host a port of one bridge.
fn switch(netlink: &mut Rtnetlink) -> Result<(), Error> {
    let ports = netlink.links()?;
    netlink.create_bridge(SWITCH)?;
    ports.iter().filter(|port| port.kind == "veth").try_for_each(|port| netlink.join_bridge(&port.name, SWITCH))?;
    netlink.set_up(SWITCH)
}

/// A locally administered Ethernet address for an end of a wire.
const fn mac(wire: u8, end: u8) -> [u8; 6] {
    [0x02, 0x53, 0x47, 0x00, wire, end]
}
