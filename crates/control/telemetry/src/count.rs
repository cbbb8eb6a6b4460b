//! Where figures are kept while they are counted.

use std::sync::{
    Mutex, PoisonError, TryLockError,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// Numbers that grow, each known by its index. Whoever counts never waits.
#[derive(Debug)]
pub struct Counters(Box<[AtomicU64]>);

impl Counters {
    /// So many of them, all zero.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self((0..len).map(|_| AtomicU64::new(0)).collect())
    }

    /// Adds `n` to one; what has no counter is not counted.
    pub fn add(&self, index: usize, n: u64) {
        if let Some(cell) = self.0.get(index) {
            cell.fetch_add(n, Relaxed);
        }
    }

    /// One of them.
    #[must_use]
    pub fn at(&self, index: usize) -> u64 {
        self.0.get(index).map_or(0, |cell| cell.load(Relaxed))
    }
}

/// How often a value lay below each of its bounds.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [u64],
    buckets: Counters,
}

impl Histogram {
    /// Buckets up to each of `bounds`, which rise, and one for the rest.
    #[must_use]
    pub fn new(bounds: &'static [u64]) -> Self {
        Self { bounds, buckets: Counters::new(bounds.len() + 1) }
    }

    /// Counts a value in the first bucket whose bound is above it.
    pub fn observe(&self, value: u64) {
        let bucket = self.bounds.iter().position(|bound| value < *bound).unwrap_or(self.bounds.len());
        self.buckets.add(bucket, 1);
    }

    /// How many values lay in this bucket; the last one has no bound.
    #[must_use]
    pub fn at(&self, bucket: usize) -> u64 {
        self.buckets.at(bucket)
    }
}

/// A value that one thread replaces now and then, and others read whole.
#[derive(Debug)]
pub struct Published<T>(Mutex<T>);

impl<T> Published<T> {
    /// With a first value, which has room for all later ones.
    pub const fn new(first: T) -> Self {
        Self(Mutex::new(first))
    }

    /// Changes the value in place, unless somebody reads it just then: the publisher never waits, readers see the next one.
    pub fn publish(&self, change: impl FnOnce(&mut T)) {
        match self.0.try_lock() {
            Ok(mut value) => change(&mut value),
            Err(TryLockError::Poisoned(poisoned)) => change(&mut poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {}
        }
    }

    /// Looks at the value; as short as a copy takes, or the publisher skips a turn.
    pub fn read<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_counted_below_the_first_bound_that_is_above_it() {
        let histogram = Histogram::new(&[1, 5]);
        [0, 1, 4, 5, 90].into_iter().for_each(|value| histogram.observe(value));
        assert_eq!([0, 1, 2, 3].map(|bucket| histogram.at(bucket)), [1, 2, 2, 0]);
    }

    #[test]
    fn a_publisher_does_not_wait_for_a_reader() {
        let published = Published::new(1);
        published.read(|seen| {
            published.publish(|value| *value = 2);
            assert_eq!(*seen, 1);
        });
        published.publish(|value| *value += 2);
        assert_eq!(published.read(|value| *value), 3);
    }

    #[test]
    fn what_has_no_counter_is_not_counted() {
        let counters = Counters::new(1);
        counters.add(1, 5);
        counters.add(0, 2);
        assert_eq!((counters.at(0), counters.at(1)), (2, 0));
    }
}
