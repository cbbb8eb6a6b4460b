//! The gate daemon: it stands at the upstream end of the protected link and drops every packet without permission.
//!
//! The logic lives below: `sluicegate-nat` judges packets, `sluicegate-datapath` moves them, `sluicegate-store` speaks
//! the feed. This crate is threads, sockets and glue:
//!
//! - one **packet thread**, pinned, without locks or allocation per packet: [`packets`];
//! - one **keeper** thread that writes what must survive a restart: [`state`];
//! - tokio tasks for the feeds: [`feed`], and a cloneable [`Control`] for whoever serves `status`, `grant`, `trace`.
//!
//! The control side never touches the packet thread's tables; it asks over a bounded queue and reads published numbers.

mod board;
mod clock;
mod config;
mod drops;
mod error;
mod files;
mod host;
mod state;
