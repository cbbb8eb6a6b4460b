//! The brake on guessing passwords: token buckets of wrong digests, in one table of fixed size for all shards.
//!
//! A wrong digest is charged to its nonce, to the claimed user at its source's network, and to the claimed user. Who is
//! out of tokens is refused before its digest is looked at, whether there is such a user or not. No entry is promised to
//! anyone: a new one replaces the one of eight that is closest to being worth nothing, so that a flood of made-up names
//! displaces itself and not the buckets that somebody is emptying.
//!
//! Somebody who guesses at a user's password must not lock that user out. So where a user signed in lately is kept too:
//! a flow (address and port) that did has a bucket of its own, and at a network that did only that network's guesses
//! count, not those of the rest of the world.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use siphasher::sip::SipHasher24;
use sluicegate_bounded::{Cache, Entry, Gauge};
use sluicegate_wire::{Instant, ip::octets};

/// Buckets of wrong digests at once, and places where users signed in: 1 MiB each.
pub const GUESSES_MAX: usize = 1 << 16;
/// Entries among which a new one replaces the one worth least.
const WAYS: usize = 8;
/// How long a user's flow and network are known after a sign-in.
const KNOWN_FOR: Duration = Duration::from_secs(86_400);

/// How many at once, and how soon one more.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Allowance {
    pub(crate) burst: u32,
    pub(crate) interval: Duration,
}

/// A nonce: then the client has to fetch another one, which proves its address again.
const PER_NONCE: Allowance = Allowance { burst: 3, interval: Duration::from_secs(20) };
/// A user at one network, or at one flow that signed in before: 8,640 a day.
const PER_SOURCE: Allowance = Allowance { burst: 10, interval: Duration::from_secs(10) };
/// A user in all: 86,400 a day.
const PER_USER: Allowance = Allowance { burst: 100, interval: Duration::from_secs(1) };

/// Whether a digest is worth looking at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// Yes.
    Judged,
    /// No: too many wrong digests came with this nonce.
    NonceSpent,
    /// No: too many wrong digests came for this user.
    Refused,
}

/// Who claims to be whom, with which nonce.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim<'a> {
    pub(crate) user: &'a str,
    pub(crate) peer: SocketAddr,
    pub(crate) nonce: &'a [u8],
}

/// All buckets. Shared by the shards of a frontend.
pub struct Guesses {
    key: [u8; 16],
    tables: Mutex<Tables>,
}

#[derive(Debug)]
struct Tables {
    wrong: Table,
    known: Table,
}

impl Guesses {
    /// No guesses yet. `key` is random: without it nobody can aim at one set of entries.
    #[must_use]
    pub fn new(key: [u8; 16]) -> Self {
        Self {
            key,
            tables: Mutex::new(Tables {
                wrong: Table::new("guesses", GUESSES_MAX),
                known: Table::new("guesses_known", GUESSES_MAX),
            }),
        }
    }

    /// Whether the digest of `claim` is to be looked at.
    pub(crate) fn attempt(&self, now: Instant, claim: &Claim<'_>) -> Attempt {
        let tags = self.tags(claim);
        let tables = self.lock();
        let spent = |tag, allowance: &Allowance| tables.wrong.is_spent(now, tag, allowance);
        if spent(tags.nonce, &PER_NONCE) {
            return Attempt::NonceSpent;
        }
        let refused = if tables.known.lasts(now, tags.flow) {
            spent(tags.flow, &PER_SOURCE)
        } else {
            let elsewhere = !tables.known.lasts(now, tags.network) && spent(tags.user, &PER_USER);
            elsewhere || spent(tags.network, &PER_SOURCE)
        };
        if refused { Attempt::Refused } else { Attempt::Judged }
    }

    /// The digest was wrong.
    pub(crate) fn wrong(&self, now: Instant, claim: &Claim<'_>) {
        let tags = self.tags(claim);
        let Tables { wrong, known } = &mut *self.lock();
        wrong.charge(now, tags.nonce, &PER_NONCE);
        if known.lasts(now, tags.flow) {
            wrong.charge(now, tags.flow, &PER_SOURCE);
        } else {
            wrong.charge(now, tags.network, &PER_SOURCE);
            wrong.charge(now, tags.user, &PER_USER);
        }
    }

    /// The digest was right.
    pub(crate) fn right(&self, now: Instant, claim: &Claim<'_>) {
        let tags = self.tags(claim);
        let mut tables = self.lock();
        tables.known.put(tags.flow, now + KNOWN_FOR);
        tables.known.put(tags.network, now + KNOWN_FOR);
    }

