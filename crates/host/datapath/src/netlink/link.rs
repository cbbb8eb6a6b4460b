//! Links, addresses, routes and neighbours: what a laboratory of network namespaces is made of.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsRawFd, BorrowedFd},
};

use super::{Error, Message, Socket, message};
use crate::sys;

const REQUEST: u16 = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
const CREATE: u16 = REQUEST | (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
const REPLACE: u16 = REQUEST | (libc::NLM_F_CREATE | libc::NLM_F_REPLACE) as u16;
/// `VETH_INFO_PEER` of linux/veth.h.
const VETH_INFO_PEER: u16 = 1;

/// A network namespace to put an interface into.
#[derive(Debug, Clone, Copy)]
pub enum Namespace<'a> {
    /// That of the process or thread with this id.
    Pid(u32),
    /// That of an open `/proc/*/ns/net` file.
    File(BorrowedFd<'a>),
}

/// A connection to the kernel's routing tables in the network namespace in which it was opened.
#[derive(Debug)]
pub struct Route {
    pub(super) socket: Socket,
}

impl Route {
    /// Connects, in the calling thread's network namespace.
    ///
    /// # Errors
    /// Those of `socket(2)`.
    pub fn open() -> io::Result<Self> {
        Ok(Self { socket: Socket::open(libc::NETLINK_ROUTE)? })
    }

    /// Creates a veth pair: `name` here, `peer` in `namespace` (or here too). Both are down.
    ///
    /// # Errors
    /// [`Error::is_exists`] if one of the names is taken.
    pub fn create_veth(&mut self, name: &str, peer: &str, namespace: Option<Namespace<'_>>) -> Result<(), Error> {
        let mut message = Message::new(libc::RTM_NEWLINK, CREATE, &link_header(0, 0, 0));
        message.put_text(libc::IFLA_IFNAME, name).nest(libc::IFLA_LINKINFO, |info| {
            info.put_text(libc::IFLA_INFO_KIND, "veth").nest(libc::IFLA_INFO_DATA, |data| {
                data.nest_after(VETH_INFO_PEER, &link_header(0, 0, 0), |end| {
                    end.put_text(libc::IFLA_IFNAME, peer);
                    put_namespace(end, namespace);
                });
            });
        });
        self.socket.request(&format!("create the veth pair {name} - {peer}"), message)
    }

    /// Creates a bridge, down.
    ///
    /// # Errors
    /// [`Error::is_exists`] if the name is taken.
    pub fn create_bridge(&mut self, name: &str) -> Result<(), Error> {
        let mut message = Message::new(libc::RTM_NEWLINK, CREATE, &link_header(0, 0, 0));
        message.put_text(libc::IFLA_IFNAME, name).nest(libc::IFLA_LINKINFO, |info| {
            info.put_text(libc::IFLA_INFO_KIND, "bridge");
        });
        self.socket.request(&format!("create the bridge {name}"), message)
    }

    /// Makes `name` a port of the bridge `bridge`.
    ///
    /// # Errors
    /// [`Error::is_missing`] without such interfaces.
    pub fn join_bridge(&mut self, name: &str, bridge: &str) -> Result<(), Error> {
        let bridge = sys::interface_index(bridge)?;
        self.change(name, "join the bridge", 0, 0, |message| {
            message.put_u32(libc::IFLA_MASTER, bridge);
        })
    }

    /// Deletes an interface (and the other end of its veth pair).
    ///
    /// # Errors
    /// [`Error::is_missing`] without such an interface.
    pub fn delete_link(&mut self, name: &str) -> Result<(), Error> {
        let index = sys::interface_index(name)?;
        let message = Message::new(libc::RTM_DELLINK, REQUEST, &link_header(index, 0, 0));
        self.socket.request(&format!("delete the interface {name}"), message)
    }

    /// Sets an interface up.
    ///
    /// # Errors
    /// [`Error::is_missing`] without such an interface.
    pub fn set_up(&mut self, name: &str) -> Result<(), Error> {
        let up = libc::IFF_UP as u32;
        self.change(name, "set it up", up, up, |_| {})
    }

    /// Sets an interface down.
    ///
    /// # Errors
    /// [`Error::is_missing`] without such an interface.
    pub fn set_down(&mut self, name: &str) -> Result<(), Error> {
        self.change(name, "set it down", 0, libc::IFF_UP as u32, |_| {})
    }

    /// Sets the hardware address.
    ///
    /// # Errors
    /// [`Error::is_missing`] without such an interface.
    pub fn set_mac(&mut self, name: &str, mac: [u8; 6]) -> Result<(), Error> {
        self.change(name, "set its hardware address", 0, 0, |message| {
            message.put(libc::IFLA_ADDRESS, &mac);
        })
    }

    /// Sets the MTU in bytes of IP packet.
    ///
    /// # Errors
    /// [`Error::is_missing`] without such an interface.
    pub fn set_mtu(&mut self, name: &str, mtu: u32) -> Result<(), Error> {
        self.change(name, "set its MTU", 0, 0, |message| {
            message.put_u32(libc::IFLA_MTU, mtu);
        })
    }

    /// Moves an interface into another network namespace.
    ///
    /// # Errors
    /// [`Error::is_exists`] if the name is taken there.
    pub fn move_to(&mut self, name: &str, namespace: Namespace<'_>) -> Result<(), Error> {
        self.change(name, "move it to another namespace", 0, 0, |message| put_namespace(message, Some(namespace)))
    }

    fn change(
        &mut self,
        name: &str,
        what: &str,
        flags: u32,
        mask: u32,
        fill: impl FnOnce(&mut Message),
    ) -> Result<(), Error> {
        let index = sys::interface_index(name)?;
        let mut message = Message::new(libc::RTM_NEWLINK, REQUEST, &link_header(index, flags, mask));
        fill(&mut message);
        self.socket.request(&format!("change interface {name}: {what}"), message)
    }

    /// Adds an address to an interface; IPv6 addresses are usable at once (no duplicate address detection).
    ///
    /// # Errors
    /// [`Error::is_exists`] if it is there already.
    pub fn add_address(&mut self, name: &str, address: IpAddr, prefix_len: u8) -> Result<(), Error> {
        let index = sys::interface_index(name)?;
        let mut header = vec![message::family_of(address), prefix_len, libc::IFA_F_NODAD as u8, 0];
        header.extend(index.to_ne_bytes());
        let mut message = Message::new(libc::RTM_NEWADDR, CREATE, &header);
        let bytes = message::address_bytes(address);
        message.put(libc::IFA_LOCAL, &bytes).put(libc::IFA_ADDRESS, &bytes);
        self.socket.request(&format!("add {address}/{prefix_len} to {name}"), message)
    }

    /// Takes an address off an interface.
    ///
    /// # Errors
    /// [`Error::is_missing`] if it is not there.
    pub fn delete_address(&mut self, name: &str, address: IpAddr, prefix_len: u8) -> Result<(), Error> {
        let index = sys::interface_index(name)?;
        let mut header = vec![message::family_of(address), prefix_len, 0, 0];
        header.extend(index.to_ne_bytes());
        let mut message = Message::new(libc::RTM_DELADDR, REQUEST, &header);
        message.put(libc::IFA_LOCAL, &message::address_bytes(address));
        self.socket.request(&format!("take {address}/{prefix_len} off {name}"), message)
    }

    /// Adds or replaces a route to `destination/prefix_len`: through `name`, by the gateway `via` if there is one.
    /// The default route is the unspecified address with prefix length 0.
    ///
    /// # Errors
    /// `ENETUNREACH` if the gateway is not reachable through the interface.
    pub fn add_route(
        &mut self,
        destination: IpAddr,
        prefix_len: u8,
        via: Option<IpAddr>,
        name: &str,
    ) -> Result<(), Error> {
        let index = sys::interface_index(name)?;
        let scope = if via.is_some() || destination.is_ipv6() { libc::RT_SCOPE_UNIVERSE } else { libc::RT_SCOPE_LINK };
        let header = [
            message::family_of(destination),
            prefix_len,
            0,
            0,
            libc::RT_TABLE_MAIN,
            libc::RTPROT_STATIC,
            scope,
            libc::RTN_UNICAST,
            0,
            0,
            0,
            0,
        ];
        let mut message = Message::new(libc::RTM_NEWROUTE, REPLACE, &header);
        if prefix_len > 0 {
            message.put(libc::RTA_DST, &message::address_bytes(destination));
        }
        if let Some(via) = via {
            message.put(libc::RTA_GATEWAY, &message::address_bytes(via));
        }
        message.put_u32(libc::RTA_OIF, index);
        self.socket.request(&format!("add a route to {destination}/{prefix_len} through {name}"), message)
    }

    /// Adds or replaces the default IPv4 route by a gateway.
    ///
    /// # Errors
    /// As [`Self::add_route`].
    pub fn add_default_route(&mut self, via: IpAddr, name: &str) -> Result<(), Error> {
        let any = if via.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        self.add_route(any, 0, Some(via), name)
    }

    /// Adds or replaces a permanent neighbour entry, so that no ARP or neighbour discovery is needed.
    ///
    /// # Errors
    /// [`Error::is_missing`] without such an interface.
    pub fn add_neighbour(&mut self, name: &str, address: IpAddr, mac: [u8; 6]) -> Result<(), Error> {
        let index = sys::interface_index(name)?;
        let header = neighbour_header(message::family_of(address), index, libc::NUD_PERMANENT, 0);
        let mut message = Message::new(libc::RTM_NEWNEIGH, REPLACE, &header);
        message.put(libc::NDA_DST, &message::address_bytes(address)).put(libc::NDA_LLADDR, &mac);
        self.socket.request(&format!("add the neighbour {address} on {name}"), message)
    }
}

/// `struct ifinfomsg`.
pub(super) fn link_header(index: u32, flags: u32, mask: u32) -> [u8; 16] {
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&mask.to_ne_bytes());
    header
}

/// `struct ndmsg`.
pub(super) fn neighbour_header(family: u8, index: u32, state: u16, flags: u8) -> [u8; 12] {
    let mut header = [0; 12];
    header[0] = family;
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..10].copy_from_slice(&state.to_ne_bytes());
    header[10] = flags;
    header
}

fn put_namespace(message: &mut Message, namespace: Option<Namespace<'_>>) {
    match namespace {
        None => {}
        Some(Namespace::Pid(pid)) => {
            message.put_u32(libc::IFLA_NET_NS_PID, pid);
        }
        Some(Namespace::File(fd)) => {
            message.put(libc::IFLA_NET_NS_FD, &fd.as_raw_fd().to_ne_bytes());
        }
    }
}
