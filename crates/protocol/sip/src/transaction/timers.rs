//! The timers of RFC 3261 (Table 4). All of them run for one of a few fixed times, so each such time is a first-in
//! first-out list: arming, disarming and firing are O(1). A list runs through the values whose timers they are, and has no
//! memory of its own.

use core::time::Duration;

use sluicegate_bounded::{Linked, List, Slots};
use sluicegate_wire::Instant;

/// Estimate of the round trip, in milliseconds (RFC 3261 section 17.1.1.1).
pub const T1_MS: u64 = 500;
/// Longest time between retransmissions of a non-INVITE request or INVITE response, in milliseconds.
pub const T2_MS: u64 = 4_000;
/// How long a message may stay in the network, in milliseconds.
pub const T4_MS: u64 = 5_000;
/// How long an INVITE may ring, in milliseconds: timer C (RFC 3261 section 16.6 (11)).
pub const TIMER_C_MS: u64 = 181_000;
/// How long a server transaction waits for its user to answer, in milliseconds. Longer than timer C, and 64 T1 for the CANCEL
/// that follows.
pub const UNANSWERED_MS: u64 = 240_000;

/// How long a timer runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Span {
    /// `T1 << n` for `n` from 0 to 6; the last is 64 T1, the end of most transactions.
    T1Shift0,
    T1Shift1,
    T1Shift2,
    T1Shift3,
    T1Shift4,
    T1Shift5,
    T1Shift6,
    T4,
    TimerC,
    Unanswered,
    /// Not at all: what is kept for retransmissions, where the transport repeats nothing.
    Zero,
}

const SPANS: [(Span, u64); 11] = [
    (Span::T1Shift0, T1_MS),
    (Span::T1Shift1, T1_MS << 1),
    (Span::T1Shift2, T1_MS << 2),
    (Span::T1Shift3, T1_MS << 3),
    (Span::T1Shift4, T1_MS << 4),
    (Span::T1Shift5, T1_MS << 5),
    (Span::T1Shift6, T1_MS << 6),
    (Span::T4, T4_MS),
    (Span::TimerC, TIMER_C_MS),
    (Span::Unanswered, UNANSWERED_MS),
    (Span::Zero, 0),
];

impl Span {
    pub(super) const END: Self = Self::T1Shift6;

    /// The span before the `count`th retransmission when it doubles up to `cap`.
    pub(super) fn retransmission(count: u8, cap: Self) -> Self {
        let doubled = SPANS.get(usize::from(count)).map_or(Self::T1Shift6, |(span, _)| *span);
        if doubled as u8 > cap as u8 { cap } else { doubled }
    }

    fn duration(self) -> Duration {
        Duration::from_millis(SPANS.get(self as usize).map_or(0, |(_, ms)| *ms))
    }
}

/// A time in milliseconds, modulo 2^32. No timer lies further ahead than [`UNANSWERED_MS`], and none was due weeks ago, so
/// this tells which time is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Tick(u32);

impl Tick {
    /// The first tick that is not before `at`.
    const fn from(at: Instant) -> Self {
        Self(at.as_nanos().div_ceil(NANOS_PER_MS) as u32)
    }

    /// Milliseconds from `other` to here.
    const fn since(self, other: Self) -> i32 {
        self.0.wrapping_sub(other.0).cast_signed()
    }
}

const NANOS_PER_MS: u64 = 1_000_000;

/// A value with a timer.
pub(super) trait Timed: Linked {
    /// When it is due, and how long it runs: `None` if it does not run.
    fn timer(&self) -> (Tick, Option<Span>);

    /// Sets both; for [`Timers`] alone.
    fn set_timer(&mut self, due: Tick, span: Option<Span>);
}

/// One timer for each value of a table, which is given with every call.
#[derive(Debug)]
pub(super) struct Timers {
    /// Those that run for each span, first to last.
    lists: [List; SPANS.len()],
    /// The latest time seen, from which ticks count.
    now: Instant,
}

impl Timers {
    pub(super) const fn new() -> Self {
        Self { lists: [List::EMPTY; SPANS.len()], now: Instant::ZERO }
    }

    /// Starts a value's timer, or starts it anew.
    pub(super) fn arm<S: Slots<Value: Timed> + ?Sized>(&mut self, slots: &mut S, now: Instant, index: u32, span: Span) {
        self.disarm(slots, index);
        self.now = self.now.max(now);
        let Some(list) = self.lists.get_mut(span as usize) else { return };
        let last = list.back().and_then(|last| slots.slot(last)).map(|last| last.timer().0);
        let due = Tick::from(now + span.duration());
        // A caller whose clock went back must not put a list out of order.
        let due = last.filter(|last| last.since(due) > 0).unwrap_or(due);
        let Some(value) = slots.slot_mut(index) else { return };
        value.set_timer(due, Some(span));
        list.push_back(slots, index);
    }

