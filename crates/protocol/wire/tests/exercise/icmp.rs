use std::{
    net::{IpAddr, Ipv6Addr},
    vec,
};

use sluicegate_wire::{icmpv4 as wire_icmpv4, icmpv6 as wire_icmpv6, ip::Summary};

use super::look;

const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
const HOST: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);

/// An ICMP message as it is, and with a right checksum.
pub(crate) fn icmpv4(bytes: &[u8]) {
    let Ok(packet) = wire_icmpv4::Packet::new_checked(bytes) else { return };
    look((packet.kind(), packet.code(), packet.checksum(), packet.ident(), packet.seq(), packet.pointer()));
    look((packet.next_hop_mtu(), packet.payload().len(), packet.verify_checksum()));
    look((packet.kind().is_echo(), wire_icmpv4::Repr::parse(&packet).is_ok()));
    assert!(packet.quoted().is_empty() || packet.kind().is_error());
    look(Summary::parse_quoted(packet.quoted()));

    let mut fixed = bytes.to_vec();
    let mut packet = wire_icmpv4::Packet::new_unchecked(&mut fixed[..]);
    look((packet.payload_mut().len(), packet.quoted_mut().len()));
    packet.replace_ident(0xffff);
    packet.replace_ident(u16::from_be_bytes([bytes[4], bytes[5]]));
    packet.fill_checksum();
    let Ok(repr) = wire_icmpv4::Repr::parse(&wire_icmpv4::Packet::new_unchecked(&fixed[..])) else { return };
    let mut emitted = vec![0xa5; repr.buffer_len()];
    repr.emit(&mut wire_icmpv4::Packet::new_unchecked(&mut emitted[..]));
    assert_eq!(wire_icmpv4::Repr::parse(&wire_icmpv4::Packet::new_unchecked(&emitted[..])), Ok(repr));
}

/// An ICMPv6 message as it is, and with a right checksum.
pub(crate) fn icmpv6(bytes: &[u8]) {
    let (src, dst) = (IpAddr::V6(ROUTER), IpAddr::V6(HOST));
    let Ok(packet) = wire_icmpv6::Packet::new_checked(bytes) else { return };
    look((packet.kind(), packet.code(), packet.checksum(), packet.ident(), packet.seq(), packet.pointer()));
    look((packet.mtu(), packet.payload().len(), packet.verify_checksum(src, dst)));
    look((packet.kind().is_echo(), wire_icmpv6::Repr::parse(&packet, src, dst).is_ok()));
    assert!(packet.quoted().is_empty() || packet.kind().is_error());
    look(Summary::parse_quoted(packet.quoted()));

    let mut fixed = bytes.to_vec();
    let mut packet = wire_icmpv6::Packet::new_unchecked(&mut fixed[..]);
    look((packet.payload_mut().len(), packet.quoted_mut().len()));
    packet.fill_checksum(src, dst);
    let Ok(repr) = wire_icmpv6::Repr::parse(&wire_icmpv6::Packet::new_unchecked(&fixed[..]), src, dst) else { return };
    let mut emitted = vec![0xa5; repr.buffer_len()];
    repr.emit(&mut wire_icmpv6::Packet::new_unchecked(&mut emitted[..]), src, dst);
    let again = wire_icmpv6::Repr::parse(&wire_icmpv6::Packet::new_unchecked(&emitted[..]), src, dst);
    assert_eq!(again, Ok(repr));
}
