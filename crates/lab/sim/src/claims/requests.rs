//! The request lane: its share of a busy link, and its queues.

use std::time::Duration;

use sluicegate_scheduler::{Config, DEPTH_MAX, Label, LinkScheduler, Offered};
use sluicegate_wire::{Instant, capability::PathId};

use super::{Claim, Level, Outcome, Paper, Setting};
use crate::Rng;

/// A request as TVA III-B counts it, and the transfer that it opens, in bytes.
const REQUEST_BYTES: u64 = 250;
const TRANSFER_BYTES: u64 = 10_000;
const RATE_BPS: u64 = 100_000_000;
const REGULAR_BYTES: usize = 1_000;

pub(super) const TVA_14: Claim = Claim {
    id: "TVA-14",
    paper: Paper::Tva,
    source: "III-B, IV-C",
    expected: "requests get at most 5 % of a busy link in every window, and that much; 250 B for 10 KB are 2.5 %",
    tolerance: "exact, above the share's burst and one packet",
    level: Level::Exact,
    run: share_of_requests,
};

pub(super) const TVA_15: Claim = Claim {
    id: "TVA-15",
    paper: Paper::Tva,
    source: "III-B",
    expected: "request queues <= limit whatever the tags; near domains keep queues of their own while far ones merge",
    tolerance: "exact; all requests of honest neighbours pass",
    level: Level::Exact,
    run: queues_of_requests,
};

/// Keeps requests and regular packets waiting all the time and looks at what leaves when.
fn share_of_requests(setting: &Setting) -> Outcome {
    let config = Config { overhead_bytes: 0, ..Config::for_rate(RATE_BPS) };
    let mut link = LinkScheduler::new(&config, &Rng::new(setting.seed).key());
    let mut rng = Rng::of(setting.seed, 14);
    let end = Instant::from_secs(if setting.short { 2 } else { 20 });
    let share_bps = u128::from(RATE_BPS) * u128::from(config.request_permille) / 1_000;
    let mut excess = Excess::new(share_bps);
    let (mut now, mut sent_bytes) = (Instant::ZERO, 0_u64);
    while now < end {
        for destination in 0..8 {
            let _ = link.offer(now, &Label::regular(destination, 1), REGULAR_BYTES, REGULAR_BYTES);
        }
        for _ in 0..8 {
            let mut path = [PathId::NONE; DEPTH_MAX];
            path[0] = PathId(1 + rng.below(50) as u16);
            let len = 64 + rng.below(REQUEST_BYTES * 2 - 64) as usize;
            // Below the sizes of regular packets, so that what leaves tells its lane.
            let _ = link.offer(now, &Label::request(path), len, len);
        }
        while let Some(len) = link.poll(now) {
            sent_bytes += len as u64;
            if len != REGULAR_BYTES {
                excess.note(now, len as u64);
            }
        }
        now = link.poll_timeout().unwrap_or(now).max(now + Duration::from_nanos(1));
    }
    let allowed = u64::from(config.share_burst_bytes) + u64::from(config.packet_bytes_max);
    let part = excess.bytes as f64 / sent_bytes as f64;
    let busy = sent_bytes as f64 / (RATE_BPS as f64 / 8.0 * end.as_nanos() as f64 / 1e9);
    let fits = REQUEST_BYTES * 1_000 / TRANSFER_BYTES == 25;
    Outcome::new(
        excess.most_bytes() <= allowed && part > 0.049 && busy > 0.99 && fits,
        format!(
            "{:.2} % of a link that is {:.1} % busy; no window above its 5 % by more than {} B (burst: {allowed} B)",
            part * 100.0,
            busy * 100.0,
            excess.most_bytes()
        ),
    )
}

/// By how much the bytes of any window exceed the share's part of it.
struct Excess {
    share_bps: u128,
    bytes: u64,
    /// The least of "bytes so far less the share's part so far", in bit-nanoseconds.
    lowest: i128,
    most: i128,
}

impl Excess {
    const fn new(share_bps: u128) -> Self {
        Self { share_bps, bytes: 0, lowest: i128::MAX, most: 0 }
    }

