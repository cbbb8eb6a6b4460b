use alloc::{boxed::Box, vec};

const NONE: u32 = u32::MAX;

/// How many entries of one key a look-up visits: bounds the work that a crowd behind one address can cause.
pub(crate) const MATCHES_MAX: usize = 64;

/// In [`Entry::before`]: the entry is the first of this bucket.
const FIRST: u32 = 1 << 31;

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// 32 bits of the hash that did not choose the bucket.
    tag: u32,
    value: u32,
    next: u32,
    /// The entry before this one, or [`FIRST`] and the bucket.
    before: u32,
    /// Another entry of the same value.
    sibling: u32,
}

/// A hash multimap from keyed hashes to table slots, of fixed size. The newest entry of a key comes first. Taking a slot
/// out costs as much as it has entries, however many share its keys.
///
/// A look-up may return slots of other keys (one in 2^32 for each entry of the bucket): the caller compares.
#[derive(Debug)]
pub(crate) struct Index {
    buckets: Box<[u32]>,
    entries: Box<[Entry]>,
    /// The newest entry of each value.
    of_value: Box<[u32]>,
    free: u32,
    used: u32,
}

impl Index {
    /// For so many entries (2^31 at most), whose values lie below `values_max`.
    pub(crate) fn new(entries_max: u32, values_max: u32) -> Self {
        let entries_max = entries_max.clamp(1, FIRST - 1);
        let blank = Entry { tag: 0, value: 0, next: NONE, before: NONE, sibling: NONE };
        let mut entries = vec![blank; entries_max as usize].into_boxed_slice();
        for (index, entry) in entries.iter_mut().enumerate() {
            entry.next = if index + 1 == entries_max as usize { NONE } else { index as u32 + 1 };
        }
        let buckets = vec![NONE; (entries_max as usize).next_power_of_two()].into_boxed_slice();
        Self { buckets, entries, of_value: vec![NONE; values_max as usize].into_boxed_slice(), free: 0, used: 0 }
    }

    /// Adds a value; `false` (and no change) if the index is full.
    pub(crate) fn insert(&mut self, hash: u64, value: u32) -> bool {
        let at = self.free;
        let bucket = hash as usize & (self.buckets.len() - 1);
        let next = self.buckets[bucket];
        let Some(first_of_value) = self.of_value.get_mut(value as usize) else { return false };
        let Some(entry) = self.entries.get_mut(at as usize) else { return false };
        self.free = entry.next;
        let sibling = core::mem::replace(first_of_value, at);
        *entry = Entry { tag: (hash >> 32) as u32, value, next, before: FIRST | bucket as u32, sibling };
        if let Some(behind) = self.entries.get_mut(next as usize) {
            behind.before = at;
        }
        self.buckets[bucket] = at;
        self.used += 1;
        true
    }

    /// Removes all entries of a value.
    pub(crate) fn remove(&mut self, value: u32) {
        let Some(first) = self.of_value.get_mut(value as usize) else { return };
        let mut at = core::mem::replace(first, NONE);
        while let Some(Entry { next, before, sibling, .. }) = self.entries.get(at as usize).copied() {
            if before & FIRST != 0 {
                self.buckets[(before & !FIRST) as usize] = next;
            } else {
                self.entries[before as usize].next = next;
            }
            if let Some(behind) = self.entries.get_mut(next as usize) {
                behind.before = before;
            }
            self.entries[at as usize].next = self.free;
            self.free = at;
            self.used -= 1;
            at = sibling;
        }
    }

    /// The newest [`MATCHES_MAX`] values with this hash.
    pub(crate) fn matches(&self, hash: u64) -> impl Iterator<Item = u32> + '_ {
        let mut at = self.buckets[hash as usize & (self.buckets.len() - 1)];
        core::iter::from_fn(move || {
            while at != NONE {
                let entry = self.entries[at as usize];
                at = entry.next;
                if entry.tag == (hash >> 32) as u32 {
                    return Some(entry.value);
                }
            }
            None
        })
        .take(MATCHES_MAX)
    }

    pub(crate) fn max(&self) -> u32 {
        self.entries.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn the_newest_value_of_a_key_comes_first_and_a_removed_one_is_gone() {
        let mut index = Index::new(4, 10);
        for value in 1..=3 {
            assert!(index.insert(77, value));
        }
        index.remove(2);
        index.remove(9);
        index.remove(10);
        assert_eq!(index.matches(77).collect::<Vec<_>>(), [3, 1]);
        assert_eq!(index.matches(77 | 1 << 40).count(), 0);
    }

    #[test]
    fn a_full_index_refuses_until_something_is_removed() {
        let mut index = Index::new(3, 6);
        assert!((0..3).all(|value| index.insert(u64::from(value), value)));
        assert!(!index.insert(5, 5));
        index.remove(1);
        assert!(index.insert(5, 5));
        assert_eq!((index.used, index.max()), (3, 3));
    }

    #[test]
    fn a_crowd_under_one_key_costs_a_bounded_look_up() {
        let mut index = Index::new(1_000, 1_000);
        assert!((0..1_000).all(|value| index.insert(5, value)));
        assert_eq!(index.matches(5).count(), MATCHES_MAX);
        assert_eq!(index.matches(5).next(), Some(999));
    }

    /// Against a list of pairs: any order of insertions and removals, several keys in a bucket, several entries a value.
    #[test]
    fn it_holds_what_a_list_of_pairs_holds() {
        let mut index = Index::new(64, 16);
        let mut pairs: Vec<(u64, u32)> = Vec::new();
        let mut random = 1u64;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (key, value) = ((random >> 40) % 5, (random >> 50) as u32 % 16);
            let hash = (key << 32) | (key % 2);
            if random >> 63 == 0 {
                assert_eq!(index.insert(hash, value), pairs.len() < 64);
                if pairs.len() < 64 {
                    pairs.push((hash, value));
                }
            } else {
                index.remove(value);
                pairs.retain(|(_, other)| *other != value);
            }
            let expected: Vec<u32> = pairs.iter().rev().filter(|pair| pair.0 == hash).map(|pair| pair.1).collect();
            assert_eq!(index.matches(hash).collect::<Vec<_>>(), expected);
            assert_eq!(index.used as usize, pairs.len());
        }
    }
}
