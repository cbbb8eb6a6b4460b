//! Who may say what, and for how long: callers, services, and everybody else.

use std::{sync::Arc, time::Duration};

use sluicegate_proxy::{Count, Event, Input, Tables};

use crate::site::{
    AUDIO, Caller, PBX, PHONE, PORTS, Site, bye_of_service, header, phone, relayed, reply, set_up, status,
};

const WEB: &str = "sip:web@example.net";
const INSIDE: &str = "sip:pbx@10.0.0.2:5060";
const STRANGER: &str = "192.0.2.66:5060";
/// Another program at the caller's own address.
const NEIGHBOUR: &str = "198.51.100.7:40001";

/// What one datagram was answered, if anything.
fn answer(site: &mut Site, from: &str, request: String) -> u16 {
    site.send(from, request).iter().map(|(_, text)| status(text)).find(|code| *code != 0).unwrap_or(0)
}

/// How many of the messages went to the SIP server.
fn to_pbx(sent: &[(std::net::SocketAddr, String)]) -> usize {
    sent.iter().filter(|(to, _)| to.to_string() == PBX).count()
}

#[test]
fn a_call_is_ended_from_its_own_flow_or_with_its_users_password() {
    let mut site = Site::new();
    let mut alice = Caller::new("alice", PHONE);
    alice.set_up(&mut site, AUDIO);
    for from in [STRANGER, NEIGHBOUR] {
        let bye = alice.request("BYE", WEB, "", "");
        assert_eq!(answer(&mut site, from, bye), 407, "{from}");
    }
    // bob has a password of his own, which is none for this call.
    let mut bob = Caller::new("bob", NEIGHBOUR);
    (bob.to_tag, bob.call_id) = (alice.to_tag.clone(), alice.call_id.clone());
    assert_eq!(status(&bob.sign_in(&mut site, "BYE", WEB, "", "")), 481);
    assert_eq!((site.revokes(), site.ledger.rows().len()), (0, 1));
    let mut elsewhere = Caller::new("alice", NEIGHBOUR);
    (elsewhere.to_tag, elsewhere.call_id, elsewhere.cseq) = (alice.to_tag.clone(), alice.call_id.clone(), alice.cseq);
    assert_eq!(status(&elsewhere.sign_in(&mut site, "BYE", WEB, "", "")), 200);
    assert_eq!(site.revokes(), 1);
    let mut again = Caller { call_id: "again".into(), ..Caller::new("alice", PHONE) };
    again.set_up(&mut site, AUDIO);
    let bye = again.request("BYE", WEB, "", "");
    assert_eq!((answer(&mut site, PHONE, bye), site.revokes()), (200, 1));
}

#[test]
fn a_route_cookie_is_worth_nothing_after_its_call_nor_for_anybody_else() {
    let mut site = Site::new();
    let mut alice = phone();
    set_up(&mut site, &mut alice);
    for (from, code) in [(STRANGER, 407), (NEIGHBOUR, 407)] {
        let info = alice.request("INFO", INSIDE, "", "");
        let sent = site.send(from, info);
        assert_eq!((to_pbx(&sent), status(&sent[0].1)), (0, code), "{from}");
    }
    // Towards the client only the service may speak, and not whoever has read the cookie.
    let bye = bye_of_service(&alice);
    assert_eq!(answer(&mut site, STRANGER, bye), 481);
    let bye = alice.request("BYE", INSIDE, "", "");
    assert_eq!(to_pbx(&site.send(PHONE, bye.clone())), 1);
    // It may have been lost on the way to the service.
    assert_eq!(to_pbx(&site.send(PHONE, bye)), 1);
    assert_eq!(site.revokes(), 1);
    site.start(1);
    for method in ["MESSAGE", "INFO", "OPTIONS", "REFER", "BYE", "INVITE"] {
        for from in [PHONE, STRANGER] {
            let request = alice.request(method, INSIDE, "", "");
            let sent = site.send(from, request);
            assert_eq!((to_pbx(&sent), status(&sent[0].1)), (0, 481), "{method} from {from}");
        }
    }
    let ack = alice.request("ACK", INSIDE, "", "");
    assert!(site.send(PHONE, ack).is_empty());
}

#[test]
fn one_call_says_so_much_a_second() {
    let mut site = Site::new();
    let mut alice = phone();
    set_up(&mut site, &mut alice);
    let mut passed = 0;
    for _ in 0..200 {
        let info = alice.request("INFO", INSIDE, "", "");
        passed += to_pbx(&site.send(PHONE, info));
    }
    // The ACK was one of the forty.
    assert_eq!(passed, 39);
    site.pass(Duration::from_secs(1));
    let info = alice.request("INFO", INSIDE, "", "");
    assert_eq!(to_pbx(&site.send(PHONE, info)), 1);
}

