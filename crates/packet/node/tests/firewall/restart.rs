//! State that survives a restart of the gate.

use std::time::Duration;

use crate::site::{packets::*, *};
use sluicegate_grant::{
    mac::{Ends, Purpose, SessionKeys},
    relay::RelayKeys,
};
use sluicegate_nat::{ImportError, Imported};
use sluicegate_node::Firewall;
use sluicegate_pinhole::{Relay, StandingSpec};
use sluicegate_wire::{
    Reason, Verdict,
    tcp::{Control, Repr, WindowScale},
};

fn export(gate: &Firewall) -> Vec<u8> {
    let mut bytes = Vec::new();
    sluicegate_nat::Export::whole(&gate.translator, &mut |part| bytes.extend_from_slice(part));
    bytes
}

/// A new gate after `down`, with what the old one wrote. Its monotonic clock and seeds are others.
fn restarted(old: &Site, bytes: &[u8], down: Duration) -> (Site, Imported) {
    let mut site = Site::new();
    site.gate = firewall(config(), [200; 16], 99);
    site.gate.translator.set_services(&services()).unwrap();
    site.now = sluicegate_wire::Instant::from_secs(3);
    site.unix = old.unix.plus_secs(down.as_secs());
    let imported = sluicegate_nat::import(&mut site.gate.translator, site.now, site.unix, bytes).unwrap();
    (site, imported)
}

#[test]
fn granted_udp_flows_go_on_at_the_same_ports_with_the_budget_that_was_left() {
    let mut site = Site::new();
    let (grant, gate) = site.open(UDP, 5_004);
    exchange(&mut site, (CLIENT, 9_000), gate, (TARGET, 5_004));
    let (mut again, imported) = restarted(&site, &export(&site.gate), Duration::from_secs(10));
    assert_eq!(imported, Imported { pinholes: 1, flows: 1, skipped: 0 });
    let usage = again.gate.translator.usage(grant.id).unwrap();
    assert_eq!((usage.bytes_used, usage.bytes_left, usage.flows), (32, 1_000_000 - 32, 1));
    again.inside_sends(&udp((TARGET, 5_004), (CLIENT, 9_000), b"x")).outside();
    exchange(&mut again, (CLIENT, 9_000), gate, (TARGET, 5_004));
    assert_eq!(again.install(grant, TARGET, (5_004, 5_004)).ports.0, gate.1, "a snapshot from a frontend adds nothing");
    again.wait(Duration::from_secs(3_600));
    assert_eq!(again.outside_sends(&udp((CLIENT, 9_000), gate, b"x")).dropped(), Reason::GrantExpired);
}

#[test]
fn a_spent_budget_stays_spent() {
    let mut site = Site::new();
    let mut grant = site.grant(UDP, CLIENT);
    grant.bytes = 100;
    let opened = site.install(grant, TARGET, (53, 53));
    let packet = udp((CLIENT, 1), (opened.address, opened.ports.0), &payload(60));
    site.outside_sends(&packet).inside();
    assert_eq!(site.outside_sends(&packet).dropped(), Reason::BudgetSpent);
    let (mut again, _) = restarted(&site, &export(&site.gate), Duration::ZERO);
    assert_eq!(again.outside_sends(&packet).dropped(), Reason::BudgetSpent);
}

#[test]
fn expired_grants_and_those_of_services_that_are_gone_are_left_out() {
    let mut site = Site::new();
    let mut short = site.grant(UDP, CLIENT);
    short.not_after = site.unix.plus_secs(30);
    let opened = site.install(short, TARGET, (53, 53));
    site.open(UDP, 54);
    let grant = site.grant(UDP, OTHER_CLIENT);
    site.install(grant, FILTERED, (80, 80));
    exchange(&mut site, (CLIENT, 1), (opened.address, opened.ports.0), (TARGET, 53));
    let bytes = export(&site.gate);
    let (again, imported) = restarted(&site, &bytes, Duration::from_secs(31));
    assert_eq!(imported, Imported { pinholes: 2, flows: 0, skipped: 2 });
    assert_eq!(again.used("pinholes"), 3);

    let mut fewer = firewall(config(), [1; 16], 1);
    fewer.translator.set_services(&services()[..1]).unwrap();
    let imported = sluicegate_nat::import(&mut fewer.translator, again.now, site.unix, &bytes).unwrap();
    assert_eq!((imported.pinholes, imported.flows), (2, 1));
}

