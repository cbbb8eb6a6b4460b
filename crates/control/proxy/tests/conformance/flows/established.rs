//! RFC 3665 sections 3.1 to 3.7: sessions that come about.

use super::*;
use crate::{passing::check_own_ack, site::header};

/// Without a proxy. The frontend plays Bob, who asks who calls, and never hangs up.
#[test]
fn s3_1_session_establishment() {
    let mut site = Site::new();
    let mut alice = Caller::new("alice", PHONE);
    let uri = "sip:web@example.net";
    let invite = alice.request("INVITE", uri, HERS, AUDIO);
    let [challenge] = exactly(site.send(PHONE, &invite), [PHONE]);
    check_answer(&invite, PHONE, &challenge, 407, &["Proxy-Authenticate"]);
    exactly(site.send(PHONE, ack_to_refusal(&invite, &challenge)), []);

    let f1 = alice.answered(&challenge, "INVITE", uri, HERS, AUDIO);
    let [trying] = exactly(site.send(PHONE, &f1), [PHONE]);
    check_answer(&f1, PHONE, &trying, 100, &[]);
    // 180 F2: there is nobody whom it would wake.
    let [f3] = exactly(site.gate_opens(), [PHONE]);
    let ok = check_answer(&f1, PHONE, &f3, 200, &["Contact", "Allow", "Content-Type"]);
    assert_eq!(ok.one("Contact"), "<sip:web@203.0.113.1:5060>");
    assert!(ok.body.contains("c=IN IP4 203.0.113.9\r\n") && ok.body.contains("m=audio 20000 RTP/AVP 0"), "{ok}");
    // Until it is acknowledged.
    let [again] = exactly(site.pass(Duration::from_millis(500)), [PHONE]);
    assert_eq!(again, f3);
    alice.take_dialog(&f3);
    let f4 = alice.request("ACK", "sip:web@203.0.113.1:5060", HERS, "");
    exactly(site.send(PHONE, f4), []);
    exactly(site.pass(Duration::from_secs(30)), []);

    let f5 = alice.request("BYE", "sip:web@203.0.113.1:5060", HERS, "");
    let [f6] = exactly(site.send(PHONE, &f5), [PHONE]);
    check_answer(&f5, PHONE, &f6, 200, &[]);
    assert_eq!(site.revokes(), 1);
    is_over(&mut site);
}

#[test]
fn s3_2_session_establishment_through_two_proxies() {
    let mut site = Site::new();
    let mut alice = alice();
    let (_, f7) = invited(&mut site, &mut alice);
    rings(&mut site, &f7);
    accepted(&mut site, &mut alice, &f7);
    bob_hangs_up(&mut site, &alice);
    is_over(&mut site);
}

/// F1 to F4 with what goes wrong there: a wrong password, and a name that nobody has.
#[test]
fn s3_2_with_failures_of_authentication() {
    for (user, password) in [("alice", "wrong"), ("nobody", "correct horse")] {
        let mut site = Site::new();
        let mut caller = Caller { user: user.into(), password: password.into(), ..alice() };
        let f1 = caller.request("INVITE", BOB, HERS, AUDIO);
        let [f2] = exactly(site.send(PHONE, &f1), [PHONE]);
        let f4 = caller.answered(&f2, "INVITE", BOB, HERS, AUDIO);
        let [refused] = exactly(site.send(PHONE, &f4), [PHONE]);
        let refused = check_answer(&f4, PHONE, &refused, 407, &["Proxy-Authenticate"]);
        let challenges = refused.all("Proxy-Authenticate");
        assert!(challenges.iter().all(|challenge| !challenge.contains("stale=true")), "the nonce was not at fault");
        assert!(challenges.iter().all(|new| !Wire::of(&f2).all("Proxy-Authenticate").contains(new)), "another nonce");
        exactly(site.send(PHONE, ack_to_refusal(&f4, &refused.to_string())), []);
        // Who knows it after all gets through.
        caller.user = "alice".into();
        caller.password = crate::site::PASSWORD.into();
        invited(&mut site, &mut caller);
    }
}

