//! Every table has a maximum, a gauge and a rule for when it is full.

use std::{net::IpAddr, time::Duration};

use crate::site::{packets::*, *};
use sluicegate_nat::Config;
use sluicegate_pinhole::{InstallError, Service, ServiceMode, ServicesError};
use sluicegate_wire::{Reason, Verdict};

fn client(n: u32) -> IpAddr {
    IpAddr::from((0xc633_6400 + n).to_be_bytes())
}

#[test]
fn a_full_flow_table_refuses_new_flows_and_keeps_the_old() {
    let mut site = Site::with(Config { flows_max: 500, flows_per_grant: 100, ..config() });
    let gates: Vec<End> = (0..8)
        .map(|n| {
            let grant = site.grant(UDP, client(n));
            let opened = site.install(grant, TARGET, (53, 53));
            (opened.address, opened.ports.0)
        })
        .collect();
    let mut refused = 0;
    for (n, gate) in gates.iter().enumerate() {
        for port in 1..=100 {
            match site.outside_sends(&udp((client(n as u32), port), *gate, b"x")).verdict {
                Verdict::Forward(_) => {}
                verdict => {
                    assert_eq!(verdict, Verdict::Drop(Reason::FlowTableFull));
                    refused += 1;
                }
            }
        }
    }
    assert_eq!((site.gauge("flows"), refused), ((500, 500), 300));
    site.outside_sends(&udp((client(0), 1), gates[0], b"x")).inside();
    site.wait(Duration::from_secs(301));
    assert_eq!(site.used("flows"), 0);
    site.outside_sends(&udp((client(7), 100), gates[7], b"x")).inside();
}

#[test]
fn a_full_ipv6_flow_table_refuses_too() {
    let mut site = Site::with(Config { flows_v6_max: 10, ..config() });
    let grant = site.grant(UDP, CLIENT_V6);
    site.install(grant, FILTERED_V6, (53, 53));
    for port in 1..=10 {
        site.outside_sends(&udp((CLIENT_V6, port), (FILTERED_V6, 53), b"x")).inside();
    }
    let reason = site.outside_sends(&udp((CLIENT_V6, 11), (FILTERED_V6, 53), b"x")).dropped();
    assert_eq!((reason, site.gauge("flows_v6")), (Reason::FlowTableFull, (10, 10)));
}

#[test]
fn a_full_pinhole_table_refuses_grants_until_one_ends() {
    let mut site = Site::with(Config { pinholes_max: 50, ..config() });
    // One belongs to the service that may start flows.
    let grants: Vec<_> = (0..49).map(|n| site.grant(UDP, client(n))).collect();
    for grant in &grants {
        site.install(grant.clone(), TARGET, (53, 53));
    }
    assert_eq!(site.gauge("pinholes"), (50, 50));
    let one_more = site.grant(UDP, client(100));
    let full = site.gate.translator.install(site.now, site.unix, spec(one_more.clone(), TARGET, (53, 53)));
    assert_eq!(full, Err(InstallError::Full(50)));
    site.gate.translator.revoke(site.now, grants[0].id).unwrap();
    assert_eq!((site.used("pinholes"), site.used("pinholes_remembered")), (49, 1));
    site.install(one_more, TARGET, (53, 53));
    assert_eq!((site.used("pinholes"), site.used("pinholes_remembered")), (50, 0), "the remembered one gave way");
    assert_eq!(site.used("revoked_grants"), 1, "and is not forgotten");
}

#[test]
fn a_full_pinhole_index_refuses_grants_with_many_ports() {
    let mut site = Site::with(Config { pinholes_max: 4, ..config() });
    // 48 entries; a filter pinhole may take three inbound and two outbound for each 16 of its ports.
    let grant = site.grant(UDP, CLIENT);
    let result = site.gate.translator.install(site.now, site.unix, spec(grant, FILTERED, (1_001, 1_256)));
    assert_eq!(result, Err(InstallError::Full(4)));
    assert_eq!(site.gauge("pinhole_index"), (0, 48));
    let grant = site.grant(UDP, CLIENT);
    site.install(grant.clone(), FILTERED, (1_024, 1_151));
    assert_eq!(site.used("pinhole_index"), 40);
    site.gate.translator.revoke(site.now, grant.id).unwrap();
    site.open(UDP, 53);
    site.wait(Duration::from_secs(3_600));
    site.wait(Duration::from_secs(3_600));
    assert_eq!(site.used("pinhole_index"), 0);
}

