//! Who gets past the nonce, the digest and the replay set, and what the others learn.

use std::time::Duration;

use sluicegate_proxy::{Event, Kind, Outcome};
use sluicegate_sip::digest::Algorithm;

use crate::site::{AUDIO, Caller, PHONE, Site, header, status};

const WEB: &str = "sip:web@example.net";

#[test]
fn a_stranger_is_challenged_and_nothing_is_remembered() {
    let mut site = Site::new();
    let mut alice = Caller::new("alice", PHONE);
    let answer = site.send(PHONE, alice.request("INVITE", WEB, "", AUDIO)).pop().unwrap().1;
    assert_eq!(status(&answer), 407);
    assert_eq!(answer.matches("Proxy-Authenticate: Digest realm=\"example.net\"").count(), 2, "{answer}");
    assert!(answer.find("SHA-256").unwrap() < answer.find("MD5").unwrap());
    assert!(site.shards[0].gauges(site.instant).iter().all(|gauge| gauge.used == 0));
    assert_eq!(site.metrics[0].requests(Kind::Invite, Outcome::Challenged), 1);
}

#[test]
fn a_register_is_challenged_with_401() {
    let mut site = Site::new();
    let mut agent = Caller::new("registrar", PHONE).agent();
    let answer = site.send(PHONE, agent.request("REGISTER", "sip:example.net", "", "")).pop().unwrap().1;
    assert_eq!(status(&answer), 401);
    assert!(header(&answer, "WWW-Authenticate").unwrap().contains("realm=\"example.net;e=20833\""), "{answer}");
}

#[test]
fn the_challenge_is_never_much_larger_than_the_request() {
    let mut site = Site::new();
    let tiny = "INVITE sip:a@b SIP/2.0\r\nv: SIP/2.0/UDP 1;branch=z9hG4bK1\r\nf: sip:a@b;tag=1\r\nt: sip:a@b\r\n\
        i: 1\r\nCSeq: 1 INVITE\r\n\r\n";
    let sent = site.send(PHONE, tiny);
    assert!(sent.iter().all(|(_, answer)| answer.len() <= 3 * tiny.len()));
}

#[test]
fn the_right_password_opens_with_either_algorithm() {
    for algorithm in [Algorithm::Sha256, Algorithm::Md5] {
        let mut site = Site::new();
        let mut alice = Caller { algorithm, ..Caller::new("alice", PHONE) };
        assert_eq!(status(&alice.invite(&mut site, AUDIO)), 100);
        assert_eq!(site.asked().len(), 1);
    }
}

#[test]
fn an_agent_signs_in_with_the_password_of_the_epoch() {
    let mut site = Site::new();
    let mut dave = Caller::new("dave", PHONE).agent();
    assert_eq!(status(&dave.invite(&mut site, crate::site::PORTS)), 100);
    // dave may not log in as a telephone, which would send what can be used tomorrow.
    let mut phone = Caller::new("dave", PHONE);
    phone.call_id = "another".into();
    assert_eq!(status(&phone.invite(&mut site, AUDIO)), 407);
}

/// The answer with what differs by itself taken out: the fresh nonce, and the sender's own name and branch.
fn without_nonce(answer: &str) -> String {
    let mut text = String::new();
    for part in answer.split("nonce=\"") {
        text.push_str(part.split_once('"').filter(|_| !text.is_empty()).map_or(part, |(_, rest)| rest));
    }
    text
}

#[test]
fn an_unknown_user_gets_the_same_bytes_as_a_wrong_password() {
    let mut answers = Vec::new();
    for (user, password) in [("alice", "wrong horse"), ("nomad", "correct horse"), ("carol", "correct horse")] {
        let mut site = Site::new();
        let mut caller = Caller { password: password.into(), ..Caller::new(user, PHONE) };
        caller.call_id = "same".into();
        let answer = caller.invite(&mut site, AUDIO);
        assert_eq!(status(&answer), 407, "{user}");
        assert!(!answer.contains("stale"), "{answer}");
        assert!(site.asked().is_empty());
        assert_eq!(site.metrics[0].requests(Kind::Invite, Outcome::BadDigest), 1);
        assert!(site.shards[0].gauges(site.instant).iter().all(|gauge| gauge.used == 0 || gauge.name == "events"));
        // The same length of name stands in for each, so that the answers can be compared byte by byte.
        let answer = answer.lines().filter(|line| !line.starts_with("To:")).collect::<Vec<_>>().join("\n");
        answers.push(without_nonce(&answer).replace(user, "USER "));
    }
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0], answers[2]);
}

