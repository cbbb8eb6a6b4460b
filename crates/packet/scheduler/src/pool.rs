use alloc::{boxed::Box, vec, vec::Vec};
use core::num::NonZeroU32;

/// A packet that lies in a [`Pool`]. Neither copied nor made by anyone else, so a slot has one owner; give it back
/// with [`Pool::free`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a slot that is not given back stays taken"]
pub struct Slot(NonZeroU32);

impl Slot {
    const fn index(&self) -> usize {
        self.0.get() as usize - 1
    }
}

/// A fixed number of buffers for packets that wait.
#[derive(Debug)]
pub struct Pool {
    bytes: Box<[u8]>,
    lens: Box<[u32]>,
    free: Vec<NonZeroU32>,
    packet_bytes_max: usize,
}

impl Pool {
    /// `slots` buffers for packets of up to `packet_bytes_max` bytes. Allocates once.
    #[must_use]
    pub fn new(slots: u32, packet_bytes_max: usize) -> Self {
        Self {
            bytes: vec![0; packet_bytes_max * slots as usize].into_boxed_slice(),
            lens: vec![0; slots as usize].into_boxed_slice(),
            free: (1..=slots).rev().filter_map(NonZeroU32::new).collect(),
            packet_bytes_max,
        }
    }

    /// Copies a packet into a free slot; `None` if there is none, or the packet is too long.
    pub fn store(&mut self, packet: &[u8]) -> Option<Slot> {
        if packet.len() > self.packet_bytes_max {
            return None;
        }
        let slot = Slot(self.free.pop()?);
        let start = slot.index() * self.packet_bytes_max;
        self.bytes[start..start + packet.len()].copy_from_slice(packet);
        self.lens[slot.index()] = packet.len() as u32;
        Some(slot)
    }

    /// The packet's bytes.
    #[must_use]
    pub fn bytes(&self, slot: &Slot) -> &[u8] {
        let start = slot.index() * self.packet_bytes_max;
        &self.bytes[start..start + self.lens[slot.index()] as usize]
    }

    /// Gives a slot back.
    pub fn free(&mut self, slot: Slot) {
        // Never more slots than the list was made with, unless one comes from another pool.
        if self.free.len() < self.lens.len() {
            self.free.push(slot.0);
        }
    }

    /// Slots in use.
    #[must_use]
    pub fn used(&self) -> u32 {
        self.max() - self.free.len() as u32
    }

    /// All slots.
    #[must_use]
    pub const fn max(&self) -> u32 {
        self.lens.len() as u32
    }

    /// The longest packet that a slot holds, in bytes.
    #[must_use]
    pub const fn packet_bytes_max(&self) -> usize {
        self.packet_bytes_max
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn a_full_pool_takes_nothing_and_a_freed_slot_is_used_again() {
        let mut pool = Pool::new(3, 100);
        assert_eq!(pool.store(&[0; 101]), None);
        let mut slots: Vec<Slot> = (0..3).filter_map(|n| pool.store(&[n; 100])).collect();
        assert_eq!(slots.len(), 3);
        assert_eq!(pool.store(b"one more"), None);
        let free = pool.free.capacity();
        let slot = slots.remove(1);
        assert_eq!(pool.bytes(&slot), [1; 100]);
        pool.free(slot);
        assert_eq!(pool.used(), 2);
        let slot = pool.store(b"again").unwrap();
        assert_eq!((pool.bytes(&slot), pool.used(), pool.max()), (&b"again"[..], 3, 3));
        assert_eq!(pool.free.capacity(), free, "the pool does not grow");
        assert_eq!(pool.bytes(&slots[0]), [0; 100], "neighbours are untouched");
        assert_eq!(pool.bytes(&slots[1]), [2; 100]);
    }
}
