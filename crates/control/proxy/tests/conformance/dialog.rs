//! Requests within a call that change its media, of either side: re-INVITE (RFC 3261 section 14), UPDATE (RFC 3311), PRACK (RFC
//! 3262), and offers that are answered in the ACK (RFC 3264 section 5).

use std::time::Duration;

use sluicegate_feed::Selector;
use sluicegate_grant::ANY_PORTS;
use sluicegate_proxy::{Count, Event, GateAnswer, Input, Listening};
use sluicegate_sip::{
    message::{HeaderName, Message},
    sdp::Session,
};

use crate::site::{
    ANSWER, AUDIO, Caller, FRONTEND, GATE, PBX, PHONE, Sent, Site, header, of_service, phone, relayed, reply, set_up,
    status,
};

const INSIDE: &str = "sip:pbx@10.0.0.2:5060";

/// Addresses and ports of a message's media.
fn media(message: &str) -> Vec<(String, u16)> {
    let message = Message::parse(message.as_bytes()).unwrap();
    let session = Session::parse(message.body()).unwrap();
    let place =
        |media: &sluicegate_sip::sdp::Media<'_>| (media.address.map_or(String::new(), |ip| ip.to_string()), media.port);
    session.media().iter().map(place).collect()
}

fn to<'s>(sent: &'s Sent, peer: &str) -> Vec<&'s str> {
    sent.iter().filter(|(to, _)| to.to_string() == peer).map(|(_, text)| text.as_str()).collect()
}

/// The gate would not open what it was asked for.
fn gate_refuses(site: &mut Site) -> Sent {
    let asked = site.asked();
    let refused = |id| Input::Gate(GateAnswer { id, opened: Err("no port is free".into()) });
    asked.iter().flat_map(|delta| site.tell(0, refused(delta.grant.id))).collect()
}

fn called() -> (Site, Caller) {
    let mut site = Site::new();
    let mut alice = phone();
    set_up(&mut site, &mut alice);
    (site, alice)
}

/// The service's offer with media at other ports.
fn moved() -> String {
    ANSWER.replace("4500", "4600")
}

#[test]
fn d06_what_a_service_offers_anew_is_opened_before_the_client_sees_it() {
    for method in ["INVITE", "UPDATE"] {
        let (mut site, alice) = called();
        let before = site.ledger.rows();
        let sent = site.send(PBX, of_service(&alice, method, 7, &moved()));
        assert!(to(&sent, PHONE).is_empty(), "not before it is open");
        assert_eq!(
            to(&sent, PBX).iter().map(|text| status(text)).collect::<Vec<_>>(),
            if method == "INVITE" { vec![100] } else { vec![] }
        );
        let sent = site.gate_opens_from(30_000);
        let offer = to(&sent, PHONE)[0];
        assert!(offer.starts_with(method) && media(offer) == [(GATE.to_owned(), 30_000)], "{offer}");
        assert!(header(offer, "Contact") == Some("<sip:pbx@203.0.113.1:5060>") && !offer.contains("Route:"), "{offer}");
        // The client's answer names where the client is.
        let ok = site.send(PHONE, reply(offer, 200, AUDIO));
        let ok = to(&ok, PBX)[0];
        assert_eq!((status(ok), media(ok)), (200, vec![("198.51.100.7".to_owned(), 4_100)]));
        // The call has the new ports, and no others.
        assert_eq!(site.closed(), [before[0].id]);
        let rows = site.ledger.rows();
        assert_eq!((rows.len(), rows[0].target_ports, rows[0].gate_ports), (1, (4_600, 4_601), (30_000, 30_001)));
    }
}

