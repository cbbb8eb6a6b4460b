//! The fixed table of peers: one index, three standings, and a rule for who makes room for whom.

use alloc::{boxed::Box, vec};
use core::{net::IpAddr, time::Duration};

use sluicegate_wire::{Instant, capability::ClientId};

use super::random::Random;

const NONE: u32 = u32::MAX;

/// What is known about a peer; decides who makes room when the table is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Standing {
    /// It sent to us and has proved nothing: its address may be forged.
    Stranger,
    /// A local host sent to it; nothing has come back that only the peer could send.
    Contacted,
    /// It proved that it receives at its address: it answered our request, or used what we granted.
    Proven,
}

const STANDINGS: usize = 3;
/// The list of free slots lies behind the three standings.
const FREE: usize = STANDINGS;

/// How long a contacted peer must have been silent to make room.
pub const CONTACTED_IDLE: Duration = Duration::from_secs(5);
/// How long a proven peer must have been silent to make room.
pub const PROVEN_IDLE: Duration = Duration::from_secs(60);

/// Who a peer is: one client id between one local and one remote address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) local: IpAddr,
    pub(super) remote: IpAddr,
    pub(super) client_id: ClientId,
}

/// A slot and the generation that it had when somebody remembered it: stale once the slot changed its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket {
    slot: u32,
    generation: u32,
}

impl Ticket {
    pub(super) const NOBODY: Self = Self { slot: NONE, generation: 0 };
}

#[derive(Debug)]
struct Slot<T> {
    held: Option<(Key, T)>,
    hash: u64,
    generation: u32,
    list: u8,
    prev: u32,
    next: u32,
    seen: Instant,
}

#[derive(Debug, Clone, Copy)]
struct List {
    oldest: u32,
    newest: u32,
    len: u32,
}

/// A fixed number of peers. Strangers hold at most half of it and push out strangers only, so that no flood of forged
/// sources costs a live peer its state; others make room when they have been idle.
#[derive(Debug)]
pub(super) struct Table<T> {
    slots: Box<[Slot<T>]>,
    index: Box<[u32]>,
    lists: [List; STANDINGS + 1],
    strangers_max: u32,
}

impl<T> Table<T> {
    /// A table for `peers_max` peers (1 to 2^28).
    pub(super) fn new(peers_max: u32) -> Self {
        let peers_max = peers_max.clamp(1, 1 << 28);
        let mut table = Self {
            slots: (0..peers_max).map(|_| Slot::empty()).collect(),
            index: vec![NONE; (peers_max as usize * 2).next_power_of_two()].into_boxed_slice(),
            lists: [List { oldest: NONE, newest: NONE, len: 0 }; STANDINGS + 1],
            strangers_max: peers_max.div_ceil(2),
        };
        for slot in 0..peers_max {
            table.link(slot, FREE);
        }
        table
    }

    /// How many peers there may be.
    pub(super) fn max(&self) -> u32 {
        self.slots.len() as u32
    }

    /// How many peers there are.
    pub(super) fn len(&self) -> u32 {
        self.max() - self.lists[FREE].len
    }

    /// How many peers of this standing there are.
    pub(super) fn count(&self, standing: Standing) -> u32 {
        self.lists[standing as usize].len
    }

    /// The slot of this peer.
    pub(super) fn find(&self, random: &Random, key: &Key) -> Option<u32> {
        let hash = hash(random, key);
        let mut at = self.home(hash);
        loop {
            let slot = *self.index.get(at)?;
            let held = self.slots.get(slot as usize)?;
            if held.hash == hash && held.held.as_ref().is_some_and(|(held, _)| held == key) {
                return Some(slot);
            }
            at = (at + 1) & (self.index.len() - 1);
        }
    }

    /// Puts a peer that is not in the table into it; `None` if nobody makes room.
    pub(super) fn insert(
        &mut self,
        random: &Random,
        now: Instant,
        key: Key,
        standing: Standing,
        value: T,
    ) -> Option<u32> {
        let slot = self.room(now, standing)?;
        self.unlink(slot);
        let hash = hash(random, &key);
        let entry = self.slots.get_mut(slot as usize)?;
        entry.held = Some((key, value));
        entry.hash = hash;
        entry.seen = now;
        self.link(slot, standing as usize);
        let mut at = self.home(hash);
        while self.index[at] != NONE {
            at = (at + 1) & (self.index.len() - 1);
        }
        self.index[at] = slot;
        Some(slot)
    }

    /// The peer in this slot.
    pub(super) fn get(&self, slot: u32) -> Option<(&Key, &T)> {
        self.slots.get(slot as usize)?.held.as_ref().map(|(key, value)| (key, value))
    }

