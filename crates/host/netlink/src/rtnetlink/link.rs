//! Links, and the bottleneck that can be made of one: a token bucket filter in front of a queue limited in *packets*. In a
//! byte-limited one small packets slip in beside the big ones of a flood, and the link looks better than it is.

use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{DefaultNla, Emitable, parse_u32, parse_u64};
use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkHeader, LinkInfo, LinkMessage},
    tc::{TcAttribute, TcHandle, TcHeader, TcMessage, TcOption},
};

use super::{CHANGE, CREATE, REPLACE, Rtnetlink, Tunnel, tunnel};
use crate::{
    Error,
    message::{self, Message},
    socket::Answer,
};

const BUCKET: TcHandle = TcHandle { major: 1, minor: 0 };
const BUCKET_CLASS: TcHandle = TcHandle { major: 1, minor: 1 };
const QUEUE: TcHandle = TcHandle { major: 16, minor: 0 };

// Attributes of linux/rtnetlink.h, linux/pkt_sched.h and linux/gen_stats.h.
const TCA_OPTIONS: u16 = 2;
const TCA_STATS2: u16 = 7;
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_BURST: u16 = 6;
const TCA_STATS_BASIC: u16 = 1;
const TCA_STATS_QUEUE: u16 = 3;
/// `tc_ratespec.linklayer`: sizes are Ethernet frames, the kernel needs no rate table.
const LINKLAYER_ETHERNET: u8 = 1;

/// A link as the kernel describes it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Link {
    /// Its number, unique in the namespace.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// What made it, such as `veth`; empty for cards, and for loopback.
    pub kind: String,
    /// Whether it is set up.
    pub up: bool,
    /// Its Ethernet address, if it has one.
    pub mac: Option<[u8; 6]>,
    /// The largest IP packet in bytes.
    pub mtu: u32,
    /// Where it leads, if it is a tunnel to one far end.
    pub tunnel: Option<Tunnel>,
    /// What it counted since it was made.
    pub counters: LinkCounters,
}

/// Counters of a link (`struct rtnl_link_stats64`).
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

/// What a bottleneck did since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct QueueCounters {
    /// Bytes sent.
    pub bytes: u64,
    /// Packets sent.
    pub packets: u64,
    /// Packets dropped because the queue was full.
    pub dropped: u64,
    /// Packets waiting now.
    pub waiting: u64,
}

impl Rtnetlink {
    /// The link called `name`.
    ///
    /// # Errors
    /// [`Error::is_missing`] if there is none.
    pub fn link(&mut self, name: &str) -> Result<Link, Error> {
        let request = format!("find the interface {name}");
        // The kernel would say that such a name is too long, or take what is before the NUL.
        if name.len() >= libc::IFNAMSIZ || name.contains('\0') {
            return Err(Error::refused(&request, libc::ENODEV));
        }
        self.one_link(&request, LinkHeader::default(), vec![LinkAttribute::IfName(name.into())])
    }

    /// The name of the link with this number.
    pub(super) fn name_of(&mut self, index: u32) -> Result<String, Error> {
        let header = LinkHeader { index, ..LinkHeader::default() };
        Ok(self.one_link(&format!("find the interface with the number {index}"), header, Vec::new())?.name)
    }

    /// The number of the link called `name`.
    pub(super) fn index(&mut self, name: &str) -> Result<u32, Error> {
        Ok(self.link(name)?.index)
    }

    fn one_link(&mut self, request: &str, header: LinkHeader, attributes: Vec<LinkAttribute>) -> Result<Link, Error> {
        let message = Message::route(&RouteNetlinkMessage::GetLink(link_message(header, attributes)), 0);
        let mut found = None;
        self.socket.ask(request, &message, &mut |answer| found = parse_link(answer.payload))?;
        found.ok_or_else(|| Error::refused(request, libc::ENODEV))
    }

