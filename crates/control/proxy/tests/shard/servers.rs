//! SIP servers that are reached over TCP and TLS: which way requests take, and whose what comes over a connection is.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use sluicegate_policy::{Service, SipCertificate};
use sluicegate_proxy::{ConnectionId, Count, Flow, Input, Listening, Overload, Proofs};
use sluicegate_sip::message::Transport;

use crate::site::{
    ANSWER, AUDIO, Caller, FRONTEND, PBX, PHONE, Site, bye_of_service, header, of_service, phone, reply, status,
};

const UDP: u8 = 0;
const TCP: u8 = 1;
const TLS: u8 = 2;
const NAME: &str = "pbx.example.net";

/// A site that speaks everything, whose SIP server takes SIP by these ways.
fn site(sip: &[&str]) -> Site {
    let mut site = Site::new();
    let own: SocketAddr = FRONTEND.parse().unwrap();
    site.listening.push(Listening::new(Transport::Tcp, own));
    site.listening.push(Listening::new(Transport::Tls, SocketAddr::new(own.ip(), 5061)));
    site.start(1);
    site.change_service("pbx", |pbx: &mut Service| {
        pbx.sip = sip.iter().map(|text| text.parse().unwrap()).collect();
        pbx.certificate = sip.iter().any(|text| text.starts_with("tls")).then(|| SipCertificate::Name(NAME.into()));
    });
    site
}

/// The SIP server at this listener of ours: a datagram, or a way to it.
fn server(listener: u8) -> Flow {
    let port = if listener == TLS { 5061 } else { 5060 };
    Flow::datagrams(listener, SocketAddr::new("10.0.0.2".parse().unwrap(), port))
}

/// The connection that we made there.
fn dialled(listener: u8) -> Flow {
    Flow { connection: ConnectionId::new(0, 7).map(ConnectionId::dialled), ..server(listener) }
}

/// One that came from the server's address.
fn accepted(listener: u8) -> Flow {
    let peer = "10.0.0.2:49152".parse().unwrap();
    Flow { listener, peer, connection: ConnectionId::new(0, 8) }
}

fn over(site: &mut Site, flow: Flow, message: &str) -> Vec<(Flow, String)> {
    proved(site, flow, &Arc::default(), message)
}

/// A message over a connection over which this was proved.
fn proved(site: &mut Site, flow: Flow, proofs: &Arc<Proofs>, message: &str) -> Vec<(Flow, String)> {
    let now = site.now();
    match flow.connection {
        Some(_) => site.shards[0].on_message(now, flow, proofs, message.as_bytes()),
        None => site.shards[0].on_datagram(now, flow, message.as_bytes()),
    }
    site.take_flows()
}

fn undelivered(site: &mut Site, flow: Flow, message: &str) -> Vec<(Flow, String)> {
    let now = site.now();
    let message = message.as_bytes().to_vec();
    site.shards[0].on_input(now, Input::Undelivered { flow, message });
    site.take_flows()
}

fn certified() -> Arc<Proofs> {
    Arc::new(Proofs { certificates: vec![SipCertificate::Name(NAME.into())], ..Proofs::default() })
}

fn signed_in(user: &str) -> Arc<Proofs> {
    Arc::new(Proofs { user: Some(Arc::from(user)), ..Proofs::default() })
}

/// A call of alice by datagrams, as it goes to the server with a body of this length.
fn invite(site: &mut Site, alice: &mut Caller, body: &str) -> (Flow, String) {
    let invite = alice.signed(site, "INVITE", "sip:pbx@example.net", "", body);
    let mut sent = over(site, Flow::datagrams(UDP, PHONE.parse().unwrap()), &invite);
    assert_eq!(status(&sent.pop().unwrap().1), 100);
    sent.pop().unwrap()
}

/// The same, answered and acknowledged: the ACK, and where it went.
fn call(site: &mut Site, alice: &mut Caller, from: Flow) -> (Flow, String) {
    let (_, invite) = invite(site, alice, AUDIO);
    assert!(over(site, from, &reply(&invite, 200, ANSWER)).is_empty());
    let (_, ok) = site.gate_opens().pop().unwrap();
    alice.take_dialog(&ok);
    let target = header(&ok, "Contact").unwrap().trim_matches(['<', '>']).to_owned();
    let ack = alice.request("ACK", &target, "", "");
    over(site, Flow::datagrams(UDP, PHONE.parse().unwrap()), &ack).pop().unwrap()
}

