//! The hub between shards and gates: which gate opens what, whose answer goes where, and who must be told of a change.

mod audited;
mod choice;
mod said;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use sluicegate_api::JoinedGate;
use sluicegate_feed::{
    Delta, FeedSender, FeedService, FeedSip, FromGate, GrantDelta, Resume, Selector, SendError, SenderOptions,
    skew_alarm,
};
use sluicegate_grant::{GrantId, IssuerKey, mac::SessionKeys};
use sluicegate_policy::{Policy, Service, Share};
use sluicegate_sip::message::Transport;
use sluicegate_store::KeptRevoke;
use sluicegate_wire::{Instant, Pace, UnixTime};
use tokio::sync::mpsc;
use zeroize::Zeroizing;

use super::{GateEvent, holders::Holders, registrations::Registrations};
use crate::{clock::Clock, inbox::ShardSender};
pub(crate) use audited::{Audited, call_ended};
use sluicegate_proxy::{
    CallId, Decisions, Event, GateAnswer, Input, Ledger, Outages, Stories, Traces, derive, share_of,
};

/// Lines about openings that failed, about those that a gate refused, and about full queues.
static NOT_OPENED: Pace = Pace::per_second(2);
static REFUSED: Pace = Pace::per_second(2);
static QUEUE_FULL: Pace = Pace::per_second(2);
/// Bytes of past batches kept for each gate that may come back.
const LOG_BYTES_MAX: usize = 1 << 20;
/// Frames of a welcome are sent in pieces of about this size.
const PIECE_BYTES: usize = 256 * 1024;
/// Seconds for which a call's end is repeated beyond the end of its grants.
const REVOKE_GRACE_S: u64 = 5;
/// Gates that have joined have so long after a start to say what they have open. Less than a telephone repeats a request for.
const SAY_TIME: Duration = Duration::from_secs(20);
/// What shards, or gates, have said is heard so much at a time, beside what comes first.
const TOGETHER_MAX: usize = 512;
/// Time between looks at what has expired.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// What the control side asks of the hub.
#[derive(Debug)]
pub(crate) enum Ask {
    /// End grants at every gate.
    Revoke(Selector),
    /// Services may have changed.
    Policy(Arc<Policy>),
    /// The gates that have joined, first joined first: one was let in, or removed.
    Gates(Vec<String>),
}

/// A gate that has joined.
pub(crate) struct Gate {
    sender: FeedSender,
    frames: Option<(u64, mpsc::Sender<Arc<[u8]>>)>,
    status: JoinedGate,
}

/// Everything between shards and gates. Driven by one task; sockets and threads are on the other ends of its queues.
pub(crate) struct Hub {
    pub(crate) clock: Clock,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) decisions: Arc<Decisions>,
    pub(crate) stories: Arc<Stories>,
    pub(crate) traces: Arc<Traces>,
    pub(crate) shards: Vec<ShardSender>,
    pub(crate) statuses: Arc<Mutex<Vec<JoinedGate>>>,
    pub(crate) holders: Holders,
    pub(crate) registrations: Registrations,
    /// The frontend's own addresses, from which it relays SIP.
    pub(crate) peers: Vec<IpAddr>,
    pub(crate) issuer: Arc<IssuerKey>,
    pub(crate) boot_id: u64,
    pub(crate) name: String,
    /// Rate of SIP that a gate lets frontends send to one service, in bit/s.
    pub(crate) relay_rate_bps: u64,
    /// New at every start.
    pub(crate) relay_secret: Zeroizing<[u8; 32]>,
    /// Gates that have joined; none before the first [`Ask::Gates`].
    pub(crate) gates: BTreeMap<String, Gate>,
    /// Of these, those that have said what they have had open since before this start.
    pub(crate) heard: BTreeSet<String>,
    /// Until when the others are waited for; none before the first [`Ask::Gates`].
    pub(crate) hears_until: Option<Instant>,
    /// None before the first [`Ask::Policy`].
    pub(crate) services: BTreeMap<String, FeedService>,
    pub(crate) policy: Arc<Policy>,
    /// What operators ended before this start.
    pub(crate) revokes: Vec<KeptRevoke>,
    pub(crate) audited: Audited,
    pub(crate) outages: Arc<Outages>,
    /// Services that no gate reaches, and since when.
    pub(crate) unreached: BTreeMap<String, Instant>,
}