#[test]
fn standing_pinholes_and_bindings_keep_their_ports() {
    let mut site = Site::new();
    let keys = RelayKeys::derive(&SessionKeys::from_bytes([[3; 16], [4; 16]]), 1);
    let standing = StandingSpec {
        service: TARGET_ID,
        target: TARGET,
        target_port: 5_060,
        peers: vec![OTHER_CLIENT],
        rate_bytes_per_s: 50_000,
        relays: vec![Relay { peers: vec![OTHER_CLIENT], keys: keys.clone(), shards: 1 }],
    };
    let opened = site.gate.translator.install_standing(site.now, standing.clone()).unwrap();
    let gate = (opened.address, opened.ports.0);
    let registration = ends(&site.inside_sends(&udp((TARGET, 5_060), (OTHER_CLIENT, 5_060), b"x")).outside()).0;
    assert_eq!(registration, gate);
    let lookup = ends(&site.inside_sends(&udp((TALKER, 5_555), (STRANGER, 53), b"x")).outside()).0;
    let (mut again, imported) = restarted(&site, &export(&site.gate), Duration::from_secs(5));
    assert_eq!(imported, Imported { pinholes: 1, flows: 2, skipped: 0 });
    let from = (OTHER_CLIENT, 5_060);
    let covered = Ends { client: from, gate_port: gate.1 };
    let trailer = keys.keys().to_service.trailer(keys.sender(0), Purpose::Datagram, 1, &covered, b"ping");
    let sealed = udp(from, gate, &[&b"ping"[..], &trailer].concat());
    // No key is on any disk.
    assert_eq!(again.outside_sends(&sealed).dropped(), Reason::ModeTooWeak);
    assert_eq!(again.gate.translator.install_standing(again.now, standing).unwrap(), opened);
    assert_eq!(ends(&again.outside_sends(&sealed).inside()).1, (TARGET, 5_060));
    let back = again.outside_sends(&udp((STRANGER, 53), lookup, b"x")).inside();
    assert_eq!(ends(&back).1, (TALKER, 5_555));
    assert_eq!(again.used("bindings"), 1);
}

const C: End = (CLIENT, 40_000);
const S: End = (TARGET, 22);

fn part(seq: u32, ack: u32, data: &[u8]) -> Repr<'_> {
    Repr { ack: Some(ack), payload: data, ..Repr::new(0, 0, Control::None, seq) }
}

/// An established connection whose next bytes are 1,001 (client) and 5,001 (server), window scale 7 on both sides.
fn connected() -> (Site, End) {
    let mut site = Site::new();
    let (_, gate) = site.open(TCP, 22);
    let syn = Repr { window_scale: Some(WindowScale::new(7)), ..Repr::new(0, 0, Control::Syn, 1_000) };
    site.outside_sends(&tcp(C, gate, syn)).inside();
    site.inside_sends(&tcp(S, C, Repr { seq: 5_000, ack: Some(1_001), ..syn })).outside();
    site.outside_sends(&tcp(C, gate, part(1_001, 5_001, b""))).inside();
    site.inside_sends(&tcp(S, C, part(5_001, 1_001, b""))).outside();
    (site, gate)
}

#[test]
fn a_tcp_connection_goes_on_whoever_speaks_first() {
    let (old, gate) = connected();
    let bytes = export(&old.gate);
    // Meanwhile the server sent 300,000 and the client 200,000 bytes more, before the gate died.
    let (client, server) = (201_001, 305_001);
    let (mut site, imported) = restarted(&old, &bytes, Duration::from_secs(2));
    assert_eq!(imported, Imported { pinholes: 1, flows: 1, skipped: 0 });
    site.outside_sends(&tcp(C, gate, part(client, server, b"x"))).inside();
    site.inside_sends(&tcp(S, C, part(server, client + 1, b"y"))).outside();
    site.outside_sends(&tcp(C, gate, part(client + 1, server + 1, b""))).inside();

    let (mut site, _) = restarted(&old, &bytes, Duration::from_secs(2));
    // The server retransmits what the client has long received.
    site.inside_sends(&tcp(S, C, part(5_001, client, &payload(1_000)))).outside();
    site.outside_sends(&tcp(C, gate, part(client, server, b""))).inside();
    site.inside_sends(&tcp(S, C, part(server, client, b"new"))).outside();
    site.outside_sends(&tcp(C, gate, part(client, server + 3, b""))).inside();
}

