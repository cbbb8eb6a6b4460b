//! Several clients behind one address, whose pinholes are found by that address: each keeps what its own grant gives.

use std::net::IpAddr;

use crate::site::{packets::*, *};
use sluicegate_grant::{
    DataMode, Grant,
    mac::{Ends, Purpose, SessionKeys},
};
use sluicegate_nat::Config;
use sluicegate_pinhole::{Permission, PinholeSpec};
use sluicegate_wire::{Port, Reason, Verdict};

const PORT: u16 = 5_004;
const SERVICE: End = (FILTERED, PORT);

/// A client of a `mac` grant.
struct Agent {
    grant: Grant,
    keys: SessionKeys,
    seq: u64,
}

impl Agent {
    fn sign_in(site: &mut Site, target: IpAddr, client_id: u32) -> (Self, End) {
        let grant = Grant { least_mode: DataMode::Mac, client_id, ..site.grant(UDP, CLIENT) };
        let keys = SessionKeys::from_bytes([[client_id as u8; 16]; 2]);
        let spec = PinholeSpec { keys: Some(keys.clone()), ..spec(grant.clone(), target, (PORT, PORT)) };
        let opened = site.gate.translator.install(site.now, site.unix, spec).unwrap();
        (Self { grant, keys, seq: 0 }, (opened.address, opened.ports.0))
    }

    fn datagram(&mut self, port: u16, to: End) -> Vec<u8> {
        self.seq += 1;
        let (id, ends) = (self.grant.client_id, Ends { client: (CLIENT, port), gate_port: to.1 });
        let trailer = self.keys.to_service.trailer(id, Purpose::Datagram, self.seq, &ends, b"hello");
        let text = [&b"hello"[..], &trailer].concat();
        udp((CLIENT, port), to, &text)
    }

    fn used(&self, site: &Site) -> u64 {
        site.gate.translator.usage(self.grant.id).unwrap().bytes_used
    }
}

fn used(site: &Site, grant: &Grant) -> u64 {
    site.gate.translator.usage(grant.id).unwrap().bytes_used
}

/// A grant of mode `pinhole` to the filtered service.
fn open(site: &mut Site, grant: Grant) -> Grant {
    site.install(grant.clone(), FILTERED, (PORT, PORT));
    grant
}

#[test]
fn every_client_with_a_packet_mac_opens_flows_whoever_signed_in_last() {
    let mut site = Site::with(Config { pinholes_max: 512, ..config() });
    let mut crowd: Vec<Agent> = (1..=200).map(|id| Agent::sign_in(&mut site, FILTERED, id).0).collect();
    for (at, agent) in crowd.iter_mut().enumerate() {
        for port in [10_000, 20_000, 30_000] {
            site.outside_sends(&agent.datagram(port + at as u16, SERVICE)).inside();
        }
    }
    for agent in &crowd {
        assert_eq!(agent.used(&site), 3 * (28 + 5 + 20), "each paid for its own");
    }
}

#[test]
fn a_capability_opens_under_the_grant_whose_client_it_names() {
    let mut site = Site::new();
    let grants: Vec<Grant> = [DataMode::Capability, DataMode::Mac, DataMode::Pinhole, DataMode::Capability]
        .into_iter()
        .zip(1..)
        .map(|(least_mode, client_id)| {
            let grant = Grant { least_mode, client_id, ..site.grant(UDP, CLIENT) };
            open(&mut site, grant)
        })
        .collect();
    for (at, grant) in grants.iter().enumerate() {
        let packet = udp((CLIENT, 7_000 + at as u16), SERVICE, b"with a capability");
        let permission = Permission { mode: DataMode::Capability, client_id: grant.client_id };
        let verdict = site.send_with(Port::OUTSIDE, &packet, permission).verdict;
        assert_eq!((verdict, used(&site, grant)), (Verdict::Forward(Port::INSIDE), 28 + 17));
    }
}

#[test]
fn a_spent_budget_leaves_new_flows_to_the_grants_that_have_some() {
    let mut site = Site::new();
    let base = site.grant(UDP, CLIENT);
    let first = open(&mut site, Grant { bytes: 1_000, ..base });
    // More than a look-up visits.
    for at in 0..100u16 {
        let base = site.grant(UDP, CLIENT);
        open(&mut site, Grant { bytes: 50, ..base });
        site.outside_sends(&udp((CLIENT, 100 + at), SERVICE, &payload(10))).inside();
        assert_eq!(site.outside_sends(&udp((CLIENT, 100 + at), SERVICE, &payload(10))).dropped(), Reason::BudgetSpent);
    }
    assert_eq!(used(&site, &first), 0);
    site.outside_sends(&udp((CLIENT, 9_000), SERVICE, &payload(100))).inside();
    assert_eq!(used(&site, &first), 128);
    let renewed = Grant { not_after: first.not_after.plus_secs(60), bytes: 50, ..first };
    open(&mut site, renewed);
    for port in 9_001..9_020 {
        let _ = site.outside_sends(&udp((CLIENT, port), SERVICE, b""));
    }
    let last = site.outside_sends(&udp((CLIENT, 9_100), SERVICE, b"")).dropped();
    assert_eq!(last, Reason::BudgetSpent, "all are spent");
}

