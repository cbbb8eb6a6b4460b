//! One shard of the frontend as a pure state machine: no socket, clock or randomness.
//!
//! The invariant: every call that takes `now` is followed by draining [`Shard::transmits`] and [`Shard::poll_event`], and
//! [`Shard::on_time`] is called no later than [`Shard::poll_timeout`] says.
//!
//! A datagram climbs a ladder whose cheap steps come first, and leaves at the first "no": keep-alive or garbage, parse,
//! ACK, retransmission, nonce, digest, replay set, policy, opening. Nothing is remembered of a client before its digest
//! is right.
//!
//! A step says by its arguments what it may touch. Each has the [`Context`], which remembers no request. Who has the
//! [`transactions::Transactions`] may remember one, who has the [`Exchanges`] what an INVITE waits for, who has the [`Legs`] how
//! to end a call at its service. Only what happens inside a dialog may need all of the shard.

mod admission;
mod answer;
mod auth;
mod context;
mod declared;
mod dialog;
mod emergency;
mod events;
mod exchanges;
mod failover;
mod forks;
mod grants;
mod inbound;
mod keys;
mod ladder;
mod late_answers;
mod legs;
mod media;
mod names;
mod onward;
mod paths;
mod peers;
mod registrar;
mod relay;
mod responses;
mod settings;
mod shedding;
mod timers;
mod transactions;
mod unproved;
mod watch;

pub use emergency::Emergency;
pub use events::{Binding, Event, GateAnswer, Input};
pub use keys::source_key;
pub use ladder::Rung;
pub use settings::{DigestName, Phones, Settings, Tables};
pub use shedding::Overload;
pub use unproved::answer_bytes;

use std::{sync::Arc, time::Duration};

use ipnet::IpNet;
use sha2::{Digest as _, Sha256};
use sluicegate_bounded::Gauge;
use sluicegate_overload::{Crowd, EngineeredError};
use sluicegate_policy::Policy;
use sluicegate_wire::{Instant, UnixTime};

use self::{
    auth::{Authenticator, Proof, TRANSACTIONS_OF_USER},
    context::Context,
    exchanges::Exchanges,
    grants::renew_flowing,
    ladder::Asked,
    legs::Legs,
    registrar::Registrar,
    shedding::{Shedding, connects, end_old},
    transactions::TimedOut,
};
use crate::{
    ledger::Ledger,
    metrics::{Count, ShardMetrics},
    transmits::{Flow, Transmits},
};

/// The time, on both clocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct Now {
    /// Monotonic.
    pub instant: Instant,
    /// Wall clock.
    pub unix: UnixTime,
}

/// One shard: all SIP of the clients whose datagrams the kernel gives to its socket.
#[derive(Debug)]
pub struct Shard {
    cx: Context,
    /// Who sent a request.
    authenticator: Authenticator,
    /// What was answered, and what INVITEs without a final answer wait for.
    exchanges: Exchanges,
    /// Relayed calls whose services are told when they end.
    legs: Legs,
    /// Where services take SIP, and where users are called.
    registrar: Registrar,
    /// What is refused because more arrives than can be served.
    shedding: Shedding,
}

impl Shard {
    /// A shard that knows no bindings yet and decides by `policy`.
    ///
    /// # Errors
    /// What is wrong with the load that it is engineered for.
    pub fn new(
        settings: Settings,
        policy: Arc<Policy>,
        ledger: Arc<Ledger>,
        metrics: Arc<ShardMetrics>,
    ) -> Result<Self, EngineeredError> {
        let tables = settings.tables;
        let cx = Context::new(settings, policy, ledger, metrics);
        Ok(Self {
            authenticator: Authenticator::new(&cx.settings),
            exchanges: Exchanges::new(&cx.settings, cx.keys.tables),
            legs: Legs::new(tables.legs_max),
            registrar: Registrar::new(&cx.settings),
            shedding: Shedding::new(cx.settings.overload, &cx.settings.emergency, &tables, cx.keys.sources)?,
            cx,
        })
    }

    /// The datagram that is handed over next has waited so long since it came, if that is known.
    pub fn wait(&mut self, waited: Option<Duration>) {
        self.shedding.wait(waited, 0, u32::MAX);
    }

