use sluicegate_wire::Instant;

use crate::TokenBucket;

const NANOS_PER_SEC: u64 = 1_000_000_000;
/// Shares are counted anew in each window of this length, or of a longer one where so little is gained in it that
/// several packets of several sharers would not fit.
const WINDOW_NANOS_MIN: u64 = 50_000_000;
const WINDOW_TOKENS_MIN: u64 = 32 * 1024;
/// Windows in which a sharer is expected again.
const WINDOWS: usize = 8;

/// What one of those that share a [`FairBucket`] took lately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    window: u32,
    taken: u32,
}

impl Share {
    /// Of somebody who has taken nothing yet.
    pub const NONE: Self = Self { window: u32::MAX, taken: 0 };
}

impl Default for Share {
    fn default() -> Self {
        Self::NONE
    }
}

/// A token bucket that several share, so that one who asks for everything leaves the others their part.
///
/// In each window there are as many parts of what the bucket gains as there were sharers in any of the last eight, so that
/// one who sends seldom finds its part too. A
/// sharer takes its part before anyone else; more only while what the others have not had of theirs stays in the bucket,
/// now and when the next window begins.
/// So a sharer alone has the whole rate and burst, what nobody asks for goes to whoever does, and a new sharer has its part
/// one window later at the latest. Nobody is remembered: each sharer keeps its own [`Share`], of eight bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FairBucket {
    bucket: TokenBucket,
    window_nanos: u64,
    per_window: u64,
    window: u32,
    /// Sharers that asked for something in this window, the most in one of those before, and their numbers.
    sharers: u32,
    sharers_before: u32,
    recent: [u16; WINDOWS],
    /// What sharers had of their own parts in this window.
    claimed: u64,
}

impl FairBucket {
    /// A full bucket that gains `rate_per_s` tokens a second and holds at most `depth`.
    #[must_use]
    pub fn new(now: Instant, rate_per_s: u64, depth: u64) -> Self {
        let (window_nanos, per_window) = window(rate_per_s);
        let bucket = TokenBucket::new(now, rate_per_s, depth);
        let recent = [0; WINDOWS];
        Self { bucket, window_nanos, per_window, window: 0, sharers: 0, sharers_before: 0, recent, claimed: 0 }
    }

    /// See [`TokenBucket::reshape`].
    pub fn reshape(&mut self, now: Instant, rate_per_s: u64, depth: u64) {
        self.bucket.reshape(now, rate_per_s, depth);
        (self.window_nanos, self.per_window) = window(rate_per_s);
    }

    /// Takes `tokens` for one sharer, if they are there and not kept for others; otherwise takes none.
    pub fn take(&mut self, now: Instant, share: &mut Share, tokens: u32) -> bool {
        self.turn(now);
        if share.window != self.window {
            *share = Share { window: self.window, taken: 0 };
            self.sharers += 1;
        }
        let sharers = u64::from(self.sharers.max(self.sharers_before));
        let part = self.per_window / sharers;
        let own = part.saturating_sub(share.taken.into());
        let kept = (part * sharers).saturating_sub(self.claimed + own);
        let is_own = u64::from(tokens) <= own;
        let needed = if is_own { tokens.into() } else { kept + self.begun(now, sharers) + u64::from(tokens) };
        if self.bucket.level(now) < needed || !self.bucket.take(now, tokens) {
            return false;
        }
        self.claimed += own.min(tokens.into());
        share.taken = share.taken.saturating_add(tokens);
        true
    }

    /// Puts back tokens that a sharer took and did not use.
    pub fn give_back(&mut self, share: &mut Share, tokens: u32) {
        self.bucket.give_back(tokens);
        if share.window == self.window {
            share.taken = share.taken.saturating_sub(tokens);
            self.claimed = self.claimed.saturating_sub(tokens.into());
        }
    }

    /// What the next window must find in the bucket if several share it, as far as this window has brought it: parts are
    /// taken as soon as a window begins, and tokens come in its course.
    fn begun(&self, now: Instant, sharers: u64) -> u64 {
        let elapsed = u128::from(now.as_nanos() % self.window_nanos);
        let gained = u128::from(self.per_window) * elapsed / u128::from(self.window_nanos);
        if sharers > 1 { gained as u64 } else { 0 }
    }

