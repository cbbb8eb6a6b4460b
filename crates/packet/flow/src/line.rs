use core::{
    fmt::Debug,
    sync::atomic::{AtomicU64, Ordering, fence},
};

use crate::{Flow, Key, Key4, Key6};

const RELAXED: Ordering = Ordering::Relaxed;

/// What a table's owner keeps in a line behind its key: 40 bytes.
pub trait Body: Default + Debug {
    /// Forgets all of it.
    fn clear(&self);
}

/// A place in a [`Table`](crate::Table): a key, a generation, and what the table's owner keeps there.
///
/// | bytes of an IPv4, an IPv6 line | contents (little-endian C order) |
/// |---|---|
/// | 0-15, 0-39 | the key |
/// | 16-19, 80-83 | generation (odd: being written) |
/// | 20-23, 84-87 | the owner's number for it |
/// | 24-63, 88-127 | the [`Body`] |
///
/// Only the owner thread calls what takes a new value, but where it says so. Loads and stores are relaxed: the generation
/// orders them for other readers.
pub trait Line: Default + Debug {
    /// The key of this family.
    type Key: Key;
    /// What is kept behind it.
    type Body: Body;

    /// Whether this is the line of `key`.
    fn matches(&self, key: &Self::Key) -> bool;
    /// The stored key; meaningless in a free line.
    fn key(&self) -> Self::Key;
    /// Replaces the key, between [`Self::begin_write`] and [`Self::end_write`].
    fn store_key(&self, key: Option<&Self::Key>);
    /// What is kept.
    fn body(&self) -> &Self::Body;
    #[doc(hidden)]
    fn head(&self) -> &AtomicU64;

    /// Changes with every insertion and every freeing; even while the line may be read.
    #[inline]
    fn generation(&self) -> u32 {
        self.head().load(RELAXED) as u32
    }

    /// The owner's number for the line, such as the index of its pinhole.
    #[inline]
    fn owner(&self) -> u32 {
        (self.head().load(RELAXED) >> 32) as u32
    }

    /// Makes the generation odd: whoever reads the line beside this reads it again.
    fn begin_write(&self) -> u32 {
        let generation = self.generation().wrapping_add(1) | 1;
        self.head().store(u64::from(u32::MAX) << 32 | u64::from(generation), RELAXED);
        fence(Ordering::Release);
        generation
    }

    /// The line may be read again, and is `owner`'s.
    fn end_write(&self, generation: u32, owner: u32) {
        let word = u64::from(owner) << 32 | u64::from(generation.wrapping_add(1));
        self.head().store(word, Ordering::Release);
    }

    /// Frees the line.
    fn clear(&self) {
        let generation = self.begin_write();
        self.store_key(None);
        self.body().clear();
        self.end_write(generation, u32::MAX);
    }
}

/// A line for IPv4: 64 bytes, one cache line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Line4<B = Flow> {
    key: [AtomicU64; 2],
    head: AtomicU64,
    body: B,
}

/// A line for IPv6: 128 bytes.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct Line6<B = Flow> {
    key: [AtomicU64; 5],
    /// Kept for translated addresses.
    kept: [AtomicU64; 5],
    head: AtomicU64,
    body: B,
}

macro_rules! line_family {
    ($line:ident, $key:ident, $key_words:literal) => {
        impl<B: Body> Line for $line<B> {
            type Key = $key;
            type Body = B;

            #[inline]
            fn matches(&self, key: &$key) -> bool {
                // Words are compared without an early exit: one branch.
                self.key.iter().zip(key.0).fold(0, |diff, (word, other)| diff | (word.load(RELAXED) ^ other)) == 0
            }

            fn key(&self) -> $key {
                let mut words = [0; $key_words];
                for (to, word) in words.iter_mut().zip(&self.key) {
                    *to = word.load(RELAXED);
                }
                $key(words)
            }

            fn store_key(&self, key: Option<&$key>) {
                let words = key.map_or([0; $key_words], |key| key.0);
                for (word, value) in self.key.iter().zip(words) {
                    word.store(value, RELAXED);
                }
            }

            #[inline]
            fn body(&self) -> &B {
                &self.body
            }

            #[inline]
            fn head(&self) -> &AtomicU64 {
                &self.head
            }
        }
    };
}

line_family!(Line4, Key4, 2);
line_family!(Line6, Key6, 5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_cache_line_for_ipv4_and_two_for_ipv6() {
        assert_eq!((size_of::<Line4>(), align_of::<Line4>()), (64, 64));
        assert_eq!((size_of::<Line6>(), align_of::<Line6>()), (128, 128));
    }
}
