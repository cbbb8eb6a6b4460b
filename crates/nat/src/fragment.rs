//! Fragments by virtual reassembly: the first fragment is judged like a packet, and its decision holds for the others.
//! Nothing is put together, nothing overlaps, and memory is bounded (RFC 4787 REQ-14, RFC 8900).

use alloc::{boxed::Box, collections::VecDeque, vec, vec::Vec};
use core::{net::IpAddr, time::Duration};

use sluicegate_flow::Hasher;
use sluicegate_wire::{
    Frame, Instant, Port, Reason,
    ip::{Fragment, FragmentOffset, Summary},
    ipv4,
};

use crate::{
    Translator,
    config::{Config, Mode},
    counters::Counters,
    flows::{CHARGED, Family, Flows},
    lifecycle::charge,
    mac::{Evidence, Permission},
    packet::Packet,
    passage::Passage,
    pinhole::octets,
    rules::Rules,
    translator::Fate,
};

/// Packets in reassembly between the same two addresses: bounds what one (spoofed) source can take.
const WAYS: usize = 8;
/// Fragments of one packet held before its first fragment came.
const HELD_PER_PACKET_MAX: u8 = 8;
/// Units of 8 bytes in the largest packet.
const UNITS: usize = 8_192;
const NO_BUFFER: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PacketId {
    src: IpAddr,
    dst: IpAddr,
    /// IPv6 fragments of one packet may name different protocols (RFC 8200 4.5), so 0 there.
    protocol: u8,
    id: u32,
    from: Port,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The first fragment has not come.
    Waiting,
    Admitted(Passage),
    Refused(Reason),
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    id: PacketId,
    born: Instant,
    state: State,
    /// Units that have come.
    units: u16,
    /// End of the last unit that has come, and of the packet when it is known.
    end_seen: u16,
    end: Option<u16>,
    held: u32,
    held_len: u8,
}

#[derive(Debug, Clone, Copy)]
struct Buffer {
    len: u16,
    next: u32,
}

/// What [`Translator::poll_output`] gives next.
#[derive(Debug, Clone, Copy)]
enum Ready {
    /// A fragment as it came, to be rewritten.
    Fragment(u32, Passage),
    /// Part of a packet that was cut here.
    Piece(u32, Port),
}

/// Packets in virtual reassembly and the fragments that wait.
#[derive(Debug)]
pub(crate) struct Fragments {
    entries: Box<[Option<Entry>]>,
    /// Which units of each entry's packet have come.
    maps: Box<[[u64; UNITS / 64]]>,
    used: u32,
    buffers: Box<[Buffer]>,
    bytes: Box<[u8]>,
    buffer_len: usize,
    free: Vec<u32>,
    ready: VecDeque<Ready>,
    hasher: Hasher,
    timeout: Duration,
    due: Option<Instant>,
}

impl Fragments {
    pub(crate) fn new(config: &Config, hash_key: &[u8; 16]) -> Self {
        let sets = usize::from(config.fragmented_packets_max).div_ceil(WAYS).max(1).next_power_of_two();
        let buffers = usize::from(config.fragments_held_max);
        let buffer_len = usize::from(config.mtu[0].max(config.mtu[1]));
        Self {
            entries: vec![None; sets * WAYS].into_boxed_slice(),
            maps: vec![[0; UNITS / 64]; sets * WAYS].into_boxed_slice(),
            used: 0,
            buffers: vec![Buffer { len: 0, next: NO_BUFFER }; buffers].into_boxed_slice(),
            bytes: vec![0; buffers * buffer_len].into_boxed_slice(),
            buffer_len,
            free: (0..buffers as u32).rev().collect(),
            ready: VecDeque::with_capacity(buffers),
            hasher: Hasher::new(hash_key),
            timeout: config.timers.fragments,
            due: None,
        }
    }

    pub(crate) fn packets_used_and_max(&self) -> (u32, u32) {
        (self.used, self.entries.len() as u32)
    }

    pub(crate) fn held_used_and_max(&self) -> (u32, u32) {
        ((self.buffers.len() - self.free.len()) as u32, self.buffers.len() as u32)
    }

    pub(crate) const fn next_due(&self) -> Option<Instant> {
        self.due
    }

    fn set(&self, id: &PacketId) -> core::ops::Range<usize> {
        let mut input = [0; 32];
        input[..16].copy_from_slice(&octets(id.src));
        input[16..].copy_from_slice(&octets(id.dst));
        let set = self.hasher.hash(&input) as usize & (self.entries.len() / WAYS - 1);
        set * WAYS..(set + 1) * WAYS
    }

