//! A fixed number of transactions, found by fingerprint.

use core::hash::Hasher as _;

use siphasher::sip128::{Hasher128 as _, SipHasher24};
use sluicegate_bounded::{Bounded, Gauge, Handle, Index, Slab};

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

    /// Chooses its place in an index.
    const fn hash(self) -> u64 {
        self.0 as u64
    }
}

/// Names a transaction for as long as it is in its table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(Handle);

impl Token {
    /// The transaction's place in the table, which names its timers.
    pub(super) const fn slot(self) -> u32 {
        self.0.index()
    }
}

#[derive(Debug)]
struct Entry<T> {
    keys: [Fingerprint; 2],
    value: T,
}

/// Transactions, each found by two fingerprints, which may be the same.
#[derive(Debug)]
pub(super) struct Table<T> {
    entries: Slab<Entry<T>>,
    by_key: Index,
}

impl<T> Table<T> {
    /// Room for `max` transactions, at least one.
    pub(super) fn new(name: &'static str, max: usize) -> Self {
        let max = max.clamp(1, 1 << 29) as u32;
        Self { entries: Slab::new(name, max), by_key: Index::new(name, 2 * max, max) }
    }

    pub(super) fn gauge(&self) -> Gauge {
        self.entries.gauge()
    }

    /// Puts a transaction in; `None` if there is no room.
    pub(super) fn insert(&mut self, keys: [Fingerprint; 2], value: T) -> Option<Token> {
        let handle = self.entries.insert(Entry { keys, value }).ok()?;
        let [first, second] = keys;
        self.by_key.insert(first.hash(), handle.index());
        if second != first {
            self.by_key.insert(second.hash(), handle.index());
        }
        Some(Token(handle))
    }

    /// The newest transaction with this fingerprint.
    pub(super) fn find(&self, key: Fingerprint) -> Option<Token> {
        let is_it = |slot: &u32| self.entries.get(*slot).is_some_and(|entry| entry.keys.contains(&key));
        self.token(self.by_key.matches(key.hash()).find(is_it)?)
    }

    /// The token of the transaction in this slot.
    pub(super) fn token(&self, slot: u32) -> Option<Token> {
        self.entries.handle(slot).map(Token)
    }

    pub(super) fn value(&self, token: Token) -> Option<&T> {
        self.entries.at(token.0).map(|entry| &entry.value)
    }

    pub(super) fn value_mut(&mut self, token: Token) -> Option<&mut T> {
        self.entries.at_mut(token.0).map(|entry| &mut entry.value)
    }

    /// Takes a transaction out.
    pub(super) fn remove(&mut self, token: Token) -> Option<T> {
        let slot = self.entries.resolve(token.0)?;
        self.by_key.remove(slot);
        self.entries.remove(slot).map(|entry| entry.value)
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
    fn a_full_table_refuses_and_a_transaction_that_ended_is_found_by_neither_key() {
        let mut table = Table::<u32>::new("transactions", 100);
        let tokens: Vec<_> = (0..100).map(|n| table.insert([key(n), key(1_000 + n)], n).unwrap()).collect();
        assert!(table.insert([key(100); 2], 100).is_none());
        assert_eq!((table.gauge().used, table.gauge().max), (100, 100));
        assert_eq!((table.remove(tokens[50]), table.remove(tokens[50])), (Some(50), None));
        assert_eq!(table.gauge().used, 99);
        assert_eq!((table.find(key(50)), table.find(key(1_050)), table.value(tokens[50])), (None, None, None));
        let token = table.insert([key(100); 2], 100).unwrap();
        assert_ne!(token, tokens[50]);
        for n in (0..100).filter(|n| *n != 50) {
            assert_eq!(
                (table.find(key(n)), table.find(key(1_000 + n))),
                (Some(tokens[n as usize]), Some(tokens[n as usize]))
            );
        }
    }
}
