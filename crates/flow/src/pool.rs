use alloc::{boxed::Box, vec, vec::Vec};
use core::num::NonZeroU32;

use sluicegate_wire::{Frame, HEADROOM};

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

/// Where the packet lies in its slot.
#[derive(Debug, Clone, Copy, Default)]
struct Bounds {
    start: u32,
    len: u32,
}

/// A fixed number of buffers for packets that wait, each with [`HEADROOM`] in front of the packet.
#[derive(Debug)]
pub struct Pool {
    bytes: Box<[u8]>,
    bounds: Box<[Bounds]>,
    free: Vec<NonZeroU32>,
    slot_bytes: usize,
}

impl Pool {
    /// `slots` buffers for packets of up to `packet_bytes_max` bytes. Allocates once.
    #[must_use]
    pub fn new(slots: u32, packet_bytes_max: usize) -> Self {
        let slot_bytes = HEADROOM + packet_bytes_max;
        Self {
            bytes: vec![0; slot_bytes * slots as usize].into_boxed_slice(),
            bounds: vec![Bounds::default(); slots as usize].into_boxed_slice(),
            free: (1..=slots).rev().filter_map(NonZeroU32::new).collect(),
            slot_bytes,
        }
    }

    /// Copies a packet into a free slot; `None` if there is none, or the packet is too long.
    pub fn store(&mut self, packet: &[u8]) -> Option<Slot> {
        if packet.len() > self.slot_bytes - HEADROOM {
            return None;
        }
        let slot = Slot(self.free.pop()?);
        let start = slot.index() * self.slot_bytes + HEADROOM;
        self.bytes[start..start + packet.len()].copy_from_slice(packet);
        self.bounds[slot.index()] = Bounds { start: HEADROOM as u32, len: packet.len() as u32 };
        Some(slot)
    }

    /// The packet's bytes.
    #[must_use]
    pub fn bytes(&self, slot: &Slot) -> &[u8] {
        let Bounds { start, len } = self.bounds[slot.index()];
        let start = slot.index() * self.slot_bytes + start as usize;
        &self.bytes[start..start + len as usize]
    }

    /// Runs `f` on the packet as a frame and keeps what it did to the packet's bounds. `None` for a slot of another
    /// pool.
    pub fn with<R>(&mut self, slot: &Slot, f: impl FnOnce(&mut Frame<'_>) -> R) -> Option<R> {
        let bounds = self.bounds.get_mut(slot.index())?;
        let first = slot.index() * self.slot_bytes;
        let buffer = self.bytes.get_mut(first..first + self.slot_bytes)?;
        let mut frame = Frame::new(buffer, bounds.start as usize, bounds.len as usize)?;
        let result = f(&mut frame);
        *bounds = Bounds { start: frame.start() as u32, len: frame.len() as u32 };
        Some(result)
    }

    /// Gives a slot back.
    pub fn free(&mut self, slot: Slot) {
        // Never more slots than the list was made with, unless one comes from another pool.
        if self.free.len() < self.bounds.len() {
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
        self.bounds.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn a_full_pool_takes_nothing_and_a_freed_slot_is_used_again() {
        let mut pool = Pool::new(3, 100);
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

    #[test]
    fn a_waiting_packet_keeps_its_headroom_and_its_changes() {
        let mut pool = Pool::new(1, 10);
        assert_eq!(pool.store(&[0; 11]), None);
        let slot = pool.store(b"payload").unwrap();
        pool.with(&slot, |frame| frame.push_front(HEADROOM).unwrap()[..2].copy_from_slice(b"h:")).unwrap();
        assert_eq!(pool.bytes(&slot).len(), HEADROOM + 7);
        assert!(pool.bytes(&slot).starts_with(b"h:"));
    }
}
