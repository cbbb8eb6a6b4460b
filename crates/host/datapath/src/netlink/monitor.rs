//! Reads links, addresses, routes and neighbours, and follows their changes.

use std::{io, net::IpAddr, os::fd::BorrowedFd};

use super::{Error, Message, Socket, link, message};
use crate::sys;

const DUMP: u16 = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
/// `RTMGRP_LINK | RTMGRP_NEIGH | RTMGRP_IPV4_ROUTE | RTMGRP_IPV6_ROUTE`. Links, because the kernel is silent about the
/// IPv4 routes that go with one.
const GROUPS: u32 = LINK_GROUP | 0x4 | 0x40 | 0x400;
const LINK_GROUP: u32 = 0x1;
/// Neighbour states in which the address may be used.
const USABLE: u16 =
    libc::NUD_REACHABLE | libc::NUD_STALE | libc::NUD_DELAY | libc::NUD_PROBE | libc::NUD_PERMANENT | libc::NUD_NOARP;

/// A link as the kernel describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) mac: Option<[u8; 6]>,
    pub(crate) mtu: u32,
    pub(crate) up: bool,
    /// The other end is in this machine too, and leaves checksums to a card that is not there.
    pub(crate) is_veth: bool,
    /// See [`crate::Interface::is_virtual`].
    pub(crate) is_virtual: bool,
}

/// A neighbour entry, or its end (`mac: None`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Neighbour {
    pub(crate) index: u32,
    pub(crate) address: IpAddr,
    pub(crate) mac: Option<[u8; 6]>,
    /// The kernel has not heard of it for a while and will forget it unless it is used.
    pub(crate) stale: bool,
}

/// A unicast route of the main table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RouteEntry {
    pub(crate) index: u32,
    pub(crate) destination: IpAddr,
    pub(crate) prefix_len: u8,
    pub(crate) gateway: Option<IpAddr>,
    pub(crate) metric: u32,
}

/// What a notification said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Neighbour(Neighbour),
    /// Some route changed: read them again.
    Routes,
}

/// Says whether anything happened to a link of the namespace in which it was opened.
#[derive(Debug)]
pub(crate) struct LinkNews(Socket);

impl LinkNews {
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self(Socket::with_groups(libc::NETLINK_ROUTE, LINK_GROUP)?))
    }

    /// Forgets what is waiting; whether there was anything, or too much to be kept.
    pub(crate) fn any(&mut self) -> bool {
        let mut any = false;
        loop {
            match self.0.notifications(&mut |_| any = true) {
                Ok(true) => {}
                Ok(false) => return any,
                Err(_) => return true,
            }
        }
    }
}

/// Follows neighbours and routes of the namespace in which it was opened.
#[derive(Debug)]
pub(crate) struct Monitor {
    notifications: Socket,
    requests: Socket,
}

impl Monitor {
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self {
            notifications: Socket::with_groups(libc::NETLINK_ROUTE, GROUPS)?,
            requests: Socket::open(libc::NETLINK_ROUTE)?,
        })
    }

    /// Readable when there are notifications.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.notifications)
    }

    /// Hands over all waiting changes; `Err` with `ENOBUFS` says that some were lost and all must be read again.
    pub(crate) fn changes(&mut self, each: &mut dyn FnMut(Change)) -> io::Result<()> {
        while self.notifications.notifications(&mut |received| {
            match received.kind {
                libc::RTM_NEWNEIGH => neighbour(received.payload, false),
                libc::RTM_DELNEIGH => neighbour(received.payload, true),
                libc::RTM_NEWROUTE | libc::RTM_DELROUTE | libc::RTM_NEWLINK | libc::RTM_DELLINK => Some(Change::Routes),
                _ => None,
            }
            .into_iter()
            .for_each(&mut *each);
        })? {}
        Ok(())
    }

    pub(crate) fn neighbours(&mut self, each: &mut dyn FnMut(Neighbour)) -> Result<(), Error> {
        let request = Message::new(libc::RTM_GETNEIGH, DUMP, &link::neighbour_header(0, 0, 0, 0));
        self.requests.dump("list the neighbours", request, &mut |received| {
            if let Some(Change::Neighbour(entry)) = neighbour(received.payload, false) {
                each(entry);
            }
        })
    }

    pub(crate) fn routes(&mut self, each: &mut dyn FnMut(RouteEntry)) -> Result<(), Error> {
        let request = Message::new(libc::RTM_GETROUTE, DUMP, &[0; 12]);
        self.requests.dump("list the routes", request, &mut |received| {
            if let Some(entry) = route(received.payload) {
                each(entry);
            }
        })
    }

    /// Asks the kernel to resolve or confirm `address` on the link with this index. Does not wait for the result.
    pub(crate) fn resolve(&mut self, index: u32, address: IpAddr) -> Result<(), Error> {
        let flags = (libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE) as u16;
        let header = link::neighbour_header(message::family_of(address), index, libc::NUD_NONE, libc::NTF_USE);
        let mut request = Message::new(libc::RTM_NEWNEIGH, flags, &header);
        request.put(libc::NDA_DST, &message::address_bytes(address));
        self.requests.request(&format!("resolve {address}"), request)
    }
}