    fn turn(&mut self, now: Instant) {
        let window = (now.as_nanos() / self.window_nanos) as u32;
        if window != self.window {
            let passed = window.wrapping_sub(self.window) as usize;
            self.recent[self.window as usize % WINDOWS] = self.sharers.min(u16::MAX.into()) as u16;
            for skipped in 1..passed.min(WINDOWS + 1) {
                self.recent[(self.window as usize + skipped) % WINDOWS] = 0;
            }
            self.sharers_before = self.recent.iter().copied().max().unwrap_or(0).into();
            (self.window, self.sharers, self.claimed) = (window, 0, 0);
        }
    }
}

/// Length of a window in nanoseconds, and the tokens that are gained in it.
fn window(rate_per_s: u64) -> (u64, u64) {
    let rate = rate_per_s.clamp(1, 1 << 40);
    let nanos = (WINDOW_TOKENS_MIN * NANOS_PER_SEC).div_ceil(rate).max(WINDOW_NANOS_MIN);
    (nanos, (u128::from(rate) * u128::from(nanos) / u128::from(NANOS_PER_SEC)) as u64)
}

#[cfg(test)]
mod tests {
    use core::time::Duration;
    use std::{vec, vec::Vec};

    use super::*;

    const RATE: u64 = 1_250_000;

    /// What each of several senders gets in ten seconds if it offers packets of so many bytes at such a rate.
    fn run(rate: u64, senders: &[(u32, u64)]) -> Vec<u64> {
        let mut bucket = FairBucket::new(Instant::ZERO, rate, (rate / 4).max(64 * 1024));
        let mut shares = vec![Share::NONE; senders.len()];
        let mut sent = vec![0u64; senders.len()];
        let mut got = vec![0u64; senders.len()];
        for step in 0..100_000u64 {
            let now = Instant::ZERO + Duration::from_micros(step * 100);
            for (n, (len, offered)) in senders.iter().enumerate() {
                while sent[n] + u64::from(*len) <= offered * step / 10_000 {
                    sent[n] += u64::from(*len);
                    got[n] += if bucket.take(now, &mut shares[n], *len) { u64::from(*len) } else { 0 };
                }
            }
        }
        got
    }

    #[test]
    fn one_alone_has_the_whole_rate() {
        let got = run(RATE, &[(1_400, RATE * 3)])[0];
        assert!(got > RATE * 99 / 10 && got <= RATE * 10 + RATE / 4, "{got}");
    }

    #[test]
    fn whoever_asks_for_everything_leaves_the_other_what_it_needs_up_to_a_third() {
        for honest in [RATE / 100, RATE / 10, RATE * 3 / 10] {
            let got = run(RATE, &[(100, RATE * 10), (1_000, honest)]);
            assert!(got[1] + 3_000 >= honest * 10, "{} of {}", got[1], honest * 10);
            assert!(got[0] + got[1] > RATE * 98 / 10, "nothing is wasted: {got:?}");
            assert!(got[0] + got[1] <= RATE * 10 + RATE / 4, "{got:?}");
        }
    }

    #[test]
    fn many_forgers_leave_one_its_equal_part() {
        let mut senders = vec![(100, RATE); 15];
        senders.push((200, RATE / 20));
        let got = run(RATE, &senders);
        assert!(got[15] * 100 >= RATE / 20 * 10 * 99, "{got:?}");
    }

    #[test]
    fn at_a_low_rate_whole_packets_still_fit_a_part() {
        let got = run(12_500, &[(100, 125_000), (1_400, 3_000)]);
        assert!((got[1] + 1_400) * 100 >= 3_000 * 10 * 99, "{got:?}");
    }

    #[test]
    fn what_comes_back_can_be_taken_again_by_anyone() {
        let now = Instant::from_secs(1);
        let mut bucket = FairBucket::new(now, RATE, 100_000);
        let (mut one, mut other) = (Share::NONE, Share::NONE);
        assert!(bucket.take(now, &mut one, 100_000));
        assert!(!bucket.take(now, &mut other, 1));
        bucket.give_back(&mut one, 80_000);
        assert!(bucket.take(now, &mut other, 25_000));
    }
}
