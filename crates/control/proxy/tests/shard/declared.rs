//! Declared services: the frontend answers for them, once the gate has opened what was asked for.

use std::time::Duration;

use sluicegate_grant::{IssuerKey, SignedGrant};
use sluicegate_proxy::{Count, GateAnswer, Input, Kind, Outcome};

use crate::site::{AUDIO, Caller, GATE, PHONE, PORTS, Site, header, status};

const WEB: &str = "sip:web@example.net";

#[test]
fn a_telephone_gets_the_gates_address_and_port() {
    let mut site = Site::new();
    let mut alice = Caller::new("alice", PHONE);
    assert_eq!(status(&alice.invite(&mut site, AUDIO)), 100);
    let asked = site.asked();
    let grant = asked[0].grant.clone();
    assert_eq!((asked[0].user.as_str(), asked[0].service.as_str()), ("alice", "web"));
    // Who asked, not what its description says.
    assert_eq!(grant.client_address.to_string(), "198.51.100.7");
    assert_eq!((asked[0].target.to_string().as_str(), asked[0].target_ports), ("10.0.0.1", (5004, 5005)));
    assert_eq!((grant.protocol, grant.bytes, grant.flows), (17, 375_000_000, 64));
    assert_eq!(grant.not_after.0 - grant.not_before.0, 300);
    let opened = GateAnswer { id: grant.id, opened: Ok((GATE.parse().unwrap(), (20_000, 20_001))) };
    let ok = site.tell(0, Input::Gate(opened)).pop().unwrap();
    assert_eq!(ok.0.to_string(), PHONE);
    assert_eq!(status(&ok.1), 200);
    assert!(ok.1.contains("m=audio 20000 RTP/AVP 0") && ok.1.contains("c=IN IP4 203.0.113.9"), "{}", ok.1);
    assert!(!ok.1.contains("10.0.0.1"), "no inside address shows: {}", ok.1);
}

#[test]
fn an_agent_gets_its_grants_too_and_they_verify() {
    let mut site = Site::new();
    let mut alice = Caller::new("alice", PHONE).agent();
    assert_eq!(status(&alice.invite(&mut site, PORTS)), 100);
    let grant = site.asked()[0].grant.clone();
    assert_eq!(grant.protocol, 6);
    let opened = GateAnswer { id: grant.id, opened: Ok((GATE.parse().unwrap(), (20_000, 20_000))) };
    let flow = Input::Gate(opened);
    let ok = site.tell(0, flow).pop().unwrap().1;
    assert!(header(&ok, "Content-Type").unwrap().starts_with("multipart/mixed;boundary="), "{ok}");
    assert!(ok.contains("a=service-ports:80") && ok.contains("application/vnd.sluicegate.grant"));
}

#[test]
fn portable_copies_verify_and_name_the_gate() {
    let mut site = Site::new();
    let mut alice = Caller::new("alice", PHONE).agent();
    alice.set_up(&mut site, PORTS);
    // The 200 was the last that was sent.
    let head = b"Content-Transfer-Encoding: binary\r\n\r\n";
    let at = site.last.windows(head.len()).position(|window| window == head).unwrap() + head.len();
    let signed = SignedGrant::from_bytes(&site.last[at..at + 200]).unwrap();
    assert_eq!(&site.last[at + 200..at + 204], b"\r\n--");
    let grant = IssuerKey::from_seed([9; 32]).public().verify(&signed).unwrap();
    assert_eq!((grant.gate_address.to_string().as_str(), grant.gate_ports), (GATE, (20_000, 20_000)));
    assert_eq!((grant.client_address.to_string().as_str(), grant.holder), ("198.51.100.7", [0; 32]));
}

#[test]
fn the_200_is_repeated_until_its_ack() {
    let mut site = Site::new();
    let mut alice = Caller::new("alice", PHONE);
    alice.invite(&mut site, AUDIO);
    let ok = site.gate_opens().pop().unwrap().1;
    let repeated = site.pass(Duration::from_millis(3_600));
    assert_eq!(repeated.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>(), [ok.as_str(); 3]);
    alice.take_dialog(&ok);
    site.send(PHONE, alice.request("ACK", WEB, "", ""));
    assert!(site.pass(Duration::from_secs(40)).is_empty());
    assert_eq!(site.revokes(), 0);
}

