//! Clients over TCP: what is sent to them goes down the connection that they came over.

use std::{sync::Arc, time::Duration};

use sluicegate_proxy::{ConnectionId, Contact, Count, Event, Flow, Listening, Proofs};
use sluicegate_sip::message::Transport;

use crate::site::{
    ANSWER, AUDIO, Caller, FRONTEND, PBX, PHONE, Site, bye_of_service, phone, relayed, reply, set_up, status,
};

/// The listener of TCP.
const TCP: u8 = 1;

/// A site that listens for connections too.
fn listening() -> Site {
    let mut site = Site::new();
    site.listening.push(Listening::new(Transport::Tcp, FRONTEND.parse().unwrap()));
    site.start(1);
    site
}

/// The telephone's connection of this number.
fn connection(number: u32) -> Flow {
    Flow { listener: TCP, peer: PHONE.parse().unwrap(), connection: ConnectionId::new(0, number) }
}

/// A message from `flow`, and what came of it.
fn over(site: &mut Site, flow: Flow, message: &str) -> Vec<(Flow, String)> {
    let now = site.now();
    let shard = &mut site.shards[0];
    shard.on_datagram(now, flow, message.as_bytes());
    sent(site)
}

fn sent(site: &mut Site) -> Vec<(Flow, String)> {
    let shard = &mut site.shards[0];
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let sent = shard.transmits().iter().map(|(flow, bytes)| (flow, text(bytes))).collect();
    shard.transmits().clear();
    site.events.extend(std::iter::from_fn(|| shard.poll_event()));
    sent
}

/// A request, its challenge, and the same with credentials, all over one connection.
fn signed(site: &mut Site, flow: Flow, alice: &mut Caller) -> String {
    let uri = alice.to.clone();
    let plain = alice.request("INVITE", &uri, "", AUDIO);
    let (to, challenge) = over(site, flow, &plain).pop().unwrap();
    assert_eq!((to, status(&challenge)), (flow, 407));
    alice.answered(&challenge, "INVITE", &uri, "", AUDIO)
}

#[test]
fn an_answer_goes_down_its_requests_connection_whatever_the_via_says() {
    let mut site = listening();
    let options = phone().request("OPTIONS", "sip:example.net", "", "");
    let elsewhere =
        options.replace(";rport", "").replace("SIP/2.0/UDP 198.51.100.7:40000", "SIP/2.0/TCP 198.51.100.7:7");
    let (to, answer) = over(&mut site, connection(7), &elsewhere).pop().unwrap();
    assert_eq!((to, status(&answer)), (connection(7), 200));
}

#[test]
fn who_has_a_connection_has_not_forged_its_address_so_its_answers_are_not_counted() {
    let mut site = listening();
    site.unproved_answers_per_s = 1;
    site.start(1);
    let answers = |site: &mut Site, flow| {
        let options = |_| phone().request("OPTIONS", "sip:example.net", "", "");
        (0..100).map(options).filter(|options| !over(site, flow, options).is_empty()).count()
    };
    assert!(answers(&mut site, Flow::datagrams(0, PHONE.parse().unwrap())) < 20);
    assert_eq!(answers(&mut site, connection(1)), 100);
    // Nor does it matter that one is longer than what was asked.
    let short =
        "X sip:a@b SIP/2.0\r\nv:SIP/2.0/TCP a\r\ni:1\r\nf:<sip:a@b>;tag=1\r\nt:<sip:a@b>\r\nCSeq:1 X\r\nl:0\r\n\r\n";
    assert!(over(&mut site, connection(1), short)[0].1.len() > short.len());
    assert_eq!(site.metrics[0].count(Count::AnswersTooLarge), 0);
}

#[test]
fn whoever_signs_in_over_a_connection_is_no_stranger_there() {
    let mut site = listening();
    let invite = signed(&mut site, connection(9), &mut phone());
    assert!(!site.events.iter().any(|event| matches!(event, Event::Proved { .. })));
    over(&mut site, connection(9), &invite);
    let proved = site.events.iter().find_map(|event| match event {
        Event::Proved { connection, user } => Some((*connection, user.to_string())),
        _ => None,
    });
    assert_eq!(proved, connection(9).connection.map(|connection| (connection, "alice".to_owned())));
}

#[test]
fn nothing_is_sent_again_over_a_connection() {
    let mut site = listening();
    let mut bob = Caller::new("bob", PHONE);
    let invite = signed(&mut site, connection(1), &mut bob);
    let (to, refusal) = over(&mut site, connection(1), &invite).pop().unwrap();
    assert_eq!((to, status(&refusal)), (connection(1), 403));
    assert!(site.pass(Duration::from_secs(40)).is_empty());
}

/// A call over `flow` to the SIP server behind UDP, answered.
fn call(site: &mut Site, flow: Flow, alice: &mut Caller) -> String {
    let invite = signed(site, flow, alice);
    let sent = over(site, flow, &invite);
    assert_eq!(sent.iter().map(|(to, _)| to.peer.to_string()).collect::<Vec<_>>(), [PBX, PHONE]);
    assert_eq!((sent[0].0.listener, sent[1].0), (0, flow));
    assert!(sent[0].1.contains("\r\nVia: SIP/2.0/UDP ") && status(&sent[1].1) == 100);
    sent[0].1.clone()
}

