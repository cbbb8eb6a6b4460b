//! No call makes packets wait: what each looks at is bounded, whatever the tables hold.

use std::{net::IpAddr, time::Duration};

use crate::site::{packets::*, *};
use sluicegate_grant::{Grant, GrantId};
use sluicegate_nat::Config;
use sluicegate_pinhole::{FLOWS_PER_GRANT_MAX, PerUser, Service, ServiceMode, StandingSpec};
use sluicegate_wire::{Instant, Reason};

/// What one call may look at of lines, words of ports, and pinholes.
const LOOKS_MAX: u32 = 1_000;

fn client(n: u32) -> IpAddr {
    IpAddr::from((0xc633_6400 + n).to_be_bytes())
}

/// What `call` looked at.
#[track_caller]
fn looks(site: &mut Site, call: impl FnOnce(&mut Site)) -> u32 {
    site.gate.translator.take_looks();
    call(site);
    let looks = site.gate.translator.take_looks();
    assert!(looks <= LOOKS_MAX, "{looks}");
    looks
}

/// Does what is due, and says in how many calls.
fn drain(site: &mut Site) -> u32 {
    let mut calls = 0;
    while site.gate.poll_timeout().is_some_and(|due| due <= site.now) {
        looks(site, |site| site.gate.handle_timeout(site.now));
        calls += 1;
    }
    calls
}

fn full(grants: u32, flows: u16, lifetime_s: u64) -> Site {
    let config = Config { flows_max: 100_000, pinholes_max: 8_192, external_ports: (20_000, 32_767), ..config() };
    let mut site = Site::with(Config { flows_per_grant: flows, ..config });
    for n in 0..grants {
        let grant = Grant { not_after: site.unix.plus_secs(lifetime_s), ..site.grant(UDP, client(n)) };
        let opened = site.install(grant, TARGET, (53, 53));
        for port in 1..=flows {
            let _ = site.outside_sends(&udp((client(n), port), (opened.address, opened.ports.0), b"x")).inside();
        }
    }
    site
}

#[test]
fn a_thousand_full_grants_that_end_together_end_in_many_short_turns() {
    let mut site = full(1_000, 64, 10);
    site.now = site.now + Duration::from_secs(11);
    // The first packet of a turn ends what it may; the others of its batch nothing.
    let stranger = udp((STRANGER, 1), (GATE.into(), 20_000), b"x");
    let first = looks(&mut site, |site| drop(site.outside_sends(&stranger)));
    let next = looks(&mut site, |site| (0..64).for_each(|_| drop(site.outside_sends(&stranger))));
    assert!(first > 0 && first <= 110 && next == 0, "{first} {next}");
    let calls = drain(&mut site);
    assert_eq!((site.used("flows"), site.used("pinholes")), (0, 1));
    assert!(calls > 100, "{calls}");
}

#[test]
fn a_revoke_looks_at_the_lines_of_its_grant_only() {
    let mut site = full(50, FLOWS_PER_GRANT_MAX, 3_600);
    let id = GrantId::of_call([9; 12], 7);
    let looked = looks(&mut site, |site| assert!(site.gate.translator.revoke(site.now, id).is_some()));
    assert!(looked >= 2 * u32::from(FLOWS_PER_GRANT_MAX), "{looked}");
}

#[test]
fn a_packet_that_the_budget_does_not_cover_looks_at_a_few_lines() {
    let mut site = Site::new();
    let grant = Grant { bytes: 40_000, flows: FLOWS_PER_GRANT_MAX, ..site.grant(UDP, CLIENT) };
    let opened = site.install(grant, TARGET, (53, 53));
    let gate = (opened.address, opened.ports.0);
    let mut refused = 0;
    for n in 0..1_000u16 {
        let packet = udp((CLIENT, 1 + n % 400), gate, &payload(72));
        let mut verdict = None;
        site.gate.translator.take_looks();
        verdict.replace(site.outside_sends(&packet).verdict);
        let looked = site.gate.translator.take_looks();
        assert!(looked <= 16, "{looked}");
        refused += u32::from(verdict == Some(sluicegate_wire::Verdict::Drop(Reason::BudgetSpent)));
    }
    assert_eq!(refused, 600);
}

#[test]
fn a_service_that_is_gone_takes_its_flows_with_it_turn_by_turn() {
    let mut site = Site::with(Config { flows_max: 8_192, ..config() });
    for remote in 0..4_000u32 {
        let _ =
            site.inside_sends(&udp((TALKER, 1), (client(remote / 1_000), 1 + (remote % 1_000) as u16), b"x")).outside();
    }
    assert_eq!(site.used("flows"), 4_000);
    let fewer: Vec<Service> = services().into_iter().filter(|service| service.id != TALKER_ID).collect();
    looks(&mut site, |site| site.gate.translator.set_services(&fewer).unwrap());
    let reason = site.inside_sends(&udp((TALKER, 2), (CLIENT, 9), b"x")).dropped();
    assert_eq!(reason, Reason::AddressInvalid, "nothing new from the first moment on");
    looks(&mut site, |site| site.gate.translator.set_services(&services()).unwrap());
    drain(&mut site);
    assert_eq!((site.used("flows"), site.used("bindings")), (0, 0));
    site.inside_sends(&udp((TALKER, 2), (CLIENT, 9), b"x")).outside();
}

