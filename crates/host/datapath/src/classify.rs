//! Who gets a packet: the kernel of the gate's host, or the gate. One rule, three mirrors: this function, `gate.c`, and
//! the nf_tables ingress filter.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use sluicegate_wire::Port;

use crate::OpenError;

mod fragments;

pub(crate) use fragments::{Classifier, FRAGMENTED_BYTES_MAX, PLACE_AT, PLACE_DATAGRAMS, PLACES};
pub use fragments::{FRAGMENT_WAIT, FRAGMENTED_MAX, FRAGMENTED_RATE_PPS};

/// Most entries of [`Rules::local`].
pub const LOCAL_MAX: usize = 32;
/// Most entries of [`Rules::own`].
pub const OWN_MAX: usize = 64;
/// Most entries of [`Rules::peers`].
pub const PEERS_MAX: usize = 32;
/// Packets per second of each of [`Rules::peers`]: a hundred megabits of full segments, more than a feed ever needs. Who
/// sees the connection and forges its ends can send this much to one port, and no more.
pub const PEER_RATE_PPS: u32 = 10_000;
/// ICMP errors per second that the host receives about its own packets. It looks up the connection that each quotes, which
/// costs it little; true ones are rare, and have to get through beside forged ones.
pub const ERROR_RATE_PPS: u32 = 10_000;

/// Answers per second that the host receives to what it sent itself: a gigabit of full segments.
pub const ANSWER_RATE_PPS: u32 = 100_000;
/// Most flows of the host, in each family, whose answers pass. Where they are too many, the next has to wait for one to end.
pub const FLOWS_MAX: u32 = 65_536;

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
const CAPABILITY: u8 = sluicegate_wire::capability::PROTOCOL.0;
const CAPABILITY_PORT: u16 = sluicegate_wire::capability::UDP_PORT;

/// By which of a gate's two ports something may come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// From the Internet.
    Outside,
    /// From the protected link.
    Inside,
    /// By either.
    #[default]
    Both,
}

impl Side {
    /// Whether `port` belongs to it.
    #[must_use]
    pub fn has(self, port: Port) -> bool {
        match self {
            Self::Outside => port == Port::OUTSIDE,
            Self::Inside => port == Port::INSIDE,
            Self::Both => true,
        }
    }
}

/// Something that the gate's own host may receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalRule {
    /// IP protocol number: 6 TCP, 17 UDP, 1 ICMP (which covers ICMPv6 too, without its ports).
    pub protocol: u8,
    /// First destination port.
    pub first: u16,
    /// Last destination port.
    pub last: u16,
    /// By which port it may come.
    pub side: Side,
    /// To which of the host's addresses; any unless given.
    pub address: Option<IpAddr>,
    /// Packets per second that this entry lets through. What one entry spends is not taken from another.
    pub rate_pps: u32,
}

/// An address of the gate's host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnAddress {
    /// The address.
    pub address: IpAddr,
    /// By which port packets to it may come.
    pub side: Side,
}

/// A TCP connection that the host itself opens, told from others by both its ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// The remote end.
    pub remote: SocketAddr,
    /// The port of the host's own socket.
    pub own_port: u16,
}

/// What the gate translates to. ICMP that quotes it is the gate's; what quotes anything else of the host's addresses is
/// about the host's own packets, which leave from other ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Translated {
    /// The address.
    pub address: Ipv4Addr,
    /// The first external port, and identifier of pings; those of the host may have any.
    pub first: u16,
    /// The last one.
    pub last: u16,
}

/// What is for the gate's own host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rules {
    /// Addresses of the host; only packets to these can be local. At most [`OWN_MAX`].
    pub own: Vec<OwnAddress>,
    /// Protocols and ports that the host may receive; at most [`LOCAL_MAX`].
    pub local: Vec<LocalRule>,
    /// The host's own connections; [`PEER_RATE_PPS`] each. At most [`PEERS_MAX`].
    pub peers: Vec<Peer>,
    /// What of this the gate uses for others.
    pub translated: Option<Translated>,
    /// Which identifiers of pings it uses now: a bit for each of `translated`, from the first on.
    pub pings: Vec<u64>,
}

impl Rules {
    /// Whether they fit the tables of fixed size.
    pub(crate) fn check(&self) -> Result<(), OpenError> {
        let sizes = [
            ("local", self.local.len(), LOCAL_MAX),
            ("own", self.own.len(), OWN_MAX),
            ("peers", self.peers.len(), PEERS_MAX),
        ];
        let too_many = sizes.into_iter().find(|(_, given, max)| given > max);
        too_many.map_or(Ok(()), |(table, given, max)| Err(OpenError::TooMany { table, given, max }))
    }

    fn is_translated(&self, address: IpAddr, port: u16) -> bool {
        let ours = self.translated.filter(|ours| address == ours.address);
        ours.is_some_and(|ours| (ours.first..=ours.last).contains(&port))
    }

    fn is_translated_ping(&self, address: IpAddr, identifier: u16) -> bool {
        let ours = self.translated.filter(|_| self.is_translated(address, identifier));
        ours.is_some_and(|ours| {
            let place = identifier - ours.first;
            self.pings.get(usize::from(place / 64)).is_some_and(|word| word >> (place % 64) & 1 == 1)
        })
    }
}

/// Who gets a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// ARP, who has an address, or multicast listener discovery: the kernel.
    Link,
    /// Of a connection of the host: the kernel, at a limited rate.
    Peer,
    /// Listed in `local`: the kernel, at a limited rate.
    Local,
    /// An ICMP error about a packet of the host: the kernel, at a limited rate.
    Error,
    /// Perhaps an answer to what the host sent: the nf_tables filter in front of the kernel compares it with that.
    Answer,
    /// Everything else: the gate.
    Gate,
}

