//! A frontend whose addresses a NAT makes into others: each side of a call knows it by the one that it reaches.

use sluicegate_proxy::Listening;
use sluicegate_sip::message::{HeaderName, Message, Transport};

use crate::{
    inbound::{called, register, switch, to},
    site::{AUDIO, Caller, PBX, PHONE, Site, header, phone, relayed, reply, status},
};

const INSIDE: &str = "10.0.0.254:5060";
const OTHER_INSIDE: &str = "10.0.0.253:5080";
const OUTSIDE: &str = "192.0.2.5:5060";
const OTHER_OUTSIDE: &str = "192.0.2.6:9000";

/// Two addresses of the host, of which a NAT makes each into another. All that comes to the second.
fn site(listener: u8) -> Site {
    let behind = |inside: &str, outside: &str| {
        Listening::new(Transport::Udp, inside.parse().unwrap()).behind(Some(outside.parse().unwrap()))
    };
    let mut site = Site::new();
    site.listening = vec![behind(INSIDE, OUTSIDE), behind(OTHER_INSIDE, OTHER_OUTSIDE)];
    site.listener = listener;
    site.start(1);
    site
}

fn record_routes(message: &str) -> Vec<String> {
    let message = Message::parse(message.as_bytes()).unwrap();
    let place = |value: &[u8]| String::from_utf8_lossy(value).split(';').next().unwrap().replace("<sip:", "");
    message.headers_raw(HeaderName::RecordRoute).map(place).collect()
}

#[test]
fn a_telephone_outside_knows_its_listener_as_it_is_advertised_and_a_service_inside_by_its_own_address() {
    for (listener, outside) in [(0, OUTSIDE), (1, OTHER_OUTSIDE)] {
        let mut site = site(listener);
        let mut alice = phone();
        let invite = relayed(&mut site, &mut alice);
        assert_eq!(record_routes(&invite), [INSIDE, outside]);
        assert!(header(&invite, "Via").unwrap().starts_with(&format!("SIP/2.0/UDP {INSIDE};")), "{invite}");
        site.listener = 0;
        let ok = site.send(PBX, reply(&invite, 200, crate::site::ANSWER));
        assert!(ok.is_empty());
        let ok = site.gate_opens().remove(0).1;
        assert!(header(&ok, "Contact").unwrap().starts_with(&format!("<sip:pbx@{outside}")), "{ok}");
        // What goes on in the call finds its way by these.
        site.listener = listener;
        alice.take_dialog(&ok);
        let contact = header(&ok, "Contact").unwrap().trim_matches(['<', '>']).to_owned();
        let ack = alice.request("ACK", &contact, "", "");
        let sent = site.send(PHONE, ack);
        assert!(to(&sent, PBX)[0].starts_with("ACK sip:pbx@10.0.0.2:5060"), "{sent:?}");
    }
}

#[test]
fn who_is_called_from_inside_answers_to_the_address_outside() {
    let mut site = site(0);
    register(&mut site, "alice", PHONE, "");
    let invite = called(&mut site, &mut switch());
    assert!(header(&invite, "Via").unwrap().starts_with(&format!("SIP/2.0/UDP {OUTSIDE};")), "{invite}");
    assert_eq!(record_routes(&invite), [OUTSIDE, INSIDE]);
    assert_eq!(header(&invite, "Contact"), Some(&*format!("<sip:switch@{OUTSIDE}>")));
}

#[test]
fn a_declared_service_stands_where_its_listener_is_advertised_and_is_asked_for_there() {
    let mut site = site(1);
    for (from, place) in [(PHONE, OTHER_OUTSIDE), ("10.0.0.77:40000", OTHER_INSIDE)] {
        let mut alice = Caller { call_id: from.into(), ..Caller::new("alice", from) };
        let trying = alice.sign_in(&mut site, "INVITE", &format!("sip:web@{OTHER_OUTSIDE}"), "", AUDIO);
        assert_eq!(status(&trying), 100, "{trying}");
        let ok = site.gate_opens().pop().unwrap().1;
        assert_eq!(header(&ok, "Contact"), Some(&*format!("<sip:web@{place}>")), "{ok}");
    }
    for own in [OUTSIDE, OTHER_OUTSIDE, INSIDE] {
        let options = phone().request("OPTIONS", &format!("sip:{own}"), "", "");
        assert_eq!(status(&site.send(PHONE, options)[0].1), 200, "{own}");
    }
    let agent =
        Caller { dialled: OTHER_OUTSIDE.parse().unwrap(), call_id: "agent".into(), ..Caller::new("alice", PHONE) };
    let trying = agent.agent().invite(&mut site, crate::site::PORTS);
    assert_eq!(status(&trying), 100, "an agent that dialled that address: {trying}");
}
