//! Capability headers where they lie: directly behind an IPv4 header, or wherever [`shim::find`] finds one.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sluicegate_wire::{
    Frame, Reason,
    capability::{
        PROTOCOL, Packet,
        shim::{self, Found},
    },
    ip::Summary,
    ipv4,
};

const VERSION_AND_LEN: u8 = 0x45;
/// Of the byte with flags and the upper part of the fragment offset: all but "do not fragment".
const FRAGMENT: u8 = 0xbf;

/// The addresses of a packet.
#[derive(Debug, Clone, Copy)]
pub(super) enum Ends {
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

impl Ends {
    pub(super) fn of(summary: &Summary) -> Result<Self, Reason> {
        match (summary.src, summary.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Ok(Self::V4(src, dst)),
            (IpAddr::V6(src), IpAddr::V6(dst)) => Ok(Self::V6(src, dst)),
            _ => Err(Reason::IpHeaderInvalid),
        }
    }

    #[inline]
    pub(super) const fn addresses(&self) -> (IpAddr, IpAddr) {
        match *self {
            Self::V4(src, dst) => (IpAddr::V4(src), IpAddr::V4(dst)),
            Self::V6(src, dst) => (IpAddr::V6(src), IpAddr::V6(dst)),
        }
    }
}

/// A valid capability header in a packet.
pub(super) trait Header {
    fn view(&self) -> Packet<&[u8]>;
    /// Changes it; whatever checksum covers it stays right.
    fn edit(self, f: impl FnOnce(&mut Packet<&mut [u8]>));
}

/// Anywhere in a packet.
pub(super) struct InFrame<'a, 'b> {
    pub(super) frame: &'a mut Frame<'b>,
    pub(super) found: Found,
}

impl Header for InFrame<'_, '_> {
    fn view(&self) -> Packet<&[u8]> {
        self.found.packet(self.frame.bytes())
    }

    fn edit(self, f: impl FnOnce(&mut Packet<&mut [u8]>)) {
        shim::edit(self.frame.bytes_mut(), &self.found, f);
    }
}

/// Directly behind an IPv4 header without options: nothing covers it but what IP says of its length. Holds all that
/// lies behind the IP header.
pub(super) struct Native<'a>(&'a mut [u8]);

impl<'a> Native<'a> {
    /// The header of such a packet, whole and valid; `None` for any other packet, which is for [`Summary::parse`] to judge.
    #[inline]
    pub(super) fn of(bytes: &'a mut [u8]) -> Option<(Ends, Self)> {
        let (ip, rest) = bytes.split_first_chunk_mut::<{ ipv4::HEADER_LEN }>()?;
        let is_native = ip[0] == VERSION_AND_LEN && ip[6] & FRAGMENT == 0 && ip[7] == 0 && ip[9] == PROTOCOL.0;
        if !is_native || !is_checksum_right(ip) {
            return None;
        }
        let [.., s0, s1, s2, s3, d0, d1, d2, d3] = *ip;
        let ends = Ends::V4(Ipv4Addr::new(s0, s1, s2, s3), Ipv4Addr::new(d0, d1, d2, d3));
        let total_len = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
        let payload = rest.get_mut(..total_len.checked_sub(ipv4::HEADER_LEN)?)?;
        Packet::new_checked(&*payload).ok()?;
        Some((ends, Self(payload)))
    }

    #[inline]
    pub(super) const fn ip_len(&self) -> u32 {
        (ipv4::HEADER_LEN + self.0.len()) as u32
    }
}

impl Header for Native<'_> {
    #[inline]
    fn view(&self) -> Packet<&[u8]> {
        Packet::new_unchecked(self.0)
    }

    #[inline]
    fn edit(self, f: impl FnOnce(&mut Packet<&mut [u8]>)) {
        f(&mut Packet::new_unchecked(self.0));
    }
}

/// RFC 1071: the sum of all words, whatever their byte order, is all ones.
#[inline]
fn is_checksum_right(ip: &[u8; ipv4::HEADER_LEN]) -> bool {
    let sum: u64 = ip.as_chunks::<4>().0.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    (sum & 0xffff) + (sum >> 16) == 0xffff
}
