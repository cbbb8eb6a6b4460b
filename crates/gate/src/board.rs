//! Counters and gauges as the packet thread last published them: written by it alone every 100 ms with plain stores,
//! read by anyone without a lock. Numbers of one reading may be one publication apart.

use sluicegate_wire::{Instant, Port, Reason};
use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// Tables that can be published.
pub(crate) const GAUGES_MAX: usize = 24;
/// Number of drop reasons.
pub(crate) const REASONS: usize = Reason::ALL.len();

/// Packets and bytes that left by one port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
}

/// One reading of all counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reading {
    /// By [`Reason`] code: dropped by the translator, the packet path or the kernel program.
    pub(crate) dropped: [u64; REASONS],
    /// By [`Reason`] code: would have been dropped, were the gate not in observe mode.
    pub(crate) observed: [u64; REASONS],
    /// By port.
    pub(crate) sent: [Sent; 2],
    /// Frames received from both ports.
    pub(crate) received: u64,
}

impl Default for Reading {
    fn default() -> Self {
        Self { dropped: [0; REASONS], observed: [0; REASONS], sent: [Sent::default(); 2], received: 0 }
    }
}

/// Fill of one table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gauge {
    pub(crate) name: &'static str,
    pub(crate) used: u64,
    pub(crate) max: u64,
}

/// The published numbers.
#[derive(Debug)]
pub(crate) struct Board {
    dropped: [AtomicU64; REASONS],
    observed: [AtomicU64; REASONS],
    sent: [[AtomicU64; 2]; 2],
    received: AtomicU64,
    gauge_names: OnceLock<Vec<&'static str>>,
    gauges: [[AtomicU64; 2]; GAUGES_MAX],
    heartbeat_nanos: AtomicU64,
}

impl Board {
    pub(crate) fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            dropped: std::array::from_fn(|_| zero()),
            observed: std::array::from_fn(|_| zero()),
            sent: std::array::from_fn(|_| [zero(), zero()]),
            received: zero(),
            gauge_names: OnceLock::new(),
            gauges: std::array::from_fn(|_| [zero(), zero()]),
            heartbeat_nanos: zero(),
        }
    }

    /// Publishes; only the packet thread does. The gauges' names and order are those of the first call.
    pub(crate) fn publish(&self, now: Instant, reading: &Reading, gauges: &[Gauge]) {
        for (shown, value) in self.dropped.iter().zip(reading.dropped) {
            shown.store(value, Relaxed);
        }
        for (shown, value) in self.observed.iter().zip(reading.observed) {
            shown.store(value, Relaxed);
        }
        for (shown, value) in self.sent.iter().zip(reading.sent) {
            shown[0].store(value.packets, Relaxed);
            shown[1].store(value.bytes, Relaxed);
        }
        self.received.store(reading.received, Relaxed);
        self.gauge_names.get_or_init(|| gauges.iter().map(|gauge| gauge.name).collect());
        for (shown, gauge) in self.gauges.iter().zip(gauges) {
            shown[0].store(gauge.used, Relaxed);
            shown[1].store(gauge.max, Relaxed);
        }
        self.heartbeat_nanos.store(now.as_nanos(), Relaxed);
    }

    /// The counters as last published.
    pub(crate) fn reading(&self) -> Reading {
        let sent = |port: Port| {
            let [packets, bytes] = &self.sent[usize::from(port.0 & 1)];
            Sent { packets: packets.load(Relaxed), bytes: bytes.load(Relaxed) }
        };
        Reading {
            dropped: std::array::from_fn(|index| self.dropped[index].load(Relaxed)),
            observed: std::array::from_fn(|index| self.observed[index].load(Relaxed)),
            sent: [sent(Port::OUTSIDE), sent(Port::INSIDE)],
            received: self.received.load(Relaxed),
        }
    }

    /// The tables' fill as last published.
    pub(crate) fn gauges(&self) -> Vec<Gauge> {
        let names = self.gauge_names.get().map_or(&[][..], Vec::as_slice);
        names
            .iter()
            .zip(&self.gauges)
            .map(|(name, [used, max])| Gauge { name, used: used.load(Relaxed), max: max.load(Relaxed) })
            .collect()
    }

    /// When the packet thread last published; `None` before the first time.
    pub(crate) fn heartbeat(&self) -> Option<Instant> {
        Some(self.heartbeat_nanos.load(Relaxed)).filter(|nanos| *nanos != 0).map(Instant::from_nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_published_is_read() {
        let board = Board::new();
        assert_eq!((board.heartbeat(), board.gauges()), (None, vec![]));
        let mut reading = Reading::default();
        reading.dropped[Reason::NoPinhole as usize] = 5;
        reading.observed[Reason::TcpWindow as usize] = 6;
        reading.sent[1] = Sent { packets: 7, bytes: 8 };
        reading.received = 9;
        let gauges = [Gauge { name: "flows", used: 1, max: 2 }, Gauge { name: "pinholes", used: 3, max: 4 }];
        board.publish(Instant::from_secs(1), &reading, &gauges);
        assert_eq!(board.reading(), reading);
        assert_eq!(board.gauges(), gauges);
        assert_eq!(board.heartbeat(), Some(Instant::from_secs(1)));
    }
}
