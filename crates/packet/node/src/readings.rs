//! What a node counts, and how full its tables are.

use sluicegate_wire::Reason;

/// Number of drop reasons.
pub const REASONS: usize = Reason::ALL.len();

/// Packets and bytes that left by one port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    /// Packets.
    pub packets: u64,
    /// Bytes, link header included.
    pub bytes: u64,
}

/// What happened in one lane of a scheduled link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LaneReading {
    /// Packets that left.
    pub packets: u64,
    /// Bytes on the link, its framing included.
    pub bytes: u64,
    /// Packets that had to give way or found no room.
    pub dropped: u64,
    /// Packets that wait now.
    pub waiting: u64,
}

/// Lanes of a scheduled link, in the order of [`LANES`]; `None` where the link is not scheduled.
pub type Lanes = Option<[LaneReading; LANES.len()]>;

/// Names of the lanes.
pub const LANES: [&str; 4] = ["control", "request", "regular", "legacy"];
/// What a router lets pass, in the order of [`Reading::passed`].
pub const KINDS: [&str; 5] = ["request", "capabilities", "nonce", "renewal", "plain"];

/// One reading of all counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// By [`Reason`] code: dropped by the translator, the packet path or the kernel program.
    pub dropped: [u64; REASONS],
    /// By [`Reason`] code: would have been dropped, were the gate not in observe mode.
    pub observed: [u64; REASONS],
    /// By port.
    pub sent: [Sent; 2],
    /// Frames received from both ports.
    pub received: u64,
    /// The longest turn of the packet thread in the last minutes, in nanoseconds, and the most that one turn looked at.
    pub turn: [u64; 2],
    /// What left in each lane of each port's link, if that is scheduled.
    pub lanes: [Lanes; 2],
    /// Packets that passed the capability router as each of [`KINDS`].
    pub passed: [u64; KINDS.len()],
    /// By [`Reason`] code: packets that it demoted.
    pub demoted: [u64; REASONS],
}

impl Default for Reading {
    fn default() -> Self {
        Self {
            dropped: [0; REASONS],
            observed: [0; REASONS],
            sent: [Sent::default(); 2],
            received: 0,
            turn: [0; 2],
            lanes: [None; 2],
            passed: [0; KINDS.len()],
            demoted: [0; REASONS],
        }
    }
}
