//! The fixed table of pinholes. Consulted when no line matches.

use alloc::{boxed::Box, vec::Vec};
use core::time::Duration;

use sluicegate_bounded::{Bounded as _, Gauge, Index, Link, List, Wheel};
use sluicegate_grant::GrantId;
use sluicegate_wire::Instant;

use crate::{
    candidates::{Filed, Keys, Names, Side},
    config::EndCause,
    pinhole::{Life, Pinhole},
    protocol::{Protocols, Tuple},
};

const GRANULARITY_NANOS: u64 = 50_000_000;
/// Index entries for each slot, on average.
const ENTRIES_PER_SLOT: u32 = 12;

/// What a look-up found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// An open pinhole.
    Open(u32),
    /// One that ended, or has not begun.
    Closed(u32),
    /// No pinhole fits.
    Nothing,
}

impl Found {
    /// The better of two, this one if they are as good: open before closed before nothing.
    const fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Open(_), _) | (Self::Closed(_), Self::Closed(_) | Self::Nothing) => self,
            _ => other,
        }
    }
}

/// The fixed table of pinholes with its indices.
#[derive(Debug)]
pub struct Table {
    slots: Vec<Option<Pinhole>>,
    free: Vec<u32>,
    by_id: Index,
    by_tuple: Index,
    /// Grants with a seal by their client id.
    of_client_id: Index,
    keys: Keys,
    filed: Filed,
    /// Entries of `by_tuple` that the pinholes may need at most.
    reserved: usize,
    wheel: Wheel,
    /// Those that ended, by whose ports they hold, in the order of their ends.
    ended: Box<[List]>,
    /// Neighbours of each slot in these lists.
    links: Box<[Link]>,
    live: u32,
    serial: u64,
}

impl Table {
    /// A table of so many pinholes, of which those with external ports lie in so many spaces. Allocates once.
    pub fn new(pinholes_max: u32, hash_key: &[u8; 16], with_ports: Protocols, spaces: usize) -> Self {
        let pinholes_max = pinholes_max.clamp(1, 1 << 24);
        Self {
            slots: (0..pinholes_max).map(|_| None).collect(),
            free: (0..pinholes_max).rev().collect(),
            by_id: Index::new("grants", pinholes_max, pinholes_max),
            by_tuple: Index::new("pinhole_index", pinholes_max * ENTRIES_PER_SLOT, pinholes_max),
            of_client_id: Index::new("client_ids", pinholes_max, pinholes_max),
            keys: Keys::new(hash_key, with_ports),
            filed: Filed::default(),
            reserved: 0,
            wheel: Wheel::new("pinhole_timers", pinholes_max, GRANULARITY_NANOS),
            ended: core::iter::repeat_n(List::EMPTY, spaces + 1).collect(),
            links: core::iter::repeat_n(Link::NONE, pinholes_max as usize).collect(),
            live: 0,
            serial: 0,
        }
    }

    /// The pinhole in a slot.
    #[inline]
    pub fn at(&self, slot: u32) -> Option<&Pinhole> {
        self.slots.get(slot as usize)?.as_ref()
    }

