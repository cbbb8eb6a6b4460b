//! A body of several parts: take apart, put another part in.
//! What must hold is written down once, for this and for the property tests.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/protocol/sip/tests/exercise/mod.rs"]
mod exercise;

fuzz_target!(|bytes: &[u8]| exercise::multipart(bytes));
