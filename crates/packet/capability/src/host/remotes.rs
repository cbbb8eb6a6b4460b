//! What is known about remote addresses, whoever talks to them: that they speak capabilities, or that they do not.

use core::net::IpAddr;

use sluicegate_bounded::{Cache, Gauge};
use sluicegate_wire::{Instant, capability::shim::Carriage, ip::octets};

use super::random::Keyed;

const WAYS: usize = 4;

/// What is known about a remote address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Knowledge {
    /// It speaks capabilities, carried like this.
    Capable {
        /// How packets to it carry the header: natively, or in UDP from a port of ours.
        carriage: Carriage,
    },
    /// It does not: packets to it are left plain.
    Legacy,
}

/// What is known about which address, and until when.
type Known = (IpAddr, Knowledge, Instant);

/// A memory of remote addresses; what ends first makes room.
#[derive(Debug)]
pub(super) struct Remotes {
    known: Cache<Option<Known>, WAYS>,
    /// When all that was ever known has ended.
    ends: Instant,
    keyed: Keyed,
}

impl Remotes {
    pub(super) fn new(remotes_max: u32, keyed: Keyed) -> Self {
        Self { known: Cache::new("capability_remotes", remotes_max), ends: Instant::ZERO, keyed }
    }

    pub(super) fn know(&mut self, remote: IpAddr, knowledge: Knowledge, until: Instant) {
        let hash = self.keyed.hash(&octets(remote));
        let place = self.known.place(hash, |known| is_of(known, remote), |known| known.map(|(.., until)| until));
        *place = Some((remote, knowledge, until));
        self.ends = self.ends.max(until);
    }

    /// Whether nothing is known of any address.
    pub(super) fn is_empty(&self, now: Instant) -> bool {
        self.ends <= now
    }

    pub(super) fn lookup(&self, now: Instant, remote: IpAddr) -> Option<Knowledge> {
        let known = self.known.find(self.keyed.hash(&octets(remote)), |known| is_of(known, remote));
        known?.and_then(|(_, knowledge, until)| (until > now).then_some(knowledge))
    }

    /// Entries that have not ended.
    pub(super) fn gauge(&self, now: Instant) -> Gauge {
        self.known.gauge_of(|known| known.is_some_and(|(.., until)| until > now))
    }
}

fn is_of(known: &Option<Known>, remote: IpAddr) -> bool {
    known.is_some_and(|(address, ..)| address == remote)
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;

    fn address(n: u32) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from_bits(n))
    }

    #[test]
    fn knowledge_ends_at_its_time() {
        let mut remotes = Remotes::new(16, Keyed::new([1; 16]));
        remotes.know(address(1), Knowledge::Legacy, Instant::from_secs(60));
        assert_eq!(remotes.lookup(Instant::from_secs(59), address(1)), Some(Knowledge::Legacy));
        assert!(!remotes.is_empty(Instant::from_secs(59)));
        assert_eq!(remotes.lookup(Instant::from_secs(60), address(1)), None);
        assert!(remotes.is_empty(Instant::from_secs(60)));
        assert_eq!(remotes.lookup(Instant::ZERO, address(2)), None);
    }

    #[test]
    fn a_full_memory_forgets_what_ends_first() {
        let mut remotes = Remotes::new(4, Keyed::new([1; 16]));
        for n in 1..=5 {
            remotes.know(address(n), Knowledge::Legacy, Instant::from_secs(u64::from(n)));
        }
        assert_eq!(remotes.lookup(Instant::ZERO, address(1)), None);
        assert!((2..=5).all(|n| remotes.lookup(Instant::ZERO, address(n)).is_some()));
        let gauge = remotes.gauge(Instant::ZERO);
        assert_eq!((gauge.used, gauge.max), (4, 4));
    }
}
