//! The world itself: it repeats exactly, and its links do what they say.

mod support;

use std::{cell::RefCell, net::IpAddr, rc::Rc, time::Duration};

use sluicegate_sim::{
    Faults, Interface, Io, LinkConfig, LinkId, Node, NodeId, Queue, World,
    host::{Host, Uploads},
    router::Routes,
};
use sluicegate_wire::{FrameBuf, Instant};
use support::{PlainRouter, Source};

const CLIENT: &str = "198.51.100.1";
const SERVER: &str = "203.0.113.1";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Datagrams from the client to the server.
fn source(packet_bytes: usize, rate_bps: u64, stop: Instant) -> Source {
    Source::new((ip(CLIENT), ip(SERVER)), packet_bytes, rate_bps, stop)
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const EVERYTHING: Faults =
    Faults { loss_ppm: 20_000, duplicate_ppm: 20_000, reorder_ppm: 20_000, reorder_delay: ms(5), corrupt_ppm: 10_000 };

/// Client - router - server, with these faults behind the router.
fn chain(seed: u64, faults: Faults, uploads: usize) -> (World, NodeId, NodeId, LinkId) {
    let mut world = World::new(seed);
    let files = Uploads::new((ip(SERVER), 80), 20_000, uploads, Instant::ZERO);
    let client = world.add(Host::new(ip(CLIENT)).with_uploads(files));
    let server = world.add(Host::new(ip(SERVER)));
    let router = world.add(PlainRouter(Routes::all(Interface(1)).with(ip(CLIENT), Interface(0))));
    world.connect(client, router, &LinkConfig::new(100_000_000, ms(2)));
    let link = LinkConfig { faults, ..LinkConfig::new(10_000_000, ms(3)) };
    let (there, _) = world.connect(router, server, &link);
    (world, client, server, there)
}

fn hash_of(seed: u64) -> (u64, u64) {
    let (mut world, ..) = chain(seed, EVERYTHING, 50);
    world.run_until(Instant::from_secs(60));
    (world.trace_hash(), world.events())
}

#[test]
fn two_runs_of_one_seed_are_bit_identical() {
    let first = hash_of(7);
    assert!(first.1 > 5_000, "only {} events", first.1);
    assert_eq!(first, hash_of(7));
    assert_ne!(first.0, hash_of(8).0);
}

#[test]
fn one_changed_byte_changes_the_trace() {
    let run = |bytes| {
        let mut world = World::new(1);
        let a = world.add(source(bytes, 1_000_000, Instant::from_millis(1)));
        let b = world.add(Host::new(ip(SERVER)));
        world.connect(a, b, &LinkConfig::new(1_000_000, ms(1)));
        world.run_until(Instant::from_secs(1));
        world.trace_hash()
    };
    assert_ne!(run(100), run(101));
}

#[test]
fn faults_lose_repeat_delay_and_corrupt_but_no_wrong_data_is_taken() {
    let (mut world, client, server, there) = chain(3, EVERYTHING, 50);
    world.run_until(Instant::from_secs(300));
    let (stats, host) = (world.link(there), world.node::<Host>(server));
    assert!(stats.lost > 0 && stats.arrived > stats.offered - stats.lost, "{stats:?}");
    assert!(host.malformed() > 0, "corruption was never seen");
    assert!(host.receivers().values().all(|receiver| receiver.mangled() == 0));
    let complete = world.node::<Host>(client).transfers().filter(|done| done.end == sluicegate_sim::tcp::End::Complete);
    assert_eq!(complete.count(), 50);
}

/// Notes in which order packets come and when timers ring.
struct Recorder {
    seen: Rc<RefCell<Vec<String>>>,
    wake_at: Option<Instant>,
}

impl Node for Recorder {
    fn on_packet(&mut self, _: &mut Io<'_>, from: Interface, packet: FrameBuf) {
        self.seen.borrow_mut().push(format!("{} from {}", packet.bytes().len(), from.0));
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.wake_at
    }

    fn on_timeout(&mut self, io: &mut Io<'_>) {
        self.seen.borrow_mut().push(format!("rang at {} ms", io.now().as_nanos() / 1_000_000));
        self.wake_at = None;
    }

    fn restart(&mut self, _now: Instant) {
        self.seen.borrow_mut().push("restarted".to_owned());
    }
}

fn recorder(wake_at: Option<Instant>) -> (Recorder, Rc<RefCell<Vec<String>>>) {
    let seen = Rc::new(RefCell::new(Vec::new()));
    (Recorder { seen: Rc::clone(&seen), wake_at }, seen)
}

#[test]
fn a_clock_that_jumps_makes_a_timer_ring_at_its_own_time() {
    let mut world = World::new(1);
    let (node, seen) = recorder(Some(Instant::from_secs(10)));
    let id = world.add(node);
    world.at(Instant::from_secs(1), move |world| world.jump_clock(id, Duration::from_secs(30)));
    world.at(Instant::from_secs(2), move |world| world.restart(id));
    world.run_until(Instant::from_secs(20));
    assert_eq!(*seen.borrow(), ["rang at 31000 ms", "restarted"]);
}

#[test]
fn packets_that_arrive_together_keep_the_order_in_which_they_were_sent() {
    let mut world = World::new(1);
    let (node, seen) = recorder(None);
    let sink = world.add(node);
    for bytes in [300, 200, 100] {
        let source = world.add(source(bytes, 1_000_000, Instant::from_nanos(1)));
        // Delay and serialization add up to the same for all three.
        let delay = ms(1) - Duration::from_nanos(bytes as u64 * 8);
        world.connect(source, sink, &LinkConfig::new(1_000_000_000, delay));
    }
    world.run_until(Instant::from_secs(1));
    assert_eq!(*seen.borrow(), ["300 from 0", "200 from 1", "100 from 2"]);
}

#[test]
fn a_link_carries_its_rate_and_its_queue_holds_no_more_than_it_may() {
    let mut world = World::new(1);
    let source = world.add(source(1_000, 20_000_000, Instant::from_secs(2)));
    let sink = world.add(Host::new(ip(SERVER)));
    let config = LinkConfig { queue: Queue::DropTail { bytes_max: 10_000 }, ..LinkConfig::new(8_000_000, ms(1)) };
    let (there, _) = world.connect(source, sink, &config);
    world.run_until(Instant::from_secs(2));
    let stats = world.link(there);
    // 1,000 packets a second, for 2 s less the millisecond of delay.
    assert!((1_997..=1_999).contains(&stats.arrived), "{stats:?}");
    // What is neither refused nor arrived is queued (10 packets) or flying (1).
    assert!(stats.offered - stats.refused - stats.arrived <= 11, "{stats:?}");
    assert!(stats.refused > 2_900, "{stats:?}");
}

#[test]
fn a_cut_link_loses_all_and_a_doomed_packet_alone() {
    let mut world = World::new(1);
    let source = world.add(source(1_000, 800_000, Instant::from_secs(1)));
    let sink = world.add(Host::new(ip(SERVER)));
    let (there, _) = world.connect(source, sink, &LinkConfig::new(8_000_000, ms(1)));
    world.doom(there, &[3, 9]);
    world.at(Instant::from_millis(500), move |world| world.set_up(there, false));
    world.at(Instant::from_millis(600), move |world| world.set_up(there, true));
    world.run_until(Instant::from_secs(2));
    assert_eq!(world.link(there).offered, 100);
    assert_eq!(world.link(there).lost, 2 + 10);
    assert_eq!((world.link(there).arrived, world.node::<Host>(sink).malformed()), (88, 0));
}
