//! What SECURITY.md and the page of limits promise, a test holds: each row names one at least, and it exists.

use std::collections::BTreeSet;

use super::{files_under, read, root};

/// Names of every test of the workspace: those that are marked, and those that the end-to-end macros make.
fn tests() -> BTreeSet<String> {
    let files = files_under(&root().join("crates"), "rs");
    files.iter().flat_map(|path| named_tests(&read(path))).collect()
}

fn named_tests(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut is_marked = false;
    for line in text.lines().map(str::trim) {
        if let Some(rest) = ["on_each_datapath!(", "on_packet!("].iter().find_map(|start| line.strip_prefix(start)) {
            names.extend(identifier(rest));
        } else if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_marked = true;
        } else if let Some(rest) = line.strip_prefix("async fn ").or_else(|| line.strip_prefix("fn ")) {
            names.extend(identifier(rest).filter(|_| is_marked));
            is_marked = false;
        }
    }
    // A name on a line of its own, behind a macro that did not fit on one.
    let split = text.split("on_each_datapath!(\n").chain(text.split("on_packet!(\n")).skip(1);
    names.extend(split.filter_map(|rest| identifier(rest.trim_start())));
    names
}

fn identifier(text: &str) -> Option<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let name = text.split(|c: char| !is_part(c)).next()?;
    (!name.is_empty()).then(|| name.to_owned())
}

/// What a row names: words in backquotes that look like tests, whole (`a_b`) or by their beginning (`a_b_...`).
fn claims(row: &str) -> Vec<String> {
    let quoted = row.split('`').skip(1).step_by(2);
    let is_test = |word: &&str| word.contains('_') && !word.contains(['/', ' ', '=', '<', '"', '.', '{']);
    quoted.map(|word| word.trim_end_matches("...")).filter(is_test).map(str::to_owned).collect()
}

/// The rows of the table whose heading begins with `first`, without heading and rule.
fn rows<'a>(text: &'a str, first: &str) -> Vec<&'a str> {
    let from = text.find(&format!("| {first} |")).unwrap_or_else(|| panic!("no table of {first:?}"));
    text[from..].lines().skip(2).take_while(|line| line.starts_with('|')).collect()
}

fn unheld(text: &str, first: &str, tests: &BTreeSet<String>) -> Vec<String> {
    let rows = rows(text, first);
    assert!(rows.len() >= 8, "a table of {} rows", rows.len());
    let wrong = |row: &&str| {
        let held_by = row.trim_end_matches('|').rsplit('|').next().unwrap_or_default();
        let claims = claims(held_by);
        let exists = |name: &String| match held_by.contains(&format!("`{name}...`")) {
            true => tests.iter().any(|test| test.starts_with(name.as_str())),
            false => tests.contains(name),
        };
        claims.is_empty() || !claims.iter().all(exists)
    };
    rows.into_iter().filter(wrong).map(str::to_owned).collect()
}

#[test]
fn each_promise_names_the_test_that_holds_it() {
    let tests = tests();
    assert!(tests.len() > 800, "only {} tests were found", tests.len());
    for (file, first) in [("SECURITY.md", "promise"), ("docs/src/operating/limits.md", "limit")] {
        let unheld = unheld(&read(&root().join(file)), first, &tests);
        assert!(unheld.is_empty(), "{file}: no test, or none of that name:\n{}", unheld.join("\n"));
    }
}

#[test]
fn a_row_without_a_test_or_with_one_that_is_gone_is_found() {
    let tests = BTreeSet::from(["a_test_that_exists".to_owned()]);
    let row = |held_by: &str| format!("| it holds | {held_by} |\n");
    let table = |last: &str| {
        let good = row("`a_test_that_exists`").repeat(4) + &row("`a_test_...` in `crates/x/tests/y.rs`").repeat(4);
        format!("| promise | held by |\n|---|---|\n{good}{}", row(last))
    };
    assert_eq!(unheld(&table("`a_test_that_exists`, `demo`"), "promise", &tests).len(), 0);
    for wrong in ["`demo`", "careful reading", "`a_test_that_is_gone`", "`crates/x/tests/y.rs`", "`another_...`"] {
        assert_eq!(unheld(&table(wrong), "promise", &tests).len(), 1, "{wrong}");
    }
}
