//! Connections over which nothing has been proved yet: so many, and no more. When there is no place, one gives way: the oldest of
//! the address that has most. So who floods crowds out itself first.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
};

use sluicegate_wire::ip::sender_of;

/// Connections at once over which nothing has been proved.
pub(super) const STRANGERS_MAX: usize = 256;

/// Who waits, in the order of their coming.
#[derive(Debug)]
pub(super) struct Strangers<T> {
    waiting: BTreeMap<u64, (IpAddr, T)>,
    by_source: HashMap<IpAddr, usize>,
    next: u64,
}

impl<T> Strangers<T> {
    pub(super) fn new() -> Self {
        Self { waiting: BTreeMap::new(), by_source: HashMap::new(), next: 0 }
    }

    /// A place for one more, and who gave way to it.
    pub(super) fn admit(&mut self, address: IpAddr, who: T) -> (u64, Option<T>) {
        let source = sender_of(address);
        let crowded = (self.waiting.len() >= STRANGERS_MAX).then(|| self.most(source)).flatten();
        let crowded = crowded.and_then(|place| self.leave(place));
        self.next += 1;
        self.waiting.insert(self.next, (source, who));
        *self.by_source.entry(source).or_default() += 1;
        (self.next, crowded)
    }

    /// One has proved itself, or given up.
    pub(super) fn leave(&mut self, place: u64) -> Option<T> {
        let (source, who) = self.waiting.remove(&place)?;
        if let Some(count) = self.by_source.get_mut(&source) {
            *count -= 1;
            if *count == 0 {
                self.by_source.remove(&source);
            }
        }
        Some(who)
    }

    /// The oldest of the source that has most, where the one that comes counts too.
    fn most(&self, coming: IpAddr) -> Option<u64> {
        let count = |source: &IpAddr| self.by_source.get(source).copied().unwrap_or(0) + usize::from(*source == coming);
        let most = self.by_source.keys().map(count).max()?;
        self.waiting.iter().find_map(|(place, (source, _))| (count(source) == most).then_some(*place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_the_full_table_the_oldest_of_who_has_most_gives_way() {
        let mut strangers = Strangers::new();
        let (honest, flooding): (IpAddr, IpAddr) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
        let (place, _) = strangers.admit(honest, 0);
        for who in 1..10 * STRANGERS_MAX {
            let (_, crowded) = strangers.admit(flooding, who);
            assert_eq!(crowded, (who >= STRANGERS_MAX).then(|| who - STRANGERS_MAX + 1));
        }
        assert_eq!((strangers.waiting.len(), strangers.leave(place)), (STRANGERS_MAX, Some(0)));
        while let Some(place) = strangers.waiting.keys().next().copied() {
            strangers.leave(place);
        }
        assert!(strangers.by_source.is_empty());
    }
}
