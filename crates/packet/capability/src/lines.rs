//! What a router remembers of the capabilities that pass it: lines that count bytes, and revocations.
//!
//! A line exists for a TVA flow (source, destination, client id) whose capability passed its check. It holds N and T to
//! their word with a fixed amount of memory (TVA III-F): used bytes are counted against N, and each packet of L bytes
//! moves the line's time to live L * T / N ahead. Only a line whose ttl has passed may give way to another flow. So a
//! capability carries at most N bytes where no line had to give way, and at most 2N whatever an attacker does.
//!
//! Two rules keep that bound where a flow has several valid capabilities:
//! - **A flow's capabilities are ordered** by the second in which they were minted, then by T, then by N. A newer one
//!   replaces an older one; an older one is refused as spent while the newer one's line is there.
//!   The same capability under another nonce goes on counting where it was. Whoever grants twice within one second must
//!   therefore raise T or N.
//! - **The ttl is never shortened**, not even by a replacement: it starts from where the older capability left it.
//!

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use sluicegate_flow::{Body, Line, Table, WAYS};
use sluicegate_wire::{
    Instant, Reason,
    capability::{FlowNonce, Limits},
};

pub mod model;
mod revocation;
#[cfg(test)]
mod tests;

pub use self::revocation::{REMEMBERED_SECS, Revocations};

/// A set with this many lines in use, or more, is looked at twice before a new line goes there.
const CROWDED: u32 = 6;
/// Room in a set (free, or with a ttl that has passed) at which its other set is not looked at.
const ROOM_ENOUGH: u32 = 3;
const NONCE_MASK: u64 = (1 << 48) - 1;
/// Bytes used are the low bits of their word; above them is the second of the last replacement.
const USED_MASK: u32 = (1 << 24) - 1;
/// What a replaced capability has left is counted in units of so many bytes: sixteen bits hold all of N.
const LEFT_UNIT: u64 = 16;
/// Packets are not overtaken for longer, in seconds of the router's clock.
const OVERTAKEN_SECS: u8 = 1;

/// How many lines a router needs for a link of `link_bps`, if no capability allows less than `least` (TVA III-F:
/// C / (N/T)min). 312,500 for 1 Gbit/s and 4 KB in 10 s.
#[must_use]
pub const fn lines_needed(link_bps: u64, least: Limits) -> u64 {
    (link_bps / 8 * least.seconds() as u64).div_ceil(least.bytes())
}

/// A point in time as a line needs it: for its ttl and for the end of its T seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// On the monotonic clock.
    pub now: Instant,
    /// On the router's clock of capabilities, in seconds; below 2^32.
    pub seconds: u64,
}

/// What a capability that passed its check allows: N bytes until a second of the router's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// N and T.
    pub limits: Limits,
    /// The last second in which it is valid.
    pub expires: u64,
}

impl Allowance {
    /// The second in which the capability was minted.
    #[inline]
    #[must_use]
    pub const fn minted(&self) -> u64 {
        self.expires.saturating_sub(self.limits.seconds() as u64)
    }

    /// The order of a flow's capabilities. Equal only for what is charged to one account. Of those minted within one
    /// second the smaller N is the newer: a destination that renews again within that second takes a kilobyte off, or
    /// it would grant the same capability twice.
    #[inline]
    const fn order(&self) -> u64 {
        let less = (Limits::KILOBYTES_MAX - self.limits.kilobytes()) as u64;
        self.minted() << 16 | (self.limits.seconds() as u64) << 10 | less
    }

    /// What one byte adds to the ttl: T / N in units of 2^-16 ns, rounded up, so that a ttl never ends early.
    #[inline]
    const fn ttl_per_byte(&self) -> u64 {
        ((self.limits.seconds() as u64 * 1_000_000_000) << 16).div_ceil(self.limits.bytes())
    }
}

/// What a line keeps of a capability behind its key (little-endian C order), as the kernel program will read it. The line's
/// owner is the last second of validity.
///
/// | bytes | contents |
/// |---|---|
/// | 0 | flow nonce 6, N and T 2 (as in the header) |
/// | 8 | bytes used 3, second of the last replacement mod 256 1, bytes allowed 4: N |
/// | 16 | when the ttl ends, ns 8 |
/// | 24 | what a byte adds to the ttl, 2^-16 ns 8 |
/// | 32 | of the capability before: flow nonce 6, what is left of its N in units of 16 bytes 2 |
///
/// No capability, and nothing that was computed from a router's secret.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Count {
    nonce: AtomicU64,
    account: AtomicU64,
    ttl_end: AtomicU64,
    per_byte: AtomicU64,
    before: AtomicU64,
}

