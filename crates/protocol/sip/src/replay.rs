//! Which nonces were used: exact, bounded, and written only after a digest was right.

use core::hash::BuildHasherDefault;

use hashbrown::HashSet;
use siphasher::sip::SipHasher13;
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

/// The keys are times and counters of our own making: nobody outside chooses them, so a fixed hash will do.
type Generation = HashSet<u64, BuildHasherDefault<SipHasher13>>;

/// The used nonces of one [`NonceKey`](crate::nonce::NonceKey).
///
/// Two generations of [`WINDOW_S`] seconds each: what was written is kept for at least one window, which is as long as
/// a nonce can be valid after its use. Memory is fixed: they never hold more than they have room for.
#[derive(Debug)]
pub struct ReplaySet {
    capacity: usize,
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
        let (zero, capacity) = (UnixTime(0), capacity.max(1));
        let [current, previous] = [(); 2].map(|()| Generation::with_capacity_and_hasher(capacity, Default::default()));
        Self { capacity, current, previous, since: zero, latest: zero }
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
        if self.current.len() == self.capacity {
            return Err(ReplayError::Full);
        }
        self.current.insert(id.0);
        Ok(())
    }

    /// Whether a nonce was used before, or is so old that this is no longer known. Nothing is written, so that a request
    /// which is refused for another reason takes no place.
    pub fn is_used(&mut self, id: NonceId, now: UnixTime) -> bool {
        self.latest = self.latest.max(now);
        self.turn_over();
        id.age_s(self.latest) > WINDOW_S || self.previous.contains(&id.0) || self.current.contains(&id.0)
    }

    /// Nonces remembered now, and the most that can be.
    #[must_use]
    pub fn gauge(&self) -> Gauge {
        let used = self.current.len() + self.previous.len();
        Gauge { name: "replays", used: used as u64, max: 2 * self.capacity as u64 }
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

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixTime = UnixTime(1_800_000_000);

    fn id(minted: UnixTime, counter: u32) -> NonceId {
        NonceId::new(minted, counter)
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
