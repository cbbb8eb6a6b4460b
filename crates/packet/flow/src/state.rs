use core::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use sluicegate_wire::Instant;

use crate::{Body, Lent, Line, Table};

const RELAXED: Ordering = Ordering::Relaxed;

/// Coarse time in a line: 2^24 ns (16.8 ms) since the start of the clock, wrapping after 2.3 years.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tick(pub u32);

impl Tick {
    const SHIFT: u32 = 24;

    /// The tick in which `now` lies.
    #[inline]
    #[must_use]
    pub const fn at(now: Instant) -> Self {
        Self((now.as_nanos() >> Self::SHIFT) as u32)
    }

    /// How long ago this tick began, at most one tick too much.
    #[must_use]
    pub const fn age(self, now: Instant) -> Duration {
        let ticks = Self::at(now).0.wrapping_sub(self.0);
        // A tick ahead of `now` is a clock that stood still, not one that ran for two years.
        if ticks > u32::MAX / 2 { Duration::ZERO } else { Duration::from_nanos((ticks as u64) << Self::SHIFT) }
    }

    /// The tick `age` before `now`, also where that lies before the start of the clock.
    #[must_use]
    pub const fn before(now: Instant, age: Duration) -> Self {
        Self(Self::at(now).0.wrapping_sub(age.as_nanos().div_ceil(1 << Self::SHIFT) as u32))
    }
}

/// What a line is made with. The key comes on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Index of the pinhole that the line belongs to.
    pub owner: u32,
    /// The translated address as 32 bits (IPv4 only).
    pub new_address: u32,
    /// The translated port or ICMP identifier.
    pub new_port: u16,
    /// What the owner noted about the line; fixed for its life.
    pub flags: u16,
    /// When it was made.
    pub seen: Tick,
}

/// What a line knows about the TCP connection: numbers of its own direction, and those of the other direction that its
/// own packets are checked against, so that a packet reads one line and writes two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TcpHalf {
    /// One past the highest sequence number that this direction's sender has sent.
    pub end: u32,
    /// One past the highest sequence number that it may send: the other side's acknowledgement + window.
    pub limit: u32,
    /// `end` of the other direction.
    pub peer_end: u32,
    /// Largest window that this sender offered, unscaled (shift by `shift`).
    pub window: u16,
    /// Largest window that the other side offered, unscaled (shift by `peer_shift`).
    pub peer_window: u16,
    /// Window scale of this sender, 0 to 14 (RFC 7323 2.2).
    pub shift: u8,
    /// Window scale of the other side.
    pub peer_shift: u8,
}

/// What is known of one direction of one flow, in the order in which the kernel program reads it.
///
/// | bytes | contents |
/// |---|---|
/// | 0 | translated address 4, translated port 2, flags 2 |
/// | 8 | bytes lent and not spent 4 ([`Lent`]) |
/// | 12 | last seen 4 ([`Tick`]) |
/// | 16 | union: end 4, limit 4 |
/// | 24 | union: end of the other side 4, window 2, window of the other side 2 |
/// | 32 | union: index of the other direction's line 4, state 1, both scales 1, notes 2 |
#[derive(Debug, Default)]
#[repr(C)]
pub struct Flow {
    rewrite: AtomicU64,
    lent: Lent,
    seen: AtomicU32,
    end: AtomicU64,
    peer_end: AtomicU64,
    peer: AtomicU64,
}

impl Body for Flow {
    fn clear(&self) {
        let _ = self.lent.reclaim();
        self.seen.store(0, RELAXED);
        for word in [&self.rewrite, &self.end, &self.peer_end, &self.peer] {
            word.store(0, RELAXED);
        }
    }
}

/// One direction of one flow. Any thread may call [`Self::spend`] and [`Self::touch`].
pub trait FlowLine: Line<Body = Flow> {
    /// Translated address, translated port, flags.
    #[inline]
    fn rewrite(&self) -> (u32, u16, u16) {
        let word = self.body().rewrite.load(RELAXED);
        (word as u32, (word >> 32) as u16, (word >> 48) as u16)
    }

    /// Bytes that the line may still spend.
    #[inline]
    fn lent(&self) -> &Lent {
        &self.body().lent
    }

    /// When its last packet came.
    #[inline]
    fn seen(&self) -> Tick {
        Tick(self.body().seen.load(RELAXED))
    }

    /// Spends `bytes` of what is lent and notes the time; `false`, and only the time noted, if not that much is lent.
    #[inline]
    fn spend(&self, bytes: u32, seen: Tick) -> bool {
        self.touch(seen);
        self.lent().spend(bytes)
    }

    /// Notes that a packet came.
    #[inline]
    fn touch(&self, seen: Tick) {
        self.body().seen.store(seen.0, RELAXED);
    }

    /// The TCP numbers.
    #[inline]
    fn tcp(&self) -> TcpHalf {
        let (a, b, c) =
            (self.body().end.load(RELAXED), self.body().peer_end.load(RELAXED), self.body().peer.load(RELAXED));
        let shifts = (c >> 40) as u8;
        TcpHalf {
            end: a as u32,
            limit: (a >> 32) as u32,
            peer_end: b as u32,
            window: (b >> 32) as u16,
            peer_window: (b >> 48) as u16,
            shift: shifts & 15,
            peer_shift: shifts >> 4,
        }
    }