impl Body for Count {
    fn clear(&self) {
        for word in [&self.nonce, &self.account, &self.ttl_end, &self.per_byte, &self.before] {
            word.store(0, Relaxed);
        }
    }
}

/// The lines of capabilities: memory that is fixed at start, and what may be written where.
///
/// A line has the key of [`sluicegate_flow::Key::of_capability`], and a [`Count`] behind it.
///
/// A sender takes another nonce with each list, and a newer list may overtake what was sent before it. For a second such
/// packets are charged to what the capability before has left, if that does not end earlier.
///
/// Only the owner inserts, replaces and frees, which changes the generation. As long as no kernel program shares the table,
/// the owner also charges, with plain loads and stores; with one, whoever charges must add to account and ttl atomically.
///
/// The table's maximum is its array, so that a line whose ttl has passed costs nothing until another flow needs it.
#[derive(Debug)]
pub struct Lines<L> {
    table: Table<L>,
    reclaimed: u64,
    swept: u32,
}

impl<L: Line<Body = Count>> Lines<L> {
    /// Room for `lines_max` lines whose ttl has not passed, placed by a keyed hash. Allocates once: 8/5 of that,
    /// rounded up to a power of two, times 64 bytes (IPv6: 128).
    #[must_use]
    pub fn new(lines_max: u32, hash_key: &[u8; 16]) -> Self {
        Self { table: Table::new(lines_max, hash_key), reclaimed: 0, swept: 0 }
    }

