use std::time::Duration;

use sluicegate_bounded::Gauge;
use sluicegate_capability::host::{
    Budget, Config, Decision, Host, Inbound, Knowledge, Policy, Request, Sending, ServerConfig, Standing, Unexpected,
};
use sluicegate_wire::{
    FrameBuf, Instant, IpProtocol,
    capability::{
        Algorithm, Capability, CapabilityList, ClientId, FlowNonce, Kind, Repr, Return, Slot, SlotList,
        shim::{self, Carriage},
    },
};

use super::{
    client, limits, server,
    world::{A, B, World, address, datagram, packet_between},
};

const ALGORITHM: Algorithm = Algorithm::SipHash;

fn world() -> World {
    World::new(client(7), server(ServerConfig { limits: limits(1_000, 10), ..ServerConfig::default() }), 2)
}

/// A packet in B's name with this return information, under the client id that A uses.
fn forged(ret: Return) -> Vec<u8> {
    let repr = Repr::request(ALGORITHM, ClientId(7), 0, IpProtocol::NO_NEXT_HEADER).with_return(Some(ret));
    let packet = packet_between(address(B), address(A), IpProtocol::NO_NEXT_HEADER, &[]);
    let mut frame = FrameBuf::from_bytes(&packet);
    frame.with(|frame| shim::insert(frame, &repr, Carriage::Native)).unwrap();
    frame.bytes().to_vec()
}

fn forged_list() -> Return {
    let list: CapabilityList = (1..4).map(|n| Capability::new(100, n * 77)).collect();
    Return::granted(limits(1_000, 10), list)
}

fn sending(world: &World) -> Sending {
    world.hosts[A].peers(world.now).next().unwrap().sending
}

#[test]
fn a_forged_grant_is_ignored_before_and_after_the_real_one() {
    let mut world = world();
    world.send(A, &datagram(A, 100)).unwrap();
    for _ in 0..100 {
        world.inject(B, &forged(forged_list()));
        world.run(1);
        assert_eq!(world.hosts[A].counters().answers_heard, 0);
        if world.hosts[A].counters().answers_ignored > 40 {
            break;
        }
    }
    world.run(100);
    world.inject(B, &forged(forged_list()));
    world.run(1);
    assert_eq!(world.hosts[A].counters().answers_heard, 1);
    world.send(A, &datagram(A, 100)).unwrap();
    world.run(100);
    assert_eq!(world.demoted(), 0);
    assert!(world.got(B).iter().all(|delivery| !delivery.demoted));
}

#[test]
fn a_forged_refusal_yields_to_the_real_grant_and_counts_for_nothing_without_a_request() {
    let mut world = world();
    world.send(A, &datagram(A, 100)).unwrap();
    world.inject(B, &forged(Return::refused()));
    world.run(1);
    assert!(matches!(sending(&world), Sending::Refused { .. }));
    world.run(100);
    assert!(matches!(sending(&world), Sending::Capable { .. }), "the real answer came later");
    world.inject(B, &forged(Return::refused()));
    world.run(10);
    world.send(A, &datagram(A, 100)).unwrap();
    assert_eq!(world.wire.last().unwrap().kind, Some(Kind::Capabilities));
}

#[test]
fn an_answer_that_is_played_again_gives_no_second_n() {
    let mut world = world();
    world.send(A, &datagram(A, 100)).unwrap();
    world.run(25);
    // What B sends is copied on its way.
    let mut frame = FrameBuf::from_bytes(&datagram(B, 50));
    let now = world.now;
    let (host, policy) = (&mut world.hosts[B], &mut world.policies[B]);
    frame.with(|frame| host.outbound(now, &mut **policy, frame)).unwrap();
    let answer = frame.bytes().to_vec();
    world.inject(B, &answer);
    world.run(1);
    world.send(A, &datagram(A, 1_000)).unwrap();
    let Sending::Capable { used, .. } = sending(&world) else { panic!("no capability") };
    assert!(used > 1_000);
    for _ in 0..10 {
        world.inject(B, &answer);
        world.run(1);
    }
    let Sending::Capable { used: after, .. } = sending(&world) else { panic!("no capability") };
    assert_eq!(after, used, "the same set, the same count");
    assert_eq!(world.hosts[A].counters().answers_heard, 1);
}

#[test]
fn forged_notices_cost_some_lists_and_few_requests() {
    let mut world = world();
    for _ in 0..100 {
        world.send(A, &datagram(A, 1_000)).unwrap();
        world.send(B, &datagram(B, 1_000)).unwrap();
        world.run(5);
    }
    let (requests, packets) = (world.count(A, Some(Kind::Request)), world.wire.len());
    for _ in 0..2_000 {
        world.inject(B, &forged(Return::demotion()));
        world.send(A, &datagram(A, 1_000)).unwrap();
        world.send(B, &datagram(B, 1_000)).unwrap();
        world.run(5);
    }
    let asked = world.count(A, Some(Kind::Request)) - requests;
    assert!(asked <= 12, "{asked} requests in 10 s");
    let sent = world.wire.len() - packets;
    assert!(sent <= 4_060, "{sent} packets instead of 4,000");
    assert_eq!(world.demoted(), 0);
    let lists = world.wire[packets..].iter().filter(|seen| seen.from == A && seen.kind == Some(Kind::Capabilities));
    assert!(lists.count() <= 200);
}

