//! Whom a server has heard with a capability header, and whom without.

use std::{
    collections::{HashSet, VecDeque, hash_map::RandomState},
    hash::BuildHasher,
    net::IpAddr,
    time::Duration,
};

use sluicegate_wire::{
    Instant, IpProtocol,
    ip::{Ports, Summary},
};

/// Peers that sent with a capability header, as far as a server remembers them: 4 in each of 4,096 sets.
const HEARD_WAYS: usize = 4;
const HEARD_SETS: usize = 4_096;
/// Connections without a header that a server remembers.
const PLAIN_MAX: usize = 16_384;
/// How long a server answers a peer with capabilities after it was heard.
const HEARD_FOR: Duration = Duration::from_secs(300);

/// Who has sent with a capability header: a server answers nobody else with one. What was heard longest ago makes room,
/// which costs a busy peer nothing: each of its packets is heard.
#[derive(Debug, Default)]
pub(super) struct Heard {
    key: RandomState,
    sets: Vec<[Option<(IpAddr, Instant)>; HEARD_WAYS]>,
    /// Connections that opened without a header, from a peer that has used one: its agent may have ended.
    plain: HashSet<(IpAddr, u16, u16)>,
    plain_oldest_first: VecDeque<(IpAddr, u16, u16)>,
}

impl Heard {
    fn set(&self, remote: IpAddr) -> usize {
        self.key.hash_one(remote) as usize % HEARD_SETS
    }

    pub(super) fn add(&mut self, now: Instant, remote: IpAddr) {
        if self.sets.is_empty() {
            self.sets = vec![[None; HEARD_WAYS]; HEARD_SETS];
        }
        let index = self.set(remote);
        let Some(set) = self.sets.get_mut(index) else { return };
        let held = set.iter().position(|way| way.is_some_and(|(address, _)| address == remote));
        let oldest = || (0..HEARD_WAYS).min_by_key(|way| set[*way].map_or(Instant::ZERO, |(_, at)| at)).unwrap_or(0);
        let way = held.unwrap_or_else(oldest);
        set[way] = Some((remote, now));
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
        let Some(set) = self.sets.get(self.set(remote)) else { return false };
        set.iter().flatten().any(|(address, at)| *address == remote && now.since(*at) < HEARD_FOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_remembers_whom_it_heard_and_a_flood_of_strangers_costs_only_the_silent_their_place() {
        let mut heard = Heard::default();
        let peer: IpAddr = "192.0.2.1".parse().unwrap();
        let at = Instant::from_secs;
        assert!(!heard.has(at(1), peer));
        heard.add(at(1), peer);
        assert!(heard.has(at(1), peer) && !heard.has(at(301), peer));
        for number in 0..(HEARD_SETS * HEARD_WAYS * 8) as u32 {
            heard.add(at(2), IpAddr::V4(std::net::Ipv4Addr::from_bits(number)));
        }
        assert_eq!(heard.sets.len(), HEARD_SETS);
        for port in 0..=PLAIN_MAX {
            heard.opened_plainly((peer, port as u16, (port >> 16) as u16));
        }
        assert_eq!((heard.plain.len(), heard.plain_oldest_first.len()), (PLAIN_MAX, PLAIN_MAX));
        heard.add(at(3), peer);
        assert!(heard.has(at(3), peer));
    }
}
