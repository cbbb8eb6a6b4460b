//! The frames that both interfaces' sockets share, and the list of those that are in no ring.

use std::io;

use rustix::net::xdp::{XdpUmemReg, XdpUmemRegFlags};
use sluicegate_wire::Frame;

use crate::sys::Mapping;

/// Space that the kernel leaves in front of a received frame (`XDP_PACKET_HEADROOM`).
pub(super) const HEADROOM: usize = 256;

/// Memory cut into frames of equal size.
#[derive(Debug)]
pub(super) struct Umem {
    memory: Mapping,
    frame_bytes: usize,
    /// Addresses of frames that belong to nobody. Its capacity holds them all.
    free: Vec<u64>,
}

impl Umem {
    /// `frames` frames of `frame_bytes` (2048 or 4096).
    pub(super) fn new(frames: usize, frame_bytes: usize) -> io::Result<Self> {
        let memory = Mapping::anonymous(frames * frame_bytes)?;
        let free = (0..frames).rev().map(|index| (index * frame_bytes) as u64).collect();
        Ok(Self { memory, frame_bytes, free })
    }

    /// What the kernel must know of the memory.
    pub(super) fn registration(&self) -> XdpUmemReg {
        XdpUmemReg {
            addr: self.memory.pointer(0, self.memory.len()).as_ptr() as u64,
            len: self.memory.len() as u64,
            chunk_size: self.frame_bytes as u32,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        }
    }

    /// Takes a frame that belongs to nobody.
    pub(super) fn take(&mut self) -> Option<u64> {
        self.free.pop()
    }

    /// Gives a frame back, by any address inside it.
    pub(super) fn give(&mut self, address: u64) {
        let base = self.base(address);
        let inside = base.checked_add(self.frame_bytes as u64).is_some_and(|end| end <= self.memory.len() as u64);
        if inside && self.free.len() < self.free.capacity() {
            self.free.push(base);
        }
    }

    /// The first address of the frame around `address`.
    pub(super) fn base(&self, address: u64) -> u64 {
        address & !(self.frame_bytes as u64 - 1)
    }

    /// The packet of `len` bytes at `address`, inside its frame. `None` if the kernel named an impossible place.
    pub(super) fn frame(&mut self, address: u64, len: usize) -> Option<Frame<'_>> {
        let base = usize::try_from(self.base(address)).ok()?;
        if base.checked_add(self.frame_bytes)? > self.memory.len() {
            return None;
        }
        let bytes = self.memory.pointer(base, self.frame_bytes);
        // SAFETY: inside the mapping (checked); a frame that was popped from a ring or taken from the free list belongs
        // to user space alone until its address is pushed again; the exclusive borrow keeps out other users.
        let buffer = unsafe { std::slice::from_raw_parts_mut(bytes.as_ptr(), self.frame_bytes) };
        Frame::new(buffer, usize::try_from(address).ok()? - base, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_lent_once_and_come_back_by_any_inner_address() {
        let mut umem = Umem::new(4, 2048).unwrap();
        let taken: Vec<_> = std::iter::from_fn(|| umem.take()).collect();
        assert_eq!(taken, [0, 2048, 4096, 6144]);
        umem.give(4096 + 300);
        assert_eq!(umem.take(), Some(4096));
        assert_eq!(umem.take(), None);
    }

    #[test]
    fn places_outside_the_memory_or_across_frames_are_no_packets() {
        let mut umem = Umem::new(2, 2048).unwrap();
        assert!(umem.frame(2048 + 256, 1514).is_some());
        assert!(umem.frame(2048 + 1000, 1514).is_none());
        assert!(umem.frame(4096, 1).is_none());
        assert!(umem.frame(u64::MAX, 1).is_none());
        umem.give(u64::MAX);
        umem.give(4096);
        assert_eq!(std::iter::from_fn(|| umem.take()).count(), 2);
    }
}
