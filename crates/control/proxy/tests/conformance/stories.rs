//! The story of a call: why it ended and by whom, or why it never began.

use std::time::Duration;

use sluicegate_api::{CallStory, GrantState};
use sluicegate_proxy::{Event, Stories};

use crate::{
    inbound::{TO_ALICE, alices_side, answered, called, register, switch, to},
    site::{ANSWER, AUDIO, Caller, PBX, PHONE, PORTS, Site, bye_of_service, phone, relayed, reply, set_up, status},
};

/// Has all that the site said since the last call told.
fn tell(site: &mut Site, stories: &Stories) {
    for event in std::mem::take(&mut site.events) {
        match event {
            Event::Decided(decided) => stories.decided(&decided),
            Event::Told(call, what) => stories.happened(site.unix, call, what),
            _ => {}
        }
    }
}

/// The only story of this Call-ID.
fn story(site: &mut Site, stories: &Stories, call_id: &str) -> CallStory {
    tell(site, stories);
    let mut found = stories.of(call_id, &site.ledger);
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

/// Why a call ended, by whom, and with which status.
fn end(story: &CallStory) -> (&str, &str, Option<u16>) {
    let end = story.end.as_ref().unwrap_or_else(|| panic!("it lives: {story:?}"));
    (&end.why, &end.by, end.status)
}

#[test]
fn a_call_is_told_from_what_allowed_it_to_who_hung_up() {
    for of_service in [false, true] {
        let (mut site, stories) = (Site::new(), Stories::new(10));
        let mut alice = phone();
        set_up(&mut site, &mut alice);
        let told = story(&mut site, &stories, "call-of-alice");
        assert_eq!((told.user.as_str(), told.service.as_str(), &*told.caller), ("alice", "pbx", "user"));
        assert_eq!((told.client.to_string().as_str(), told.setup_ms, told.end.as_ref()), (PHONE, Some(0), None));
        assert!(told.steps[0].text.starts_with("asked for: admitted (200) by rules: + "), "{told:?}");
        assert_eq!(told.grants.len(), 1);
        let grant = site.ledger.rows().remove(0);
        assert_eq!(
            (grant.state, stories.of(&grant.id.to_string(), &site.ledger)),
            (GrantState::Open, vec![told.clone()])
        );
        assert_eq!(stories.of(&told.call, &site.ledger), [told]);
        site.pass(Duration::from_secs(7));
        let bye =
            if of_service { bye_of_service(&alice) } else { alice.request("BYE", "sip:pbx@10.0.0.2:5060", "", "") };
        site.send(if of_service { PBX } else { PHONE }, bye);
        let told = story(&mut site, &stories, "call-of-alice");
        assert_eq!(end(&told), ("hung_up", if of_service { "service" } else { "user" }, None));
        assert_eq!(told.end.unwrap().unix - told.answered_unix.unwrap(), 7);
    }
}

#[test]
fn a_call_that_never_was_is_told_with_the_reason() {
    let uri = "sip:pbx@example.net";
    // The service will not, or its caller gives up, or nobody answers.
    for (code, expected) in [(486, ("declined", "service", Some(486))), (487, ("cancelled", "service", Some(487)))] {
        let (mut site, stories) = (Site::new(), Stories::new(10));
        let invite = relayed(&mut site, &mut phone());
        site.send(PBX, reply(&invite, code, ""));
        assert_eq!(end(&story(&mut site, &stories, "call-of-alice")), expected);
    }
    let (mut site, stories) = (Site::new(), Stories::new(10));
    relayed(&mut site, &mut phone());
    site.pass(Duration::from_secs(40));
    assert_eq!(end(&story(&mut site, &stories, "call-of-alice")), ("failed", "frontend", Some(408)));
    // Nobody serves it; policy says no; the password is wrong.
    let mut nobody = Caller { call_id: "nobody".into(), ..phone().calls("files") };
    nobody.invite(&mut site, &PORTS.replace("service-ports:80", "service-ports:22"));
    let told = story(&mut site, &stories, "nobody");
    assert_eq!(end(&told), ("failed", "frontend", Some(480)));
    assert!(told.steps[1].text.contains("nobody is registered"), "{told:?}");
    let mut bob = Caller::new("bob", PHONE).calls("pbx");
    bob.sign_in(&mut site, "INVITE", uri, "", AUDIO);
    let told = story(&mut site, &stories, "call-of-bob");
    assert_eq!(end(&told), ("refused", "frontend", Some(403)));
    let mut wrong = Caller { password: "guess".into(), call_id: "wrong".into(), ..phone() };
    wrong.sign_in(&mut site, "INVITE", uri, "", AUDIO);
    let told = story(&mut site, &stories, "wrong");
    assert_eq!((end(&told), told.call.as_str()), (("refused", "frontend", Some(407)), ""));
    assert!(told.steps[0].text.starts_with("asked for: bad_digest (407) by credentials: "), "{told:?}");
    // The log has all of them but the one whose sender proved nothing.
    let logged: Vec<_> = stories.sweep(site.unix, &site.ledger).into_iter().map(|story| story.call_id).collect();
    assert_eq!(logged, ["call-of-alice", "nobody", "call-of-bob"]);
    assert!(stories.sweep(site.unix, &site.ledger).is_empty(), "once");
}

#[test]
fn a_declared_service_answers_at_the_frontend_and_a_caller_that_falls_silent_ends_the_call() {
    let (mut site, stories) = (Site::new(), Stories::new(10));
    let mut alice = Caller::new("alice", PHONE);
    assert_eq!(status(&alice.invite(&mut site, AUDIO)), 100);
    site.gate_opens();
    let told = story(&mut site, &stories, "call-of-alice");
    assert_eq!(told.steps[1].text, "the frontend answered after 0 ms");
    site.pass(Duration::from_secs(60));
    assert_eq!(end(&story(&mut site, &stories, "call-of-alice")), ("unacknowledged", "frontend", None));
}

#[test]
fn a_called_telephone_has_a_story_too() {
    let (mut site, stories) = (Site::new(), Stories::new(10));
    let mut early = Caller { call_id: "too early".replace(' ', "-"), ..switch() };
    let invite = early.signed(&mut site, "INVITE", TO_ALICE, "", ANSWER);
    site.send(PBX, invite);
    let told = story(&mut site, &stories, "too-early");
    assert_eq!((end(&told), told.user.as_str()), (("refused", "frontend", Some(480)), "alice"));
    register(&mut site, "alice", PHONE, "");
    let mut switch = switch();
    let invite = called(&mut site, &mut switch);
    let ok = site.send(PHONE, answered(&invite, 200, "alice-tag", AUDIO));
    switch.take_dialog(to(&ok, PBX)[0]);
    let told = story(&mut site, &stories, &switch.call_id);
    assert_eq!((&*told.caller, told.service.as_str(), told.client.to_string().as_str()), ("service", "pbx", PHONE));
    assert_eq!(told.steps[1].text, "the user answered after 0 ms");
    let bye = alices_side(&invite).request("BYE", "sip:switch@203.0.113.1:5060", "", "");
    site.send(PHONE, bye);
    assert_eq!(end(&story(&mut site, &stories, &switch.call_id)), ("hung_up", "user", None));
}

#[test]
fn a_call_id_that_a_terminal_would_obey_is_not_shown() {
    let (mut site, stories) = (Site::new(), Stories::new(10));
    for (number, call_id) in ["\u{9b}2J", &"x".repeat(200), "caf\u{e9}"].into_iter().enumerate() {
        let mut alice = Caller { call_id: format!("plain-{number}"), ..phone() };
        let signed = alice.signed(&mut site, "INVITE", "sip:pbx@example.net", "", AUDIO);
        let sent =
            site.send(PHONE, signed.replace(&format!("Call-ID: plain-{number}"), &format!("Call-ID: {call_id}")));
        assert_eq!(status(&sent[1].1), 100, "{sent:?}");
    }
    tell(&mut site, &stories);
    assert_eq!(stories.of("(not shown)", &site.ledger).len(), 3);
}