#[test]
fn a_call_over_a_connection_stays_on_it() {
    let mut site = listening();
    let mut alice = phone();
    let invite = call(&mut site, connection(1), &mut alice);
    assert!(site.send(PBX, reply(&invite, 200, ANSWER)).is_empty());
    let (to, ok) = site.gate_opens().pop().unwrap();
    assert_eq!((to.to_string().as_str(), status(&ok)), (PHONE, 200));
    alice.take_dialog(&ok);
    let ack = alice.request("ACK", "sip:pbx@10.0.0.2:5060", "", "");
    assert!(over(&mut site, connection(2), &ack).is_empty(), "of another connection");
    assert_eq!(over(&mut site, connection(1), &ack).pop().unwrap().0.peer.to_string(), PBX);
    let flow = Flow::datagrams(0, PBX.parse().unwrap());
    let (to, bye) = over(&mut site, flow, &bye_of_service(&alice)).pop().unwrap();
    assert!(to == connection(1) && bye.starts_with("BYE sip:alice@"));
    let answered = over(&mut site, connection(1), &reply(&bye, 200, ""));
    assert_eq!((answered[0].0, status(&answered[0].1)), (flow, 200));
}

#[test]
fn who_lost_the_connection_shows_the_password_again() {
    let mut site = listening();
    let mut alice = phone();
    let invite = call(&mut site, connection(1), &mut alice);
    site.send(PBX, reply(&invite, 200, ANSWER));
    let (_, ok) = site.gate_opens().pop().unwrap();
    alice.take_dialog(&ok);
    let bye = alice.request("BYE", "sip:pbx@10.0.0.2:5060", "", "");
    let (to, challenge) = over(&mut site, connection(2), &bye).pop().unwrap();
    assert_eq!((to, status(&challenge)), (connection(2), 407));
    let signed = alice.answered(&challenge, "BYE", "sip:pbx@10.0.0.2:5060", "", "");
    assert_eq!(over(&mut site, connection(2), &signed).pop().unwrap().0.peer.to_string(), PBX);
}

/// What somebody has registered over this connection, under the Contact that stands in its calls.
fn registered(site: &Site, user: &str, flow: Flow, uri: &str) {
    let (now, expires) = (site.instant, site.instant + Duration::from_secs(60));
    let contact = Contact {
        flow,
        uri: uri.into(),
        route: Vec::new(),
        q: 1_000,
        expires,
        tail: b">".to_vec(),
        call_id: 1,
        cseq: 1,
        granted_s: 60,
    };
    site.locations.restore(now, user, vec![contact]);
}

#[test]
fn who_connects_and_registers_anew_is_reached_in_its_call_and_signs_in_once() {
    let mut site = listening();
    let mut alice = phone();
    let invite = call(&mut site, connection(1), &mut alice);
    site.send(PBX, reply(&invite, 200, ANSWER));
    let (_, ok) = site.gate_opens().pop().unwrap();
    alice.take_dialog(&ok);
    let pbx = Flow::datagrams(0, PBX.parse().unwrap());
    let info = bye_of_service(&alice).replace(" BYE\r\n", " INFO\r\n").replacen("BYE ", "INFO ", 1);
    let reached = |site: &mut Site| over(site, pbx, &info).pop().unwrap().0;
    registered(&site, "bob", connection(3), "sip:alice@198.51.100.7:40000");
    assert_eq!(reached(&mut site), connection(1), "nobody else's telephone");
    registered(&site, "alice", connection(2), "sip:elsewhere@198.51.100.7:7");
    assert_eq!(reached(&mut site), connection(2), "the only one at its address");

    // Nobody can be asked for the password of an ACK.
    let ack = alice.request("ACK", "sip:pbx@10.0.0.2:5060", "", "");
    for (user, passes) in [("bob", false), ("alice", true)] {
        let proofs = Arc::new(Proofs { user: Some(user.into()), ..Proofs::default() });
        let now = site.now();
        site.shards[0].on_message(now, connection(2), &proofs, ack.as_bytes());
        assert_eq!(sent(&mut site).len(), usize::from(passes), "{user}");
    }
}

#[test]
fn what_comes_over_a_connection_from_a_gates_address_is_not_the_gates() {
    let mut site = listening();
    let mut alice = phone();
    set_up(&mut site, &mut alice);
    let flow = Flow { peer: PBX.parse().unwrap(), ..connection(1) };
    // It may be the service's own, and then it knows its registrar's password.
    let (to, refusal) = over(&mut site, flow, &bye_of_service(&alice)).pop().unwrap();
    assert_eq!((to, status(&refusal)), (flow, 407));
    let invite = relayed(&mut listening(), &mut phone());
    assert!(over(&mut site, flow, &reply(&invite, 200, ANSWER)).is_empty());
}
