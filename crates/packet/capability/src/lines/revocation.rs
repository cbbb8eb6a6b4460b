use alloc::{boxed::Box, vec};

/// How long a revocation is remembered: as long as a capability that was minted before it can be valid (T <= 63 s).
pub const REMEMBERED_SECS: u64 = 64;

const PER_BUCKET: usize = 7;

/// Flows whose capabilities end before their time, in memory that is fixed at start.
///
/// A revocation is a 32-bit fingerprint of the flow and the second in which it was revoked; what was minted later is
/// not meant. Eight words form a bucket: seven revocations, and in front the second up to which the bucket had to
/// forget which flows were meant. Such a bucket refuses *every* capability of its flows that was minted until then. So
/// a revocation is never lost before its time, and an error only ever demotes packets: for a flow whose fingerprint
/// equals one of seven (7 * 2^-32 a check), and for the flows of a bucket that got more than seven within 64 s.
#[derive(Debug)]
pub struct Revocations {
    buckets: Box<[[u64; PER_BUCKET + 1]]>,
    /// The last second in which anything is remembered.
    until: u64,
    overflows: u64,
}

impl Revocations {
    /// Room for at least `revocations_max` revocations in 64 s, if they spread evenly. Allocates once: 18 bytes each, rounded up
    /// to a power of two.
    #[must_use]
    pub fn new(revocations_max: u32) -> Self {
        // Half full on average: then a bucket gets more than seven about once in 25.
        let buckets = (revocations_max as usize * 2).div_ceil(PER_BUCKET).next_power_of_two();
        Self { buckets: vec![[0; PER_BUCKET + 1]; buckets].into_boxed_slice(), until: 0, overflows: 0 }
    }

    /// Revokes all capabilities of the flow with this hash that were minted up to `seconds`.
    pub fn revoke(&mut self, hash: u64, seconds: u64) {
        self.until = seconds + REMEMBERED_SECS;
        let (bucket, fingerprint) = self.place(hash);
        let Some((overflow, entries)) = self.buckets[bucket].split_first_mut() else { return };
        let same = entries.iter().position(|entry| *entry != 0 && entry >> 32 == fingerprint);
        let place = same.or_else(|| entries.iter().position(|entry| is_over(*entry, seconds)));
        match place {
            Some(place) => entries[place] = fingerprint << 32 | seconds & 0xffff_ffff,
            None => {
                *overflow = seconds;
                self.overflows += 1;
            }
        }
    }

    /// Whether a capability of the flow with this hash, minted in second `minted`, was revoked.
    #[inline]
    #[must_use]
    pub fn is_revoked(&self, hash: u64, minted: u64, seconds: u64) -> bool {
        if seconds > self.until {
            return false;
        }
        let (bucket, fingerprint) = self.place(hash);
        let Some((overflow, entries)) = self.buckets[bucket].split_first() else { return false };
        let meant = |entry: u64| !is_over(entry, seconds) && minted <= entry & 0xffff_ffff;
        meant(*overflow) || entries.iter().any(|entry| entry >> 32 == fingerprint && meant(*entry))
    }

    /// The most revocations that can be told apart.
    #[must_use]
    pub fn revocations_max(&self) -> usize {
        self.buckets.len() * PER_BUCKET
    }

    /// Revocations remembered; reads the whole filter.
    #[must_use]
    pub fn len(&self, seconds: u64) -> usize {
        self.buckets.iter().flat_map(|bucket| &bucket[1..]).filter(|entry| !is_over(**entry, seconds)).count()
    }

    /// How often a bucket had to forget which flow was meant.
    #[must_use]
    pub const fn overflows(&self) -> u64 {
        self.overflows
    }

    /// Bucket and fingerprint: different bits of the hash.
    #[inline]
    fn place(&self, hash: u64) -> (usize, u64) {
        (hash as usize & (self.buckets.len() - 1), hash >> 32)
    }
}

/// Whether no capability that was minted before this revocation can still be valid; also for a free place.
#[inline]
const fn is_over(entry: u64, seconds: u64) -> bool {
    entry & 0xffff_ffff < seconds.saturating_sub(REMEMBERED_SECS) || entry & 0xffff_ffff == 0
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    /// A hash with a given bucket and fingerprint.
    fn flow(bucket: u64, fingerprint: u64) -> u64 {
        fingerprint << 32 | bucket
    }

    #[test]
    fn a_revocation_ends_what_was_minted_before_and_nothing_else() {
        let mut filter = Revocations::new(100);
        filter.revoke(flow(1, 7), 500);
        assert!(filter.is_revoked(flow(1, 7), 500, 500) && filter.is_revoked(flow(1, 7), 437, 500));
        assert!(!filter.is_revoked(flow(1, 7), 501, 501), "a new capability is another matter");
        assert!(!filter.is_revoked(flow(1, 8), 400, 500) && !filter.is_revoked(flow(2, 7), 400, 500));
    }

    #[test]
    fn a_revocation_is_remembered_as_long_as_any_capability_from_before_it_can_live_and_no_longer() {
        let mut filter = Revocations::new(100);
        filter.revoke(flow(1, 7), 500);
        for seconds in 500..=564 {
            assert!(filter.is_revoked(flow(1, 7), 500, seconds), "{seconds}");
        }
        assert!(!filter.is_revoked(flow(1, 7), 500, 565));
        assert_eq!((filter.len(564), filter.len(565)), (1, 0));
    }

    #[test]
    fn a_full_bucket_refuses_too_much_and_never_too_little() {
        let mut filter = Revocations::new(100);
        let revoked: Vec<_> = (1..=20).map(|n| flow(3, n)).collect();
        for hash in &revoked {
            filter.revoke(*hash, 500);
        }
        assert!(revoked.iter().all(|hash| filter.is_revoked(*hash, 480, 510)));
        assert!(filter.is_revoked(flow(3, 99), 480, 510), "a flow of the same bucket is taken along");
        assert!(!filter.is_revoked(flow(3, 99), 501, 510), "but not with a newer capability");
        assert!(!filter.is_revoked(flow(4, 99), 480, 510), "nor a flow of another bucket");
        assert_eq!(filter.overflows(), 13);
        assert!(!revoked.iter().any(|hash| filter.is_revoked(*hash, 500, 565)), "and all of it ends");
    }

    #[test]
    fn a_million_revocations_need_no_more_memory_than_the_first() {
        let mut filter = Revocations::new(1_000);
        let max = filter.revocations_max();
        let hash = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for n in 0..1_000_000 {
            filter.revoke(hash(n), 100 + n / 10_000);
            assert!(filter.is_revoked(hash(n), 100, 100 + n / 10_000));
        }
        assert_eq!(filter.revocations_max(), max);
        assert!(filter.len(200) <= max);
    }

    #[test]
    fn flows_that_nobody_revoked_are_refused_at_the_stated_rate() {
        let mut filter = Revocations::new(1_000);
        let hash = |n: u64| (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ n << 17;
        for n in 0..1_000 {
            filter.revoke(hash(n), 100);
        }
        assert_eq!(filter.overflows(), 0);
        let wrong = (1_000..1_001_000).filter(|n| filter.is_revoked(hash(*n), 50, 100)).count();
        assert!(wrong <= 1, "{wrong}");
    }
}
