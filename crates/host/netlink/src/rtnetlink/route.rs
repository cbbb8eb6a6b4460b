//! Addresses, neighbours, routes, and the rules that say which table is asked first.

use std::net::IpAddr;

use netlink_packet_core::{Emitable, parse_ip, parse_u32};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressAttribute, AddressHeader, AddressHeaderFlags, AddressMessage},
    neighbour::{NeighbourAttribute, NeighbourFlags, NeighbourHeader, NeighbourMessage, NeighbourState},
    route::{RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType},
    rule::{RuleAction, RuleAttribute, RuleHeader, RuleMessage},
};

use super::{CHANGE, CREATE, REPLACE, Rtnetlink, family, unspecified};
use crate::{
    Error,
    message::{self, Message},
    socket::Answer,
};

/// Neighbour states in which the address may be used.
const USABLE: u16 =
    libc::NUD_REACHABLE | libc::NUD_STALE | libc::NUD_DELAY | libc::NUD_PROBE | libc::NUD_PERMANENT | libc::NUD_NOARP;

/// A route to add or to remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route<'a> {
    /// Its destination: an address and the length of its network part.
    pub to: (IpAddr, u8),
    /// Where it leads.
    pub by: NextHop<'a>,
    /// The source address of packets that have none yet; without one the kernel chooses.
    pub source: Option<IpAddr>,
    /// Its table: 254 is the main one.
    pub table: u32,
    /// Of two routes to one destination the one with the lower number is taken; 0 leaves it to the kernel.
    pub metric: u32,
}

