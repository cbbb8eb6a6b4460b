//! Calls to the PBX.

use std::time::Duration;

use super::{ALICE, Site, hear_each_other, hear_nothing, talk};
use crate::support::{lab::GATE, softphone::Softphone, stock_pbx::PROGRAMS, until};

on_packet!(a_stock_phone_registers_at_the_frontend_until_it_is_switched_off, PROGRAMS, registers);
on_packet!(a_stock_phone_calls_a_stock_pbx_behind_the_gate, PROGRAMS, calls);
on_packet!(a_stock_phone_and_a_stock_pbx_hold_and_resume_a_call, PROGRAMS, hold);

fn registers(datapath: &'static str) {
    let site = Site::start(datapath, "");
    let phone = Softphone::start(&site.lab, &ALICE.account(GATE));
    phone.registered();
    assert_eq!(site.contacts(), 1);
    phone.switch_off();
    until("nobody is registered", || (site.contacts() == 0).then_some(()));
}

fn calls(datapath: &'static str) {
    let site = Site::start(datapath, "");
    let (alice, alice_audio) = site.caller(&ALICE);
    alice.talks_to("600");
    hear_each_other(&alice_audio, &site.pbx_audio);
    talk(&alice_audio, &site.pbx_audio, Duration::from_secs(2));
    alice.hang_up();
    site.is_closed();
}

fn hold(datapath: &'static str) {
    let site = Site::start(datapath, "");
    let (alice, alice_audio) = site.caller(&ALICE);
    let (desk, desk_audio) = (&site.pbx.desk, &site.pbx_audio);
    alice.talks_to("600");
    desk.waits_for("CALL_ESTABLISHED");
    hear_each_other(&alice_audio, desk_audio);
    for holder in [&alice, desk] {
        holder.command("hold", "");
        hear_nothing(&alice_audio, desk_audio);
        holder.command("resume", "");
        hear_each_other(&alice_audio, desk_audio);
        talk(&alice_audio, desk_audio, Duration::from_secs(1));
    }
    desk.hang_up();
    alice.waits_for("CALL_CLOSED");
    site.is_closed();
}
