use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::Instant;

/// How often one kind of thing is said: log lines that a stranger, or a peer that is away, could otherwise cause without
/// end. One of these stands beside each such line, as a `static`.
///
/// ```
/// use sluicegate_wire::{Instant, Pace};
/// static REFUSED: Pace = Pace::per_second(2);
/// let now = Instant::from_secs(1);
/// assert_eq!([REFUSED.admit(now), REFUSED.admit(now), REFUSED.admit(now)], [Some(0), Some(0), None]);
/// assert_eq!(REFUSED.admit(Instant::from_secs(2)), Some(1));
/// ```
#[derive(Debug)]
pub struct Pace {
    per_s: u64,
    /// Second in the upper half, what was asked for in it in the lower.
    state: AtomicU64,
    left_out: AtomicU64,
}

impl Pace {
    /// At most so many a second.
    #[must_use]
    pub const fn per_second(per_s: u32) -> Self {
        Self { per_s: per_s as u64, state: AtomicU64::new(0), left_out: AtomicU64::new(0) }
    }

    /// Whether one more may be said now, and how many were not since the last that was. Threads that ask at the same time
    /// may each be told of a part of those.
    pub fn admit(&self, now: Instant) -> Option<u64> {
        let second = (now.as_nanos() / 1_000_000_000) & 0xffff_ffff;
        let count = |state: u64| if state >> 32 == second { state & 0xffff_ffff } else { 0 };
        let next = |state: u64| Some(second << 32 | (count(state) + 1).min(0xffff_ffff));
        let before = self.state.fetch_update(Relaxed, Relaxed, next).unwrap_or_default();
        if count(before) < self.per_s {
            Some(self.left_out.swap(0, Relaxed))
        } else {
            self.left_out.fetch_add(1, Relaxed);
            None
        }
    }

    /// Counts more that were not said, for the next line to tell.
    pub fn left_out(&self, more: u64) {
        self.left_out.fetch_add(more, Relaxed);
    }
}
