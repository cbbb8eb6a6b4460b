//! The link scheduler: which packet leaves next over a link that cannot carry all.
//!
//! Four lanes ([`Lane`]), paced to the link's rate. After control and requests have had their shares come regular
//! packets, then control beyond its share, then legacy, and requests beyond their share only when nobody else waits.
//! All memory is taken at construction; every operation is O(1) in the number of packets and queues (the request lane:
//! O(depth), and with [`Weights::Known`] so on average, because light queues are passed over).
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod config;
mod known;
mod pace;
mod packets;
mod regular;
mod request;

pub use config::{Config, Label, Lane, Merge, Weights};
pub use known::{KnownPaths, KnownPathsError};
use sluicegate_bounded::Gauge;
use sluicegate_wire::{Instant, Reason};

use self::{
    pace::Pace,
    packets::Fifo,
    regular::{Pushed, Regular},
    request::Requests,
};
use sluicegate_flow::Hasher;

/// Path identifiers that request queues are told apart by.
pub const DEPTH_MAX: usize = 5;
/// The most request queues.
pub const QUEUES_MAX: u32 = 200_000;

/// What became of a packet offered to the link.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a packet that is not queued comes back and must be sent or freed"]
pub enum Offered<T> {
    /// The link is free: send this packet now. It has been charged.
    Pass(T),
    /// It waits; [`LinkScheduler::poll`] will hand it out.
    Queued,
    /// It waits, and this other packet had to make room.
    Displaced(T, Reason),
    /// It may not wait.
    Refused(T, Reason),
}

/// What happened to the packets of one lane so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LaneCounters {
    /// Packets sent, whether they waited or not.
    pub sent: u64,
    /// Their bytes on the link.
    pub sent_bytes: u64,
    /// Packets that waited, or wait still.
    pub queued: u64,
    /// Packets that waited and made room for another.
    pub displaced: u64,
    /// Packets that found no room.
    pub refused: u64,
}

/// One link's egress. `T` is the caller's handle of a packet.
///
/// **Every packet that is offered comes back exactly once**: at once (passed or refused), later from [`Self::poll`], or
/// displaced by another offer. After an offer that did not pass, and after a poll that gave a packet, poll again;
/// otherwise poll at [`Self::poll_timeout`]. Time never goes back.
///
/// ```
/// use sluicegate_scheduler::{Config, Label, LinkScheduler, Offered};
/// use sluicegate_wire::Instant;
///
/// let mut link = LinkScheduler::new(&Config::for_rate(1_000_000), &[7; 16]);
/// let mut passed = 0;
/// while let Offered::Pass(_) = link.offer(Instant::ZERO, &Label::LEGACY, 1_500, passed) {
///     passed += 1;
/// }
/// assert_eq!(link.poll(Instant::ZERO), None, "the burst is used up");
/// let at = link.poll_timeout().unwrap();
/// assert_eq!(link.poll(at), Some(passed));
/// ```
#[derive(Debug)]
pub struct LinkScheduler<T> {
    link: Pace,
    request_share: Pace,
    control_share: Pace,
    overhead_bytes: u32,
    waiting: u32,
    control: Fifo<T>,
    request: Requests<T>,
    regular: Regular<T>,
    legacy: Fifo<T>,
    counters: [LaneCounters; 4],
}

impl<T> LinkScheduler<T> {
    /// An idle link. `hash_key` is a secret, so that no sender can choose which queues its packets meet in.
    #[must_use]
    pub fn new(config: &Config, hash_key: &[u8; 16]) -> Self {
        let hasher = Hasher::new(hash_key);
        // The second word multiplies: it must not be even.
        let secret = |label: u8| [hasher.hash(&[label, 0]), hasher.hash(&[label, 1]) | 1];
        let bytes_per_s = config.rate_bps / 8;
        let share = |permille: u16| bytes_per_s / 1_000 * u64::from(permille.min(1_000));
        let max = |lane: Lane| config.packets_max[lane as usize];
        let quantum = config.quantum_bytes.max(config.packet_bytes_max).max(1);
        Self {
            link: Pace::new(bytes_per_s, config.burst_bytes),
            request_share: Pace::new(share(config.request_permille), config.share_burst_bytes),
            control_share: Pace::new(share(config.control_permille), config.share_burst_bytes),
            overhead_bytes: config.overhead_bytes,
            waiting: 0,
            control: Fifo::new("link_control_packets", max(Lane::Control)),
            request: Requests::new(config, secret(1)),
            regular: Regular::new(max(Lane::Regular), config.sender_packets_max, quantum, [secret(2), secret(3)]),
            legacy: Fifo::new("link_legacy_packets", max(Lane::Legacy)),
            counters: [LaneCounters::default(); 4],
        }
    }

    /// Offers a packet of `len` bytes to the link. An idle link costs a few nanoseconds.
    #[inline]
    pub fn offer(&mut self, now: Instant, label: &Label, len: usize, item: T) -> Offered<T> {
        if self.pass(now, label.lane, len) {
            return Offered::Pass(item);
        }
        self.queue(label, self.bytes_on_link(len), item)
    }

    /// The first half of [`Self::offer`], for a caller who would have to copy a packet to let it wait: whether a packet
    /// of `len` bytes may be sent now. If so, it has been charged; if not, offer it.
    #[inline]
    #[must_use = "a packet that may pass has been charged and must be sent"]
    pub fn pass(&mut self, now: Instant, lane: Lane, len: usize) -> bool {
        let is_free = self.waiting == 0 && self.link.is_ready(now);
        if is_free {
            self.charge(now, lane, self.bytes_on_link(len), true);
        }
        is_free
    }

