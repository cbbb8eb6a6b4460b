use alloc::vec::Vec;
use core::net::IpAddr;

pub use sluicegate_grant::EndCause;
use sluicegate_grant::{Grant, GrantError, GrantId, mac::SessionKeys, relay::RelayKeys};

/// Flows of one grant at once, whatever it says: ending a grant looks at its lines in one turn of the packet thread.
pub const FLOWS_PER_GRANT_MAX: u16 = 450;

/// What one user (one pseudonym of one issuer) may hold over all its grants, so that nobody uses up what all share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PerUser {
    /// Flows at once.
    pub flows_max: u32,
    /// External ports at once, of all protocols together; 0: a sixteenth of the range, but at least 256, which one grant may have.
    pub ports_max: u32,
    /// Bytes a second to services; 0: as much as the fastest of the user's grants may have.
    pub rate_bytes_per_s: u64,
    /// Bytes to services in `window_s` seconds, at most 18 GB; 0: what rate and grants allow.
    pub bytes: u64,
    /// See `bytes`.
    pub window_s: u64,
}

/// External ports that a user may have, however few there are.
const USER_PORTS_MIN: u32 = 256;

impl PerUser {
    /// With every limit that follows from the range of external ports.
    /// With every limit that follows from the range of external ports, of which there are so many.
    #[must_use]
    pub const fn for_ports(self, ports: u32) -> Self {
        let shared = if ports / 16 > USER_PORTS_MIN { ports / 16 } else { USER_PORTS_MIN };
        let ports_max = if self.ports_max == 0 { shared } else { self.ports_max };
        Self { ports_max, ..self }
    }
}

impl Default for PerUser {
    fn default() -> Self {
        Self { flows_max: 1_024, ports_max: 0, rate_bytes_per_s: 0, bytes: 0, window_s: 3_600 }
    }
}

/// Whether the service's address is its own or the gate's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ServiceMode {
    /// Clients see the gate's address and external ports. IPv4 only.
    Nat,
    /// Clients see the service's own address; nothing is translated.
    Filter,
}

/// A host behind the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Service {
    /// Its number; pinholes refer to it.
    pub id: u16,
    /// Translated or only filtered. All services of one address have the same mode.
    pub mode: ServiceMode,
    /// Its own address.
    pub address: IpAddr,
    /// Whether it may start flows to anybody.
    pub outbound_all: bool,
    /// A public service: its packets are only forwarded, in both directions, and need no pinhole. All
    /// services of one address are open, or none is.
    pub open: bool,
}

/// Why a list of services was refused. The list in force stays in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ServicesError {
    /// More than the gate's table holds.
    #[error("there are more services than `services_max` = {0}; raise it and restart the gate")]
    TooMany(u16),
    /// One address in both modes.
    #[error("services at {0} are both `nat` and `filter`; give an address one mode")]
    ModeConflict(IpAddr),
    /// One address open and not.
    #[error("services at {0} are both open and default-off; give an address one default")]
    DefaultConflict(IpAddr),
    /// An open service that is translated.
    #[error("the service at {0} is open and `nat`; use `filter`")]
    NatOpen(IpAddr),
    /// No address that a host can have, or the gate's own.
    #[error("{0} cannot be the address of a service")]
    Address(IpAddr),
    /// A `nat` service with an IPv6 address.
    #[error("the service at {0} is `nat`, which is for IPv4 only; use `filter`")]
    NatIpv6(IpAddr),
    /// No pinhole is left for a service that may start flows.
    #[error("all {0} pinholes are in use; raise `pinholes_max` and restart the gate")]
    PinholesFull(u32),
    /// A `nat` service behind a gate without external address.
    #[error("there is a `nat` service but the gate has no external IPv4 address; set `address` of the gate")]
    NoGateAddress,
}

/// What a pinhole is made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinholeSpec {
    /// The permission, already verified. Gate ports other than `(0, 0)` are taken if they are free.
    pub grant: Grant,
    /// The service it opens, see [`Service::id`].
    pub service: u16,
    /// The service's own address.
    pub target: IpAddr,
    /// First and last port of the service; ignored for ICMP.
    pub target_ports: (u16, u16),
    /// Whether the service is a `filter` service: address and ports are its own.
    pub filter: bool,
    /// The session keys, for a grant whose client proves anything under them. Without them that is refused until the grant
    /// is installed again with them.
    pub keys: Option<SessionKeys>,
}

