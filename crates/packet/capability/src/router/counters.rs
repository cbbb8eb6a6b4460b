use sluicegate_wire::{Reason, capability::Kind};

/// What happened to packets since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counters {
    pub(super) requests: u64,
    /// By [`Kind`].
    regular: [u64; 4],
    pub(super) plain: u64,
    demoted: [u64; Reason::ALL.len()],
    malformed: [u64; Reason::ALL.len()],
    pub(super) quotes_stripped: u64,
}

impl Default for Counters {
    fn default() -> Self {
        let none = [0; Reason::ALL.len()];
        Self { requests: 0, regular: [0; 4], plain: 0, demoted: none, malformed: none, quotes_stripped: 0 }
    }
}

impl Counters {
    /// Packets that passed as what they claim to be: stamped requests, and regular packets of each kind.
    #[must_use]
    pub const fn passed(&self, kind: Kind) -> u64 {
        match kind {
            Kind::Request => self.requests,
            regular => self.regular[regular as usize],
        }
    }

    /// Packets without a capability header, or with one that is not looked at: fragments, IP options.
    #[must_use]
    pub const fn plain(&self) -> u64 {
        self.plain
    }

    /// Packets that were demoted for this reason.
    #[must_use]
    pub const fn demoted(&self, reason: Reason) -> u64 {
        self.demoted[reason as usize]
    }

    /// Packets that are no valid IP packets, by reason.
    #[must_use]
    pub const fn malformed(&self, reason: Reason) -> u64 {
        self.malformed[reason as usize]
    }

    /// ICMP errors that a quoted capability header was taken out of.
    #[must_use]
    pub const fn quotes_stripped(&self) -> u64 {
        self.quotes_stripped
    }

    #[inline]
    pub(super) const fn count_regular(&mut self, kind: Kind) {
        self.regular[kind as usize] += 1;
    }

    #[inline]
    pub(super) const fn count_demoted(&mut self, reason: Reason) {
        self.demoted[reason as usize] += 1;
    }

    pub(super) const fn count_malformed(&mut self, reason: Reason) {
        self.malformed[reason as usize] += 1;
    }
}
