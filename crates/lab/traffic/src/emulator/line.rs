use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use serde::{Deserialize, Serialize};
use sluicegate_wire::Instant;

use sluicegate_site::clock::Random;

/// Frames under way on one line, unless its options say otherwise.
const FRAMES_MAX_DEFAULT: usize = 16_384;
const FRAME_LEN_MAX: usize = 1_514;
const MILLION: u64 = 1_000_000;

/// What one direction of an emulated link does to frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LineOptions {
    /// Time under way, microseconds.
    pub delay_us: u64,
    /// Up to this much more, drawn for each frame, microseconds.
    pub jitter_us: u64,
    /// Whether a frame may overtake another because of jitter.
    pub reorder: bool,
    /// Frames lost of a million.
    pub loss_ppm: u32,
    /// Mean length of a run of losses; 0 and 1: each frame is lost or not for itself.
    pub loss_run: u32,
    /// Frames under way at most; more are dropped. 0: 16,384.
    pub frames_max: usize,
    /// Bits a second, counted as Ethernet frames. 0: no limit.
    pub rate_bps: u64,
    /// How long a frame may wait for the link to be free, microseconds; those that would wait longer are dropped.
    pub queue_us: u64,
    /// Seed of everything random.
    pub seed: u64,
}

impl Default for LineOptions {
    fn default() -> Self {
        Self {
            delay_us: 0,
            jitter_us: 0,
            reorder: false,
            loss_ppm: 0,
            loss_run: 0,
            frames_max: 0,
            rate_bps: 0,
            queue_us: 50_000,
            seed: 1,
        }
    }
}

/// What a line did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineCounters {
    /// Frames handed in.
    pub frames: u64,
    /// Frames lost on purpose.
    pub lost: u64,
    /// Frames dropped because too many were under way, too long, or the queue of the limited link was full.
    pub overflow: u64,
    /// Frames handed out.
    pub delivered: u64,
}

/// One direction of an emulated link. Knows neither clock nor socket; allocates at construction only.
#[derive(Debug)]
pub struct Line {
    options: LineOptions,
    random: Random,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// (when, serial number, slot): earliest first, and in the order of arrival among equals.
    under_way: BinaryHeap<Reverse<(Instant, u64, u32)>>,
    serial: u64,
    latest: Instant,
    /// When the link of limited rate has sent all that waits.
    busy_until: Instant,
    losing: bool,
    counters: LineCounters,
}

#[derive(Debug)]
struct Slot {
    len: usize,
    bytes: [u8; FRAME_LEN_MAX],
}

impl Line {
    /// A line without frames.
    #[must_use]
    pub fn new(options: LineOptions) -> Self {
        let frames_max = match options.frames_max {
            0 => FRAMES_MAX_DEFAULT,
            frames => frames.min(1 << 20),
        };
        let slots: Vec<_> = (0..frames_max).map(|_| Slot { len: 0, bytes: [0; FRAME_LEN_MAX] }).collect();
        Self {
            options,
            random: Random::new(options.seed),
            free: (0..u32::try_from(frames_max).unwrap_or(0)).rev().collect(),
            under_way: BinaryHeap::with_capacity(frames_max),
            slots,
            serial: 0,
            latest: Instant::ZERO,
            busy_until: Instant::ZERO,
            losing: false,
            counters: LineCounters::default(),
        }
    }

    /// Takes in a frame, or loses it.
    pub fn push(&mut self, now: Instant, frame: &[u8]) {
        self.counters.frames += 1;
        if self.loses() {
            self.counters.lost += 1;
            return;
        }
        let sent = self.sent_at(now, frame.len());
        let slot = if frame.len() > FRAME_LEN_MAX || sent.is_none() { None } else { self.free.pop() };
        let (Some(slot), Some(sent)) = (slot, sent) else {
            self.counters.overflow += 1;
            return;
        };
        self.busy_until = sent;
        let jitter_us = self.random.below(self.options.jitter_us.saturating_add(1));
        let mut at = sent + Duration::from_micros(self.options.delay_us + jitter_us);
        if !self.options.reorder {
            at = at.max(self.latest);
        }
        self.latest = at;
        self.serial += 1;
        let place = &mut self.slots[slot as usize];
        place.len = frame.len();
        place.bytes[..frame.len()].copy_from_slice(frame);
        self.under_way.push(Reverse((at, self.serial, slot)));
    }

    /// Hands the next frame whose time has come to `take`; `false` if there is none.
    pub fn pop(&mut self, now: Instant, take: impl FnOnce(&[u8])) -> bool {
        let Some(Reverse((at, _, slot))) = self.under_way.peek().copied() else { return false };
        if at > now {
            return false;
        }
        self.under_way.pop();
        let place = &self.slots[slot as usize];
        take(&place.bytes[..place.len]);
        self.free.push(slot);
        self.counters.delivered += 1;
        true
    }

