//! How many answers the neighbours of one address get that have proved nothing. Who forges a victim's address could
//! otherwise have us send there all that we can answer.

use std::net::IpAddr;

use siphasher::sip::SipHasher24;
use sluicegate_wire::Instant;

/// Buckets of each kind. Prefixes that share one share its rate; who shares is decided by a secret key.
const BUCKETS: usize = 1 << 14;
/// What any one address is answered a second, whatever its neighbours are: a telephone needs two or three for a call.
const ADDRESS_PER_S: u32 = 5;
/// A bucket holds what it gets in so many seconds.
const BURST_SECS: u32 = 2;
/// How long it is known of an address that somebody there signed in.
const PROVED_MS: u32 = 3_600_000;

#[derive(Debug, Clone, Copy, Default)]
struct Bucket {
    left: u32,
    /// Milliseconds on the shard's clock, modulo 2^32: what is wrong once in 50 days is a bucket that is full too early.
    at_ms: u32,
}

impl Bucket {
    fn take(&mut self, now_ms: u32, per_s: u32) -> bool {
        let passed = u64::from(now_ms.wrapping_sub(self.at_ms));
        let gained = passed * u64::from(per_s) / 1_000;
        if gained > 0 {
            self.left = u32::try_from(u64::from(self.left) + gained).unwrap_or(u32::MAX).min(per_s * BURST_SECS);
            self.at_ms = now_ms;
        }
        let has = self.left > 0;
        self.left -= u32::from(has);
        has
    }
}

/// The bucket of an address.
#[derive(Debug, Clone, Copy, Default)]
struct Own {
    bucket: Bucket,
    /// When somebody there signed in last, on the same clock.
    proved_ms: Option<u32>,
}

impl Own {
    fn is_proved(&self, now_ms: u32) -> bool {
        self.proved_ms.is_some_and(|at_ms| now_ms.wrapping_sub(at_ms) < PROVED_MS)
    }
}

/// One bucket for each address, and one for each /24 or /64. An answer needs room in either, so that a neighbour of many
/// that ask without end is still heard. An address at which somebody signed in has as large a bucket as a whole prefix
/// and nothing of its prefix's: so a user who asks without end spends his own. A fixed amount of memory, and none a
/// stranger.
pub(super) struct Unproved {
    key: [u8; 16],
    per_s: u32,
    addresses: Box<[Own]>,
    prefixes: Box<[Bucket]>,
}

impl std::fmt::Debug for Unproved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unproved").field("per_s", &self.per_s).finish_non_exhaustive()
    }
}

impl Unproved {
    /// Each prefix is sent `per_s` answers a second by this shard, and each address at which somebody signed in.
    pub(super) fn new(key: [u8; 16], per_s: u32) -> Self {
        let bucket = Bucket { left: u32::MAX, at_ms: 0 };
        let addresses = vec![Own { bucket, proved_ms: None }; BUCKETS].into_boxed_slice();
        Self { key, per_s, addresses, prefixes: vec![bucket; BUCKETS].into_boxed_slice() }
    }

    /// Somebody at `address` signed in.
    pub(super) fn proved(&mut self, now: Instant, address: IpAddr) {
        let IpAddr::V4(v4) = address.to_canonical() else { return };
        let (at, now_ms, full) = (self.at(v4.to_bits().into()), ms(now), self.own_per_s() * BURST_SECS);
        if let Some(own) = self.addresses.get_mut(at) {
            if !own.is_proved(now_ms) {
                own.bucket = Bucket { left: full, at_ms: now_ms };
            }
            own.proved_ms = Some(now_ms);
        }
    }

    /// What an address at which somebody signed in is answered a second.
    fn own_per_s(&self) -> u32 {
        self.per_s.max(ADDRESS_PER_S)
    }

    /// Where the bucket of an address or prefix is.
    fn at(&self, name: u64) -> usize {
        SipHasher24::new_with_key(&self.key).hash(&name.to_be_bytes()) as usize % BUCKETS
    }

    /// Whether one more answer may go to somebody at `address`.
    pub(super) fn admit(&mut self, now: Instant, address: IpAddr) -> bool {
        let now_ms = ms(now);
        // Of an IPv6 /64 all addresses are one host's to take.
        let (own, prefix) = match address.to_canonical() {
            IpAddr::V4(v4) => (Some(u64::from(v4.to_bits())), u64::from(v4.to_bits() >> 8) | 1 << 32),
            IpAddr::V6(v6) => (None, (v6.to_bits() >> 64) as u64),
        };
        let (own, own_per_s) = (own.map(|own| self.at(own)), self.own_per_s());
        if let Some(own) = own.and_then(|own| self.addresses.get_mut(own)) {
            if own.is_proved(now_ms) {
                return own.bucket.take(now_ms, own_per_s);
            }
            if own.bucket.take(now_ms, ADDRESS_PER_S) {
                return true;
            }
        }
        let prefix = self.at(prefix);
        self.prefixes.get_mut(prefix).is_some_and(|bucket| bucket.take(now_ms, self.per_s))
    }
}

const fn ms(now: Instant) -> u32 {
    (now.as_nanos() / 1_000_000) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(unproved: &mut Unproved, now: Instant, address: &str, asked: usize) -> usize {
        (0..asked).filter(|_| unproved.admit(now, address.parse().unwrap())).count()
    }

    #[test]
    fn a_prefix_is_answered_so_often_and_a_neighbour_of_who_asks_without_end_still() {
        let mut unproved = Unproved::new([7; 16], 100);
        let now = Instant::from_secs(1_000);
        assert_eq!(admitted(&mut unproved, now, "198.51.100.66", 10_000), 200 + 10);
        assert_eq!(admitted(&mut unproved, now, "198.51.100.7", 3), 3);
        let later = Instant::from_secs(1_001);
        assert_eq!(admitted(&mut unproved, later, "198.51.100.66", 10_000), 100 + 5);
        assert_eq!(admitted(&mut unproved, later, "203.0.113.1", 3), 3);
        assert_eq!(admitted(&mut unproved, later, "2001:db8::1", 10_000), 200);
        assert_eq!(admitted(&mut unproved, later, "2001:db8::2", 10), 0, "the same /64");
    }

    #[test]
    fn who_signed_in_spends_its_own_answers_and_none_of_its_neighbours() {
        let mut unproved = Unproved::new([7; 16], 100);
        let now = Instant::from_secs(1_000);
        for greedy in ["198.51.100.66", "198.51.100.67"] {
            unproved.proved(now, greedy.parse().unwrap());
            assert_eq!(admitted(&mut unproved, now, greedy, 10_000), 200);
        }
        assert_eq!(admitted(&mut unproved, now, "198.51.100.7", 300), 200 + 10, "all that the prefix has");
        let hours_later = Instant::from_secs(1_000 + 2 * 3_600);
        assert_eq!(admitted(&mut unproved, hours_later, "198.51.100.66", 10_000), 200 + 10, "nobody knows it any more");
    }
}
