//! What reviewers broke, and what holds since: one test per finding, on the real binary or on the real objects.
//!
//! A test is named after what holds, with the number of its finding: `security_01_...`, `conformance_07_...`,
//! `nat_03_...`, `sip_d04_...`; what held already is a regression test, `held_...`. Tests on the wire run with both back
//! ends. `cargo test -p sluicegate --test audit` runs them; those in namespaces need root.

#[allow(dead_code, unused_macros, reason = "each of the test binaries uses a part of it")]
#[macro_use]
#[path = "../support/mod.rs"]
mod support;

mod authority;
mod contained;
mod feed;
mod held;
mod limits;
mod modes;
mod nat;
mod ratchet;
mod signin;
mod sip;
mod tva;
