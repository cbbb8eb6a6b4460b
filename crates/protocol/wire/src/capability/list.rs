//! Lists of at most eight, kept in place.

use super::{CAPABILITIES_MAX, Capability, PathId};

/// An ordered list, one item for each capability router of a path.
#[derive(Debug, Clone, Copy, Default)]
pub struct PathList<T> {
    items: [T; CAPABILITIES_MAX],
    len: u8,
}

/// The capabilities of a path.
pub type CapabilityList = PathList<Capability>;

/// The filled slots of a request, in the order of the path.
pub type SlotList = PathList<Slot>;

/// What one router adds to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Slot {
    /// The neighbour that the request came from; [`PathId::NONE`] from a router at no trust boundary.
    pub path_id: PathId,
    /// The router's pre-capability.
    pub capability: Capability,
}

impl<T: Copy + Default> PathList<T> {
    /// An empty list.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends; `None` (and no change) if there are [`CAPABILITIES_MAX`] already.
    #[inline]
    pub fn push(&mut self, item: T) -> Option<()> {
        *self.items.get_mut(usize::from(self.len))? = item;
        self.len += 1;
        Some(())
    }

    /// How many there are.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are none.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All of them.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> &[T] {
        self.items.get(..self.len()).unwrap_or_default()
    }

    /// The one at `index`.
    #[inline]
    #[must_use]
    pub fn get(&self, index: usize) -> Option<T> {
        self.as_slice().get(index).copied()
    }

    /// All of them, in order.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = T> + DoubleEndedIterator + '_ {
        self.as_slice().iter().copied()
    }
}

impl<T: Copy + Default + PartialEq> PartialEq for PathList<T> {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl<T: Copy + Default + Eq> Eq for PathList<T> {}

/// Takes the first [`CAPABILITIES_MAX`].
impl<T: Copy + Default> FromIterator<T> for PathList<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut list = Self::default();
        for item in items.into_iter().take(CAPABILITIES_MAX) {
            let _ = list.push(item);
        }
        list
    }
}
