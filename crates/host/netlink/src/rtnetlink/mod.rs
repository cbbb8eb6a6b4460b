//! Links, addresses, routes, neighbours and queues.

mod link;
mod monitor;
mod route;
mod tunnel;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;

pub use link::{Link, LinkCounters, QueueCounters};
pub use monitor::{Change, Monitor};
pub use route::{Neighbour, NextHop, Route, RouteEntry, Way};
pub use tunnel::Tunnel;

use crate::{Error, message::Message, socket::Socket};

/// Fails if the object exists.
const CREATE: u16 = NLM_F_CREATE | NLM_F_EXCL;
/// Takes the place of one that exists.
const REPLACE: u16 = NLM_F_CREATE | NLM_F_REPLACE;
/// Changes, or removes, what exists.
const CHANGE: u16 = 0;

/// A connection to the kernel's links and routing tables in the network namespace in which it was opened.
#[derive(Debug)]
pub struct Rtnetlink {
    socket: Socket,
}

impl Rtnetlink {
    /// Connects, in the calling thread's network namespace.
    ///
    /// # Errors
    /// Those of `socket(2)`.
    pub fn open() -> Result<Self, Error> {
        Ok(Self { socket: Socket::open(NETLINK_ROUTE, 0)? })
    }

    /// Has something changed. `request` completes "the kernel refused to …".
    fn change(&mut self, request: &str, message: RouteNetlinkMessage, flags: u16) -> Result<(), Error> {
        self.socket.request(request, &Message::route(&message, flags))
    }
}

const fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

const fn unspecified(is_v6: bool) -> IpAddr {
    if is_v6 { IpAddr::V6(Ipv6Addr::UNSPECIFIED) } else { IpAddr::V4(Ipv4Addr::UNSPECIFIED) }
}

#[cfg(test)]
mod tests;
