//! Requests, responses, refusals, CANCELs and time, in any order, to the tables of transactions of both sides.
//! What must hold is written down once, for this and for the property tests.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/protocol/sip/tests/exercise/mod.rs"]
mod exercise;

fuzz_target!(|bytes: &[u8]| exercise::transactions(bytes));
