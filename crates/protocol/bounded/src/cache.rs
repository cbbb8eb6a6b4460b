use alloc::{boxed::Box, vec};
use core::cmp::Reverse;

use crate::{Bounded, Gauge};

/// What lies in a place of a [`Cache`]. The default is a place that nothing lies in.
pub trait Entry: Clone + Default {
    /// Whether nothing lies here.
    fn is_vacant(&self) -> bool;
}

impl<T: Clone> Entry for Option<T> {
    #[inline]
    fn is_vacant(&self) -> bool {
        self.is_none()
    }
}

/// A memory of things that may be forgotten: sets of `WAYS` places, the set chosen by a **keyed** hash, so that no sender can
/// aim at a set. A full set replaces the entry that its user ranks lowest. Every operation looks at one set.
#[derive(Debug)]
pub struct Cache<T, const WAYS: usize> {
    name: &'static str,
    entries: Box<[T]>,
}

impl<T: Entry, const WAYS: usize> Cache<T, WAYS> {
    /// Room for `max` entries, rounded up to whole sets. Allocates once.
    #[must_use]
    pub fn new(name: &'static str, max: u32) -> Self {
        let places = (max as usize).max(1).next_multiple_of(WAYS);
        Self { name, entries: vec![T::default(); places].into_boxed_slice() }
    }

    /// The entry that `is_it`.
    #[inline]
    pub fn find(&self, hash: u64, is_it: impl Fn(&T) -> bool) -> Option<&T> {
        let first = self.first(hash);
        self.entries[first..first + WAYS].iter().find(|entry| !entry.is_vacant() && is_it(entry))
    }

    /// The entry that `is_it`, to be changed; the default ([`Entry::is_vacant`]) takes it out.
    #[inline]
    pub fn find_mut(&mut self, hash: u64, is_it: impl Fn(&T) -> bool) -> Option<&mut T> {
        let first = self.first(hash);
        self.entries[first..first + WAYS].iter_mut().find(|entry| !entry.is_vacant() && is_it(entry))
    }

    /// The place of the entry that `is_it`, or for a new one: a vacant place of its set, or the one of the lowest `rank`. The
    /// caller compares, and writes.
    #[inline]
    pub fn place<R: Ord>(&mut self, hash: u64, is_it: impl Fn(&T) -> bool, rank: impl Fn(&T) -> R) -> &mut T {
        let first = self.first(hash);
        let set = &mut self.entries[first..first + WAYS];
        let held = set.iter().position(|entry| !entry.is_vacant() && is_it(entry));
        let lowest = || (0..WAYS).min_by_key(|way| (Reverse(set[*way].is_vacant()), rank(&set[*way]))).unwrap_or(0);
        let way = held.unwrap_or_else(lowest);
        &mut set[way]
    }

    /// All entries. Costs as much as there are places.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().filter(|entry| !entry.is_vacant())
    }

    /// The gauge of those entries that still matter. Costs as much as there are places.
    pub fn gauge_of(&self, matters: impl Fn(&T) -> bool) -> Gauge {
        let used = self.iter().filter(|entry| matters(entry)).count();
        Gauge { name: self.name, used: used as u64, max: self.max().into() }
    }

    /// The first place of a hash's set: the hash as a fraction of 2^64, times the number of sets.
    #[inline]
    const fn first(&self, hash: u64) -> usize {
        let sets = (self.entries.len() / WAYS) as u128;
        ((hash as u128 * sets) >> 64) as usize * WAYS
    }
}

impl<T: Entry, const WAYS: usize> Bounded for Cache<T, WAYS> {
    fn name(&self) -> &'static str {
        self.name
    }

    /// Counts: costs as much as there are places.
    fn used(&self) -> u32 {
        self.iter().count() as u32
    }

    fn max(&self) -> u32 {
        self.entries.len() as u32
    }
}
