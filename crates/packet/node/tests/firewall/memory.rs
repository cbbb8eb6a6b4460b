//! What the gate remembers of grants that ended: their ports rest, and a revoked one stays revoked.

use std::{net::IpAddr, time::Duration};

use crate::site::{packets::*, *};
use sluicegate_grant::{Grant, GrantId};
use sluicegate_nat::Config;
use sluicegate_pinhole::InstallError;
use sluicegate_wire::Reason;

fn client(n: u32) -> IpAddr {
    IpAddr::from((0xc633_6400 + n).to_be_bytes())
}

/// Lets time pass in steps, as packets would.
fn pass(site: &mut Site, secs: u64) {
    for _ in 0..secs {
        site.wait(Duration::from_secs(1));
    }
}

#[test]
fn ports_rest_for_their_whole_time_whatever_the_wheel_did_before() {
    for idle in [0, 7, 60, 95, 101, 102, 103, 200] {
        let mut site = Site::new();
        let grants: Vec<Grant> = [5_004, 5_005].map(|port| site.open(UDP, port).0).into();
        let ports = |site: &Site| site.used("external_ports_udp");
        pass(&mut site, idle);
        for grant in &grants {
            site.gate.translator.revoke(site.now, grant.id).unwrap();
        }
        pass(&mut site, 119);
        assert_eq!(ports(&site), 2, "after {idle} s, 119 s later");
        pass(&mut site, 2);
        assert_eq!(ports(&site), 0, "after {idle} s, 121 s later");
    }
}

#[test]
fn a_late_renewal_gets_the_ports_that_its_client_was_told() {
    let mut site = Site::new();
    let (mut grant, gate) = site.open(UDP, 5_004);
    let keep = site.grant(UDP, client(5));
    site.install(keep, TARGET, (5_004, 5_004));
    pass(&mut site, 3_601);
    pass(&mut site, 115);
    grant.not_before = site.unix;
    grant.not_after = site.unix.plus_secs(3_600);
    let opened = site.install(grant, TARGET, (5_004, 5_004));
    assert_eq!((opened.address, opened.ports.0), gate);
    exchange(&mut site, (CLIENT, 40_000), gate, (TARGET, 5_004));
}

/// Fills the table of pinholes until nothing is remembered any more.
fn crowd_out(site: &mut Site) {
    for n in 0..site.gauge("pinholes").1 {
        let grant = site.grant(UDP, client(n));
        let _ = site.gate.translator.install(site.now, site.unix, spec(grant, TARGET, (53, 53)));
    }
    assert_eq!(site.used("pinholes_remembered"), 0);
}

#[test]
fn a_revoked_grant_stays_revoked_when_the_table_of_pinholes_is_full() {
    let mut site = Site::with(Config { pinholes_max: 50, ..config() });
    let (grant, gate) = site.open(UDP, 5_004);
    site.gate.translator.revoke(site.now, grant.id).unwrap();
    crowd_out(&mut site);
    let pinholes = site.gate.translator.pinholes().table.iter().map(|(_, pinhole)| pinhole);
    let other = pinholes.filter(|pinhole| pinhole.is_live()).last().unwrap().grant().unwrap().id;
    site.gate.translator.revoke(site.now, other).unwrap();
    for id_again in [grant.clone(), Grant { not_after: grant.not_after.plus_secs(60), ..grant.clone() }] {
        let again = site.gate.translator.install(site.now, site.unix, spec(id_again, TARGET, (5_004, 5_004)));
        assert_eq!(again, Err(InstallError::Revoked(grant.id)));
    }
    assert_eq!(site.outside_sends(&udp((CLIENT, 1), gate, b"x")).dropped(), Reason::NoPinhole);
}

#[test]
fn a_revoked_grant_stays_revoked_over_a_restart_and_no_longer_than_it_was_worth() {
    let mut site = Site::new();
    let (grant, _) = site.open(UDP, 5_004);
    site.gate.translator.revoke(site.now, grant.id).unwrap();
    let mut saved = Vec::new();
    sluicegate_nat::Export::whole(&site.gate.translator, &mut |bytes| saved.extend_from_slice(bytes));
    site.gate = firewall(config(), [8; 16], 2);
    site.gate.translator.set_services(&services()).unwrap();
    sluicegate_nat::import(&mut site.gate.translator, site.now, site.unix, &saved).unwrap();
    let again = |site: &mut Site| {
        site.gate.translator.install(site.now, site.unix, spec(grant.clone(), TARGET, (5_004, 5_004)))
    };
    assert_eq!(again(&mut site), Err(InstallError::Revoked(grant.id)));
    pass(&mut site, 3_601);
    assert_eq!(again(&mut site), Err(InstallError::Expired));
    assert_eq!(site.used("revoked_grants"), 0);
}

#[test]
fn whoever_ends_calls_without_end_costs_nobody_else_a_grant_at_a_restart() {
    let mut site = Site::new();
    let (grant, gate) = site.open(UDP, 5_004);
    let mut others = site.grant(UDP, CLIENT);
    others.user_pseudonym = [9; 8];
    // More than are remembered one by one.
    for number in 0..65_600u32 {
        if number == 60_000 {
            pass(&mut site, 1);
            others.not_before = site.unix;
        }
        others.id = GrantId::of_call([5; 12], number);
        site.gate.translator.install(site.now, site.unix, spec(others.clone(), FILTERED, (1_024, 1_024))).unwrap();
        site.gate.translator.revoke(site.now, others.id).unwrap();
    }
    assert_eq!(site.gauge("revoked_grants"), (65_536, 65_536));
    let mut saved = Vec::new();
    sluicegate_nat::Export::whole(&site.gate.translator, &mut |bytes| saved.extend_from_slice(bytes));
    site.gate = firewall(config(), [8; 16], 2);
    site.gate.translator.set_services(&services()).unwrap();
    assert_eq!(sluicegate_nat::import(&mut site.gate.translator, site.now, site.unix, &saved).unwrap().skipped, 0);
    site.outside_sends(&udp((CLIENT, 1), gate, b"x")).inside();
    // Nor one that the saved state does not know yet.
    let mut newer = site.grant(UDP, CLIENT);
    newer.id = GrantId::of_call([7; 12], 0);
    site.install(newer, TARGET, (6_000, 6_000));
    for number in [0, 65_599] {
        (others.id, others.not_before) = (GrantId::of_call([5; 12], number), grant.not_before);
        let again = site.gate.translator.install(site.now, site.unix, spec(others.clone(), FILTERED, (1_024, 1_024)));
        assert_eq!(again, Err(InstallError::Revoked(others.id)));
    }
    assert_ne!(grant.user_pseudonym, others.user_pseudonym);
}
