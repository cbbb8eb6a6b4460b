//! The capability shim of hosts (TVA IV-B): one object that sends and receives for many pairs of addresses.
//!
//! A [`Host`] stands between a network that speaks capabilities and hosts, services or a TUN device that do not. Plain
//! packets of local hosts go through [`Host::outbound`], which puts a request or a regular header in front of them;
//! packets from the network go through [`Host::inbound`], which answers, learns and takes the header out. What neither
//! direction can carry in time leaves through [`Host::poll_output`] as a packet with nothing but a header.
//!
//! Whom the host allows to send to it is a [`Policy`]. All tables have a fixed size, and everything that comes from the
//! network is untrusted.

use core::{net::IpAddr, time::Duration};

use sluicegate_bounded::{Bounded as _, Gauge, Handle, Queue};
use sluicegate_wire::{
    Frame, Instant, Reason,
    capability::{Capability, ClientId, HEADER_LEN_MAX, shim::Carriage},
    ip,
};

mod compose;
mod config;
mod header;
mod icmp;
mod inbound;
mod mss;
mod outbound;
mod policy;
mod random;
mod receiver;
mod remotes;
mod routes;
mod seen;
mod sender;
mod status;
mod table;

pub use config::{
    ANSWER_COPIES, ANSWER_DELAY, ANSWER_WAIT, BURST_BYTES, CAPABLE_FOR, CONTACT_FOR, Config, DOUBTED_NOTICE_INTERVAL,
    GRANT_SECONDS_MAX, LEGACY_FOR, LIST_PACKETS_MAX, LITTLE_FOR, NOTICE_INTERVAL, REFUSED_WAIT, REFUSED_WAIT_DOUBLINGS,
    REQUEST_BURST, REQUEST_INTERVAL, ROUND, ROUNDS_BEFORE_TRIAL, RTT_ASSUMED, SILENCE_MIN, STRANGER_NOTICE_INTERVAL,
};
pub use policy::{
    Budget, ClientIds, ClientPolicy, Decision, Flow, LIMITS_KILOBYTES_MIN, Misdeed, PATH_MAX, Policy, Received, Renew,
    Request, ServerConfig, ServerPolicy, Unexpected,
};
pub use remotes::Knowledge;
pub use status::{Counters, PeerStatus, Sending};
pub use table::{CONTACTED_IDLE, PROVEN_IDLE, Standing};

use self::{
    compose::{Parts, len_of, slots_beside, write_empty},
    header::Form,
    outbound::Expected,
    random::{Keyed, Random},
    receiver::Receiver,
    remotes::Remotes,
    routes::Routes,
    seen::SeenFlows,
    sender::Sender,
    table::{Key, Table},
};

/// What a packet from the network is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inbound {
    /// The capability header has been taken out: the plain packet is for its destination.
    Deliver,
    /// As [`Self::Deliver`], but the request that it came with was refused or ignored. A host delivers it all the
    /// same; a default-off gate drops it with [`Reason::RequestRefused`].
    Refused,
    /// A plain packet, untouched.
    Plain,
    /// It was for the host itself; nothing is left of it.
    Consumed,
}

/// What the host knows about one client id between one local and one remote address.
#[derive(Debug)]
struct Peer {
    carriage: Carriage,
    /// The largest packet on the way there.
    mtu: u16,
    sender: Sender,
    receiver: Receiver,
    /// When a local host last sent to it of its own accord.
    contacted_at: Option<Instant>,
    heard_at: Option<Instant>,
    /// When a notice was believed that nothing proved.
    doubted_at: Option<Instant>,
    /// What a plain answer to the last request would look like.
    expected: Option<Expected>,
    queued_soon: bool,
    queued_late: bool,
}

/// The capability shim of many local hosts.
#[derive(Debug)]
pub struct Host {
    config: Config,
    random: Random,
    keyed: Keyed,
    peers: Table<Peer>,
    remotes: Remotes,
    routes: Routes,
    seen: SeenFlows,
    /// Peers that get a packet of their own at once.
    soon: Queue<(Instant, Handle)>,
    /// Peers that get one unless traffic carries their answer first.
    late: Queue<(Instant, Handle)>,
    stranger_notice_at: Option<Instant>,
    plain_mtu: u16,
    counters: Counters,
}

impl Host {
    /// A host with empty tables; all memory that it will ever use is allocated here. The seed must be random and
    /// secret: nonces and the host's own list entries come from it.
    #[must_use]
    pub fn new(config: Config, random_seed: [u8; 32]) -> Self {
        let [draws, index] = [0, 16].map(|at| core::array::from_fn(|n| random_seed[at + n]));
        let keyed = Keyed::new(index);
        let peers = Table::new(config.peers_max, keyed.clone());
        let config =
            Config { slots: config.slots.clamp(2, 8), clamp_capabilities: config.clamp_capabilities.min(8), ..config };
        Self {
            random: Random::new(draws),
            remotes: Remotes::new(config.remotes_max, keyed.clone()),
            routes: Routes::new(peers.max(), keyed.clone()),
            seen: SeenFlows::new(config.remotes_max, keyed.clone()),
            keyed,
            soon: Queue::new("capability_waiting", peers.max()),
            late: Queue::new("capability_waiting", peers.max()),
            stranger_notice_at: None,
            plain_mtu: compose::plain_mtu(config.mtu, config.carriage),
            counters: Counters::default(),
            peers,
            config,
        }
    }

