//! Nobody uses up another's share, and no turn of the packet thread is long.
//!
//! Each finding in short, on the translator itself; `crates/packet/node/tests/firewall` (`shares`, `memory`, `work`) and the gate's own
//! tests of its turns hold the whole of it.

use super::nat::site::{packets::*, *};
use sluicegate_grant::{
    FLAG_PROVES_ADDRESS, Grant,
    mac::{Ends, Purpose, SessionKeys},
};
use sluicegate_nat::Config;
use sluicegate_pinhole::{InstallError, PerUser, PinholeSpec};
use sluicegate_wire::{
    Instant, Port, Reason, Verdict,
    tcp::{Control, Repr},
};
use std::time::Duration;

const ALICE: [u8; 8] = *b"alice---";
const BOB: [u8; 8] = *b"bob-----";
/// 10 Mbit/s, in a grant and in bytes a second.
const RATE: (u16, usize) = (100, 1_250_000);
const SERVICE: u16 = 5_004;

fn open(site: &mut Site, user: [u8; 8]) -> (Grant, End) {
    let grant = Grant { user_pseudonym: user, rate_100kbps: RATE.0, bytes: 1 << 40, ..site.grant(UDP, CLIENT) };
    let opened = site.install(grant.clone(), TARGET, (SERVICE, SERVICE));
    (grant, (opened.address, opened.ports.0))
}

/// Sends a packet of `len` bytes; how many of them passed.
fn send(site: &mut Site, gate: End, port: u16, len: usize) -> usize {
    let packet = udp((CLIENT, port), gate, &payload(len - 28));
    if site.outside_sends(&packet).verdict == Verdict::Forward(Port::INSIDE) { len } else { 0 }
}

#[test]
fn security_15_a_user_with_many_grants_sends_no_faster_than_with_one() {
    let mut site = Site::new();
    let gates: Vec<End> = (0..16).map(|_| open(&mut site, ALICE).1).collect();
    let (_, bob) = open(&mut site, BOB);
    let (mut alices, mut bobs) = (0, 0);
    for _ in 0..500 {
        site.now = site.now + Duration::from_millis(1);
        alices += gates.iter().map(|gate| send(&mut site, *gate, 4_000, 1_250)).sum::<usize>();
        bobs += send(&mut site, bob, 4_000, 1_250);
    }
    assert!(alices <= RATE.1 / 2 + RATE.1 / 4 + 1_250, "{alices}");
    assert_eq!(bobs, RATE.1 / 2, "and nobody else notices");
}

#[test]
fn security_15_a_fresh_grant_brings_no_fresh_burst() {
    let mut site = Site::new();
    let mut passed = 0;
    for _ in 0..20 {
        let (grant, gate) = open(&mut site, ALICE);
        passed += (0..300).map(|_| send(&mut site, gate, 4_000, 1_250)).sum::<usize>();
        site.gate.translator.revoke(site.now, grant.id);
    }
    assert!(passed <= RATE.1 / 4, "{passed}");
}

#[test]
fn security_15_one_user_takes_neither_all_ports_nor_all_flows() {
    let per_user = PerUser { flows_max: 100, ports_max: 300, ..PerUser::default() };
    let mut site = Site::with(Config { per_user, ..config() });
    let call = |site: &mut Site, user| {
        let grant = Grant { user_pseudonym: user, ..site.grant(UDP, CLIENT) };
        site.gate.translator.install(site.now, site.unix, spec(grant, TARGET, (10_000, 10_199)))
    };
    assert!(call(&mut site, ALICE).is_ok());
    assert_eq!(call(&mut site, ALICE), Err(InstallError::UserPorts(300)));
    assert!(call(&mut site, BOB).is_ok(), "bob calls all the same");
    for n in 0..10u16 {
        let (_, gate) = open(&mut site, *b"carol---");
        for port in 0..50 {
            let _ = send(&mut site, gate, 1_000 + 50 * n + port, 100);
        }
    }
    assert!(site.used("flows") <= 100, "{}", site.used("flows"));
    let (_, bob) = open(&mut site, BOB);
    assert_ne!(send(&mut site, bob, 9, 100), 0);
}