/// Where a [`Route`] leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextHop<'a> {
    /// To this neighbour, found among the connected networks unless the interface is named.
    Gateway(IpAddr, Option<&'a str>),
    /// Straight out of this interface.
    Interface(&'a str),
    /// To this host itself, by this interface: every address of the destination is its own.
    Local(&'a str),
    /// Nowhere: packets are discarded without an answer.
    Blackhole,
}

impl<'a> Route<'a> {
    /// A route of the main table, or of the kernel's own one for [`NextHop::Local`].
    #[must_use]
    pub const fn new(to: (IpAddr, u8), by: NextHop<'a>) -> Self {
        let table = if matches!(by, NextHop::Local(_)) { libc::RT_TABLE_LOCAL } else { libc::RT_TABLE_MAIN };
        Self { to, by, source: None, table: table as u32, metric: 0 }
    }

    /// The default route by a gateway behind this interface.
    #[must_use]
    pub const fn default_by(gateway: IpAddr, interface: &'a str) -> Self {
        Self::new((unspecified(gateway.is_ipv6()), 0), NextHop::Gateway(gateway, Some(interface)))
    }
}

/// How the kernel would send a packet to an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Way {
    /// The interface by which it would leave.
    pub interface: String,
    /// The source address that it would get.
    pub source: Option<IpAddr>,
}

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

impl Rtnetlink {
    /// The addresses of the link with this number, with their prefix lengths.
    ///
    /// # Errors
    /// Those of netlink.
    pub fn addresses(&mut self, index: u32) -> Result<Vec<(IpAddr, u8)>, Error> {
        let message = Message::route(&RouteNetlinkMessage::GetAddress(AddressMessage::default()), 0);
        self.socket.dump("list the addresses", &message, |addresses: &mut Vec<(IpAddr, u8)>, answer: Answer<'_>| {
            addresses.extend(parse_address(answer.payload, index));
        })
    }

    /// Adds an address to an interface; IPv6 addresses are usable at once (no duplicate address detection).
    ///
    /// # Errors
    /// [`Error::is_exists`] if it is there already.
    pub fn add_address(&mut self, name: &str, address: IpAddr, prefix_len: u8) -> Result<(), Error> {
        let mut message = self.address_message(name, address, prefix_len)?;
        message.header.flags = AddressHeaderFlags::Nodad;
        message.attributes.push(AddressAttribute::Address(address));
        let request = format!("add {address}/{prefix_len} to {name}");
        self.change(&request, RouteNetlinkMessage::NewAddress(message), CREATE)
    }

    /// Takes an address off an interface.
    ///
    /// # Errors
    /// [`Error::is_missing`] if it is not there.
    pub fn delete_address(&mut self, name: &str, address: IpAddr, prefix_len: u8) -> Result<(), Error> {
        let message = self.address_message(name, address, prefix_len)?;
        let request = format!("take {address}/{prefix_len} off {name}");
        self.change(&request, RouteNetlinkMessage::DelAddress(message), CHANGE)
    }

    fn address_message(&mut self, name: &str, address: IpAddr, prefix_len: u8) -> Result<AddressMessage, Error> {
        let mut message = AddressMessage::default();
        let index = self.index(name)?;
        message.header = AddressHeader { family: family(address), prefix_len, index, ..AddressHeader::default() };
        message.attributes = vec![AddressAttribute::Local(address)];
        Ok(message)
    }

    /// Adds or replaces a permanent neighbour entry, so that no ARP or neighbour discovery is needed.
    ///
    /// # Errors
    /// [`Error::is_missing`] without such an interface.
    pub fn add_neighbour(&mut self, name: &str, address: IpAddr, mac: [u8; 6]) -> Result<(), Error> {
        let index = self.index(name)?;
        let mut message = neighbour_message(index, address);
        message.header.state = NeighbourState::Permanent;
        message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.into()));
        let request = format!("add the neighbour {address} on {name}");
        self.change(&request, RouteNetlinkMessage::NewNeighbour(message), REPLACE)
    }

    /// Asks the kernel to resolve or confirm `address` on the link with this number. Does not wait for the result.
    ///
    /// # Errors
    /// Those of netlink.
    pub fn resolve(&mut self, index: u32, address: IpAddr) -> Result<(), Error> {
        let mut message = neighbour_message(index, address);
        message.header.flags = NeighbourFlags::Use;
        let flags = netlink_packet_core::NLM_F_CREATE;
        self.change(&format!("resolve {address}"), RouteNetlinkMessage::NewNeighbour(message), flags)
    }

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

    /// Adds a route, in place of one to the same destination with the same metric.
    ///
    /// # Errors
    /// `ENETUNREACH` if the gateway is not reachable; `EINVAL` if `source` is no address of this host.
    pub fn add_route(&mut self, route: &Route<'_>) -> Result<(), Error> {
        let message = RouteNetlinkMessage::NewRoute(self.route_message(route)?);
        self.change(&format!("add the route {route}"), message, REPLACE)
    }

    /// Removes a route that [`Self::add_route`] added. Source and metric choose among several, if given.
    ///
    /// # Errors
    /// [`Error::is_missing`] if there is none.
    pub fn delete_route(&mut self, route: &Route<'_>) -> Result<(), Error> {
        let message = RouteNetlinkMessage::DelRoute(self.route_message(route)?);
        self.change(&format!("remove the route {route}"), message, CHANGE)
    }

    fn route_message(&mut self, route: &Route<'_>) -> Result<RouteMessage, Error> {
        let (destination, prefix_len) = route.to;
        let mut attributes = vec![RouteAttribute::Table(route.table)];
        if prefix_len > 0 {
            attributes.push(RouteAttribute::Destination(destination.into()));
        }
        let (scope, kind, interface) = match route.by {
            NextHop::Gateway(gateway, interface) => {
                attributes.push(RouteAttribute::Gateway(gateway.into()));
                (RouteScope::Universe, RouteType::Unicast, interface)
            }
            NextHop::Interface(name) => (RouteScope::Link, RouteType::Unicast, Some(name)),
            NextHop::Local(name) => (RouteScope::Host, RouteType::Local, Some(name)),
            NextHop::Blackhole => (RouteScope::Universe, RouteType::BlackHole, None),
        };
        if let Some(name) = interface {
            attributes.push(RouteAttribute::Oif(self.index(name)?));
        }
        attributes.extend(route.source.map(|source| RouteAttribute::PrefSource(source.into())));
        if route.metric > 0 {
            attributes.push(RouteAttribute::Priority(route.metric));
        }
        let mut message = RouteMessage::default();
        message.header = RouteHeader {
            address_family: family(destination),
            destination_prefix_length: prefix_len,
            table: short(route.table),
            protocol: RouteProtocol::Static,
            scope: if destination.is_ipv6() { RouteScope::Universe } else { scope },
            kind,
            ..RouteHeader::default()
        };
        message.attributes = attributes;
        Ok(message)
    }

    /// Asks by which interface packets to `address` leave, and with which source address.
    ///
    /// # Errors
    /// `ENETUNREACH` without a route.
    pub fn way_to(&mut self, address: IpAddr) -> Result<Way, Error> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(address);
        message.header.destination_prefix_length = if address.is_ipv4() { 32 } else { 128 };
        message.attributes = vec![RouteAttribute::Destination(address.into())];
        let header_len = message.header.buffer_len();
        let (mut index, mut source) = (0, None);
        let message = Message::route(&RouteNetlinkMessage::GetRoute(message), 0);
        self.socket.ask(&format!("say how {address} is reached"), &message, &mut |answer| {
            for (kind, value) in message::attributes(answer.payload, header_len) {
                match kind {
                    libc::RTA_OIF => index = parse_u32(value).unwrap_or(0),
                    libc::RTA_PREFSRC => source = parse_ip(value).ok(),
                    _ => {}
                }
            }
        })?;
        Ok(Way { interface: self.name_of(index)?, source })
    }

    /// Has `table` asked for every destination, IPv4 or IPv6, before the rules of higher `priority` numbers are.
    ///
    /// # Errors
    /// [`Error::is_exists`] if there is such a rule.
    pub fn add_rule(&mut self, priority: u32, table: u32, is_v6: bool) -> Result<(), Error> {
        let message = RouteNetlinkMessage::NewRule(rule_message(priority, table, is_v6));
        self.change(&format!("add a routing rule for table {table}"), message, CREATE)
    }

    /// Removes a rule that [`Self::add_rule`] added.
    ///
    /// # Errors
    /// [`Error::is_missing`] if there is none.
    pub fn delete_rule(&mut self, priority: u32, table: u32, is_v6: bool) -> Result<(), Error> {
        let message = RouteNetlinkMessage::DelRule(rule_message(priority, table, is_v6));
        self.change(&format!("remove the routing rule for table {table}"), message, CHANGE)
    }
}