#[test]
fn d06_a_service_puts_a_call_on_hold_and_takes_it_back_without_waiting_for_the_gate() {
    let (mut site, alice) = called();
    for (cseq, direction) in [(7, "sendonly"), (8, "sendrecv"), (9, "inactive"), (10, "sendrecv")] {
        let held = format!("{ANSWER}a={direction}\r\n");
        let sent = site.send(PBX, of_service(&alice, "INVITE", cseq, &held));
        let offer = to(&sent, PHONE)[0].to_owned();
        assert!(offer.contains(&format!("a={direction}")) && media(&offer) == [(GATE.to_owned(), 20_000)], "{offer}");
        let ok = site.send(PHONE, reply(&offer, 200, AUDIO));
        assert_eq!(status(to(&ok, PBX)[0]), 200);
        let sent = site.send(PBX, of_service(&alice, "ACK", cseq, ""));
        assert!(to(&sent, PHONE)[0].starts_with("ACK "));
        // Which renews what is open, too.
        assert_eq!(site.gate_opens().len(), 0);
    }
    assert_eq!((site.closed().len(), site.ledger.rows().len()), (0, 1));
}

#[test]
fn d06_a_client_that_refuses_an_offer_keeps_what_it_had() {
    let (mut site, alice) = called();
    let before = site.ledger.rows();
    site.send(PBX, of_service(&alice, "INVITE", 7, &moved()));
    let new = site.asked_ids();
    let sent = site.gate_opens_from(30_000);
    let refused = site.send(PHONE, reply(to(&sent, PHONE)[0], 488, ""));
    assert!(to(&refused, PHONE)[0].starts_with("ACK ") && status(to(&refused, PBX)[0]) == 488);
    assert_eq!(site.closed(), new);
    assert_eq!(site.ledger.rows()[0].id, before[0].id);
    assert_eq!(site.ledger.rows().len(), 1);
}

#[test]
fn d06_what_the_gate_does_not_open_is_refused_to_the_service_and_the_call_goes_on() {
    let (mut site, mut alice) = called();
    site.send(PBX, of_service(&alice, "INVITE", 7, &moved()));
    let sent = gate_refuses(&mut site);
    assert_eq!((status(to(&sent, PBX)[0]), to(&sent, PHONE).len()), (488, 0));
    site.send(PBX, of_service(&alice, "UPDATE", 8, &moved()));
    let sent = site.pass(Duration::from_millis(500));
    assert_eq!(status(to(&sent, PBX)[0]), 488);
    let bye = alice.request("BYE", INSIDE, "", "");
    assert!(to(&site.send(PHONE, bye), PBX)[0].starts_with("BYE "));
}

#[test]
fn d06_ports_outside_the_service_are_not_opened_by_an_offer_either() {
    let (mut site, alice) = called();
    let sent = site.send(PBX, of_service(&alice, "INVITE", 7, &ANSWER.replace("4500", "22")));
    assert!(site.asked().is_empty());
    assert_eq!(media(to(&sent, PHONE)[0])[0].1, 0);
}

#[test]
fn d06_a_client_moves_its_media_by_update_and_the_answer_is_opened_before_it_is_passed_on() {
    let (mut site, mut alice) = called();
    let update = alice.request("UPDATE", INSIDE, "", &AUDIO.replace("4100", "4200"));
    let sent = site.send(PHONE, update);
    let update = to(&sent, PBX)[0].to_owned();
    assert!(
        update.starts_with("UPDATE sip:pbx@10.0.0.2:5060 ") && media(&update) == [("198.51.100.7".to_owned(), 4_200)]
    );
    assert!(site.send(PBX, reply(&update, 200, &moved())).is_empty());
    let sent = site.gate_opens_from(30_000);
    assert_eq!(media(to(&sent, PHONE)[0]), [(GATE.to_owned(), 30_000)]);
}

#[test]
fn d06_an_update_from_elsewhere_needs_the_password() {
    let (mut site, mut alice) = called();
    let update = alice.request("UPDATE", INSIDE, "", AUDIO);
    let sent = site.send("198.51.100.66:5060", update);
    assert_eq!(sent.iter().map(|(_, text)| status(text)).collect::<Vec<_>>(), [407]);
}

