//! Calls from a SIP server to the telephones of users: where they are registered, with media through the gate.

use std::time::Duration;

use sluicegate_proxy::{Input, Standing};
use sluicegate_sip::{message::Message, sdp::Session, write::Response};

use crate::site::{ANSWER, AUDIO, Caller, FRONTEND, GATE, PBX, PHONE, Sent, Site, header, status};

pub(crate) const OTHER: &str = "198.51.100.8:40000";
const THIRD: &str = "198.51.100.9:40000";
pub(crate) const TO_ALICE: &str = "sip:alice@example.net";
/// The SIP server's Contact as a telephone sees it.
const BACK: &str = "sip:switch@203.0.113.1:5060";

pub(crate) fn to<'s>(sent: &'s Sent, peer: &str) -> Vec<&'s str> {
    sent.iter().filter(|(to, _)| to.to_string() == peer).map(|(_, text)| text.as_str()).collect()
}

pub(crate) fn codes(sent: &Sent, peer: &str) -> Vec<u16> {
    to(sent, peer).into_iter().map(status).filter(|code| *code != 0).collect()
}

pub(crate) fn methods<'s>(sent: &'s Sent, peer: &str) -> Vec<&'s str> {
    to(sent, peer).into_iter().filter(|text| status(text) == 0).filter_map(|text| text.split(' ').next()).collect()
}

fn media(message: &str) -> Vec<(String, u16)> {
    let message = Message::parse(message.as_bytes()).unwrap();
    let session = Session::parse(message.body()).unwrap();
    session.media().iter().map(|media| (media.address.unwrap().to_string(), media.port)).collect()
}

/// A telephone of this user registers from here.
pub(crate) fn register(site: &mut Site, user: &str, from: &str, params: &str) {
    let mut phone = Caller::new(user, from);
    phone.to = format!("sip:{user}@example.net");
    phone.call_id = format!("registration-{from}");
    let contact = format!("Contact: <sip:{user}@{from};line=1>{params}\r\n");
    let answer = phone.sign_in(site, "REGISTER", "sip:example.net", &contact, "");
    assert_eq!(status(&answer), 200, "{answer}");
}

/// The SIP server, which proves itself by a password.
pub(crate) fn switch() -> Caller {
    Caller { to: TO_ALICE.into(), ..Caller::new("switch", PBX) }
}

/// A telephone's answer.
pub(crate) fn answered(request: &str, code: u16, tag: &str, body: &str) -> String {
    let message = Message::parse(request.as_bytes()).unwrap();
    let mut out = Vec::new();
    let headers = Response::to(&message, code).to_tag(tag.as_bytes()).record_route().begin(&mut out);
    let headers = headers.header("Contact", "<sip:alice@192.168.0.9:5060>");
    if body.is_empty() {
        headers.finish();
    } else {
        headers.body("application/sdp", body.as_bytes());
    }
    String::from_utf8(out).unwrap()
}

/// Has the SIP server call alice; the INVITE as her telephone got it.
pub(crate) fn called(site: &mut Site, switch: &mut Caller) -> String {
    let invite = switch.signed(site, "INVITE", TO_ALICE, "", ANSWER);
    let sent = site.send(PBX, invite);
    assert_eq!((codes(&sent, PBX), methods(&sent, PHONE).len()), (vec![100], 0), "not before it is open: {sent:?}");
    let sent = site.gate_opens();
    to(&sent, PHONE)[0].to_owned()
}

/// The telephone's side of that call.
pub(crate) fn alices_side(invite: &str) -> Caller {
    let message = Message::parse(invite.as_bytes()).unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    Caller {
        to: text(message.from().unwrap().uri),
        to_tag: message.from().unwrap().tag.map(text),
        route: header(invite, "Record-Route").map(str::to_owned),
        call_id: text(message.call_id().unwrap()),
        ..Caller::new("alice", PHONE)
    }
}

