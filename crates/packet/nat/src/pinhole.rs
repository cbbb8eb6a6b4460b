//! Pinholes: what a grant opens at this gate, in a fixed table. Consulted when no line matches.

use alloc::{boxed::Box, vec::Vec};
use core::{net::IpAddr, time::Duration};

use sluicegate_bounded::{Bounded as _, Gauge, Index, Link, List, Wheel};
use sluicegate_flow::{Budget, FairBucket, Share, TokenBucket};
use sluicegate_grant::{Grant, GrantId};
use sluicegate_wire::Instant;

use crate::{
    borrowers::Borrowers,
    candidates::{Filed, Keys, Names, Side},
    config::{EndCause, Opened},
    rules::{errors, owns_ports},
    transport::{Transports, Tuple},
};

pub(crate) const NO_SLOT: u32 = u32::MAX;
const GRANULARITY_NANOS: u64 = 50_000_000;
/// ICMP errors about the flows of one pinhole, a second: more than path MTU discovery and unreachable ports need, and a
/// twentieth of what all have together by default.
const ERRORS_PER_S: u32 = 50;
/// Index entries for each slot, on average.
const ENTRIES_PER_SLOT: u32 = 12;

/// Where a slot stands in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    Live,
    /// Over, but remembered: its ports rest and its packets get the right reason.
    Ended(EndCause),
}

/// Who may use a pinhole.
#[derive(Debug, Clone)]
pub(crate) enum Holder {
    /// A grant's client.
    Granted(Box<Grant>),
    /// The frontends.
    Standing { peers: Box<[IpAddr]>, rate_bytes_per_s: u64 },
    /// The service itself: flows that it starts. In no index.
    Service,
}

#[derive(Debug, Clone)]
pub(crate) struct Pinhole {
    pub(crate) life: Life,
    pub(crate) holder: Holder,
    /// Of a grant: the address that packets may come from; none before its client has proved one, if it has to.
    pub(crate) client: Option<IpAddr>,
    /// It has flows from where its client was before, which follow once the client has shown that it hears where it is now.
    pub(crate) follows: bool,
    /// When flows followed last.
    pub(crate) followed_at: Option<Instant>,
    pub(crate) protocol: u8,
    /// Whether its protocol has ports, which it is about then.
    pub(crate) has_ports: bool,
    pub(crate) service: u16,
    pub(crate) filter: bool,
    /// Where it listens.
    pub(crate) gate: Opened,
    pub(crate) target: IpAddr,
    pub(crate) target_ports: (u16, u16),
    pub(crate) not_before: Instant,
    /// [`Instant`] of the largest value: never.
    pub(crate) not_after: Instant,
    pub(crate) budget: Budget,
    /// A packet did not fit the budget any more; cleared by a renewal. Changed by [`Pinholes::change`], as all that
    /// decides where it is filed.
    pub(crate) spent: bool,
    /// Its rate, which its flows share.
    pub(crate) bucket: Option<FairBucket>,
    /// ICMP errors about its flows.
    pub(crate) errors: TokenBucket,
    /// The most that one line is lent, in bytes.
    pub(crate) slice_max: u32,
    /// The flows that were lent something.
    pub(crate) borrowers: Borrowers,
    /// The user's slot, see [`crate::users`]; [`NO_SLOT`] without a grant.
    pub(crate) user: u32,
    /// What this grant took of the user's rate.
    pub(crate) share: Share,
    pub(crate) flows_max: u32,
    pub(crate) flows: u32,
    /// Flows that may be recycled: half-open, closing, or not answered.
    pub(crate) recent: List,
    /// The others.
    pub(crate) lasting: List,
    /// Counts installations: of two pinholes that fit a packet the newer wins.
    pub(crate) serial: u64,
    /// When it is forgotten, once it has ended.
    pub(crate) forget_at: Instant,
}

pub(crate) const fn contains((first, last): (u16, u16), port: u16) -> bool {
    first <= port && port <= last
}

