//! What is asked of gates, and which INVITE waits for which of their answers.

use std::collections::{HashMap, VecDeque};

use sluicegate_feed::{GrantDelta, Selector};
use sluicegate_grant::GrantId;
use sluicegate_wire::Instant;

use super::{exchanges::Id, grants::Opening, settings::OPENING_MAX};

/// What the proxy wants of gates: whoever has some, by a feed or for a test, carries it out. The answers to what is opened
/// come back as [`Input::Gate`](crate::Input::Gate), one for each grant.
pub trait GateControl {
    /// Opens the grants of one call at the gates of this service, all or none. A grant that stands there already is
    /// changed. `shard` waits for the answers.
    fn open(&mut self, shard: u8, service: &str, deltas: Vec<GrantDelta>);

    /// Ends grants at once, wherever they stand. Nobody waits for an answer.
    fn revoke(&mut self, selector: Selector);
}

/// One call of [`GateControl`], on its way out of a shard.
#[derive(Debug, Clone)]
pub enum GateOrder {
    /// [`GateControl::open`].
    Open {
        /// The service.
        service: String,
        /// One delta per grant.
        deltas: Vec<GrantDelta>,
    },
    /// [`GateControl::revoke`].
    Revoke(Selector),
}

impl GateOrder {
    /// Has `gates` carry it out for `shard`.
    pub fn carry_out(self, shard: u8, gates: &mut impl GateControl) {
        match self {
            Self::Open { service, deltas } => gates.open(shard, &service, deltas),
            Self::Revoke(selector) => gates.revoke(selector),
        }
    }
}

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
