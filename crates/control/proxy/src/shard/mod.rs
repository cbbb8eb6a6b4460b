//! One shard of the frontend as a pure state machine: no socket, clock or randomness.
//!
//! The invariant: every call that takes `now` is followed by draining [`Shard::transmits`] and [`Shard::poll_event`], and
//! [`Shard::on_time`] is called no later than [`Shard::poll_timeout`] says.
//!
//! A datagram climbs a ladder whose cheap steps come first, and leaves at the first "no": keep-alive or garbage, parse,
//! ACK, retransmission, nonce, digest, replay set, policy, opening. Nothing is remembered of a client before its digest
//! is right.

mod admission;
mod answer;
mod auth;
mod declared;
mod dialog;
mod events;
mod exchanges;
mod grants;
mod keys;
mod ladder;
mod legs;
mod media;
mod names;
mod notes;
mod openings;
mod register;
mod relay;
mod responses;
mod settings;
mod unproved;

pub use events::{Binding, Event, GateAnswer, Input};
pub use ladder::Rung;
pub use settings::{DigestName, Settings, Tables};

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use sha2::{Digest as _, Sha256};
use sluicegate_bounded::Gauge;
use sluicegate_feed::{Selected, Selector};
use sluicegate_policy::Policy;
use sluicegate_sip::transaction::Due;
use sluicegate_wire::{Instant, Pace, UnixTime};

use self::{
    auth::Authenticator,
    exchanges::{Exchanges, Id},
    keys::Keys,
    legs::Legs,
    notes::UNPROVED_NOTES_PER_SEC,
    register::Registrar,
    unproved::Unproved,
};
use crate::{
    ledger::Ledger,
    links::Standing,
    metrics::{Count, ShardMetrics},
    transmits::{Flow, Transmits},
};

/// The time, on both clocks.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// Monotonic.
    pub instant: Instant,
    /// Wall clock.
    pub unix: UnixTime,
}

/// One shard: all SIP of the clients whose datagrams the kernel gives to its socket.
#[derive(Debug)]
pub struct Shard {
    settings: Settings,
    keys: Keys,
    policy: Arc<Policy>,
    ledger: Arc<Ledger>,
    metrics: Arc<ShardMetrics>,
    authenticator: Authenticator,
    exchanges: Exchanges,
    legs: Legs,
    unproved: Unproved,
    registrar: Registrar,
    /// Gate addresses of services that cannot be reached directly. Bounded by the policy's services.
    standing: HashMap<String, Standing>,
    events: VecDeque<Event>,
    scratch: Vec<u8>,
    /// Counts calls and requests of our own, for names that are never used twice.
    numbers: u64,
    /// Notes about senders that are not proved.
    unproved_notes: Pace,
    /// What is to be sent.
    out: Transmits,
    /// When the present datagram, input or timer came.
    now: Now,
    /// Whether the present datagram came from another shard, so that it is not handed over again.
    handed_over: bool,
}

impl Shard {
    /// A shard that knows no bindings yet and decides by `policy`.
    #[must_use]
    pub fn new(settings: Settings, policy: Arc<Policy>, ledger: Arc<Ledger>, metrics: Arc<ShardMetrics>) -> Self {
        let tables = settings.tables;
        let keys = Keys::new(&settings);
        Self {
            authenticator: Authenticator::new(&settings),
            exchanges: Exchanges::new(&settings.listening, &tables, keys.tables),
            legs: Legs::new(tables.legs_max),
            unproved: Unproved::new(keys.unproved, settings.unproved_answers_per_s),
            keys,
            registrar: Registrar::new(tables.bindings_max),
            standing: HashMap::new(),
            events: VecDeque::new(),
            scratch: Vec::new(),
            numbers: 0,
            unproved_notes: Pace::per_second(UNPROVED_NOTES_PER_SEC),
            out: Transmits::new(),
            now: Now { instant: Instant::ZERO, unix: UnixTime(0) },
            handed_over: false,
            settings,
            policy,
            ledger,
            metrics,
        }
    }

    /// Takes anything but a datagram from the network.
    pub fn on_input(&mut self, now: Now, input: Input) {
        self.now = now;
        match input {
            Input::Agents(agents) => self.settings.agents = agents,
            Input::Gate(answer) => self.on_gate_answer(answer),
            Input::Over(calls) => self.on_over(&calls),
            // One that finds no room is told again when its agent registers anew.
            Input::Bind(binding) => drop(self.registrar.bind(self.now.instant, binding)),
            Input::Datagram { flow, bytes } => {
                self.handed_over = true;
                self.on_datagram(now, flow, &bytes);
                self.handed_over = false;
            }
            Input::Standing { service, standing } => {
                match standing.filter(|_| self.policy.service(&service).is_some()) {
                    Some(standing) => drop(self.standing.insert(service, standing)),
                    None => drop(self.standing.remove(&service)),
                }
                self.out.links.set(self.settings.addresses(), self.settings.shard, self.standing.values());
            }
            Input::Policy(policy) => {
                self.standing.retain(|service, _| policy.service(service).is_some());
                self.out.links.set(self.settings.addresses(), self.settings.shard, self.standing.values());
                self.policy = policy;
            }
        }
    }

