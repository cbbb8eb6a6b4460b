//! The receive ring shared with the kernel (TPACKET_V2): fixed slots, one packet each, handed over by a status word.

use std::{
    io,
    mem::size_of,
    sync::atomic::{AtomicU32, Ordering},
};

use sluicegate_wire::HEADROOM;

use crate::sys::{self, Mapping};

/// Where the usable buffer of a slot starts: behind the kernel's header and socket address.
const BUFFER_OFFSET: usize = 64;
/// Extra space that the kernel leaves between its header and the packet.
const RESERVED: usize = HEADROOM;
const BLOCK_BYTES: usize = 1 << 17;
const ADDRESS_OFFSET: usize = align16(size_of::<libc::tpacket2_hdr>());

const fn align16(n: usize) -> usize {
    (n + 15) & !15
}

/// Slots that the kernel fills and user space returns, both in order.
#[derive(Debug)]
pub(crate) struct Ring {
    memory: Mapping,
    slot_bytes: usize,
    slots: usize,
    /// Next slot to look at for a packet.
    next: usize,
    /// Slots handed to the caller and not returned yet.
    held: usize,
}

/// A packet in its slot. Valid until [`Ring::release`] returns the slot to the kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    pub(crate) index: usize,
    /// Offset of the packet in [`Ring::buffer`].
    pub(crate) start: usize,
    /// Captured length in bytes.
    pub(crate) len: usize,
    /// Length on the wire; larger than `len` if the slot was too small.
    pub(crate) wire_len: usize,
    /// Nanoseconds since 1970.
    pub(crate) timestamp_ns: u64,
    pub(crate) packet_type: u8,
    pub(crate) checksum_partial: bool,
    /// The frame carried a VLAN tag, which the kernel took off.
    pub(crate) vlan: bool,
}

impl Ring {
    /// Asks the kernel for a ring of at least `slots` slots which hold frames of `frame_bytes`.
    pub(crate) fn open(socket: &socket2::Socket, slots: usize, frame_bytes: usize) -> io::Result<Self> {
        let slot_bytes = (frame_bytes + RESERVED + BUFFER_OFFSET + 32 + HEADROOM).next_power_of_two().max(2048);
        if slot_bytes > BLOCK_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "frames larger than 64 KiB"));
        }
        let blocks = (slots * slot_bytes).div_ceil(BLOCK_BYTES).max(1);
        let slots = blocks * (BLOCK_BYTES / slot_bytes);
        sys::set_option(socket, libc::SOL_PACKET, libc::PACKET_VERSION, &(libc::tpacket_versions::TPACKET_V2 as i32))?;
        sys::set_option(socket, libc::SOL_PACKET, libc::PACKET_RESERVE, &(RESERVED as i32))?;
        let request = libc::tpacket_req {
            tp_block_size: BLOCK_BYTES as u32,
            tp_block_nr: blocks as u32,
            tp_frame_size: slot_bytes as u32,
            tp_frame_nr: slots as u32,
        };
        sys::set_option(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        let memory = Mapping::shared(socket, blocks * BLOCK_BYTES, 0)?;
        Ok(Self { memory, slot_bytes, slots, next: 0, held: 0 })
    }

    fn status(&self, index: usize) -> &AtomicU32 {
        let word = self.memory.pointer(index * self.slot_bytes, size_of::<libc::tpacket2_hdr>());
        // SAFETY: slots are aligned to 2048 bytes and start with the 32-bit status word; the kernel changes it
        // concurrently, which an atomic allows; the reference lives no longer than the mapping.
        unsafe { &*word.as_ptr().cast::<AtomicU32>() }
    }

    /// The next packet that the kernel has handed over, if any. The slot stays ours until it is released.
    pub(crate) fn take(&mut self) -> Option<Slot> {
        if self.held == self.slots {
            return None;
        }
        let index = self.next;
        let status = self.status(index).load(Ordering::Acquire);
        if status & libc::TP_STATUS_USER == 0 {
            return None;
        }
        let header = self.memory.pointer(index * self.slot_bytes, self.slot_bytes).cast::<libc::tpacket2_hdr>();
        // SAFETY: the status word says that the slot is ours, so nobody writes it; it is aligned and large enough.
        let header = unsafe { header.read() };
        let address = self.memory.pointer(index * self.slot_bytes + ADDRESS_OFFSET, size_of::<libc::sockaddr_ll>());
        // SAFETY: the kernel stores a `sockaddr_ll` at this offset of every slot (TPACKET2_HDRLEN), 16-byte aligned.
        let address = unsafe { address.cast::<libc::sockaddr_ll>().read() };
        self.next = (index + 1) % self.slots;
        self.held += 1;
        let start = usize::from(header.tp_mac).checked_sub(BUFFER_OFFSET);
        let len = header.tp_snaplen as usize;
        let fits = start.is_some_and(|start| BUFFER_OFFSET + start + len <= self.slot_bytes);
        Some(Slot {
            index,
            start: start.filter(|_| fits).unwrap_or(0),
            len: if fits { len } else { 0 },
            wire_len: header.tp_len as usize,
            timestamp_ns: u64::from(header.tp_sec) * 1_000_000_000 + u64::from(header.tp_nsec),
            packet_type: address.sll_pkttype,
            checksum_partial: status & libc::TP_STATUS_CSUMNOTREADY != 0,
            vlan: status & libc::TP_STATUS_VLAN_VALID != 0,
        })
    }

    /// The writable buffer of a slot that was taken and not released: headroom, packet, tailroom.
    pub(crate) fn buffer(&mut self, slot: &Slot) -> &mut [u8] {
        let len = self.slot_bytes - BUFFER_OFFSET;
        let bytes = self.memory.pointer(slot.index * self.slot_bytes + BUFFER_OFFSET, len);
        // SAFETY: the slot is ours between `take` and `release`; the exclusive borrow of the ring keeps out other users.
        unsafe { std::slice::from_raw_parts_mut(bytes.as_ptr(), len) }
    }

    /// Returns the `count` oldest taken slots to the kernel.
    pub(crate) fn release(&mut self, count: usize) {
        let count = count.min(self.held);
        let first = (self.next + self.slots - self.held) % self.slots;
        for offset in 0..count {
            let index = (first + offset) % self.slots;
            self.status(index).store(libc::TP_STATUS_KERNEL, Ordering::Release);
        }
        self.held -= count;
    }
}
