use std::{any::Any, collections::BTreeMap, time::Duration};

use sluicegate_scheduler::{Label, LinkScheduler, Offered};
use sluicegate_wire::{FrameBuf, HEADROOM, Instant};

use crate::{
    LinkConfig, LinkId, LinkStats, Rng,
    link::{Link, Passage, nanos},
    trace::{Happened, Trace},
};

/// A node of a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub(crate) usize);

/// One of a node's interfaces, numbered in the order in which they were connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Interface(pub usize);

/// What a world drives: a host, a router, an attacker.
///
/// All times are the node's own clock, which a fault may set ahead of the world's. After every call the world asks
/// for [`Self::poll_timeout`] again.
pub trait Node: Any {
    /// A packet has arrived.
    fn on_packet(&mut self, io: &mut Io<'_>, from: Interface, packet: FrameBuf);

    /// When [`Self::on_timeout`] wants to be called next.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// The time of [`Self::poll_timeout`] has come.
    fn on_timeout(&mut self, _io: &mut Io<'_>) {}

    /// The node loses power and comes back at once: what it held in memory is gone. By default it held nothing.
    fn restart(&mut self, _now: Instant) {}
}

/// What a node may do while it is called.
pub struct Io<'a> {
    core: &'a mut Core,
    node: NodeId,
}

impl Io<'_> {
    /// The node's clock.
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant::from_nanos(self.core.now_ns + self.core.places[self.node.0].clock_ahead_ns)
    }

    /// The node's own stream of randomness.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.core.places[self.node.0].rng
    }

    /// Sends a packet, as legacy where the link tells lanes apart. One out of an interface that is not connected is
    /// dropped.
    pub fn send(&mut self, to: Interface, packet: FrameBuf) {
        self.send_as(to, Label::LEGACY, packet);
    }

    /// Sends a packet under this label, which a drop-tail link does not look at.
    pub fn send_as(&mut self, to: Interface, label: Label, packet: FrameBuf) {
        if let Some(link) = self.core.places[self.node.0].links.get(to.0) {
            self.core.offer(*link, label, packet);
        }
    }
}

/// Everything but the nodes themselves, so that a node and its surroundings can be borrowed together.
struct Core {
    seed: u64,
    now_ns: u64,
    next_order: u64,
    /// By time in nanoseconds; of two at the same time the one that was scheduled first comes first.
    events: BTreeMap<(u64, u64), Event>,
    places: Vec<Place>,
    links: Vec<Link>,
    trace: Trace,
}

/// What surrounds a node.
struct Place {
    links: Vec<LinkId>,
    clock_ahead_ns: u64,
    armed_ns: Option<u64>,
    rng: Rng,
}

/// A deterministic world of nodes and links on a virtual clock.
pub struct World {
    core: Core,
    nodes: Vec<Box<dyn Node>>,
}

