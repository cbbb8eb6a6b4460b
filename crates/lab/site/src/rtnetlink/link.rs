use std::{io, os::fd::AsRawFd, os::fd::BorrowedFd};

use super::{
    Netlink,
    message::{CREATE, EXCLUSIVE, Message, attributes, u32_at, u64_at},
    with_context,
};

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_MASTER: u16 = 10;
const IFLA_TXQLEN: u16 = 13;
const IFLA_LINKINFO: u16 = 18;
const IFLA_STATS64: u16 = 23;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFF_UP: u32 = 1;
/// `struct ifinfomsg`: family, type, index, flags, change.
const IFINFO_LEN: usize = 16;
/// Packets that a veth end may hold before its queue; small, so that no queue but the bottleneck's can build up.
const TX_QUEUE_PACKETS: u32 = 1_000;

/// One interface as the kernel lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Interface index.
    pub index: u32,
    /// Interface name.
    pub name: String,
    /// Kind of a virtual interface, such as `veth`; empty for others, loopback among them.
    pub kind: String,
    /// Whether it is switched on.
    pub up: bool,
    /// Ethernet address; zero where there is none.
    pub mac: [u8; 6],
    /// Its counters since it was made.
    pub counters: LinkCounters,
}

/// Interface counters (`struct rtnl_link_stats64`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LinkCounters {
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes received, without the preamble and check sequence.
    pub rx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Received packets dropped.
    pub rx_dropped: u64,
    /// Sent packets dropped.
    pub tx_dropped: u64,
}

impl LinkCounters {
    /// What was added since `earlier`.
    #[must_use]
    pub const fn since(&self, earlier: &Self) -> Self {
        Self {
            rx_packets: self.rx_packets.saturating_sub(earlier.rx_packets),
            rx_bytes: self.rx_bytes.saturating_sub(earlier.rx_bytes),
            tx_packets: self.tx_packets.saturating_sub(earlier.tx_packets),
            tx_bytes: self.tx_bytes.saturating_sub(earlier.tx_bytes),
            rx_dropped: self.rx_dropped.saturating_sub(earlier.rx_dropped),
            tx_dropped: self.tx_dropped.saturating_sub(earlier.tx_dropped),
        }
    }
}

/// One end of a veth pair to be made: (name, Ethernet address, namespace).
pub(crate) type VethEnd<'a> = (&'a str, [u8; 6], BorrowedFd<'a>);

impl Netlink {
    /// Makes a veth pair whose ends appear, switched off, in the two namespaces.
    pub(crate) fn add_veth(&mut self, a: VethEnd<'_>, b: VethEnd<'_>, mtu: u32) -> io::Result<()> {
        let mut message = Message::new(RTM_NEWLINK, CREATE | EXCLUSIVE, &[0; IFINFO_LEN]);
        veth_end(&mut message, a, mtu);
        message.nest(IFLA_LINKINFO, |info| {
            info.string(IFLA_INFO_KIND, "veth").nest(IFLA_INFO_DATA, |data| {
                data.nest(VETH_INFO_PEER, |peer| {
                    peer.raw(&[0; IFINFO_LEN]);
                    veth_end(peer, b, mtu);
                });
            });
        });
        self.request(message, &format!("making the link {} - {}", a.0, b.0))
    }

    /// Makes a switch (a bridge without spanning tree), switched off.
    pub(crate) fn add_bridge(&mut self, name: &str) -> io::Result<()> {
        let mut message = Message::new(RTM_NEWLINK, CREATE | EXCLUSIVE, &[0; IFINFO_LEN]);
        message.string(IFLA_IFNAME, name).nest(IFLA_LINKINFO, |info| {
            info.string(IFLA_INFO_KIND, "bridge");
        });
        self.request(message, &format!("making the bridge {name}"))
    }

    /// Makes an interface a port of a bridge.
    pub(crate) fn add_port(&mut self, bridge: u32, index: u32) -> io::Result<()> {
        let mut message = Message::new(RTM_NEWLINK, 0, &ifinfo(index, 0, 0));
        message.attribute(IFLA_MASTER, &bridge.to_ne_bytes());
        self.request(message, &format!("making interface {index} a port of a bridge"))
    }