#[test]
fn without_free_external_ports_grants_are_refused_and_resting_ports_are_taken_early() {
    let mut site = Site::with(Config { external_ports: (20_000, 20_019), ..config() });
    let first = site.grant(UDP, client(0));
    let opened = site.install(first.clone(), TARGET, (100, 109));
    let second = site.grant(UDP, client(1));
    let result = site.gate.translator.install(site.now, site.unix, spec(second.clone(), TARGET, (100, 115)));
    assert_eq!(result, Err(InstallError::NoExternalPort));
    let tcp = site.grant(TCP, client(1));
    site.install(tcp, TARGET, (100, 115));
    assert_eq!((site.gauge("external_ports_udp"), site.gauge("external_ports_tcp")), ((10, 20), (16, 20)));
    site.gate.translator.revoke(site.now, first.id).unwrap();
    let again = site.install(second, TARGET, (100, 115));
    assert_eq!(again.ports.1 - again.ports.0, 15);
    assert!(again.ports.0 <= opened.ports.1, "took ports of the one that rested");
}

#[test]
fn blocks_are_made_of_ports_that_rest_after_grants_of_fewer_ports() {
    let mut site = Site::with(Config { external_ports: (20_000, 20_999), pinholes_max: 2_000, ..config() });
    let mut open = |first: u32, count: u32, more: u16| {
        let grants: Vec<_> = (first..first + count).map(|n| site.grant(UDP, client(n))).collect();
        for grant in &grants {
            let opened = site.install(grant.clone(), TARGET, (100, 100 + more));
            assert_eq!(opened.ports.1 - opened.ports.0, more);
        }
        for grant in &grants {
            site.gate.translator.revoke(site.now, grant.id).unwrap();
        }
    };
    for _ in 0..10 {
        open(0, 900, 0);
        open(1_000, 100, 3);
        open(2_000, 200, 1);
        open(3_000, 150, 3);
    }
}

#[test]
fn grants_that_ended_without_ports_do_not_hide_the_ports_that_rest() {
    let mut site = Site::with(Config { external_ports: (20_000, 20_009), pinholes_max: 2_000, ..config() });
    for _ in 0..10 {
        for _ in 0..100 {
            let filtered = site.grant(UDP, client(0));
            site.install(filtered.clone(), FILTERED, (100, 100));
            site.gate.translator.revoke(site.now, filtered.id).unwrap();
        }
        for _ in 0..5 {
            let pair = site.grant(UDP, client(0));
            site.install(pair.clone(), TARGET, (100, 101));
            site.gate.translator.revoke(site.now, pair.id).unwrap();
        }
    }
}

#[test]
fn a_port_that_rests_is_the_last_that_another_grant_gets() {
    let mut site = Site::with(Config { external_ports: (20_000, 20_001), ..config() });
    let first = site.grant(UDP, client(0));
    let opened = site.install(first.clone(), TARGET, (100, 100));
    site.gate.translator.revoke(site.now, first.id).unwrap();
    let second = site.grant(UDP, client(1));
    assert_ne!(site.install(second, TARGET, (100, 100)).ports, opened.ports);
}

#[test]
fn services_without_free_ports_start_no_flows() {
    let mut site = Site::with(Config { external_ports: (20_000, 20_009), ..config() });
    for port in 1..=10 {
        site.inside_sends(&udp((TALKER, port), (CLIENT, 1), b"x")).outside();
    }
    assert_eq!(site.inside_sends(&udp((TALKER, 11), (CLIENT, 1), b"x")).dropped(), Reason::NoExternalPort);
    assert_eq!((site.gauge("bindings"), site.gauge("external_ports_udp")), ((10, 50), (10, 10)));
    site.inside_sends(&udp((TALKER, 10), (STRANGER, 1), b"x")).outside();
}

#[test]
fn a_service_starts_no_more_flows_than_it_may() {
    let mut site = Site::with(Config { flows_per_service: 5, ..config() });
    for remote in 1..=5 {
        site.inside_sends(&udp((TALKER, 1), (CLIENT, remote), b"x")).outside();
        let gate = (GATE.into(), ends(&site.inside_sends(&udp((TALKER, 1), (CLIENT, remote), b"x")).outside()).0.1);
        site.outside_sends(&udp((CLIENT, remote), gate, b"x")).inside();
    }
    assert_eq!(site.inside_sends(&udp((TALKER, 1), (CLIENT, 6), b"x")).dropped(), Reason::FlowLimit);
    assert_eq!(site.used("bindings"), 1, "a refused flow leaves no binding behind");
    assert_eq!(site.inside_sends(&udp((TALKER, 2), (CLIENT, 6), b"x")).dropped(), Reason::FlowLimit);
    assert_eq!(site.used("bindings"), 1);
}

