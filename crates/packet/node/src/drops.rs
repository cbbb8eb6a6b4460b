//! The last drops, sampled, so that `trace` can say what became of a packet that someone just sent.
//!
//! Lives in the packet thread; the control side asks for copies. A flood costs one comparison per dropped packet once
//! the samples of its reason are used up for this interval.

use alloc::vec::Vec;
use sluicegate_bounded::{Bounded, Gauge, Queue};
use sluicegate_pinhole::Tuple;
use sluicegate_wire::{Instant, Port, Reason};

/// Drops kept.
const DROPS_MAX: usize = 4096;

/// Drops of one reason recorded between two calls of [`DropLog::refill`].
pub(crate) const SAMPLES_PER_INTERVAL_MAX: u16 = 32;

/// One dropped packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DroppedPacket {
    /// When, on the monotonic clock.
    pub at: Instant,
    /// The port it came in by.
    pub port: Port,
    /// Why.
    pub reason: Reason,
    /// What it said of its ends; `None` if it was no readable IP packet. Ports are zero where the protocol has none; of an ICMP
    /// echo the source port is the identifier.
    pub tuple: Option<Tuple>,
}

/// Bounded ring of [`DroppedPacket`]s with a sampling budget per reason.
#[derive(Debug)]
pub struct DropLog {
    ring: Queue<DroppedPacket>,
    samples_left: [u16; Reason::ALL.len()],
}

impl DropLog {
    pub(crate) fn new() -> Self {
        Self {
            ring: Queue::new("recent_drops", DROPS_MAX as u32),
            samples_left: [SAMPLES_PER_INTERVAL_MAX; Reason::ALL.len()],
        }
    }

    /// Records a drop if its reason has samples left; `tuple` is only called then.
    pub(crate) fn record(&mut self, at: Instant, port: Port, reason: Reason, tuple: impl FnOnce() -> Option<Tuple>) {
        let Some(left) = self.samples_left.get_mut(reason as usize) else { return };
        if *left == 0 {
            return;
        }
        *left -= 1;
        self.ring.push_over(DroppedPacket { at, port, reason, tuple: tuple() });
    }

    /// Starts a new sampling interval.
    pub(crate) fn refill(&mut self) {
        self.samples_left = [SAMPLES_PER_INTERVAL_MAX; Reason::ALL.len()];
    }

    /// The newest drops first, at most `limit`, of those that `wanted` accepts.
    pub fn recent(&self, limit: usize, wanted: impl Fn(&DroppedPacket) -> bool) -> Vec<DroppedPacket> {
        self.ring.iter().rev().filter(|drop| wanted(drop)).take(limit).copied().collect()
    }

    pub(crate) fn gauge(&self) -> Gauge {
        self.ring.gauge()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::IpAddr;

    fn tuple(source_port: u16) -> Tuple {
        let host = |last| IpAddr::from([192, 0, 2, last]);
        Tuple { protocol: 17, src: (host(1), source_port), dst: (host(2), 5060) }
    }

    #[test]
    fn a_flood_of_one_reason_leaves_room_for_the_others() {
        let mut log = DropLog::new();
        let mut looked_into = 0;
        for n in 0..10_000_u64 {
            log.record(Instant::from_nanos(n), Port::OUTSIDE, Reason::NoPinhole, || {
                looked_into += 1;
                None
            });
        }
        log.record(Instant::from_nanos(10_000), Port::INSIDE, Reason::TcpWindow, || Some(tuple(7)));
        assert_eq!(looked_into, SAMPLES_PER_INTERVAL_MAX);
        let newest = log.recent(1, |_| true);
        assert_eq!((newest[0].reason, newest[0].tuple), (Reason::TcpWindow, Some(tuple(7))));
    }

    #[test]
    fn the_full_ring_forgets_the_oldest() {
        let mut log = DropLog::new();
        for n in 0..DROPS_MAX as u64 + 10 {
            log.refill();
            log.record(Instant::from_nanos(n), Port::OUTSIDE, Reason::NoPinhole, || Some(tuple(1)));
        }
        assert_eq!(log.gauge().used, DROPS_MAX as u64);
        let all = log.recent(usize::MAX, |_| true);
        assert_eq!(all.last().map(|drop| drop.at), Some(Instant::from_nanos(10)));
        assert_eq!(log.recent(usize::MAX, |drop| drop.at == Instant::from_nanos(9)).len(), 0);
    }
}