/// The queues that drive a hub.
pub(crate) struct Queues {
    pub(crate) shards: mpsc::Receiver<(u8, Event)>,
    pub(crate) gates: mpsc::Receiver<GateEvent>,
    pub(crate) asks: mpsc::Receiver<Ask>,
}

impl Hub {
    /// Runs until the control side is gone.
    pub(crate) async fn run(mut self, mut queues: Queues) {
        let mut next_sweep = Instant::ZERO;
        loop {
            let now = self.clock.now();
            if next_sweep <= now {
                next_sweep = now + SWEEP_INTERVAL;
                let expired = self.ledger.expire(self.clock.unix());
                self.stories.used(&expired);
                self.audited.sweep(now, expired);
                let over = self.stories.sweep(self.clock.unix(), &self.ledger);
                over.into_iter().for_each(|story| self.audited.call(story));
                self.registrations.save(self.clock.unix());
                self.traces.end_unread(now);
                self.ledger.set_partial(self.is_partial(now));
                self.tell_cut_off(now);
            }
            let due = self.poll().min(next_sweep);
            let sleep = tokio::time::sleep(due.since(self.clock.now()));
            tokio::select! {
                Some((shard, event)) = queues.shards.recv() => {
                    self.on_shard(shard, event);
                    // What came together is signed together.
                    for _ in 0..TOGETHER_MAX {
                        let Ok((shard, event)) = queues.shards.try_recv() else { break };
                        self.on_shard(shard, event);
                    }
                }
                Some(event) = queues.gates.recv() => {
                    self.on_gate(event);
                    for _ in 0..TOGETHER_MAX {
                        let Ok(event) = queues.gates.try_recv() else { break };
                        self.on_gate(event);
                    }
                    self.publish();
                }
                ask = queues.asks.recv() => match ask {
                    Some(ask) => self.on_ask(ask),
                    None => return,
                },
                () = sleep => {}
            }
        }
    }

    /// Sends what is due to each connected gate; when to look again.
    fn poll(&mut self) -> Instant {
        let (now, unix) = (self.clock.now(), self.clock.unix());
        let mut due = now + SWEEP_INTERVAL;
        for gate in self.gates.values_mut() {
            while let Some(frame) = gate.sender.poll_transmit(now, unix) {
                gate.send(frame);
            }
            due = due.min(gate.sender.poll_timeout().max(now));
        }
        due
    }

    fn on_shard(&mut self, shard: u8, event: Event) {
        match event {
            Event::Open { service, deltas } => self.open(shard, &service, deltas),
            // The shard has told the service, or never let it have the call.
            Event::Revoke(selector) => {
                let of_user = self.ledger.end_of(&selector.what);
                self.end(selector, Some(of_user));
            }
            Event::Bind(binding) => {
                self.registrations.note(&binding, self.clock.now(), self.clock.unix());
                self.tell_others(shard, &Input::Bind(binding));
            }
            Event::HandOver { shard: owner, flow, datagram } => {
                self.tell(owner, Input::Datagram { flow, bytes: datagram });
            }
            // Its own thread has seen to it.
            Event::Proved { .. } => {}
            Event::Decided(decided) => {
                self.audited.decided(&decided);
                self.stories.decided(&decided);
                self.decisions.push(decided.decision);
            }
            Event::Told(call, what) => self.stories.happened(self.clock.unix(), call, what),
        }
    }

