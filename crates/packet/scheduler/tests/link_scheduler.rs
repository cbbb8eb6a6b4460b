//! The link scheduler's promises, on a virtual link: shares, fairness, work conservation, and every packet accounted
//! for.

use std::{collections::HashSet, time::Duration};

use proptest::prelude::*;
use sluicegate_scheduler::{Config, Label, Lane, LinkScheduler, Offered};
use sluicegate_wire::{Instant, Reason, capability::PathId};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Packet {
    id: u32,
    lane: Lane,
    source: u32,
    bytes: u32,
}

#[derive(Debug, Clone, Copy)]
struct Departure {
    at: Instant,
    packet: Packet,
    /// Packets of other lanes waited while this one left.
    others_wait: bool,
}

/// A link that is polled when it asks to be, and everything that left over it.
struct Link {
    scheduler: LinkScheduler<Packet>,
    now: Instant,
    waiting: HashSet<Packet>,
    departures: Vec<Departure>,
    dropped: Vec<Packet>,
    next_id: u32,
}

impl Link {
    fn new(config: &Config) -> Self {
        Self {
            scheduler: LinkScheduler::new(config, &[7; 16]),
            now: Instant::from_secs(1),
            waiting: HashSet::new(),
            departures: Vec::new(),
            dropped: Vec::new(),
            next_id: 0,
        }
    }

    fn offer(&mut self, label: &Label, source: u32, bytes: u32) {
        let packet = Packet { id: self.next_id, lane: label.lane, source, bytes };
        self.next_id += 1;
        match self.scheduler.offer(self.now, label, bytes as usize, packet) {
            Offered::Pass(same) => {
                assert!(same == packet && self.waiting.is_empty(), "only an idle link passes");
                self.depart(packet);
            }
            Offered::Queued => assert!(self.waiting.insert(packet)),
            Offered::Displaced(other, reason) => {
                assert!(self.waiting.remove(&other), "a displaced packet waited");
                assert_eq!(reason, other.lane.reason());
                self.dropped.push(other);
                assert!(self.waiting.insert(packet));
            }
            Offered::Refused(same, reason) => {
                assert!(same == packet && reason == packet.lane.reason());
                self.dropped.push(packet);
            }
        }
    }

    fn depart(&mut self, packet: Packet) {
        let others_wait = self.waiting.iter().any(|other| other.lane != packet.lane);
        self.departures.push(Departure { at: self.now, packet, others_wait });
    }

    /// Sends what the link can send until `until`.
    fn run_until(&mut self, until: Instant) {
        while let Some(at) = self.scheduler.poll_timeout().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            let packet = self.scheduler.poll(self.now).expect("a packet when the scheduler said so");
            assert!(self.waiting.contains(&packet), "{packet:?} waited");
            self.depart(packet);
            self.waiting.remove(&packet);
        }
        self.now = self.now.max(until);
        assert_eq!(self.scheduler.is_idle(), self.waiting.is_empty());
    }

    fn run_for(&mut self, micros: u64) {
        self.run_until(self.now + Duration::from_micros(micros));
    }

    fn sent_bytes(&self, wanted: impl Fn(&Packet) -> bool) -> u64 {
        self.departures.iter().filter(|left| wanted(&left.packet)).map(|left| u64::from(left.packet.bytes)).sum()
    }

    fn sent(&self, wanted: impl Fn(&Packet) -> bool) -> usize {
        self.departures.iter().filter(|left| wanted(&left.packet)).count()
    }
}

/// 8 Mbit/s: a byte a microsecond.
fn one_byte_a_microsecond() -> Config {
    Config { overhead_bytes: 0, ..Config::for_rate(8_000_000) }
}

fn request(tags: &[u16]) -> Label {
    let mut path = [PathId::NONE; 5];
    for (slot, tag) in path.iter_mut().zip(tags) {
        *slot = PathId(*tag);
    }
    Label::request(path)
}

