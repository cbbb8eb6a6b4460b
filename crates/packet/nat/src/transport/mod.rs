//! What the packet path asks of a transport protocol: one table, one row and one file for each.
//!
//! Everything else asks the row and knows no protocol by name. Three things stand outside of it, because they are made of
//! UDP datagrams: packet MACs, proofs of address, and what a frontend relays.

use core::time::Duration;

use sluicegate_flow::Kind;
use sluicegate_pinhole::{Protocols, Tuple};
use sluicegate_wire::{
    Checksum, IpProtocol, Reason,
    ip::{Ports, Summary, Version},
};

pub use crate::config::Timers;
pub use icmp::{ICMP, ICMPV6};
pub use state::State;
pub use tcp::Segment;

mod dccp;
mod gre;
pub(crate) mod icmp;
mod ipsec;
mod state;
pub(crate) mod tcp;
mod udp;
mod udplite;

/// By what the flows between two addresses are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Selector {
    /// Two ports, at the start of the header. A pinhole of a `nat` service has external ports, and is found by them.
    Ports,
    /// An identifier that both directions have (ICMP echo); the type of the message tells the directions apart.
    Ident,
    /// Nothing: one flow for each pair of addresses. A pinhole is found by its client's address.
    None,
}

/// What moves a connection on.
#[derive(Debug, Clone, Copy)]
pub enum Tracking {
    /// Every packet is like the next.
    Nothing,
    /// Flags, numbers and windows, see [`tcp`].
    Tcp,
    /// The type of packet alone: the state after one from this side, which [`Signal::Typed`] names.
    ByType(fn(State, Kind, u8) -> Result<State, Reason>),
}

/// What a header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Both ports; or identifier and type of message; or zeros.
    pub ports: Ports,
    /// Whether a flow may begin with it.
    pub opens: bool,
    /// What it says of its connection.
    pub signal: Signal,
}

/// What a packet says of its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Nothing.
    None,
    /// Numbers and flags.
    Tcp(Segment),
    /// Its type, for [`Tracking::ByType`].
    Typed(u8),
    /// It is an error about another packet, which it quotes.
    Error,
}

/// What an ICMP error quotes of a header: 8 bytes of it, at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quote {
    /// As in [`Header::ports`].
    pub ports: Ports,
    /// A sequence number that must be one in flight (RFC 5927 4.1).
    pub seq: Option<u32>,
}

/// A row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Transport {
    /// Its number.
    pub protocol: IpProtocol,
    /// The IP version that it runs over, if not both.
    pub version: Option<Version>,
    /// See [`Selector`].
    pub selector: Selector,
    /// The gauge of external ports or identifiers, where `nat` gives some away.
    pub space: Option<&'static str>,
    /// Whether addresses can be rewritten; if not, only `filter` services have it.
    pub is_translatable: bool,
    /// What a rewritten address or port changes in the header.
    pub checksum: Checksum,
    /// Reads a whole header, or (`true`) that of a first fragment.
    ///
    /// # Errors
    /// Why no host would take it, or none should see it.
    pub parse: fn(&[u8], bool) -> Result<Header, Reason>,
    /// Reads what an ICMP error quotes; `None` if that says too little.
    pub quoted: fn(&[u8]) -> Option<Quote>,
    /// See [`Tracking`].
    pub tracking: Tracking,
    /// How long a flow in this state may be idle.
    pub idle: fn(State, &Timers) -> Duration,
}

impl Transport {
    /// A protocol of which only the addresses count: rewritten blindly, each flow the only one of its pair of addresses.
    const BY_ADDRESSES: Self = Self {
        protocol: IpProtocol(0),
        version: None,
        selector: Selector::None,
        space: None,
        is_translatable: true,
        checksum: Checksum::None,
        parse: |_, _| Ok(Header { ports: NO_PORTS, opens: true, signal: Signal::None }),
        quoted: |_| Some(Quote { ports: NO_PORTS, seq: None }),
        tracking: Tracking::Nothing,
        idle: |_, timers| timers.udp,
    };

    /// Whether what follows the first packet depends on a state.
    pub(crate) const fn is_tracked(&self) -> bool {
        !matches!(self.tracking, Tracking::Nothing)
    }
}

/// What stands for the ports of a protocol that has none.
pub const NO_PORTS: Ports = Ports { src: 0, dst: 0 };

/// The table, found by protocol number.
#[derive(Debug, Clone, Copy)]
pub struct Transports {
    rows: &'static [Transport],
    /// The row of each number, or [`Self::OTHER`] or [`Self::NONE`].
    by_number: [u8; 256],
    /// The space of each number's ports, or [`Self::NONE`].
    spaces: [u8; 256],
}

impl Transports {
    const OTHER: u8 = 254;
    const NONE: u8 = 255;

    /// A table of these rows, at most 254. Numbers that have none go by their addresses alone, but for those that are no
    /// transport, and SCTP, whose hosts would take such a packet for another's.
    #[must_use]
    pub const fn new(rows: &'static [Transport]) -> Self {
        let mut by_number = [Self::OTHER; 256];
        let none = [
            IpProtocol::HOP_BY_HOP,
            IpProtocol(2),
            IpProtocol::IPV6_ROUTE,
            IpProtocol::IPV6_FRAGMENT,
            IpProtocol::NO_NEXT_HEADER,
            IpProtocol::DESTINATION_OPTIONS,
            IpProtocol::SCTP,
            IpProtocol::CAPABILITY,
            IpProtocol(255),
        ];
        let mut at = 0;
        while at < none.len() {
            by_number[none[at].0 as usize] = Self::NONE;
            at += 1;
        }
        let mut spaces = [Self::NONE; 256];
        let (mut row, mut space) = (0, 0);
        while row < rows.len() {
            by_number[rows[row].protocol.0 as usize] = row as u8;
            if rows[row].space.is_some() {
                spaces[rows[row].protocol.0 as usize] = space;
                space += 1;
            }
            row += 1;
        }
        Self { rows, by_number, spaces }
    }

