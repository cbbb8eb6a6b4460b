//! Grants that were revoked before their time, for as long as somebody might present them again. In a table of their
//! own: pinholes that ended give their places away as soon as new ones need them.

use alloc::collections::{BTreeMap, BTreeSet};
use core::ops::Bound;

use sluicegate_capability::GrantId;
use sluicegate_wire::UnixTime;

/// Revoked grants that are remembered one by one.
pub(crate) const REVOKED_MAX: usize = 65_536;

/// When a grant that was revoked began, and when nobody would have taken it any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Revoked {
    pub(crate) not_before: UnixTime,
    pub(crate) not_after: UnixTime,
}

/// The revoked grants. Changed by commands only, never by a packet.
///
/// A full table forgets which grant the one that would end first was, and from then until that grant's end refuses *every*
/// grant that is new here and was issued no later than that one: it may refuse too much, and never too little.
#[derive(Debug)]
pub(crate) struct RevokedGrants {
    by_id: BTreeMap<GrantId, Revoked>,
    by_end: BTreeSet<(UnixTime, GrantId)>,
    /// Grants issued up to `not_before` are refused until `not_after`.
    forgotten: Option<Revoked>,
    max: usize,
}

impl RevokedGrants {
    pub(crate) const fn new(max: usize) -> Self {
        Self { by_id: BTreeMap::new(), by_end: BTreeSet::new(), forgotten: None, max }
    }

    /// Remembers a grant.
    pub(crate) fn add(&mut self, id: GrantId, revoked: Revoked) {
        if let Some(known) = self.by_id.insert(id, revoked) {
            self.by_end.remove(&(known.not_after, id));
        }
        self.by_end.insert((revoked.not_after, id));
        if self.by_id.len() > self.max
            && let Some((_, first)) = self.by_end.pop_first()
            && let Some(lost) = self.by_id.remove(&first)
        {
            self.forget_which(lost);
        }
    }

    /// Refuses everything that was issued no later than `lost`, until its end.
    pub(crate) fn forget_which(&mut self, lost: Revoked) {
        let known = self.forgotten.unwrap_or(lost);
        self.forgotten = Some(Revoked {
            not_before: known.not_before.max(lost.not_before),
            not_after: known.not_after.max(lost.not_after),
        });
    }

    /// Forgets at most `looks` grants that are over at `unix`; a call forgets more than a call adds.
    pub(crate) fn expire(&mut self, unix: UnixTime, looks: usize) {
        for _ in 0..looks {
            let Some((end, id)) = self.by_end.first().copied().filter(|(end, _)| *end <= unix) else { break };
            self.by_end.remove(&(end, id));
            self.by_id.remove(&id);
        }
        self.forgotten = self.forgotten.filter(|lost| unix < lost.not_after);
    }

    /// Whether a grant that is not installed here must stay so.
    pub(crate) fn refuses(&self, id: GrantId, issued: UnixTime) -> bool {
        self.by_id.contains_key(&id) || self.forgotten.is_some_and(|lost| issued <= lost.not_before)
    }

    /// What is remembered of a full table's past.
    pub(crate) const fn forgotten(&self) -> Option<Revoked> {
        self.forgotten
    }

    /// The grants behind `after`, in the order of their ids.
    pub(crate) fn iter_after(&self, after: Option<GrantId>) -> impl Iterator<Item = (GrantId, Revoked)> + '_ {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.by_id.range((from, Bound::Unbounded)).map(|(id, revoked)| (*id, *revoked))
    }

    pub(crate) fn used_and_max(&self) -> (u32, u32) {
        (self.by_id.len() as u32, self.max as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u32) -> GrantId {
        GrantId::of_call([1; 12], number)
    }

    const fn revoked(not_before: u64, not_after: u64) -> Revoked {
        Revoked { not_before: UnixTime(not_before), not_after: UnixTime(not_after) }
    }

    #[test]
    fn a_grant_is_refused_until_its_end_and_not_longer() {
        let mut grants = RevokedGrants::new(4);
        grants.add(id(1), revoked(10, 100));
        grants.add(id(2), revoked(10, 50));
        grants.expire(UnixTime(50), 8);
        assert!(grants.refuses(id(1), UnixTime(10)) && !grants.refuses(id(2), UnixTime(10)));
        grants.expire(UnixTime(100), 8);
        assert_eq!(grants.used_and_max(), (0, 4));
    }

    #[test]
    fn a_full_table_refuses_too_much_and_never_too_little() {
        let mut grants = RevokedGrants::new(4);
        for n in 0..6u32 {
            grants.add(id(n), revoked(10 + u64::from(n), 100 + u64::from(n)));
        }
        assert_eq!(grants.used_and_max(), (4, 4));
        assert!((0..6).all(|n| grants.refuses(id(n), UnixTime(10 + u64::from(n)))));
        assert!(grants.refuses(id(77), UnixTime(11)), "nobody knows whether it was one of those");
        assert!(!grants.refuses(id(77), UnixTime(12)), "issued later: it was none of them");
        grants.expire(UnixTime(101), 8);
        assert!(!grants.refuses(id(77), UnixTime(11)), "by now they would have ended");
    }

    #[test]
    fn the_same_grant_twice_takes_one_place() {
        let mut grants = RevokedGrants::new(2);
        grants.add(id(1), revoked(10, 50));
        grants.add(id(1), revoked(10, 60));
        grants.expire(UnixTime(55), 8);
        assert!(grants.refuses(id(1), UnixTime(10)));
        assert_eq!(grants.iter_after(None).count(), 1);
        assert_eq!(grants.iter_after(Some(id(1))).count(), 0);
    }
}
