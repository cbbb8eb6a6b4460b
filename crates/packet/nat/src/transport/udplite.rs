//! UDP-Lite: as UDP, with ports and a checksum of its own.

use sluicegate_wire::{IpProtocol, Reason, udplite};

use super::{Header, Selector, Signal, Transport, quoted_ports, real_ports};

pub(super) const UDPLITE: Transport = Transport {
    protocol: IpProtocol::UDPLITE,
    selector: Selector::Ports,
    space: Some("external_ports_udplite"),
    checksum: IpProtocol::UDPLITE.checksum(),
    parse,
    quoted: quoted_ports,
    ..Transport::BY_ADDRESSES
};

fn parse(transport: &[u8], is_cut: bool) -> Result<Header, Reason> {
    let datagram = udplite::Packet::new_unchecked(transport);
    if is_cut { datagram.check_header() } else { datagram.check_len() }?;
    Ok(Header { ports: real_ports(transport)?, opens: true, signal: Signal::None })
}
