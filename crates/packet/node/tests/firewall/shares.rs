//! Nobody uses up another's share: what one user, one grant and one source port may have of this gate.

use std::{net::IpAddr, time::Duration};

use crate::site::{packets::*, *};
use sluicegate_grant::Grant;
use sluicegate_nat::Config;
use sluicegate_pinhole::{FLOWS_PER_GRANT_MAX, InstallError, PerUser};
use sluicegate_wire::{Reason, Verdict};

const ALICE: [u8; 8] = *b"alice---";
const BOB: [u8; 8] = *b"bob-----";
/// 10 Mbit/s.
const RATE: u16 = 100;
const BYTES_PER_S: usize = 1_250_000;

fn client(n: u32) -> IpAddr {
    IpAddr::from((0xc633_6400 + n).to_be_bytes())
}

fn grant_of(site: &mut Site, user: [u8; 8], rate_100kbps: u16) -> Grant {
    Grant { user_pseudonym: user, rate_100kbps, bytes: 1 << 40, ..site.grant(UDP, CLIENT) }
}

fn open_for(site: &mut Site, user: [u8; 8], rate: u16) -> (Grant, End) {
    let grant = grant_of(site, user, rate);
    let opened = site.install(grant.clone(), TARGET, (5_004, 5_004));
    (grant, (opened.address, opened.ports.0))
}

/// Every sender offers packets of so many bytes at its rate for a while; what each of them got through.
fn offer(site: &mut Site, senders: &[(End, u16, usize, usize)], time: Duration) -> Vec<usize> {
    let (mut sent, mut got) = (vec![0; senders.len()], vec![0; senders.len()]);
    for step in 1..=time.as_millis() as usize {
        site.now = site.now + Duration::from_millis(1);
        site.gate.handle_timeout(site.now);
        for (n, (gate, port, len, per_s)) in senders.iter().enumerate() {
            while sent[n] + len <= per_s * step / 1_000 {
                sent[n] += len;
                let packet = udp((CLIENT, *port), *gate, &payload(len - 28));
                if site.outside_sends(&packet).verdict == Verdict::Forward(sluicegate_wire::Port::INSIDE) {
                    got[n] += len;
                }
            }
        }
    }
    got
}

#[test]
fn many_grants_of_one_user_have_the_rate_of_one() {
    let mut site = Site::new();
    let gates: Vec<End> = (0..8).map(|_| open_for(&mut site, ALICE, RATE).1).collect();
    let senders: Vec<_> = gates.iter().map(|gate| (*gate, 4_000, 1_000, BYTES_PER_S)).collect();
    let got: usize = offer(&mut site, &senders, Duration::from_secs(2)).iter().sum();
    assert!(got <= BYTES_PER_S * 2 + BYTES_PER_S / 4 + 1_000, "{got}");
    assert!(got >= BYTES_PER_S * 2 * 98 / 100, "{got}");
}

#[test]
fn a_fresh_grant_brings_no_fresh_burst() {
    let mut site = Site::new();
    let mut got = 0;
    for _ in 0..40 {
        let (grant, gate) = open_for(&mut site, ALICE, RATE);
        for _ in 0..400 {
            let packet = udp((CLIENT, 4_000), gate, &payload(972));
            got += if site.outside_sends(&packet).verdict == Verdict::Forward(sluicegate_wire::Port::INSIDE) {
                1_000
            } else {
                0
            };
        }
        site.gate.translator.revoke(site.now, grant.id);
        site.now = site.now + Duration::from_millis(10);
    }
    // 0.4 s and one burst.
    assert!(got <= BYTES_PER_S * 4 / 10 + BYTES_PER_S / 4 + 1_000, "{got}");
}

