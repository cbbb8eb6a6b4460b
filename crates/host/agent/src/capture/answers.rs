//! ICMP errors to the programs of this host, as if the network had sent them.

use std::net::IpAddr;

use sluicegate_wire::{
    IpProtocol, build,
    icmpv4::{self, Unreachable},
    icmpv6,
    ip::Summary,
};

/// The smallest IPv6 MTU, which no error exceeds (RFC 4443 2.4c); errors for IPv4 are shorter still.
const ANSWER_LEN_MAX: usize = 1_280;

/// Why a packet was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// It is longer than this many bytes, and must not be fragmented.
    TooBig(u16),
    /// Nobody opens the gate for it.
    Prohibited,
}

/// The error about `packet`, from its destination to its source; `None` where none may be sent.
pub(super) fn about(packet: &[u8], why: Why) -> Option<Vec<u8>> {
    let summary = Summary::parse(packet).ok()?;
    let mut bytes = vec![0; ANSWER_LEN_MAX];
    let len = match (summary.src, summary.dst) {
        (IpAddr::V4(to), IpAddr::V4(from)) if summary.protocol != IpProtocol::ICMP => {
            let why = match why {
                Why::TooBig(next_hop_mtu) => Unreachable::FragmentationNeeded { next_hop_mtu },
                Why::Prohibited => Unreachable::CommunicationProhibited,
            };
            let message = icmpv4::Repr::Unreachable { why, quote: icmpv4::Quote::new(packet).ok()? };
            build::write(&mut bytes, from, to, &message)?
        }
        (IpAddr::V6(to), IpAddr::V6(from)) if summary.protocol != IpProtocol::ICMPV6 => {
            let quote = icmpv6::Quote::new(packet).ok()?;
            let message = match why {
                Why::TooBig(mtu) => icmpv6::Repr::PacketTooBig { mtu: mtu.into(), quote },
                Why::Prohibited => icmpv6::Repr::Unreachable { why: icmpv6::Unreachable::Prohibited, quote },
            };
            build::write(&mut bytes, from, to, &message)?
        }
        _ => return None,
    };
    bytes.truncate(len);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn an_error_goes_back_to_the_program_and_quotes_its_packet() {
        let (src, dst): (Ipv4Addr, Ipv4Addr) = ("192.0.2.1".parse().unwrap(), "198.51.100.1".parse().unwrap());
        let packet = build::packet(src, dst, &(IpProtocol::UDP, &[0; 8][..]));
        let error = about(&packet, Why::TooBig(1_300)).unwrap();
        let summary = Summary::parse(&error).unwrap();
        assert_eq!((summary.src, summary.dst), (IpAddr::V4(dst), IpAddr::V4(src)));
        assert!(summary.verify_transport_checksum(&error));
        let message = icmpv4::Packet::new_checked(summary.transport(&error)).unwrap();
        assert_eq!((message.next_hop_mtu(), message.quoted()), (1_300, &packet[..]));
        assert_eq!(about(&error, Why::Prohibited), None, "no error about an error");
    }
}
