//! Revokes that are kept for gates that are away.

use std::collections::{HashMap, VecDeque};

use sluicegate_wire::UnixTime;

/// Revokes of the form `T`, oldest first: bounded in all and for each owner. Full, an owner's newest pushes out that
/// owner's own oldest, and in all the oldest of whoever has most: nobody pushes out somebody else's by making many.
#[derive(Debug)]
pub struct Revokes<T> {
    kept: VecDeque<Kept<T>>,
    of_owner: HashMap<Box<str>, usize>,
    max: usize,
    per_owner_max: usize,
}

#[derive(Debug)]
struct Kept<T> {
    owner: Box<str>,
    forget_at: UnixTime,
    revoke: T,
}

impl<T> Revokes<T> {
    /// An empty table of at most `max`, of which one owner has at most `per_owner_max`.
    #[must_use]
    pub fn new(max: usize, per_owner_max: usize) -> Self {
        Self { kept: VecDeque::new(), of_owner: HashMap::new(), max, per_owner_max }
    }

    /// Keeps a revoke until `forget_at`. Costs a scan of the table when a bound is met.
    pub fn keep(&mut self, now: UnixTime, owner: &str, forget_at: UnixTime, revoke: T) {
        if self.kept.len() >= self.max {
            self.forget(now);
        }
        if self.of_owner.get(owner).is_some_and(|count| *count >= self.per_owner_max) {
            self.drop_oldest(owner);
        } else if self.kept.len() >= self.max
            && let Some(most) = self.of_owner.iter().max_by_key(|(_, count)| **count).map(|(owner, _)| owner.clone())
        {
            self.drop_oldest(&most);
        }
        *self.of_owner.entry(owner.into()).or_default() += 1;
        self.kept.push_back(Kept { owner: owner.into(), forget_at, revoke });
    }

    /// Those that still matter, oldest first.
    pub fn live(&mut self, now: UnixTime) -> impl Iterator<Item = &T> {
        self.forget(now);
        self.iter()
    }

    /// All that are kept, some of which may not matter any more.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.kept.iter().map(|kept| &kept.revoke)
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
        let of_owner = &mut self.of_owner;
        self.kept.retain(|kept| {
            let stays = kept.forget_at > now;
            if !stays {
                take_one(of_owner, &kept.owner);
            }
            stays
        });
    }

    fn drop_oldest(&mut self, owner: &str) {
        if let Some(at) = self.kept.iter().position(|kept| &*kept.owner == owner) {
            self.kept.remove(at);
            take_one(&mut self.of_owner, owner);
        }
    }
}

/// Counts one less; an owner with none is forgotten.
fn take_one(of_owner: &mut HashMap<Box<str>, usize>, owner: &str) {
    if let Some(count) = of_owner.get_mut(owner) {
        *count -= 1;
        if *count == 0 {
            of_owner.remove(owner);
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
        assert!(revokes.of_owner.is_empty());
    }
}