#[test]
fn a_renewal_brings_no_fresh_burst_either() {
    let mut site = Site::new();
    let (mut grant, gate) = open_for(&mut site, ALICE, RATE);
    let mut got = 0;
    for round in 0..40 {
        grant.not_after = grant.not_after.plus_secs(1);
        grant.rate_100kbps = RATE - round % 2;
        site.install(grant.clone(), TARGET, (5_004, 5_004));
        for _ in 0..400 {
            let packet = udp((CLIENT, 4_000), gate, &payload(972));
            got += if site.outside_sends(&packet).verdict == Verdict::Forward(sluicegate_wire::Port::INSIDE) {
                1_000
            } else {
                0
            };
        }
        site.now = site.now + Duration::from_millis(10);
    }
    assert!(got <= BYTES_PER_S * 4 / 10 + BYTES_PER_S / 4 + 1_000, "{got}");
}

#[test]
fn one_users_flood_takes_nothing_from_another_user() {
    let mut site = Site::new();
    let (_, alice) = open_for(&mut site, ALICE, RATE);
    let (_, bob) = open_for(&mut site, BOB, RATE);
    let senders = [(alice, 4_000, 1_000, BYTES_PER_S * 8), (bob, 4_000, 1_000, BYTES_PER_S / 2)];
    let got = offer(&mut site, &senders, Duration::from_secs(2));
    assert_eq!(got[1], BYTES_PER_S);
}

#[test]
fn a_flood_under_one_grant_leaves_the_users_other_grant_its_part() {
    let mut site = Site::new();
    let (_, forged) = open_for(&mut site, ALICE, RATE);
    let (_, honest) = open_for(&mut site, ALICE, RATE);
    let senders = [(forged, 4_000, 200, BYTES_PER_S * 8), (honest, 4_000, 1_000, BYTES_PER_S * 3 / 10)];
    let got = offer(&mut site, &senders, Duration::from_secs(2));
    assert!(got[1] * 1_000 >= BYTES_PER_S * 6 / 10 * 990, "{got:?}");
}

#[test]
fn a_forger_at_another_source_port_leaves_the_honest_one_its_part() {
    let mut site = Site::new();
    let (_, gate) = open_for(&mut site, ALICE, RATE);
    exchange(&mut site, (CLIENT, 4_000), gate, (TARGET, 5_004));
    let mut senders = vec![(gate, 4_000, 1_000, BYTES_PER_S / 40)];
    senders.extend((0..15).map(|n| (gate, 50_000 + n, 200, BYTES_PER_S)));
    let got = offer(&mut site, &senders, Duration::from_secs(2));
    assert!(got[0] * 1_000 >= BYTES_PER_S / 20 * 990, "{got:?}");
    let all: usize = got.iter().sum();
    assert!(all <= BYTES_PER_S * 2 + BYTES_PER_S / 4 + 1_000 && all * 100 >= BYTES_PER_S * 2 * 97, "{all}");
}

#[test]
fn a_budget_lent_to_many_flows_is_spent_to_its_last_packet_and_not_exceeded() {
    let mut site = Site::new();
    let grant = Grant { bytes: 100_000, ..site.grant(UDP, CLIENT) };
    let opened = site.install(grant.clone(), TARGET, (5_004, 5_004));
    let gate = (opened.address, opened.ports.0);
    let mut got = 0;
    for n in 0..2_000u16 {
        let packet = udp((CLIENT, 1_000 + n % 60), gate, &payload(72));
        got += if site.outside_sends(&packet).verdict == Verdict::Forward(sluicegate_wire::Port::INSIDE) {
            100
        } else {
            0
        };
        let used = site.gate.translator.usage(grant.id).unwrap();
        assert_eq!((used.bytes_used, used.bytes_left), (got, 100_000 - got));
    }
    assert_eq!(got, 100_000);
    assert_eq!(
        site.gate.translator.poll_event().is_some() as u8 + site.gate.translator.poll_event().is_some() as u8,
        1
    );
}

