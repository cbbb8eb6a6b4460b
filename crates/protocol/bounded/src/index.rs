use alloc::{boxed::Box, vec};

use crate::{Bounded, NONE};

/// How many entries of one key a look-up visits: bounds the work that a crowd behind one address can cause.
const MATCHES_MAX: usize = 64;

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

/// Finds slots of another table by keys, of which each slot has any number and each key any number of slots.
///
/// Keys are given as 64 bits of a **keyed** hash: who does not know the hash's key cannot choose keys that meet in one
/// bucket. A look-up may also give slots of other keys (one in 2^32 for each entry of the bucket): the caller compares.
#[derive(Debug)]
pub struct Index {
    name: &'static str,
    buckets: Box<[u32]>,
    entries: Box<[Entry]>,
    /// The newest entry of each value.
    of_value: Box<[u32]>,
    free: u32,
    used: u32,
}

impl Index {
    /// For so many entries (2^31 at most), whose values lie below `values_max`. Allocates once.
    #[must_use]
    pub fn new(name: &'static str, entries_max: u32, values_max: u32) -> Self {
        let entries_max = entries_max.clamp(1, FIRST - 1);
        let blank = Entry { tag: 0, value: 0, next: NONE, before: NONE, sibling: NONE };
        let mut entries = vec![blank; entries_max as usize].into_boxed_slice();
        for (index, entry) in entries.iter_mut().enumerate() {
            entry.next = if index + 1 == entries_max as usize { NONE } else { index as u32 + 1 };
        }
        let buckets = vec![NONE; (entries_max as usize).next_power_of_two()].into_boxed_slice();
        Self { name, buckets, entries, of_value: vec![NONE; values_max as usize].into_boxed_slice(), free: 0, used: 0 }
    }

    /// Adds a value under a hash; `false` (and no change) if there is no room. O(1).
    pub fn insert(&mut self, hash: u64, value: u32) -> bool {
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

    /// Removes all entries of a value: costs as much as it has entries, however many others share its keys.
    pub fn remove(&mut self, value: u32) {
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

    /// The newest 64 values with this hash, newest first. Costs as much as the bucket has entries, which is one
    /// on average and those of this hash.
    pub fn matches(&self, hash: u64) -> impl Iterator<Item = u32> + '_ {
        let mut at = self.buckets[hash as usize & (self.buckets.len() - 1)];
        core::iter::from_fn(move || {
            while let Some(entry) = self.entries.get(at as usize) {
                at = entry.next;
                if entry.tag == (hash >> 32) as u32 {
                    return Some(entry.value);
                }
            }
            None
        })
        .take(MATCHES_MAX)
    }
}

impl Bounded for Index {
    fn name(&self) -> &'static str {
        self.name
    }

    fn used(&self) -> u32 {
        self.used
    }

    fn max(&self) -> u32 {
        self.entries.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_under_one_key_costs_a_bounded_look_up() {
        let mut index = Index::new("table", 1_000, 1_000);
        assert!((0..1_000).all(|value| index.insert(5, value)));
        assert_eq!(index.matches(5).count(), MATCHES_MAX);
        assert_eq!(index.matches(5).next(), Some(999));
    }
}
