use alloc::{boxed::Box, vec};

use sluicegate_bounded::{Bounded as _, Cache, Entry, Gauge};

use crate::sources::{ROWS, WIDTH, cells};

/// Users that are remembered; who signed in longest ago is forgotten first.
const USERS_MAX: u32 = 1 << 15;
const WAYS: usize = 8;
/// Where a user signed in last.
#[derive(Debug, Clone, Default)]
struct Place {
    user: u64,
    source: u64,
    /// Signs-in before it, of all users, and one. 0: nobody's.
    turn: u64,
}

impl Entry for Place {
    fn is_vacant(&self) -> bool {
        self.turn == 0
    }
}

/// How many users signed in last from each source, within fixed memory. A user is of one source only, so that who has stolen
/// an account adds nothing by using it from many.
#[derive(Debug)]
pub(crate) struct Members {
    users: Cache<Place, WAYS>,
    counters: Box<[u16]>,
    turns: u64,
    /// Users remembered, counted here since the table would have to look at all of its places.
    used: usize,
}

impl Members {
    pub(crate) fn new() -> Self {
        let counters = vec![0; WIDTH * ROWS].into_boxed_slice();
        Self { users: Cache::new("members", USERS_MAX), counters, turns: 0, used: 0 }
    }

    /// A user, which is a keyed hash of its name, has signed in from a source.
    pub(crate) fn sign_in(&mut self, user: u64, source: u64) {
        self.turns += 1;
        let place = self.users.place(user, |place| place.user == user, |place| place.turn);
        let before = core::mem::replace(place, Place { user, source, turn: self.turns });
        if before.is_vacant() {
            self.used += 1;
        } else {
            cells(before.source).for_each(|at| self.change(at, u16::saturating_sub));
        }
        cells(source).for_each(|at| self.change(at, u16::saturating_add));
    }

    /// Users of a source; more if it shares all of its counters with others.
    pub(crate) fn of(&self, source: u64) -> u16 {
        cells(source).filter_map(|at| self.counters.get(at).copied()).min().unwrap_or(0)
    }

    /// Users of the sources of each cell.
    pub(crate) fn counted(&self) -> impl Iterator<Item = u16> {
        self.counters.iter().copied()
    }

    pub(crate) fn gauge(&self) -> Gauge {
        Gauge::of(self.users.name(), self.used, self.users.max() as usize)
    }

    fn change(&mut self, at: usize, change: fn(u16, u16) -> u16) {
        if let Some(counter) = self.counters.get_mut(at) {
            *counter = change(*counter, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(of: u64) -> u64 {
        of.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    #[test]
    fn a_user_is_counted_where_it_signed_in_last() {
        let mut members = Members::new();
        for user in 0..100 {
            members.sign_in(hash(user), hash(1_000));
            members.sign_in(hash(user), hash(1_000));
        }
        assert_eq!([members.of(hash(1_000)), members.of(hash(1_001))], [100, 0]);
        for source in 2_000..2_250 {
            members.sign_in(hash(0), hash(source));
        }
        let everywhere: u32 = (2_000..2_250).map(|source| u32::from(members.of(hash(source)))).sum();
        assert_eq!((members.of(hash(1_000)), everywhere), (99, 1));
    }

    #[test]
    fn who_signed_in_longest_ago_is_forgotten_and_not_counted_any_more() {
        let mut members = Members::new();
        let max = USERS_MAX as usize;
        assert_eq!(members.gauge(), Gauge::of("members", 0, max));
        for user in 0..u64::from(USERS_MAX) * 4 {
            members.sign_in(hash(user), hash(u64::from(user >= u64::from(USERS_MAX) * 2)));
            assert!(user % 4_096 > 0 || members.gauge().used == u64::from(members.users.used()));
        }
        assert_eq!(members.gauge(), Gauge::of("members", max, max));
        assert_eq!(members.of(hash(0)), 0);
        assert_eq!(u32::from(members.of(hash(1))), USERS_MAX);
    }
}
