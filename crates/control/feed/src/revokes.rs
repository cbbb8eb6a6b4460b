//! Revokes that are kept for gates that are away.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use sluicegate_wire::UnixTime;

/// Revokes of the form `T`, oldest first: bounded in all and for each owner. Full, an owner's newest pushes out that
/// owner's own oldest, and in all the oldest of whoever has most: nobody pushes out somebody else's by making many.
///
/// Nothing is looked for one by one: every call that ends is kept here, and a table that is full stays full.
#[derive(Debug)]
pub struct Revokes<T> {
    /// By number, which grows with each.
    kept: BTreeMap<u64, Kept<T>>,
    by_end: BTreeSet<(UnixTime, u64)>,
    of_owner: HashMap<Arc<str>, BTreeSet<u64>>,
    /// How many each owner has.
    by_count: BTreeSet<(usize, Arc<str>)>,
    next: u64,
    max: usize,
    per_owner_max: usize,
}

#[derive(Debug)]
struct Kept<T> {
    owner: Arc<str>,
    forget_at: UnixTime,
    revoke: T,
}

impl<T> Revokes<T> {
    /// An empty table of at most `max`, of which one owner has at most `per_owner_max`.
    #[must_use]
    pub fn new(max: usize, per_owner_max: usize) -> Self {
        let (kept, by_end, of_owner, by_count) = Default::default();
        Self { kept, by_end, of_owner, by_count, next: 0, max, per_owner_max }
    }

    /// Keeps a revoke until `forget_at`.
    pub fn keep(&mut self, now: UnixTime, owner: &str, forget_at: UnixTime, revoke: T) {
        if self.kept.len() >= self.max {
            self.forget(now);
        }
        let own = self.of_owner.get_key_value(owner);
        let is_own_full = own.is_some_and(|(_, own)| own.len() >= self.per_owner_max);
        let owner = own.map_or_else(|| Arc::from(owner), |(owner, _)| owner.clone());
        if is_own_full {
            self.drop_oldest(&owner);
        } else if self.kept.len() >= self.max
            && let Some((_, most)) = self.by_count.last().cloned()
        {
            self.drop_oldest(&most);
        }
        let number = self.next;
        self.next += 1;
        self.count(&owner, |own| own.insert(number));
        self.by_end.insert((forget_at, number));
        self.kept.insert(number, Kept { owner, forget_at, revoke });
    }

    /// Those that still matter, oldest first.
    pub fn live(&mut self, now: UnixTime) -> impl Iterator<Item = &T> {
        self.forget(now);
        self.iter()
    }

    /// All that are kept, some of which may not matter any more.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.kept.values().map(|kept| &kept.revoke)
    }

    /// How many are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// Whether none is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Forgets those that do not matter any more.
    pub fn forget(&mut self, now: UnixTime) {
        while let Some((_, number)) = self.by_end.first().copied().filter(|(forget_at, _)| *forget_at <= now) {
            self.remove(number);
        }
    }

    fn drop_oldest(&mut self, owner: &str) {
        if let Some(oldest) = self.of_owner.get(owner).and_then(BTreeSet::first).copied() {
            self.remove(oldest);
        }
    }

    fn remove(&mut self, number: u64) {
        if let Some(Kept { owner, forget_at, .. }) = self.kept.remove(&number) {
            self.by_end.remove(&(forget_at, number));
            self.count(&owner, |own| own.remove(&number));
        }
    }

    /// Changes what an owner has; one with none is forgotten.
    fn count(&mut self, owner: &Arc<str>, change: impl FnOnce(&mut BTreeSet<u64>) -> bool) {
        let own = self.of_owner.entry(owner.clone()).or_default();
        let before = own.len();
        change(own);
        let after = own.len();
        self.by_count.remove(&(before, owner.clone()));
        if after == 0 {
            self.of_owner.remove(owner);
        } else {
            self.by_count.insert((after, owner.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixTime = UnixTime(100);

    fn live(revokes: &mut Revokes<u8>, now: UnixTime) -> Vec<u8> {
        revokes.live(now).copied().collect()
    }

    #[test]
    fn who_makes_many_pushes_out_only_its_own() {
        let mut revokes = Revokes::new(8, 3);
        revokes.keep(NOW, "bob", UnixTime(200), 0);
        for number in 1..=50 {
            revokes.keep(NOW, "alice", UnixTime(200), number);
        }
        assert_eq!(live(&mut revokes, NOW), [0, 48, 49, 50]);
    }

    #[test]
    fn a_full_table_takes_from_whoever_has_most_and_never_grows() {
        let mut revokes = Revokes::new(6, 4);
        for (number, owner) in [(0, "bob"), (1, "carol"), (2, "alice"), (3, "alice"), (4, "alice"), (5, "alice")] {
            revokes.keep(NOW, owner, UnixTime(200), number);
        }
        revokes.keep(NOW, "dave", UnixTime(200), 6);
        assert_eq!(live(&mut revokes, NOW), [0, 1, 3, 4, 5, 6]);
        for number in 0..100 {
            revokes.keep(NOW, &format!("user-{number}"), UnixTime(200), number);
            assert_eq!(revokes.len(), 6);
            assert!(revokes.of_owner.len() <= 6);
        }
    }

    #[test]
    fn what_has_expired_anyway_is_forgotten() {
        let mut revokes = Revokes::new(6, 4);
        revokes.keep(NOW, "alice", UnixTime(110), 1);
        revokes.keep(NOW, "alice", UnixTime(105), 2);
        assert_eq!(live(&mut revokes, UnixTime(105)), [1]);
        assert_eq!(live(&mut revokes, UnixTime(110)), [0; 0]);
        assert!(revokes.of_owner.is_empty() && revokes.by_end.is_empty() && revokes.by_count.is_empty());
    }

    /// As it is said of the table, one by one: owner, when it may be forgotten, number.
    #[derive(Default)]
    struct Naive(Vec<(u8, u64, u8)>);

    impl Naive {
        fn of(&self, owner: u8) -> usize {
            self.0.iter().filter(|kept| kept.0 == owner).count()
        }

        /// Whoever has most: of several, the last by name.
        fn keep(&mut self, now: u64, (max, per_owner_max): (usize, usize), kept: (u8, u64, u8)) {
            if self.0.len() >= max {
                self.0.retain(|kept| kept.1 > now);
            }
            let full = (self.of(kept.0) >= per_owner_max).then_some(kept.0);
            let most = (0..8).max_by_key(|owner| self.of(*owner)).filter(|_| self.0.len() >= max);
            if let Some(at) = full.or(most).and_then(|owner| self.0.iter().position(|kept| kept.0 == owner)) {
                self.0.remove(at);
            }
            self.0.push(kept);
        }
    }

    proptest::proptest! {
        #[test]
        fn it_keeps_what_a_search_one_by_one_would(
            bounds in (1_usize..20, 1_usize..8),
            steps in proptest::collection::vec((0_u8..8, 0_u64..20), 0..200),
        ) {
            let (mut table, mut naive) = (Revokes::new(bounds.0, bounds.1), Naive::default());
            for ((owner, life), number) in steps.into_iter().zip(0_u8..) {
                let now = 100 + u64::from(number) / 4;
                table.keep(UnixTime(now), &owner.to_string(), UnixTime(now + life), number);
                naive.keep(now, bounds, (owner, now + life, number));
                let kept: Vec<_> = table.iter().copied().collect();
                assert_eq!(kept, naive.0.iter().map(|kept| kept.2).collect::<Vec<_>>());
                assert_eq!((table.by_end.len(), table.by_count.len()), (kept.len(), table.of_owner.len()));
            }
        }
    }
}
