//! The whole system on the real binary: gate, frontend, agents and stock programs in network namespaces.
//!
//! Each test builds a lab, starts the nodes that it is about, and measures on the wire. They need root, and some need
//! programs of other people; a test that cannot run says `skipped: needs …`, or fails where `SLUICEGATE_NO_SKIP=1` is
//! set. `cargo test -p sluicegate --test e2e` runs them.

#[allow(dead_code, unused_macros, reason = "each of the test binaries uses a part of it")]
#[macro_use]
#[path = "../support/mod.rs"]
mod support;

#[path = "../../../host/frontend/tests/authority/mod.rs"]
mod authority;
mod calls;
mod capabilities;
mod daily;
mod daily_agent;
mod daily_backup;
mod daily_deployments;
mod daily_gates;
mod daily_host;
mod daily_operations;
mod daily_roaming;
mod fallback;
mod frames;
mod hosts;
mod lifetime;
mod macs;
mod observing;
mod outages;
mod refusals;
mod registrations;
mod replicas;
mod scans;
mod security;
mod servers;
mod serving;
mod sip;
mod streams;
mod threats;
mod tools;
mod torture;
mod trunks;
mod watching;
mod windows;