    /// Has the gate of a service open the grants of one call, all or none, for the shard that waits for the answers.
    fn open(&mut self, shard: u8, service: &str, deltas: Vec<GrantDelta>) {
        let (now, unix) = (self.clock.now(), self.clock.unix());
        if let Some(reason) = self.too_many(&deltas) {
            return deltas.iter().for_each(|delta| self.refuse(shard, delta, &reason));
        }
        let name = self.gate_of(service);
        let Some((name, gate)) = name.and_then(|name| Some((name.clone(), self.gates.get_mut(&name)?))) else {
            let reason = self.why_no_gate(service);
            return deltas.iter().for_each(|delta| self.refuse(shard, delta, &reason));
        };
        let mut refused = Vec::new();
        for delta in deltas {
            let booked = self.ledger.opening(&delta, &name, shard).map_err(|full| full.to_string());
            let install = Delta::Install(Box::new(delta.clone()));
            let pushed = booked.and_then(|()| gate.sender.push(now, unix, install).map_err(|error| error.to_string()));
            if let Err(reason) = pushed {
                self.ledger.refused(&name, delta.grant.id);
                refused.push((delta, reason));
            }
        }
        for (delta, reason) in refused {
            self.refuse(shard, &delta, &reason);
        }
    }

    fn tell(&self, shard: u8, input: Input) {
        if let Some(sender) = self.shards.get(usize::from(shard))
            && !sender.send(input)
            && let Some(left_out) = QUEUE_FULL.admit(self.clock.now())
        {
            tracing::warn!(shard, left_out, "a shard's queue is full; what was meant for it is lost");
        }
    }

    fn tell_all(&self, input: &Input) {
        for shard in &self.shards {
            shard.send(input.clone());
        }
    }

    fn tell_others(&self, besides: u8, input: &Input) {
        for shard in (0..self.shards.len()).filter_map(|shard| u8::try_from(shard).ok()) {
            if shard != besides {
                self.tell(shard, input.clone());
            }
        }
    }

    /// Shards decide at the same time, each without the other's latest calls; here they are counted one after the other.
    fn too_many(&self, deltas: &[GrantDelta]) -> Option<String> {
        let first = deltas.first()?;
        let held = self.ledger.held_by(&first.user, Some(first.grant.id.call()));
        let more = deltas.iter().map(share_of).fold(Share::default(), Share::plus);
        self.policy.share_of(&first.user).admit(&held, &more).err().map(|reason| reason.to_string())
    }

    fn refuse(&self, shard: u8, delta: &GrantDelta, reason: &str) {
        // A gate that is away makes each call such a line.
        if let Some(left_out) = NOT_OPENED.admit(self.clock.now()) {
            let (service, user) = (&delta.service, &delta.user);
            tracing::warn!(service, user, reason, left_out, "a grant could not be opened");
        }
        self.tell(shard, Input::Gate(GateAnswer { id: delta.grant.id, opened: Err(reason.to_owned()) }));
    }

    /// Ends grants. Told to every gate that is known, connected or not: one that was away is told when it comes back.
    /// Gives the calls that are over by it. `of_user`: whose they are and when they would have ended, if it was a user who
    /// ended them.
    fn end(&mut self, selector: Selector, of_user: Option<(String, UnixTime)>) -> Vec<CallId> {
        let (now, unix) = (self.clock.now(), self.clock.unix());
        let cause = if of_user.is_some() { "goodbye" } else { "revoked" };
        self.audited.ending(now, (&selector, cause), &self.ledger);
        self.stories.used(&self.ledger.matching(&selector));
        let over = self.ledger.revoke(unix, &selector, of_user.as_ref().map(|(user, _)| user.as_str()));
        match of_user {
            Some((user, not_after)) => {
                // A gate's clock may be behind.
                let until = not_after.max(unix).plus_secs(REVOKE_GRACE_S);
                self.tell_gates(|_, sender| sender.push_call_end(now, unix, (&user, until), selector.clone()));
            }
            None => self.tell_gates(|_, sender| sender.push(now, unix, Delta::Revoke(selector.clone()))),
        }
        over
    }

