//! Hosts of the capability crate through the routers of this one.

use std::{collections::VecDeque, net::IpAddr, time::Duration};

use sluicegate_capability::router::{Arrival, Class, Router, RouterConfig};
use sluicegate_capability::{
    host::{ClientIds, ClientPolicy, Config, Host, Policy, Sending, ServerConfig, ServerPolicy, Standing},
    secrets::Seed,
};
use sluicegate_wire::{
    FrameBuf, Instant, Port, Reason, build,
    capability::{ClientId, Limits},
};

const ONE_WAY: Duration = Duration::from_millis(10);

struct Pair {
    now: Instant,
    hosts: [Host; 2],
    policies: [Box<dyn Policy>; 2],
    routers: Vec<Router>,
    flying: VecDeque<(Instant, usize, FrameBuf)>,
    /// Packets that others overtake before the first router.
    overtaken: VecDeque<(Instant, usize, FrameBuf)>,
    regular: u64,
    requests: u64,
    demoted: u64,
    last_demoted: Instant,
    delivered: [u64; 2],
}

fn router(seed: u8) -> Router {
    let config = RouterConfig {
        lines_max: 64,
        lines6_max: 8,
        revocations_max: 8,
        boundary: [true, false],
        least: Limits::new(1, 63).unwrap(),
        seed: Seed([seed; 32]),
        tag_key: [seed; 16],
        first_seconds: u64::from(seed) * 1_000,
        started_at: Instant::ZERO,
    };
    Router::new(config, [seed; 16])
}

fn address(side: usize) -> IpAddr {
    if side == 0 { "192.0.2.1".parse().unwrap() } else { "198.51.100.2".parse().unwrap() }
}

fn datagram(from: usize, len: usize) -> FrameBuf {
    FrameBuf::from_bytes(&build::datagram((address(from), 9), (address(1 - from), 9), &vec![1; len]))
}

impl Pair {
    fn new(limits: Limits) -> Self {
        let config = Config { peers_max: 8, remotes_max: 8, ..Config::default() };
        let client = ClientPolicy::new(ClientIds::Fixed(ClientId(9)), limits);
        let server =
            ServerPolicy::new(ServerConfig { limits, flood_bytes_per_s: u64::MAX, ..ServerConfig::default() }, [1; 16]);
        Self {
            now: Instant::from_millis(123_456),
            hosts: [Host::new(config, [1; 32]), Host::new(config, [2; 32])],
            policies: [Box::new(client), Box::new(server)],
            routers: vec![router(3), router(4), router(5)],
            flying: VecDeque::new(),
            overtaken: VecDeque::new(),
            regular: 0,
            requests: 0,
            demoted: 0,
            last_demoted: Instant::ZERO,
            delivered: [0; 2],
        }
    }

    fn send(&mut self, from: usize, len: usize) {
        let mut frame = datagram(from, len);
        let (host, policy) = (&mut self.hosts[from], &mut self.policies[from]);
        frame.with(|frame| host.outbound(self.now, &mut **policy, frame)).unwrap();
        self.launch(from, frame);
        self.flush(from);
    }

    /// As [`Self::send`], but the packet reaches the routers only after what is sent in the next milliseconds.
    fn send_late(&mut self, from: usize, len: usize) {
        let mut frame = datagram(from, len);
        let (host, policy) = (&mut self.hosts[from], &mut self.policies[from]);
        frame.with(|frame| host.outbound(self.now, &mut **policy, frame)).unwrap();
        self.overtaken.push_back((self.now + Duration::from_millis(5), from, frame));
    }

    fn flush(&mut self, from: usize) {
        let mut frame = FrameBuf::from_bytes(&[0; 40]);
        while frame.with(|frame| self.hosts[from].poll_output(self.now, frame)) {
            self.launch(from, FrameBuf::from_bytes(frame.bytes()));
            frame = FrameBuf::from_bytes(&[0; 40]);
        }
    }

