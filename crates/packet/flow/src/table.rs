use alloc::{boxed::Box, vec, vec::Vec};
use core::ops::Range;

use crate::{Hasher, Key, Line};

/// Lines in a set.
pub const WAYS: usize = 8;

/// Lines of a set in use, on average, when the table is at its maximum.
const LOAD_MAX: u64 = 5;
/// A set this full sends new keys to their other set, if that is emptier. Below, the first is taken, because a look-up
/// then needs one word of tags only.
const FIRST_CHOICE_MAX: u32 = 6;
const BYTES_01: u64 = 0x0101_0101_0101_0101;
const BYTES_80: u64 = 0x8080_8080_8080_8080;

/// Flow lines in one flat, set-associative array of fixed size.
///
/// A key has two candidate sets of eight lines, and an insertion takes the second if it is emptier and the first is
/// getting full: a table at its maximum (five eighths of the array) practically never meets two full sets. Both sets of a key lie in the same shard (index mod
/// [`Table::shards`]), so that one thread can own them. Beside the lines stands one byte of the hash for each, eight
/// to a word: a miss, which is what a flood causes, reads two words and no line, and a hit reads one line.
#[derive(Debug)]
pub struct Table<L> {
    lines: Box<[L]>,
    /// A byte for each line of a set: 0 free, else 0x80 and seven bits of the hash.
    tags: Box<[u64]>,
    hasher: Hasher,
    set_mask: u32,
    shard_mask: u32,
    used: u32,
    lines_max: u32,
}

impl<L: Line> Table<L> {
    /// A table for at most `lines_max` lines (1 to 2^27), placed by a keyed hash. Allocates once.
    #[must_use]
    pub fn new(lines_max: u32, hash_key: &[u8; 16]) -> Self {
        let lines_max = lines_max.clamp(1, 1 << 27);
        let sets = u64::from(lines_max).div_ceil(LOAD_MAX).next_power_of_two();
        let mut lines = Vec::new();
        lines.resize_with(sets as usize * WAYS, L::default);
        Self {
            lines: lines.into_boxed_slice(),
            tags: vec![0; sets as usize].into_boxed_slice(),
            hasher: Hasher::new(hash_key),
            set_mask: sets as u32 - 1,
            shard_mask: (sets as u32 / 16).clamp(1, 64) - 1,
            used: 0,
            lines_max,
        }
    }

    /// Lines in use.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.used
    }

    /// Whether no line is in use.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// The most lines that may be in use.
    #[must_use]
    pub const fn lines_max(&self) -> u32 {
        self.lines_max
    }

    /// One past the largest index.
    #[must_use]
    pub fn index_end(&self) -> u32 {
        self.lines.len() as u32
    }

    /// How many threads could own the table's sets apart from each other.
    #[must_use]
    pub const fn shards(&self) -> u32 {
        self.shard_mask + 1
    }

    /// The hash that places `key`.
    #[inline]
    #[must_use]
    pub fn hash(&self, key: &L::Key) -> u64 {
        key.hash(&self.hasher)
    }

    /// The line with this index; free lines match no key.
    #[inline]
    #[must_use]
    pub fn line(&self, index: u32) -> &L {
        &self.lines[index as usize]
    }

    /// The line of `key`, whose hash is `hash`.
    #[inline]
    #[must_use]
    pub fn find(&self, hash: u64, key: &L::Key) -> Option<u32> {
        let (first, second) = self.sets(hash);
        self.find_in(first, hash, key).or_else(|| self.find_in(second, hash, key))
    }

    /// Takes a free line for `key`, which must not be there yet; the caller fills it. `None`: the table, or both sets of
    /// the key, are full.
    pub(crate) fn take(&mut self, hash: u64, key: &L::Key) -> Option<u32> {
        debug_assert!(self.find(hash, key).is_none(), "a key has one line");
        if self.used >= self.lines_max {
            return None;
        }
        let (first, second) = self.sets(hash);
        let used = |set| self.ways_used(set);
        let set = if used(first) < FIRST_CHOICE_MAX || used(first) <= used(second) { first } else { second };
        self.take_way(set, hash)
    }

    /// Lines in use in a set, one of those of [`Self::sets`].
    #[inline]
    #[must_use]
    pub fn ways_used(&self, set: u32) -> u32 {
        (self.tags[set as usize] & BYTES_80).count_ones()
    }

    /// All lines of a set, free or not.
    #[inline]
    #[must_use]
    pub fn set_lines(&self, set: u32) -> &[L] {
        let start = set as usize * WAYS;
        &self.lines[start..start + WAYS]
    }

    /// Takes a free line of `set`, one of the sets of `hash`, whatever the table's maximum; the caller fills it.
    #[inline]
    pub fn take_way(&mut self, set: u32, hash: u64) -> Option<u32> {
        let free = !self.tags[set as usize] & BYTES_80;
        if free == 0 {
            return None;
        }
        let way = free.trailing_zeros() / 8;
        self.tags[set as usize] |= u64::from(tag(hash)) << (way * 8);
        self.used += 1;
        Some(set * WAYS as u32 + way)
    }

    /// Frees a line. Nothing happens if it is free.
    pub fn free(&mut self, index: u32) {
        let (set, way) = (index as usize / WAYS, index as usize % WAYS);
        let mask = 0xff << (way * 8);
        if self.tags[set] & mask != 0 {
            self.tags[set] &= !mask;
            self.lines[index as usize].clear();
            self.used -= 1;
        }
    }

    /// Whether the line is in use.
    #[must_use]
    pub fn is_used(&self, index: u32) -> bool {
        let (set, way) = (index as usize / WAYS, index as usize % WAYS);
        self.tags.get(set).is_some_and(|tags| tags >> (way * 8) & 0x80 != 0)
    }

    /// How many sets there are: one word of tags each.
    #[must_use]
    pub fn sets_len(&self) -> u32 {
        self.tags.len() as u32
    }

    /// The indices of the lines in use in one set; reads one word.
    pub fn used_in_set(&self, set: u32) -> impl Iterator<Item = u32> {
        let mut used = self.tags.get(set as usize).map_or(0, |tags| tags & BYTES_80);
        core::iter::from_fn(move || {
            let way = (used != 0).then(|| used.trailing_zeros() / 8)?;
            used &= used - 1;
            Some(set * WAYS as u32 + way)
        })
    }

    /// The indices of all lines in use in a range of indices; all of them in `0..index_end()`.
    pub fn used_lines(&self, range: Range<u32>) -> impl Iterator<Item = u32> {
        range.filter(|index| self.is_used(*index))
    }

    /// The two sets in which a line with this hash may stand.
    #[inline]
    #[must_use]
    pub fn sets(&self, hash: u64) -> (u32, u32) {
        let first = hash as u32 & self.set_mask;
        let other = (hash >> 28) as u32 & self.set_mask & !self.shard_mask;
        (first, other | first & self.shard_mask)
    }

    #[inline]
    fn find_in(&self, set: u32, hash: u64, key: &L::Key) -> Option<u32> {
        let diff = self.tags[set as usize] ^ (u64::from(tag(hash)) * BYTES_01);
        // Marks every zero byte of `diff`; a borrow may mark a wrong byte above one, which the key comparison refuses.
        let mut hits = diff.wrapping_sub(BYTES_01) & !diff & BYTES_80;
        while hits != 0 {
            let index = set * WAYS as u32 + hits.trailing_zeros() / 8;
            if self.lines[index as usize].matches(key) {
                return Some(index);
            }
            hits &= hits - 1;
        }
        None
    }
}

