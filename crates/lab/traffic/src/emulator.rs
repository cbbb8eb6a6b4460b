//! A link emulator: delay, a limited rate and what goes wrong on the way between two interfaces, in user space.
//!
//! For kernels without `sch_netem`. It costs a processor and has a ceiling, which a test of this crate measures: keep what
//! you send through it far below.

use std::{
    collections::BTreeMap,
    io,
    time::{Duration, Instant as Clock},
};

use fastrand::Rng;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sluicegate_datapath::raw::{Options, Socket};
use sluicegate_wire::Instant;

use sluicegate_site::{During, LabError, worker::Context};

/// Frames under way on one line; more are dropped.
const FRAMES_MAX: usize = 16_384;
const FRAME_LEN_MAX: usize = 1_514;
const MILLION: u32 = 1_000_000;

/// Frames moved from one interface before the other one is looked at.
const BATCH: usize = 64;
/// Longest wait; also how late the emulator notices that it should stop.
const WAIT_MAX: Duration = Duration::from_micros(500);

/// What one direction of an emulated link does to frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LineOptions {
    /// Time under way, microseconds.
    pub delay_us: u64,
    /// Bits a second, counted as Ethernet frames. 0: no limit.
    pub rate_bps: u64,
    /// How long a frame may wait for the link to be free, microseconds; those that would wait longer are dropped.
    pub queue_us: u64,
    /// Frames of a million that vanish.
    pub loss_ppm: u32,
    /// Frames of a million that arrive twice.
    pub duplicate_ppm: u32,
    /// Frames of a million, doubles included, that those behind them overtake.
    pub reorder_ppm: u32,
    /// How much longer such a frame is under way: the least and the most, microseconds.
    pub reorder_us: (u64, u64),
    /// Which frames all this happens to.
    pub seed: u64,
}

impl Default for LineOptions {
    fn default() -> Self {
        let (loss_ppm, duplicate_ppm, reorder_ppm, reorder_us) = (0, 0, 0, (2_000, 20_000));
        Self { delay_us: 0, rate_bps: 0, queue_us: 50_000, loss_ppm, duplicate_ppm, reorder_ppm, reorder_us, seed: 1 }
    }
}

/// What a line did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineCounters {
    /// Frames handed in.
    pub frames: u64,
    /// Frames dropped because too many were under way, too long, or the queue of the limited link was full.
    pub overflow: u64,
    /// Frames that vanished.
    pub lost: u64,
    /// Frames that were sent on twice.
    pub doubled: u64,
    /// Frames handed out after one that had come in behind them.
    pub overtaken: u64,
    /// Frames handed out.
    pub delivered: u64,
}

/// One direction of an emulated link. Knows neither clock nor socket.
#[derive(Debug)]
pub struct Line {
    options: LineOptions,
    /// The frames by when they arrive and, of those of one moment, in the order in which they came.
    under_way: BTreeMap<(Instant, u64), Vec<u8>>,
    /// Number of the frame that came last.
    forwarded: u64,
    /// Highest number of a frame that has arrived.
    arrived: u64,
    /// When the link of limited rate has sent all that waits.
    busy_until: Instant,
    chance: Rng,
    counters: LineCounters,
}

impl Line {
    /// A line without frames.
    #[must_use]
    pub fn new(options: LineOptions) -> Self {
        let (under_way, counters) = (BTreeMap::new(), LineCounters::default());
        let chance = Rng::with_seed(options.seed);
        Self { options, under_way, forwarded: 0, arrived: 0, busy_until: Instant::ZERO, chance, counters }
    }

    /// Takes in a frame.
    pub fn push(&mut self, now: Instant, frame: &[u8]) {
        self.counters.frames += 1;
        if self.happens(self.options.loss_ppm) {
            self.counters.lost += 1;
            return;
        }
        self.forward(now, frame);
        if self.happens(self.options.duplicate_ppm) {
            self.counters.doubled += 1;
            self.forward(now, frame);
        }
    }

    /// The next frame whose time has come.
    pub fn pop(&mut self, now: Instant) -> Option<Vec<u8>> {
        let next = self.under_way.first_entry().filter(|next| next.key().0 <= now)?;
        let ((_, number), frame) = next.remove_entry();
        self.counters.overtaken += u64::from(number < self.arrived);
        self.arrived = self.arrived.max(number);
        self.counters.delivered += 1;
        Some(frame)
    }

    /// When [`Line::pop`] will have something; `None` while nothing is under way.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.under_way.first_key_value().map(|((at, _), _)| *at)
    }

    /// What it did so far.
    #[must_use]
    pub const fn counters(&self) -> LineCounters {
        self.counters
    }

    fn forward(&mut self, now: Instant, frame: &[u8]) {
        let has_room = frame.len() <= FRAME_LEN_MAX && self.under_way.len() < FRAMES_MAX;
        let Some(sent) = self.sent_at(now, frame.len()).filter(|_| has_room) else {
            self.counters.overflow += 1;
            return;
        };
        self.busy_until = sent;
        let (least, most) = self.options.reorder_us;
        let longer_us =
            if self.happens(self.options.reorder_ppm) { self.chance.u64(least..=most.max(least)) } else { 0 };
        let arrives = sent + Duration::from_micros(self.options.delay_us + longer_us);
        self.forwarded += 1;
        self.under_way.insert((arrives, self.forwarded), frame.to_vec());
    }

    /// Whether something happens that happens to so many frames of a million.
    fn happens(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.chance.u32(..MILLION) < ppm
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
}

