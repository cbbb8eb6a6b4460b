//! The four rings of an AF_XDP socket: single producer, single consumer, shared with the kernel.
//!
//! Each ring is an array of descriptors with a producer and a consumer counter that only grow. User space produces into
//! `fill` (empty frames) and `transmit`, and consumes from `receive` and `completion` (sent frames).

use std::{
    io,
    marker::PhantomData,
    sync::atomic::{AtomicU32, Ordering},
};

use rustix::net::xdp::XdpRingOffset;
use socket2::Socket;

use crate::sys::Mapping;

/// A descriptor of a ring: `u64` (a frame address) or `libc::xdp_desc`.
///
/// # Safety
/// Any bit pattern must be a valid value, and the type must be what the kernel stores in the ring.
pub(super) unsafe trait Descriptor: Copy {}

// SAFETY: an integer; the `fill` and `completion` rings hold addresses of 64 bits.
unsafe impl Descriptor for u64 {}
// SAFETY: a `repr(C)` structure of integers; the `receive` and `transmit` rings hold these.
unsafe impl Descriptor for libc::xdp_desc {}

/// What both directions share.
#[derive(Debug)]
struct Ring<T> {
    memory: Mapping,
    /// Where its counters and descriptors lie in the mapping.
    offsets: XdpRingOffset,
    /// Where its flags lie.
    flags: u64,
    mask: u32,
    descriptor: PhantomData<T>,
}

impl<T: Descriptor> Ring<T> {
    fn map(socket: &Socket, page: u64, offsets: XdpRingOffset, size: u32) -> io::Result<Self> {
        let flags = offsets.flags.ok_or(io::ErrorKind::Unsupported)?;
        debug_assert!(size.is_power_of_two());
        let len = offsets.desc as usize + size as usize * size_of::<T>();
        let memory = Mapping::shared(socket, len, page)?;
        let _: [_; 3] = [offsets.producer, offsets.consumer, flags].map(|at| memory.pointer(at as usize, 4));
        Ok(Self { memory, offsets, flags, mask: size - 1, descriptor: PhantomData })
    }

    fn counter(&self, offset: u64) -> &AtomicU32 {
        let word = self.memory.pointer(offset as usize, size_of::<u32>());
        // SAFETY: inside the mapping (checked), 4-byte aligned as the kernel lays rings out, changed by the kernel only
        // atomically; the reference lives no longer than the mapping.
        unsafe { word.cast::<AtomicU32>().as_ref() }
    }

    fn producer(&self) -> &AtomicU32 {
        self.counter(self.offsets.producer)
    }

    fn consumer(&self) -> &AtomicU32 {
        self.counter(self.offsets.consumer)
    }

    fn slot(&self, number: u32) -> *mut T {
        let index = (number & self.mask) as usize;
        self.memory.pointer(self.offsets.desc as usize + index * size_of::<T>(), size_of::<T>()).cast().as_ptr()
    }
}

/// A ring into which user space puts descriptors.
#[derive(Debug)]
pub(super) struct Producer<T> {
    ring: Ring<T>,
    /// Descriptors written, published or not.
    written: u32,
    /// The kernel's counter when it was last read.
    consumed: u32,
}

impl<T: Descriptor> Producer<T> {
    pub(super) fn map(socket: &Socket, page: u64, offsets: XdpRingOffset, size: u32) -> io::Result<Self> {
        Ok(Self { ring: Ring::map(socket, page, offsets, size)?, written: 0, consumed: 0 })
    }

    /// Places left for [`Self::push`].
    pub(super) fn room(&mut self) -> u32 {
        let size = self.ring.mask + 1;
        if self.written.wrapping_sub(self.consumed) == size {
            self.consumed = self.ring.consumer().load(Ordering::Acquire);
        }
        size - self.written.wrapping_sub(self.consumed).min(size)
    }

    /// As [`Self::room`], after looking at the kernel's counter in any case.
    pub(super) fn room_now(&mut self) -> u32 {
        self.consumed = self.ring.consumer().load(Ordering::Acquire);
        self.room()
    }

    /// Writes a descriptor; `false` (and no change) without room. The kernel sees it after [`Self::publish`].
    pub(super) fn push(&mut self, descriptor: T) -> bool {
        if self.room() == 0 {
            return false;
        }
        // SAFETY: the slot lies inside the mapping, and the kernel does not read it before it is published.
        unsafe { self.ring.slot(self.written).write(descriptor) };
        self.written = self.written.wrapping_add(1);
        true
    }

    /// Shows the kernel what was pushed.
    pub(super) fn publish(&mut self) {
        self.ring.producer().store(self.written, Ordering::Release);
    }

    /// Whether the kernel has not taken all descriptors yet.
    pub(super) fn is_pending(&self) -> bool {
        self.ring.consumer().load(Ordering::Acquire) != self.written
    }

    /// Whether the kernel wants a system call before it looks at the ring.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.ring.counter(self.ring.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// A ring from which user space takes descriptors.
#[derive(Debug)]
pub(super) struct Consumer<T> {
    ring: Ring<T>,
    /// Descriptors read, released or not.
    read: u32,
    /// The kernel's counter when it was last read.
    produced: u32,
}

impl<T: Descriptor> Consumer<T> {
    pub(super) fn map(socket: &Socket, page: u64, offsets: XdpRingOffset, size: u32) -> io::Result<Self> {
        Ok(Self { ring: Ring::map(socket, page, offsets, size)?, read: 0, produced: 0 })
    }

    /// The next descriptor, if there is one.
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.read == self.produced {
            self.produced = self.ring.producer().load(Ordering::Acquire);
            if self.read == self.produced {
                return None;
            }
        }
        // SAFETY: the slot lies inside the mapping, and the kernel does not write it before it is released.
        let descriptor = unsafe { self.ring.slot(self.read).read() };
        self.read = self.read.wrapping_add(1);
        Some(descriptor)
    }

    /// Returns the slots of popped descriptors to the kernel.
    pub(super) fn release(&mut self) {
        self.ring.consumer().store(self.read, Ordering::Release);
    }
}
