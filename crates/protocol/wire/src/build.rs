//! Whole packets from their parts: an IP header of either version in front of what it carries, all lengths and checksums
//! right.

use alloc::{vec, vec::Vec};
use core::net::{IpAddr, SocketAddr};

use crate::{IpProtocol, capability, dccp, icmp, ip::Version, ipv4, ipv6, tcp, udp, udplite};

/// What an IP packet carries.
pub trait Body {
    /// The protocol that the IP header names.
    fn protocol(&self, version: Version) -> IpProtocol;
    /// Its length in bytes.
    fn len(&self) -> usize;
    /// Writes it into exactly so many bytes; the addresses are in the checksums of some.
    fn emit(&self, bytes: &mut [u8], src: IpAddr, dst: IpAddr);

    /// Whether it has no byte.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Bytes of any protocol, as they are.
impl Body for (IpProtocol, &[u8]) {
    fn protocol(&self, _: Version) -> IpProtocol {
        self.0
    }

    fn len(&self) -> usize {
        self.1.len()
    }

    fn emit(&self, bytes: &mut [u8], _: IpAddr, _: IpAddr) {
        bytes.copy_from_slice(self.1);
    }
}

macro_rules! body {
    ($layer:ident, $protocol:ident) => {
        impl Body for $layer::Repr<'_> {
            fn protocol(&self, _: Version) -> IpProtocol {
                IpProtocol::$protocol
            }

            fn len(&self) -> usize {
                self.buffer_len()
            }

            fn emit(&self, bytes: &mut [u8], src: IpAddr, dst: IpAddr) {
                Self::emit(self, &mut $layer::Packet::new_unchecked(bytes), src, dst);
            }
        }
    };
}

body!(udp, UDP);
body!(udplite, UDPLITE);
body!(dccp, DCCP);
body!(tcp, TCP);

/// In a packet of either version, as that version writes it.
impl Body for icmp::Repr<'_> {
    fn protocol(&self, version: Version) -> IpProtocol {
        if version == Version::V4 { IpProtocol::ICMP } else { IpProtocol::ICMPV6 }
    }

    fn len(&self) -> usize {
        self.buffer_len()
    }

    fn emit(&self, bytes: &mut [u8], src: IpAddr, dst: IpAddr) {
        Self::emit(self, bytes, src, dst);
    }
}

/// A capability header natively, with nothing behind it.
impl Body for capability::Repr {
    fn protocol(&self, _: Version) -> IpProtocol {
        capability::PROTOCOL
    }

    fn len(&self) -> usize {
        self.buffer_len()
    }

    fn emit(&self, bytes: &mut [u8], _: IpAddr, _: IpAddr) {
        Self::emit(self, &mut capability::Packet::new_unchecked(bytes));
    }
}

/// Length of the IP header of a packet from this source.
#[must_use]
pub const fn header_len(src: IpAddr) -> usize {
    if src.is_ipv4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN }
}

/// Writes a packet to the beginning of `buffer`; its length. `None` if it does not fit there or into a header's length, or
/// the addresses are of different versions. Allocates nothing.
pub fn write(buffer: &mut [u8], src: impl Into<IpAddr>, dst: impl Into<IpAddr>, body: &impl Body) -> Option<usize> {
    let (src, dst) = (src.into(), dst.into());
    let (head, rest) = buffer.split_at_mut_checked(header_len(src))?;
    let payload = rest.get_mut(..body.len())?;
    let len = u16::try_from(body.len()).ok()?;
    let protocol = body.protocol(Version::of(src));
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            // The header's length counts in the total one.
            len.checked_add(ipv4::HEADER_LEN as u16)?;
            ipv4::Repr::new(src, dst, protocol, len).emit(&mut ipv4::Packet::new_unchecked(head));
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            ipv6::Repr::new(src, dst, protocol, len).emit(&mut ipv6::Packet::new_unchecked(head));
        }
        _ => return None,
    }
    body.emit(payload, src, dst);
    Some(header_len(src) + body.len())
}