    /// Removes an interface; of a veth pair, both ends.
    pub(crate) fn remove_link(&mut self, index: u32) -> io::Result<()> {
        self.request(Message::new(RTM_DELLINK, 0, &ifinfo(index, 0, 0)), &format!("removing interface {index}"))
    }

    /// Switches an interface on or off.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_up(&mut self, index: u32, up: bool) -> io::Result<()> {
        let flags = if up { IFF_UP } else { 0 };
        let message = Message::new(RTM_NEWLINK, 0, &ifinfo(index, flags, IFF_UP));
        self.request(message, &format!("switching interface {index} {}", if up { "on" } else { "off" }))
    }

    /// All interfaces of the namespace.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn links(&mut self) -> io::Result<Vec<Link>> {
        let mut links = Vec::new();
        self.dump(Message::new(RTM_GETLINK, 0, &[0; IFINFO_LEN]), &mut |kind, body| {
            if kind == RTM_NEWLINK {
                links.extend(parse_link(body));
            }
        })
        .map_err(|error| with_context(&error, "listing interfaces"))?;
        Ok(links)
    }

    /// The interface called `name`.
    ///
    /// # Errors
    /// `NotFound` with the names that exist.
    pub fn link(&mut self, name: &str) -> io::Result<Link> {
        let links = self.links()?;
        let names = links.iter().map(|link| link.name.as_str()).collect::<Vec<_>>().join(", ");
        links.iter().find(|link| link.name == name).cloned().ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, format!("no interface {name} here; there are {names}"))
        })
    }
}

fn veth_end(message: &mut Message, (name, mac, namespace): VethEnd<'_>, mtu: u32) {
    message
        .string(IFLA_IFNAME, name)
        .attribute(IFLA_ADDRESS, &mac)
        .attribute(IFLA_MTU, &mtu.to_ne_bytes())
        .attribute(IFLA_TXQLEN, &TX_QUEUE_PACKETS.to_ne_bytes())
        .attribute(IFLA_NET_NS_FD, &namespace.as_raw_fd().to_ne_bytes());
}

fn ifinfo(index: u32, flags: u32, change: u32) -> [u8; IFINFO_LEN] {
    let mut fixed = [0; IFINFO_LEN];
    fixed[4..8].copy_from_slice(&index.to_ne_bytes());
    fixed[8..12].copy_from_slice(&flags.to_ne_bytes());
    fixed[12..16].copy_from_slice(&change.to_ne_bytes());
    fixed
}

fn parse_link(body: &[u8]) -> Option<Link> {
    let mut link = Link {
        index: u32_at(body, 4)?,
        name: String::new(),
        kind: String::new(),
        up: u32_at(body, 8)? & IFF_UP != 0,
        mac: [0; 6],
        counters: LinkCounters::default(),
    };
    for (kind, value) in attributes(body.get(IFINFO_LEN..)?) {
        match kind {
            IFLA_IFNAME => link.name = text(value),
            IFLA_ADDRESS => link.mac = value.try_into().unwrap_or_default(),
            IFLA_STATS64 => link.counters = parse_counters(value).unwrap_or_default(),
            IFLA_LINKINFO => {
                link.kind = attributes(value)
                    .find(|(kind, _)| *kind == IFLA_INFO_KIND)
                    .map_or_else(String::new, |(_, value)| text(value));
            }
            _ => {}
        }
    }
    Some(link)
}

fn parse_counters(value: &[u8]) -> Option<LinkCounters> {
    Some(LinkCounters {
        rx_packets: u64_at(value, 0)?,
        tx_packets: u64_at(value, 8)?,
        rx_bytes: u64_at(value, 16)?,
        tx_bytes: u64_at(value, 24)?,
        rx_dropped: u64_at(value, 48)?,
        tx_dropped: u64_at(value, 56)?,
    })
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value.strip_suffix(&[0]).unwrap_or(value)).into_owned()
}
