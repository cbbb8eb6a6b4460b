//! What the R-SOCA paper claims, in its short form.

use sluicegate_sim::claims::{Setting, find};

fn check(id: &str) {
    let claim = find(id).expect("a known claim");
    let outcome = (claim.run)(&Setting { seed: 1, short: true });
    println!("{id}: {}", outcome.ours);
    assert!(outcome.pass, "{id}: {} (expected {}, tolerance {})", outcome.ours, claim.expected, claim.tolerance);
}

#[test]
fn rs_1_equations_of_rejection() {
    check("RS-1");
}

#[test]
fn rs_2_a_ramp_never_takes_the_engineered_load_away() {
    check("RS-2");
}

#[test]
fn rs_3_ten_times_the_load_meets_the_cap() {
    check("RS-3");
}

#[test]
fn rs_4_a_flood_of_byes_leaves_most_calls() {
    check("RS-4");
}

#[test]
fn rs_5_a_flood_of_byes_and_twice_the_calls() {
    check("RS-5");
}

#[test]
fn rs_6_the_baseline_collapses_and_swings() {
    check("RS-6");
}

#[test]
fn rs_7_silent_callees_do_not_fill_memory() {
    check("RS-7");
}

#[test]
fn rs_8_the_baseline_fills_memory() {
    check("RS-8");
}

#[test]
fn rs_9_of_ten_sends_one_passes() {
    check("RS-9");
}

#[test]
fn rs_10_a_drop_costs_less_than_a_rejection_and_both_less_than_forwarding() {
    check("RS-10");
}