/// A packet. Allocates, so it is for traffic that is made up, not for packets that pass.
///
/// # Panics
/// If the addresses are of different versions, or the body is longer than a packet can be.
#[must_use]
pub fn packet(src: impl Into<IpAddr>, dst: impl Into<IpAddr>, body: &impl Body) -> Vec<u8> {
    let (src, dst) = (src.into(), dst.into());
    let mut bytes = vec![0; header_len(src) + body.len()];
    let written = write(&mut bytes, src, dst, body);
    assert!(written.is_some(), "no packet of {} bytes from {src} to {dst}", body.len());
    bytes
}

/// A UDP datagram in a packet.
///
/// # Panics
/// As [`packet`].
#[must_use]
pub fn datagram(from: impl Into<SocketAddr>, to: impl Into<SocketAddr>, payload: &[u8]) -> Vec<u8> {
    let (from, to) = (from.into(), to.into());
    packet(from.ip(), to.ip(), &udp::Repr { src_port: from.port(), dst_port: to.port(), payload })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip::Summary;

    const V4: [&str; 2] = ["192.0.2.1", "198.51.100.2"];
    const V6: [&str; 2] = ["2001:db8::1", "2001:db8::2"];

    fn ends([src, dst]: [&str; 2]) -> (IpAddr, IpAddr) {
        (src.parse().unwrap(), dst.parse().unwrap())
    }

    #[test]
    fn every_body_is_carried_in_both_versions_with_right_checksums() {
        let datagram = udp::Repr { src_port: 1, dst_port: 2, payload: b"odd" };
        let segment = tcp::Repr { payload: b"text", ..tcp::Repr::new(1, 2, tcp::Control::Syn, 7) };
        let echo = icmp::Repr::EchoRequest { ident: 1, seq: 2, data: b"ping" };
        let all = [
            packet(ends(V4).0, ends(V4).1, &datagram),
            packet(ends(V6).0, ends(V6).1, &datagram),
            packet(ends(V4).0, ends(V4).1, &segment),
            packet(ends(V6).0, ends(V6).1, &segment),
            packet(ends(V4).0, ends(V4).1, &echo),
            packet(ends(V6).0, ends(V6).1, &echo),
        ];
        for bytes in all {
            let summary = Summary::parse(&bytes).unwrap();
            assert_eq!(summary.total_len, bytes.len());
            assert!(summary.verify_transport_checksum(&bytes), "{:?}", summary.protocol);
            assert!([V4, V6].map(ends).contains(&(summary.src, summary.dst)));
        }
    }

    #[test]
    fn any_bytes_are_carried_as_they_are() {
        let bytes = packet(ends(V6).0, ends(V6).1, &(IpProtocol(89), &b"hello"[..]));
        let summary = Summary::parse(&bytes).unwrap();
        assert_eq!((summary.protocol, summary.transport(&bytes)), (IpProtocol(89), &b"hello"[..]));
    }

    #[test]
    fn what_does_not_fit_is_not_written() {
        let body = (IpProtocol::UDP, &[0; 8][..]);
        let ((a4, b4), (a6, b6)) = (ends(V4), ends(V6));
        assert_eq!(write(&mut [0; 28], a4, b4, &body), Some(28));
        assert_eq!(write(&mut [0; 27], a4, b4, &body), None);
        assert_eq!(write(&mut [0; 47], a6, b6, &body), None);
        assert_eq!(write(&mut [0; 100], a4, b6, &body), None);
        assert_eq!(write(&mut [0; 100], a6, b4, &body), None);
        let long = vec![0; usize::from(u16::MAX)];
        let mut buffer = vec![0; long.len() + 40];
        assert_eq!(write(&mut buffer, a4, b4, &(IpProtocol::UDP, &long[..])), None, "20 bytes too many");
        assert_eq!(write(&mut buffer, a6, b6, &(IpProtocol::UDP, &long[..])), Some(long.len() + 40));
        assert_eq!(write(&mut buffer, a4, b4, &(IpProtocol::UDP, &long[20..])), Some(long.len()));
    }
}
