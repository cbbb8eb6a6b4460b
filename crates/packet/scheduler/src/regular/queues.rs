use alloc::{boxed::Box, vec, vec::Vec};

use super::super::{fold, packets::NONE};

/// One queue of a [`Queues`]: what names it, and its place in the round that it takes part in.
#[derive(Debug, Clone, Copy)]
struct Place {
    key: u128,
    /// Whose round it takes part in.
    owner: u32,
    deficit: i32,
    /// Neighbours in the round.
    next: u32,
    prev: u32,
    /// Next queue with the same bucket of the hash, or next free queue.
    chain: u32,
    bucket: u32,
}

/// Queues that have packets, found by owner and key, and the rounds in which they take turns.
///
/// A round is named by the queue whose turn it is, its cursor; [`NONE`] while it is empty. Each turn gives a queue bytes;
/// what its last packet took too much is missing in its next turn.
#[derive(Debug)]
pub(super) struct Queues<E> {
    places: Box<[Place]>,
    entries: Box<[E]>,
    buckets: Box<[u32]>,
    bucket_mask: u32,
    secret: [u64; 2],
    free: u32,
    used: u32,
}

impl<E: Copy> Queues<E> {
    /// Room for `max` queues. Allocates once.
    pub(super) fn new(max: u32, empty: E, secret: [u64; 2]) -> Self {
        let buckets = max.max(1).next_power_of_two();
        let place = |index: u32| Place {
            key: 0,
            owner: NONE,
            deficit: 0,
            next: NONE,
            prev: NONE,
            chain: if index + 1 == max { NONE } else { index + 1 },
            bucket: NONE,
        };
        Self {
            places: (0..max).map(place).collect::<Vec<_>>().into_boxed_slice(),
            entries: vec![empty; max as usize].into_boxed_slice(),
            buckets: vec![NONE; buckets as usize].into_boxed_slice(),
            bucket_mask: buckets - 1,
            secret,
            free: if max == 0 { NONE } else { 0 },
            used: 0,
        }
    }

    /// Queues in use.
    pub(super) const fn used(&self) -> u32 {
        self.used
    }

    pub(super) const fn max(&self) -> u32 {
        self.places.len() as u32
    }

    #[inline]
    pub(super) fn get(&self, index: u32) -> Option<&E> {
        self.entries.get(index as usize)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut E> {
        self.entries.get_mut(index as usize)
    }

    /// The queue whose turn is after that of `index`.
    pub(super) fn after(&self, index: u32) -> u32 {
        self.places.get(index as usize).map_or(NONE, |place| place.next)
    }

    #[inline]
    fn bucket(&self, owner: u32, key: u128) -> u32 {
        let low = fold(key as u64 ^ self.secret[0], self.secret[1]);
        let both = fold((key >> 64) as u64 ^ low, self.secret[1]);
        fold(u64::from(owner) ^ both, self.secret[1]) as u32 & self.bucket_mask
    }

    #[inline]
    pub(super) fn find(&self, owner: u32, key: u128) -> Option<u32> {
        let mut index = self.buckets[self.bucket(owner, key) as usize];
        while let Some(place) = self.places.get(index as usize) {
            if place.key == key && place.owner == owner {
                return Some(index);
            }
            index = place.chain;
        }
        None
    }

    /// A new queue at the end of the round of `cursor`, with its first turn's bytes. `None` if all are taken.
    pub(super) fn enter(&mut self, cursor: &mut u32, (owner, key): (u32, u128), turn: i32, entry: E) -> Option<u32> {
        let bucket = self.bucket(owner, key);
        let index = self.free;
        let free = self.places.get(index as usize)?.chain;
        let first = *cursor;
        let last = self.places.get(first as usize).map_or(index, |place| place.prev);
        let next = if first == NONE { index } else { first };
        let chain = self.buckets[bucket as usize];
        self.places[index as usize] = Place { key, owner, deficit: turn, next, prev: last, chain, bucket };
        self.places[last as usize].next = index;
        self.places[next as usize].prev = index;
        self.entries[index as usize] = entry;
        self.buckets[bucket as usize] = index;
        self.free = free;
        self.used += 1;
        if first == NONE {
            *cursor = index;
        }
        Some(index)
    }

    /// A queue without packets ends.
    pub(super) fn leave(&mut self, cursor: &mut u32, index: u32) {
        let Place { next, prev, bucket, chain, .. } = self.places[index as usize];
        if next == index {
            *cursor = NONE;
        } else {
            self.places[prev as usize].next = next;
            self.places[next as usize].prev = prev;
            if *cursor == index {
                *cursor = next;
            }
        }
        let head = &mut self.buckets[bucket as usize];
        if *head == index {
            *head = chain;
        } else {
            let mut before = *head;
            while self.places[before as usize].chain != index {
                before = self.places[before as usize].chain;
            }
            self.places[before as usize].chain = chain;
        }
        self.places[index as usize].chain = self.free;
        self.free = index;
        self.used -= 1;
    }

    /// The queue that sends next. Who has used up what it was given gets the bytes of a turn and waits for the next one;
    /// no turn has fewer bytes than a packet, so a queue that was passed once is ready the next time.
    #[inline]
    pub(super) fn next(&mut self, cursor: &mut u32, turn: impl Fn(&E) -> i32) -> Option<u32> {
        while self.places.get(*cursor as usize)?.deficit <= 0 {
            let more = turn(&self.entries[*cursor as usize]);
            let place = &mut self.places[*cursor as usize];
            place.deficit = place.deficit.saturating_add(more);
            *cursor = place.next;
        }
        Some(*cursor)
    }

    /// A packet of `bytes` leaves the queue.
    #[inline]
    pub(super) fn charge(&mut self, index: u32, bytes: u32) {
        let place = &mut self.places[index as usize];
        place.deficit = place.deficit.saturating_sub_unsigned(bytes);
    }
}
