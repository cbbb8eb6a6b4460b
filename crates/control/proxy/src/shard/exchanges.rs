//! What the shard remembers of authenticated requests: their transactions, and what each request that may open something
//! waits for until it has its final answer.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use sluicegate_bounded::Gauge;
use sluicegate_grant::GrantId;
use sluicegate_policy::WANTED_MAX;
use sluicegate_sip::message::Message;
use sluicegate_wire::Instant;

use super::{
    admission::Admitted,
    context::Context,
    events::{Event, GateAnswer},
    failover::Silences,
    forks::{Forks, TARGETS_MAX},
    grants::Opening,
    keys::Direction,
    late_answers::LateAnswers,
    legs::{Leg, Legs},
    media::Want,
    relay::Relay,
    settings::{OPENING_MAX, Settings, TRANSACTION_LIFE},
    shedding::{AGES_SLACK, Ages},
    transactions::{Id, Transactions},
    watch,
};
use crate::{calls::CallId, metrics::Count, stories::Happened, transmits::Flow};

/// Names an exchange: the transaction that it owes an answer, and which of several it is that owe the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ExchangeId {
    pub(super) owed: Id,
    pub(super) branch: u8,
}

impl From<Id> for ExchangeId {
    /// The only one.
    fn from(owed: Id) -> Self {
        Self { owed, branch: 0 }
    }
}

/// An INVITE that was let in and has no final answer yet, or another request that may change what a call has open.
#[derive(Debug)]
pub(super) struct Exchange {
    /// Where it came from.
    pub(super) flow: Flow,
    pub(super) request: Arc<[u8]>,
    pub(super) started: Instant,
    pub(super) admitted: Admitted,
    /// The grants that it waits for: for a relayed service those that the last description of the service names.
    pub(super) opening: Option<Opening>,
    /// When the gate must have answered.
    pub(super) gate_deadline: Option<Instant>,
    /// What is passed on, unless the frontend itself answers for the service.
    pub(super) relay: Option<Box<Relay>>,
}

impl Exchange {
    /// Where the client is, whose packets are let in.
    pub(super) fn client(&self) -> Flow {
        self.relay.as_ref().map_or(self.flow, |relay| relay.client)
    }

    /// The user who waits for the answer of a service; those whom a service asks do not.
    fn asks_service(&self) -> Option<&str> {
        let asks = self.relay.as_ref().is_some_and(|relay| relay.direction == Direction::ToService);
        asks.then_some(self.admitted.user.as_str())
    }
}

/// What a request was sent on for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Relayed {
    pub(super) exchange: ExchangeId,
    pub(super) call: CallId,
    pub(super) direction: Direction,
}

/// What became of asking gates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asking {
    /// Everything is open already.
    Open,
    /// Their answers are waited for.
    Wait,
    /// They could not be asked, and the request's sender has been told.
    Failed,
}

/// All exchanges of a shard. Every map is bounded by the slots of the tables.
#[derive(Debug)]
pub(super) struct Exchanges {
    pub(super) transactions: Transactions,
    /// Those without a final answer.
    pub(super) pending: HashMap<ExchangeId, Exchange>,
    /// How many of these each user waits for at services.
    by_user: HashMap<String, usize>,
    per_user_max: usize,
    /// Of these, those that went to several contacts.
    pub(super) forks: Forks,
    /// Answered with 200 and not acknowledged: the call that ends if it never is.
    pub(super) unacknowledged: HashMap<Id, CallId>,
    /// What each request that we sent on is for, for as long as an answer of interest may come.
    pub(super) relayed: HashMap<Id, Relayed>,
    /// What we sent on and nobody waits for any more, though it may have made a call there; each was ended.
    hung_up: HashSet<Id>,
    /// Relayed INVITEs whose 2xx may come again, oldest first.
    lingering: VecDeque<(Instant, Id)>,
    /// Which request waits for which grant.
    by_grant: HashMap<GrantId, ExchangeId>,
    /// ACKs of services with a description, which wait for what it names.
    pub(super) late_answers: LateAnswers,
    /// Requests whose servers have backups, until they have said something.
    pub(super) silences: Silences,
    /// When gates have to have answered at the latest, oldest first.
    gate_deadlines: VecDeque<(Instant, ExchangeId)>,
    /// Those without a final answer, oldest first.
    ages: Ages,
}

