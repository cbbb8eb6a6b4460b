//! Requests and measurements in any order, to a controller of overload that is built for any load.
//! What must hold is written down once, for this and for the property test.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/control/overload/tests/exercise/mod.rs"]
mod exercise;

fuzz_target!(|bytes: &[u8]| exercise::step(bytes));
