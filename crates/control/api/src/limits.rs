//! Who is held to a limit of a frontend, and who is not.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// Which limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitKind {
    /// More came than can be served, and it sends more than others.
    Load,
    /// Too many wrong passwords came from there for this user.
    Passwords,
    /// None: an operator has lifted that of load.
    Lifted,
}

/// A sender that was held to a limit lately, or for which one is lifted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitStatus {
    /// Which limit.
    pub kind: LimitKind,
    /// An address, an IPv6 /64, or what was lifted.
    pub source: IpNet,
    /// Whose password it was.
    pub user: Option<String>,
    /// Requests refused, or not heard, since it was heard of first; at most, if many others were meanwhile.
    pub refused: u64,
    /// The last of them, Unix seconds.
    pub refused_at: Option<u64>,
    /// When what was lifted ends, Unix seconds.
    pub until: Option<u64>,
    /// Why it was lifted.
    pub reason: Option<String>,
}

/// Lifts the limit of load for a source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitLift {
    /// An address or a network.
    pub source: IpNet,
    /// For how long, in seconds; 0 ends it.
    pub seconds: u64,
    /// Why, for whoever reads it later.
    pub reason: String,
}

/// What was forgotten of wrong passwords.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forgiven {
    /// Sources that may try again at once.
    pub sources: usize,
}
