//! What one user holds of this gate, over all grants: flows, external ports, rate and bytes. So a user that asks for
//! many grants gets no more than one that asks for one, and a fresh grant brings no fresh burst.

use alloc::boxed::Box;

use sluicegate_bounded::{Bounded, Gauge, Index, Link, List, Slab, linked};
use sluicegate_flow::{FairBucket, Hasher, Share, TokenBucket};
use sluicegate_grant::Grant;
use sluicegate_wire::Instant;

use crate::{config::PerUser, pinhole::burst};

/// Whose slot it is: the grant's issuer, and what it calls the user.
pub type Key = [u8; 16];

/// One user of one issuer.
#[derive(Debug)]
pub struct User {
    key: Key,
    /// Pinholes, live and remembered. Without any, the slot waits for the next user that needs one.
    pinholes: u32,
    /// Those that live.
    pub live: u32,
    /// Flows under all its pinholes.
    pub flows: u32,
    /// External ports of live pinholes.
    pub ports: u32,
    /// External ports that rest after their grants ended.
    pub ports_resting: u32,
    /// Bytes a second; 0: no limit.
    rate: u64,
    bucket: FairBucket,
    bytes: Option<TokenBucket>,
    /// Neighbours among the idle.
    link: Link,
}

linked!(User);

impl User {
    /// Takes `tokens` bytes of the user's rate and bytes; `share` is that of the grant that asks.
    pub fn take(&mut self, now: Instant, share: &mut Share, tokens: u32) -> bool {
        if self.rate != 0 && !self.bucket.take(now, share, tokens) {
            return false;
        }
        if self.bytes.as_mut().is_none_or(|bytes| bytes.take(now, tokens)) {
            return true;
        }
        if self.rate != 0 {
            self.bucket.give_back(share, tokens);
        }
        false
    }

    /// Puts back what a grant took and did not use.
    pub fn give_back(&mut self, share: &mut Share, tokens: u32) {
        if self.rate != 0 {
            self.bucket.give_back(share, tokens);
        }
        if let Some(bytes) = &mut self.bytes {
            bytes.give_back(tokens);
        }
    }
}

/// All users that hold a pinhole, and those that held one last.
#[derive(Debug)]
pub struct Users {
    slots: Slab<User>,
    by_key: Index,
    hasher: Hasher,
    /// Users without pinholes, oldest first: what they took lately is remembered until their place is needed.
    idle: List,
    /// What each may hold.
    pub limits: PerUser,
    /// External ports of live pinholes, of all users, by IP protocol: each has the whole range for itself.
    ports_live: Box<[u32; 256]>,
}

/// External ports that each may have however few are left.
const PORTS_LEAST: u32 = 16;

impl Users {
    /// As many users as pinholes: each user that is not idle has one.
    pub fn new(pinholes_max: u32, limits: PerUser, hash_key: &[u8; 16]) -> Self {
        Self {
            slots: Slab::new("users", pinholes_max),
            by_key: Index::new("users", pinholes_max, pinholes_max),
            hasher: Hasher::new(hash_key),
            idle: List::EMPTY,
            limits,
            ports_live: Box::new([0; 256]),
        }
    }

    /// So many external ports of a protocol are in use by live pinholes from now on, or are no more.
    pub fn note_ports(&mut self, protocol: u8, ports: u32, are_live: bool) {
        let live = &mut self.ports_live[usize::from(protocol)];
        *live = if are_live { *live + ports } else { *live - ports };
    }

    /// The external ports that one user may have now, where it asks for one of this protocol, of a range of so many. Once half
    /// of them are in use each may have less, in proportion to what is left (dynamic thresholds: Choudhury, Hahne 1998): many
    /// users who each take all that one may leave something for those who have little.
    pub fn ports_max(&self, protocol: u8, range: u32) -> u32 {
        let free = range.saturating_sub(self.ports_live[usize::from(protocol)]);
        let left = u64::from(self.limits.ports_max) * 2 * u64::from(free) / u64::from(range.max(1));
        self.limits.ports_max.min(u32::try_from(left).unwrap_or(u32::MAX).max(PORTS_LEAST))
    }

    /// The pinholes that one user may have where so many of all are left. As with [`Self::ports_max`], and less still the fewer
    /// are left, since nothing else bounds what a user has: of 400 who take what they get each has 20 of 8,192, and 200 are left.
    pub fn pinholes_max(left: u32, max: u32) -> u32 {
        let (left, max) = (u64::from(left), u64::from(max.max(1)));
        u32::try_from(4 * left * left / max).unwrap_or(u32::MAX).max(1)
    }

