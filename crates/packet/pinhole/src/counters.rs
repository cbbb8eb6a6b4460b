use sluicegate_wire::Reason;

/// What happened since the start besides drops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counters {
    observed: [u64; Reason::ALL.len()],
    events_lost: u64,
}

impl Default for Counters {
    fn default() -> Self {
        Self { observed: [0; Reason::ALL.len()], events_lost: 0 }
    }
}

impl Counters {
    /// Packets forwarded in observe mode which would have been dropped for this reason.
    #[must_use]
    pub const fn observed(&self, reason: Reason) -> u64 {
        self.observed[reason as usize]
    }

    /// Events that nobody fetched in time.
    #[must_use]
    pub const fn events_lost(&self) -> u64 {
        self.events_lost
    }

    pub(crate) const fn count_observed(&mut self, reason: Reason) {
        self.observed[reason as usize] += 1;
    }

    pub(crate) const fn count_event_lost(&mut self) {
        self.events_lost += 1;
    }
}
