//! Where packets go next.

use alloc::vec::Vec;
use core::net::IpAddr;
use sluicegate_bounded::Gauge;
use sluicegate_wire::{Port, Reason, ethernet::EtherType};

/// Where packets go next on each port.
pub trait NextHop {
    /// Link address of the next hop towards `destination`.
    fn link_address(&mut self, port: Port, destination: IpAddr) -> Result<[u8; 6], Reason>;
    /// The node's own link address on `port`.
    fn own_link_address(&self, port: Port) -> [u8; 6];
    /// Fill of its tables.
    fn gauges(&self) -> Vec<Gauge>;
}

/// Destination address and Ethernet type of an IP packet.
pub(crate) fn destination(packet: &[u8]) -> Option<(IpAddr, EtherType)> {
    match packet.first()? >> 4 {
        4 => Some((IpAddr::from(*packet.get(16..)?.first_chunk::<4>()?), EtherType::IPV4)),
        6 => Some((IpAddr::from(*packet.get(24..)?.first_chunk::<16>()?), EtherType::IPV6)),
        _ => None,
    }
}
