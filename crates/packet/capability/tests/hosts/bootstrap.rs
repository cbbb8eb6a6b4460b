use std::time::Duration;

use sluicegate_capability::host::{Config, Inbound, Knowledge, Sending, ServerConfig, Standing};
use sluicegate_wire::{
    Instant,
    capability::{ClientId, Kind, shim::Carriage},
    tcp::Control,
};

use super::{
    client, limits, server,
    world::{A, B, World, address, datagram, segment},
};

fn world(routers: usize) -> World {
    World::new(client(7), server(ServerConfig { limits: limits(100, 10), ..ServerConfig::default() }), routers)
}

/// Client and server shake hands, and the client sends its first data: 3 packets.
fn handshake(world: &mut World) {
    world.send(A, &segment(A, Control::Syn, 100, None, 0)).unwrap();
    world.run(25);
    world.send(B, &segment(B, Control::Syn, 500, Some(101), 0)).unwrap();
    world.run(25);
    world.send(A, &segment(A, Control::None, 101, Some(501), 1_000)).unwrap();
    world.run(25);
}

#[test]
fn a_handshake_gives_both_sides_capabilities_and_costs_no_packet_and_no_round_trip() {
    for routers in [0, 1, 2, 5] {
        let mut world = world(routers);
        handshake(&mut world);
        let kinds: Vec<_> = world.wire.iter().map(|seen| (seen.from, seen.kind, seen.alone)).collect();
        if routers <= 2 {
            let (request, list) = (Some(Kind::Request), Some(Kind::Capabilities));
            assert_eq!(kinds, [(A, request, false), (B, request, false), (A, list, false)], "{routers} routers");
        }
        assert_eq!(world.got(B).len(), 2);
        assert_eq!(world.got(B)[1].at, Instant::from_secs(1_000) + Duration::from_millis(75), "no round trip");
        // A list for more than four routers leaves a request no room for as many slots: it travels alone.
        assert_eq!(world.demoted(), u64::from(routers > 4));
        assert!(world.delivered.iter().all(|delivery| delivery.how == Inbound::Deliver));
        world.send(B, &segment(B, Control::None, 501, Some(1_101), 1_000)).unwrap();
        world.run(50);
        assert_eq!(world.wire.last().unwrap().kind, Some(Kind::Capabilities), "{routers} routers");
        for side in [A, B] {
            let peer = world.hosts[side].peers(world.now).next().unwrap();
            assert!(matches!(peer.sending, Sending::Capable { .. }), "{peer:?}");
            assert_eq!((peer.standing, peer.client_id), (Standing::Proven, ClientId(7)));
        }
    }
}

#[test]
fn packets_arrive_as_they_were_sent() {
    let mut world = world(3);
    for len in [0, 1, 2, 3, 500, 1_001] {
        world.send(A, &datagram(A, len)).unwrap();
        world.send(B, &datagram(B, len)).unwrap();
        world.run(60);
    }
    for side in [A, B] {
        let got: Vec<_> = world.got(side).into_iter().map(|delivery| delivery.bytes.clone()).collect();
        let sent: Vec<_> = [0, 1, 2, 3, 500, 1_001].into_iter().map(|len| datagram(1 - side, len)).collect();
        assert_eq!(got, sent);
    }
}

#[test]
fn the_list_travels_until_return_traffic_shows_that_it_arrived_and_then_only_the_nonce() {
    let mut world = world(2);
    handshake(&mut world);
    for n in 0..10 {
        world.send(A, &segment(A, Control::None, 1_101 + n * 1_000, Some(501), 1_000)).unwrap();
        world.send(B, &segment(B, Control::None, 501, Some(1_101 + n * 1_000), 0)).unwrap();
        world.run(10);
    }
    let kinds: Vec<_> = world.wire.iter().filter(|seen| seen.from == A).map(|seen| seen.kind.unwrap()).collect();
    let lists = kinds.iter().filter(|kind| **kind == Kind::Capabilities).count();
    assert!((2..=8).contains(&lists), "{kinds:?}");
    assert_eq!(kinds.last(), Some(&Kind::Nonce));
    assert_eq!(world.demoted(), 0);
}