    fn tell_gates(&mut self, push: impl Fn(&str, &mut FeedSender) -> Result<(), SendError>) {
        for (name, gate) in &mut self.gates {
            if let Err(error) = push(name, &mut gate.sender) {
                tracing::error!(gate = name, %error, "a gate cannot be told of a change");
                // Cut off, it comes back and is brought up to date.
                gate.frames = None;
                gate.status.connected = false;
            }
        }
    }

    fn on_gate(&mut self, event: GateEvent) {
        match event {
            GateEvent::Connected { gate, connection, peer, is_local, resume, frames } => {
                self.welcome(gate, (connection, peer, is_local), resume, frames);
            }
            GateEvent::Said { gate, connection, message } => {
                let is_current = |known: &Gate| known.frames.as_ref().is_some_and(|(number, _)| *number == connection);
                if self.gates.get(&gate).is_some_and(is_current) {
                    self.on_said(&gate, *message);
                }
            }
            GateEvent::Gone { gate, connection } => {
                if let Some(known) = self.gates.get_mut(&gate)
                    && known.frames.as_ref().is_none_or(|(number, _)| *number == connection)
                {
                    known.frames = None;
                    known.status.connected = false;
                }
            }
        }
    }

    fn welcome(
        &mut self,
        name: String,
        (connection, peer, is_local): (u64, SocketAddr, bool),
        resume: Option<Resume>,
        frames: mpsc::Sender<Arc<[u8]>>,
    ) {
        let unix = self.clock.unix();
        self.know(&name);
        let services: Vec<Delta> =
            self.services.values().map(|service| Delta::Service(self.sealed(&name, service))).collect();
        let is_keyed = |delta: &&Delta| matches!(delta, Delta::Service(service) if service.sip.is_some());
        let (now, keyed) = (self.clock.now(), services.iter().filter(is_keyed).cloned().collect::<Vec<_>>());
        let grants = self.ledger.snapshot(&name);
        let Some(gate) = self.gates.get_mut(&name) else { return };
        let state = services.into_iter().chain(grants.into_iter().map(|delta| Delta::Install(Box::new(delta))));
        match gate.sender.welcome(unix, resume, || state) {
            Ok(welcome) => {
                tracing::info!(gate = name, %peer, resumed = resume.is_some(), "a gate is connected");
                gate.frames = Some((connection, frames));
                // Until it says otherwise: for the first moments it must not become another service's gate.
                let unreached = std::mem::take(&mut gate.status.unreached);
                let known = JoinedGate { unreached, ..JoinedGate::default() };
                gate.status = JoinedGate { gate: name, connected: true, peer: Some(peer), is_local, ..known };
                pieces(&welcome).into_iter().for_each(|piece| gate.send(piece));
                // A gate that was started anew goes on where it was, but without keys: they are on no disk.
                for delta in keyed.into_iter().filter(|_| resume.is_some()) {
                    if let Err(error) = gate.sender.push(now, unix, delta) {
                        tracing::error!(gate = gate.status.gate, %error, "a gate cannot be told the keys of relayed SIP");
                    }
                }
            }
            Err(error) => tracing::error!(gate = name, %error, "a gate cannot be brought up to date"),
        }
    }

    /// Makes a place for a gate, so that revokes are kept for it.
    fn know(&mut self, name: &str) {
        if self.gates.contains_key(name) || self.gates.len() >= crate::config::GATES_MAX {
            return;
        }
        self.holders.joined(name);
        let options = SenderOptions { log_bytes_max: LOG_BYTES_MAX, ..SenderOptions::default() };
        let mut sender = FeedSender::new(Arc::clone(&self.issuer), self.boot_id, &self.name, options);
        for kept in &self.revokes {
            if let Err(error) = sender.keep_revoke(self.clock.unix(), kept.selector.clone(), UnixTime(kept.until)) {
                tracing::error!(gate = name, %error, "a gate will not be told of what was revoked before this start");
            }
        }
        let status = JoinedGate { gate: name.to_owned(), ..JoinedGate::default() };
        self.gates.insert(name.to_owned(), Gate { sender, frames: None, status });
    }

