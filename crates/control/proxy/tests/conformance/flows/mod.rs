//! The call flows of RFC 3665 and of its extensions, message by message. Tests are named by its sections, messages by its numbers.
//!
//! Alice is a telephone outside, Bob a service behind the gate that takes SIP itself. The frontend plays the proxies between
//! them, which are two in most flows: the first authenticates Alice, the second knows where Bob is. Messages between these two
//! are none here. In section 3.1, where Alice calls Bob without a proxy, the frontend plays Bob: it answers for a declared
//! service. In section 2 it is the server: an agent registers where its service is, and a user where he is.

mod established;
mod extensions;
mod offers;
mod registration;
mod telephones;
mod unsuccessful;

use std::time::Duration;

use crate::{
    passing::{Edits, Wire, check_answer, check_request, check_response},
    site::{ANSWER, AUDIO, Caller, FRONTEND, GATE, PBX, PHONE, Sent, Site},
};

/// Bob as Alice knows him.
const BOB: &str = "sip:pbx@example.net";
/// Where the frontend finds him.
const BOB_INSIDE: &str = "sip:pbx@10.0.0.2:5060";
/// Bob's Contact as he gives it, and as Alice sees it.
const CONTACT_INSIDE: &str = "<sip:bob@10.0.0.2:5060>";
const CONTACT_OUTSIDE: &str = "<sip:bob@203.0.113.1:5060>";
/// Who Alice is, as the frontend tells Bob.
const IDENTITY: (&str, &str) = ("P-Asserted-Identity", "<sip:alice@example.net>");
/// How long what the call has open lasts, and one of them is asked to refresh it (RFC 4028 section 8.1).
const TIMER: (&str, &str) = ("Session-Expires", "300");
/// Fields of Alice's that no proxy has to do with.
const HERS: &str = "Subject: lunch\r\nUser-Agent: phone/1\r\nAllow: INVITE, ACK, CANCEL, OPTIONS, BYE\r\nAccept: application/sdp\r\n\
    Supported: replaces\r\nOrganization: a, b; c\r\n";
/// Fields of Bob's that no proxy has to do with.
const HIS: [(&str, &str); 3] =
    [("Server", "pbx/1"), ("Allow", "INVITE, ACK, BYE"), ("Supported", "replaces, norefersub")];

/// Alice, who sends her first request of a call by the frontend, as it is written in her configuration.
fn alice() -> Caller {
    Caller { route: Some(format!("<sip:{FRONTEND};lr>")), ..Caller::new("alice", PHONE).calls("pbx") }
}

/// What was sent, which is one message to each of these and no other.
fn exactly<const N: usize>(sent: Sent, to: [&str; N]) -> [String; N] {
    let addressees: Vec<_> = sent.iter().map(|(to, _)| to.to_string()).collect();
    assert_eq!(addressees, to, "{sent:?}");
    sent.into_iter().map(|(_, text)| text).collect::<Vec<_>>().try_into().unwrap()
}

/// Bob's answer to a request.
fn answer(request: &str, code: u16, more: &[(&str, &str)], body: &str) -> String {
    let request = Wire::of(request);
    let mut answer = Wire::of(&format!("SIP/2.0 {code} As he likes\r\nContent-Length: 0\r\n\r\n"));
    for name in ["Via", "Record-Route", "From"] {
        answer = request.all(name).into_iter().fold(answer, |answer, value| answer.with(name, value));
    }
    let to = request.one("To");
    let is_tagged = code == 100 || to.contains(";tag=");
    answer = answer.with("To", &if is_tagged { to.to_owned() } else { format!("{to};tag=314159") });
    for name in ["Call-ID", "CSeq"] {
        answer = answer.with(name, request.one(name));
    }
    answer = HIS.iter().chain(more).fold(answer, |answer, (name, value)| answer.with(name, value));
    answer.body = body.to_owned();
    if body.is_empty() { answer } else { answer.with("Content-Type", "application/sdp") }.to_string()
}

/// The same with where he is.
fn answer_here(request: &str, code: u16, body: &str) -> String {
    answer(request, code, &[("Contact", CONTACT_INSIDE)], body)
}