#[test]
fn d05_a_sip_server_calls_a_registered_telephone_with_media_through_the_gate() {
    let mut site = Site::new();
    register(&mut site, "alice", PHONE, "");
    let mut switch = switch();
    let invite = called(&mut site, &mut switch);
    assert!(invite.starts_with(&format!("INVITE sip:alice@{PHONE};line=1 SIP/2.0\r\n")), "{invite}");
    assert_eq!(media(&invite), [(GATE.to_owned(), 20_000)]);
    assert_eq!(header(&invite, "Contact"), Some(&*format!("<{BACK}>")));
    assert!(header(&invite, "Record-Route").unwrap().starts_with(&format!("<sip:{FRONTEND};lr;")));
    assert!(!invite.contains("Proxy-Authorization"));
    let ringing = site.send(PHONE, answered(&invite, 180, "alice-tag", ""));
    assert_eq!(codes(&ringing, PBX), [180]);
    let ok = site.send(PHONE, answered(&invite, 200, "alice-tag", AUDIO));
    let ok = to(&ok, PBX)[0].to_owned();
    assert_eq!((status(&ok), media(&ok)), (200, vec![("198.51.100.7".to_owned(), 4_100)]));
    switch.take_dialog(&ok);
    let ack = switch.request("ACK", "sip:alice@192.168.0.9:5060", "", "");
    assert_eq!(methods(&site.send(PBX, ack), PHONE), ["ACK"]);
    let rows = site.ledger.rows();
    assert_eq!((rows.len(), rows[0].user.as_str(), rows[0].client.to_string().as_str()), (1, "alice", "198.51.100.7"));
    // Either side ends it.
    let mut alice = alices_side(&invite);
    let bye = alice.request("BYE", BACK, "", "");
    let sent = site.send(PHONE, bye);
    assert!(to(&sent, PBX)[0].starts_with("BYE sip:switch@10.0.0.2:5060 "), "{sent:?}");
    assert_eq!(site.revokes(), 1);
}

#[test]
fn a_called_telephone_holds_the_call_and_its_server_moves_it() {
    let mut site = Site::new();
    register(&mut site, "alice", PHONE, "");
    let mut switch = switch();
    let invite = called(&mut site, &mut switch);
    let ok = site.send(PHONE, answered(&invite, 200, "alice-tag", AUDIO));
    switch.take_dialog(to(&ok, PBX)[0]);
    let mut alice = alices_side(&invite);
    let held = format!("{AUDIO}a=sendonly\r\n");
    let signed = alice.signed(&mut site, "INVITE", BACK, "", &held);
    let sent = site.send(PHONE, signed);
    let offer = to(&sent, PBX)[0].to_owned();
    assert!(offer.starts_with("INVITE sip:switch@10.0.0.2:5060 ") && offer.contains("a=sendonly"), "{sent:?}");
    let sent = site.send(PBX, answered(&offer, 200, "x", ANSWER));
    assert_eq!(media(to(&sent, PHONE)[0]), [(GATE.to_owned(), 20_000)]);
    site.gate_opens();
    let moved = switch.request("INVITE", "sip:alice@192.168.0.9:5060", "", &ANSWER.replace("4500", "4600"));
    assert!(methods(&site.send(PBX, moved), PHONE).is_empty());
    let sent = site.gate_opens_from(30_000);
    assert_eq!(media(to(&sent, PHONE)[0]), [(GATE.to_owned(), 30_000)]);
    // And the server hears when the call's time is over.
    site.send(PHONE, answered(to(&sent, PHONE)[0], 200, "alice-tag", AUDIO));
    let mut sent = Sent::new();
    for _ in 0..400 {
        sent.extend(site.pass(Duration::from_secs(1)));
        site.ledger.expire(site.unix);
    }
    assert!(methods(&sent, PBX).contains(&"BYE"), "{sent:?}");
}

#[test]
fn who_is_not_there_or_may_not_be_called_is_refused() {
    let mut site = Site::new();
    register(&mut site, "bob", OTHER, "");
    for (uri, code) in [
        ("sip:alice@example.net", 480),
        ("sip:nobody@example.net", 404),
        ("sip:carol@example.net", 404),
        ("sip:alice@elsewhere.net", 404),
        // Who may not use the service that calls would have its media opened.
        ("sip:bob@example.net", 403),
    ] {
        let mut switch = Caller { call_id: uri.into(), ..switch() };
        let invite = switch.signed(&mut site, "INVITE", uri, "", ANSWER);
        let sent = site.send(PBX, invite);
        assert_eq!(codes(&sent, PBX).last(), Some(&code), "{uri}: {sent:?}");
        assert!(site.asked().is_empty());
    }
}

