//! The capability header (TVA Figure 5): what a packet carries so that every router on its path can see, without state,
//! that the receiver wants it.
//!
//! It lies between the IP header and the transport header: natively as IP protocol 253, or inside UDP port 7253 where
//! other people's NATs are to be crossed. [`Packet`] reads and changes it in place, [`Repr`] writes it, and [`shim`]
//! puts it into IP packets and takes it out again.
//!
//! Nothing of a pre-capability lies in the first 8 bytes, which is what the shortest ICMP error quotes (TVA VII).

use crate::{IpProtocol, Reason};

mod list;
mod packet;
mod repr;
pub mod shim;
mod value;

pub use list::{CapabilityList, PathList, Slot, SlotList};
pub use packet::Packet;
pub use repr::{Repr, Return};
pub use value::{Algorithm, Capability, ClientId, FlowNonce, Kind, Limits, PathId};

/// The IP protocol of a native capability header.
pub const PROTOCOL: IpProtocol = IpProtocol::CAPABILITY;
/// The UDP port of encapsulated capability headers.
pub const UDP_PORT: u16 = 7253;
/// The upper protocol of packets that carry nothing but a capability header.
pub const CAPABILITY_ONLY: IpProtocol = IpProtocol::NO_NEXT_HEADER;
/// The most capabilities in one header, and the most in its return information.
pub const CAPABILITIES_MAX: usize = 8;
/// The most bytes of header that [`shim::insert`] writes: with a UDP header in front it still fits the headroom.
pub const HEADER_LEN_MAX: usize = crate::HEADROOM - shim::ENCAPSULATION_LEN;
/// Bytes of a regular header with only the flow nonce.
pub const NONCE_LEN: usize = 12;
/// Bytes of return information that is a demotion notice alone.
pub const NOTICE_LEN: usize = 1;

/// Bytes of a request with this many slots, at most [`CAPABILITIES_MAX`].
#[inline]
#[must_use]
pub const fn request_len(slots: usize) -> usize {
    packet::SLOTS_AT + packet::SLOT_LEN * slots
}

/// Bytes of a regular header, or a renewal, with this many capabilities, 1 to [`CAPABILITIES_MAX`].
#[inline]
#[must_use]
pub const fn regular_len(capabilities: usize) -> usize {
    packet::LIST_AT + packet::CAPABILITY_LEN * capabilities
}

/// Bytes of return information with a list of this many capabilities, 0 to [`CAPABILITIES_MAX`].
#[inline]
#[must_use]
pub const fn return_len(capabilities: usize) -> usize {
    packet::RETURN_LIST_AT + packet::CAPABILITY_LEN * capabilities
}

/// The one reason for which a header is refused.
const MALFORMED: Reason = Reason::CapabilityHeader;

#[cfg(test)]
mod tests;
