use core::{
    fmt::Debug,
    sync::atomic::{AtomicU64, Ordering, fence},
    time::Duration,
};

use sluicegate_wire::Instant;

use crate::{Key, Key4, Key6};

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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

/// One direction of one flow in one or two cache lines, as the kernel program reads it.
///
/// Six words follow the key (little-endian C order; bytes 16-63 for IPv4, 80-127 for IPv6):
///
/// | word | contents |
/// |---|---|
/// | 0 | generation 4 (odd: being written), owner 4 |
/// | 1 | translated address 4, translated port 2, flags 2 |
/// | 2 | bytes lent and not spent 4, last seen 4 ([`Tick`]) |
/// | 3 | union: end 4, limit 4 |
/// | 4 | union: end of the other side 4, window 2, window of the other side 2 |
/// | 5 | union: index of the other direction's line 4, state 1, both scales 1, notes 2 |
///
/// Only the owner thread calls what takes a new value. Loads and stores are relaxed: the generation word orders them
/// for other readers.
pub trait Line: Default + Debug {
    /// The key of this family.
    type Key: Key;

    /// Whether this is the line of `key`.
    fn matches(&self, key: &Self::Key) -> bool;
    /// The stored key; meaningless in a free line.
    fn key(&self) -> Self::Key;
    #[doc(hidden)]
    fn store_key(&self, key: Option<&Self::Key>);
    #[doc(hidden)]
    fn word(&self, index: usize) -> &AtomicU64;

    /// Changes with every insertion and every freeing; even while the line may be read.
    #[inline]
    fn generation(&self) -> u32 {
        self.word(0).load(RELAXED) as u32
    }

    /// Index of the pinhole that the line belongs to.
    #[inline]
    fn owner(&self) -> u32 {
        (self.word(0).load(RELAXED) >> 32) as u32
    }

    /// Translated address, translated port, flags.
    #[inline]
    fn rewrite(&self) -> (u32, u16, u16) {
        let word = self.word(1).load(RELAXED);
        (word as u32, (word >> 32) as u16, (word >> 48) as u16)
    }

    /// Bytes that the line may still spend.
    #[inline]
    fn lent(&self) -> u32 {
        self.word(2).load(RELAXED) as u32
    }

    /// When its last packet came.
    #[inline]
    fn seen(&self) -> Tick {
        Tick((self.word(2).load(RELAXED) >> 32) as u32)
    }

    /// Spends `bytes` of what is lent and notes the time; `false`, and only the time noted, if not that much is lent.
    #[inline]
    fn spend(&self, bytes: u32, seen: Tick) -> bool {
        let lent = self.word(2).load(RELAXED) as u32;
        let rest = lent.checked_sub(bytes);
        self.word(2).store(u64::from(seen.0) << 32 | u64::from(rest.unwrap_or(lent)), RELAXED);
        rest.is_some()
    }

    /// Replaces what is lent.
    fn set_lent(&self, lent: u32) {
        let word = self.word(2).load(RELAXED);
        self.word(2).store(word & !0xffff_ffff | u64::from(lent), RELAXED);
    }

    /// Notes that a packet came.
    #[inline]
    fn touch(&self, seen: Tick) {
        let word = self.word(2).load(RELAXED);
        self.word(2).store(u64::from(seen.0) << 32 | word & 0xffff_ffff, RELAXED);
    }

    /// The TCP numbers.
    #[inline]
    fn tcp(&self) -> TcpHalf {
        let (a, b, c) = (self.word(3).load(RELAXED), self.word(4).load(RELAXED), self.word(5).load(RELAXED));
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
        self.word(3).store(u64::from(half.limit) << 32 | u64::from(half.end), RELAXED);
        let windows = u64::from(half.peer_window) << 48 | u64::from(half.window) << 32;
        self.word(4).store(windows | u64::from(half.peer_end), RELAXED);
        let shifts = u64::from(half.peer_shift << 4 | half.shift & 15) << 40;
        let rest = self.word(5).load(RELAXED) & !(0xff << 40);
        self.word(5).store(rest | shifts, RELAXED);
    }

    /// Index of the other direction's line.
    #[inline]
    fn peer(&self) -> u32 {
        self.word(5).load(RELAXED) as u32
    }

    /// The state that the owner keeps.
    #[inline]
    fn state(&self) -> u8 {
        (self.word(5).load(RELAXED) >> 32) as u8
    }

    /// The owner's notes, which change during the line's life.
    #[inline]
    fn notes(&self) -> u16 {
        (self.word(5).load(RELAXED) >> 48) as u16
    }

    /// Names the other direction's line.
    fn set_peer(&self, peer: u32) {
        let rest = self.word(5).load(RELAXED) & !0xffff_ffff;
        self.word(5).store(rest | u64::from(peer), RELAXED);
    }