#[test]
fn an_ack_goes_to_the_shard_that_its_tag_names_and_nowhere_for_a_dead_call() {
    let mut site = Site::with(4, Tables::default());
    let mut alice = Caller::new("alice", PHONE);
    alice.set_up(&mut site, AUDIO);
    let ack = alice.request("ACK", WEB, "", "");
    let handed = |site: &mut Site| {
        let events = std::mem::take(&mut site.events);
        let shards = events.iter().filter_map(|event| match event {
            Event::HandOver { shard, .. } => Some(*shard),
            _ => None,
        });
        shards.collect::<Vec<_>>()
    };
    for shard in 1..4 {
        site.send_to(shard, STRANGER, &ack);
    }
    assert_eq!(handed(&mut site), [0, 0, 0]);
    let bye = alice.request("BYE", WEB, "", "");
    site.send(PHONE, bye);
    for shard in 0..4 {
        site.send_to(shard, STRANGER, &ack);
    }
    assert!(handed(&mut site).is_empty());
}

#[test]
fn a_caller_is_called_by_nothing_but_its_own_name() {
    let mut site = Site::new();
    let mut alice = phone();
    let forged = alice.signed(&mut site, "INVITE", "sip:pbx@example.net", "", AUDIO);
    let forged = forged.replacen("From: <sip:alice@", "From: <sip:bob@", 1);
    let sent = site.send(PHONE, forged);
    assert_eq!((to_pbx(&sent), status(&sent.last().unwrap().1)), (0, 403));
    let claims = "Remote-Party-ID: <sip:boss@example.net>\r\nP-Preferred-Identity: <sip:boss@example.net>\r\n\
        History-Info: <sip:boss@example.net>;index=1\r\nDiversion: <sip:boss@example.net>\r\n\
        P-Served-User: <sip:boss@example.net>\r\np-asserted-identity: <sip:boss@example.net>\r\n";
    let mut alice = Caller { call_id: "another".into(), ..phone() };
    let signed = alice.signed(&mut site, "INVITE", "sip:pbx@example.net", claims, AUDIO);
    let sent = site.send(PHONE, signed);
    assert!(to_pbx(&sent) == 1 && !sent[0].1.contains("boss"), "{}", sent[0].1);
    assert_eq!(header(&sent[0].1, "P-Asserted-Identity"), Some("<sip:alice@example.net>"));
    let mut shy = Caller { call_id: "shy".into(), ..phone() };
    let signed = shy.signed(&mut site, "INVITE", "sip:pbx@example.net", "", AUDIO);
    let signed = signed.replacen("From: <sip:alice@example.net>", "From: <sip:anonymous@anonymous.invalid>", 1);
    assert_eq!(to_pbx(&site.send(PHONE, signed)), 1);
}

#[test]
fn an_answer_counts_only_from_where_the_request_went_and_from_this_start() {
    let mut site = Site::new();
    let mut alice = phone();
    let invite = relayed(&mut site, &mut alice);
    let forged = reply(&invite, 403, "");
    assert!(site.send("10.0.0.3:5060", forged.clone()).is_empty());
    assert_eq!(site.metrics[0].count(Count::ResponsesUnmatched), 1);
    site.start(1);
    assert!(site.send(PBX, forged.clone()).is_empty());
    // The first request of the new start has the same number as that of the old.
    let mut again = Caller { call_id: "again".into(), ..phone() };
    relayed(&mut site, &mut again);
    assert!(site.send(PBX, forged).is_empty());
    // Passed on without a transaction: the same.
    let mut site = Site::new();
    let mut alice = phone();
    set_up(&mut site, &mut alice);
    let options = alice.request("OPTIONS", INSIDE, "", "");
    let options = site.send(PHONE, options).remove(0).1;
    assert!(site.send("10.0.0.3:5060", reply(&options, 200, "")).is_empty());
    assert_eq!(site.send(PBX, reply(&options, 200, "")).len(), 1);
}

#[test]
fn nobody_outside_learns_where_a_service_lives() {
    let mut site = Site::new();
    let mut alice = phone();
    let ok = set_up(&mut site, &mut alice);
    assert_eq!(header(&ok, "Contact"), Some("<sip:pbx@203.0.113.1:5060>"));
    assert!(!ok.contains("10.0.0.2"), "{ok}");
    // What the client was told leads to the service all the same.
    let options = alice.request("OPTIONS", "sip:pbx@203.0.113.1:5060", "", "");
    let (to, options) = site.send(PHONE, options).remove(0);
    assert!(to.to_string() == PBX && options.starts_with("OPTIONS sip:pbx@10.0.0.2:5060 "), "{options}");
    let back = site.send(PBX, reply(&options, 200, "")).remove(0).1;
    assert!(status(&back) == 200 && !back.contains("10.0.0.2"), "{back}");
    let mut alice = Caller { call_id: "another".into(), ..phone() };
    let invite = relayed(&mut site, &mut alice);
    let sent = site.send(PBX, reply(&invite, 302, ""));
    let moved = sent.iter().find(|(to, _)| to.to_string() == PHONE).unwrap();
    assert!(status(&moved.1) == 302 && !moved.1.contains("10.0.0.2"), "{}", moved.1);
}

