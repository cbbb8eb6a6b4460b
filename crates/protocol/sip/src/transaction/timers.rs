//! The timers of RFC 3261 (Table 4). All of them run for one of a few fixed times, so each such time is a first-in
//! first-out list: arming, disarming and firing are O(1), and memory is fixed.

use alloc::{boxed::Box, vec};
use core::time::Duration;

use sluicegate_bounded::{Link, List, linked};
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
}

const SPANS: [(Span, u64); 10] = [
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

/// What a timer is for. Each slot has one of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Send again: A, E, G.
    Retransmit,
    /// Change state or end: B, C, D, F, H, I, J, K, L, M.
    End,
}

const UNARMED: u8 = u8::MAX;

#[derive(Debug, Clone, Copy)]
struct Timer {
    deadline: Instant,
    link: Link,
    span: u8,
}

linked!(Timer);

/// Two timers for each of a fixed number of slots.
#[derive(Debug)]
pub(super) struct Timers {
    timers: Box<[Timer]>,
    /// Those that run for each span, first to last.
    lists: [List; SPANS.len()],
}

impl Timers {
    pub(super) fn new(slots: usize) -> Self {
        let timer = Timer { deadline: Instant::ZERO, link: Link::NONE, span: UNARMED };
        Self { timers: vec![timer; slots * 2].into(), lists: [List::EMPTY; SPANS.len()] }
    }

    /// Starts a timer, or starts it anew.
    pub(super) fn arm(&mut self, now: Instant, slot: u32, purpose: Purpose, span: Span) {
        let id = timer_id(slot, purpose);
        self.disarm(slot, purpose);
        let Some(list) = self.lists.get_mut(span as usize) else { return };
        let last = list.back().and_then(|last| self.timers.get(last as usize)).map(|last| last.deadline);
        let Some(timer) = self.timers.get_mut(id as usize) else { return };
        // A caller whose clock went back must not put a list out of order.
        timer.deadline = (now + span.duration()).max(last.unwrap_or(Instant::ZERO));
        timer.span = span as u8;
        list.push_back(&mut self.timers[..], id);
    }

    pub(super) fn disarm(&mut self, slot: u32, purpose: Purpose) {
        let id = timer_id(slot, purpose);
        let Some(timer) = self.timers.get_mut(id as usize) else { return };
        let span = core::mem::replace(&mut timer.span, UNARMED);
        if let Some(list) = self.lists.get_mut(usize::from(span)) {
            list.remove(&mut self.timers[..], id);
        }
    }

    pub(super) fn disarm_all(&mut self, slot: u32) {
        self.disarm(slot, Purpose::Retransmit);
        self.disarm(slot, Purpose::End);
    }

    /// The earliest deadline.
    pub(super) fn next(&self) -> Option<Instant> {
        self.earliest().map(|(_, deadline)| deadline)
    }

    /// Takes the earliest timer that is due.
    pub(super) fn pop(&mut self, now: Instant) -> Option<(u32, Purpose)> {
        let (id, _) = self.earliest().filter(|(_, deadline)| *deadline <= now)?;
        let (slot, purpose) = (id / 2, if id % 2 == 0 { Purpose::Retransmit } else { Purpose::End });
        self.disarm(slot, purpose);
        Some((slot, purpose))
    }

    fn earliest(&self) -> Option<(u32, Instant)> {
        let firsts = self.lists.iter().filter_map(List::front);
        firsts.filter_map(|id| Some((id, self.timers.get(id as usize)?.deadline))).min_by_key(|(_, deadline)| *deadline)
    }
}

fn timer_id(slot: u32, purpose: Purpose) -> u32 {
    slot * 2 + u32::from(purpose == Purpose::End)
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn timers_fire_in_the_order_of_their_deadlines() {
        let mut timers = Timers::new(4);
        timers.arm(Instant::ZERO, 0, Purpose::End, Span::END);
        timers.arm(Instant::ZERO, 0, Purpose::Retransmit, Span::T1Shift1);
        timers.arm(Instant::from_millis(100), 1, Purpose::Retransmit, Span::T1Shift0);
        timers.arm(Instant::from_millis(200), 2, Purpose::Retransmit, Span::T1Shift0);
        timers.disarm(1, Purpose::Retransmit);
        assert_eq!(timers.next(), Some(Instant::from_millis(700)));
        assert_eq!(timers.pop(Instant::from_millis(699)), None);
        let late = Instant::from_secs(100);
        let fired: Vec<_> = core::iter::from_fn(|| timers.pop(late)).collect();
        assert_eq!(fired, [(2, Purpose::Retransmit), (0, Purpose::Retransmit), (0, Purpose::End)]);
        assert_eq!(timers.next(), None);
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