#[test]
fn a_restored_connection_admits_few_numbers_until_the_service_speaks_and_then_only_its_window() {
    let (old, gate) = connected();
    let (mut site, _) = restarted(&old, &export(&old.gate), Duration::from_secs(2));
    let mut refused = |seq: u32, ack: u32| {
        let verdict = site.outside_sends(&tcp(C, gate, part(seq, ack, b"forged"))).verdict;
        assert_eq!(verdict, Verdict::Drop(Reason::TcpWindow), "{seq} {ack}");
    };
    refused(1_001 + (4 << 20), 5_001);
    refused(1_001u32.wrapping_sub((1 << 20) + 1), 5_001);
    refused(1_001, 5_001 + (4 << 20) + 1);
    refused(1_001, 5_001u32.wrapping_sub((1 << 20) + 1));
    let syn = tcp(C, gate, Repr::new(0, 0, Control::Syn, 1_001));
    // The service challenges that itself; here it changes nothing.
    site.outside_sends(&syn).inside();
    site.inside_sends(&tcp(S, C, part(5_001, 1_001, b"hello"))).outside();
    let beyond = 1_001 + (65_535 << 7);
    assert_eq!(site.outside_sends(&tcp(C, gate, part(beyond, 5_006, b"x"))).dropped(), Reason::TcpWindow);
    site.outside_sends(&tcp(C, gate, part(1_001, 5_006, b"x"))).inside();
    let never_sent = part(1_002, 5_007, b"");
    assert_eq!(site.outside_sends(&tcp(C, gate, never_sent)).dropped(), Reason::TcpWindow);
}

#[test]
fn connections_that_were_opening_start_again() {
    let mut site = Site::new();
    let (_, gate) = site.open(TCP, 22);
    let syn = tcp(C, gate, Repr::new(0, 0, Control::Syn, 1_000));
    site.outside_sends(&syn).inside();
    let (mut again, imported) = restarted(&site, &export(&site.gate), Duration::from_secs(2));
    assert_eq!((imported.flows, imported.skipped), (0, 1));
    again.outside_sends(&syn).inside();
}

#[test]
fn idle_times_go_on_after_the_restart() {
    let mut site = Site::new();
    let (_, gate) = site.open(UDP, 53);
    exchange(&mut site, (CLIENT, 1), gate, (TARGET, 53));
    site.wait(Duration::from_secs(290));
    let (mut again, _) = restarted(&site, &export(&site.gate), Duration::from_secs(1));
    assert_eq!(again.used("flows"), 1);
    again.wait(Duration::from_secs(11));
    assert_eq!(again.used("flows"), 0);
}

#[test]
fn damaged_foreign_and_future_state_is_refused_as_a_whole() {
    let mut site = Site::new();
    let (_, gate) = site.open(UDP, 53);
    exchange(&mut site, (CLIENT, 1), gate, (TARGET, 53));
    let bytes = export(&site.gate);
    let mut fresh = Site::new();
    let mut import = |bytes: &[u8]| sluicegate_nat::import(&mut fresh.gate.translator, site.now, site.unix, bytes);
    assert_eq!(import(b""), Err(ImportError::Magic));
    assert_eq!(import(b"something else entirely"), Err(ImportError::Magic));
    for len in 8..bytes.len() {
        assert!(import(&bytes[..len]).is_err(), "cut at {len}");
    }
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x40;
        assert!(import(&damaged).is_err(), "damaged at {at}");
    }
    let mut future = bytes.clone();
    future[8] = 5;
    assert_eq!(import(&future), Err(ImportError::Version(5)));
    assert_eq!((fresh.used("pinholes"), fresh.used("flows")), (1, 0), "nothing was changed");
    assert_eq!(sluicegate_nat::import(&mut fresh.gate.translator, site.now, site.unix, &bytes).unwrap().flows, 1);
}

#[test]
fn an_export_in_parts_is_the_same_as_one_at_once() {
    let mut site = Site::new();
    for client_port in 1..60 {
        let (_, gate) = site.open(UDP, client_port);
        exchange(&mut site, (CLIENT, client_port), gate, (TARGET, client_port));
    }
    let grant = site.grant(UDP, CLIENT_V6);
    site.install(grant, FILTERED_V6, (53, 53));
    site.outside_sends(&udp((CLIENT_V6, 7), (FILTERED_V6, 53), b"x")).inside();
    let mut parts = Vec::new();
    let mut sink = |part: &[u8]| parts.extend_from_slice(part);
    let mut under_way = sluicegate_nat::Export::begin(&site.gate.translator, &mut sink);
    let mut rounds = 1;
    while !under_way.more(&site.gate.translator, &mut 100, &mut sink) {
        rounds += 1;
    }
    assert!(rounds > 10, "{rounds}");
    assert_eq!(parts, export(&site.gate));
    assert_eq!(restarted(&site, &parts, Duration::ZERO).1.flows, 60);
}

#[test]
fn nothing_exported_is_nothing_imported() {
    let site = Site::new();
    let (again, imported) = restarted(&site, &export(&site.gate), Duration::ZERO);
    assert_eq!(imported, Imported::default());
    assert_eq!(again.used("pinholes"), 1, "the talker's own");
}
