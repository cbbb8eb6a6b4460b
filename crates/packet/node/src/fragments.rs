//! Packets in virtual reassembly, and the fragments that wait.
//!
//! Two budgets, each of which evicts rather than refuses: packets whose first fragment proved a flow, and those whose
//! first fragment has not come or proved nothing. The sender of the second kind may be anybody who forges a client's
//! address, so they can take nothing from the first, and nothing from other sources: the source with the most gives way.

use alloc::{boxed::Box, vec};
use core::{net::IpAddr, time::Duration};

use sluicegate_bounded::{Bounded, Buffer, Gauge, Index, Pool, Queue, Slab};
use sluicegate_flow::Hasher;
use sluicegate_nat::Rewrite;
use sluicegate_wire::{
    Frame, Instant, Port, Reason,
    ip::{Fragment, FragmentOffset, Summary, octets},
    ipv4,
};

use crate::{forward::Forwarding, readings::REASONS};

/// Packets of one source whose first fragment has not come.
const WAITING_PER_SOURCE_MAX: u16 = 8;
/// Fragments of one packet held before its first fragment came.
const HELD_PER_PACKET_MAX: usize = 8;
/// Sources are told apart by so many values of a keyed hash.
const SOURCES: usize = 256;
/// Units of 8 bytes in the largest packet.
const UNITS: usize = 8_192;

/// Drops by [`Reason`] code.
type Dropped = [u64; REASONS];

/// What the fragments of one packet have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PacketId {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    /// IPv6 fragments of one packet may name different protocols (RFC 8200 4.5), so 0 there.
    pub(crate) protocol: u8,
    pub(crate) id: u32,
    pub(crate) from: Port,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// The first fragment has not come.
    Waiting,
    Admitted(Rewrite),
    Refused(Reason),
}

impl State {
    /// Which budget its packet is of: 0 where no first fragment proved a flow, 1 where one did.
    const fn budget(&self) -> usize {
        matches!(self, Self::Admitted(_)) as usize
    }
}

/// Fragments that wait for the first of their packet.
type Held = [Option<Buffer>; HELD_PER_PACKET_MAX];

#[derive(Debug)]
struct Entry {
    id: PacketId,
    /// The source's place among [`SOURCES`].
    source: usize,
    born: Instant,
    state: State,
    /// Units that have come.
    units: u16,
    /// End of the last unit that has come, and of the packet when it is known.
    end_seen: u16,
    end: Option<u16>,
    held: Held,
    held_len: usize,
}

/// What leaves next.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Released {
    /// A fragment as it came, to be rewritten.
    Fragment(Rewrite),
    /// Part of a packet that was cut here, and the port where it leaves.
    Piece(Port),
}

/// Packets in virtual reassembly and the fragments that wait.
#[derive(Debug)]
pub(crate) struct Fragments {
    entries: Slab<Entry>,
    /// Which units of each entry's packet have come.
    maps: Box<[[u64; UNITS / 64]]>,
    by_id: Index,
    /// Packets of each budget, in all and by source.
    used: [u32; 2],
    by_source: [Box<[u16]>; 2],
    /// Buffers that wait for a first fragment, by source.
    held_by_source: Box<[u16]>,
    packets_max: u32,
    buffers: Pool,
    /// Buffers that leave next.
    ready: Queue<(Buffer, Released)>,
    hasher: Hasher,
    timeout: Duration,
    due: Option<Instant>,
}

impl Fragments {
    pub(crate) fn new(config: &Forwarding, hash_key: &[u8; 16]) -> Self {
        let packets_max = u32::from(config.fragmented_packets_max.max(1));
        let entries = packets_max * 2;
        let buffers = u32::from(config.fragments_held_max);
        let buffer_len = usize::from(config.mtu[0].max(config.mtu[1]));
        let by_source = || vec![0; SOURCES].into_boxed_slice();
        Self {
            entries: Slab::new("fragmented_packets", entries),
            maps: vec![[0; UNITS / 64]; entries as usize].into_boxed_slice(),
            by_id: Index::new("fragmented_packets", entries, entries),
            used: [0; 2],
            by_source: [by_source(), by_source()],
            held_by_source: by_source(),
            packets_max,
            buffers: Pool::new("fragments_held", buffers, buffer_len),
            ready: Queue::new("fragments_ready", buffers),
            hasher: Hasher::new(hash_key),
            timeout: config.fragments_wait,
            due: None,
        }
    }