    /// Does what is due: repeats requests and answers, and gives up on what did not come.
    pub fn on_time(&mut self, now: Now) {
        self.now = now;
        self.end_due_legs();
        for listener in 0..u8::try_from(self.exchanges.listeners.len()).unwrap_or(u8::MAX) {
            self.poll_server(listener);
            self.poll_client(listener);
        }
        while let Some(id) = self.exchanges.missed_gate(self.now.instant) {
            self.metrics.one(Count::OpeningTimeouts);
            self.on_gate_failed(id, "the gate has not answered in time");
        }
        self.exchanges.sweep(self.now.instant);
        self.metrics.add(Count::TransmitDropped, self.out.take_dropped());
    }

    fn poll_server(&mut self, listener: u8) {
        while let Some(tables) = self.exchanges.listener(listener)
            && let Some(due) = tables.server.poll(self.now.instant)
        {
            match due {
                Due::Transmit { peer, bytes } => {
                    self.metrics.one(Count::Retransmitted);
                    self.out.push(Flow::datagrams(listener, peer), bytes);
                }
                Due::TimedOut(token) => self.on_unacknowledged(Id { listener, token }),
            }
        }
    }

    fn poll_client(&mut self, listener: u8) {
        while let Some(tables) = self.exchanges.listener(listener)
            && let Some(due) = tables.client.poll(self.now.instant)
        {
            match due {
                Due::Transmit { peer, bytes } => {
                    self.metrics.one(Count::Retransmitted);
                    self.out.push(Flow::datagrams(listener, peer), bytes);
                }
                Due::TimedOut(token) => self.on_relay_timeout(Id { listener, token }),
            }
        }
    }

    /// The ACK to a first 200 never came, or an exchange outlived every timer: whatever was opened for it ends.
    fn on_unacknowledged(&mut self, id: Id) {
        let ended = self.exchanges.end(id).and_then(|exchange| {
            exchange.relay.iter().for_each(|relay| self.exchanges.forget(relay.sent));
            (!exchange.admitted.renewal).then_some(exchange.admitted.call)
        });
        if let Some(call) = self.exchanges.acknowledged(id).or(ended) {
            self.ledger.end_call(self.now.instant, call, None);
            self.revoke(Selector::all(Selected::Call(call)));
        }
    }

    /// The next thing that the shard asks of its surroundings.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Self::on_time`] must be called at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.exchanges.next_deadline().into_iter().chain(self.legs.next_due()).min()
    }

    /// What is to be sent. Whoever sends it clears it.
    pub const fn transmits(&mut self) -> &mut Transmits {
        &mut self.out
    }

    /// The fill of each table.
    #[must_use]
    pub fn gauges(&self) -> [Gauge; 6] {
        let [server, client] = self.exchanges.gauges();
        [
            server,
            client,
            self.authenticator.gauge(),
            self.legs.gauge(),
            self.registrar.gauge(),
            Gauge::of("events", self.events.len(), self.settings.tables.events_max),
        ]
    }

    /// Counts datagrams that the socket did not take.
    pub fn count_unsent(&self, datagrams: u64) {
        self.metrics.add(Count::TransmitDropped, datagrams);
    }

    /// Queues an event; `false` if there was no room for it.
    fn raise(&mut self, event: Event) -> bool {
        if self.events.len() >= self.settings.tables.events_max {
            self.metrics.one(Count::EventsDropped);
            return false;
        }
        self.events.push_back(event);
        true
    }

    fn revoke(&mut self, selector: Selector) -> bool {
        self.raise(Event::Revoke(selector))
    }

    /// A number that this shard uses once.
    const fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// A call id that no one can guess and no other shard or start makes.
    fn new_call(&mut self) -> [u8; 12] {
        let number = self.next_number();
        let mut hash = Sha256::new();
        hash.update(self.keys.calls);
        hash.update(number.to_be_bytes());
        let digest = hash.finalize();
        std::array::from_fn(|at| digest.get(at).copied().unwrap_or(0))
    }
}

/// A key of its own for each purpose: `SHA-256(key ‖ label)`.
pub fn derive(key: &[u8; 32], label: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(key);
    hash.update(label);
    hash.finalize().into()
}