impl Exchanges {
    pub(super) fn new(settings: &Settings, key: [u8; 16]) -> Self {
        Self {
            transactions: Transactions::new(settings, key),
            pending: HashMap::new(),
            by_user: HashMap::new(),
            per_user_max: settings.tables.exchanges_per_user_max,
            forks: Forks::default(),
            unacknowledged: HashMap::new(),
            relayed: HashMap::new(),
            hung_up: HashSet::new(),
            lingering: VecDeque::new(),
            by_grant: HashMap::new(),
            late_answers: LateAnswers::new(settings.tables.transactions_max),
            silences: Silences::new(settings.tables.transactions_max),
            gate_deadlines: VecDeque::new(),
            ages: Ages::default(),
        }
    }

    /// An INVITE was let in and waits for what is to come.
    pub(super) fn begin(
        &mut self,
        cx: &Context,
        id: ExchangeId,
        (flow, request): (Flow, Arc<[u8]>),
        admitted: Admitted,
        relay: Option<Box<Relay>>,
    ) {
        let exchange =
            Exchange { flow, request, started: cx.now.instant, admitted, opening: None, gate_deadline: None, relay };
        if let Some(user) = exchange.asks_service() {
            *self.by_user.entry(user.to_owned()).or_default() += 1;
        }
        let pending = &self.pending;
        self.ages.note(cx.now.instant, id, |entry| lives(pending, entry), pending.len());
        self.pending.insert(id, exchange);
    }

    /// Whether this user may wait for one more answer of a service.
    pub(super) fn has_room_for(&self, user: &str) -> bool {
        self.by_user.get(user).is_none_or(|waiting| *waiting < self.per_user_max)
    }

    /// The exchange that has waited longest for its final answer, if it began so long ago.
    pub(super) fn oldest(&mut self, is_old: impl Fn(Instant) -> bool) -> Option<ExchangeId> {
        let pending = &self.pending;
        self.ages.forget(|entry| !lives(pending, entry));
        self.ages.oldest(is_old)
    }

    /// When the exchange that has waited longest has waited for so long; earlier if one before it has ended meanwhile.
    pub(super) fn oldest_due(&self, age_max: Duration) -> Option<Instant> {
        self.ages.first().map(|started| started + age_max)
    }

    /// The exchange has its final answer, or none will come.
    pub(super) fn end(&mut self, id: ExchangeId) -> Option<Exchange> {
        let exchange = self.pending.remove(&id)?;
        stop(&mut self.by_grant, exchange.opening.as_ref());
        if let Some(user) = exchange.asks_service()
            && let Some(waiting) = self.by_user.get_mut(user)
        {
            *waiting -= 1;
            if *waiting == 0 {
                self.by_user.remove(user);
            }
        }
        Some(exchange)
    }

    /// Has gates open what a request is to have, in place of what they were asked for it before.
    pub(super) fn open_grants(&mut self, cx: &mut Context, id: ExchangeId, wants: &[Want]) -> Asking {
        let Some(exchange) = self.pending.get_mut(&id) else { return Asking::Failed };
        let opening = Opening::new(cx, &exchange.admitted, exchange.client_ip(), wants);
        let order = Event::Open { service: exchange.admitted.service.name.clone(), deltas: opening.deltas() };
        stop(&mut self.by_grant, exchange.opening.as_ref());
        // What a call that goes on has open already is open, whatever the gate says of its renewal.
        let is_open = exchange.relay.is_some() && opening.is_open();
        if is_open {
            exchange.opening = Some(opening);
            cx.raise(order);
            return Asking::Open;
        }
        self.by_grant.extend(opening.ids().map(|grant| (grant, id)));
        let deadline = cx.now.instant + OPENING_MAX;
        self.gate_deadlines.push_back((deadline, id));
        (exchange.opening, exchange.gate_deadline) = (Some(opening), Some(deadline));
        if cx.raise(order) {
            return Asking::Wait;
        }
        self.on_gate_failed(cx, id, "as many events wait for the feed as may");
        Asking::Failed
    }

    /// The exchange waits for no grants any more, and needs none.
    pub(super) fn give_up_opening(&mut self, id: ExchangeId) {
        let opening = self.pending.get_mut(&id).and_then(|exchange| exchange.opening.take());
        stop(&mut self.by_grant, opening.as_ref());
    }

