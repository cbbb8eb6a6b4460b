//! What it takes to route some of a host's traffic elsewhere: the interface that leads to an address, routes with a
//! source address in a table of their own, and the rule that has the table asked first.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use super::{Error, Message, Route, message};
use crate::sys;

const REQUEST: u16 = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
const CREATE: u16 = REQUEST | (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
const REPLACE: u16 = REQUEST | (libc::NLM_F_CREATE | libc::NLM_F_REPLACE) as u16;

// Of linux/fib_rules.h.
const RTM_DELRULE: u16 = libc::RTM_NEWRULE + 1;
const RULE_TO_TABLE: u8 = 1;
const RULE_PRIORITY: u16 = 6;
const RULE_TABLE: u16 = 15;
/// Behind the 1,024 that the kernel gives IPv6 routes without a metric.
const LAST_METRIC: u32 = 9_999;

/// How the kernel would send a packet to an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Way {
    /// The interface by which it would leave.
    pub interface: String,
    /// The source address that it would get.
    pub source: Option<IpAddr>,
}

impl Route {
    /// Asks by which interface packets to `address` leave, and with which source address.
    ///
    /// # Errors
    /// `ENETUNREACH` without a route.
    pub fn way_to(&mut self, address: IpAddr) -> Result<Way, Error> {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let header = [message::family_of(address), bits, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let mut request = Message::new(libc::RTM_GETROUTE, REQUEST, &header);
        request.put(libc::RTA_DST, &message::address_bytes(address));
        let (mut index, mut source) = (0, None);
        self.socket.dump(&format!("say how {address} is reached"), request, &mut |received| {
            for (kind, value) in message::attributes(received.payload.get(12..).unwrap_or_default()) {
                match kind {
                    libc::RTA_OIF => index = message::u32_of(value).unwrap_or(0),
                    libc::RTA_PREFSRC => source = message::address_of(value),
                    _ => {}
                }
            }
        })?;
        Ok(Way { interface: sys::interface_of(index)?, source })
    }

    /// Adds or replaces a route to `destination/prefix_len` through `name` in the table `table` (254: main). Packets
    /// without a source address get `source`; without one the route is the last that is taken, and stays whatever addresses
    /// this host has.
    ///
    /// # Errors
    /// `EINVAL` if `source` is no address of this host.
    pub fn add_route_from(
        &mut self,
        (destination, prefix_len): (IpAddr, u8),
        name: &str,
        source: Option<IpAddr>,
        table: u32,
    ) -> Result<(), Error> {
        let mut message =
            self.table_route(REPLACE, libc::RTM_NEWROUTE, (destination, prefix_len), name, (source, table))?;
        if source.is_none() {
            message.put_u32(libc::RTA_PRIORITY, LAST_METRIC);
        }
        self.socket.request(&format!("add a route to {destination}/{prefix_len} through {name}"), message)
    }

    /// Removes a route that [`Route::add_route_from`] added.
    ///
    /// # Errors
    /// [`Error::is_missing`] if there is none.
    pub fn delete_route(
        &mut self,
        (destination, prefix_len): (IpAddr, u8),
        name: &str,
        table: u32,
    ) -> Result<(), Error> {
        let message = self.table_route(REQUEST, libc::RTM_DELROUTE, (destination, prefix_len), name, (None, table))?;
        self.socket.request(&format!("remove the route to {destination}/{prefix_len} through {name}"), message)
    }

    fn table_route(
        &self,
        flags: u16,
        kind: u16,
        (destination, prefix_len): (IpAddr, u8),
        name: &str,
        (source, table): (Option<IpAddr>, u32),
    ) -> io::Result<Message> {
        let index = sys::interface_index(name)?;
        let scope = if destination.is_ipv6() { libc::RT_SCOPE_UNIVERSE } else { libc::RT_SCOPE_LINK };
        let short = u8::try_from(table).unwrap_or(libc::RT_TABLE_UNSPEC);
        let (family, route) = (message::family_of(destination), libc::RTN_UNICAST);
        let header = [family, prefix_len, 0, 0, short, libc::RTPROT_STATIC, scope, route, 0, 0, 0, 0];
        let mut message = Message::new(kind, flags, &header);
        if prefix_len > 0 {
            message.put(libc::RTA_DST, &message::address_bytes(destination));
        }
        if let Some(source) = source {
            message.put(libc::RTA_PREFSRC, &message::address_bytes(source));
        }
        message.put_u32(libc::RTA_OIF, index).put_u32(libc::RTA_TABLE, table);
        Ok(message)
    }

    /// Has `table` asked for every destination, IPv4 or IPv6, before the rules of higher `priority` numbers are.
    ///
    /// # Errors
    /// [`Error::is_exists`] if there is such a rule.
    pub fn add_rule(&mut self, priority: u32, table: u32, is_v6: bool) -> Result<(), Error> {
        let message = rule(libc::RTM_NEWRULE, CREATE, priority, table, is_v6);
        self.socket.request(&format!("add a routing rule for table {table}"), message)
    }

    /// Removes a rule that [`Route::add_rule`] added.
    ///
    /// # Errors
    /// [`Error::is_missing`] if there is none.
    pub fn delete_rule(&mut self, priority: u32, table: u32, is_v6: bool) -> Result<(), Error> {
        let message = rule(RTM_DELRULE, REQUEST, priority, table, is_v6);
        self.socket.request(&format!("remove the routing rule for table {table}"), message)
    }
}

fn rule(kind: u16, flags: u16, priority: u32, table: u32, is_v6: bool) -> Message {
    let any: IpAddr = if is_v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let short = u8::try_from(table).unwrap_or(libc::RT_TABLE_UNSPEC);
    // `struct fib_rule_hdr`: family, prefix lengths, type of service, table, two reserved, action, flags.
    let header = [message::family_of(any), 0, 0, 0, short, 0, 0, RULE_TO_TABLE, 0, 0, 0, 0];
    let mut message = Message::new(kind, flags, &header);
    message.put_u32(RULE_PRIORITY, priority).put_u32(RULE_TABLE, table);
    message
}