#[test]
fn of_a_crowd_with_certain_ports_each_keeps_its_own() {
    for width in [0u16, 1, 15, 63, 199] {
        let mut site = Site::with(Config { pinholes_max: 512, ..config() });
        let ranges: Vec<(u16, u16)> =
            (0..200u16).map(|at| (1_000 + at * (width + 1), 1_000 + at * (width + 1) + width)).collect();
        let grants: Vec<Grant> = ranges
            .iter()
            .map(|ports| {
                let base = site.grant(UDP, CLIENT);
                open(&mut site, Grant { client_ports: *ports, ..base })
            })
            .collect();
        for (grant, (first, last)) in grants.iter().zip(&ranges) {
            site.outside_sends(&udp((CLIENT, *first), SERVICE, b"x")).inside();
            site.inside_sends(&udp(SERVICE, (CLIENT, *last), b"x")).outside();
            site.outside_sends(&udp((CLIENT, *last), SERVICE, b"x")).inside();
            assert_eq!(used(&site, grant), 2 * 29, "{first}-{last}");
        }
        assert_eq!(site.outside_sends(&udp((CLIENT, 999), SERVICE, b"x")).dropped(), Reason::NoPinhole);
    }
}

#[test]
fn a_grant_at_its_flow_limit_leaves_new_flows_to_one_with_room() {
    let mut site = Site::new();
    let base = site.grant(UDP, CLIENT);
    let roomy = open(&mut site, base);
    let base = site.grant(UDP, CLIENT);
    open(&mut site, Grant { flows: 1, ..base });
    for port in [1, 2, 3] {
        site.outside_sends(&udp((CLIENT, port), SERVICE, b"x")).inside();
        site.inside_sends(&udp(SERVICE, (CLIENT, port), b"x")).outside();
    }
    assert_eq!(used(&site, &roomy), 2 * 29);
}

#[test]
fn a_packet_mac_takes_back_the_flow_that_the_service_started_under_another_grant() {
    let mut site = Site::new();
    let (mut early, _) = Agent::sign_in(&mut site, FILTERED, 1);
    let (late, _) = Agent::sign_in(&mut site, FILTERED, 2);
    // Nothing tells the gate which of the two it is for.
    site.inside_sends(&udp(SERVICE, (CLIENT, 9_000), b"are you there")).outside();
    site.outside_sends(&early.datagram(9_000, SERVICE)).inside();
    site.outside_sends(&early.datagram(9_000, SERVICE)).inside();
    assert_eq!((early.used(&site), late.used(&site)), (2 * 53, 0));
    let mut forged = early.datagram(9_001, SERVICE);
    site.inside_sends(&udp(SERVICE, (CLIENT, 9_001), b"are you there")).outside();
    *forged.last_mut().unwrap() ^= 1;
    forged[26..28].fill(0);
    assert_eq!(site.outside_sends(&forged).dropped(), Reason::MacForged);
    assert_eq!(site.used("flows"), 2);
}

#[test]
fn the_end_of_one_grant_leaves_the_others_flows() {
    let mut site = Site::new();
    let (mut a, _) = Agent::sign_in(&mut site, FILTERED, 1);
    let (mut b, _) = Agent::sign_in(&mut site, FILTERED, 2);
    site.outside_sends(&a.datagram(1, SERVICE)).inside();
    site.outside_sends(&b.datagram(2, SERVICE)).inside();
    site.gate.translator.revoke(site.now, b.grant.id).unwrap();
    site.outside_sends(&a.datagram(1, SERVICE)).inside();
    site.outside_sends(&a.datagram(3, SERVICE)).inside();
    assert_eq!(site.outside_sends(&b.datagram(2, SERVICE)).dropped(), Reason::GrantRevoked);
}

#[test]
fn echoes_of_two_clients_behind_one_address_are_paid_by_whoever_has_bytes_left() {
    for (target, client) in [(TARGET, CLIENT), (FILTERED_V6, CLIENT_V6)] {
        let mut site = Site::new();
        let protocol = if client.is_ipv4() { ICMP } else { ICMPV6 };
        let base = site.grant(protocol, client);
        let gate = site.install(base, target, (0, 0)).address;
        let base = site.grant(protocol, client);
        site.install(Grant { bytes: 60, ..base }, target, (0, 0));
        for ident in 1..5 {
            let first = site.outside_sends(&echo(client, gate, ident, true));
            let _ = site.outside_sends(&echo(client, gate, ident, true));
            if ident > 1 {
                first.inside();
            }
        }
    }
}