#[test]
fn an_old_nonce_is_stale() {
    let mut site = Site::new();
    let mut alice = Caller::new("alice", PHONE);
    let signed = alice.signed(&mut site, "INVITE", WEB, "", AUDIO);
    site.pass(Duration::from_secs(61));
    let answer = site.send(PHONE, signed).pop().unwrap().1;
    assert_eq!(status(&answer), 407);
    assert!(answer.contains("stale=true"));
    assert_eq!(site.metrics[0].requests(Kind::Invite, Outcome::Stale), 1);
}

/// A copy of a request as someone else would send it: another branch, so that it is no retransmission.
fn copied(signed: &str) -> String {
    signed.replacen("z9hG4bKalice2", "z9hG4bKcopied", 1)
}

#[test]
fn a_replayed_authorisation_is_refused_from_the_same_and_another_port() {
    for from in [PHONE, "198.51.100.7:40001"] {
        let mut site = Site::new();
        let mut alice = Caller::new("alice", PHONE);
        let signed = alice.signed(&mut site, "INVITE", WEB, "", AUDIO);
        assert_eq!(status(&site.send(PHONE, &signed).pop().unwrap().1), 100);
        assert_eq!(site.asked().len(), 1);
        let answer = site.send(from, copied(&signed)).pop().unwrap().1;
        assert_eq!(status(&answer), 407, "{from}");
        assert!(site.asked().is_empty());
        assert_eq!(site.metrics[0].requests(Kind::Invite, Outcome::Replay), 1);
    }
}

#[test]
fn a_replayed_authorisation_is_refused_by_another_shard_another_address_and_after_a_restart() {
    let mut site = Site::with(2, sluicegate_proxy::Tables::default());
    let mut alice = Caller::new("alice", PHONE);
    let signed = alice.signed(&mut site, "INVITE", WEB, "", AUDIO);
    let elsewhere = [(1, PHONE), (0, "198.51.100.8:40000")];
    for (shard, from) in elsewhere {
        let answer = site.send_to(shard, from, copied(&signed)).pop().unwrap().1;
        assert!(status(&answer) == 407 && answer.contains("stale=true"), "{shard} {from} {answer}");
    }
    assert_eq!(status(&site.send(PHONE, &signed).pop().unwrap().1), 100);
    site.asked();
    site.start(2);
    for shard in 0..2 {
        let answer = site.send_to(shard, PHONE, copied(&signed)).pop().unwrap().1;
        assert!(status(&answer) == 407 && answer.contains("stale=true"));
    }
    assert!(site.asked().is_empty());
}

#[test]
fn a_retransmission_is_absorbed_before_the_nonce_check() {
    let mut site = Site::new();
    let mut alice = Caller::new("alice", PHONE);
    let signed = alice.signed(&mut site, "INVITE", WEB, "", AUDIO);
    assert_eq!(status(&site.send(PHONE, &signed).pop().unwrap().1), 100);
    assert_eq!(status(&site.send(PHONE, &signed).pop().unwrap().1), 100);
    assert_eq!(site.asked().len(), 1, "opened once");
    assert_eq!(site.metrics[0].requests(Kind::Invite, Outcome::Absorbed), 1);
}

#[test]
fn credentials_for_another_service_or_method_do_not_pass() {
    let mut site = Site::new();
    let mut alice = Caller::new("alice", PHONE);
    let signed = alice.signed(&mut site, "INVITE", WEB, "", AUDIO);
    let moved = signed.replacen("INVITE sip:web@", "INVITE sip:pbx@", 1);
    assert_eq!(status(&site.send(PHONE, moved).pop().unwrap().1), 407);
    assert!(site.asked().is_empty());
}

