use std::net::{IpAddr, Ipv6Addr};

use sluicegate_wire::{
    icmp as wire_icmp,
    ip::{Summary, Version},
};

use super::look;

const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
const HOST: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);

/// An ICMP message of either version, as it is, and with a right checksum.
pub(crate) fn icmp(bytes: &[u8]) {
    let (src, dst) = (IpAddr::V6(ROUTER), IpAddr::V6(HOST));
    for version in [Version::V4, Version::V6] {
        let Ok(packet) = wire_icmp::Packet::new_checked(version, bytes) else { return };
        look((packet.kind(), packet.code(), packet.checksum(), packet.ident(), packet.seq(), packet.mtu()));
        look((packet.payload().len(), packet.verify_checksum(src, dst), packet.kind().is_echo()));
        assert!(packet.quoted().is_empty() || packet.kind().is_error());
        look(Summary::parse_quoted(packet.quoted()));
        look(wire_icmp::Quote::new(packet.quoted()));

        let mut fixed = bytes.to_vec();
        let mut packet = wire_icmp::Packet::new_unchecked(version, &mut fixed[..]);
        look(packet.quoted_mut().len());
        packet.replace_ident(0xffff);
        packet.replace_ident(u16::from_be_bytes([bytes[4], bytes[5]]));
        packet.set_mtu(packet.mtu());
        packet.clear_quoted_length();
        packet.fill_checksum(src, dst);
        assert!(packet.verify_checksum(src, dst));
    }
}