fn long() -> String {
    format!("{AUDIO}{}", "a=x:0123456789012345678901234567890123456789\r\n".repeat(16))
}

#[test]
fn requests_go_by_the_first_way_and_say_so() {
    for (sip, flow, uri, via, route) in [
        (&["tcp/5060"][..], server(TCP), "sip:pbx@10.0.0.2:5060;transport=tcp", "TCP", ":5060;transport=tcp;lr;"),
        (
            &["tls/5061", "udp/5060"],
            server(TLS),
            "sip:pbx@10.0.0.2:5061;transport=tls",
            "TLS",
            ":5061;transport=tls;lr;",
        ),
        (&["udp/5060", "tcp/5060"], server(UDP), "sip:pbx@10.0.0.2:5060", "UDP", ":5060;lr;"),
        (&[], server(UDP), "sip:pbx@10.0.0.2:5060", "UDP", ":5060;lr;"),
    ] {
        let mut site = site(sip);
        let (to, text) = invite(&mut site, &mut phone(), AUDIO);
        assert_eq!(to, flow);
        assert!(text.starts_with(&format!("INVITE {uri} SIP/2.0\r\n")), "{text}");
        assert!(header(&text, "Via").unwrap().starts_with(&format!("SIP/2.0/{via} 203.0.113.1:")), "{text}");
        assert!(header(&text, "Record-Route").unwrap().contains(route), "{text}");
        let routes = text.lines().filter(|line| line.starts_with("Record-Route")).count();
        assert_eq!(routes, if flow.listener == UDP { 1 } else { 2 }, "both sides have their own (RFC 5658)");
    }
}

#[test]
fn without_a_listener_that_speaks_it_there_is_no_way() {
    let mut site = Site::new();
    site.change_service("pbx", |pbx: &mut Service| pbx.sip = vec!["tcp/5060".parse().unwrap()]);
    let mut alice = phone();
    let invite = alice.signed(&mut site, "INVITE", "sip:pbx@example.net", "", AUDIO);
    assert_eq!(status(&site.send(PHONE, invite)[0].1), 480);
}

#[test]
fn what_is_too_long_for_a_datagram_takes_the_other_way_if_there_is_one() {
    let body = long();
    let mut both = site(&["udp/5060", "tcp/5060"]);
    let (to, text) = invite(&mut both, &mut phone(), &body);
    assert!(to == server(TCP) && text.len() > 1_300 && text.contains("\r\nVia: SIP/2.0/TCP "));
    assert!(text.starts_with("INVITE sip:pbx@10.0.0.2:5060;transport=tcp "), "{text}");
    assert_eq!(text.matches("\r\nVia: ").count(), 2);
    let (to, text) = invite(&mut site(&[]), &mut phone(), &body);
    assert!(to == server(UDP) && text.len() > 1_300);
    // Within a call too, with a transaction or without.
    let mut alice = Caller { call_id: "short".into(), ..phone() };
    call(&mut both, &mut alice, server(UDP));
    let telephone = Flow::datagrams(UDP, PHONE.parse().unwrap());
    let target = "sip:pbx@203.0.113.1:5060";
    for (method, body) in [("INFO", ""), ("UPDATE", &*body)] {
        let pad = if body.is_empty() { format!("Subject: {}\r\n", "x".repeat(1_300)) } else { String::new() };
        let request = alice.request(method, target, &pad, body);
        let sent = over(&mut both, telephone, &request);
        let (to, text) = sent.iter().find(|(_, text)| text.starts_with(method)).unwrap();
        assert!(*to == server(TCP) && text.contains("\r\nVia: SIP/2.0/TCP "), "{sent:?}");
        let answered = over(&mut both, dialled(TCP), &reply(text, 200, ""));
        assert_eq!(answered.iter().map(|(to, text)| (*to, status(text))).collect::<Vec<_>>(), [(telephone, 200)]);
        let short = alice.request(method, target, "", "");
        assert_eq!(over(&mut both, telephone, &short)[0].0, server(UDP));
    }
}

