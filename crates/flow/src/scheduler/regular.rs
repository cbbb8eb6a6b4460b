use alloc::{boxed::Box, vec, vec::Vec};

use super::{
    fold,
    packets::{NONE, Packets, Queue},
};

/// The queue that packets share when every other is taken.
const SHARED: u32 = 0;

/// What happened to a packet that came to a lane.
#[derive(Debug)]
pub(super) enum Pushed<T> {
    Queued,
    /// The packet waits; this one, of the longest queue, had to make room.
    Displaced(T),
    Refused(T),
}

#[derive(Debug, Clone, Copy)]
struct Flow {
    key: u128,
    packets: Queue,
    deficit: i32,
    weight: u32,
    /// Neighbours in the ring of queues that have packets.
    next: u32,
    prev: u32,
    /// Next queue with the same bucket of the hash, or next free queue.
    chain: u32,
    bucket: u32,
}

/// The regular lane: deficit round robin over queues that the caller names (Shreedhar and Varghese, SIGCOMM 1995).
///
/// A queue exists while it has packets. Each turn gives it `quantum * weight` bytes; what its last packet took too much
/// is missing in its next turn, so every step is O(1). A full lane drops from the queue that is longest for its weight;
/// which one that is, is remembered from the last packet in or out of each queue, so it may be out of date by one
/// round, never by more.
#[derive(Debug)]
pub(super) struct Regular<T> {
    packets: Packets<T>,
    flows: Box<[Flow]>,
    buckets: Box<[u32]>,
    bucket_mask: u32,
    secret: [u64; 2],
    quantum: u32,
    free: u32,
    used: u32,
    /// The queue whose turn it is.
    cursor: u32,
    longest: u32,
}

impl<T> Regular<T> {
    /// Room for `packets_max` packets in at most `queues_max` queues, one of them shared. Allocates once.
    pub(super) fn new(packets_max: u32, queues_max: u32, quantum: u32, secret: [u64; 2]) -> Self {
        let queues_max = queues_max.clamp(1, packets_max.max(1)) + 1;
        let buckets = queues_max.next_power_of_two();
        let flow = |index: u32| Flow {
            key: 0,
            packets: Queue::EMPTY,
            deficit: 0,
            weight: 1,
            next: NONE,
            prev: NONE,
            chain: if index + 1 == queues_max { NONE } else { index + 1 },
            bucket: NONE,
        };
        Self {
            packets: Packets::new(packets_max),
            flows: (0..queues_max).map(flow).collect::<Vec<_>>().into_boxed_slice(),
            buckets: vec![NONE; buckets as usize].into_boxed_slice(),
            bucket_mask: buckets - 1,
            secret,
            quantum,
            free: if queues_max > 1 { 1 } else { NONE },
            used: 0,
            cursor: NONE,
            longest: NONE,
        }
    }

    pub(super) const fn packets(&self) -> &Packets<T> {
        &self.packets
    }

    /// Queues that have packets.
    pub(super) const fn queues_used(&self) -> u32 {
        self.used
    }

    pub(super) const fn queues_max(&self) -> u32 {
        self.flows.len() as u32
    }

    /// Appends a packet to the queue `key`.
    #[inline]
    pub(super) fn push(&mut self, key: u128, weight: u16, item: T, len: u32) -> Pushed<T> {
        let bucket = self.bucket(key);
        let mut found = self.find(bucket, key);
        let mut displaced = None;
        if self.packets.is_full() {
            match self.displace(found.unwrap_or(NONE)) {
                Some(item) => displaced = Some(item),
                None => return Pushed::Refused(item),
            }
            found = self.find(bucket, key);
        }
        let index = found.unwrap_or_else(|| self.create(bucket, key, weight));
        let flow = &mut self.flows[index as usize];
        if let Err(item) = self.packets.push(&mut flow.packets, item, len) {
            return Pushed::Refused(item);
        }
        if flow.packets.len() == 1 {
            self.enter(index);
        }
        self.note_length(index);
        displaced.map_or(Pushed::Queued, Pushed::Displaced)
    }