/// The frontend is proxy 1; Bob's proxy 2, which has a realm of its own, stands behind the gate with him.
#[test]
fn s3_3_session_with_multiple_proxy_authentication() {
    let mut site = Site::new();
    let mut alice = alice();
    let (f4, f6) = invited(&mut site, &mut alice);
    let challenge = "Digest realm=\"biloxi.example.com\", qop=\"auth\", nonce=\"c1e22c41ae6cbe5ae983a9c8e88d359\", opaque=\"\", \
        stale=FALSE, algorithm=MD5";
    let f7 = answer(&f6, 407, &[("Proxy-Authenticate", challenge)], "");
    let [f8, f9] = exactly(site.send(PBX, &f7), [PBX, PHONE]);
    check_own_ack(&f6, &f7, &f8);
    check_response(&f7, &f9, Edits::default());
    exactly(site.send(PHONE, ack_to_refusal(&f4, &f9)), []);

    // F11 has credentials for both. Those for us were good once: asked again, she says them anew.
    let theirs = "Proxy-Authorization: Digest username=\"alice\", realm=\"biloxi.example.com\", \
        nonce=\"c1e22c41ae6cbe5ae983a9c8e88d359\", opaque=\"\", uri=\"sip:pbx@example.net\", \
        response=\"f44ab22f150c6a56071bce8f44ab22f1\", qop=auth, nc=00000001, cnonce=\"c\"\r\n";
    let ours = header(&f4, "Proxy-Authorization").unwrap();
    let old = alice.request("INVITE", BOB, &format!("{HERS}Proxy-Authorization: {ours}\r\n{theirs}"), AUDIO);
    let [stale] = exactly(site.send(PHONE, &old), [PHONE]);
    let asked = check_answer(&old, PHONE, &stale, 407, &["Proxy-Authenticate"]);
    assert!(asked.all("Proxy-Authenticate")[0].contains("stale=true"), "her password was right");
    let f11 = alice.answered(&stale, "INVITE", BOB, &format!("{HERS}{theirs}"), AUDIO);
    let [f13, f12] = exactly(site.send(PHONE, &f11), [PBX, PHONE]);
    check_answer(&f11, PHONE, &f12, 100, &[]);
    let theirs = theirs.trim_end().strip_prefix("Proxy-Authorization: ").unwrap();
    let both = [IDENTITY, TIMER, ("Proxy-Authorization", theirs)];
    check_request(&f11, PHONE, &f13, Edits { added: &both, ..inviting(&inside(AUDIO)) });
    accepted(&mut site, &mut alice, &f13);
    alice_hangs_up(&mut site, &mut alice);
    is_over(&mut site);
}

/// The frontend is proxy 1, dies, and is proxy 2 once it has started anew: what it knew is gone, and Alice's call comes about.
#[test]
fn s3_4_session_with_proxy_failure() {
    let mut site = Site::new();
    let mut alice = alice();
    let first = alice.request("INVITE", BOB, HERS, AUDIO);
    let [challenge] = exactly(site.send(PHONE, &first), [PHONE]);
    let f1 = alice.answered(&challenge, "INVITE", BOB, HERS, AUDIO);
    // F1 to F7 reach nobody. The last of them reaches proxy 2.
    site.start(1);
    site.pass(Duration::from_secs(32));
    let [f9] = exactly(site.send(PHONE, &f1), [PHONE]);
    let asked = check_answer(&f1, PHONE, &f9, 407, &["Proxy-Authenticate"]);
    assert!(asked.all("Proxy-Authenticate")[0].contains("stale=true"), "her password was right");
    exactly(site.send(PHONE, ack_to_refusal(&f1, &f9)), []);
    let f11 = alice.answered(&f9, "INVITE", BOB, HERS, AUDIO);
    let [f12, f13] = exactly(site.send(PHONE, &f11), [PBX, PHONE]);
    check_request(&f11, PHONE, &f12, inviting(&inside(AUDIO)));
    check_answer(&f11, PHONE, &f13, 100, &[]);
    rings(&mut site, &f12);
    accepted(&mut site, &mut alice, &f12);
    bob_hangs_up(&mut site, &alice);
    is_over(&mut site);
}

