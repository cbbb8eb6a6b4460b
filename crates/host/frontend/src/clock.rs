//! The daemon's clocks, read in one place; everything else is told the time.

use std::time::{Instant as HostInstant, SystemTime, UNIX_EPOCH};

use sluicegate_wire::{Instant, UnixTime};

/// The monotonic clock since this was made, and the wall clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    start: HostInstant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { start: HostInstant::now() }
    }

    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Wall-clock time; zero on a host whose clock stands before 1970.
    pub(crate) fn unix(&self) -> UnixTime {
        UnixTime(self.unix_us() / 1_000_000)
    }

    /// The same in microseconds.
    pub(crate) fn unix_us(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }
}
