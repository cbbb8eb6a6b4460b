//! Parsing and reading a message allocates nothing. A test cannot count allocations without unsafe code, so this holds
//! what makes it so: the types own nothing, and the modules do not name a type that could allocate.

use core::mem::needs_drop;
use std::{fs, path::Path};

use sluicegate_sip::{
    digest::Authorization,
    message::{Essentials, Message, NameAddr, Via},
    sdp::Session,
    uri::Uri,
};

#[test]
fn what_is_parsed_owns_no_memory() {
    assert!(!needs_drop::<Message<'_>>());
    assert!(!needs_drop::<Essentials<'_>>());
    assert!(!needs_drop::<NameAddr<'_>>());
    assert!(!needs_drop::<Via<'_>>());
    assert!(!needs_drop::<Uri<'_>>());
    assert!(!needs_drop::<Session<'_>>());
    assert!(!needs_drop::<Authorization<'_>>());
}

#[test]
fn the_modules_that_parse_do_not_name_the_heap() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let message = fs::read_dir(source.join("message")).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<_> = message.chain(["uri.rs", "sdp/mod.rs", "sdp/parse.rs"].map(|name| source.join(name))).collect();
    assert!(files.len() > 10);
    for file in files.iter().filter(|file| !file.ends_with("tests.rs")) {
        let text = fs::read_to_string(file).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap();
        for word in ["alloc::", "Vec<", "Vec::", "vec!", "Box<", "String", "Cow", "format!"] {
            assert!(!code.contains(word), "{} names `{word}`", file.display());
        }
    }
}
