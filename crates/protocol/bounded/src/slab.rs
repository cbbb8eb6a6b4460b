use alloc::boxed::Box;

use crate::{Bounded, NONE};

/// Names a value for as long as it is in its [`Slab`]: once the value has been taken out the handle leads nowhere, even
/// where another value lies in its place. (A slot that changes its value 2^32 times while a handle is kept comes round.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle {
    index: u32,
    generation: u32,
}

impl Handle {
    /// Leads nowhere.
    pub const NONE: Self = Self { index: NONE, generation: 0 };

    /// The slot, whatever lies in it now.
    #[must_use]
    pub const fn index(self) -> u32 {
        self.index
    }
}

#[derive(Debug)]
struct Slot<T> {
    /// How many values have been taken out.
    generation: u32,
    held: Held<T>,
}

#[derive(Debug)]
enum Held<T> {
    Value(T),
    /// Nothing; the next free slot.
    Free(u32),
}

/// A fixed number of slots for values.
///
/// A value is named by the index of its slot, or by a [`Handle`] where a name outlives its value. The slot that was freed
/// last is used next, because its memory is the likeliest to be at hand.
#[derive(Debug)]
pub struct Slab<T> {
    name: &'static str,
    slots: Box<[Slot<T>]>,
    free: u32,
    used: u32,
}

impl<T> Slab<T> {
    /// Room for `max` values (at most 2^31). Allocates once.
    #[must_use]
    pub fn new(name: &'static str, max: u32) -> Self {
        let max = max.min(1 << 31);
        let free = |index: u32| if index < max { index } else { NONE };
        let slots = (1..=max).map(|next| Slot { generation: 0, held: Held::Free(free(next)) }).collect();
        Self { name, slots, free: free(0), used: 0 }
    }

    /// Whether there is no room.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.free == NONE
    }

    /// The index that the next value will have; `None` if there is no room. For what has to be known before the value is.
    #[must_use]
    pub fn vacant(&self) -> Option<u32> {
        (!self.is_full()).then_some(self.free)
    }

    /// Puts a value into a free slot. O(1).
    ///
    /// # Errors
    /// The value, if there is no room.
    #[inline]
    pub fn insert(&mut self, value: T) -> Result<Handle, T> {
        let index = self.free;
        let Some(slot) = self.slots.get_mut(index as usize) else { return Err(value) };
        if let Held::Free(next) = slot.held {
            self.free = next;
        }
        slot.held = Held::Value(value);
        self.used += 1;
        Ok(Handle { index, generation: slot.generation })
    }

    /// Takes the value at `index` out; handles to it lead nowhere from now on. O(1).
    #[inline]
    pub fn remove(&mut self, index: u32) -> Option<T> {
        let slot = self.slots.get_mut(index as usize)?;
        if let Held::Free(_) = slot.held {
            return None;
        }
        let Held::Value(value) = core::mem::replace(&mut slot.held, Held::Free(self.free)) else { return None };
        slot.generation = slot.generation.wrapping_add(1);
        self.free = index;
        self.used -= 1;
        Some(value)
    }

    /// The value at `index`. O(1), one access.
    #[inline]
    #[must_use]
    pub fn get(&self, index: u32) -> Option<&T> {
        match &self.slots.get(index as usize)?.held {
            Held::Value(value) => Some(value),
            Held::Free(_) => None,
        }
    }

    /// The value at `index`, to be changed. O(1), one access.
    #[inline]
    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        match &mut self.slots.get_mut(index as usize)?.held {
            Held::Value(value) => Some(value),
            Held::Free(_) => None,
        }
    }

    /// A handle to the value that lies at `index` now. O(1).
    #[must_use]
    pub fn handle(&self, index: u32) -> Option<Handle> {
        let slot = self.slots.get(index as usize)?;
        matches!(slot.held, Held::Value(_)).then_some(Handle { index, generation: slot.generation })
    }

    /// The index of the value that the handle is for, if it is still there. O(1).
    #[inline]
    #[must_use]
    pub fn resolve(&self, handle: Handle) -> Option<u32> {
        (self.handle(handle.index) == Some(handle)).then_some(handle.index)
    }

    /// The value that the handle is for, if it is still there. O(1).
    #[must_use]
    pub fn at(&self, handle: Handle) -> Option<&T> {
        self.get(self.resolve(handle)?)
    }

    /// The value that the handle is for, to be changed. O(1).
    pub fn at_mut(&mut self, handle: Handle) -> Option<&mut T> {
        self.get_mut(self.resolve(handle)?)
    }

    /// All values with their indices, in the order of these. Costs as much as there are slots.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..self.max()).filter_map(|index| Some((index, self.get(index)?)))
    }

    /// All values with their indices, to be changed. Costs as much as there are slots.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.slots.iter_mut().zip(0..).filter_map(|(slot, index)| match &mut slot.held {
            Held::Value(value) => Some((index, value)),
            Held::Free(_) => None,
        })
    }
}

impl<T> Bounded for Slab<T> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn used(&self) -> u32 {
        self.used
    }

    fn max(&self) -> u32 {
        self.slots.len() as u32
    }
}
