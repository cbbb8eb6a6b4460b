//! Who may have a connection. Nobody is locked out by strangers who open many and say nothing: they crowd out each other, first
//! whoever has many and then whoever came first. So who signs in at once gets in, also as one of several behind one address.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::{BuildHasher as _, RandomState},
    net::IpAddr,
    sync::Arc,
};

use serde::Deserialize;
use sluicegate_bounded::Gauge;
use sluicegate_flow::TokenBucket;
use sluicegate_wire::{Instant, ip::sender_of};

use super::counted::Refused;

/// What each SIP thread spends on connections, over TCP and TLS together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Connections {
    /// Connections at once.
    pub total_max: usize,
    /// Of these, connections over which nobody has signed in or shown a certificate yet.
    pub unproved_max: usize,
    /// Of these, connections of one address (IPv6: /64).
    pub per_source_max: usize,
    /// Connections over which one user signed in last; with one more the oldest of them ends.
    pub per_user_max: usize,
    /// Connections a second that one address may open for long, and ten times that at once; twice that while no other
    /// address opens any.
    pub per_source_per_s: u32,
    /// Time for the TLS handshake and the first whole message, in seconds.
    pub first_message_s: u32,
    /// Time from the first byte of a later message to its last, in seconds.
    pub message_s: u32,
    /// A connection over which nothing comes for so many seconds is closed.
    pub idle_s: u32,
    /// Bytes of messages and TLS handshakes that have not come to their end, over all connections over which nobody has signed
    /// in together. With more, whoever holds most gives way, with what it began first.
    pub unfinished_bytes_max: usize,
    /// Bytes that wait for a peer to read them; with more it is cut off.
    pub unsent_bytes_max: usize,
}

impl Default for Connections {
    fn default() -> Self {
        Self {
            total_max: 4_096,
            unproved_max: 1_024,
            per_source_max: 256,
            per_user_max: 64,
            per_source_per_s: 50,
            first_message_s: 10,
            message_s: 5,
            idle_s: 600,
            unfinished_bytes_max: 2 << 20,
            unsent_bytes_max: 65_536,
        }
    }
}

/// Buckets of sources that open connections. Those that share one share its rate; which do is decided by a secret key. Each
/// source has two, so that one that shares a bucket with a flood has another.
const BUCKETS: usize = 1 << 14;
/// A bucket holds what it gets in so many seconds.
const BURST_S: u64 = 10;

/// Who has more than this part of the places of strangers gives way before others.
const LARGE_PART: usize = 32;

/// What the connections of one source are.
#[derive(Debug, Default)]
struct Held {
    all: usize,
    /// Those over which nobody proved anything, oldest first: slots by arrival.
    unproved: BTreeMap<u64, u32>,
}

/// A place, by the slot of its connection.
#[derive(Debug, Clone)]
struct Place {
    source: IpAddr,
    arrival: u64,
    is_proved: bool,
    /// Who signed in over it last.
    user: Option<Arc<str>>,
}

/// The places of one thread's connections.
#[derive(Debug)]
pub(super) struct Places {
    limits: Connections,
    places: HashMap<u32, Place>,
    sources: HashMap<IpAddr, Held>,
    /// Slots of connections that users signed in over, by arrival.
    users: HashMap<Arc<str>, BTreeMap<u64, u32>>,
    /// Sources with many unproved connections: who has most comes last, and of those the one whose oldest came first.
    large: BTreeSet<(usize, Reverse<u64>, IpAddr)>,
    /// Slots over which nobody proved anything, by arrival.
    unproved: BTreeMap<u64, u32>,
    arrivals: u64,
    rates: Rates,
}

impl Places {
    pub(super) fn new(limits: Connections) -> Self {
        Self {
            limits,
            places: HashMap::new(),
            sources: HashMap::new(),
            users: HashMap::new(),
            large: BTreeSet::new(),
            unproved: BTreeMap::new(),
            arrivals: 0,
            rates: Rates::new(limits.per_source_per_s),
        }
    }