    /// Replaces the TCP numbers.
    #[inline]
    fn set_tcp(&self, half: &TcpHalf) {
        self.body().end.store(u64::from(half.limit) << 32 | u64::from(half.end), RELAXED);
        let windows = u64::from(half.peer_window) << 48 | u64::from(half.window) << 32;
        self.body().peer_end.store(windows | u64::from(half.peer_end), RELAXED);
        let shifts = u64::from(half.peer_shift << 4 | half.shift & 15) << 40;
        let rest = self.body().peer.load(RELAXED) & !(0xff << 40);
        self.body().peer.store(rest | shifts, RELAXED);
    }

    /// Index of the other direction's line.
    #[inline]
    fn peer(&self) -> u32 {
        self.body().peer.load(RELAXED) as u32
    }

    /// The state that the owner keeps.
    #[inline]
    fn state(&self) -> u8 {
        (self.body().peer.load(RELAXED) >> 32) as u8
    }

    /// The owner's notes, which change during the line's life.
    #[inline]
    fn notes(&self) -> u16 {
        (self.body().peer.load(RELAXED) >> 48) as u16
    }

    /// Names the other direction's line.
    fn set_peer(&self, peer: u32) {
        let rest = self.body().peer.load(RELAXED) & !0xffff_ffff;
        self.body().peer.store(rest | u64::from(peer), RELAXED);
    }

    /// Replaces state and notes.
    fn set_state(&self, state: u8, notes: u16) {
        let rest = self.body().peer.load(RELAXED) & 0x0000_ff00_ffff_ffff;
        self.body().peer.store(rest | u64::from(state) << 32 | u64::from(notes) << 48, RELAXED);
    }
}

impl<L: Line<Body = Flow>> FlowLine for L {}

impl<L: FlowLine> Table<L> {
    /// Makes the line of `key`, which must not be there yet. `None`: the table, or both sets of the key, are full.
    pub fn insert(&mut self, hash: u64, key: &L::Key, entry: &Entry) -> Option<u32> {
        let index = self.take(hash, key)?;
        let line = self.line(index);
        let generation = line.begin_write();
        line.store_key(Some(key));
        line.body().clear();
        let rewrite = u64::from(entry.flags) << 48 | u64::from(entry.new_port) << 32 | u64::from(entry.new_address);
        line.body().rewrite.store(rewrite, RELAXED);
        line.touch(entry.seen);
        line.end_write(generation, entry.owner);
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;
    use crate::{Key as _, Key4, Kind, Line4};

    #[test]
    fn no_field_disturbs_another() {
        let mut table: Table<Line4> = Table::new(1, &[0; 16]);
        let key = Key4::new(Kind::Inbound, 6, (Ipv4Addr::LOCALHOST, 1), (Ipv4Addr::BROADCAST, 2));
        let entry = Entry { owner: 7, new_address: 0xdead_beef, new_port: 443, flags: 0x8001, seen: Tick(9) };
        let index = table.insert(table.hash(&key), &key, &entry).expect("room for one");
        let line = table.line(index);
        let half = TcpHalf {
            end: u32::MAX,
            limit: 1,
            peer_end: u32::MAX - 1,
            window: u16::MAX,
            peer_window: 3,
            shift: 14,
            peer_shift: 7,
        };
        line.set_peer(0x1234_5678);
        line.set_state(0xab, 0xcdef);
        line.set_tcp(&half);
        line.lent().add(1_000);
        assert!(line.spend(400, Tick(10)) && !line.spend(601, Tick(11)));
        line.touch(Tick(12));
        assert_eq!((line.lent().get(), line.seen()), (600, Tick(12)));
        assert_eq!((line.peer(), line.state(), line.notes()), (0x1234_5678, 0xab, 0xcdef));
        assert_eq!(line.tcp(), half);
        assert_eq!(line.rewrite(), (0xdead_beef, 443, 0x8001));
        assert_eq!((line.owner(), line.key()), (7, key));
    }

    #[test]
    fn the_generation_is_even_at_rest_and_changes_with_every_use() {
        let mut table: Table<Line4> = Table::new(1, &[0; 16]);
        let key = Key4::new(Kind::Inbound, 6, (Ipv4Addr::LOCALHOST, 1), (Ipv4Addr::BROADCAST, 2));
        let entry = Entry { owner: 7, new_address: 0, new_port: 0, flags: 0, seen: Tick(0) };
        let mut last = 0;
        for _ in 0..3 {
            let index = table.insert(table.hash(&key), &key, &entry).expect("room for one");
            let generation = table.line(index).generation();
            assert!(table.line(index).matches(&key) && generation != last && generation.is_multiple_of(2));
            table.free(index);
            last = table.line(index).generation();
            assert!(!table.line(index).matches(&key) && generation != last && last.is_multiple_of(2));
        }
    }

    #[test]
    fn ticks_measure_age_across_their_wrap() {
        let now = Instant::from_secs(40_000_000_000 / 1_000);
        let seen = Tick::before(now, Duration::from_secs(10));
        let age = seen.age(now);
        assert!(age >= Duration::from_secs(10) && age <= Duration::from_millis(10_034), "{age:?}");
        assert_eq!(Tick(Tick::at(now).0.wrapping_add(1)).age(now), Duration::ZERO);
        assert_eq!(Tick(u32::MAX).age(Instant::from_nanos(1 << 24)), Duration::from_nanos(2 << 24));
    }
}
