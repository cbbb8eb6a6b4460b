//! A stream: cut into messages, in pieces of any sizes.
//! What must hold is written down once, for this and for the property tests.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/protocol/sip/tests/exercise/mod.rs"]
mod exercise;

fuzz_target!(|bytes: &[u8]| exercise::stream(bytes));