impl World {
    /// An empty world at time zero.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let core = Core {
            seed,
            now_ns: 0,
            next_order: 0,
            events: BTreeMap::new(),
            places: Vec::new(),
            links: Vec::new(),
            trace: Trace::new(seed),
        };
        Self { core, nodes: Vec::new() }
    }

    /// Adds a node.
    pub fn add(&mut self, node: impl Node) -> NodeId {
        let id = NodeId(self.nodes.len());
        self.nodes.push(Box::new(node));
        let rng = Rng::of(self.core.seed, id.0 as u64 * 2);
        self.core.places.push(Place { links: Vec::new(), clock_ahead_ns: 0, armed_ns: None, rng });
        self.rearm(id);
        id
    }

    /// Joins two nodes by a link that is the same in both directions: the direction from `a` and the one from `b`.
    pub fn connect(&mut self, a: NodeId, b: NodeId, config: &LinkConfig) -> (LinkId, LinkId) {
        self.connect_unlike(a, b, config.clone(), config.clone())
    }

    /// Joins two nodes by a link that differs by direction.
    pub fn connect_unlike(&mut self, a: NodeId, b: NodeId, there: LinkConfig, back: LinkConfig) -> (LinkId, LinkId) {
        let at_a = Interface(self.core.places[a.0].links.len());
        let at_b = Interface(self.core.places[b.0].links.len() + usize::from(a == b));
        let there = self.add_link(a, (b, at_b), there);
        let back = self.add_link(b, (a, at_a), back);
        (there, back)
    }

    fn add_link(&mut self, from: NodeId, to: (NodeId, Interface), config: LinkConfig) -> LinkId {
        let id = LinkId(self.core.links.len());
        let rng = Rng::of(self.core.seed, id.0 as u64 * 2 + 1);
        self.core.links.push(Link::new(to, config, rng));
        self.core.places[from.0].links.push(id);
        id
    }

    /// The world's clock.
    #[must_use]
    pub const fn now(&self) -> Instant {
        Instant::from_nanos(self.core.now_ns)
    }

    /// The hash of all that has happened, every byte of every packet included.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.core.trace.hash()
    }

    /// How many things have happened.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.core.trace.events()
    }

    /// The node as what it is.
    ///
    /// # Panics
    /// If it is something else.
    #[must_use]
    pub fn node<N: Node>(&self, id: NodeId) -> &N {
        let any: &dyn Any = self.nodes[id.0].as_ref();
        any.downcast_ref().expect("the node is of the type it was added as")
    }

    /// What a link has done so far.
    #[must_use]
    pub fn link(&self, id: LinkId) -> LinkStats {
        self.core.links[id.0].stats
    }

    /// The scheduler of a link that has one.
    #[must_use]
    pub fn scheduler(&self, id: LinkId) -> Option<&LinkScheduler<FrameBuf>> {
        self.core.links[id.0].scheduler.as_deref()
    }

    /// Shows every packet that this link delivers: when it arrives, and its bytes.
    pub fn tap(&mut self, id: LinkId, mut see: impl FnMut(Instant, &[u8]) + 'static) {
        self.core.links[id.0].tap = Some(Box::new(move |at_ns, bytes| see(Instant::from_nanos(at_ns), bytes)));
    }

    /// Has a link lose exactly these packets, counted from 1 in the order in which they are offered to it.
    pub fn doom(&mut self, id: LinkId, ordinals: &[u64]) {
        let mut sorted = ordinals.to_vec();
        sorted.sort_unstable();
        self.core.links[id.0].doomed = sorted.into();
    }

    /// Cuts a link or mends it. A cut link loses what is sent from now on.
    pub fn set_up(&mut self, id: LinkId, is_up: bool) {
        self.core.links[id.0].is_up = is_up;
    }

    /// Restarts a node.
    pub fn restart(&mut self, id: NodeId) {
        let now = Io { core: &mut self.core, node: id }.now();
        self.nodes[id.0].restart(now);
        self.rearm(id);
    }

    /// Sets a node's clock ahead by this much more.
    pub fn jump_clock(&mut self, id: NodeId, ahead: Duration) {
        self.core.places[id.0].clock_ahead_ns += nanos(ahead);
        self.rearm(id);
    }

    /// Has something happen at this time of the world's clock, such as a fault.
    pub fn at(&mut self, when: Instant, script: impl FnOnce(&mut Self) + 'static) {
        self.core.schedule(when.as_nanos(), Event::Script(Box::new(script)));
    }

    /// Runs until nothing is left to happen up to and including `end`; the clock then shows `end`.
    pub fn run_until(&mut self, end: Instant) {
        while self.core.events.first_key_value().is_some_and(|((at_ns, _), _)| *at_ns <= end.as_nanos()) {
            self.step();
        }
        self.core.now_ns = self.core.now_ns.max(end.as_nanos());
    }

    /// Runs as [`Self::run_until`], but stops when `is_done` says so; it is asked every `pace`. Whether it did.
    pub fn run_while(&mut self, end: Instant, pace: Duration, mut is_done: impl FnMut(&Self) -> bool) -> bool {
        assert!(!pace.is_zero(), "time has to pass between two questions");
        while self.now() < end {
            self.run_until((self.now() + pace).min(end));
            if is_done(self) {
                return true;
            }
        }
        false
    }

    fn step(&mut self) {
        let Some(((at_ns, _), event)) = self.core.events.pop_first() else { return };
        self.core.now_ns = self.core.now_ns.max(at_ns);
        match event {
            Event::Arrive { link, packet } => self.arrive(link, packet),
            Event::Ready { link } => self.core.ready(link, at_ns),
            Event::Timeout { node } => self.timeout(node, at_ns),
            Event::Script(script) => {
                self.core.trace.note(Happened::Scripted, at_ns, 0, &[]);
                script(self);
            }
        }
    }

    fn arrive(&mut self, link: LinkId, packet: FrameBuf) {
        let (node, interface) = self.core.arrive(link, &packet);
        let packet = recentred(packet);
        self.nodes[node.0].on_packet(&mut Io { core: &mut self.core, node }, interface, packet);
        self.rearm(node);
    }

    fn timeout(&mut self, id: NodeId, at_ns: u64) {
        let place = &mut self.core.places[id.0];
        if place.armed_ns != Some(at_ns) {
            return;
        }
        place.armed_ns = None;
        let due_ns = self.nodes[id.0].poll_timeout().map(|due| self.core.places[id.0].world_ns(due));
        if due_ns.is_some_and(|due_ns| due_ns <= self.core.now_ns) {
            self.core.trace.note(Happened::Timeout, self.core.now_ns, id.0 as u64, &[]);
            self.nodes[id.0].on_timeout(&mut Io { core: &mut self.core, node: id });
        }
        self.rearm(id);
    }

    fn rearm(&mut self, id: NodeId) {
        let Some(due) = self.nodes[id.0].poll_timeout() else { return };
        let place = &mut self.core.places[id.0];
        let due_ns = place.world_ns(due).max(self.core.now_ns);
        if place.armed_ns.is_none_or(|armed_ns| due_ns < armed_ns) {
            place.armed_ns = Some(due_ns);
            self.core.schedule(due_ns, Event::Timeout { node: id });
        }
    }
}