/// The link `name` of the calling thread's network namespace.
pub(crate) fn read_link(name: &str) -> Result<Link, Error> {
    let index = sys::interface_index(name)?;
    let mut socket = Socket::open(libc::NETLINK_ROUTE)?;
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
    let request = Message::new(libc::RTM_GETLINK, flags, &link::link_header(index, 0, 0));
    let mut found = None;
    socket.dump(&format!("describe {name}"), request, &mut |received| found = parse_link(received.payload))?;
    found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV).into())
}

/// The addresses of the link with this index, with their prefix lengths.
pub(crate) fn read_addresses(index: u32) -> Result<Vec<(IpAddr, u8)>, Error> {
    let mut socket = Socket::open(libc::NETLINK_ROUTE)?;
    let request = Message::new(libc::RTM_GETADDR, DUMP, &[0; 8]);
    let mut found = Vec::new();
    socket.dump("list the addresses", request, &mut |received| {
        found.extend(address(received.payload, index));
    })?;
    Ok(found)
}

fn parse_link(payload: &[u8]) -> Option<Link> {
    let index = message::u32_of(payload.get(4..)?)?;
    let flags = message::u32_of(payload.get(8..)?)?;
    let up = flags & libc::IFF_UP as u32 != 0;
    let mut link = Link { index, name: String::new(), mac: None, mtu: 0, up, is_veth: false, is_virtual: false };
    for (kind, value) in message::attributes(payload.get(16..)?) {
        match kind {
            libc::IFLA_IFNAME => link.name = String::from_utf8_lossy(value).trim_end_matches('\0').into(),
            libc::IFLA_ADDRESS => link.mac = value.try_into().ok(),
            libc::IFLA_LINKINFO => {
                let kind = message::attributes(value).find(|(kind, _)| *kind == libc::IFLA_INFO_KIND);
                link.is_veth = kind.is_some_and(|(_, kind)| kind == b"veth\0");
                link.is_virtual = kind.is_some_and(|(_, kind)| kind != b"tun\0");
            }
            libc::IFLA_MTU => link.mtu = message::u32_of(value)?,
            _ => {}
        }
    }
    Some(link)
}

fn address(payload: &[u8], index: u32) -> Option<(IpAddr, u8)> {
    if message::u32_of(payload.get(4..)?)? != index {
        return None;
    }
    let (mut local, mut remote) = (None, None);
    for (kind, value) in message::attributes(payload.get(8..)?) {
        match kind {
            libc::IFA_LOCAL => local = message::address_of(value),
            libc::IFA_ADDRESS => remote = message::address_of(value),
            _ => {}
        }
    }
    Some((local.or(remote)?, *payload.get(1)?))
}

fn neighbour(payload: &[u8], removed: bool) -> Option<Change> {
    let index = message::u32_of(payload.get(4..)?)?;
    let state = u16::from_ne_bytes(*payload.get(8..)?.first_chunk()?);
    let (mut destination, mut mac) = (None, None);
    for (kind, value) in message::attributes(payload.get(12..)?) {
        match kind {
            libc::NDA_DST => destination = message::address_of(value),
            libc::NDA_LLADDR => mac = value.try_into().ok(),
            _ => {}
        }
    }
    let usable = !removed && state & USABLE != 0;
    let stale = state & libc::NUD_STALE != 0;
    Some(Change::Neighbour(Neighbour { index, address: destination?, mac: mac.filter(|_| usable), stale }))
}

fn route(payload: &[u8]) -> Option<RouteEntry> {
    let header = payload.first_chunk::<12>()?;
    let [family, prefix_len, _, _, table, _, _, kind, ..] = *header;
    if kind != libc::RTN_UNICAST {
        return None;
    }
    let mut table = u32::from(table);
    let destination = if family == libc::AF_INET as u8 {
        IpAddr::from([0; 4])
    } else if family == libc::AF_INET6 as u8 {
        IpAddr::from([0; 16])
    } else {
        return None;
    };
    let mut entry = RouteEntry { index: 0, destination, prefix_len, gateway: None, metric: 0 };
    for (kind, value) in message::attributes(&payload[12..]) {
        match kind {
            libc::RTA_DST => entry.destination = message::address_of(value)?,
            libc::RTA_OIF => entry.index = message::u32_of(value)?,
            libc::RTA_GATEWAY => entry.gateway = message::address_of(value),
            libc::RTA_VIA => entry.gateway = value.get(2..).and_then(message::address_of),
            libc::RTA_PRIORITY => entry.metric = message::u32_of(value)?,
            libc::RTA_TABLE => table = message::u32_of(value)?,
            libc::RTA_MULTIPATH => first_hop(value, &mut entry),
            _ => {}
        }
    }
    (table == u32::from(libc::RT_TABLE_MAIN) && entry.index != 0).then_some(entry)
}

/// Takes the first next hop of a multipath route (`struct rtnexthop` and its attributes).
fn first_hop(value: &[u8], entry: &mut RouteEntry) {
    let Some(header) = value.first_chunk::<8>() else { return };
    let len = usize::from(u16::from_ne_bytes([header[0], header[1]]));
    entry.index = u32::from_ne_bytes([header[4], header[5], header[6], header[7]]);
    for (kind, value) in message::attributes(value.get(8..len).unwrap_or_default()) {
        if kind == libc::RTA_GATEWAY {
            entry.gateway = message::address_of(value);
        }
    }
}
