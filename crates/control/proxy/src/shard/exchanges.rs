//! What the shard remembers of authenticated requests: their transactions, and what each INVITE without a final answer
//! waits for.

use std::collections::{HashMap, HashSet, VecDeque};

use sluicegate_api::Decision;
use sluicegate_grant::GrantId;
use sluicegate_sip::message::Message;
use sluicegate_wire::Instant;

use super::{
    admission::Admitted,
    context::Context,
    events::{Event, GateAnswer},
    grants::Opening,
    ladder::Asked,
    legs::{Leg, Legs},
    media::Want,
    relay::Relay,
    settings::{OPENING_MAX, Settings, TRANSACTION_LIFE},
    transactions::{Id, Transactions},
};
use crate::{
    calls::CallId,
    decisions::Decided,
    metrics::{Count, Outcome},
    transmits::Flow,
};

/// An INVITE that was let in and has no final answer yet.
#[derive(Debug)]
pub(super) struct Exchange {
    /// Where it came from.
    pub(super) flow: Flow,
    pub(super) request: Vec<u8>,
    pub(super) started: Instant,
    pub(super) admitted: Admitted,
    /// The grants that it waits for: for a relayed service those that its last answer names.
    pub(super) opening: Option<Opening>,
    /// When the gate must have answered.
    pub(super) gate_deadline: Option<Instant>,
    /// What was passed on, unless the frontend itself answers for the service.
    pub(super) relay: Option<Box<Relay>>,
}

/// All exchanges of a shard. Every map is bounded by the slots of the tables.
#[derive(Debug)]
pub(super) struct Exchanges {
    pub(super) transactions: Transactions,
    /// Those without a final answer.
    pub(super) pending: HashMap<Id, Exchange>,
    /// Answered with 200 and not acknowledged: the call that ends if it never is.
    pub(super) unacknowledged: HashMap<Id, CallId>,
    /// From what we sent to a service to the client's transaction, for as long as an answer of interest may come.
    pub(super) relayed: HashMap<Id, Id>,
    /// What we sent to a service and nobody waits for any more, though it may have made a call there; each was ended.
    hung_up: HashSet<Id>,
    /// Relayed INVITEs whose 2xx may come again, oldest first.
    lingering: VecDeque<(Instant, Id)>,
    /// Which INVITE waits for which grant.
    by_grant: HashMap<GrantId, Id>,
    /// When gates have to have answered at the latest, oldest first.
    gate_deadlines: VecDeque<(Instant, Id)>,
}

impl Exchanges {
    pub(super) fn new(settings: &Settings, key: [u8; 16]) -> Self {
        Self {
            transactions: Transactions::new(settings, key),
            pending: HashMap::new(),
            unacknowledged: HashMap::new(),
            relayed: HashMap::new(),
            hung_up: HashSet::new(),
            lingering: VecDeque::new(),
            by_grant: HashMap::new(),
            gate_deadlines: VecDeque::new(),
        }
    }

    /// An INVITE was let in and waits for what is to come.
    pub(super) fn begin(
        &mut self,
        cx: &Context,
        id: Id,
        asked: Asked<'_>,
        admitted: Admitted,
        relay: Option<Box<Relay>>,
    ) {
        let exchange = Exchange {
            flow: asked.flow,
            request: asked.message.as_bytes().to_vec(),
            started: cx.now.instant,
            admitted,
            opening: None,
            gate_deadline: None,
            relay,
        };
        self.pending.insert(id, exchange);
    }

    /// The exchange has its final answer, or none will come.
    pub(super) fn end(&mut self, id: Id) -> Option<Exchange> {
        let exchange = self.pending.remove(&id)?;
        stop(&mut self.by_grant, exchange.opening.as_ref());
        Some(exchange)
    }

    /// Has gates open what an INVITE is to have, in place of what they were asked for it before; `false`, after having
    /// told its sender, if they cannot even be asked.
    pub(super) fn open_grants(&mut self, cx: &mut Context, id: Id, wants: &[Want]) -> bool {
        let Some(exchange) = self.pending.get_mut(&id) else { return false };
        let opening = Opening::new(cx, &exchange.admitted, exchange.flow.peer.ip(), wants);
        let order = Event::Open { service: exchange.admitted.service.name.clone(), deltas: opening.deltas() };
        stop(&mut self.by_grant, exchange.opening.as_ref());
        self.by_grant.extend(opening.ids().map(|grant| (grant, id)));
        let deadline = cx.now.instant + OPENING_MAX;
        self.gate_deadlines.push_back((deadline, id));
        (exchange.opening, exchange.gate_deadline) = (Some(opening), Some(deadline));
        let raised = cx.raise(order);
        if !raised {
            self.on_gate_failed(cx, id, "as many events wait for the feed as may");
        }
        raised
    }

