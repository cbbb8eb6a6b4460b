//! What a request flood leaves of the request lane, for whom (TVA III-B, OUR-1, OUR-2).

use std::time::Duration;

use sluicegate_scheduler::{Config, KnownPaths, Label, Lane, LinkScheduler, Merge, Offered, Weights};
use sluicegate_wire::{Instant, capability::PathId};

type Path = [PathId; 5];

const HONEST_BYTES: usize = 150;
const HONEST_REQUESTS: u32 = 1_200;

/// Numbers that look random and are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn tag(&mut self) -> u16 {
        (self.next() % 65_535) as u16 + 1
    }
}

fn path(tags: [u16; 5]) -> Path {
    tags.map(PathId)
}

/// The honest hosts of a neighbour: 60 paths through 12 domains.
fn honest_paths(neighbour: u16) -> Vec<Path> {
    (0..60).map(|n| path([neighbour, 1_000 + n % 12, 2_000 + n, 3_000 + n % 7, 0])).collect()
}

struct Outcome {
    honest: f64,
    third: f64,
    queues_max: u32,
}

/// Three neighbours behind a 100 Mbit/s link full of regular packets, so that requests have 5 Mbit/s. Neighbours 1 and 2
/// each send as many requests as the whole lane carries tenfold, every one with made-up tags behind its own. Honest
/// hosts behind neighbour 1 and, fewer than a third of the lane, behind neighbour 3 send requests meanwhile.
/// Returns the fraction of their requests that left within a second.
fn flood(config: &Config, known: KnownPaths) -> Outcome {
    const FLOOD: u32 = 0;
    let mut link = LinkScheduler::new(config, &[9; 16]);
    link.set_known_paths(known);
    let mut numbers = Numbers(1);
    let (behind_spoofer, behind_third) = (honest_paths(1), honest_paths(3));
    let step = Duration::from_micros(100);
    let mut now = Instant::ZERO;
    // Item: who sent it (0: nobody we care for, 1 or 3), and when.
    let mut left = [0_u32; 4];
    let mut sent = [0_u32; 4];
    let mut queues_max = 0;
    let mut note = |item: (u32, Instant), now: Instant| {
        left[item.0 as usize] += u32::from(now.since(item.1) <= Duration::from_secs(1));
    };
    let steps = 40_000;
    for n in 0..steps {
        now = now + step;
        for _ in 0..2 {
            offer(&mut link, &mut note, now, &Label::regular(1, 1), 1_000, FLOOD);
        }
        // 10 x 5 Mbit/s from each of two neighbours: 84 packets of 150 bytes a millisecond.
        for _ in 0..8 {
            let neighbour = (numbers.next() % 2) as u16 + 1;
            let made_up = path([neighbour, numbers.tag(), numbers.tag(), numbers.tag(), numbers.tag()]);
            offer(&mut link, &mut note, now, &Label::request(made_up), HONEST_BYTES, FLOOD);
        }
        if n >= 5_000 && n % 25 == 0 && sent[3] < HONEST_REQUESTS {
            for (who, paths) in [(1_u32, &behind_spoofer), (3, &behind_third)] {
                let from = paths[sent[who as usize] as usize % paths.len()];
                sent[who as usize] += 1;
                offer(&mut link, &mut note, now, &Label::request(from), HONEST_BYTES, who);
            }
        }
        while let Some(item) = link.poll(now) {
            note(item, now);
        }
        queues_max = queues_max.max(link.gauges()[4].used as u32);
    }
    assert_eq!(sent[3], HONEST_REQUESTS);
    let fraction = |who: usize| f64::from(left[who]) / f64::from(sent[who]);
    Outcome { honest: fraction(1), third: fraction(3), queues_max }
}

fn offer(
    link: &mut LinkScheduler<(u32, Instant)>,
    note: &mut impl FnMut((u32, Instant), Instant),
    now: Instant,
    label: &Label,
    bytes: usize,
    who: u32,
) {
    if let Offered::Pass(item) = link.offer(now, label, bytes, (who, now)) {
        note(item, now);
    }
}

#[test]
fn tva_15_two_spoofing_neighbours_of_three_do_not_reach_the_third() {
    let known = || KnownPaths::build(honest_paths(1).into_iter().chain(honest_paths(3)), 1_000).unwrap();
    for queues_max in [500, 5_000] {
        for (merge, weights) in [
            (Merge::DeepestFirst, Weights::Equal),
            (Merge::LargestExcess, Weights::Equal),
            (Merge::DeepestFirst, Weights::Known),
            (Merge::LargestExcess, Weights::Known),
        ] {
            let config = Config { request_queues_max: queues_max, merge, weights, ..Config::for_rate(100_000_000) };
            let config = Config { packets_max: [64, 2 * queues_max, 200, 64], ..config };
            let outcome = flood(&config, known());
            println!(
                "{merge:?}, weights {weights:?}, {queues_max} queues: third neighbour {:.4}, honest hosts behind a spoofing neighbour {:.4}, at most {} queues",
                outcome.third, outcome.honest, outcome.queues_max
            );
            assert!(outcome.third >= 0.99, "{merge:?} {weights:?}: {}", outcome.third);
            assert!(outcome.queues_max <= queues_max);
        }
    }
}

#[test]
fn a_request_flood_leaves_the_regular_lane_its_link() {
    let mut link = LinkScheduler::new(&Config::for_rate(100_000_000), &[9; 16]);
    let mut numbers = Numbers(2);
    let mut now = Instant::ZERO;
    for n in 0..20_000_u32 {
        now = now + Duration::from_micros(100);
        for _ in 0..20 {
            let made_up = path([numbers.tag(), numbers.tag(), numbers.tag(), numbers.tag(), numbers.tag()]);
            let _ = link.offer(now, &Label::request(made_up), 150, n);
        }
        for _ in 0..2 {
            let _ = link.offer(now, &Label::regular(1, 1), 1_000, n);
        }
        while link.poll(now).is_some() {}
    }
    let share = link.counters(Lane::Request).sent_bytes as f64 / (link.counters(Lane::Regular).sent_bytes as f64);
    assert!((0.05..0.054).contains(&share), "{share}: 5 of 95 parts and the burst");
}
