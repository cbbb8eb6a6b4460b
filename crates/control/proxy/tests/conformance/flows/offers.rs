//! The flows in which either side offers and answers, before a call is taken and after: RFC 3665 section 3.7, RFC 3262 section 5,
//! RFC 3311 section 6, and RFC 4028 where only one side has timers. What each side hears of the other's media is what the gate
//! has open, or where the client is.

use super::*;

const ALICES_TARGET: &str = "sip:bob@203.0.113.1:5060";
const BOBS_TARGET: &str = "sip:bob@10.0.0.2:5060";
const ALICES_CONTACT: &str = "<sip:alice@198.51.100.7:40000>";
const RELIABLE: [(&str, &str); 3] = [("Contact", CONTACT_INSIDE), ("Require", "100rel"), ("RSeq", "988789")];

/// Bob's description with media elsewhere, and another number of its version.
fn moved_to(port: u16) -> String {
    ANSWER.replace("4500", &port.to_string()).replace("5 5 IN", "5 6 IN")
}

/// As Alice gets it, where the gate has opened that from 30000 on.
fn outside_from(sdp: &str, from: u16) -> String {
    moved(sdp, "10.0.0.2", GATE).replace(" 4600 ", &format!(" {from} ")).replace(" 4500 ", &format!(" {from} "))
}

/// Alice's with media elsewhere.
fn hers_at(port: u16) -> String {
    AUDIO.replace("4100", &port.to_string()).replace("1 1 IN", "1 2 IN")
}

/// Bob's request with where he is and a description.
fn offers(alice: &Caller, method: &str, cseq: u32, sdp: &str) -> String {
    his(alice, method, cseq, sdp).replace("User-Agent", &format!("Contact: {CONTACT_INSIDE}\r\nUser-Agent"))
}

/// Alice's answer, with where she is and a description.
fn answers(request: &str, code: u16, sdp: &str) -> String {
    let mut answer = Wire::of(&hers(request, code)).with("Contact", ALICES_CONTACT);
    if !sdp.is_empty() {
        answer = answer.with("Content-Type", "application/sdp");
        answer.body = sdp.to_owned();
    }
    answer.to_string()
}

/// Bob's request within the call, as Alice got it; what it offers is open.
fn passed_to_alice(request: &str, arrived: &str, body: &str) {
    let outer = [("Contact", CONTACT_OUTSIDE)];
    check_request(request, PBX, arrived, Edits { removed: &["Contact"], added: &outer, body: Some(body), ..WITHIN });
}

/// Bob offers, Alice answers, and what was open before is shut.
fn bob_moves(site: &mut Site, alice: &Caller, (method, cseq): (&str, u32), from: u16) {
    let before: Vec<_> = site.ledger.rows().iter().map(|row| row.id).collect();
    let offer = offers(alice, method, cseq, &moved_to(4_600));
    if method == "INVITE" {
        let [trying] = exactly(site.send(PBX, &offer), [PBX]);
        check_answer(&offer, PBX, &trying, 100, &[]);
    } else {
        exactly(site.send(PBX, &offer), []);
    }
    let [arrived] = exactly(site.gate_opens_from(from), [PHONE]);
    passed_to_alice(&offer, &arrived, &outside_from(&moved_to(4_600), from));
    let ok = answers(&arrived, 200, &hers_at(4_300));
    let [passed] = exactly(site.send(PHONE, &ok), [PBX]);
    check_response(&ok, &passed, Edits { body: Some(&inside(&hers_at(4_300))), ..Edits::default() });
    assert_eq!(site.closed(), before, "what it had before");
}

