use alloc::{boxed::Box, vec};

use crate::{Link, NONE, Slots};

/// A value with room for the name of one other: the next in its bucket or, while it is free, the next free one.
pub trait Chained {
    /// The other.
    fn chain(&self) -> u32;

    /// The other, to be changed by [`Buckets`] and [`FreeList`] alone.
    fn chain_mut(&mut self) -> &mut u32;
}

/// Implements [`Chained`] by a value's field `chain`, a `u32`: `chained!(Peer)`, or `chained!(Peer<T>)`.
#[macro_export]
macro_rules! chained {
    ($value:ident $(<$parameter:ident>)?) => {
        impl $(<$parameter>)? $crate::Chained for $value $(<$parameter>)? {
            #[inline]
            fn chain(&self) -> u32 {
                self.chain
            }

            #[inline]
            fn chain_mut(&mut self) -> &mut u32 {
                &mut self.chain
            }
        }
    };
}

/// A value that is in no list can be in a chain by its link.
impl Chained for Link {
    #[inline]
    fn chain(&self) -> u32 {
        self.next
    }

    #[inline]
    fn chain_mut(&mut self) -> &mut u32 {
        &mut self.next
    }
}

/// A hash table whose chains run through the values themselves: a look-up touches a bucket and then the values in it,
/// nothing in between. One key a value; for several there is [`Index`](crate::Index).
///
/// The bucket is chosen by the low bits of a **keyed** hash, so that no sender can fill one: then a chain has one value on
/// average, and every operation is O(1).
#[derive(Debug)]
pub struct Buckets {
    firsts: Box<[u32]>,
}

impl Buckets {
    /// For `max` values. Allocates once.
    #[must_use]
    pub fn new(max: u32) -> Self {
        Self { firsts: vec![NONE; max.max(1).next_power_of_two() as usize].into_boxed_slice() }
    }

    /// The bucket of a hash.
    #[inline]
    #[must_use]
    pub const fn of(&self, hash: u64) -> u32 {
        hash as u32 & (self.firsts.len() as u32 - 1)
    }

    /// The first value in a bucket, or [`NONE`].
    #[inline]
    #[must_use]
    pub fn first(&self, bucket: u32) -> u32 {
        self.firsts.get(bucket as usize).copied().unwrap_or(NONE)
    }

    /// The value that `is_it` in the chain that begins with `first`.
    #[inline]
    #[must_use]
    pub fn find<S: Slots<Value: Chained> + ?Sized>(
        slots: &S,
        first: u32,
        is_it: impl Fn(&S::Value) -> bool,
    ) -> Option<u32> {
        let mut index = first;
        while let Some(value) = slots.slot(index) {
            if is_it(value) {
                return Some(index);
            }
            index = value.chain();
        }
        None
    }

    /// Puts a value that is in no bucket into this one.
    #[inline]
    pub fn insert<S: Slots<Value: Chained> + ?Sized>(&mut self, slots: &mut S, bucket: u32, index: u32) {
        let (Some(first), Some(value)) = (self.firsts.get_mut(bucket as usize), slots.slot_mut(index)) else { return };
        *value.chain_mut() = core::mem::replace(first, index);
    }

    /// Takes a value out of its bucket.
    #[inline]
    pub fn remove<S: Slots<Value: Chained> + ?Sized>(&mut self, slots: &mut S, bucket: u32, index: u32) {
        let Some(next) = slots.slot(index).map(Chained::chain) else { return };
        let Some(first) = self.firsts.get_mut(bucket as usize) else { return };
        if *first == index {
            *first = next;
            return;
        }
        let mut at = *first;
        while let Some(value) = slots.slot_mut(at) {
            if value.chain() == index {
                *value.chain_mut() = next;
                return;
            }
            at = value.chain();
        }
    }
}

/// The free slots of a table that keeps values in all of its slots, linked through the values. The one that was freed last
/// is used next.
#[derive(Debug)]
pub struct FreeList {
    first: u32,
    used: u32,
}

impl FreeList {
    /// All of the slots from `first` to `end` (not included) are free.
    #[must_use]
    pub fn new<S: Slots<Value: Chained> + ?Sized>(slots: &mut S, first: u32, end: u32) -> Self {
        for index in first..end {
            if let Some(value) = slots.slot_mut(index) {
                *value.chain_mut() = if index + 1 < end { index + 1 } else { NONE };
            }
        }
        Self { first: if first < end { first } else { NONE }, used: 0 }
    }

    /// Slots that are taken.
    #[inline]
    #[must_use]
    pub const fn used(&self) -> u32 {
        self.used
    }

    /// Whether no slot is free.
    #[inline]
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.first == NONE
    }

    /// Takes a slot; `None` if none is free. O(1).
    #[inline]
    pub fn take<S: Slots<Value: Chained> + ?Sized>(&mut self, slots: &S) -> Option<u32> {
        let index = self.first;
        self.first = slots.slot(index)?.chain();
        self.used += 1;
        Some(index)
    }

    /// Gives a slot back that was taken. O(1).
    #[inline]
    pub fn give_back<S: Slots<Value: Chained> + ?Sized>(&mut self, slots: &mut S, index: u32) {
        if let Some(value) = slots.slot_mut(index) {
            *value.chain_mut() = self.first;
            self.first = index;
            self.used -= 1;
        }
    }
}
