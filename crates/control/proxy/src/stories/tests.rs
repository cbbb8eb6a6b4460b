use std::net::Ipv4Addr;

use sluicegate_api::Decision;
use sluicegate_grant::DataMode;

use super::*;

const CALL: CallId = [1; 12];
const NOW: UnixTime = UnixTime(1_000);

fn asked(call: CallId, (outcome, status): (Outcome, u16)) -> Decided {
    let decision = Decision {
        unix: NOW.0,
        user: "alice".into(),
        service: "pbx".into(),
        client: "192.0.2.1:5060".parse().unwrap(),
        outcome: outcome.label().into(),
        status,
        rung: Some("rules".into()),
        call: Some(call_text(call)),
        call_id: Some("id".into()),
        steps: vec!["+ because".into()],
    };
    Decided { decision, renewal: false, call: Some(call), caller: Who::User, left_out: 0 }
}

fn begun(max: usize) -> Stories {
    let stories = Stories::new(max);
    stories.decided(&asked(CALL, (Outcome::Admitted, 200)));
    stories.happened(NOW, CALL, Happened::Answered(Who::Service, Duration::from_millis(40)));
    stories
}

fn grant(index: u32, state: GrantState, bytes: u64) -> GrantStatus {
    GrantStatus {
        id: GrantId::of_call(CALL, index),
        user: "alice".into(),
        service: "pbx".into(),
        gate: "gate-1".into(),
        client: [192, 0, 2, 1].into(),
        mode: DataMode::Pinhole,
        protocol: 17,
        target: Ipv4Addr::new(10, 0, 0, 2).into(),
        target_ports: (4_000, 4_001),
        gate_address: None,
        gate_ports: (0, 0),
        not_before: NOW.0,
        not_after: NOW.0 + 300,
        bytes_max: 1_000,
        bytes_used: Some(bytes),
        flows: Some(1),
        state,
    }
}

fn open(stories: &Stories, index: u32, state: GrantState) {
    let at = (Ipv4Addr::new(203, 0, 113, 1).into(), (20_000, 20_001));
    stories.opened(NOW, &grant(index, state, 0), at);
}

fn texts(story: &CallStory) -> Vec<(&str, u64)> {
    story.steps.iter().map(|step| (step.text.as_str(), step.times)).collect()
}

#[test]
fn pinholes_are_told_with_their_places_and_their_renewals_once() {
    let stories = begun(9);
    open(&stories, 0, GrantState::Opening);
    (0..7).for_each(|_| open(&stories, 0, GrantState::Open));
    let told = stories.of(&call_text(CALL), &Ledger::new(9)).remove(0);
    let place = "udp/20000-20001 at 203.0.113.1 to udp/4000-4001 at 10.0.0.2 for 192.0.2.1";
    let (opened, prolonged) = (format!("gate gate-1 opened {place}"), format!("gate gate-1 prolonged {place}"));
    assert_eq!(texts(&told)[2..], [(opened.as_str(), 1), (prolonged.as_str(), 7)]);
}

#[test]
fn a_call_is_logged_with_what_its_grants_used_in_the_end_or_when_gates_say_nothing_for_some_time() {
    let ledger = Ledger::new(9);
    for says in [true, false] {
        let stories = begun(9);
        (0..2).for_each(|index| open(&stories, index, GrantState::Opening));
        stories.happened(NOW, CALL, Happened::HungUp(Who::User));
        stories.used(&[
            grant(0, GrantState::Open, 300),
            grant(1, GrantState::Open, 50),
            grant(2, GrantState::Opening, 9),
        ]);
        assert!(stories.sweep(NOW, &ledger).is_empty());
        let mut expected = 350;
        if says {
            for (index, bytes) in [(0, 310), (1, 60)] {
                stories.grant_ended(NOW, "gate-1", GrantId::of_call(CALL, index), (EndCause::Revoked, bytes));
            }
            expected = 370;
        }
        let later = if says { NOW } else { NOW.plus_secs(PATIENCE_S) };
        let logged = stories.sweep(later, &ledger);
        assert_eq!((logged.len(), logged[0].bytes_to_service), (1, expected));
        assert!(stories.sweep(later, &ledger).is_empty() && stories.gauge().used == 0);
    }
}