/// Alice's answer to a request of Bob's.
fn hers(request: &str, code: u16) -> String {
    let request = Wire::of(request);
    let mut answer = Wire::of(&format!("SIP/2.0 {code} OK\r\nContent-Length: 0\r\n\r\n"));
    for name in ["Via", "From", "To", "Call-ID", "CSeq"] {
        answer = request.all(name).into_iter().fold(answer, |answer, value| answer.with(name, value));
    }
    answer.with("User-Agent", "phone/1").to_string()
}

/// The ACK to a refusal, which whoever got it sends hop by hop (RFC 3261 section 17.1.1.3).
fn ack_to_refusal(invite: &str, refusal: &str) -> String {
    let (invite, refusal) = (Wire::of(invite), Wire::of(refusal));
    let mut ack = Wire::of(&format!("ACK {} SIP/2.0\r\nContent-Length: 0\r\n\r\n", invite.uri()));
    ack = ack.with("Via", invite.all("Via")[0]).with("Max-Forwards", "70");
    ack = invite.all("Route").into_iter().fold(ack, |ack, route| ack.with("Route", route));
    ack = ack.with("From", invite.one("From")).with("To", refusal.one("To")).with("Call-ID", invite.one("Call-ID"));
    ack.with("CSeq", &invite.one("CSeq").replace("INVITE", "ACK")).to_string()
}

/// The CANCEL of an INVITE (RFC 3261 section 9.1).
fn cancel(invite: &str) -> String {
    let invite = Wire::of(invite);
    let mut cancel = Wire::of(&format!("CANCEL {} SIP/2.0\r\nContent-Length: 0\r\n\r\n", invite.uri()));
    cancel = cancel.with("Via", invite.all("Via")[0]).with("Max-Forwards", "70");
    cancel = invite.all("Route").into_iter().fold(cancel, |cancel, route| cancel.with("Route", route));
    for name in ["From", "To", "Call-ID"] {
        cancel = cancel.with(name, invite.one(name));
    }
    cancel.with("CSeq", &invite.one("CSeq").replace("INVITE", "CANCEL")).to_string()
}

/// A request of Bob's within the call.
fn his(alice: &Caller, method: &str, cseq: u32, body: &str) -> String {
    let kind = if body.is_empty() { "" } else { "Content-Type: application/sdp\r\n" };
    format!(
        "{method} sip:alice@{PHONE} SIP/2.0\r\nVia: SIP/2.0/UDP {PBX};branch=z9hG4bKnashds{cseq};rport\r\n\
         Max-Forwards: 70\r\nRoute: {}\r\nFrom: <{BOB}>;tag={}\r\nTo: <sip:alice@example.net>;tag=alice-tag\r\n\
         Call-ID: {}\r\nCSeq: {cseq} {method}\r\nUser-Agent: pbx/1\r\n{kind}Content-Length: {}\r\n\r\n{body}",
        alice.route.as_ref().unwrap(),
        alice.to_tag.as_ref().unwrap(),
        alice.call_id,
        body.len(),
    )
}

/// A description with another address, in place of its own and in each of its streams.
fn moved(sdp: &str, from: &str, to: &str) -> String {
    let line = |line: &str| {
        let stream = line.starts_with("m=").then(|| format!("c=IN IP4 {to}\r\n"));
        line.replace(from, to) + &stream.unwrap_or_default()
    };
    sdp.split_inclusive('\n').map(line).collect()
}

/// Alice's description as Bob gets it: with the address that the frontend saw.
fn inside(sdp: &str) -> String {
    moved(sdp, "192.168.0.9", "198.51.100.7")
}

/// Bob's description as Alice gets it: with the gate's address and ports.
fn outside(sdp: &str) -> String {
    moved(sdp, "10.0.0.2", GATE).replace(" 4500 ", " 20000 ").replace(" 4600 ", " 20100 ")
}

/// What the frontend changes of an INVITE that makes a call.
fn inviting(body: &str) -> Edits<'_> {
    Edits {
        uri: Some(BOB_INSIDE),
        is_recorded: true,
        is_routed_here: true,
        removed: &["Proxy-Authorization"],
        added: &[IDENTITY, TIMER],
        body: Some(body),
    }
}

