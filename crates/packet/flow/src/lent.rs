#[cfg(not(loom))]
use core::sync::atomic::{AtomicU32, Ordering};

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, Ordering};

/// Only the number itself is shared, and nothing is published with it.
const RELAXED: Ordering = Ordering::Relaxed;

/// The bytes that a line was lent and has not spent. Whoever forwards the line's packets spends them, on any thread; the
/// owner of the line adds and takes back.
///
/// Invariant: what is spent and what is taken back, together, is never more than what was added.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Lent(AtomicU32);

impl Lent {
    /// Bytes that may be spent.
    #[inline]
    #[must_use]
    pub fn get(&self) -> u32 {
        self.0.load(RELAXED)
    }

    /// Spends `bytes`; `false`, and nothing spent, if not that much is there.
    ///
    /// Costs one locked instruction on a cache line that the packet reads anyway.
    #[inline]
    #[must_use]
    pub fn spend(&self, bytes: u32) -> bool {
        self.0.fetch_update(RELAXED, RELAXED, |lent| lent.checked_sub(bytes)).is_ok()
    }

    /// Adds a slice, or what was paid for a packet that did not leave. The sum of all slices that a line holds stays far
    /// below 4 GB, see [`crate::SLICE_MAX`].
    pub fn add(&self, bytes: u32) {
        self.0.fetch_add(bytes, RELAXED);
    }

    /// Takes back all that was not spent.
    #[must_use]
    pub fn reclaim(&self) -> u32 {
        self.0.swap(0, RELAXED)
    }
}
