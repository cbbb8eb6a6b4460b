//! What the NUTSS paper claims, in its short form.

use sluicegate_sim::claims::{Setting, find};

fn check(id: &str) {
    let claim = find(id).expect("a known claim");
    let outcome = (claim.run)(&Setting { seed: 1, short: true });
    println!("{id}: {}", outcome.ours);
    assert!(outcome.pass, "{id}: {} (expected {}, tolerance {})", outcome.ours, claim.expected, claim.tolerance);
}

#[test]
fn nu_1_bad_requests_cost_few_calls() {
    check("NU-1");
}

#[test]
fn nu_2_digest_authentication_costs_little() {
    check("NU-2");
}

#[test]
fn nu_3_three_times_the_load_does_not_collapse_it() {
    check("NU-3");
}

#[test]
fn nu_4_below_the_threshold_tcp_loses_nothing() {
    check("NU-4");
}

#[test]
fn nu_5_a_third_message_is_accepted_once_in_the_whole_replica_set() {
    check("NU-5");
}

#[test]
fn nu_6_strangers_leave_nothing_and_forgers_do_not_get_in() {
    check("NU-6");
}

#[test]
fn nu_7_what_a_replica_holds_is_worth_nothing_after_its_epoch() {
    check("NU-7");
}
