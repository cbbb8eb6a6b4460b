//! The flows of a pinhole that hold a part of its budget.

use crate::pinhole::NO_SLOT;

/// Flows of one pinhole that hold a slice of its budget at once: all that a packet looks at when the budget runs short,
/// whatever the number of flows.
pub(crate) const BORROWERS_MAX: usize = 6;

/// Up to [`BORROWERS_MAX`] flows, in the order in which they got their first slice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Borrowers {
    flows: [u32; BORROWERS_MAX],
}

impl Borrowers {
    pub(crate) const NONE: Self = Self { flows: [NO_SLOT; BORROWERS_MAX] };

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + use<> {
        self.flows.into_iter().filter(|flow| *flow != NO_SLOT)
    }

    /// Adds a flow at the end. Gives the one in whose place it is, which has to give back what it holds.
    pub(crate) fn add(&mut self, flow: u32) -> Option<u32> {
        if self.flows.contains(&flow) {
            return None;
        }
        if let Some(free) = self.flows.iter_mut().find(|known| **known == NO_SLOT) {
            *free = flow;
            return None;
        }
        let first = self.flows[0];
        self.flows.copy_within(1.., 0);
        self.flows[BORROWERS_MAX - 1] = flow;
        Some(first)
    }

    /// The flow holds nothing any more.
    pub(crate) fn remove(&mut self, flow: u32) {
        if let Some(at) = self.flows.iter().position(|known| *known == flow) {
            self.flows.copy_within(at + 1.., at);
            self.flows[BORROWERS_MAX - 1] = NO_SLOT;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn the_first_gives_way_when_all_places_are_taken() {
        let mut borrowers = Borrowers::NONE;
        assert!((0..BORROWERS_MAX as u32).all(|flow| borrowers.add(flow).is_none()));
        assert_eq!((borrowers.add(2), borrowers.add(70)), (None, Some(0)));
        borrowers.remove(3);
        borrowers.remove(99);
        assert_eq!(borrowers.iter().collect::<Vec<_>>(), [1, 2, 4, 5, 70]);
        assert_eq!(borrowers.add(71), None);
        assert_eq!(borrowers.iter().last(), Some(71));
    }
}
