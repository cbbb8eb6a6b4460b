//! Tables whose size is fixed at start.
//!
//! Whatever a stranger can make grow lies in one of these: each has a name and a maximum, takes its memory when it is made
//! and none afterwards, and refuses (or, where its documentation says so, replaces by a stated rule) what does not fit. How
//! full it is comes out of every one in the same way, as a [`Gauge`].
//!
//! | type | holds | finds by | full |
//! |---|---|---|---|
//! | [`Slab`] | values | index, or a [`Handle`] that goes stale with its value | refuses |
//! | [`Queue`] | values, oldest first | order | refuses |
//! | [`Index`] | indices of a table, many a key | a keyed hash | refuses |
//! | [`Cache`] | values that may be forgotten | a keyed hash | replaces one of the same set |
//! | [`Wheel`] | ids that wait for a time | time | has room for every id |
//! | [`Pool`] | bytes of packets | its [`Buffer`] | refuses |
//!
//! [`List`], [`Round`], [`Buckets`] and [`FreeList`] are parts of a table and have no memory of their own: they link values
//! that lie in slots ([`Slots`]) through fields of these values, so that a packet which touches the value touches its
//! neighbours' names with it.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod cache;
mod chain;
mod index;
mod list;
mod pool;
mod queue;
mod slab;
mod wheel;

pub use cache::{Cache, Entry};
pub use chain::{Buckets, Chained, FreeList};
pub use index::Index;
pub use list::{Link, Linked, List, Round};
pub use pool::{Buffer, Pool};
pub use queue::Queue;
pub use slab::{Handle, Slab};
pub use wheel::Wheel;

/// The index that names nothing. No table is as large.
pub const NONE: u32 = u32::MAX;

/// Fill of one table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gauge {
    /// Which table.
    pub name: &'static str,
    /// Entries in use.
    pub used: u64,
    /// Entries that it has room for.
    pub max: u64,
}

impl Gauge {
    /// Of a collection that its owner bounds.
    #[must_use]
    pub const fn of(name: &'static str, used: usize, max: usize) -> Self {
        Self { name, used: used as u64, max: max as u64 }
    }
}

/// A table with a named maximum.
pub trait Bounded {
    /// What the table is called in metrics.
    fn name(&self) -> &'static str;

    /// Entries in use.
    fn used(&self) -> u32;

    /// Entries that it has room for.
    fn max(&self) -> u32;

    /// Name, used and maximum in one.
    fn gauge(&self) -> Gauge {
        Gauge { name: self.name(), used: self.used().into(), max: self.max().into() }
    }
}

/// Values that are named by their index: a slice, or a [`Slab`].
pub trait Slots {
    /// What lies in a slot.
    type Value;

    /// The value at `index`; `None` beyond the end and where nothing lies.
    fn slot(&self, index: u32) -> Option<&Self::Value>;

    /// The value at `index`, to be changed.
    fn slot_mut(&mut self, index: u32) -> Option<&mut Self::Value>;
}

impl<T> Slots for [T] {
    type Value = T;

    #[inline]
    fn slot(&self, index: u32) -> Option<&T> {
        self.get(index as usize)
    }

    #[inline]
    fn slot_mut(&mut self, index: u32) -> Option<&mut T> {
        self.get_mut(index as usize)
    }
}

impl<T> Slots for Slab<T> {
    type Value = T;

    #[inline]
    fn slot(&self, index: u32) -> Option<&T> {
        self.get(index)
    }

    #[inline]
    fn slot_mut(&mut self, index: u32) -> Option<&mut T> {
        self.get_mut(index)
    }
}
