//! Calls of the PBX to telephones, and among these by way of the PBX.

use std::time::Duration;

use super::{ALICE, BOB, Place, Site, hear_each_other, hear_nothing, talk};
use crate::support::stock_pbx::PROGRAMS;

on_packet!(alone a_stock_pbx_calls_a_stock_phone_outside, PROGRAMS, called);
on_packet!(alone a_stock_phone_that_is_called_holds_and_resumes_and_ends_the_call, PROGRAMS, hold);
on_packet!(alone two_stock_phones_call_each_other_through_a_stock_pbx, PROGRAMS, each_other);
on_packet!(alone a_stock_phone_hands_a_call_over_to_another_one, PROGRAMS, handed_over);

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

fn hold(datapath: &'static str) {
    let site = Site::start(datapath, "");
    let (alice, alice_audio) = site.phone(&ALICE);
    let (desk, desk_audio) = (&site.pbx.desk, &site.pbx_audio);
    desk.dial("alice");
    alice.answer();
    hear_each_other(&alice_audio, desk_audio);
    for holder in [&alice, desk] {
        holder.command("hold", "");
        hear_nothing(&alice_audio, desk_audio);
        holder.command("resume", "");
        hear_each_other(&alice_audio, desk_audio);
    }
    alice.hang_up();
    desk.waits_for("CALL_CLOSED");
    site.is_closed();
}

fn each_other(datapath: &'static str) {
    let site = Site::start(datapath, "");
    let bob = Place { transport: "tcp", ..BOB };
    let ((alice, alice_audio), (bob, bob_audio)) = (site.phone(&ALICE), site.phone(&bob));
    alice.dial("bob");
    bob.answer();
    alice.waits_for("CALL_ESTABLISHED");
    hear_each_other(&alice_audio, &bob_audio);
    talk(&alice_audio, &bob_audio, Duration::from_secs(2));
    bob.hang_up();
    alice.waits_for("CALL_CLOSED");
    site.is_closed();
}

fn handed_over(datapath: &'static str) {
    let site = Site::start(datapath, "");
    let ((alice, alice_audio), (bob, bob_audio)) = (site.phone(&ALICE), site.phone(&BOB));
    alice.talks_to("600");
    hear_each_other(&alice_audio, &site.pbx_audio);
    // The extension calls bob, and alice is out.
    alice.command("transfer", "sip:bob@example.net");
    bob.answer();
    alice.waits_for("CALL_CLOSED");
    hear_each_other(&bob_audio, &site.pbx_audio);
    talk(&bob_audio, &site.pbx_audio, Duration::from_secs(1));
    bob.hang_up();
    site.is_closed();
}