    /// Takes the packet whose turn it is.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<(T, u32)> {
        // A quantum is no smaller than a packet, so a queue that was passed once is ready the next time.
        while self.flows.get(self.cursor as usize)?.deficit <= 0 {
            let flow = &mut self.flows[self.cursor as usize];
            flow.deficit = flow.deficit.saturating_add(turn(self.quantum, flow.weight));
            self.cursor = flow.next;
        }
        let index = self.cursor;
        let flow = &mut self.flows[index as usize];
        let (item, len) = self.packets.pop_oldest(&mut flow.packets)?;
        flow.deficit = flow.deficit.saturating_sub_unsigned(len);
        if flow.packets.is_empty() {
            self.leave(index);
        } else {
            self.note_length(index);
        }
        Some((item, len))
    }

    /// Drops the newest packet of the longest queue, unless that is the queue `own` of the packet that wants room.
    fn displace(&mut self, own: u32) -> Option<T> {
        let longest = if self.longest == NONE { self.cursor } else { self.longest };
        let own_length = self.flows.get(own as usize).map_or(0.0, |flow| length(flow, 1));
        if longest == own || length(self.flows.get(longest as usize)?, 0) <= own_length {
            return None;
        }
        let flow = &mut self.flows[longest as usize];
        let (item, _) = self.packets.pop_newest(&mut flow.packets)?;
        if flow.packets.is_empty() {
            self.leave(longest);
        }
        Some(item)
    }

    fn note_length(&mut self, index: u32) {
        if self.longest == index {
            return;
        }
        let longest = self.flows.get(self.longest as usize).map_or(0.0, |flow| length(flow, 0));
        if length(&self.flows[index as usize], 0) > longest {
            self.longest = index;
        }
    }

    #[inline]
    fn bucket(&self, key: u128) -> u32 {
        let low = fold(key as u64 ^ self.secret[0], self.secret[1]);
        fold((key >> 64) as u64 ^ low, self.secret[1]) as u32 & self.bucket_mask
    }

    #[inline]
    fn find(&self, bucket: u32, key: u128) -> Option<u32> {
        let mut index = self.buckets[bucket as usize];
        while let Some(flow) = self.flows.get(index as usize) {
            if flow.key == key {
                return Some(index);
            }
            index = flow.chain;
        }
        None
    }

    /// A queue for `key`: an own one, or the shared one if all are taken.
    fn create(&mut self, bucket: u32, key: u128, weight: u16) -> u32 {
        let index = self.free;
        let Some(flow) = self.flows.get_mut(index as usize) else { return SHARED };
        self.free = flow.chain;
        flow.chain = self.buckets[bucket as usize];
        self.buckets[bucket as usize] = index;
        (flow.key, flow.bucket, flow.weight) = (key, bucket, u32::from(weight.max(1)));
        index
    }

    /// A queue that got its first packet goes to the end of the round, with one turn's bytes.
    fn enter(&mut self, index: u32) {
        let first = self.cursor;
        let last = self.flows.get(first as usize).map_or(index, |flow| flow.prev);
        let next = if first == NONE { index } else { first };
        let flow = &mut self.flows[index as usize];
        (flow.next, flow.prev, flow.deficit) = (next, last, turn(self.quantum, flow.weight));
        self.flows[last as usize].next = index;
        self.flows[next as usize].prev = index;
        if first == NONE {
            self.cursor = index;
        }
        self.used += 1;
    }

    /// A queue without packets ends.
    fn leave(&mut self, index: u32) {
        let Flow { next, prev, bucket, chain, .. } = self.flows[index as usize];
        if next == index {
            self.cursor = NONE;
        } else {
            self.flows[prev as usize].next = next;
            self.flows[next as usize].prev = prev;
            if self.cursor == index {
                self.cursor = next;
            }
        }
        if self.longest == index {
            self.longest = NONE;
        }
        self.used -= 1;
        if index == SHARED {
            return;
        }
        let head = &mut self.buckets[bucket as usize];
        if *head == index {
            *head = chain;
        } else {
            let mut before = *head;
            while self.flows[before as usize].chain != index {
                before = self.flows[before as usize].chain;
            }
            self.flows[before as usize].chain = chain;
        }
        self.flows[index as usize].chain = self.free;
        self.free = index;
    }
}

/// Packets of a queue for its weight, with `more` to come.
fn length(flow: &Flow, more: u32) -> f32 {
    (flow.packets.len() + more) as f32 / flow.weight as f32
}

/// Bytes of one turn.
fn turn(quantum: u32, weight: u32) -> i32 {
    i32::try_from(u64::from(quantum) * u64::from(weight)).unwrap_or(i32::MAX)
}