fn label(lane: Lane, source: u32) -> Label {
    match lane {
        Lane::Control => Label::CONTROL,
        Lane::Request => request(&[source as u16 + 1, 7, 8]),
        Lane::Regular => Label::regular(u128::from(source), 1),
        Lane::Legacy => Label::LEGACY,
    }
}

/// The most bytes of `lane` beyond its rate in any window: with others waiting throughout, or in all.
fn worst_excess(departures: &[Departure], bytes_per_s: u64, counts: impl Fn(&Departure) -> bool) -> f64 {
    let (mut excess, mut worst, mut before) = (0.0_f64, 0.0_f64, Instant::ZERO);
    for left in departures {
        let earned = left.at.since(before).as_secs_f64() * bytes_per_s as f64;
        excess = (excess - earned).max(0.0);
        before = left.at;
        if counts(left) {
            excess += f64::from(left.packet.bytes);
            worst = worst.max(excess);
        } else if !left.others_wait && left.packet.lane == Lane::Request {
            // Nobody else waited: no window reaches over this moment.
            excess = 0.0;
        }
    }
    worst
}

#[derive(Debug, Clone)]
struct Burst {
    gap_us: u64,
    lane: Lane,
    packets: u32,
    bytes: u32,
}

fn any_burst() -> impl Strategy<Value = Burst> {
    let lane = prop_oneof![
        4 => Just(Lane::Request),
        2 => Just(Lane::Regular),
        2 => Just(Lane::Legacy),
        1 => Just(Lane::Control)
    ];
    (prop_oneof![Just(0), 1..200_u64, 1_000..60_000_u64], lane, 1..60_u32, 40..1_500_u32)
        .prop_map(|(gap_us, lane, packets, bytes)| Burst { gap_us, lane, packets, bytes })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tva_14_requests_keep_to_5_percent_and_a_burst_in_every_window_while_others_wait(
        bursts in prop::collection::vec(any_burst(), 1..120)
    ) {
        let config = one_byte_a_microsecond();
        let mut link = Link::new(&config);
        for burst in &bursts {
            link.run_for(burst.gap_us);
            for source in 0..burst.packets {
                link.offer(&label(burst.lane, source), source, burst.bytes);
            }
        }
        link.run_until(link.now + Duration::from_secs(60));
        let burst = f64::from(config.share_burst_bytes + config.packet_bytes_max);
        let request = worst_excess(&link.departures, 50_000, |left| left.others_wait && left.packet.lane == Lane::Request);
        prop_assert!(request <= burst + 1.0, "{} bytes beyond 5 %, stated burst {}", request, burst);
        let all = worst_excess(&link.departures, 1_000_000, |_| true);
        let burst = f64::from(config.burst_bytes + config.packet_bytes_max);
        prop_assert!(all <= burst + 1.0, "{} bytes beyond the link's rate, stated burst {}", all, burst);
    }

    #[test]
    fn every_packet_comes_back_exactly_once(
        bursts in prop::collection::vec(any_burst(), 1..80),
        packets_max in prop::array::uniform4(0_u32..30),
        queues in 1_u32..20,
    ) {
        let config = Config {
            packets_max,
            request_queues_max: queues,
            sender_packets_max: queues,
            ..one_byte_a_microsecond()
        };
        let mut link = Link::new(&config);
        for burst in &bursts {
            link.run_for(burst.gap_us);
            for source in 0..burst.packets {
                link.offer(&label(burst.lane, source), source, burst.bytes);
            }
            for (gauge, lane) in link.scheduler.gauges().into_iter().zip(Lane::ALL) {
                prop_assert!(gauge.used <= gauge.max, "{:?}", gauge);
                prop_assert_eq!(gauge.used as usize, link.waiting.iter().filter(|packet| packet.lane == lane).count());
            }
        }
        link.run_until(link.now + Duration::from_secs(60));
        prop_assert!(link.waiting.is_empty() && link.scheduler.poll(link.now).is_none());
        prop_assert_eq!(link.departures.len() + link.dropped.len(), link.next_id as usize);
        let mut ids: Vec<u32> = link.departures.iter().map(|left| left.packet.id).collect();
        ids.extend(link.dropped.iter().map(|packet| packet.id));
        ids.sort_unstable();
        prop_assert!(ids.iter().copied().eq(0..link.next_id));
        for lane in Lane::ALL {
            let counters = link.scheduler.counters(lane);
            let dropped = link.dropped.iter().filter(|packet| packet.lane == lane).count() as u64;
            prop_assert_eq!(counters.sent, link.sent(|packet| packet.lane == lane) as u64);
            prop_assert_eq!(counters.displaced + counters.refused, dropped);
        }
    }
}