/// Alice offers, Bob answers.
fn alice_moves(site: &mut Site, alice: &mut Caller, (method, headers): (&str, &str), from: u16) {
    let offer = alice.request(method, ALICES_TARGET, &format!("{HERS}{headers}"), &hers_at(4_200));
    let [arrived] = exactly(site.send(PHONE, &offer), [PBX]);
    let body = inside(&hers_at(4_200));
    check_request(&offer, PHONE, &arrived, Edits { uri: Some(BOBS_TARGET), body: Some(&body), ..WITHIN });
    let ok = answer_here(&arrived, 200, &moved_to(4_600));
    exactly(site.send(PBX, &ok), []);
    let [passed] = exactly(site.gate_opens_from(from), [PHONE]);
    check_response(&ok, &passed, Edits { body: Some(&outside_from(&moved_to(4_600), from)), ..ANSWERING });
}

/// RFC 3665 section 3.7 with its own roles: it is Bob who moves his media.
#[test]
fn s3_7_session_with_reinvite_of_bob() {
    let mut site = Site::new();
    let mut alice = alice();
    let (_, f2) = invited(&mut site, &mut alice);
    rings(&mut site, &f2);
    accepted(&mut site, &mut alice, &f2);
    // F9 to F11.
    bob_moves(&mut site, &alice, ("INVITE", 14), 30_000);
    let f11 = his(&alice, "ACK", 14, "");
    let [arrived] = exactly(site.send(PBX, &f11), [PHONE]);
    check_request(&f11, PBX, &arrived, WITHIN);
    assert_eq!(site.ledger.rows().len(), 1);
    // F12 and F13.
    let bye = his(&alice, "BYE", 15, "");
    let [arrived] = exactly(site.send(PBX, &bye), [PHONE]);
    let ok = hers(&arrived, 200);
    let [passed] = exactly(site.send(PHONE, &ok), [PBX]);
    check_response(&ok, &passed, Edits::default());
    assert_eq!(site.revokes(), 2, "what it had first, and then the call");
    is_over(&mut site);
}

/// The same refused by Alice: the session goes on as it was (RFC 3261 section 14.1), and her refusal is acknowledged hop by hop.
#[test]
fn s3_7_session_with_reinvite_of_bob_that_alice_refuses() {
    let mut site = Site::new();
    let mut alice = alice();
    let (_, f2) = invited(&mut site, &mut alice);
    accepted(&mut site, &mut alice, &f2);
    let offer = offers(&alice, "INVITE", 14, &moved_to(4_600));
    exactly(site.send(PBX, &offer), [PBX]);
    let [arrived] = exactly(site.gate_opens_from(30_000), [PHONE]);
    let refusal = answers(&arrived, 488, "");
    let [ack, passed] = exactly(site.send(PHONE, &refusal), [PHONE, PBX]);
    crate::passing::check_own_ack(&arrived, &refusal, &ack);
    check_response(&refusal, &passed, Edits::default());
    exactly(site.send(PBX, ack_to_refusal(&offer, &passed)), []);
    assert_eq!((site.closed().len(), site.ledger.rows().len()), (1, 1));
    site.revokes();
    alice_hangs_up(&mut site, &mut alice);
    is_over(&mut site);
}

