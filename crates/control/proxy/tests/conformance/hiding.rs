//! Nobody outside learns where a service's media are inside, whatever the message that says so, and nobody inside sends media to
//! an address that a client made up.

use std::time::Duration;

use crate::site::{ANSWER, AUDIO, GATE, PBX, PHONE, Site, header, phone, relayed, reply, set_up, status};

const INSIDE: &str = "10.0.0.2";
const MIXED: &str = "multipart/mixed;boundary=b1";
const ISUP: &str = "--b1\r\nContent-Type: application/isup\r\n\r\nAA\r\n";

fn part(kind: &str, text: &str) -> String {
    format!("--b1\r\nContent-Type: {kind}\r\n\r\n{text}\r\n")
}

/// A message with another body.
fn with_body(message: &str, kind: &str, body: &str) -> String {
    let head = message.split("\r\n\r\n").next().unwrap();
    let kept = head.split("\r\n").filter(|line| !line.starts_with("Content-"));
    let head = kept.fold(String::new(), |head, line| head + line + "\r\n");
    format!("{head}Content-Type: {kind}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// What stands behind the header fields.
fn body(message: &str) -> &str {
    message.split_once("\r\n\r\n").unwrap().1
}

#[test]
fn a_refusal_describes_nothing_that_is_inside() {
    for code in [302, 488, 606] {
        let mut site = Site::new();
        let invite = relayed(&mut site, &mut phone());
        let sent = site.send(PBX, reply(&invite, code, ANSWER));
        let passed = &sent.iter().find(|(to, _)| to.to_string() == PHONE).unwrap().1;
        assert_eq!(status(passed), code);
        assert!(!body(passed).contains(INSIDE) && passed.contains("m=audio 0 "), "{passed}");
        assert!(site.asked().is_empty());
    }
}

#[test]
fn an_answer_within_a_call_describes_nothing_that_is_inside() {
    for method in ["OPTIONS", "INFO", "BYE", "MESSAGE"] {
        let mut site = Site::new();
        let mut alice = phone();
        set_up(&mut site, &mut alice);
        let asked = alice.request(method, "sip:pbx@10.0.0.2:5060", "", "");
        let (to, asked) = site.send(PHONE, asked).pop().unwrap();
        assert_eq!(to.to_string(), PBX);
        let (to, passed) = site.send(PBX, reply(&asked, 200, ANSWER)).pop().unwrap();
        assert_eq!((to.to_string().as_str(), status(&passed)), (PHONE, 200));
        assert!(!body(&passed).contains(INSIDE), "{passed}");
    }
}

/// RFC 5621 section 3.1: parts, and parts of parts.
#[test]
fn of_several_descriptions_one_is_opened_and_the_others_go_no_further() {
    let other = ANSWER.replace("4500", "4600");
    let alternative = |one: &str| {
        let inner = part("application/sdp", one).replace("b1", "b2");
        part("multipart/alternative;boundary=b2", &format!("{inner}--b2--"))
    };
    let encoded = part("application/sdp\r\nContent-Transfer-Encoding: base64", "YyBJTiBJUDQgMTAuMC4wLjI=");
    let first = part("application/sdp", ANSWER);
    let expected = format!("c=IN IP4 {GATE}\r\nm=audio 20000 ");
    for parts in [
        format!("{ISUP}{first}"),
        format!("{first}{}", part("application/sdp", &other)),
        format!("{first}{}", alternative(&other)),
        alternative(ANSWER),
        format!("{ISUP}{}{}", alternative(ANSWER), part("application/sdp", &other)),
        format!("{encoded}{first}"),
    ] {
        let mut site = Site::new();
        let invite = relayed(&mut site, &mut phone());
        let ok = with_body(&reply(&invite, 200, ANSWER), MIXED, &format!("{parts}--b1--\r\n"));
        assert!(site.send(PBX, &ok).is_empty(), "it waits for the gate: {ok}");
        let (_, passed) = site.gate_opens().pop().unwrap();
        assert_eq!(header(&passed, "Content-Type"), Some(MIXED));
        let one = body(&passed).replace(&format!("c=IN IP4 {GATE}\r\nt=0 0\r\n"), "");
        assert!(one.contains(&expected) || one.contains("m=audio 20000 "), "{passed}");
        assert_eq!(one.matches("m=audio").count(), 1, "{passed}");
        assert!(!one.contains(INSIDE) && !one.contains("YyBJTiBJ"), "{passed}");
        assert_eq!(one.contains("AA\r\n"), parts.contains("AA\r\n"), "what describes nothing stays");
    }
}

#[test]
fn what_nobody_can_read_goes_no_further() {
    let unreadable = ANSWER.replace("t=0 0", "no line of a description");
    for (kind, text) in [
        ("application/sdp", unreadable),
        ("multipart/mixed", format!("{}--b1--\r\n", part("application/sdp", ANSWER))),
        (MIXED, part("application/sdp", ANSWER)),
        ("application/sdp\r\nContent-Encoding: gzip", "\x1f10.0.0.2".into()),
    ] {
        let mut site = Site::new();
        let invite = relayed(&mut site, &mut phone());
        let (to, passed) = site.send(PBX, with_body(&reply(&invite, 200, ""), kind, &text)).pop().unwrap();
        assert_eq!((to.to_string().as_str(), status(&passed), body(&passed)), (PHONE, 200, ""), "{passed}");
        assert_eq!((header(&passed, "Content-Type"), header(&passed, "Content-Encoding")), (None, None));
    }
}

/// A client whose second description named another would have a service send there.
#[test]
fn a_client_describes_one_address_and_that_is_its_own() {
    let victim = AUDIO.replace("192.168.0.9", "203.0.113.200");
    let parts = format!("{}{}--b1--\r\n", part("application/sdp", AUDIO), part("application/sdp", &victim));
    let mut site = Site::new();
    let mut alice = phone();
    let plain = alice.request("INVITE", "sip:pbx@example.net", "", AUDIO);
    let (_, challenge) = site.send(PHONE, plain).pop().unwrap();
    let signed = alice.answered(&challenge, "INVITE", "sip:pbx@example.net", "", AUDIO);
    let sent = site.send(PHONE, with_body(&signed, MIXED, &parts));
    let invite = &sent.iter().find(|(to, _)| to.to_string() == PBX).unwrap().1;
    assert!(invite.contains("198.51.100.7") && !body(invite).contains("203.0.113.200"), "{invite}");

    // In its answers too.
    let mut site = Site::new();
    let mut alice = phone();
    set_up(&mut site, &mut alice);
    let offer = crate::site::of_service(&alice, "INVITE", 7, ANSWER);
    let sent = site.send(PBX, offer);
    let offer = &sent.iter().find(|(to, _)| to.to_string() == PHONE).unwrap().1;
    let unreadable = victim.replace("t=0 0", "no line of a description");
    let sent = site.send(PHONE, with_body(&reply(offer, 200, ""), "application/sdp", &unreadable));
    let (to, passed) = &sent[0];
    assert_eq!((to.to_string().as_str(), status(passed), body(passed)), (PBX, 200, ""));
}

#[test]
fn early_media_that_a_gate_opened_too_late_are_shut_when_the_call_is_refused() {
    let mut site = Site::new();
    let invite = relayed(&mut site, &mut phone());
    site.send(PBX, reply(&invite, 183, ANSWER));
    site.pass(Duration::from_millis(600));
    site.gate_opens();
    assert_eq!((site.ledger.rows().len(), site.revokes()), (1, 0));
    site.send(PBX, reply(&invite, 486, ""));
    assert_eq!(site.revokes(), 1);
    // The same where the service never answers.
    let mut site = Site::new();
    let invite = relayed(&mut site, &mut phone());
    site.send(PBX, reply(&invite, 183, ANSWER));
    site.pass(Duration::from_millis(600));
    site.gate_opens();
    site.pass(Duration::from_secs(240));
    assert_eq!(site.revokes(), 1);
}
