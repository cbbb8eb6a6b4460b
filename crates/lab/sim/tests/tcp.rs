//! The small Reno: it completes, it is about as fast as theory says, and it times out as the papers' runs want.

use std::{net::IpAddr, time::Duration};

use sluicegate_sim::{
    Faults, LinkConfig, LinkId, World,
    host::{Host, Transfer, Uploads},
    tcp::{Config, End},
};
use sluicegate_wire::Instant;

const PATIENT: Config = Config { abort_after: None, ..Config::PAPER };

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// One upload over one link, which `break_it` may change first.
fn upload(
    config: Config,
    bytes: u64,
    link: &LinkConfig,
    break_it: impl FnOnce(&mut World, LinkId, LinkId),
) -> Option<Transfer> {
    let mut world = World::new(11);
    let (client, server) = (ip("2001:db8::1"), ip("2001:db8::2"));
    let uploads = Uploads::new((server, 80), bytes, 1, Instant::ZERO).with_config(config);
    let client = world.add(Host::new(client).with_uploads(uploads));
    let server = world.add(Host::new(server));
    let (there, back) = world.connect(client, server, link);
    break_it(&mut world, there, back);
    world.run_until(Instant::from_secs(1_000));
    let transfer = world.node::<Host>(client).transfers().next().copied();
    if transfer.is_some_and(|transfer| transfer.end == End::Complete) {
        let receiver = world.node::<Host>(server).receivers().values().next().unwrap();
        assert!(receiver.is_complete());
        assert_eq!((receiver.received(), receiver.mangled()), (bytes, 0));
    }
    transfer
}

fn link(rate_bps: u64, one_way_ms: u64) -> LinkConfig {
    LinkConfig::new(rate_bps, Duration::from_millis(one_way_ms))
}

#[test]
fn a_transfer_over_a_lossy_link_completes_with_its_data_intact() {
    for loss_ppm in [1_000, 50_000, 200_000] {
        let lossy = LinkConfig { faults: Faults { loss_ppm, ..Faults::NONE }, ..link(10_000_000, 10) };
        let done = upload(PATIENT, 500_000, &lossy, |_, _, _| ()).expect("it ends");
        assert_eq!(done.end, End::Complete, "{loss_ppm} ppm");
        assert!(done.repeated > 0 || loss_ppm == 1_000);
    }
}

#[test]
fn a_long_transfer_fills_its_link() {
    // Round trip 20 ms, queue 50 ms: above the bandwidth-delay product, so Reno's halving leaves the link busy.
    let done = upload(PATIENT, 10_000_000, &link(10_000_000, 10), |_, _, _| ()).unwrap();
    let ideal_ms = 10_000_000 / 1_000 * 1_060 * 8 / 10_000;
    let took_ms = done.took().as_millis() as u64;
    assert!((ideal_ms..ideal_ms * 105 / 100).contains(&took_ms), "{took_ms} ms, ideal {ideal_ms} ms");
}

#[test]
fn random_loss_limits_the_rate_as_the_square_root_formula_says() {
    // Rate = segment / RTT * sqrt(3 / 2p) without delayed acknowledgements; p = 1 %, RTT 100 ms: 12.2 segments a
    // round trip, 122 kB/s.
    let mut lossy = link(1_000_000_000, 50);
    lossy.faults.loss_ppm = 10_000;
    let done = upload(PATIENT, 20_000_000, &lossy, |_, _, _| ()).unwrap();
    let rate = 20_000_000 / done.took().as_secs();
    assert!((85_000..145_000).contains(&rate), "{rate} B/s");
}

#[test]
fn a_short_transfer_takes_the_round_trips_of_slow_start() {
    // SYN, then 2, 4, 8, 6 segments: five round trips of 20 ms, and next to no serialization.
    let done = upload(Config::PAPER, 20_000, &link(10_000_000_000, 10), |_, _, _| ()).unwrap();
    assert_eq!(done.took().as_millis(), 100);
}

#[test]
fn one_lost_segment_is_repeated_without_waiting_for_the_timer() {
    let slow_timer = Config { timeout_min: Duration::from_secs(5), ..Config::PAPER };
    let fast = link(10_000_000_000, 10);
    let done = upload(slow_timer, 100_000, &fast, |world, there, _| world.doom(there, &[12])).unwrap();
    assert_eq!((done.end, done.repeated), (End::Complete, 1));
    assert!(done.took() < Duration::from_millis(500), "{:?}", done.took());
}

#[test]
fn several_losses_of_one_window_are_repeated_one_a_round_trip() {
    let slow_timer = Config { timeout_min: Duration::from_secs(5), ..Config::PAPER };
    let fast = link(10_000_000_000, 10);
    let done = upload(slow_timer, 100_000, &fast, |world, there, _| world.doom(there, &[20, 22, 25])).unwrap();
    assert_eq!((done.end, done.repeated), (End::Complete, 3));
    assert!(done.took() < Duration::from_millis(600), "{:?}", done.took());
}

#[test]
fn a_lost_tail_is_repeated_after_the_shortest_timeout() {
    // 20 data packets behind the SYN: the last one cannot raise duplicate acknowledgements.
    let fast = link(10_000_000_000, 10);
    let done = upload(Config::PAPER, 20_000, &fast, |world, there, _| world.doom(there, &[21])).unwrap();
    assert_eq!((done.end, done.repeated), (End::Complete, 1));
    let took_ms = done.took().as_millis();
    assert!((300..=320).contains(&took_ms), "{took_ms}");
}

#[test]
fn syns_are_repeated_every_second_and_the_transfer_given_up_after_ten() {
    let fast = link(10_000_000_000, 10);
    let third = upload(Config::PAPER, 20_000, &fast, |world, there, _| world.doom(there, &[1, 2])).unwrap();
    assert_eq!((third.end, third.took().as_millis()), (End::Complete, 2_100));
    let never = upload(Config::PAPER, 20_000, &fast, |world, there, _| world.set_up(there, false)).unwrap();
    assert_eq!((never.end, never.took().as_millis()), (End::GivenUp, 10_000));
}
