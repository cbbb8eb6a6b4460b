//! Where packets are captured: on this host, or in a network namespace of one command's own.

use std::{
    fs::File,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::AsFd,
};

use ipnet::IpNet;
use nix::sched::{CloneFlags, unshare};
use sluicegate_datapath::{Interface, OpenError, tun::Tun};
use sluicegate_netlink::{
    Error, NextHop, Route, Rtnetlink, Way,
    nft::{self, Nftables},
};
use tracing::warn;

use super::{
    CaptureError, Config,
    destinations::Destination,
    settings::{self, Settings},
};

/// The routing table of captured destinations on a host; also the rule's place, before all tables but `local`.
pub(super) const TABLE: u32 = 7_253;
pub(super) const RULE_PRIORITY: u32 = 7_253;
const TABLE_MAIN: u32 = 254;
/// Behind the 1,024 that the kernel gives IPv6 routes without a metric.
const LAST_METRIC: u32 = 9_999;

/// Bytes that a TUN device leaves for headers: a request of eight slots with the trailer that proves who asks, and UDP around
/// both. A segment that TCP repeats is as long as ever, and may be what has to ask.
pub(super) const HEADER_ROOM: u32 = 120;
/// The least MTU of IPv6.
const MTU_MIN: u32 = 1_280;

const TUN_NAME: &str = "sluicegate%d";
/// The cable between a command's namespace and its host.
const CABLE_HOST: &str = "sluicegate-run";
pub(super) const CABLE_INSIDE: &str = "uplink";
const HOST_END: Ipv4Addr = Ipv4Addr::new(169, 254, 72, 53);
const INSIDE_END: Ipv4Addr = Ipv4Addr::new(169, 254, 72, 54);
const CABLE_PREFIX_LEN: u8 = 30;
const NFT_TABLE: &str = "sluicegate_run";

/// Former addresses that the device keeps.
const FORMER_MAX: usize = 8;

/// The interface by which captured packets leave this host, and its addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Outward {
    pub(super) interface: String,
    /// The interface's number: sockets at one that was made again hear nothing.
    index: u32,
    pub(super) mtu: u32,
    pub(super) v4: Option<IpAddr>,
    pub(super) v6: Option<IpAddr>,
}

impl Outward {
    /// The configured interface, or the one that leads to the first destination.
    pub(super) fn find(config: &Config) -> Result<Self, CaptureError> {
        Self::look(config, None, None)
    }

    /// As [`Self::find`], later: an address that is still there stays the one in use. `tun` captures and leads nowhere;
    /// where it has every landmark, the way out is the interface that it was.
    pub(super) fn find_again(config: &Config, known: &Self, tun: Option<&str>) -> Result<Self, CaptureError> {
        Self::look(config, Some(known), tun)
    }

    fn look(config: &Config, known: Option<&Self>, tun: Option<&str>) -> Result<Self, CaptureError> {
        let mut netlink = Rtnetlink::open()?;
        let mut way = None;
        let interface = match &config.interface {
            Some(name) => name.clone(),
            None => {
                let leads_out = |way: &Way| way.interface != "lo" && Some(&*way.interface) != tun;
                way = landmarks(config).into_iter().find_map(|address| netlink.way_to(address).ok().filter(leads_out));
                let found = way.as_ref().map(|way| way.interface.clone());
                found.or(known.map(|known| known.interface.clone())).ok_or(CaptureError::NoInterface)?
            }
        };
        let found = Interface::read(&interface).map_err(|error| {
            if error.is_missing() {
                CaptureError::Open(OpenError::NoInterface(interface.clone()))
            } else {
                CaptureError::Netlink(error)
            }
        })?;
        let here = |address: &IpAddr| found.addresses.iter().any(|(one, _)| one == address);
        let kept = known.filter(|known| (&known.interface, known.index) == (&interface, found.index));
        let kept = kept.map_or([None; 2], Self::addresses);
        let source = way.and_then(|way| way.source);
        let addresses = kept.into_iter().flatten().filter(here).chain(source);
        let addresses = addresses.chain(found.addresses.iter().map(|(address, _)| *address));
        let is_of_host = |address: &IpAddr| match address {
            IpAddr::V4(address) => !address.is_link_local() && !address.is_loopback(),
            IpAddr::V6(address) => !address.is_unicast_link_local() && !address.is_loopback(),
        };
        let addresses: Vec<IpAddr> = addresses.filter(is_of_host).collect();
        let first = |is_v4| addresses.iter().copied().find(|address| address.is_ipv4() == is_v4);
        let (v4, v6) = (first(true), first(false));
        if v4.is_none() && v6.is_none() {
            return Err(CaptureError::NoAddress(interface));
        }
        Ok(Self { interface, index: found.index, mtu: found.mtu, v4, v6 })
    }

    fn addresses(&self) -> [Option<IpAddr>; 2] {
        [self.v4, self.v6]
    }

    /// The source address of captured packets to `destination`.
    pub(super) fn source(&self, destination: IpAddr) -> Option<IpAddr> {
        if destination.is_ipv4() { self.v4 } else { self.v6 }
    }
}

