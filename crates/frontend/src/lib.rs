//! The frontend daemon.

mod clock;
pub mod config;
mod decisions;
mod ledger;
mod metrics;
mod shard;
mod transmits;
mod udp;

pub use shard::Shard;
pub use transmits::{Flow, Transmits};
