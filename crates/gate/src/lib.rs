//! The gate daemon: it stands at the upstream end of the protected link and drops every packet without permission.
//!
//! The logic lives below: `sluicegate-nat` judges packets, `sluicegate-datapath` moves them, `sluicegate-store` speaks
//! the feed. This crate is threads, sockets and glue:
//!
//! - one **packet thread**, pinned, without locks or allocation per packet: `packets`;
//! - one **keeper** thread that writes what must survive a restart: `state`;
//! - tokio tasks for the feeds: `feed`, and a cloneable [`Control`] for whoever serves `status`, `grant`, `trace`.
//!
//! The control side never touches the packet thread's tables; it asks over a bounded queue and reads published numbers.

mod board;
mod clock;
mod config;
mod control;
mod daemon;
mod drops;
mod ends;
mod error;
mod feed;
mod files;
mod host;
mod join;
mod ledger;
mod metrics;
mod packets;
#[cfg(test)]
mod samples;
mod shared;
mod state;
pub mod status;

pub use config::{Backend, Config, FEEDS_MAX, FLOWS_MAX_MAX, FeedAddress, LocalRule, Mode, PINHOLES_MAX_MAX, Prefix};
pub use control::Control;
pub use daemon::{Ending, Error, Gate, check_host, release, run, start};
pub use error::{ConfigError, ControlError, RunError, StartError};
pub use join::{JoinError, identity, join, joined};
pub use metrics::{Metric, MetricKind};
pub use sluicegate_nat::Probe;
pub use sluicegate_store::feed::{Selected, Selector};
