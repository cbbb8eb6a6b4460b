//! Transfers with capabilities on paths where everything goes wrong: they take longer, and arrive whole.

use std::{net::IpAddr, time::Duration};

use sluicegate_scheduler as scheduler;
use sluicegate_sim::{
    Faults, Interface, LinkConfig, NodeId, World,
    host::{Host, Shim, Uploads},
    router::{CapabilityRouter, Routes},
    tcp::{Config, End},
};
use sluicegate_wire::{Instant, Reason, capability::Limits};

const RATE_BPS: u64 = 20_000_000;
const FILE_BYTES: u64 = 2_000_000;

struct Chain {
    world: World,
    client: NodeId,
    server: NodeId,
    routers: [NodeId; 2],
}

/// Client - router - router - server, with these faults on every link in both directions.
fn chain((client, server): (&str, &str), faults: Faults) -> Chain {
    let (client, server): (IpAddr, IpAddr) = (client.parse().unwrap(), server.parse().unwrap());
    let mut world = World::new(77);
    let limits = Limits::new(500, 20).unwrap();
    let config = Config { abort_after: None, ..Config::PAPER };
    let files = Uploads::new((server, 80), FILE_BYTES, 1, Instant::ZERO).with_config(config);
    let routes = Routes::all(Interface(0)).with(server, Interface(1));
    let router = |seed| CapabilityRouter::new(routes.clone(), Interface(1), seed);
    let client = world.add(Host::new(client).with_uploads(files).with_shim(Shim::of_client(limits, 1)));
    let server = world.add(Host::new(server).with_shim(Shim::of_server(16, limits, 2)));
    let routers = [world.add(router(3)), world.add(router(4))];
    let link = LinkConfig { faults, ..LinkConfig::new(RATE_BPS, Duration::from_millis(5)) };
    let link = link.with_scheduler(scheduler::Config { overhead_bytes: 0, ..scheduler::Config::for_rate(RATE_BPS) });
    for (a, b) in [(client, routers[0]), (routers[0], routers[1]), (routers[1], server)] {
        world.connect(a, b, &link);
    }
    Chain { world, client, server, routers }
}

const V4: (&str, &str) = ("198.51.100.1", "203.0.113.1");
const V6: (&str, &str) = ("2001:db8:1::1", "2001:db8:2::1");

impl Chain {
    /// Runs until the file has arrived, and returns how long that took.
    fn arrives(&mut self) -> Duration {
        let client = self.client;
        let pace = Duration::from_millis(100);
        let ended = self.world.run_while(Instant::from_secs(600), pace, |world| world.node::<Host>(client).is_done());
        assert!(ended, "the transfer hangs");
        let transfer = *self.world.node::<Host>(client).transfers().next().unwrap();
        assert_eq!(transfer.end, End::Complete);
        let receiver = self.world.node::<Host>(self.server).receivers().values().next().unwrap();
        assert_eq!((receiver.received(), receiver.mangled()), (FILE_BYTES, 0));
        transfer.took()
    }

    fn demoted(&self, router: usize, reason: Reason) -> u64 {
        self.world.node::<CapabilityRouter>(self.routers[router]).counters().demoted[reason as usize]
    }
}

#[test]
fn without_faults_nothing_is_demoted_in_either_address_family() {
    for addresses in [V4, V6] {
        let mut chain = chain(addresses, Faults::NONE);
        let took = chain.arrives();
        assert!(took < Duration::from_millis(1_300), "{took:?}");
        for router in 0..2 {
            for reason in Reason::ALL {
                assert_eq!(chain.demoted(router, *reason), 0, "router {router}: {reason:?}");
            }
        }
    }
}

#[test]
fn a_transfer_survives_loss_duplication_reordering_and_flipped_bits() {
    let faults = Faults {
        loss_ppm: 5_000,
        duplicate_ppm: 5_000,
        reorder_ppm: 5_000,
        reorder_delay: Duration::from_millis(3),
        corrupt_ppm: 1_000,
    };
    for addresses in [V4, V6] {
        chain(addresses, faults).arrives();
    }
}

#[test]
fn a_router_whose_clock_jumps_past_t_demotes_until_it_is_asked_again() {
    let mut chain = chain(V4, Faults::NONE);
    let router = chain.routers[0];
    chain.world.at(Instant::from_millis(700), move |world| world.jump_clock(router, Duration::from_secs(100)));
    let took = chain.arrives();
    assert!(took < Duration::from_millis(1_300), "{took:?}");
    assert!(chain.demoted(0, Reason::CapabilityExpired) > 0);
}

#[test]
fn routers_that_restart_one_after_the_other_stop_nobody() {
    let mut chain = chain(V4, Faults { loss_ppm: 2_000, ..Faults::NONE });
    for (turn, millis) in [300, 500, 700, 900].into_iter().enumerate() {
        let router = chain.routers[turn % 2];
        chain.world.at(Instant::from_millis(millis), move |world| world.restart(router));
    }
    chain.arrives();
}