    /// When [`Line::pop`] will have something; `None` while nothing is under way.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.under_way.peek().map(|Reverse((at, ..))| *at)
    }

    /// What it did so far.
    #[must_use]
    pub const fn counters(&self) -> LineCounters {
        self.counters
    }

    /// Frames under way and the most that there may be.
    #[must_use]
    pub fn gauge(&self) -> (usize, usize) {
        (self.under_way.len(), self.slots.len())
    }

    /// When the last bit of a frame that comes now leaves the link; `None` if it would wait too long.
    fn sent_at(&self, now: Instant, len: usize) -> Option<Instant> {
        if self.options.rate_bps == 0 {
            return Some(now);
        }
        let starts = self.busy_until.max(now);
        let takes_ns = len as u64 * 8 * 1_000_000_000 / self.options.rate_bps;
        let waits = starts.since(now);
        (waits <= Duration::from_micros(self.options.queue_us)).then(|| starts + Duration::from_nanos(takes_ns))
    }

    /// A two-state chain (Gilbert): losses come in runs of mean length `loss_run` and make up `loss_ppm` in all.
    fn loses(&mut self) -> bool {
        let loss = u64::from(self.options.loss_ppm).min(MILLION);
        let run = u64::from(self.options.loss_run.max(1));
        if loss == 0 || loss == MILLION {
            return loss > 0;
        }
        let drawn = self.random.below(MILLION * run);
        // From good to bad with probability loss / ((1 - loss) * run), back with 1 / run. With run 1 this must not be a
        // chain but independent losses.
        self.losing = if run == 1 {
            drawn < loss
        } else if self.losing {
            drawn >= MILLION
        } else {
            drawn < loss * MILLION / (MILLION - loss)
        };
        self.losing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1_000)
    }

    /// Sends `frames` frames 100 us apart and returns (number, time) of those that come out.
    fn through(options: LineOptions, frames: u32) -> Vec<(u32, u64)> {
        let mut line = Line::new(options);
        let mut out = Vec::new();
        for us in 0..u64::from(frames) * 100 + 1_000_000 {
            if us % 100 == 0 && us / 100 < frames.into() {
                line.push(at(us), &u32::try_from(us / 100).unwrap().to_be_bytes());
            }
            while line.pop(at(us), |frame| out.push((u32::from_be_bytes(frame.try_into().unwrap()), us))) {}
        }
        assert_eq!(line.gauge().0, 0);
        out
    }

    #[test]
    fn a_constant_delay_is_exact_and_keeps_the_order() {
        let out = through(LineOptions { delay_us: 2_500, ..LineOptions::default() }, 100);
        assert_eq!(out.len(), 100);
        assert!(out.iter().all(|(number, us)| *us == u64::from(*number) * 100 + 2_500));
    }

    #[test]
    fn jitter_reorders_only_if_it_may() {
        let options = LineOptions { delay_us: 1_000, jitter_us: 500, ..LineOptions::default() };
        let ordered = through(options, 1_000);
        assert!(ordered.is_sorted());
        let mixed = through(LineOptions { reorder: true, ..options }, 1_000);
        assert_eq!(mixed.len(), 1_000);
        assert!(!mixed.iter().map(|(number, _)| number).is_sorted());
        assert!(mixed.iter().all(|(number, us)| (1_000..=1_500).contains(&(us - u64::from(*number) * 100))));
    }

    #[test]
    fn losses_have_their_share_and_their_mean_run() {
        for run in [1, 5] {
            let options = LineOptions { loss_ppm: 200_000, loss_run: run, seed: 3, ..LineOptions::default() };
            let mut line = Line::new(options);
            let lost: Vec<bool> = (0..100_000)
                .map(|_| {
                    let before = line.counters().lost;
                    line.push(Instant::ZERO, b"x");
                    line.pop(Instant::ZERO, |_| ());
                    line.counters().lost > before
                })
                .collect();
            let count = lost.iter().filter(|lost| **lost).count();
            assert!((18_000..22_000).contains(&count), "{count}");
            let runs = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count();
            let mean = count / runs;
            assert!((1..=2).contains(&mean) == (run == 1) && mean <= 6, "runs of {mean}");
        }
    }

    #[test]
    fn the_same_seed_loses_the_same_frames() {
        let options =
            LineOptions { loss_ppm: 500_000, jitter_us: 300, reorder: true, seed: 9, ..LineOptions::default() };
        assert_eq!(through(options, 200), through(options, 200));
        assert_ne!(through(options, 200), through(LineOptions { seed: 10, ..options }, 200));
    }

    #[test]
    fn a_limited_link_sends_one_frame_after_the_other_and_drops_what_would_wait_too_long() {
        // 125 bytes at 1 Mbit/s take 1 ms; 2 ms of waiting are room for three frames at once.
        let options = LineOptions { rate_bps: 1_000_000, queue_us: 2_000, delay_us: 500, ..LineOptions::default() };
        let mut line = Line::new(options);
        (0..5).for_each(|_| line.push(Instant::ZERO, &[0; 125]));
        assert_eq!(line.counters().overflow, 2);
        let mut times = Vec::new();
        for us in 0..10_000 {
            while line.pop(at(us), |_| times.push(us)) {}
        }
        assert_eq!(times, [1_500, 2_500, 3_500]);
        line.push(at(10_000), &[0; 125]);
        assert_eq!(line.poll_timeout(), Some(at(11_500)));
    }

    #[test]
    fn a_full_line_drops_and_counts() {
        let mut line = Line::new(LineOptions { delay_us: 1_000, frames_max: 4, ..LineOptions::default() });
        (0..6).for_each(|_| line.push(Instant::ZERO, b"x"));
        line.push(Instant::ZERO, &[0; FRAME_LEN_MAX + 1]);
        assert_eq!((line.gauge(), line.counters().overflow), ((4, 4), 3));
        assert_eq!(line.poll_timeout(), Some(at(1_000)));
        while line.pop(at(1_000), |_| ()) {}
        line.push(at(2_000), b"x");
        assert_eq!((line.gauge(), line.counters().delivered), ((1, 4), 4));
    }
}
