//! Between whom the regular lane is shared decides what a forged source address is good for (TVA VII).

mod support;

use std::{cell::RefCell, net::IpAddr, rc::Rc, time::Duration};

use sluicegate_capability::router::{Arrival, Class, Router, RouterConfig};
use sluicegate_capability::secrets::{Seed, seal};
use sluicegate_scheduler::{self as scheduler, Label};
use sluicegate_sim::{
    Interface, Io, LinkConfig, LinkId, Node, NodeId, World,
    host::{Host, Shim, Tally, Uploads},
    packet,
    router::Routes,
    tcp::Config,
};
use sluicegate_wire::{
    FrameBuf, Instant, IpProtocol, Port,
    capability::{
        Algorithm, CapabilityList, ClientId, FlowNonce, Kind, Limits, Repr,
        shim::{self, Carriage},
    },
    ip::Summary,
    udp,
};

/// S, whose address the attacker uses.
const SENDER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 1));
/// D, to whom S sends.
const DESTINATION: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(203, 0, 113, 1));
/// C, beside D, who allows the attacker everything.
const COLLUDER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(203, 0, 113, 2));
const BOTTLENECK_BPS: u64 = 2_000_000;
const FLOOD_BPS: u64 = 20_000_000;
const FILES: usize = 20;
const END: Instant = Instant::from_secs(60);
const TO_DESTINATIONS: Interface = Interface(0);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fairness {
    Destination,
    Source,
}

/// The product's router and lanes, fair to sources or to destinations.
struct FairRouter {
    router: Router,
    routes: Routes,
    fairness: Fairness,
}

impl FairRouter {
    fn new(routes: Routes, fairness: Fairness) -> Self {
        let settings = RouterConfig {
            lines_max: 4_096,
            lines6_max: 64,
            revocations_max: 64,
            boundary: [true, false],
            least: Limits::new(4, 10).unwrap(),
            seed: Seed([3; 32]),
            tag_key: [4; 16],
            first_seconds: 77,
            started_at: Instant::ZERO,
        };
        Self { router: Router::new(settings, [5; 16]), routes, fairness }
    }
}

impl Node for FairRouter {
    fn on_packet(&mut self, io: &mut Io<'_>, from: Interface, mut packet: FrameBuf) {
        let port = if from == TO_DESTINATIONS { Port::INSIDE } else { Port::OUTSIDE };
        let arrival = Arrival { port, neighbour: from.0 as u64 + 1, verified_source: false };
        let now = io.now();
        let class = packet.with(|frame| self.router.on_packet(now, &arrival, frame)).unwrap();
        let ip = Summary::parse(packet.bytes()).unwrap();
        let IpAddr::V4(queue) = (if self.fairness == Fairness::Source { ip.src } else { ip.dst }) else { panic!() };
        let label = match class {
            Class::Request { path } => Label::request(path),
            Class::Regular { .. } => Label::regular(queue.to_bits().into(), 1),
            Class::Legacy { .. } => Label::LEGACY,
        };
        io.send_as(self.routes.towards(ip.dst), label, packet);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.router.poll_timeout()
    }

    fn on_timeout(&mut self, io: &mut Io<'_>) {
        self.router.handle_timeout(io.now());
    }
}

/// What the colluder tells the attacker, by a way of their own: the latest capability.
type Whisper = Rc<RefCell<Option<(ClientId, CapabilityList)>>>;

fn everything() -> Limits {
    Limits::new(Limits::KILOBYTES_MAX, 60).unwrap()
}

/// Seals whatever asks, and tells the attacker.
struct Colluder {
    whisper: Whisper,
    bytes: Rc<RefCell<u64>>,
}

impl Node for Colluder {
    fn on_packet(&mut self, _: &mut Io<'_>, _: Interface, packet: FrameBuf) {
        let ip = Summary::parse(packet.bytes()).unwrap();
        if let Ok(Some(found)) = shim::find(&ip, packet.bytes()) {
            let header = found.packet(packet.bytes());
            if header.kind() == Kind::Request {
                let pre = (0..header.pointer().into()).map(|slot| header.capability(slot).unwrap());
                let list = pre.map(|pre| seal(Algorithm::SipHash, pre, everything())).collect();
                *self.whisper.borrow_mut() = Some((header.client_id(), list));
            } else {
                *self.bytes.borrow_mut() += ip.total_len as u64;
            }
        }
    }
}

/// Sends to the colluder as S, always inside a capability: asks for the next one before the last is spent.
struct Spoofer {
    whisper: Whisper,
    next: Instant,
    gap: Duration,
    asked: u32,
    held: Option<(ClientId, CapabilityList, u64)>,
}

impl Spoofer {
    fn new(whisper: Whisper) -> Self {
        let gap = Duration::from_nanos(1_200 * 8 * 1_000_000_000 / FLOOD_BPS);
        Self { whisper, next: Instant::ZERO, gap, asked: 0, held: None }
    }

    fn send(io: &mut Io<'_>, header: &Repr, payload: &[u8]) {
        let datagram = udp::Repr { src_port: 7, dst_port: 7, payload };
        let mut packet = packet::ip(SENDER, COLLUDER, &datagram);
        packet.with(|frame| shim::insert(frame, header, Carriage::Native)).unwrap();
        io.send(Interface(0), packet);
    }

    fn ask(&mut self, io: &mut Io<'_>) {
        self.asked += 1;
        let header = Repr::request(Algorithm::SipHash, ClientId(self.asked), 4, IpProtocol::UDP);
        Self::send(io, &header, &[0; 16]);
    }
}

