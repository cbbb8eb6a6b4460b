//! What strangers have begun and not ended, messages and TLS handshakes: it is held in memory until its end comes. All of it
//! together has a maximum; with more, whoever holds most gives way, with what it began first.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap},
    net::IpAddr,
};

use sluicegate_bounded::Gauge;
use sluicegate_wire::Instant;

/// What a connection holds.
#[derive(Debug, Clone, Copy)]
struct Begun {
    source: IpAddr,
    since: Instant,
    bytes: usize,
}

/// What the connections of one source hold together, and which they are, by age.
#[derive(Debug, Default)]
struct Held {
    bytes: usize,
    by_age: BTreeSet<(Instant, u32)>,
}

/// How many bytes each connection of a stranger holds so, by its slot.
#[derive(Debug)]
pub(super) struct Unfinished {
    max: usize,
    bytes: usize,
    by_slot: HashMap<u32, Begun>,
    by_source: HashMap<IpAddr, Held>,
}

impl Unfinished {
    pub(super) fn new(max: usize) -> Self {
        Self { max, bytes: 0, by_slot: HashMap::new(), by_source: HashMap::new() }
    }

    /// The connection in `slot`, of this source, holds so many bytes now.
    pub(super) fn note(&mut self, now: Instant, (slot, source): (u32, IpAddr), bytes: usize) {
        if bytes == 0 {
            return self.leave(slot);
        }
        let begun = self.by_slot.entry(slot).or_insert(Begun { source, since: now, bytes: 0 });
        let held = self.by_source.entry(begun.source).or_default();
        held.by_age.insert((begun.since, slot));
        held.bytes = held.bytes - begun.bytes + bytes;
        self.bytes = self.bytes - begun.bytes + bytes;
        begun.bytes = bytes;
    }

    /// The connection in `slot` holds nothing any more.
    pub(super) fn leave(&mut self, slot: u32) {
        let Some(Begun { source, since, bytes }) = self.by_slot.remove(&slot) else { return };
        self.bytes -= bytes;
        if let Some(held) = self.by_source.get_mut(&source) {
            held.bytes -= bytes;
            held.by_age.remove(&(since, slot));
            if held.by_age.is_empty() {
                self.by_source.remove(&source);
            }
        }
    }

    /// The connection that has to give way, if one has to.
    pub(super) fn crowded(&self) -> Option<u32> {
        if self.bytes <= self.max {
            return None;
        }
        let oldest = |held: &Held| held.by_age.first().copied();
        let heaviest = self.by_source.values().max_by_key(|held| (held.bytes, Reverse(oldest(held))))?;
        oldest(heaviest).map(|(_, slot)| slot)
    }

    pub(super) fn gauge(&self) -> Gauge {
        Gauge::of("unfinished_bytes", self.bytes, self.max)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_secs(7) + Duration::from_secs(seconds)
    }

    fn from(host: u8, slot: u32) -> (u32, IpAddr) {
        (slot, IpAddr::from([192, 0, 2, host]))
    }

    #[test]
    fn with_more_than_may_be_held_what_was_begun_first_gives_way() {
        let mut unfinished = Unfinished::new(100);
        unfinished.note(at(0), from(1, 1), 10);
        unfinished.note(at(1), from(1, 2), 80);
        unfinished.note(at(2), from(1, 1), 20);
        assert_eq!((unfinished.crowded(), unfinished.gauge().used), (None, 100));
        unfinished.note(at(3), from(1, 3), 1);
        assert_eq!(unfinished.crowded(), Some(1));
        unfinished.note(at(4), from(1, 1), 0);
        assert_eq!((unfinished.crowded(), unfinished.gauge().used), (None, 81));
        // One whose message was whole begins anew.
        unfinished.note(at(5), from(1, 1), 30);
        assert_eq!(unfinished.crowded(), Some(2));
        [1, 2, 3, 9].into_iter().for_each(|slot| unfinished.leave(slot));
        assert_eq!((unfinished.gauge().used, unfinished.by_slot.len(), unfinished.by_source.len()), (0, 0, 0));
    }

    #[test]
    fn who_holds_most_gives_way_and_not_who_began_first() {
        let mut unfinished = Unfinished::new(100);
        unfinished.note(at(0), from(1, 1), 10);
        for slot in 2..1_000 {
            unfinished.note(at(slot.into()), from(2, slot), 10);
            while let Some(crowded) = unfinished.crowded() {
                assert!(crowded > 1, "the other has what it held");
                unfinished.leave(crowded);
            }
        }
        assert_eq!(unfinished.gauge().used, 100);
    }
}
