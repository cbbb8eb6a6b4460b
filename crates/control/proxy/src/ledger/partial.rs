//! What a directory does not know yet, right after a start.

use std::sync::atomic::Ordering;

use sluicegate_wire::Instant;

use super::Ledger;
use crate::calls::CallId;

impl Ledger {
    /// Whether gates have yet to say what they have had open since before this start.
    pub fn set_partial(&self, is_partial: bool) {
        self.is_partial.store(is_partial, Ordering::Relaxed);
    }

    /// Whether a call that is not known may live all the same.
    pub(crate) fn may_live(&self, now: Instant, call: CallId) -> bool {
        self.is_partial.load(Ordering::Relaxed) && self.call(call).is_none() && !self.was_hung_up(now, call)
    }
}