    pub(super) fn disarm<S: Slots<Value: Timed> + ?Sized>(&mut self, slots: &mut S, index: u32) {
        let Some(value) = slots.slot_mut(index) else { return };
        let (due, Some(span)) = value.timer() else { return };
        value.set_timer(due, None);
        if let Some(list) = self.lists.get_mut(span as usize) {
            list.remove(slots, index);
        }
    }

    /// The value whose timer is due first, and when; `due` tells the tick of a value.
    pub(super) fn first(&self, due: impl Fn(u32) -> Option<Tick>) -> Option<(Instant, u32)> {
        let firsts = self.lists.iter().filter_map(List::front);
        firsts.filter_map(|index| Some((self.instant(due(index)?), index))).min()
    }

    fn instant(&self, due: Tick) -> Instant {
        let now_ms = self.now.as_nanos() / NANOS_PER_MS;
        let ahead = due.since(Tick(now_ms as u32));
        Instant::from_millis(now_ms.saturating_add_signed(ahead.into()))
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use sluicegate_bounded::{Link, linked};

    use super::*;

    #[derive(Debug, Clone)]
    struct Value {
        link: Link,
        due: Tick,
        span: Option<Span>,
    }

    linked!(Value);

    impl Timed for Value {
        fn timer(&self) -> (Tick, Option<Span>) {
            (self.due, self.span)
        }

        fn set_timer(&mut self, due: Tick, span: Option<Span>) {
            (self.due, self.span) = (due, span);
        }
    }

    fn values<const N: usize>() -> [Value; N] {
        std::array::from_fn(|_| Value { link: Link::NONE, due: Tick::default(), span: None })
    }

    /// Lets all timers fire in their order.
    fn fire(timers: &mut Timers, values: &mut [Value]) -> Vec<(u32, u64)> {
        let mut fired = Vec::new();
        while let Some((at, index)) = timers.first(|index| Some(values.get(index as usize)?.due)) {
            timers.disarm(values, index);
            fired.push((index, at.as_nanos() / NANOS_PER_MS));
        }
        fired
    }

    #[test]
    fn timers_fire_in_the_order_of_their_deadlines() {
        let (mut timers, mut values) = (Timers::new(), values::<4>());
        timers.arm(&mut values[..], Instant::ZERO, 0, Span::END);
        timers.arm(&mut values[..], Instant::ZERO, 3, Span::T1Shift1);
        timers.arm(&mut values[..], Instant::from_millis(100), 1, Span::T1Shift0);
        timers.arm(&mut values[..], Instant::from_millis(200), 2, Span::T1Shift0);
        timers.disarm(&mut values[..], 1);
        assert_eq!(fire(&mut timers, &mut values), [(2, 700), (3, 1_000), (0, 32_000)]);
    }

    #[test]
    fn a_timer_is_never_early_and_a_clock_that_goes_back_puts_none_out_of_order() {
        let (mut timers, mut values) = (Timers::new(), values::<3>());
        timers.arm(&mut values[..], Instant::from_nanos(10 * NANOS_PER_MS + 1), 0, Span::T1Shift0);
        timers.arm(&mut values[..], Instant::from_millis(3), 1, Span::T1Shift0);
        timers.arm(&mut values[..], Instant::from_millis(20), 2, Span::Zero);
        assert_eq!(fire(&mut timers, &mut values), [(2, 20), (0, 511), (1, 511)]);
    }

    #[test]
    fn ticks_come_round_every_seven_weeks_and_timers_do_not_mind() {
        let round = u64::from(u32::MAX) + 1;
        for start in [round - 300, round, 9 * round - 1, 10 * round + round / 2 - 1] {
            let (mut timers, mut values) = (Timers::new(), values::<3>());
            timers.arm(&mut values[..], Instant::from_millis(start), 0, Span::Unanswered);
            timers.arm(&mut values[..], Instant::from_millis(start + 1), 1, Span::T1Shift0);
            timers.arm(&mut values[..], Instant::from_millis(start + 400), 2, Span::T1Shift0);
            let fired = [(1, start + 501), (2, start + 900), (0, start + UNANSWERED_MS)];
            assert_eq!(fire(&mut timers, &mut values), fired);
        }
    }

    #[test]
    fn retransmissions_double_up_to_their_cap() {
        let spans: Vec<_> = (0..6).map(|count| Span::retransmission(count, Span::T1Shift3) as u8).collect();
        assert_eq!(spans, [0, 1, 2, 3, 3, 3]);
        for (position, (span, _)) in SPANS.iter().enumerate() {
            assert_eq!(*span as usize, position);
        }
    }
}