#[test]
fn what_comes_over_a_connection_that_we_made_is_the_servers() {
    for (sip, listener, proofs) in [
        (&["tcp/5060"][..], TCP, Arc::default()),
        (&["tls/5061"], TLS, certified()),
        (&["udp/5060", "tcp/5060"], TCP, Arc::default()),
    ] {
        let mut site = site(sip);
        let mut alice = phone();
        let first = if sip.len() > 1 { server(UDP) } else { dialled(listener) };
        call(&mut site, &mut alice, first);
        let bye = bye_of_service(&alice);
        let sent = proved(&mut site, dialled(listener), &proofs, &bye);
        assert_eq!((sent[0].0.peer.to_string().as_str(), &sent[0].1[..4]), (PHONE, "BYE "), "{sent:?}");
        let answered = over(&mut site, sent[0].0, &reply(&sent[0].1, 200, ""));
        assert_eq!((answered[0].0, status(&answered[0].1)), (dialled(listener), 200));
    }
}

#[test]
fn what_comes_over_a_connection_from_the_servers_address_has_to_be_proved() {
    let mut site = site(&["tls/5061", "tcp/5060"]);
    let mut alice = phone();
    call(&mut site, &mut alice, dialled(TLS));
    let info = |number: u32| of_service(&alice, "INFO", number, "");
    let mut passes = |flow: Flow, proofs: &Arc<Proofs>, number: u32| {
        let sent = proved(&mut site, flow, proofs, &info(number));
        let code = status(&sent[0].1);
        // Whoever is somewhere else is not even asked.
        let refusal = if flow.peer.ip() == server(TCP).peer.ip() { 407 } else { 481 };
        assert!(code == 0 || (code == refusal && sent[0].0 == flow), "{sent:?}");
        code == 0
    };
    assert!(!passes(accepted(TCP), &Arc::default(), 1));
    assert!(!passes(accepted(TLS), &Arc::default(), 2));
    // Without its certificate not even one that we made over TLS.
    assert!(!passes(dialled(TLS), &Arc::default(), 3));
    assert!(!passes(accepted(TLS), &signed_in("alice"), 4));
    let other = Proofs { certificates: vec![SipCertificate::Name("other.example.net".into())], ..Proofs::default() };
    assert!(!passes(accepted(TLS), &Arc::new(other), 5));
    let elsewhere = Flow { peer: "10.0.0.5:5061".parse().unwrap(), ..accepted(TLS) };
    assert!(!passes(elsewhere, &certified(), 6));
    assert!(!passes(elsewhere, &signed_in("switch"), 7));
    assert!(passes(accepted(TLS), &certified(), 8));
    assert!(passes(accepted(TCP), &signed_in("switch"), 9));
}

#[test]
fn a_server_that_has_another_flow_shows_its_registrars_password() {
    let mut site = site(&["tcp/5060"]);
    let mut alice = phone();
    call(&mut site, &mut alice, dialled(TCP));
    let flow = accepted(TCP);
    let bye = |number: u32, credentials: &str| {
        of_service(&alice, "BYE", number, "").replacen("Content-Length", &format!("{credentials}Content-Length"), 1)
    };
    for (user, number, passes) in [("bob", 1, false), ("switch", 5, true)] {
        let uri = format!("sip:alice@{PHONE}");
        let (to, challenge) = over(&mut site, flow, &bye(number, "")).pop().unwrap();
        assert_eq!((to, status(&challenge)), (flow, 407));
        let credentials = Caller::new(user, PBX).authorization(&challenge, "BYE", &uri);
        let sent = over(&mut site, flow, &bye(number + 1, &credentials));
        assert_eq!(sent[0].0.peer.to_string() == PHONE, passes, "{sent:?}");
        assert_eq!(status(&sent[0].1), if passes { 0 } else { 481 });
    }
}

#[test]
fn a_server_with_its_certificate_calls_users_without_a_password() {
    let mut site = site(&["tls/5061"]);
    let mut alice = Caller { to: "sip:alice@example.net".into(), ..Caller::new("alice", PHONE) };
    let contact = format!("Contact: <sip:alice@{PHONE}>\r\n");
    assert_eq!(status(&alice.sign_in(&mut site, "REGISTER", "sip:example.net", &contact, "")), 200);
    let mut switch = Caller { to: "sip:alice@example.net".into(), ..Caller::new("switch", PBX) };
    let invite = switch.request("INVITE", "sip:alice@example.net", "", ANSWER);
    let refused = over(&mut site, accepted(TLS), &invite);
    assert_eq!(status(&refused[0].1), 407);
    let other = switch.request("INVITE", "sip:alice@example.net", "", ANSWER);
    let sent = proved(&mut site, accepted(TLS), &certified(), &other);
    assert_eq!((sent[0].0, status(&sent[0].1)), (accepted(TLS), 100));
    let register = switch.request("REGISTER", "sip:example.net", "Contact: <sip:pbx@10.0.0.2>\r\n", "");
    let sent = proved(&mut site, accepted(TLS), &certified(), &register);
    assert_eq!((sent[0].0, status(&sent[0].1)), (accepted(TLS), 401), "not for a certificate");
    let called = site.gate_opens();
    assert!(called[0].0.to_string() == PHONE && called[0].1.starts_with("INVITE "), "{called:?}");
}