#[test]
fn a_one_way_flow_is_answered_by_packets_of_their_own() {
    let mut world = world(2);
    for _ in 0..1_500 {
        world.send(A, &datagram(A, 1_000)).unwrap();
        world.run(10);
    }
    world.run(100);
    assert_eq!(world.got(B).len(), 1_500);
    let first = world.wire.iter().find(|seen| seen.from == B).unwrap();
    assert!(first.alone);
    assert_eq!(first.at.since(Instant::from_secs(1_000)), Duration::from_millis(45), "one way, and 20 ms of patience");
    let bare = world.wire.iter().filter(|seen| seen.from == A && seen.kind.is_none()).count();
    assert!(bare <= 6, "{bare} packets had no capability");
    assert_eq!(world.demoted(), 0);
    let answers = world.wire.iter().filter(|seen| seen.from == B).count();
    assert!(answers <= 100, "{answers} answers to 1,500 packets: one for each N/2, and few to requests");
    let requests = world.count(A, Some(Kind::Request));
    assert!(requests <= 12, "{requests} requests in 15 s");
}

#[test]
fn a_lossy_path_lets_a_request_through_in_the_end() {
    let mut world = world(2);
    world.hosts[A].know(address(B), Knowledge::Capable { carriage: Carriage::Native }, Instant::from_secs(9_999));
    let mut n = 0;
    world.fate = Box::new(move |_, _| {
        n += 1;
        (n > 9).then_some(Duration::from_millis(25))
    });
    for _ in 0..15 {
        world.send(A, &segment(A, Control::Syn, 100, None, 0)).unwrap();
        world.run(1_000);
    }
    assert_eq!(world.count(A, None), 0, "every retransmission was a request");
    assert!(matches!(world.hosts[A].peers(world.now).next().unwrap().sending, Sending::Capable { .. }));
}

#[test]
fn a_refused_flow_asks_ever_more_rarely() {
    struct Refuses;
    impl sluicegate_capability::host::Policy for Refuses {
        fn client_id(&mut self, _: &sluicegate_capability::host::Flow) -> Option<ClientId> {
            None
        }
        fn decide(
            &mut self,
            _: Instant,
            _: &sluicegate_capability::host::Request,
        ) -> sluicegate_capability::host::Decision {
            sluicegate_capability::host::Decision::Refuse
        }
    }
    let mut world = World::new(client(7), Box::new(Refuses), 2);
    for _ in 0..6_000 {
        world.send(A, &datagram(A, 100)).unwrap();
        world.run(10);
    }
    let requests = world.count(A, Some(Kind::Request));
    assert!((4..=12).contains(&requests), "{requests} requests in a minute");
    assert!(world.count(B, Some(Kind::Request)) <= 12, "and as few answers");
    assert!(world.got(B).iter().any(|delivery| delivery.how == Inbound::Refused));
    world.run(100);
    assert_eq!(world.got(B).len(), 6_000, "the others went plain");
}

#[test]
fn a_legacy_server_is_found_out_by_what_answers_and_remembered_for_a_minute() {
    let mut world = world(0);
    world.legacy[B] = true;
    for second in [0, 1, 3, 7] {
        world.run(1_000_000 + second * 1_000 - world.now.as_nanos() / 1_000_000);
        world.send(A, &segment(A, Control::Syn, 100, None, 0)).unwrap();
        world.run(30);
    }
    assert_eq!(world.count(A, Some(Kind::Request)), 3);
    assert_eq!(world.got(B).len(), 1, "the third attempt went plain");
    world.send(B, &segment(B, Control::Syn, 500, Some(101), 0)).unwrap();
    world.run(30);
    assert_eq!(world.hosts[A].knowledge(world.now, address(B)), Some(Knowledge::Legacy));
    world.send(A, &segment(A, Control::None, 101, Some(501), 1_000)).unwrap();
    assert_eq!(world.wire.last().unwrap().kind, None);
    world.run(61_000);
    world.send(A, &segment(A, Control::Syn, 100, None, 0)).unwrap();
    assert_eq!(world.wire.last().unwrap().kind, Some(Kind::Request), "then it is tried again");
}

#[test]
fn silence_alone_makes_nobody_a_legacy_host() {
    let mut world = world(0);
    world.fate = Box::new(|_, _| None);
    for _ in 0..30 {
        world.send(A, &segment(A, Control::Syn, 100, None, 0)).unwrap();
        world.run(1_000);
    }
    assert_eq!(world.hosts[A].knowledge(world.now, address(B)), None);
    let (requests, plain) = (world.count(A, Some(Kind::Request)), world.count(A, None));
    assert!(requests >= 14 && plain >= 12, "{requests} requests, {plain} plain");
}

