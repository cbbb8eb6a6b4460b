use alloc::{boxed::Box, vec::Vec};

/// The index that names nothing.
pub(super) const NONE: u32 = u32::MAX;

/// What joining two queues may compare.
const JOIN_STEPS_MAX: u32 = 64;

/// One waiting packet: the caller's handle, what it will cost the link, and its neighbours in a queue.
#[derive(Debug)]
struct Packet<T> {
    item: Option<T>,
    len: u32,
    /// When it came, counted in packets of the lane.
    order: u32,
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
    order: u32,
}

impl<T> Packets<T> {
    /// Room for `max` packets. Allocates once.
    pub(super) fn new(max: u32) -> Self {
        let slot = |index: u32| Packet {
            item: None,
            len: 0,
            order: 0,
            next: if index + 1 == max { NONE } else { index + 1 },
            prev: NONE,
        };
        let slots: Vec<_> = (0..max).map(slot).collect();
        Self { slots: slots.into_boxed_slice(), free: if max == 0 { NONE } else { 0 }, used: 0, order: 0 }
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
        self.order = self.order.wrapping_add(1);
        *slot = Packet { item: Some(item), len, order: self.order, next: NONE, prev: queue.tail };
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
        // The new head keeps its `prev`, so that it need not be touched; nobody follows it beyond the queue's length.
        if queue.len == 0 {
            *queue = Queue::EMPTY;
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
        if queue.len == 0 {
            *queue = Queue::EMPTY;
        }
        self.release(index);
        taken
    }

    /// Both queues in one, by waiting time: from the newest on, packet for packet, as far as [`JOIN_STEPS_MAX`]
    /// comparisons reach; what is left then goes in front, `first` before `second`.
    pub(super) fn join(&mut self, mut first: Queue, mut second: Queue) -> Queue {
        let mut joined = Queue::EMPTY;
        for _ in 0..JOIN_STEPS_MAX {
            if first.is_empty() || second.is_empty() {
                break;
            }
            let age = self.slots[first.tail as usize].order.wrapping_sub(self.slots[second.tail as usize].order);
            let newer = if age as i32 > 0 { &mut first } else { &mut second };
            let index = newer.tail;
            newer.tail = self.slots[index as usize].prev;
            newer.len -= 1;
            let single = Queue { head: index, tail: index, len: 1 };
            joined = self.concatenate(single, joined);
        }
        let front = self.concatenate(first, second);
        self.concatenate(front, joined)
    }

    fn concatenate(&mut self, first: Queue, second: Queue) -> Queue {
        if first.is_empty() {
            return second;
        }
        if second.is_empty() {
            return first;
        }
        self.slots[first.tail as usize].next = second.head;
        self.slots[second.head as usize].prev = first.tail;
        Queue { head: first.head, tail: second.tail, len: first.len + second.len }
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

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    fn drained(packets: &mut Packets<u32>, mut queue: Queue) -> Vec<u32> {
        std::iter::from_fn(|| packets.pop_oldest(&mut queue)).map(|(item, _)| item).collect()
    }

    #[test]
    fn joined_queues_are_in_the_order_of_their_arrival() {
        for pattern in 0_u32..256 {
            let mut packets = Packets::new(8);
            let mut queues = [Queue::EMPTY; 2];
            for n in 0..8 {
                packets.push(&mut queues[(pattern >> n & 1) as usize], n, 1).unwrap();
            }
            let joined = packets.join(queues[0], queues[1]);
            assert_eq!(drained(&mut packets, joined), [0, 1, 2, 3, 4, 5, 6, 7], "{pattern:08b}");
        }
    }

    #[test]
    fn joining_long_queues_compares_a_bounded_number_and_loses_nothing() {
        let mut packets = Packets::new(1_000);
        let mut queues = [Queue::EMPTY; 2];
        for n in 0..1_000 {
            packets.push(&mut queues[n as usize % 2], n, 1).unwrap();
        }
        let joined = packets.join(queues[0], queues[1]);
        let order = drained(&mut packets, joined);
        assert!(order[936..].is_sorted(), "the newest are in order");
        let mut sorted = order;
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..1_000));
        assert_eq!(packets.used(), 0);
    }

    #[test]
    fn the_newest_packets_can_be_taken_after_the_oldest() {
        let mut packets = Packets::new(4);
        let mut queue = Queue::EMPTY;
        for n in 0..4 {
            packets.push(&mut queue, n, 10).unwrap();
        }
        assert_eq!(packets.push(&mut queue, 4, 10), Err(4));
        assert_eq!(packets.pop_oldest(&mut queue), Some((0, 10)));
        let newest: Vec<_> = (0..4).map(|_| packets.pop_newest(&mut queue).map(|(item, _)| item)).collect();
        assert_eq!(newest, [Some(3), Some(2), Some(1), None]);
        packets.push(&mut queue, 5, 10).unwrap();
        assert_eq!(drained(&mut packets, queue), [5]);
    }
}
