//! Requests that went on to several places: whose answer is passed on (RFC 3261 section 16.7), and where they go next.

use std::{collections::HashMap, sync::Arc};

use sluicegate_policy::Service;

use super::{exchanges::ExchangeId, transactions::Id};
use crate::{locations::Contact, transmits::Flow};

/// Most places that one request goes to. Where the flow to one has failed, that one may be another of the same telephone.
pub(super) const TARGETS_MAX: usize = 8;

/// One place that a request may go to.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) flow: Flow,
    /// The Request-URI there.
    pub(super) uri: Vec<u8>,
    /// The Route values by which it gets there.
    pub(super) routes: Vec<Vec<u8>>,
    /// Places of the same rank are tried at the same time, higher ones first.
    pub(super) q: u16,
    /// Where the same telephone is reached if this flow has failed (RFC 5626 section 7).
    pub(super) others: Vec<Self>,
}

impl Target {
    /// A telephone that has these flows, of which the first is to be tried first.
    pub(super) fn of_flows(flows: &[Arc<Contact>]) -> Option<Self> {
        let mut targets = flows.iter().map(|contact| {
            let Contact { flow, uri, route, q, .. } = &**contact;
            Self { flow: *flow, uri: uri.clone(), routes: route.clone(), q: *q, others: Vec::new() }
        });
        targets.next().map(|first| Self { others: targets.collect(), ..first })
    }
}

/// A request for a user, on its way to where that user is.
#[derive(Debug, Clone)]
pub(super) struct Inbound {
    /// The service that it comes from.
    pub(super) service: Arc<Service>,
    /// Where it came from.
    pub(super) flow: Flow,
    pub(super) request: Arc<[u8]>,
    /// Whom it is for.
    pub(super) user: String,
    /// To how many places at a time it may go (RFC 5393 section 5).
    pub(super) breadth: u16,
}

/// What a request may that does not say.
pub(super) const BREADTH_DEFAULT: u16 = 60;

#[derive(Debug)]
struct Fork {
    inbound: Inbound,
    /// Places to be tried after these, best first.
    later: Vec<Target>,
    /// Other flows of those telephones that branches went to, by branch.
    others: Vec<(u8, Vec<Target>)>,
    /// Branches that were begun.
    begun: u8,
    /// Of these, those without a final answer.
    running: u8,
    /// The best refusal so far: its status, and the whole answer.
    best: Option<(u16, Vec<u8>)>,
}

/// What follows from a refusal.
#[derive(Debug)]
pub(super) enum Refusal {
    /// It is the answer.
    Answer,
    /// Others may still accept.
    Wait,
    /// This one, which is the best of all, is the answer.
    Best(u16, Vec<u8>),
    /// The next places are tried.
    Next(Inbound, Vec<Target>),
}

/// Bounded by the slots of the tables, as each has a transaction.
#[derive(Debug, Default)]
pub(super) struct Forks(HashMap<Id, Fork>);

impl Forks {
    /// A request goes to these places, one group after the other. The first group.
    pub(super) fn begin(&mut self, owed: Id, inbound: Inbound, mut targets: Vec<Target>) -> Vec<Target> {
        targets.sort_by_key(|target| std::cmp::Reverse(target.q));
        targets.truncate(TARGETS_MAX);
        let first = group(&mut targets, inbound.breadth);
        self.0.insert(owed, Fork { inbound, later: targets, others: Vec::new(), begun: 0, running: 0, best: None });
        first
    }

    /// How many requests went to several places.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Begins one more branch; where else it may go is kept here.
    pub(super) fn branch(&mut self, owed: Id, target: &mut Target) -> ExchangeId {
        let Some(fork) = self.0.get_mut(&owed) else { return owed.into() };
        let id = ExchangeId { owed, branch: fork.begun };
        fork.begun += 1;
        fork.running += 1;
        if !target.others.is_empty() {
            fork.others.push((id.branch, std::mem::take(&mut target.others)));
        }
        id
    }

    /// The exchanges that owe this transaction an answer.
    pub(super) fn branches(&self, owed: Id) -> impl Iterator<Item = ExchangeId> + use<> {
        let begun = self.0.get(&owed).map_or(1, |fork| fork.begun);
        (0..begun).map(move |branch| ExchangeId { owed, branch })
    }

    /// No further places are tried.
    pub(super) fn close(&mut self, owed: Id) {
        if let Some(fork) = self.0.get_mut(&owed) {
            fork.later.clear();
            fork.others.clear();
        }
    }

    /// The transaction is answered, or will not be. The exchanges that owed it that.
    pub(super) fn end(&mut self, owed: Id) -> impl Iterator<Item = ExchangeId> + use<> {
        let branches = self.branches(owed);
        self.0.remove(&owed);
        branches
    }

    /// A branch ended without an answer of the telephone that it went to: it goes over that one's next flow, if there is one.
    pub(super) fn flow_failed(&mut self, ExchangeId { owed, branch }: ExchangeId) -> Option<(Inbound, Target)> {
        let fork = self.0.get_mut(&owed)?;
        let at = fork.others.iter().position(|(of, _)| *of == branch)?;
        let (_, mut others) = fork.others.swap_remove(at);
        let next = others.remove(0);
        fork.running = fork.running.saturating_sub(1);
        Some((fork.inbound.clone(), Target { others, ..next }))
    }

    /// A branch was refused: the lowest class is best, but for a 6xx, which is for all (RFC 3261 section 16.7, 5 and 6).
    pub(super) fn refused(&mut self, owed: Id, code: u16, answer: &[u8]) -> Refusal {
        let Some(fork) = self.0.get_mut(&owed) else { return Refusal::Answer };
        let rank = |code: u16| if code >= 600 { 0 } else { code / 100 };
        if fork.best.as_ref().is_none_or(|(best, _)| rank(code) < rank(*best)) {
            fork.best = Some((code, answer.to_vec()));
        }
        fork.running = fork.running.saturating_sub(1);
        if code >= 600 {
            fork.later.clear();
            fork.others.clear();
        }
        if fork.running > 0 {
            return Refusal::Wait;
        }
        let next = group(&mut fork.later, fork.inbound.breadth);
        if !next.is_empty() {
            return Refusal::Next(fork.inbound.clone(), next);
        }
        let best = self.0.remove(&owed).and_then(|fork| fork.best);
        best.map_or(Refusal::Answer, |(code, answer)| Refusal::Best(code, answer))
    }
}

/// Takes those of the highest rank off the front, no more than may be tried at a time.
fn group(targets: &mut Vec<Target>, breadth: u16) -> Vec<Target> {
    let highest = targets.first().map(|target| target.q);
    let count = targets.iter().take(breadth.into()).take_while(|target| Some(target.q) == highest).count();
    targets.drain(..count).collect()
}