    fn note(&mut self, now: Instant, len: u64) {
        const SCALE: i128 = 8_000_000_000;
        let due = (self.share_bps * u128::from(now.as_nanos())) as i128;
        // The window that starts right before this packet.
        self.lowest = self.lowest.min(i128::from(self.bytes) * SCALE - due);
        self.bytes += len;
        self.most = self.most.max(i128::from(self.bytes) * SCALE - due - self.lowest);
    }

    const fn most_bytes(&self) -> u64 {
        (self.most / 8_000_000_000) as u64
    }
}

const QUEUES_MAX: u32 = 200;
const NEIGHBOURS: u16 = 10;

/// Neighbour 1 floods with made-up paths, the other nine send little; then all tags are made up.
fn queues_of_requests(setting: &Setting) -> Outcome {
    let config = Config { overhead_bytes: 0, request_queues_max: QUEUES_MAX, ..Config::for_rate(10_000_000) };
    let mut link = LinkScheduler::new(&config, &Rng::new(setting.seed).key());
    let mut rng = Rng::of(setting.seed, 15);
    let seconds = if setting.short { 5 } else { 60 };
    let mut crowd = Crowd::default();
    let step = Duration::from_millis(1);
    let mut now = Instant::ZERO;
    for tick in 0..seconds * 1_000 {
        // The regular lane wants the link, too: requests get no more than their share.
        for _ in 0..2 {
            let _ = link.offer(now, &Label::regular(1, 1), REGULAR_BYTES, 0);
        }
        for _ in 0..20 {
            crowd.note(link.offer(now, &Label::request(forged(1, &mut rng)), 128, 1));
        }
        // 25 requests a second each: half of what a tenth of the lane carries.
        if tick % 40 == 0 {
            for neighbour in 2..=NEIGHBOURS {
                let mut path = [PathId::NONE; DEPTH_MAX];
                path[0] = PathId(neighbour);
                path[1] = PathId(neighbour * 100);
                crowd.honest += 1;
                crowd.note(link.offer(now, &Label::request(path), 128, u32::from(neighbour)));
            }
        }
        crowd.look(&link);
        now = now + step;
        while let Some(who) = link.poll(now) {
            crowd.passed += u64::from(who > 1);
        }
    }
    let near = link.request_queues_by_level();
    let honest_lost = crowd.lost;
    for _ in 0..50_000 {
        let neighbour = rng.bits() as u16;
        crowd.note(link.offer(now, &Label::request(forged(neighbour, &mut rng)), 128, 1));
        crowd.look(&link);
    }
    let (_, merges) = link.splits_and_merges();
    Outcome::new(
        crowd.queues_most <= QUEUES_MAX && merges > 0 && honest_lost == 0 && crowd.passed > 0 && near[1] > 0,
        format!(
            "at most {} of {QUEUES_MAX} queues with {merges} merged; {} requests of nine honest neighbours, {honest_lost} \
             lost; queues by level, nearest first: {near:?}",
            crowd.queues_most, crowd.honest
        ),
    )
}

/// A path whose nearest tag is true and whose others are made up.
fn forged(neighbour: u16, rng: &mut Rng) -> [PathId; DEPTH_MAX] {
    let mut path = [PathId(neighbour); DEPTH_MAX];
    for tag in &mut path[1..] {
        *tag = PathId(rng.bits() as u16 | 1);
    }
    path
}

/// What came of the requests.
#[derive(Default)]
struct Crowd {
    queues_most: u32,
    honest: u64,
    passed: u64,
    lost: u64,
}

impl Crowd {
    /// Notes what came of one more request, and of one that it displaced; only those of honest neighbours count.
    fn note(&mut self, offered: Offered<u32>) {
        match offered {
            Offered::Pass(who) => self.passed += u64::from(who > 1),
            Offered::Refused(who, _) | Offered::Displaced(who, _) => self.lost += u64::from(who > 1),
            Offered::Queued => {}
        }
    }

    fn look(&mut self, link: &LinkScheduler<u32>) {
        let [.., queues, _] = link.gauges();
        self.queues_most = self.queues_most.max(queues.used as u32);
    }
}
