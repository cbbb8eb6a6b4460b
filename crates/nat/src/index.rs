use alloc::{boxed::Box, vec};

const NONE: u32 = u32::MAX;

/// How many entries of one key a look-up visits: bounds the work that a crowd behind one address can cause.
pub(crate) const MATCHES_MAX: usize = 64;

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// 32 bits of the hash that did not choose the bucket.
    tag: u32,
    value: u32,
    next: u32,
}

/// A hash multimap from keyed hashes to table slots, of fixed size. The newest entry of a key comes first.
///
/// A look-up may return slots of other keys (one in 2^32 for each entry of the bucket): the caller compares.
#[derive(Debug)]
pub(crate) struct Index {
    buckets: Box<[u32]>,
    entries: Box<[Entry]>,
    free: u32,
    used: u32,
}

impl Index {
    pub(crate) fn new(entries_max: u32) -> Self {
        let entries_max = entries_max.max(1);
        let mut entries = vec![Entry { tag: 0, value: 0, next: NONE }; entries_max as usize].into_boxed_slice();
        for (index, entry) in entries.iter_mut().enumerate() {
            entry.next = if index + 1 == entries_max as usize { NONE } else { index as u32 + 1 };
        }
        let buckets = vec![NONE; (entries_max as usize).next_power_of_two()].into_boxed_slice();
        Self { buckets, entries, free: 0, used: 0 }
    }

    /// Adds a value; `false` (and no change) if the index is full.
    pub(crate) fn insert(&mut self, hash: u64, value: u32) -> bool {
        let Some(entry) = self.entries.get_mut(self.free as usize) else { return false };
        let at = self.free;
        self.free = entry.next;
        let bucket = hash as usize & (self.buckets.len() - 1);
        *entry = Entry { tag: (hash >> 32) as u32, value, next: self.buckets[bucket] };
        self.buckets[bucket] = at;
        self.used += 1;
        true
    }

    /// Removes one entry with this hash and value, if there is one.
    pub(crate) fn remove(&mut self, hash: u64, value: u32) {
        let bucket = hash as usize & (self.buckets.len() - 1);
        let (mut at, mut before) = (self.buckets[bucket], NONE);
        while at != NONE {
            let entry = self.entries[at as usize];
            if entry.tag == (hash >> 32) as u32 && entry.value == value {
                if before == NONE {
                    self.buckets[bucket] = entry.next;
                } else {
                    self.entries[before as usize].next = entry.next;
                }
                self.entries[at as usize].next = self.free;
                self.free = at;
                self.used -= 1;
                return;
            }
            (before, at) = (at, entry.next);
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

    pub(crate) const fn used(&self) -> u32 {
        self.used
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
        let mut index = Index::new(4);
        for value in 1..=3 {
            assert!(index.insert(77, value));
        }
        index.remove(77, 2);
        index.remove(77, 9);
        assert_eq!(index.matches(77).collect::<Vec<_>>(), [3, 1]);
        assert_eq!(index.matches(77 | 1 << 40).count(), 0);
    }

    #[test]
    fn a_full_index_refuses_until_something_is_removed() {
        let mut index = Index::new(3);
        assert!((0..3).all(|value| index.insert(u64::from(value), value)));
        assert!(!index.insert(5, 5));
        index.remove(1, 1);
        assert!(index.insert(5, 5));
        assert_eq!((index.used(), index.max()), (3, 3));
    }

    #[test]
    fn a_crowd_under_one_key_costs_a_bounded_look_up() {
        let mut index = Index::new(1_000);
        assert!((0..1_000).all(|value| index.insert(5, value)));
        assert_eq!(index.matches(5).count(), MATCHES_MAX);
        assert_eq!(index.matches(5).next(), Some(999));
    }
}
