//! What the gate must know of an interface.

use std::net::IpAddr;

use sluicegate_netlink::{Error, Rtnetlink};

/// An Ethernet interface of the calling thread's network namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its index, unique in the namespace.
    pub index: u32,
    /// Its hardware address.
    pub mac: [u8; 6],
    /// The largest IP packet in bytes.
    pub mtu: u32,
    /// Set up by the administrator.
    pub up: bool,
    /// Of this kernel's making, except taps: packets may come with VLAN tags beside them, as their sender left them.
    pub is_virtual: bool,
    /// Its addresses and their prefix lengths.
    pub addresses: Vec<(IpAddr, u8)>,
}

impl Interface {
    /// Reads the interface `name`.
    ///
    /// # Errors
    /// [`Error::is_missing`] without such an interface; `EINVAL` if it is no Ethernet interface.
    pub fn read(name: &str) -> Result<Self, Error> {
        let mut netlink = Rtnetlink::open()?;
        let link = netlink.link(name)?;
        let mac = link.mac.ok_or_else(|| std::io::Error::from_raw_os_error(libc::EINVAL))?;
        let addresses = netlink.addresses(link.index)?;
        Ok(Self {
            name: link.name,
            index: link.index,
            mac,
            mtu: link.mtu,
            up: link.up,
            is_virtual: !link.kind.is_empty() && link.kind != "tun",
            addresses,
        })
    }
}