    /// The packet to send now, if one waits and the link is free.
    #[inline]
    pub fn poll(&mut self, now: Instant) -> Option<T> {
        if self.waiting == 0 || !self.link.is_ready(now) {
            return None;
        }
        let lane = self.next_lane(now)?;
        let others = self.waiting - self.lane_waiting(lane);
        let (item, bytes) = match lane {
            Lane::Control => self.control.pop(),
            Lane::Request => self.request.pop(),
            Lane::Regular => self.regular.pop(),
            Lane::Legacy => self.legacy.pop(),
        }?;
        self.waiting -= 1;
        self.charge(now, lane, bytes, others == 0);
        Some(item)
    }

    /// When [`Self::poll`] will have a packet; `None` while nothing waits. May lie in the past.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        (self.waiting > 0).then(|| self.link.ready_at())
    }

    /// Whether nothing waits. (The link may still be busy with what it was given last.)
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        self.waiting == 0
    }

    /// The most packets that may wait, in all lanes together: a pool of one slot more is never empty when a packet is
    /// offered.
    #[must_use]
    pub fn packets_max(&self) -> u32 {
        let (control, request) = (self.control.packets().max(), self.request.packets().max());
        control + request + self.regular.packets().max() + self.legacy.packets().max()
    }

    /// Replaces the table of known paths and gives the old one back. Queues that exist keep what they were made with.
    pub fn set_known_paths(&mut self, known: KnownPaths) -> KnownPaths {
        self.request.know(known)
    }

    /// What happened to the packets of `lane` so far.
    #[must_use]
    pub const fn counters(&self, lane: Lane) -> &LaneCounters {
        &self.counters[lane as usize]
    }

    /// Request queues that were split, and request queues that were given up to make room for others, so far.
    #[must_use]
    pub const fn splits_and_merges(&self) -> (u64, u64) {
        self.request.splits_and_merges()
    }

    /// Request queues in use at each level, nearest first.
    #[must_use]
    pub fn request_queues_by_level(&self) -> [u32; DEPTH_MAX] {
        self.request.queues_by_level()
    }

    /// How full each table is: packets in the order of [`Lane::ALL`], request queues, queues of the regular lane.
    #[must_use]
    pub fn gauges(&self) -> [Gauge; 6] {
        [
            self.control.packets().gauge(),
            self.request.packets().gauge(),
            self.regular.packets().gauge(),
            self.legacy.packets().gauge(),
            self.request.queues(),
            self.regular.senders(),
        ]
    }

    fn bytes_on_link(&self, len: usize) -> u32 {
        u32::try_from(len).unwrap_or(u32::MAX).saturating_add(self.overhead_bytes)
    }

    fn queue(&mut self, label: &Label, bytes: u32, item: T) -> Offered<T> {
        let lane = label.lane;
        let fifo = |pushed: Result<(), T>| pushed.map_or_else(Pushed::Refused, |()| Pushed::Queued);
        let pushed = match lane {
            Lane::Control => fifo(self.control.push(item, bytes)),
            Lane::Request => self.request.push(&label.path.map(|tag| tag.0), item, bytes),
            Lane::Regular => self.regular.push((label.queue, label.sender), label.weight, item, bytes),
            Lane::Legacy => fifo(self.legacy.push(item, bytes)),
        };
        let counters = &mut self.counters[lane as usize];
        match pushed {
            Pushed::Refused(item) => {
                counters.refused += 1;
                Offered::Refused(item, lane.reason())
            }
            Pushed::Queued => {
                counters.queued += 1;
                self.waiting += 1;
                Offered::Queued
            }
            Pushed::Displaced(item) => {
                counters.queued += 1;
                counters.displaced += 1;
                Offered::Displaced(item, lane.reason())
            }
        }
    }

    /// The lane whose turn it is; some lane has packets.
    fn next_lane(&mut self, now: Instant) -> Option<Lane> {
        let [control, request, regular, legacy] = Lane::ALL.map(|lane| self.lane_waiting(lane) > 0);
        let order = [
            (control && self.control_share.is_ready(now), Lane::Control),
            (request && self.request_share.is_ready(now), Lane::Request),
            (regular, Lane::Regular),
            (control, Lane::Control),
            (legacy, Lane::Legacy),
            (request, Lane::Request),
        ];
        order.into_iter().find_map(|(is_next, lane)| is_next.then_some(lane))
    }

    #[inline]
    fn lane_waiting(&self, lane: Lane) -> u32 {
        match lane {
            Lane::Control => self.control.packets().used(),
            Lane::Request => self.request.packets().used(),
            Lane::Regular => self.regular.packets().used(),
            Lane::Legacy => self.legacy.packets().used(),
        }
    }

    /// Charges a packet that goes now to the link and to its lane's share.
    #[inline]
    fn charge(&mut self, now: Instant, lane: Lane, bytes: u32, is_alone: bool) {
        self.link.charge(bytes);
        let counters = &mut self.counters[lane as usize];
        counters.sent += 1;
        counters.sent_bytes += u64::from(bytes);
        let share = match lane {
            Lane::Control => &mut self.control_share,
            Lane::Request => &mut self.request_share,
            Lane::Regular | Lane::Legacy => return,
        };
        if share.is_ready(now) && !is_alone {
            share.charge(bytes);
        } else {
            share.charge_spare(bytes);
        }
    }
}

/// A keyed multiplication folded onto itself: spreads what senders choose over the buckets of a queue table, in two
/// nanoseconds. Senders see neither the key nor the hash; what they could learn from timing is which queues are
/// neighbours, which is why nothing but an index depends on it.
#[inline]
const fn fold(value: u64, key: u64) -> u64 {
    let product = value as u128 * key as u128;
    product as u64 ^ (product >> 64) as u64
}
