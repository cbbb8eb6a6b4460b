//! R-SOCA: what a SIP server refuses when more arrives than it can serve.
//!
//! After D. Sisalem and J. Floroiu, "Protecting VoIP Services Against DoS Using Overload Control": the receiver alone
//! measures its CPU and its memory, refuses new work with a probability that follows from them, drops what is too much of
//! one kind of in-dialog request, and ends transactions that are too old. Nobody else has to take part.
//!
//! A state machine without I/O: the caller says what arrives ([`Controller::arrive`]) and, once an interval, what has been
//! used ([`Controller::measure`]); random numbers are arguments. O(1) and without allocation.
#![no_std]

#[cfg(test)]
extern crate std;

mod class;
mod controller;
mod engineered;
mod excess;
mod rejection;

pub use class::{Class, InDialog};
pub use controller::{Controller, Mode, Used, Verdict};
pub use engineered::{Durations, Engineered, EngineeredError, Load, Thresholds};
pub use rejection::{OVERLOADED_ABOVE, Rejection};
