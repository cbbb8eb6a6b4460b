use alloc::{boxed::Box, vec};

use sluicegate_wire::Instant;

use super::table::Ticket;

/// A first-in-first-out ring of peers that want a packet of their own at some time. All entries wait equally long, so
/// the order of arrival is the order of time.
#[derive(Debug)]
pub(super) struct Queue {
    ring: Box<[(Instant, Ticket)]>,
    head: usize,
    len: usize,
}

impl Queue {
    pub(super) fn new(max: u32) -> Self {
        Self { ring: vec![(Instant::ZERO, Ticket::NOBODY); max.max(1) as usize].into_boxed_slice(), head: 0, len: 0 }
    }

    /// Whether there is no room left.
    pub(super) fn is_full(&self) -> bool {
        self.len == self.ring.len()
    }

    /// Appends an entry; the caller has made sure of room.
    pub(super) fn push(&mut self, due: Instant, ticket: Ticket) {
        if !self.is_full() {
            let at = (self.head + self.len) % self.ring.len();
            self.ring[at] = (due, ticket);
            self.len += 1;
        }
    }

    /// The entry that is due first.
    pub(super) fn front(&self) -> Option<(Instant, Ticket)> {
        (self.len > 0).then(|| self.ring[self.head])
    }

    /// Takes away the entry that is due first.
    pub(super) fn pop(&mut self) {
        if self.len > 0 {
            self.head = (self.head + 1) % self.ring.len();
            self.len -= 1;
        }
    }

    /// Entries that wait.
    pub(super) const fn len(&self) -> usize {
        self.len
    }
}
