//! Lists of at most eight, kept in place.

use super::{CAPABILITIES_MAX, Capability, PathId};

/// An ordered list of capabilities, one for each capability router of a path.
#[derive(Debug, Clone, Copy, Default)]
pub struct CapabilityList {
    items: [Capability; CAPABILITIES_MAX],
    len: u8,
}

/// What one router adds to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Slot {
    /// The neighbour that the request came from; [`PathId::NONE`] from a router at no trust boundary.
    pub path_id: PathId,
    /// The router's pre-capability.
    pub capability: Capability,
}

/// The filled slots of a request, in the order of the path.
#[derive(Debug, Clone, Copy, Default)]
pub struct SlotList {
    items: [Slot; CAPABILITIES_MAX],
    len: u8,
}

macro_rules! list {
    ($list:ident of $item:ident) => {
        impl $list {
            /// An empty list.
            #[must_use]
            pub fn new() -> Self {
                Self::default()
            }

            /// Appends; `None` (and no change) if there are [`CAPABILITIES_MAX`] already.
            #[inline]
            pub fn push(&mut self, item: $item) -> Option<()> {
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
            pub fn as_slice(&self) -> &[$item] {
                self.items.get(..self.len()).unwrap_or_default()
            }

            /// The one at `index`.
            #[inline]
            #[must_use]
            pub fn get(&self, index: usize) -> Option<$item> {
                self.as_slice().get(index).copied()
            }

            /// All of them, in order.
            #[inline]
            pub fn iter(&self) -> impl ExactSizeIterator<Item = $item> + DoubleEndedIterator + '_ {
                self.as_slice().iter().copied()
            }
        }

        impl PartialEq for $list {
            fn eq(&self, other: &Self) -> bool {
                self.as_slice() == other.as_slice()
            }
        }

        impl Eq for $list {}

        /// Takes the first [`CAPABILITIES_MAX`].
        impl FromIterator<$item> for $list {
            fn from_iter<I: IntoIterator<Item = $item>>(items: I) -> Self {
                let mut list = Self::default();
                for item in items.into_iter().take(CAPABILITIES_MAX) {
                    let _ = list.push(item);
                }
                list
            }
        }
    };
}

list!(CapabilityList of Capability);
list!(SlotList of Slot);