    /// Lines in use, with those whose ttl has passed.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.table.len()
    }

    /// Whether no line is in use.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Lines in the array.
    #[must_use]
    pub fn lines_max(&self) -> u32 {
        self.table.index_end()
    }

    /// Lines that gave way to another flow after their ttl.
    #[must_use]
    pub const fn reclaimed(&self) -> u64 {
        self.reclaimed
    }

    /// Lines whose ttl has not passed; reads the whole table.
    #[must_use]
    pub fn live(&self, now: Instant) -> u32 {
        let lines = self.table.used_lines(0..self.table.index_end());
        lines.filter(|index| self.ttl_end(*index) > now).count() as u32
    }

    /// The hash that places a key.
    #[inline]
    #[must_use]
    pub fn hash(&self, key: &L::Key) -> u64 {
        self.table.hash(key)
    }

    /// The line of a key.
    #[inline]
    #[must_use]
    pub fn find(&self, hash: u64, key: &L::Key) -> Option<u32> {
        self.table.find(hash, key)
    }

    /// Bytes used of a line, and bytes allowed.
    #[must_use]
    pub fn account(&self, index: u32) -> (u32, u32) {
        let word = self.table.line(index).body().account.load(Relaxed);
        (word as u32 & USED_MASK, (word >> 32) as u32)
    }

    /// When a line may give way to another.
    #[must_use]
    pub fn ttl_end(&self, index: u32) -> Instant {
        Instant::from_nanos(self.table.line(index).body().ttl_end.load(Relaxed))
    }

    /// N, T and the end of validity of a line's capability.
    #[must_use]
    pub fn allowance(&self, index: u32) -> Option<Allowance> {
        allowance(self.table.line(index))
    }

    /// Charges a packet of `len` bytes to a line that its flow nonce names (TVA III-G).
    ///
    /// # Errors
    /// [`Reason::CapabilityUnknown`]: another nonce. [`Reason::CapabilityExpired`], [`Reason::CapabilitySpent`]: T or N
    /// is over. Nothing is charged then.
    #[inline]
    pub fn charge(&mut self, at: Moment, index: u32, nonce: FlowNonce, len: u32) -> Result<(), Reason> {
        let line = self.table.line(index);
        match check_nonce(line, nonce) {
            Ok(()) => take(line, at, len),
            Err(_) if take_before(line, at, nonce, len) => Ok(()),
            Err(reason) => Err(reason),
        }
    }

    /// Charges a packet whose capability has just passed its check: to the line `found`, which it replaces if it is
    /// newer, else to a new one.
    ///
    /// A line is not begun in the last second of validity: clocks tick in whole seconds, so that second may lie behind
    /// the T seconds, and the bound of 2N allows for T seconds of short-lived lines before the last.
    ///
    /// # Errors
    /// [`Reason::CapabilitySpent`]: fewer than `len` bytes are left, or a newer capability has taken the line.
    /// [`Reason::CapabilityExpired`]: T is over. [`Reason::CapabilityTableFull`]: no line may be reclaimed. Nothing is
    /// charged or replaced then.
    pub fn admit(
        &mut self,
        at: Moment,
        (hash, key, found): (u64, &L::Key, Option<u32>),
        nonce: FlowNonce,
        presented: &Allowance,
        len: u32,
    ) -> Result<(), Reason> {
        let granted = presented.limits.bytes() as u32;
        let Some(index) = found else {
            check_begin(at, presented)?;
            let per_byte = presented.ttl_per_byte();
            check_left(len, granted)?;
            let index = self.place(hash, at.now).ok_or(Reason::CapabilityTableFull)?;
            let ttl_end = ttl_after(0, at.now, len, per_byte);
            write(self.table.line(index), key, (nonce, 0), presented, (len, granted), (ttl_end, per_byte));
            return Ok(());
        };
        let line = self.table.line(index);
        let held = allowance(line).map_or(0, |held| held.order());
        if held > presented.order() {
            return Err(Reason::CapabilitySpent);
        }
        if held == presented.order() {
            take(line, at, len)?;
            line.body().nonce.store(nonce_and_limits(nonce, presented.limits), Relaxed);
            return Ok(());
        }
        check_begin(at, presented)?;
        let per_byte = presented.ttl_per_byte();
        check_left(len, granted)?;
        let ttl_end = ttl_after(line.body().ttl_end.load(Relaxed), at.now, len, per_byte);
        let before = left_of(line, at, per_byte);
        let second = (at.seconds as u32) << 24;
        write(line, key, (nonce, before), presented, (second | len, granted), (ttl_end, per_byte));
        Ok(())
    }

    /// Frees the line of a key. Only for a revoked flow: its capabilities must be refused from now on, or they could
    /// start to count anew.
    pub fn revoke(&mut self, hash: u64, key: &L::Key) {
        if let Some(index) = self.find(hash, key) {
            self.table.free(index);
        }
    }

    /// Frees lines in the next `lines` places whose ttl and validity have both passed; starts over at the end.
    pub fn sweep(&mut self, at: Moment, lines: u32) {
        let end = self.swept.saturating_add(lines).min(self.table.index_end());
        for index in self.swept..end {
            let line = self.table.line(index);
            if self.table.is_used(index) && may_give_way(line, at.now) && u64::from(line.owner()) < at.seconds {
                self.table.free(index);
            }
        }
        self.swept = if end == self.table.index_end() { 0 } else { end };
    }

    /// Takes the line of a key as the need of another flow would, if its ttl has passed.
    pub(super) fn give_way(&mut self, now: Instant, key: &L::Key) {
        let found = self.find(self.hash(key), key).filter(|index| may_give_way(self.table.line(*index), now));
        if let Some(index) = found {
            self.table.free(index);
            self.reclaimed += 1;
        }
    }

    /// A free line in a set of the hash, if need be by reclaiming the one whose ttl passed first.
    fn place(&mut self, hash: u64, now: Instant) -> Option<u32> {
        let (first, second) = self.table.sets(hash);
        if self.table.ways_used(first) < CROWDED {
            return self.table.take_way(first, hash);
        }
        let (room_first, oldest_first) = self.room(first, now);
        let (set, oldest) = if room_first >= ROOM_ENOUGH {
            (first, oldest_first)
        } else {
            let (room_second, oldest_second) = self.room(second, now);
            if room_second > room_first { (second, oldest_second) } else { (first, oldest_first) }
        };
        if self.table.ways_used(set) == WAYS as u32 {
            self.table.free(oldest?);
            self.reclaimed += 1;
        }
        self.table.take_way(set, hash)
    }

    /// How many places of a set can be had, and which line's ttl passed first.
    fn room(&self, set: u32, now: Instant) -> (u32, Option<u32>) {
        let mut room = WAYS as u32 - self.table.ways_used(set);
        let (mut oldest, mut oldest_end) = (None, now.as_nanos() + 1);
        for (index, line) in (set * WAYS as u32..).zip(self.table.set_lines(set)) {
            // A free line's ttl is zero; no line in use has that, since a packet has bytes.
            let end = line.body().ttl_end.load(Relaxed);
            room += u32::from(end != 0 && end <= now.as_nanos());
            if end != 0 && end < oldest_end {
                (oldest, oldest_end) = (Some(index), end);
            }
        }
        (room, oldest)
    }
}

#[inline]
const fn check_begin(at: Moment, presented: &Allowance) -> Result<(), Reason> {
    if at.seconds < presented.expires { Ok(()) } else { Err(Reason::CapabilityExpired) }
}

#[inline]
fn check_nonce<L: Line<Body = Count>>(line: &L, nonce: FlowNonce) -> Result<(), Reason> {
    if (line.body().nonce.load(Relaxed) ^ nonce.0) & NONCE_MASK == 0 { Ok(()) } else { Err(Reason::CapabilityUnknown) }
}

