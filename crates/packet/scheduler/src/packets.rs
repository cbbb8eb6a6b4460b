use sluicegate_bounded::{Bounded as _, Gauge, Link, List, Slab, linked};

/// What joining two queues may compare.
const JOIN_STEPS_MAX: u32 = 64;

/// One waiting packet: the caller's handle, what it will cost the link, and its neighbours in a queue.
#[derive(Debug)]
struct Packet<T> {
    item: T,
    len: u32,
    /// When it came, counted in packets of the lane.
    order: u32,
    link: Link,
}

linked!(Packet<T>);

/// The waiting packets of one lane: a fixed number of slots, shared by all queues of the lane.
#[derive(Debug)]
pub(super) struct Packets<T> {
    slots: Slab<Packet<T>>,
    order: u32,
}

impl<T> Packets<T> {
    /// Room for `max` packets. Allocates once.
    pub(super) fn new(name: &'static str, max: u32) -> Self {
        Self { slots: Slab::new(name, max), order: 0 }
    }

    pub(super) fn max(&self) -> u32 {
        self.slots.max()
    }

    pub(super) fn gauge(&self) -> Gauge {
        self.slots.gauge()
    }

    #[inline]
    pub(super) fn used(&self) -> u32 {
        self.slots.used()
    }

    pub(super) const fn is_full(&self) -> bool {
        self.slots.is_full()
    }

    /// Appends a packet; gives it back if no slot is free.
    #[inline]
    pub(super) fn push(&mut self, queue: &mut List, item: T, len: u32) -> Result<(), T> {
        let order = self.order.wrapping_add(1);
        let packet = Packet { item, len, order, link: Link::NONE };
        let index = self.slots.insert(packet).map_err(|packet| packet.item)?.index();
        self.order = order;
        queue.push_back(&mut self.slots, index);
        Ok(())
    }

    /// Takes the packet that has waited longest.
    #[inline]
    pub(super) fn pop_oldest(&mut self, queue: &mut List) -> Option<(T, u32)> {
        let index = queue.pop_front(&self.slots)?;
        self.release(index)
    }

    /// Takes the packet that came last.
    pub(super) fn pop_newest(&mut self, queue: &mut List) -> Option<(T, u32)> {
        let index = queue.pop_back(&self.slots)?;
        self.release(index)
    }

    /// Both queues in one, by waiting time: from the newest on, packet for packet, as far as [`JOIN_STEPS_MAX`]
    /// comparisons reach; what is left then goes in front, `first` before `second`.
    pub(super) fn join(&mut self, mut first: List, mut second: List) -> List {
        let slots = &mut self.slots;
        let order = |slots: &Slab<Packet<T>>, index| slots.get(index).map_or(0, |packet| packet.order);
        let mut joined = List::EMPTY;
        for _ in 0..JOIN_STEPS_MAX {
            let (Some(one), Some(other)) = (first.back(), second.back()) else { break };
            let age = order(slots, one).wrapping_sub(order(slots, other));
            let newer = if age as i32 > 0 { &mut first } else { &mut second };
            let mut single = List::EMPTY;
            if let Some(index) = newer.pop_back(slots) {
                single.push_back(slots, index);
            }
            single.append(slots, joined);
            joined = single;
        }
        first.append(slots, second);
        first.append(slots, joined);
        first
    }

    #[inline]
    fn release(&mut self, index: u32) -> Option<(T, u32)> {
        self.slots.remove(index).map(|packet| (packet.item, packet.len))
    }
}

/// A lane that is one queue: control and legacy.
#[derive(Debug)]
pub(super) struct Fifo<T> {
    packets: Packets<T>,
    queue: List,
}

impl<T> Fifo<T> {
    pub(super) fn new(name: &'static str, max: u32) -> Self {
        Self { packets: Packets::new(name, max), queue: List::EMPTY }
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

    fn drained(packets: &mut Packets<u32>, mut queue: List) -> Vec<u32> {
        std::iter::from_fn(|| packets.pop_oldest(&mut queue)).map(|(item, _)| item).collect()
    }

    #[test]
    fn joined_queues_are_in_the_order_of_their_arrival() {
        for pattern in 0_u32..256 {
            let mut packets = Packets::new("packets", 8);
            let mut queues = [List::EMPTY; 2];
            for n in 0..8 {
                packets.push(&mut queues[(pattern >> n & 1) as usize], n, 1).unwrap();
            }
            let joined = packets.join(queues[0], queues[1]);
            assert_eq!(drained(&mut packets, joined), [0, 1, 2, 3, 4, 5, 6, 7], "{pattern:08b}");
        }
    }

    #[test]
    fn joining_long_queues_compares_a_bounded_number_and_loses_nothing() {
        let mut packets = Packets::new("packets", 1_000);
        let mut queues = [List::EMPTY; 2];
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
        let mut packets = Packets::new("packets", 4);
        let mut queue = List::EMPTY;
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
