//! `lab check` as a script uses it: one JSON object a claim, a summary, and an exit status.

use std::process::{Command, Output};

use serde_json::Value;

fn check(arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_sluicegate");
    Command::new(program).args(["lab", "check", "--short"]).args(arguments).output().expect("it runs")
}

#[test]
fn each_chosen_claim_is_one_line_with_the_command_that_repeats_it() {
    let output = check(&["--json", "--paper", "tva", "--only", "tva-13,TVA-21", "--seed", "5"]);
    assert!(output.status.success());
    let lines: Vec<Value> =
        String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [first, second, summary] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!((&first["claim"], &second["claim"]), (&Value::from("TVA-13"), &Value::from("TVA-21")));
    assert_eq!(first["command"], "sluicegate lab check --only TVA-13 --seed 5 --short");
    assert_eq!((&first["level"], &first["pass"]), (&Value::from("X"), &Value::from(true)));
    for key in ["source", "expected", "ours", "tolerance"] {
        assert!(first[key].as_str().is_some_and(|text| !text.is_empty()), "{key}");
    }
    assert!(first["seconds"].is_number());
    assert_eq!((&summary["claims"], &summary["passed"]), (&Value::from(2), &Value::from(2)));
}

#[test]
fn all_claims_of_a_paper_are_chosen_by_its_name() {
    let output = check(&["--json", "--paper", "r-soca"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    let claims: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ids: Vec<&str> = claims.iter().filter_map(|line| line["claim"].as_str()).collect();
    assert_eq!(ids, ["RS-1", "RS-2", "RS-3", "RS-4", "RS-5", "RS-6", "RS-7", "RS-8", "RS-9", "RS-10"]);
}

#[test]
fn a_claim_that_does_not_exist_is_named() {
    let output = check(&["--only", "TVA-13,TVA-99"]);
    assert!(!output.status.success());
    assert!(String::from_utf8(output.stderr).unwrap().contains("TVA-99"));
}
