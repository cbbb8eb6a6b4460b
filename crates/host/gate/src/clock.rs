//! The daemon's two clocks. Every other module takes time as an argument.

pub(crate) use sluicegate_datapath::monotonic_now as monotonic;
use sluicegate_wire::{Instant, UnixTime};
use std::time::{SystemTime, UNIX_EPOCH};

/// The present second of wall-clock time, and when it began.
#[must_use]
pub(crate) fn second_began() -> (Instant, UnixTime) {
    let now = monotonic();
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let began = now.as_nanos().saturating_sub(since.subsec_nanos().into());
    (Instant::from_nanos(began), UnixTime(since.as_secs()))
}

/// Wall-clock time in seconds; zero if the host's clock stands before 1970.
#[must_use]
pub(crate) fn unix() -> UnixTime {
    UnixTime(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}