#[test]
fn who_ends_a_call_first_is_who_ended_it() {
    let stories = begun(9);
    open(&stories, 0, GrantState::Opening);
    stories.revoked(NOW, CALL);
    stories.happened(NOW, CALL, Happened::HungUp(Who::Service));
    let over = stories.take_over().remove(0);
    let end = over.end.unwrap();
    assert_eq!((&*end.why, &*end.by, over.setup_ms), ("revoked", "operator", Some(40)));
}

#[test]
fn a_call_that_nobody_renews_is_over_with_its_time() {
    let (stories, ledger) = (begun(9), Ledger::new(9));
    let until = NOW.plus_secs(300);
    assert!(ledger.keep_call(CALL, ("alice", "pbx"), until));
    for second in 0..=300 {
        ledger.expire(NOW.plus_secs(second));
        stories.sweep(NOW.plus_secs(second), &ledger);
        assert_eq!(stories.gauge().used, 1, "{second}");
    }
    let over = stories.sweep(until.plus_secs(LOOK_AFTER_S), &ledger).remove(0);
    assert_eq!(over.end.unwrap().why, "expired");
}

#[test]
fn a_change_that_is_refused_ends_no_call() {
    let stories = begun(9);
    stories.happened(NOW, CALL, Happened::Declined(Who::Service, 488));
    stories.happened(NOW, CALL, Happened::WentOn(Who::User));
    stories.decided(&Decided { renewal: true, ..asked(CALL, (Outcome::Denied, 403)) });
    let told = stories.of("id", &Ledger::new(9)).remove(0);
    assert_eq!((told.end, told.steps.len()), (None, 5));
}

#[test]
fn stories_are_bounded_and_the_oldest_that_is_over_is_forgotten_first() {
    let stories = Stories::new(2);
    let call = |number: u32| {
        let mut id = [0; 12];
        id[..4].copy_from_slice(&number.to_be_bytes());
        id
    };
    (0..5).for_each(|number| stories.decided(&asked(call(number), (Outcome::Admitted, 200))));
    assert_eq!(stories.gauge(), Gauge::of("stories", 2, 2));
    let ledger = Ledger::new(9);
    (0..2).for_each(|number| stories.happened(NOW, call(number), Happened::HungUp(Who::User)));
    for number in 2..2 + Stories::OVER_MAX as u32 {
        stories.decided(&asked(call(number), (Outcome::Denied, 403)));
    }
    assert_eq!(stories.of("id", &ledger).len(), Stories::OVER_MAX);
    assert!(stories.of(&call_text(call(1)), &ledger).is_empty());
    let stories = begun(9);
    for code in 0..100 {
        stories.happened(NOW, CALL, Happened::Declined(Who::User, 400 + code));
    }
    let told = stories.of("id", &ledger).remove(0);
    assert_eq!((told.steps.len(), told.steps_left_out), (STEPS_MAX, 102 - STEPS_MAX as u64));
    (0..200).for_each(|index| open(&stories, index, GrantState::Opening));
    stories.used(&(0..200).map(|index| grant(index, GrantState::Open, 1)).collect::<Vec<_>>());
    stories.happened(NOW, CALL, Happened::HungUp(Who::User));
    assert_eq!(stories.take_over()[0].bytes_to_service, GRANTS_MAX as u64);
}

#[test]
fn of_more_calls_than_are_told_in_steps_the_oldest_keep_their_beginning_alone() {
    let stories = Stories::new(2 * Stories::STEPPED_MAX);
    let call = |number: u32| {
        let mut id = [9; 12];
        id[..4].copy_from_slice(&number.to_be_bytes());
        id
    };
    for number in 0..=Stories::STEPPED_MAX as u32 {
        stories.decided(&asked(call(number), (Outcome::Admitted, 200)));
    }
    let steps = |number| {
        let told = stories.of(&call_text(call(number)), &Ledger::new(9)).remove(0);
        assert_eq!((told.user.as_str(), told.call_id.as_str()), ("alice", "id"));
        (told.steps.len(), told.steps_left_out)
    };
    assert_eq!((steps(0), steps(1)), ((0, 1), (1, 0)));
}
