//! Grants that were revoked before their time, for as long as somebody might present them again. In a table of their
//! own: pinholes that ended give their places away as soon as new ones need them.

use alloc::collections::{BTreeMap, BTreeSet};
use core::ops::Bound;

use serde::{Deserialize, Serialize};
use sluicegate_grant::{Grant, GrantId};
use sluicegate_wire::UnixTime;

use crate::users;

/// Revoked grants that are remembered one by one.
pub(crate) const REVOKED_MAX: usize = 65_536;
/// Users of whom it is remembered that some of theirs were forgotten.
const FORGETTING_MAX: usize = 1_024;
/// Stands for all users.
const EVERYBODY: users::Key = [0; 16];

/// A grant that was revoked, or several: whose, when the last of them was issued, and when nobody would have taken any of
/// them any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revoked {
    /// Whose: see [`crate::Users`].
    pub user: users::Key,
    /// When the last of them was issued.
    pub not_before: UnixTime,
    /// When the last of them ends.
    pub not_after: UnixTime,
}

impl Revoked {
    /// What is remembered of a grant.
    pub fn of(grant: &Grant) -> Self {
        Self { user: users::key(grant), not_before: grant.not_before, not_after: grant.not_after }
    }

    fn with(self, other: Self) -> Self {
        Self {
            not_before: self.not_before.max(other.not_before),
            not_after: self.not_after.max(other.not_after),
            ..self
        }
    }
}

/// The revoked grants. Changed by commands only, never by a packet.
///
/// A full table forgets one of the user of whom it remembers most: which grant it was that would end first. From then
/// until that grant's end it refuses *every* grant of this user that is new here and was issued no later than that one: it
/// may refuse too much, and never too little, and who ends grants without end does it to nobody else.
#[derive(Debug)]
pub struct RevokedGrants {
    by_id: BTreeMap<GrantId, Revoked>,
    by_end: BTreeSet<(UnixTime, GrantId)>,
    /// Each user's, those first that end first.
    by_user: BTreeSet<(users::Key, UnixTime, GrantId)>,
    counts: BTreeMap<users::Key, u32>,
    by_count: BTreeSet<(u32, users::Key)>,
    /// What users' grants were forgotten: what they were issued up to `not_before` is refused until `not_after`.
    forgotten: BTreeMap<users::Key, Revoked>,
    max: usize,
}

impl RevokedGrants {
    /// Remembers so many one by one.
    pub const fn new(max: usize) -> Self {
        Self {
            by_id: BTreeMap::new(),
            by_end: BTreeSet::new(),
            by_user: BTreeSet::new(),
            counts: BTreeMap::new(),
            by_count: BTreeSet::new(),
            forgotten: BTreeMap::new(),
            max,
        }
    }

    /// Remembers a grant.
    pub fn add(&mut self, id: GrantId, revoked: Revoked) {
        self.remove(id);
        self.by_id.insert(id, revoked);
        self.by_end.insert((revoked.not_after, id));
        self.by_user.insert((revoked.user, revoked.not_after, id));
        self.count(revoked.user, 1);
        if self.by_id.len() > self.max
            && let Some(id) = self.first_of_most()
            && let Some(lost) = self.remove(id)
        {
            self.forget_which(lost);
        }
    }

    /// Of the user of whom most is remembered, the grant that ends first.
    fn first_of_most(&self) -> Option<GrantId> {
        let (_, user) = self.by_count.last()?;
        self.by_user.range((*user, UnixTime(0), GrantId([0; 16]))..).next().map(|(_, _, id)| *id)
    }

    fn remove(&mut self, id: GrantId) -> Option<Revoked> {
        let known = self.by_id.remove(&id)?;
        self.by_end.remove(&(known.not_after, id));
        self.by_user.remove(&(known.user, known.not_after, id));
        self.count(known.user, -1);
        Some(known)
    }

    fn count(&mut self, user: users::Key, change: i32) {
        let before = self.counts.remove(&user).unwrap_or(0);
        self.by_count.remove(&(before, user));
        let after = before.saturating_add_signed(change);
        if after != 0 {
            self.counts.insert(user, after);
            self.by_count.insert((after, user));
        }
    }

    /// Refuses everything that was issued to this user no later than `lost`, until its end; to everybody if there are too
    /// many such users.
    pub fn forget_which(&mut self, lost: Revoked) {
        if self.forgotten.len() >= FORGETTING_MAX && !self.forgotten.contains_key(&lost.user) {
            let first = self.forgotten.values().filter(|one| one.user != EVERYBODY).min_by_key(|one| one.not_after);
            if let Some(first) = first.copied() {
                self.forgotten.remove(&first.user);
                self.note_forgotten(Revoked { user: EVERYBODY, ..first });
            }
        }
        self.note_forgotten(lost);
    }

    fn note_forgotten(&mut self, lost: Revoked) {
        self.forgotten.entry(lost.user).and_modify(|known| *known = known.with(lost)).or_insert(lost);
    }

    /// Forgets at most `looks` grants that are over at `unix`; a call forgets more than a call adds.
    pub fn expire(&mut self, unix: UnixTime, looks: usize) {
        for _ in 0..looks {
            let Some((_, id)) = self.by_end.first().copied().filter(|(end, _)| *end <= unix) else { break };
            self.remove(id);
        }
        self.forgotten.retain(|_, lost| unix < lost.not_after);
    }

