//! Hosts, routers and attackers with capabilities, in one small world.

mod support;

use std::{net::IpAddr, time::Duration};

use sluicegate_capability::host::{ClientIds, ClientPolicy, ServerConfig, ServerPolicy};
use sluicegate_scheduler as scheduler;
use sluicegate_sim::{
    Interface, LinkConfig, LinkId, NodeId, World,
    attacker::Attacker,
    host::{Host, Shim, Tally, Uploads},
    router::{CapabilityRouter, Routes},
};
use sluicegate_wire::{
    Instant,
    capability::{ClientId, Limits},
};

use support::{PlainRouter, Source};

/// What the attackers flood with.
#[derive(Debug, Clone, Copy)]
enum Flood {
    Legacy,
    Requests {
        forged: u8,
    },
    /// With what they were granted.
    Authorised,
}

const SERVER: &str = "203.0.113.1";
const BOTTLENECK_BPS: u64 = 2_000_000;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn client_policy() -> ClientPolicy {
    ClientPolicy::new(ClientIds::Fixed(ClientId::NONE), Limits::new(32, 10).unwrap())
}

struct Site {
    world: World,
    client: NodeId,
    bottleneck: LinkId,
}

/// A client and twenty attackers of 1 Mb/s each behind one router, whose link to the server is the bottleneck.
fn site(with_capabilities: bool, flood: Option<Flood>) -> Site {
    let mut world = World::new(5);
    let mut routes = Routes::all(Interface(1)).with(ip(SERVER), Interface(0));
    let mut server = Host::new(ip(SERVER));
    let files = Uploads::new((ip(SERVER), 80), 20_000, 20, Instant::from_millis(500));
    let mut client = Host::new(ip("198.51.100.1")).with_uploads(files.with_pause(Duration::from_millis(100)));
    if with_capabilities {
        server = server.with_shim(Shim::new(
            64,
            ServerPolicy::new(ServerConfig { flood_bytes_per_s: u64::MAX, ..ServerConfig::default() }, [1; 16]),
            1,
        ));
        client = client.with_shim(Shim::new(64, client_policy(), 2));
    }
    let attackers: Vec<IpAddr> = (0..20).map(|n| IpAddr::from([198, 51, 101, n])).collect();
    for (n, address) in attackers.iter().enumerate() {
        routes = routes.with(*address, Interface(2 + n));
    }
    let server = world.add(server);
    let (fast, link) = (LinkConfig::new(100_000_000, Duration::from_millis(5)), BOTTLENECK_BPS);
    let slow = LinkConfig::new(link, Duration::from_millis(5));
    let (router, there) = if with_capabilities {
        let config = scheduler::Config { overhead_bytes: 0, ..scheduler::Config::for_rate(link) };
        (world.add(CapabilityRouter::new(routes, Interface(0), 3)), slow.clone().with_scheduler(config))
    } else {
        (world.add(PlainRouter(routes)), slow.clone())
    };
    let (bottleneck, _) = world.connect_unlike(router, server, there, slow);
    let client = world.add(client);
    world.connect(router, client, &fast);
    for address in attackers {
        let (ends, until) = ((address, ip(SERVER)), Instant::from_secs(60));
        let source = |until| Source::new(ends, 1_000, 1_000_000, until);
        let node = match flood {
            None => world.add(source(Instant::ZERO)),
            Some(Flood::Legacy) => world.add(source(until)),
            Some(Flood::Requests { forged }) => world.add(source(until).forging(forged)),
            Some(Flood::Authorised) => world.add(Attacker::new(ends, 1_000, 1_000_000, (Instant::ZERO, until))),
        };
        world.connect(router, node, &fast);
    }
    Site { world, client, bottleneck }
}

fn tally(mut site: Site) -> (Tally, Site) {
    let client = site.client;
    site.world
        .run_while(Instant::from_secs(60), Duration::from_millis(500), |world| world.node::<Host>(client).is_done());
    let tally = Tally::of(site.world.node::<Host>(site.client).transfers());
    (tally, site)
}

#[test]
fn without_an_attack_capabilities_cost_next_to_nothing() {
    let (plain, _) = tally(site(false, None));
    let (ours, _) = tally(site(true, None));
    assert_eq!((plain.complete, ours.complete), (20, 20));
    assert!(ours.median.unwrap() < plain.median.unwrap() * 11 / 10, "{ours:?} {plain:?}");
}

#[test]
fn a_legacy_flood_stops_plain_transfers_and_no_others() {
    let (calm, _) = tally(site(true, None));
    let (plain, _) = tally(site(false, Some(Flood::Legacy)));
    let (ours, site) = tally(site(true, Some(Flood::Legacy)));
    assert_eq!(ours.complete, 20, "{ours:?}");
    assert!(plain.complete <= 1, "{plain:?}");
    assert!(ours.median.unwrap() < calm.median.unwrap() * 3 / 2, "{ours:?} {calm:?}");
    assert!(site.world.link(site.bottleneck).refused > 10_000);
}

#[test]
fn a_flood_of_requests_leaves_the_neighbour_beside_it_alone() {
    let (ours, _) = tally(site(true, Some(Flood::Requests { forged: 3 })));
    assert_eq!(ours.complete, 20, "{ours:?}");
    assert!(ours.median.unwrap() < Duration::from_millis(500), "{ours:?}");
}

#[test]
fn an_authorised_flood_ends_with_its_bytes() {
    let (ours, site) = tally(site(true, Some(Flood::Authorised)));
    assert_eq!(ours.complete, 20, "{ours:?}");
    let scheduler = site.world.scheduler(site.bottleneck).unwrap();
    let regular = scheduler.counters(scheduler::Lane::Regular);
    // 20 attackers with 32 kB each, of which the bottleneck carries a part, and the client's 400 kB with headers.
    assert!(regular.sent_bytes < 20 * 64_000 + 20 * 24_000, "{regular:?}");
}

#[test]
fn a_world_with_capabilities_repeats_bit_for_bit() {
    let hash = || tally(site(true, Some(Flood::Requests { forged: 5 }))).1.world.trace_hash();
    assert_eq!(hash(), hash());
}
