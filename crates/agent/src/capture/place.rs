//! Where packets are captured: on this host, or in a network namespace of one command's own.

use std::{
    fs::File,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::AsFd,
};

use nix::sched::{CloneFlags, unshare};
use sluicegate_datapath::{
    Interface, OpenError,
    netlink::{self, Masquerade, Namespace, Route, Untracked},
    tun::Tun,
};
use tracing::warn;

use super::{
    CaptureError, Config,
    destinations::{Destination, Prefix},
    settings::{self, Settings},
};

/// The routing table of captured destinations on a host; also the rule's place, before all tables but `local`.
pub(super) const TABLE: u32 = 7_253;
pub(super) const RULE_PRIORITY: u32 = 7_253;
const TABLE_MAIN: u32 = 254;

/// Bytes that a TUN device leaves for headers: four capabilities, an answer of four, and UDP around both.
pub(super) const HEADER_ROOM: u32 = 100;
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

/// The interface by which captured packets leave this host, and its addresses.
#[derive(Debug, Clone)]
pub(super) struct Outward {
    pub(super) interface: String,
    pub(super) mtu: u32,
    pub(super) v4: Option<Ipv4Addr>,
    pub(super) v6: Option<Ipv6Addr>,
}

impl Outward {
    /// The configured interface, or the one that leads to the first destination.
    pub(super) fn find(config: &Config) -> Result<Self, CaptureError> {
        let mut route = Route::open()?;
        let mut way = None;
        let interface = match &config.interface {
            Some(name) => name.clone(),
            None => {
                let leads_out = |way: &netlink::Way| way.interface != "lo";
                let found =
                    landmarks(config).into_iter().find_map(|address| route.way_to(address).ok().filter(leads_out));
                way = Some(found.ok_or(CaptureError::NoInterface)?);
                way.as_ref().map(|way| way.interface.clone()).unwrap_or_default()
            }
        };
        let found = Interface::read(&interface).map_err(|error| {
            if error.is_missing() {
                CaptureError::Open(OpenError::NoInterface { interface: interface.clone() })
            } else {
                CaptureError::Netlink(error)
            }
        })?;
        let source = way.and_then(|way| way.source);
        let addresses = source.into_iter().chain(found.addresses.iter().map(|(address, _)| *address));
        let (mut v4, mut v6) = (None, None);
        for address in addresses {
            match address {
                IpAddr::V4(address) if !address.is_link_local() && !address.is_loopback() => v4 = v4.or(Some(address)),
                IpAddr::V6(address) if !address.is_unicast_link_local() && !address.is_loopback() => {
                    v6 = v6.or(Some(address));
                }
                _ => {}
            }
        }
        if v4.is_none() && v6.is_none() {
            return Err(CaptureError::NoAddress { interface });
        }
        Ok(Self { interface, mtu: found.mtu, v4, v6 })
    }

    /// The source address of captured packets to `destination`.
    pub(super) fn source(&self, destination: IpAddr) -> Option<IpAddr> {
        if destination.is_ipv4() { self.v4.map(IpAddr::V4) } else { self.v6.map(IpAddr::V6) }
    }
}

