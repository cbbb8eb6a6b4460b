//! The fixed table of peers: one index, three standings, and a rule for who makes room for whom.

use core::{net::IpAddr, time::Duration};

use sluicegate_bounded::{Bounded, Buckets, Gauge, Handle, Link, List, NONE, Slab, chained, linked};
use sluicegate_wire::{Instant, capability::ClientId, ip::octets};

use super::random::Keyed;

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

#[derive(Debug)]
struct Entry<T> {
    key: Key,
    value: T,
    hash: u64,
    chain: u32,
    standing: Standing,
    link: Link,
    seen: Instant,
}

linked!(Entry<T>);
chained!(Entry<T>);

/// A fixed number of peers. Strangers hold at most half of it and push out strangers only, so that no flood of forged
/// sources costs a live peer its state; others make room when they have been idle.
#[derive(Debug)]
pub(super) struct Table<T> {
    entries: Slab<Entry<T>>,
    index: Buckets,
    /// By standing, who was seen longest ago first.
    lists: [List; STANDINGS],
    strangers_max: u32,
    keyed: Keyed,
}

impl<T> Table<T> {
    /// A table for `peers_max` peers (1 to 2^28).
    pub(super) fn new(peers_max: u32, keyed: Keyed) -> Self {
        let peers_max = peers_max.clamp(1, 1 << 28);
        Self {
            entries: Slab::new("capability_peers", peers_max),
            // Half full at most, so that few peers share a bucket.
            index: Buckets::new(peers_max * 2),
            lists: [List::EMPTY; STANDINGS],
            strangers_max: peers_max.div_ceil(2),
            keyed,
        }
    }

    /// How many peers there may be.
    pub(super) fn max(&self) -> u32 {
        self.entries.max()
    }

    /// How many peers there are.
    pub(super) fn len(&self) -> u32 {
        self.entries.used()
    }

    /// All peers, and the strangers among them.
    pub(super) fn gauges(&self) -> [Gauge; 2] {
        let used = self.lists[Standing::Stranger as usize].len().into();
        let strangers = Gauge { name: "capability_strangers", used, max: self.strangers_max.into() };
        [self.entries.gauge(), strangers]
    }

    /// The slot of this peer.
    pub(super) fn find(&self, key: &Key) -> Option<u32> {
        let hash = hash(&self.keyed, key);
        let first = self.index.first(self.index.of(hash));
        Buckets::find(&self.entries, first, |entry| entry.hash == hash && entry.key == *key)
    }

    /// Puts a peer that is not in the table into it; `None` if nobody makes room.
    pub(super) fn insert(&mut self, now: Instant, key: Key, standing: Standing, value: T) -> Option<u32> {
        self.make_room(now, standing)?;
        let hash = hash(&self.keyed, &key);
        let entry = Entry { key, value, hash, chain: NONE, standing, link: Link::NONE, seen: now };
        let slot = self.entries.insert(entry).ok()?.index();
        self.index.insert(&mut self.entries, self.index.of(hash), slot);
        self.lists[standing as usize].push_back(&mut self.entries, slot);
        Some(slot)
    }

    /// Who is in this slot.
    pub(super) fn key(&self, slot: u32) -> Option<Key> {
        self.entries.get(slot).map(|entry| entry.key)
    }

    /// What is kept of the peer in this slot.
    pub(super) fn get(&self, slot: u32) -> Option<&T> {
        self.entries.get(slot).map(|entry| &entry.value)
    }

    /// As [`Self::get`], to be changed.
    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.entries.get_mut(slot).map(|entry| &mut entry.value)
    }

    /// What is known about the peer in this slot.
    pub(super) fn standing(&self, slot: u32) -> Standing {
        self.entries.get(slot).map_or(Standing::Stranger, |entry| entry.standing)
    }

    /// Marks the peer as seen now, and as at least of this standing.
    pub(super) fn touch(&mut self, now: Instant, slot: u32, standing: Standing) {
        let Some(entry) = self.entries.get_mut(slot) else { return };
        let before = entry.standing;
        (entry.standing, entry.seen) = (standing.max(before), now);
        let after = entry.standing;
        self.lists[before as usize].remove(&mut self.entries, slot);
        self.lists[after as usize].push_back(&mut self.entries, slot);
    }

    /// A handle to the present owner of the slot.
    pub(super) fn handle(&self, slot: u32) -> Handle {
        self.entries.handle(slot).unwrap_or(Handle::NONE)
    }

    /// The slot, if its owner is still the one that the handle was for.
    pub(super) fn resolve(&self, handle: Handle) -> Option<u32> {
        self.entries.resolve(handle)
    }

    /// All peers, with their standing and when each was seen last.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &T, Standing, Instant)> {
        self.entries.iter().map(|(_, entry)| (&entry.key, &entry.value, entry.standing, entry.seen))
    }

    /// Calls `f` with every peer.
    pub(super) fn for_each(&mut self, mut f: impl FnMut(&Key, &mut T, Standing)) {
        for (_, entry) in self.entries.iter_mut() {
            f(&entry.key, &mut entry.value, entry.standing);
        }
    }

    /// Makes sure that a slot is free, if the rule allows it.
    fn make_room(&mut self, now: Instant, standing: Standing) -> Option<()> {
        let strangers = self.lists[Standing::Stranger as usize];
        let crowded = standing == Standing::Stranger && strangers.len() >= self.strangers_max;
        if !crowded && !self.entries.is_full() {
            return Some(());
        }
        let idle = |standing: Standing, least: Duration| {
            let oldest = self.lists[standing as usize].front()?;
            (now.since(self.entries.get(oldest)?.seen) >= least).then_some(oldest)
        };
        let evicted = strangers
            .front()
            .or_else(|| idle(Standing::Contacted, CONTACTED_IDLE))
            .or_else(|| idle(Standing::Proven, PROVEN_IDLE))?;
        self.remove(evicted)
    }

    fn remove(&mut self, slot: u32) -> Option<()> {
        let entry = self.entries.get(slot)?;
        let (bucket, list) = (self.index.of(entry.hash), &mut self.lists[entry.standing as usize]);
        list.remove(&mut self.entries, slot);
        self.index.remove(&mut self.entries, bucket, slot);
        self.entries.remove(slot).map(drop)
    }
}

