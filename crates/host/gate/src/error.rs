//! What can go wrong, each with what, where and what to do next.

use std::{io, net::IpAddr, path::PathBuf};

/// A field of [`crate::Config`] that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct ConfigError {
    /// The field to look at.
    pub field: &'static str,
    /// What is wrong with it, and what to write instead.
    pub what: String,
}

impl ConfigError {
    pub(crate) const fn new(field: &'static str, what: String) -> Self {
        Self { field, what }
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
    /// The listener for tunnels.
    #[error("cannot take packets over TLS at {address}: {source}; is the address this host's, and the port free?")]
    Tunnel {
        /// Where.
        address: std::net::SocketAddr,
        /// What went wrong.
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
            Self::Config(errors) => errors.first().map(|error| error.field),
            Self::NoInterface { field, .. } | Self::InterfaceDown(field, _) => Some(field),
            Self::AddressAbsent(..) | Self::AddressInside { .. } => Some("address"),
            Self::KernelForwards(..) | Self::Forwarding { .. } => Some("manage_forwarding"),
            Self::StateDir { .. } | Self::StateInUse(..) => Some("state"),
            Self::Device(_) => Some("datapath"),
            Self::Tunnel { .. } => Some("tunnel"),
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