/// RFC 3262 section 5: Bob offers in a reliable provisional response, and Alice answers in her PRACK.
#[test]
fn an_offer_in_a_reliable_provisional_response_is_answered_in_the_prack() {
    let mut site = Site::new();
    let mut alice = alice();
    let invite = alice.signed(&mut site, "INVITE", BOB, &format!("{HERS}Supported: 100rel\r\n"), "");
    let [arrived, trying] = exactly(site.send(PHONE, &invite), [PBX, PHONE]);
    check_answer(&invite, PHONE, &trying, 100, &[]);
    check_request(&invite, PHONE, &arrived, Edits { body: None, ..inviting("") });
    let progress = answer(&arrived, 183, &RELIABLE, ANSWER);
    exactly(site.send(PBX, &progress), []);
    let [passed] = exactly(site.gate_opens(), [PHONE]);
    check_response(&progress, &passed, Edits { body: Some(&outside(ANSWER)), ..ANSWERING });
    alice.take_dialog(&passed);

    let rack = format!("{HERS}RAck: 988789 {} INVITE\r\n", alice.cseq);
    let prack = alice.request("PRACK", ALICES_TARGET, &rack, AUDIO);
    let [to_bob] = exactly(site.send(PHONE, &prack), [PBX]);
    let edits = Edits { uri: Some(BOBS_TARGET), body: Some(&inside(AUDIO)), ..WITHIN };
    check_request(&prack, PHONE, &to_bob, edits);
    let ok = answer(&to_bob, 200, &[], "");
    let [passed] = exactly(site.send(PBX, &ok), [PHONE]);
    check_response(&ok, &passed, Edits::default());
    // The 200 has nothing more to say of media.
    let ok = answer_here(&arrived, 200, "");
    let [passed] = exactly(site.send(PBX, &ok), [PHONE]);
    check_response(&ok, &passed, ANSWERING);
    alice.cseq -= 1;
    let ack = alice.request("ACK", ALICES_TARGET, HERS, "");
    let [to_bob] = exactly(site.send(PHONE, &ack), [PBX]);
    check_request(&ack, PHONE, &to_bob, Edits { uri: Some(BOBS_TARGET), ..WITHIN });
    alice.cseq += 1;
    assert_eq!(site.ledger.rows().len(), 1, "what was open early stays open");
    alice_hangs_up(&mut site, &mut alice);
    is_over(&mut site);
}

/// A reliable provisional response of Alice's to Bob's re-INVITE, which he acknowledges with another offer.
#[test]
fn bobs_prack_may_carry_an_offer_which_alice_answers() {
    let mut site = Site::new();
    let mut alice = alice();
    let (_, f2) = invited(&mut site, &mut alice);
    accepted(&mut site, &mut alice, &f2);
    let reinvite = offers(&alice, "INVITE", 14, ANSWER);
    let [trying, arrived] = exactly(site.send(PBX, &reinvite), [PBX, PHONE]);
    check_answer(&reinvite, PBX, &trying, 100, &[]);
    passed_to_alice(&reinvite, &arrived, &outside(ANSWER));
    let progress = Wire::of(&answers(&arrived, 183, AUDIO)).with("Require", "100rel").with("RSeq", "1").to_string();
    let [passed] = exactly(site.send(PHONE, &progress), [PBX]);
    check_response(&progress, &passed, Edits { body: Some(&inside(AUDIO)), ..Edits::default() });
    site.gate_opens();

    let prack = his(&alice, "PRACK", 15, &moved_to(4_600)).replace("User-Agent", "RAck: 1 14 INVITE\r\nUser-Agent");
    exactly(site.send(PBX, &prack), []);
    let [to_alice] = exactly(site.gate_opens_from(30_000), [PHONE]);
    let body = outside_from(&moved_to(4_600), 30_000);
    check_request(&prack, PBX, &to_alice, Edits { body: Some(&body), ..WITHIN });
    let ok = answers(&to_alice, 200, &hers_at(4_300));
    let [passed] = exactly(site.send(PHONE, &ok), [PBX]);
    check_response(&ok, &passed, Edits { body: Some(&inside(&hers_at(4_300))), ..Edits::default() });
    let ok = answers(&arrived, 200, "");
    let [passed] = exactly(site.send(PHONE, &ok), [PBX]);
    check_response(&ok, &passed, Edits::default());
    let ack = his(&alice, "ACK", 14, "");
    let [to_alice] = exactly(site.send(PBX, &ack), [PHONE]);
    check_request(&ack, PBX, &to_alice, WITHIN);
    // Where the media are now stays open.
    let rows = site.ledger.rows();
    assert!(rows.iter().any(|row| row.target_ports.0 == 4_600), "{rows:?}");
}

