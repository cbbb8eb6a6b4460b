//! What ICMP errors quote, for both versions.

use super::{Summary, Version};
use crate::{Reason, field};

/// RFC 792 and RFC 5508 4.2: what a NAT needs behind the quoted IP header to find the flow.
const TRANSPORT_LEN_MIN: usize = 8;

/// How much of an error's payload is the quoted packet. `stated` is the length attribute of RFC 4884 in bytes; zero
/// means all of it, and so does a length that cannot be.
#[inline]
pub(crate) const fn quoted_len(payload_len: usize, stated: usize) -> usize {
    if stated == 0 || stated > payload_len { payload_len } else { stated }
}

/// The part of `packet` to quote: its own bytes without padding, at most `len_max`, with the flow's ports in it.
pub(crate) fn quotable(packet: &[u8], version: Version, len_max: usize) -> Result<&[u8], Reason> {
    let len = packet.len().min(len_max);
    let packet = packet.get(..len).unwrap_or_default();
    let summary = Summary::parse_quoted(packet)?;
    if summary.version() != version {
        return Err(Reason::IpHeaderInvalid);
    }
    let least = summary.transport_len().min(TRANSPORT_LEN_MIN);
    field::at_least(summary.transport(packet).len(), least, Reason::FrameTruncated)?;
    Ok(packet.get(..summary.total_len.min(packet.len())).unwrap_or_default())
}
