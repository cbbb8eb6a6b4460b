//! What a grant is worth: its time, its bytes, its rate, its flows; and what is said when it is over.

use std::time::Duration;

use crate::site::{packets::*, *};
use proptest::prelude::*;
use sluicegate_pinhole::{EndCause, Ended, InstallError};
use sluicegate_wire::{Port, Reason, UnixTime, Verdict};

const PORT: u16 = 5_004;

fn send(site: &mut Site, gate: End, client_port: u16, ip_len: usize) -> Result<usize, Reason> {
    let out = site.outside_sends(&udp((CLIENT, client_port), gate, &payload(ip_len - 28)));
    match out.verdict {
        Verdict::Forward(Port::INSIDE) => Ok(out.packet.len()),
        Verdict::Drop(reason) => Err(reason),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_grant_ends_at_its_time_and_says_so() {
    let mut site = Site::new();
    let (grant, gate) = site.open(UDP, PORT);
    exchange(&mut site, (CLIENT, 1), gate, (TARGET, PORT));
    site.wait(Duration::from_millis(3_599_900));
    send(&mut site, gate, 1, 100).unwrap();
    site.wait(Duration::from_millis(150));
    let used = 32 + 100;
    let event = Ended { id: grant.id, cause: EndCause::Expired, bytes_used: used };
    assert_eq!(site.gate.translator.poll_event(), Some(event));
    assert_eq!(site.gate.translator.poll_event(), None);
    assert_eq!(site.used("flows"), 0);
    assert_eq!(send(&mut site, gate, 1, 100), Err(Reason::GrantExpired));
    assert_eq!(site.inside_sends(&udp((TARGET, PORT), (CLIENT, 1), b"x")).dropped(), Reason::GrantExpired);
    let stranger = site.outside_sends(&udp((STRANGER, 1), gate, b"x"));
    assert_eq!(stranger.dropped(), Reason::NoPinhole, "what is over is nobody else's business");
    site.wait(Duration::from_secs(121));
    assert_eq!(send(&mut site, gate, 1, 100), Err(Reason::NoPinhole), "after two minutes it is forgotten");
}

#[test]
fn an_expired_grant_admits_nothing_even_if_nobody_handles_timeouts() {
    let mut site = Site::new();
    let (_, gate) = site.open(UDP, PORT);
    exchange(&mut site, (CLIENT, 1), gate, (TARGET, PORT));
    site.now = site.now + Duration::from_millis(3_600_051);
    assert_eq!(send(&mut site, gate, 1, 100), Err(Reason::GrantExpired));
}

#[test]
fn a_grant_installed_late_in_a_second_ends_when_its_last_second_does() {
    let mut site = Site::new();
    site.gate.translator.set_clock(site.now, site.unix);
    site.now = site.now + Duration::from_millis(900);
    let (_, gate) = site.open(UDP, PORT);
    site.wait(Duration::from_millis(3_599_050));
    send(&mut site, gate, 1, 100).unwrap();
    site.wait(Duration::from_millis(100));
    assert_eq!(send(&mut site, gate, 1, 100), Err(Reason::GrantExpired));
}

#[test]
fn a_grant_opens_at_its_time_give_or_take_the_tolerated_skew() {
    let mut site = Site::new();
    let mut grant = site.grant(UDP, CLIENT);
    grant.not_before = site.unix.plus_secs(10);
    let opened = site.install(grant, TARGET, (PORT, PORT));
    let gate = (opened.address, opened.ports.0);
    site.wait(Duration::from_secs(7));
    assert_eq!(send(&mut site, gate, 1, 100), Err(Reason::NoPinhole));
    site.wait(Duration::from_secs(2));
    send(&mut site, gate, 1, 100).unwrap();
}

#[test]
fn a_grant_of_the_past_is_refused() {
    let mut site = Site::new();
    let mut grant = site.grant(UDP, CLIENT);
    grant.not_before = UnixTime(site.unix.0 - 10);
    grant.not_after = site.unix;
    let result = site.gate.translator.install(site.now, site.unix, spec(grant, TARGET, (1, 1)));
    assert_eq!(result, Err(InstallError::Expired));
}

#[test]
fn revoking_ends_flows_at_once_and_the_grant_cannot_come_back() {
    let mut site = Site::new();
    let (mut grant, gate) = site.open(UDP, PORT);
    exchange(&mut site, (CLIENT, 1), gate, (TARGET, PORT));
    let ended = site.gate.translator.revoke(site.now, grant.id);
    assert_eq!(ended, Some(Ended { id: grant.id, cause: EndCause::Revoked, bytes_used: 32 }));
    assert_eq!(site.gate.translator.revoke(site.now, grant.id), None);
    assert_eq!(site.gate.translator.poll_event(), None, "who revokes is told directly");
    assert_eq!(send(&mut site, gate, 1, 100), Err(Reason::GrantRevoked));
    assert_eq!(site.inside_sends(&udp((TARGET, PORT), (CLIENT, 1), b"x")).dropped(), Reason::GrantRevoked);
    grant.not_after = grant.not_after.plus_secs(60);
    for _ in 0..2 {
        let again = site.gate.translator.install(site.now, site.unix, spec(grant.clone(), TARGET, (PORT, PORT)));
        assert_eq!(again, Err(InstallError::Revoked(grant.id)));
        site.wait(Duration::from_secs(1_700));
    }
}

#[test]
fn installing_the_same_grant_again_changes_nothing() {
    let mut site = Site::new();
    let (grant, gate) = site.open(UDP, PORT);
    send(&mut site, gate, 1, 1_000).unwrap();
    let again = site.install(grant.clone(), TARGET, (PORT, PORT));
    assert_eq!((again.address, again.ports), (gate.0, (gate.1, gate.1)));
    assert_eq!(site.gate.translator.usage(grant.id).unwrap().bytes_used, 1_000);
    let elsewhere = site.gate.translator.install(site.now, site.unix, spec(grant.clone(), TALKER, (PORT, PORT)));
    assert_eq!(elsewhere, Err(InstallError::Conflict(grant.id)));
}

#[test]
fn a_renewal_lets_the_client_in_from_elsewhere_and_from_nowhere_else() {
    let mut site = Site::new();
    let (mut grant, gate) = site.open(UDP, PORT);
    exchange(&mut site, (CLIENT, 1), gate, (TARGET, PORT));
    grant.client_address = STRANGER;
    let same_end = site.gate.translator.install(site.now, site.unix, spec(grant.clone(), TARGET, (PORT, PORT)));
    assert_eq!(same_end, Err(InstallError::Conflict(grant.id)));
    send(&mut site, gate, 1, 100).unwrap();
    grant.not_after = grant.not_after.plus_secs(1);
    let opened = site.install(grant, TARGET, (PORT, PORT));
    assert_eq!(((opened.address, opened.ports.0), site.used("flows")), (gate, 0), "what it had open has ended");
    assert_eq!(send(&mut site, gate, 1, 100), Err(Reason::NoPinhole));
    exchange(&mut site, (STRANGER, 1), gate, (TARGET, PORT));
}

#[test]
fn a_renewal_refills_the_budget_and_keeps_ports_and_flows() {
    let mut site = Site::new();
    let mut grant = site.grant(UDP, CLIENT);
    grant.bytes = 3_000;
    let opened = site.install(grant.clone(), TARGET, (PORT, PORT));
    let gate = (opened.address, opened.ports.0);
    for _ in 0..3 {
        send(&mut site, gate, 1, 1_000).unwrap();
    }
    assert_eq!(send(&mut site, gate, 1, 1_000), Err(Reason::BudgetSpent));
    let spent = Ended { id: grant.id, cause: EndCause::Spent, bytes_used: 3_000 };
    assert_eq!(site.gate.translator.poll_event(), Some(spent));
    assert_eq!(send(&mut site, gate, 1, 28), Err(Reason::BudgetSpent), "spent is spent, also for small packets");
    assert_eq!(site.gate.translator.poll_event(), None);
    grant.not_after = grant.not_after.plus_secs(60);
    assert_eq!(site.install(grant.clone(), TARGET, (PORT, PORT)), opened);
    assert_eq!(site.used("flows"), 1);
    for _ in 0..3 {
        send(&mut site, gate, 1, 1_000).unwrap();
    }
    assert_eq!(send(&mut site, gate, 1, 1_000), Err(Reason::BudgetSpent));
    assert_eq!(site.gate.translator.usage(grant.id).unwrap().bytes_used, 6_000);
}

#[test]
fn a_renewal_that_comes_late_gets_the_same_ports() {
    let mut site = Site::new();
    let (mut grant, gate) = site.open(UDP, PORT);
    site.wait(Duration::from_secs(3_660));
    assert_eq!(send(&mut site, gate, 1, 100), Err(Reason::GrantExpired));
    grant.not_after = site.unix.plus_secs(60);
    let opened = site.install(grant, TARGET, (PORT, PORT));
    assert_eq!(opened.ports.0, gate.1);
    exchange(&mut site, (CLIENT, 1), gate, (TARGET, PORT));
    site.wait(Duration::from_secs(61));
    assert_eq!(send(&mut site, gate, 1, 100), Err(Reason::GrantExpired));
}

#[test]
fn what_the_service_sends_costs_the_grant_nothing() {
    let mut site = Site::new();
    let mut grant = site.grant(UDP, CLIENT);
    grant.bytes = 1_000;
    let opened = site.install(grant, TARGET, (PORT, PORT));
    let gate = (opened.address, opened.ports.0);
    for _ in 0..100 {
        site.inside_sends(&udp((TARGET, PORT), (CLIENT, 1), &payload(1_000))).outside();
    }
    send(&mut site, gate, 1, 1_000).unwrap();
    assert_eq!(send(&mut site, gate, 1, 28), Err(Reason::BudgetSpent));
    site.inside_sends(&udp((TARGET, PORT), (CLIENT, 1), b"still heard")).outside();
    site.wait(Duration::from_secs(3_601));
    assert!(matches!(site.gate.translator.poll_event(), Some(Ended { cause: EndCause::Spent, .. })));
    assert_eq!(site.gate.translator.poll_event(), None, "its end was told when the budget was spent");
}

#[test]
fn a_rate_holds_over_many_flows() {
    let mut site = Site::new();
    let mut grant = site.grant(UDP, CLIENT);
    grant.rate_100kbps = 8;
    grant.bytes = 1 << 40;
    let opened = site.install(grant, TARGET, (PORT, PORT));
    let gate = (opened.address, opened.ports.0);
    let (mut passed, mut refused) = (0, 0);
    for step in 0..20_000u16 {
        match send(&mut site, gate, 1 + step % 50, 1_000) {
            Ok(len) => passed += len,
            Err(Reason::RateExceeded) => refused += 1,
            Err(other) => panic!("{other:?}"),
        }
        site.wait(Duration::from_millis(1));
    }
    // 100 kB/s for 20 s and one burst of 64 KiB.
    let most = 20 * 100_000 + 65_536;
    // What is kept for those that have not had their part yet stays in the bucket.
    assert!(passed <= most && passed > most - 70_000, "{passed}");
    assert!(refused > 10_000);
}

#[test]
fn at_the_flow_limit_the_oldest_unanswered_flow_of_the_same_grant_gives_way() {
    let mut site = Site::new();
    let mut grant = site.grant(UDP, CLIENT);
    grant.flows = 3;
    let opened = site.install(grant, TARGET, (PORT, PORT));
    let gate = (opened.address, opened.ports.0);
    exchange(&mut site, (CLIENT, 1), gate, (TARGET, PORT));
    for client_port in [2, 3, 4, 5] {
        send(&mut site, gate, client_port, 100).unwrap();
    }
    assert_eq!(site.used("flows"), 3, "1, 4 and 5");
    for client_port in [4, 5] {
        site.inside_sends(&udp((TARGET, PORT), (CLIENT, client_port), b"x")).outside();
    }
    assert_eq!(send(&mut site, gate, 6, 100), Err(Reason::FlowLimit), "all are answered and busy");
    site.wait(Duration::from_secs(11));
    send(&mut site, gate, 6, 100).unwrap();
    assert_eq!(site.used("flows"), 3, "an idle one gave way");
}

#[test]
fn a_flood_of_new_flows_in_one_grant_hurts_no_other_grant() {
    let mut site = Site::new();
    let (_, gate) = site.open(UDP, PORT);
    let other = site.grant(UDP, OTHER_CLIENT);
    let opened = site.install(other, TARGET, (PORT, PORT));
    exchange(&mut site, (OTHER_CLIENT, 1), (opened.address, opened.ports.0), (TARGET, PORT));
    for client_port in 1..=60_000 {
        let _ = send(&mut site, gate, client_port, 28);
    }
    assert!(site.used("flows") <= 65);
    exchange(&mut site, (OTHER_CLIENT, 1), (opened.address, opened.ports.0), (TARGET, PORT));
}

#[test]
fn wrong_grants_and_targets_are_refused_with_a_reason() {
    let mut site = Site::new();
    let grant = site.grant(UDP, CLIENT);
    let mut refuse = |change: &dyn Fn(&mut sluicegate_pinhole::PinholeSpec)| {
        let mut wrong = spec(grant.clone(), TARGET, (PORT, PORT));
        change(&mut wrong);
        site.gate.translator.install(site.now, site.unix, wrong).unwrap_err()
    };
    assert_eq!(refuse(&|spec| spec.service = 77), InstallError::Service(77));
    assert_eq!(refuse(&|spec| spec.filter = true), InstallError::Service(TARGET_ID));
    assert_eq!(refuse(&|spec| spec.target_ports = (0, 5)), InstallError::Ports(256));
    assert_eq!(refuse(&|spec| spec.target_ports = (5, 4)), InstallError::Ports(256));
    assert_eq!(refuse(&|spec| spec.target_ports = (1, 1_000)), InstallError::Ports(256));
    assert_eq!(refuse(&|spec| spec.grant.protocol = 132), InstallError::Protocol(132));
    assert!(matches!(refuse(&|spec| spec.grant.bytes = 0), InstallError::Grant(_)));
    assert!(matches!(refuse(&|spec| spec.target = FILTERED_V6), InstallError::Grant(_)));
    assert_eq!(site.used("external_ports_udp"), 0, "nothing was changed");
}

proptest! {
    #[test]
    fn a_budget_is_never_exceeded_across_flows_and_renewals(
        bytes in 1u64..400_000,
        packets in prop::collection::vec((1u16..40, 28usize..1_500), 1..600),
        renew_at in prop::collection::vec(0usize..600, 0..3),
    ) {
        let mut site = Site::new();
        let mut grant = site.grant(UDP, CLIENT);
        (grant.bytes, grant.flows) = (bytes, 16);
        let opened = site.install(grant.clone(), TARGET, (PORT, PORT));
        let gate = (opened.address, opened.ports.0);
        let (mut passed, mut total, mut refused) = (0u64, 0u64, false);
        for (at, (client_port, len)) in packets.into_iter().enumerate() {
            if renew_at.contains(&at) {
                grant.not_after = grant.not_after.plus_secs(1);
                site.install(grant.clone(), TARGET, (PORT, PORT));
                (passed, refused) = (0, false);
            }
            match send(&mut site, gate, client_port, len) {
                Ok(len) => {
                    prop_assert!(!refused, "nothing passes once the budget is spent");
                    (passed, total) = (passed + len as u64, total + len as u64);
                }
                Err(Reason::BudgetSpent) => {
                    refused = true;
                    prop_assert!(passed + 1_500 > bytes, "only {passed} of {bytes} were used");
                }
                Err(other) => panic!("{other:?}"),
            }
            prop_assert!(passed <= bytes);
            let usage = site.gate.translator.usage(grant.id).unwrap();
            prop_assert_eq!((usage.bytes_used, usage.bytes_left), (total, bytes - passed));
        }
        prop_assert_eq!(site.gate.translator.revoke(site.now, grant.id).unwrap().bytes_used, total);
    }
}

#[test]
fn a_packet_that_could_not_leave_costs_nothing_and_is_refunded_once() {
    let mut site = Site::new();
    let (grant, gate) = site.open(UDP, 5_004);
    let used = |site: &Site| site.gate.translator.usage(grant.id).unwrap().bytes_used;
    let packet = udp((CLIENT, 9_000), gate, b"hello");
    site.outside_sends(&packet).inside();
    assert_eq!(used(&site), 33);
    site.gate.translator.refund();
    site.gate.translator.refund();
    assert_eq!(used(&site), 0);
    site.outside_sends(&packet).inside();
    site.inside_sends(&udp((TARGET, 5_004), (CLIENT, 9_000), b"hi")).outside();
    site.gate.translator.refund();
    assert_eq!(used(&site), 33, "the answer had cost nothing");
}
