//! A fixed number of slots, found by fingerprint.

use alloc::{boxed::Box, vec};
use core::hash::Hasher as _;

use siphasher::sip128::{Hasher128 as _, SipHasher24};

/// 128 bits of a keyed hash over what identifies a transaction. Without the key nobody can make two that are alike, so
/// the fingerprint stands for the thing itself and slots have a fixed size whatever the length of a branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(u128);

impl Fingerprint {
    pub(super) fn of(key: &[u8; 16], parts: &[&[u8]]) -> Self {
        let mut hasher = SipHasher24::new_with_key(key);
        for part in parts {
            hasher.write(&(part.len() as u64).to_le_bytes());
            hasher.write(part);
        }
        Self(hasher.finish128().as_u128())
    }
}

/// Names a slot for as long as one transaction is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token {
    pub(super) slot: u32,
    generation: u32,
}

const NONE: u32 = u32::MAX;

/// Finds slots by fingerprint: chains through one array, no allocation after the start.
#[derive(Debug)]
pub(super) struct Index {
    buckets: Box<[u32]>,
    links: Box<[Link]>,
}

#[derive(Debug, Clone, Copy)]
struct Link {
    key: Fingerprint,
    next: u32,
}

impl Index {
    pub(super) fn new(slots: usize) -> Self {
        let link = Link { key: Fingerprint(0), next: NONE };
        Self { buckets: vec![NONE; slots.next_power_of_two()].into(), links: vec![link; slots].into() }
    }

    fn bucket(&mut self, key: Fingerprint) -> Option<&mut u32> {
        let mask = self.buckets.len() - 1;
        self.buckets.get_mut(key.0 as usize & mask)
    }

    pub(super) fn find(&self, key: Fingerprint) -> Option<u32> {
        let mask = self.buckets.len() - 1;
        let mut slot = *self.buckets.get(key.0 as usize & mask)?;
        loop {
            let link = self.links.get(slot as usize)?;
            if link.key == key {
                return Some(slot);
            }
            slot = link.next;
        }
    }

    pub(super) fn insert(&mut self, key: Fingerprint, slot: u32) {
        let Some(bucket) = self.bucket(key) else { return };
        let next = core::mem::replace(bucket, slot);
        if let Some(link) = self.links.get_mut(slot as usize) {
            *link = Link { key, next };
        }
    }

    /// Takes a slot out; nothing happens if it is not in.
    pub(super) fn remove(&mut self, slot: u32) {
        let Some(Link { key, next }) = self.links.get(slot as usize).copied() else { return };
        let Some(bucket) = self.bucket(key) else { return };
        if *bucket == slot {
            *bucket = next;
            return;
        }
        let mut at = *bucket;
        while let Some(link) = self.links.get_mut(at as usize) {
            if link.next == slot {
                link.next = next;
                return;
            }
            at = link.next;
        }
    }
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    next_free: u32,
    live: bool,
    value: T,
}

/// Slots whose values are reused, buffers and all.
#[derive(Debug)]
pub(super) struct Slab<T> {
    slots: Box<[Slot<T>]>,
    index: Index,
    free: u32,
    used: usize,
}

impl<T: Default> Slab<T> {
    /// `capacity` slots, at least one.
    pub(super) fn new(capacity: usize) -> Self {
        let capacity = capacity.clamp(1, (u32::MAX / 4) as usize);
        let slots = (1..=capacity)
            .map(|next| Slot {
                generation: 0,
                next_free: if next == capacity { NONE } else { next as u32 },
                live: false,
                value: T::default(),
            })
            .collect();
        Self { slots, index: Index::new(capacity), free: 0, used: 0 }
    }

    pub(super) const fn used(&self) -> usize {
        self.used
    }

    pub(super) const fn max(&self) -> usize {
        self.slots.len()
    }

    /// Takes a slot; `None` if all are taken.
    pub(super) fn insert(&mut self, key: Fingerprint) -> Option<(Token, &mut T)> {
        let slot = self.free;
        let entry = self.slots.get_mut(slot as usize)?;
        self.free = entry.next_free;
        entry.live = true;
        self.used += 1;
        self.index.insert(key, slot);
        Some((Token { slot, generation: entry.generation }, &mut entry.value))
    }

    pub(super) fn find(&self, key: Fingerprint) -> Option<Token> {
        self.token(self.index.find(key)?)
    }

    /// The token of a slot in use.
    pub(super) fn token(&self, slot: u32) -> Option<Token> {
        let entry = self.slots.get(slot as usize).filter(|entry| entry.live)?;
        Some(Token { slot, generation: entry.generation })
    }

    pub(super) fn value(&self, token: Token) -> Option<&T> {
        let entry = self.slots.get(token.slot as usize)?;
        (entry.live && entry.generation == token.generation).then_some(&entry.value)
    }

    pub(super) fn value_mut(&mut self, token: Token) -> Option<&mut T> {
        let entry = self.slots.get_mut(token.slot as usize)?;
        (entry.live && entry.generation == token.generation).then_some(&mut entry.value)
    }

    /// Gives a slot back; its value stays for the next to reuse.
    pub(super) fn remove(&mut self, token: Token) {
        if self.value(token).is_none() {
            return;
        }
        self.index.remove(token.slot);
        if let Some(entry) = self.slots.get_mut(token.slot as usize) {
            entry.live = false;
            entry.generation = entry.generation.wrapping_add(1);
            entry.next_free = self.free;
            self.free = token.slot;
            self.used -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    fn key(number: u32) -> Fingerprint {
        Fingerprint::of(&[3; 16], &[&number.to_be_bytes()])
    }

    #[test]
    fn a_full_slab_refuses_and_a_freed_slot_is_reused() {
        let mut slab = Slab::<u32>::new(100);
        let tokens: Vec<_> = (0..100).map(|n| slab.insert(key(n)).unwrap().0).collect();
        assert!(slab.insert(key(100)).is_none());
        assert_eq!((slab.used(), slab.max()), (100, 100));
        slab.remove(tokens[50]);
        slab.remove(tokens[50]);
        assert_eq!(slab.used(), 99);
        assert_eq!((slab.find(key(50)), slab.value(tokens[50])), (None, None));
        let (token, _) = slab.insert(key(100)).unwrap();
        assert_ne!(token, tokens[50]);
        for n in (0..100).filter(|n| *n != 50) {
            assert_eq!(slab.find(key(n)), Some(tokens[n as usize]));
        }
    }
}