impl Pinhole {
    pub(crate) const fn grant(&self) -> Option<&Grant> {
        if let Holder::Granted(grant) = &self.holder { Some(grant) } else { None }
    }

    pub(crate) const fn is_live(&self) -> bool {
        matches!(self.life, Life::Live)
    }

    /// Live and inside its time.
    pub(crate) fn is_open(&self, now: Instant) -> bool {
        self.is_live() && self.not_before <= now && now < self.not_after
    }

    /// Whether `remote` is somebody this was opened for.
    pub(crate) fn admits_client(&self, remote: (IpAddr, u16)) -> bool {
        match &self.holder {
            Holder::Granted(grant) => {
                let port = !self.has_ports || contains(grant.client_ports, remote.1);
                self.client == Some(remote.0) && port
            }
            Holder::Standing { peers, .. } => peers.contains(&remote.0),
            Holder::Service => false,
        }
    }

    /// Whether a packet that arrives from outside is meant for this.
    pub(crate) fn admits_inbound(&self, tuple: &Tuple) -> bool {
        let port = !self.has_ports || contains(self.gate.ports, tuple.dst.1);
        self.protocol == tuple.protocol && self.gate.address == tuple.dst.0 && port && self.admits_client(tuple.src)
    }

    /// Whether a packet that arrives from inside belongs to this.
    pub(crate) fn admits_outbound(&self, tuple: &Tuple) -> bool {
        let port = !self.has_ports || contains(self.target_ports, tuple.src.1);
        self.protocol == tuple.protocol && self.target == tuple.src.0 && port && self.admits_client(tuple.dst)
    }

    /// The target port that stands behind a gate port.
    pub(crate) const fn target_port(&self, gate_port: u16) -> u16 {
        self.target_ports.0.wrapping_add(gate_port.wrapping_sub(self.gate.ports.0))
    }

    /// The gate port in front of a target port, if there is one.
    pub(crate) fn gate_port(&self, target_port: u16) -> Option<u16> {
        contains(self.target_ports, target_port).then(|| self.gate.ports.0 + (target_port - self.target_ports.0))
    }

    /// External ports that it holds, live or resting.
    pub(crate) fn ports_len(&self) -> u32 {
        if !owns_ports(self) { 0 } else { u32::from(self.gate.ports.1 - self.gate.ports.0) + 1 }
    }

    /// The two lists of flows.
    pub(crate) fn list(&mut self, lasting: bool) -> &mut List {
        if lasting { &mut self.lasting } else { &mut self.recent }
    }

    /// Whether a new flow needs no other's place.
    const fn has_room(&self) -> bool {
        self.flows < self.flows_max
    }

    pub(crate) fn clients(&self) -> &[IpAddr] {
        match &self.holder {
            Holder::Granted(_) => self.client.as_slice(),
            Holder::Standing { peers, .. } => peers,
            Holder::Service => &[],
        }
    }
}

/// What a look-up found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// An open pinhole.
    Open(u32),
    /// One that ended, or has not begun.
    Closed(u32),
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
pub(crate) struct Pinholes {
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
    transports: &'static Transports,
    live: u32,
    serial: u64,
}

impl Pinholes {
    pub(crate) fn new(pinholes_max: u32, hash_key: &[u8; 16], transports: &'static Transports) -> Self {
        let pinholes_max = pinholes_max.clamp(1, 1 << 24);
        Self {
            slots: (0..pinholes_max).map(|_| None).collect(),
            free: (0..pinholes_max).rev().collect(),
            by_id: Index::new("grants", pinholes_max, pinholes_max),
            by_tuple: Index::new("pinhole_index", pinholes_max * ENTRIES_PER_SLOT, pinholes_max),
            of_client_id: Index::new("client_ids", pinholes_max, pinholes_max),
            keys: Keys::new(hash_key, transports),
            filed: Filed::default(),
            reserved: 0,
            wheel: Wheel::new("pinhole_timers", pinholes_max, GRANULARITY_NANOS),
            ended: core::iter::repeat_n(List::EMPTY, transports.spaces().count() + 1).collect(),
            links: core::iter::repeat_n(Link::NONE, pinholes_max as usize).collect(),
            transports,
            live: 0,
            serial: 0,
        }
    }

