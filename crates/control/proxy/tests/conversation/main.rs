//! A frontend in conversation with everybody, at random. The same is played by a fuzz target, with what that found before.

mod play;
#[path = "../site/mod.rs"]
mod site;

use std::{fs, path::Path};

#[test]
fn whatever_is_said_in_whatever_order_nothing_leaks_and_nothing_is_left() {
    // A plain generator: the same conversations each time.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    for _ in 0..300 {
        let bytes: Vec<u8> = (0..401).map(|_| next()).collect();
        play::play(&bytes);
    }
}

/// Where the fuzz target begins, and what it found.
#[test]
fn conversations_that_were_kept_go_well() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/sip_proxy");
    for conversation in fs::read_dir(folder).unwrap() {
        play::play(&fs::read(conversation.unwrap().path()).unwrap());
    }
}
