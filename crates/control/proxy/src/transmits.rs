//! Datagrams on their way out: one reused byte arena, so that answering a flood allocates nothing.

use std::{
    net::{IpAddr, SocketAddr},
    num::NonZeroU32,
};

use sluicegate_sip::message::Transport;

use crate::links::Links;

/// Where the frontend takes SIP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Listening {
    /// What carries the messages.
    pub transport: Transport,
    /// The local address.
    pub address: SocketAddr,
    /// The address that a NAT in front makes into it, if there is one: peers beyond the NAT know this one.
    pub advertise: Option<SocketAddr>,
}

impl Listening {
    /// A socket of any transport.
    #[must_use]
    pub const fn new(transport: Transport, address: SocketAddr) -> Self {
        Self { transport, address, advertise: None }
    }

    /// The same behind a NAT, if one makes this address into it.
    #[must_use]
    pub const fn behind(self, advertise: Option<SocketAddr>) -> Self {
        Self { advertise, ..self }
    }

    /// A UDP socket.
    #[must_use]
    pub const fn udp(address: SocketAddr) -> Self {
        Self::new(Transport::Udp, address)
    }
}

/// Whether an address means nothing beyond a NAT (RFC 1918, RFC 4193, loopback and link-local).
#[must_use]
pub fn is_private(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.is_private() || ip.is_loopback() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unique_local() || ip.is_loopback() || ip.is_unicast_link_local(),
    }
}

/// Names one connection of a transport that has some, for as long as the process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConnectionId(pub NonZeroU32);

impl ConnectionId {
    /// Most connections that one shard can name.
    pub const NUMBER_MAX: u32 = (1 << 23) - 1;
    /// Set in the names of those that we made.
    const DIALLED: u32 = 1 << 23;

    /// The connection of this number, from 1 to [`Self::NUMBER_MAX`], that `shard` owns, made by its peer.
    #[must_use]
    pub fn new(shard: u8, number: u32) -> Option<Self> {
        let is_number = (1..=Self::NUMBER_MAX).contains(&number);
        NonZeroU32::new(u32::from(shard) << 24 | number).filter(|_| is_number).map(Self)
    }

    /// The connection of this number that we made.
    #[must_use]
    pub fn dialled(self) -> Self {
        Self(self.0 | Self::DIALLED)
    }

    /// Whether we made it: then its peer is who listens at its address.
    #[must_use]
    pub const fn is_dialled(self) -> bool {
        self.0.get() & Self::DIALLED != 0
    }

    /// The shard that owns it: no other can send over it.
    #[must_use]
    pub const fn shard(self) -> u8 {
        self.0.get().to_be_bytes()[0]
    }

    /// As it stands in cookies; all zero where there is none.
    pub(crate) fn to_bytes(connection: Option<Self>) -> [u8; 4] {
        connection.map_or(0, |connection| connection.0.get()).to_be_bytes()
    }

    /// The reverse of [`Self::to_bytes`].
    pub(crate) const fn from_bytes(bytes: [u8; 4]) -> Option<Self> {
        match NonZeroU32::new(u32::from_be_bytes(bytes)) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }
}

/// Where a message came from or goes to. Two messages of one flow reach the same peer by the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Transport and local address: the index of a [`Listening`] in the settings, which is what fits into a cookie.
    pub listener: u8,
    /// The peer's address and port.
    pub peer: SocketAddr,
    /// The connection. `None` where the transport has none, and in a flow to a peer that one is to be made to.
    pub connection: Option<ConnectionId>,
}

impl Flow {
    /// Datagrams between a listening socket and a peer.
    #[must_use]
    pub const fn datagrams(listener: u8, peer: SocketAddr) -> Self {
        Self { listener, peer, connection: None }
    }

    /// Whether what comes from here comes over a connection that was made to send what goes there.
    pub(crate) fn is_dialled_for(self, way: Self) -> bool {
        let is_same = (self.listener, self.peer) == (way.listener, way.peer);
        is_same && way.connection.is_none() && self.connection.is_some_and(ConnectionId::is_dialled)
    }