/// RFC 3262: reliable early media, acknowledged by a PRACK that offers more.
#[test]
fn d06_a_prack_may_carry_an_offer_and_its_answer_is_opened() {
    let mut site = Site::new();
    let mut alice = phone();
    let invite = relayed(&mut site, &mut alice);
    let early = reply(&invite, 183, ANSWER).replacen("Contact:", "Require: 100rel\r\nRSeq: 17\r\nContact:", 1);
    site.send(PBX, early);
    let sent = site.gate_opens();
    let early = to(&sent, PHONE)[0].to_owned();
    assert_eq!((header(&early, "RSeq"), header(&early, "Require")), (Some("17"), Some("100rel")));
    alice.take_dialog(&early);
    let prack = alice.request("PRACK", INSIDE, "RAck: 17 2 INVITE\r\n", &AUDIO.replace("4100", "4200"));
    let sent = site.send(PHONE, prack);
    let prack = to(&sent, PBX)[0].to_owned();
    assert!(prack.starts_with("PRACK ") && header(&prack, "RAck") == Some("17 2 INVITE"), "{prack}");
    site.send(PBX, reply(&prack, 200, &moved()));
    let sent = site.gate_opens_from(30_000);
    assert_eq!(media(to(&sent, PHONE)[0]), [(GATE.to_owned(), 30_000)]);
    let ok = site.send(PBX, reply(&invite, 200, ""));
    assert_eq!(status(to(&ok, PHONE)[0]), 200);
}

#[test]
fn d06_an_offer_that_the_service_answers_in_its_ack_is_opened_before_that_is_passed_on() {
    let (mut site, alice) = called();
    let sent = site.send(PBX, of_service(&alice, "INVITE", 7, ""));
    let invite = to(&sent, PHONE)[0].to_owned();
    let sent = site.send(PHONE, reply(&invite, 200, AUDIO));
    assert_eq!(media(to(&sent, PBX)[0]), [("198.51.100.7".to_owned(), 4_100)]);
    site.asked();
    let ack = of_service(&alice, "ACK", 7, &moved());
    assert!(site.send(PBX, &ack).is_empty());
    let sent = site.gate_opens_from(30_000);
    let passed = to(&sent, PHONE)[0].to_owned();
    assert!(passed.starts_with("ACK ") && media(&passed) == [(GATE.to_owned(), 30_000)], "{passed}");
    // One that comes again finds everything open.
    let sent = site.send(PBX, &ack);
    assert_eq!(to(&sent, PHONE), [passed]);
    // Nobody can make the frontend hold more than one a call.
    for port in 0..200 {
        site.send(PBX, of_service(&alice, "ACK", 7, &ANSWER.replace("4500", &(4_700 + port).to_string())));
    }
    let held =
        site.shards[0].gauges(site.instant).iter().find(|gauge| gauge.name == "late_answers").map(|gauge| gauge.used);
    assert!(held.is_some_and(|held| held <= 1));
    site.pass(Duration::from_secs(1));
    assert!(site.shards[0].gauges(site.instant).iter().all(|gauge| gauge.name != "late_answers" || gauge.used == 0));
}

#[test]
fn an_ack_that_no_gate_opens_for_is_counted_and_told_to_whoever_traces_the_call() {
    for (is_refused, count, told) in
        [(true, Count::OpeningRefused, "no port is free"), (false, Count::OpeningTimeouts, "not opened in time")]
    {
        let (mut site, alice) = called();
        let sent = site.send(PBX, of_service(&alice, "INVITE", 7, ""));
        site.send(PHONE, reply(to(&sent, PHONE)[0], 200, AUDIO));
        site.asked();
        site.events.clear();
        assert!(site.send(PBX, of_service(&alice, "ACK", 7, &moved())).is_empty());
        let id = site.last_asked().grant.id;
        if is_refused {
            let refused = GateAnswer { id, opened: Err("no port is free".into()) };
            site.tell(0, Input::Gate(refused));
        }
        site.pass(Duration::from_secs(1));
        assert_eq!(site.metrics[0].count(count), 1);
        let steps = site.events.iter().filter_map(|event| match event {
            Event::Decided(decided) if decided.decision.status == 503 && decided.call.is_some() => {
                Some(decided.decision.steps.join(""))
            }
            _ => None,
        });
        let steps: Vec<String> = steps.collect();
        assert!(steps.len() == 1 && steps[0].contains(told) && steps[0].contains("the ACK is not"), "{steps:?}");
        let refused = site.metrics[0].count(Count::OpeningRefused) + site.metrics[0].count(Count::OpeningTimeouts);
        assert_eq!(refused, 1, "once");
    }
}