#[test]
fn a_users_flows_are_counted_over_all_its_grants() {
    let per_user = PerUser { flows_max: 100, ..PerUser::default() };
    let mut site = Site::with(Config { per_user, ..config() });
    let gates: Vec<End> = (0..5).map(|_| open_for(&mut site, ALICE, 0).1).collect();
    let mut refused = 0;
    for port in 1..=40 {
        for (n, gate) in gates.iter().enumerate() {
            let port = port + 100 * n as u16;
            match site.outside_sends(&udp((CLIENT, port), *gate, b"x")).verdict {
                Verdict::Forward(_) => {
                    site.inside_sends(&udp((TARGET, 5_004), (CLIENT, port), b"x"));
                }
                verdict => {
                    assert_eq!(verdict, Verdict::Drop(Reason::FlowLimit));
                    refused += 1;
                }
            }
        }
    }
    assert!(site.used("flows") <= 100 && refused > 0, "{} {refused}", site.used("flows"));
    let (_, bob) = open_for(&mut site, BOB, 0);
    site.outside_sends(&udp((CLIENT, 1), bob, b"x")).inside();
}

#[test]
fn many_who_take_all_that_one_may_leave_ports_for_those_who_have_few() {
    let per_user = PerUser { ports_max: 400, ..PerUser::default() };
    let mut site = Site::with(Config { per_user, pinholes_max: 2_048, external_ports: (20_000, 20_999), ..config() });
    let open_of = |site: &mut Site, user: u64, protocol| {
        let grant = Grant { protocol, ..grant_of(site, user.to_be_bytes(), 0) };
        let id = grant.id;
        site.gate.translator.install(site.now, site.unix, spec(grant, TARGET, (5_000, 5_000))).map(|_| id)
    };
    let open = |site: &mut Site, user| open_of(site, user, UDP);
    let greedy: Vec<u64> = (1_000..1_020).collect();
    let mut ids = Vec::new();
    for _ in 0..400 {
        for user in &greedy {
            ids.extend(open(&mut site, *user));
        }
    }
    assert!((900..960).contains(&ids.len()), "{} of 1000 ports", ids.len());
    for user in 1..=6 {
        for _ in 0..8 {
            assert!(open(&mut site, user).is_ok(), "{user}");
        }
    }
    assert!((0..40).all(|_| open_of(&mut site, 9, TCP).is_ok()), "each protocol has ports of its own");
    // When they have ended, one may have as much as before.
    for id in ids {
        site.gate.translator.revoke(site.now, id).unwrap();
    }
    assert!((0..380).all(|_| open(&mut site, 2_000).is_ok()));
}

#[test]
fn many_who_hold_all_that_they_get_leave_pinholes_for_those_who_have_few() {
    let mut site = Site::with(Config { pinholes_max: 300, ..config() });
    let open = |site: &mut Site, user: u64| {
        let grant = grant_of(site, user.to_be_bytes(), 0);
        let id = grant.id;
        site.gate.translator.install(site.now, site.unix, spec(grant, FILTERED, (5_000, 5_000))).map(|_| id)
    };
    let mut ids = Vec::new();
    for _ in 0..300 {
        for user in 1_000..1_020 {
            ids.extend(open(&mut site, user));
        }
    }
    assert!((255..285).contains(&ids.len()), "{} of 300", ids.len());
    assert!(matches!(open(&mut site, 1_000), Err(InstallError::UserPinholes(13 | 14))));
    for user in 1..=3 {
        assert!(open(&mut site, user).is_ok(), "{user}");
    }
    // When they have ended, one alone may have most.
    for id in ids {
        site.gate.translator.revoke(site.now, id).unwrap();
    }
    let alone = (0..300).take_while(|_| open(&mut site, 2_000).is_ok()).count();
    assert!((175..=190).contains(&alone), "{alone}");
}

#[test]
fn a_users_ports_are_counted_over_all_its_grants_and_given_back_with_them() {
    let per_user = PerUser { ports_max: 100, ..PerUser::default() };
    let mut site = Site::with(Config { per_user, ..config() });
    let block = |site: &mut Site, user| {
        let grant = grant_of(site, user, 0);
        let id = grant.id;
        (id, site.gate.translator.install(site.now, site.unix, spec(grant, TARGET, (1_000, 1_029))))
    };
    let ids: Vec<_> = (0..3).map(|_| block(&mut site, ALICE)).map(|(id, opened)| opened.map(|_| id).unwrap()).collect();
    assert_eq!(block(&mut site, ALICE).1, Err(InstallError::UserPorts(100)));
    assert!(block(&mut site, BOB).1.is_ok());
    site.gate.translator.revoke(site.now, ids[0]).unwrap();
    assert!(block(&mut site, ALICE).1.is_ok());
    assert_eq!(block(&mut site, ALICE).1, Err(InstallError::UserPorts(100)));
    // A filter service has no external ports.
    let grant = grant_of(&mut site, ALICE, 0);
    site.install(grant, FILTERED, (1_000, 1_029));
}

