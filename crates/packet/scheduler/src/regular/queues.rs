use alloc::{boxed::Box, vec};

use sluicegate_bounded::{Buckets, FreeList, Gauge, Link, NONE, Round, chained, linked};

use super::super::fold;

/// One queue of a [`Queues`]: what names it, and its place in the round that it takes part in.
#[derive(Debug, Clone, Copy)]
struct Place {
    key: u128,
    /// Whose round it takes part in.
    owner: u32,
    deficit: i32,
    /// Neighbours in the round.
    link: Link,
    /// Next queue with the same bucket of the hash, or next free queue.
    chain: u32,
    bucket: u32,
}

linked!(Place);
chained!(Place);

/// Queues that have packets, found by owner and key, and the rounds in which they take turns.
///
/// Each turn gives a queue bytes; what its last packet took too much is missing in its next turn.
#[derive(Debug)]
pub(super) struct Queues<E> {
    name: &'static str,
    places: Box<[Place]>,
    entries: Box<[E]>,
    buckets: Buckets,
    secret: [u64; 2],
    free: FreeList,
}

impl<E: Copy> Queues<E> {
    /// Room for `max` queues. Allocates once.
    pub(super) fn new(name: &'static str, max: u32, empty: E, secret: [u64; 2]) -> Self {
        let place = Place { key: 0, owner: NONE, deficit: 0, link: Link::NONE, chain: NONE, bucket: NONE };
        let mut places = vec![place; max as usize].into_boxed_slice();
        Self {
            name,
            free: FreeList::new(&mut places[..], 0, max),
            places,
            entries: vec![empty; max as usize].into_boxed_slice(),
            buckets: Buckets::new(max),
            secret,
        }
    }

    pub(super) const fn gauge(&self) -> Gauge {
        Gauge { name: self.name, used: self.free.used() as u64, max: self.places.len() as u64 }
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
        Round::after(&self.places[..], index)
    }

    #[inline]
    fn bucket(&self, owner: u32, key: u128) -> u32 {
        let low = fold(key as u64 ^ self.secret[0], self.secret[1]);
        let both = fold((key >> 64) as u64 ^ low, self.secret[1]);
        self.buckets.of(fold(u64::from(owner) ^ both, self.secret[1]))
    }

    #[inline]
    pub(super) fn find(&self, owner: u32, key: u128) -> Option<u32> {
        let first = self.buckets.first(self.bucket(owner, key));
        Buckets::find(&self.places[..], first, |place| place.key == key && place.owner == owner)
    }

    /// A new queue at the end of a round, with its first turn's bytes. `None` if all are taken.
    pub(super) fn enter(&mut self, round: &mut Round, (owner, key): (u32, u128), turn: i32, entry: E) -> Option<u32> {
        let bucket = self.bucket(owner, key);
        let places = &mut self.places[..];
        let index = self.free.take(places)?;
        places[index as usize] = Place { key, owner, deficit: turn, link: Link::NONE, chain: NONE, bucket };
        self.buckets.insert(places, bucket, index);
        round.enter(places, index);
        self.entries[index as usize] = entry;
        Some(index)
    }

    /// A queue without packets ends.
    pub(super) fn leave(&mut self, round: &mut Round, index: u32) {
        let places = &mut self.places[..];
        round.leave(places, index);
        self.buckets.remove(places, places[index as usize].bucket, index);
        self.free.give_back(places, index);
    }

    /// The queue that sends next. Who has used up what it was given gets the bytes of a turn and waits for the next one;
    /// no turn has fewer bytes than a packet, so a queue that was passed once is ready the next time.
    #[inline]
    pub(super) fn next(&mut self, round: &mut Round, turn: impl Fn(&E) -> i32) -> Option<u32> {
        loop {
            let index = round.first()?;
            let place = self.places.get_mut(index as usize)?;
            if place.deficit > 0 {
                return Some(index);
            }
            place.deficit = place.deficit.saturating_add(turn(&self.entries[index as usize]));
            round.turn_to(Round::after(&self.places[..], index));
        }
    }

    /// A packet of `bytes` leaves the queue.
    #[inline]
    pub(super) fn charge(&mut self, index: u32, bytes: u32) {
        let place = &mut self.places[index as usize];
        place.deficit = place.deficit.saturating_sub_unsigned(bytes);
    }
}
