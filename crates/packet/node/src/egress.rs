//! One port's way out when its link is scheduled: frames wait in a fixed pool until the scheduler lets them go.

use crate::readings::{LANES, LaneReading};
use sluicegate_bounded::{Buffer, Gauge, Pool};
use sluicegate_scheduler::{Config, KnownPaths, Label, Lane, LinkScheduler, Offered};
use sluicegate_wire::{Instant, Port, Reason, ethernet};

/// What became of an offered frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Departure {
    /// The link is free: send it now.
    Now,
    /// It waits here.
    Waits,
    /// There was no room for it.
    Refused(Reason),
}

/// A scheduled link.
pub struct Egress {
    scheduler: LinkScheduler<Buffer>,
    pool: Pool,
}

impl Egress {
    /// A link on which no frame is longer than `frame_len_max` bytes.
    pub fn new(config: &Config, known: KnownPaths, frame_len_max: usize, hash_key: &[u8; 16]) -> Self {
        let mut scheduler = LinkScheduler::new(config, hash_key);
        scheduler.set_known_paths(known);
        // One more than may wait: the frame that makes another give pipeline.
        let pool = Pool::new("waiting_frames", scheduler.packets_max() + 1, frame_len_max);
        Self { scheduler, pool }
    }

    /// Decides about a frame, link header on. One that had to give pipeline, be it this one, is shown to `displaced`.
    pub(crate) fn offer(
        &mut self,
        now: Instant,
        label: &Label,
        frame: &[u8],
        displaced: &mut dyn FnMut(Reason, &[u8]),
    ) -> Departure {
        let len = frame.len().saturating_sub(ethernet::HEADER_LEN);
        if frame.len() > self.pool.packet_bytes_max() {
            return Departure::Refused(Reason::PacketTooBig);
        }
        if self.scheduler.pass(now, label.lane, len) {
            return Departure::Now;
        }
        let Some(slot) = self.pool.store(frame) else { return Departure::Refused(label.lane.reason()) };
        match self.scheduler.offer(now, label, len, slot) {
            Offered::Pass(slot) => {
                self.pool.free(slot);
                Departure::Now
            }
            Offered::Queued => Departure::Waits,
            Offered::Displaced(other, reason) => {
                displaced(reason, self.pool.bytes(&other));
                self.pool.free(other);
                Departure::Waits
            }
            Offered::Refused(slot, reason) => {
                self.pool.free(slot);
                Departure::Refused(reason)
            }
        }
    }

    /// Hands the next frame whose turn it is to `send`; `false` if there is none.
    pub(crate) fn poll(&mut self, now: Instant, send: impl FnOnce(&[u8])) -> bool {
        let Some(slot) = self.scheduler.poll(now) else { return false };
        send(self.pool.bytes(&slot));
        self.pool.free(slot);
        true
    }

    /// When [`Self::poll`] has a frame.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.scheduler.poll_timeout()
    }

    /// What happened in each lane.
    pub(crate) fn lanes(&self) -> [LaneReading; LANES.len()] {
        let waiting = self.scheduler.gauges().map(|gauge| gauge.used);
        let mut lanes = [LaneReading::default(); LANES.len()];
        for (reading, (lane, waiting)) in lanes.iter_mut().zip(Lane::ALL.into_iter().zip(waiting)) {
            let counters = self.scheduler.counters(lane);
            *reading = LaneReading {
                packets: counters.sent,
                bytes: counters.sent_bytes,
                dropped: counters.displaced + counters.refused,
                waiting,
            };
        }
        lanes
    }

    /// Fill of its tables, under the names of its port.
    pub(crate) fn gauges(&self, port: Port) -> impl Iterator<Item = Gauge> {
        let named = self.scheduler.gauges().into_iter().zip(OUTSIDE_GAUGES);
        named.map(move |(gauge, outside)| Gauge {
            name: if port == Port::INSIDE { gauge.name } else { outside },
            ..gauge
        })
    }
}

/// The scheduler's tables, when it is that of the outside port.
const OUTSIDE_GAUGES: [&str; 6] = [
    "outside_control_packets",
    "outside_request_packets",
    "outside_regular_packets",
    "outside_legacy_packets",
    "outside_request_queues",
    "outside_regular_queues",
];

#[cfg(test)]
mod tests {
    use std::{vec, vec::Vec};

    use sluicegate_bounded::Bounded;

    use super::*;
    use core::time::Duration;

    const START: Instant = Instant::from_secs(1);

    fn egress() -> Egress {
        Egress::new(&Config::for_rate(8_000_000), KnownPaths::default(), 1_600, &[7; 16])
    }

    fn frame(number: u32) -> Vec<u8> {
        let mut bytes = vec![0; 1_014];
        bytes[14..18].copy_from_slice(&number.to_be_bytes());
        bytes
    }

    #[test]
    fn frames_that_wait_leave_whole_in_order_and_at_the_rate_of_the_link() {
        let mut egress = egress();
        let mut none = |_: Reason, _: &[u8]| panic!("nothing gives way");
        let mut passed = 0;
        while egress.offer(START, &Label::regular(1, 1), &frame(passed), &mut none) == Departure::Now {
            passed += 1;
        }
        assert!((1..=3).contains(&passed), "2 ms of burst: {passed}");
        for number in passed + 1..40 {
            assert_eq!(egress.offer(START, &Label::regular(1, 1), &frame(number), &mut none), Departure::Waits);
        }
        assert!(!egress.poll(START, |_| ()));
        let mut now = START;
        for number in passed..40 {
            now = now.max(egress.poll_timeout().unwrap());
            assert!(egress.poll(now, |bytes| assert_eq!(bytes, frame(number))));
        }
        assert!(!egress.poll(now, |_| ()));
        assert_eq!(egress.poll_timeout(), None);
        // 1,000 bytes and the framing take 1,038 us each.
        let expected = Duration::from_micros(1_038) * (40 - passed);
        assert!(now.since(START).abs_diff(expected) < Duration::from_millis(3), "{:?}", now.since(START));
        let [.., regular, legacy] = egress.lanes();
        assert_eq!((regular.packets, regular.bytes, regular.dropped, regular.waiting), (40, 40 * 1_038, 0, 0));
        assert_eq!(legacy, LaneReading::default());
    }

    #[test]
    fn a_full_lane_refuses_and_every_slot_comes_back() {
        let mut egress = egress();
        let mut given_way = 0;
        let mut refused = 0;
        for number in 0..5_000 {
            for label in [Label::LEGACY, Label::CONTROL, Label::regular(number.into(), 1)] {
                match egress.offer(START, &label, &frame(number), &mut |_, _| given_way += 1) {
                    Departure::Refused(reason) => {
                        assert_eq!(reason, label.lane.reason());
                        refused += 1;
                    }
                    Departure::Now | Departure::Waits => {}
                }
            }
        }
        let lanes = egress.lanes();
        assert!(refused > 0 && lanes.iter().map(|lane| lane.dropped).sum::<u64>() == refused + given_way);
        let mut now = START;
        while let Some(due) = egress.poll_timeout() {
            now = now.max(due);
            assert!(egress.poll(now, |_| ()));
        }
        assert_eq!(egress.pool.used(), 0);
    }

    #[test]
    fn a_frame_longer_than_a_slot_is_refused() {
        let mut egress = egress();
        let turn = egress.offer(START, &Label::LEGACY, &[0; 1_601], &mut |_, _| {});
        assert_eq!(turn, Departure::Refused(Reason::PacketTooBig));
    }
}
