use crate::{NONE, Slots};

/// The neighbours of a value in a [`List`] or [`Round`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    pub(crate) next: u32,
    prev: u32,
}

impl Link {
    /// In no list.
    pub const NONE: Self = Self { next: NONE, prev: NONE };
}

/// A value that can be in a list.
pub trait Linked {
    /// Its neighbours.
    fn link(&self) -> &Link;

    /// Its neighbours, to be changed by the list alone.
    fn link_mut(&mut self) -> &mut Link;
}

/// Implements [`Linked`] by a value's field `link`: `linked!(Peer)`, or `linked!(Peer<T>)`.
#[macro_export]
macro_rules! linked {
    ($value:ident $(<$parameter:ident>)?) => {
        impl $(<$parameter>)? $crate::Linked for $value $(<$parameter>)? {
            #[inline]
            fn link(&self) -> &$crate::Link {
                &self.link
            }

            #[inline]
            fn link_mut(&mut self) -> &mut $crate::Link {
                &mut self.link
            }
        }
    };
}

impl Linked for Link {
    #[inline]
    fn link(&self) -> &Link {
        self
    }

    #[inline]
    fn link_mut(&mut self) -> &mut Link {
        self
    }
}

#[inline]
fn next_of<S: Slots<Value: Linked> + ?Sized>(slots: &S, index: u32) -> u32 {
    slots.slot(index).map_or(NONE, |value| value.link().next)
}

#[inline]
fn prev_of<S: Slots<Value: Linked> + ?Sized>(slots: &S, index: u32) -> u32 {
    slots.slot(index).map_or(NONE, |value| value.link().prev)
}

/// Puts `next` behind `prev`.
#[inline]
fn join<S: Slots<Value: Linked> + ?Sized>(slots: &mut S, prev: u32, next: u32) {
    if let Some(value) = slots.slot_mut(prev) {
        value.link_mut().next = next;
    }
    if let Some(value) = slots.slot_mut(next) {
        value.link_mut().prev = prev;
    }
}

/// A list of values, oldest first, linked through the values themselves.
///
/// All that it does is O(1). It touches no value but those named in each method: what links point to at the two ends of a
/// list is stale, and nobody goes there, so that taking a value off an end need not touch its neighbour. The caller keeps each
/// value in one list at a time, and always gives the same slots.
#[derive(Debug, Clone, Copy)]
pub struct List {
    head: u32,
    tail: u32,
    len: u32,
}

impl List {
    /// Nothing.
    pub const EMPTY: Self = Self { head: NONE, tail: NONE, len: 0 };

    /// How many values are in the list.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Whether the list has no value.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The oldest value.
    #[inline]
    #[must_use]
    pub const fn front(&self) -> Option<u32> {
        if self.is_empty() { None } else { Some(self.head) }
    }

    /// The newest value.
    #[inline]
    #[must_use]
    pub const fn back(&self) -> Option<u32> {
        if self.is_empty() { None } else { Some(self.tail) }
    }

    /// Appends a value that is in no list. Touches it and the newest.
    #[inline]
    pub fn push_back<S: Slots<Value: Linked> + ?Sized>(&mut self, slots: &mut S, index: u32) {
        if self.is_empty() {
            self.head = index;
        } else {
            join(slots, self.tail, index);
        }
        self.tail = index;
        self.len += 1;
    }

    /// Takes the oldest value off. Touches nothing else.
    #[inline]
    pub fn pop_front<S: Slots<Value: Linked> + ?Sized>(&mut self, slots: &S) -> Option<u32> {
        let index = self.front()?;
        self.head = next_of(slots, index);
        self.shrink();
        Some(index)
    }

    /// Takes the newest value off. Touches nothing else.
    #[inline]
    pub fn pop_back<S: Slots<Value: Linked> + ?Sized>(&mut self, slots: &S) -> Option<u32> {
        let index = self.back()?;
        self.tail = prev_of(slots, index);
        self.shrink();
        Some(index)
    }

    /// Takes a value of this list off. Touches it and its neighbours.
    #[inline]
    pub fn remove<S: Slots<Value: Linked> + ?Sized>(&mut self, slots: &mut S, index: u32) {
        let (prev, next) = (prev_of(slots, index), next_of(slots, index));
        if self.head == index {
            self.head = next;
        } else if self.tail == index {
            self.tail = prev;
        } else {
            join(slots, prev, next);
        }
        self.shrink();
    }

    /// Puts all of `other` behind this list. Touches the ends between them.
    pub fn append<S: Slots<Value: Linked> + ?Sized>(&mut self, slots: &mut S, other: Self) {
        if self.is_empty() {
            *self = other;
        } else if !other.is_empty() {
            join(slots, self.tail, other.head);
            self.tail = other.tail;
            self.len += other.len;
        }
    }

    /// All values, oldest first.
    pub fn iter<S: Slots<Value: Linked> + ?Sized>(self, slots: &S) -> impl Iterator<Item = u32> {
        let mut rest = self;
        core::iter::from_fn(move || rest.pop_front(slots))
    }

    #[inline]
    const fn shrink(&mut self) {
        self.len -= 1;
        if self.len == 0 {
            *self = Self::EMPTY;
        }
    }
}

/// Values that take turns, linked in a circle through the values themselves; named by the one whose turn it is.
///
/// All that it does is O(1). The caller keeps each value in one round at a time, and always gives the same slots.
#[derive(Debug, Clone, Copy)]
pub struct Round {
    cursor: u32,
}

impl Round {
    /// Nothing.
    pub const EMPTY: Self = Self { cursor: NONE };

    /// Whether nobody takes part.
    #[inline]
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.cursor == NONE
    }

    /// Whose turn it is.
    #[inline]
    #[must_use]
    pub const fn first(self) -> Option<u32> {
        if self.is_empty() { None } else { Some(self.cursor) }
    }

    /// Whose turn it is, or [`NONE`].
    #[inline]
    #[must_use]
    pub const fn cursor(self) -> u32 {
        self.cursor
    }

    /// Who comes after a value that takes part, or [`NONE`].
    #[inline]
    #[must_use]
    pub fn after<S: Slots<Value: Linked> + ?Sized>(slots: &S, index: u32) -> u32 {
        next_of(slots, index)
    }

    /// Gives the turn to a value that takes part.
    #[inline]
    pub const fn turn_to(&mut self, index: u32) {
        self.cursor = index;
    }

    /// A value that takes part in no round comes last in this one. Touches it, the first and the last.
    #[inline]
    pub fn enter<S: Slots<Value: Linked> + ?Sized>(&mut self, slots: &mut S, index: u32) {
        if self.is_empty() {
            self.cursor = index;
            return join(slots, index, index);
        }
        let last = prev_of(slots, self.cursor);
        join(slots, last, index);
        join(slots, index, self.cursor);
    }

    /// A value of this round leaves it; if it was its turn, it is the next one's. Touches it and its neighbours.
    #[inline]
    pub fn leave<S: Slots<Value: Linked> + ?Sized>(&mut self, slots: &mut S, index: u32) {
        let (prev, next) = (prev_of(slots, index), next_of(slots, index));
        if next == index {
            self.cursor = NONE;
            return;
        }
        join(slots, prev, next);
        if self.cursor == index {
            self.cursor = next;
        }
    }
}
