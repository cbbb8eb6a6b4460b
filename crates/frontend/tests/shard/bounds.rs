//! Every table has a maximum, and what happens there is stated.

use sluicegate_frontend::{Count, Kind, Outcome, Tables};

use crate::site::{AUDIO, Caller, PHONE, Site, header, status};

fn tables() -> Tables {
    Tables { transactions_max: 4, transactions_per_user_max: 100, replays_max: 100, ..Tables::default() }
}

/// Calls as `user` with a dialog of its own; the status.
fn call(site: &mut Site, user: &str, nth: u32) -> u16 {
    let mut caller = Caller::new(user, PHONE);
    caller.call_id = format!("call-{nth}");
    caller.from = format!("198.51.100.7:{}", 41_000 + nth);
    status(&caller.invite(site, AUDIO))
}

#[test]
fn full_transactions_mean_503_and_nothing_is_opened() {
    let mut site = Site::with(1, tables());
    assert!((0..4).all(|nth| call(&mut site, "alice", nth) == 100));
    site.asked();
    assert_eq!(call(&mut site, "alice", 4), 503);
    assert!(site.asked().is_empty());
    assert_eq!(site.shards[0].gauges()[0], ("server_transactions", 4, 4));
    assert_eq!(site.metrics[0].count(Count::TableFull), 1);
    // They end by themselves.
    site.pass(std::time::Duration::from_secs(60));
    assert_eq!(call(&mut site, "alice", 5), 100);
}

#[test]
fn one_user_cannot_take_all_transactions() {
    let mut site = Site::with(1, Tables { transactions_max: 64, transactions_per_user_max: 3, ..tables() });
    assert!((0..3).all(|nth| call(&mut site, "alice", nth) == 100));
    assert_eq!(call(&mut site, "alice", 3), 503);
    assert_eq!(call(&mut site, "bob", 4), 403);
}

#[test]
fn a_full_replay_set_refuses_rather_than_forgets() {
    let mut site = Site::with(1, Tables { replays_max: 2, transactions_max: 64, ..tables() });
    assert!((0..2).all(|nth| call(&mut site, "alice", nth) == 100));
    let mut caller = Caller::new("alice", PHONE);
    let answer = caller.invite(&mut site, AUDIO);
    assert_eq!((status(&answer), header(&answer, "Retry-After")), (503, Some("5")));
    site.pass(std::time::Duration::from_secs(200));
    assert_eq!(call(&mut site, "alice", 9), 100);
}

#[test]
fn a_full_event_queue_means_503() {
    let mut site = Site::with(1, Tables { events_max: 1, transactions_max: 64, ..tables() });
    // The decision's note takes the only place, so the opening finds none.
    assert_eq!(call(&mut site, "alice", 0), 503);
    assert!(site.asked().is_empty());
}

#[test]
fn as_many_grants_as_the_user_may_have_and_no_more() {
    let mut site = Site::with(1, Tables { transactions_max: 256, ..tables() });
    let mut admitted = 0;
    for nth in 0..65 {
        admitted += u32::from(call(&mut site, "alice", nth) == 100);
        site.gate_opens();
    }
    assert_eq!(admitted, 64);
    assert_eq!(site.metrics[0].requests(Kind::Invite, Outcome::Denied), 1);
}

#[test]
fn a_flood_of_strangers_leaves_no_trace_in_any_table() {
    let mut site = Site::new();
    for nth in 0..10_000_u32 {
        let mut stranger = Caller::new("alice", &format!("198.51.100.7:{}", 1 + nth % 60_000));
        stranger.call_id = format!("flood-{nth}");
        site.send(&stranger.from.clone(), stranger.request("INVITE", "sip:web@example.net", "", AUDIO));
    }
    assert!(site.shards[0].gauges().iter().all(|(_, used, _)| *used == 0));
    assert!(site.events.is_empty());
}

#[test]
fn wrong_passwords_leave_few_notes_and_nothing_else() {
    let mut site = Site::new();
    for nth in 0..200 {
        let mut caller = Caller { password: "wrong horse".into(), ..Caller::new("alice", PHONE) };
        caller.call_id = format!("guess-{nth}");
        assert_eq!(status(&caller.invite(&mut site, AUDIO)), 407);
    }
    assert!(site.events.len() <= 20, "{}", site.events.len());
    assert!(site.shards[0].gauges().iter().all(|(_, used, _)| *used == 0));
}
