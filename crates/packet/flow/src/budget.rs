/// The most bytes lent to one line at once. Bounds what a line can still spend after its budget was refused elsewhere.
pub const SLICE_MAX: u32 = 64 * 1024;

/// The N bytes of a grant. The pinhole owns them and lends slices to its lines, so that a packet is charged to its
/// own line and the pinhole is consulted once in 64 KB.
///
/// Invariant: `left` + everything lent and not given back + everything spent = N since the last refill. So no set of
/// lines ever spends more than N.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    granted: u64,
    left: u64,
    spent_before: u64,
}

impl Budget {
    /// A budget of `granted` bytes.
    #[must_use]
    pub const fn new(granted: u64) -> Self {
        Self { granted, left: granted, spent_before: 0 }
    }

    /// A budget restored after a restart: `left` of `granted` bytes are still there and `spent_total` were spent.
    #[must_use]
    pub const fn restored(granted: u64, left: u64, spent_total: u64) -> Self {
        let left = if left > granted { granted } else { left };
        Self { granted, left, spent_before: spent_total.saturating_sub(granted - left) }
    }

    /// Bytes that no line holds.
    #[must_use]
    pub const fn left(&self) -> u64 {
        self.left
    }

    /// Bytes that left the budget since the start, over all renewals; includes what lines hold and have not yet spent.
    #[must_use]
    pub const fn taken(&self) -> u64 {
        self.spent_before + (self.granted - self.left)
    }

    /// Lends a line what it needs for a packet of `need` bytes: at most `slice_max`, [`SLICE_MAX`] and a quarter of
    /// what is left, but at least the packet. `None`: not that much is left.
    pub fn lend(&mut self, need: u32, slice_max: u32) -> Option<u32> {
        let quarter = u32::try_from(self.left / 4).unwrap_or(u32::MAX);
        let slice = quarter.min(SLICE_MAX).min(slice_max).max(need);
        self.left = self.left.checked_sub(u64::from(slice))?;
        Some(slice)
    }

    /// Takes back what a line did not spend.
    pub fn give_back(&mut self, unspent: u32) {
        self.left = self.left.saturating_add(u64::from(unspent)).min(self.granted);
    }

    /// A renewal: `granted` bytes from now on. Lines must have given back their slices before.
    pub fn renew(&mut self, granted: u64) {
        *self = Self { granted, left: granted, spent_before: self.taken() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_at_most_64_kb_and_a_quarter_of_what_is_left() {
        let mut budget = Budget::new(10_000_000);
        assert_eq!(budget.lend(100, SLICE_MAX), Some(SLICE_MAX));
        let mut budget = Budget::new(8_000);
        assert_eq!(budget.lend(100, SLICE_MAX), Some(2_000));
        assert_eq!(budget.lend(100, SLICE_MAX), Some(1_500));
    }

    #[test]
    fn the_last_bytes_are_lent_packet_by_packet_and_never_more_than_n() {
        let mut budget = Budget::new(1_000);
        let mut lent = 0;
        while let Some(slice) = budget.lend(90, SLICE_MAX) {
            lent += slice;
        }
        assert!(lent <= 1_000 && lent > 1_000 - 90, "{lent}");
        assert_eq!(budget.lend(91, SLICE_MAX), None);
        assert_eq!(budget.taken(), u64::from(lent));
    }

    #[test]
    fn what_was_not_spent_comes_back() {
        let mut budget = Budget::new(4_000);
        let slice = budget.lend(10, SLICE_MAX).unwrap();
        budget.give_back(slice - 10);
        assert_eq!((budget.left(), budget.taken()), (3_990, 10));
    }

    #[test]
    fn a_renewal_grants_n_again_and_keeps_the_account() {
        let mut budget = Budget::new(100);
        assert_eq!(budget.lend(80, SLICE_MAX), Some(80));
        budget.renew(50);
        assert_eq!((budget.left(), budget.taken()), (50, 80));
        assert_eq!(budget.lend(60, SLICE_MAX), None);
        let restored = Budget::restored(50, budget.left(), budget.taken());
        assert_eq!(restored, Budget { granted: 50, left: 50, spent_before: 80 });
    }
}
