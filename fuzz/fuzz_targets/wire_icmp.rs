//! ICMP of both versions and what its errors quote.
#![no_main]

#[allow(dead_code, unused_imports, reason = "each target uses its part")]
#[path = "../../crates/protocol/wire/tests/exercise/mod.rs"]
mod exercise;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    exercise::icmp(bytes);
});