impl std::fmt::Display for Route<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "to {}/{}", self.to.0, self.to.1)?;
        match self.by {
            NextHop::Gateway(gateway, None) => write!(f, " by {gateway}"),
            NextHop::Gateway(gateway, Some(name)) => write!(f, " by {gateway} through {name}"),
            NextHop::Interface(name) => write!(f, " through {name}"),
            NextHop::Local(_) => write!(f, " to this host itself"),
            NextHop::Blackhole => write!(f, " to nowhere"),
        }
    }
}

/// A table's number in a header, which has room for small ones only; the attribute counts.
fn short(table: u32) -> u8 {
    u8::try_from(table).unwrap_or(RouteHeader::RT_TABLE_UNSPEC)
}

fn neighbour_message(index: u32, address: IpAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header = NeighbourHeader { family: family(address), ifindex: index, ..NeighbourHeader::default() };
    message.attributes = vec![NeighbourAttribute::Destination(address.into())];
    message
}

fn rule_message(priority: u32, table: u32, is_v6: bool) -> RuleMessage {
    let mut message = RuleMessage::default();
    let (family, action) = (family(unspecified(is_v6)), RuleAction::ToTable);
    message.header = RuleHeader { family, table: short(table), action, ..RuleHeader::default() };
    message.attributes = vec![RuleAttribute::Priority(priority), RuleAttribute::Table(table)];
    message
}

pub(super) fn parse_address(payload: &[u8], index: u32) -> Option<(IpAddr, u8)> {
    let header = AddressHeader::parse(payload).ok().filter(|header| header.index == index)?;
    let attributes = payload.get(header.buffer_len()..)?;
    // Where the two differ, the other is the far end's.
    let own = message::value(attributes, libc::IFA_LOCAL).or(message::value(attributes, libc::IFA_ADDRESS))?;
    Some((parse_ip(own).ok()?, header.prefix_len))
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