impl Node for Spoofer {
    fn on_packet(&mut self, _: &mut Io<'_>, _: Interface, _: FrameBuf) {}

    fn poll_timeout(&self) -> Option<Instant> {
        (self.next < END).then_some(self.next)
    }

    fn on_timeout(&mut self, io: &mut Io<'_>) {
        if io.now() < self.next {
            return;
        }
        if let Some((id, list)) = self.whisper.borrow_mut().take() {
            self.held = Some((id, list, 0));
        }
        self.next = self.next + self.gap;
        let Some((client_id, list, sent)) = &mut self.held else {
            self.next = io.now() + Duration::from_millis(100);
            self.ask(io);
            return;
        };
        let header = Repr::Regular {
            algorithm: Algorithm::SipHash,
            kind: Kind::Capabilities,
            nonce: FlowNonce(1),
            client_id: *client_id,
            limits: Some(everything()),
            list: *list,
            pointer: 0,
            demoted: false,
            upper: IpProtocol::UDP,
            ret: None,
        };
        *sent += 1_300;
        let asks = *sent % 100_100 == 0;
        Self::send(io, &header, &[0; 1_150]);
        if asks {
            self.ask(io);
        }
    }
}

struct Outcome {
    tally: Tally,
    /// The colluder's part of what the bottleneck carried in regular packets while S sent.
    flood_bytes: u64,
    regular_bytes: u64,
    seconds: f64,
}

/// S and an attacker with S's address behind one router, whose link to D and C is the bottleneck.
fn run(fairness: Fairness, flooded: bool) -> Outcome {
    let mut world = World::new(9);
    let limits = Limits::new(100, 10).unwrap();
    let files = Uploads::new((DESTINATION, 80), 20_000, FILES, Instant::from_secs(1));
    let files = files.with_pause(Duration::from_millis(100)).with_config(Config::PAPER);
    let sender = Host::new(SENDER).with_uploads(files).with_shim(Shim::of_client(limits, 2));
    let destination = Host::new(DESTINATION).with_shim(Shim::of_server(64, limits, 1));
    let (whisper, bytes) = (Whisper::default(), Rc::default());

    let near = world.add(FairRouter::new(Routes::all(TO_DESTINATIONS).with(SENDER, Interface(1)), fairness));
    let hub = Routes::all(TO_DESTINATIONS).with(DESTINATION, Interface(1)).with(COLLUDER, Interface(2));
    let far = world.add(support::PlainRouter(hub));
    let (sender, destination) = (world.add(sender), world.add(destination));
    let colluder = world.add(Colluder { whisper: Rc::clone(&whisper), bytes: Rc::clone(&bytes) });
    let spoofer = world.add(Spoofer::new(whisper));

    let fast = LinkConfig::new(100_000_000, Duration::from_millis(5));
    let slow = LinkConfig::new(BOTTLENECK_BPS, Duration::from_millis(5));
    let paced = scheduler::Config { overhead_bytes: 0, ..scheduler::Config::for_rate(BOTTLENECK_BPS) };
    let (bottleneck, _) = world.connect_unlike(near, far, slow.clone().with_scheduler(paced), slow);
    world.connect(near, sender, &fast);
    world.connect(far, destination, &fast);
    world.connect(far, colluder, &fast);
    let entry = world.connect(spoofer, near, &fast).0;
    world.set_up(entry, flooded);
    finish(world, sender, bottleneck, &bytes)
}

fn finish(mut world: World, sender: NodeId, bottleneck: LinkId, bytes: &RefCell<u64>) -> Outcome {
    world.run_while(END, Duration::from_millis(250), |world| world.node::<Host>(sender).is_done());
    let tally = Tally::of(world.node::<Host>(sender).transfers());
    let regular = world.scheduler(bottleneck).unwrap().counters(scheduler::Lane::Regular);
    let seconds = world.now().as_nanos() as f64 / 1e9;
    Outcome { tally, flood_bytes: *bytes.borrow(), regular_bytes: regular.sent_bytes, seconds }
}

#[test]
fn without_an_attack_either_fairness_serves_the_sender() {
    for fairness in [Fairness::Destination, Fairness::Source] {
        assert_eq!(run(fairness, false).tally.complete, FILES, "{fairness:?}");
    }
}

#[test]
fn a_colluder_that_is_sent_to_under_a_forged_source_takes_the_sources_share_where_sources_are_fair() {
    let calm = run(Fairness::Source, false);
    let starved = run(Fairness::Source, true);
    println!(
        "by source: {} of {FILES} in {:.0} s, {:?}",
        starved.tally.complete, starved.seconds, starved.tally.median
    );
    assert!(starved.flood_bytes * 10 > starved.regular_bytes * 9, "the flood has the link");
    let slowed = starved.tally.median.is_none_or(|median| median > calm.tally.median.unwrap() * 5);
    assert!(starved.tally.complete <= FILES / 4 || slowed, "{:?}", starved.tally);
}

#[test]
fn a_colluder_that_is_sent_to_under_a_forged_source_takes_nothing_of_the_destinations_share() {
    let calm = run(Fairness::Destination, false);
    let served = run(Fairness::Destination, true);
    println!(
        "by destination: {} of {FILES} in {:.0} s, {:?}",
        served.tally.complete, served.seconds, served.tally.median
    );
    assert_eq!(served.tally.complete, FILES, "{:?}", served.tally);
    // Half the link is the destination's, whatever comes for its neighbour.
    assert!(served.tally.median.unwrap() < calm.tally.median.unwrap() * 2, "{:?} {:?}", served.tally, calm.tally);
    assert!(served.flood_bytes as f64 * 8.0 / served.seconds > BOTTLENECK_BPS as f64 * 0.45, "and the flood was one");
}
