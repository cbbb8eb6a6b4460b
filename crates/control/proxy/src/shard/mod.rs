//! One shard of the frontend as a pure state machine: no socket, clock or randomness.
//!
//! The invariant: every call that takes `now` is followed by draining the [`Transmits`] and [`Shard::poll_event`], and
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
pub use openings::{GateControl, GateOrder};
pub use settings::{DigestName, Settings, Tables};

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use sha2::{Digest as _, Sha256};
use sluicegate_feed::{Selected, Selector};
use sluicegate_policy::Policy;
use sluicegate_sip::transaction::Due;
use sluicegate_wire::{Instant, UnixTime};

use self::{
    auth::Authenticator,
    exchanges::{Exchanges, Id, Stage},
    keys::Keys,
    legs::Legs,
    notes::UnprovedNotes,
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
    unproved_notes: UnprovedNotes,
    /// When the present datagram, input or timer came.
    instant: Instant,
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
            unproved_notes: UnprovedNotes::default(),
            instant: Instant::ZERO,
            handed_over: false,
            settings,
            policy,
            ledger,
            metrics,
        }
    }

    /// Takes anything but a datagram from the network.
    pub fn on_input(&mut self, now: Now, input: Input, out: &mut Transmits) {
        self.instant = now.instant;
        match input {
            Input::Agents(agents) => self.settings.agents = agents,
            Input::Gate(answer) => self.on_gate_answer(now, answer, out),
            Input::Over(calls) => self.on_over(now, &calls, out),
            // One that finds no room is told again when its agent registers anew.
            Input::Bind(binding) => drop(self.registrar.bind(now.instant, binding)),
            Input::Datagram { flow, bytes } => {
                self.handed_over = true;
                self.on_datagram(now, flow, &bytes, out);
                self.handed_over = false;
            }
            Input::Standing { service, standing } => {
                match standing.filter(|_| self.policy.service(&service).is_some()) {
                    Some(standing) => drop(self.standing.insert(service, standing)),
                    None => drop(self.standing.remove(&service)),
                }
                out.links.set(self.settings.addresses(), self.settings.shard, self.standing.values());
            }
            Input::Policy(policy) => {
                self.standing.retain(|service, _| policy.service(service).is_some());
                out.links.set(self.settings.addresses(), self.settings.shard, self.standing.values());
                self.policy = policy;
            }
        }
    }

    /// Does what is due: repeats requests and answers, and gives up on what did not come.
    pub fn on_time(&mut self, now: Now, out: &mut Transmits) {
        self.instant = now.instant;
        self.end_due_legs(now, out);
        for listener in 0..u8::try_from(self.exchanges.listeners.len()).unwrap_or(u8::MAX) {
            self.poll_server(now, listener, out);
            self.poll_client(now, listener, out);
        }
        while let Some(id) = self.exchanges.missed_gate(now.instant) {
            self.metrics.one(Count::OpeningTimeouts);
            self.on_gate_failed(now, id, "the gate has not answered in time", out);
        }
        self.exchanges.sweep(now.instant);
        self.metrics.add(Count::TransmitDropped, out.take_dropped());
    }

    fn poll_server(&mut self, now: Now, listener: u8, out: &mut Transmits) {
        while let Some(due) = self.exchanges.listener(listener).and_then(|tables| tables.server.poll(now.instant)) {
            match due {
                Due::Transmit { peer, bytes } => {
                    self.metrics.one(Count::Retransmitted);
                    out.push(Flow::datagrams(listener, peer), bytes);
                }
                Due::TimedOut(token) => self.on_unacknowledged(now, Id { listener, token }),
            }
        }
    }

    fn poll_client(&mut self, now: Now, listener: u8, out: &mut Transmits) {
        while let Some(due) = self.exchanges.listener(listener).and_then(|tables| tables.client.poll(now.instant)) {
            match due {
                Due::Transmit { peer, bytes } => {
                    self.metrics.one(Count::Retransmitted);
                    out.push(Flow::datagrams(listener, peer), bytes);
                }
                Due::TimedOut(token) => self.on_relay_timeout(now, listener, token, out),
            }
        }
    }

    /// The ACK to a first 200 never came, or an exchange outlived every timer: whatever was opened for it ends.
    fn on_unacknowledged(&mut self, now: Now, id: Id) {
        let ended = self.exchanges.end(id).and_then(|exchange| match exchange.stage {
            Stage::Opening(opening) => (!opening.renewal).then_some(opening.call),
            Stage::Relaying(relay) => {
                self.exchanges.forget(relay.sent);
                (!relay.renewal).then_some(relay.call)
            }
        });
        if let Some(call) = self.exchanges.acknowledged(id).or(ended) {
            self.ledger.end_call(now.instant, call, None);
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

    /// Name, used and maximum of each table.
    #[must_use]
    pub fn gauges(&self) -> [(&'static str, u64, u64); 6] {
        let [server, client] = self.exchanges.gauges();
        let (replays, legs, bindings) = (self.authenticator.gauge(), self.legs.gauge(), self.registrar.gauge());
        [
            ("server_transactions", server.0, server.1),
            ("client_transactions", client.0, client.1),
            ("replays", replays.0, replays.1),
            ("service_legs", legs.0, legs.1),
            ("bindings", bindings.0, bindings.1),
            ("events", self.events.len() as u64, self.settings.tables.events_max as u64),
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
        self.raise(Event::Gates(GateOrder::Revoke(selector)))
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
