//! Where packets go next, as the kernel knows it.

use sluicegate_bounded::Gauge;
use sluicegate_datapath::neighbour::Table;
use sluicegate_node::NextHop;
use sluicegate_wire::{Port, Reason};
use std::net::IpAddr;

use super::tunnels::{is_tunnels, link_address};

/// The kernel's routes and neighbours, mirrored.
pub(crate) struct Neighbours {
    pub(crate) table: Table,
    pub(crate) own: [[u8; 6]; 2],
    /// Whether agents may have tunnels.
    pub(crate) has_tunnels: bool,
}

impl NextHop for Neighbours {
    fn link_address(&mut self, port: Port, destination: IpAddr) -> Result<[u8; 6], Reason> {
        match destination {
            IpAddr::V4(address) if self.has_tunnels && port == Port::OUTSIDE && is_tunnels(address) => {
                Ok(link_address())
            }
            _ => self.table.lookup(port, destination),
        }
    }

    fn own_link_address(&self, port: Port) -> [u8; 6] {
        self.own[usize::from(port.0 & 1)]
    }

    fn gauges(&self) -> Vec<Gauge> {
        let tables = self.table.gauges().into_iter();
        tables.map(|(name, used, max)| Gauge { name, used: used as u64, max: max as u64 }).collect()
    }
}