#[test]
fn tva_14_a_request_of_250_bytes_for_10_kilobytes_is_2_5_percent_and_never_waits_for_its_share() {
    assert_eq!(250 * 1_000 / 10_000, 25);
    let mut link = Link::new(&one_byte_a_microsecond());
    for transfer in 0..500_u32 {
        link.offer(&request(&[transfer as u16 % 7 + 1]), transfer, 250);
        for _ in 0..10 {
            link.offer(&Label::regular(u128::from(transfer), 1), transfer, 1_000);
        }
        link.run_for(10_250);
    }
    link.run_for(100_000);
    assert_eq!((link.sent(|packet| packet.lane == Lane::Request), link.dropped.len()), (500, 0));
    let requests = link.departures.iter().filter(|left| left.packet.lane == Lane::Request);
    assert!(requests.clone().all(|left| {
        let sent_with_it = Instant::from_secs(1) + Duration::from_micros(10_250) * left.packet.source;
        left.at.since(sent_with_it) < Duration::from_millis(2)
    }));
}

#[test]
fn requests_use_the_whole_link_while_nobody_else_wants_it() {
    let mut link = Link::new(&one_byte_a_microsecond());
    for n in 0..100 {
        for source in 0..10 {
            link.offer(&label(Lane::Request, source), n, 1_000);
        }
        link.run_for(10_000);
    }
    assert!(link.sent_bytes(|_| true) >= 990_000);
}

#[test]
fn the_link_is_busy_while_anything_waits() {
    for lanes in [vec![Lane::Legacy], vec![Lane::Control, Lane::Request], Lane::ALL.to_vec()] {
        let mut link = Link::new(&one_byte_a_microsecond());
        for n in 0..1_000_u32 {
            for lane in &lanes {
                link.offer(&label(*lane, n % 20), n, 1_000);
            }
            link.run_for(990);
        }
        let sent = link.sent_bytes(|_| true);
        assert!(sent >= 990_000, "{lanes:?}: {sent} bytes in 990,000 us");
    }
}

#[test]
fn no_flood_starves_control_and_control_starves_nobody_beyond_its_share() {
    let mut link = Link::new(&one_byte_a_microsecond());
    for n in 0..1_000_u32 {
        for source in 0..3 {
            link.offer(&label(Lane::Request, source), source, 300);
            link.offer(&label(Lane::Regular, source), source, 1_400);
            link.offer(&Label::LEGACY, source, 1_400);
        }
        if n % 10 == 0 {
            link.offer(&Label::CONTROL, 0, 400);
        }
        link.run_for(1_000);
    }
    assert_eq!(link.sent(|packet| packet.lane == Lane::Control), 100, "4 % of the link, all sent");

    let mut link = Link::new(&one_byte_a_microsecond());
    for _ in 0..1_000 {
        link.offer(&Label::CONTROL, 0, 1_400);
        link.offer(&label(Lane::Regular, 1), 1, 1_400);
        link.run_for(1_000);
    }
    let control = link.sent_bytes(|packet| packet.lane == Lane::Control);
    assert!(control <= 50_000 + 10_000, "{control} bytes of control in a second");
}