#[test]
fn a_request_that_cannot_be_sent_is_answered_at_once() {
    let mut site = site(&["tcp/5060"]);
    let mut alice = phone();
    let telephone = Flow::datagrams(UDP, PHONE.parse().unwrap());
    let (to, text) = invite(&mut site, &mut alice, AUDIO);
    let sent = undelivered(&mut site, to, &text);
    assert_eq!(sent.iter().map(|(to, text)| (*to, status(text))).collect::<Vec<_>>(), [(telephone, 503)], "and no ACK");
    assert_eq!(undelivered(&mut site, to, &text), [], "it is over");
    assert!(site.pass(Duration::from_secs(1)).iter().all(|(_, text)| status(text) == 503));
    // Within a call, without a transaction of ours.
    let mut alice = Caller { call_id: "another".into(), ..phone() };
    let (ack_to, ack) = call(&mut site, &mut alice, dialled(TCP));
    let info = alice.request("INFO", "sip:pbx@203.0.113.1:5060", "", "");
    let (to, text) = over(&mut site, telephone, &info).pop().unwrap();
    let sent = undelivered(&mut site, to, &text);
    assert_eq!(sent.iter().map(|(to, text)| (*to, status(text))).collect::<Vec<_>>(), [(telephone, 503)]);
    assert_eq!(undelivered(&mut site, ack_to, &ack), [], "an ACK has no answer");
    // Nobody else's word for it counts, and nothing that we did not send.
    let forged = text.replace("z9hG4bK", "z9hG4bKx");
    assert_eq!(undelivered(&mut site, to, &forged), []);
    assert_eq!(undelivered(&mut site, to, "SIP/2.0 200 OK\r\n\r\n"), []);
    assert!(site.metrics[0].count(Count::ResponsesUnmatched) > 0);
}

#[test]
fn a_servers_contact_is_reached_as_it_says_and_shown_as_ours() {
    let mut site = site(&["tcp/5060"]);
    let mut alice = phone();
    let (_, invite) = invite(&mut site, &mut alice, AUDIO);
    let contact = "<sip:pbx@10.0.0.2:5070;transport=TCP;ob>";
    let ok = reply(&invite, 200, ANSWER).replace("<sip:pbx@10.0.0.2:5060>", contact);
    over(&mut site, dialled(TCP), &ok);
    let (_, ok) = site.gate_opens().pop().unwrap();
    let shown = header(&ok, "Contact").unwrap();
    // The telephone speaks UDP, so that is how it is told to reach us.
    assert!(shown.starts_with("<sip:pbx@203.0.113.1:5060;ob;sgat="), "{shown}");
    alice.take_dialog(&ok);
    let ack = alice.request("ACK", shown.trim_matches(['<', '>']), "", "");
    let (to, ack) = over(&mut site, Flow::datagrams(UDP, PHONE.parse().unwrap()), &ack).pop().unwrap();
    assert_eq!(to, server(TCP));
    assert!(ack.starts_with("ACK sip:pbx@10.0.0.2:5070;transport=TCP;ob SIP/2.0\r\n"), "{ack}");
}

#[test]
fn a_sip_server_that_calls_for_many_is_no_flood() {
    let mut site = site(&["tls/5061"]);
    let sojourn = (Duration::from_millis(5), Duration::from_millis(100));
    site.overload = Overload::Adaptive { busy: 0.95, sojourn };
    site.start(1);
    let mut refused = [0, 0];
    for _ in 0..50 {
        for n in 0..100 {
            let call = Caller::new("mallory", PBX).calls("pbx").request("INVITE", "sip:alice@example.net", "", "");
            let call = call.replace("call-of-mallory", &format!("call-{n}"));
            for (place, proofs) in [certified(), Arc::default()].iter().enumerate() {
                let answers = proved(&mut site, accepted(TLS), proofs, &call);
                refused[place] += answers.iter().filter(|(_, text)| status(text) == 500).count();
            }
        }
        site.pass(Duration::from_millis(100));
        site.measure(1.0);
    }
    assert!(refused[0] == 0 && refused[1] > 500, "{refused:?}");
}