#[test]
fn a_200_that_is_never_acknowledged_ends_the_call() {
    let mut site = Site::new();
    let mut alice = Caller::new("alice", PHONE);
    alice.invite(&mut site, AUDIO);
    site.gate_opens();
    site.pass(Duration::from_secs(33));
    assert_eq!(site.revokes(), 1);
}

#[test]
fn an_ack_at_another_shard_is_handed_over() {
    use sluicegate_proxy::{Event, Tables};
    let mut site = Site::with(2, Tables::default());
    let mut alice = Caller::new("alice", PHONE);
    alice.invite(&mut site, AUDIO);
    let ok = site.gate_opens().pop().unwrap().1;
    alice.take_dialog(&ok);
    let ack = alice.request("ACK", WEB, "", "");
    site.send_to(1, "198.51.100.7:40001", ack);
    let handed = site.events.iter().find_map(|event| match event {
        Event::HandOver { shard: 0, flow, datagram } => Some((*flow, datagram.clone())),
        _ => None,
    });
    let (flow, bytes) = handed.unwrap();
    site.tell(0, Input::Datagram { flow, bytes });
    assert!(site.pass(Duration::from_secs(40)).is_empty());
}

#[test]
fn a_gate_that_does_not_answer_within_half_a_second_means_503() {
    let mut site = Site::new();
    let mut alice = Caller::new("alice", PHONE);
    alice.invite(&mut site, AUDIO);
    assert!(site.pass(Duration::from_millis(499)).is_empty());
    let answer = site.pass(Duration::from_millis(1)).pop().unwrap().1;
    assert_eq!(status(&answer), 503);
    assert_eq!(header(&answer, "Retry-After"), Some("5"));
    assert_eq!(site.revokes(), 1, "what the gate may open after all must not stay");
    assert_eq!(site.metrics[0].count(Count::OpeningTimeouts), 1);
    // Too late.
    assert!(site.gate_opens().is_empty());
}

#[test]
fn a_gate_that_refuses_means_503_without_its_reason() {
    let mut site = Site::new();
    let mut alice = Caller::new("alice", PHONE);
    alice.invite(&mut site, AUDIO);
    let id = site.asked()[0].grant.id;
    let refused = GateAnswer { id, opened: Err("no external port is free".into()) };
    let answer = site.tell(0, Input::Gate(refused)).pop().unwrap().1;
    assert_eq!(status(&answer), 503);
    assert!(!answer.contains("external"));
}

#[test]
fn who_may_not_use_a_service_learns_nothing_about_it_and_no_gate_is_asked() {
    let mut answers = Vec::new();
    for (user, service) in [("bob", "web"), ("bob", "void"), ("alice", "void")] {
        let mut site = Site::new();
        let mut caller = Caller::new(user, PHONE).calls(service);
        caller.call_id = "same".into();
        let answer = caller.invite(&mut site, AUDIO);
        assert_eq!(status(&answer), 403);
        assert!(site.asked().is_empty());
        assert_eq!(site.metrics[0].requests(Kind::Invite, Outcome::Denied), 1);
        let body: Vec<&str> =
            answer.lines().filter(|l| !["Via", "From", "To"].iter().any(|n| l.starts_with(n))).collect();
        answers.push(body.join("\n"));
    }
    assert!(answers.windows(2).all(|pair| pair[0] == pair[1]), "{answers:?}");
}

#[test]
fn ports_that_a_service_does_not_offer_are_refused() {
    let mut site = Site::new();
    let mut alice = Caller::new("alice", PHONE).agent();
    assert_eq!(status(&alice.invite(&mut site, &PORTS.replace("service-ports:80", "service-ports:22"))), 403);
    assert!(site.asked().is_empty());
}

#[test]
fn a_refusal_is_repeated_until_its_ack_and_then_absorbed() {
    let mut site = Site::new();
    let mut bob = Caller::new("bob", PHONE);
    let refusal = bob.invite(&mut site, AUDIO);
    assert_eq!(site.pass(Duration::from_millis(500)).pop().unwrap().1, refusal);
    bob.take_dialog(&refusal);
    // The ACK to a refusal has the INVITE's branch (RFC 3261 section 17.1.1.3).
    let ack = bob.request("ACK", WEB, "", "").replacen("z9hG4bKbob3", "z9hG4bKbob2", 1);
    site.send(PHONE, ack);
    assert!(site.pass(Duration::from_secs(40)).is_empty());
}

