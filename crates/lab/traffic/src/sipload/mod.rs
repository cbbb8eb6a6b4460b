//! A load of calls: many telephones that call through a SIP server at a constant rate, and who answers them.
//!
//! Everybody sends again what was not answered, as RFC 3261 has it: without that no server collapses, and no figure of an
//! overloaded one means anything. A generator that cannot keep up would measure itself, so it is cheap: datagrams move in
//! batches, a call is a slot whose memory is used again, and what waits stands in a queue for each delay.

mod callees;
mod callers;
mod calls;
mod counts;
mod lines;
mod timers;
mod write;

pub(crate) use callees::callees;
pub use callees::{CalleesSpec, Replying};
pub(crate) use callers::callers;
pub use callers::{CallRate, CallersSpec};
pub use counts::{LoadSum, LoadTick};
