//! GRE (RFC 2784, RFC 2890). A key tells tunnels between the same two ends apart, and is the same both ways or not as they
//! please, so addresses alone count.

use sluicegate_wire::{IpProtocol, Reason};

use super::{Header, NO_PORTS, Signal, Transport};

pub(super) const GRE: Transport = Transport { protocol: IpProtocol::GRE, parse, ..Transport::BY_ADDRESSES };

/// Bytes of the shortest header.
const HEADER_LEN: usize = 4;
/// Bits of the second byte: the version, 0; or 1, which carries PPP (RFC 2637).
const VERSION: u8 = 7;

fn parse(transport: &[u8], _: bool) -> Result<Header, Reason> {
    match transport {
        [_, second, ..] if transport.len() >= HEADER_LEN && second & VERSION <= 1 => {
            Ok(Header { ports: NO_PORTS, opens: true, signal: Signal::None })
        }
        _ => Err(Reason::TransportHeaderInvalid),
    }
}