    /// The row of a protocol; `None` if it is nothing that could pass.
    #[inline]
    pub(crate) fn of(&self, protocol: u8) -> Option<&'static Transport> {
        match self.by_number[usize::from(protocol)] {
            Self::NONE => None,
            Self::OTHER => Some(&Transport::BY_ADDRESSES),
            row => self.rows.get(usize::from(row)),
        }
    }

    #[inline]
    pub(crate) fn selector(&self, protocol: u8) -> Selector {
        self.of(protocol).map_or(Selector::None, |transport| transport.selector)
    }

    /// Those that have ports.
    pub(crate) fn with_ports(&self) -> Protocols {
        let rows = self.rows.iter().filter(|row| row.selector == Selector::Ports);
        rows.fold(Protocols::NONE, |with, row| with.with(row.protocol.0))
    }

    /// The gauges of external ports and identifiers.
    pub(crate) fn spaces(&self) -> impl Iterator<Item = &'static str> {
        self.rows.iter().filter_map(|row| row.space)
    }

    /// Which of [`Self::spaces`] a protocol's are.
    #[inline]
    pub(crate) fn space(&self, protocol: u8) -> Option<usize> {
        Some(self.spaces[usize::from(protocol)]).filter(|space| *space != Self::NONE).map(usize::from)
    }
}

/// All transports.
pub static TRANSPORTS: Transports =
    Transports::new(&[udp::UDP, tcp::TCP, ICMP, ICMPV6, udplite::UDPLITE, dccp::DCCP, gre::GRE, ipsec::ESP, ipsec::AH]);

impl Selector {
    /// The ends of an answer to a packet.
    pub(crate) fn reversed(self, of: &Tuple) -> Tuple {
        let protocol = of.protocol;
        match self {
            Self::Ident => Tuple { protocol, src: (of.dst.0, of.src.1), dst: (of.src.0, icmp::opposite(of.dst.1)) },
            Self::Ports | Self::None => Tuple { protocol, src: of.dst, dst: of.src },
        }
    }

    /// The external port or identifier of a flow, of the ends of its packets from outside.
    pub(crate) const fn external(self, of: &Tuple) -> u16 {
        if matches!(self, Self::Ident) { of.src.1 } else { of.dst.1 }
    }
}

/// A whole packet, or a first fragment.
#[derive(Debug)]
pub struct Packet<'a> {
    /// What is known of it besides its transport header, kept right while it is rewritten.
    pub ip: &'a mut Summary,
    pub(crate) transport: &'static Transport,
    pub(crate) tuple: Tuple,
    pub(crate) opens: bool,
    pub(crate) signal: Signal,
}

impl<'a> Packet<'a> {
    /// Reads the transport header.
    #[inline]
    pub(crate) fn parse(transports: &Transports, ip: &'a mut Summary, bytes: &[u8]) -> Result<Self, Reason> {
        let transport = transports.of(ip.protocol.0).ok_or(Reason::ProtocolUnsupported)?;
        if transport.version.is_some_and(|version| version != ip.version()) {
            return Err(Reason::ProtocolUnsupported);
        }
        let Header { ports, opens, signal } = (transport.parse)(ip.transport(bytes), ip.fragment.is_some())?;
        let tuple = Tuple { protocol: ip.protocol.0, src: (ip.src, ports.src), dst: (ip.dst, ports.dst) };
        Ok(Self { ip, transport, tuple, opens, signal })
    }

    /// Holds the transport checksum against the packet's bytes, before anything is remembered of it: what the receiver
    /// will not believe must not be believed here. A first fragment cannot be checked.
    ///
    /// # Errors
    /// [`Reason::TransportHeaderInvalid`].
    pub(crate) fn verify(&self, bytes: &[u8]) -> Result<(), Reason> {
        let is_right = self.ip.fragment.is_some() || self.ip.verify_transport_checksum(bytes);
        if is_right { Ok(()) } else { Err(Reason::TransportHeaderInvalid) }
    }

    /// IP bytes.
    #[inline]
    pub(crate) const fn len(&self) -> u32 {
        self.ip.total_len as u32
    }

    /// Whether packet MACs are for it.
    #[inline]
    pub(crate) fn is_udp(&self) -> bool {
        self.ip.protocol == IpProtocol::UDP
    }
}

/// RFC 768 has a source port 0 for "no answer wanted"; a NAT cannot bind it, and nobody listens on port 0.
#[inline]
pub(crate) fn real_ports(transport: &[u8]) -> Result<Ports, Reason> {
    let ports = Ports::parse(transport)?;
    if ports.src == 0 || ports.dst == 0 { Err(Reason::TransportHeaderInvalid) } else { Ok(ports) }
}

/// What an error quotes of a header that begins with ports.
fn quoted_ports(transport: &[u8]) -> Option<Quote> {
    Some(Quote { ports: Ports::parse(transport).ok()?, seq: None })
}
