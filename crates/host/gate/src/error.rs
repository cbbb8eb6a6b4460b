//! What can go wrong, each with what, where and what to do next.

use std::{io, net::IpAddr, path::PathBuf};

/// A field of [`crate::Config`] that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The gate's name is empty, too long, or has other characters than names have.
    #[error("the gate's name {0:?} must be 1 to 64 letters, digits, '-', '_' or '.'")]
    Name(String),
    /// One interface was given for both sides.
    #[error("outside and inside are both {0:?}; a gate stands between two different interfaces")]
    SameInterface(String),
    /// An external address that no host on the Internet can reach.
    #[error("address {0} is unspecified, multicast or loopback; use an address of the outside interface")]
    AddressKind(IpAddr),
    /// A second external address of one IP version.
    #[error("address {0} is the second of its IP version; a gate has one IPv4 and one IPv6 address")]
    AddressTwice(IpAddr),
    /// A port range that is empty or reaches below 1024.
    #[error("external_ports {0}-{1} must be an ascending range above 1023, such as \"20000-32767\"")]
    ExternalPorts(u16, u16),
    /// A rule of `local` shares ports with `external_ports`, so that its packets could not be told from clients'.
    #[error("local rule {0} overlaps external_ports {1}-{2}; move one of the two")]
    LocalOverlap(String, u16, u16),
    /// A size of zero where at least one is needed.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    /// A limit for each user that would let nobody in.
    #[error("{0} of per_user must be at least 1")]
    PerUser(&'static str),
    /// More than the gate's fixed maximum.
    #[error("{field} is {given}, at most {max} is possible")]
    TooMany {
        /// The field's name.
        field: &'static str,
        /// The number given.
        given: u64,
        /// The largest number possible.
        max: u64,
    },
    /// The key of a feed is no public key.
    #[error("the issuer key of feed {0} is no Ed25519 key; join that frontend again")]
    Issuer(std::net::SocketAddr),
    /// Sources share the lane, but anybody can pretend to be many of them.
    #[error(
        "fairness = \"source\" lets whoever forges addresses take the link; set ingress_verified = true only if every \
         network in front of this node refuses forged sources, or write fairness = \"destination\""
    )]
    SourceUnverified,
    /// A link that is too slow or too fast to be scheduled.
    #[error("{0} is {1} bit/s; write the rate of the link, from \"64kbit\" to \"100Gbit\"")]
    LinkRate(&'static str, u64),
    /// Fewer lines than attackers can fill who send as slowly as a capability may.
    #[error(
        "capability_lines_max is {lines_max}, and attackers can fill {needed} at this link rate (TVA III-F); leave it \
         out: then it is as large as the links need"
    )]
    LinesTooFew {
        /// The number given.
        lines_max: u32,
        /// The least number.
        needed: u32,
    },
    /// A share that leaves requests or everything else nothing.
    #[error("request_percent is {0}; requests may get 1 to 50 percent of the link")]
    RequestPercent(u8),
    /// A rate that everyone exceeds.
    #[error("flood_rate is {0} bit/s; write the rate from which a sender floods, such as \"512kbit\"")]
    FloodRate(u64),
    /// A blacklist that lists nobody, or for ever.
    #[error("blacklist_s is {0}; who floods gets nothing for 1 to 86400 seconds")]
    BlacklistSeconds(u64),
    /// More or fewer bytes than a capability can say.
    #[error("capability_bytes is {0} kB; a capability is worth 1KB to 1023KB")]
    CapabilityBytes(u16),
    /// A longer or shorter time than a capability can say.
    #[error("capability_s is {0}; a capability lives for 1 to 63 seconds")]
    CapabilitySeconds(u8),
    /// Text that is no address prefix.
    #[error("{0:?} is no address prefix; write it like 192.0.2.0/24 or 2001:db8::/32")]
    Prefix(String),
}

impl ConfigError {
    /// The configuration field to look at.
    #[must_use]
    pub const fn field(&self) -> &'static str {
        match self {
            Self::Name(..) => "name",
            Self::SameInterface(..) => "inside",
            Self::AddressKind(..) | Self::AddressTwice(..) => "address",
            Self::ExternalPorts(..) => "external_ports",
            Self::LocalOverlap(..) => "local",
            Self::Zero(field) | Self::TooMany { field, .. } => field,
            Self::PerUser(..) => "per_user",
            Self::Prefix(..) => "may_open",
            Self::SourceUnverified => "fairness",
            Self::LinkRate(field, _) => field,
            Self::LinesTooFew { .. } => "capability_lines_max",
            Self::RequestPercent(..) => "request_percent",
            Self::FloodRate(..) => "flood_rate",
            Self::BlacklistSeconds(..) => "blacklist_s",
            Self::CapabilityBytes(..) => "capability_bytes",
            Self::CapabilitySeconds(..) => "capability_s",
            Self::Issuer(..) => "feeds",
        }
    }
}