    /// Takes a gate's answer.
    pub(super) fn on_gate_answer(&mut self, cx: &mut Context, legs: &mut Legs, answer: GateAnswer) {
        let Some(id) = self.by_grant.remove(&answer.id) else {
            cx.gates.note(true, None);
            return self.late_answers.on_gate_answer(cx, &answer);
        };
        let deadline = self.pending.get(&id).and_then(|exchange| exchange.gate_deadline);
        cx.gates.note(true, deadline.map(|deadline| OPENING_MAX.saturating_sub(deadline.since(cx.now.instant))));
        match answer.opened {
            Ok((address, ports)) => {
                let Some(exchange) = self.pending.get_mut(&id) else { return };
                if !exchange.opening.as_mut().is_some_and(|opening| opening.note(answer.id, address, ports)) {
                    return;
                }
                match exchange.relay.as_ref().map(|relay| relay.sent) {
                    None => self.accept(cx, id),
                    Some(None) => self.send_on(cx, id),
                    Some(Some(_)) => self.pass_answer_on(cx, legs, id),
                }
            }
            Err(reason) => {
                cx.metrics.one(Count::OpeningRefused);
                self.on_gate_failed(cx, id, &reason);
            }
        }
    }

    /// Nothing could be opened: the gate refused, or has not answered in time.
    fn on_gate_failed(&mut self, cx: &mut Context, id: ExchangeId, why: &str) {
        match self.pending.get(&id).map(|exchange| exchange.relay.as_ref().map(|relay| relay.sent)) {
            Some(Some(Some(_))) => self.on_relay_gate_failed(cx, id, why),
            // The call goes on as it was (RFC 3261 section 14.2).
            Some(Some(None)) => self.fail(cx, id, 488, why),
            Some(None) => self.fail(cx, id, 503, why),
            None => {}
        }
    }

    /// How long ago a gate was asked for what waits longest of what has not been answered.
    pub(super) fn longest_at_gate(&self, now: Instant) -> Option<Duration> {
        let waits = |(deadline, id): &&(Instant, ExchangeId)| {
            self.pending.get(id).is_some_and(|exchange| exchange.gate_deadline == Some(*deadline))
        };
        let (deadline, _) = self.gate_deadlines.iter().find(waits)?;
        Some(OPENING_MAX.saturating_sub(deadline.since(now)))
    }

    /// Gives up on the gates that have not answered in time.
    pub(super) fn give_up_late_gates(&mut self, cx: &mut Context) {
        while let Some((deadline, id)) = self.gate_deadlines.pop_front_if(|(deadline, _)| *deadline <= cx.now.instant) {
            // A later opening of the same exchange has a later deadline.
            if self.pending.get(&id).is_some_and(|exchange| exchange.gate_deadline == Some(deadline)) {
                cx.metrics.one(Count::OpeningTimeouts);
                cx.gates.note(false, Some(OPENING_MAX));
                self.on_gate_failed(cx, id, "the gate has not answered in time");
            }
        }
        self.late_answers.give_up(cx);
    }

    /// Ends a pending exchange with a refusal, and with it whatever was opened for it. The client is not told why; `trace`
    /// is.
    pub(super) fn fail(&mut self, cx: &mut Context, id: ExchangeId, code: u16, why: &str) {
        let Some(Exchange { flow, request, admitted, opening, relay, .. }) = self.end(id) else { return };
        watch::failed(cx, &admitted, (flow, relay.as_deref()), code, why);
        match opening {
            Some(_) if !admitted.stands() => drop(cx.revoke(admitted.call)),
            Some(opening) => cx.close(opening.new_ids()),
            // Early media that a gate was late with: it may have opened them since.
            None if !admitted.stands() && cx.ledger.has_grants(admitted.call) => drop(cx.revoke(admitted.call)),
            None => {}
        }
        if let Some(relay) = relay {
            relay.sent.map(|sent| self.relayed.remove(&sent));
            if !admitted.renewal {
                cx.ledger.end_call(cx.now.instant, admitted.call, None);
            }
        }
        if let Ok(request) = Message::parse(&request) {
            cx.write_answer(flow, &request, code, &[]);
            self.answer(cx, id, code);
        }
    }