/// Addresses whose route shows the way out: captured ones first, then the frontend, then any.
fn landmarks(config: &Config) -> Vec<IpAddr> {
    let captured = config.captures.iter().filter_map(|capture| match &capture.to {
        Destination::Prefix(prefix) if !prefix.address.is_unspecified() => Some(prefix.address),
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
    routes: Route,
    table: u32,
    outward: Outward,
    _untracked: Option<Untracked>,
}

impl Place {
    /// A TUN device of this host. Nothing is captured before [`Place::capture`].
    pub(super) fn on_host(outward: &Outward, settings: &mut Settings) -> Result<Self, CaptureError> {
        let (tun, mut routes, mtu) = device(outward)?;
        settings.rule(&mut routes, false)?;
        if outward.v6.is_some() {
            settings.rule(&mut routes, true)?;
        }
        // A strict filter drops what comes from a captured destination by the wire: plain answers, and even ARP.
        for name in [tun.name(), &outward.interface] {
            let setting = format!("ipv4/conf/{name}/rp_filter");
            let strict = |setting: &str| Settings::read(setting).is_ok_and(|value| value == "1");
            if (strict(&setting) || strict("ipv4/conf/all/rp_filter"))
                && let Err(error) = settings.change(&setting, "2")
            {
                warn!(%error, "the reverse path filter of {name} may drop answers");
            }
        }
        Ok(Self { tun, mtu, routes, table: TABLE, outward: outward.clone(), _untracked: None })
    }

    /// A new network namespace for the calling thread: its TUN device has the host's own addresses, everything else
    /// leaves by a cable to the host, whose namespace is `host`.
    pub(super) fn in_namespace(outward: &Outward, host: &File) -> Result<Self, CaptureError> {
        unshare(CloneFlags::CLONE_NEWNET).map_err(|error| CaptureError::Namespace(error.into()))?;
        let mut routes = Route::open()?;
        routes.set_up("lo")?;
        // There is one way in for every answer, so the filter would only lose plain ones.
        for name in ["all", "default"] {
            settings::write(&format!("ipv4/conf/{name}/rp_filter"), "0")?;
        }
        let _ = settings::write("ipv6/conf/default/accept_dad", "0");
        routes.create_veth(CABLE_INSIDE, CABLE_HOST, Some(Namespace::File(host.as_fd())))?;
        routes.add_address(CABLE_INSIDE, INSIDE_END.into(), CABLE_PREFIX_LEN)?;
        routes.set_up(CABLE_INSIDE)?;
        routes.add_default_route(HOST_END.into(), CABLE_INSIDE)?;
        let (tun, mut routes, mtu) = device(outward)?;
        for address in [outward.v4.map(IpAddr::V4), outward.v6.map(IpAddr::V6)].into_iter().flatten() {
            routes.add_address(tun.name(), address, Prefix::host(address).len)?;
        }
        let untracked = Untracked::install(NFT_TABLE, tun.name(), CABLE_INSIDE)?;
        Ok(Self { tun, mtu, routes, table: TABLE_MAIN, outward: outward.clone(), _untracked: Some(untracked) })
    }

    /// Routes a destination into the device.
    pub(super) fn capture(&mut self, prefix: Prefix) -> Result<(), netlink::Error> {
        let Some(source) = self.outward.source(prefix.address) else {
            warn!(%prefix, interface = self.outward.interface, "not captured: the interface has no address of its kind");
            return Ok(());
        };
        self.routes.add_route_from((prefix.address, prefix.len), self.tun.name(), Some(source), self.table)
    }

    /// Undoes [`Place::capture`].
    pub(super) fn release(&mut self, prefix: Prefix) -> Result<(), netlink::Error> {
        match self.routes.delete_route((prefix.address, prefix.len), self.tun.name(), self.table) {
            Err(error) if error.is_missing() => Ok(()),
            other => other,
        }
    }
}

/// A TUN device that is up.
fn device(outward: &Outward) -> Result<(Tun, Route, u32), CaptureError> {
    let tun = Tun::open(TUN_NAME)?;
    let mut routes = Route::open()?;
    let mtu = outward.mtu.saturating_sub(HEADER_ROOM).max(MTU_MIN.min(outward.mtu));
    // No link-local address: nothing on a TUN device would answer for it. Best effort, as IPv6 may be off.
    let _ = settings::write(&format!("ipv6/conf/{}/addr_gen_mode", tun.name()), "1");
    routes.set_mtu(tun.name(), mtu)?;
    routes.set_up(tun.name())?;
    Ok((tun, routes, mtu))
}

/// Takes away the cable of a command that has ended: the kernel is in no hurry with its namespace.
pub(super) fn remove_cable() -> Result<(), CaptureError> {
    match Route::open()?.delete_link(CABLE_HOST) {
        Err(error) if !error.is_missing() => Err(error.into()),
        _ => Ok(()),
    }
}

/// The host's end of a namespace's cable: forwarding and a borrowed address.
#[derive(Debug)]
pub(super) struct HostEnd {
    _masquerade: Masquerade,
}

impl HostEnd {
    /// Connects the namespace of [`Place::in_namespace`] to the world.
    pub(super) fn connect(outward: &Outward, settings: &mut Settings) -> Result<Self, CaptureError> {
        let mut routes = Route::open()?;
        routes.add_address(CABLE_HOST, HOST_END.into(), CABLE_PREFIX_LEN)?;
        settings::write(&format!("ipv4/conf/{CABLE_HOST}/rp_filter"), "0")?;
        settings::write(&format!("ipv4/conf/{CABLE_HOST}/forwarding"), "1")?;
        let forwarding = format!("ipv4/conf/{}/forwarding", outward.interface);
        let alone = Settings::read(&forwarding)? == "0";
        // The filter first: at no time does the host forward for others because of us.
        let masquerade = Masquerade::install(NFT_TABLE, CABLE_HOST, INSIDE_END, alone)?;
        settings.change(&forwarding, "1")?;
        routes.set_up(CABLE_HOST)?;
        Ok(Self { _masquerade: masquerade })
    }
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
