//! Packet MACs: which grants demand them, and whose keys the gate gets.

use std::{sync::Arc, time::Duration};

use sluicegate_feed::GrantDelta;
use sluicegate_grant::{DataMode, Grant, mac::SessionSecret};
use sluicegate_proxy::{GateAnswer, Input, Ledger};

use crate::site::{AUDIO, Caller, GATE, PHONE, PORTS, Site, status};

/// An agent's offer of a UDP port and a TCP port.
fn both() -> String {
    format!("{PORTS}m=application 9 UDP sluicegate\r\na=service-ports:5004\r\n")
}

fn udp() -> String {
    PORTS.replace("TCP sluicegate", "UDP sluicegate").replace("service-ports:80", "service-ports:5004")
}

/// Invites and gives what the gate was asked to open.
fn ask(site: &mut Site, caller: &mut Caller, body: &str) -> Vec<GrantDelta> {
    let uri = caller.to.clone();
    let trying = caller.sign_in(site, "INVITE", &uri, "", body);
    assert_eq!(status(&trying), 100, "{trying}");
    site.asked()
}

/// The gate opens it; the client acknowledges. What both ends know then.
fn open(site: &mut Site, caller: &mut Caller, deltas: &[GrantDelta]) -> SessionSecret {
    let mut sent = Vec::new();
    for delta in deltas {
        let (grant, address, ports) = (delta.grant.clone(), GATE.parse().unwrap(), (20_000, 20_000));
        site.ledger.opening(delta, "gate-1", 0).unwrap();
        site.ledger.opened("gate-1", grant.id, address, ports);
        sent.extend(site.tell(0, Input::Gate(GateAnswer { id: grant.id, opened: Ok((address, ports)) })));
    }
    let ok = sent.pop().unwrap().1;
    assert_eq!(status(&ok), 200, "{ok}");
    caller.take_dialog(&ok);
    let secret = caller.believes(&site.last.clone()).unwrap();
    let uri = caller.to.clone();
    let ack = caller.request("ACK", &uri, "", "");
    assert!(site.send(PHONE, ack).is_empty());
    secret
}

fn is_keyed_by(delta: &GrantDelta, secret: &SessionSecret) -> bool {
    let grant = delta.grant.clone();
    delta.keys == Some(secret.keys(grant.id)) && secret.is_of(grant.id, grant.client_id)
}

fn mode(delta: &GrantDelta) -> (u8, DataMode, bool) {
    let Grant { protocol, least_mode, .. } = delta.grant.clone();
    (protocol, least_mode, delta.keys.is_some())
}

#[test]
fn an_agents_udp_demands_packet_macs_under_a_key_that_the_agent_knows_too() {
    let mut site = Site::new();
    let mut alice = Caller::new("alice", PHONE).agent();
    let asked = ask(&mut site, &mut alice, &both());
    assert_eq!(asked.iter().map(mode).collect::<Vec<_>>(), [(6, DataMode::Pinhole, true), (17, DataMode::Mac, true)]);
    let secret = open(&mut site, &mut alice, &asked);
    assert!(asked.iter().all(|delta| is_keyed_by(delta, &secret) && delta.grant.proves_address()));
    let other = SessionSecret::extract(b"h", (&[1; 32], &[2; 32]));
    assert!(!is_keyed_by(&asked[1], &other));
}

#[test]
fn a_telephones_udp_is_proved_by_address_and_port() {
    let mut site = Site::new();
    let asked = ask(&mut site, &mut Caller::new("alice", PHONE), AUDIO);
    assert_eq!(mode(&asked[0]), (17, DataMode::Pinhole, false));
}

#[test]
fn no_answer_carries_the_key() {
    let mut site = Site::new();
    let mut alice = Caller::new("alice", PHONE).agent();
    let asked = ask(&mut site, &mut alice, &udp());
    open(&mut site, &mut alice, &asked);
    let key = asked[0].keys.clone().unwrap().to_service;
    assert!(!site.last.windows(16).any(|window| window == key.expose()));
    assert!(!format!("{asked:?}").contains(&format!("{:?}", key.expose())));
}

#[test]
fn a_renewal_keeps_key_and_client_id() {
    let mut site = Site::new();
    let mut alice = Caller::new("alice", PHONE).agent();
    let first = ask(&mut site, &mut alice, &udp());
    let secret = open(&mut site, &mut alice, &first);
    site.pass(Duration::from_secs(100));
    let renewed = ask(&mut site, &mut alice, &udp());
    assert!(is_keyed_by(&renewed[0], &secret));
    let (before, after) = (first[0].grant.clone(), renewed[0].grant.clone());
    assert_eq!((before.id, before.client_id), (after.id, after.client_id));
    assert!(after.not_after > before.not_after);
}