    /// Whether somebody at `ip` may have a connection: the slot of the one that has to give way to it, if one has to.
    ///
    /// # Errors
    /// [`Refused`]: there is no place, and none that can be taken from a stranger.
    pub(super) fn admit(&mut self, now: Instant, ip: IpAddr) -> Result<Option<u32>, Refused> {
        let source = sender_of(ip);
        if !self.rates.take(now, source) {
            return Err(Refused::Rate);
        }
        if let Some(held) = self.sources.get(&source).filter(|held| held.all >= self.limits.per_source_max) {
            let oldest = held.unproved.first_key_value().map(|(_, slot)| *slot);
            return oldest.map(Some).ok_or(Refused::Source);
        }
        self.room(true)
    }

    /// Share of the places for strangers that is taken.
    pub(super) fn strangers(&self) -> f64 {
        self.unproved.len() as f64 / self.limits.unproved_max.max(1) as f64
    }

    /// The same for a connection of our own, to a peer that the configuration names.
    pub(super) fn admit_own(&self) -> Result<Option<u32>, Refused> {
        self.room(false)
    }

    fn room(&self, is_unproved: bool) -> Result<Option<u32>, Refused> {
        let is_crowded = is_unproved && self.unproved.len() >= self.limits.unproved_max;
        if !is_crowded && self.places.len() < self.limits.total_max {
            return Ok(None);
        }
        let largest = self.large.last().and_then(|(_, _, source)| self.sources.get(source));
        let oldest = largest.map_or(&self.unproved, |held| &held.unproved).first_key_value();
        oldest.map(|(_, slot)| Some(*slot)).ok_or(Refused::Full)
    }

    /// The connection in `slot` has a place from now on.
    pub(super) fn enter(&mut self, slot: u32, ip: IpAddr, is_proved: bool) {
        self.arrivals += 1;
        let place = Place { source: sender_of(ip), arrival: self.arrivals, is_proved, user: None };
        self.places.insert(slot, place.clone());
        self.change(place.source, |held| held.all += 1);
        if !is_proved {
            self.unproved.insert(place.arrival, slot);
            self.change(place.source, |held| {
                held.unproved.insert(place.arrival, slot);
            });
        }
    }

    /// Somebody has proved itself over the connection in `slot`.
    pub(super) fn prove(&mut self, slot: u32) {
        let Some(place) = self.places.get_mut(&slot).filter(|place| !place.is_proved) else { return };
        place.is_proved = true;
        let (source, arrival) = (place.source, place.arrival);
        self.unproved.remove(&arrival);
        self.change(source, |held| {
            held.unproved.remove(&arrival);
        });
    }

    /// This user has signed in over the connection in `slot`: the slot of another one of that user that has to end, if one has
    /// to. So one account takes no more of what all share, from however many addresses.
    pub(super) fn sign_in(&mut self, slot: u32, user: &Arc<str>) -> Option<u32> {
        self.prove(slot);
        self.sign_out(slot);
        let place = self.places.get_mut(&slot)?;
        place.user = Some(Arc::clone(user));
        let slots = self.users.entry(Arc::clone(user)).or_default();
        slots.insert(place.arrival, slot);
        let oldest = slots.values().copied().find(|other| *other != slot);
        oldest.filter(|_| slots.len() > self.limits.per_user_max)
    }

    fn sign_out(&mut self, slot: u32) {
        let Some(place) = self.places.get_mut(&slot) else { return };
        let Some(user) = place.user.take() else { return };
        if let Some(slots) = self.users.get_mut(&user) {
            slots.remove(&place.arrival);
            if slots.is_empty() {
                self.users.remove(&user);
            }
        }
    }

    /// Whose the connection in `slot` is, if nobody has proved itself over it.
    pub(super) fn stranger(&self, slot: u32) -> Option<IpAddr> {
        self.places.get(&slot).filter(|place| !place.is_proved).map(|place| place.source)
    }

    /// The connection in `slot` is gone.
    pub(super) fn leave(&mut self, slot: u32) {
        self.sign_out(slot);
        let Some(place) = self.places.remove(&slot) else { return };
        self.unproved.remove(&place.arrival);
        self.change(place.source, |held| {
            held.all -= 1;
            held.unproved.remove(&place.arrival);
        });
    }

