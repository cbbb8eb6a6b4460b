//! Counters and gauges as the packet thread last published them, every 100 ms: it waits for nobody, and allocates nothing.

use sluicegate_bounded::Gauge;
use sluicegate_node::Reading;
use sluicegate_telemetry as telemetry;
use sluicegate_wire::Instant;
use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// Tables that can be published.
pub(crate) const GAUGES_MAX: usize = 64;

/// The published numbers.
#[derive(Debug)]
pub(crate) struct Published {
    figures: telemetry::Published<(Reading, Vec<Gauge>)>,
    heartbeat_nanos: AtomicU64,
    /// Why nothing is forwarded; `None` while the device is open.
    closed: Mutex<Option<String>>,
}

impl Published {
    pub(crate) fn new() -> Self {
        Self {
            figures: telemetry::Published::new((Reading::default(), Vec::with_capacity(GAUGES_MAX))),
            heartbeat_nanos: AtomicU64::new(0),
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

    /// Publishes; only the packet thread does.
    pub(crate) fn publish(&self, now: Instant, reading: &Reading, gauges: &[Gauge]) {
        self.figures.publish(|(shown, tables)| {
            shown.clone_from(reading);
            tables.clear();
            tables.extend(gauges.iter().take(GAUGES_MAX));
        });
        // Apart: this must not wait for the next time because somebody reads just now.
        self.heartbeat_nanos.store(now.as_nanos(), Relaxed);
    }

    /// The counters as last published.
    pub(crate) fn reading(&self) -> Reading {
        self.figures.read(|(reading, _)| reading.clone())
    }

    /// The tables' fill as last published.
    pub(crate) fn gauges(&self) -> Vec<Gauge> {
        self.figures.read(|(_, gauges)| gauges.clone())
    }

    /// When the packet thread last published; `None` before the first time.
    pub(crate) fn heartbeat(&self) -> Option<Instant> {
        Some(self.heartbeat_nanos.load(Relaxed)).filter(|nanos| *nanos != 0).map(Instant::from_nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_node::{LaneReading, Sent};
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