    /// Whether what comes from here may answer what was sent to `asked`. A datagram comes from that very address and port. Who
    /// lost the connection answers over another one, from a port that nobody knows beforehand (RFC 3261 section 18.2.2).
    pub(crate) fn may_answer(self, asked: Self) -> bool {
        let is_connected = self.connection.is_some() && self.listener == asked.listener;
        self == asked || (is_connected && self.peer.ip() == asked.peer.ip())
    }
}

/// A flow in 28 bytes, for tables that hold many. Without the flow label of IPv6, which nobody sets here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PackedFlow {
    ip: IpAddr,
    listener: u8,
    port: u16,
    scope_id: u32,
    connection: Option<ConnectionId>,
}

impl From<Flow> for PackedFlow {
    fn from(Flow { listener, peer, connection }: Flow) -> Self {
        let scope_id = match peer {
            SocketAddr::V4(_) => 0,
            SocketAddr::V6(peer) => peer.scope_id(),
        };
        Self { ip: peer.ip(), listener, port: peer.port(), scope_id, connection }
    }
}

impl From<PackedFlow> for Flow {
    fn from(PackedFlow { ip, listener, port, scope_id, connection }: PackedFlow) -> Self {
        let mut peer = SocketAddr::new(ip, port);
        if let SocketAddr::V6(peer) = &mut peer {
            peer.set_scope_id(scope_id);
        }
        Self { listener, peer, connection }
    }
}

#[derive(Debug)]
struct Item {
    flow: Flow,
    start: usize,
    end: usize,
}

/// The datagrams that a shard wants to have sent, in order.
///
/// Bounded by [`Transmits::DATAGRAMS_MAX`]; what does not fit is counted and dropped, as a full socket buffer would do.
#[derive(Debug)]
pub struct Transmits {
    bytes: Vec<u8>,
    items: Vec<Item>,
    /// How many of them were looked at by [`Self::take_new`].
    seen: usize,
    dropped: u64,
    /// What goes to one of these is sealed as it is queued, whoever queues it.
    pub(crate) links: Links,
}

impl Default for Transmits {
    fn default() -> Self {
        Self {
            bytes: Vec::with_capacity(64 * 1024),
            items: Vec::with_capacity(64),
            seen: 0,
            dropped: 0,
            links: Links::default(),
        }
    }
}

impl Transmits {
    /// Most datagrams held between two flushes.
    pub const DATAGRAMS_MAX: usize = 4096;
    /// Longest datagram, in bytes: what UDP over IPv4 can carry.
    pub const DATAGRAM_BYTES_MAX: usize = 65_507;

    /// Queues one datagram; `false` if it did not fit and was counted as dropped.
    pub fn push(&mut self, flow: Flow, datagram: &[u8]) -> bool {
        if self.items.len() >= Self::DATAGRAMS_MAX || datagram.len() > Self::DATAGRAM_BYTES_MAX {
            self.dropped += 1;
            return false;
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(datagram);
        if let Some(trailer) = self.links.seal(flow, datagram) {
            self.bytes.extend_from_slice(&trailer);
        }
        self.items.push(Item { flow, start, end: self.bytes.len() });
        true
    }

    /// The queued datagrams, oldest first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (Flow, &[u8])> {
        self.items.iter().map(|item| (item.flow, self.bytes.get(item.start..item.end).unwrap_or_default()))
    }

    /// The datagram that was queued so many after the oldest.
    #[must_use]
    pub fn get(&self, position: usize) -> Option<&[u8]> {
        let item = self.items.get(position)?;
        self.bytes.get(item.start..item.end)
    }

    /// Those that were queued since the last call.
    pub(crate) fn take_new(&mut self) -> impl Iterator<Item = (Flow, &[u8])> {
        let seen = std::mem::replace(&mut self.seen, self.items.len());
        self.iter().skip(seen)
    }

