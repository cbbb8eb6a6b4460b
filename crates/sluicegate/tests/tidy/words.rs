//! One word for one thing: a public type's name stands for one type, its methods are found in few files, and what is public
//! is there for somebody.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use regex::Regex;

use super::{crates, read, root, sources};

/// Names that several crates may give to a type of theirs, since whoever reads them reads the crate's name with them:
/// `ipv4::Packet` beside `tcp::Packet`, `gate::Config` beside `frontend::Config`.
const SHARED: &[&str] = &[
    "Algorithm",
    "Allowance",
    "Answer",
    "Body",
    "Budget",
    "CallError",
    "Carriage",
    "Claim",
    "Class",
    "Config",
    "ConfigError",
    "Control",
    "ControlError",
    "Counters",
    "Credentials",
    "Decision",
    "Delta",
    "Direction",
    "End",
    "Entry",
    "Event",
    "Family",
    "Flow",
    "Found",
    "Gate",
    "Grant",
    "Header",
    "Host",
    "Interface",
    "JoinError",
    "JoinToken",
    "Key",
    "Kind",
    "Label",
    "Limits",
    "Line",
    "Link",
    "Message",
    "NextHop",
    "Node",
    "Opened",
    "Options",
    "Outcome",
    "Packet",
    "Peer",
    "PerUser",
    "Policy",
    "Queue",
    "Quote",
    "Received",
    "Receiver",
    "Record",
    "Request",
    "Revoked",
    "Rewrite",
    "Role",
    "Rule",
    "Selector",
    "Sender",
    "Service",
    "ServiceMode",
    "Settings",
    "Setup",
    "Share",
    "Site",
    "Standing",
    "StartError",
    "Summary",
    "Table",
    "Transfer",
    "Transport",
    "User",
    "Verdict",
    "Via",
];

/// Names for whose methods more files than three have to be looked through, and through how many: they may become fewer, not
/// more. The first three are a type for each format, experiment or kind of message, a file each.
const SPREAD: &[(&str, usize)] = &[("wire::Packet", 10), ("wire::Repr", 9), ("experiments::Stage", 7)];

/// Public items that only tests call: what they look at, or make happen in the simulated world.
const FOR_TESTS: &[&str] = &[
    "doom",
    "inject",
    "is_idle",
    "jump_clock",
    "lines_reclaimed",
    "may_make_namespaces",
    "paths_behind",
    "trace_hash",
    "with_faults",
    "with_queue_bytes",
    "WEB_V6",
    // Values of the formats that nothing of ours sends.
    "demotion",
    "ROUTER_ALERT",
    "SYNC",
];

/// The product's part of a file: not the tests below it.
fn product(path: &Path) -> String {
    let text = read(path);
    let end = Regex::new(r"(?m)^#\[cfg\(test\)\]\n(#\[.*\]\n)*(pub )?mod \w+ \{").expect("a pattern");
    text[..end.find(&text).map_or(text.len(), |found| found.start())].to_owned()
}

/// Files of a crate that the product is made of, with the crate's name.
fn files() -> Vec<(&'static str, String, String)> {
    let is_test = |path: &Path| {
        path.components().any(|part| ["tests", "tests.rs", "samples.rs"].map(str::as_ref).contains(&part.as_os_str()))
    };
    let of = |(name, folder): (&'static str, std::path::PathBuf)| {
        sources(&folder).into_iter().filter(|path| !is_test(path)).map(move |path| {
            let shown = path.strip_prefix(root()).expect("inside").display().to_string();
            (name, shown, product(&path))
        })
    };
    crates().into_iter().flat_map(of).collect()
}

#[test]
fn a_public_type_shares_its_name_with_none_of_another_crate() {
    let pattern = Regex::new(r"(?m)^pub (?:struct|enum|trait|type|union) (\w+)").expect("a pattern");
    let mut owners: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for (name, _, text) in &files() {
        for found in pattern.captures_iter(text) {
            owners.entry(found[1].to_owned()).or_default().insert(name);
        }
    }
    owners.retain(|_, crates| crates.len() > 1);
    let missing: Vec<_> = owners.iter().filter(|(name, _)| !SHARED.contains(&name.as_str())).collect();
    assert!(missing.is_empty(), "rename one of each, or list it in SHARED: {missing:#?}");
    let stale: Vec<_> = SHARED.iter().filter(|name| !owners.contains_key(**name)).collect();
    assert!(stale.is_empty(), "no two crates share these any more: {stale:?}");
}

#[test]
fn the_methods_of_a_type_stand_in_three_files_at_most() {
    let pattern = Regex::new(r"(?m)^impl(?:<[^{]*?>)? (?:crate::|super::)*(\w+)[^{]*\{").expect("a pattern");
    let mut places: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, path, text) in &files() {
        for found in pattern.captures_iter(text).filter(|found| !found[0].contains(" for ")) {
            // The same word may stand for types of several modules of one crate: what counts is that it is sought.
            places.entry(format!("{name}::{}", &found[1])).or_default().insert(path.clone());
        }
    }
    let files_max = |name: &String| SPREAD.iter().find(|(spread, _)| spread == name).map_or(3, |(_, files)| *files);
    let fewer: Vec<_> =
        SPREAD.iter().filter(|(name, files)| places.get(*name).map_or(0, BTreeSet::len) < *files).collect();
    assert!(fewer.is_empty(), "these are in fewer files than SPREAD says, which is good; say so there: {fewer:?}");
    places.retain(|name, files| files.len() > files_max(name));
    assert!(places.is_empty(), "one object, few files: {places:#?}");
}

#[test]
fn what_is_public_is_called_by_more_than_tests() {
    let items =
        Regex::new(r"(?m)^\s*pub(?:\([a-z]+\))? (?:const |async )*(?:fn|const|static|struct|enum|trait|type) (\w+)");
    let (items, word) = (items.expect("a pattern"), Regex::new(r"\w+").expect("a pattern"));
    let comment = Regex::new(r"//[^\n]*").expect("a pattern");
    let files = files();
    let texts: Vec<_> = files.iter().map(|(_, path, text)| (path, comment.replace_all(text, ""))).collect();
    let mut uses: BTreeMap<&str, u32> = BTreeMap::new();
    for (_, text) in &texts {
        for found in word.find_iter(text) {
            *uses.entry(found.as_str()).or_default() += 1;
        }
    }
    let is_unused = |name: &str| uses.get(name) == Some(&1) && !FOR_TESTS.contains(&name);
    let mut unused = Vec::new();
    for (path, text) in &texts {
        let names = items.captures_iter(text).map(|found| found[1].to_owned());
        unused.extend(names.filter(|name| is_unused(name)).map(|name| format!("{path}: {name}")));
    }
    assert!(unused.is_empty(), "nothing but tests reaches these: {unused:#?}");
}
