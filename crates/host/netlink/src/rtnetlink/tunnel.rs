//! Interfaces that are tunnels: to whom they lead, and as what their packets travel.

use std::net::{IpAddr, Ipv4Addr};

use netlink_packet_core::parse_ip;

use crate::message;

// Of linux/if_link.h and linux/if_tunnel.h.
const VXLAN_GROUP: u16 = 2;
const VXLAN_PORT: u16 = 15;
const VXLAN_GROUP6: u16 = 16;
const GENEVE_REMOTE: u16 = 2;
const GENEVE_PORT: u16 = 5;
const GENEVE_REMOTE6: u16 = 7;
const GRE_REMOTE: u16 = 7;

const UDP: u8 = libc::IPPROTO_UDP as u8;
const GRE: u8 = libc::IPPROTO_GRE as u8;

/// A layer-2 tunnel (VXLAN, GENEVE, GRETAP) to one far end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tunnel {
    /// The far end.
    pub remote: IpAddr,
    /// IP protocol number of what carries it: 17 UDP, 47 GRE.
    pub protocol: u8,
    /// UDP port to which both ends send, each from whatever port it likes; 0 without ports.
    pub port: u16,
}

/// Reads `IFLA_LINKINFO`.
pub(super) fn parse(info: &[u8]) -> Option<Tunnel> {
    let (protocol, remotes, port) = match message::value(info, libc::IFLA_INFO_KIND)? {
        b"vxlan\0" => (UDP, [VXLAN_GROUP, VXLAN_GROUP6], Some(VXLAN_PORT)),
        b"geneve\0" => (UDP, [GENEVE_REMOTE, GENEVE_REMOTE6], Some(GENEVE_PORT)),
        b"gretap\0" | b"ip6gretap\0" | b"erspan\0" => (GRE, [GRE_REMOTE; 2], None),
        _ => return None,
    };
    let data = message::value(info, libc::IFLA_INFO_DATA)?;
    let remote = remotes.into_iter().find_map(|kind| parse_ip(message::value(data, kind)?).ok())?;
    if remote.is_unspecified() || remote.is_multicast() || remote == IpAddr::V4(Ipv4Addr::BROADCAST) {
        return None;
    }
    let port = port.and_then(|kind| message::value(data, kind)?.try_into().ok()).map_or(0, u16::from_be_bytes);
    Some(Tunnel { remote, protocol, port })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;
    use crate::message::Attributes;

    /// `IFLA_LINKINFO` of a kind with these attributes, as the kernel writes it.
    fn info(kind: &str, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut info = Attributes::default();
        info.put_text(libc::IFLA_INFO_KIND, kind).nest(libc::IFLA_INFO_DATA, |data| {
            for (kind, value) in attributes {
                data.put(*kind, value);
            }
        });
        info.into_bytes()
    }

    #[test]
    fn a_tunnel_says_to_whom_it_leads_and_as_what() {
        let port = 4789u16.to_be_bytes();
        let (v4, v6) = (Ipv4Addr::new(198, 51, 100, 7), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7));
        let vxlan = parse(&info("vxlan", &[(VXLAN_GROUP, &v4.octets()), (VXLAN_PORT, &port)]));
        assert_eq!(vxlan, Some(Tunnel { remote: v4.into(), protocol: 17, port: 4789 }));
        let vxlan = parse(&info("vxlan", &[(VXLAN_GROUP6, &v6.octets()), (VXLAN_PORT, &port)]));
        assert_eq!(vxlan, Some(Tunnel { remote: v6.into(), protocol: 17, port: 4789 }));
        let gretap = parse(&info("gretap", &[(6, &[203, 0, 113, 1]), (GRE_REMOTE, &v4.octets())]));
        assert_eq!(gretap, Some(Tunnel { remote: v4.into(), protocol: 47, port: 0 }));
    }

    #[test]
    fn what_is_no_tunnel_or_leads_to_many_is_none() {
        let port = 4789u16.to_be_bytes();
        assert_eq!(parse(&info("veth", &[])), None);
        assert_eq!(parse(&info("vxlan", &[(VXLAN_PORT, &port)])), None);
        assert_eq!(parse(&info("vxlan", &[(VXLAN_GROUP, &[239, 1, 1, 1]), (VXLAN_PORT, &port)])), None);
        assert_eq!(parse(&info("gretap", &[(GRE_REMOTE, &[0; 4])])), None);
        assert_eq!(parse(b"\x03\0"), None);
    }
}