#[test]
fn legacy_gets_what_is_left_and_only_that() {
    let mut link = Link::new(&one_byte_a_microsecond());
    for n in 0..1_000 {
        link.offer(&Label::LEGACY, 0, 1_400);
        if n >= 500 {
            link.offer(&Label::regular(1, 1), 0, 1_000);
            link.offer(&Label::regular(2, 1), 0, 1_000);
        }
        link.run_for(1_000);
        if n == 499 {
            assert!(link.sent_bytes(|packet| packet.lane == Lane::Legacy) > 490_000);
        }
    }
    let legacy = link.sent_bytes(|packet| packet.lane == Lane::Legacy);
    assert!(legacy < 510_000, "{legacy} bytes");
}

/// What a destination gets that asks for half of the link beside a colluder that floods it tenfold.
fn destination_share(bytes: u32, colluder_bytes: u32, weights: (u16, u16)) -> f64 {
    let mut link = Link::new(&one_byte_a_microsecond());
    let (mut wanted, mut flooded) = (0, 0);
    for time in 0..2_000_000_u32 {
        if time >= wanted {
            link.offer(&Label::regular(1, weights.0), 1, bytes);
            wanted += bytes;
        }
        if time >= flooded {
            link.offer(&Label::regular(2, weights.1), 2, colluder_bytes);
            flooded += colluder_bytes / 10;
        }
        if time % 20 == 0 {
            link.run_for(20);
        }
    }
    link.sent_bytes(|packet| packet.source == 1) as f64 / link.sent_bytes(|_| true) as f64
}

#[test]
fn a_destination_keeps_half_of_the_link_beside_a_flooding_colluder() {
    for (bytes, colluder_bytes) in [(1_000, 1_000), (1_500, 100), (100, 1_500), (1_400, 700)] {
        let share = destination_share(bytes, colluder_bytes, (1, 1));
        println!("destination {bytes} B, colluder {colluder_bytes} B: {share:.3} of the link");
        assert!((0.48..=0.52).contains(&share), "{share} with {bytes} and {colluder_bytes} bytes");
    }
}

#[test]
fn weights_divide_the_regular_lane() {
    let share = destination_share(1_000, 1_000, (3, 1));
    assert!((0.73..=0.77).contains(&share), "{share}");
}

#[test]
fn a_full_regular_lane_drops_from_its_longest_queue() {
    let config = Config { packets_max: [8, 8, 10, 8], ..one_byte_a_microsecond() };
    let mut link = Link::new(&config);
    while link.departures.len() == link.next_id as usize {
        link.offer(&Label::LEGACY, 0, 1_000);
    }
    for _ in 0..9 {
        link.offer(&Label::regular(1, 1), 1, 1_000);
    }
    link.offer(&Label::regular(2, 1), 2, 1_000);
    assert!(link.dropped.is_empty());
    for _ in 0..4 {
        link.offer(&Label::regular(2, 1), 2, 1_000);
    }
    assert_eq!(link.dropped.iter().filter(|packet| packet.source == 1).count(), 4, "{:?}", link.dropped);
    link.offer(&Label::regular(2, 1), 2, 1_000);
    assert_eq!(link.dropped.last().map(|packet| packet.source), Some(2), "its own queue is as long");
}

/// A sender that offers 14 packets at once, as a connection that begins, beside `others` that each offer packet after
/// packet, ten times what the link carries in all: when its last packet left, in microseconds, and how many were lost.
fn begins_beside(others: u32, destination: impl Fn(u32) -> u128) -> (u64, usize) {
    let mut link = Link::new(&one_byte_a_microsecond());
    let begin = 200_000_u32;
    for time in (0..5_000_000_u32).step_by(100) {
        link.offer(
            &Label::regular(destination(1 + time / 100 % others), 1).from(u128::from(1 + time / 100 % others)),
            1,
            1_000,
        );
        if time == begin {
            (0..14).for_each(|_| link.offer(&Label::regular(7, 1).from(0), 0, 1_000));
        }
        link.run_for(100);
    }
    let own = link.departures.iter().filter(|left| left.packet.source == 0);
    let last = own.map(|left| left.at.since(Instant::from_secs(1))).max().unwrap_or_default();
    let lost = link.dropped.iter().filter(|packet| packet.source == 0).count();
    (last.as_micros() as u64 - u64::from(begin), lost)
}