/// Classifies a frame that came by `port`, given from its Ethernet header on. An IPv6 packet whose transport header does not
/// directly follow is never local, nor a fragment: the device remembers to which datagram that belongs. Costs a few nanoseconds; reads at most the first 60 bytes
/// behind the IPv4 options.
#[must_use]
pub fn classify(rules: &Rules, port: Port, frame: &[u8]) -> Class {
    match frame.get(12..14) {
        Some([0x08, 0x06]) => Class::Link,
        Some([0x08, 0x00]) => ipv4(rules, port, &frame[14..]).unwrap_or(Class::Gate),
        Some([0x86, 0xdd]) => ipv6(rules, port, &frame[14..]).unwrap_or(Class::Gate),
        _ => Class::Gate,
    }
}

fn ipv4(rules: &Rules, arrived: Port, packet: &[u8]) -> Option<Class> {
    let header = packet.first_chunk::<20>()?;
    let header_len = usize::from(header[0] & 15) * 4;
    if header[0] >> 4 != 4 || header_len < 20 || u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0 {
        return None;
    }
    let source = Ipv4Addr::new(header[12], header[13], header[14], header[15]);
    let destination = Ipv4Addr::new(header[16], header[17], header[18], header[19]);
    let transport = packet.get(header_len..)?;
    own_host(rules, arrived, (source.into(), destination.into()), header[9], transport)
}

fn ipv6(rules: &Rules, arrived: Port, packet: &[u8]) -> Option<Class> {
    let header = packet.first_chunk::<40>()?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let transport = &packet[40..];
    let (protocol, hop_limit) = (header[6], header[7]);
    if protocol == ICMPV6 && hop_limit == 255 && matches!(transport.first(), Some(135 | 136)) {
        // Not who is a router, nor redirects: neighbours would choose the host's routes, and the gate follows those.
        return Some(Class::Link);
    }
    // Multicast listener discovery, without which switches forget who wants neighbour discovery (RFC 3810).
    let link_local_to_group = header[8] == 0xfe && header[9] & 0xc0 == 0x80 && header[24] == 0xff;
    if protocol == 0 && hop_limit == 1 && link_local_to_group {
        return Some(Class::Link);
    }
    let address = |at: usize| header[at..].first_chunk::<16>().map(|bytes| Ipv6Addr::from(*bytes));
    own_host(rules, arrived, (address(8)?.into(), address(24)?.into()), protocol, transport)
}

fn own_host(
    rules: &Rules,
    arrived: Port,
    (source, destination): (IpAddr, IpAddr),
    protocol: u8,
    transport: &[u8],
) -> Option<Class> {
    if !rules.own.iter().any(|own| own.address == destination && own.side.has(arrived)) {
        return None;
    }
    let fits = |rule: &&LocalRule| rule.side.has(arrived) && rule.address.is_none_or(|address| address == destination);
    let mut local = rules.local.iter().filter(fits);
    if protocol == if destination.is_ipv4() { ICMP } else { ICMPV6 } {
        let listed = || local.any(|rule| rule.protocol == ICMP).then_some(Class::Local);
        return about(rules, destination, transport).or_else(listed);
    }
    let ports = transport.first_chunk::<4>()?;
    let source_port = u16::from_be_bytes([ports[0], ports[1]]);
    let port = u16::from_be_bytes([ports[2], ports[3]]);
    let peer = Peer { remote: SocketAddr::new(source, source_port), own_port: port };
    if protocol == TCP && rules.peers.contains(&peer) {
        return Some(Class::Peer);
    }
    if local.any(|rule| rule.protocol == protocol && (rule.first..=rule.last).contains(&port)) {
        return Some(Class::Local);
    }
    let is_encapsulated = protocol == UDP && [source_port, port].contains(&CAPABILITY_PORT);
    let is_hosts = matches!(protocol, TCP | UDP) && !is_encapsulated && !rules.is_translated(destination, port);
    is_hosts.then_some(Class::Answer)
}

/// Whose an ICMP message to one of the host's addresses is: an answer to a ping that is translated and an error about a packet
/// of a translation, or with a capability header, are the gate's; an answer to another ping may be the host's, and an error
/// about any other packet is about the host's own. `None`: neither. A quoted header with options is nobody's: the gate sends none.
fn about(rules: &Rules, destination: IpAddr, message: &[u8]) -> Option<Class> {
    let at = |at: usize| message.get(at..at + 2).map(|port| u16::from_be_bytes([port[0], port[1]]));
    let is_translated = |port: u16| rules.is_translated(destination, port);
    let kind = *message.first()?;
    // Unreachable, too big, time exceeded, wrong parameter.
    let (is_error, version, protocol, transport) = if destination.is_ipv4() {
        (matches!(kind, 3 | 11 | 12), 0x45, 17, 28)
    } else {
        (matches!(kind, 1..=4), 0x60, 14, 48)
    };
    if kind == if destination.is_ipv4() { 0 } else { 129 } {
        return Some(if rules.is_translated_ping(destination, at(4)?) { Class::Gate } else { Class::Answer });
    }
    let quoted = message.get(..18)?[8];
    if !is_error || (if version == 0x45 { quoted } else { quoted & 0xf0 }) != version {
        return None;
    }
    let (port, other) = match *message.get(protocol)? {
        ICMP | ICMPV6 => (at(transport + 4)?, 0),
        TCP | UDP => (at(transport)?, at(transport + 2)?),
        CAPABILITY => return Some(Class::Gate),
        _ => return None,
    };
    let is_encapsulated = message[protocol] == UDP && [port, other].contains(&CAPABILITY_PORT);
    Some(if is_encapsulated || is_translated(port) { Class::Gate } else { Class::Error })
}

#[cfg(test)]
mod tests;
