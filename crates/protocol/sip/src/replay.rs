//! Which nonces were used: exact, bounded, and written only after a digest was right.

use alloc::{boxed::Box, vec};

use sluicegate_bounded::Gauge;
use sluicegate_wire::UnixTime;

use crate::nonce::{NonceId, WINDOW_S};

/// Why a nonce is refused although its digest is right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// It was used before, or is so old that this is no longer known.
    #[error("the nonce was used before")]
    Used,
    /// As many nonces were used within the window as fit. Answer 503: accepting unseen would allow replays.
    #[error("the table of used nonces is full")]
    Full,
}

/// The used nonces of one [`NonceKey`](crate::nonce::NonceKey).
///
/// Two generations of [`WINDOW_S`] seconds each: what was written is kept for at least one window, which is as long as
/// a nonce can be valid after its use. Memory is fixed: 32 bytes for each nonce of `capacity`.
#[derive(Debug)]
pub struct ReplaySet {
    current: Generation,
    previous: Generation,
    /// Start of the current generation.
    since: UnixTime,
    /// Latest time seen; should the clock go back, nonces that may have been forgotten stay refused.
    latest: UnixTime,
}

impl ReplaySet {
    /// Remembers `capacity` nonces per window (at least one).
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let zero = UnixTime(0);
        Self { current: Generation::new(capacity), previous: Generation::new(capacity), since: zero, latest: zero }
    }

    /// Marks a nonce as used. To be called once [`verify`](crate::digest::verify) said yes, and not before: then nobody
    /// without a password can fill the set.
    ///
    /// # Errors
    /// See [`ReplayError`].
    pub fn accept(&mut self, id: NonceId, now: UnixTime) -> Result<(), ReplayError> {
        if self.is_used(id, now) {
            return Err(ReplayError::Used);
        }
        self.current.insert(key_of(id))
    }

    /// Whether a nonce was used before, or is so old that this is no longer known. Nothing is written, so that a request
    /// which is refused for another reason takes no place.
    pub fn is_used(&mut self, id: NonceId, now: UnixTime) -> bool {
        self.latest = self.latest.max(now);
        self.turn_over();
        // Nonces carry 32 bits of the time; the latest time gives the upper ones back.
        let age_s = (self.latest.0 as u32).wrapping_sub(id.minted_s);
        u64::from(age_s) > WINDOW_S || self.previous.contains(key_of(id)) || self.current.contains(key_of(id))
    }

    /// Nonces remembered now, and the most that can be.
    #[must_use]
    pub const fn gauge(&self) -> Gauge {
        let (current, previous) = (&self.current, &self.previous);
        Gauge {
            name: "replays",
            used: (current.used + previous.used) as u64,
            max: (current.capacity + previous.capacity) as u64,
        }
    }

    fn turn_over(&mut self) {
        let age_s = self.since.secs_until(self.latest);
        // Strictly later, so that a nonce used at the start of a generation outlives its last valid second.
        if age_s <= WINDOW_S {
            return;
        }
        core::mem::swap(&mut self.current, &mut self.previous);
        self.current.clear();
        if age_s > 2 * WINDOW_S {
            self.previous.clear();
        }
        self.since = self.latest;
    }
}

const EMPTY: u64 = u64::MAX;

/// Open addressing, at most half full.
#[derive(Debug)]
struct Generation {
    slots: Box<[u64]>,
    used: usize,
    capacity: usize,
}

impl Generation {
    fn new(capacity: usize) -> Self {
        let capacity = capacity.max(1);
        Self { slots: vec![EMPTY; (2 * capacity).next_power_of_two()].into(), used: 0, capacity }
    }

    fn clear(&mut self) {
        if self.used > 0 {
            self.slots.fill(EMPTY);
        }
        self.used = 0;
    }

    fn contains(&self, key: u64) -> bool {
        self.slots.get(self.find(key)).is_some_and(|slot| *slot == key)
    }

    fn insert(&mut self, key: u64) -> Result<(), ReplayError> {
        let position = self.find(key);
        let slot = self.slots.get_mut(position).ok_or(ReplayError::Full)?;
        if *slot == key {
            return Err(ReplayError::Used);
        }
        if self.used == self.capacity {
            return Err(ReplayError::Full);
        }
        *slot = key;
        self.used += 1;
        Ok(())
    }

    /// Where `key` is or would go. Ends, because half of the slots are empty.
    fn find(&self, key: u64) -> usize {
        // Keys are times and counters of our own making: nobody outside chooses them, so a fixed hash will do.
        let mask = self.slots.len() - 1;
        let mut position = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & mask;
        while self.slots.get(position).is_some_and(|slot| *slot != EMPTY && *slot != key) {
            position = (position + 1) & mask;
        }
        position
    }
}

fn key_of(id: NonceId) -> u64 {
    u64::from(id.minted_s) << 32 | u64::from(id.counter)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixTime = UnixTime(1_800_000_000);

    fn id(minted: UnixTime, counter: u32) -> NonceId {
        NonceId { minted_s: minted.0 as u32, counter }
    }

    #[test]
    fn a_nonce_is_accepted_once_for_as_long_as_it_is_valid() {
        for used_after_s in 0..=WINDOW_S {
            let mut set = ReplaySet::new(4);
            set.accept(id(NOW, 9), NOW).unwrap();
            let nonce = id(NOW, 1);
            set.accept(nonce, NOW.plus_secs(used_after_s)).unwrap();
            for later_s in used_after_s..=3 * WINDOW_S {
                assert_eq!(set.accept(nonce, NOW.plus_secs(later_s)), Err(ReplayError::Used));
            }
        }
    }

    #[test]
    fn a_full_set_refuses_until_a_window_has_passed() {
        let mut set = ReplaySet::new(100);
        for counter in 0..100 {
            set.accept(id(NOW, counter), NOW).unwrap();
        }
        assert_eq!(set.accept(id(NOW, 100), NOW), Err(ReplayError::Full));
        assert_eq!((set.gauge().used, set.gauge().max), (100, 200));
        let later = NOW.plus_secs(WINDOW_S + 1);
        set.accept(id(later, 0), later).unwrap();
        let much_later = later.plus_secs(3 * WINDOW_S);
        set.accept(id(much_later, 0), much_later).unwrap();
        assert_eq!(set.gauge().used, 1);
    }

    #[test]
    fn a_clock_that_goes_back_opens_no_second_chance() {
        let mut set = ReplaySet::new(4);
        set.accept(id(NOW, 1), NOW).unwrap();
        let jump = NOW.plus_secs(10 * WINDOW_S);
        set.accept(id(jump, 2), jump).unwrap();
        assert_eq!(set.accept(id(NOW, 1), NOW), Err(ReplayError::Used));
    }
}
