//! What becomes of packets and of sign-ins, and why.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use sluicegate_grant::DataMode;

use crate::{GrantStatus, Label};

/// Whether strangers' packets are only counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Observe {
    /// Counted, not dropped.
    pub on: bool,
}

/// A packet that a gate is asked about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flow {
    /// IP protocol number.
    pub protocol: u8,
    /// Source address.
    pub source: IpAddr,
    /// Source port; 0 stands for any among the recent drops.
    pub source_port: u16,
    /// Destination address.
    pub destination: IpAddr,
    /// Destination port; 0 as above.
    pub destination_port: u16,
    /// Whether it comes from the inside.
    pub inside: bool,
}

/// What would become of a packet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowTrace {
    /// What would happen to the packet now.
    pub verdict: String,
    /// The reason's label, if it would be dropped.
    pub reason: Option<Label>,
    /// The reason in a sentence.
    pub explanation: Option<Label>,
    /// The grant that covers it.
    pub grant: Option<GrantStatus>,
    /// How the verdict came about, step by step.
    pub steps: Vec<String>,
    /// Recent drops between the same addresses, newest first.
    pub recent: Vec<RecentDrop>,
}

/// A packet that was dropped lately.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecentDrop {
    /// How long ago.
    pub ago_ms: u64,
    /// `outside` or `inside`: where it came in.
    pub port: Label,
    /// The reason's label.
    pub reason: Label,
    /// The reason in a sentence.
    pub explanation: Label,
    /// Protocol, or `None` if the packet could not be read.
    pub protocol: Option<String>,
    /// Source address and port.
    pub source: Option<String>,
    /// Destination address and port.
    pub destination: Option<String>,
}

/// What was decided about one request, for a person asking why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// When, in Unix seconds.
    pub unix: u64,
    /// The user that the request named. It is proved unless the outcome is `bad_digest`.
    pub user: String,
    /// The service asked for.
    pub service: String,
    /// Where the request came from.
    pub client: SocketAddr,
    /// The outcome's label, as in the metrics.
    pub outcome: Label,
    /// The status that was answered.
    pub status: u16,
    /// Why, in steps.
    pub steps: Vec<String>,
}

/// Who wants what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyTest {
    /// The user.
    pub user: String,
    /// The service.
    pub service: String,
    /// The most that the client's packets can prove; everything unless given.
    #[serde(default)]
    pub proves: Option<DataMode>,
}

/// What the policy says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyAnswer {
    /// `allow`, or `deny: ` and the reason.
    pub outcome: String,
    /// How it came to that.
    pub steps: Vec<String>,
}
