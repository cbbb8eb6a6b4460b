//! Reads routes and neighbours, and follows their changes.

use std::{
    io,
    net::IpAddr,
    os::fd::{AsFd, BorrowedFd},
};

use netlink_packet_core::{Emitable, parse_ip, parse_u32};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    neighbour::{NeighbourHeader, NeighbourMessage},
    route::{RouteHeader, RouteMessage, RouteType},
};
use netlink_sys::protocols::NETLINK_ROUTE;

use super::{Rtnetlink, unspecified};
use crate::{
    Error,
    message::{self, Message},
    socket::{Answer, Socket},
};

/// Links, neighbours, routes of both families. Links, because the kernel is silent about the IPv4 routes that go with one.
const GROUPS: u32 = (libc::RTMGRP_LINK | libc::RTMGRP_NEIGH | libc::RTMGRP_IPV4_ROUTE | libc::RTMGRP_IPV6_ROUTE) as u32;
/// Neighbour states in which the address may be used.
const USABLE: u16 =
    libc::NUD_REACHABLE | libc::NUD_STALE | libc::NUD_DELAY | libc::NUD_PROBE | libc::NUD_PERMANENT | libc::NUD_NOARP;

/// A neighbour entry, or its end (`mac: None`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neighbour {
    /// Number of the link that it is on.
    pub index: u32,
    /// Its address.
    pub address: IpAddr,
    /// Its Ethernet address, as long as that may be used.
    pub mac: Option<[u8; 6]>,
    /// The kernel has not heard of it for a while and will forget it unless it is used.
    pub stale: bool,
}

/// A unicast route of the main table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteEntry {
    /// Number of the link by which packets leave.
    pub index: u32,
    /// The destination's address.
    pub destination: IpAddr,
    /// The length of its network part.
    pub prefix_len: u8,
    /// The next hop, unless it is the destination itself.
    pub gateway: Option<IpAddr>,
    /// Of two routes to one destination the one with the lower number is taken.
    pub metric: u32,
}

/// What a notification said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// This neighbour is new or changed, or ended.
    Neighbour(Neighbour),
    /// Some route changed, or a link, and its routes with it: read them again.
    Routes,
}

/// Follows neighbours and routes of the namespace in which it was opened.
#[derive(Debug)]
pub struct Monitor {
    notifications: Socket,
}

impl Monitor {
    /// Listens from now on: what is read afterwards is complete, or a change is waiting.
    ///
    /// # Errors
    /// Those of `socket(2)`.
    pub fn open() -> Result<Self, Error> {
        Ok(Self { notifications: Socket::open(NETLINK_ROUTE, GROUPS)? })
    }

    /// Listens to what happens to links alone.
    ///
    /// # Errors
    /// Those of `socket(2)`.
    pub fn of_links() -> Result<Self, Error> {
        Ok(Self { notifications: Socket::open(NETLINK_ROUTE, libc::RTMGRP_LINK as u32)? })
    }

    /// Hands over all waiting changes.
    ///
    /// # Errors
    /// `ENOBUFS` says that some were lost and all must be read again.
    pub fn changes(&mut self, each: &mut dyn FnMut(Change)) -> io::Result<()> {
        while self.notifications.notifications(&mut |answer| {
            match answer.kind {
                libc::RTM_NEWNEIGH => parse_neighbour(answer.payload, false).map(Change::Neighbour),
                libc::RTM_DELNEIGH => parse_neighbour(answer.payload, true).map(Change::Neighbour),
                libc::RTM_NEWROUTE | libc::RTM_DELROUTE | libc::RTM_NEWLINK | libc::RTM_DELLINK => Some(Change::Routes),
                _ => None,
            }
            .into_iter()
            .for_each(&mut *each);
        })? {}
        Ok(())
    }
}

/// Readable when there are notifications.
impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.notifications.as_fd()
    }
}

impl Rtnetlink {
    /// Folds all neighbours into what starts as `T::default()`; anew if they change meanwhile.
    ///
    /// # Errors
    /// Those of netlink.
    pub fn neighbours<T: Default>(&mut self, mut fold: impl FnMut(&mut T, Neighbour)) -> Result<T, Error> {
        let message = Message::route(&RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default()), 0);
        self.socket.dump("list the neighbours", &message, |all, answer: Answer<'_>| {
            parse_neighbour(answer.payload, false).into_iter().for_each(|neighbour| fold(all, neighbour));
        })
    }

    /// Folds all unicast routes of the main table into what starts as `T::default()`; anew if they change meanwhile.
    ///
    /// # Errors
    /// Those of netlink.
    pub fn routes<T: Default>(&mut self, mut fold: impl FnMut(&mut T, RouteEntry)) -> Result<T, Error> {
        let message = Message::route(&RouteNetlinkMessage::GetRoute(RouteMessage::default()), 0);
        self.socket.dump("list the routes", &message, |all, answer: Answer<'_>| {
            parse_route(answer.payload).into_iter().for_each(|route| fold(all, route));
        })
    }
}

pub(super) fn parse_neighbour(payload: &[u8], removed: bool) -> Option<Neighbour> {
    let header = NeighbourHeader::parse(payload).ok()?;
    let attributes = payload.get(header.buffer_len()..)?;
    let address = parse_ip(message::value(attributes, libc::NDA_DST)?).ok()?;
    let state = u16::from(header.state);
    let usable = !removed && state & USABLE != 0;
    let mac = message::value(attributes, libc::NDA_LLADDR).and_then(|mac| mac.try_into().ok());
    let stale = state & libc::NUD_STALE != 0;
    Some(Neighbour { index: header.ifindex, address, mac: mac.filter(|_| usable), stale })
}

pub(super) fn parse_route(payload: &[u8]) -> Option<RouteEntry> {
    let header = RouteHeader::parse(payload).ok().filter(|header| header.kind == RouteType::Unicast)?;
    let destination = match header.address_family {
        AddressFamily::Inet => unspecified(false),
        AddressFamily::Inet6 => unspecified(true),
        _ => return None,
    };
    let mut table = u32::from(header.table);
    let prefix_len = header.destination_prefix_length;
    let mut entry = RouteEntry { index: 0, destination, prefix_len, gateway: None, metric: 0 };
    for (kind, value) in message::attributes(payload, header.buffer_len()) {
        match kind {
            libc::RTA_DST => entry.destination = parse_ip(value).ok()?,
            libc::RTA_OIF => entry.index = parse_u32(value).ok()?,
            libc::RTA_GATEWAY => entry.gateway = parse_ip(value).ok(),
            libc::RTA_VIA => entry.gateway = value.get(2..).and_then(|address| parse_ip(address).ok()),
            libc::RTA_PRIORITY => entry.metric = parse_u32(value).ok()?,
            libc::RTA_TABLE => table = parse_u32(value).ok()?,
            libc::RTA_MULTIPATH => first_hop(value, &mut entry)?,
            _ => {}
        }
    }
    (table == u32::from(libc::RT_TABLE_MAIN) && entry.index != 0).then_some(entry)
}

/// Takes the first next hop of a multipath route (`struct rtnexthop` and its attributes).
fn first_hop(value: &[u8], entry: &mut RouteEntry) -> Option<()> {
    let len = usize::from(u16::from_ne_bytes(*value.first_chunk()?));
    entry.index = parse_u32(value.get(4..8)?).ok()?;
    let gateway = message::value(value.get(8..len)?, libc::RTA_GATEWAY);
    entry.gateway = gateway.and_then(|gateway| parse_ip(gateway).ok());
    Some(())
}