#[test]
fn a_frontend_that_lost_the_key_makes_a_new_one_and_the_client_id_says_so() {
    let mut site = Site::new();
    let mut alice = Caller::new("alice", PHONE).agent();
    let first = ask(&mut site, &mut alice, &udp());
    open(&mut site, &mut alice, &first);
    site.pass(Duration::from_secs(100));
    // Started anew, with what gates report: everything but keys.
    site.ledger = Arc::new(Ledger::new(1_000));
    site.start(1);
    let known = first[0].clone().without_keys();
    site.ledger.opening(&known, "gate-1", 0).unwrap();
    let renewed = ask(&mut site, &mut alice, &udp());
    let later = open(&mut site, &mut alice, &renewed);
    assert!(is_keyed_by(&renewed[0], &later));
    let (before, after) = (first[0].grant.clone(), renewed[0].grant.clone());
    assert_eq!(before.id, after.id);
    assert_ne!(before.client_id, after.client_id);
}

#[test]
fn a_client_id_in_use_is_given_to_nobody_else() {
    // Two sites alike: in the second another grant has the first id that the sign-in would give.
    let mut probe = Site::new();
    let mut same = Caller::new("alice", PHONE).agent();
    let expected = ask(&mut probe, &mut same, &udp());
    let mut taken = expected[0].grant.clone();
    let (id, first_id) = (taken.id, taken.client_id);
    taken.id = sluicegate_grant::GrantId([1; 16]);
    let mut site = Site::new();
    let delta = GrantDelta { grant: taken, ..expected[0].clone().without_keys() };
    site.ledger.opening(&delta, "gate-1", 0).unwrap();
    let mut alice = Caller::new("alice", PHONE).agent();
    let asked = ask(&mut site, &mut alice, &udp());
    let secret = open(&mut site, &mut alice, &asked);
    assert_eq!(first_id, secret.client_id(id, 0));
    let grant = asked[0].grant.clone();
    assert_eq!((grant.id, grant.client_id), (id, secret.client_id(id, 1)));
}

#[test]
fn conformance_05_an_agent_with_capabilities_gets_grants_that_demand_them_and_keeps_them() {
    for service in ["web", "vault"] {
        let mut site = Site::new();
        let mut alice = Caller::new("alice", PHONE).capable().calls(service);
        let asked = ask(&mut site, &mut alice, &both());
        assert_eq!(
            asked.iter().map(mode).collect::<Vec<_>>(),
            [(6, DataMode::Capability, true), (17, DataMode::Capability, true)]
        );
        let secret = open(&mut site, &mut alice, &asked);
        assert!(asked.iter().all(|delta| is_keyed_by(delta, &secret) && delta.grant.proves_address()));
        site.pass(Duration::from_secs(100));
        let renewed = ask(&mut site, &mut alice, &both());
        assert_eq!(
            renewed.iter().map(mode).collect::<Vec<_>>(),
            [(6, DataMode::Capability, true), (17, DataMode::Capability, true)]
        );
    }
}

#[test]
fn conformance_05_who_proves_less_than_a_service_demands_is_refused() {
    for caller in [Caller::new("alice", PHONE), Caller::new("alice", PHONE).agent()] {
        let mut site = Site::new();
        let mut alice = caller.calls("vault");
        assert_eq!(status(&alice.invite(&mut site, &udp())), 403);
        assert!(site.asked().is_empty());
    }
}

#[test]
fn conformance_05_a_renewal_makes_no_weak_grant_pass_for_a_strong_one() {
    let mut site = Site::new();
    let mut alice = Caller::new("alice", PHONE).agent();
    let first = ask(&mut site, &mut alice, &udp());
    open(&mut site, &mut alice, &first);
    site.pass(Duration::from_secs(100));
    // The agent says more of itself than when the grants of this call were made, and the service demands it now.
    site.demand(DataMode::Capability);
    alice.is_capable = true;
    assert_eq!(status(&alice.invite(&mut site, &udp())), 403);
    assert!(site.asked().is_empty());
    // A call of its own gets what is demanded.
    let mut anew = Caller { call_id: "anew".into(), ..Caller::new("alice", PHONE).capable() };
    assert_eq!(mode(&ask(&mut site, &mut anew, &udp())[0]), (17, DataMode::Capability, true));
}