    fn on_said(&mut self, name: &str, message: FromGate) {
        match message {
            FromGate::Opened { id, address, ports } => {
                let before = self.ledger.row(name, id);
                if let Some(shard) = self.ledger.opened(name, id, address, ports) {
                    if let Some(row) = &before {
                        self.stories.opened(self.clock.unix(), row, (address, ports));
                    }
                    self.audited.opened(before);
                    self.tell(shard, Input::Gate(GateAnswer { id, opened: Ok((address, ports)) }));
                }
            }
            FromGate::Refused { id, reason } => self.on_refused(name, id, reason),
            FromGate::Ended { id, cause, bytes_used } => {
                self.stories.grant_ended(self.clock.unix(), name, id, (cause, bytes_used));
                let row = self.ledger.ended(name, id);
                self.audited.ended(name, (id, row), cause, bytes_used);
            }
            FromGate::Usage { grants } => {
                grants.iter().for_each(|used| self.ledger.used(name, used));
            }
            FromGate::Active { grants, more } => {
                self.on_active(name, &grants);
                if !more {
                    self.has_said(name);
                }
            }
            FromGate::Standing { service, address, port, salt } => {
                self.on_standing(name, service, ((address, port).into(), salt));
            }
            FromGate::ServiceRefused { service, reason } => {
                tracing::warn!(gate = name, service, reason, "a gate cannot protect a service");
                if let Some(gate) = self.gates.get_mut(name)
                    && gate.status.refused.len() < self.services.len().max(1)
                {
                    gate.status.refused.insert(service, reason);
                }
            }
            FromGate::Reach { service, obstacle } => self.on_reach(name, service, obstacle),
            FromGate::Pong { unix } => {
                if let Some(gate) = self.gates.get_mut(name) {
                    gate.status.skew_s = skew_alarm(self.clock.unix(), unix);
                }
            }
            FromGate::Hello { .. } | FromGate::Join { .. } => {
                tracing::warn!(gate = name, "a gate said hello twice");
            }
        }
    }

    fn on_refused(&mut self, name: &str, id: GrantId, reason: String) {
        if let Some(left_out) = REFUSED.admit(self.clock.now()) {
            tracing::warn!(gate = name, grant = %id, reason, left_out, "a gate refused a grant");
        }
        if let Some(shard) = self.ledger.refused(name, id) {
            self.tell(shard, Input::Gate(GateAnswer { id, opened: Err(reason) }));
        }
    }

    fn on_ask(&mut self, ask: Ask) {
        match ask {
            Ask::Revoke(selector) => {
                let over = self.end(selector, None);
                over.iter().for_each(|call| self.stories.revoked(self.clock.unix(), *call));
                self.tell_all(&Input::Over(over.into()));
            }
            Ask::Policy(policy) => self.on_policy(&policy),
            Ask::Gates(names) => {
                names.iter().for_each(|name| self.know(name));
                // One that was removed is cut off, and cannot come back.
                self.gates.retain(|name, _| names.contains(name));
                self.holders.only(&names);
                self.heard.retain(|name| names.contains(name));
                self.hears_until.get_or_insert(self.clock.now() + SAY_TIME);
                self.publish();
            }
        }
    }

