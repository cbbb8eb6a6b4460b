//! R-SOCA: what a SIP server refuses when more arrives than it can serve.
//!
//! After D. Sisalem and J. Floroiu, "Protecting VoIP Services Against DoS Using Overload Control": the receiver alone
//! measures its CPU and its memory, refuses new work with a probability that follows from them, drops what is too much of
//! one kind of in-dialog request, and ends transactions that are too old. Nobody else has to take part. [`Rsoca`] is that,
//! and the baseline that the paper compares it with; [`Adaptive`] needs no engineered load: it measures what the server can do.
//!
//! State machines without I/O: the caller says what arrives and, once an interval, what has been used; random numbers are
//! arguments. O(1) and, but for tables made at construction, without allocation.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod adaptive;
mod class;
mod connections;
mod door;
mod engineered;
mod excess;
mod knee;
mod members;
mod rejection;
mod rsoca;
mod sources;

use core::time::Duration;

pub use adaptive::{Adaptive, Aims, Came};
pub use class::{Class, InDialog};
pub use engineered::{Durations, Engineered, EngineeredError, Load, Thresholds};
pub use rejection::{OVERLOADED_ABOVE, Rejection};
pub use rsoca::{Refusing, Rsoca};

/// What an interval has used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Used {
    /// Share of the time of all threads, 0 to 1.
    pub cpu: f64,
    /// Share of it that went into requests that begin something, and that refusing them can save, 0 to 1.
    pub begun: f64,
    /// Bytes of transactions at its end.
    pub memory: u64,
    /// How long the request that waited least for its turn has waited: longer than nothing only where all of them wait.
    pub sojourn: Duration,
    /// Share of what came that was lost because as much waited as there is room for, and would have begun something, 0 to 1:
    /// what waits cannot wait for longer then.
    pub lost: f64,
    /// Connections.
    pub crowd: Crowd,
}

/// Connections at the end of an interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Crowd {
    /// So many wait in the kernel to be taken.
    pub waiting: u32,
    /// Whether it holds no more of them.
    pub is_full: bool,
    /// Share of the places for connections of strangers that are taken.
    pub strangers: f64,
    /// Share of the time in which who takes them had something to do, whether there was a processor for it or not.
    pub busy: f64,
}

impl Crowd {
    /// Nobody waits.
    pub const NONE: Self = Self { waiting: 0, is_full: false, strangers: 0.0, busy: 0.0 };
}

/// What is to be done with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "what is refused must not be served"]
pub enum Verdict {
    /// Serve it.
    Pass,
    /// Answer with this status and Retry-After, and remember nothing.
    Reject {
        /// 500 or 503.
        status: u16,
        /// In seconds.
        retry_after_s: u32,
    },
    /// Do nothing: its sender sends it again.
    Drop,
}

/// A number from 0 to below 1, of the upper half of `draw`.
fn chance(draw: u64) -> f64 {
    (draw >> 32) as f64 / 4_294_967_296.0
}
