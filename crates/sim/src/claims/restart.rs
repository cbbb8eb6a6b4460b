//! Routers that lose their memory.

use std::{cell::RefCell, net::IpAddr, rc::Rc, time::Duration};

use sluicegate_capability::host::{ClientIds, ClientPolicy, ServerConfig, ServerPolicy};
use sluicegate_flow::scheduler;
use sluicegate_wire::{
    Instant,
    capability::{ClientId, Kind, Limits, shim},
    ip::Summary,
};

use super::{Claim, Level, Outcome, Paper, Setting};
use crate::{
    Interface, LinkConfig, LinkId, NodeId, Rng, World,
    host::{Host, Shim, Uploads},
    router::{CapabilityRouter, CapabilityRouterConfig, Routes},
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
    /// From the first demoted packet to the next regular one; `None` if nothing was demoted.
    reacquired: Option<Duration>,
}

/// Client - router - router - server.
struct Chain {
    world: World,
    client: NodeId,
    routers: [NodeId; 2],
    links: Vec<LinkId>,
    last: LinkId,
}

impl Chain {
    fn new(seed: u64) -> Self {
        let mut world = World::new(seed);
        let limits = Limits::new(Limits::KILOBYTES_MAX, 30).expect("possible limits");
        let config = Config { abort_after: None, ..Config::PAPER };
        let files = Uploads::new((SERVER, 80), FILE_BYTES, 1, Instant::ZERO).with_config(config);
        let own = ClientPolicy::new(ClientIds::Fixed(ClientId::NONE), limits);
        let client = Host::new(CLIENT).with_uploads(files).with_shim(Shim::new(16, own, seed ^ 1));
        let public = ServerPolicy::new(ServerConfig { limits, ..ServerConfig::default() }, Rng::new(seed).key());
        let server = Host::new(SERVER).with_shim(Shim::new(16, public, seed ^ 2));
        let routes = Routes::all(Interface(0)).with(SERVER, Interface(1));
        let router = |n| CapabilityRouter::new(CapabilityRouterConfig::new(routes.clone(), Interface(1), seed ^ n));
        let (client, server) = (world.add(client), world.add(server));
        let routers = [world.add(router(3)), world.add(router(4))];
        let link = LinkConfig::new(RATE_BPS, DELAY).with_scheduler(scheduler::Config::for_rate(RATE_BPS));
        let mut links = Vec::new();
        for (a, b) in [(client, routers[0]), (routers[0], routers[1]), (routers[1], server)] {
            let (there, back) = world.connect(a, b, &link);
            links.extend([there, back]);
        }
        let last = links[4];
        Self { world, client, routers, links, last }
    }

    fn restart(mut self, which: usize, at: Instant) -> Seen {
        let router = self.routers[which];
        self.world.at(at, move |world| world.restart(router));
        let times: Rc<RefCell<(Option<Instant>, Option<Instant>)>> = Rc::default();
        let noted = Rc::clone(&times);
        self.world.tap(self.last, move |now, bytes| {
            let (demoted, regular) = &mut *noted.borrow_mut();
            match is_demoted(bytes) {
                Some(true) if demoted.is_none() => *demoted = Some(now),
                Some(false) if demoted.is_some() && regular.is_none() => *regular = Some(now),
                _ => {}
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
        let (demoted, regular) = *times.borrow();
        Seen {
            lost: on_links + at_routers + transfer.map_or(0, |transfer| transfer.repeated),
            complete: transfer.is_some_and(|transfer| transfer.end == End::Complete),
            reacquired: demoted.zip(regular).map(|(demoted, regular)| regular.since(demoted)),
        }
    }
}

/// Whether a regular packet was demoted; `None` for other packets.
fn is_demoted(bytes: &[u8]) -> Option<bool> {
    let summary = Summary::parse(bytes).ok()?;
    let found = shim::find(&summary, bytes).ok()??;
    let header = found.packet(bytes);
    (header.kind() != Kind::Request).then(|| header.is_demoted())
}