/// Specification of the worker `emulate`: a wire between two interfaces of its host, which must have no addresses.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmulateSpec {
    /// One interface.
    pub a: String,
    /// The other.
    pub b: String,
    /// What happens to frames from `a` to `b`.
    #[serde(default)]
    pub a_to_b: LineOptions,
    /// What happens to frames from `b` to `a`.
    #[serde(default)]
    pub b_to_a: LineOptions,
    /// How long to run.
    pub seconds: u32,
}

/// Runs the worker `emulate`: prints both directions' counters.
pub(crate) fn emulate(spec: &EmulateSpec, context: &Context) -> Result<(), LabError> {
    let end = Clock::now() + Duration::from_secs(spec.seconds.into());
    let [a_to_b, b_to_a] = run(spec, || context.ready(), || context.stopped() || Clock::now() >= end)
        .during(|| "emulating a link".to_owned())?;
    context.result(&json!({ "a_to_b": a_to_b, "b_to_a": b_to_a }));
    Ok(())
}

fn run(spec: &EmulateSpec, ready: impl FnOnce(), mut stopped: impl FnMut() -> bool) -> io::Result<[LineCounters; 2]> {
    // Every frame on the wire counts, whatever Ethernet address it is for.
    let options = Options { promiscuous: true, receive_slots: 16_384, ..Options::default() };
    let mut sockets = [Socket::open(&spec.a, &options)?, Socket::open(&spec.b, &options)?];
    let mut lines = [Line::new(spec.a_to_b), Line::new(spec.b_to_a)];
    ready();
    let clock = Clock::now();
    let mut turn = 0;
    while !stopped() {
        let mut moved = 0;
        for from in 0..2 {
            let now = Instant::ZERO + clock.elapsed();
            let line = &mut lines[from];
            moved += sockets[from].receive(BATCH, &mut |frame| line.push(now, frame.bytes));
            let frames: Vec<_> = std::iter::from_fn(|| line.pop(now)).take(BATCH).collect();
            moved += frames.len();
            sockets[1 - from].send(&frames)?;
        }
        if moved == 0 {
            // One socket at a time: the other one's frames wait a moment, and the line delays them anyway.
            turn = 1 - turn;
            let next = lines.iter().filter_map(Line::poll_timeout).min();
            let until = next.map_or(WAIT_MAX, |at| at.since(Instant::ZERO + clock.elapsed()).min(WAIT_MAX));
            sockets[turn].wait(until)?;
        }
    }
    Ok([lines[0].counters(), lines[1].counters()])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1_000)
    }

    #[test]
    fn a_constant_delay_is_exact_and_keeps_the_order() {
        let mut line = Line::new(LineOptions { delay_us: 2_500, ..LineOptions::default() });
        let mut out = Vec::new();
        for us in 0..20_000_u64 {
            if us % 100 == 0 && us < 10_000 {
                line.push(at(us), &us.to_be_bytes());
            }
            let arrived = std::iter::from_fn(|| line.pop(at(us)));
            out.extend(arrived.map(|frame| (u64::from_be_bytes(frame.try_into().unwrap()), us)));
        }
        assert_eq!(out, (0..100).map(|number| (number * 100, number * 100 + 2_500)).collect::<Vec<_>>());
        assert_eq!(line.poll_timeout(), None);
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
            times.extend(std::iter::from_fn(|| line.pop(at(us))).map(|_| us));
        }
        assert_eq!(times, [1_500, 2_500, 3_500]);
        line.push(at(10_000), &[0; 125]);
        assert_eq!(line.poll_timeout(), Some(at(11_500)));
    }

    #[test]
    fn frames_are_lost_doubled_and_overtaken_as_often_as_the_line_is_told_and_each_time_the_same_ones() {
        let options =
            LineOptions { loss_ppm: 10_000, duplicate_ppm: 20_000, reorder_ppm: 50_000, ..LineOptions::default() };
        let play = |options| {
            let (mut line, mut out) = (Line::new(options), Vec::new());
            for number in 0..10_000_u64 {
                line.push(at(number * 1_000), &number.to_be_bytes());
                out.extend(std::iter::from_fn(|| line.pop(at(number * 1_000))));
            }
            out.extend(std::iter::from_fn(|| line.pop(at(u64::MAX / 1_000))));
            (line.counters(), out)
        };
        let (did, out) = play(options);
        assert!((50..200).contains(&did.lost), "{did:?}");
        assert!((100..400).contains(&did.doubled), "{did:?}");
        assert!((250..1_000).contains(&did.overtaken), "{did:?}");
        assert_eq!(did.delivered, did.frames - did.lost + did.doubled);
        assert_eq!(out.len() as u64, did.delivered);
        assert_eq!(play(options), (did, out));
        let perfect = play(LineOptions::default()).0;
        assert_eq!((perfect.lost, perfect.doubled, perfect.overtaken), (0, 0, 0));
    }

    #[test]
    fn a_full_line_drops_and_counts() {
        let mut line = Line::new(LineOptions { delay_us: 1_000, ..LineOptions::default() });
        (0..FRAMES_MAX + 2).for_each(|_| line.push(Instant::ZERO, b"x"));
        line.push(Instant::ZERO, &[0; FRAME_LEN_MAX + 1]);
        assert_eq!(line.counters().overflow, 3);
        assert_eq!(line.poll_timeout(), Some(at(1_000)));
        while line.pop(at(1_000)).is_some() {}
        line.push(at(2_000), b"x");
        assert_eq!(line.counters().delivered, FRAMES_MAX as u64);
    }
}
