//! The flows of RFC 3262 (reliable provisional responses), RFC 3311 (UPDATE) and RFC 4028 (session timers): what a proxy passes
//! on and does not touch.

use super::*;
use crate::passing::check_own_ack;

const RELIABLE: [(&str, &str); 3] = [("Contact", CONTACT_INSIDE), ("Require", "100rel"), ("RSeq", "988789")];
const ALICES_TARGET: &str = "sip:bob@203.0.113.1:5060";
const BOBS_TARGET: &str = "sip:bob@10.0.0.2:5060";

/// Alice's INVITE with these fields, as Bob got it.
fn invited_with(site: &mut Site, alice: &mut Caller, headers: &str) -> (String, String) {
    let headers = format!("{HERS}{headers}");
    let invite = alice.signed(site, "INVITE", BOB, &headers, AUDIO);
    let [arrived, trying] = exactly(site.send(PHONE, &invite), [PBX, PHONE]);
    check_answer(&invite, PHONE, &trying, 100, &[]);
    // A timer of hers that is no longer than the call's grants last is left as it is.
    let added = if headers.contains("Session-Expires") { &[IDENTITY][..] } else { &[IDENTITY, TIMER] };
    check_request(&invite, PHONE, &arrived, Edits { added, ..inviting(&inside(AUDIO)) });
    (invite, arrived)
}

/// A request of Alice's within the call, and Bob's answer to it: both pass.
fn asked_by_alice(
    site: &mut Site,
    alice: &mut Caller,
    (method, headers): (&str, &str),
    code: u16,
    more: &[(&str, &str)],
) {
    let request = alice.request(method, ALICES_TARGET, &format!("{HERS}{headers}"), "");
    let [arrived] = exactly(site.send(PHONE, &request), [PBX]);
    check_request(&request, PHONE, &arrived, Edits { uri: Some(BOBS_TARGET), ..WITHIN });
    let said = answer(&arrived, code, more, "");
    let [passed] = exactly(site.send(PBX, &said), [PHONE]);
    let is_here = more.iter().any(|(name, _)| *name == "Contact");
    check_response(&said, &passed, if is_here { ANSWERING } else { Edits::default() });
}

/// RFC 3262 section 3: RSeq and RAck belong to the two ends. What is repeated until PRACK comes is passed on each time.
#[test]
fn a_reliable_provisional_response_is_acknowledged_from_end_to_end() {
    let mut site = Site::new();
    let mut alice = alice();
    let (_, arrived) = invited_with(&mut site, &mut alice, "Supported: 100rel\r\n");
    let ringing = answer(&arrived, 180, &RELIABLE, "");
    let [passed] = exactly(site.send(PBX, &ringing), [PHONE]);
    check_response(&ringing, &passed, ANSWERING);
    let [again] = exactly(site.send(PBX, &ringing), [PHONE]);
    assert_eq!(again, passed);
    alice.take_dialog(&passed);
    let rack = format!("RAck: 988789 {} INVITE\r\n", alice.cseq);
    asked_by_alice(&mut site, &mut alice, ("PRACK", &rack), 200, &[]);
    alice.cseq -= 1;
    accepted(&mut site, &mut alice, &arrived);
    alice.cseq += 1;
    bob_hangs_up(&mut site, &alice);
    is_over(&mut site);
}

/// Early media, acknowledged: the description waits for the gate, and what comes again meanwhile is not sent twice.
#[test]
fn reliable_early_media_wait_for_the_gate_once() {
    let mut site = Site::new();
    let mut alice = alice();
    let (_, arrived) = invited_with(&mut site, &mut alice, "Require: 100rel\r\n");
    let progress = answer(&arrived, 183, &RELIABLE, ANSWER);
    exactly(site.send(PBX, &progress), []);
    exactly(site.send(PBX, &progress), []);
    let [passed] = exactly(site.gate_opens(), [PHONE]);
    check_response(&progress, &passed, Edits { body: Some(&outside(ANSWER)), ..ANSWERING });
    let [again] = exactly(site.send(PBX, &progress), [PHONE]);
    assert_eq!(again, passed);
    alice.take_dialog(&passed);
    let rack = format!("RAck: 988789 {} INVITE\r\n", alice.cseq);
    asked_by_alice(&mut site, &mut alice, ("PRACK", &rack), 200, &[]);
}