    /// Changes what a source holds, and its rank.
    fn change(&mut self, source: IpAddr, change: impl FnOnce(&mut Held)) {
        let held = self.sources.entry(source).or_default();
        let part = (self.limits.unproved_max / LARGE_PART).max(1);
        let rank = |held: &Held| {
            let oldest = held.unproved.first_key_value().filter(|_| held.unproved.len() > part);
            oldest.map(|(oldest, _)| (held.unproved.len(), Reverse(*oldest), source))
        };
        let before = rank(held);
        change(held);
        let (after, is_gone) = (rank(held), held.all == 0);
        if let Some(before) = before {
            self.large.remove(&before);
        }
        self.large.extend(after);
        if is_gone {
            self.sources.remove(&source);
        }
    }

    pub(super) fn gauges(&self) -> [Gauge; 2] {
        [
            Gauge::of("connections", self.places.len(), self.limits.total_max),
            Gauge::of("unproved_connections", self.unproved.len(), self.limits.unproved_max),
        ]
    }
}

/// How many connections each source opens. A fixed amount of memory, and none a stranger.
#[derive(Debug)]
struct Rates {
    key: RandomState,
    buckets: Box<[TokenBucket]>,
}

impl Rates {
    fn new(per_s: u32) -> Self {
        let bucket = TokenBucket::new(Instant::ZERO, per_s.into(), u64::from(per_s) * BURST_S);
        Self { key: RandomState::new(), buckets: vec![bucket; BUCKETS].into_boxed_slice() }
    }