#[inline]
const fn check_left(len: u32, left: u32) -> Result<(), Reason> {
    if len <= left { Ok(()) } else { Err(Reason::CapabilitySpent) }
}

#[inline]
fn take<L: Line<Body = Count>>(line: &L, at: Moment, len: u32) -> Result<(), Reason> {
    if u64::from(line.owner()) < at.seconds {
        return Err(Reason::CapabilityExpired);
    }
    let account = line.body().account.load(Relaxed);
    let (used, allowed) = (account as u32 & USED_MASK, (account >> 32) as u32);
    check_left(len, allowed.saturating_sub(used))?;
    line.body().account.store(account + u64::from(len), Relaxed);
    let ttl_end = ttl_after(line.body().ttl_end.load(Relaxed), at.now, len, line.body().per_byte.load(Relaxed));
    line.body().ttl_end.store(ttl_end, Relaxed);
    Ok(())
}

/// Charges a packet that a newer list has overtaken to what the capability before has left.
#[cold]
fn take_before<L: Line<Body = Count>>(line: &L, at: Moment, nonce: FlowNonce, len: u32) -> bool {
    let (word, account) = (line.body().before.load(Relaxed), line.body().account.load(Relaxed));
    let units = u64::from(len).div_ceil(LEFT_UNIT);
    let since = (at.seconds as u8).wrapping_sub((account >> 24) as u8);
    // The line's own capability lives for less than a turn of the eight bits.
    let is_soon = since <= OVERTAKEN_SECS && u64::from(line.owner()) >= at.seconds;
    let may = is_soon && (word ^ nonce.0) & NONCE_MASK == 0 && word >> 48 >= units;
    if may {
        line.body().before.store(word - (units << 48), Relaxed);
        // Twice, because a byte of the capability before may have added up to twice as much.
        let ttl_end = ttl_after(line.body().ttl_end.load(Relaxed), at.now, len * 2, line.body().per_byte.load(Relaxed));
        line.body().ttl_end.store(ttl_end, Relaxed);
    }
    may
}

/// Nonce and rest of a line that a newer capability takes over, where a byte adds `per_byte` to the ttl: nothing if the
/// rest would end while packets are overtaken, or its bytes would need more than twice the ttl.
fn left_of<L: Line<Body = Count>>(line: &L, at: Moment, per_byte: u64) -> u64 {
    let account = line.body().account.load(Relaxed);
    let left = (account >> 32).saturating_sub(account & u64::from(USED_MASK)) / LEFT_UNIT;
    let left = left.min(u64::from(u16::MAX));
    let holds = u64::from(line.owner()) > at.seconds + u64::from(OVERTAKEN_SECS);
    if holds && line.body().per_byte.load(Relaxed) / 2 <= per_byte {
        left << 48 | line.body().nonce.load(Relaxed) & NONCE_MASK
    } else {
        0
    }
}

/// The ttl's end after `bytes` more: L * T / N behind its old end, or behind `now` if that has passed.
#[inline]
fn ttl_after(ttl_end: u64, now: Instant, bytes: u32, per_byte: u64) -> u64 {
    ttl_end.max(now.as_nanos()).saturating_add((u64::from(bytes).saturating_mul(per_byte)).div_ceil(1 << 16))
}

fn may_give_way<L: Line<Body = Count>>(line: &L, now: Instant) -> bool {
    line.body().ttl_end.load(Relaxed) <= now.as_nanos()
}

#[inline]
const fn nonce_and_limits(nonce: FlowNonce, limits: Limits) -> u64 {
    (limits.bits() as u64) << 48 | nonce.0 & NONCE_MASK
}

#[inline]
fn allowance<L: Line<Body = Count>>(line: &L) -> Option<Allowance> {
    let limits = Limits::from_bits((line.body().nonce.load(Relaxed) >> 48) as u16)?;
    Some(Allowance { limits, expires: u64::from(line.owner()) })
}

fn write<L: Line<Body = Count>>(
    line: &L,
    key: &L::Key,
    (nonce, before): (FlowNonce, u64),
    allowance: &Allowance,
    (used, allowed): (u32, u32),
    (ttl_end, per_byte): (u64, u64),
) {
    let generation = line.begin_write();
    line.store_key(Some(key));
    line.body().nonce.store(nonce_and_limits(nonce, allowance.limits), Relaxed);
    line.body().account.store(u64::from(allowed) << 32 | u64::from(used), Relaxed);
    line.body().ttl_end.store(ttl_end, Relaxed);
    line.body().per_byte.store(per_byte, Relaxed);
    line.body().before.store(before, Relaxed);
    line.end_write(generation, u32::try_from(allowance.expires).unwrap_or(u32::MAX));
}