#[inline]
const fn tag(hash: u64) -> u8 {
    0x80 | (hash >> 57) as u8
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;
    use std::{collections::HashMap, vec::Vec};

    use proptest::prelude::*;

    use super::*;
    use crate::{Entry, Key4, Kind, Line4, Tick};

    fn key(n: u32) -> Key4 {
        Key4::new(Kind::Inbound, 17, (Ipv4Addr::from_bits(n), 1), (Ipv4Addr::LOCALHOST, 2))
    }

    fn entry(owner: u32) -> Entry {
        Entry { owner, new_address: 0, new_port: 0, flags: 0, seen: Tick(0) }
    }

    fn insert(table: &mut Table<Line4>, n: u32) -> Option<u32> {
        let key = key(n);
        table.insert(table.hash(&key), &key, &entry(n))
    }

    fn find(table: &Table<Line4>, n: u32) -> Option<u32> {
        let key = key(n);
        table.find(table.hash(&key), &key)
    }

    #[test]
    fn a_table_holds_its_maximum_and_refuses_one_more() {
        for lines_max in [1, 8, 1_000, 50_000, 81_920] {
            let mut table = Table::new(lines_max, &[7; 16]);
            for n in 0..lines_max {
                assert!(insert(&mut table, n).is_some(), "{n} of {lines_max}");
            }
            assert_eq!(insert(&mut table, lines_max), None);
            assert_eq!(table.len(), lines_max);
            let index = find(&table, lines_max / 2).unwrap();
            table.free(index);
            table.free(index);
            assert_eq!(table.len(), lines_max - 1);
            assert!(insert(&mut table, lines_max).is_some(), "a freed line can be used again");
        }
    }

    #[test]
    fn two_full_sets_refuse_a_line_although_the_table_is_not_full() {
        let mut table: Table<Line4> = Table::new(1 << 12, &[7; 16]);
        let sets = |table: &Table<Line4>, n| {
            let (first, second) = table.sets(table.hash(&key(n)));
            (first.min(second), first.max(second))
        };
        let wanted = sets(&table, 0);
        let same: Vec<u32> = (0..6_000_000).filter(|n| sets(&table, *n) == wanted).take(17).collect();
        assert_eq!(same.len(), 17);
        for n in &same[..16] {
            assert!(insert(&mut table, *n).is_some());
        }
        assert_eq!(insert(&mut table, same[16]), None);
    }

    #[test]
    fn both_sets_of_a_key_lie_in_one_shard() {
        let table: Table<Line4> = Table::new(100_000, &[7; 16]);
        assert_eq!(table.shards(), 64);
        for n in 0..1_000 {
            let (first, second) = table.sets(table.hash(&key(n)));
            assert_eq!(first % 64, second % 64);
        }
    }

    proptest! {
        #[test]
        fn the_table_finds_what_a_map_finds(steps in prop::collection::vec((0u32..60, any::<bool>()), 1..400)) {
            let mut table = Table::new(40, &[3; 16]);
            let mut model = HashMap::new();
            for (n, insertion) in steps {
                match find(&table, n) {
                    None if insertion => {
                        if let Some(index) = insert(&mut table, n) {
                            model.insert(n, index);
                        } else {
                            prop_assert_eq!(model.len(), 40);
                        }
                    }
                    Some(index) if !insertion => {
                        table.free(index);
                        model.remove(&n);
                    }
                    _ => {}
                }
                prop_assert_eq!(table.len() as usize, model.len());
                prop_assert_eq!(table.used_lines(0..table.index_end()).count(), model.len());
                for n in 0..60 {
                    prop_assert_eq!(find(&table, n), model.get(&n).copied());
                    if let Some(index) = model.get(&n) {
                        prop_assert_eq!(table.line(*index).owner(), n);
                    }
                }
            }
        }
    }
}
