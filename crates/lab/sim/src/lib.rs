//! A deterministic event world on the protocol crates, and the papers' claims as checks.
//!
//! [`World`] drives [`Node`]s on a virtual clock: the same protocol objects that run in the daemons, over real packet
//! bytes, joined by links with rate, delay, queue and faults. Time is in whole nanoseconds, ties keep the order in
//! which they were scheduled, and everything random comes from one seed: two runs of one seed are bit-identical, which
//! [`World::trace_hash`] shows.

pub mod attacker;
pub mod claims;
pub mod host;
pub mod link;
pub mod packet;
pub mod router;
pub mod tcp;

mod agent;
mod calls;
#[cfg(test)]
mod fleet;
mod frontend;
mod rng;
mod signalling;
mod telephone;
mod trace;
mod work;
mod world;

pub use link::{Faults, LinkConfig, LinkId, LinkStats, Queue};
pub use rng::Rng;
pub use world::{Interface, Io, Node, NodeId, World};
