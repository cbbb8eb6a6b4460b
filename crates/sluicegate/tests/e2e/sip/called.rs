//! Calls of the PBX to telephones.

use std::time::Duration;

use super::{ALICE, Site, hear_each_other, talk};
use crate::support::stock_pbx::PROGRAMS;

on_packet!(a_stock_pbx_calls_a_stock_phone_outside, PROGRAMS, called);

fn called(datapath: &'static str) {
    let site = Site::start(datapath, "");
    let (alice, alice_audio) = site.phone(&ALICE);
    let (desk, desk_audio) = (&site.pbx.desk, &site.pbx_audio);
    desk.dial("alice");
    alice.answer();
    desk.waits_for("CALL_ESTABLISHED");
    hear_each_other(&alice_audio, desk_audio);
    talk(&alice_audio, desk_audio, Duration::from_secs(2));
    desk.hang_up();
    alice.waits_for("CALL_CLOSED");
    site.is_closed();
}
