//! How an admitted packet leaves.

use core::net::IpAddr;

use sluicegate_wire::{
    Frame, Port,
    checksum::Delta,
    icmp,
    ip::{Ports, Summary, Version},
    ipv4, ipv6,
};

use crate::transport::{Packet, Selector, Signal};

/// The line that paid for a packet, as later fragments of it refer to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LineRef {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// Where a packet goes and what is written into it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rewrite {
    pub(crate) to: Port,
    /// New source address and port (or echo identifier).
    pub(crate) src: Option<(IpAddr, u16)>,
    /// New destination address and port (or echo identifier).
    pub(crate) dst: Option<(IpAddr, u16)>,
    pub(crate) line: Option<LineRef>,
    /// Whether the packet's last bytes are the trailer of a packet MAC, which stays here.
    pub(crate) strip: bool,
    /// The pinhole under whose key the packet gets such a trailer.
    pub(crate) seal: Option<u32>,
}

impl Rewrite {
    /// Out of the other side, unchanged.
    pub(crate) const fn unchanged(to: Port) -> Self {
        Self { to, src: None, dst: None, line: None, strip: false, seal: None }
    }

    /// The port where it leaves.
    #[inline]
    #[must_use]
    pub const fn to(&self) -> Port {
        self.to
    }

    /// Writes addresses and ports into a whole packet or a first fragment.
    #[inline]
    pub(crate) fn apply(&self, packet: &mut Packet<'_>, bytes: &mut [u8]) {
        if self.src.is_none() && self.dst.is_none() {
            return;
        }
        let mut delta = self.apply_addresses(packet.ip, bytes);
        match packet.transport.selector {
            _ if packet.signal == Signal::Error => {}
            Selector::Ident => {
                if let Some((_, ident)) = self.src.or(self.dst)
                    && packet.transport.is_translatable
                {
                    icmp::Packet::new_unchecked(packet.ip.version(), packet.ip.transport_mut(bytes))
                        .replace_ident(ident);
                }
            }
            Selector::Ports => {
                let old = Ports { src: packet.tuple.src.1, dst: packet.tuple.dst.1 };
                let new = Ports {
                    src: self.src.map_or(old.src, |(_, port)| port),
                    dst: self.dst.map_or(old.dst, |(_, port)| port),
                };
                delta = delta.and(old.replace(packet.ip.transport_mut(bytes), new));
                packet.ip.adjust_checksum(packet.transport.checksum, bytes, delta);
            }
            Selector::None => packet.ip.adjust_checksum(packet.transport.checksum, bytes, delta),
        }
    }

    /// Writes addresses only: all that a later fragment has.
    #[inline]
    pub(crate) fn apply_addresses(&self, ip: &mut Summary, bytes: &mut [u8]) -> Delta {
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
