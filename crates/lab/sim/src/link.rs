//! One direction of a link: rate, delay, a bounded queue, and what goes wrong on it.

use std::{collections::VecDeque, time::Duration};

use sluicegate_scheduler::{self as scheduler, LinkScheduler};
use sluicegate_wire::FrameBuf;

use crate::{Interface, NodeId, Rng};

/// One direction of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub(crate) usize);

/// What holds packets while the link is busy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Queue {
    /// First in, first out; a packet that would make the backlog longer than this many bytes is dropped.
    DropTail {
        /// The longest backlog, in bytes.
        bytes_max: u64,
    },
    /// The product's link scheduler, which paces to its own rate: that of the link, or less.
    Scheduled(scheduler::Config),
}

/// How one direction of a link behaves.
#[derive(Debug, Clone)]
pub struct LinkConfig {
    /// Bits of IP packets per second.
    pub rate_bps: u64,
    /// Propagation delay.
    pub delay: Duration,
    /// What holds packets while the link is busy.
    pub queue: Queue,
    /// What goes wrong.
    pub faults: Faults,
}

impl LinkConfig {
    /// A link with a drop-tail queue of 50 ms, and no faults.
    #[must_use]
    pub const fn new(rate_bps: u64, delay: Duration) -> Self {
        let bytes_max = rate_bps / 8 / 20;
        Self { rate_bps, delay, queue: Queue::DropTail { bytes_max }, faults: Faults::NONE }
    }

    /// The same with a link scheduler.
    #[must_use]
    pub fn with_scheduler(mut self, config: scheduler::Config) -> Self {
        self.queue = Queue::Scheduled(config);
        self
    }
}

/// What goes wrong on a link, in parts per million of its packets, each drawn by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Faults {
    /// Packets that vanish.
    pub loss_ppm: u32,
    /// Packets that arrive twice.
    pub duplicate_ppm: u32,
    /// Packets that arrive later than those behind them.
    pub reorder_ppm: u32,
    /// How much later.
    pub reorder_delay: Duration,
    /// Packets of which one bit arrives changed.
    pub corrupt_ppm: u32,
}

impl Faults {
    /// A perfect link.
    pub const NONE: Self =
        Self { loss_ppm: 0, duplicate_ppm: 0, reorder_ppm: 0, reorder_delay: Duration::ZERO, corrupt_ppm: 0 };
}

/// What one direction of a link has done. Packets still on it are in none of the last three counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinkStats {
    /// Packets handed to the link.
    pub offered: u64,
    /// Packets that its queue refused.
    pub refused: u64,
    /// Packets that a fault took away.
    pub lost: u64,
    /// Packets that reached the far end, duplicates included.
    pub arrived: u64,
    /// Their bytes.
    pub arrived_bytes: u64,
}

/// Watches every packet that a link delivers: its arrival in nanoseconds and its bytes.
pub(crate) type Tap = Box<dyn FnMut(u64, &[u8])>;

pub(crate) struct Link {
    pub(crate) to: (NodeId, Interface),
    pub(crate) config: LinkConfig,
    /// If [`Queue::Scheduled`]: what holds the packets.
    pub(crate) scheduler: Option<Box<LinkScheduler<FrameBuf>>>,
    /// When the scheduler will be asked next, in nanoseconds.
    pub(crate) armed_ns: Option<u64>,
    pub(crate) stats: LinkStats,
    pub(crate) is_up: bool,
    pub(crate) tap: Option<Tap>,
    /// Ordinal numbers of offered packets that will be lost, ascending.
    pub(crate) doomed: VecDeque<u64>,
    pub(crate) rng: Rng,
    /// When the link has sent all that it holds, in nanoseconds.
    free_at_ns: u64,
}

/// What happens to a packet that is put on a link.
pub(crate) enum Passage {
    Lost,
    /// It arrives then, in nanoseconds, and perhaps a second time.
    Arrives(u64, Option<u64>),
}

impl Link {
    pub(crate) fn new(to: (NodeId, Interface), config: LinkConfig, mut rng: Rng) -> Self {
        assert!(config.rate_bps > 0, "a link has a rate");
        let scheduler = match &config.queue {
            Queue::Scheduled(config) => Some(Box::new(LinkScheduler::new(config, &rng.key()))),
            Queue::DropTail { .. } => None,
        };
        Self {
            to,
            config,
            scheduler,
            armed_ns: None,
            stats: LinkStats::default(),
            is_up: true,
            tap: None,
            doomed: VecDeque::new(),
            rng,
            free_at_ns: 0,
        }
    }

    /// Whether the drop-tail queue takes a packet of `len` bytes.
    pub(crate) fn has_room(&self, now_ns: u64, len: usize) -> bool {
        let Queue::DropTail { bytes_max } = self.config.queue else { return true };
        let backlog_ns = u128::from(self.free_at_ns.saturating_sub(now_ns));
        let backlog = backlog_ns * u128::from(self.config.rate_bps) / 8_000_000_000;
        backlog == 0 || backlog + len as u128 <= u128::from(bytes_max)
    }

    /// Puts a packet behind what the link still has to send.
    pub(crate) fn transmit(&mut self, now_ns: u64, packet: &mut FrameBuf) -> Passage {
        let len = packet.bytes().len() as u64;
        let serialization_ns = (u128::from(len) * 8_000_000_000).div_ceil(u128::from(self.config.rate_bps));
        self.free_at_ns = self.free_at_ns.max(now_ns) + serialization_ns as u64;
        let faults = self.config.faults;
        let is_doomed = self.doomed.front().is_some_and(|ordinal| *ordinal <= self.stats.offered);
        if is_doomed {
            self.doomed.pop_front();
        }
        if is_doomed || !self.is_up || self.rng.chance(faults.loss_ppm) {
            self.stats.lost += 1;
            return Passage::Lost;
        }
        if self.rng.chance(faults.corrupt_ppm) && len > 0 {
            let bit = self.rng.below(len * 8) as usize;
            packet.with(|frame| frame.bytes_mut()[bit / 8] ^= 1 << (bit % 8));
        }
        let mut at = self.free_at_ns + nanos(self.config.delay);
        if self.rng.chance(faults.reorder_ppm) {
            at += nanos(faults.reorder_delay);
        }
        let again = self.rng.chance(faults.duplicate_ppm).then_some(at + serialization_ns as u64);
        Passage::Arrives(at, again)
    }
}

pub(crate) const fn nanos(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}
