//! How a node is, as `status` shows it.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use serde::{Deserialize, Serialize};
use sluicegate_policy::ServiceMode;

use crate::Label;

/// A node: a gate, a frontend, or both.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Its gate, if it is one.
    pub gate: Option<GateStatus>,
    /// Its frontend, if it is one.
    pub frontend: Option<FrontendStatus>,
}

/// What a node between two interfaces does with packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Drops what no grant covers, and checks capabilities.
    #[default]
    Gate,
    /// Checks capabilities, and forwards everything.
    Router,
    /// Gets and renews capabilities for the unmodified hosts behind it.
    Edge,
}

impl Role {
    /// As it is written in the configuration.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Gate => "gate",
            Self::Router => "router",
            Self::Edge => "edge",
        }
    }
}

/// What happens to a packet that no grant covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Enforcement {
    /// It is dropped.
    Enforce,
    /// It is counted as if it were dropped, and forwarded.
    Observe,
}

/// Where a feed stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FeedStage {
    /// Between two attempts.
    Waiting,
    /// Dialling, or not welcomed yet.
    Connecting,
    /// Up to date.
    Connected,
}

impl FeedStage {
    /// As it is written.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Connecting => "connecting",
            Self::Connected => "connected",
        }
    }
}

/// The gate as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateStatus {
    /// The gate's name.
    pub gate: String,
    /// What it does with packets.
    pub role: Role,
    /// Whether strangers' packets are dropped or only counted.
    pub mode: Enforcement,
    /// The packet I/O back end in use.
    pub backend: String,
    /// Why that one.
    pub backend_why: String,
    /// Interface towards the Internet.
    pub outside: String,
    /// Interface towards the protected link.
    pub inside: String,
    /// External addresses.
    pub addresses: Vec<IpAddr>,
    /// Seconds since this process began to forward.
    pub uptime_s: u64,
    /// Milliseconds since the packet thread last gave a sign of life; the kernel program closes at 2,000.
    pub heartbeat_age_ms: Option<u64>,
    /// Why nothing is forwarded: an interface is gone, was replaced or is down. `None` while both are open.
    pub closed: Option<String>,
    /// The longest turn of the packet thread in the last one to two minutes, in microseconds: so long a packet may have
    /// waited for housekeeping and questions.
    pub longest_turn_us: u64,
    /// The most lines, words of ports and pinholes that one of those turns looked at; never more than 2,000.
    pub turn_looks: u64,
    /// Frames received on both ports.
    pub received_packets: u64,
    /// What left by each port.
    pub ports: Vec<PortStatus>,
    /// Dropped packets by reason; reasons that never happened are left out.
    pub dropped: BTreeMap<Label, u64>,
    /// Packets forwarded by observe mode that enforce mode would have dropped, by reason.
    pub observed: BTreeMap<Label, u64>,
    /// Lanes of the links that are scheduled.
    pub lanes: Vec<LaneStatus>,
    /// What the capability router did; `None` for an edge, which has none.
    pub router: Option<RouterStatus>,
    /// Fill of every bounded table.
    pub tables: Vec<TableStatus>,
    /// Services that the feeds announced.
    pub services: Vec<ServiceStatus>,
    /// Grants that are open here.
    pub grants: usize,
    /// One entry for each frontend.
    pub feeds: Vec<FeedStatus>,
    /// Whether the state on disk is current.
    pub saved: SavedStatus,
    /// What an operator should look at; empty if all is well.
    pub alarms: Vec<String>,
}

/// What left by one port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortStatus {
    /// `outside` or `inside`.
    pub port: Label,
    /// Packets sent.
    pub sent_packets: u64,
    /// Bytes sent, Ethernet headers included.
    pub sent_bytes: u64,
}

/// One lane of a scheduled link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneStatus {
    /// `outside` or `inside`: the port that its packets leave by.
    pub port: Label,
    /// `control`, `request`, `regular` or `legacy`.
    pub lane: Label,
    /// Packets sent.
    pub packets: u64,
    /// Bytes sent, with what framing costs on the link.
    pub bytes: u64,
    /// Packets that found no room, or had to make some.
    pub dropped: u64,
    /// Packets that wait now.
    pub waiting: u64,
}

/// What a capability router did with packets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouterStatus {
    /// Packets that passed as what they claim to be: `request`, `capabilities`, `nonce`, `renewal`, and `plain` for those
    /// without a capability header.
    pub passed: BTreeMap<Label, u64>,
    /// Packets that were demoted to legacy, by reason; reasons that never happened are left out.
    pub demoted: BTreeMap<Label, u64>,
}

/// Fill of one bounded table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableStatus {
    /// Its name.
    pub table: Label,
    /// Entries in use.
    pub used: u64,
    /// Entries possible.
    pub max: u64,
}

/// A table is nearly full from this share on, in percent.
const NEARLY_FULL_PERCENT: u64 = 90;

