//! What a router remembers of the capabilities that pass it: lines that count bytes, and revocations.
//!
//! A line exists for a TVA flow (source, destination, client id) whose capability passed its check. It holds N and T to
//! their word with a fixed amount of memory (TVA III-F): used bytes are counted against N, and each packet of L bytes
//! moves the line's time to live L * T / N ahead. Only a line whose ttl has passed may give way to another flow. So a
//! capability carries at most N bytes where no line had to give way, and at most 2N whatever an attacker does.
//!
//! Two rules keep that bound where a flow has several valid capabilities:
//! - **A flow's capabilities are ordered** by the second in which they were minted, then by T, then by N. A newer one
//!   replaces an older one; an older one is refused as spent while the newer one's line is there.
//!   The same capability under another nonce goes on counting where it was. Whoever grants twice within one second must therefore raise T or N.
//! - **The ttl is never shortened**, not even by a replacement: it starts from where the older capability left it.
//!
//! Several threads can serve one flow without sharing its line: the owner [lends](Lines::lend) slices of what is left,
//! charged in advance, and each thread [borrows](Lines::borrow) them into a line of its own.

mod lines;
pub mod model;
mod revocation;

pub use lines::{Allowance, Lines, Moment, Slice, lines_needed};
pub use revocation::{REMEMBERED_SECS, Revocations};

#[cfg(test)]
mod tests;
