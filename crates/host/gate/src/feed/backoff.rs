//! How long to wait before the next attempt to reach a frontend.

use std::time::Duration;

/// The first wait is about this long.
const FIRST: Duration = Duration::from_millis(250);
/// No wait is longer.
const LONGEST: Duration = Duration::from_secs(5);

/// The wait after so many failures in a row. It doubles, and is drawn from the upper half of its span so that gates do not all
/// come back at once; `random` is any uniform number.
pub(crate) fn wait_after(failures: u32, random: u32) -> Duration {
    let span = FIRST.saturating_mul(1 << failures.min(8)).min(LONGEST);
    let half = span / 2;
    half + half.mul_f64(f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_five_seconds_and_start_over_after_success() {
        let longest: Vec<Duration> = (0..7).map(|failures| wait_after(failures, u32::MAX)).collect();
        let expected = [250, 500, 1000, 2000, 4000, 5000, 5000].map(Duration::from_millis);
        assert_eq!(longest, expected);
        assert_eq!(wait_after(0, 0), Duration::from_millis(125));
    }

    #[test]
    fn waits_stay_bounded_after_any_number_of_attempts() {
        assert_eq!(wait_after(u32::MAX, u32::MAX), LONGEST);
    }
}