    fn find(&self, id: &PacketId) -> Option<usize> {
        self.set(id).find(|at| self.entries[*at].is_some_and(|entry| entry.id == *id))
    }

    /// The packet's entry, made now if there is none.
    fn find_or_add(&mut self, now: Instant, id: PacketId) -> Result<usize, Reason> {
        if let Some(at) = self.find(&id) {
            return Ok(at);
        }
        let at = self.set(&id).find(|at| self.entries[*at].is_none()).ok_or(Reason::FragmentTableFull)?;
        let state = State::Waiting;
        self.entries[at] =
            Some(Entry { id, born: now, state, units: 0, end_seen: 0, end: None, held: NO_BUFFER, held_len: 0 });
        self.maps[at].fill(0);
        self.used += 1;
        self.due = Some(self.due.unwrap_or(now + self.timeout).min(now + self.timeout));
        Ok(at)
    }

    /// Forgets a packet and what is held of it; gives how many fragments that were.
    fn remove(&mut self, at: usize) -> u32 {
        let Some(entry) = self.entries[at].take() else { return 0 };
        self.used -= 1;
        let mut count = 0;
        let mut buffer = entry.held;
        while buffer != NO_BUFFER {
            let next = self.buffers[buffer as usize].next;
            self.free.push(buffer);
            buffer = next;
            count += 1;
        }
        count
    }

