use sluicegate_wire::{Reason, capability::PathId};

use super::DEPTH_MAX;

/// So many senders' full queues have room at a time.
const SENDERS: u32 = 4;

/// Which part of the link a packet competes for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Lane {
    /// Signalling of known peers: has a share of its own.
    Control = 0,
    /// Requests for capabilities: a small, strictly limited share.
    Request = 1,
    /// Packets with permission.
    Regular = 2,
    /// What is left.
    Legacy = 3,
}

impl Lane {
    /// All lanes, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Control, Self::Request, Self::Regular, Self::Legacy];

    /// The stable name in counters and documentation.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Request => "request",
            Self::Regular => "regular",
            Self::Legacy => "legacy",
        }
    }

    /// Why a packet of this lane was dropped.
    #[must_use]
    pub const fn reason(self) -> Reason {
        match self {
            Self::Control => Reason::ControlQueue,
            Self::Request => Reason::RequestQueue,
            Self::Regular => Reason::RegularQueue,
            Self::Legacy => Reason::LegacyQueue,
        }
    }
}

/// What the scheduler must know of a packet besides its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label {
    /// The lane.
    pub lane: Lane,
    /// Regular: names the fair queue (a destination, a source or a prefix, as the operator wants fairness between).
    pub queue: u128,
    /// Regular: within that queue, whose packet it is; senders take turns. 0 where nothing tells them apart.
    pub sender: u128,
    /// Regular: turns of that queue for each turn of a queue of weight 1; 0 counts as 1. A queue keeps the weight of
    /// its first packet until it is empty.
    pub weight: u16,
    /// Request: path identifiers, most recent first, [`PathId::NONE`] after the last.
    pub path: [PathId; DEPTH_MAX],
}

impl Label {
    /// Signalling of a known peer.
    pub const CONTROL: Self = Self::of(Lane::Control);
    /// A packet without claim.
    pub const LEGACY: Self = Self::of(Lane::Legacy);

    /// A request that came this way.
    #[must_use]
    pub const fn request(path: [PathId; DEPTH_MAX]) -> Self {
        Self { path, ..Self::of(Lane::Request) }
    }

    /// A packet with permission.
    #[must_use]
    pub const fn regular(queue: u128, weight: u16) -> Self {
        Self { queue, weight, ..Self::of(Lane::Regular) }
    }

    /// The same, of this sender.
    #[must_use]
    pub const fn from(self, sender: u128) -> Self {
        Self { sender, ..self }
    }

    const fn of(lane: Lane) -> Self {
        Self { lane, queue: 0, sender: 0, weight: 1, path: [PathId::NONE; DEPTH_MAX] }
    }
}

/// Which request queue is given up when a new one is wanted and none is left. Its packets join what its parent holds
/// for paths without a queue of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum Merge {
    /// The oldest of the deepest ones, and none that lies nearer than the new one (TVA III-B): far paths share first.
    #[default]
    DeepestFirst,
    /// The oldest of those that no known path explains, below the branch that has most of them (OUR-2): made-up paths
    /// share first. Without unknown queues, or without known paths, as [`Self::DeepestFirst`].
    LargestExcess,
}

/// How request queues of one branch share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Weights {
    /// Equally (TVA V-C).
    #[default]
    Equal,
    /// By the number of known paths behind each (OUR-1). All queues that no known path explains share together, at most
    /// as much as the known ones.
    Known,
}

/// The size and the rules of a [`super::LinkScheduler`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Rate of the link.
    pub rate_bps: u64,
    /// Bytes that each packet costs the link beyond the length that the caller states (Ethernet: 14 + 4 + 20).
    pub overhead_bytes: u32,
    /// The largest packet with its overhead; also the least quantum of the fair queues.
    pub packet_bytes_max: u32,
    /// What may leave at once after a pause.
    pub burst_bytes: u32,
    /// Thousandths of the link that requests get while others want it.
    pub request_permille: u16,
    /// Thousandths of the link that control packets get before all others.
    pub control_permille: u16,
    /// What the request and control lanes may each take at once of their share.
    pub share_burst_bytes: u32,
    /// Packets that may wait, by [`Lane`].
    pub packets_max: [u32; 4],
    /// Request queues; at most [`super::QUEUES_MAX`].
    pub request_queues_max: u32,
    /// Tags that tell request queues apart; at most [`DEPTH_MAX`].
    pub depth_max: u8,
    /// Which request queues share when there are too many.
    pub merge: Merge,
    /// How request queues share the lane.
    pub weights: Weights,
    /// Regular packets of one sender that may wait.
    pub sender_packets_max: u32,
    /// Bytes of one turn of a regular queue of weight 1; not less than `packet_bytes_max`.
    pub quantum_bytes: u32,
}

impl Config {
    /// Rules and sizes for a link of this rate: Ethernet with 1,500-byte packets, 2 ms burst, 5 % each for requests and
    /// control, 100 ms of regular packets of one sender and four times that in all, 50 ms of legacy ones and one second
    /// of requests.
    #[must_use]
    pub fn for_rate(rate_bps: u64) -> Self {
        let bytes_in_ms = |ms: u64| (u128::from(rate_bps) * u128::from(ms) / 8_000).min(u128::from(u32::MAX)) as u32;
        let packet_bytes_max = 1_538;
        let requests = (bytes_in_ms(50) / 128).clamp(256, 2 * super::QUEUES_MAX);
        let regular = (bytes_in_ms(100) / 1_000).clamp(128, 65_536);
        Self {
            rate_bps,
            overhead_bytes: 38,
            packet_bytes_max,
            burst_bytes: bytes_in_ms(2).max(packet_bytes_max),
            request_permille: 50,
            control_permille: 50,
            share_burst_bytes: (bytes_in_ms(20) / 20).max(2 * packet_bytes_max),
            packets_max: [256, requests, SENDERS * regular, (regular / 2).max(64)],
            request_queues_max: (2 * requests).clamp(1_024, super::QUEUES_MAX),
            depth_max: DEPTH_MAX as u8,
            merge: Merge::default(),
            weights: Weights::default(),
            sender_packets_max: regular,
            quantum_bytes: packet_bytes_max,
        }
    }
}
