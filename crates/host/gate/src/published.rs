//! Counters and gauges as the packet thread last published them: written by it alone every 100 ms with plain stores,
//! read by anyone without a lock. Numbers of one reading may be one publication apart.

use sluicegate_bounded::Gauge;
use sluicegate_node::{KINDS, LANES, LaneReading, Lanes, REASONS, Reading, Sent};
use sluicegate_wire::{Instant, Port};
use std::sync::{
    Mutex, OnceLock, PoisonError,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

/// Tables that can be published.
pub(crate) const GAUGES_MAX: usize = 64;
/// The published numbers.
#[derive(Debug)]
pub(crate) struct Published {
    dropped: [AtomicU64; REASONS],
    observed: [AtomicU64; REASONS],
    sent: [[AtomicU64; 2]; 2],
    received: AtomicU64,
    turn: [AtomicU64; 2],
    scheduled: [AtomicBool; 2],
    lanes: [[[AtomicU64; 4]; LANES.len()]; 2],
    passed: [AtomicU64; KINDS.len()],
    demoted: [AtomicU64; REASONS],
    gauge_names: OnceLock<Vec<&'static str>>,
    gauges: [[AtomicU64; 2]; GAUGES_MAX],
    heartbeat_nanos: AtomicU64,
    /// Why nothing is forwarded; `None` while the device is open.
    closed: Mutex<Option<String>>,
}

impl Published {
    pub(crate) fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            dropped: std::array::from_fn(|_| zero()),
            observed: std::array::from_fn(|_| zero()),
            sent: std::array::from_fn(|_| [zero(), zero()]),
            received: zero(),
            turn: [zero(), zero()],
            scheduled: Default::default(),
            lanes: std::array::from_fn(|_| std::array::from_fn(|_| std::array::from_fn(|_| zero()))),
            passed: std::array::from_fn(|_| zero()),
            demoted: std::array::from_fn(|_| zero()),
            gauge_names: OnceLock::new(),
            gauges: std::array::from_fn(|_| [zero(), zero()]),
            heartbeat_nanos: zero(),
            closed: Mutex::new(None),
        }
    }

    /// Says that the device is closed and why, or open.
    pub(crate) fn close(&self, problem: Option<String>) {
        *self.closed.lock().unwrap_or_else(PoisonError::into_inner) = problem;
    }

    /// Why nothing is forwarded; `None` while the device is open.
    pub(crate) fn closed(&self) -> Option<String> {
        self.closed.lock().unwrap_or_else(PoisonError::into_inner).clone()
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
        for (shown, value) in self.turn.iter().zip(reading.turn) {
            shown.store(value, Relaxed);
        }
        for (port, lanes) in reading.lanes.iter().enumerate() {
            self.scheduled[port].store(lanes.is_some(), Relaxed);
            for (shown, lane) in self.lanes[port].iter().zip(lanes.iter().flatten()) {
                for (shown, value) in shown.iter().zip([lane.packets, lane.bytes, lane.dropped, lane.waiting]) {
                    shown.store(value, Relaxed);
                }
            }
        }
        for (shown, value) in self.passed.iter().zip(reading.passed) {
            shown.store(value, Relaxed);
        }
        for (shown, value) in self.demoted.iter().zip(reading.demoted) {
            shown.store(value, Relaxed);
        }
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
            turn: std::array::from_fn(|index| self.turn[index].load(Relaxed)),
            lanes: std::array::from_fn(|port| self.lanes_of(port)),
            passed: std::array::from_fn(|index| self.passed[index].load(Relaxed)),
            demoted: std::array::from_fn(|index| self.demoted[index].load(Relaxed)),
        }
    }

    fn lanes_of(&self, port: usize) -> Lanes {
        let lane = |lane: usize| {
            let [packets, bytes, dropped, waiting] = &self.lanes[port][lane];
            LaneReading {
                packets: packets.load(Relaxed),
                bytes: bytes.load(Relaxed),
                dropped: dropped.load(Relaxed),
                waiting: waiting.load(Relaxed),
            }
        };
        self.scheduled[port].load(Relaxed).then(|| std::array::from_fn(lane))
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
    use sluicegate_wire::Reason;

    #[test]
    fn what_is_published_is_read() {
        let published = Published::new();
        assert_eq!((published.heartbeat(), published.gauges()), (None, vec![]));
        let mut reading = Reading::default();
        reading.dropped[Reason::NoPinhole as usize] = 5;
        reading.observed[Reason::TcpWindow as usize] = 6;
        reading.sent[1] = Sent { packets: 7, bytes: 8 };
        reading.received = 9;
        reading.turn = [16, 17];
        let lane = LaneReading { packets: 10, bytes: 11, dropped: 14, waiting: 15 };
        reading.lanes[1] = Some([LaneReading::default(), lane, lane, lane]);
        (reading.passed[1], reading.demoted[Reason::CapabilityForged as usize]) = (12, 13);
        let gauges = [Gauge { name: "flows", used: 1, max: 2 }, Gauge { name: "pinholes", used: 3, max: 4 }];
        published.publish(Instant::from_secs(1), &reading, &gauges);
        assert_eq!(published.reading(), reading);
        assert_eq!(published.gauges(), gauges);
        assert_eq!(published.heartbeat(), Some(Instant::from_secs(1)));
    }
}