impl Place {
    /// A time of the node's clock on the world's.
    const fn world_ns(&self, local: Instant) -> u64 {
        local.as_nanos().saturating_sub(self.clock_ahead_ns)
    }
}

impl Core {
    fn schedule(&mut self, at_ns: u64, event: Event) {
        let order = self.next_order;
        self.next_order += 1;
        self.events.insert((at_ns, order), event);
    }

    fn offer(&mut self, id: LinkId, label: Label, packet: FrameBuf) {
        let (now_ns, link) = (self.now_ns, &mut self.links[id.0]);
        link.stats.offered += 1;
        let len = packet.bytes().len();
        let Some(scheduler) = &mut link.scheduler else {
            match link.has_room(now_ns, len) {
                true => self.transmit(id, packet),
                false => self.refuse(id, packet),
            }
            return;
        };
        match scheduler.offer(Instant::from_nanos(now_ns), &label, len, packet) {
            Offered::Pass(packet) => self.transmit(id, packet),
            Offered::Queued => self.drain(id),
            Offered::Displaced(packet, _) => {
                self.refuse(id, packet);
                self.drain(id);
            }
            Offered::Refused(packet, _) => self.refuse(id, packet),
        }
    }

    fn refuse(&mut self, id: LinkId, packet: FrameBuf) {
        self.links[id.0].stats.refused += 1;
        self.trace.note(Happened::Refused, self.now_ns, id.0 as u64, packet.bytes());
    }

    /// The scheduler of a link wants to be asked.
    fn ready(&mut self, id: LinkId, at_ns: u64) {
        if self.links[id.0].armed_ns == Some(at_ns) {
            self.links[id.0].armed_ns = None;
            self.drain(id);
        }
    }

    /// Sends all that a link's scheduler lets go now, and asks again when it lets go more.
    fn drain(&mut self, id: LinkId) {
        let now = Instant::from_nanos(self.now_ns);
        while let Some(packet) = self.links[id.0].scheduler.as_mut().and_then(|scheduler| scheduler.poll(now)) {
            self.transmit(id, packet);
        }
        let link = &mut self.links[id.0];
        let Some(due) = link.scheduler.as_ref().and_then(|scheduler| scheduler.poll_timeout()) else { return };
        let due_ns = due.as_nanos().max(self.now_ns + 1);
        if link.armed_ns.is_none_or(|armed_ns| due_ns < armed_ns || armed_ns <= self.now_ns) {
            link.armed_ns = Some(due_ns);
            self.schedule(due_ns, Event::Ready { link: id });
        }
    }

    fn transmit(&mut self, id: LinkId, mut packet: FrameBuf) {
        match self.links[id.0].transmit(self.now_ns, &mut packet) {
            Passage::Arrives(at_ns, again_ns) => {
                self.trace.note(Happened::Sent, self.now_ns, id.0 as u64, packet.bytes());
                if let Some(again_ns) = again_ns {
                    self.schedule(again_ns, Event::Arrive { link: id, packet: packet.clone() });
                }
                self.schedule(at_ns, Event::Arrive { link: id, packet });
            }
            Passage::Lost => self.trace.note(Happened::Lost, self.now_ns, id.0 as u64, packet.bytes()),
        }
    }

    fn arrive(&mut self, id: LinkId, packet: &FrameBuf) -> (NodeId, Interface) {
        let link = &mut self.links[id.0];
        link.stats.arrived += 1;
        link.stats.arrived_bytes += packet.bytes().len() as u64;
        if let Some(tap) = &mut link.tap {
            tap(self.now_ns, packet.bytes());
        }
        self.trace.note(Happened::Arrived, self.now_ns, id.0 as u64, &[]);
        link.to
    }
}

/// The packet as a device receives it: with all of the headroom.
fn recentred(mut packet: FrameBuf) -> FrameBuf {
    if packet.with(|frame| frame.start()) == HEADROOM { packet } else { FrameBuf::from_bytes(packet.bytes()) }
}

enum Event {
    Arrive { link: LinkId, packet: FrameBuf },
    Ready { link: LinkId },
    Timeout { node: NodeId },
    Script(Box<dyn FnOnce(&mut World)>),
}