/// Addresses whose route shows the way out: captured ones first, then the frontend, then any.
fn landmarks(config: &Config) -> Vec<IpAddr> {
    let captured = config.captures.iter().filter_map(|capture| match &capture.to {
        Destination::Prefix(prefix) if !prefix.addr().is_unspecified() => Some(prefix.addr()),
        _ => None,
    });
    let frontend = config.frontends.as_ref().map(|frontends| frontends.first().ip());
    let any = [IpAddr::from(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::from(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))];
    captured.chain(frontend).chain(any).collect()
}

/// A TUN device in place, and what keeps it so.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) tun: Tun,
    pub(super) mtu: u32,
    netlink: Rtnetlink,
    table: u32,
    outward: Outward,
    /// Addresses of this host before; programs may have connections from them. The latest last.
    former: Vec<IpAddr>,
    /// Keeps connection tracking off the device.
    _untracked: Option<Nftables>,
}

impl Place {
    /// A TUN device of this host. Nothing is captured before [`Place::capture`].
    pub(super) fn on_host(outward: &Outward, settings: &mut Settings) -> Result<Self, CaptureError> {
        let (tun, mut netlink, mtu) = device(outward)?;
        settings.rule(&mut netlink, false)?;
        if outward.v6.is_some() {
            settings.rule(&mut netlink, true)?;
        }
        let_answers_in(settings, &[tun.name(), &outward.interface]);
        Ok(Self { tun, mtu, netlink, table: TABLE, outward: outward.clone(), former: Vec::new(), _untracked: None })
    }

    /// A new network namespace for the calling thread: its TUN device has the host's own addresses, everything else
    /// leaves by a cable to the host, whose namespace is `host`.
    pub(super) fn in_namespace(outward: &Outward, host: &File) -> Result<Self, CaptureError> {
        unshare(CloneFlags::CLONE_NEWNET).map_err(|error| CaptureError::Namespace(error.into()))?;
        let mut netlink = Rtnetlink::open()?;
        netlink.set_up("lo")?;
        // There is one way in for every answer, so the filter would only lose plain ones.
        for name in ["all", "default"] {
            settings::write(&format!("ipv4/conf/{name}/rp_filter"), "0")?;
        }
        let _ = settings::write("ipv6/conf/default/accept_dad", "0");
        netlink.create_veth(CABLE_INSIDE, CABLE_HOST, Some(host.as_fd()))?;
        netlink.add_address(CABLE_INSIDE, INSIDE_END.into(), CABLE_PREFIX_LEN)?;
        netlink.set_up(CABLE_INSIDE)?;
        netlink.add_route(&Route::default_by(HOST_END.into(), CABLE_INSIDE))?;
        let (tun, mut netlink, mtu) = device(outward)?;
        for address in outward.addresses().into_iter().flatten() {
            netlink.add_address(tun.name(), address, full_len(address))?;
        }
        let untracked = nft::untrack(NFT_TABLE, tun.name(), CABLE_INSIDE)?;
        let (outward, former) = (outward.clone(), Vec::new());
        Ok(Self { tun, mtu, netlink, table: TABLE_MAIN, outward, former, _untracked: Some(untracked) })
    }

    /// Routes a destination into the device.
    pub(super) fn capture(&mut self, prefix: IpNet) -> Result<(), Error> {
        let Some(source) = self.outward.source(prefix.addr()) else {
            warn!(%prefix, interface = self.outward.interface, "not captured: the interface has no address of its kind");
            return Ok(());
        };
        let route = route(prefix, self.tun.name(), self.table);
        // The kernel takes the other away with its source address, and nothing may pass beside the device then.
        self.netlink.add_route(&Route { metric: LAST_METRIC, ..route })?;
        self.netlink.add_route(&Route { source: Some(source), ..route })
    }

    /// Undoes [`Place::capture`].
    pub(super) fn release(&mut self, prefix: IpNet) -> Result<(), Error> {
        let route = route(prefix, self.tun.name(), self.table);
        loop {
            match self.netlink.delete_route(&route) {
                Err(error) if error.is_missing() => return Ok(()),
                other => other?,
            }
        }
    }

    /// The address of this host of the kind of `like` now; `None` if it has none.
    pub(super) fn source(&self, like: IpAddr) -> Option<IpAddr> {
        self.outward.source(like)
    }

    /// Whether programs may have connections from this address, which is not this host's any more.
    pub(super) fn is_former(&self, address: IpAddr) -> bool {
        self.former.contains(&address)
    }

