use std::time::Duration;

use sluicegate_capability::host::{
    Config, Decision, Flow, Host, Knowledge, Policy, Renew, Request, Sending, ServerConfig, ServerPolicy,
};
use sluicegate_wire::{
    Instant,
    capability::{ClientId, Kind, shim::Carriage},
};

use super::{
    client, limits, server,
    world::{A, B, Router, World, address, datagram},
};

const RTT_MS: u64 = 50;

/// A flow in both directions, a packet each 5 ms, that has been running for a while.
fn running(limits_s: u8) -> World {
    let config = ServerConfig { limits: limits(1_000, limits_s), ..ServerConfig::default() };
    let mut world = World::new(client(7), server(config), 2);
    talk(&mut world, 400);
    assert_eq!(world.demoted(), 0);
    world
}

fn talk(world: &mut World, packets: usize) {
    for _ in 0..packets {
        world.send(A, &datagram(A, 500)).unwrap();
        world.send(B, &datagram(B, 50)).unwrap();
        world.run(5);
    }
}

/// When the last demoted packet reached this side.
fn last_demoted(world: &World, to: usize) -> Option<Instant> {
    world.got(to).into_iter().filter(|delivery| delivery.demoted).map(|delivery| delivery.at).max()
}

#[test]
fn tva_20_after_a_router_restart_packets_are_demoted_not_lost_and_good_again_within_two_round_trips() {
    let mut world = running(10);
    let restarted = world.now;
    world.routers[1].restart(99);
    talk(&mut world, 200);
    world.run(100);
    assert_eq!(world.got(B).len(), 600, "none was lost");
    for side in [A, B] {
        let last = last_demoted(&world, side).expect("packets were demoted");
        // Sent within two round trips, so received within half a round trip more.
        let late = last.since(restarted);
        assert!(late <= Duration::from_millis(RTT_MS * 5 / 2), "side {side}: {late:?}");
    }
    let demoted = world.got(B).iter().filter(|delivery| delivery.demoted).count();
    assert!(demoted >= 10, "{demoted}");
}

#[test]
fn a_route_change_to_a_longer_path_is_repaired_as_well() {
    let mut world = running(10);
    let changed = world.now;
    world.routers.insert(1, Router::new(200, false));
    talk(&mut world, 200);
    let last = last_demoted(&world, B).expect("packets were demoted");
    assert!(last.since(changed) <= Duration::from_millis(RTT_MS * 5 / 2));
}

#[test]
fn evicted_lines_come_back_with_the_next_list_and_without_a_demotion() {
    // A slow flow: every line has gone when its next packet comes.
    let config = ServerConfig { limits: limits(1_000, 1), ..ServerConfig::default() };
    let mut world = World::new(client(7), server(config), 2);
    for _ in 0..50 {
        world.send(A, &datagram(A, 500)).unwrap();
        world.send(B, &datagram(B, 500)).unwrap();
        world.run(200);
    }
    assert_eq!(world.demoted(), 0);
    assert!(world.count(A, Some(Kind::Nonce)) <= 1, "routers would not know a nonce any more");
}

#[test]
fn a_receiver_that_lost_its_memory_tells_senders_to_start_again() {
    let mut world = running(10);
    // Router and receiver are one box, and it restarts.
    world.routers[1].restart(99);
    world.hosts[B] = Host::new(Config { peers_max: 64, remotes_max: 64, ..Config::default() }, [77; 32]);
    let restarted = world.now;
    for _ in 0..200 {
        world.send(A, &datagram(A, 500)).unwrap();
        world.run(5);
    }
    let last = last_demoted(&world, B).expect("packets were demoted");
    let late = last.since(restarted);
    assert!(
        late <= Duration::from_millis(RTT_MS * 5 / 2 + 40),
        "{late:?}: two round trips, and 20 ms of patience twice"
    );
}

#[test]
fn without_any_notice_silence_makes_a_sender_ask_again() {
    let mut world = running(60);
    world.routers[0].restart(98);
    world.routers[1].restart(99);
    // A default-off receiver forwards nothing that is demoted, and its notices get lost for a second.
    let until = world.now + Duration::from_secs(1);
    world.fate = Box::new(move |now, from| (from == A || now > until).then_some(Duration::from_millis(25)));
    for _ in 0..400 {
        world.send(A, &datagram(A, 500)).unwrap();
        world.run(5);
    }
    let requests = world.wire.iter().filter(|seen| seen.from == A && seen.kind == Some(Kind::Request)).count();
    assert!(requests <= 10, "{requests}");
    let last = last_demoted(&world, B).expect("packets were demoted");
    assert!(last <= until + Duration::from_millis(1_200), "{:?} after the silence", last.since(until));
}

