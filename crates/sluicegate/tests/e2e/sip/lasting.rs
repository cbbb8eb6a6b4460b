//! Calls that last longer than what is opened for them.

use std::time::Duration;

use super::{ALICE, Site, hear_each_other, is_long, talk};
use crate::support::{node::Node, stock_pbx::PROGRAMS, within};

on_packet!(a_call_outlives_its_grants_without_a_lost_packet, PROGRAMS, outlives);
on_packet!(what_a_dead_phone_had_open_ends, PROGRAMS, dies);

/// What a call has open lasts so long, in seconds, and how often that the call goes on.
const LIFETIME_S: (u64, u64) = (20, 300);
const TIMES: (u64, u64) = (2, 2);

fn outlives(datapath: &'static str) {
    let pick = |(short, long)| if is_long() { long } else { short };
    let lifetime = pick(LIFETIME_S);
    let grant = format!("grant = {{ bytes_max = \"50MB\", lifetime_s = {lifetime}, rate = \"1Mbit\" }}\n");
    let site = Site::start(datapath, &grant);
    let (alice, alice_audio) = site.caller(&ALICE);
    alice.talks_to("600");
    hear_each_other(&alice_audio, &site.pbx_audio);
    let before = ends(&site.node);
    // In the long form eleven minutes on grants of five.
    let time = Duration::from_secs(lifetime * pick(TIMES) + lifetime / 5);
    talk(&alice_audio, &site.pbx_audio, time);
    let after = ends(&site.node);
    assert!(after.iter().min() > before.iter().max(), "{before:?} was prolonged to {after:?}");
    alice.hang_up();
    site.is_closed();
}

/// When the grants end, in seconds since 1970.
fn ends(node: &Node) -> Vec<u64> {
    let rows = node.json(&["grant", "ls"]);
    let live = rows.as_array().into_iter().flatten().filter(|row| row["state"] != "ended");
    live.filter_map(|row| row["not_after"].as_u64()).collect()
}

fn dies(datapath: &'static str) {
    let grant = "grant = { bytes_max = \"50MB\", lifetime_s = 10, rate = \"1Mbit\" }\n";
    let site = Site::start(datapath, grant);
    let (mut alice, alice_audio) = site.caller(&ALICE);
    alice.talks_to("600");
    hear_each_other(&alice_audio, &site.pbx_audio);
    alice.program.kill();
    let closed = within(Duration::from_secs(40), || site.node.grants().is_empty().then_some(()));
    assert!(closed.is_some(), "{:?}", site.node.json(&["grant", "ls"]));
    // And the PBX is told.
    site.pbx.desk.waits_for("CALL_CLOSED");
}