#[test]
fn too_many_or_impossible_services_are_refused_and_the_old_list_stays() {
    let mut site = Site::with(Config { services_max: 4, ..config() });
    let service = |id, mode, address: &str| Service {
        id,
        mode,
        address: address.parse().unwrap(),
        outbound_all: false,
        open: false,
    };
    let five: Vec<_> = (0..5).map(|id| service(id, ServiceMode::Nat, &format!("10.0.0.{}", id + 1))).collect();
    assert_eq!(site.gate.translator.set_services(&five), Err(ServicesError::TooMany(4)));
    let address = |text: &str| text.parse::<IpAddr>().unwrap();
    let refuse = |site: &mut Site, services: &[Service]| site.gate.translator.set_services(services).unwrap_err();
    let both = [service(1, ServiceMode::Nat, "10.0.0.1"), service(2, ServiceMode::Filter, "10.0.0.1")];
    assert_eq!(refuse(&mut site, &both), ServicesError::ModeConflict(address("10.0.0.1")));
    let own = [service(1, ServiceMode::Filter, "192.0.2.1")];
    assert_eq!(refuse(&mut site, &own), ServicesError::Address(address("192.0.2.1")));
    let v6 = [service(1, ServiceMode::Nat, "2001:db8::1")];
    assert_eq!(refuse(&mut site, &v6), ServicesError::NatIpv6(address("2001:db8::1")));
    let mut without = firewall(Config::default(), [0; 16], 0);
    assert_eq!(
        without.translator.set_services(&[service(1, ServiceMode::Nat, "10.0.0.1")]),
        Err(ServicesError::NoGateAddress)
    );
    site.open(UDP, 53);
    assert_eq!(site.gauge("services"), (4, 4));
}

#[test]
fn events_that_nobody_fetches_are_counted_as_lost() {
    let mut site = Site::with(Config { pinholes_max: 8, ..config() });
    for round in 0..3 {
        for n in 0..7 {
            let mut grant = site.grant(UDP, client(round * 10 + n));
            grant.not_after = site.unix.plus_secs(10);
            site.install(grant, TARGET, (53, 53));
        }
        site.wait(Duration::from_secs(12));
    }
    assert_eq!(site.gauge("events"), (8, 8));
    assert_eq!(site.gate.translator.pinholes().counters.events_lost, 13);
    assert_eq!(std::iter::from_fn(|| site.gate.translator.poll_event()).count(), 8);
}

#[test]
fn a_mass_expiry_is_spread_over_calls() {
    let mut site = Site::with(Config { pinholes_max: 2_000, external_ports: (20_000, 29_999), ..config() });
    for n in 0..1_000 {
        let mut grant = site.grant(UDP, client(n));
        grant.not_after = site.unix.plus_secs(10);
        site.install(grant, TARGET, (53, 53));
    }
    site.now = site.now + Duration::from_secs(11);
    site.gate.handle_timeout(site.now);
    assert!(site.used("pinholes") > 500, "one call does a bounded part");
    let mut calls = 1;
    while site.gate.poll_timeout().is_some_and(|due| due <= site.now) {
        site.gate.handle_timeout(site.now);
        calls += 1;
    }
    assert_eq!((site.used("pinholes"), calls), (1, 3));
}

#[test]
fn looking_at_many_idle_flows_is_spread_over_calls() {
    let mut site = Site::with(Config { flows_max: 5_000, flows_per_grant: 400, ..config() });
    for target_port in 53..58 {
        let (_, gate) = site.open(UDP, target_port);
        for port in 1..=400 {
            site.outside_sends(&udp((CLIENT, port), gate, b"x")).inside();
        }
    }
    site.now = site.now + Duration::from_secs(301);
    let mut calls = 0;
    while site.gate.poll_timeout().is_some_and(|due| due <= site.now) {
        let before = site.used("flows");
        site.gate.handle_timeout(site.now);
        assert!(before - site.used("flows") <= 150);
        calls += 1;
    }
    assert_eq!((site.used("flows"), calls), (0, 14));
}