#[test]
fn a_flood_of_forged_requests_costs_no_live_peer_its_state_and_no_memory() {
    let mut world = world();
    for _ in 0..20 {
        world.send(A, &datagram(A, 200)).unwrap();
        world.send(B, &datagram(B, 200)).unwrap();
        world.run(5);
    }
    let (now, policy) = (world.now, &mut world.policies[B]);
    for n in 0..10_000u32 {
        let src = core::net::Ipv4Addr::from_bits(0x0a00_0000 + n).into();
        let mut frame = FrameBuf::from_bytes(&packet_between(src, address(B), IpProtocol::UDP, &[0; 8]));
        let mut entries = SlotList::new();
        entries.push(Slot::default()).unwrap();
        let repr = Repr::Request {
            algorithm: ALGORITHM,
            client_id: ClientId(n),
            slots: 8,
            entries,
            demoted: false,
            upper: IpProtocol::UDP,
            ret: None,
        };
        frame.with(|frame| shim::insert(frame, &repr, Carriage::Native)).unwrap();
        let got = frame.with(|frame| world.hosts[B].inbound(now, &mut **policy, frame));
        assert!(matches!(got, Ok(Inbound::Deliver | Inbound::Refused)));
    }
    let gauges = world.hosts[B].gauges(now);
    assert!(gauges.iter().all(|gauge| gauge.used <= gauge.max), "{gauges:?}");
    assert_eq!(gauges[1], Gauge { name: "capability_strangers", used: 32, max: 32 });
    let live = world.hosts[B].peers(now).find(|peer| peer.remote == address(A)).unwrap();
    assert_eq!(live.standing, Standing::Proven);
    let demoted = world.got(B).iter().filter(|delivery| delivery.demoted).count();
    world.send(A, &datagram(A, 200)).unwrap();
    world.run(100);
    assert_eq!(world.got(B).iter().filter(|delivery| delivery.demoted).count(), demoted);
}

#[test]
fn packets_of_strangers_get_few_notices_all_together() {
    let mut host = Host::new(Config { peers_max: 64, remotes_max: 64, ..Config::default() }, [2; 32]);
    let mut policy = server(ServerConfig::default());
    let mut sent = 0;
    for ms in 0..1_000u64 {
        let now = Instant::from_millis(10_000 + ms);
        for n in 0..20 {
            let src = core::net::Ipv4Addr::from_bits(0x0a00_0000 + ms as u32 * 20 + n).into();
            let mut frame = FrameBuf::from_bytes(&packet_between(src, address(B), IpProtocol::UDP, &[0; 8]));
            let mut repr = Repr::nonce_only(ALGORITHM, ClientId(1), FlowNonce(5), IpProtocol::UDP);
            if let Repr::Regular { demoted, .. } = &mut repr {
                *demoted = true;
            }
            frame.with(|frame| shim::insert(frame, &repr, Carriage::Native)).unwrap();
            frame.with(|frame| host.inbound(now, &mut *policy, frame)).unwrap();
        }
        let mut frame = FrameBuf::from_bytes(&[0; 40]);
        while frame.with(|frame| host.poll_output(now, frame)) {
            sent += 1;
        }
    }
    assert!((50..=100).contains(&sent), "{sent} notices for 20,000 packets");
}

#[test]
fn one_bad_client_of_many_behind_one_address_shares_its_fate_with_nobody() {
    // Three clients behind one address, each with the id of its own grant; the second has none any more.
    struct Granted;
    impl Policy for Granted {
        fn decide(&mut self, _: Instant, request: &Request) -> Decision {
            let budget = Budget { bytes: 1_000_000, seconds: 60, rate: 0, rtt_ms: 20 };
            if request.client_id == ClientId(2) { Decision::Silent } else { budget.decide() }
        }

        fn unexpected(&mut self, _: Instant, _: &Unexpected) -> bool {
            true
        }
    }
    let mut policy = Granted;
    let now = Instant::from_secs(3);
    let mut b = Host::new(Config { peers_max: 64, remotes_max: 64, ..Config::default() }, [2; 32]);
    for id in 1..=3 {
        let mut a = Host::new(Config { peers_max: 8, remotes_max: 8, ..Config::default() }, [id as u8 + 50; 32]);
        let mut own = client(id);
        let mut outbound = datagram(A, 100);
        outbound[21] = id as u8; // each from a port of its own
        let mut frame = FrameBuf::from_bytes(&outbound);
        frame.with(|frame| a.outbound(now, &mut *own, frame)).unwrap();
        let got = frame.with(|frame| b.inbound(now, &mut policy, frame)).unwrap();
        assert_eq!(got, if id == 2 { Inbound::Refused } else { Inbound::Deliver });
        let mut reply = datagram(B, 100);
        reply[23] = id as u8;
        let mut frame = FrameBuf::from_bytes(&reply);
        frame.with(|frame| b.outbound(now, &mut policy, frame)).unwrap();
        frame.with(|frame| a.inbound(now + Duration::from_millis(1), &mut *own, frame)).unwrap();
        let capable = a.peers(now).any(|peer| matches!(peer.sending, Sending::Capable { .. }));
        assert_eq!(capable, id != 2, "client {id}: the answer on its port goes under its id");
    }
}

#[test]
fn plain_packets_of_strangers_make_nobody_a_legacy_host() {
    let mut world = world();
    world.fate = Box::new(|_, from| (from == B).then_some(Duration::from_millis(25)));
    for _ in 0..4 {
        world.send(A, &datagram(A, 100)).unwrap();
        world.run(1_000);
        let mut forged = datagram(B, 100);
        forged[20] ^= 1; // from another port than the one that A sends to
        world.inject(B, &forged);
        world.run(1);
    }
    assert_eq!(world.hosts[A].knowledge(world.now, address(B)), None);
    world.inject(B, &datagram(B, 100));
    world.run(1);
    assert_eq!(world.hosts[A].knowledge(world.now, address(B)), Some(Knowledge::Legacy), "the right ports do");
}