    /// The way out is another. Connections from former addresses keep these, on the device, so that the kernel goes on
    /// with them.
    pub(super) fn moved(&mut self, outward: Outward, captured: &[IpNet]) -> Result<(), Error> {
        let before = std::mem::replace(&mut self.outward, outward);
        let now = self.outward.addresses();
        // In a namespace of its own the device has the address of now as well.
        let has_all = self.table == TABLE_MAIN;
        let (gone, new) = (before.addresses(), now.into_iter().flatten());
        for address in gone.into_iter().flatten().filter(|address| !now.contains(&Some(*address))) {
            self.former.push(address);
            if !has_all {
                self.add(address)?;
            }
        }
        for address in new {
            let was_former = self.former.contains(&address);
            self.former.retain(|former| *former != address);
            match (has_all, was_former) {
                (true, false) => self.add(address)?,
                (false, true) => self.remove(address)?,
                _ => {}
            }
        }
        while self.former.len() > FORMER_MAX {
            let oldest = self.former.remove(0);
            self.remove(oldest)?;
        }
        self.mtu = device_mtu(&self.outward);
        self.netlink.set_mtu(self.tun.name(), self.mtu)?;
        captured.iter().try_for_each(|prefix| self.capture(*prefix))
    }

    fn add(&mut self, address: IpAddr) -> Result<(), Error> {
        match self.netlink.add_address(self.tun.name(), address, full_len(address)) {
            Err(error) if error.is_exists() => Ok(()),
            other => other,
        }
    }

    fn remove(&mut self, address: IpAddr) -> Result<(), Error> {
        match self.netlink.delete_address(self.tun.name(), address, full_len(address)) {
            Err(error) if error.is_missing() => Ok(()),
            other => other,
        }
    }
}

/// The length of a prefix of one address.
fn full_len(address: IpAddr) -> u8 {
    IpNet::from(address).prefix_len()
}

/// A route that captures a destination.
fn route(to: IpNet, tun: &str, table: u32) -> Route<'_> {
    Route { table, ..Route::new((to.addr(), to.prefix_len()), NextHop::Interface(tun)) }
}

/// A strict reverse path filter drops what comes from a captured destination by the wire: plain answers, and even ARP.
pub(super) fn let_answers_in(settings: &mut Settings, interfaces: &[&str]) {
    for name in interfaces {
        let setting = format!("ipv4/conf/{name}/rp_filter");
        let strict = |setting: &str| Settings::read(setting).is_ok_and(|value| value == "1");
        if (strict(&setting) || strict("ipv4/conf/all/rp_filter"))
            && let Err(error) = settings.change(&setting, "2")
        {
            warn!(%error, "the reverse path filter of {name} may drop answers");
        }
    }
}

/// The longest packet that the device takes.
fn device_mtu(outward: &Outward) -> u32 {
    outward.mtu.saturating_sub(HEADER_ROOM).max(MTU_MIN.min(outward.mtu))
}

/// A TUN device that is up.
fn device(outward: &Outward) -> Result<(Tun, Rtnetlink, u32), CaptureError> {
    let tun = Tun::open(TUN_NAME)?;
    let mut netlink = Rtnetlink::open()?;
    let mtu = device_mtu(outward);
    // No link-local address: nothing on a TUN device would answer for it. Best effort, as IPv6 may be off.
    let _ = settings::write(&format!("ipv6/conf/{}/addr_gen_mode", tun.name()), "1");
    netlink.set_mtu(tun.name(), mtu)?;
    netlink.set_up(tun.name())?;
    Ok((tun, netlink, mtu))
}

/// Takes away the cable of a command that has ended: the kernel is in no hurry with its namespace.
pub(super) fn remove_cable() -> Result<(), CaptureError> {
    match Rtnetlink::open()?.delete_link(CABLE_HOST) {
        Err(error) if !error.is_missing() => Err(error.into()),
        _ => Ok(()),
    }
}

/// Connects the namespace of [`Place::in_namespace`] to the world, for as long as the value lives: forwarding and a borrowed
/// address at the host's end of its cable.
pub(super) fn connect_host(outward: &Outward, settings: &mut Settings) -> Result<Nftables, CaptureError> {
    let mut netlink = Rtnetlink::open()?;
    netlink.add_address(CABLE_HOST, HOST_END.into(), CABLE_PREFIX_LEN)?;
    settings::write(&format!("ipv4/conf/{CABLE_HOST}/rp_filter"), "0")?;
    settings::write(&format!("ipv4/conf/{CABLE_HOST}/forwarding"), "1")?;
    let forwarding = format!("ipv4/conf/{}/forwarding", outward.interface);
    let alone = Settings::read(&forwarding)? == "0";
    // The filter first: at no time does the host forward for others because of us.
    let masquerade = nft::masquerade(NFT_TABLE, CABLE_HOST, INSIDE_END, alone)?;
    settings.change(&forwarding, "1")?;
    netlink.set_up(CABLE_HOST)?;
    Ok(masquerade)
}

/// A warning if no name server of `resolv.conf` can be reached from another namespace.
pub(super) fn warn_of_local_resolver() {
    let text = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let servers: Vec<IpAddr> =
        text.lines().filter_map(|line| line.trim().strip_prefix("nameserver")?.trim().parse().ok()).collect();
    if !servers.is_empty() && servers.iter().all(IpAddr::is_loopback) {
        warn!(
            "all name servers in /etc/resolv.conf are on this host's loopback, which the command cannot reach; name \
             another one there, or give the command addresses"
        );
    }
}

/// This thread's network namespace.
pub(super) fn namespace() -> io::Result<File> {
    File::open("/proc/thread-self/ns/net")
}