    /// Packets whose first fragment proved a flow, those whose first fragment has not come or was refused, and buffers.
    pub(crate) fn gauges(&self) -> [Gauge; 3] {
        let gauge = |name, used: u32| Gauge { name, used: used.into(), max: self.packets_max.into() };
        [
            gauge("fragmented_packets", self.used[1]),
            gauge("fragmented_packets_waiting", self.used[0]),
            self.buffers.gauge(),
        ]
    }

    pub(crate) const fn next_due(&self) -> Option<Instant> {
        self.due
    }

    fn hash(&self, id: &PacketId) -> u64 {
        let mut input = [0; 38];
        input[..16].copy_from_slice(&octets(id.src));
        input[16..32].copy_from_slice(&octets(id.dst));
        input[32..36].copy_from_slice(&id.id.to_le_bytes());
        (input[36], input[37]) = (id.protocol, id.from.0);
        self.hasher.hash(&input)
    }

    pub(crate) fn find(&self, id: &PacketId) -> Option<u32> {
        let is_it = |at: &u32| self.entries.get(*at).is_some_and(|entry| entry.id == *id);
        self.by_id.matches(self.hash(id)).find(is_it)
    }

    pub(crate) fn state(&self, at: u32) -> Option<State> {
        self.entries.get(at).map(|entry| entry.state)
    }

    /// The packet's entry, made now if there is none. One that waits always finds a place.
    pub(crate) fn find_or_add(&mut self, now: Instant, id: PacketId, dropped: &mut Dropped) -> Result<u32, Reason> {
        if let Some(at) = self.find(&id) {
            return Ok(at);
        }
        let source = self.hasher.hash(&octets(id.src)) as usize % SOURCES;
        let state = State::Waiting;
        self.make_room(state.budget(), source, dropped);
        let held = Held::default();
        let entry = Entry { id, source, born: now, state, units: 0, end_seen: 0, end: None, held, held_len: 0 };
        let at = self.entries.insert(entry).map_err(|_| Reason::FragmentTableFull)?.index();
        self.maps[at as usize].fill(0);
        self.by_id.insert(self.hash(&id), at);
        self.count(state.budget(), source, true);
        self.due = Some(self.due.unwrap_or(now + self.timeout).min(now + self.timeout));
        Ok(at)
    }

    fn count(&mut self, budget: usize, source: usize, is_in: bool) {
        let by_source = &mut self.by_source[budget][source];
        if is_in {
            self.used[budget] += 1;
            *by_source += 1;
        } else {
            self.used[budget] -= 1;
            *by_source -= 1;
        }
    }

    /// Evicts until one more packet of this source and budget has a place: the source's own oldest where it has its
    /// share, else the oldest of the source that has most.
    fn make_room(&mut self, budget: usize, source: usize, dropped: &mut Dropped) {
        let has_share = budget == 0 && self.by_source[budget][source] >= WAITING_PER_SOURCE_MAX;
        if has_share {
            self.evict(budget, source, dropped);
        } else if self.used[budget] >= self.packets_max {
            let most = most(&self.by_source[budget], source);
            self.evict(budget, most, dropped);
        }
    }

    /// Gives up the oldest packet of a source.
    fn evict(&mut self, budget: usize, source: usize, dropped: &mut Dropped) {
        if let Some(at) = self.oldest(|entry| entry.source == source && entry.state.budget() == budget) {
            dropped[Reason::FragmentTableFull as usize] += self.remove(at);
        }
    }

    /// The oldest of those packets that are `meant`.
    fn oldest(&self, meant: impl Fn(&Entry) -> bool) -> Option<u32> {
        self.entries.iter().filter(|(_, entry)| meant(entry)).min_by_key(|(_, entry)| entry.born).map(|(at, _)| at)
    }

    /// Forgets a packet and what is held of it; gives how many fragments that were.
    pub(crate) fn remove(&mut self, at: u32) -> u64 {
        let Some(entry) = self.entries.remove(at) else { return 0 };
        self.count(entry.state.budget(), entry.source, false);
        self.by_id.remove(at);
        self.free_held(entry.source, entry.held)
    }

    /// Frees what was held of a packet; gives how many fragments that were.
    fn free_held(&mut self, source: usize, held: Held) -> u64 {
        let mut count = 0;
        for buffer in held.into_iter().flatten() {
            self.buffers.free(buffer);
            count += 1;
        }
        self.held_by_source[source] -= count;
        count.into()
    }