#[test]
fn unproved_senders_of_one_prefix_are_answered_so_often_and_their_neighbours_still() {
    let mut site = Site::new();
    site.unproved_answers_per_s = 50;
    site.start(1);
    let mut stranger = Caller::new("nobody", STRANGER);
    let mut answers = Vec::new();
    for _ in 0..1_000 {
        let invite = stranger.request("INVITE", WEB, "", AUDIO);
        answers.extend(site.send(STRANGER, invite));
    }
    // Half of two seconds' worth: the other half is kept for neighbours.
    let bytes: usize = answers.iter().map(|(_, text)| text.len()).sum();
    assert!((50 * 512..51 * 512 + 100).contains(&bytes), "{bytes}");
    assert_eq!(site.metrics[0].count(Count::AnswersTooMany), 1_000 - answers.len() as u64);
    let mut neighbour = Caller::new("alice", "192.0.2.7:5060");
    neighbour.set_up(&mut site, AUDIO);
}

#[test]
fn a_strangers_text_reaches_no_operators_terminal() {
    let mut site = Site::new();
    let mut stranger = Caller { password: "wrong".into(), ..Caller::new("alice", STRANGER) };
    let uri = "sip:%1b%5b31mFAKE%20LINE%0a@example.net";
    assert_eq!(status(&stranger.sign_in(&mut site, "INVITE", uri, "", AUDIO)), 407);
    let notes: Vec<_> = site.events.iter().filter(|event| matches!(event, Event::Decided(_))).collect();
    assert!(!notes.is_empty());
    for note in notes {
        let Event::Decided(decided) = note else { continue };
        let decision = &decided.decision;
        let shown = format!("{} {} {}", decision.user, decision.service, decision.steps.join(" "));
        assert!(!shown.chars().any(char::is_control) && !shown.contains("FAKE"), "{shown:?}");
    }
}

#[test]
fn a_bye_that_cannot_be_passed_on_ends_nothing() {
    let mut site = Site::new();
    let mut alice = phone();
    set_up(&mut site, &mut alice);
    let bye = alice.request("BYE", INSIDE, "", "").replacen("Max-Forwards: 70", "Max-Forwards: 0", 1);
    assert_eq!(answer(&mut site, PHONE, bye), 483);
    assert_eq!((site.revokes(), site.ledger.rows().len()), (0, 1));
}

#[test]
fn a_service_is_told_when_a_call_is_over_without_a_bye() {
    let byes = |sent: &[(std::net::SocketAddr, String)]| {
        sent.iter().filter(|(to, text)| to.to_string() == PBX && text.starts_with("BYE sip:pbx@10.0.0.2:5060 ")).count()
    };
    let mut site = Site::new();
    let mut alice = phone();
    set_up(&mut site, &mut alice);
    let call = site.ledger.rows()[0].id.call();
    let sent = site.tell(0, Input::Over(Arc::from([call, [9; 12]])));
    assert_eq!(byes(&sent), 1, "revoked: {sent:?}");
    assert!(sent[0].1.contains(";tag=pbx-tag") && sent[0].1.contains(";tag=alice-tag"));
    assert_eq!(byes(&site.tell(0, Input::Over(Arc::from([call])))), 0, "once");

    let mut site = Site::new();
    let mut alice = phone();
    set_up(&mut site, &mut alice);
    assert_eq!(byes(&site.pass(Duration::from_secs(290))), 0);
    assert!(byes(&site.pass(Duration::from_secs(20))) >= 1, "expired");

    let mut site = Site::new();
    let mut alice = phone();
    set_up(&mut site, &mut alice);
    let bye = alice.request("BYE", INSIDE, "", "");
    assert_eq!(byes(&site.send(PHONE, bye)), 1);
    assert_eq!(byes(&site.pass(Duration::from_secs(400))), 0, "it had one");
}

#[test]
fn an_agent_is_told_how_long_a_client_is_let_in() {
    let mut site = Site::new();
    site.bind_agent();
    let mut dave = Caller::new("dave", PHONE).agent().calls("files");
    let offer = PORTS.replace("service-ports:80", "service-ports:22");
    let signed = dave.signed(&mut site, "INVITE", "sip:files@example.net", "Session-Expires: 9999\r\n", &offer);
    let invite = site.send(PHONE, signed).remove(0).1;
    assert_eq!(header(&invite, "Session-Expires"), Some("300"), "{invite}");
    assert_eq!(invite.matches("Session-Expires").count(), 1);
}