    /// What is handed over next has waited in a stream for so long at most; the how manieth it is that its connection brings.
    pub fn wait_over_stream(&mut self, waited: Duration, nth: u32) {
        self.shedding.wait(Some(waited), 1, nth);
    }

    /// The datagram that is handed over next has waited so long in a frame: beside the sockets, where others may wait for less.
    pub fn wait_in_frame(&mut self, waited: Duration) {
        self.shedding.wait(Some(waited), 2, u32::MAX);
    }

    /// Somebody connects, and has waited so long for it: whether to take the connection. Otherwise it is to be reset before
    /// anything is spent on it.
    pub fn connects(&mut self, now: Now, flow: Flow, waited: Duration) -> bool {
        self.cx.now = now;
        connects(&self.cx, &mut self.shedding, flow, waited)
    }

    /// How many connections may still be taken before the next [`Self::measure`]; the others are to wait in the kernel.
    #[must_use]
    pub fn connections_left(&self) -> u32 {
        self.shedding.connections_left()
    }

    /// What a sieve in front of the process is to let through: see [`sluicegate_overload::Adaptive::sieves`].
    #[must_use]
    pub fn sieves(&self) -> [Option<&[u32]>; 2] {
        self.shedding.sieves()
    }

    /// What a sieve in front has to let through whatever comes: who may send more by an operator's word, and distant gates, by
    /// which SIP servers speak without credentials. What is forged in a gate's name is dropped here, for want of its seal.
    #[must_use]
    pub fn spared(&self, now: Instant) -> Vec<IpNet> {
        let mut all = self.cx.settings.limits.lifted(now);
        all.extend(self.registrar.gates().map(IpNet::from));
        all.sort_unstable();
        all.dedup();
        all
    }

    /// What was handed over last took its thread so long, with what it took to receive it.
    pub fn spend(&mut self, took: Duration) {
        self.shedding.spend(took);
    }

    /// Whether it wants to be told by [`Self::spend`].
    #[must_use]
    pub const fn weighs(&self) -> bool {
        self.shedding.is_on()
    }

    /// When to [`Self::measure`] next: not earlier, and later if there is nothing else to do.
    #[must_use]
    pub fn measure_due(&self) -> Instant {
        self.shedding.due()
    }

    /// So many datagrams were lost, since a socket had no room for them, before [`Self::measure`].
    pub fn lose(&mut self, datagrams: u32) {
        self.cx.metrics.add(Count::DatagramsLost, datagrams.into());
        self.shedding.lose(datagrams);
    }

    /// How it is with connections, before [`Self::measure`].
    pub const fn crowd(&mut self, crowd: Crowd) {
        self.shedding.crowd(crowd);
    }

    /// Since the last time the shard's thread ran for the share `cpu` of the time, and had something to do for the share `busy`,
    /// whether there was a processor for it or not.
    pub fn measure(&mut self, now: Now, cpu: f64, busy: f64) {
        self.cx.now = now;
        let opened = self.cx.metrics.count(Count::CallsOpened);
        let asked = self.exchanges.longest_at_gate(now.instant);
        let measured = self.shedding.measure(
            now.instant,
            (cpu, busy),
            (opened, self.exchanges.pending.len()),
            (&mut self.cx.gates, asked),
        );
        self.cx.metrics.measure(measured);
        self.end_old();
    }

    /// Ends some of what is older than it may get while memory is short; the others are due at once.
    fn end_old(&mut self) {
        if let Some(age_max) = self.shedding.age_max() {
            end_old(&mut self.cx, &mut self.exchanges, age_max);
        }
    }

    /// Takes anything but a datagram from the network.
    pub fn on_input(&mut self, now: Now, input: Input) {
        self.cx.now = now;
        match input {
            Input::Agents(agents) => self.cx.settings.agents = agents,
            Input::Gate(answer) => self.exchanges.on_gate_answer(&mut self.cx, &mut self.legs, answer),
            Input::Over(calls) => {
                for call in calls.iter() {
                    self.legs.end(&mut self.cx, &mut self.exchanges.transactions, *call);
                }
            }
            // One that finds no room is told again when its agent registers anew.
            Input::Bind(binding) => drop(self.registrar.bind(self.cx.now.instant, binding)),
            Input::Closed(connection) => self.registrar.close(&mut self.cx, connection),
            Input::Undelivered { flow, message } => self.on_undelivered(flow, &message),
            Input::Datagram { flow, bytes } => {
                self.cx.handed_over = true;
                self.on_datagram(now, flow, &bytes);
                self.cx.handed_over = false;
            }
            Input::Standing { service, standing } => self.registrar.stand(&mut self.cx, service, standing),
            Input::Policy(policy) => {
                self.registrar.end_users(now.instant, &self.cx.policy, &policy);
                self.cx.policy = policy;
                self.registrar.link(&mut self.cx);
            }
        }
    }