#[test]
fn one_users_calls_do_not_cut_the_rest_of_anothers_ports_short() {
    let mut site = Site::with(Config { pinholes_max: 8_192, ..config() });
    let (bobs, gate) = open_for(&mut site, BOB, 0);
    site.gate.translator.revoke(site.now, bobs.id).unwrap();
    for _ in 0..3_000 {
        let (grant, _) = open_for(&mut site, ALICE, 0);
        site.gate.translator.revoke(site.now, grant.id).unwrap();
    }
    let resting = |site: &Site, port| {
        let mut pinholes = site.gate.translator.pinholes().table.iter();
        pinholes.any(|(_, pinhole)| pinhole.gate.ports.0 == port && !pinhole.is_live())
    };
    assert!(resting(&site, gate.1), "bob's port still rests");
}

#[test]
fn bytes_of_a_user_are_bounded_over_all_grants_and_renewals() {
    let per_user = PerUser { bytes: 500_000, window_s: 1_000, ..PerUser::default() };
    let mut site = Site::with(Config { per_user, ..config() });
    let mut got = 0;
    for _ in 0..10 {
        let (grant, gate) = open_for(&mut site, ALICE, 0);
        for _ in 0..200 {
            let packet = udp((CLIENT, 4_000), gate, &payload(972));
            got += if site.outside_sends(&packet).verdict == Verdict::Forward(sluicegate_wire::Port::INSIDE) {
                1_000
            } else {
                0
            };
        }
        site.gate.translator.revoke(site.now, grant.id);
    }
    assert!((490_000..=500_000).contains(&got), "{got}");
    site.now = site.now + Duration::from_secs(100);
    let (_, gate) = open_for(&mut site, ALICE, 0);
    let after: usize = offer(&mut site, &[(gate, 4_000, 1_000, 1_000_000)], Duration::from_secs(1))[0];
    assert!((45_000..=60_000).contains(&after), "{after}");
}

#[test]
fn a_grant_has_no_more_flows_than_one_turn_can_end() {
    let mut site = Site::new();
    let grant = Grant { flows: 5_000, ..site.grant(UDP, CLIENT) };
    let opened = site.install(grant, TARGET, (5_004, 5_004));
    for port in 1..=500 {
        let _ = site.outside_sends(&udp((CLIENT, port), (opened.address, opened.ports.0), b"x"));
    }
    assert_eq!(site.used("flows"), FLOWS_PER_GRANT_MAX.into());
}

/// Whoever forges the client's address decides how many closed ports are tried under it.
#[test]
fn tries_at_closed_ports_under_a_clients_address_take_nothing_from_it() {
    let mut site = Site::new();
    let (_, gate) = site.open(UDP, 5_004);
    exchange(&mut site, (CLIENT, 4_000), gate, (TARGET, 5_004));
    for port in (1..=u16::MAX).filter(|port| *port != gate.1) {
        let forged = udp((CLIENT, port), (GATE.into(), port), b"?");
        assert_eq!(site.outside_sends(&forged).dropped(), Reason::NoPinhole);
    }
    exchange(&mut site, (CLIENT, 4_001), gate, (TARGET, 5_004));
    assert_eq!(site.used("flows"), 2);
}

#[test]
fn one_user_more_than_there_are_places_makes_the_oldest_that_holds_nothing_leave() {
    let mut site = Site::with(Config { pinholes_max: 20, ..config() });
    for n in 0..100u64 {
        let grant = Grant { user_pseudonym: n.to_be_bytes(), ..site.grant(UDP, client(n as u32)) };
        site.install(grant.clone(), TARGET, (53, 53));
        site.gate.translator.revoke(site.now, grant.id).unwrap();
    }
    assert_eq!(site.gauge("users"), (19, 20));
}