    /// Gives a packet another state, and what was held of it to the caller.
    fn change(&mut self, at: u32, state: State) -> Option<(usize, Held)> {
        let entry = self.entries.get_mut(at)?;
        let (source, before) = (entry.source, core::mem::replace(&mut entry.state, state).budget());
        entry.held_len = 0;
        let held = core::mem::take(&mut entry.held);
        self.count(before, source, false);
        self.count(state.budget(), source, true);
        Some((source, held))
    }

    fn free_buffers(&self) -> usize {
        (self.buffers.max() - self.buffers.used()) as usize
    }

    /// Frees `count` buffers, if need be at the cost of the sources that hold most of them.
    fn make_free(&mut self, count: usize, source: usize, dropped: &mut Dropped) {
        while self.free_buffers() < count {
            let most = most(&self.held_by_source, source);
            if self.held_by_source[most] == 0 {
                return;
            }
            let before = self.free_buffers();
            let Some(at) = self.oldest(|entry| entry.source == most && entry.held_len > 0) else { return };
            dropped[Reason::FragmentTableFull as usize] += self.remove(at);
            debug_assert!(self.free_buffers() > before, "what held buffers gave them back");
        }
    }

    /// Notes that this part came.
    ///
    /// # Errors
    /// [`Reason::FragmentInvalid`] if part of it was there already (RFC 5722), or it lies behind the end.
    pub(crate) fn note(&mut self, at: u32, fragment: &Fragment, len: usize) -> Result<(), Reason> {
        let Some(entry) = self.entries.get_mut(at) else { return Err(Reason::FragmentInvalid) };
        let start = usize::from(fragment.offset.units());
        let end = start + len.div_ceil(8);
        let known_end = entry.end.map(usize::from);
        let fits = match (fragment.more, known_end) {
            (true, Some(known)) => end <= known,
            (true, None) => true,
            (false, Some(known)) => end == known,
            (false, None) => end >= usize::from(entry.end_seen),
        };
        if !fits || end > UNITS {
            return Err(Reason::FragmentInvalid);
        }
        let map = &mut self.maps[at as usize];
        let has = |unit: usize| map[unit / 64] >> (unit % 64) & 1 != 0;
        if (start..end).any(has) {
            return Err(Reason::FragmentInvalid);
        }
        (start..end).for_each(|unit| map[unit / 64] |= 1 << (unit % 64));
        entry.units += (end - start) as u16;
        entry.end_seen = entry.end_seen.max(end as u16);
        if !fragment.more {
            entry.end = Some(end as u16);
        }
        Ok(())
    }

    pub(crate) fn is_complete(&self, at: u32) -> bool {
        self.entries.get(at).is_some_and(|entry| entry.end == Some(entry.units))
    }

    pub(crate) fn hold(&mut self, at: u32, bytes: &[u8], dropped: &mut Dropped) -> Result<(), Reason> {
        let full = Reason::FragmentTableFull;
        let packet = self.entries.handle(at).ok_or(full)?;
        let source = self.entries.get(at).filter(|entry| entry.held_len < HELD_PER_PACKET_MAX).ok_or(full)?.source;
        self.make_free(1, source, dropped);
        // Its own packet may have given way.
        let entry = self.entries.at_mut(packet).ok_or(full)?;
        let place = entry.held.get_mut(entry.held_len).ok_or(full)?;
        *place = Some(self.buffers.store(bytes).ok_or(full)?);
        entry.held_len += 1;
        self.held_by_source[source] += 1;
        Ok(())
    }

    /// The first fragment was admitted: what waited for it may leave. It always finds a place.
    pub(crate) fn admit(&mut self, at: u32, passage: Rewrite, dropped: &mut Dropped) {
        let Some(source) = self.entries.get(at).map(|entry| entry.source) else { return };
        self.make_room(1, source, dropped);
        let Some((_, held)) = self.change(at, State::Admitted(passage)) else { return };
        for buffer in held.into_iter().rev().flatten() {
            self.held_by_source[source] -= 1;
            if let Err((buffer, _)) = self.ready.push((buffer, Released::Fragment(passage))) {
                // Cannot be: there is room for every buffer.
                self.buffers.free(buffer);
            }
        }
        if self.is_complete(at) {
            self.remove(at);
        }
    }