#[test]
fn nobody_calls_for_a_server_by_its_address_alone() {
    let mut site = Site::new();
    register(&mut site, "alice", PHONE, "");
    let sent = site.send(PBX, switch().request("INVITE", TO_ALICE, "", ANSWER));
    assert_eq!(codes(&sent, PBX), [407]);
    let mut bob = Caller { to: TO_ALICE.into(), ..Caller::new("bob", OTHER) };
    let invite = bob.signed(&mut site, "INVITE", TO_ALICE, "", ANSWER);
    let sent = site.send(OTHER, invite);
    assert_eq!((codes(&sent, OTHER), methods(&sent, PHONE).len()), (vec![403], 0));
}

#[test]
fn all_telephones_of_a_user_ring_and_one_takes_the_call() {
    let mut site = Site::new();
    register(&mut site, "alice", PHONE, "");
    register(&mut site, "alice", OTHER, "");
    let mut switch = switch();
    let invite = switch.signed(&mut site, "INVITE", TO_ALICE, "", ANSWER);
    site.send(PBX, invite);
    let sent = site.gate_opens();
    let (one, other) = (to(&sent, PHONE)[0].to_owned(), to(&sent, OTHER)[0].to_owned());
    assert_ne!(media(&one), media(&other), "each has what is open for it");
    assert_eq!(codes(&site.send(PHONE, answered(&one, 180, "one", "")), PBX), [180]);
    assert_eq!(codes(&site.send(OTHER, answered(&other, 180, "other", "")), PBX), [180]);
    let sent = site.send(OTHER, answered(&other, 200, "other", AUDIO));
    assert_eq!((codes(&sent, PBX), methods(&sent, PHONE)), (vec![200], vec!["CANCEL"]));
    let sent = site.send(PHONE, answered(&one, 487, "one", ""));
    assert_eq!((codes(&sent, PBX).len(), methods(&sent, PHONE)), (0, vec!["ACK"]));
    assert_eq!(site.revokes(), 1, "what was open for the other");
}

#[test]
fn the_best_refusal_of_all_is_the_one_passed_on() {
    for (first, second, passed) in [(486, 480, 486), (480, 603, 603), (404, 302, 302), (500, 486, 486)] {
        let mut site = Site::new();
        register(&mut site, "alice", PHONE, "");
        register(&mut site, "alice", OTHER, "");
        let invite = switch().signed(&mut site, "INVITE", TO_ALICE, "", ANSWER);
        site.send(PBX, invite);
        let sent = site.gate_opens();
        let (one, other) = (to(&sent, PHONE)[0].to_owned(), to(&sent, OTHER)[0].to_owned());
        assert!(codes(&site.send(PHONE, answered(&one, first, "one", "")), PBX).is_empty());
        assert_eq!(codes(&site.send(OTHER, answered(&other, second, "other", "")), PBX), [passed]);
        assert_eq!(site.revokes(), 2);
    }
}

#[test]
fn telephones_of_lower_preference_ring_when_the_others_do_not_take_the_call() {
    let mut site = Site::new();
    register(&mut site, "alice", PHONE, ";q=0.9");
    register(&mut site, "alice", OTHER, ";q=0.5");
    register(&mut site, "alice", THIRD, ";q=0.5");
    let invite = switch().signed(&mut site, "INVITE", TO_ALICE, "", ANSWER);
    site.send(PBX, invite);
    let sent = site.gate_opens();
    assert_eq!((methods(&sent, PHONE).len(), methods(&sent, OTHER).len()), (1, 0));
    let sent = site.send(PHONE, answered(to(&sent, PHONE)[0], 486, "one", ""));
    assert!(codes(&sent, PBX).is_empty());
    let sent = site.gate_opens();
    assert_eq!((methods(&sent, OTHER), methods(&sent, THIRD)), (vec!["INVITE"], vec!["INVITE"]));
    let ok = site.send(THIRD, answered(to(&sent, THIRD)[0], 200, "third", AUDIO));
    assert_eq!((codes(&ok, PBX), methods(&ok, OTHER).len()), (vec![200], 0), "no provisional answer yet");
    // It is cancelled as soon as it answers at all.
    let sent = site.send(OTHER, answered(to(&sent, OTHER)[0], 180, "other", ""));
    assert_eq!(methods(&sent, OTHER), ["CANCEL"]);
}

