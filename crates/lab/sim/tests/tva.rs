//! The claims of the TVA paper, in their short form; `sluicegate lab check --paper tva` runs the long one.

use sluicegate_sim::claims::{self, Setting};

fn check(id: &str) {
    let claim = claims::find(id).expect("the claim exists");
    let outcome = (claim.run)(&Setting { seed: 1, short: true });
    assert!(outcome.pass, "{id}: expected {} ({}), ours {}", claim.expected, claim.tolerance, outcome.ours);
}

#[test]
fn tva_10_an_attacker_is_spent_after_its_bytes_and_the_disturbance_is_short() {
    check("TVA-10");
}

#[test]
fn tva_12_a_capability_carries_n_bytes_and_never_more_than_twice_that() {
    check("TVA-12");
}

#[test]
fn tva_13_router_state_is_bounded_by_the_link() {
    check("TVA-13");
}

#[test]
fn tva_14_requests_get_their_share_of_a_busy_link_in_every_window() {
    check("TVA-14");
}

#[test]
fn tva_15_request_queues_are_bounded_and_near_neighbours_keep_their_own() {
    check("TVA-15");
}

#[test]
fn tva_16_a_capability_is_valid_from_its_making_to_t_seconds_later() {
    check("TVA-16");
}

#[test]
fn tva_20_a_router_that_forgets_loses_no_packet() {
    check("TVA-20");
}

#[test]
fn tva_21_icmp_errors_quote_nothing_of_a_pre_capability() {
    check("TVA-21");
}

#[test]
fn every_claim_has_one_id_of_its_paper() {
    for claim in claims::ALL {
        assert!(claim.id.starts_with(claim.paper.prefix()), "{}", claim.id);
        assert_eq!(claims::ALL.iter().filter(|other| other.id == claim.id).count(), 1, "{}", claim.id);
    }
    assert!(claims::find("tva-13").is_some() && claims::find("TVA-0").is_none());
}

#[test]
#[ignore = "takes minutes without optimisation"]
fn every_claim_holds_in_its_long_form() {
    let mut missed = Vec::new();
    for claim in claims::ALL {
        for seed in 1..=4 {
            let outcome = (claim.run)(&Setting { seed, short: false });
            println!("{} with seed {seed}: {}", claim.id, outcome.ours);
            if !outcome.pass {
                missed.push((claim.id, seed));
            }
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}
