//! How long to wait before the next attempt to reach a frontend.

use std::time::Duration;

/// The first wait is about this long.
const FIRST: Duration = Duration::from_millis(250);
/// No wait is longer.
const LONGEST: Duration = Duration::from_secs(5);

/// Doubling waits, each drawn from the upper half of its span so that gates do not all come back at once.
#[derive(Debug)]
pub(crate) struct Backoff {
    attempts: u32,
}

impl Backoff {
    pub(crate) const fn new() -> Self {
        Self { attempts: 0 }
    }

    /// The next wait; `random` is any uniform number.
    pub(crate) fn next(&mut self, random: u32) -> Duration {
        let span = FIRST.saturating_mul(1 << self.attempts.min(8)).min(LONGEST);
        self.attempts = self.attempts.saturating_add(1);
        let half = span / 2;
        half + half.mul_f64(f64::from(random) / f64::from(u32::MAX))
    }

    /// The feed worked: the next wait is a first one.
    pub(crate) const fn reset(&mut self) {
        self.attempts = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_five_seconds_and_start_over_after_success() {
        let mut backoff = Backoff::new();
        let longest: Vec<Duration> = (0..7).map(|_| backoff.next(u32::MAX)).collect();
        let expected = [250, 500, 1000, 2000, 4000, 5000, 5000].map(Duration::from_millis);
        assert_eq!(longest, expected);
        backoff.reset();
        assert_eq!(backoff.next(0), Duration::from_millis(125));
    }

    #[test]
    fn waits_stay_bounded_after_any_number_of_attempts() {
        let mut backoff = Backoff { attempts: u32::MAX };
        assert_eq!(backoff.next(u32::MAX), LONGEST);
        assert_eq!(backoff.next(u32::MAX), LONGEST);
    }
}