/// Bob wants 100rel, and Alice has not got it: his to say, and hers to hear.
#[test]
fn a_service_refuses_who_has_no_reliable_provisional_responses() {
    let mut site = Site::new();
    let mut alice = alice();
    let (invite, arrived) = invited_with(&mut site, &mut alice, "");
    let refusal = answer(&arrived, 421, &[("Require", "100rel")], "");
    let [ack, passed] = exactly(site.send(PBX, &refusal), [PBX, PHONE]);
    check_own_ack(&arrived, &refusal, &ack);
    check_response(&refusal, &passed, Edits::default());
    exactly(site.send(PHONE, ack_to_refusal(&invite, &passed)), []);
    is_over(&mut site);
}

/// RFC 3311 sections 5.1 and 5.2, without a description: before the call is taken, and after, from either side.
#[test]
fn an_update_without_a_description_passes_either_way() {
    let mut site = Site::new();
    let mut alice = alice();
    let (_, arrived) = invited_with(&mut site, &mut alice, "Allow: UPDATE\r\n");
    let early = rings(&mut site, &arrived);
    alice.take_dialog(&early);
    let here = [("Contact", CONTACT_INSIDE)];
    asked_by_alice(&mut site, &mut alice, ("UPDATE", "Supported: timer\r\n"), 200, &here);
    alice.cseq -= 1;
    accepted(&mut site, &mut alice, &arrived);
    alice.cseq += 1;
    asked_by_alice(&mut site, &mut alice, ("UPDATE", ""), 200, &here);
    // One that crosses another, and one that comes too early.
    asked_by_alice(&mut site, &mut alice, ("UPDATE", ""), 491, &[]);
    asked_by_alice(&mut site, &mut alice, ("UPDATE", ""), 500, &[("Retry-After", "7")]);

    let update =
        his(&alice, "UPDATE", 2, "").replace("User-Agent", &format!("Contact: {CONTACT_INSIDE}\r\nUser-Agent"));
    let [arrived] = exactly(site.send(PBX, &update), [PHONE]);
    let outer = [("Contact", CONTACT_OUTSIDE)];
    check_request(&update, PBX, &arrived, Edits { removed: &["Contact"], added: &outer, ..WITHIN });
    let ok = hers(&arrived, 200);
    let [passed] = exactly(site.send(PHONE, &ok), [PBX]);
    check_response(&ok, &passed, Edits::default());
    alice_hangs_up(&mut site, &mut alice);
    is_over(&mut site);
}

/// RFC 4028 section 13, messages 5 to 24: Bob finds the interval too small, Alice asks for a longer one, and she refreshes.
#[test]
fn session_timers_are_agreed_from_end_to_end() {
    let mut site = Site::new();
    let mut alice = alice();
    let asked = "Supported: timer\r\nSession-Expires: 200\r\nMin-SE: 100\r\n";
    let (invite, arrived) = invited_with(&mut site, &mut alice, asked);
    let refusal = answer(&arrived, 422, &[("Min-SE", "250")], "");
    let [ack, passed] = exactly(site.send(PBX, &refusal), [PBX, PHONE]);
    check_own_ack(&arrived, &refusal, &ack);
    check_response(&refusal, &passed, Edits::default());
    exactly(site.send(PHONE, ack_to_refusal(&invite, &passed)), []);

    let asked = "Supported: timer\r\nSession-Expires: 250\r\nMin-SE: 250\r\n";
    let (_, arrived) = invited_with(&mut site, &mut alice, asked);
    let agreed = [("Contact", CONTACT_INSIDE), ("Require", "timer"), ("Session-Expires", "250;refresher=uac")];
    let ok = answer(&arrived, 200, &agreed, ANSWER);
    exactly(site.send(PBX, &ok), []);
    let [passed] = exactly(site.gate_opens(), [PHONE]);
    check_response(&ok, &passed, Edits { body: Some(&outside(ANSWER)), ..ANSWERING });
    alice.take_dialog(&passed);
    let ack = alice.request("ACK", ALICES_TARGET, HERS, "");
    exactly(site.send(PHONE, &ack), [PBX]);
    let refresh = "Supported: timer\r\nSession-Expires: 250;refresher=uac\r\nMin-SE: 250\r\n";
    asked_by_alice(&mut site, &mut alice, ("UPDATE", refresh), 200, &agreed);
    bob_hangs_up(&mut site, &alice);
    is_over(&mut site);
}