#[test]
fn bye_with_the_tag_ends_the_call_at_once_and_needs_no_memory() {
    let mut site = Site::new();
    let mut alice = Caller::new("alice", PHONE);
    alice.set_up(&mut site, AUDIO);
    // As after a crash: the directory alone knows the call, from what the gate reported.
    site.start(1);
    let answer = site.send(PHONE, alice.request("BYE", WEB, "", "")).pop().unwrap().1;
    assert_eq!(status(&answer), 200);
    assert_eq!(site.revokes(), 1);
}

#[test]
fn bye_with_a_forged_tag_is_answered_481_and_ends_nothing() {
    let mut site = Site::new();
    let mut alice = Caller::new("alice", PHONE);
    alice.set_up(&mut site, AUDIO);
    let tag = alice.to_tag.clone().unwrap();
    let mut forged: Vec<String> = (0..tag.len())
        .map(|at| {
            let mut bytes = tag.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            String::from_utf8(bytes).unwrap()
        })
        .collect();
    forged.push("guess".into());
    for tag in forged {
        alice.to_tag = Some(tag);
        let answer = site.send(PHONE, alice.request("BYE", WEB, "", "")).pop().unwrap().1;
        assert_eq!(status(&answer), 481);
    }
    alice.to_tag = None;
    let answer = site.send(PHONE, alice.request("BYE", WEB, "", "")).pop().unwrap().1;
    assert_eq!(status(&answer), 481);
    assert_eq!(site.revokes(), 0);
}

#[test]
fn a_reinvite_renews_the_same_grants_after_fresh_authentication() {
    let mut site = Site::new();
    let mut alice = Caller::new("alice", PHONE);
    alice.set_up(&mut site, AUDIO);
    let first = site.ledger.rows();
    site.pass(Duration::from_secs(150));
    let stranger = site.send(PHONE, alice.request("INVITE", WEB, "", AUDIO)).pop().unwrap().1;
    assert_eq!(status(&stranger), 407, "a tag is no password");
    let ok = alice.set_up(&mut site, AUDIO);
    assert!(ok.contains("m=audio 20000"));
    let renewed = site.ledger.rows();
    assert_eq!(renewed.len(), 1);
    assert_eq!((renewed[0].id, renewed[0].not_after), (first[0].id, first[0].not_after + 150));
    assert_eq!(site.metrics[0].count(Count::CallsRenewed), 1);
}

#[test]
fn nobody_renews_the_call_of_another_user() {
    let mut site = Site::new();
    let mut alice = Caller::new("alice", PHONE);
    alice.set_up(&mut site, AUDIO);
    let mut dave = Caller::new("dave", PHONE).agent();
    dave.to_tag.clone_from(&alice.to_tag);
    assert_eq!(status(&dave.invite(&mut site, PORTS)), 481);
    assert!(site.asked().is_empty());
}

#[test]
fn a_failed_renewal_does_not_end_the_call() {
    let mut site = Site::new();
    let mut alice = Caller::new("alice", PHONE);
    alice.set_up(&mut site, AUDIO);
    alice.invite(&mut site, AUDIO);
    let answer = site.pass(Duration::from_millis(500)).pop().unwrap().1;
    assert_eq!(status(&answer), 503);
    assert_eq!(site.revokes(), 0);
}

#[test]
fn cancel_ends_an_invite_that_waits_for_its_gate() {
    let mut site = Site::new();
    let mut alice = Caller::new("alice", PHONE);
    alice.invite(&mut site, AUDIO);
    let cancel = alice.request("CANCEL", WEB, "", "").replacen("z9hG4bKalice3", "z9hG4bKalice2", 1);
    let from_elsewhere = site.send("198.51.100.66:5060", &cancel);
    assert!(from_elsewhere.iter().all(|(_, answer)| status(answer) == 481));
    let answers: Vec<u16> = site.send(PHONE, &cancel).iter().map(|(_, answer)| status(answer)).collect();
    assert_eq!(answers, [200, 487]);
    assert_eq!(site.revokes(), 1);
    let stray = alice.request("CANCEL", WEB, "", "");
    assert_eq!(status(&site.send(PHONE, stray).pop().unwrap().1), 481);
}

#[test]
fn options_are_answered_and_other_methods_named_unsupported() {
    let mut site = Site::new();
    let mut alice = Caller::new("alice", PHONE);
    let answer = site.send(PHONE, alice.request("OPTIONS", "sip:example.net", "", "")).pop().unwrap().1;
    assert_eq!(status(&answer), 200);
    assert!(header(&answer, "Allow").unwrap().contains("INVITE"));
    assert_eq!(status(&alice.sign_in(&mut site, "MESSAGE", WEB, "", "")), 405);
}