    /// Notes that this part came.
    ///
    /// # Errors
    /// [`Reason::FragmentInvalid`] if part of it was there already (RFC 5722), or it lies behind the end.
    fn note(&mut self, at: usize, fragment: &Fragment, len: usize) -> Result<(), Reason> {
        let Some(entry) = self.entries[at].as_mut() else { return Err(Reason::FragmentInvalid) };
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
        let map = &mut self.maps[at];
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

    fn is_complete(&self, at: usize) -> bool {
        self.entries[at].is_some_and(|entry| entry.end == Some(entry.units))
    }

    /// Copies a packet into a free buffer.
    fn store(&mut self, bytes: &[u8]) -> Option<u32> {
        if bytes.len() > self.buffer_len {
            return None;
        }
        let buffer = self.free.pop()?;
        let start = buffer as usize * self.buffer_len;
        self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        self.buffers[buffer as usize] = Buffer { len: bytes.len() as u16, next: NO_BUFFER };
        Some(buffer)
    }

    fn hold(&mut self, at: usize, bytes: &[u8]) -> Result<(), Reason> {
        let count = self.entries[at].map_or(0, |entry| entry.held_len);
        if count >= HELD_PER_PACKET_MAX {
            return Err(Reason::FragmentTableFull);
        }
        let buffer = self.store(bytes).ok_or(Reason::FragmentTableFull)?;
        if let Some(entry) = self.entries[at].as_mut() {
            self.buffers[buffer as usize].next = entry.held;
            entry.held = buffer;
            entry.held_len += 1;
        }
        Ok(())
    }

    /// The first fragment was admitted: what waited for it may leave.
    fn admit(&mut self, at: usize, passage: Passage) {
        let Some(entry) = self.entries[at].as_mut() else { return };
        entry.state = State::Admitted(passage);
        let mut buffer = core::mem::replace(&mut entry.held, NO_BUFFER);
        entry.held_len = 0;
        while buffer != NO_BUFFER {
            let next = self.buffers[buffer as usize].next;
            self.ready.push_back(Ready::Fragment(buffer, passage));
            buffer = next;
        }
        if self.is_complete(at) {
            self.remove(at);
        }
    }

    /// The first fragment was refused: so is what waited for it.
    fn refuse(&mut self, at: usize, reason: Reason, counters: &mut Counters) {
        let Some(entry) = self.entries[at].as_mut() else { return };
        if entry.held == NO_BUFFER {
            self.remove(at);
            return;
        }
        entry.state = State::Refused(reason);
        let kept = Entry { held: NO_BUFFER, held_len: 0, ..*entry };
        for _ in 0..self.remove(at) {
            counters.count_drop(reason);
        }
        self.entries[at] = Some(kept);
        self.used += 1;
    }

    /// Gives up packets whose fragments did not come in time.
    pub(crate) fn expire(&mut self, now: Instant, counters: &mut Counters) {
        if self.due.is_none_or(|due| now < due) {
            return;
        }
        self.due = None;
        for at in 0..self.entries.len() {
            let Some(entry) = self.entries[at] else { continue };
            let end = entry.born + self.timeout;
            if end <= now {
                for _ in 0..self.remove(at) {
                    counters.count_drop(Reason::FragmentTimeout);
                }
            } else {
                self.due = Some(self.due.unwrap_or(end).min(end));
            }
        }
    }

    /// Cuts an IPv4 packet that is longer than the next link's MTU (RFC 791 3.2, RFC 4787 REQ-13a): the first part
    /// stays in `frame`, the others follow by `poll_output`.
    pub(crate) fn split(&mut self, ip: &Summary, frame: &mut Frame<'_>, to: Port, mtu: usize) -> Result<(), Reason> {
        let part_len = mtu.saturating_sub(ipv4::HEADER_LEN) & !7;
        let data_len = ip.total_len - ipv4::HEADER_LEN;
        if !ip.src.is_ipv4() || part_len == 0 || data_len.div_ceil(part_len) > self.free.len() + 1 {
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
            let piece = self.store_piece(bytes.get(..ipv4::HEADER_LEN).unwrap_or_default(), data, base + at, more);
            self.ready.push_back(Ready::Piece(piece.ok_or(Reason::FragmentTableFull)?, to));
            at = end;
        }
        frame.truncate(ipv4::HEADER_LEN + part_len);
        cut(frame.bytes_mut(), base, true);
        Ok(())
    }

    fn store_piece(&mut self, header: &[u8], data: &[u8], offset: usize, more: bool) -> Option<u32> {
        let buffer = self.store(header)?;
        let start = buffer as usize * self.buffer_len;
        let end = start + header.len() + data.len();
        let place = self.bytes.get_mut(start..end)?;
        place[header.len()..].copy_from_slice(data);
        cut(place, offset, more);
        self.buffers[buffer as usize].len = (header.len() + data.len()) as u16;
        Some(buffer)
    }

    /// Moves the next waiting packet into `frame`.
    fn take(&mut self, frame: &mut Frame<'_>) -> Option<(Result<Port, Passage>, Option<()>)> {
        let (buffer, what) = match self.ready.pop_front()? {
            Ready::Piece(buffer, to) => (buffer, Ok(to)),
            Ready::Fragment(buffer, passage) => (buffer, Err(passage)),
        };
        let start = buffer as usize * self.buffer_len;
        let len = usize::from(self.buffers[buffer as usize].len);
        let copied = frame.replace(&self.bytes[start..start + len]);
        self.free.push(buffer);
        Some((what, copied))
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

impl Translator {
    /// Judges a fragment.
    #[inline(never)]
    pub(crate) fn judge_fragment(
        &mut self,
        now: Instant,
        from: Port,
        frame: &mut Frame<'_>,
        mut ip: Summary,
        permission: Permission,
    ) -> Result<Fate, Reason> {
        let Some(fragment) = ip.fragment else { return Err(Reason::FragmentInvalid) };
        let protocol = if ip.src.is_ipv4() { ip.protocol.0 } else { 0 };
        let id = PacketId { src: ip.src, dst: ip.dst, protocol, id: fragment.id, from };
        if ip.has_transport_header() {
            return self.judge_first(now, frame, ip, &fragment, (id, permission));
        }
        if self.fragments.find(&id).is_none() {
            // Without ports only the addresses can tell a stranger, and a stranger takes no memory.
            if let Err(reason) = self.check_ends(from, &ip) {
                let host = self.rules.hosts.find(ip.dst).filter(|host| host.mode == Mode::Filter);
                if from == Port::INSIDE || host.is_none() {
                    return Err(reason);
                }
                self.rules.waive(reason)?;
                ip.decrement_ttl(frame.bytes_mut())?;
                return Ok(Fate::Forward(Port::INSIDE));
            }
        }
        let at = self.fragments.find_or_add(now, id)?;
        let state = self.fragments.entries[at].map_or(State::Waiting, |entry| entry.state);
        match state {
            State::Refused(reason) => Err(reason),
            State::Waiting => {
                self.fragments.note(at, &fragment, ip.transport_len())?;
                self.fragments.hold(at, frame.bytes())?;
                Ok(Fate::Held)
            }
            State::Admitted(passage) => {
                self.fragments.note(at, &fragment, ip.transport_len())?;
                if self.fragments.is_complete(at) {
                    self.fragments.remove(at);
                }
                self.follow(now, &passage, ip, frame).map(Fate::Forward)
            }
        }
    }

    fn judge_first(
        &mut self,
        now: Instant,
        frame: &mut Frame<'_>,
        ip: Summary,
        fragment: &Fragment,
        (id, permission): (PacketId, Permission),
    ) -> Result<Fate, Reason> {
        // RFC 1858: a first fragment without the whole transport header is an attack.
        let mut packet = Packet::parse(ip, frame.bytes()).map_err(|reason| match reason {
            Reason::TransportHeaderInvalid => Reason::FragmentInvalid,
            other => other,
        })?;
        if self.check_ends(id.from, &ip).is_err() {
            let evidence = Evidence { permission, bytes: frame.bytes() };
            let passage = self.decide(now, id.from, &packet, &evidence)?;
            return self.send(&passage, &mut packet, frame);
        }
        let at = self.fragments.find_or_add(now, id)?;
        match self.fragments.entries[at].map(|entry| entry.state) {
            Some(State::Refused(reason)) => return Err(reason),
            Some(State::Admitted(_)) => return Err(Reason::FragmentInvalid),
            _ => {}
        }
        let noted = self.fragments.note(at, fragment, ip.transport_len());
        let evidence = Evidence { permission, bytes: frame.bytes() };
        match noted.and_then(|()| self.decide(now, id.from, &packet, &evidence)) {
            Ok(passage) => {
                self.fragments.admit(at, passage);
                self.send(&passage, &mut packet, frame)
            }
            Err(reason) => {
                self.fragments.refuse(at, reason, &mut self.rules.counters);
                Err(reason)
            }
        }
    }

    /// Whether a fragment's addresses can belong to a flow at all.
    fn check_ends(&self, from: Port, ip: &Summary) -> Result<(), Reason> {
        let rules = &self.rules;
        if from == Port::INSIDE {
            return rules.hosts.find(ip.src).map(|_| ()).ok_or(Reason::AddressInvalid);
        }
        if !rules.is_gate(ip.dst) && rules.hosts.find(ip.dst).is_none() {
            return Err(Reason::NotForService);
        }
        if rules.sources.may_contain(ip.src) { Ok(()) } else { Err(Reason::NoPinhole) }
    }

    /// Lets a later fragment follow the first: paid by the same line, rewritten alike.
    fn follow(
        &mut self,
        now: Instant,
        passage: &Passage,
        mut ip: Summary,
        frame: &mut Frame<'_>,
    ) -> Result<Port, Reason> {
        let len = ip.total_len as u32;
        if ip.src.is_ipv4() {
            pay(&self.v4, &mut self.rules, now, passage, len)?;
        } else {
            pay(&self.v6, &mut self.rules, now, passage, len)?;
        }
        passage.apply_addresses(&mut ip, frame.bytes_mut());
        ip.decrement_ttl(frame.bytes_mut())?;
        if !self.rules.fits(ip.total_len, passage.to) {
            let mtu = usize::from(self.rules.config.mtu[usize::from(passage.to.0 & 1)]);
            self.fragments.split(&ip, frame, passage.to, mtu)?;
        }
        Ok(passage.to)
    }

    /// The next packet that waited, ready to leave.
    pub(crate) fn next_held(&mut self, now: Instant, frame: &mut Frame<'_>) -> Option<Result<Port, Reason>> {
        let (what, copied) = self.fragments.take(frame)?;
        if copied.is_none() {
            return Some(Err(Reason::TransmitFull));
        }
        Some(match what {
            Ok(to) => Ok(to),
            Err(passage) => Summary::parse(frame.bytes()).and_then(|ip| self.follow(now, &passage, ip, frame)),
        })
    }
}

fn pay<L: Family>(
    flows: &Flows<L>,
    rules: &mut Rules,
    now: Instant,
    passage: &Passage,
    len: u32,
) -> Result<(), Reason> {
    let Some(line) = passage.line else { return Ok(()) };
    if flows.line(line.index).generation() != line.generation {
        return Err(Reason::NoPinhole);
    }
    let (_, _, flags) = flows.line(line.index).rewrite();
    if passage.to != Port::INSIDE || flags & CHARGED == 0 {
        return Ok(());
    }
    charge(flows, rules, now, line.index, len).or_else(|reason| rules.waive(reason))
}