    /// Tells what is known about a remote address, such as from its DNS record. A destination known to be capable is
    /// never taken for a legacy one because it is silent. Peers behind a translator stay where they were seen.
    pub fn know(&mut self, remote: IpAddr, knowledge: Knowledge, until: Instant) {
        self.remotes.know(remote, knowledge, until);
        if let Knowledge::Capable { carriage } = knowledge {
            self.peers.for_each(|key, peer, _| {
                if key.remote == remote && !matches!(peer.carriage, Carriage::Answer { .. }) {
                    peer.carriage = carriage;
                }
            });
        }
    }

    /// What is known about a remote address at present.
    #[must_use]
    pub fn knowledge(&self, now: Instant, remote: IpAddr) -> Option<Knowledge> {
        self.remotes.lookup(now, remote)
    }

    fn is_capable(&self, now: Instant, remote: IpAddr) -> bool {
        matches!(self.remotes.lookup(now, remote), Some(Knowledge::Capable { .. }))
    }

    /// The largest plain packet that still fits with the shortest header of a regular packet, on the path of the packet
    /// that was refused last: what an ICMP "packet too big" says after [`Reason::PacketTooBig`].
    #[must_use]
    pub const fn plain_mtu(&self) -> u16 {
        self.plain_mtu
    }

    /// The largest packet that may leave where capabilities are spoken ([`Config::mtu`]).
    #[must_use]
    pub const fn mtu(&self) -> u16 {
        self.config.mtu
    }

    /// Whether anybody speaks capabilities with this host. Until then a host with [`Config::answers_only`] need not see
    /// plain packets; afterwards it must, so that clients without capabilities are answered plainly even if they share
    /// their address with others.
    #[must_use]
    pub fn has_peers(&self) -> bool {
        self.peers.len() > 0
    }

