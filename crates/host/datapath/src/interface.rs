//! What gate and frontend must know of an interface.

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
    /// What made it, such as `veth`; empty for cards.
    pub kind: String,
    /// Its addresses and their prefix lengths.
    pub addresses: Vec<(IpAddr, u8)>,
}

impl Interface {
    /// Whether it is of this kernel's making, except taps: packets may come with VLAN tags beside them, as their sender left
    /// them.
    #[must_use]
    pub fn is_virtual(&self) -> bool {
        !self.kind.is_empty() && self.kind != "tun"
    }

    /// The interface that has this address; `None` if none has.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn with_address(address: IpAddr) -> Result<Option<Self>, Error> {
        let mut netlink = Rtnetlink::open()?;
        for link in netlink.links()? {
            if netlink.addresses(link.index)?.iter().any(|(own, _)| *own == address) {
                return Self::read(&link.name).map(Some);
            }
        }
        Ok(None)
    }

    /// Reads the interface `name`.
    ///
    /// # Errors
    /// [`Error::is_missing`] without such an interface; `EINVAL` if it is no Ethernet interface.
    pub fn read(name: &str) -> Result<Self, Error> {
        let mut netlink = Rtnetlink::open()?;
        let link = netlink.link(name)?;
        let mac = link.mac.ok_or_else(|| std::io::Error::from_raw_os_error(libc::EINVAL))?;
        let addresses = netlink.addresses(link.index)?;
        Ok(Self { name: link.name, index: link.index, mac, mtu: link.mtu, up: link.up, kind: link.kind, addresses })
    }
}
