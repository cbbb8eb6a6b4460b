use super::*;
use sluicegate_feed::Selected;
use sluicegate_grant::ANY_PORTS;

const NOW: UnixTime = UnixTime(1_000);

fn delta(call: u8, index: u32, user: &str) -> (GrantDelta, Grant) {
    let grant = Grant {
        flags: 0,
        least_mode: DataMode::Pinhole,
        protocol: 17,
        id: GrantId::of_call([call; 12], index),
        issuer: [1; 8],
        epoch: 0,
        not_before: NOW,
        not_after: NOW.plus_secs(60),
        bytes: 1_000_000,
        client_id: 1,
        flows: 0,
        rate_100kbps: 0,
        client_address: IpAddr::from([198, 51, 100, 7]),
        client_ports: ANY_PORTS,
        gate_address: IpAddr::from([0, 0, 0, 0]),
        gate_ports: (0, 0),
        holder: [0; 32],
        user_pseudonym: [0; 8],
    };
    let delta = GrantDelta {
        grant: grant.clone(),
        user: user.into(),
        service: "web".into(),
        target: IpAddr::from([10, 0, 0, 1]),
        target_ports: (80, 80),
        mode: ServiceMode::Nat,
        keys: None,
    };
    (delta, grant)
}

fn open(ledger: &Ledger, call: u8, index: u32, user: &str) -> Result<(), LedgerFull> {
    ledger.opening(&delta(call, index, user).0, "gate-1", 3)
}

fn active(call: u8) -> ActiveGrant {
    let (delta, address) = (delta(call, 0, "alice").0, IpAddr::from([203, 0, 113, 9]));
    ActiveGrant { delta, address, ports: (20_000, 20_000), bytes_used: 5, flows: 1 }
}

#[test]
fn a_full_directory_refuses_new_grants_and_renews_old_ones() {
    let ledger = Ledger::new(2);
    open(&ledger, 1, 0, "alice").unwrap();
    open(&ledger, 2, 0, "alice").unwrap();
    assert!(open(&ledger, 3, 0, "alice").is_err());
    open(&ledger, 2, 0, "alice").unwrap();
    assert_eq!(ledger.gauges()[0], Gauge::of("grants", 2, 2));
}

#[test]
fn a_users_grants_are_counted_without_the_call_that_is_renewed() {
    let ledger = Ledger::new(10);
    let held = |besides| ledger.held_by("alice", besides);
    open(&ledger, 1, 0, "alice").unwrap();
    open(&ledger, 1, 1, "alice").unwrap();
    open(&ledger, 2, 0, "alice").unwrap();
    open(&ledger, 3, 0, "bob").unwrap();
    assert_eq!(held(None).grants, 3);
    assert_eq!(held(Some([1; 12])).grants, 1);
    ledger.ended("gate-1", GrantId::of_call([2; 12], 0));
    assert_eq!(held(None).grants, 2);
    assert_eq!(ledger.call([1; 12]), Some(("alice".into(), "web".into())));
    // A budget that is spent can be renewed: the call lives until its time is over.
    assert_eq!(ledger.call([2; 12]), Some(("alice".into(), "web".into())));
    ledger.expire(NOW.plus_secs(60));
    assert_eq!(ledger.call([2; 12]), None);
}

#[test]
fn an_answer_goes_to_the_shard_that_asked_and_only_once() {
    let ledger = Ledger::new(10);
    open(&ledger, 1, 0, "alice").unwrap();
    let id = GrantId::of_call([1; 12], 0);
    let address = IpAddr::from([203, 0, 113, 9]);
    assert_eq!(ledger.opened("gate-1", id, address, (20_000, 20_000)), Some(3));
    assert_eq!(ledger.opened("gate-1", id, address, (20_000, 20_000)), None);
    assert_eq!(ledger.rows()[0].state, GrantState::Open);
    // A refused renewal ends nothing.
    open(&ledger, 1, 0, "alice").unwrap();
    assert_eq!(ledger.refused("gate-1", id), Some(3));
    assert_eq!(ledger.rows().len(), 1);
}

