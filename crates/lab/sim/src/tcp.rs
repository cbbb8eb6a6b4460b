//! A small Reno TCP over real segments: enough for bulk transfers in one direction, and nothing else.
//!
//! [`Sender`] opens, sends its bytes, closes; [`Receiver`] answers. Slow start, congestion avoidance, fast retransmit
//! and fast recovery as in RFC 5681 with the partial acknowledgements of RFC 6582, retransmission timer of RFC 6298
//! with Karn's rule. No options but the segment size, no delayed acknowledgements.

use std::time::Duration;

mod receiver;
mod rtt;
mod sender;
pub use receiver::Receiver;
pub use sender::{End, Sender};

/// How a transfer behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// The shortest retransmission timeout.
    pub timeout_min: Duration,
    /// A transfer that takes longer is given up.
    pub abort_after: Option<Duration>,
}

impl Config {
    /// As in the papers' runs: given up after 10 s.
    pub const PAPER: Self =
        Self { timeout_min: Duration::from_millis(200), abort_after: Some(Duration::from_secs(10)) };
}

/// Most data of a segment, in bytes: that of the papers' runs, and what both ends announce.
pub(crate) const SEGMENT_BYTES: u16 = 1_000;
/// The receive window that both ends advertise, in bytes.
pub(crate) const WINDOW: u16 = u16::MAX;

/// Length of the pattern that a transfer's data repeats.
const PERIOD: usize = 251;

/// What a transfer sends at this offset of its data: `len` bytes whose place in the stream can be told.
pub(crate) fn pattern(offset: u64, len: usize) -> &'static [u8] {
    static PATTERN: [u8; PERIOD + 1_500] = {
        let mut bytes = [0; PERIOD + 1_500];
        let mut at = 0;
        while at < bytes.len() {
            bytes[at] = (at % PERIOD) as u8;
            at += 1;
        }
        bytes
    };
    let start = (offset % PERIOD as u64) as usize;
    &PATTERN[start..start + len]
}
