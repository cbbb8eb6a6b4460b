//! Holds the shape of the code base: dependency direction, file length, purity of the protocol crates, documentation.

#[path = "tidy/promises.rs"]
mod promises;
#[path = "tidy/words.rs"]
mod words;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use sluicegate_wire::Reason;

/// The wings and their crates; a crate may depend only on those before it.
const WINGS: &[(&str, &[&str])] = &[
    ("protocol", &["wire", "bounded", "sip"]),
    ("packet", &["grant", "flow", "capability", "scheduler", "pinhole", "nat", "node"]),
    ("control", &["policy", "overload", "api", "telemetry", "keys", "signin", "feed", "proxy", "store"]),
    ("host", &["netlink", "datapath", "gate", "frontend", "agent", "admin"]),
    ("lab", &["site", "traffic", "experiments", "sim"]),
    ("", &["sluicegate"]),
];

/// Crates that do no I/O: `no_std`, no clock, socket or thread.
const SANS_IO: &[&str] =
    &["wire", "bounded", "sip", "grant", "flow", "capability", "scheduler", "pinhole", "nat", "node", "signin"];

/// A file is one screenful of ideas.
const LINES_MAX: usize = 600;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Each crate's name and its folder, lowest first.
fn crates() -> Vec<(&'static str, PathBuf)> {
    let folder = |wing: &str, name: &str| root().join("crates").join(wing).join(name);
    WINGS.iter().flat_map(|(wing, names)| names.iter().map(move |name| (*name, folder(wing, name)))).collect()
}