#[test]
fn a_server_that_gives_up_stops_every_telephone() {
    let mut site = Site::new();
    register(&mut site, "alice", PHONE, "");
    register(&mut site, "alice", OTHER, ";q=0.1");
    let mut switch = switch();
    let invite = switch.signed(&mut site, "INVITE", TO_ALICE, "", ANSWER);
    site.send(PBX, &invite);
    let sent = site.gate_opens();
    let offer = to(&sent, PHONE)[0].to_owned();
    site.send(PHONE, answered(&offer, 180, "one", ""));
    let branch = header(&invite, "Via").unwrap().to_owned();
    let cancel = switch.request("CANCEL", TO_ALICE, "", "");
    let own = header(&cancel, "Via").unwrap().to_owned();
    let sent = site.send(PBX, cancel.replace(&own, &branch));
    assert_eq!((codes(&sent, PBX), methods(&sent, PHONE)), (vec![200], vec!["CANCEL"]));
    let sent = site.send(PHONE, answered(&offer, 487, "one", ""));
    assert_eq!((codes(&sent, PBX), methods(&sent, OTHER).len()), (vec![487], 0), "the next one does not ring");
}

#[test]
fn a_telephone_that_does_not_answer_ends_a_call_and_what_was_open_for_it() {
    let mut site = Site::new();
    register(&mut site, "alice", PHONE, "");
    called(&mut site, &mut switch());
    let sent = site.pass(Duration::from_secs(40));
    assert_eq!(codes(&sent, PBX)[0], 408);
    assert_eq!(site.revokes(), 1);
    for table in site.shards[0].gauges(site.instant) {
        println!("{table:?}");
    }
    site.pass(Duration::from_secs(100));
    let left = site.shards[0]
        .gauges(site.instant)
        .into_iter()
        .filter(|gauge| gauge.name.ends_with("transactions"))
        .map(|g| g.used);
    assert_eq!(left.sum::<u64>(), 0);
}

#[test]
fn a_server_behind_a_distant_gate_calls_by_what_that_gate_seals() {
    use sluicegate_grant::{
        mac::{Ends, Purpose, SessionKeys},
        relay::RelayKeys,
    };
    let mut site = Site::new();
    register(&mut site, "alice", PHONE, "");
    let address: std::net::SocketAddr = "203.0.113.9:31000".parse().unwrap();
    let keys = RelayKeys::derive(&SessionKeys::from_bytes([[3; 16], [4; 16]]), 1);
    let standing = Some(Standing { address, keys: keys.clone() });
    site.tell(0, Input::Standing { service: "pbx".into(), standing });
    let own: std::net::SocketAddr = FRONTEND.parse().unwrap();
    let ends = Ends { client: (own.ip(), own.port()), gate_port: address.port() };
    let invite = Caller { to: TO_ALICE.into(), ..Caller::new("switch", "203.0.113.9:31000") };
    let invite = { invite }.request("INVITE", TO_ALICE, "", ANSWER);
    assert!(site.send("203.0.113.9:31000", &invite).is_empty(), "not sealed");
    let trailer = keys.keys().to_client.trailer(keys.sender(0), Purpose::Datagram, 1, &ends, invite.as_bytes());
    site.send("203.0.113.9:31000", [invite.as_bytes(), &trailer].concat());
    let sent = site.gate_opens();
    assert_eq!(methods(&sent, PHONE), ["INVITE"]);
}