/// RFC 3311 section 6: an answer in a reliable provisional response, then an offer of either side by UPDATE, and only then is the
/// call taken.
#[test]
fn either_side_updates_its_media_before_the_call_is_taken() {
    let mut site = Site::new();
    let mut alice = alice();
    let asked = format!("{HERS}Supported: 100rel\r\nAllow: UPDATE\r\n");
    let invite = alice.signed(&mut site, "INVITE", BOB, &asked, AUDIO);
    let [arrived, _] = exactly(site.send(PHONE, &invite), [PBX, PHONE]);
    let progress = answer(&arrived, 183, &RELIABLE, ANSWER);
    exactly(site.send(PBX, &progress), []);
    let [passed] = exactly(site.gate_opens(), [PHONE]);
    check_response(&progress, &passed, Edits { body: Some(&outside(ANSWER)), ..ANSWERING });
    alice.take_dialog(&passed);
    let invited = alice.cseq;
    let rack = format!("{HERS}RAck: 988789 {invited} INVITE\r\n");
    let prack = alice.request("PRACK", ALICES_TARGET, &rack, "");
    let [to_bob] = exactly(site.send(PHONE, &prack), [PBX]);
    exactly(site.send(PBX, answer(&to_bob, 200, &[], "")), [PHONE]);

    alice_moves(&mut site, &mut alice, ("UPDATE", ""), 30_000);
    let offer = offers(&alice, "UPDATE", 1, ANSWER);
    exactly(site.send(PBX, &offer), []);
    let [to_alice] = exactly(site.gate_opens_from(31_000), [PHONE]);
    passed_to_alice(&offer, &to_alice, &outside_from(ANSWER, 31_000));
    let ok = answers(&to_alice, 200, &hers_at(4_300));
    let [passed] = exactly(site.send(PHONE, &ok), [PBX]);
    check_response(&ok, &passed, Edits { body: Some(&inside(&hers_at(4_300))), ..Edits::default() });

    let ok = answer_here(&arrived, 200, "");
    let [passed] = exactly(site.send(PBX, &ok), [PHONE]);
    check_response(&ok, &passed, ANSWERING);
    let last = std::mem::replace(&mut alice.cseq, invited);
    let ack = alice.request("ACK", ALICES_TARGET, HERS, "");
    exactly(site.send(PHONE, &ack), [PBX]);
    alice.cseq = last;
    let rows = site.ledger.rows();
    assert_eq!(rows.iter().map(|row| row.gate_ports.0).collect::<Vec<_>>(), [31_000], "what was agreed last");
    site.revokes();
    alice_hangs_up(&mut site, &mut alice);
    is_over(&mut site);
}

/// RFC 3311 section 5.2: offers that cross are refused with 491, which changes nothing.
#[test]
fn updates_that_cross_are_refused_from_end_to_end() {
    let mut site = Site::new();
    let mut alice = alice();
    let (_, f2) = invited(&mut site, &mut alice);
    accepted(&mut site, &mut alice, &f2);
    let before = site.ledger.rows();
    let bobs = offers(&alice, "UPDATE", 14, &moved_to(4_600));
    exactly(site.send(PBX, &bobs), []);
    let hers = alice.request("UPDATE", ALICES_TARGET, HERS, &hers_at(4_200));
    let [to_bob] = exactly(site.send(PHONE, &hers), [PBX]);
    let [to_alice] = exactly(site.gate_opens_from(30_000), [PHONE]);
    let refusal = answers(&to_alice, 491, "");
    let [passed] = exactly(site.send(PHONE, &refusal), [PBX]);
    check_response(&refusal, &passed, Edits::default());
    let refusal = answer(&to_bob, 491, &[], "");
    let [passed] = exactly(site.send(PBX, &refusal), [PHONE]);
    check_response(&refusal, &passed, Edits::default());
    assert_eq!(site.ledger.rows().iter().map(|row| row.id).collect::<Vec<_>>(), [before[0].id]);
}

