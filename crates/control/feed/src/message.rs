use core::net::IpAddr;

use serde::{Deserialize, Serialize};
use sluicegate_grant::{CALL_ID_LEN, EndCause, Grant, GrantId, ISSUER_ID_LEN, SIGNATURE_LEN, mac::SessionKeys};
use sluicegate_policy::{Outbound, PortRange, ServiceDefault, ServiceMode};
use sluicegate_wire::UnixTime;

use super::{
    codec::FRAME_LEN_MAX,
    encoding::{array, bounded, grant, session_keys},
    token::JoinSecret,
};

/// The version of the messages described here.
pub const FEED_VERSION: u16 = 5;
/// Grants in one [`FromGate::Active`].
pub const ACTIVE_GRANTS_MAX: usize = 128;
/// Grants in one [`FromGate::Usage`].
pub const USAGE_MAX: usize = 1_024;
/// Port ranges of one service, and peers of its SIP relay.
const LIST_LEN_MAX: usize = 64;

/// From a frontend to a gate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToGate {
    /// The gate is known; what follows belongs to this start of this issuer.
    Hello {
        /// [`FEED_VERSION`].
        version: u16,
        /// The issuer's public key.
        issuer: [u8; 32],
        /// A number drawn when the frontend started.
        boot_id: u64,
        /// The frontend's name.
        name: String,
        /// Whether the batches continue where the gate left off; otherwise a snapshot follows.
        resumed: bool,
    },
    /// The gate is not let in; the connection ends.
    Refused {
        /// Why, for a person.
        reason: String,
    },
    /// A part of everything that is open, numbered like the last batch before it.
    Snapshot(SignedDeltas),
    /// What changed, numbered without gaps.
    Batch(SignedDeltas),
    /// Are you there, and is it the same time?
    Ping {
        /// The frontend's time.
        unix: UnixTime,
    },
}

/// Deltas with one signature. They are decoded only after it was found right.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedDeltas {
    /// Number of the batch; of a snapshot, of the last batch before it.
    pub seq: u64,
    /// Whether more parts of the same snapshot follow; never with a batch.
    pub more: bool,
    /// [`Delta`]s in postcard, one after the other.
    #[serde(deserialize_with = "bounded::<_, _, FRAME_LEN_MAX>")]
    pub deltas: Vec<u8>,
    /// The issuer's batch signature over [`Self::signed`].
    #[serde(with = "array")]
    pub signature: [u8; SIGNATURE_LEN],
}

impl SignedDeltas {
    /// What is signed: which stream it belongs to and where in it, besides the deltas. Nothing signed for one start, one
    /// place or one purpose can be passed off for another.
    #[must_use]
    pub fn signed(boot_id: u64, snapshot: bool, seq: u64, more: bool, deltas: &[u8]) -> Vec<u8> {
        let mut signed = Vec::with_capacity(18 + deltas.len());
        signed.extend(boot_id.to_be_bytes());
        signed.extend(seq.to_be_bytes());
        signed.extend([u8::from(snapshot), u8::from(more)]);
        signed.extend(deltas);
        signed
    }
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Delta {
    /// There is this service, or it changed.
    Service(FeedService),
    /// The service with this name is gone. Its grants are not: they end by expiry, budget or revoke.
    ServiceGone(String),
    /// Open this, or renew it.
    Install(Box<GrantDelta>),
    /// Close what is selected.
    Revoke(Selector),
}

/// What a gate needs to know of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeedService {
    /// Its name.
    pub name: String,
    /// Whether the gate translates addresses.
    pub mode: ServiceMode,
    /// Its own address.
    pub address: IpAddr,
    /// Whether strangers' packets are dropped.
    pub default: ServiceDefault,
    /// What grants can open.
    #[serde(deserialize_with = "bounded::<_, _, LIST_LEN_MAX>")]
    pub ports: Vec<PortRange>,
    /// What it may start on its own.
    pub outbound: Outbound,
    /// How SIP reaches it, if it does.
    pub sip: Option<FeedSip>,
}

/// The standing pinhole by which frontends relay SIP to a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeedSip {
    /// The service's SIP port (UDP).
    pub port: u16,
    /// The frontends' addresses.
    #[serde(deserialize_with = "bounded::<_, _, LIST_LEN_MAX>")]
    pub peers: Vec<IpAddr>,
    /// Rate limit in bit/s.
    pub rate_bps: u64,
    /// What this frontend's datagrams and the gate's are sealed under, with the gate's salt (see
    /// [`sluicegate_grant::relay`]). It travels on the feed only and is on no disk.
    #[serde(with = "session_keys")]
    pub keys: Option<SessionKeys>,
    /// How many shards the frontend has; each counts its datagrams for itself.
    pub shards: u8,
}

impl FeedService {
    /// The same without keys, for records.
    #[must_use]
    pub fn without_keys(mut self) -> Self {
        if let Some(sip) = &mut self.sip {
            sip.keys = None;
        }
        self
    }
}

