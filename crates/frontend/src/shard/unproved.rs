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

/// One bucket for each address, and one for each /24 or /64. An answer needs room in either, so that a neighbour of many
/// that ask without end is still heard. A fixed amount of memory, and none a stranger.
pub(super) struct Unproved {
    key: [u8; 16],
    per_s: u32,
    addresses: Box<[Bucket]>,
    prefixes: Box<[Bucket]>,
}

impl std::fmt::Debug for Unproved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unproved").field("per_s", &self.per_s).finish_non_exhaustive()
    }
}

impl Unproved {
    /// Each prefix is sent `per_s` answers a second by this shard.
    pub(super) fn new(key: [u8; 16], per_s: u32) -> Self {
        let buckets = || vec![Bucket { left: u32::MAX, at_ms: 0 }; BUCKETS].into_boxed_slice();
        Self { key, per_s, addresses: buckets(), prefixes: buckets() }
    }

    /// Whether one more answer may go to somebody at `address`.
    pub(super) fn admit(&mut self, now: Instant, address: IpAddr) -> bool {
        let now_ms = (now.as_nanos() / 1_000_000) as u32;
        // Of an IPv6 /64 all addresses are one host's to take.
        let (own, prefix) = match address.to_canonical() {
            IpAddr::V4(v4) => (Some(u64::from(v4.to_bits())), u64::from(v4.to_bits() >> 8) | 1 << 32),
            IpAddr::V6(v6) => (None, (v6.to_bits() >> 64) as u64),
        };
        let key = self.key;
        let at = |name: u64| SipHasher24::new_with_key(&key).hash(&name.to_be_bytes()) as usize % BUCKETS;
        let own = own.and_then(|own| self.addresses.get_mut(at(own)));
        own.is_some_and(|bucket| bucket.take(now_ms, ADDRESS_PER_S))
            || self.prefixes.get_mut(at(prefix)).is_some_and(|bucket| bucket.take(now_ms, self.per_s))
    }
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
}
