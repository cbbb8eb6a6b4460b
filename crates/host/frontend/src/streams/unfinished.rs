//! What strangers have begun and not ended, messages and TLS handshakes: it is held in memory until its end comes. All of it
//! together has a maximum; with more, what was begun first gives way.

use std::{
    collections::{BTreeSet, HashMap},
    mem,
};

use sluicegate_bounded::Gauge;
use sluicegate_wire::Instant;

/// How many bytes each connection of a stranger holds so, by its slot, and since when.
#[derive(Debug)]
pub(super) struct Unfinished {
    max: usize,
    bytes: usize,
    by_slot: HashMap<u32, (Instant, usize)>,
    by_age: BTreeSet<(Instant, u32)>,
}

impl Unfinished {
    pub(super) fn new(max: usize) -> Self {
        Self { max, bytes: 0, by_slot: HashMap::new(), by_age: BTreeSet::new() }
    }

    /// The connection in `slot` holds so many bytes now.
    pub(super) fn note(&mut self, now: Instant, slot: u32, bytes: usize) {
        if bytes == 0 {
            let Some((since, before)) = self.by_slot.remove(&slot) else { return };
            self.by_age.remove(&(since, slot));
            self.bytes -= before;
            return;
        }
        let (since, held) = self.by_slot.entry(slot).or_insert((now, 0));
        self.by_age.insert((*since, slot));
        self.bytes = self.bytes + bytes - mem::replace(held, bytes);
    }

    /// The connection that has to give way, if one has to.
    pub(super) fn crowded(&self) -> Option<u32> {
        let oldest = self.by_age.first().map(|(_, slot)| *slot);
        oldest.filter(|_| self.bytes > self.max)
    }

    pub(super) fn gauge(&self) -> Gauge {
        Gauge::of("unfinished_bytes", self.bytes, self.max)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn with_more_than_may_be_held_what_was_begun_first_gives_way() {
        let mut unfinished = Unfinished::new(100);
        let at = |seconds| Instant::from_secs(7) + Duration::from_secs(seconds);
        unfinished.note(at(0), 1, 10);
        unfinished.note(at(1), 2, 80);
        unfinished.note(at(2), 1, 20);
        assert_eq!((unfinished.crowded(), unfinished.gauge().used), (None, 100));
        unfinished.note(at(3), 3, 1);
        assert_eq!(unfinished.crowded(), Some(1));
        unfinished.note(at(4), 1, 0);
        assert_eq!((unfinished.crowded(), unfinished.gauge().used), (None, 81));
        // One whose message was whole begins anew.
        unfinished.note(at(5), 1, 30);
        assert_eq!(unfinished.crowded(), Some(2));
        [1, 2, 3, 9].into_iter().for_each(|slot| unfinished.note(at(6), slot, 0));
        assert_eq!((unfinished.gauge().used, unfinished.by_slot.len(), unfinished.by_age.len()), (0, 0, 0));
    }
}
