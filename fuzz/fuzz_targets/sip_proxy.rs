//! A frontend in conversation with everybody: see the play itself, which the tests of the proxy play too.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/control/proxy/tests/conversation/play/mod.rs"]
mod play;
#[path = "../../crates/control/proxy/tests/site/mod.rs"]
mod site;

fuzz_target!(|bytes: &[u8]| play::play(bytes));
