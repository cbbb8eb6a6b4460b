//! What a gate, a router or an edge is told about capabilities and the lanes of its links.

use crate::error::ConfigError;
use std::{path::PathBuf, str::FromStr};

/// Largest `capability_lines_max`: 64 bytes each, a gibibyte.
pub const CAPABILITY_LINES_MAX_MAX: u32 = 1 << 24;
/// Largest `request_queues_max` (TVA V-B).
pub const REQUEST_QUEUES_MAX_MAX: u32 = 200_000;
/// Largest `peers_max`.
pub const PEERS_MAX_MAX: u32 = 1 << 20;
/// Slowest and fastest link, in bit/s.
const LINK_RATES_BPS: std::ops::RangeInclusive<u64> = 64_000..=100_000_000_000;
/// What a capability can say: kilobytes and seconds.
const KILOBYTES: std::ops::RangeInclusive<u16> = 1..=1_023;
const SECONDS: std::ops::RangeInclusive<u8> = 1..=63;

/// What a node between two interfaces does with packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
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

/// Between whom the regular lane is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fairness {
    /// Between destination addresses (TVA III-I): the only key that nobody can forge to get more.
    #[default]
    Destination,
    /// Between source addresses; only where they cannot be forged.
    Source,
    /// Between prefixes of this length of the destination.
    Prefix(u8),
}

impl FromStr for Fairness {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let wrong = || ConfigError::Fairness { text: text.to_owned() };
        match text {
            "destination" => Ok(Self::Destination),
            "source" => Ok(Self::Source),
            _ => {
                let len = text.strip_prefix("prefix/").and_then(|len| len.parse().ok()).ok_or_else(wrong)?;
                if (1..=128).contains(&len) { Ok(Self::Prefix(len)) } else { Err(wrong()) }
            }
        }
    }
}

/// Which request queues are merged when all are in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Merge {
    /// The deepest (TVA III-B).
    #[default]
    DeepestFirst,
    /// Those of the path with the most more queues than it is known to need.
    LargestExcess,
}

/// The hash of requests that this node makes; routers answer in the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// SipHash-2-4.
    #[default]
    Siphash,
    /// AES-128 with Matyas-Meyer-Oseas.
    Aes,
}

/// How capability headers travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Carriage {
    /// As IP protocol 253.
    #[default]
    Native,
    /// In UDP, to port 7253: through other people's NATs.
    Encapsulated,
}

/// Whose requests an edge grants on behalf of its hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EdgePolicy {
    /// Those that answer what a host began (TVA III-C).
    #[default]
    Client,
    /// Everyone's, shared by path; who floods is refused for a while.
    Server,
}

impl EdgePolicy {
    /// N and T unless the file says otherwise. Whoever a host asked for something may send it as fast as a capability
    /// can say, and long enough for routers to remember a flow of 17 kB/s between its packets (L * T / N); whoever asks
    /// a server of the LAN gets enough for a request.
    #[must_use]
    pub const fn limits(self) -> (u16, u8) {
        match self {
            Self::Client => (*KILOBYTES.end(), 60),
            Self::Server => (100, 10),
        }
    }
}

/// Settings of capabilities and lanes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// Rate in bit/s at which packets leave by each port, outside first; `None`: as fast as the interface takes them.
    pub link_rates_bps: [Option<u64>; 2],
    /// At which ports a domain of other people begins, outside first: requests that arrive there are tagged.
    pub boundary: [bool; 2],
    /// Between whom the regular lane is shared.
    pub fairness: Fairness,
    /// Whether the network in front of this node refuses forged source addresses.
    pub ingress_verified: bool,
    /// Which request queues are merged.
    pub merge: Merge,
    /// File of path identifiers and their weights.
    pub known_paths: Option<PathBuf>,
    /// IPv4 capabilities remembered at once, fixed at start.
    pub lines_max: u32,
    /// Queues of requests, fixed at start.
    pub request_queues_max: u32,
    /// The hash of this node's own requests.
    pub algorithm: Algorithm,
    /// Pairs of hosts that this node speaks for at once, fixed at start.
    pub peers_max: u32,
    /// Whose requests an edge grants.
    pub policy: EdgePolicy,
    /// How an edge sends capability headers.
    pub carriage: Carriage,
    /// What an edge grants: N in kilobytes of 1,000 bytes and T in seconds.
    pub limits: (u16, u8),
}

impl Capabilities {
    /// The defaults of a role.
    #[must_use]
    pub const fn new(role: Role) -> Self {
        Self {
            link_rates_bps: [None; 2],
            // A gate ends the Internet; a router somewhere on the way does not know where domains end.
            boundary: [matches!(role, Role::Gate), false],
            fairness: Fairness::Destination,
            ingress_verified: false,
            merge: Merge::DeepestFirst,
            known_paths: None,
            lines_max: 1 << 16,
            request_queues_max: 1 << 14,
            algorithm: Algorithm::Siphash,
            peers_max: 1 << 14,
            policy: EdgePolicy::Client,
            carriage: Carriage::Native,
            limits: EdgePolicy::Client.limits(),
        }
    }

    pub(super) fn check(&self, errors: &mut Vec<ConfigError>) {
        for (field, rate) in ["link_rate_outside", "link_rate"].into_iter().zip(self.link_rates_bps) {
            if let Some(rate_bps) = rate.filter(|rate| !LINK_RATES_BPS.contains(rate)) {
                errors.push(ConfigError::LinkRate { field, rate_bps });
            }
        }
        if self.fairness == Fairness::Source && !self.ingress_verified {
            errors.push(ConfigError::SourceUnverified);
        }
        let sizes = [
            ("capability_lines_max", self.lines_max, CAPABILITY_LINES_MAX_MAX),
            ("request_queues_max", self.request_queues_max, REQUEST_QUEUES_MAX_MAX),
            ("peers_max", self.peers_max, PEERS_MAX_MAX),
        ];
        for (field, given, max) in sizes {
            super::check_size(errors, field, given, max);
        }
        if !KILOBYTES.contains(&self.limits.0) {
            errors.push(ConfigError::CapabilityBytes { kilobytes: self.limits.0 });
        }
        if !SECONDS.contains(&self.limits.1) {
            errors.push(ConfigError::CapabilitySeconds { seconds: self.limits.1 });
        }
    }
}