    /// The ACK to a first 200 never came, or an exchange outlived every timer: whatever was opened for it ends.
    pub(super) fn on_unacknowledged(&mut self, cx: &mut Context, owed: Id) {
        let mut over: Vec<CallId> = self.unacknowledged.remove(&owed).into_iter().collect();
        for id in self.forks.end(owed) {
            let Some(exchange) = self.end(id) else { continue };
            exchange.relay.and_then(|relay| relay.sent).map(|sent| self.relayed.remove(&sent));
            over.extend((!exchange.admitted.stands()).then_some(exchange.admitted.call));
        }
        for call in over {
            cx.tell(call, Happened::Unacknowledged);
            cx.ledger.end_call(cx.now.instant, call, None);
            cx.revoke(call);
        }
    }

    /// Nobody waits for the answer to what we sent, which made a call at the service: ends that. One that comes again is
    /// acknowledged again.
    pub(super) fn hang_up(&mut self, cx: &mut Context, sent: Id, leg: &Leg) {
        leg.acknowledge(cx);
        if self.hung_up.insert(sent) {
            leg.say_bye(cx, &mut self.transactions);
            self.linger(cx.now.instant, sent);
        }
    }

    /// A relayed INVITE was accepted: its 2xx may come again until the client transaction ends.
    pub(super) fn linger(&mut self, now: Instant, sent: Id) {
        self.lingering.push_back((now + TRANSACTION_LIFE, sent));
        while self.lingering.len() > self.lingering_max() {
            self.drop_lingering(|_| true);
        }
    }

    /// Drops what lingered long enough, and how old those were that have ended.
    pub(super) fn sweep(&mut self, now: Instant) {
        while self.drop_lingering(|at| at <= now) {}
        let pending = &self.pending;
        self.ages.forget(|entry| !lives(pending, entry));
    }

    /// Drops what lingers longest, if it is to be dropped.
    fn drop_lingering(&mut self, is_over: impl FnOnce(Instant) -> bool) -> bool {
        let Some((_, id)) = self.lingering.pop_front_if(|(at, _)| is_over(*at)) else { return false };
        self.relayed.remove(&id);
        self.hung_up.remove(&id);
        true
    }

    /// Each has a slot of a request of ours, or had one within as long as such a slot is taken.
    fn lingering_max(&self) -> usize {
        let [_, client] = self.transactions.gauges();
        2 * client.max as usize
    }

    /// What is remembered besides transactions.
    pub(super) fn gauges(&self) -> [Gauge; 8] {
        let ([server, _], lingering) = (self.transactions.gauges(), self.lingering_max());
        let server = server.max as usize;
        [
            Gauge::of("exchanges", self.pending.len(), server * TARGETS_MAX),
            Gauge::of("ages", self.ages.len(), 2 * server * TARGETS_MAX + AGES_SLACK + 1),
            Gauge::of("forks", self.forks.len(), server),
            Gauge::of("unacknowledged", self.unacknowledged.len(), server),
            Gauge::of("awaited_grants", self.by_grant.len(), server * TARGETS_MAX * WANTED_MAX),
            Gauge::of("hung_up", self.hung_up.len(), lingering),
            Gauge::of("lingering", self.lingering.len(), lingering),
            self.silences.gauge(),
        ]
    }

    /// When something is due: a transaction's timer or a gate's answer.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let gates = self.gate_deadlines.front().map(|(at, _)| *at);
        let lingering = self.lingering.front().map(|(at, _)| *at);
        let own = gates.into_iter().chain(lingering).chain(self.late_answers.next_deadline());
        let own = own.chain(self.silences.next_due());
        own.chain(self.transactions.next_deadline()).min()
    }
}

/// Whether this is still without a final answer.
fn lives(pending: &HashMap<ExchangeId, Exchange>, (started, id): &(Instant, ExchangeId)) -> bool {
    pending.get(id).is_some_and(|exchange| exchange.started == *started)
}

/// Nobody waits for these grants any more.
fn stop(by_grant: &mut HashMap<GrantId, ExchangeId>, opening: Option<&Opening>) {
    for grant in opening.into_iter().flat_map(Opening::ids) {
        by_grant.remove(&grant);
    }
}
