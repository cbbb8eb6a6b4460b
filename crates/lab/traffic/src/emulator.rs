//! A link emulator: delay and a limited rate between two interfaces, in user space.
//!
//! For kernels without `sch_netem`. It costs a processor and has a ceiling, which a test of this crate measures: keep what
//! you send through it far below.

use std::{
    collections::VecDeque,
    io,
    time::{Duration, Instant as Clock},
};

use serde::{Deserialize, Serialize};
use serde_json::json;
use sluicegate_datapath::raw::{Options, Socket};
use sluicegate_wire::Instant;

use sluicegate_site::{During, LabError, worker::Context};

/// Frames under way on one line; more are dropped.
const FRAMES_MAX: usize = 16_384;
const FRAME_LEN_MAX: usize = 1_514;

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
}

impl Default for LineOptions {
    fn default() -> Self {
        Self { delay_us: 0, rate_bps: 0, queue_us: 50_000 }
    }
}

/// What a line did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineCounters {
    /// Frames handed in.
    pub frames: u64,
    /// Frames dropped because too many were under way, too long, or the queue of the limited link was full.
    pub overflow: u64,
    /// Frames handed out.
    pub delivered: u64,
}

/// One direction of an emulated link. Knows neither clock nor socket.
#[derive(Debug)]
pub struct Line {
    options: LineOptions,
    /// When each frame arrives. All take the same time, so they arrive in the order in which they came.
    under_way: VecDeque<(Instant, Vec<u8>)>,
    /// When the link of limited rate has sent all that waits.
    busy_until: Instant,
    counters: LineCounters,
}

impl Line {
    /// A line without frames.
    #[must_use]
    pub fn new(options: LineOptions) -> Self {
        let (under_way, counters) = (VecDeque::new(), LineCounters::default());
        Self { options, under_way, busy_until: Instant::ZERO, counters }
    }

    /// Takes in a frame.
    pub fn push(&mut self, now: Instant, frame: &[u8]) {
        self.counters.frames += 1;
        let has_room = frame.len() <= FRAME_LEN_MAX && self.under_way.len() < FRAMES_MAX;
        let Some(sent) = self.sent_at(now, frame.len()).filter(|_| has_room) else {
            self.counters.overflow += 1;
            return;
        };
        self.busy_until = sent;
        self.under_way.push_back((sent + Duration::from_micros(self.options.delay_us), frame.to_vec()));
    }

    /// The next frame whose time has come.
    pub fn pop(&mut self, now: Instant) -> Option<Vec<u8>> {
        let (_, frame) = self.under_way.pop_front_if(|(at, _)| *at <= now)?;
        self.counters.delivered += 1;
        Some(frame)
    }

    /// When [`Line::pop`] will have something; `None` while nothing is under way.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.under_way.front().map(|(at, _)| *at)
    }

    /// What it did so far.
    #[must_use]
    pub const fn counters(&self) -> LineCounters {
        self.counters
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
        let options = LineOptions { rate_bps: 1_000_000, queue_us: 2_000, delay_us: 500 };
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
