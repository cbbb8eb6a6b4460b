//! The product's capability router, and where packets go.

use std::{collections::BTreeMap, net::IpAddr};

use sluicegate_wire::{FrameBuf, ip::Summary};

use crate::Interface;

pub(crate) mod capability;
pub use capability::CapabilityRouter;

/// Which interface leads to an address.
#[derive(Debug, Clone)]
pub struct Routes {
    exact: BTreeMap<IpAddr, Interface>,
    default: Interface,
}

impl Routes {
    /// All addresses by this interface.
    #[must_use]
    pub const fn all(default: Interface) -> Self {
        Self { exact: BTreeMap::new(), default }
    }

    /// The same, but this address by another interface.
    #[must_use]
    pub fn with(mut self, address: IpAddr, by: Interface) -> Self {
        self.exact.insert(address, by);
        self
    }

    /// The interface towards an address.
    #[must_use]
    pub fn towards(&self, address: IpAddr) -> Interface {
        *self.exact.get(&address).unwrap_or(&self.default)
    }
}

/// Takes one hop off a packet and finds where it leaves and where to; `None` if it must not go on.
#[must_use]
pub fn next_hop(routes: &Routes, packet: &mut FrameBuf) -> Option<(Interface, IpAddr)> {
    packet.with(|frame| {
        let mut summary = Summary::parse(frame.bytes()).ok()?;
        summary.decrement_ttl(frame.bytes_mut()).ok()?;
        Some((routes.towards(summary.dst), summary.dst))
    })
}