fn hash(keyed: &Keyed, key: &Key) -> u64 {
    let mut bytes = [0; 36];
    bytes[..16].copy_from_slice(&octets(key.local));
    bytes[16..32].copy_from_slice(&octets(key.remote));
    bytes[32..].copy_from_slice(&key.client_id.0.to_be_bytes());
    keyed.hash(&bytes)
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;
    use std::{collections::HashMap, vec::Vec};

    use proptest::prelude::*;

    use super::*;

    fn table(peers_max: u32) -> Table<u32> {
        Table::new(peers_max, Keyed::new([7; 16]))
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
        let mut table = table(8);
        for n in 0..4 {
            assert!(table.insert(at(0), key(n), Standing::Proven, n).is_some());
        }
        for n in 100..1_000 {
            assert!(table.insert(at(1), key(n), Standing::Stranger, n).is_some());
        }
        assert_eq!(table.gauges().map(|gauge| gauge.used), [8, 4]);
        assert!((0..4).all(|n| table.find(&key(n)).is_some()), "no live peer lost its state");
        assert!(table.find(&key(999)).is_some());
        assert!(table.find(&key(100)).is_none());
    }

    #[test]
    fn a_table_full_of_busy_peers_refuses_until_one_has_been_idle() {
        let mut table = table(4);
        for n in 0..4 {
            table.insert(at(0), key(n), Standing::Proven, n).unwrap();
        }
        assert_eq!(table.insert(at(59), key(9), Standing::Contacted, 9), None);
        let busy = table.find(&key(0)).unwrap();
        table.touch(at(59), busy, Standing::Stranger);
        assert_eq!(table.standing(busy), Standing::Proven, "a touch never lowers the standing");
        assert!(table.insert(at(60), key(9), Standing::Contacted, 9).is_some());
        assert!(table.find(&key(0)).is_some(), "the busy one stays");
        assert!(table.find(&key(1)).is_none(), "the one that was idle longest goes");
    }

    #[test]
    fn a_handle_is_void_once_its_slot_has_another_owner() {
        let mut table = table(1);
        let slot = table.insert(at(0), key(1), Standing::Stranger, 1).unwrap();
        let handle = table.handle(slot);
        assert_eq!(table.resolve(handle), Some(slot));
        table.insert(at(0), key(2), Standing::Stranger, 2).unwrap();
        assert_eq!(table.resolve(handle), None);
        assert_eq!(table.resolve(Handle::NONE), None);
    }

    proptest! {
        #[test]
        fn the_table_finds_exactly_who_is_in_it(steps in prop::collection::vec((0u32..40, 0usize..3), 1..300)) {
            let mut table = table(16);
            let mut known: HashMap<u32, u32> = HashMap::new();
            for (second, (n, standing)) in steps.into_iter().enumerate() {
                let standing = [Standing::Stranger, Standing::Contacted, Standing::Proven][standing];
                let now = at(second as u64 * 7);
                match table.find(&key(n)) {
                    Some(slot) => table.touch(now, slot, standing),
                    None => {
                        table.insert(now, key(n), standing, n);
                    }
                }
                known = table.iter().map(|(key, value, ..)| (key.client_id.0, *value)).collect();
                for n in 0..40 {
                    let found = table.find(&key(n)).and_then(|slot| table.get(slot)).copied();
                    prop_assert_eq!(found, known.get(&n).copied());
                }
                prop_assert!(table.gauges()[1].used <= 8);
                prop_assert_eq!(table.len() as usize, known.len());
            }
            let seen: Vec<_> = known.keys().collect();
            prop_assert!(seen.len() <= 16);
        }
    }
}
