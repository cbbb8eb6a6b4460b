//! Datagrams of UDP and UDP-Lite, segments of TCP, packets of DCCP.
#![no_main]

#[allow(dead_code, unused_imports, reason = "each target uses its part")]
#[path = "../../crates/protocol/wire/tests/exercise/mod.rs"]
mod exercise;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    exercise::udp(bytes);
    exercise::tcp(bytes);
    exercise::udplite(bytes);
    exercise::dccp(bytes);
});
