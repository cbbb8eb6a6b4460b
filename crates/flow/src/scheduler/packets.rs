use alloc::{boxed::Box, vec::Vec};

/// The index that names nothing.
pub(super) const NONE: u32 = u32::MAX;

/// One waiting packet: the caller's handle, what it will cost the link, and its neighbours in a queue.
#[derive(Debug)]
struct Packet<T> {
    item: Option<T>,
    len: u32,
    next: u32,
    prev: u32,
}

/// A queue of packets, oldest first: indices into [`Packets`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Queue {
    head: u32,
    tail: u32,
    len: u32,
}

impl Queue {
    pub(super) const EMPTY: Self = Self { head: NONE, tail: NONE, len: 0 };

    /// Packets in the queue.
    pub(super) const fn len(&self) -> u32 {
        self.len
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// The waiting packets of one lane: a fixed number of slots, shared by all queues of the lane.
#[derive(Debug)]
pub(super) struct Packets<T> {
    slots: Box<[Packet<T>]>,
    free: u32,
    used: u32,
}

impl<T> Packets<T> {
    /// Room for `max` packets. Allocates once.
    pub(super) fn new(max: u32) -> Self {
        let slot = |index: u32| Packet {
            item: None,
            len: 0,
            next: if index + 1 == max { NONE } else { index + 1 },
            prev: NONE,
        };
        let slots: Vec<_> = (0..max).map(slot).collect();
        Self { slots: slots.into_boxed_slice(), free: if max == 0 { NONE } else { 0 }, used: 0 }
    }

    pub(super) const fn max(&self) -> u32 {
        self.slots.len() as u32
    }

    pub(super) const fn used(&self) -> u32 {
        self.used
    }

    pub(super) const fn is_full(&self) -> bool {
        self.free == NONE
    }

    /// Appends a packet; gives it back if no slot is free.
    #[inline]
    pub(super) fn push(&mut self, queue: &mut Queue, item: T, len: u32) -> Result<(), T> {
        let index = self.free;
        let Some(slot) = self.slots.get_mut(index as usize) else { return Err(item) };
        self.free = slot.next;
        *slot = Packet { item: Some(item), len, next: NONE, prev: queue.tail };
        match self.slots.get_mut(queue.tail as usize) {
            Some(tail) => tail.next = index,
            None => queue.head = index,
        }
        queue.tail = index;
        queue.len += 1;
        self.used += 1;
        Ok(())
    }

    /// Takes the packet that has waited longest.
    #[inline]
    pub(super) fn pop_oldest(&mut self, queue: &mut Queue) -> Option<(T, u32)> {
        let index = queue.head;
        let slot = self.slots.get_mut(index as usize)?;
        queue.head = slot.next;
        queue.len -= 1;
        let taken = slot.item.take().map(|item| (item, slot.len));
        match self.slots.get_mut(queue.head as usize) {
            Some(head) => head.prev = NONE,
            None => queue.tail = NONE,
        }
        self.release(index);
        taken
    }

    /// Takes the packet that came last.
    pub(super) fn pop_newest(&mut self, queue: &mut Queue) -> Option<(T, u32)> {
        let index = queue.tail;
        let slot = self.slots.get_mut(index as usize)?;
        queue.tail = slot.prev;
        queue.len -= 1;
        let taken = slot.item.take().map(|item| (item, slot.len));
        match self.slots.get_mut(queue.tail as usize) {
            Some(tail) => tail.next = NONE,
            None => queue.head = NONE,
        }
        self.release(index);
        taken
    }

    /// Appends `later` to `first`. No packet is touched but the two at the seam.
    pub(super) fn join(&mut self, first: Queue, later: Queue) -> Queue {
        if first.is_empty() {
            return later;
        }
        if later.is_empty() {
            return first;
        }
        if let Some(tail) = self.slots.get_mut(first.tail as usize) {
            tail.next = later.head;
        }
        if let Some(head) = self.slots.get_mut(later.head as usize) {
            head.prev = first.tail;
        }
        Queue { head: first.head, tail: later.tail, len: first.len + later.len }
    }

    fn release(&mut self, index: u32) {
        self.slots[index as usize].next = self.free;
        self.free = index;
        self.used -= 1;
    }
}

/// A lane that is one queue: control and legacy.
#[derive(Debug)]
pub(super) struct Fifo<T> {
    packets: Packets<T>,
    queue: Queue,
}

impl<T> Fifo<T> {
    pub(super) fn new(max: u32) -> Self {
        Self { packets: Packets::new(max), queue: Queue::EMPTY }
    }

    /// Appends a packet; gives it back if the lane is full.
    pub(super) fn push(&mut self, item: T, len: u32) -> Result<(), T> {
        self.packets.push(&mut self.queue, item, len)
    }

    pub(super) fn pop(&mut self) -> Option<(T, u32)> {
        self.packets.pop_oldest(&mut self.queue)
    }

    pub(super) const fn packets(&self) -> &Packets<T> {
        &self.packets
    }
}