    /// All links of the namespace.
    ///
    /// # Errors
    /// Those of netlink.
    pub fn links(&mut self) -> Result<Vec<Link>, Error> {
        let message = Message::route(&RouteNetlinkMessage::GetLink(LinkMessage::default()), 0);
        self.socket.dump("list the interfaces", &message, |links: &mut Vec<Link>, answer: Answer<'_>| {
            links.extend(parse_link(answer.payload));
        })
    }

    /// Creates a veth pair: `name` here, `peer` in `namespace` (or here too). Both are down.
    ///
    /// # Errors
    /// [`Error::is_exists`] if one of the names is taken.
    pub fn create_veth(&mut self, name: &str, peer: &str, namespace: Option<BorrowedFd<'_>>) -> Result<(), Error> {
        let namespace = namespace.map(|namespace| LinkAttribute::NetNsFd(namespace.as_raw_fd()));
        let end = [LinkAttribute::IfName(peer.into())].into_iter().chain(namespace).collect();
        let end = InfoVeth::Peer(link_message(LinkHeader::default(), end));
        let info = vec![LinkInfo::Kind(InfoKind::Veth), LinkInfo::Data(InfoData::Veth(end))];
        self.create_link(name, info, &format!("create the veth pair {name} - {peer}"))
    }

    /// Creates a bridge, down.
    ///
    /// # Errors
    /// [`Error::is_exists`] if the name is taken.
    pub fn create_bridge(&mut self, name: &str) -> Result<(), Error> {
        self.create_link(name, vec![LinkInfo::Kind(InfoKind::Bridge)], &format!("create the bridge {name}"))
    }

    fn create_link(&mut self, name: &str, info: Vec<LinkInfo>, request: &str) -> Result<(), Error> {
        let attributes = vec![LinkAttribute::IfName(name.into()), LinkAttribute::LinkInfo(info)];
        let message = link_message(LinkHeader::default(), attributes);
        self.change(request, RouteNetlinkMessage::NewLink(message), CREATE)
    }

    /// Makes `name` a port of the bridge `bridge`.
    ///
    /// # Errors
    /// [`Error::is_missing`] without such interfaces.
    pub fn join_bridge(&mut self, name: &str, bridge: &str) -> Result<(), Error> {
        let bridge = self.index(bridge)?;
        self.change_link(name, "join the bridge", LinkFlags::empty(), vec![LinkAttribute::Controller(bridge)])
    }

    /// Deletes an interface (and the other end of its veth pair).
    ///
    /// # Errors
    /// [`Error::is_missing`] without such an interface.
    pub fn delete_link(&mut self, name: &str) -> Result<(), Error> {
        let header = LinkHeader { index: self.index(name)?, ..LinkHeader::default() };
        let message = RouteNetlinkMessage::DelLink(link_message(header, Vec::new()));
        self.change(&format!("delete the interface {name}"), message, CHANGE)
    }

    /// Sets an interface up.
    ///
    /// # Errors
    /// [`Error::is_missing`] without such an interface.
    pub fn set_up(&mut self, name: &str) -> Result<(), Error> {
        self.change_link(name, "set it up", LinkFlags::Up, Vec::new())
    }

    /// Sets the hardware address.
    ///
    /// # Errors
    /// [`Error::is_missing`] without such an interface.
    pub fn set_mac(&mut self, name: &str, mac: [u8; 6]) -> Result<(), Error> {
        self.change_link(name, "set its hardware address", LinkFlags::empty(), vec![LinkAttribute::Address(mac.into())])
    }

    /// Sets the MTU in bytes of IP packet.
    ///
    /// # Errors
    /// [`Error::is_missing`] without such an interface.
    pub fn set_mtu(&mut self, name: &str, mtu: u32) -> Result<(), Error> {
        self.change_link(name, "set its MTU", LinkFlags::empty(), vec![LinkAttribute::Mtu(mtu)])
    }

    fn change_link(
        &mut self,
        name: &str,
        what: &str,
        flags: LinkFlags,
        attributes: Vec<LinkAttribute>,
    ) -> Result<(), Error> {
        let header = LinkHeader { index: self.index(name)?, flags, change_mask: flags, ..LinkHeader::default() };
        let message = RouteNetlinkMessage::NewLink(link_message(header, attributes));
        self.change(&format!("change interface {name}: {what}"), message, CHANGE)
    }
    /// Limits what leaves by `name` to `rate_bps` (bits per second, Ethernet headers included), with bursts of
    /// `burst_bytes` and a queue of `packets` behind it. Replaces an earlier limit.
    ///
    /// # Errors
    /// [`Error::is_missing`] without such an interface, and on a kernel without `sch_tbf`.
    pub fn limit_rate(&mut self, name: &str, rate_bps: u64, burst_bytes: u32, packets: u32) -> Result<(), Error> {
        let index = self.index(name)?;
        let rate = (rate_bps / 8).max(1);
        let option = |kind, value: &[u8]| TcOption::Other(DefaultNla::new(kind, value.into()));
        let options = vec![
            option(TCA_TBF_PARMS, &bucket(rate)),
            option(TCA_TBF_RATE64, &rate.to_ne_bytes()),
            option(TCA_TBF_BURST, &burst_bytes.to_ne_bytes()),
        ];
        let attributes = vec![TcAttribute::Kind("tbf".into()), TcAttribute::Options(options)];
        let message = queue_message(index, BUCKET, TcHandle::ROOT, attributes);
        let request = format!("limit the rate of {name}");
        self.change(&request, RouteNetlinkMessage::NewQueueDiscipline(message), REPLACE)?;
        // The options of this kind are a number, not attributes.
        let limit = TcAttribute::Other(DefaultNla::new(TCA_OPTIONS, packets.to_ne_bytes().into()));
        let message = queue_message(index, QUEUE, BUCKET_CLASS, vec![TcAttribute::Kind("pfifo".into()), limit]);
        let request = format!("limit the queue of {name} to {packets} packets");
        self.change(&request, RouteNetlinkMessage::NewQueueDiscipline(message), REPLACE)
    }

    /// The counters of the limit that [`Self::limit_rate`] set; zeros if it set none.
    ///
    /// # Errors
    /// [`Error::is_missing`] without such an interface.
    pub fn queue_counters(&mut self, name: &str) -> Result<QueueCounters, Error> {
        let index = self.index(name)?;
        let message = queue_message(index, TcHandle::UNSPEC, TcHandle::UNSPEC, Vec::new());
        let message = Message::route(&RouteNetlinkMessage::GetQueueDiscipline(message), 0);
        let request = format!("read the queue of {name}");
        self.socket.dump(&request, &message, |counters, answer: Answer<'_>| {
            if let Some(found) = parse_queue(answer.payload, index) {
                *counters = found;
            }
        })
    }
}

