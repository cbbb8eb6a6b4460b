//! The gate daemon: it stands at the upstream end of the protected link and drops every packet without permission.
//!
//! The logic lives below: `sluicegate-node` judges packets, `sluicegate-datapath` moves them, `sluicegate-store` speaks
//! the feed. This crate is threads, sockets and glue:
//!
//! - one **packet thread**, pinned, without locks or allocation per packet: `packets`;
//! - one **keeper** thread that writes what must survive a restart: `state`;
//! - tokio tasks for the feeds: `feed`, and a cloneable [`Control`] for whoever serves `status`, `grant`, `trace`.
//!
//! The control side never touches the packet thread's tables; it asks over a bounded queue and reads published numbers.

mod assemble;
mod clock;
mod config;
mod control;
mod daemon;
mod ends;
mod error;
mod feed;
mod files;
mod host;
mod join;
mod known_paths;
mod ledger;
mod metrics;
mod packets;
mod published;
#[cfg(test)]
mod samples;
mod secrets;
mod shared;
mod state;
mod tunnel;

pub use config::{
    Algorithm, Backend, CAPABILITY_LINES_MAX_MAX, Capabilities, Carriage, Config, EdgePolicy, FEEDS_MAX, FLOWS_MAX_MAX,
    FeedAddress, ISSUERS_MAX, Issuer, LocalRule, Merge, OwnService, PEERS_MAX_MAX, PINHOLES_MAX_MAX, PerUser, Prefix,
    REQUEST_QUEUES_MAX_MAX, Renew, ServerConfig, Side, TunnelListener,
};
pub use control::Control;
pub use daemon::{Ending, Gate, bind, check_host, close, prepare, release, start};
pub use error::{ConfigError, ControlError, RunError, StartError};
pub use join::{BACKUP_FILES, JoinError, identity, join, joined};
pub use known_paths::{KNOWN_PATHS_MAX, KnownPath, PATH_LEN_MAX, known_paths};
pub use packets::{Longest, longest_turns};
pub use sluicegate_feed::{Selected, Selector};
pub use sluicegate_nat::Probe;
pub use sluicegate_pinhole::Tuple;
