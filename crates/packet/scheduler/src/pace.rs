use core::time::Duration;

use sluicegate_wire::Instant;

const NANOS_PER_SEC: u64 = 1_000_000_000;
/// Longer pauses fill every bucket anyway.
const FILL_MAX: Duration = Duration::from_secs(1);

/// A token bucket that may be overdrawn by one packet: a packet may go while there is any token, because the fair
/// queues know a packet's length only when they hand it out.
///
/// In any window of t seconds at most `rate * t + depth + one packet` bytes pass [`Self::is_ready`] and
/// [`Self::charge`].
#[derive(Debug)]
pub(super) struct Pace {
    bytes_per_s: u64,
    /// In billionths of a byte, as the level, so that a nanosecond adds a whole number.
    depth: i64,
    level: i64,
    filled_at: Instant,
}

impl Pace {
    /// A full bucket.
    pub(super) const fn new(bytes_per_s: u64, depth_bytes: u32) -> Self {
        let bytes_per_s = if bytes_per_s == 0 { 1 } else { bytes_per_s };
        let depth = if depth_bytes == 0 { 1 } else { depth_bytes } as i64 * NANOS_PER_SEC as i64;
        Self { bytes_per_s, depth, level: depth, filled_at: Instant::ZERO }
    }

    /// Whether a packet may go at `now`.
    #[inline]
    pub(super) fn is_ready(&mut self, now: Instant) -> bool {
        if self.level < self.depth {
            let elapsed = now.since(self.filled_at).min(FILL_MAX).as_nanos() as u64;
            let gained = i64::try_from(elapsed.saturating_mul(self.bytes_per_s)).unwrap_or(i64::MAX);
            self.level = self.level.saturating_add(gained).min(self.depth);
        }
        self.filled_at = self.filled_at.max(now);
        self.level > 0
    }

    /// Takes the tokens of a packet that goes.
    #[inline]
    pub(super) const fn charge(&mut self, bytes: u32) {
        self.level = self.level.saturating_sub(bytes as i64 * NANOS_PER_SEC as i64);
    }

    /// Takes what tokens there are for a packet that nobody else wanted the link for.
    #[inline]
    pub(super) fn charge_spare(&mut self, bytes: u32) {
        let floor = self.level.min(0);
        self.charge(bytes);
        self.level = self.level.max(floor);
    }

    /// When the next packet may go.
    pub(super) fn ready_at(&self) -> Instant {
        let missing = 1_i64.saturating_sub(self.level).max(0) as u64;
        self.filled_at + Duration::from_nanos(missing.div_ceil(self.bytes_per_s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_overdrawn_by_one_packet_and_ready_when_it_says() {
        let mut pace = Pace::new(1_000_000, 100);
        assert!(pace.is_ready(Instant::ZERO));
        pace.charge(1_600);
        assert!(!pace.is_ready(Instant::ZERO));
        let at = pace.ready_at();
        assert!(!pace.is_ready(at - Duration::from_nanos(1_000)));
        assert!(pace.is_ready(at), "{at:?}");
        assert_eq!(at.as_nanos(), 1_500_001);
    }

    #[test]
    fn spare_bandwidth_costs_what_is_there_and_never_makes_a_debt() {
        let mut pace = Pace::new(1_000, 500);
        assert!(pace.is_ready(Instant::ZERO));
        pace.charge_spare(1_500);
        assert!(!pace.is_ready(Instant::ZERO));
        assert!(pace.is_ready(Instant::from_millis(1)));
    }

    #[test]
    fn no_pause_overfills_a_bucket_and_no_rate_overflows_it() {
        let mut pace = Pace::new(u64::MAX, u32::MAX);
        pace.charge(u32::MAX);
        assert!(pace.is_ready(Instant::from_nanos(u64::MAX)));
        assert_eq!(pace.level, pace.depth);
    }
}
