//! What permission must know of a packet's transport: both ends, and whether they have ports.

use core::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Both ends of a packet. For ICMP echo the source port is the identifier and the destination port the ICMP type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tuple {
    /// IP protocol number.
    pub protocol: u8,
    /// Source address and port.
    pub src: (IpAddr, u16),
    /// Destination address and port.
    pub dst: (IpAddr, u16),
}

/// A set of IP protocol numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Protocols([u64; 4]);

impl Protocols {
    /// No protocol.
    pub const NONE: Self = Self([0; 4]);

    /// This set and one more.
    #[must_use]
    pub const fn with(mut self, protocol: u8) -> Self {
        self.0[(protocol >> 6) as usize] |= 1 << (protocol & 63);
        self
    }

    /// Whether a protocol is one of them.
    #[inline]
    #[must_use]
    pub const fn contains(&self, protocol: u8) -> bool {
        self.0[(protocol >> 6) as usize] >> (protocol & 63) & 1 != 0
    }
}
