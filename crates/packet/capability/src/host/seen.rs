use alloc::{boxed::Box, vec};

use sluicegate_wire::Instant;

use super::{config::CONTACT_FOR, policy::Flow, random::Random, routes};

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
    entries: Box<[(u64, Instant, Seen)]>,
}

impl SeenFlows {
    pub(super) fn new(flows_max: u32) -> Self {
        let entries = (flows_max.max(1) as usize).next_power_of_two();
        Self { entries: vec![(0, Instant::ZERO, Seen { plain: false }); entries].into_boxed_slice() }
    }

    /// Remembers for a minute that a packet of the other direction of `flow` came.
    pub(super) fn learn(&mut self, random: &Random, now: Instant, flow: &Flow, seen: Seen) {
        let hash = routes::hash(random, flow, true);
        let at = hash as usize & (self.entries.len() - 1);
        self.entries[at] = (hash, now + CONTACT_FOR, seen);
    }

    /// Forgets the flow: its packets have found their peer.
    pub(super) fn forget(&mut self, random: &Random, flow: &Flow) {
        let hash = routes::hash(random, flow, true);
        let entry = &mut self.entries[hash as usize & (self.entries.len() - 1)];
        if entry.0 == hash {
            entry.1 = Instant::ZERO;
        }
    }

    pub(super) fn find(&self, random: &Random, now: Instant, flow: &Flow) -> Option<Seen> {
        let hash = routes::hash(random, flow, true);
        let (held, until, seen) = self.entries[hash as usize & (self.entries.len() - 1)];
        (held == hash && until > now).then_some(seen)
    }
}
