//! The `xdp` back end, end to end on real veth pairs.

mod support;

use sluicegate_datapath::Backend;
use support::{fragments, scenario};

#[test]
fn xdp_waits_until_it_is_woken() {
    scenario::a_wait_ends_when_it_is_woken(Backend::Xdp);
}

#[test]
fn xdp_forwards_what_the_handler_sends_and_nothing_else() {
    scenario::forwards_only_what_the_handler_sends(Backend::Xdp);
}

#[test]
fn xdp_lets_the_kernel_have_local_and_peers_only() {
    scenario::kernel_receives_local_and_peers_only(Backend::Xdp);
}

#[test]
fn xdp_stays_closed_after_a_crash_and_opens_on_close() {
    scenario::stays_closed_after_a_crash(Backend::Xdp);
}

#[test]
fn xdp_limits_the_rate_of_local() {
    scenario::local_is_rate_limited(Backend::Xdp);
}

#[test]
fn xdp_refuses_what_it_cannot_do_safely() {
    scenario::refusals_say_what_to_do(Backend::Xdp);
}

#[test]
fn xdp_drops_when_the_heartbeat_is_stale_and_counts_it() {
    scenario::stale_heartbeat_drops();
}

#[test]
fn xdp_completes_checksums_that_a_local_sender_left_open() {
    scenario::open_checksums_are_completed(Backend::Xdp);
}

#[test]
fn xdp_lets_the_host_have_datagrams_in_fragments_whole() {
    fragments::datagrams_in_fragments_arrive_whole(Backend::Xdp);
}

#[test]
fn xdp_keeps_fragments_without_a_listed_first_one_from_the_host() {
    fragments::fragments_without_a_listed_first_one_do_not_reach_the_host(Backend::Xdp);
}

#[test]
fn xdp_bounds_a_flood_of_first_fragments() {
    fragments::a_flood_of_first_fragments_is_bounded(Backend::Xdp);
}
