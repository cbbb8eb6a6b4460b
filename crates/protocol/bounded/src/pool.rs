use alloc::{boxed::Box, vec, vec::Vec};
use core::num::NonZeroU32;

use crate::Bounded;

/// A packet that lies in a [`Pool`]. Neither copied nor made by anyone else, so it has one owner; give it back with
/// [`Pool::free`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a buffer that is not given back stays taken"]
pub struct Buffer(NonZeroU32);

impl Buffer {
    const fn index(&self) -> usize {
        self.0.get() as usize - 1
    }
}

/// A fixed number of buffers for packets that wait.
#[derive(Debug)]
pub struct Pool {
    name: &'static str,
    bytes: Box<[u8]>,
    lens: Box<[u32]>,
    free: Vec<NonZeroU32>,
    packet_bytes_max: usize,
}

impl Pool {
    /// `max` buffers for packets of up to `packet_bytes_max` bytes. Allocates once.
    #[must_use]
    pub fn new(name: &'static str, max: u32, packet_bytes_max: usize) -> Self {
        Self {
            name,
            bytes: vec![0; packet_bytes_max * max as usize].into_boxed_slice(),
            lens: vec![0; max as usize].into_boxed_slice(),
            free: (1..=max).rev().filter_map(NonZeroU32::new).collect(),
            packet_bytes_max,
        }
    }

    /// Copies a packet into a free buffer; `None` if there is none, or the packet is too long. O(bytes).
    pub fn store(&mut self, packet: &[u8]) -> Option<Buffer> {
        self.store_parts(&[packet])
    }

    /// Copies the parts of a packet, one after the other, into a free buffer; `None` if there is none, or the packet is too
    /// long. O(bytes).
    pub fn store_parts(&mut self, parts: &[&[u8]]) -> Option<Buffer> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if len > self.packet_bytes_max {
            return None;
        }
        let buffer = Buffer(self.free.pop()?);
        self.lens[buffer.index()] = len as u32;
        let mut rest = self.bytes_mut(&buffer);
        for part in parts {
            let (to, behind) = rest.split_at_mut(part.len());
            to.copy_from_slice(part);
            rest = behind;
        }
        Some(buffer)
    }

    /// The packet's bytes. O(1).
    #[must_use]
    pub fn bytes(&self, buffer: &Buffer) -> &[u8] {
        let start = buffer.index() * self.packet_bytes_max;
        &self.bytes[start..start + self.lens[buffer.index()] as usize]
    }

    /// The packet's bytes, to be changed. O(1).
    pub fn bytes_mut(&mut self, buffer: &Buffer) -> &mut [u8] {
        let start = buffer.index() * self.packet_bytes_max;
        &mut self.bytes[start..start + self.lens[buffer.index()] as usize]
    }

    /// Gives a buffer back. O(1).
    pub fn free(&mut self, buffer: Buffer) {
        // Never more buffers than the list was made with, unless one comes from another pool.
        if self.free.len() < self.lens.len() {
            self.free.push(buffer.0);
        }
    }

    /// The longest packet that a buffer holds, in bytes.
    #[must_use]
    pub const fn packet_bytes_max(&self) -> usize {
        self.packet_bytes_max
    }
}

impl Bounded for Pool {
    fn name(&self) -> &'static str {
        self.name
    }

    fn used(&self) -> u32 {
        self.max() - self.free.len() as u32
    }

    fn max(&self) -> u32 {
        self.lens.len() as u32
    }
}
