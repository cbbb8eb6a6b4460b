use alloc::{boxed::Box, vec};

use sluicegate_wire::Instant;

const NONE: u32 = u32::MAX;
/// Marks a `prev` that is a slot and not an id.
const HEAD: u32 = 1 << 31;
const SLOTS: usize = 2048;

#[derive(Debug, Clone, Copy)]
struct Link {
    next: u32,
    prev: u32,
}

/// A timing wheel for a fixed number of ids: schedule, cancel and expire in constant time, no allocation.
///
/// An id fires at its time or up to one `granularity` later. The wheel reaches 2,047 granularities ahead of now (of the
/// oldest id that is due and was not taken, if there is one); an id that is due later fires at that horizon: its owner
/// must compare the time and schedule it again. So the owner may also leave a busy id alone
/// and look at its idle time only when it fires (lazy re-queue): traffic never touches the wheel.
#[derive(Debug)]
pub struct Wheel {
    granularity_nanos: u64,
    /// The first tick that has not been drained.
    cursor: u64,
    heads: Box<[u32]>,
    occupied: [u64; SLOTS / 64],
    links: Box<[Link]>,
    used: u32,
}

impl Wheel {
    /// A wheel for the ids `0..ids_max` (at most 2^31 - 1), fired with `granularity_nanos`, at least 1.
    #[must_use]
    pub fn new(ids_max: u32, granularity_nanos: u64) -> Self {
        assert!(ids_max < HEAD && granularity_nanos > 0);
        Self {
            granularity_nanos,
            cursor: 0,
            heads: vec![NONE; SLOTS].into_boxed_slice(),
            occupied: [0; SLOTS / 64],
            links: vec![Link { next: NONE, prev: NONE }; ids_max as usize].into_boxed_slice(),
            used: 0,
        }
    }