#[test]
fn a_thousand_services_are_taken_withdrawn_and_asked_for_in_short_turns() {
    let address = |n: u16| IpAddr::from([10, 1, (n >> 8) as u8, n as u8]);
    let service = |n: u16| Service {
        id: n,
        mode: ServiceMode::Nat,
        address: address(n),
        outbound_all: n.is_multiple_of(2),
        open: false,
    };
    let mut site = Site::with(Config { services_max: 1_024, pinholes_max: 8_192, ..config() });
    let all: Vec<Service> = (0..990).map(service).collect();
    site.gate.translator.take_looks();
    site.gate.translator.set_services(&all).unwrap();
    assert!(site.gate.translator.take_looks() <= LOOKS_MAX);
    for n in 0..900 {
        let peers = vec![STRANGER];
        let spec = StandingSpec {
            service: n,
            target: address(n),
            target_port: 5_060,
            peers,
            relays: Vec::new(),
            rate_bytes_per_s: 1_000,
        };
        looks(&mut site, |site| assert!(site.gate.translator.install_standing(site.now, spec).is_ok()));
    }
    site.gate.translator.take_looks();
    site.gate.translator.set_services(&[]).unwrap();
    drain(&mut site);
    assert_eq!((site.used("pinholes"), site.used("external_ports_udp")), (0, 0));
}

#[test]
fn ports_are_found_or_refused_by_reading_few_words_of_them() {
    let ports = PerUser { ports_max: 100_000, ..PerUser::default() };
    let config = Config { external_ports: (1_024, 65_535), pinholes_max: 40_000, per_user: ports, ..config() };
    let mut site = Site::with(config);
    // So many ports are taken that no long block is free, and thousands rest.
    for n in 0..10_000u32 {
        let grant = site.grant(UDP, client(n));
        let id = grant.id;
        looks(&mut site, |site| assert_ne!(site.install(grant, TARGET, (53, 53)).ports.0, 0));
        if n % 3 == 0 {
            looks(&mut site, |site| assert!(site.gate.translator.revoke(site.now, id).is_some()));
        }
    }
    for _ in 0..300 {
        let grant = site.grant(UDP, CLIENT);
        let spec = spec(grant, TARGET, (1_000, 1_255));
        looks(&mut site, |site| {
            let _ = site.gate.translator.install(site.now, site.unix, spec);
        });
    }
    let mut worst = 0;
    for n in 0..64_000u32 {
        let (port, remote) = (1 + (n % 60_000) as u16, client(n / 60_000));
        let packet = udp((TALKER, port), (remote, 1), b"x");
        site.gate.translator.take_looks();
        let _ = site.inside_sends(&packet);
        worst = worst.max(site.gate.translator.take_looks());
    }
    assert!(worst <= 40, "{worst}");
}

#[test]
fn an_export_goes_on_between_packets_and_loses_nothing_that_stays() {
    let mut site = full(200, 20, 3_600);
    let mut bytes = Vec::new();
    let mut under_way = sluicegate_nat::Export::begin(&site.gate.translator, &mut |part| bytes.extend_from_slice(part));
    let mut turns = 0;
    loop {
        let mut looks = 500;
        let done = under_way.more(&site.gate.translator, &mut looks, &mut |part| bytes.extend_from_slice(part));
        turns += 1;
        // Meanwhile grants come and go, in the places of others too.
        let grant = site.grant(UDP, client(900 + turns));
        site.install(grant.clone(), TARGET, (53, 53));
        site.gate.translator.revoke(site.now, if turns % 2 == 0 { grant.id } else { GrantId::of_call([9; 12], turns) });
        if done {
            break;
        }
    }
    assert!(turns > 20, "{turns}");
    let mut again = firewall(
        Config { flows_max: 100_000, pinholes_max: 8_192, external_ports: (20_000, 32_767), ..config() },
        [3; 16],
        3,
    );
    again.translator.set_services(&services()).unwrap();
    let imported = sluicegate_nat::import(&mut again.translator, Instant::from_secs(5_000), site.unix, &bytes).unwrap();
    let lost = turns.div_ceil(2);
    assert!(imported.pinholes >= 200 - lost, "{imported:?} {turns}");
    assert!(imported.flows >= (200 - lost) * 20, "{imported:?} {turns}");
}