    fn take(&mut self, now: Instant, source: IpAddr) -> bool {
        let hash = self.key.hash_one(source) as usize;
        let mut places = [hash, hash / BUCKETS].into_iter().map(|hash| hash % BUCKETS);
        places.any(|at| self.buckets.get_mut(at).is_some_and(|bucket| bucket.take(now, 1)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: Instant = Instant::from_secs(1_000);

    fn places(total_max: usize, unproved_max: usize, per_source_max: usize) -> Places {
        let limits =
            Connections { total_max, unproved_max, per_source_max, per_source_per_s: 1_000, ..Default::default() };
        Places::new(limits)
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Opens a connection as the I/O does; its slot, and the one that gave way.
    fn open(places: &mut Places, slot: u32, from: &str) -> Result<Option<u32>, Refused> {
        let given_up = places.admit(NOW, ip(from))?;
        given_up.into_iter().for_each(|slot| places.leave(slot));
        places.enter(slot, ip(from), false);
        Ok(given_up)
    }

    #[test]
    fn a_flood_from_one_source_crowds_out_itself_and_nobody_else() {
        let mut places = places(100, 10, 50);
        open(&mut places, 0, "198.51.100.7").unwrap();
        for slot in 1..10 {
            assert_eq!(open(&mut places, slot, "203.0.113.66"), Ok(None));
        }
        for slot in 10..1_000 {
            assert_eq!(open(&mut places, slot, "203.0.113.66"), Ok(Some(slot - 9)), "the attacker's own oldest");
        }
        assert!(places.places.contains_key(&0));
        assert_eq!(places.gauges()[1].used, 10);
    }

    #[test]
    fn of_many_sources_with_one_each_the_oldest_gives_way() {
        let mut places = places(100, 10, 50);
        for slot in 0..40 {
            let given_up = open(&mut places, slot, &format!("198.51.100.{slot}")).unwrap();
            assert_eq!(given_up, slot.checked_sub(10));
        }
    }

    #[test]
    fn many_telephones_behind_one_address_that_sign_in_at_once_are_not_taken_for_the_flood() {
        for strangers in [250, 60_000] {
            let (mut places, mut crowded) = (places(2_000, 1_000, 256), 0);
            // For each telephone ten connections of strangers, and it needs the time of 250 of them.
            for step in 0..5_000 {
                open(&mut places, step, &format!("198.51.{}.{}", step % strangers / 250, step % 250)).unwrap();
                if step % 10 == 0 {
                    open(&mut places, 100_000 + step, "203.0.113.7").unwrap();
                    if let Some(old) = step.checked_sub(250) {
                        crowded += u32::from(places.stranger(100_000 + old).is_none());
                        places.prove(100_000 + old);
                        places.leave(100_000 + old);
                    }
                }
            }
            assert_eq!(crowded, 0);
        }
    }

    #[test]
    fn who_has_proved_itself_gives_way_to_nobody() {
        let mut places = places(4, 4, 3);
        for slot in 0..3 {
            open(&mut places, slot, "198.51.100.7").unwrap();
            places.prove(slot);
        }
        assert_eq!(open(&mut places, 9, "198.51.100.7"), Err(Refused::Source));
        assert_eq!(open(&mut places, 3, "203.0.113.1"), Ok(None));
        assert_eq!(open(&mut places, 4, "203.0.113.2"), Ok(Some(3)), "all places are taken");
        places.prove(4);
        assert_eq!((open(&mut places, 5, "203.0.113.3"), places.admit_own()), (Err(Refused::Full), Err(Refused::Full)));
        assert_eq!(places.gauges().map(|gauge| gauge.used), [4, 0]);
        places.leave(4);
        assert_eq!(places.admit_own(), Ok(None));
    }

    #[test]
    fn one_user_has_so_many_connections_from_however_many_addresses() {
        let limits = Connections { per_user_max: 3, ..Default::default() };
        let mut places = Places::new(limits);
        let [alice, bob] = ["alice", "bob"].map(Arc::<str>::from);
        for slot in 0..8 {
            open(&mut places, slot, &format!("198.51.100.{slot}")).unwrap();
        }
        assert_eq!([0, 1, 2].map(|slot| places.sign_in(slot, &alice)), [None; 3]);
        assert_eq!(places.sign_in(2, &alice), None, "it is the same one");
        assert_eq!(places.sign_in(3, &alice), Some(0), "the oldest");
        places.leave(0);
        assert_eq!((places.sign_in(4, &bob), places.sign_in(5, &alice)), (None, Some(1)));
        places.leave(1);
        // It is the connection of whoever signed in over it last.
        assert_eq!((places.sign_in(2, &bob), places.sign_in(6, &alice)), (None, None));
        (0..8).for_each(|slot| places.leave(slot));
        assert!(places.users.is_empty() && places.places.is_empty());
    }

    #[test]
    fn a_source_at_its_limit_gives_up_its_own_oldest_stranger() {
        let mut places = places(100, 100, 3);
        for slot in 0..3 {
            open(&mut places, slot, "2001:db8::1").unwrap();
        }
        places.prove(0);
        assert_eq!(open(&mut places, 3, "2001:db8::ffff"), Ok(Some(1)), "of the same /64");
        assert_eq!(open(&mut places, 4, "2001:db8:0:1::1"), Ok(None));
    }

    #[test]
    fn a_source_opens_so_many_a_second() {
        // Of each of its two buckets.
        let mut places = Places::new(Connections { per_source_per_s: 2, ..Default::default() });
        let mut opened = |now| (0..100).filter(|_| places.admit(now, ip("198.51.100.7")).is_ok()).count();
        assert_eq!(opened(NOW), 40);
        assert_eq!(opened(NOW + Duration::from_millis(400)), 0);
        assert_eq!(opened(NOW + Duration::from_millis(800)), 2);
        assert_eq!(opened(NOW + Duration::from_secs(3_600)), 40);
    }

    #[test]
    fn nothing_is_remembered_of_who_is_gone() {
        let mut places = places(1_000, 1_000, 1_000);
        for slot in 0..900 {
            open(&mut places, slot, &format!("198.51.{}.{}", slot / 250, slot % 250)).unwrap();
            if slot % 3 == 0 {
                places.prove(slot);
            }
        }
        (0..900).for_each(|slot| places.leave(slot));
        assert!(places.sources.is_empty() && places.large.is_empty() && places.places.is_empty());
        assert!(places.unproved.is_empty());
    }
}
