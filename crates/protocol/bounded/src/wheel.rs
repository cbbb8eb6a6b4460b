use alloc::{boxed::Box, vec};

use sluicegate_wire::Instant;

use crate::{Bounded, NONE};

/// Marks a `prev` that is a slot and not an id.
const HEAD: u32 = 1 << 31;
const SLOTS: usize = 2048;
/// Ids that are due beyond the reach wait in the second half of the wheel, each at a place of its own: ids that were
/// scheduled at once are then not all looked at again at once.
const FAR: u64 = SLOTS as u64 / 2;

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// The tick at which it fires; it may have to wait in an earlier slot.
    due: u64,
    next: u32,
    prev: u32,
}

/// A timing wheel for a fixed number of ids (Varghese and Lauck, SOSP 1987): schedule, cancel and expire in constant time.
///
/// An id fires at its time or up to one `granularity` later, and never before it. The wheel reaches 2,047 granularities
/// ahead of now (of the oldest id that is due and was not taken, if there is one). An id that is due later is looked at again
/// about once each 1,500 granularities until then. Its owner may leave a busy id alone and look at its idle time only when it
/// fires (lazy re-queue): traffic never touches the wheel.
#[derive(Debug)]
pub struct Wheel {
    name: &'static str,
    granularity_nanos: u64,
    /// The first tick that has not been drained.
    cursor: u64,
    heads: Box<[u32]>,
    occupied: [u64; SLOTS / 64],
    entries: Box<[Entry]>,
    used: u32,
}

impl Wheel {
    /// A wheel for the ids `0..ids_max` (at most 2^31 - 1), fired with `granularity_nanos`, at least 1. Allocates once.
    #[must_use]
    pub fn new(name: &'static str, ids_max: u32, granularity_nanos: u64) -> Self {
        assert!(ids_max < HEAD && granularity_nanos > 0);
        Self {
            name,
            granularity_nanos,
            cursor: 0,
            heads: vec![NONE; SLOTS].into_boxed_slice(),
            occupied: [0; SLOTS / 64],
            entries: vec![Entry { due: 0, next: NONE, prev: NONE }; ids_max as usize].into_boxed_slice(),
            used: 0,
        }
    }

    /// Schedules `id` for `at`, in place of an earlier schedule. O(1).
    pub fn schedule(&mut self, id: u32, now: Instant, at: Instant) {
        self.cancel(id);
        let now_tick = now.as_nanos() / self.granularity_nanos;
        if self.cursor < now_tick {
            // The reach is counted from now, not from the last expiry; what is due already is not overtaken.
            let first = self.next_occupied().unwrap_or(now_tick);
            self.cursor = self.cursor.max(first.min(now_tick));
        }
        self.entries[id as usize].due = at.as_nanos().div_ceil(self.granularity_nanos);
        self.link(id);
        self.used += 1;
    }

    /// Forgets `id`; nothing happens if it is not scheduled. O(1).
    pub fn cancel(&mut self, id: u32) {
        if self.entries[id as usize].prev != NONE {
            self.unlink(id);
            self.used -= 1;
        }
    }

    /// When to call [`Self::pop_due`] next; `None` if nothing is scheduled. Never later than an id is due, and earlier
    /// only for one beyond the reach, which has then to be looked at again. Looks at 33 words at most.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        let tick = self.next_occupied()?;
        Some(Instant::from_nanos(tick.saturating_mul(self.granularity_nanos)))
    }

    /// Takes one id that is due at `now`. Call until `None`. O(1), and a step for each id beyond the reach that has to be
    /// looked at.
    pub fn pop_due(&mut self, now: Instant) -> Option<u32> {
        let now_tick = now.as_nanos() / self.granularity_nanos;
        // Where everything lies in the past, whole turns are left out: so after any pause an id is looked at a few times,
        // and not once for each turn that was missed.
        let turns = now_tick.saturating_sub(self.cursor) / SLOTS as u64;
        self.cursor += turns.saturating_sub(1) * SLOTS as u64;
        loop {
            let tick = self.next_occupied().unwrap_or(u64::MAX);
            if tick > now_tick {
                self.cursor = self.cursor.max(now_tick);
                return None;
            }
            self.cursor = tick;
            let id = self.heads[(tick % SLOTS as u64) as usize];
            self.unlink(id);
            if self.entries[id as usize].due <= now_tick {
                self.used -= 1;
                return Some(id);
            }
            self.link(id);
        }
    }

    /// Puts `id` where its time is, or as far ahead as the wheel reaches.
    fn link(&mut self, id: u32) {
        let due = self.entries[id as usize].due.max(self.cursor + 1);
        let is_near = due - self.cursor < SLOTS as u64;
        let tick = if is_near { due } else { self.cursor + FAR + u64::from(id) % FAR };
        let slot = (tick % SLOTS as u64) as usize;
        let next = self.heads[slot];
        let entry = &mut self.entries[id as usize];
        (entry.next, entry.prev) = (next, HEAD | slot as u32);
        if next != NONE {
            self.entries[next as usize].prev = id;
        }
        self.heads[slot] = id;
        self.occupied[slot / 64] |= 1 << (slot % 64);
    }

    fn unlink(&mut self, id: u32) {
        let Entry { next, prev, .. } = self.entries[id as usize];
        if prev & HEAD == 0 {
            self.entries[prev as usize].next = next;
        } else {
            let slot = (prev & !HEAD) as usize;
            self.heads[slot] = next;
            if next == NONE {
                self.occupied[slot / 64] &= !(1 << (slot % 64));
            }
        }
        if next != NONE {
            self.entries[next as usize].prev = prev;
        }
        self.entries[id as usize].prev = NONE;
    }

    /// The first tick from the cursor on whose slot is not empty.
    fn next_occupied(&self) -> Option<u64> {
        if self.used == 0 {
            return None;
        }
        let start = (self.cursor % SLOTS as u64) as usize;
        let words = SLOTS / 64;
        for step in 0..=words {
            let index = (start / 64 + step) % words;
            let mut word = self.occupied[index];
            if step == 0 {
                word &= u64::MAX << (start % 64);
            }
            if word != 0 {
                let slot = index * 64 + word.trailing_zeros() as usize;
                let ahead = (slot + SLOTS - start) % SLOTS;
                return Some(self.cursor + ahead as u64);
            }
        }
        None
    }
}

