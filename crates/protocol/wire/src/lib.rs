//! Packet views and representations, frames, time types and drop reasons.
//!
//! Two-step parsing: a `Packet` view wraps bytes and cannot panic after its `check_len`; a `Repr` can only hold valid
//! values. Nothing here does I/O, reads a clock or allocates per packet.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod build;
pub mod capability;
pub mod checksum;
pub mod dccp;
pub mod ethernet;
pub mod icmp;
pub mod ip;
pub mod ipv4;
pub mod ipv6;
pub mod tcp;
pub mod udp;
pub mod udplite;

mod field;
mod frame;
mod pace;
mod packet;
mod protocol;
mod reason;
mod time;

pub use frame::{Frame, FrameBuf, HEADROOM};
pub use pace::Pace;
pub use packet::Packet;
pub use protocol::{Checksum, IpProtocol};
pub use reason::Reason;
pub use time::{Instant, UnixTime};

/// One side of a packet-forwarding node.
///
/// A gate has exactly [`Port::OUTSIDE`] (towards the Internet) and [`Port::INSIDE`] (towards the protected link).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Port(pub u8);

impl Port {
    /// The side that faces the Internet.
    pub const OUTSIDE: Self = Self(0);
    /// The side that faces the protected link.
    pub const INSIDE: Self = Self(1);

    /// The other port of a two-port node.
    #[must_use]
    pub const fn opposite(self) -> Self {
        Self(self.0 ^ 1)
    }
}

/// What becomes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Send the (possibly rewritten) packet out of this port.
    Forward(Port),
    /// Discard it, for this one reason.
    Drop(Reason),
    /// The packet has been rewritten in place into an answer: send it back out of the port it came from.
    Reply,
    /// The node kept a copy; it comes out of `poll_output` later or dies with a counted reason.
    Queue,
    /// Hand it to the control plane.
    Punt,
}