    fn launch(&mut self, from: usize, mut frame: FrameBuf) {
        let mut order: Vec<usize> = (0..self.routers.len()).collect();
        if from == 1 {
            order.reverse();
        }
        let port = if from == 0 { Port::OUTSIDE } else { Port::INSIDE };
        let arrival = Arrival { port, neighbour: 77, verified_source: false };
        for router in order {
            let class = frame.with(|frame| self.routers[router].on_packet(self.now, &arrival, frame)).unwrap();
            match class {
                Class::Regular { .. } => self.regular += 1,
                Class::Request { .. } => self.requests += 1,
                // What a host sends without capability is in the demoted class from the start.
                Class::Legacy { demoted: None | Some(Reason::AlreadyDemoted) } => {}
                Class::Legacy { demoted: Some(_) } => {
                    self.demoted += 1;
                    self.last_demoted = self.now;
                }
            }
        }
        self.flying.push_back((self.now + ONE_WAY, 1 - from, frame));
    }

    fn advance(&mut self, step: Duration) {
        self.now = self.now + step;
        while let Some((_, from, frame)) = self.overtaken.pop_front_if(|(at, ..)| *at <= self.now) {
            self.launch(from, frame);
        }
        while let Some((_, to, mut frame)) = self.flying.pop_front_if(|(at, ..)| *at <= self.now) {
            let (host, policy) = (&mut self.hosts[to], &mut self.policies[to]);
            frame.with(|frame| host.inbound(self.now, &mut **policy, frame)).unwrap();
            self.delivered[to] += 1;
            self.flush(to);
        }
        for side in [0, 1] {
            self.flush(side);
        }
    }
}

#[test]
fn a_flow_of_100_mbit_s_stays_regular_for_ten_seconds_at_three_routers() {
    let mut pair = Pair::new(Limits::new(1_023, 10).unwrap());
    for n in 0..125_000u32 {
        pair.send(0, 960);
        if n % 10 == 0 {
            pair.send(1, 20);
        }
        pair.advance(Duration::from_micros(80));
    }
    assert_eq!(pair.demoted, 0);
    assert!(pair.requests < 60, "{} stampings of requests", pair.requests);
    assert!(pair.regular > 3 * 124_000);
}

#[test]
fn a_slow_flow_with_a_small_budget_is_never_demoted() {
    for (kilobytes, seconds) in [(4, 1), (4, 2), (32, 10), (1, 63)] {
        let mut pair = Pair::new(Limits::new(kilobytes, seconds).unwrap());
        for n in 0..2_000u32 {
            pair.send(0, 200);
            if n % 3 == 0 {
                pair.send(1, 200);
            }
            pair.advance(Duration::from_millis(30));
        }
        assert_eq!(pair.demoted, 0, "{kilobytes} kB in {seconds} s");
    }
}

#[test]
fn packets_that_are_overtaken_while_a_renewal_takes_over_are_never_demoted() {
    let mut pair = Pair::new(Limits::new(100, 10).unwrap());
    let mut before = 0;
    for n in 0..2_600u32 {
        if n == 100 {
            before = pair.demoted;
        }
        if n % 3 == 0 {
            pair.send_late(0, 500);
        } else {
            pair.send(0, 500);
        }
        if n % 10 == 0 {
            pair.send(1, 20);
        }
        pair.advance(Duration::from_millis(2));
    }
    assert_eq!(pair.demoted - before, 0, "of packets over some twenty renewals");
    assert!(pair.regular > 3 * 2_400, "{}", pair.regular);
}

#[test]
fn tva_20_a_restarted_router_costs_no_packet_and_two_round_trips_of_demotion() {
    let mut pair = Pair::new(Limits::new(1_000, 10).unwrap());
    let mut sent = 0;
    let mut run = |pair: &mut Pair, packets: u32| {
        for _ in 0..packets {
            pair.send(0, 1_000);
            pair.send(1, 40);
            sent += 1;
            pair.advance(Duration::from_millis(2));
        }
        sent
    };
    run(&mut pair, 1_000);
    assert_eq!(pair.demoted, 0);
    let restarted = pair.now;
    pair.routers[1] = router(99);
    let sent = run(&mut pair, 1_000);
    pair.advance(Duration::from_millis(100));
    let repaired = pair.last_demoted.since(restarted);
    assert!(repaired > Duration::ZERO && repaired <= 4 * ONE_WAY, "{repaired:?}");
    assert!(pair.delivered[1] >= sent, "{} of {sent}", pair.delivered[1]);
    for host in &pair.hosts {
        let peer = host.peers(pair.now).next().unwrap();
        assert_eq!(peer.standing, Standing::Proven);
        assert!(matches!(peer.sending, Sending::Capable { .. }));
    }
}
