//! The gate's packet path: who may pass, what is rewritten, what it costs. IPv4 with or without
//! translation, IPv6 without; every [`transport`] that has a row, and others by their addresses.
//!
//! A [`Translator`] says what becomes of IP packets (no link-layer header) and rewrites them. It does no I/O, reads no
//! clock, and allocates nothing for a packet; its tables have a fixed size. Fragments, the time to live and answers are its
//! caller's, who drives it:
//!
//! 1. [`Translator::begin_packet`], [`Translator::parse`] and [`Translator::translate`] for every packet.
//! 2. [`Translator::handle_timeout`] at or after [`Translator::poll_timeout`].
//! 3. [`Translator::poll_event`] until `None`, now and then.
//!
//! Default-off: without a pinhole that was made from a grant, or a flow that the service may start, nothing passes.
//! Filtering is by address and port (RFC 4787, 5382, 5508, 7857). The mapping of what a service starts is
//! endpoint-independent; each grant has external ports of its own.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod allowance;
mod aside;
mod binding;
mod borrowers;
mod candidates;
mod config;
mod counters;
mod explain;
mod flows;
mod grants;
mod hosts;
mod icmp;
mod inbound;
mod lifecycle;
mod mac;
mod outbound;
mod pinhole;
mod ports;
mod proof;
mod random;
mod relayed;
mod revoked;
mod rewrite;
mod rules;
mod services;
mod sources;
mod state;
mod translator;
pub mod transport;
mod users;
mod view;

pub use allowance::Allowance;
pub use config::{
    Config, EndCause, Ended, Event, FLOWS_PER_GRANT_MAX, InstallError, Opened, PEERS_MAX, PerUser, PinholeSpec, Relay,
    Service, ServiceMode, ServicesError, StandingSpec, Timers,
};
pub use counters::Counters;
pub use explain::{Explanation, LineView, Probe};
pub use mac::Permission;
pub use rewrite::Rewrite;
pub use state::{Export, ImportError, Imported};
pub use translator::{Passed, Translator};
pub use transport::Packet;
pub use view::{PinholeKind, PinholeView, Usage};