/// Opens a pinhole of an agent, for which its address is proved, or of a phone that named its ports.
fn open_to(site: &mut Site, is_agent: bool) -> End {
    let grant = site.grant(TCP, CLIENT);
    if !is_agent {
        let grant = Grant { client_ports: (4_000, 4_001), ..grant };
        let opened = site.install(grant, TARGET, (SERVICE, SERVICE));
        return (opened.address, opened.ports.0);
    }
    let keys = SessionKeys::from_bytes([[7; 16]; 2]);
    let grant = Grant { flags: FLAG_PROVES_ADDRESS, client_id: 7, ..grant };
    let spec = PinholeSpec { keys: Some(keys.clone()), ..spec(grant, TARGET, (SERVICE, SERVICE)) };
    let opened = site.gate.translator.install(site.now, site.unix, spec).unwrap();
    let gate = (opened.address, opened.ports.0);
    let ends = Ends { client: (CLIENT, 4_000), gate_port: gate.1 };
    let proof = keys.to_service.trailer(7, Purpose::Proof, 1, &ends, b"");
    assert_eq!(site.outside_sends(&udp((CLIENT, 4_000), gate, &proof)).verdict, Verdict::Reply);
    gate
}

#[test]
fn security_15_one_request_for_many_ports_takes_no_more_than_one_users_share() {
    let service =
        "name = 'pbx'\naddress = '10.4.0.2'\nports = ['udp/10000-10199']\nallow = ['user:alice']\nmode = 'nat'\n";
    let per_user = sluicegate_policy::PerUser { grants_max: 16, ports_max: 300, ..Default::default() };
    let draft = sluicegate_policy::Draft {
        users: vec![sluicegate_policy::User::new("alice")],
        services: vec![toml::from_str(service).expect("a service")],
        per_user,
        ..Default::default()
    };
    let (policy, _) = sluicegate_policy::Policy::build(draft, Default::default()).expect("a policy");
    let admitted = |wanted: &[&str], grants, ports| {
        let wanted: Vec<_> = wanted.iter().map(|text| text.parse().expect("a range")).collect();
        let request = sluicegate_policy::Request {
            user: "alice",
            service: "pbx",
            client: CLIENT,
            wanted: &wanted,
            proves: sluicegate_grant::DataMode::Mac,
            now: sluicegate_wire::UnixTime(1_800_000_000),
            held: sluicegate_policy::Share { grants, ports, ..Default::default() },
        };
        matches!(sluicegate_policy::decide(&policy, &request).outcome, sluicegate_policy::Outcome::Allow(_))
    };
    assert!(admitted(&["udp/10000-10199"], 0, 0) && !admitted(&["udp/10000-10199"], 1, 200));
    assert!(admitted(&["udp/10000"; 16], 0, 0) && !admitted(&["udp/10000"; 17], 0, 0));
    assert!(!admitted(&["udp/10000"; 2], 15, 15) && admitted(&["udp/10000"], 15, 15));
}

/// A rule that closed what somebody searches for would let the searcher say who is shut out.
#[test]
fn security_14_tries_at_closed_ports_under_a_clients_address_shut_nobody_out() {
    for is_agent in [false, true] {
        let mut site = Site::with(Config { external_ports: (20_000, 32_767), ..config() });
        let gate = open_to(&mut site, is_agent);
        let syn = |port| tcp((CLIENT, port), gate, Repr::new(0, 0, Control::Syn, 1));
        site.outside_sends(&syn(4_000)).inside();
        for port in (20_000..30_000).filter(|port| *port != gate.1) {
            let closed = (gate.0, port);
            let forged = if port % 2 == 0 {
                udp((CLIENT, port), closed, b"?")
            } else {
                tcp((CLIENT, 4_000), closed, Repr::new(0, 0, Control::Syn, 1))
            };
            assert_eq!(site.outside_sends(&forged).dropped(), Reason::NoPinhole);
        }
        site.outside_sends(&syn(4_001)).inside();
    }
}

#[test]
fn security_14_a_search_from_other_ports_than_a_phone_named_finds_nothing() {
    let mut site = Site::new();
    let grant = Grant { client_ports: (4_000, 4_001), ..site.grant(UDP, CLIENT) };
    let opened = site.install(grant, TARGET, (SERVICE, SERVICE));
    for port in 20_000..=20_999 {
        let packet = udp((CLIENT, 60_000), (opened.address, port), b"?");
        assert_eq!(site.outside_sends(&packet).dropped(), Reason::NoPinhole);
    }
    exchange(&mut site, (CLIENT, 4_000), (opened.address, opened.ports.0), (TARGET, SERVICE));
}

#[test]
fn security_14_a_forger_at_another_source_port_does_not_take_the_clients_rate() {
    let mut site = Site::new();
    let (_, gate) = open(&mut site, ALICE);
    let (mut honest, mut offered) = (0, 0);
    for step in 0..1_000 {
        site.now = site.now + Duration::from_millis(1);
        for port in 50_000..50_010 {
            let _ = send(&mut site, gate, port, 1_000);
        }
        if step % 20 == 0 {
            offered += 1_000;
            honest += send(&mut site, gate, 4_000, 1_000);
        }
    }
    assert!(honest * 100 >= offered * 98, "{honest} of {offered}");
}