impl TableStatus {
    /// What is not well, if it is nearly full and what finds no room is refused.
    #[must_use]
    pub fn alarm(&self) -> Option<String> {
        let Self { table, used, max } = self;
        let is_nearly_full = *max > 0 && used.saturating_mul(100) >= max.saturating_mul(NEARLY_FULL_PERCENT);
        is_nearly_full.then(|| format!("table {table} is nearly full: {used} of {max}"))
    }
}

/// One service as this gate knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceStatus {
    /// Its name.
    pub service: String,
    /// Whether the gate translates addresses for it.
    pub mode: ServiceMode,
    /// Its address behind the gate.
    pub address: IpAddr,
    /// Whether it is public: its packets need no grant.
    pub open: bool,
    /// The external address and port of the standing pinhole for the frontends' signalling, if it has one.
    pub signalling: Option<String>,
}

/// One feed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeedStatus {
    /// Address of the frontend's feed.
    pub address: String,
    /// The frontend's name, once it said it.
    pub frontend: Option<String>,
    /// Identifier of its issuer key, hexadecimal.
    pub issuer: String,
    /// Where it stands.
    pub state: FeedStage,
    /// Seconds in this state.
    pub state_s: u64,
    /// Sequence number applied last.
    pub sequence: Option<u64>,
    /// Milliseconds since the frontend was last heard.
    pub silent_ms: Option<u64>,
    /// Difference of its clock from ours in seconds.
    pub skew_s: Option<i64>,
    /// Grants opened for it since start.
    pub opened: u64,
    /// Grants refused since start.
    pub refused: u64,
    /// The same, by reason.
    #[serde(default)]
    pub refusals: BTreeMap<String, u64>,
    /// Times connected since start.
    pub connects: u64,
    /// Why it is not connected.
    pub last_error: Option<String>,
}

/// State on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedStatus {
    /// Milliseconds since the last checkpoint; `None` before the first.
    pub checkpoint_age_ms: Option<u64>,
    /// Bytes of the last checkpoint.
    pub checkpoint_bytes: u64,
    /// Microseconds that the packet thread spent on it.
    pub export_us: u64,
    /// Why the last attempt to write failed.
    pub error: Option<String>,
}

/// A frontend in one view.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrontendStatus {
    /// Its name.
    pub name: String,
    /// Realm of its users.
    pub realm: String,
    /// SIP addresses with their transports, such as `udp/203.0.113.1:5060`.
    pub listen: Vec<String>,
    /// The site's key, which agents pin.
    pub site_key: String,
    /// This frontend's own key, for a key holder on another host.
    pub frontend_key: String,
    /// The epochs whose agents can sign in.
    pub agent_epochs: Vec<u32>,
    /// The last that this frontend has of another one's users, if it has them from there.
    pub users_taken: Option<UsersTaken>,
    /// The frontends that have this one's users.
    pub replicas: Vec<ReplicaStatus>,
    /// Where gates dial.
    pub feed: SocketAddr,
    /// SIP threads.
    pub shards: usize,
    /// Seconds since its start.
    pub uptime_s: u64,
    /// The gates it knows.
    pub gates: Vec<JoinedGate>,
    /// Users.
    pub users: usize,
    /// Services.
    pub services: usize,
    /// Grants in the directory.
    pub grants: u64,
    /// Requests by method and outcome, such as `invite admitted`; what never happened is left out.
    pub requests: BTreeMap<String, u64>,
    /// Other events; what never happened is left out.
    pub events: BTreeMap<String, u64>,
    /// What became of SIP connections, such as `ended idle`; what never happened is left out.
    pub connections: BTreeMap<String, u64>,
    /// What became of SIP datagrams that came as frames, such as `dropped checksum_wrong`; what never happened is left out.
    pub frames: BTreeMap<String, u64>,
    /// Fill of every bounded table.
    pub tables: Vec<TableStatus>,
    /// What an operator should look at; empty if all is well.
    pub alarms: Vec<String>,
}

/// What a frontend has of another one's users.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsersTaken {
    /// The number of the file that brought them.
    pub number: u64,
    /// When that was taken, Unix seconds.
    pub at: u64,
}

/// A frontend that has this one's users.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaStatus {
    /// Its name.
    pub name: String,
    /// Where it is sent them; `null` where files are copied.
    pub feed: Option<SocketAddr>,
    /// The number of the last file that it has taken since this frontend was started, when it was sent them.
    pub number: Option<u64>,
    /// When that was, Unix seconds.
    pub taken_at: Option<u64>,
    /// Why it could not be sent the next one.
    pub problem: Option<String>,
}

/// A gate as its frontend sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinedGate {
    /// Its name.
    pub gate: String,
    /// Whether its feed is connected.
    pub connected: bool,
    /// Where it dialled from.
    pub peer: Option<SocketAddr>,
    /// Whether it runs on the frontend's own host.
    pub is_local: bool,
    /// Seconds by which its clock is ahead, if that is an alarm.
    pub skew_s: Option<i64>,
    /// Services that it cannot protect, and why.
    pub refused: BTreeMap<String, String>,
    /// Services to which no route leads by its inside port, and what is in the way.
    pub unreached: BTreeMap<String, String>,
}
