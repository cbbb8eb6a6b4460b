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
    /// The check of the frontend that decided; `None` if it was decided later.
    pub rung: Option<Label>,
    /// The call that it is about, as [`CallStory::call`].
    pub call: Option<String>,
    /// The same as telephones name it, if the request said so.
    pub call_id: Option<String>,
    /// Why, in steps.
    pub steps: Vec<String>,
}

/// What became of a call between a user and a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallStory {
    /// 24 hexadecimal digits, with which the ids of its grants begin; empty if it was refused before it got any.
    pub call: String,
    /// The Call-ID of the request that began it, as far as it is known and can be shown.
    pub call_id: String,
    /// The user: who calls, or is called.
    pub user: String,
    /// The service that is called, or calls.
    pub service: String,
    /// Who calls: `user` or `service`.
    pub caller: Label,
    /// Where the user is.
    pub client: SocketAddr,
    /// When it began, in Unix seconds.
    pub unix: u64,
    /// How long it took until it was answered; `None` if it was not, or before a restart.
    pub setup_ms: Option<u64>,
    /// When it was answered, in Unix seconds.
    pub answered_unix: Option<u64>,
    /// What its grants let through towards the service, in bytes, as far as gates have said.
    pub bytes_to_service: u64,
    /// How it ended; `None` while it goes on.
    pub end: Option<CallEnd>,
    /// What happened to it, in order.
    pub steps: Vec<CallStep>,
    /// How many more steps there were than are kept.
    pub steps_left_out: u64,
    /// What it has open now.
    pub grants: Vec<GrantStatus>,
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallEnd {
    /// When, in Unix seconds.
    pub unix: u64,
    /// `hung_up`, `cancelled`, `declined` by the other side, `refused` or `failed` here, `unacknowledged`, `expired`, `revoked`.
    pub why: Label,
    /// By whom: `user`, `service`, `frontend` or `operator`.
    pub by: Label,
    /// The status that was answered, if it never came to a call.
    pub status: Option<u16>,
}

/// Something that happened to a call, once or again and again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallStep {
    /// When first, in Unix seconds.
    pub unix: u64,
    /// When last.
    pub last_unix: u64,
    /// How often.
    pub times: u64,
    /// What.
    pub text: String,
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

/// From which of a user's messages on somebody wants to have them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MessagesWanted {
    /// A number: [`TracedMessages::next`] of the last answer, or 0.
    pub after: u64,
}

/// Messages of a user while they are traced: as long as somebody asks for them every few seconds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedMessages {
    /// The number that the next message will have.
    pub next: u64,
    /// How many of those asked for were not kept: they came faster than they were read, or than they are copied.
    pub lost: u64,
    /// The others, oldest first.
    pub messages: Vec<TracedMessage>,
}

/// A SIP message as it came or went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedMessage {
    /// When, in microseconds of Unix time.
    pub unix_us: u64,
    /// `UDP`, `TCP` or `TLS`.
    pub transport: Label,
    /// Who sent it.
    pub from: SocketAddr,
    /// Who gets it.
    pub to: SocketAddr,
    /// The message, in base64, with `x` in place of what credentials and keys of streams are made of.
    #[serde(with = "base64_text")]
    pub bytes: Vec<u8>,
}

mod base64_text {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        STANDARD.decode(String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}