#[test]
fn d06_a_telephones_answer_narrows_what_a_services_offer_opened() {
    let (mut site, alice) = called();
    // A client whose description names the address that its packets come from.
    let offer = site.send(PBX, of_service(&alice, "INVITE", 7, &moved()));
    assert!(to(&offer, PHONE).is_empty());
    assert_eq!(site.last_asked().grant.client_ports, ANY_PORTS);
    let sent = site.gate_opens_from(30_000);
    site.send(PHONE, reply(to(&sent, PHONE)[0], 200, &AUDIO.replace("192.168.0.9", "198.51.100.7")));
    let narrowed = site.asked();
    assert_eq!(narrowed.iter().map(|delta| delta.grant.client_ports).collect::<Vec<_>>(), [(4_100, 4_101)]);
}

#[test]
fn d06_only_the_calls_own_service_offers_anything() {
    let (mut site, alice) = called();
    let sent = site.send("10.0.0.66:5060", of_service(&alice, "INVITE", 7, &moved()));
    assert_eq!(sent.iter().map(|(_, text)| status(text)).collect::<Vec<_>>(), [481]);
    // Nor after the call.
    site.ledger.revoke(site.unix, &Selector::all(sluicegate_feed::Selected::User("alice".into())), None);
    let sent = site.send(PBX, of_service(&alice, "INVITE", 8, &moved()));
    assert_eq!(sent.iter().map(|(_, text)| status(text)).collect::<Vec<_>>(), [481]);
    assert!(site.asked().is_empty());
}

#[test]
fn d06_a_cancelled_offer_ends_on_both_sides() {
    let (mut site, alice) = called();
    site.send(PBX, of_service(&alice, "INVITE", 7, &moved()));
    let cancel = of_service(&alice, "CANCEL", 7, "").replace("pbxCANCEL", "pbxINVITE");
    let sent = site.send(PBX, &cancel);
    assert_eq!(to(&sent, PBX).iter().map(|text| status(text)).collect::<Vec<_>>(), [200, 487], "before it went on");
    site.asked();
    site.send(PBX, of_service(&alice, "INVITE", 8, ""));
    let sent = site.send(PBX, of_service(&alice, "CANCEL", 8, "").replace("pbxCANCEL", "pbxINVITE"));
    assert_eq!(to(&sent, PBX).iter().map(|text| status(text)).collect::<Vec<_>>(), [200]);
}

/// RFC 5658: one Record-Route for each side, where the way to the service leaves from another address than the client's.
#[test]
fn d22_each_side_finds_its_own_address_in_the_record_route() {
    const INNER: &str = "10.0.0.254:5060";
    let mut site = Site::new();
    site.listening.insert(0, Listening::udp(INNER.parse().unwrap()));
    site.listener = 1;
    site.start(1);
    let mut alice = phone();
    let invite = relayed(&mut site, &mut alice);
    let own = |message: &str| -> Vec<String> {
        let message = Message::parse(message.as_bytes()).unwrap();
        let place = |value: &[u8]| String::from_utf8_lossy(value).split(';').next().unwrap().replace("<sip:", "");
        message.headers_raw(HeaderName::RecordRoute).map(place).collect()
    };
    assert_eq!(own(&invite), [INNER, FRONTEND], "the service's first hop on top");
    assert!(header(&invite, "Via").unwrap().contains(INNER));
    site.listener = 0;
    site.send(PBX, reply(&invite, 200, ANSWER));
    let ok = site.gate_opens().remove(0).1;
    alice.take_dialog(&ok);
    assert!(header(&ok, "Contact").unwrap().contains(FRONTEND));
    // Each side comes back by its own, and the other gets neither.
    site.listener = 1;
    let sent = site.send(PHONE, alice.request("ACK", INSIDE, "", ""));
    assert!(to(&sent, PBX)[0].starts_with("ACK ") && !sent[0].1.contains("Route:"), "{sent:?}");
    let (first, second) =
        alice.route.clone().unwrap().split_once(", ").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    alice.route = Some(format!("{second}, {first}"));
    site.listener = 0;
    let sent = site.send(PBX, of_service(&alice, "BYE", 1, ""));
    assert!(to(&sent, PHONE)[0].starts_with("BYE ") && !sent[0].1.contains("Route:"), "{sent:?}");
}