#[test]
fn a_legacy_client_gets_plain_answers() {
    let mut world = world(1);
    world.legacy[A] = true;
    world.send(A, &segment(A, Control::Syn, 100, None, 0)).unwrap();
    world.run(30);
    world.send(B, &segment(B, Control::Syn, 500, Some(101), 0)).unwrap();
    world.run(30);
    assert_eq!(world.got(A).len(), 1);
    assert_eq!(world.wire.last().unwrap().kind, None);
}

#[test]
fn nobody_may_contact_a_client() {
    let mut world = World::new(client(7), client(8), 1);
    world.send(A, &segment(A, Control::Syn, 100, None, 0)).unwrap();
    world.run(30);
    assert_eq!(world.got(B)[0].how, Inbound::Refused);
    world.send(B, &segment(B, Control::Rst, 0, Some(101), 0)).unwrap();
    world.run(100);
    world.send(A, &segment(A, Control::Syn, 100, None, 0)).unwrap();
    world.run(100);
    assert_eq!(world.hosts[B].counters().grants, 0, "a reset is no invitation");
    assert_eq!(world.hosts[B].peers(world.now).count(), 0, "and no state");
}

#[test]
fn a_gate_leaves_legacy_clients_alone_and_answers_capable_ones() {
    let config = Config { answers_only: true, peers_max: 64, remotes_max: 64, ..Config::default() };
    let mut world = World::with_config(config, client(7), server(ServerConfig::default()), 1);
    world.send(B, &datagram(B, 100)).unwrap();
    assert_eq!(world.wire[0].kind, None, "nothing is known of A");
    world.run(30);
    world.hosts[A].know(address(B), Knowledge::Capable { carriage: Carriage::Native }, Instant::from_secs(9_999));
    world.send(A, &segment(A, Control::Syn, 100, None, 0)).unwrap();
    world.run(30);
    world.send(B, &segment(B, Control::Syn, 500, Some(101), 0)).unwrap();
    assert_eq!(world.wire.last().unwrap().kind, Some(Kind::Request));
}

#[test]
fn what_a_gate_answers_a_capable_client_is_never_plain_however_fast_its_service_sends() {
    let config = Config { answers_only: true, peers_max: 64, remotes_max: 64, ..Config::default() };
    let mut world = World::with_config(config, client(7), server(ServerConfig::default()), 1);
    world.hosts[A].know(address(B), Knowledge::Capable { carriage: Carriage::Native }, Instant::from_secs(9_999));
    handshake(&mut world);
    let before = world.wire.len();
    // Ten times what the client's first grant is worth, before anything can come back; and then resets.
    for number in 0..8_000 {
        world.send(B, &segment(B, Control::None, 501 + number * 1_400, Some(1_101), 1_400)).unwrap();
    }
    world.send(B, &segment(B, Control::Rst, 1, Some(1_101), 0)).unwrap();
    let sent: Vec<_> = world.wire[before..].iter().filter(|seen| !seen.alone).collect();
    assert_eq!(sent.len(), 8_001);
    // A header without a capability is twelve bytes.
    let header = |index: usize| sent[index].len - if index < 8_000 { 1_440 } else { 40 };
    assert!((0..sent.len()).all(|index| header(index) >= 12 && sent[index].from == B && sent[index].len <= 1_500));
    assert!(sent.iter().filter(|seen| seen.kind.is_none()).count() > 100, "most had no capability left");
    world.run(100);
    assert!(world.got(A).iter().all(|delivery| delivery.how == Inbound::Deliver));
}

#[test]
fn a_phone_and_a_capable_client_behind_one_address_both_get_what_they_understand() {
    for answers_only in [false, true] {
        phone_beside_client(answers_only);
    }
}

fn phone_beside_client(answers_only: bool) {
    let config = Config { answers_only, peers_max: 64, remotes_max: 64, ..Config::default() };
    let mut world = World::with_config(config, client(7), server(ServerConfig::default()), 1);
    world.hosts[A].know(address(B), Knowledge::Capable { carriage: Carriage::Native }, Instant::from_secs(9_999));
    world.send(A, &segment(A, Control::Syn, 100, None, 0)).unwrap();
    world.run(30);
    world.send(B, &segment(B, Control::Syn, 500, Some(101), 0)).unwrap();
    world.run(30);
    // The phone has no capabilities; its datagrams come plain from the same address.
    world.inject(A, &datagram(A, 160));
    world.run(1);
    world.send(B, &datagram(B, 160)).unwrap();
    assert_eq!(world.wire.last().unwrap().kind, None);
    world.send(B, &segment(B, Control::None, 501, Some(101), 10)).unwrap();
    assert!(world.wire.last().unwrap().kind.is_some());
}
