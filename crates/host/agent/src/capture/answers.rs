//! ICMP errors to the programs of this host, as if the network had sent them.

use sluicegate_wire::{
    build,
    icmp::{self, Quote, Repr, Unreachable},
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
    if icmp::version(summary.protocol).is_some() {
        return None;
    }
    let quote = Quote::new(packet).ok()?;
    let message = match why {
        Why::TooBig(mtu) => Repr::PacketTooBig { mtu, quote },
        Why::Prohibited => Repr::Unreachable { why: Unreachable::Prohibited, quote },
    };
    let mut bytes = vec![0; ANSWER_LEN_MAX];
    let len = build::write(&mut bytes, summary.dst, summary.src, &message)?;
    bytes.truncate(len);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use sluicegate_wire::IpProtocol;

    use super::*;

    #[test]
    fn an_error_goes_back_to_the_program_and_quotes_its_packet() {
        let (src, dst): (Ipv4Addr, Ipv4Addr) = ("192.0.2.1".parse().unwrap(), "198.51.100.1".parse().unwrap());
        let packet = build::packet(src, dst, &(IpProtocol::UDP, &[0; 8][..]));
        let error = about(&packet, Why::TooBig(1_300)).unwrap();
        let summary = Summary::parse(&error).unwrap();
        assert_eq!((summary.src, summary.dst), (IpAddr::V4(dst), IpAddr::V4(src)));
        assert!(summary.verify_transport_checksum(&error));
        let message = icmp::Packet::new_checked(summary.version(), summary.transport(&error)).unwrap();
        assert_eq!((message.mtu(), message.quoted()), (1_300, &packet[..]));
        assert_eq!(about(&error, Why::Prohibited), None, "no error about an error");
    }
}