    /// When [`Self::poll_output`] has something next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let due = |queue: &Queue<(Instant, Handle)>| queue.front().map(|(due, _)| *due);
        match (due(&self.soon), due(&self.late)) {
            (Some(soon), Some(late)) => Some(soon.min(late)),
            (soon, late) => soon.or(late),
        }
    }

    /// Nothing but packets waits for a time; kept so that all state machines are driven alike. Call
    /// [`Self::poll_output`] until it returns false.
    pub fn handle_timeout(&mut self, _now: Instant) {}

    /// The peer of this key, put into the table if it is not there.
    fn peer_or_new(&mut self, now: Instant, key: Key, standing: Standing, carriage: Carriage) -> Option<u32> {
        if let Some(slot) = self.peers.find(&key) {
            self.peers.touch(now, slot, standing);
            return Some(slot);
        }
        let peer = Peer {
            carriage,
            mtu: self.config.mtu,
            sender: Sender::default(),
            receiver: Receiver::default(),
            contacted_at: None,
            heard_at: None,
            doubted_at: None,
            expected: None,
            queued_soon: false,
            queued_late: false,
        };
        self.peers.insert(now, key, standing, peer)
    }

    /// Gives the peer a packet of its own at once.
    fn queue_soon(&mut self, now: Instant, slot: u32) {
        Self::enqueue(&mut self.soon, &mut self.peers, now, slot, |peer| &mut peer.queued_soon);
    }

    /// Gives the peer a packet of its own unless traffic carries its answer in time.
    fn queue_late(&mut self, now: Instant, slot: u32) {
        let due = now + ANSWER_DELAY;
        Self::enqueue(&mut self.late, &mut self.peers, due, slot, |peer| &mut peer.queued_late);
    }

    fn enqueue(
        queue: &mut Queue<(Instant, Handle)>,
        peers: &mut Table<Peer>,
        due: Instant,
        slot: u32,
        flag: impl Fn(&mut Peer) -> &mut bool,
    ) {
        // Handles of peers that have made room since must not take the place of live ones.
        while queue.is_full() && queue.front().is_some_and(|(_, handle)| peers.resolve(*handle).is_none()) {
            queue.pop();
        }
        let handle = peers.handle(slot);
        let Some(peer) = peers.get_mut(slot) else { return };
        let queued = flag(peer);
        if !*queued {
            *queued = queue.push((due, handle)).is_ok();
        }
    }

    /// Writes the next packet with nothing but a header into `frame`; false if none is due. The packet starts where
    /// `frame` does, which needs [`sluicegate_wire::HEADROOM`] in front of it and 40 bytes behind.
    pub fn poll_output(&mut self, now: Instant, frame: &mut Frame<'_>) -> bool {
        loop {
            let (slot, soon) = if let Some(handle) = take_due(&mut self.soon, now) {
                (self.peers.resolve(handle), true)
            } else if let Some(handle) = take_due(&mut self.late, now) {
                (self.peers.resolve(handle), false)
            } else {
                return false;
            };
            let Some(slot) = slot else { continue };
            let Some(peer) = self.peers.get_mut(slot) else { continue };
            *(if soon { &mut peer.queued_soon } else { &mut peer.queued_late }) = false;
            if (peer.sender.wants_aside() || peer.receiver.waits()) && self.emit_alone(now, slot, frame).is_ok() {
                return true;
            }
        }
    }

    /// Writes a packet with nothing but a header to this peer: an answer, a notice, a request or a list.
    fn emit_alone(&mut self, now: Instant, slot: u32, frame: &mut Frame<'_>) -> Outcome {
        let key = self.peers.key(slot).ok_or(Reason::CapabilityHeader)?;
        let known = self.remotes.lookup(now, key.remote);
        let capable = matches!(known, Some(Knowledge::Capable { .. }));
        let own = Capability(self.random.draw());
        let peer = self.peers.get_mut(slot).ok_or(Reason::CapabilityHeader)?;
        let carriage = peer.receiver.answer_carriage().unwrap_or(peer.carriage);
        let mut ret = peer.receiver.telling(now, carriage);
        let plain_len = write_empty(frame, key.local, key.remote)?;
        let base = plain_len + carriage.outer_len();
        let slots = slots_beside(&self.config, ret.as_ref());
        let mut form = peer.sender.plan_alone(now, base + len_of(ret.as_ref()), slots, capable);
        if ret.is_none() && (form == Form::Bare || known == Some(Knowledge::Legacy)) {
            return Err(Reason::CapabilityHeader);
        }
        if header::len(form, peer.entries(form, slots)) + len_of(ret.as_ref()) > HEADER_LEN_MAX {
            // Two long lists are two packets: first the one that routers need to let the other pass.
            if peer.sender.is_listed() {
                form = Form::Nonce;
            } else {
                ret = None;
            }
        }
        let parts = Parts { config: &self.config, client_id: key.client_id, carriage, slots, own, ret, base };
        let summary = ip::Summary::parse(frame.bytes())?;
        peer.put(now, (frame, &summary), form, &parts)?;
        if peer.receiver.waits() {
            self.queue_soon(now, slot);
        }
        Ok(())
    }

    /// The client id that a local host's flow is sent under, by policy or because the flow answers a peer, and whether
    /// that is certain: without a policy and a peer with the same ports it is that of the pair's last peer.
    fn client_id(&mut self, policy: &mut dyn Policy, flow: &Flow) -> (ClientId, bool) {
        if let Some(client_id) = policy.client_id(flow) {
            return (client_id, true);
        }
        let Some((peer, exact)) = self.routes.find(flow) else { return (ClientId::NONE, false) };
        let key = self.peers.resolve(peer).and_then(|slot| self.peers.key(slot));
        match key.filter(|key| (key.local, key.remote) == (flow.local, flow.remote)) {
            Some(key) => (key.client_id, exact),
            None => (ClientId::NONE, false),
        }
    }

    /// All peers.
    pub fn peers(&self, now: Instant) -> impl Iterator<Item = PeerStatus> {
        self.peers.iter().map(move |(key, peer, standing, seen)| {
            let sending = match (peer.sender.held(now), peer.sender.refused_until(now)) {
                _ if self.knowledge(now, key.remote) == Some(Knowledge::Legacy) => Sending::Legacy,
                (Some((limits, used, until)), _) => Sending::Capable { limits, used, until },
                (None, Some(until)) => Sending::Refused { until },
                (None, None) => Sending::Requesting,
            };
            PeerStatus {
                local: key.local,
                remote: key.remote,
                client_id: key.client_id,
                carriage: peer.carriage,
                standing,
                sending,
                granted: peer.receiver.granted(now),
                seen,
            }
        })
    }

    /// How full each table is.
    #[must_use]
    pub fn gauges(&self, now: Instant) -> [Gauge; 4] {
        let [peers, strangers] = self.peers.gauges();
        let (soon, late) = (self.soon.gauge(), self.late.gauge());
        let waiting = Gauge { used: soon.used + late.used, max: soon.max + late.max, ..soon };
        [peers, strangers, self.remotes.gauge(now), waiting]
    }

    /// What the host has granted and been answered since its start.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }
}

fn take_due(queue: &mut Queue<(Instant, Handle)>, now: Instant) -> Option<Handle> {
    queue.front().filter(|(due, _)| *due <= now)?;
    queue.pop().map(|(_, peer)| peer)
}

/// A bucket for one packet.
fn is_due(last: &mut Option<Instant>, now: Instant, interval: Duration) -> bool {
    let due = last.is_none_or(|at| now.since(at) >= interval);
    if due {
        *last = Some(now);
    }
    due
}

/// So that callers can treat both directions alike.
type Outcome = Result<(), Reason>;