#[test]
fn nat_05_an_export_is_spread_over_turns() {
    let mut site = Site::new();
    for port in 1..200 {
        let (_, gate) = site.open(UDP, port);
        exchange(&mut site, (CLIENT, port), gate, (TARGET, port));
    }
    let mut bytes = Vec::new();
    let mut export = sluicegate_nat::Export::begin(&site.gate.translator, &mut |part| bytes.extend_from_slice(part));
    let mut turns = 1;
    while !export.more(&site.gate.translator, &mut 500, &mut |part| bytes.extend_from_slice(part)) {
        turns += 1;
        let port = site_port(&site);
        exchange(&mut site, (CLIENT, 1), (GATE.into(), port), (TARGET, 1));
    }
    assert!(turns > 2, "{turns}");
    let mut again = firewall(config(), [5; 16], 5);
    again.translator.set_services(&services()).unwrap();
    let imported = sluicegate_nat::import(&mut again.translator, Instant::from_secs(2_000), site.unix, &bytes).unwrap();
    assert_eq!((imported.pinholes, imported.flows), (199, 199));
}

/// The external port of the first pinhole.
fn site_port(site: &Site) -> u16 {
    let mut pinholes = site.gate.translator.pinholes().table.iter();
    pinholes.find(|(_, pinhole)| pinhole.target_ports == (1, 1)).unwrap().1.gate.ports.0
}

#[test]
fn nat_06_ports_rest_for_two_minutes_whatever_was_due_before() {
    let mut site = Site::new();
    let grants = [5_004, 5_005].map(|port| site.open(UDP, port).0);
    let pass = |site: &mut Site, secs| (0..secs).for_each(|_| site.wait(Duration::from_secs(1)));
    pass(&mut site, 95);
    for grant in &grants {
        site.gate.translator.revoke(site.now, grant.id).unwrap();
    }
    pass(&mut site, 119);
    assert_eq!(site.used("external_ports_udp"), 2);
    pass(&mut site, 2);
    assert_eq!(site.used("external_ports_udp"), 0);
}

#[test]
fn nat_07_a_revoked_grant_stays_revoked_under_pressure_and_over_a_restart() {
    let mut site = Site::with(Config { pinholes_max: 20, ..config() });
    let (grant, _) = site.open(UDP, SERVICE);
    site.gate.translator.revoke(site.now, grant.id).unwrap();
    for _ in 0..40 {
        let other = site.grant(UDP, OTHER_CLIENT);
        let _ = site.gate.translator.install(site.now, site.unix, spec(other, TARGET, (53, 53)));
    }
    let mut saved = Vec::new();
    sluicegate_nat::Export::whole(&site.gate.translator, &mut |bytes| saved.extend_from_slice(bytes));
    site.gate = firewall(config(), [8; 16], 2);
    site.gate.translator.set_services(&services()).unwrap();
    sluicegate_nat::import(&mut site.gate.translator, site.now, site.unix, &saved).unwrap();
    let again = site.gate.translator.install(site.now, site.unix, spec(grant.clone(), TARGET, (SERVICE, SERVICE)));
    assert_eq!(again, Err(InstallError::Revoked(grant.id)));
}

#[test]
fn nat_10_a_search_for_a_port_is_short_however_few_are_left() {
    let mut site = Site::with(Config { external_ports: (20_000, 32_767), pinholes_max: 8_192, ..config() });
    let mut worst = 0;
    for n in 0..20_000u32 {
        site.gate.translator.take_looks();
        let _ = site.inside_sends(&udp((TALKER, 1 + n as u16), (STRANGER, 1), b"x"));
        worst = worst.max(site.gate.translator.take_looks());
    }
    assert!(worst <= 32, "{worst}");
}

#[test]
fn turn_no_call_looks_at_more_than_half_of_what_a_turn_may() {
    let mut site = Site::new();
    for n in 0..200 {
        let lifetime = Duration::from_secs(10).as_secs();
        let grant = Grant { not_after: site.unix.plus_secs(lifetime), ..site.grant(UDP, CLIENT) };
        let opened = site.install(grant, TARGET, (1_000 + n, 1_000 + n));
        for port in 1..=20 {
            let _ = site.outside_sends(&udp((CLIENT, port), (opened.address, opened.ports.0), b"x"));
        }
    }
    site.now = site.now + Duration::from_secs(11);
    site.gate.translator.take_looks();
    let mut calls = 0;
    while site.gate.poll_timeout().is_some_and(|due| due <= site.now) {
        site.gate.handle_timeout(site.now);
        assert!(site.gate.translator.take_looks() <= 1_000);
        calls += 1;
    }
    assert!(calls > 5 && site.used("flows") == 0, "{calls}");
}
