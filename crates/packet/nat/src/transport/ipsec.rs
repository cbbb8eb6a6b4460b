//! IPsec: ESP (RFC 4303) and AH (RFC 4302). Each direction has a security parameter index that the other does not know, so
//! addresses alone count. AH signs the addresses, and so is for `filter` services only.

use sluicegate_wire::{IpProtocol, Reason};

use super::{Header, NO_PORTS, Signal, Transport};

pub(super) const ESP: Transport =
    Transport { protocol: IpProtocol::ESP, parse: |bytes, _| parse(bytes, 0, 8), ..Transport::BY_ADDRESSES };

pub(super) const AH: Transport = Transport {
    protocol: IpProtocol::AUTHENTICATION,
    is_translatable: false,
    parse: |bytes, _| parse(bytes, 4, 12),
    ..Transport::BY_ADDRESSES
};

/// A header of `len` bytes at least, whose index at byte `at` is not the one for local use.
fn parse(transport: &[u8], at: usize, len: usize) -> Result<Header, Reason> {
    let index = transport.get(at..at + 4).filter(|_| transport.len() >= len);
    match index {
        Some(index) if index != [0; 4] => Ok(Header { ports: NO_PORTS, opens: true, signal: Signal::None }),
        _ => Err(Reason::TransportHeaderInvalid),
    }
}
