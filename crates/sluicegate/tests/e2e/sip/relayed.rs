//! Telephones that are registered at the PBX, by way of the frontend.

use std::time::Duration;

use super::{ALICE, Site, hear_each_other, talk};
use crate::support::stock_pbx::PROGRAMS;

on_packet!(a_stock_phone_outside_registers_at_a_stock_pbx_and_is_called_by_its_path, PROGRAMS, relayed);

fn relayed(datapath: &'static str) {
    let site = Site::start(datapath, "register = \"relay\"\n");
    let (alice, alice_audio) = site.phone(&ALICE);
    assert_eq!(site.contacts(), 0, "the PBX remembers where it is, and nobody else");
    let (desk, desk_audio) = (&site.pbx.desk, &site.pbx_audio);
    desk.dial("alice");
    alice.answer();
    desk.waits_for("CALL_ESTABLISHED");
    hear_each_other(&alice_audio, desk_audio);
    talk(&alice_audio, desk_audio, Duration::from_secs(2));
    desk.hang_up();
    alice.waits_for("CALL_CLOSED");
    site.is_closed();

    // It says goodbye to the PBX too.
    alice.switch_off();
    desk.dial("alice");
    desk.waits_for("CALL_CLOSED");
}