/// Why a gate did not start. Nothing is forwarded while it has not started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration cannot be used.
    #[error("{}", list(.0))]
    Config(Vec<ConfigError>),
    /// The host's interfaces could not be listed.
    #[error("cannot list the interfaces of this host: {0}")]
    Interfaces(sluicegate_netlink::Error),
    /// There is no such interface.
    #[error("{field} interface {name:?} does not exist; this host has: {present}")]
    NoInterface {
        /// `outside` or `inside`.
        field: &'static str,
        /// The name given.
        name: String,
        /// The interfaces that exist.
        present: String,
    },
    /// The interface is administratively down.
    #[error("{0} interface {1:?} is down; bring it up with: ip link set {1} up")]
    InterfaceDown(&'static str, String),
    /// An external address that this host does not have, so that nobody would answer ARP for it.
    #[error("address {0} is not an address of this host; add it with: ip address add {0} dev {1}")]
    AddressAbsent(IpAddr, String),
    /// An external address that belongs to the inside interface.
    #[error("address {address} belongs to the inside interface {inside:?}; use an address of {outside:?}")]
    AddressInside {
        /// The address.
        address: IpAddr,
        /// The inside interface.
        inside: String,
        /// The outside interface.
        outside: String,
    },
    /// The kernel forwards packets between the interfaces by itself: strangers would pass beside the gate.
    #[error(
        "the kernel forwards what arrives on {0:?}, or would if it was made anew, past the gate; set \
         manage_forwarding = true, or switch it off with: sysctl -w net.ipv4.conf.all.forwarding=0 \
         net.ipv4.conf.default.forwarding=0 net.ipv6.conf.all.forwarding=0"
    )]
    KernelForwards(String),
    /// Forwarding could not be read or switched off.
    #[error("cannot read or switch off the kernel's forwarding on {name:?}: {source}; the gate needs CAP_NET_ADMIN")]
    Forwarding {
        /// The interface.
        name: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// No local port could be kept for the connections to a feed.
    #[error("no local port is free for the feed {feed}: {source}; look at net.ipv4.ip_local_port_range")]
    OwnPort {
        /// The feed.
        feed: std::net::SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel could not be told to forward nothing in or out of the gate's interfaces.
    #[error(
        "the kernel's forwarding cannot be closed ({0}); load the module `nf_tables` and give the gate CAP_NET_ADMIN"
    )]
    Guard(sluicegate_netlink::Error),
    /// The state directory cannot be made or written.
    #[error("state directory {}: {source}; make it writable for the gate's user", path.display())]
    StateDir {
        /// The directory.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Another gate runs on this state directory.
    #[error("state directory {} is in use by another gate; stop that one or set another state", .0.display())]
    StateInUse(PathBuf),
    /// A file of the state directory cannot be read.
    #[error("{}: {problem}; restore it from a backup, or move it away to start without it", path.display())]
    StateFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The open services of the configuration cannot be protected.
    #[error("the open services of the configuration: {0}")]
    OpenServices(String),
    /// The gate's key and certificate could not be made.
    #[error("the gate's key: {0}")]
    Identity(sluicegate_feed::tls::TlsError),
    /// The packet path could not be opened.
    #[error(transparent)]
    Device(#[from] sluicegate_datapath::OpenError),
    /// The routing and neighbour tables of the kernel could not be mirrored.
    #[error("cannot read the kernel's routes and neighbours: {0}")]
    Neighbours(sluicegate_netlink::Error),
    /// A thread could not be started.
    #[error("cannot start the {name} thread: {source}")]
    Thread {
        /// Which.
        name: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel gave no random bytes.
    #[error("no random bytes from the kernel: {0}")]
    Random(String),
}

impl StartError {
    /// The configuration field to look at, where there is one.
    #[must_use]
    pub fn field(&self) -> Option<&'static str> {
        match self {
            Self::Config(errors) => errors.first().map(ConfigError::field),
            Self::NoInterface { field, .. } | Self::InterfaceDown(field, _) => Some(field),
            Self::AddressAbsent(..) | Self::AddressInside { .. } => Some("address"),
            Self::KernelForwards(..) | Self::Forwarding { .. } => Some("manage_forwarding"),
            Self::StateDir { .. } | Self::StateInUse(..) => Some("state"),
            Self::Device(_) => Some("datapath"),
            _ => None,
        }
    }
}

fn list(errors: &[ConfigError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Why a running gate stopped. The filter stays closed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The packet path failed.
    #[error("the packet path of {interfaces} failed: {problem}; the filter stays closed until the gate starts again")]
    Packets {
        /// The two interfaces.
        interfaces: String,
        /// What happened.
        problem: String,
    },
    /// The state could not be saved at the end.
    #[error("the last state could not be saved: {0}; flows opened in the last moment may need a new call")]
    Save(io::Error),
}

/// Why a request of the control plane was not answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// More requests wait than the packet thread takes.
    #[error("the gate has more than {0} control requests waiting; try again")]
    Busy(usize),
    /// The packet thread has ended.
    #[error("the gate is stopping")]
    Stopping,
}