/// The frontend and the gate are the ALG, which changes where media go in each description that passes, and nothing else of it.
#[test]
fn s3_5_session_through_a_sip_alg() {
    let more = "a=sendrecv\r\na=ptime:20\r\nm=video 5100 RTP/AVP 31\r\na=rtpmap:31 H261/90000\r\n";
    let offer = format!("{AUDIO}{more}");
    let mut site = Site::new();
    let mut alice = alice();
    let signed = alice.signed(&mut site, "INVITE", BOB, HERS, &offer);
    let [f2, f3] = exactly(site.send(PHONE, &signed), [PBX, PHONE]);
    check_answer(&signed, PHONE, &f3, 100, &[]);
    check_request(&signed, PHONE, &f2, inviting(&inside(&offer)));

    // Early media, of one stream.
    let early = format!("{ANSWER}m=video 0 RTP/AVP 31\r\n");
    let f7 = answer_here(&f2, 183, &early);
    exactly(site.send(PBX, &f7), []);
    let [f8] = exactly(site.gate_opens(), [PHONE]);
    check_response(&f7, &f8, Edits { body: Some(&outside(&early)), ..ANSWERING });

    // Both streams. What was open stays where it was.
    let both = format!("{ANSWER}m=video 4600 RTP/AVP 31\r\na=rtpmap:31 H261/90000\r\n");
    let f10 = answer_here(&f2, 200, &both);
    exactly(site.send(PBX, &f10), []);
    let [f11] = exactly(site.gate_opens(), [PHONE]);
    check_response(&f10, &f11, Edits { body: Some(&outside(&both)), ..ANSWERING });
    alice.take_dialog(&f11);
    let f12 = alice.request("ACK", "sip:bob@203.0.113.1:5060", HERS, "");
    let [f13] = exactly(site.send(PHONE, &f12), [PBX]);
    check_request(&f12, PHONE, &f13, Edits { uri: Some("sip:bob@10.0.0.2:5060"), ..WITHIN });
    alice_hangs_up(&mut site, &mut alice);
    is_over(&mut site);
}

/// F1 to F3. The redirecting server stands behind the gate, so that where it sends Alice is a place inside: she is told that Bob
/// has moved, and not where to.
#[test]
fn s3_6_redirection() {
    let mut site = Site::new();
    let mut alice = alice();
    let (f4, invite) = invited(&mut site, &mut alice);
    let f2 = answer(&invite, 302, &[("Contact", "<sip:bob@10.0.0.9;transport=tcp>")], "");
    let [ack, passed] = exactly(site.send(PBX, &f2), [PBX, PHONE]);
    check_own_ack(&invite, &f2, &ack);
    check_response(&f2, &passed, Edits { removed: &["Contact"], ..Edits::default() });
    exactly(site.send(PHONE, ack_to_refusal(&f4, &passed)), []);
    is_over(&mut site);
}

/// The same where she can dial what it names: she is told the name, and reaches it.
#[test]
fn s3_6_redirection_to_what_can_be_dialled() {
    let mut site = Site::new();
    let mut alice = alice();
    let (f4, invite) = invited(&mut site, &mut alice);
    let places = "<sip:120@10.0.0.2:5070;transport=tcp>;q=0.7, \"Bob, at home\" <sip:alice@example.net>;q=0.2, \
        <sip:120@10.0.0.9>, <sip:220@10.0.0.2>, <sip:bob@elsewhere.example>, <tel:+1>";
    let f2 = answer(&invite, 302, &[("Contact", places)], "");
    let [_, f3] = exactly(site.send(PBX, &f2), [PBX, PHONE]);
    let named = [("Contact", "<sip:120@example.net>;q=0.7, <sip:alice@example.net>;q=0.2")];
    check_response(&f2, &f3, Edits { removed: &["Contact"], added: &named, ..Edits::default() });
    exactly(site.send(PHONE, ack_to_refusal(&f4, &f3)), []);

    // F5: a call of its own, which goes to the same server.
    alice.call_id.push_str("-again");
    let again = alice.signed(&mut site, "INVITE", "sip:120@example.net", HERS, AUDIO);
    let [arrived, _] = exactly(site.send(PHONE, &again), [PBX, PHONE]);
    assert!(arrived.starts_with("INVITE sip:120@10.0.0.2:5060 "), "{arrived}");
}