    /// Whether nothing is queued.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Forgets everything queued; keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.items.clear();
        self.seen = 0;
    }

    /// Datagrams dropped since the last call because the list was full or they were too long.
    pub const fn take_dropped(&mut self) -> u64 {
        std::mem::replace(&mut self.dropped, 0)
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddrV6;

    use super::*;

    fn flow() -> Flow {
        Flow::datagrams(0, "192.0.2.1:5060".parse().unwrap())
    }

    #[test]
    fn datagrams_come_out_in_the_order_they_went_in() {
        let mut transmits = Transmits::default();
        assert!(transmits.push(flow(), b"one") && transmits.push(flow(), b"two"));
        let all: Vec<_> = transmits.iter().map(|(_, bytes)| bytes.to_vec()).collect();
        assert_eq!(all, [b"one".to_vec(), b"two".to_vec()]);
        transmits.clear();
        assert!(transmits.is_empty());
    }

    #[test]
    fn a_packed_flow_is_the_same_flow_and_small() {
        let link_local = SocketAddr::V6(SocketAddrV6::new("fe80::1".parse().unwrap(), 5060, 0, 3));
        let peers = ["192.0.2.1:5060", "[2001:db8::1]:5061", "[::ffff:192.0.2.1]:5060"];
        for peer in peers.iter().map(|peer| peer.parse().unwrap()).chain([link_local]) {
            for connection in [None, NonZeroU32::new(u32::MAX).map(ConnectionId)] {
                let flow = Flow { listener: 7, peer, connection };
                assert_eq!(Flow::from(PackedFlow::from(flow)), flow);
            }
        }
        assert_eq!(size_of::<PackedFlow>(), 28);
    }

    #[test]
    fn a_connection_is_named_by_who_made_it_too() {
        for number in [1, ConnectionId::NUMBER_MAX] {
            let theirs = ConnectionId::new(255, number).unwrap();
            let ours = theirs.dialled();
            assert!(ours != theirs && ours.is_dialled() && !theirs.is_dialled());
            assert_eq!((ours.shard(), theirs.shard(), ours.dialled()), (255, 255, ours));
            let way = flow();
            let over = |connection| Flow { connection: Some(connection), ..way };
            assert!(over(ours).is_dialled_for(way) && !over(theirs).is_dialled_for(way) && !way.is_dialled_for(way));
            assert!(!Flow { listener: 1, ..over(ours) }.is_dialled_for(way) && !over(ours).is_dialled_for(over(ours)));
        }
        assert_eq!(ConnectionId::new(0, ConnectionId::NUMBER_MAX + 1), None);
    }

    #[test]
    fn a_datagram_is_answered_from_where_it_went_and_a_stream_over_any_connection_with_its_host() {
        let other = Flow::datagrams(0, "192.0.2.1:5061".parse().unwrap());
        assert!(flow().may_answer(flow()) && !other.may_answer(flow()));
        let stream = |listener, peer: &str, id| Flow {
            listener,
            peer: peer.parse().unwrap(),
            connection: ConnectionId::new(3, id),
        };
        let asked = stream(1, "192.0.2.1:5060", 7);
        assert!(asked.may_answer(asked) && stream(1, "192.0.2.1:49152", 8).may_answer(asked));
        for stranger in [stream(1, "192.0.2.2:5060", 8), stream(2, "192.0.2.1:5060", 8), stream(1, "192.0.2.1:5061", 0)]
        {
            assert!(!stranger.may_answer(asked));
        }
    }

    #[test]
    fn a_full_list_drops_and_counts() {
        let mut transmits = Transmits::default();
        for _ in 0..Transmits::DATAGRAMS_MAX {
            assert!(transmits.push(flow(), b"x"));
        }
        assert!(!transmits.push(flow(), b"x"));
        assert!(!Transmits::default().push(flow(), &vec![0; Transmits::DATAGRAM_BYTES_MAX + 1]));
        assert_eq!(transmits.take_dropped(), 1);
        assert_eq!(transmits.take_dropped(), 0);
    }
}
