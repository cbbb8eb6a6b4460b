//! How an admitted packet leaves.

use core::net::IpAddr;

use sluicegate_pinhole::Tuple;
use sluicegate_wire::{
    Frame, Port,
    checksum::Delta,
    icmp,
    ip::{Ports, Summary, Version},
    ipv4, ipv6,
};

use crate::transport::{Selector, Transport};

/// The line that paid for a packet, as later fragments of it refer to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LineRef {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// The ends that are written into a packet, each an address and a port (or echo identifier); `None`: it stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NewEnds {
    pub(crate) src: Option<(IpAddr, u16)>,
    pub(crate) dst: Option<(IpAddr, u16)>,
}

impl NewEnds {
    pub(crate) const NONE: Self = Self { src: None, dst: None };

    /// Writes addresses and ports into a whole packet, a first fragment, or what an ICMP error quotes. `tuple`: its ends so
    /// far.
    #[inline]
    pub(crate) fn write(&self, transport: &Transport, tuple: &Tuple, ip: &mut Summary, bytes: &mut [u8]) {
        if self.src.is_none() && self.dst.is_none() {
            return;
        }
        let delta = self.write_addresses(ip, bytes);
        match transport.selector {
            Selector::Ident => {
                if let Some((_, ident)) = self.src.or(self.dst)
                    && transport.is_translatable
                {
                    icmp::Packet::new_unchecked(ip.version(), ip.transport_mut(bytes)).replace_ident(ident);
                }
            }
            Selector::Ports => {
                let old = Ports { src: tuple.src.1, dst: tuple.dst.1 };
                let new = Ports {
                    src: self.src.map_or(old.src, |(_, port)| port),
                    dst: self.dst.map_or(old.dst, |(_, port)| port),
                };
                let ports = old.replace(ip.transport_mut(bytes), new);
                ip.adjust_checksum(transport.checksum, bytes, delta.and(ports));
            }
            Selector::None => ip.adjust_checksum(transport.checksum, bytes, delta),
        }
    }

    /// Writes addresses only: all that a later fragment has.
    #[inline]
    pub(crate) fn write_addresses(&self, ip: &mut Summary, bytes: &mut [u8]) -> Delta {
        let mut delta = Delta::NONE;
        if let Some((address, _)) = self.src {
            delta = delta.and(ip.set_src(bytes, address));
        }
        if let Some((address, _)) = self.dst {
            delta = delta.and(ip.set_dst(bytes, address));
        }
        delta
    }
}

/// Where a packet goes and what is written into it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rewrite {
    pub(crate) to: Port,
    pub(crate) ends: NewEnds,
    pub(crate) line: Option<LineRef>,
    /// Whether the packet's last bytes are the trailer of a packet MAC, which stays here.
    pub(crate) strip: bool,
    /// The pinhole under whose key the packet gets such a trailer.
    pub(crate) seal: Option<u32>,
}

impl Rewrite {
    /// Out of the other side, unchanged.
    pub(crate) const fn unchanged(to: Port) -> Self {
        Self { to, ends: NewEnds::NONE, line: None, strip: false, seal: None }
    }

    /// The port where it leaves.
    #[inline]
    #[must_use]
    pub const fn to(&self) -> Port {
        self.to
    }
}

/// Says in a packet's IP header that it is `total_len` bytes long, and cuts off what is behind them. The transport's checksum is the caller's.
pub(crate) fn set_len(ip: &mut Summary, frame: &mut Frame<'_>, total_len: usize) {
    let (old, new) = (ip.total_len as u16, total_len as u16);
    ip.total_len = total_len;
    let bytes = frame.bytes_mut();
    match ip.version() {
        Version::V4 => {
            let mut packet = ipv4::Packet::new_unchecked(bytes);
            packet.set_total_len(new);
            packet.set_checksum(Delta::NONE.u16(old, new).apply(packet.checksum()));
        }
        Version::V6 => {
            let mut packet = ipv6::Packet::new_unchecked(bytes);
            packet.set_payload_len((total_len - ipv6::HEADER_LEN) as u16);
        }
    }
    frame.truncate(total_len);
}