fn link_message(header: LinkHeader, attributes: Vec<LinkAttribute>) -> LinkMessage {
    let mut message = LinkMessage::default();
    (message.header, message.attributes) = (header, attributes);
    message
}

pub(super) fn parse_link(payload: &[u8]) -> Option<Link> {
    let header = LinkHeader::parse(payload).ok()?;
    let mut link = Link { index: header.index, up: header.flags.contains(LinkFlags::Up), ..Link::default() };
    for (kind, value) in message::attributes(payload, header.buffer_len()) {
        match kind {
            libc::IFLA_IFNAME => link.name = message::text(value),
            libc::IFLA_ADDRESS => link.mac = value.try_into().ok(),
            libc::IFLA_MTU => link.mtu = parse_u32(value).ok()?,
            libc::IFLA_STATS64 => link.counters = parse_counters(value).unwrap_or_default(),
            libc::IFLA_LINKINFO => {
                link.kind = message::value(value, libc::IFLA_INFO_KIND).map(message::text).unwrap_or_default();
                link.tunnel = tunnel::parse(value);
            }
            _ => {}
        }
    }
    Some(link)
}

fn parse_counters(value: &[u8]) -> Option<LinkCounters> {
    let at = |number: usize| parse_u64(value.get(8 * number..8 * (number + 1))?).ok();
    Some(LinkCounters {
        rx_packets: at(0)?,
        tx_packets: at(1)?,
        rx_bytes: at(2)?,
        tx_bytes: at(3)?,
        rx_dropped: at(6)?,
        tx_dropped: at(7)?,
    })
}

fn queue_message(index: u32, handle: TcHandle, parent: TcHandle, attributes: Vec<TcAttribute>) -> TcMessage {
    let header = TcHeader { index: index.cast_signed(), handle, parent, ..TcHeader::default() };
    TcMessage::from_parts(header, attributes)
}

/// `struct tc_tbf_qopt`: rate, peak rate, limit, buffer, mtu. Limit 0 leaves the inner queue to be put in; the burst is an
/// attribute.
fn bucket(rate: u64) -> [u8; 36] {
    let mut bytes = [0; 36];
    bytes[1] = LINKLAYER_ETHERNET;
    bytes[8..12].copy_from_slice(&u32::try_from(rate).unwrap_or(u32::MAX).to_ne_bytes());
    bytes
}

/// The counters of the bucket of this interface.
pub(super) fn parse_queue(payload: &[u8], index: u32) -> Option<QueueCounters> {
    let header = TcHeader::parse(payload).ok()?;
    if (header.index.cast_unsigned(), header.handle) != (index, BUCKET) {
        return None;
    }
    let statistics = message::value(payload.get(header.buffer_len()..)?, TCA_STATS2)?;
    let (basic, queue) = (message::value(statistics, TCA_STATS_BASIC)?, message::value(statistics, TCA_STATS_QUEUE)?);
    let number = |of: &[u8], at: usize| parse_u32(of.get(at..at + 4)?).ok().map(u64::from);
    Some(QueueCounters {
        bytes: parse_u64(basic.get(..8)?).ok()?,
        packets: number(basic, 8)?,
        waiting: number(queue, 0)?,
        dropped: number(queue, 8)?,
    })
}
