//! What the stock programs do among themselves, without any gate: what fails here is theirs.

use std::time::Duration;

use super::{ALICE, BOB, PER_SECOND, hear_each_other, hear_nothing, talk};
use crate::support::{
    lab::{Lab, SERVICE},
    program::run_on,
    softphone::Softphone,
    stock_pbx::{PROGRAMS, StockPbx},
    until,
};
use sluicegate_site::clock::unix_ns;

on_packet!(stock_phones_and_a_stock_pbx_understand_each_other_without_a_gate, PROGRAMS, without_gate);

fn without_gate(_: &'static str) {
    let lab = Lab::new();
    lab.host("gate").forward(true).expect("a setting");
    let limit = Duration::from_secs(10);
    run_on(&lab, "core", "ip", &["route", "add", "10.4.0.0/24", "via", "203.0.113.1"], limit).expect("a route");
    let _pbx = StockPbx::start(&lab);
    let (alice_audio, bob_audio) = (ALICE.audio(&lab), BOB.audio(&lab));
    let alice = Softphone::start(&lab, &ALICE.account(SERVICE));
    let mut bob = Softphone::start(&lab, &BOB.account(SERVICE));
    alice.registered();
    bob.registered();

    alice.dial("bob");
    bob.answer();
    alice.waits_for("CALL_ESTABLISHED");
    hear_each_other(&alice_audio, &bob_audio);
    talk(&alice_audio, &bob_audio, Duration::from_secs(2));

    // On hold the other one is silent as well.
    alice.command("hold", "");
    hear_nothing(&alice_audio, &bob_audio);
    alice.command("resume", "");
    hear_each_other(&alice_audio, &bob_audio);
    talk(&alice_audio, &bob_audio, Duration::from_secs(1));

    // The extension takes alice's place.
    alice.command("transfer", "sip:600@example.net");
    alice.waits_for("CALL_CLOSED");
    bob.waits_for("CALL_ESTABLISHED");
    let from_ns = unix_ns();
    until("bob hears the extension", || (bob_audio.heard_since(from_ns).len() > PER_SECOND / 2).then_some(()));
    bob.hang_up();

    bob.talks_to("600");
    bob.program.kill();
}