/// A pinhole that belongs to no grant: the frontends' way to a service's SIP port, and the service's way to the
/// frontends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StandingSpec {
    /// The service.
    pub service: u16,
    /// Its own address.
    pub target: IpAddr,
    /// Its SIP port (UDP).
    pub target_port: u16,
    /// The frontends' addresses, at most [`PEERS_MAX`], of the same version as `target`.
    pub peers: Vec<IpAddr>,
    /// What all peers together may send, in bytes a second; 0: no limit.
    pub rate_bytes_per_s: u64,
    /// How they prove to be the frontends. Nothing passes in a peer's name without.
    pub relays: Vec<Relay>,
}

/// One frontend behind a standing pinhole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relay {
    /// Its addresses.
    pub peers: Vec<IpAddr>,
    /// What its datagrams, and those to it, are sealed under.
    pub keys: RelayKeys,
    /// How many shards it has; each counts for itself.
    pub shards: u8,
}

/// Peers of one standing pinhole.
pub const PEERS_MAX: usize = 16;

/// Where a pinhole listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// Address that clients send to.
    pub address: IpAddr,
    /// First and last port there; they stand for the target ports in order. `(0, 0)` for ICMP.
    pub ports: (u16, u16),
}

/// Why a pinhole could not be installed. Nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InstallError {
    /// The grant contradicts itself.
    #[error("the grant is invalid: {0}")]
    Grant(#[from] GrantError),
    /// The grant's protocol is none that this gate translates.
    #[error("IP protocol {0} cannot be opened here; UDP, TCP and ICMP can")]
    Protocol(u8),
    /// The grant ended before it came.
    #[error("the grant has already expired; compare the clocks of frontend and gate")]
    Expired,
    /// The grant was revoked here; only a new grant opens the service again.
    #[error("grant {0} was revoked; the client must ask for a new one")]
    Revoked(GrantId),
    /// The same id was installed before for another client, protocol or target.
    #[error("grant {0} is already installed for something else")]
    Conflict(GrantId),
    /// No service with this number and address.
    #[error("service {0} is not known to this gate with that address and mode; send the services first")]
    Service(u16),
    /// An empty, reversed or too long range of target ports.
    #[error("the target ports must be a range of 1 to {0} ports")]
    Ports(u16),
    /// No peers, too many, or of another IP version than the target.
    #[error("a standing pinhole needs 1 to 16 peers of the target's IP version")]
    Peers,
    /// The user has as many external ports as one may have.
    #[error("the user holds as many external ports as one may ({0}); end a call, or raise `per_user.ports_max`")]
    UserPorts(u32),
    /// Few pinholes are left, and the user holds many.
    #[error("few pinholes are left, and the user holds {0}; end a call, or raise `pinholes_max` and restart the gate")]
    UserPinholes(u32),
    /// No block of external ports of that length is free.
    #[error("no external ports are free; widen `external_ports`")]
    NoExternalPort,
    /// The pinhole table is full.
    #[error("all {0} pinholes are in use; raise `pinholes_max` and restart the gate")]
    Full(u32),
}

impl InstallError {
    /// Its name in metrics.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Grant(_) => "grant",
            Self::Protocol(_) => "protocol",
            Self::Expired => "expired",
            Self::Revoked(_) => "revoked",
            Self::Conflict(_) => "conflict",
            Self::Service(_) => "service",
            Self::Ports(_) => "ports",
            Self::Peers => "peers",
            Self::UserPorts(_) => "user_ports",
            Self::UserPinholes(_) => "user_pinholes",
            Self::NoExternalPort => "no_external_port",
            Self::Full(_) => "full",
        }
    }
}

/// The account of an ended grant. Of one that expired or spent its budget, see [`crate::Pinholes::pop_event`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Which grant.
    pub id: GrantId,
    /// Why.
    pub cause: EndCause,
    /// IP bytes that its client sent to the service, over all renewals.
    pub bytes_used: u64,
}