    /// The user in a slot.
    pub fn at(&self, slot: u32) -> Option<&User> {
        self.slots.get(slot)
    }

    /// As [`Self::at`], to count.
    pub fn at_mut(&mut self, slot: u32) -> Option<&mut User> {
        self.slots.get_mut(slot)
    }

    /// Users that hold a pinhole.
    pub(crate) fn gauge(&self) -> Gauge {
        let slots = self.slots.gauge();
        Gauge { used: slots.used - u64::from(self.idle.len()), ..slots }
    }

    /// The user of a grant, if it is known.
    pub fn find(&self, grant: &Grant) -> Option<u32> {
        let key = key(grant);
        let is_it = |slot: &u32| self.at(*slot).is_some_and(|user| user.key == key);
        self.by_key.matches(self.hasher.hash(&key)).find(is_it)
    }

    /// One more pinhole of the grant's user, and its slot.
    pub fn join(&mut self, now: Instant, grant: &Grant) -> Option<u32> {
        let slot = match self.find(grant) {
            Some(slot) => slot,
            None => self.insert(now, key(grant))?,
        };
        if self.at(slot)?.pinholes == 0 {
            self.idle.remove(&mut self.slots, slot);
        }
        self.at_mut(slot)?.pinholes += 1;
        self.begin(now, slot, grant);
        Some(slot)
    }

    /// A pinhole of this user is live (again), on this grant's terms.
    pub fn begin(&mut self, now: Instant, slot: u32, grant: &Grant) {
        if let Some(user) = self.at_mut(slot) {
            user.live += 1;
        }
        self.renew(now, slot, grant);
    }

    /// The user has, for all its grants together, the rate of the fastest, unless the gate's configuration names one.
    pub fn renew(&mut self, now: Instant, slot: u32, grant: &Grant) {
        let (named, granted) = (self.limits.rate_bytes_per_s, u64::from(grant.rate_100kbps) * 12_500);
        let Some(user) = self.at_mut(slot) else { return };
        let is_first = user.live <= 1;
        let rate = match (named, granted, user.rate) {
            (0, granted, _) if is_first => granted,
            (0, 0, _) | (0, _, 0) => 0,
            (0, granted, known) => granted.max(known),
            (named, ..) => named,
        };
        if rate != user.rate {
            user.rate = rate;
            if rate != 0 {
                user.bucket.reshape(now, rate, burst(rate));
            }
        }
    }

    /// A pinhole of this user ended; its ports rest.
    pub fn end(&mut self, slot: u32) {
        if let Some(user) = self.at_mut(slot) {
            user.live = user.live.saturating_sub(1);
        }
    }

    /// An ended pinhole of this user was forgotten.
    pub fn leave(&mut self, slot: u32) {
        let Some(user) = self.at_mut(slot) else { return };
        user.pinholes = user.pinholes.saturating_sub(1);
        if user.pinholes == 0 {
            self.idle.push_back(&mut self.slots, slot);
        }
    }

    fn insert(&mut self, now: Instant, key: Key) -> Option<u32> {
        if self.slots.is_full() {
            let oldest = self.idle.pop_front(&self.slots)?;
            self.by_key.remove(oldest);
            self.slots.remove(oldest);
        }
        let bytes = (self.limits.bytes != 0).then(|| {
            TokenBucket::new(now, (self.limits.bytes / self.limits.window_s.max(1)).max(1), self.limits.bytes)
        });
        let user = User {
            key,
            pinholes: 0,
            live: 0,
            flows: 0,
            ports: 0,
            ports_resting: 0,
            rate: 0,
            // Deep enough for any rate: `reshape` only ever lowers what is in it.
            bucket: FairBucket::new(now, 1, TokenBucket::DEPTH_MAX),
            bytes,
            link: Link::NONE,
        };
        let slot = self.slots.insert(user).ok()?.index();
        self.by_key.insert(self.hasher.hash(&key), slot);
        self.idle.push_back(&mut self.slots, slot);
        Some(slot)
    }
}

/// Whose a grant is: its issuer, and what that calls the user.
pub(crate) fn key(grant: &Grant) -> Key {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&grant.issuer);
    key[8..].copy_from_slice(&grant.user_pseudonym);
    key
}
