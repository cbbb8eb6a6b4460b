//! Log lines that strangers cause, limited by kind: nobody fills a disk by knocking.

use std::sync::{Mutex, PoisonError};

use sluicegate_flow::TokenBucket;
use sluicegate_wire::Instant;

/// A line takes six tokens of sixty, and each second brings one more.
const LINE_TOKENS: u32 = 6;
const TOKENS_MAX: u64 = 60;

/// The lines of one kind: ten at once, ten a minute in the long run. What is left out is counted, and told with the next
/// line.
#[derive(Debug)]
pub(crate) struct LogLimit {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    bucket: TokenBucket,
    left_out: u64,
}

impl LogLimit {
    pub(crate) const fn new() -> Self {
        Self { state: Mutex::new(State { bucket: TokenBucket::new(Instant::ZERO, 1, TOKENS_MAX), left_out: 0 }) }
    }

    /// Whether a line may be written now, and if so how many were left out since the last.
    pub(crate) fn admit(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.bucket.take(now, LINE_TOKENS) {
            return Some(std::mem::take(&mut state.left_out));
        }
        state.left_out += 1;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_ten_lines_and_then_ten_a_minute_and_all_are_counted() {
        let limit = LogLimit::new();
        let mut written = 0;
        let mut told = 0;
        for event in 0..600_000_u64 {
            // A thousand a second, for ten minutes.
            if let Some(left_out) = limit.admit(Instant::from_nanos(event * 1_000_000)) {
                written += 1;
                told += left_out;
            }
        }
        assert!((100..=112).contains(&written), "{written}");
        assert!(told > 590_000, "{told}");
    }

    #[test]
    fn a_line_now_and_then_is_always_written() {
        let limit = LogLimit::new();
        assert!((0..1_000).all(|number| limit.admit(Instant::from_secs(number * 10)) == Some(0)));
    }
}
