//! What a gate, a router or an edge is told about capabilities and the lanes of its links.

use crate::error::ConfigError;
use sluicegate_api::Role;
use sluicegate_capability::host::ServerConfig;
use sluicegate_capability::lines::lines_needed;
use sluicegate_node::Fairness;
use sluicegate_scheduler as scheduler;
pub use sluicegate_scheduler::Merge;
pub use sluicegate_wire::capability::Algorithm;
use sluicegate_wire::capability::Limits;
use std::path::PathBuf;

/// Largest `capability_lines_max`: 64 bytes each, a gibibyte.
pub const CAPABILITY_LINES_MAX_MAX: u32 = 1 << 24;
/// Largest `request_queues_max` (TVA V-B).
pub const REQUEST_QUEUES_MAX_MAX: u32 = 200_000;
/// Lines of a gate whose link is not scheduled, and which therefore sorts nothing.
const LINES_UNSCHEDULED: u32 = 1 << 16;
/// Shares of the link that requests may get, in percent.
const REQUEST_PERCENT: std::ops::RangeInclusive<u8> = 1..=50;
/// Slowest `flood_rate`, in bytes a second.
const FLOOD_RATE_MIN: u64 = 100;
/// Longest `blacklist_s`: a day.
const BLACKLIST_SECONDS: std::ops::RangeInclusive<u64> = 1..=86_400;
/// Largest `peers_max`.
pub const PEERS_MAX_MAX: u32 = 1 << 20;
/// Slowest and fastest link, in bit/s.
const LINK_RATES_BPS: std::ops::RangeInclusive<u64> = 64_000..=100_000_000_000;
/// What a capability can say: kilobytes and seconds.
const KILOBYTES: std::ops::RangeInclusive<u16> = 1..=1_023;
const SECONDS: std::ops::RangeInclusive<u8> = 1..=63;

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
    /// Capabilities remembered at once of each IP version, fixed at start; `None`: as many as the links need.
    pub lines_max: Option<u32>,
    /// Queues of requests, fixed at start; `None`: by the rate of the link.
    pub request_queues_max: Option<u32>,
    /// What requests get of the link while others want it.
    pub request_percent: u8,
    /// The hash of this node's own requests; routers answer in the same.
    pub algorithm: Algorithm,
    /// Pairs of hosts that this node speaks for at once, fixed at start.
    pub peers_max: u32,
    /// Whose requests an edge grants.
    pub policy: EdgePolicy,
    /// When an edge that grants everyone stops renewing.
    pub server: ServerConfig,
    /// How an edge sends capability headers.
    pub carriage: Carriage,
    /// What an edge grants: N in kilobytes of 1,000 bytes and T in seconds.
    pub limits: (u16, u8),
}

impl Capabilities {
    /// The defaults of a role.
    #[must_use]
    pub fn new(role: Role) -> Self {
        Self {
            link_rates_bps: [None; 2],
            // A gate ends the Internet; a router somewhere on the way does not know where domains end.
            boundary: [matches!(role, Role::Gate), false],
            fairness: Fairness::Destination,
            ingress_verified: false,
            merge: Merge::DeepestFirst,
            known_paths: None,
            lines_max: None,
            request_queues_max: None,
            request_percent: 5,
            algorithm: Algorithm::SipHash,
            peers_max: 1 << 14,
            policy: EdgePolicy::Client,
            server: ServerConfig::default(),
            carriage: Carriage::Native,
            limits: EdgePolicy::Client.limits(),
        }
    }

    /// How many lines the links need, whatever attackers do (TVA III-F); `None` without a scheduled link.
    #[must_use]
    pub fn lines_needed(&self) -> Option<u32> {
        let rates: u64 = self.link_rates_bps.iter().flatten().sum();
        let needed = u32::try_from(lines_needed(rates, Limits::LEAST)).unwrap_or(u32::MAX);
        (rates > 0).then_some(needed.min(CAPABILITY_LINES_MAX_MAX))
    }

    /// How many there are.
    #[must_use]
    pub fn lines(&self) -> u32 {
        self.lines_max.or(self.lines_needed()).unwrap_or(LINES_UNSCHEDULED)
    }

    /// Queues of requests for a link of this rate.
    #[must_use]
    pub fn request_queues(&self, rate_bps: u64) -> u32 {
        self.request_queues_max.unwrap_or(scheduler::Config::for_rate(rate_bps).request_queues_max)
    }

    pub(super) fn check(&self, errors: &mut Vec<ConfigError>) {
        if let (Some(lines_max), Some(needed)) = (self.lines_max, self.lines_needed())
            && (1..needed).contains(&lines_max)
        {
            // Attackers may send as slowly as a capability lets them.
            let what = format!(
                "capability_lines_max is {lines_max}, and attackers can fill {needed} at this link rate (TVA III-F); \
                 leave it out: then it is as large as the links need"
            );
            errors.push(ConfigError::new("capability_lines_max", what));
        }
        if !REQUEST_PERCENT.contains(&self.request_percent) {
            let what = "requests may get 1 to 50 percent of the link";
            let what = format!("request_percent is {}; {what}", self.request_percent);
            errors.push(ConfigError::new("request_percent", what));
        }
        if self.server.flood_bytes_per_s < FLOOD_RATE_MIN {
            let (rate_bps, what) = (self.server.flood_bytes_per_s * 8, "write the rate from which a sender floods");
            let what = format!("flood_rate is {rate_bps} bit/s; {what}, such as \"512kbit\"");
            errors.push(ConfigError::new("flood_rate", what));
        }
        let blacklist_s = self.server.blacklist_for.as_secs();
        if !BLACKLIST_SECONDS.contains(&blacklist_s) {
            let what = format!("blacklist_s is {blacklist_s}; who floods gets nothing for 1 to 86400 seconds");
            errors.push(ConfigError::new("blacklist_s", what));
        }
        for (field, rate) in ["link_rate_outside", "link_rate"].into_iter().zip(self.link_rates_bps) {
            if let Some(rate_bps) = rate.filter(|rate| !LINK_RATES_BPS.contains(rate)) {
                let what = "write the rate of the link, from \"64kbit\" to \"100Gbit\"";
                errors.push(ConfigError::new(field, format!("{field} is {rate_bps} bit/s; {what}")));
            }
        }
        if self.fairness == Fairness::Source && !self.ingress_verified {
            let what = "fairness = \"source\" lets whoever forges addresses take the link; set ingress_verified = true only \
                        if every network in front of this node refuses forged sources, or write fairness = \
                        \"destination\"";
            errors.push(ConfigError::new("fairness", what.to_owned()));
        }
        let sizes = [
            ("capability_lines_max", self.lines(), CAPABILITY_LINES_MAX_MAX),
            ("request_queues_max", self.request_queues_max.unwrap_or(1), REQUEST_QUEUES_MAX_MAX),
            ("peers_max", self.peers_max, PEERS_MAX_MAX),
        ];
        for (field, given, max) in sizes {
            super::check_size(errors, field, given, max);
        }
        if !KILOBYTES.contains(&self.limits.0) {
            let what = format!("capability_bytes is {} kB; a capability is worth 1KB to 1023KB", self.limits.0);
            errors.push(ConfigError::new("capability_bytes", what));
        }
        if !SECONDS.contains(&self.limits.1) {
            let what = format!("capability_s is {}; a capability lives for 1 to 63 seconds", self.limits.1);
            errors.push(ConfigError::new("capability_s", what));
        }
    }
}