/// What the frontend changes of an answer of Bob's that says where he is.
const ANSWERING: Edits<'_> = Edits {
    uri: None,
    is_recorded: false,
    is_routed_here: false,
    removed: &["Contact"],
    added: &[("Contact", CONTACT_OUTSIDE)],
    body: None,
};

/// What it changes of a request within the call.
const WITHIN: Edits<'_> =
    Edits { uri: None, is_recorded: false, is_routed_here: true, removed: &[], added: &[], body: None };

/// F1 to F6 of section 3.2, as in most others: Alice's INVITE is challenged, and passes with her credentials. The INVITE as she
/// sent it, and as Bob got it.
fn invited(site: &mut Site, alice: &mut Caller) -> (String, String) {
    let f1 = alice.request("INVITE", BOB, HERS, AUDIO);
    let [f2] = exactly(site.send(PHONE, &f1), [PHONE]);
    check_answer(&f1, PHONE, &f2, 407, &["Proxy-Authenticate"]);
    let f3 = ack_to_refusal(&f1, &f2);
    exactly(site.send(PHONE, f3), []);
    let f4 = alice.answered(&f2, "INVITE", BOB, HERS, AUDIO);
    let [f5, f6] = exactly(site.send(PHONE, &f4), [PBX, PHONE]);
    check_request(&f4, PHONE, &f5, inviting(&inside(AUDIO)));
    check_answer(&f4, PHONE, &f6, 100, &[]);
    (f4, f5)
}

/// Bob rings. The answer as Alice got it.
fn rings(site: &mut Site, invite: &str) -> String {
    exactly(site.send(PBX, answer(invite, 100, &[], "")), []);
    let ringing = answer_here(invite, 180, "");
    let [passed] = exactly(site.send(PBX, &ringing), [PHONE]);
    check_response(&ringing, &passed, ANSWERING);
    passed
}

/// Bob takes the call, the gate opens, and Alice acknowledges.
fn accepted(site: &mut Site, alice: &mut Caller, invite: &str) {
    let ok = answer_here(invite, 200, ANSWER);
    exactly(site.send(PBX, &ok), []);
    let [passed] = exactly(site.gate_opens(), [PHONE]);
    check_response(&ok, &passed, Edits { body: Some(&outside(ANSWER)), ..ANSWERING });
    alice.take_dialog(&passed);
    let ack = alice.request("ACK", "sip:bob@203.0.113.1:5060", HERS, "");
    let [arrived] = exactly(site.send(PHONE, &ack), [PBX]);
    check_request(&ack, PHONE, &arrived, Edits { uri: Some("sip:bob@10.0.0.2:5060"), ..WITHIN });
}

/// Bob hangs up.
fn bob_hangs_up(site: &mut Site, alice: &Caller) {
    let bye = his(alice, "BYE", 1, "");
    let [arrived] = exactly(site.send(PBX, &bye), [PHONE]);
    check_request(&bye, PBX, &arrived, WITHIN);
    let ok = hers(&arrived, 200);
    let [passed] = exactly(site.send(PHONE, &ok), [PBX]);
    check_response(&ok, &passed, Edits::default());
    assert_eq!(site.revokes(), 1, "what the gate opened is shut");
}

/// Alice hangs up.
fn alice_hangs_up(site: &mut Site, alice: &mut Caller) {
    let bye = alice.request("BYE", "sip:bob@203.0.113.1:5060", HERS, "");
    let [arrived] = exactly(site.send(PHONE, &bye), [PBX]);
    check_request(&bye, PHONE, &arrived, Edits { uri: Some("sip:bob@10.0.0.2:5060"), ..WITHIN });
    let ok = answer(&arrived, 200, &[], "");
    let [passed] = exactly(site.send(PBX, &ok), [PHONE]);
    check_response(&ok, &passed, Edits::default());
    assert_eq!(site.revokes(), 1, "what the gate opened is shut");
}

/// Nothing more is said, and nothing of the call is remembered once all timers have run.
fn is_over(site: &mut Site) {
    exactly(site.pass(Duration::from_secs(400)), []);
    // What may not come twice is remembered longer.
    let left: Vec<_> = site.shards[0]
        .gauges(site.instant)
        .into_iter()
        .filter(|table| table.used > 0 && table.name != "replays")
        .collect();
    assert!(left.is_empty(), "{left:?}");
}