#[test]
fn a_conversation_whose_last_packet_had_no_answer_begins_again_without_asking() {
    let mut world = running(60);
    let asks = |world: &World| [Kind::Request, Kind::Renewal].map(|kind| world.count(A, Some(kind)));
    let before = asks(&world);
    for _ in 0..5 {
        talk(&mut world, 20);
        world.run(100);
        world.send(A, &datagram(A, 40)).unwrap();
        world.run(2_000);
    }
    assert_eq!(asks(&world), before, "requests and renewals");
}

#[test]
fn capabilities_are_renewed_before_they_end_so_that_no_packet_goes_without() {
    let config = ServerConfig { limits: limits(100, 2), ..ServerConfig::default() };
    let mut world = World::new(client(7), server(config), 3);
    // 100 kB/s for 30 s: N ends every second.
    for _ in 0..3_000 {
        world.send(A, &datagram(A, 950)).unwrap();
        world.send(B, &datagram(B, 20)).unwrap();
        world.run(10);
    }
    assert_eq!(world.demoted(), 0);
    let bare = |kind| matches!(kind, None | Some(Kind::Request));
    let last = world.wire.iter().filter(|seen| seen.from == A && bare(seen.kind)).map(|seen| seen.at).max().unwrap();
    assert!(last < Instant::from_millis(1_000_100), "without capability only until the first answer: {last:?}");
    assert!(world.count(A, Some(Kind::Renewal)) >= 15);
}

/// A file as TCP sends it: a SYN, ten packets, and the rest when those are acknowledged.
fn upload(world: &mut World, rest: usize) {
    for (packets, len) in [(1, 30), (10, 1_400), (rest, 1_400)] {
        for (from, len) in [(A, len), (B, 30)] {
            (0..packets).for_each(|_| world.send(from, &datagram(from, len)).unwrap());
            world.run(RTT_MS);
        }
    }
}

/// Grants these kilobytes in turn, and then 32 to everyone.
struct Scripted(Vec<u16>);

impl Policy for Scripted {
    fn client_id(&mut self, _: &Flow) -> Option<ClientId> {
        None
    }

    fn decide(&mut self, _: Instant, _: &Request) -> Decision {
        Decision::Grant(limits(self.0.pop().unwrap_or(32), 10))
    }
}

#[test]
fn who_got_little_asks_for_more_before_it_sends_the_next_file() {
    // What is granted last is asked for at the end of the first file.
    let mut world = World::new(client(7), Box::new(Scripted(vec![12, 32])), 2);
    upload(&mut world, 4);
    let begun = world.now;
    for _ in 0..4 {
        world.run(4_000);
        upload(&mut world, 4);
    }
    let bare = |kind| matches!(kind, None | Some(Kind::Request));
    let late = world.wire.iter().filter(|seen| seen.from == A && bare(seen.kind) && seen.at > begun);
    assert_eq!(late.count(), 0, "packets without a capability");
    assert_eq!(world.demoted(), 0);
}

#[test]
fn a_file_of_twenty_kilobytes_leaves_with_capabilities_wherever_in_a_grant_it_begins() {
    for before in 0..24 {
        let config = ServerConfig { limits: limits(32, 10), flood_bytes_per_s: u64::MAX, ..ServerConfig::default() };
        let mut world = World::new(client(7), server(config), 2);
        upload(&mut world, 4);
        for _ in 0..before {
            world.send(A, &datagram(A, 1_400)).unwrap();
            world.run(RTT_MS);
            world.send(B, &datagram(B, 30)).unwrap();
            world.run(RTT_MS);
        }
        // The first window, and what is sent for the acknowledgements that come before the answer to a renewal does.
        let begun = world.now;
        (0..14).for_each(|_| world.send(A, &datagram(A, 1_400)).unwrap());
        world.run(RTT_MS);
        let bare = |kind| matches!(kind, None | Some(Kind::Request));
        let late = world.wire.iter().filter(|seen| seen.from == A && bare(seen.kind) && seen.at >= begun);
        assert_eq!(late.count(), 0, "packets without a capability, {before} packets into it");
    }
}

#[test]
fn full_packets_carry_their_list_also_when_an_answer_waits_for_the_way_back() {
    let config = ServerConfig { limits: limits(32, 10), flood_bytes_per_s: u64::MAX, ..ServerConfig::default() };
    let mut world = World::new(client(7), server(config), 2);
    // As long as TCP's segments: with a list of four they are as long as packets may be.
    let begun = world.now + Duration::from_secs(1);
    for _ in 0..400 {
        world.send(A, &datagram(A, 1_424)).unwrap();
        world.send(B, &datagram(B, 200)).unwrap();
        world.run(20);
    }
    let bare = |kind| matches!(kind, None | Some(Kind::Request));
    let late = world.wire.iter().filter(|seen| seen.from == A && bare(seen.kind) && seen.at > begun);
    assert_eq!(late.count(), 0, "packets without a capability");
}

