//! ICMP errors of the gate's own.

use core::net::{IpAddr, Ipv6Addr};

use sluicegate_wire::{
    Frame, IpProtocol, Port,
    icmpv4::{self, Quote, Unreachable},
    icmpv6,
    ip::Summary,
    ipv4, ipv6,
};

use crate::config::Config;

/// The smallest IPv6 MTU, which no error exceeds (RFC 4443 2.4c); errors for IPv4 are shorter still.
const REPLY_LEN_MAX: usize = 1_280;

/// Turns `frame`, which is too long for the link behind the other port, into the answer that says so (RFC 1191 4,
/// RFC 4443 3.2). `None`: no answer can be made of it.
pub(crate) fn too_big(config: &Config, from: Port, frame: &mut Frame<'_>) -> Option<()> {
    let mtu = config.mtu[usize::from(from.opposite().0 & 1)];
    let ip = Summary::parse(frame.bytes()).ok()?;
    let mut buffer = [0; REPLY_LEN_MAX];
    let len = match (ip.src, ip.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let why = Unreachable::FragmentationNeeded { next_hop_mtu: mtu };
            let message = icmpv4::Repr::Unreachable { why, quote: Quote::new(frame.bytes()).ok()? };
            let own = if config.gate_address.is_unspecified() { dst } else { config.gate_address };
            let header = ipv4::Repr::new(own, src, IpProtocol::ICMP, message.buffer_len() as u16);
            let (head, rest) = buffer.split_at_mut_checked(header.buffer_len())?;
            header.emit(&mut ipv4::Packet::new_unchecked(head));
            message.emit(&mut icmpv4::Packet::new_unchecked(rest.get_mut(..message.buffer_len())?));
            ipv4::HEADER_LEN + message.buffer_len()
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => too_big_v6(config, mtu, (src, dst), frame.bytes(), &mut buffer)?,
        _ => return None,
    };
    frame.replace(buffer.get(..len)?)
}

fn too_big_v6(
    config: &Config,
    mtu: u16,
    (src, dst): (Ipv6Addr, Ipv6Addr),
    packet: &[u8],
    buffer: &mut [u8],
) -> Option<usize> {
    let message = icmpv6::Repr::PacketTooBig { mtu: mtu.into(), quote: icmpv6::Quote::new(packet).ok()? };
    let own = config.gate_address_v6.unwrap_or(dst);
    let header = ipv6::Repr::new(own, src, IpProtocol::ICMPV6, message.buffer_len() as u16);
    let (head, rest) = buffer.split_at_mut_checked(header.buffer_len())?;
    header.emit(&mut ipv6::Packet::new_unchecked(head));
    let rest = rest.get_mut(..message.buffer_len())?;
    message.emit(&mut icmpv6::Packet::new_unchecked(rest), own.into(), src.into());
    Some(ipv6::HEADER_LEN + message.buffer_len())
}
