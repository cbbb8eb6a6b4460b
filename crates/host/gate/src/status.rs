//! What `status`, `grant ls` and `trace` say, in the shape that the API serves.

use crate::config::{Enforcement, Role};
use serde::Serialize;
use std::{collections::BTreeMap, net::IpAddr};

/// The gate as a whole.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// The gate's name.
    pub gate: String,
    /// `gate`, `router` or `edge`.
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
    pub dropped: BTreeMap<&'static str, u64>,
    /// Packets forwarded by observe mode that enforce mode would have dropped, by reason.
    pub observed: BTreeMap<&'static str, u64>,
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
#[derive(Debug, Clone, Serialize)]
pub struct PortStatus {
    /// `outside` or `inside`.
    pub port: &'static str,
    /// Packets sent.
    pub sent_packets: u64,
    /// Bytes sent, Ethernet headers included.
    pub sent_bytes: u64,
}

/// One lane of a scheduled link.
#[derive(Debug, Clone, Serialize)]
pub struct LaneStatus {
    /// `outside` or `inside`: the port that its packets leave by.
    pub port: &'static str,
    /// `control`, `request`, `regular` or `legacy`.
    pub lane: &'static str,
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
#[derive(Debug, Clone, Serialize)]
pub struct RouterStatus {
    /// Packets that passed as what they claim to be: `request`, `capabilities`, `nonce`, `renewal`, and `plain` for those
    /// without a capability header.
    pub passed: BTreeMap<&'static str, u64>,
    /// Packets that were demoted to legacy, by reason; reasons that never happened are left out.
    pub demoted: BTreeMap<&'static str, u64>,
}

/// Fill of one bounded table.
#[derive(Debug, Clone, Serialize)]
pub struct TableStatus {
    /// Its name.
    pub table: &'static str,
    /// Entries in use.
    pub used: u64,
    /// Entries possible.
    pub max: u64,
}

/// One service as this gate knows it.
#[derive(Debug, Clone, Serialize)]
pub struct ServiceStatus {
    /// Its name.
    pub service: String,
    /// `nat` or `filter`.
    pub mode: &'static str,
    /// Its address behind the gate.
    pub address: IpAddr,
    /// Whether it is public: its packets need no grant.
    pub open: bool,
    /// The external address and port of the standing pinhole for the frontends' signalling, if it has one.
    pub signalling: Option<String>,
}

/// One feed.
#[derive(Debug, Clone, Serialize)]
pub struct FeedStatus {
    /// Address of the frontend's feed.
    pub address: String,
    /// The frontend's name, once it said it.
    pub frontend: Option<String>,
    /// Identifier of its issuer key, hexadecimal.
    pub issuer: String,
    /// `connected`, `connecting` or `waiting`.
    pub state: &'static str,
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
    /// Times connected since start.
    pub connects: u64,
    /// Why it is not connected.
    pub last_error: Option<String>,
}

/// State on disk.
#[derive(Debug, Clone, Serialize)]
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

/// One open grant.
#[derive(Debug, Clone, Serialize)]
pub struct GrantStatus {
    /// Grant id, 32 hexadecimal digits.
    pub grant: String,
    /// The user it was issued to.
    pub user: String,
    /// The service it opens.
    pub service: String,
    /// Data mode: `pinhole`, `mac` or `capability`.
    pub mode: &'static str,
    /// `udp`, `tcp`, `icmp` or a number.
    pub protocol: String,
    /// Client address.
    pub client: IpAddr,
    /// Gate address and first and last port.
    pub gate: (IpAddr, u16, u16),
    /// Target address and first and last port.
    pub target: (IpAddr, u16, u16),
    /// Bytes allowed.
    pub bytes_max: u64,
    /// Bytes used; `None` if the packet thread did not answer in time.
    pub bytes_used: Option<u64>,
    /// Flows open; `None` as above.
    pub flows: Option<u32>,
    /// Seconds until it ends.
    pub expires_s: u64,
    /// Identifier of the issuer, hexadecimal.
    pub issuer: String,
}

/// The answer to `trace`.
#[derive(Debug, Clone, Serialize)]
pub struct Trace {
    /// What would happen to the packet now.
    pub verdict: String,
    /// The reason's label, if it would be dropped.
    pub reason: Option<&'static str>,
    /// The reason in a sentence.
    pub explanation: Option<&'static str>,
    /// The grant that covers it.
    pub grant: Option<GrantStatus>,
    /// How the verdict came about, step by step.
    pub steps: Vec<String>,
    /// Recent drops between the same addresses, newest first.
    pub recent: Vec<RecentDrop>,
}

/// A packet that was dropped lately.
#[derive(Debug, Clone, Serialize)]
pub struct RecentDrop {
    /// How long ago.
    pub ago_ms: u64,
    /// `outside` or `inside`: where it came in.
    pub port: &'static str,
    /// The reason's label.
    pub reason: &'static str,
    /// The reason in a sentence.
    pub explanation: &'static str,
    /// Protocol, or `None` if the packet could not be read.
    pub protocol: Option<String>,
    /// Source address and port.
    pub source: Option<String>,
    /// Destination address and port.
    pub destination: Option<String>,
}