impl Bounded for Wheel {
    fn name(&self) -> &'static str {
        self.name
    }

    fn used(&self) -> u32 {
        self.used
    }

    fn max(&self) -> u32 {
        self.entries.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    const MS: u64 = 1_000_000;

    fn drain(wheel: &mut Wheel, now: Instant) -> Vec<u32> {
        let mut fired: Vec<u32> = core::iter::from_fn(|| wheel.pop_due(now)).collect();
        fired.sort_unstable();
        fired
    }

    #[test]
    fn an_id_fires_at_its_time_or_within_one_granularity() {
        let mut wheel = Wheel::new("timers", 4, 50 * MS);
        wheel.schedule(0, Instant::ZERO, Instant::from_millis(120));
        assert_eq!(wheel.next_due(), Some(Instant::from_millis(150)));
        assert_eq!(drain(&mut wheel, Instant::from_millis(149)), []);
        assert_eq!(drain(&mut wheel, Instant::from_millis(150)), [0]);
        assert_eq!(wheel.used(), 0);
    }

    #[test]
    fn a_cancelled_id_stays_silent_and_the_others_of_its_slot_fire() {
        let mut wheel = Wheel::new("timers", 4, MS);
        for id in 0..4 {
            wheel.schedule(id, Instant::ZERO, Instant::from_millis(7));
        }
        wheel.cancel(0);
        wheel.cancel(2);
        wheel.cancel(2);
        assert_eq!(drain(&mut wheel, Instant::from_millis(7)), [1, 3]);
    }

    #[test]
    fn what_lies_beyond_the_reach_fires_at_its_time_and_not_before() {
        let mut wheel = Wheel::new("timers", 3, MS);
        let now = Instant::from_secs(100);
        wheel.schedule(0, now, Instant::from_secs(3_600));
        wheel.schedule(1, now, Instant::from_secs(101));
        wheel.schedule(2, now, Instant::from_nanos(u64::MAX));
        assert_eq!(drain(&mut wheel, Instant::from_secs(101)), [1], "a far id delays no near one");
        let mut looks = 0;
        while let Some(look) = wheel.next_due().filter(|due| *due < Instant::from_secs(3_600)) {
            assert_eq!(drain(&mut wheel, look), []);
            looks += 1;
        }
        assert!(looks <= 2 * 3_500_000 / FAR, "{looks}");
        assert_eq!(drain(&mut wheel, Instant::from_nanos(3_600_000 * MS - 1)), []);
        assert_eq!(drain(&mut wheel, Instant::from_secs(3_600)), [0]);
        assert_eq!(wheel.used(), 1, "what is due at the end of time waits on");
    }

    #[test]
    fn after_a_long_pause_everything_fires_at_once_and_what_is_due_later_does_not() {
        let mut wheel = Wheel::new("timers", 1_000, MS);
        for id in 0..1_000 {
            wheel.schedule(id, Instant::ZERO, Instant::from_secs(u64::from(id) * 1_000));
        }
        let years = Instant::from_secs(500_000);
        assert_eq!(drain(&mut wheel, years).len(), 501);
        assert_eq!(wheel.used(), 499);
        assert_eq!(drain(&mut wheel, Instant::from_secs(999_000)).len(), 499);
    }

    #[test]
    fn ids_scheduled_together_far_ahead_are_not_looked_at_together() {
        let mut wheel = Wheel::new("timers", 10_000, MS);
        for id in 0..10_000 {
            wheel.schedule(id, Instant::ZERO, Instant::from_secs(3_600));
        }
        let mut most = 0;
        for slot in 0..SLOTS {
            let mut at = wheel.heads[slot];
            let mut here = 0;
            while at != NONE {
                here += 1;
                at = wheel.entries[at as usize].next;
            }
            most = most.max(here);
        }
        assert_eq!(most, 10_000_u64.div_ceil(FAR));
    }

    #[test]
    fn the_reach_is_counted_from_now_however_long_nothing_was_due() {
        let mut wheel = Wheel::new("timers", 2, MS);
        wheel.schedule(0, Instant::ZERO, Instant::from_secs(2));
        wheel.schedule(1, Instant::from_millis(1_900), Instant::from_millis(3_900));
        assert_eq!(wheel.next_due(), Some(Instant::from_secs(2)));
        assert_eq!(drain(&mut wheel, Instant::from_secs(2)), [0]);
        assert_eq!(wheel.next_due(), Some(Instant::from_millis(3_900)), "no look before it is due");
        assert_eq!(drain(&mut wheel, Instant::from_millis(3_899)), []);
        assert_eq!(drain(&mut wheel, Instant::from_millis(3_900)), [1]);
    }
}