#[test]
fn an_extension_that_is_required_and_unknown_is_named() {
    let mut site = Site::new();
    let mut alice = Caller::new("alice", PHONE);
    let answer = alice.sign_in(&mut site, "INVITE", WEB, "Require: 100rel\r\n", AUDIO);
    assert_eq!((status(&answer), header(&answer, "Unsupported")), (420, Some("100rel")));
}

#[test]
fn a_telephone_with_session_timers_is_told_when_to_renew() {
    let mut site = Site::new();
    let mut alice = Caller::new("alice", PHONE);
    alice.sign_in(&mut site, "INVITE", WEB, "Supported: timer\r\n", AUDIO);
    let ok = site.gate_opens().pop().unwrap().1;
    assert_eq!(header(&ok, "Session-Expires"), Some("300;refresher=uac"));
}

#[test]
fn acks_to_answers_that_were_not_remembered_are_absorbed() {
    let mut site = Site::new();
    let mut alice = Caller::new("alice", PHONE);
    let challenge = site.send(PHONE, alice.request("INVITE", WEB, "", AUDIO)).pop().unwrap().1;
    alice.take_dialog(&challenge);
    let ack = alice.request("ACK", WEB, "", "").replacen("z9hG4bKalice2", "z9hG4bKalice1", 1);
    assert!(site.send(PHONE, ack).is_empty());
    assert_eq!(site.metrics[0].requests(Kind::Ack, Outcome::Absorbed), 1);
}

/// The ACK of an answer to this INVITE, broken behind what it is told apart by: whoever reads it to its end drops it.
fn broken_ack(invite: &str, answer: &str) -> String {
    let of = |message: &str, name| header(message, name).unwrap().to_owned();
    let (via, call_id) = (of(invite, "Via"), of(invite, "Call-ID"));
    let (from, to) = (of(answer, "From"), of(answer, "To"));
    format!("ACK {WEB} SIP/2.0\r\nVia: {via}\r\nFrom: {from}\r\nTo: {to}\r\nCall-ID: {call_id}\r\nCSeq 1 ACK\r\n\r\n")
}

fn absorbed(site: &Site) -> u64 {
    site.metrics[0].requests(Kind::Ack, Outcome::Absorbed)
}

#[test]
fn acks_to_answers_that_were_not_remembered_end_before_they_are_read() {
    let mut site = Site::new();
    let mut alice = Caller::new("alice", PHONE);
    let invite = alice.request("INVITE", WEB, "", AUDIO);
    let challenge = site.send(PHONE, &invite).pop().unwrap().1;
    let ack = broken_ack(&invite, &challenge);
    assert!(site.send(PHONE, &ack).is_empty());
    assert_eq!(absorbed(&site), 1);
    // A made-up tag, or that of another answer, is none of ours.
    let tag = header(&challenge, "To").unwrap().split(";tag=").nth(1).unwrap();
    for (own, other) in [(tag, "AAAAAAAAAAA"), (tag, "short"), ("alice-tag", "x"), ("z9hG4bKalice1", "z9hG4bKalice2")] {
        let other = ack.replacen(own, other, 1);
        assert_ne!(other, ack);
        assert!(site.send(PHONE, other).is_empty());
    }
    assert_eq!(absorbed(&site), 1);
}

#[test]
fn the_ack_of_an_answer_that_is_remembered_is_read_and_ends_its_repetitions() {
    let mut site = Site::new();
    let mut bob = Caller::new("bob", PHONE).calls("pbx");
    let invite = bob.signed(&mut site, "INVITE", "sip:pbx@example.net", "", AUDIO);
    let refusal = site.send(PHONE, &invite).pop().unwrap().1;
    assert_eq!(status(&refusal), 403);
    let ack = broken_ack(&invite, &refusal);
    site.send(PHONE, &ack);
    let second = Duration::from_secs(1);
    assert_eq!((absorbed(&site), site.pass(second).is_empty()), (0, false), "it is still repeated");
    site.send(PHONE, ack.replacen("CSeq 1", "CSeq: 2", 1));
    assert_eq!(site.metrics[0].requests(Kind::Ack, Outcome::Answered), 1);
    assert!(site.pass(second * 10).is_empty());
}