    /// Replaces state and notes.
    fn set_state(&self, state: u8, notes: u16) {
        let rest = self.word(5).load(RELAXED) & 0x0000_ff00_ffff_ffff;
        self.word(5).store(rest | u64::from(state) << 32 | u64::from(notes) << 48, RELAXED);
    }

    #[doc(hidden)]
    fn fill(&self, key: &Self::Key, entry: &Entry) {
        let generation = self.begin_write();
        self.store_key(Some(key));
        let rewrite = u64::from(entry.flags) << 48 | u64::from(entry.new_port) << 32 | u64::from(entry.new_address);
        self.word(1).store(rewrite, RELAXED);
        self.word(2).store(u64::from(entry.seen.0) << 32, RELAXED);
        for index in 3..6 {
            self.word(index).store(0, RELAXED);
        }
        self.end_write(generation, entry.owner);
    }

    #[doc(hidden)]
    fn clear(&self) {
        let generation = self.begin_write();
        self.store_key(None);
        for index in 1..6 {
            self.word(index).store(0, RELAXED);
        }
        self.end_write(generation, u32::MAX);
    }

    #[doc(hidden)]
    fn begin_write(&self) -> u32 {
        let generation = self.generation().wrapping_add(1) | 1;
        self.word(0).store(u64::from(u32::MAX) << 32 | u64::from(generation), RELAXED);
        fence(Ordering::Release);
        generation
    }

    #[doc(hidden)]
    fn end_write(&self, generation: u32, owner: u32) {
        let word = u64::from(owner) << 32 | u64::from(generation.wrapping_add(1));
        self.word(0).store(word, Ordering::Release);
    }
}

/// A line for IPv4: 64 bytes, one cache line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Line4 {
    words: [AtomicU64; 8],
}

/// A line for IPv6: 128 bytes. The key takes bytes 0-39; bytes 40-79 are kept for translated addresses.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct Line6 {
    words: [AtomicU64; 16],
}

macro_rules! line_family {
    ($line:ident, $key:ident, $key_words:literal, $first:literal) => {
        impl Line for $line {
            type Key = $key;

            #[inline]
            fn matches(&self, key: &$key) -> bool {
                // Words are compared without an early exit: one branch.
                self.words.iter().zip(key.0).fold(0, |diff, (word, other)| diff | (word.load(RELAXED) ^ other)) == 0
            }

            fn key(&self) -> $key {
                let mut words = [0; $key_words];
                for (to, word) in words.iter_mut().zip(&self.words) {
                    *to = word.load(RELAXED);
                }
                $key(words)
            }

            fn store_key(&self, key: Option<&$key>) {
                let words = key.map_or([0; $key_words], |key| key.0);
                for (word, value) in self.words.iter().zip(words) {
                    word.store(value, RELAXED);
                }
            }

            #[inline]
            fn word(&self, index: usize) -> &AtomicU64 {
                &self.words[$first + index]
            }
        }
    };
}

line_family!(Line4, Key4, 2, 2);
line_family!(Line6, Key6, 5, 10);

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;
    use crate::Kind;

    #[test]
    fn a_line_is_one_cache_line_for_ipv4_and_two_for_ipv6() {
        assert_eq!((size_of::<Line4>(), align_of::<Line4>()), (64, 64));
        assert_eq!((size_of::<Line6>(), align_of::<Line6>()), (128, 128));
    }

    #[test]
    fn no_field_disturbs_another() {
        let line = Line4::default();
        let key = Key4::new(Kind::Inbound, 6, (Ipv4Addr::LOCALHOST, 1), (Ipv4Addr::BROADCAST, 2));
        let entry = Entry { owner: 7, new_address: 0xdead_beef, new_port: 443, flags: 0x8001, seen: Tick(9) };
        line.fill(&key, &entry);
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
        line.set_lent(1_000);
        assert!(line.spend(400, Tick(10)) && !line.spend(601, Tick(11)));
        line.touch(Tick(12));
        assert_eq!((line.lent(), line.seen()), (600, Tick(12)));
        assert_eq!((line.peer(), line.state(), line.notes()), (0x1234_5678, 0xab, 0xcdef));
        assert_eq!(line.tcp(), half);
        assert_eq!(line.rewrite(), (0xdead_beef, 443, 0x8001));
        assert_eq!((line.owner(), line.key()), (7, key));
    }

    #[test]
    fn the_generation_is_even_at_rest_and_changes_with_every_use() {
        let line = Line4::default();
        let key = Key4::new(Kind::Inbound, 6, (Ipv4Addr::LOCALHOST, 1), (Ipv4Addr::BROADCAST, 2));
        let entry = Entry { owner: 7, new_address: 0, new_port: 0, flags: 0, seen: Tick(0) };
        let mut last = line.generation();
        for _ in 0..3 {
            line.fill(&key, &entry);
            assert!(line.matches(&key) && line.generation() != last && line.generation().is_multiple_of(2));
            last = line.generation();
            line.clear();
            assert!(!line.matches(&key) && line.generation() != last && line.generation().is_multiple_of(2));
            last = line.generation();
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