    /// As [`Self::at`], to change what does not decide where it is filed.
    #[inline]
    pub fn at_mut(&mut self, slot: u32) -> Option<&mut Pinhole> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    /// All pinholes with their slots.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Pinhole)> {
        self.slots.iter().enumerate().filter_map(|(slot, pinhole)| Some((slot as u32, pinhole.as_ref()?)))
    }

    /// Slots.
    pub fn max(&self) -> u32 {
        self.slots.len() as u32
    }

    /// How many more pinholes may live.
    pub fn left(&self) -> u32 {
        self.max().saturating_sub(self.live)
    }

    /// Live pinholes, those that ended and are remembered, and the entries that all of them may need of the index.
    pub(crate) fn gauges(&self) -> [Gauge; 3] {
        let max = self.slots.len() as u64;
        let ended = self.ended.iter().map(|list| u64::from(list.len())).sum();
        [
            Gauge { name: "pinholes", used: self.live.into(), max },
            Gauge { name: "pinholes_remembered", used: ended, max },
            Gauge { used: self.reserved as u64, ..self.by_tuple.gauge() },
        ]
    }

    /// The slot of a grant, live or remembered.
    pub fn by_id(&self, id: GrantId) -> Option<u32> {
        let is_it = |slot: &u32| self.at(*slot).and_then(Pinhole::grant).is_some_and(|grant| grant.id == id);
        self.by_id.matches(self.keys.bytes(&id.0)).find(is_it)
    }

    /// The slots of grants with a seal and this client id: one, if nobody was unlucky.
    pub fn of_client_id(&self, client_id: u32) -> impl Iterator<Item = u32> + '_ {
        self.of_client_id.matches(self.keys.bytes(&client_id.to_le_bytes()))
    }

    /// Lists a grant under its client id, and no longer under the one that it had before.
    pub fn list_client_id(&mut self, slot: u32, client_id: Option<u32>) {
        self.of_client_id.remove(slot);
        if let Some(client_id) = client_id {
            // As many entries as slots: there is always room.
            self.of_client_id.insert(self.keys.bytes(&client_id.to_le_bytes()), slot);
        }
    }

    /// The pinhole for a packet from outside that is looked up by client: of `filter` services, and of what has no ports.
    pub fn by_inbound(&self, now: Instant, tuple: &Tuple, names: Names) -> Found {
        match self.by_name(now, tuple, names) {
            Found::Nothing => self.by_client(now, Side::Inbound, tuple, |pinhole| pinhole.admits_inbound(tuple)),
            found => found,
        }
    }

    /// The pinhole whose client id a packet from outside names.
    pub fn by_name(&self, now: Instant, tuple: &Tuple, names: Names) -> Found {
        let named = names.iter().map(|id| {
            let is_it = |pinhole: &Pinhole| {
                pinhole.grant().is_some_and(|grant| grant.client_id == id) && pinhole.admits_inbound(tuple)
            };
            self.first(now, self.keys.named(tuple, id), is_it)
        });
        named.fold(Found::Nothing, Found::or)
    }

    /// The pinhole for a packet from inside.
    pub fn by_outbound(&self, now: Instant, tuple: &Tuple) -> Found {
        let found = self.by_client(now, Side::Outbound, tuple, |pinhole| pinhole.admits_outbound(tuple));
        if matches!(found, Found::Open(_)) {
            return found;
        }
        let any = self.by_client(now, Side::OutboundAny, tuple, |pinhole| pinhole.admits_outbound(tuple));
        any.or(found)
    }

    /// The pinhole for a packet that names none: one that can take it, or else one that says why not.
    fn by_client(&self, now: Instant, side: Side, tuple: &Tuple, fits: impl Fn(&Pinhole) -> bool) -> Found {
        let mut found = Found::Nothing;
        for hash in self.keys.of_packet(side, tuple, self.filed) {
            found = found.or(self.first(now, hash, &fits));
            if matches!(found, Found::Open(_)) {
                return found;
            }
        }
        found.or(self.first(now, self.keys.apart(side, tuple), fits))
    }

    /// The newest open pinhole that fits and has room for a flow, or else the newest open or closed one.
    fn first(&self, now: Instant, hash: u64, fits: impl Fn(&Pinhole) -> bool) -> Found {
        let mut best = Found::Nothing;
        for slot in self.by_tuple.matches(hash) {
            let Some(pinhole) = self.at(slot).filter(|pinhole| fits(pinhole)) else { continue };
            if !pinhole.is_open(now) {
                best = best.or(Found::Closed(slot));
            } else if pinhole.has_room() {
                return Found::Open(slot);
            } else {
                best = best.or(Found::Open(slot));
            }
        }
        best
    }

    /// A free slot, kept for the caller until [`Self::put`] or [`Self::give_up`].
    pub fn reserve(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Frees a reserved slot that was not filled.
    pub fn give_up(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// Fills a reserved slot; `false` (and no change) if the index has no room.
    pub fn put(&mut self, now: Instant, slot: u32, pinhole: Pinhole) -> bool {
        let reserved = self.reserved + Keys::count_max(&pinhole);
        if reserved > self.by_tuple.max() as usize {
            return false;
        }
        self.reserved = reserved;
        if let Some(grant) = pinhole.grant() {
            self.by_id.insert(self.keys.bytes(&grant.id.0), slot);
        }
        self.serial += 1;
        self.slots[slot as usize] = Some(Pinhole { serial: self.serial, ..pinhole });
        self.file(slot);
        self.live += 1;
        self.schedule(now, slot);
        true
    }

    /// Changes a pinhole, and where it is filed with it. Its service, its ports there and how many clients it has stay.
    pub fn change(&mut self, slot: u32, change: impl FnOnce(&mut Pinhole)) {
        self.unfile(slot);
        if let Some(pinhole) = self.at_mut(slot) {
            change(pinhole);
        }
        self.file(slot);
    }

    fn file(&mut self, slot: u32) {
        let Self { slots, keys, by_tuple, filed, .. } = self;
        let Some(Some(pinhole)) = slots.get(slot as usize) else { return };
        filed.note(pinhole, true);
        for hash in keys.of_pinhole(pinhole) {
            by_tuple.insert(hash, slot);
        }
    }

    fn unfile(&mut self, slot: u32) {
        let Some(Some(pinhole)) = self.slots.get(slot as usize) else { return };
        self.filed.note(pinhole, false);
        self.by_tuple.remove(slot);
    }

    /// Looks at the pinhole when its time is over.
    pub fn schedule(&mut self, now: Instant, slot: u32) {
        if let Some(not_after) = self.at(slot).map(|pinhole| pinhole.not_after) {
            if not_after == Instant::from_nanos(u64::MAX) {
                self.wheel.cancel(slot);
            } else {
                self.wheel.schedule(slot, now, not_after);
            }
        }
    }

    /// When a pinhole is due to be looked at.
    pub fn next_due(&self) -> Option<Instant> {
        self.wheel.next_due()
    }

    /// A pinhole that is due to be looked at. Call until `None`.
    pub fn pop_due(&mut self, now: Instant) -> Option<u32> {
        self.wheel.pop_due(now)
    }

    /// Looks at the slot again at `at`.
    pub fn schedule_at(&mut self, now: Instant, slot: u32, at: Instant) {
        self.wheel.schedule(slot, now, at);
    }

    /// Which list a pinhole is on when it has ended: that of the ports that rest with it, or the last.
    fn ended_list(&self, pinhole: &Pinhole) -> usize {
        pinhole.space.map_or(self.ended.len() - 1, usize::from)
    }

    /// Turns a live pinhole into a remembered one for `forget_after`. Its flows are gone already.
    pub fn end(&mut self, now: Instant, slot: u32, cause: EndCause, forget_after: Duration) {
        let Some(pinhole) = self.at(slot).filter(|pinhole| pinhole.is_live()) else { return };
        debug_assert_eq!(pinhole.flows, 0, "flows end before their pinhole");
        let list = self.ended_list(pinhole);
        self.change(slot, |pinhole| {
            pinhole.life = Life::Ended(cause);
            pinhole.forget_at = now + forget_after;
        });
        self.ended[list].push_back(&mut self.links[..], slot);
        self.live -= 1;
        self.wheel.schedule(slot, now, now + forget_after);
    }

    /// The pinhole that ended longest ago.
    pub fn oldest_ended(&self) -> Option<u32> {
        let firsts = self.ended.iter().filter_map(List::front);
        firsts.min_by_key(|slot| (self.at(*slot).map(|pinhole| pinhole.forget_at), *slot))
    }

    /// The pinholes whose external ports of this space rest, the one that ended longest ago first.
    pub fn resting(&self, space: u8) -> impl Iterator<Item = u32> {
        self.ended.get(usize::from(space)).into_iter().flat_map(|list| list.iter(&self.links[..]))
    }

    /// Makes a remembered pinhole live again: a renewal that came late.
    pub fn revive(&mut self, slot: u32) {
        if self.take_off_ended(slot) {
            self.change(slot, |pinhole| pinhole.life = Life::Live);
            self.live += 1;
        }
    }

    /// Forgets an ended pinhole and gives its ports to the caller, who frees them.
    pub fn forget(&mut self, slot: u32) -> Option<Pinhole> {
        if !self.take_off_ended(slot) {
            return None;
        }
        self.wheel.cancel(slot);
        self.unfile(slot);
        self.by_id.remove(slot);
        let pinhole = self.slots[slot as usize].take()?;
        self.reserved -= Keys::count_max(&pinhole);
        self.free.push(slot);
        Some(pinhole)
    }

    fn take_off_ended(&mut self, slot: u32) -> bool {
        let Some(pinhole) = self.at(slot).filter(|pinhole| matches!(pinhole.life, Life::Ended(_))) else {
            return false;
        };
        let list = self.ended_list(pinhole);
        self.ended[list].remove(&mut self.links[..], slot);
        true
    }
}