fn files_under(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        let Ok(entries) = fs::read_dir(&next) else { continue };
        for entry in entries {
            let path = entry.expect("entry").path();
            if path.is_dir() && path.file_name().is_some_and(|name| name != "target" && name != "corpus") {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
    }
    found
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    files_under(&folder.join("src"), "rs")
}

fn manifest(folder: &Path) -> String {
    read(&folder.join("Cargo.toml"))
}

#[test]
fn every_crate_stands_in_its_wing() {
    let mut expected: Vec<PathBuf> = crates().into_iter().map(|(_, folder)| folder.join("Cargo.toml")).collect();
    let mut found = files_under(&root().join("crates"), "toml");
    found.retain(|path| path.ends_with("Cargo.toml"));
    expected.sort();
    found.sort();
    assert_eq!(found, expected);
}

#[test]
fn dependencies_point_to_what_stands_before() {
    let mut before: Vec<String> = Vec::new();
    for (name, folder) in crates() {
        let manifest: toml::Table = manifest(&folder).parse().expect("manifest");
        let dependencies = manifest.get("dependencies").and_then(toml::Value::as_table);
        for dependency in dependencies.into_iter().flat_map(|table| table.keys()) {
            if dependency.starts_with("sluicegate-") {
                assert!(before.contains(dependency), "{name} must not depend on {dependency}: see WINGS");
            }
        }
        before.push(format!("sluicegate-{name}"));
    }
}

#[test]
fn protocol_crates_do_no_io() {
    for (name, folder) in crates().iter().filter(|(name, _)| SANS_IO.contains(name)) {
        let main = read(&folder.join("src/lib.rs"));
        assert!(main.contains("#![no_std]"), "{name} must be no_std");
        for path in sources(folder) {
            let text = read(&path);
            let product = text.split("#[cfg(test)]").next().expect("first part");
            for word in ["std::net::Tcp", "std::net::Udp", "std::time", "std::thread", "std::fs", "getrandom", "tokio"]
            {
                let used = path.file_name().is_some_and(|file| file != "tests.rs") && product.contains(word);
                assert!(!used, "{}: a protocol crate must not use {word}", path.display());
            }
        }
    }
}

#[test]
fn only_the_datapath_has_unsafe_code() {
    for (name, folder) in crates() {
        assert_eq!(
            manifest(&folder).contains("[lints]\nworkspace = true"),
            name != "datapath",
            "{name}: every crate but datapath takes the workspace lints, which forbid unsafe code"
        );
    }
}

#[test]
fn files_are_one_screenful_of_ideas() {
    for path in files_under(&root().join("crates"), "rs") {
        let lines = read(&path).lines().count();
        assert!(lines <= LINES_MAX, "{} has {lines} lines; split it by idea (limit {LINES_MAX})", path.display());
    }
}

#[test]
fn product_code_has_no_unfinished_marks() {
    for (_, folder) in crates() {
        for path in sources(&folder) {
            let text = read(&path);
            for mark in ["todo!(", "unimplemented!(", "FIXME", "XXX"] {
                assert!(!text.contains(mark), "{} contains {mark}", path.display());
            }
        }
    }
}

#[test]
fn every_drop_reason_is_documented() {
    let page = read(&root().join("docs/src/reference/drop-reasons.md"));
    for reason in Reason::ALL {
        let row = format!("| `{}` | {} |", reason.label(), reason.explanation());
        assert!(page.contains(&row), "docs/src/reference/drop-reasons.md lacks the row\n{row}");
    }
    let rows = page.lines().filter(|line| line.starts_with("| `")).count();
    assert_eq!(rows, Reason::ALL.len(), "docs/src/reference/drop-reasons.md documents a reason that does not exist");
}

/// What a line of the SIP core answers with: `(Outcome::Denied, 403)`, `Err(404)`, `ok_or(480_u16)`, `fail(cx, id, 487, …)`.
fn statuses(line: &str) -> Vec<u16> {
    let code = line.split("//").next().unwrap_or_default();
    let answers = [
        "Outcome::",
        "Err(",
        "_u16",
        "fail(",
        "write_answer(",
        "answer_stranger(",
        "Self::",
        "respond(",
        "HeaderName::",
        "code = ",
    ];
    let words = code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').map(|word| word.trim_end_matches("_u16"));
    let is_answer = answers.iter().any(|mark| code.contains(mark));
    words.filter(|_| is_answer).filter(|word| word.len() == 3).filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn every_status_that_the_sip_core_answers_with_is_documented_and_no_other() {
    let page = read(&root().join("docs/src/reference/sip-responses.md"));
    let of_row = |line: &str| line.strip_prefix("| ")?.split(' ').next()?.parse::<u16>().ok();
    let documented: BTreeSet<u16> = page.lines().filter_map(of_row).collect();
    let mut sources = files_under(&root().join("crates/control/proxy/src/shard"), "rs");
    sources.push(root().join("crates/protocol/sip/src/message/error.rs"));
    let without_tests = |text: String| text.split("\nmod tests {").next().unwrap_or_default().to_owned();
    let lines = sources.iter().map(|path| without_tests(read(path)));
    let answered: BTreeSet<u16> = lines.flat_map(|text| text.lines().flat_map(statuses).collect::<Vec<_>>()).collect();
    let answered: BTreeSet<u16> = answered.into_iter().filter(|code| (100..700).contains(code)).collect();
    assert_eq!(documented, answered, "docs/src/reference/sip-responses.md and what crates/control/proxy answers");
}

#[test]
fn every_route_is_documented() {
    let page = read(&root().join("docs/src/reference/api.md"));
    let source = read(&root().join("crates/control/api/src/endpoint/routes.rs"));
    let pattern = regex::Regex::new(r#"Method::([A-Z]+), "([^"]+)""#).expect("a pattern");
    let routes: Vec<String> =
        pattern.captures_iter(&source).map(|found| format!("| `{} {}` |", &found[1], &found[2])).collect();
    for route in &routes {
        assert!(page.contains(route), "docs/src/reference/api.md lacks {route}");
    }
    assert_eq!(page.matches("\n| `").count(), routes.len(), "docs/src/reference/api.md documents a route that is none");
}

#[test]
fn every_page_of_the_book_is_in_its_summary() {
    let summary = read(&root().join("docs/src/SUMMARY.md"));
    for path in files_under(&root().join("docs/src"), "md") {
        let relative = path.strip_prefix(root().join("docs/src")).expect("inside").display().to_string();
        assert!(
            relative == "SUMMARY.md" || summary.contains(&format!("({relative})")),
            "SUMMARY.md does not list {relative}"
        );
    }
}

#[test]
fn every_verb_and_setting_is_documented() {
    let page = read(&root().join("docs/src/reference/cli.md"));
    let verbs = |file: &str, name: &str| {
        let source = read(&root().join("crates/sluicegate/src").join(file));
        let rest = source.split(&format!("pub(crate) enum {name} {{")).nth(1).expect(name);
        rest.split("\n}").next().expect(name).to_owned()
    };
    let verbs = [verbs("cli.rs", "Verb"), verbs("cli/lab.rs", "LabVerb")].concat();
    let names = verbs.lines().filter_map(|line| {
        let word = line.strip_prefix("    ")?;
        let name: String = word.chars().take_while(char::is_ascii_alphanumeric).collect();
        let hidden = ["LabWorker", "KeyHolder", "KeyHolderChild", "AgentChild", "AgentRestore", "FrontendChild"];
        let is_hidden = hidden.contains(&name.as_str());
        (word.starts_with(|first: char| first.is_ascii_uppercase()) && !is_hidden).then_some(name)
    });
    for name in names {
        let mut verb = String::new();
        for (index, letter) in name.char_indices() {
            if letter.is_ascii_uppercase() && index > 0 {
                verb.push('-');
            }
            verb.push(letter.to_ascii_lowercase());
        }
        assert!(page.contains(&format!("## `{verb}`")), "docs/src/reference/cli.md lacks a section for `{verb}`");
    }
}
