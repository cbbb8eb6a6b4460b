//! What the link scheduler costs a packet, beside what one random memory access costs on the same machine at the same
//! time. It measures and asserts nothing about time, so it runs only when asked for, in release mode:
//! `cargo test --release -p sluicegate-scheduler --test link_scheduler_cost -- --ignored --nocapture`.

use std::{
    hint::black_box,
    time::{Duration, Instant as Clock},
};

use sluicegate_scheduler::{Config, Label, LinkScheduler, Merge, Offered, QUEUES_MAX};
use sluicegate_wire::{Instant, capability::PathId};

const RUNS: usize = 5;
const PATHS: u64 = 180_000;

struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Sixteen million numbers in 64 MB, read in an order that no prefetcher guesses.
struct Memory(Vec<u32>);

impl Memory {
    fn new() -> Self {
        let mut numbers = Numbers(88_172_645_463_325_252);
        Self((0..16 << 20).map(|_| numbers.next() as u32).collect())
    }

    fn access_ns(&self) -> f64 {
        let start = Clock::now();
        let mut at = 1_u32;
        for n in 0..300_000 {
            at = self.0[(at.wrapping_add(n) & ((16 << 20) - 1)) as usize];
        }
        black_box(at);
        start.elapsed().as_nanos() as f64 / 300_000.0
    }
}

fn measure(memory: &Memory, name: &str, count: u64, mut step: impl FnMut()) {
    let (mut times, mut accesses) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        accesses.push(memory.access_ns());
        let start = Clock::now();
        for _ in 0..count {
            step();
        }
        times.push(start.elapsed().as_nanos() as f64 / count as f64);
    }
    let median = |values: &mut Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[RUNS / 2]
    };
    let (time, access) = (median(&mut times), median(&mut accesses));
    println!(
        "{name}: {time:.1} ns ({:.1} to {:.1}), {:.2} x a memory access of {access:.0} ns",
        times[0],
        times[RUNS - 1],
        time / access
    );
}

/// A link that is free again at every step of the clock, and has used up its burst.
fn busy_link(config: Config) -> LinkScheduler<u32> {
    let config = Config { rate_bps: 8_000_000_000_000, burst_bytes: 2_000, ..config };
    let mut link = LinkScheduler::new(&config, &[7; 16]);
    while let Offered::Pass(_) = link.offer(Instant::ZERO, &Label::LEGACY, 1_500, 0) {}
    link
}

/// One of 180,000 paths of five tags, each tag one of ten or so.
fn known_path(n: u64) -> [PathId; 5] {
    [n % 10, n / 10 % 20, n / 200 % 10, n / 2_000 % 10, n / 20_000 % 9].map(|tag| PathId(tag as u16 + 1))
}

/// A path that nobody has sent before, behind one of ten neighbours.
fn new_path(numbers: &mut Numbers) -> [PathId; 5] {
    let (first, bits) = (numbers.next() % 10, numbers.next());
    [first, bits & 0xfff0, bits >> 16 & 0xfff0, bits >> 32 & 0xfff0, bits >> 48].map(|tag| PathId(tag as u16 | 1))
}

/// All request queues in use, most of them five tags deep.
fn full_of_requests(merge: Merge) -> LinkScheduler<u32> {
    let mut link = busy_link(Config {
        packets_max: [64, 1_200_000, 64, 64],
        request_queues_max: QUEUES_MAX,
        merge,
        ..Config::for_rate(1_000_000_000)
    });
    let mut numbers = Numbers(1);
    while link.gauges()[1].used < 900_000 {
        let _ = link.offer(Instant::ZERO, &Label::request(known_path(numbers.next() % PATHS)), 100, 0);
    }
    while link.gauges()[4].used < u64::from(QUEUES_MAX) {
        let _ = link.offer(Instant::ZERO, &Label::request(new_path(&mut numbers)), 100, 0);
    }
    println!("{:?} by level {:?}", link.gauges()[4], link.request_queues_by_level());
    link
}

#[test]
#[ignore = "measures; run it alone, in release mode"]
fn what_a_packet_costs_the_scheduler() {
    let memory = Memory::new();
    let mut now = Instant::from_secs(1);
    let mut tick = move || {
        now = now + Duration::from_nanos(10);
        now
    };
    let mut idle =
        LinkScheduler::new(&Config { rate_bps: 8_000_000_000_000, ..Config::for_rate(1_000_000_000) }, &[7; 16]);
    measure(&memory, "offer to an idle link", 2_000_000, || {
        let _ = black_box(idle.offer(tick(), &Label::regular(1, 1), 64, 0));
    });
    let mut numbers = Numbers(1);
    for queues in [16_u64, 60_000] {
        let mut link = busy_link(Config {
            packets_max: [64, 64, 65_536, 64],
            sender_packets_max: 65_536,
            ..Config::for_rate(1_000_000_000)
        });
        for n in 0..65_000 {
            let _ = link.offer(Instant::ZERO, &Label::regular(u128::from(n % queues), 1), 1_000, 0);
        }
        measure(&memory, &format!("regular, {queues} queues: poll and offer"), 1_000_000, || {
            black_box(link.poll(tick()));
            let _ =
                black_box(link.offer(Instant::ZERO, &Label::regular(u128::from(numbers.next() % queues), 1), 64, 0));
        });
    }
    let mut link = full_of_requests(Merge::DeepestFirst);
    measure(&memory, "request, 200,000 queues, a path with a queue: poll and offer", 300_000, || {
        black_box(link.poll(tick()));
        let _ = black_box(link.offer(Instant::ZERO, &Label::request(known_path(numbers.next() % PATHS)), 100, 0));
    });
    for merge in [Merge::DeepestFirst, Merge::LargestExcess] {
        let mut link = full_of_requests(merge);
        measure(&memory, "request, 200,000 queues, every path new: offer, with merge", 30_000, || {
            let _ = black_box(link.offer(Instant::ZERO, &Label::request(new_path(&mut numbers)), 100, 0));
        });
        println!("... {:?} splits and merges; by level {:?}", link.splits_and_merges(), link.request_queues_by_level());
        measure(&memory, "request, 200,000 queues, every path new: poll and offer", 300_000, || {
            black_box(link.poll(tick()));
            let _ = black_box(link.offer(Instant::ZERO, &Label::request(new_path(&mut numbers)), 100, 0));
        });
        println!("... {:?} splits and merges; by level {:?}", link.splits_and_merges(), link.request_queues_by_level());
    }
}
