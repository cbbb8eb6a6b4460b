//! What SECURITY.md and the page of limits promise, a test holds: each row names one at least, and it exists; so does each
//! sentence besides the tables that promises something. Files that they name exist too.

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
    let text = text.strip_prefix("alone ").unwrap_or(text);
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

/// Whether `text` names a test, and all that it names exist.
fn is_held(text: &str, tests: &BTreeSet<String>) -> bool {
    let claims = claims(text);
    let exists = |name: &String| match text.contains(&format!("`{name}...`")) {
        true => tests.iter().any(|test| test.starts_with(name.as_str())),
        false => tests.contains(name),
    };
    !claims.is_empty() && claims.iter().all(exists)
}

fn unheld(text: &str, first: &str, tests: &BTreeSet<String>) -> Vec<String> {
    let rows = rows(text, first);
    assert!(rows.len() >= 8, "a table of {} rows", rows.len());
    let held_by = |row: &str| row.trim_end_matches('|').rsplit('|').next().unwrap_or_default().to_owned();
    rows.into_iter().filter(|row| !is_held(&held_by(row), tests)).map(str::to_owned).collect()
}

/// Words of a sentence that says what holds, not what does not.
const PROMISING: [&str; 16] = [
    "never",
    "always",
    "nobody",
    "nothing",
    "no one",
    "safe",
    "keeps",
    "keep",
    "cannot",
    "evenly",
    "noticed",
    "dropped",
    "refused",
    "limit",
    "limits",
    "come back",
];

/// The sentences beside tables and headings. A bullet ends the one before it.
fn sentences(text: &str) -> Vec<String> {
    let prose = text.lines().map(|line| if line.starts_with(['|', '#']) { "" } else { line });
    let joined =
        prose.map(|line| if line.is_empty() || line.starts_with("- ") { format!("\n{line}") } else { line.into() });
    let paragraphs = joined.collect::<Vec<_>>().join(" ");
    let all =
        paragraphs.lines().flat_map(|line| line.split_inclusive(". ").flat_map(|part| part.split_inclusive("; ")));
    all.map(|sentence| sentence.trim().to_owned()).filter(|sentence| !sentence.is_empty()).collect()
}

fn unheld_sentences(text: &str, tests: &BTreeSet<String>) -> Vec<String> {
    let promises = |sentence: &str| {
        let plain = sentence.to_lowercase();
        let spaced: String = plain.chars().map(|c| if c.is_alphanumeric() || c == '_' { c } else { ' ' }).collect();
        let spaced = format!(" {} ", spaced.split_whitespace().collect::<Vec<_>>().join(" "));
        PROMISING.iter().any(|word| spaced.contains(&format!(" {word} ")))
    };
    let wrong = |sentence: &String| (promises(sentence) || !claims(sentence).is_empty()) && !is_held(sentence, tests);
    sentences(text).into_iter().filter(wrong).collect()
}

/// Paths in backquotes that lead nowhere.
fn missing_paths(text: &str) -> Vec<String> {
    let paths = text.split('`').skip(1).step_by(2).filter(|word| {
        ["crates/", "docs/", "fuzz/", "examples/"].iter().any(|top| word.starts_with(top))
            && !word.contains(['{', '*', ' '])
    });
    paths.filter(|path| !root().join(path).exists()).map(str::to_owned).collect()
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
fn nothing_is_promised_beside_the_tables_that_no_test_holds() {
    let tests = tests();
    for file in ["SECURITY.md", "docs/src/operating/limits.md"] {
        let text = read(&root().join(file));
        let unheld = unheld_sentences(&text, &tests);
        assert!(unheld.is_empty(), "{file}: name the test, or promise nothing:\n{}", unheld.join("\n"));
        assert_eq!(missing_paths(&text), Vec::<String>::new(), "{file}");
    }
}

#[test]
fn a_sentence_that_promises_without_a_test_is_found() {
    let tests = BTreeSet::from(["a_test_that_exists".to_owned()]);
    let found = |text: &str| unheld_sentences(text, &tests);
    for fine in [
        "Someone who forges the address can burn N bytes.",
        "Nobody gets in (`a_test_that_exists`).",
        "Nobody gets in\n(`a_test_...`).",
        "| Nobody gets in | here |\n## Nothing is safe",
    ] {
        assert_eq!(found(fine), Vec::<String>::new(), "{fine}");
    }
    let bullets =
        "- Somebody in the way.\n- Its UDP is safe. It goes on\n  and on.\n- The rest (`a_test_that_is_gone`).";
    assert_eq!(found(bullets), ["- Its UDP is safe.", "- The rest (`a_test_that_is_gone`)."]);
    assert_eq!(found("It never ends; nobody (`a_test_that_exists`)."), ["It never ends;"]);
    assert_eq!(missing_paths("`crates/sluicegate` and `crates/nowhere/x.rs`"), ["crates/nowhere/x.rs"]);
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