/// RFC 4028 sections 8.1 and 9, where Alice has no timers: the frontend asks for one, Bob refreshes, and that renews what the call
/// has open, for as long as he goes on.
#[test]
fn a_timer_that_the_frontend_puts_in_is_bobs_to_refresh() {
    let mut site = Site::new();
    let mut alice = alice();
    let (_, arrived) = invited(&mut site, &mut alice);
    assert_eq!(Wire::of(&arrived).one("Session-Expires"), TIMER.1);
    let agreed = [("Contact", CONTACT_INSIDE), ("Session-Expires", "300;refresher=uas")];
    let ok = answer(&arrived, 200, &agreed, ANSWER);
    exactly(site.send(PBX, &ok), []);
    let [passed] = exactly(site.gate_opens(), [PHONE]);
    check_response(&ok, &passed, Edits { body: Some(&outside(ANSWER)), ..ANSWERING });
    alice.take_dialog(&passed);
    exactly(site.send(PHONE, alice.request("ACK", ALICES_TARGET, HERS, "")), [PBX]);

    for cseq in 1..4 {
        let until = site.ledger.rows()[0].not_after;
        exactly(site.pass(Duration::from_secs(150)), []);
        let refresh = his(&alice, "UPDATE", cseq, "").replace(
            "User-Agent",
            &format!("Contact: {CONTACT_INSIDE}\r\nSession-Expires: 300;refresher=uac\r\nUser-Agent"),
        );
        let [to_alice] = exactly(site.send(PBX, &refresh), [PHONE]);
        let outer = [("Contact", CONTACT_OUTSIDE)];
        check_request(&refresh, PBX, &to_alice, Edits { removed: &["Contact"], added: &outer, ..WITHIN });
        let ok = answers(&to_alice, 200, "");
        let [passed] = exactly(site.send(PHONE, &ok), [PBX]);
        check_response(&ok, &passed, Edits::default());
        exactly(site.gate_opens(), []);
        assert_eq!(site.ledger.rows()[0].not_after, until + 150);
    }
    alice_hangs_up(&mut site, &mut alice);
    is_over(&mut site);
}

/// RFC 4028 section 8.2, where Bob has no timers: Alice is asked to refresh, and her re-INVITE gets the timer anew.
#[test]
fn a_timer_that_bob_does_not_know_is_alices_to_refresh() {
    let mut site = Site::new();
    let mut alice = alice();
    let asked = format!("{HERS}Supported: timer\r\n");
    let invite = alice.signed(&mut site, "INVITE", BOB, &asked, AUDIO);
    let [arrived, _] = exactly(site.send(PHONE, &invite), [PBX, PHONE]);
    let ok = answer_here(&arrived, 200, ANSWER);
    exactly(site.send(PBX, &ok), []);
    let [passed] = exactly(site.gate_opens(), [PHONE]);
    let added = [("Contact", CONTACT_OUTSIDE), ("Require", "timer"), ("Session-Expires", "300;refresher=uac")];
    check_response(&ok, &passed, Edits { body: Some(&outside(ANSWER)), added: &added, ..ANSWERING });
    alice.take_dialog(&passed);
    exactly(site.send(PHONE, alice.request("ACK", ALICES_TARGET, HERS, "")), [PBX]);

    let until = site.ledger.rows()[0].not_after;
    exactly(site.pass(Duration::from_secs(150)), []);
    let asked = format!("{asked}Session-Expires: 300;refresher=uac\r\n");
    let refresh = alice.signed(&mut site, "INVITE", ALICES_TARGET, &asked, AUDIO);
    let [arrived, _] = exactly(site.send(PHONE, &refresh), [PBX, PHONE]);
    let edits = Edits { uri: Some(BOBS_TARGET), added: &[IDENTITY], ..inviting("") };
    check_request(&refresh, PHONE, &arrived, Edits { body: Some(&inside(AUDIO)), ..edits });
    let ok = answer_here(&arrived, 200, ANSWER);
    let [passed] = exactly(site.send(PBX, &ok), [PHONE]);
    check_response(&ok, &passed, Edits { body: Some(&outside(ANSWER)), added: &added, ..ANSWERING });
    exactly(site.gate_opens(), []);
    assert_eq!(site.ledger.rows()[0].not_after, until + 150);
    alice_hangs_up(&mut site, &mut alice);
    is_over(&mut site);
}
