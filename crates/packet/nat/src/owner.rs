//! The flows of a pinhole: in which order they give way to new ones, and which hold a part of its budget.

use sluicegate_bounded::{List, NONE};

/// What a pinhole owns of the flows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owner {
    /// Flows that may be recycled: half-open, closing, or not answered.
    pub(crate) recent: List,
    /// The others.
    pub(crate) lasting: List,
    /// Those that were lent something.
    pub(crate) borrowers: Borrowers,
}

impl Owner {
    pub(crate) const NONE: Self = Self { recent: List::EMPTY, lasting: List::EMPTY, borrowers: Borrowers::NONE };

    /// The two lists of flows.
    pub(crate) const fn list(&mut self, lasting: bool) -> &mut List {
        if lasting { &mut self.lasting } else { &mut self.recent }
    }
}

/// Flows of one pinhole that hold a slice of its budget at once: all that a packet looks at when the budget runs short,
/// whatever the number of flows.
pub(crate) const BORROWERS_MAX: usize = 6;

/// Up to [`BORROWERS_MAX`] flows, in the order in which they got their first slice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Borrowers {
    flows: [u32; BORROWERS_MAX],
}

impl Borrowers {
    pub(crate) const NONE: Self = Self { flows: [NONE; BORROWERS_MAX] };

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + use<> {
        self.flows.into_iter().filter(|flow| *flow != NONE)
    }

    /// Adds a flow at the end. Gives the one in whose place it is, which has to give back what it holds.
    pub(crate) fn add(&mut self, flow: u32) -> Option<u32> {
        if self.flows.contains(&flow) {
            return None;
        }
        if let Some(free) = self.flows.iter_mut().find(|known| **known == NONE) {
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
            self.flows[BORROWERS_MAX - 1] = NONE;
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
