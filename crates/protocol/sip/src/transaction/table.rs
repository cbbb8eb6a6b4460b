//! A fixed number of transactions, found by fingerprint. One that is under way has a record beside its slot, with what is
//! sent; one that is over has its slot alone, which is why that is small.

use alloc::{boxed::Box, vec::Vec};

use sluicegate_bounded::{Bounded as _, Buckets, Gauge, Handle, Link, Linked, NONE, Slab, Slots, chained, linked};
use sluicegate_wire::Instant;

use super::timers::{Span, Tick, Timed, Timers};
use crate::keyed_hash;

/// 64 bits of a keyed hash over what identifies a transaction. Who does not know the key has one chance in 2^48 with each
/// message to meet one of 65,536 transactions, and then has a message sent again to whom it was for; so the fingerprint
/// stands for the thing itself, and slots have a fixed size whatever the length of a branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fingerprint(u64);

impl Fingerprint {
    pub(super) fn of(key: &[u8; 16], parts: &[&[u8]]) -> Self {
        Self(keyed_hash(key, parts))
    }
}

/// Names a transaction for as long as it is in its table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(Handle);

/// A fingerprint in the index.
#[derive(Debug, Clone, Copy)]
pub(super) struct Name {
    chain: u32,
    /// In halves, so that a slot needs no padding.
    print: [u32; 2],
}

chained!(Name);

impl Name {
    fn new(Fingerprint(print): Fingerprint) -> Self {
        Self { chain: NONE, print: [print as u32, (print >> 32) as u32] }
    }

    fn print(&self) -> Fingerprint {
        let [low, high] = self.print;
        Fingerprint(u64::from(high) << 32 | u64::from(low))
    }
}

/// What is known of a transaction beside its state. One that is under way may have a second name, an alias, too.
#[derive(Debug)]
enum Known<P> {
    /// Its record among those that are under way.
    Active(u32),
    Aliased(u32, Name),
    /// It is over, and the other side is there.
    Peer(P),
    /// It is over, and nothing more goes to the other side.
    Alias(Name),
}

/// A slot: all that is left of a transaction that is over.
#[derive(Debug)]
pub(super) struct Entry<S, P> {
    name: Name,
    link: Link,
    due: Tick,
    span: Option<Span>,
    pub(super) is_invite: bool,
    pub(super) state: S,
    known: Known<P>,
}

impl<S, P> Entry<S, P> {
    /// Where its record is, if it is under way.
    const fn active(&self) -> Option<u32> {
        match self.known {
            Known::Active(at) | Known::Aliased(at, _) => Some(at),
            Known::Peer(_) | Known::Alias(_) => None,
        }
    }
}

impl<S, P> Linked for Entry<S, P> {
    fn link(&self) -> &Link {
        &self.link
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.link
    }
}

impl<S, P> Timed for Entry<S, P> {
    fn timer(&self) -> (Tick, Option<Span>) {
        (self.due, self.span)
    }

    fn set_timer(&mut self, due: Tick, span: Option<Span>) {
        (self.due, self.span) = (due, span);
    }
}

/// What a transaction has besides while it is under way.
#[derive(Debug)]
pub(super) struct Active<P> {
    slot: u32,
    link: Link,
    due: Tick,
    span: Option<Span>,
    /// Timers A, E, G double with each repetition, up to this.
    pub(super) longest: Span,
    pub(super) repetitions: u8,
    /// Somebody still owes a final response, or its ACK: to end now would be a failure.
    pub(super) is_owed: bool,
    pub(super) peer: P,
    /// What is sent, and sent again; empty while there is nothing.
    pub(super) message: Box<[u8]>,
}

impl<P> Active<P> {
    pub(super) fn new(peer: P, longest: Span, message: &[u8]) -> Self {
        let (link, due) = (Link::NONE, Tick::default());
        Self {
            slot: NONE,
            link,
            due,
            span: None,
            longest,
            repetitions: 0,
            is_owed: true,
            peer,
            message: message.into(),
        }
    }
}

linked!(Active<P>);

impl<P> Timed for Active<P> {
    fn timer(&self) -> (Tick, Option<Span>) {
        (self.due, self.span)
    }

    fn set_timer(&mut self, due: Tick, span: Option<Span>) {
        (self.due, self.span) = (due, span);
    }
}