    #[inline]
    pub(crate) fn at(&self, slot: u32) -> Option<&Pinhole> {
        self.slots.get(slot as usize)?.as_ref()
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, slot: u32) -> Option<&mut Pinhole> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Pinhole)> {
        self.slots.iter().enumerate().filter_map(|(slot, pinhole)| Some((slot as u32, pinhole.as_ref()?)))
    }

    pub(crate) fn max(&self) -> u32 {
        self.slots.len() as u32
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
    pub(crate) fn by_id(&self, id: GrantId) -> Option<u32> {
        let is_it = |slot: &u32| self.at(*slot).and_then(Pinhole::grant).is_some_and(|grant| grant.id == id);
        self.by_id.matches(self.keys.bytes(&id.0)).find(is_it)
    }

    /// The slots of grants with a seal and this client id: one, if nobody was unlucky.
    pub(crate) fn of_client_id(&self, client_id: u32) -> impl Iterator<Item = u32> + '_ {
        self.of_client_id.matches(self.keys.bytes(&client_id.to_le_bytes()))
    }

    /// Lists a grant under its client id, and no longer under the one that it had before.
    pub(crate) fn list_client_id(&mut self, slot: u32, client_id: Option<u32>) {
        self.of_client_id.remove(slot);
        if let Some(client_id) = client_id {
            // As many entries as slots: there is always room.
            self.of_client_id.insert(self.keys.bytes(&client_id.to_le_bytes()), slot);
        }
    }

    /// The pinhole for a packet from outside that is looked up by client: of `filter` services, and of what has no ports.
    pub(crate) fn by_inbound(&self, now: Instant, tuple: &Tuple, names: Names) -> Found {
        match self.by_name(now, tuple, names) {
            Found::Nothing => self.by_client(now, Side::Inbound, tuple, |pinhole| pinhole.admits_inbound(tuple)),
            found => found,
        }
    }

    /// The pinhole whose client id a packet from outside names.
    pub(crate) fn by_name(&self, now: Instant, tuple: &Tuple, names: Names) -> Found {
        let named = names.iter().map(|id| {
            let is_it = |pinhole: &Pinhole| {
                pinhole.grant().is_some_and(|grant| grant.client_id == id) && pinhole.admits_inbound(tuple)
            };
            self.first(now, self.keys.named(tuple, id), is_it)
        });
        named.fold(Found::Nothing, Found::or)
    }

    /// The pinhole for a packet from inside.
    pub(crate) fn by_outbound(&self, now: Instant, tuple: &Tuple) -> Found {
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
    pub(crate) fn reserve(&mut self) -> Option<u32> {
        self.free.pop()
    }

    pub(crate) fn give_up(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// Fills a reserved slot; `false` (and no change) if the index has no room.
    pub(crate) fn put(&mut self, now: Instant, slot: u32, pinhole: Pinhole) -> bool {
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
    pub(crate) fn change(&mut self, slot: u32, change: impl FnOnce(&mut Pinhole)) {
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
    pub(crate) fn schedule(&mut self, now: Instant, slot: u32) {
        if let Some(not_after) = self.at(slot).map(|pinhole| pinhole.not_after) {
            if not_after == Instant::from_nanos(u64::MAX) {
                self.wheel.cancel(slot);
            } else {
                self.wheel.schedule(slot, now, not_after);
            }
        }
    }

    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.wheel.next_due()
    }

    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<u32> {
        self.wheel.pop_due(now)
    }

    /// Looks at the slot again at `at`.
    pub(crate) fn schedule_at(&mut self, now: Instant, slot: u32, at: Instant) {
        self.wheel.schedule(slot, now, at);
    }

    /// Which list a pinhole is on when it has ended: that of the ports that rest with it, or the last.
    fn ended_list(&self, pinhole: &Pinhole) -> usize {
        let space = if pinhole.ports_len() == 0 { None } else { self.transports.space(pinhole.protocol) };
        space.unwrap_or(self.ended.len() - 1)
    }

    /// Turns a live pinhole into a remembered one for `forget_after`. Its flows are gone already.
    pub(crate) fn end(&mut self, now: Instant, slot: u32, cause: EndCause, forget_after: Duration) {
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
    pub(crate) fn oldest_ended(&self) -> Option<u32> {
        let firsts = self.ended.iter().filter_map(List::front);
        firsts.min_by_key(|slot| (self.at(*slot).map(|pinhole| pinhole.forget_at), *slot))
    }

    /// The pinholes whose external ports of a protocol rest, the one that ended longest ago first.
    pub(crate) fn resting(&self, protocol: u8) -> impl Iterator<Item = u32> {
        self.transports.space(protocol).into_iter().flat_map(|space| self.ended[space].iter(&self.links[..]))
    }

    /// Makes a remembered pinhole live again: a renewal that came late.
    pub(crate) fn revive(&mut self, slot: u32) {
        if self.take_off_ended(slot) {
            self.change(slot, |pinhole| pinhole.life = Life::Live);
            self.live += 1;
        }
    }

    /// Forgets an ended pinhole and gives its ports to the caller, who frees them.
    pub(crate) fn forget(&mut self, slot: u32) -> Option<Pinhole> {
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

/// A pinhole without flows, ready to be put.
pub(crate) struct NewPinhole {
    pub(crate) holder: Holder,
    pub(crate) protocol: u8,
    pub(crate) has_ports: bool,
    pub(crate) service: u16,
    pub(crate) filter: bool,
    pub(crate) gate: Opened,
    pub(crate) target: IpAddr,
    pub(crate) target_ports: (u16, u16),
    pub(crate) times: (Instant, Instant),
    pub(crate) budget: Budget,
    pub(crate) rate_bytes_per_s: u64,
    pub(crate) flows_max: u32,
    pub(crate) user: u32,
}

/// The address of a grant's client where it need not prove one.
fn address_known(holder: &Holder) -> Option<IpAddr> {
    match holder {
        Holder::Granted(grant) if !grant.proves_address() => Some(grant.client_address),
        _ => None,
    }
}

/// How much a rated pinhole may send at once: a quarter of a second, but at least one full slice.
const BURST_MIN: u64 = 64 * 1024;

impl NewPinhole {
    pub(crate) fn build(self, now: Instant) -> Pinhole {
        let (bucket, slice_max) = rate(now, self.rate_bytes_per_s);
        Pinhole {
            life: Life::Live,
            client: address_known(&self.holder),
            follows: false,
            followed_at: None,
            holder: self.holder,
            protocol: self.protocol,
            has_ports: self.has_ports,
            service: self.service,
            filter: self.filter,
            gate: self.gate,
            target: self.target,
            target_ports: self.target_ports,
            not_before: self.times.0,
            not_after: self.times.1,
            budget: self.budget,
            spent: false,
            bucket,
            errors: errors(now, ERRORS_PER_S),
            slice_max,
            borrowers: Borrowers::NONE,
            user: self.user,
            share: Share::NONE,
            flows_max: self.flows_max,
            flows: 0,
            recent: List::EMPTY,
            lasting: List::EMPTY,
            serial: 0,
            forget_at: Instant::ZERO,
        }
    }
}

/// The bucket for a rate in bytes a second (0: none), and the slices that lines get under it: 10 ms, so that the
/// bucket is asked a hundred times a second and not for every packet.
pub(crate) fn rate(now: Instant, bytes_per_s: u64) -> (Option<FairBucket>, u32) {
    if bytes_per_s == 0 {
        return (None, u32::MAX);
    }
    let slice = u32::try_from(bytes_per_s / 100).unwrap_or(u32::MAX);
    (Some(FairBucket::new(now, bytes_per_s, burst(bytes_per_s))), slice)
}

/// What may be sent at once at a rate in bytes a second.
pub(crate) fn burst(bytes_per_s: u64) -> u64 {
    (bytes_per_s / 4).max(BURST_MIN)
}