    /// The peer in this slot, to be changed.
    pub(super) fn get_mut(&mut self, slot: u32) -> Option<(&Key, &mut T)> {
        self.slots.get_mut(slot as usize)?.held.as_mut().map(|(key, value)| (&*key, value))
    }

    /// What is known about the peer in this slot.
    pub(super) fn standing(&self, slot: u32) -> Standing {
        match self.slots.get(slot as usize).map(|slot| slot.list) {
            Some(2) => Standing::Proven,
            Some(1) => Standing::Contacted,
            _ => Standing::Stranger,
        }
    }

    /// Marks the peer as seen now, and as at least of this standing.
    pub(super) fn touch(&mut self, now: Instant, slot: u32, standing: Standing) {
        let standing = standing.max(self.standing(slot));
        if self.slots.get(slot as usize).is_some_and(|slot| slot.held.is_some()) {
            self.unlink(slot);
            self.link(slot, standing as usize);
            self.slots[slot as usize].seen = now;
        }
    }

    /// A ticket for the present owner of the slot.
    pub(super) fn ticket(&self, slot: u32) -> Ticket {
        self.slots.get(slot as usize).map_or(Ticket::NOBODY, |held| Ticket { slot, generation: held.generation })
    }

    /// The slot, if its owner is still the one the ticket was for.
    pub(super) fn redeem(&self, ticket: Ticket) -> Option<u32> {
        let slot = self.slots.get(ticket.slot as usize)?;
        (slot.generation == ticket.generation && slot.held.is_some()).then_some(ticket.slot)
    }

    /// All peers, with their standing and when each was seen last.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &T, Standing, Instant)> {
        self.slots.iter().enumerate().filter_map(|(at, slot)| {
            slot.held.as_ref().map(|(key, value)| (key, value, self.standing(at as u32), slot.seen))
        })
    }

    /// Calls `f` with every peer.
    pub(super) fn for_each(&mut self, mut f: impl FnMut(&Key, &mut T, Standing)) {
        for at in 0..self.max() {
            let standing = self.standing(at);
            if let Some((key, value)) = self.get_mut(at) {
                f(key, value, standing);
            }
        }
    }

    /// A free slot, made free if the rule allows it.
    fn room(&mut self, now: Instant, standing: Standing) -> Option<u32> {
        let strangers = self.lists[Standing::Stranger as usize];
        let crowded = standing == Standing::Stranger && strangers.len >= self.strangers_max;
        if !crowded && self.lists[FREE].len > 0 {
            return Some(self.lists[FREE].oldest);
        }
        let evicted = if strangers.len > 0 {
            strangers.oldest
        } else {
            let idle = |standing: Standing, least: Duration| {
                let oldest = self.lists[standing as usize].oldest;
                let seen = self.slots.get(oldest as usize)?.seen;
                (now.since(seen) >= least).then_some(oldest)
            };
            idle(Standing::Contacted, CONTACTED_IDLE).or_else(|| idle(Standing::Proven, PROVEN_IDLE))?
        };
        self.free(evicted);
        Some(evicted)
    }

    fn free(&mut self, slot: u32) {
        let mut hole = self.home(self.slots[slot as usize].hash);
        let mask = self.index.len() - 1;
        while self.index[hole] != slot {
            hole = (hole + 1) & mask;
        }
        // Close the gap, so that no look-up stops at it: an entry moves back unless its home lies behind the hole.
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let next = self.index[at];
            if next == NONE {
                break;
            }
            let home = self.home(self.slots[next as usize].hash);
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                self.index[hole] = next;
                hole = at;
            }
        }
        self.index[hole] = NONE;
        self.unlink(slot);
        let entry = &mut self.slots[slot as usize];
        entry.held = None;
        entry.generation = entry.generation.wrapping_add(1);
        self.link(slot, FREE);
    }

    fn home(&self, hash: u64) -> usize {
        hash as usize & (self.index.len() - 1)
    }

    fn unlink(&mut self, slot: u32) {
        let Slot { prev, next, list, .. } = self.slots[slot as usize];
        match self.slots.get_mut(prev as usize) {
            Some(before) => before.next = next,
            None => self.lists[usize::from(list)].oldest = next,
        }
        match self.slots.get_mut(next as usize) {
            Some(behind) => behind.prev = prev,
            None => self.lists[usize::from(list)].newest = prev,
        }
        self.lists[usize::from(list)].len -= 1;
    }

    fn link(&mut self, slot: u32, list: usize) {
        let newest = self.lists[list].newest;
        let entry = &mut self.slots[slot as usize];
        (entry.prev, entry.next, entry.list) = (newest, NONE, list as u8);
        match self.slots.get_mut(newest as usize) {
            Some(before) => before.next = slot,
            None => self.lists[list].oldest = slot,
        }
        self.lists[list].newest = slot;
        self.lists[list].len += 1;
    }
}