#[test]
fn a_gate_has_no_say_in_another_gates_grants() {
    let ledger = Ledger::new(10);
    open(&ledger, 1, 0, "alice").unwrap();
    let id = GrantId::of_call([1; 12], 0);
    assert_eq!(ledger.opened("gate-2", id, IpAddr::from([203, 0, 113, 66]), (1, 1)), None);
    assert_eq!(ledger.refused("gate-2", id), None);
    assert!(ledger.ended("gate-2", id).is_none());
    assert_eq!(ledger.rows()[0].gate_address, None);
}

#[test]
fn what_each_of_two_gates_answers_is_kept_and_a_revoke_goes_to_both() {
    let ledger = Ledger::new(10);
    let (asked, grant) = delta(1, 0, "alice");
    ledger.opening(&asked, "gate-1", 3).unwrap();
    ledger.opening(&asked, "gate-2", 4).unwrap();
    let [first, second] = [IpAddr::from([203, 0, 113, 9]), IpAddr::from([203, 0, 113, 10])];
    assert_eq!(ledger.opened("gate-1", grant.id, first, (20_000, 20_000)), Some(3));
    assert_eq!(ledger.opened("gate-2", grant.id, second, (30_000, 30_000)), Some(4));
    ledger.used("gate-2", &GrantUsage { id: grant.id, bytes_used: 7, error_bytes: 0, flows: 1 });
    let shown = |row: GrantStatus| (row.gate, row.gate_address, row.gate_ports.0, row.bytes_used);
    let (one, two) =
        (("gate-1".to_owned(), Some(first), 20_000, Some(0)), ("gate-2".to_owned(), Some(second), 30_000, Some(7)));
    assert_eq!(ledger.rows().into_iter().map(shown).collect::<Vec<_>>(), [one, two.clone()]);
    assert_eq!((ledger.snapshot("gate-1").len(), ledger.snapshot("gate-2").len(), ledger.gauges()[0].used), (1, 1, 1));
    assert_eq!(ledger.held_by("alice", None).grants, 1, "one grant, wherever it stands");

    // It ends at one of them, and stands at the other.
    ledger.ended("gate-1", grant.id);
    assert_eq!(ledger.rows().into_iter().map(shown).collect::<Vec<_>>(), [two]);
    ledger.opening(&asked, "gate-1", 3).unwrap();
    let selector = Selector::all(Selected::Call([1; 12]));
    let gates: Vec<String> = ledger.matching(&selector).into_iter().map(|row| row.gate).collect();
    assert_eq!(gates, ["gate-1", "gate-2"]);
    assert_eq!(ledger.revoke(NOW, &selector, Some("alice")), [[1; 12]]);
    assert!(ledger.rows().is_empty() && ledger.snapshot("gate-2").is_empty());
}

#[test]
fn expired_grants_go_after_a_grace() {
    let ledger = Ledger::new(10);
    open(&ledger, 1, 0, "alice").unwrap();
    assert_eq!(ledger.expire(NOW.plus_secs(64)).len(), 0);
    assert_eq!(ledger.expire(NOW.plus_secs(65)).len(), 1);
}

#[test]
fn a_report_that_crossed_a_revoke_brings_nothing_back() {
    let ledger = Ledger::new(10);
    let report = active(1);
    ledger.active(&report, "gate-1").unwrap();
    assert_eq!(ledger.rows()[0].bytes_used, Some(5));
    ledger.revoke(NOW, &Selector::all(Selected::User("alice".into())), None);
    ledger.active(&report, "gate-1").unwrap();
    assert!(ledger.rows().is_empty());
    ledger.expire(NOW.plus_secs(REVOKE_SECS));
    ledger.active(&report, "gate-1").unwrap();
    assert_eq!(ledger.rows().len(), 1);
}
