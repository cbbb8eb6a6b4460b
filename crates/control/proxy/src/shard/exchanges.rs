//! What the shard remembers of authenticated requests: their transactions, and what each INVITE without a final answer
//! waits for.

use std::collections::{HashMap, VecDeque};

use sluicegate_grant::GrantId;
use sluicegate_wire::Instant;

use super::{
    admission::Admitted,
    grants::Opening,
    ladder::Asked,
    openings::Openings,
    relay::Relay,
    settings::{Settings, TRANSACTION_LIFE},
    transactions::{Id, Transactions},
};
use crate::transmits::Flow;

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
    pending: HashMap<Id, Exchange>,
    /// Answered with 200 and not acknowledged: the call that ends if it never is.
    unacknowledged: HashMap<Id, [u8; 12]>,
    /// From what we sent to a service to what we owe the client.
    relayed: HashMap<Id, Id>,
    /// Relayed INVITEs whose 2xx may come again, oldest first.
    lingering: VecDeque<(Instant, Id)>,
    openings: Openings,
}

impl Exchanges {
    pub(super) fn new(settings: &Settings, key: [u8; 16]) -> Self {
        Self {
            transactions: Transactions::new(settings, key),
            pending: HashMap::new(),
            unacknowledged: HashMap::new(),
            relayed: HashMap::new(),
            lingering: VecDeque::new(),
            openings: Openings::default(),
        }
    }

    /// An INVITE was let in and waits for what is to come.
    pub(super) fn begin(
        &mut self,
        now: Instant,
        id: Id,
        asked: Asked<'_>,
        (admitted, relay): (Admitted, Option<Box<Relay>>),
    ) {
        let (flow, request) = (asked.flow, asked.message.as_bytes().to_vec());
        let exchange = Exchange { flow, request, started: now, admitted, opening: None, gate_deadline: None, relay };
        self.pending.insert(id, exchange);
    }

    pub(super) fn pending(&mut self, id: Id) -> Option<&mut Exchange> {
        self.pending.get_mut(&id)
    }

    /// The exchange has its final answer, or none will come.
    pub(super) fn end(&mut self, id: Id) -> Option<Exchange> {
        let exchange = self.pending.remove(&id)?;
        exchange.opening.iter().for_each(|opening| self.openings.stop(opening));
        Some(exchange)
    }

    /// From now on the exchange waits for these grants, and for no others.
    pub(super) fn await_gate(&mut self, now: Instant, id: Id, opening: Opening) {
        if let Some(exchange) = self.pending.get_mut(&id) {
            exchange.opening.iter().for_each(|before| self.openings.stop(before));
            exchange.gate_deadline = Some(self.openings.expect(now, id, opening.ids()));
            exchange.opening = Some(opening);
        }
    }

    /// The exchange waits for no grants any more, and needs none.
    pub(super) fn give_up_opening(&mut self, id: Id) {
        let opening = self.pending.get_mut(&id).and_then(|exchange| exchange.opening.take());
        opening.iter().for_each(|opening| self.openings.stop(opening));
    }

    /// The exchange that waits for this grant; it no longer does.
    pub(super) fn waiting_for(&mut self, grant: GrantId) -> Option<Id> {
        self.openings.answered(grant)
    }

    /// An exchange whose gate has not answered in time.
    pub(super) fn missed_gate(&mut self, now: Instant) -> Option<Id> {
        while let Some((deadline, id)) = self.openings.missed(now) {
            // A later opening of the same exchange has a later deadline.
            if self.pending.get(&id).is_some_and(|exchange| exchange.gate_deadline == Some(deadline)) {
                return Some(id);
            }
        }
        None
    }

    pub(super) fn await_ack(&mut self, id: Id, call: [u8; 12]) {
        self.unacknowledged.insert(id, call);
    }

    /// The ACK came, or will never come: the call that hung on it.
    pub(super) fn acknowledged(&mut self, id: Id) -> Option<[u8; 12]> {
        self.unacknowledged.remove(&id)
    }

    pub(super) fn relay(&mut self, sent: Id, owed: Id) {
        self.relayed.insert(sent, owed);
    }

    /// The client's transaction for what we sent to a service.
    pub(super) fn owed(&self, sent: Id) -> Option<Id> {
        self.relayed.get(&sent).copied()
    }

    /// A relayed INVITE was accepted: its 2xx may come again until the client transaction ends.
    pub(super) fn linger(&mut self, now: Instant, sent: Id) {
        self.lingering.push_back((now + TRANSACTION_LIFE, sent));
    }

    /// No more answers of interest can come to what we sent.
    pub(super) fn forget(&mut self, sent: Id) {
        self.relayed.remove(&sent);
    }

    /// Drops what lingered long enough.
    pub(super) fn sweep(&mut self, now: Instant) {
        while let Some((at, id)) = self.lingering.front().copied()
            && at <= now
        {
            self.lingering.pop_front();
            self.relayed.remove(&id);
        }
    }

    /// When something is due: a transaction's timer or a gate's answer.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let lingering = self.lingering.front().map(|(at, _)| *at);
        let deadlines = [self.transactions.next_deadline(), self.openings.next_deadline(), lingering];
        deadlines.into_iter().flatten().min()
    }
}
