//! Calls of the PBX to telephones, and among these by way of the PBX.

use std::time::Duration;

use super::{ALICE, BOB, Place, Site, hear_each_other, hear_nothing, talk};
use crate::support::stock_pbx::PROGRAMS;

on_packet!(a_stock_pbx_calls_a_stock_phone_outside, PROGRAMS, called);
on_packet!(a_stock_phone_that_is_called_holds_and_resumes_and_ends_the_call, PROGRAMS, hold);
on_packet!(two_stock_phones_call_each_other_through_a_stock_pbx, PROGRAMS, each_other);
on_each_datapath!(
    two_stock_phones_call_each_other_through_a_stock_pbx_when_all_is_udp,
    super::PROGRAMS,
    super::over_udp
);
on_packet!(a_stock_phone_hands_a_call_over_to_another_one, PROGRAMS, handed_over);

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
    call(&site, &Place { transport: "tcp", ..BOB });
}

/// What the last proxy says has come by way of all others, and does not fit into a packet.
fn over_udp(datapath: &'static str) {
    let site = Site::start_over_udp(datapath);
    call(&site, &BOB);
    let reassembled = |host| site.lab.host(host).run_in(reassembled).expect("a namespace");
    let whole = ["gate", "stranger", "service", "client"].map(reassembled);
    println!("datagrams made whole by gate, bob, PBX, alice: {whole:?}");
    assert!(whole[0] > 0, "no message was longer than a packet: {whole:?}");
}

/// Packets that the calling thread's host made whole.
fn reassembled() -> u64 {
    let snmp = std::fs::read_to_string("/proc/thread-self/net/snmp").expect("counters");
    let mut lines = snmp.lines().filter_map(|line| line.strip_prefix("Ip: "));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let mut counters = names.split(' ').zip(values.split(' '));
    let (_, value) = counters.find(|(name, _)| *name == "ReasmOKs").expect("a counter");
    value.parse().expect("a number")
}

/// Alice calls bob, they talk, and bob hangs up.
fn call(site: &Site, bob: &Place) {
    let ((alice, alice_audio), (bob, bob_audio)) = (site.phone(&ALICE), site.phone(bob));
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