/// F4 to F16: Bob offers, and Alice answers in her ACK.
#[test]
fn s3_6_session_with_sdp_in_ack() {
    let mut site = Site::new();
    let mut alice = alice();
    let f4 = alice.signed(&mut site, "INVITE", BOB, HERS, "");
    let [f5, f6] = exactly(site.send(PHONE, &f4), [PBX, PHONE]);
    check_request(&f4, PHONE, &f5, Edits { body: None, ..inviting("") });
    check_answer(&f4, PHONE, &f6, 100, &[]);
    rings(&mut site, &f5);
    let f9 = answer_here(&f5, 200, ANSWER);
    exactly(site.send(PBX, &f9), []);
    let [f10] = exactly(site.gate_opens(), [PHONE]);
    check_response(&f9, &f10, Edits { body: Some(&outside(ANSWER)), ..ANSWERING });
    alice.take_dialog(&f10);
    let f11 = alice.request("ACK", "sip:bob@203.0.113.1:5060", HERS, AUDIO);
    let [f12] = exactly(site.send(PHONE, &f11), [PBX]);
    let answered = inside(AUDIO);
    check_request(&f11, PHONE, &f12, Edits { uri: Some("sip:bob@10.0.0.2:5060"), body: Some(&answered), ..WITHIN });
    bob_hangs_up(&mut site, &alice);
    is_over(&mut site);
}

/// With the roles of the RFC exchanged: it is Alice who moves her media. The frontend stays in the way, and asks her who she is.
#[test]
fn s3_7_session_with_reinvite() {
    let mut site = Site::new();
    let mut alice = alice();
    let (_, f2) = invited(&mut site, &mut alice);
    rings(&mut site, &f2);
    accepted(&mut site, &mut alice, &f2);

    let moved = AUDIO.replace("4100", "4200").replace("1 1 IN", "1 2 IN");
    let uri = "sip:bob@203.0.113.1:5060";
    let f9 = alice.request("INVITE", uri, HERS, &moved);
    let [challenge] = exactly(site.send(PHONE, &f9), [PHONE]);
    check_answer(&f9, PHONE, &challenge, 407, &["Proxy-Authenticate"]);
    exactly(site.send(PHONE, ack_to_refusal(&f9, &challenge)), []);
    let f9 = alice.answered(&challenge, "INVITE", uri, HERS, &moved);
    let [arrived, trying] = exactly(site.send(PHONE, &f9), [PBX, PHONE]);
    check_answer(&f9, PHONE, &trying, 100, &[]);
    check_request(&f9, PHONE, &arrived, Edits { uri: Some("sip:bob@10.0.0.2:5060"), ..inviting(&inside(&moved)) });
    let f10 = answer_here(&arrived, 200, ANSWER);
    let [passed] = exactly(site.send(PBX, &f10), [PHONE]);
    check_response(&f10, &passed, Edits { body: Some(&outside(ANSWER)), ..ANSWERING });
    site.gate_opens();
    assert_eq!(site.ledger.rows().len(), 1, "the same grant");
    let f11 = alice.request("ACK", uri, HERS, "");
    let [arrived] = exactly(site.send(PHONE, &f11), [PBX]);
    check_request(&f11, PHONE, &arrived, Edits { uri: Some("sip:bob@10.0.0.2:5060"), ..WITHIN });
    alice_hangs_up(&mut site, &mut alice);
    is_over(&mut site);
}
