//! Capability headers where they lie: directly behind an IP header, or wherever [`shim::find`] found one.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sluicegate_wire::{
    Frame, Reason,
    capability::{
        Packet,
        shim::{self, Carriage, Found},
    },
    ip::Summary,
};

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

/// Directly behind an IP header: nothing covers it but what IP says of its length. Holds all that lies behind the IP
/// header.
pub(super) struct Native<'a>(&'a mut [u8]);

impl<'a> Native<'a> {
    /// The header that was found in a packet, if it is such a one.
    #[inline]
    pub(super) fn of(bytes: &'a mut [u8], ip: &Summary, found: &Found) -> Option<Self> {
        let is_native = found.carriage == Carriage::Native;
        bytes.get_mut(found.header_at..ip.total_len).filter(|_| is_native).map(Self)
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
