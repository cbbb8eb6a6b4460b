//! Wall-clock nanoseconds and pacing of workers.

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Nanoseconds since 1970, the clock of kernel packet timestamps; the same in all processes of a lab.
#[must_use]
pub fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Hands out permits at a constant rate, by time alone: how many events are due at a moment.
///
/// A worker that was not scheduled for a while may catch up at most `burst` events; what it missed beyond that is lost,
/// so that it never floods harder than it was told to.
#[derive(Debug, Clone)]
pub struct Pacer {
    per_s: u64,
    burst: u64,
    rest: Duration,
    /// Nanoseconds since the start up to which permits were handed out.
    credited_ns: u64,
}

impl Pacer {
    /// A pacer of `per_s` events a second that lets at most `burst` (and at least one) happen at once.
    #[must_use]
    pub const fn new(per_s: u64, burst: u64) -> Self {
        Self { per_s, burst: if burst == 0 { 1 } else { burst }, rest: Duration::ZERO, credited_ns: 0 }
    }

    /// Rests at least so long before events are due again. Waking for each packet of a flood costs the machine more than the
    /// packet does; but what comes in bursts leaves a short queue empty between them.
    #[must_use]
    pub const fn resting(self, rest: Duration) -> Self {
        Self { rest, ..self }
    }

    /// Events due `elapsed_ns` after the start; they count as done.
    pub fn due(&mut self, elapsed_ns: u64) -> u64 {
        if self.per_s == 0 {
            return 0;
        }
        let ahead_ns = u128::from(elapsed_ns.saturating_sub(self.credited_ns));
        let due = u64::try_from(ahead_ns * u128::from(self.per_s) / 1_000_000_000).unwrap_or(u64::MAX);
        if due > self.burst {
            self.credited_ns = elapsed_ns;
            return self.burst;
        }
        self.credited_ns += self.ns_for(due);
        due
    }

    /// Nanoseconds after the start at which the next event is due.
    #[must_use]
    pub fn next_ns(&self) -> u64 {
        if self.per_s == 0 { u64::MAX } else { self.credited_ns.saturating_add(self.ns_for(1)) }
    }

    fn ns_for(&self, events: u64) -> u64 {
        // Rounded up: credit is never handed out before its time.
        u64::try_from((u128::from(events) * 1_000_000_000).div_ceil(u128::from(self.per_s))).unwrap_or(u64::MAX)
    }
}

/// What a flood rests between bursts that need not be spread evenly.
pub const FLOOD_REST: Duration = Duration::from_millis(1);
/// Not longer than it takes to notice the end.
const SLEEP_MAX: Duration = Duration::from_millis(20);

/// The moments at which a worker has something to do, at the pace of a [`Pacer`]: waits for each and returns the number of
/// events due. Ends when the time is over or the worker is to stop.
#[derive(Debug)]
pub struct Paced {
    pacer: Pacer,
    start: Instant,
    time: Duration,
    stop: Arc<AtomicBool>,
    seconds: u64,
}

impl Paced {
    /// Begins now and ends after `time`, or once `stop` is set.
    #[must_use]
    pub fn new(pacer: Pacer, time: Duration, stop: Arc<AtomicBool>) -> Self {
        Self { pacer, start: Instant::now(), time, stop, seconds: 0 }
    }

    /// Time since it began.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// The same in milliseconds.
    #[must_use]
    pub fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Whether another second has begun since this was last asked.
    pub fn has_ticked(&mut self) -> bool {
        let seconds = self.elapsed().as_secs();
        seconds > mem::replace(&mut self.seconds, seconds)
    }
}

impl Iterator for Paced {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        loop {
            let elapsed = self.elapsed();
            if elapsed >= self.time || self.stop.load(Ordering::Relaxed) {
                return None;
            }
            let elapsed_ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
            match self.pacer.due(elapsed_ns) {
                0 => {
                    let until_due = Duration::from_nanos(self.pacer.next_ns().saturating_sub(elapsed_ns));
                    thread::sleep(until_due.clamp(self.pacer.rest, SLEEP_MAX));
                }
                due => return Some(due),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pacer_hands_out_exactly_its_rate() {
        let mut pacer = Pacer::new(1_000, 100);
        let total: u64 = (0..=1_000).map(|ms| pacer.due(ms * 1_000_000)).sum();
        assert_eq!(total, 1_000);
    }

    #[test]
    fn a_late_pacer_catches_up_no_more_than_its_burst() {
        let mut pacer = Pacer::new(1_000, 10);
        assert_eq!(pacer.due(5_000_000_000), 10);
        assert_eq!(pacer.due(5_000_000_000), 0);
        assert_eq!(pacer.next_ns(), 5_001_000_000);
        assert_eq!(Pacer::new(0, 1).due(u64::MAX), 0);
    }
}
