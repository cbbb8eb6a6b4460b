//! Where packets go next.

use crate::board::Gauge;
use sluicegate_datapath::neighbour::Table;
use sluicegate_wire::{Port, Reason, ethernet::EtherType};
use std::net::IpAddr;

/// Where packets go next on each port.
pub(crate) trait NextHop {
    /// Link address of the next hop towards `destination`.
    fn link_address(&mut self, port: Port, destination: IpAddr) -> Result<[u8; 6], Reason>;
    /// The node's own link address on `port`.
    fn own_link_address(&self, port: Port) -> [u8; 6];
    /// Fill of its tables.
    fn gauges(&self) -> Vec<Gauge>;
}

/// The kernel's routes and neighbours, mirrored.
pub(crate) struct Neighbours {
    pub(crate) table: Table,
    pub(crate) own: [[u8; 6]; 2],
}

impl NextHop for Neighbours {
    fn link_address(&mut self, port: Port, destination: IpAddr) -> Result<[u8; 6], Reason> {
        self.table.lookup(port, destination)
    }

    fn own_link_address(&self, port: Port) -> [u8; 6] {
        self.own[usize::from(port.0 & 1)]
    }

    fn gauges(&self) -> Vec<Gauge> {
        let tables = self.table.gauges().into_iter();
        tables.map(|(name, used, max)| Gauge { name, used: used as u64, max: max as u64 }).collect()
    }
}

/// Destination address and Ethernet type of an IP packet.
pub(crate) fn destination(packet: &[u8]) -> Option<(IpAddr, EtherType)> {
    match packet.first()? >> 4 {
        4 => Some((IpAddr::from(*packet.get(16..)?.first_chunk::<4>()?), EtherType::IPV4)),
        6 => Some((IpAddr::from(*packet.get(24..)?.first_chunk::<16>()?), EtherType::IPV6)),
        _ => None,
    }
}
