//! Any load, any arrivals, any measurements; and what fuzzing kept.

mod exercise;

use std::{fs, path::Path};

use proptest::prelude::*;

#[test]
fn what_fuzzing_kept_holds() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/overload_step");
    for kept in fs::read_dir(corpus).unwrap() {
        exercise::step(&fs::read(kept.unwrap().path()).unwrap());
    }
}

proptest! {
    #[test]
    fn no_load_arrival_or_measurement_breaks_a_controller(bytes in proptest::collection::vec(any::<u8>(), 0..2_000)) {
        exercise::step(&bytes);
    }
}
