use sluicegate_wire::Instant;

const NANOS_PER_SEC: u64 = 1_000_000_000;

/// A token bucket in integer arithmetic: tokens are counted in billionths, so that a nanosecond adds a whole number.
///
/// A token is whatever the caller counts: a byte, a packet, an ICMP message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBucket {
    rate_per_s: u64,
    depth_nanos: u64,
    level_nanos: u64,
    filled_at: Instant,
}

impl TokenBucket {
    /// The deepest bucket, in tokens.
    pub const DEPTH_MAX: u64 = u64::MAX / NANOS_PER_SEC;

    /// A full bucket that gains `rate_per_s` tokens a second and holds at most `depth` (cut to [`Self::DEPTH_MAX`]).
    #[must_use]
    pub const fn new(now: Instant, rate_per_s: u64, depth: u64) -> Self {
        let depth = if depth > Self::DEPTH_MAX { Self::DEPTH_MAX } else { depth };
        let depth_nanos = depth * NANOS_PER_SEC;
        Self { rate_per_s, depth_nanos, level_nanos: depth_nanos, filled_at: now }
    }

    /// Takes `tokens` if they are there; otherwise takes none.
    #[inline]
    pub fn take(&mut self, now: Instant, tokens: u32) -> bool {
        self.fill(now);
        match self.level_nanos.checked_sub(u64::from(tokens) * NANOS_PER_SEC) {
            Some(level) => {
                self.level_nanos = level;
                true
            }
            None => false,
        }
    }

    /// Puts back tokens that were taken and not used.
    pub fn give_back(&mut self, tokens: u32) {
        let level = self.level_nanos.saturating_add(u64::from(tokens) * NANOS_PER_SEC);
        self.level_nanos = level.min(self.depth_nanos);
    }

    /// Another rate and depth from now on. What is in the bucket stays, as far as it fits: no change fills it.
    pub fn reshape(&mut self, now: Instant, rate_per_s: u64, depth: u64) {
        self.fill(now);
        let shape = Self::new(now, rate_per_s, depth);
        *self = Self { level_nanos: self.level_nanos.min(shape.depth_nanos), filled_at: self.filled_at, ..shape };
    }

    /// Whole tokens in the bucket at `now`.
    #[must_use]
    pub fn level(&self, now: Instant) -> u64 {
        let mut filled = *self;
        filled.fill(now);
        filled.level_nanos / NANOS_PER_SEC
    }

    #[inline]
    fn fill(&mut self, now: Instant) {
        let elapsed = now.as_nanos().saturating_sub(self.filled_at.as_nanos());
        let gained = elapsed.saturating_mul(self.rate_per_s);
        self.level_nanos = self.level_nanos.saturating_add(gained).min(self.depth_nanos);
        self.filled_at = self.filled_at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    #[test]
    fn a_full_bucket_gives_its_depth_and_then_its_rate() {
        let start = Instant::from_secs(5);
        let mut bucket = TokenBucket::new(start, 1_000, 300);
        assert!(bucket.take(start, 300) && !bucket.take(start, 1));
        let later = start + Duration::from_millis(10);
        assert!(bucket.take(later, 10) && !bucket.take(later, 1));
    }

    #[test]
    fn many_small_steps_lose_no_token() {
        let mut now = Instant::ZERO;
        let mut bucket = TokenBucket::new(now, 3, 1_000);
        assert!(bucket.take(now, 1_000));
        for _ in 0..1_000_000 {
            now = now + Duration::from_nanos(7_001);
            assert!(!bucket.take(now, 1_000));
        }
        // 7.001 s at three tokens a second.
        assert_eq!(bucket.level(now), 21);
    }

    #[test]
    fn another_shape_and_what_comes_back_never_overfill() {
        let start = Instant::from_secs(5);
        let mut bucket = TokenBucket::new(start, 1_000, 300);
        assert!(bucket.take(start, 250));
        bucket.reshape(start, 10_000, 3_000);
        assert_eq!(bucket.level(start), 50, "a wider bucket is not a fuller one");
        bucket.give_back(100);
        assert_eq!(bucket.level(start), 150);
        bucket.reshape(start, 10, 100);
        bucket.give_back(100);
        assert_eq!(bucket.level(start), 100);
    }

    #[test]
    fn idle_time_and_a_clock_that_stands_still_never_overfill() {
        let mut bucket = TokenBucket::new(Instant::ZERO, u64::MAX, u64::MAX);
        let end = Instant::from_nanos(u64::MAX);
        assert_eq!(bucket.level(end), TokenBucket::DEPTH_MAX);
        assert!(bucket.take(end, u32::MAX));
        assert!(bucket.take(Instant::ZERO, 1), "an earlier time adds nothing and takes what is there");
    }
}
