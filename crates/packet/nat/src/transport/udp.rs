//! UDP (RFC 4787).

use sluicegate_wire::{IpProtocol, Reason, udp};

use super::{Header, Selector, Signal, Transport, quoted_ports, real_ports};

pub(super) const UDP: Transport = Transport {
    protocol: IpProtocol::UDP,
    selector: Selector::Ports,
    space: Some("external_ports_udp"),
    checksum: IpProtocol::UDP.checksum(),
    parse,
    quoted: quoted_ports,
    ..Transport::BY_ADDRESSES
};

fn parse(transport: &[u8], is_cut: bool) -> Result<Header, Reason> {
    let datagram = udp::Packet::new_unchecked(transport);
    if is_cut { datagram.check_header() } else { datagram.check_len() }?;
    Ok(Header { ports: real_ports(transport)?, opens: true, signal: Signal::None })
}
