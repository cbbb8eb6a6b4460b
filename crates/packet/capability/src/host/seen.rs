use sluicegate_bounded::Cache;
use sluicegate_wire::Instant;

use super::{config::CONTACT_FOR, policy::Flow, random::Keyed, routes};

/// A flow that the remote side opened and that has no peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    /// Its packets came without a capability header, so that answers go without one too.
    pub(super) plain: bool,
}

/// Flows by which remote hosts came without becoming peers: what a local host sends on them is an answer. Direct-mapped;
/// an entry that is overwritten comes back with the flow's next packet.
#[derive(Debug)]
pub(super) struct SeenFlows {
    /// The flow's hash, and until when it is remembered.
    flows: Cache<Option<(u64, Instant, Seen)>, 1>,
    keyed: Keyed,
}

impl SeenFlows {
    pub(super) fn new(flows_max: u32, keyed: Keyed) -> Self {
        Self { flows: Cache::new("capability_seen", flows_max), keyed }
    }

    /// Remembers for a minute that a packet of the other direction of `flow` came.
    pub(super) fn learn(&mut self, now: Instant, flow: &Flow, seen: Seen) {
        let hash = routes::hash(&self.keyed, flow, true);
        *self.flows.place(hash, |_| true, |_| ()) = Some((hash, now + CONTACT_FOR, seen));
    }

    /// Forgets the flow: its packets have found their peer.
    pub(super) fn forget(&mut self, flow: &Flow) {
        let hash = routes::hash(&self.keyed, flow, true);
        if let Some(flow) = self.flows.find_mut(hash, |flow| flow.is_some_and(|(held, ..)| held == hash)) {
            *flow = None;
        }
    }

    pub(super) fn find(&self, now: Instant, flow: &Flow) -> Option<Seen> {
        let hash = routes::hash(&self.keyed, flow, true);
        let is_it = |flow: &Option<(u64, Instant, _)>| flow.is_some_and(|(held, until, _)| held == hash && until > now);
        self.flows.find(hash, is_it)?.map(|(.., seen)| seen)
    }
}