    /// The exchange waits for no grants any more, and needs none.
    pub(super) fn give_up_opening(&mut self, id: Id) {
        let opening = self.pending.get_mut(&id).and_then(|exchange| exchange.opening.take());
        stop(&mut self.by_grant, opening.as_ref());
    }

    /// Takes a gate's answer.
    pub(super) fn on_gate_answer(&mut self, cx: &mut Context, legs: &mut Legs, answer: GateAnswer) {
        let Some(id) = self.by_grant.remove(&answer.id) else { return };
        match answer.opened {
            Ok((address, ports)) => {
                let Some(exchange) = self.pending.get_mut(&id) else { return };
                if !exchange.opening.as_mut().is_some_and(|opening| opening.note(answer.id, address, ports)) {
                    return;
                }
                match exchange.relay {
                    None => self.accept(cx, id),
                    Some(_) => self.pass_answer_on(cx, legs, id),
                }
            }
            Err(reason) => {
                cx.metrics.one(Count::OpeningRefused);
                self.on_gate_failed(cx, id, &reason);
            }
        }
    }

    /// Nothing could be opened: the gate refused, or has not answered in time.
    fn on_gate_failed(&mut self, cx: &mut Context, id: Id, why: &str) {
        match self.pending.get_mut(&id) {
            Some(Exchange { relay: Some(_), .. }) => self.on_relay_gate_failed(cx, id, why),
            Some(_) => self.fail(cx, id, 503, why),
            None => {}
        }
    }

    /// Gives up on the gates that have not answered in time.
    pub(super) fn give_up_late_gates(&mut self, cx: &mut Context) {
        while let Some((deadline, id)) = self.gate_deadlines.pop_front_if(|(deadline, _)| *deadline <= cx.now.instant) {
            // A later opening of the same exchange has a later deadline.
            if self.pending.get(&id).is_some_and(|exchange| exchange.gate_deadline == Some(deadline)) {
                cx.metrics.one(Count::OpeningTimeouts);
                self.on_gate_failed(cx, id, "the gate has not answered in time");
            }
        }
    }

    /// Ends a pending exchange with a refusal, and with it whatever was opened for it. The client is not told why; `trace`
    /// is.
    pub(super) fn fail(&mut self, cx: &mut Context, id: Id, code: u16, why: &str) {
        let Some(Exchange { flow, request, admitted, opening, relay, .. }) = self.end(id) else { return };
        let decision = Decision {
            unix: cx.now.unix.0,
            user: admitted.user,
            service: admitted.service.name.clone(),
            client: flow.peer,
            outcome: Outcome::Unavailable.label().into(),
            status: code,
            steps: vec![format!("- {why}")],
        };
        cx.raise(Event::Decided(Decided { decision, renewal: false, left_out: 0 }));
        if opening.is_some() && !admitted.renewal {
            cx.revoke(admitted.call);
        }
        if let Some(relay) = relay {
            self.relayed.remove(&relay.sent);
            if !admitted.renewal {
                cx.ledger.end_call(cx.now.instant, admitted.call, None);
            }
        }
        if let Ok(request) = Message::parse(&request) {
            cx.write_answer(flow, &request, code, &[]);
            self.transactions.respond(cx, id, code);
        }
    }

    /// The ACK to a first 200 never came, or an exchange outlived every timer: whatever was opened for it ends.
    pub(super) fn on_unacknowledged(&mut self, cx: &mut Context, id: Id) {
        let exchange = self.end(id);
        if let Some(Exchange { relay: Some(relay), .. }) = &exchange {
            self.relayed.remove(&relay.sent);
        }
        let ended = exchange.filter(|exchange| !exchange.admitted.renewal).map(|exchange| exchange.admitted.call);
        if let Some(call) = self.unacknowledged.remove(&id).or(ended) {
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
    }

    /// Drops what lingered long enough.
    pub(super) fn sweep(&mut self, now: Instant) {
        while let Some((_, id)) = self.lingering.pop_front_if(|(at, _)| *at <= now) {
            self.relayed.remove(&id);
            self.hung_up.remove(&id);
        }
    }

    /// When something is due: a transaction's timer or a gate's answer.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let queues = [&self.gate_deadlines, &self.lingering].into_iter();
        queues.filter_map(|queue| Some(queue.front()?.0)).chain(self.transactions.next_deadline()).min()
    }
}

/// Nobody waits for these grants any more.
fn stop(by_grant: &mut HashMap<GrantId, Id>, opening: Option<&Opening>) {
    for grant in opening.into_iter().flat_map(Opening::ids) {
        by_grant.remove(&grant);
    }
}