    /// Tells gates which services there are now.
    fn on_policy(&mut self, policy: &Arc<Policy>) {
        let services: BTreeMap<String, FeedService> =
            policy.services().map(|service| (service.name.clone(), self.feed_service(service))).collect();
        let (now, unix) = (self.clock.now(), self.clock.unix());
        let gone: Vec<String> = self.services.keys().filter(|name| !services.contains_key(*name)).cloned().collect();
        let changed: Vec<FeedService> = services
            .iter()
            .filter(|(name, new)| self.services.get(*name) != Some(new))
            .map(|(_, new)| new.clone())
            .collect();
        self.services = services;
        self.policy = Arc::clone(policy);
        for name in gone {
            self.gates.values_mut().for_each(|gate| drop(gate.status.unreached.remove(&name)));
            self.tell_gates(|_, sender| sender.push(now, unix, Delta::ServiceGone(name.clone())));
        }
        for service in changed {
            for gate in self.gates.values_mut() {
                gate.status.refused.remove(&service.name);
            }
            self.announce_service(&service);
        }
    }

    /// Tells every gate of a service, each with keys of its own for what is relayed.
    fn announce_service(&mut self, service: &FeedService) {
        let (now, unix) = (self.clock.now(), self.clock.unix());
        let sealed: BTreeMap<String, FeedService> =
            self.gates.keys().map(|name| (name.clone(), self.sealed(name, service))).collect();
        self.tell_gates(|name, sender| {
            sealed.get(name).map_or(Ok(()), |service| sender.push(now, unix, Delta::Service(service.clone())))
        });
    }

    /// A service with the keys that this gate is to check relayed SIP with.
    fn sealed(&self, gate: &str, service: &FeedService) -> FeedService {
        let mut service = service.clone();
        let keys = self.relay_keys(gate, &service.name);
        if let Some(sip) = &mut service.sip {
            sip.keys = Some(keys);
        }
        service
    }

    /// What relayed SIP is sealed under, before the gate's salt: other keys for each gate, service and start of this frontend.
    fn relay_keys(&self, gate: &str, service: &str) -> SessionKeys {
        let named = derive(&self.relay_secret, &[&b"relay "[..], gate.as_bytes(), b" ", service.as_bytes()].concat());
        let (to_service, to_client) = named.split_at(16);
        let key = |half: &[u8]| std::array::from_fn(|at| half.get(at).copied().unwrap_or(0));
        SessionKeys::from_bytes([key(to_service), key(to_client)])
    }

    fn feed_service(&self, service: &Service) -> FeedService {
        let same_family = |ip: &IpAddr| ip.is_ipv4() == service.address.is_ipv4();
        // What gates relay are datagrams.
        let sip = service.sip_port_over(Transport::Udp).map(|port| FeedSip {
            port,
            peers: self.peers.iter().copied().filter(same_family).collect(),
            rate_bps: self.relay_rate_bps,
            keys: None,
            shards: u8::try_from(self.shards.len()).unwrap_or(u8::MAX),
        });
        FeedService {
            name: service.name.clone(),
            mode: service.mode,
            address: service.address,
            default: service.default,
            ports: service.ports.clone(),
            outbound: service.outbound,
            sip,
        }
    }

    fn publish(&self) {
        let statuses = self.gates.values().map(|gate| gate.status.clone()).collect();
        *self.statuses.lock().unwrap_or_else(PoisonError::into_inner) = statuses;
    }
}

impl Gate {
    /// Queues a frame; a gate that is too slow for its queue is cut off.
    fn send(&mut self, frame: Arc<[u8]>) {
        if let Some((_, frames)) = &self.frames
            && frames.try_send(frame).is_err()
        {
            tracing::warn!(gate = self.status.gate, "a gate is too slow for its feed and is cut off");
            self.frames = None;
            self.status.connected = false;
        }
    }
}

/// Joins many small frames into few larger pieces.
fn pieces(frames: &[Arc<[u8]>]) -> Vec<Arc<[u8]>> {
    let mut pieces = Vec::new();
    let mut piece = Vec::new();
    for frame in frames {
        piece.extend_from_slice(frame);
        if piece.len() >= PIECE_BYTES {
            pieces.push(Arc::from(std::mem::take(&mut piece)));
        }
    }
    if !piece.is_empty() {
        pieces.push(Arc::from(piece));
    }
    pieces
}