/// The slots, where they are looked at by name: the name of slot `n` is number `2 n`, its alias the next number.
#[derive(Debug)]
struct Names<S, P>(Slab<Entry<S, P>>);

const fn name_of(slot: u32) -> u32 {
    slot * 2
}

const fn alias_of(slot: u32) -> u32 {
    slot * 2 + 1
}

impl<S, P> Slots for Names<S, P> {
    type Value = Name;

    fn slot(&self, index: u32) -> Option<&Name> {
        let entry = self.0.get(index / 2)?;
        match &entry.known {
            _ if index.is_multiple_of(2) => Some(&entry.name),
            Known::Aliased(_, alias) | Known::Alias(alias) => Some(alias),
            Known::Active(_) | Known::Peer(_) => None,
        }
    }

    fn slot_mut(&mut self, index: u32) -> Option<&mut Name> {
        let entry = self.0.get_mut(index / 2)?;
        match &mut entry.known {
            _ if index.is_multiple_of(2) => Some(&mut entry.name),
            Known::Aliased(_, alias) | Known::Alias(alias) => Some(alias),
            Known::Active(_) | Known::Peer(_) => None,
        }
    }
}

/// The records of what is under way, where they are looked at by slot.
struct Records<'t, S, P>(&'t Slab<Entry<S, P>>, &'t mut [Active<P>]);

impl<S, P> Slots for Records<'_, S, P> {
    type Value = Active<P>;

    fn slot(&self, index: u32) -> Option<&Active<P>> {
        self.1.get(self.0.get(index)?.active()? as usize)
    }

    fn slot_mut(&mut self, index: u32) -> Option<&mut Active<P>> {
        self.1.get_mut(self.0.get(index)?.active()? as usize)
    }
}

/// What a timer is for. Each transaction has one of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Change state or end: B, C, D, F, H, I, J, K, L, M.
    End,
    /// Send again: A, E, G.
    Retransmit,
}

/// What goes on being known of a transaction that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keep {
    /// Where the other side is.
    Peer,
    /// Its alias.
    Alias,
}

/// Records of which room stays, however few transactions are under way.
const RECORDS_MIN: usize = 16;

/// Transactions, each found by its fingerprint and some by another one too.
#[derive(Debug)]
pub(super) struct Table<S, P> {
    names: Names<S, P>,
    /// Of the transactions that are under way, in no order. As many as there are: room for them comes and goes.
    active: Vec<Active<P>>,
    buckets: Buckets,
    ends: Timers,
    repeats: Timers,
}

impl<S, P: Copy> Table<S, P> {
    /// Room for `max` transactions, at least one.
    pub(super) fn new(name: &'static str, max: usize) -> Self {
        let max = max.clamp(1, 1 << 29) as u32;
        Self {
            names: Names(Slab::new(name, max)),
            active: Vec::new(),
            // Two to four bytes a slot: with its bucket a slot takes no more than 64.
            buckets: Buckets::new(max / 2 + 1),
            ends: Timers::new(),
            repeats: Timers::new(),
        }
    }

    pub(super) fn gauge(&self) -> Gauge {
        self.names.0.gauge()
    }

    /// Puts a transaction in that is under way; `None` if there is no room.
    pub(super) fn insert(
        &mut self,
        (print, alias): (Fingerprint, Option<Fingerprint>),
        (is_invite, state): (bool, S),
        active: Active<P>,
    ) -> Option<Token> {
        let at = self.active.len() as u32;
        let known = alias.map_or(Known::Active(at), |alias| Known::Aliased(at, Name::new(alias)));
        let (name, link, due) = (Name::new(print), Link::NONE, Tick::default());
        let entry = Entry { name, link, due, span: None, is_invite, state, known };
        let handle = self.names.0.insert(entry).ok()?;
        self.active.push(Active { slot: handle.index(), ..active });
        self.index(name_of(handle.index()));
        if let Some(alias) = alias {
            // Of several with one alias the newest has it, and a chain holds no crowd.
            if let Some(older) = self.look_up(alias) {
                self.unindex(older);
            }
            self.index(alias_of(handle.index()));
        }
        Some(Token(handle))
    }

