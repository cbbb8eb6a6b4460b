use core::time::Duration;

use sluicegate_wire::{Instant, UnixTime};

/// How much earlier than its `not_before` a grant opens: the clock skew between frontend and gate that is no alarm.
pub(crate) const SKEW_MAX: Duration = Duration::from_secs(2);
const NANOS_PER_SEC: i128 = 1_000_000_000;

/// Where Unix time lies on the monotonic clock.
///
/// Unix time comes in whole seconds, so each look is up to a second late; the earliest of all looks is kept.
#[derive(Debug, Clone, Copy, Default)]
pub struct Clock {
    offset_nanos: Option<i128>,
}

impl Clock {
    /// It is `unix` at `now`.
    pub fn look(&mut self, now: Instant, unix: UnixTime) {
        let seen = i128::from(now.as_nanos()) - i128::from(unix.0) * NANOS_PER_SEC;
        self.offset_nanos = match self.offset_nanos {
            // More than the skew apart: somebody set the wall clock.
            Some(known) if (seen - known).abs() <= SKEW_MAX.as_nanos() as i128 => Some(known.min(seen)),
            _ => Some(seen),
        };
    }

    /// When `unix` is, or was; the start of the clock if it was before that.
    pub fn instant(&self, unix: UnixTime) -> Instant {
        let nanos = i128::from(unix.0) * NANOS_PER_SEC + self.offset_nanos.unwrap_or(0);
        Instant::from_nanos(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX - 1))
    }
}