    /// Forgets wrong digests of a user in all, and from these places.
    pub fn forgive(&self, user: &str, from: &[SocketAddr]) {
        let nowhere = SocketAddr::from(([0; 4], 0));
        let wrong = &mut self.lock().wrong;
        for peer in from.iter().copied().chain([nowhere]) {
            let tags = self.tags(&Claim { user, peer, nonce: &[] });
            [tags.user, tags.network, tags.flow].into_iter().for_each(|tag| wrong.forget(tag));
        }
    }

    /// Buckets that hold a wrong digest, and the most there can be.
    pub fn gauge(&self, now: Instant) -> Gauge {
        self.lock().wrong.gauge(now)
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tags(&self, claim: &Claim<'_>) -> Tags {
        let ip = claim.peer.ip().to_canonical();
        let user = claim.user.as_bytes();
        let mut flow = [0; 18];
        flow[..16].copy_from_slice(&octets(ip));
        flow[16..].copy_from_slice(&claim.peer.port().to_be_bytes());
        Tags {
            nonce: self.tag(0, &[], claim.nonce),
            user: self.tag(1, user, &[]),
            network: self.tag(2, user, &network(ip)),
            flow: self.tag(3, user, &flow),
        }
    }

    fn tag(&self, kind: u8, user: &[u8], rest: &[u8]) -> u64 {
        use std::hash::Hasher as _;
        let mut hash = SipHasher24::new_with_key(&self.key);
        hash.write(&[kind]);
        hash.write(&(user.len() as u64).to_be_bytes());
        hash.write(user);
        hash.write(rest);
        hash.finish()
    }
}

impl std::fmt::Debug for Guesses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Guesses(..)")
    }
}

struct Tags {
    nonce: u64,
    user: u64,
    network: u64,
    flow: u64,
}

/// The /24 or /64 of an address.
fn network(ip: IpAddr) -> [u8; 8] {
    let mut network = [0; 8];
    match ip {
        IpAddr::V4(ip) => network[..3].copy_from_slice(&ip.octets()[..3]),
        IpAddr::V6(ip) => network.copy_from_slice(&ip.octets()[..8]),
    }
    network
}

/// A key's hash, and when it is worth nothing any more. A bucket counts in this time: each charge moves it on by the
/// bucket's interval, so that a full bucket and one that was never used are the same.
#[derive(Debug, Clone, Copy, Default)]
struct Bucket {
    tag: u64,
    until: Instant,
}

impl Entry for Bucket {
    fn is_vacant(&self) -> bool {
        self.until == Instant::ZERO
    }
}

/// Buckets, found by a keyed hash.
#[derive(Debug)]
pub(crate) struct Table(Cache<Bucket, WAYS>);

impl Table {
    pub(crate) fn new(name: &'static str, max: usize) -> Self {
        Self(Cache::new(name, u32::try_from(max).unwrap_or(u32::MAX)))
    }

    /// Takes one out of the bucket that `tag` names; `false` if nothing was left in it.
    pub(crate) fn take(&mut self, now: Instant, tag: u64, allowance: &Allowance) -> bool {
        let is_left = !self.is_spent(now, tag, allowance);
        if is_left {
            self.charge(now, tag, allowance);
        }
        is_left
    }

    /// Buckets out of which something was taken, and the most there can be.
    pub(crate) fn gauge(&self, now: Instant) -> Gauge {
        self.0.gauge_of(|bucket| bucket.until > now)
    }

    fn until(&self, tag: u64) -> Instant {
        self.0.find(tag, |bucket| bucket.tag == tag).map_or(Instant::ZERO, |bucket| bucket.until)
    }

    fn lasts(&self, now: Instant, tag: u64) -> bool {
        self.until(tag) > now
    }

    fn is_spent(&self, now: Instant, tag: u64, allowance: &Allowance) -> bool {
        self.until(tag).since(now) > allowance.interval * (allowance.burst - 1)
    }

    fn charge(&mut self, now: Instant, tag: u64, allowance: &Allowance) {
        let until = self.until(tag).max(now) + allowance.interval;
        self.put(tag, until.min(now + allowance.interval * allowance.burst));
    }

    fn forget(&mut self, tag: u64) {
        if let Some(bucket) = self.0.find_mut(tag, |bucket| bucket.tag == tag) {
            *bucket = Bucket::default();
        }
    }