    fn index(&mut self, number: u32) {
        let Some(Fingerprint(print)) = self.names.slot(number).map(Name::print) else { return };
        let bucket = self.buckets.of(print);
        self.buckets.insert(&mut self.names, bucket, number);
    }

    fn unindex(&mut self, number: u32) {
        let Some(Fingerprint(print)) = self.names.slot(number).map(Name::print) else { return };
        let bucket = self.buckets.of(print);
        self.buckets.remove(&mut self.names, bucket, number);
    }

    fn look_up(&self, print: Fingerprint) -> Option<u32> {
        let first = self.buckets.first(self.buckets.of(print.0));
        Buckets::find(&self.names, first, |name| name.print() == print)
    }

    /// The newest transaction with this fingerprint.
    pub(super) fn find(&self, print: Fingerprint) -> Option<Token> {
        self.names.0.handle(self.look_up(print)? / 2).map(Token)
    }

    pub(super) fn entry(&self, token: Token) -> Option<&Entry<S, P>> {
        self.names.0.at(token.0)
    }

    pub(super) fn entry_mut(&mut self, token: Token) -> Option<&mut Entry<S, P>> {
        self.names.0.at_mut(token.0)
    }

    /// What a transaction has while it is under way.
    pub(super) fn active(&self, token: Token) -> Option<&Active<P>> {
        self.active.get(self.entry(token)?.active()? as usize)
    }

    pub(super) fn active_mut(&mut self, token: Token) -> Option<&mut Active<P>> {
        let at = self.entry(token)?.active()?;
        self.active.get_mut(at as usize)
    }

    /// Where the other side is; `None` where nothing goes there any more.
    pub(super) fn peer(&self, token: Token) -> Option<P> {
        match self.entry(token)?.known {
            Known::Active(at) | Known::Aliased(at, _) => self.active.get(at as usize).map(|active| active.peer),
            Known::Peer(peer) => Some(peer),
            Known::Alias(_) => None,
        }
    }

    /// From now on a transaction is its slot alone.
    pub(super) fn bury(&mut self, token: Token, keep: Keep) {
        let Some(at) = self.entry(token).and_then(Entry::active) else { return };
        self.disarm_repeats(token);
        if keep == Keep::Peer {
            self.unindex(alias_of(token.0.index()));
        }
        let Some(active) = self.active.get(at as usize) else { return };
        let Some(entry) = self.names.0.at_mut(token.0) else { return };
        entry.known = match entry.known {
            Known::Aliased(_, alias) if keep == Keep::Alias => Known::Alias(alias),
            _ => Known::Peer(active.peer),
        };
        self.drop_record(at);
    }

    /// Takes a transaction out; whether it was still owed something.
    pub(super) fn remove(&mut self, token: Token) -> bool {
        let Some(slot) = self.names.0.resolve(token.0) else { return false };
        let is_owed = self.active(token).is_some_and(|active| active.is_owed);
        self.disarm_repeats(token);
        self.ends.disarm(&mut self.names.0, slot);
        self.unindex(name_of(slot));
        self.unindex(alias_of(slot));
        if let Some(at) = self.names.0.remove(slot).and_then(|entry| entry.active()) {
            self.drop_record(at);
        }
        is_owed
    }

    /// The last record takes the place of one that is over.
    fn drop_record(&mut self, at: u32) {
        self.active.swap_remove(at as usize);
        let moved = self.active.get(at as usize).map(|active| active.slot);
        if let Some(entry) = moved.and_then(|slot| self.names.0.get_mut(slot))
            && let Known::Active(place) | Known::Aliased(place, _) = &mut entry.known
        {
            *place = at;
        }
        let len = self.active.len().max(RECORDS_MIN);
        if len < self.active.capacity() / 4 {
            self.active.shrink_to(2 * len);
        }
    }

    /// Lets a transaction end, or change its state, after so long.
    pub(super) fn arm_end(&mut self, now: Instant, token: Token, span: Span) {
        self.ends.arm(&mut self.names.0, now, token.0.index(), span);
    }

    /// Lets a message be repeated after so long.
    pub(super) fn arm_repeat(&mut self, now: Instant, token: Token, span: Span) {
        self.repeats.arm(&mut Records(&self.names.0, &mut self.active), now, token.0.index(), span);
    }

    pub(super) fn disarm_repeats(&mut self, token: Token) {
        self.repeats.disarm(&mut Records(&self.names.0, &mut self.active), token.0.index());
    }