#[test]
fn a_malformed_invite_is_answered_400_and_garbage_not_at_all() {
    let mut site = Site::new();
    let mut alice = Caller::new("alice", PHONE);
    let good = alice.request("INVITE", WEB, "", AUDIO);
    for (from, to) in
        [("CSeq: 1 INVITE", "CSeq: one INVITE"), ("Call-ID", "X-Call-ID"), ("CSeq: 1 INVITE", "CSeq: 1 BYE")]
    {
        let answer = site.send(PHONE, good.replacen(from, to, 1)).pop().unwrap().1;
        assert_eq!(status(&answer), 400, "{to}");
    }
    assert_eq!(site.metrics[0].requests(Kind::Invite, Outcome::Malformed), 3);
    for garbage in [&b"\r\n\r\n"[..], b"", b"\0\0\0\0", b"GET / HTTP/1.1\r\n\r\n", &[0xff; 1400]] {
        let sent = site.send(PHONE, garbage);
        assert!(sent.iter().all(|(_, answer)| answer.len() <= 3 * garbage.len()), "{garbage:?}");
    }
}

#[test]
fn malformed_credentials_are_answered_400() {
    let mut site = Site::new();
    let mut alice = Caller::new("alice", PHONE);
    let request = alice.request("INVITE", WEB, "Proxy-Authorization: Digest username=alice\r\n", AUDIO);
    let answer = site.send(PHONE, request).pop().unwrap().1;
    assert!([400, 407].contains(&status(&answer)));
    assert!(site.asked().is_empty());
}

#[test]
fn a_guesser_is_stopped_the_same_way_whether_there_is_such_a_user_and_the_user_elsewhere_gets_in() {
    let mut answers = Vec::new();
    for user in ["alice", "nomad"] {
        let mut site = Site::new();
        let mut guess = |nth: u32, password: &str| {
            let mut caller = Caller { password: password.into(), ..Caller::new(user, "198.51.100.66:5060") };
            caller.call_id = format!("guess-{nth}");
            (caller.invite(&mut site, AUDIO), nth)
        };
        assert!((0..10).all(|nth| status(&guess(nth, "wrong horse").0) == 407));
        let (refused, _) = guess(10, "wrong horse");
        assert_eq!((status(&refused), header(&refused, "Retry-After")), (503, Some("5")));
        // Nor is the right password looked at now.
        assert_eq!(status(&guess(11, "correct horse").0), 503);
        assert_eq!(site.metrics[0].requests(Kind::Invite, Outcome::Guessing), 2);
        let noted = site.events.iter().filter_map(|event| match event {
            Event::Decided(decided) if decided.decision.status == 503 => Some(decided.decision.steps.join("; ")),
            _ => None,
        });
        // Which of the two limits refuses is not told, so what is said is true of both.
        let told: Vec<String> = noted.collect();
        let holds =
            |step: &String| step.contains("every ten seconds from the same") && step.contains("every second in all");
        assert!(told.len() == 2 && told.iter().all(holds), "{told:?}");
        let refused = refused.lines().filter(|line| !line.starts_with("To:")).collect::<Vec<_>>().join("\n");
        answers.push(refused.replace(user, "USER "));
        if user == "alice" {
            assert_eq!(
                status(&Caller::new("alice", PHONE.replace("198.51.100", "192.0.2").as_str()).invite(&mut site, AUDIO)),
                100
            );
        }
    }
    assert_eq!(answers[0], answers[1]);
}

#[test]
fn a_nonce_takes_three_wrong_answers() {
    let mut site = Site::new();
    let mut alice = Caller::new("alice", PHONE);
    let plain = alice.request("INVITE", WEB, "", AUDIO);
    let challenge = site.send(PHONE, plain).pop().unwrap().1;
    let wrong = Caller { password: "wrong horse".into(), ..Caller::new("alice", PHONE) };
    let credentials = wrong.authorization(&challenge, "INVITE", WEB);
    for nth in 0..4 {
        let request = alice.request("INVITE", WEB, &credentials, AUDIO);
        let answer = site.send(PHONE, request).pop().unwrap().1;
        assert_eq!((status(&answer), answer.contains("stale=true")), (407, nth == 3));
    }
}