/// A grant on its way to the service's gate. Not signed by itself: the batch that carries it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantDelta {
    /// The grant; its gate address and ports are for the gate to choose if they are unspecified. Of one that arrived,
    /// [`Grant::check`] says whether it can be.
    #[serde(with = "grant")]
    pub grant: Grant,
    /// The user's name.
    pub user: String,
    /// The service's name.
    pub service: String,
    /// Where packets go behind the gate.
    pub target: IpAddr,
    /// First and last port there; as many as the grant opens.
    pub target_ports: (u16, u16),
    /// Whether the gate translates addresses.
    pub mode: ServiceMode,
    /// The session keys, where its client proves anything under them. They travel on the feed only, from the frontend to
    /// the service's gate: never in the portable grant, and never back or to a disk (see [`Self::without_keys`]).
    #[serde(with = "session_keys")]
    pub keys: Option<SessionKeys>,
}

impl GrantDelta {
    /// The same without its keys, for records and reports.
    #[must_use]
    pub fn without_keys(self) -> Self {
        Self { keys: None, ..self }
    }
}

/// Which grants a revoke is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selector {
    /// What they have in common.
    pub what: Selected,
    /// Only those that are valid from before this second; those issued since stay.
    pub issued_before: Option<UnixTime>,
}

/// What selected grants have in common.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Selected {
    /// This one grant.
    Grant(GrantId),
    /// The grants of one call: the part of their ids that they share.
    Call([u8; CALL_ID_LEN]),
    /// The grants of one user.
    User(String),
    /// The grants to one service.
    Service(String),
}

impl Selector {
    /// Selects them whenever they were issued.
    #[must_use]
    pub const fn all(what: Selected) -> Self {
        Self { what, issued_before: None }
    }

    /// Whether it means this grant of this user to this service.
    #[must_use]
    pub fn selects(&self, grant: &Grant, user: &str, service: &str) -> bool {
        let meant = match &self.what {
            Selected::Grant(id) => *id == grant.id,
            Selected::Call(call) => *call == grant.id.call(),
            Selected::User(name) => name == user,
            Selected::Service(name) => name == service,
        };
        meant && self.issued_before.is_none_or(|before| grant.not_before < before)
    }
}

/// Where a gate left off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// Whose stream.
    pub issuer: [u8; ISSUER_ID_LEN],
    /// Of which start.
    pub boot_id: u64,
    /// The last batch that the gate has applied.
    pub seq: u64,
}

/// From a gate to a frontend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromGate {
    /// Asks to be let in for good. Comes before [`Self::Hello`], once.
    Join {
        /// The one-time secret from the join token.
        secret: JoinSecret,
        /// The gate's name from now on.
        gate: String,
    },
    /// The start of every connection.
    Hello {
        /// [`FEED_VERSION`].
        version: u16,
        /// The gate's name.
        gate: String,
        /// Where it left off; nothing if it has nothing of this frontend.
        resume: Option<Resume>,
        /// The gate's time.
        unix: UnixTime,
    },
    /// What is open at the gate: sent after each snapshot or resume, so that a restarted frontend knows it again.
    Active {
        /// A part of the grants.
        #[serde(deserialize_with = "bounded::<_, _, ACTIVE_GRANTS_MAX>")]
        grants: Vec<ActiveGrant>,
        /// Whether more parts follow.
        more: bool,
    },
    /// A grant is installed, or renewed.
    Opened {
        /// Which.
        id: GrantId,
        /// The gate's address that the client sends to.
        address: IpAddr,
        /// First and last port there.
        ports: (u16, u16),
    },
    /// A grant could not be installed.
    Refused {
        /// Which.
        id: GrantId,
        /// Why, for a person.
        reason: String,
    },
    /// A grant has ended.
    Ended {
        /// Which.
        id: GrantId,
        /// Why.
        cause: EndCause,
        /// Bytes of its budget that were used.
        bytes_used: u64,
    },
    /// How much of their budgets grants have used.
    Usage {
        /// The grants whose use changed.
        #[serde(deserialize_with = "bounded::<_, _, USAGE_MAX>")]
        grants: Vec<GrantUsage>,
    },
    /// The standing pinhole of a service's SIP relay is open: SIP for the service goes here.
    Standing {
        /// The service's name.
        service: String,
        /// The gate's address.
        address: IpAddr,
        /// The gate's port (UDP).
        port: u16,
        /// What the gate drew when it took up the keys of this frontend.
        salt: u64,
    },
    /// A service cannot be protected here.
    ServiceRefused {
        /// The service's name.
        service: String,
        /// Why, for a person.
        reason: String,
    },
    /// Whether the way from this gate to a service leads by its inside port. Told once of each, and when it changes.
    Reach {
        /// The service's name.
        service: String,
        /// What is in the way, for a person; `None` if nothing is.
        obstacle: Option<String>,
    },
    /// Answers [`ToGate::Ping`].
    Pong {
        /// The gate's time.
        unix: UnixTime,
    },
}

/// A grant that is open at a gate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActiveGrant {
    /// The grant as it was installed.
    pub delta: GrantDelta,
    /// The gate's address that the client sends to.
    pub address: IpAddr,
    /// First and last port there.
    pub ports: (u16, u16),
    /// Bytes of its budget that were used.
    pub bytes_used: u64,
    /// Flows open now.
    pub flows: u16,
}

/// How much of its budget a grant has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantUsage {
    /// Which.
    pub id: GrantId,
    /// Bytes used.
    pub bytes_used: u64,
    /// Of these, bytes of ICMP errors, which do not show that the client is there.
    pub error_bytes: u64,
    /// Flows open now.
    pub flows: u16,
}