    /// Whether a grant that is not installed here must stay so.
    pub fn refuses(&self, grant: &Grant) -> bool {
        let is_among =
            |user: &users::Key| self.forgotten.get(user).is_some_and(|lost| grant.not_before <= lost.not_before);
        self.by_id.contains_key(&grant.id) || is_among(&users::key(grant)) || is_among(&EVERYBODY)
    }

    /// What is remembered of a full table's past.
    pub fn forgotten(&self) -> impl Iterator<Item = Revoked> + '_ {
        self.forgotten.values().copied()
    }

    /// The grants behind `after`, in the order of their ids.
    pub fn iter_after(&self, after: Option<GrantId>) -> impl Iterator<Item = (GrantId, Revoked)> + '_ {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.by_id.range((from, Bound::Unbounded)).map(|(id, revoked)| (*id, *revoked))
    }

    /// Those remembered one by one, and the most there can be.
    pub fn used_and_max(&self) -> (u32, u32) {
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
        of(1, not_before, not_after)
    }

    const fn of(user: u8, not_before: u64, not_after: u64) -> Revoked {
        let mut key = [0; 16];
        key[8] = user;
        Revoked { user: key, not_before: UnixTime(not_before), not_after: UnixTime(not_after) }
    }

    fn grant(number: u32, user: u8, not_before: u64) -> Grant {
        Grant {
            flags: 0,
            least_mode: sluicegate_grant::DataMode::Pinhole,
            protocol: 17,
            id: id(number),
            issuer: [0; 8],
            epoch: 0,
            not_before: UnixTime(not_before),
            not_after: UnixTime(not_before + 60),
            bytes: 1_000,
            client_id: 1,
            flows: 0,
            rate_100kbps: 0,
            client_address: core::net::IpAddr::from([198, 51, 100, 7]),
            client_ports: sluicegate_grant::ANY_PORTS,
            gate_address: core::net::IpAddr::from([0, 0, 0, 0]),
            gate_ports: (0, 0),
            holder: [0; 32],
            user_pseudonym: [user, 0, 0, 0, 0, 0, 0, 0],
        }
    }

    #[test]
    fn a_grant_is_refused_until_its_end_and_not_longer() {
        let mut grants = RevokedGrants::new(4);
        grants.add(id(1), revoked(10, 100));
        grants.add(id(2), revoked(10, 50));
        grants.expire(UnixTime(50), 8);
        assert!(grants.refuses(&grant(1, 1, 10)) && !grants.refuses(&grant(2, 1, 10)));
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
        assert!((0..6).all(|n| grants.refuses(&grant(n, 1, 10 + u64::from(n)))));
        assert!(grants.refuses(&grant(77, 1, 11)), "nobody knows whether it was one of those");
        assert!(!grants.refuses(&grant(77, 1, 12)), "issued later: it was none of them");
        grants.expire(UnixTime(101), 8);
        assert!(!grants.refuses(&grant(77, 1, 11)), "by now they would have ended");
    }

    #[test]
    fn who_ends_grants_without_end_fills_the_table_for_nobody_else() {
        let mut grants = RevokedGrants::new(4);
        grants.add(id(5_000), of(2, 10, 100));
        for n in 0..1_000u32 {
            grants.add(id(n), of(1, 10, 50));
        }
        assert!(grants.refuses(&grant(5, 1, 10)) && grants.refuses(&grant(5_000, 2, 10)));
        assert!(!grants.refuses(&grant(5_001, 2, 10)) && !grants.refuses(&grant(5_002, 3, 10)));
        assert_eq!((grants.used_and_max(), grants.forgotten().count()), ((4, 4), 1));
        grants.expire(UnixTime(100), 8);
        assert!(grants.by_user.is_empty() && grants.counts.is_empty() && grants.by_count.is_empty());
        assert_eq!(grants.forgotten().count(), 0);
    }

    #[test]
    fn more_users_than_can_be_told_apart_are_refused_too_much_and_never_too_little() {
        let mut grants = RevokedGrants::new(0);
        for number in 0..FORGETTING_MAX as u32 + 2 {
            let mut lost = of(0, 10, 100 + u64::from(number));
            lost.user[..4].copy_from_slice(&(number + 1).to_le_bytes());
            grants.add(id(number), lost);
            assert!(grants.forgotten().count() <= FORGETTING_MAX + 1);
        }
        assert!(grants.refuses(&grant(0, 200, 10)), "whoever it was");
        assert!(!grants.refuses(&grant(0, 200, 11)));
    }

    #[test]
    fn the_same_grant_twice_takes_one_place() {
        let mut grants = RevokedGrants::new(2);
        grants.add(id(1), revoked(10, 50));
        grants.add(id(1), revoked(10, 60));
        grants.expire(UnixTime(55), 8);
        assert!(grants.refuses(&grant(1, 1, 10)));
        assert_eq!(grants.iter_after(None).count(), 1);
        assert_eq!(grants.iter_after(Some(id(1))).count(), 0);
    }
}