#[test]
fn a_telephone_dials_what_its_server_knows() {
    let mut site = Site::new();
    for (dialled, inside) in [
        ("sip:1002@example.net;user=phone", Some("INVITE sip:1002@10.0.0.2:5060;user=phone SIP/2.0")),
        ("sip:bob@example.net", Some("INVITE sip:bob@10.0.0.2:5060 SIP/2.0")),
        ("sip:2002@example.net", None),
        ("sip:bobby@example.net", None),
        // Another domain is nobody's here.
        ("sip:1002@elsewhere.net", None),
    ] {
        let mut alice = Caller { to: dialled.into(), call_id: dialled.into(), ..Caller::new("alice", PHONE) };
        let signed = alice.signed(&mut site, "INVITE", dialled, "", AUDIO);
        let sent = site.send(PHONE, signed);
        assert_eq!(to(&sent, PBX).first().and_then(|text| text.lines().next()), inside, "{sent:?}");
        assert_eq!(codes(&sent, PHONE), [if inside.is_some() { 100 } else { 403 }]);
    }
    // Who calls for the server reaches users by their names, and not itself.
    register(&mut site, "bob", OTHER, "");
    let mut switch = Caller { to: "sip:bob@example.net".into(), ..switch() };
    let invite = switch.signed(&mut site, "INVITE", "sip:bob@example.net", "", ANSWER);
    let sent = site.send(PBX, invite);
    assert!(methods(&sent, PBX).is_empty(), "{sent:?}");
}

/// RFC 3261 section 16.6, 8, and RFC 5393.
#[test]
fn a_request_that_comes_back_as_it_went_is_a_loop_and_one_for_somebody_else_is_not() {
    let mut site = Site::new();
    let dialled = "sip:1002@example.net";
    let mut alice = Caller { to: dialled.into(), ..Caller::new("alice", PHONE) };
    let signed = alice.signed(&mut site, "INVITE", dialled, "", AUDIO);
    let sent = site.send(PHONE, signed);
    let invite = to(&sent, PBX)[0].to_owned();
    // The server sends it back, for whom it was or for bob, and proves itself: it is a spiral, as the way from a server to a
    // user is another than to a server.
    for (target, code) in [(dialled, 404), ("sip:bob@example.net", 480)] {
        let returned = |credentials: &str| {
            let own = format!("Via: SIP/2.0/UDP {PBX};branch=z9hG4bKback{target}{};rport\r\nVia:", credentials.len());
            let text = invite.replacen("Via:", &own, 1).replacen("sip:1002@10.0.0.2:5060", target, 1);
            text.replacen("Max-Forwards", &format!("{credentials}Max-Forwards"), 1)
        };
        let sent = site.send(PBX, returned(""));
        let challenge = to(&sent, PBX)[0].to_owned();
        let credentials = Caller { to: target.into(), ..switch() }.authorization(&challenge, "INVITE", target);
        let sent = site.send(PBX, returned(&credentials));
        assert_eq!(codes(&sent, PBX), [code], "{target}: {sent:?}");
    }
    // What alice's own telephone sends back to her server is a loop.
    let returned = |credentials: &str| {
        let own = format!("Via: SIP/2.0/UDP {PHONE};branch=z9hG4bKback{};rport\r\nVia:", credentials.len());
        let text = invite.replacen("Via:", &own, 1).replacen("sip:1002@10.0.0.2:5060", dialled, 1);
        text.replacen("Max-Forwards", &format!("{credentials}Max-Forwards"), 1)
    };
    let challenge = to(&site.send(PHONE, returned("")), PHONE)[0].to_owned();
    let credentials = alice.authorization(&challenge, "INVITE", dialled);
    assert_eq!(codes(&site.send(PHONE, returned(&credentials)), PHONE), [482]);
}

#[test]
fn a_request_goes_to_no_more_places_at_a_time_than_it_may() {
    for (breadth, ring, code) in [("Max-Breadth: 0\r\n", 0, Some(440)), ("Max-Breadth: 1\r\n", 1, None), ("", 2, None)]
    {
        let mut site = Site::new();
        register(&mut site, "alice", PHONE, "");
        register(&mut site, "alice", OTHER, "");
        let invite = switch().signed(&mut site, "INVITE", TO_ALICE, breadth, ANSWER);
        let sent = site.send(PBX, invite);
        assert_eq!(codes(&sent, PBX).last().filter(|code| **code != 100).copied(), code, "{sent:?}");
        let sent = site.gate_opens();
        let texts: Vec<_> = [PHONE, OTHER].iter().flat_map(|peer| to(&sent, peer)).collect();
        assert_eq!(texts.len(), ring);
        let left = if ring == 2 { "30" } else { "1" };
        assert!(texts.iter().all(|text| header(text, "Max-Breadth") == Some(left)), "{texts:?}");
    }
}