    /// The timer that is due first, and when.
    pub(super) fn next(&self) -> Option<(Instant, Token, Purpose)> {
        let record = |slot| self.active.get(self.names.0.get(slot)?.active()? as usize);
        let end = self.ends.first(|slot| self.names.0.get(slot).map(|entry| entry.due));
        let repeat = self.repeats.first(|slot| record(slot).map(|active| active.due));
        let firsts = [(end, Purpose::End), (repeat, Purpose::Retransmit)].into_iter();
        let (at, slot, purpose) = firsts
            .filter_map(|(first, purpose)| first.map(|(at, slot)| (at, slot, purpose)))
            .min_by_key(|first| first.0)?;
        Some((at, Token(self.names.0.handle(slot)?), purpose))
    }

    /// Takes the timer that is due first, if it is due.
    pub(super) fn pop(&mut self, now: Instant) -> Option<(Token, Purpose)> {
        let (_, token, purpose) = self.next().filter(|(at, ..)| *at <= now)?;
        match purpose {
            Purpose::End => self.ends.disarm(&mut self.names.0, token.0.index()),
            Purpose::Retransmit => self.disarm_repeats(token),
        }
        Some((token, purpose))
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    fn key(number: u32) -> Fingerprint {
        Fingerprint::of(&[3; 16], &[&number.to_be_bytes()])
    }

    fn active() -> Active<()> {
        Active::new((), Span::T1Shift0, b"message")
    }

    #[test]
    fn a_full_table_refuses_and_a_transaction_that_ended_is_found_by_neither_key() {
        let mut table = Table::<u32, ()>::new("transactions", 100);
        let keys = |n| (key(n), Some(key(1_000 + n)));
        let tokens: Vec<_> = (0..100).map(|n| table.insert(keys(n), (true, n), active()).unwrap()).collect();
        assert!(table.insert((key(100), None), (true, 100), active()).is_none());
        assert_eq!((table.gauge().used, table.gauge().max, table.active.len()), (100, 100, 100));
        assert_eq!((table.remove(tokens[50]), table.remove(tokens[50])), (true, false));
        assert_eq!((table.gauge().used, table.active.len()), (99, 99));
        assert_eq!((table.find(key(50)), table.find(key(1_050))), (None, None));
        assert!(table.entry(tokens[50]).is_none() && table.active(tokens[50]).is_none());
        let token = table.insert((key(100), None), (true, 100), active()).unwrap();
        assert_ne!(token, tokens[50]);
        for n in (0..100).filter(|n| *n != 50) {
            let token = tokens[n as usize];
            assert_eq!((table.find(key(n)), table.find(key(1_000 + n))), (Some(token), Some(token)));
            assert_eq!(table.entry(token).map(|entry| entry.state), Some(n));
        }
    }

    #[test]
    fn of_a_transaction_that_is_over_its_slot_remains_and_others_keep_their_records() {
        let mut table = Table::<u32, ()>::new("transactions", 4);
        let tokens: Vec<_> =
            (0..4).map(|n| table.insert((key(n), Some(key(10 + n))), (true, n), active()).unwrap()).collect();
        tokens.iter().for_each(|token| table.arm_repeat(Instant::ZERO, *token, Span::T1Shift0));
        table.bury(tokens[0], Keep::Alias);
        table.bury(tokens[2], Keep::Peer);
        table.bury(tokens[2], Keep::Alias);
        let found: Vec<_> = (0..4).map(|n| (table.find(key(n)).is_some(), table.find(key(10 + n)).is_some())).collect();
        assert_eq!(found, [(true, true), (true, true), (true, false), (true, true)]);
        assert_eq!((table.peer(tokens[0]), table.peer(tokens[2])), (None, Some(())));
        let records: Vec<_> = tokens.iter().map(|token| table.active(*token).is_some()).collect();
        assert_eq!(records, [false, true, false, true]);
        let mut repeated: Vec<_> = std::iter::from_fn(|| table.pop(Instant::from_secs(1))).collect();
        repeated.sort_by_key(|(token, _)| token.0.index());
        assert_eq!(repeated, [(tokens[1], Purpose::Retransmit), (tokens[3], Purpose::Retransmit)]);
    }
}
