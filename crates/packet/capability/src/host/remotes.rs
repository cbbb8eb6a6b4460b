//! What is known about remote addresses, whoever talks to them: that they speak capabilities, or that they do not.

use alloc::{boxed::Box, vec};
use core::net::IpAddr;

use sluicegate_wire::{Instant, capability::shim::Carriage};

use super::{random::Random, table::address_bytes};

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

/// A fixed, set-associative memory; what ends first makes room.
#[derive(Debug)]
pub(super) struct Remotes {
    entries: Box<[Option<(IpAddr, Knowledge, Instant)>]>,
}

impl Remotes {
    pub(super) fn new(remotes_max: u32) -> Self {
        let entries = (remotes_max.max(WAYS as u32) as usize).next_multiple_of(WAYS);
        Self { entries: vec![None; entries].into_boxed_slice() }
    }

    pub(super) fn know(&mut self, random: &Random, remote: IpAddr, knowledge: Knowledge, until: Instant) {
        let set = self.set(random, remote);
        let ways = &mut self.entries[set..set + WAYS];
        let held = ways.iter().position(|entry| entry.is_some_and(|(address, ..)| address == remote));
        let way = held.unwrap_or_else(|| {
            let end = |way: &usize| ways[*way].map_or(Instant::ZERO, |(.., until)| until);
            (0..WAYS).min_by_key(end).unwrap_or(0)
        });
        ways[way] = Some((remote, knowledge, until));
    }

    pub(super) fn lookup(&self, random: &Random, now: Instant, remote: IpAddr) -> Option<Knowledge> {
        let set = self.set(random, remote);
        self.entries[set..set + WAYS]
            .iter()
            .flatten()
            .find_map(|(address, knowledge, until)| (*address == remote && *until > now).then_some(*knowledge))
    }

    /// How many entries have not ended, and how many there may be.
    pub(super) fn used(&self, now: Instant) -> (usize, usize) {
        (self.entries.iter().flatten().filter(|(.., until)| *until > now).count(), self.entries.len())
    }

    fn set(&self, random: &Random, remote: IpAddr) -> usize {
        let sets = (self.entries.len() / WAYS) as u64;
        (random.index(&address_bytes(remote)) % sets) as usize * WAYS
    }
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
        let (mut remotes, random) = (Remotes::new(16), Random::new(&[1; 32]));
        remotes.know(&random, address(1), Knowledge::Legacy, Instant::from_secs(60));
        assert_eq!(remotes.lookup(&random, Instant::from_secs(59), address(1)), Some(Knowledge::Legacy));
        assert_eq!(remotes.lookup(&random, Instant::from_secs(60), address(1)), None);
        assert_eq!(remotes.lookup(&random, Instant::ZERO, address(2)), None);
    }

    #[test]
    fn a_full_memory_forgets_what_ends_first() {
        let (mut remotes, random) = (Remotes::new(4), Random::new(&[1; 32]));
        for n in 1..=5 {
            remotes.know(&random, address(n), Knowledge::Legacy, Instant::from_secs(u64::from(n)));
        }
        assert_eq!(remotes.lookup(&random, Instant::ZERO, address(1)), None);
        assert!((2..=5).all(|n| remotes.lookup(&random, Instant::ZERO, address(n)).is_some()));
        assert_eq!(remotes.used(Instant::ZERO), (4, 4));
    }
}