#[test]
fn many_who_flood_one_destination_take_nothing_from_one_who_begins_but_its_share_of_the_time() {
    for others in [1, 10, 30] {
        let (took_us, lost) = begins_beside(others, |_| 7);
        println!("{others} floods: 14 packets in {took_us} us, {lost} lost");
        assert_eq!(lost, 0, "{others}");
        assert!(took_us <= u64::from(others + 1) * 14_000 * 11 / 10 + 20_000, "{others}: {took_us} us");
    }
}

#[test]
fn senders_to_other_destinations_share_what_their_destinations_get() {
    let (took_us, lost) = begins_beside(30, |_| 8);
    assert_eq!(lost, 0);
    assert!(took_us <= 2 * 14_000 * 11 / 10 + 20_000, "half of the link: {took_us} us");
}

#[test]
fn a_sender_delays_itself_by_no_more_than_its_own_queue() {
    let config = Config { sender_packets_max: 5, ..one_byte_a_microsecond() };
    let mut link = Link::new(&config);
    for _ in 0..40 {
        link.offer(&Label::regular(1, 1).from(1), 1, 1_000);
    }
    link.offer(&Label::regular(1, 1).from(2), 2, 1_000);
    assert_eq!(link.dropped.len() + link.departures.len(), 35, "five wait, in a lane that has room for more");
    assert!(link.dropped.iter().all(|packet| packet.source == 1));
    assert_eq!(link.scheduler.gauges()[5].used, 2);
    link.run_for(100_000);
    assert_eq!(link.scheduler.gauges()[5].used, 0);
}

#[test]
fn a_packet_that_may_pass_is_charged_without_being_handed_over() {
    let mut link = LinkScheduler::<()>::new(&one_byte_a_microsecond(), &[7; 16]);
    let now = Instant::from_secs(1);
    let passed = std::iter::from_fn(|| link.pass(now, Lane::Regular, 1_000).then_some(())).count();
    assert_eq!(passed, 2, "a burst of 2,000 bytes");
    assert_eq!(link.counters(Lane::Regular).sent_bytes, 2_000);
    assert_eq!(link.offer(now, &Label::regular(1, 1), 1_000, ()), Offered::Queued);
    let later = now + Duration::from_secs(1);
    assert!(!link.pass(later, Lane::Control, 100), "nobody overtakes who waits");
    assert_eq!(link.poll(later), Some(()));
    assert_eq!(link.packets_max() as usize, link.gauges()[..4].iter().map(|gauge| gauge.max as usize).sum());
}

#[test]
fn a_full_scheduler_takes_no_more_packets_and_no_more_queues() {
    let config = Config { packets_max: [10, 400, 100, 10], request_queues_max: 300, ..one_byte_a_microsecond() };
    let mut link = Link::new(&config);
    let maxima = link.scheduler.gauges().map(|gauge| gauge.max);
    for n in 0..20_000_u32 {
        let tag = n as u16;
        link.offer(&request(&[tag % 3 + 1, tag, tag + 1, tag + 2, tag + 3]), 0, 100);
        link.offer(&request(&[tag % 3 + 1, tag % 5 + 1, tag % 7 + 1, tag % 11 + 1, tag % 13 + 1]), 0, 100);
        link.offer(&Label::regular(u128::from(n), 1), 0, 100);
        link.offer(&Label::LEGACY, 0, 100);
        link.offer(&Label::CONTROL, 0, 100);
    }
    for (gauge, max) in link.scheduler.gauges().into_iter().zip(maxima) {
        println!("{gauge:?}");
        assert!(gauge.used <= max);
    }
    assert_eq!(link.waiting.len(), 10 + 400 + 100 + 10);
    assert!(link.dropped.iter().any(|packet| packet.lane.reason() == Reason::RequestQueue));
}
