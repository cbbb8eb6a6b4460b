//! Grants as `grant ls` shows them, and their end.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use sluicegate_grant::{DataMode, GrantId};

/// Where a grant stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GrantState {
    /// Sent to the gate, not answered yet.
    Opening,
    /// The gate has opened it.
    Open,
}

/// One grant, the same at a frontend and at a gate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantStatus {
    /// Grant id, 32 hexadecimal digits.
    pub id: GrantId,
    /// Whose it is.
    pub user: String,
    /// What it opens.
    pub service: String,
    /// The gate that holds its pinhole.
    pub gate: String,
    /// The one address that packets may come from.
    pub client: IpAddr,
    /// The least data mode of its packets.
    pub mode: DataMode,
    /// IP protocol number.
    pub protocol: u8,
    /// The service's own address.
    pub target: IpAddr,
    /// The service's first and last port.
    pub target_ports: (u16, u16),
    /// The gate's address, once it has answered.
    pub gate_address: Option<IpAddr>,
    /// The gate's first and last port, once it has answered.
    pub gate_ports: (u16, u16),
    /// Issued or last renewed, Unix seconds.
    pub not_before: u64,
    /// End, Unix seconds.
    pub not_after: u64,
    /// Budget N in bytes.
    pub bytes_max: u64,
    /// Bytes used. A frontend knows what the gate reported last; a gate answers `None` while its packet thread is busy.
    pub bytes_used: Option<u64>,
    /// Flows open; known as above.
    pub flows: Option<u32>,
    /// Where it stands.
    pub state: GrantState,
}

/// Which grants end: exactly one field says it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Revoke {
    /// The one with this id.
    #[serde(default)]
    pub grant: Option<String>,
    /// Those of a user.
    #[serde(default)]
    pub user: Option<String>,
    /// Those for a service.
    #[serde(default)]
    pub service: Option<String>,
}

/// What was ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revoked {
    /// How many grants there were.
    pub revoked: usize,
}
