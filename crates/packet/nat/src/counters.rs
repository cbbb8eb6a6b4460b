use sluicegate_wire::{Port, Reason};

/// What happened to packets since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counters {
    dropped: [u64; Reason::ALL.len()],
    observed: [u64; Reason::ALL.len()],
    packets: [u64; 2],
    bytes: [u64; 2],
    replies: u64,
    held: u64,
    events_lost: u64,
}

impl Default for Counters {
    fn default() -> Self {
        let none = [0; Reason::ALL.len()];
        Self { dropped: none, observed: none, packets: [0; 2], bytes: [0; 2], replies: 0, held: 0, events_lost: 0 }
    }
}

impl Counters {
    /// Packets dropped for this reason. Includes those answered with an ICMP error.
    #[must_use]
    pub const fn dropped(&self, reason: Reason) -> u64 {
        self.dropped[reason as usize]
    }

    /// Packets forwarded in observe mode which would have been dropped for this reason.
    #[must_use]
    pub const fn observed(&self, reason: Reason) -> u64 {
        self.observed[reason as usize]
    }

    /// Packets sent out of this port.
    #[must_use]
    pub fn forwarded_packets(&self, port: Port) -> u64 {
        self.packets[usize::from(port.0 & 1)]
    }

    /// IP bytes sent out of this port.
    #[must_use]
    pub fn forwarded_bytes(&self, port: Port) -> u64 {
        self.bytes[usize::from(port.0 & 1)]
    }

    /// ICMP errors that the gate itself answered with.
    #[must_use]
    pub const fn replies(&self) -> u64 {
        self.replies
    }

    /// Fragments that were held back; each is forwarded or dropped later.
    #[must_use]
    pub const fn held(&self) -> u64 {
        self.held
    }

    /// Events that nobody fetched in time.
    #[must_use]
    pub const fn events_lost(&self) -> u64 {
        self.events_lost
    }

    pub(crate) const fn count_drop(&mut self, reason: Reason) {
        self.dropped[reason as usize] += 1;
    }

    pub(crate) const fn count_observed(&mut self, reason: Reason) {
        self.observed[reason as usize] += 1;
    }

    #[inline]
    pub(crate) fn count_forward(&mut self, port: Port, bytes: usize) {
        self.packets[usize::from(port.0 & 1)] += 1;
        self.bytes[usize::from(port.0 & 1)] += bytes as u64;
    }

    pub(crate) const fn count_reply(&mut self) {
        self.replies += 1;
    }

    pub(crate) const fn count_held(&mut self) {
        self.held += 1;
    }

    pub(crate) const fn count_event_lost(&mut self) {
        self.events_lost += 1;
    }
}
