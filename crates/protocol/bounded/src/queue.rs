use alloc::collections::VecDeque;

use crate::Bounded;

/// Values in the order in which they came.
#[derive(Debug)]
pub struct Queue<T> {
    name: &'static str,
    values: VecDeque<T>,
    max: u32,
}

impl<T> Queue<T> {
    /// Room for `max` values. Allocates once.
    #[must_use]
    pub fn new(name: &'static str, max: u32) -> Self {
        Self { name, values: VecDeque::with_capacity(max as usize), max }
    }

    /// Whether there is no room.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.values.len() as u32 >= self.max
    }

    /// Appends a value. O(1).
    ///
    /// # Errors
    /// The value, if there is no room.
    #[inline]
    pub fn push(&mut self, value: T) -> Result<(), T> {
        if self.is_full() {
            return Err(value);
        }
        self.values.push_back(value);
        Ok(())
    }

    /// Appends a value, and gives the oldest that had to make room for it (the value itself where there is room for none).
    /// O(1).
    pub fn push_over(&mut self, value: T) -> Option<T> {
        let oldest = if self.is_full() { self.pop() } else { None };
        self.push(value).err().or(oldest)
    }

    /// Takes the oldest value. O(1).
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        self.values.pop_front()
    }

    /// The oldest value. O(1).
    #[inline]
    #[must_use]
    pub fn front(&self) -> Option<&T> {
        self.values.front()
    }

    /// All values, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.values.iter()
    }
}

impl<T> Bounded for Queue<T> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn used(&self) -> u32 {
        self.values.len() as u32
    }

    fn max(&self) -> u32 {
        self.max
    }
}