/// RFC 3261 section 16.4: a strict router puts the next hop into the Request-URI, and the target behind all Route values.
#[test]
fn d25_requests_of_strict_routers_go_where_loose_ones_would() {
    let (mut site, mut alice) = called();
    let own = alice.route.clone().unwrap();
    let own = own.trim_start_matches('<').trim_end_matches('>').to_owned();
    for (method, cseq) in [("INFO", 7), ("ACK", 2), ("BYE", 8)] {
        alice.route = Some(format!("<{INSIDE}>"));
        alice.cseq = cseq;
        let strict = alice.request(method, &own, "", "");
        let sent = site.send(PHONE, strict);
        let passed = to(&sent, PBX)[0];
        assert!(
            passed.starts_with(&format!("{method} {INSIDE} SIP/2.0\r\n")) && !passed.contains("Route:"),
            "{passed}"
        );
    }
    assert_eq!(site.revokes(), 1);
}

/// A service that is a proxy itself answers with the Contact of somebody behind it (RFC 3261 section 12.2.1.1): what goes there
/// names that, and nobody outside can read or make up where it is.
#[test]
fn what_is_said_to_somebody_behind_a_service_names_where_that_is() {
    let mut site = Site::new();
    let mut alice = phone();
    let invite = relayed(&mut site, &mut alice);
    let ok = reply(&invite, 200, ANSWER).replacen("<sip:pbx@10.0.0.2:5060>", "<sip:bob@10.0.0.77:5070;ob>", 1);
    site.send(PBX, ok);
    let ok = site.gate_opens().remove(0).1;
    let contact = header(&ok, "Contact").unwrap().trim_matches(['<', '>']).to_owned();
    assert!(contact.starts_with("sip:bob@203.0.113.1:5060;ob;sgat=") && !ok.contains("10.0.0.77"), "{ok}");
    alice.take_dialog(&ok);
    let first = |sent: &Sent| to(sent, PBX)[0].lines().next().unwrap().to_owned();
    for method in ["ACK", "INFO", "UPDATE", "REFER"] {
        let sent = site.send(PHONE, alice.request(method, &contact, "", ""));
        assert_eq!(first(&sent), format!("{method} sip:bob@10.0.0.77:5070;ob SIP/2.0"));
    }
    let signed = alice.signed(&mut site, "INVITE", &contact, "", AUDIO);
    assert_eq!(first(&site.send(PHONE, signed)), "INVITE sip:bob@10.0.0.77:5070;ob SIP/2.0");
    // Changed, or of another call, it names nothing, and what is sent goes to the service itself.
    let forged = contact.replacen("sgat=", "sgat=A", 1);
    let sent = site.send(PHONE, alice.request("INFO", &forged, "", ""));
    assert!(first(&sent).contains("@10.0.0.2:5060;ob;sgat="), "{sent:?}");
    let sent = site.send(PHONE, alice.request("BYE", &contact, "", ""));
    assert_eq!(first(&sent), "BYE sip:bob@10.0.0.77:5070;ob SIP/2.0");
}
