//! Calls whose telephone says nothing any more.

use std::time::Duration;

use super::{ALICE, Site, hear_each_other};
use crate::support::{stock_pbx::PROGRAMS, within};

on_packet!(what_a_dead_phone_had_open_ends, PROGRAMS, dies);

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
