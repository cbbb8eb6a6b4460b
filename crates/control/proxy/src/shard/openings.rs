//! Which INVITE waits for which answer of a gate.

use std::collections::{HashMap, VecDeque};

use sluicegate_grant::GrantId;
use sluicegate_wire::Instant;

use super::{grants::Opening, settings::OPENING_MAX, transactions::Id};

/// The answers of gates that INVITEs wait for. Bounded by the slots of transactions.
#[derive(Debug, Default)]
pub(super) struct Openings {
    by_grant: HashMap<GrantId, Id>,
    deadlines: VecDeque<(Instant, Id)>,
}

impl Openings {
    /// From now on the answers for `grants` belong to this INVITE; when they are missed.
    pub(super) fn expect(&mut self, now: Instant, id: Id, grants: impl Iterator<Item = GrantId>) -> Instant {
        let deadline = now + OPENING_MAX;
        self.by_grant.extend(grants.map(|grant| (grant, id)));
        self.deadlines.push_back((deadline, id));
        deadline
    }

    /// Nobody waits for these grants any more.
    pub(super) fn stop(&mut self, opening: &Opening) {
        for grant in opening.ids() {
            self.by_grant.remove(&grant);
        }
    }

    /// The INVITE that waited for this grant.
    pub(super) fn answered(&mut self, grant: GrantId) -> Option<Id> {
        self.by_grant.remove(&grant)
    }

    /// The next deadline that has passed.
    pub(super) fn missed(&mut self, now: Instant) -> Option<(Instant, Id)> {
        self.deadlines.pop_front_if(|(deadline, _)| *deadline <= now)
    }

    /// When the next answer is missed.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.front().map(|(at, _)| *at)
    }
}
