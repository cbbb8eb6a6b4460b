//! Routers that lose their memory.

use std::{cell::Cell, net::IpAddr, rc::Rc, time::Duration};

use sluicegate_scheduler as scheduler;
use sluicegate_wire::{
    Instant,
    capability::{Kind, Limits},
};

use super::{Claim, Level, Outcome, Paper, Setting};
use crate::{
    Interface, LinkConfig, LinkId, NodeId, Rng, World,
    host::{Host, Shim, Uploads},
    packet,
    router::{CapabilityRouter, Routes},
    tcp::{Config, End},
};

const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 1));
const SERVER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(203, 0, 113, 1));
const RATE_BPS: u64 = 100_000_000;
/// Of each of the three links, one way.
const DELAY: Duration = Duration::from_millis(6);
const ROUND_TRIP: Duration = Duration::from_millis(36);
/// What serialization adds to two round trips.
const SLACK: Duration = Duration::from_millis(1);
const FILE_BYTES: u64 = 3_000_000;

pub(super) const TVA_20: Claim = Claim {
    id: "TVA-20",
    paper: Paper::Tva,
    source: "III-H",
    expected: "a restarted router demotes and drops nothing; 0 packets lost on an idle link; capabilities again in <= 2 RTT",
    tolerance: "each of the runs; 2 RTT = 72 ms and 1 ms of serialization",
    level: Level::Statistical,
    run: restarts,
};

/// Restarts one of two routers somewhere in a transfer, again and again.
fn restarts(setting: &Setting) -> Outcome {
    let mut rng = Rng::of(setting.seed, 20);
    let runs = if setting.short { 6 } else { 100 };
    let (mut lost, mut incomplete, mut undemoted) = (0, 0, 0);
    let mut longest = Duration::ZERO;
    for run in 0..runs {
        let at = Instant::from_nanos(300_000_000 + rng.below(1_000_000_000));
        let seen = Chain::new(rng.bits()).restart(run % 2, at);
        lost += seen.lost;
        incomplete += u64::from(!seen.complete);
        match seen.reacquired {
            Some(took) => longest = longest.max(took),
            None => undemoted += 1,
        }
    }
    Outcome::new(
        lost == 0 && incomplete == 0 && undemoted == 0 && longest <= 2 * ROUND_TRIP + SLACK,
        format!(
            "{runs} restarts: {lost} packets lost, {incomplete} transfers incomplete, capabilities again after at most \
             {:.1} ms ({:.2} RTT)",
            longest.as_secs_f64() * 1e3,
            longest.as_secs_f64() / ROUND_TRIP.as_secs_f64()
        ),
    )
}

/// What a run showed.
struct Seen {
    lost: u64,
    complete: bool,
    /// From the sending of the first packet that was demoted to the arrival of new capabilities; `None` if nothing was
    /// demoted.
    reacquired: Option<Duration>,
}

/// Client - router - router - server.
struct Chain {
    world: World,
    client: NodeId,
    routers: [NodeId; 2],
    /// From the client and back, router to router and back, to the server and back.
    links: Vec<LinkId>,
}

impl Chain {
    fn new(seed: u64) -> Self {
        let mut world = World::new(seed);
        let limits = Limits::new(Limits::KILOBYTES_MAX, 30).expect("possible limits");
        let config = Config { abort_after: None, ..Config::PAPER };
        let files = Uploads::new((SERVER, 80), FILE_BYTES, 1, Instant::ZERO).with_config(config);
        let client = Host::new(CLIENT).with_uploads(files).with_shim(Shim::of_client(limits, seed ^ 1));
        let server = Host::new(SERVER).with_shim(Shim::of_server(16, limits, seed ^ 2));
        let routes = Routes::all(Interface(0)).with(SERVER, Interface(1));
        let router = |n| CapabilityRouter::new(routes.clone(), Interface(1), seed ^ n);
        let (client, server) = (world.add(client), world.add(server));
        let routers = [world.add(router(3)), world.add(router(4))];
        let link = LinkConfig::new(RATE_BPS, DELAY).with_scheduler(scheduler::Config::for_rate(RATE_BPS));
        let mut links = Vec::new();
        for (a, b) in [(client, routers[0]), (routers[0], routers[1]), (routers[1], server)] {
            let (there, back) = world.connect(a, b, &link);
            links.extend([there, back]);
        }
        Self { world, client, routers, links }
    }

    fn restart(mut self, which: usize, at: Instant) -> Seen {
        let router = self.routers[which];
        self.world.at(at, move |world| world.restart(router));
        let demoted: Rc<Cell<Option<Instant>>> = Rc::default();
        let answered: Rc<Cell<Option<Instant>>> = Rc::default();
        let noted = Rc::clone(&demoted);
        self.world.tap(self.links[4], move |now, bytes| {
            if noted.get().is_none() && is_demoted(bytes) == Some(true) {
                noted.set(Some(now));
            }
        });
        let (since, noted) = (Rc::clone(&demoted), Rc::clone(&answered));
        self.world.tap(self.links[1], move |now, bytes| {
            // What comes earlier answers a renewal from before the restart.
            let is_new = since.get().is_some_and(|demoted| now.since(demoted) + DELAY > ROUND_TRIP * 3 / 2);
            if is_new && noted.get().is_none() && brings_capabilities(bytes) {
                noted.set(Some(now));
            }
        });
        let client = self.client;
        let pace = Duration::from_millis(100);
        self.world.run_while(Instant::from_secs(60), pace, |world| world.node::<Host>(client).is_done());
        let transfer = self.world.node::<Host>(client).transfers().next();
        let stats = self.links.iter().map(|link| self.world.link(*link));
        let on_links: u64 = stats.map(|stats| stats.lost + stats.refused).sum();
        let at_routers: u64 =
            self.routers.iter().map(|router| self.world.node::<CapabilityRouter>(*router).dropped()).sum();
        Seen {
            lost: on_links + at_routers + transfer.map_or(0, |transfer| transfer.repeated),
            complete: transfer.is_some_and(|transfer| transfer.end == End::Complete),
            reacquired: demoted.get().zip(answered.get()).map(|(demoted, at)| at.since(demoted) + ROUND_TRIP / 2),
        }
    }
}

/// Whether a regular packet was demoted; `None` for other packets.
fn is_demoted(bytes: &[u8]) -> Option<bool> {
    let header = packet::header(bytes)?;
    (header.kind() != Kind::Request).then(|| header.is_demoted())
}

/// Whether a packet carries the answer that grants a request.
fn brings_capabilities(bytes: &[u8]) -> bool {
    let list = packet::header(bytes).and_then(|header| header.return_info()?.list);
    list.is_some_and(|(limits, list)| limits.is_some() && !list.is_empty())
}