    /// How many ids are scheduled.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.used
    }

    /// Whether no id is scheduled.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Schedules `id` for `at`, in place of an earlier schedule.
    pub fn schedule(&mut self, id: u32, now: Instant, at: Instant) {
        self.cancel(id);
        let now_tick = now.as_nanos() / self.granularity_nanos;
        if self.cursor < now_tick {
            // The horizon lies ahead of now, not of the last expiry; what is due already is not overtaken.
            let first = self.next_occupied().unwrap_or(now_tick);
            self.cursor = self.cursor.max(first.min(now_tick));
        }
        let due = at.as_nanos().div_ceil(self.granularity_nanos);
        let tick = due.clamp(self.cursor + 1, self.cursor + SLOTS as u64 - 1);
        let slot = (tick % SLOTS as u64) as usize;
        let next = self.heads[slot];
        self.links[id as usize] = Link { next, prev: HEAD | slot as u32 };
        if next != NONE {
            self.links[next as usize].prev = id;
        }
        self.heads[slot] = id;
        self.occupied[slot / 64] |= 1 << (slot % 64);
        self.used += 1;
    }

    /// Forgets `id`; nothing happens if it is not scheduled.
    pub fn cancel(&mut self, id: u32) {
        let Link { next, prev } = self.links[id as usize];
        if prev == NONE {
            return;
        }
        if prev & HEAD == 0 {
            self.links[prev as usize].next = next;
        } else {
            let slot = (prev & !HEAD) as usize;
            self.heads[slot] = next;
            if next == NONE {
                self.occupied[slot / 64] &= !(1 << (slot % 64));
            }
        }
        if next != NONE {
            self.links[next as usize].prev = prev;
        }
        self.links[id as usize] = Link { next: NONE, prev: NONE };
        self.used -= 1;
    }

    /// When [`Self::pop_due`] has something next; `None` if nothing is scheduled.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        let tick = self.next_occupied()?;
        Some(Instant::from_nanos(tick.saturating_mul(self.granularity_nanos)))
    }

    /// Takes one id that is due at `now`. Call until `None`.
    pub fn pop_due(&mut self, now: Instant) -> Option<u32> {
        let now_tick = now.as_nanos() / self.granularity_nanos;
        let tick = self.next_occupied().unwrap_or(u64::MAX);
        if tick > now_tick {
            self.cursor = self.cursor.max(now_tick);
            return None;
        }
        self.cursor = tick;
        let id = self.heads[(tick % SLOTS as u64) as usize];
        self.cancel(id);
        Some(id)
    }

    /// The first tick from the cursor on whose slot is not empty: at most 33 words are looked at.
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

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, vec::Vec};

    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    fn drain(wheel: &mut Wheel, now: Instant) -> Vec<u32> {
        let mut fired: Vec<u32> = core::iter::from_fn(|| wheel.pop_due(now)).collect();
        fired.sort_unstable();
        fired
    }

    #[test]
    fn an_id_fires_at_its_time_or_within_one_granularity() {
        let mut wheel = Wheel::new(4, 50 * MS);
        wheel.schedule(0, Instant::ZERO, Instant::from_millis(120));
        assert_eq!(wheel.next_due(), Some(Instant::from_millis(150)));
        assert_eq!(drain(&mut wheel, Instant::from_millis(149)), []);
        assert_eq!(drain(&mut wheel, Instant::from_millis(150)), [0]);
        assert!(wheel.is_empty());
    }

    #[test]
    fn a_cancelled_id_stays_silent_and_the_others_of_its_slot_fire() {
        let mut wheel = Wheel::new(4, MS);
        for id in 0..4 {
            wheel.schedule(id, Instant::ZERO, Instant::from_millis(7));
        }
        wheel.cancel(0);
        wheel.cancel(2);
        wheel.cancel(2);
        assert_eq!(drain(&mut wheel, Instant::from_millis(7)), [1, 3]);
    }

    #[test]
    fn what_lies_behind_the_horizon_fires_at_the_horizon() {
        let mut wheel = Wheel::new(2, MS);
        let now = Instant::from_secs(100);
        wheel.schedule(0, now, Instant::from_secs(3600));
        wheel.schedule(1, now, Instant::from_secs(101));
        assert_eq!(drain(&mut wheel, Instant::from_secs(101)), [1], "a far id delays no near one");
        assert_eq!(wheel.next_due(), Some(now + core::time::Duration::from_millis(SLOTS as u64 - 1)));
    }

    #[test]
    fn the_horizon_is_counted_from_now_however_long_nothing_was_due() {
        let mut wheel = Wheel::new(2, MS);
        wheel.schedule(0, Instant::ZERO, Instant::from_secs(2));
        wheel.schedule(1, Instant::from_millis(1_900), Instant::from_millis(3_900));
        assert_eq!(drain(&mut wheel, Instant::from_secs(2)), [0]);
        assert_eq!(drain(&mut wheel, Instant::from_millis(3_899)), []);
        assert_eq!(drain(&mut wheel, Instant::from_millis(3_900)), [1]);
    }

    #[test]
    fn every_id_can_wait_at_once() {
        let mut wheel = Wheel::new(1000, MS);
        for id in 0..1000 {
            wheel.schedule(id, Instant::ZERO, Instant::from_millis(u64::from(id)));
        }
        assert_eq!(wheel.len(), 1000);
        assert_eq!(drain(&mut wheel, Instant::from_millis(999)).len(), 1000);
    }

    proptest! {
        #[test]
        fn the_wheel_fires_what_a_sorted_map_fires(steps in prop::collection::vec((0u32..20, 0u64..1500, any::<bool>()), 1..200)) {
            let mut wheel = Wheel::new(20, MS);
            let mut model: BTreeMap<u32, u64> = BTreeMap::new();
            let mut now = 0;
            for (id, ms, cancel) in steps {
                if cancel {
                    wheel.cancel(id);
                    model.remove(&id);
                } else {
                    let at = now + 1 + ms;
                    wheel.schedule(id, Instant::from_millis(now), Instant::from_millis(at));
                    model.insert(id, at);
                }
                if ms % 3 == 0 {
                    now += ms / 5;
                    let expected: Vec<u32> = model.iter().filter(|(_, at)| **at <= now).map(|(id, _)| *id).collect();
                    model.retain(|_, at| *at > now);
                    prop_assert_eq!(drain(&mut wheel, Instant::from_millis(now)), expected);
                }
                prop_assert_eq!(wheel.len() as usize, model.len());
                prop_assert_eq!(wheel.next_due(), model.values().min().map(|at| Instant::from_millis(*at)));
            }
        }
    }
}