    fn put(&mut self, tag: u64, until: Instant) {
        *self.0.place(tag, |bucket| bucket.tag == tag, |bucket| bucket.until) = Bucket { tag, until };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_secs(1_000);

    fn guesses() -> Guesses {
        Guesses::new([7; 16])
    }

    fn claim<'a>(user: &'a str, peer: &str, nonce: &'a [u8]) -> Claim<'a> {
        Claim { user, peer: peer.parse().unwrap(), nonce }
    }

    /// Guesses with a new nonce each time until refused; how often it was let guess.
    fn guess_on(guesses: &Guesses, now: Instant, user: &str, peer: &str) -> u32 {
        for count in 0..1_000_u32 {
            let nonce =
                [user.as_bytes(), peer.as_bytes(), &count.to_be_bytes(), &now.as_nanos().to_be_bytes()].concat();
            let claim = claim(user, peer, &nonce);
            if guesses.attempt(now, &claim) != Attempt::Judged {
                return count;
            }
            guesses.wrong(now, &claim);
        }
        1_000
    }

    #[test]
    fn a_guesser_has_ten_guesses_and_one_more_every_ten_seconds_from_wherever_in_its_network() {
        let guesses = guesses();
        assert_eq!(guess_on(&guesses, NOW, "alice", "198.51.100.7:1"), 10);
        assert_eq!(guess_on(&guesses, NOW, "alice", "198.51.100.8:2"), 0);
        assert_eq!(guess_on(&guesses, NOW + Duration::from_secs(30), "alice", "198.51.100.9:3"), 3);
        assert_eq!(guess_on(&guesses, NOW, "alice", "198.51.101.7:1"), 10);
        assert_eq!(guess_on(&guesses, NOW, "bob", "198.51.100.7:1"), 10);
        assert_eq!(guess_on(&guesses, NOW, "alice", "[2001:db8::1]:1"), 10);
        assert_eq!(guess_on(&guesses, NOW, "alice", "[2001:db8::ffff:1]:1"), 0);
        assert_eq!(guess_on(&guesses, NOW, "alice", "[2001:db8:0:1::1]:1"), 10);
    }

    #[test]
    fn a_nonce_is_good_for_three_guesses() {
        let guesses = guesses();
        let claim = claim("alice", "198.51.100.7:1", b"nonce");
        for _ in 0..3 {
            assert_eq!(guesses.attempt(NOW, &claim), Attempt::Judged);
            guesses.wrong(NOW, &claim);
        }
        assert_eq!(guesses.attempt(NOW, &claim), Attempt::NonceSpent);
    }

    #[test]
    fn many_networks_share_what_one_user_is_worth() {
        let guesses = guesses();
        let guessed: u32 = (0..50).map(|net| guess_on(&guesses, NOW, "alice", &format!("198.51.{net}.7:1"))).sum();
        assert_eq!(guessed, 100);
    }

    #[test]
    fn who_signed_in_before_is_not_locked_out_by_any_of_them() {
        let guesses = guesses();
        let (flow, moved, guesser) = ("198.51.100.7:5060", "198.51.100.8:1", "198.51.100.7:666");
        guesses.right(NOW, &claim("alice", flow, b"1"));
        for net in 0..50 {
            guess_on(&guesses, NOW, "alice", &format!("203.0.{net}.7:1"));
        }
        // The world's guesses do not count at home, whatever the port ...
        assert_eq!(guesses.attempt(NOW, &claim("alice", moved, b"2")), Attempt::Judged);
        assert_eq!(guesses.attempt(NOW, &claim("alice", "192.0.2.1:1", b"3")), Attempt::Refused);
        // ... and a guesser at home, even behind the same address, does not touch the flow that signed in.
        assert_eq!(guess_on(&guesses, NOW, "alice", guesser), 10);
        assert_eq!(guesses.attempt(NOW, &claim("alice", moved, b"4")), Attempt::Refused);
        assert_eq!(guesses.attempt(NOW, &claim("alice", flow, b"5")), Attempt::Judged);
        assert_eq!(guess_on(&guesses, NOW, "alice", flow), 10);
        let later = NOW + KNOWN_FOR + Duration::from_secs(1);
        for net in 0..50 {
            guess_on(&guesses, later, "alice", &format!("203.0.{net}.7:1"));
        }
        assert_eq!(guesses.attempt(later, &claim("alice", flow, b"6")), Attempt::Refused);
    }

    #[test]
    fn a_full_table_of_made_up_names_keeps_the_buckets_that_are_being_emptied() {
        let guesses = guesses();
        assert_eq!(guess_on(&guesses, NOW, "alice", "198.51.100.7:1"), 10);
        for number in 0..4 * GUESSES_MAX as u32 {
            guesses.wrong(NOW, &claim(&number.to_string(), "192.0.2.1:1", &number.to_be_bytes()));
        }
        let Gauge { used, max, .. } = guesses.gauge(NOW);
        assert!(used > max / 100 * 99 && used <= max, "{used} of {max}");
        assert_eq!(guess_on(&guesses, NOW, "alice", "198.51.100.7:1"), 0, "the guesser is still known");
        // Nobody else is refused for it.
        assert_eq!(guesses.attempt(NOW, &claim("bob", "198.51.100.7:1", b"n")), Attempt::Judged);
    }
}