    /// The first fragment was refused: so is what waited for it, and what comes of it still.
    pub(crate) fn refuse(&mut self, at: u32, reason: Reason, dropped: &mut Dropped) {
        let Some((source, held)) = self.change(at, State::Refused(reason)) else { return };
        dropped[reason as usize] += self.free_held(source, held);
    }

    /// Gives up packets whose fragments did not come in time.
    pub(crate) fn expire(&mut self, now: Instant, dropped: &mut Dropped) {
        if self.due.is_none_or(|due| now < due) {
            return;
        }
        self.due = None;
        for at in 0..self.entries.max() {
            let Some(entry) = self.entries.get(at) else { continue };
            let end = entry.born + self.timeout;
            if end <= now {
                dropped[Reason::FragmentTimeout as usize] += self.remove(at);
            } else {
                self.due = Some(self.due.unwrap_or(end).min(end));
            }
        }
    }

    /// Cuts an IPv4 packet that is longer than the next link's MTU (RFC 791 3.2, RFC 4787 REQ-13a): the first part
    /// stays in `frame`, the others follow by `poll_output`.
    ///
    /// Parts leave at once, so fragments that only wait give way to them.
    pub(crate) fn split(
        &mut self,
        ip: &mut Summary,
        frame: &mut Frame<'_>,
        (to, mtu): (Port, usize),
        dropped: &mut Dropped,
    ) -> Result<(), Reason> {
        let part_len = mtu.saturating_sub(ipv4::HEADER_LEN) & !7;
        let data_len = ip.total_len - ipv4::HEADER_LEN;
        if !ip.src.is_ipv4() || part_len == 0 {
            return Err(Reason::PacketTooBig);
        }
        let parts = data_len.div_ceil(part_len) - 1;
        self.make_free(parts.min(self.buffers.max() as usize), 0, dropped);
        if parts > self.free_buffers() {
            return Err(Reason::PacketTooBig);
        }
        let base = ip.fragment.map_or(0, |fragment| fragment.offset.bytes());
        let is_last = ip.fragment.is_none_or(|fragment| !fragment.more);
        let mut at = part_len;
        while at < data_len {
            let end = (at + part_len).min(data_len);
            let bytes = frame.bytes();
            let data = bytes.get(ipv4::HEADER_LEN + at..ipv4::HEADER_LEN + end).unwrap_or_default();
            let more = end < data_len || !is_last;
            let header = bytes.get(..ipv4::HEADER_LEN).unwrap_or_default();
            let piece = self.buffers.store_parts(&[header, data]).ok_or(Reason::FragmentTableFull)?;
            cut(self.buffers.bytes_mut(&piece), base + at, more);
            self.ready.push((piece, Released::Piece(to))).map_err(|_| Reason::FragmentTableFull)?;
            at = end;
        }
        frame.truncate(ipv4::HEADER_LEN + part_len);
        cut(frame.bytes_mut(), base, true);
        let part = ipv4::Packet::new_unchecked(frame.bytes());
        (ip.total_len, ip.fragment) = (part.total_len(), part.fragment());
        Ok(())
    }

    /// Moves the next packet that leaves into `frame`. Call until `None`.
    ///
    /// # Errors
    /// [`Reason::TransmitFull`] if the frame has no room for it.
    pub(crate) fn release(&mut self, frame: &mut Frame<'_>) -> Option<Result<Released, Reason>> {
        let (buffer, what) = self.ready.pop()?;
        let copied = frame.replace(self.buffers.bytes(&buffer));
        self.buffers.free(buffer);
        Some(copied.map(|()| what).ok_or(Reason::TransmitFull))
    }
}

/// Writes length and place into the header of one part.
fn cut(bytes: &mut [u8], offset: usize, more: bool) {
    let len = bytes.len() as u16;
    let mut packet = ipv4::Packet::new_unchecked(bytes);
    packet.set_total_len(len);
    packet.set_fragmentation(false, more, FragmentOffset::from_units((offset / 8) as u16));
    packet.fill_checksum();
}

/// The source with the highest count; `source` if it is one of those.
fn most(counts: &[u16], source: usize) -> usize {
    let own = counts.get(source).copied().unwrap_or_default();
    let highest = counts.iter().enumerate().max_by_key(|(_, count)| **count);
    highest.filter(|(_, count)| **count > own).map_or(source, |(at, _)| at)
}