impl<T> Slot<T> {
    const fn empty() -> Self {
        Self { held: None, hash: 0, generation: 0, list: FREE as u8, prev: NONE, next: NONE, seen: Instant::ZERO }
    }
}

fn hash(random: &Random, key: &Key) -> u64 {
    let mut bytes = [0; 36];
    bytes[..16].copy_from_slice(&address_bytes(key.local));
    bytes[16..32].copy_from_slice(&address_bytes(key.remote));
    bytes[32..].copy_from_slice(&key.client_id.0.to_be_bytes());
    random.index(&bytes)
}

/// An address as 16 bytes; IPv4 as IPv4-mapped.
pub(super) fn address_bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;
    use std::{collections::HashMap, vec::Vec};

    use proptest::prelude::*;

    use super::*;

    fn random() -> Random {
        Random::new(&[7; 32])
    }

    fn key(n: u32) -> Key {
        let remote = IpAddr::V4(Ipv4Addr::from_bits(n));
        Key { local: IpAddr::V4(Ipv4Addr::LOCALHOST), remote, client_id: ClientId(n) }
    }

    fn at(secs: u64) -> Instant {
        Instant::from_secs(secs)
    }

    #[test]
    fn strangers_hold_half_of_the_table_and_push_out_strangers_only() {
        let (mut table, random) = (Table::new(8), random());
        for n in 0..4 {
            assert!(table.insert(&random, at(0), key(n), Standing::Proven, n).is_some());
        }
        for n in 100..1_000 {
            assert!(table.insert(&random, at(1), key(n), Standing::Stranger, n).is_some());
        }
        assert_eq!((table.len(), table.count(Standing::Stranger)), (8, 4));
        assert!((0..4).all(|n| table.find(&random, &key(n)).is_some()), "no live peer lost its state");
        assert!(table.find(&random, &key(999)).is_some());
        assert!(table.find(&random, &key(100)).is_none());
    }

    #[test]
    fn a_table_full_of_busy_peers_refuses_until_one_has_been_idle() {
        let (mut table, random) = (Table::new(4), random());
        for n in 0..4 {
            table.insert(&random, at(0), key(n), Standing::Proven, n).unwrap();
        }
        assert_eq!(table.insert(&random, at(59), key(9), Standing::Contacted, 9), None);
        let busy = table.find(&random, &key(0)).unwrap();
        table.touch(at(59), busy, Standing::Stranger);
        assert_eq!(table.standing(busy), Standing::Proven, "a touch never lowers the standing");
        assert!(table.insert(&random, at(60), key(9), Standing::Contacted, 9).is_some());
        assert!(table.find(&random, &key(0)).is_some(), "the busy one stays");
        assert!(table.find(&random, &key(1)).is_none(), "the one that was idle longest goes");
    }

    #[test]
    fn a_ticket_is_void_once_its_slot_has_another_owner() {
        let (mut table, random) = (Table::new(1), random());
        let slot = table.insert(&random, at(0), key(1), Standing::Stranger, 1).unwrap();
        let ticket = table.ticket(slot);
        assert_eq!(table.redeem(ticket), Some(slot));
        table.insert(&random, at(0), key(2), Standing::Stranger, 2).unwrap();
        assert_eq!(table.redeem(ticket), None);
        assert_eq!(table.redeem(Ticket::NOBODY), None);
    }

    proptest! {
        #[test]
        fn the_table_finds_exactly_who_is_in_it(steps in prop::collection::vec((0u32..40, 0usize..3), 1..300)) {
            let (mut table, random) = (Table::new(16), random());
            let mut known: HashMap<u32, u32> = HashMap::new();
            for (second, (n, standing)) in steps.into_iter().enumerate() {
                let standing = [Standing::Stranger, Standing::Contacted, Standing::Proven][standing];
                let now = at(second as u64 * 7);
                match table.find(&random, &key(n)) {
                    Some(slot) => table.touch(now, slot, standing),
                    None => {
                        table.insert(&random, now, key(n), standing, n);
                    }
                }
                known = table.iter().map(|(key, value, ..)| (key.client_id.0, *value)).collect();
                for n in 0..40 {
                    let found = table.find(&random, &key(n)).and_then(|slot| table.get(slot)).map(|(_, n)| *n);
                    prop_assert_eq!(found, known.get(&n).copied());
                }
                prop_assert!(table.count(Standing::Stranger) <= 8);
                prop_assert_eq!(table.len() as usize, known.len());
            }
            let seen: Vec<_> = known.keys().collect();
            prop_assert!(seen.len() <= 16);
        }
    }
}