#[test]
fn a_fast_flow_gets_more_than_n_in_one_second() {
    let config = ServerConfig { limits: limits(1_000, 10), ..ServerConfig::default() };
    let mut world = World::new(client(7), server(config), 2);
    // 5 MB in a second: routers mint the same pre-capability for all renewals of that second.
    for _ in 0..5_000 {
        world.send(A, &datagram(A, 970)).unwrap();
        world.send(B, &datagram(B, 20)).unwrap();
        world.now = world.now + Duration::from_micros(200);
        world.run(0);
    }
    let bare = world.count(A, None) + world.count(A, Some(Kind::Request));
    assert!(bare <= 300, "{bare}: only until the first answer");
    assert_eq!(world.demoted(), 0);
}

#[test]
fn a_refused_renewal_ends_the_flow_after_n_bytes() {
    let config = ServerConfig { limits: limits(32, 10), renew: Renew::Never, ..ServerConfig::default() };
    let mut world = World::new(client(7), server(config), 2);
    world.hosts[A].know(address(B), Knowledge::Capable { carriage: Carriage::Native }, Instant::from_secs(9_999));
    for _ in 0..200 {
        world.send(A, &datagram(A, 900)).unwrap();
        world.run(10);
    }
    let regular: usize = world
        .wire
        .iter()
        .filter(|seen| seen.from == A && !matches!(seen.kind, None | Some(Kind::Request)))
        .map(|seen| seen.len)
        .sum();
    assert!(regular <= 32_000, "{regular} bytes on one capability");
    let refused = world.hosts[A].peers(world.now).next().unwrap();
    assert!(matches!(refused.sending, Sending::Refused { .. }), "{refused:?}");
}

/// A telephone call in both directions, 100 packets a second, to a server of default policy; its way changes six times to
/// routers that know nothing of it, and back. Packets are up to `jitter_ms` late. When the last demoted packet arrived
/// after each change, and how often each side asked for that.
fn changing(jitter_ms: u64) -> (World, Vec<Duration>, [usize; 2]) {
    let policy = ServerPolicy::new(ServerConfig { limits: limits(100, 10), ..ServerConfig::default() }, [3; 16]);
    let mut world = World::new(client(7), Box::new(policy), 3);
    let mut other: Vec<Router> = (0..2).map(|n| Router::new(n + 50, n == 0)).collect();
    let call = |world: &mut World, packets: usize| {
        for _ in 0..packets {
            world.send(A, &datagram(A, 160)).unwrap();
            world.send(B, &datagram(B, 160)).unwrap();
            world.run(10);
        }
    };
    let asked = |world: &World| {
        let requests = |side| world.count(side, Some(Kind::Request));
        [requests(A), requests(B)]
    };
    let mut seed = 1u64;
    world.fate = Box::new(move |_, _| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        Some(Duration::from_millis(25 + (seed >> 33) % (jitter_ms + 1)))
    });
    call(&mut world, 700);
    let (before, mut late) = (asked(&world), Vec::new());
    for _ in 0..6 {
        let changed = world.now;
        std::mem::swap(&mut world.routers, &mut other);
        call(&mut world, 500);
        let last =
            [A, B].into_iter().filter_map(|side| last_demoted(&world, side)).max().expect("packets were demoted");
        late.push(last.since(changed));
    }
    world.run(100 + jitter_ms);
    assert_eq!((world.got(A).len(), world.got(B).len()), (700 + 6 * 500, 700 + 6 * 500), "none was lost");
    let after = asked(&world);
    (world, late, [after[A] - before[A], after[B] - before[B]])
}

#[test]
fn a_way_that_changes_again_and_again_is_repaired_within_two_round_trips_each_time() {
    let (_, late, asked) = changing(0);
    assert!(late.iter().all(|late| *late <= Duration::from_millis(RTT_MS * 5 / 2)), "{late:?}");
    assert!(asked.iter().all(|asked| (6..=7).contains(asked)), "{asked:?}: once for each of six changes");
}

#[test]
fn who_repairs_over_a_way_with_jitter_is_not_taken_for_one_who_asks_again_and_again() {
    let (world, late, asked) = changing(40);
    // Round trips take up to 50 + 2 * 40 ms; the last demoted packet was sent within two of them, and under way up to 65.
    assert!(late.iter().all(|late| *late <= Duration::from_millis(2 * (RTT_MS + 80) + 65)), "{late:?}");
    assert!(asked.iter().all(|asked| (6..=7).contains(asked)), "{asked:?} requests for six changes");
    for side in [A, B] {
        let capable = |sending| matches!(sending, Sending::Capable { .. });
        assert!(world.hosts[side].peers(world.now).any(|peer| capable(peer.sending)), "{side}");
    }
}