    /// Does what is due: repeats requests and answers, and gives up on what did not come.
    pub fn on_time(&mut self, now: Now) {
        let Self { cx, exchanges, legs, .. } = self;
        cx.now = now;
        legs.end_due(cx, &mut exchanges.transactions);
        while let Some(over) = exchanges.transactions.poll(cx) {
            match over {
                TimedOut::Server(id) => exchanges.on_unacknowledged(cx, id),
                TimedOut::Client(id) => exchanges.on_relay_timeout(cx, id),
                TimedOut::Ringing(id) => exchanges.on_ringing_too_long(cx, id),
            }
        }
        failover::after_silence(cx, exchanges);
        exchanges.give_up_late_gates(cx);
        renew_flowing(cx);
        exchanges.sweep(cx.now.instant);
        self.end_old();
        self.cx.metrics.add(Count::TransmitDropped, self.cx.out.take_dropped());
    }

    /// Who proved to have sent a request, or `None` after having asked for credentials.
    fn authenticate(&mut self, asked: Asked<'_>) -> Option<Proof> {
        if let Some(user) = peers::sending_peer(&self.cx, asked.flow).map(|peer| peer.party()) {
            if !self.exchanges.transactions.charge(self.cx.now.instant, &user) {
                self.cx.at_limit(asked, &user, TRANSACTIONS_OF_USER);
                return None;
            }
            return Some(Proof { user, agent: None });
        }
        let proof = self.authenticator.authenticate(&mut self.cx, &mut self.exchanges.transactions, asked);
        proof.inspect(|proof| self.shedding.sign_in(asked.flow, &proof.user))
    }

    /// The next thing that the shard asks of its surroundings.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.cx.events.pop_front()
    }

    /// When [`Self::on_time`] must be called at the latest, and [`Self::measure`] if it is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let own = self.exchanges.next_deadline().into_iter().chain(self.legs.next_due()).chain(self.next_look());
        let too_old = self.shedding.age_max().and_then(|age_max| self.exchanges.oldest_due(age_max));
        own.chain(self.shedding.is_refusing().then(|| self.measure_due())).chain(too_old).min()
    }

    /// When to look whether media flow that keep calls.
    fn next_look(&self) -> Option<Instant> {
        // Else once somebody has taken events.
        let at = self.cx.ledger.next_look().filter(|_| self.cx.openings_left() > 0)?;
        Some(self.cx.now.instant + Duration::from_secs(at.0.saturating_sub(self.cx.now.unix.0)))
    }

    /// What is to be sent. Whoever sends it clears it.
    pub fn transmits(&mut self) -> &mut Transmits {
        watch::note_sent(&mut self.cx);
        &mut self.cx.out
    }

    /// The fill of each table at `now`: what some hold is over by time alone.
    #[must_use]
    pub fn gauges(&self, now: Instant) -> Vec<Gauge> {
        let [server, client] = self.exchanges.transactions.gauges();
        let others = [
            self.authenticator.gauge(),
            self.legs.gauge(),
            self.exchanges.late_answers.gauge(),
            self.registrar.gauge(),
            self.cx.gauge(now),
            Gauge::of("events", self.cx.events.len(), self.cx.events_max()),
        ];
        let own = [server, client].into_iter().chain(others).chain(self.exchanges.gauges());
        own.chain(self.shedding.gauges(now)).collect()
    }

    /// Counts datagrams that the socket did not take.
    pub fn count_unsent(&self, datagrams: u64) {
        self.cx.metrics.add(Count::TransmitDropped, datagrams);
    }
}

/// A key of its own for each purpose: `SHA-256(key ‖ label)`.
pub fn derive(key: &[u8; 32], label: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(key);
    hash.update(label);
    hash.finalize().into()
}
