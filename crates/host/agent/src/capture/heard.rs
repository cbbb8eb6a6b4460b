//! Whom a server has heard with a capability header, and whom without.

use std::{
    collections::{HashSet, VecDeque, hash_map::RandomState},
    hash::BuildHasher,
    net::IpAddr,
    time::Duration,
};

use sluicegate_bounded::Cache;
use sluicegate_wire::{
    Instant, IpProtocol,
    ip::{Ports, Summary},
};

/// Peers that sent with a capability header, as far as a server remembers them.
const HEARD_MAX: u32 = 16_384;
const HEARD_WAYS: usize = 4;
/// Connections without a header that a server remembers.
const PLAIN_MAX: usize = 16_384;
/// How long a server answers a peer with capabilities after it was heard.
const HEARD_FOR: Duration = Duration::from_secs(300);

/// Who has sent with a capability header: a server answers nobody else with one. What was heard longest ago makes room,
/// which costs a busy peer nothing: each of its packets is heard.
#[derive(Debug)]
pub(super) struct Heard {
    key: RandomState,
    peers: Cache<Option<(IpAddr, Instant)>, HEARD_WAYS>,
    /// Connections that opened without a header, from a peer that has used one: its agent may have ended.
    plain: HashSet<(IpAddr, u16, u16)>,
    plain_oldest_first: VecDeque<(IpAddr, u16, u16)>,
}

impl Heard {
    pub(super) fn new() -> Self {
        Self {
            key: RandomState::new(),
            peers: Cache::new("heard", HEARD_MAX),
            plain: HashSet::new(),
            plain_oldest_first: VecDeque::new(),
        }
    }

    pub(super) fn add(&mut self, now: Instant, remote: IpAddr) {
        let is_it = |peer: &Option<(IpAddr, _)>| peer.is_some_and(|(address, _)| address == remote);
        *self.peers.place(self.key.hash_one(remote), is_it, |peer| peer.map(|(_, at)| at)) = Some((remote, now));
    }

    /// Remote address, remote port, local port. A connection that is pushed out is answered like its peer's others.
    pub(super) fn opened_plainly(&mut self, connection: (IpAddr, u16, u16)) {
        if self.plain.insert(connection) {
            self.plain_oldest_first.push_back(connection);
            if self.plain_oldest_first.len() > PLAIN_MAX
                && let Some(oldest) = self.plain_oldest_first.pop_front()
            {
                self.plain.remove(&oldest);
            }
        }
    }

    /// A packet of a peer, stripped of its header.
    pub(super) fn uses_headers(&mut self, packet: &[u8]) {
        if !self.plain.is_empty()
            && let Ok(summary) = Summary::parse(packet)
            && let Ok(ports) = Ports::parse(summary.transport(packet))
        {
            self.plain.remove(&(summary.src, ports.src, ports.dst));
        }
    }

    /// Whether a packet of this host belongs to a connection that opened without a header.
    pub(super) fn is_plain(&self, summary: &Summary, packet: &[u8]) -> bool {
        if self.plain.is_empty() || summary.protocol != IpProtocol::TCP {
            return false;
        }
        Ports::parse(summary.transport(packet))
            .is_ok_and(|ports| self.plain.contains(&(summary.dst, ports.dst, ports.src)))
    }

    pub(super) fn has(&self, now: Instant, remote: IpAddr) -> bool {
        let lasts = |at| now.since(at) < HEARD_FOR;
        let is_it = |peer: &Option<(IpAddr, _)>| peer.is_some_and(|(address, at)| address == remote && lasts(at));
        self.peers.find(self.key.hash_one(remote), is_it).is_some()
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_bounded::Bounded;

    use super::*;

    #[test]
    fn a_server_remembers_whom_it_heard_and_a_flood_of_strangers_costs_only_the_silent_their_place() {
        let mut heard = Heard::new();
        let peer: IpAddr = "192.0.2.1".parse().unwrap();
        let at = Instant::from_secs;
        assert!(!heard.has(at(1), peer));
        heard.add(at(1), peer);
        assert!(heard.has(at(1), peer) && !heard.has(at(301), peer));
        for number in 0..HEARD_MAX * 8 {
            heard.add(at(2), IpAddr::V4(std::net::Ipv4Addr::from_bits(number)));
        }
        assert_eq!((heard.peers.used(), heard.peers.max()), (HEARD_MAX, HEARD_MAX));
        for port in 0..=PLAIN_MAX {
            heard.opened_plainly((peer, port as u16, (port >> 16) as u16));
        }
        assert_eq!((heard.plain.len(), heard.plain_oldest_first.len()), (PLAIN_MAX, PLAIN_MAX));
        heard.add(at(3), peer);
        assert!(heard.has(at(3), peer));
    }
}
