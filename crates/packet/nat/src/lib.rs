//! Flows of those who have permission: their lines, bindings and external ports, and how their packets are rewritten. IPv4
//! with or without translation, IPv6 without; every [`transport`] that has a row, and others by their addresses. Who has
//! permission, and for how much, is [`sluicegate_pinhole`]'s.
//!
//! A [`Translator`] says what becomes of IP packets (no link-layer header) and rewrites them. It does no I/O, reads no
//! clock, and allocates nothing for a packet; its tables have a fixed size. Fragments, the time to live and answers are its
//! caller's, who drives it:
//!
//! 1. [`Translator::begin_packet`], [`Translator::parse`] and [`Translator::translate`] for every packet.
//! 2. [`Translator::handle_timeout`] at or after [`Translator::poll_timeout`].
//! 3. [`Translator::poll_event`] until `None`, now and then.
//!
//! What it knows survives a restart as an [`Export`], which [`import`] brings back.
//!
//! Default-off: without a pinhole that was made from a grant, or a flow that the service may start, nothing passes.
//! Filtering is by address and port (RFC 4787, 5382, 5508, 7857). The mapping of what a service starts is
//! endpoint-independent; each grant has external ports of its own.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod aside;
mod binding;
mod config;
mod explain;
mod flows;
mod grants;
mod icmp;
mod inbound;
mod lifecycle;
mod opening;
mod outbound;
mod owner;
mod ports;
mod random;
mod rewrite;
mod rules;
mod services;
mod state;
mod trailer;
mod translator;
pub mod transport;

pub use config::{Config, Timers};
pub use explain::{Explanation, Probe};
pub use rewrite::Rewrite;
pub use state::{Export, ImportError, Imported, import};
pub use translator::{Passed, Translator};
pub use transport::Packet;
