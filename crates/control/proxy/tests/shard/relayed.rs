//! Services behind an agent or a SIP server: INVITEs are relayed, answers rewritten, dialogs proved by their cookie.

use std::{sync::Arc, time::Duration};

use sluicegate_feed::ActiveGrant;
use sluicegate_grant::{
    mac::{Ends, Purpose, SessionKeys, TRAILER_LEN},
    relay::RelayKeys,
};
use sluicegate_proxy::{ConnectionId, Count, Event, Flow, GateAnswer, Input, Ledger, Standing, Tables};
use sluicegate_sip::{
    message::{HeaderName, Message},
    sdp::Session,
};

use crate::site::{
    AGENT, ANSWER, AUDIO, Caller, FRONTEND, GATE, PBX, PHONE, PORTS, Site, bye_of_service, header, phone, relayed,
    reply, set_up, status,
};

#[test]
fn the_service_sees_who_calls_and_no_credentials() {
    let mut site = Site::new();
    let invite = relayed(&mut site, &mut phone());
    assert!(invite.starts_with("INVITE sip:pbx@10.0.0.2:5060 SIP/2.0\r\n"), "{invite}");
    assert_eq!(header(&invite, "P-Asserted-Identity"), Some("<sip:alice@example.net>"));
    assert!(!invite.contains("Proxy-Authorization"));
    assert_eq!(header(&invite, "Max-Forwards"), Some("69"));
    assert!(header(&invite, "Record-Route").unwrap().starts_with("<sip:203.0.113.1:5060;lr;sg="));
    // Media come from where the request came from.
    assert!(invite.contains("c=IN IP4 198.51.100.7") && !invite.contains("192.168.0.9"), "{invite}");
    assert!(site.asked().is_empty(), "nothing is opened before the service answers");
}

#[test]
fn an_identity_that_the_client_claims_is_taken_off() {
    let mut site = Site::new();
    let mut alice = phone();
    let claim = "P-Asserted-Identity: <sip:boss@example.net>\r\n";
    let signed = alice.signed(&mut site, "INVITE", "sip:pbx@example.net", claim, AUDIO);
    let sent = site.send(PHONE, signed);
    assert!(!sent[0].1.contains("boss") && sent[0].1.contains("<sip:alice@example.net>\r\n"));
}

#[test]
fn the_answers_ports_are_opened_and_the_gate_named_in_their_place() {
    let mut site = Site::new();
    let mut alice = phone();
    let invite = relayed(&mut site, &mut alice);
    site.send(PBX, reply(&invite, 200, ANSWER));
    let asked = site.asked();
    assert_eq!((asked[0].target.to_string().as_str(), asked[0].target_ports), ("10.0.0.2", (4500, 4501)));
    let grant = asked[0].grant.clone();
    assert_eq!((grant.client_address.to_string().as_str(), grant.protocol), ("198.51.100.7", 17));
    let opened = GateAnswer { id: grant.id, opened: Ok((GATE.parse().unwrap(), (20_000, 20_001))) };
    let ok = site.tell(0, Input::Gate(opened)).pop().unwrap().1;
    let message = Message::parse(ok.as_bytes()).unwrap();
    let session = Session::parse(message.body()).unwrap();
    assert_eq!((session.media()[0].port, session.media()[0].address.unwrap().to_string().as_str()), (20_000, GATE));
    assert!(ok.contains("a=rtpmap:0 PCMU/8000"));
    assert_eq!(message.headers(HeaderName::Via).count(), 1);
}

#[test]
fn ports_outside_the_service_are_never_opened() {
    let mut site = Site::new();
    let mut alice = phone();
    let invite = relayed(&mut site, &mut alice);
    let sent = site.send(PBX, reply(&invite, 200, &ANSWER.replace("4500", "22")));
    assert!(site.asked().is_empty());
    assert!(sent[0].1.contains("m=audio 0 RTP/AVP 0"), "{}", sent[0].1);
}

#[test]
fn ringing_passes_and_early_media_are_opened_once() {
    let mut site = Site::new();
    let mut alice = phone();
    let invite = relayed(&mut site, &mut alice);
    assert_eq!(status(&site.send(PBX, reply(&invite, 180, ""))[0].1), 180);
    assert!(site.send(PBX, reply(&invite, 183, ANSWER)).is_empty());
    assert_eq!(status(&site.gate_opens()[0].1), 183);
    let ok = site.send(PBX, reply(&invite, 200, ANSWER));
    assert!(site.asked().is_empty(), "the same ports are open already");
    assert!(status(&ok[0].1) == 200 && ok[0].1.contains("m=audio 20000"));
}

#[test]
fn a_repeated_200_is_passed_on_as_the_first() {
    let mut site = Site::new();
    let mut alice = phone();
    let invite = relayed(&mut site, &mut alice);
    let answer = reply(&invite, 200, ANSWER);
    site.send(PBX, &answer);
    let first = site.gate_opens();
    assert_eq!(site.send(PBX, &answer), first);
    assert!(site.asked().is_empty());
}

#[test]
fn the_invite_is_repeated_until_the_service_answers_and_then_times_out() {
    let mut site = Site::new();
    let mut alice = phone();
    let invite = relayed(&mut site, &mut alice);
    let repeated = site.pass(Duration::from_millis(1_500));
    assert_eq!(repeated.len(), 2);
    assert!(repeated.iter().all(|(to, text)| to.to_string() == PBX && *text == invite));
    let rest = site.pass(Duration::from_secs(31));
    let (to, last) = rest.iter().find(|(to, _)| to.to_string() == PHONE).unwrap();
    assert_eq!((to.to_string().as_str(), status(last)), (PHONE, 408));
}

#[test]
fn a_refusal_is_acknowledged_to_the_service_and_passed_on() {
    let mut site = Site::new();
    let mut alice = phone();
    let invite = relayed(&mut site, &mut alice);
    let sent = site.send(PBX, reply(&invite, 486, ""));
    assert!(sent[0].0.to_string() == PBX && sent[0].1.starts_with("ACK "));
    assert!(sent[1].0.to_string() == PHONE && status(&sent[1].1) == 486);
    assert_eq!(site.revokes(), 0);
}

#[test]
fn a_cancel_is_passed_on_once_the_service_rings() {
    let mut site = Site::new();
    let mut alice = phone();
    let invite = relayed(&mut site, &mut alice);
    let cancel = alice.request("CANCEL", "sip:pbx@example.net", "", "").replacen("z9hG4bKalice3", "z9hG4bKalice2", 1);
    let answers = site.send(PHONE, cancel);
    assert_eq!(answers.len(), 1, "not before the service has answered");
    assert_eq!(status(&answers[0].1), 200);
    let sent = site.send(PBX, reply(&invite, 180, ""));
    assert!(sent[0].0.to_string() == PBX && sent[0].1.starts_with("CANCEL "), "{sent:?}");
    site.send(PBX, reply(&sent[0].1, 200, ""));
    assert!(site.send(PBX, reply(&invite, 180, "")).is_empty(), "one CANCEL is enough");
    let sent = site.send(PBX, reply(&invite, 487, ""));
    assert!(sent.iter().any(|(to, text)| to.to_string() == PHONE && status(text) == 487));
}

#[test]
fn a_gate_that_fails_after_the_service_answered_means_503_and_the_service_is_told() {
    let mut site = Site::new();
    let mut alice = phone();
    let invite = relayed(&mut site, &mut alice);
    site.send(PBX, reply(&invite, 200, ANSWER));
    let sent = site.pass(Duration::from_millis(500));
    let to_pbx: Vec<&str> = sent.iter().filter(|(to, _)| to.to_string() == PBX).map(|(_, text)| &text[..3]).collect();
    assert_eq!(to_pbx, ["ACK", "BYE"]);
    assert!(sent.iter().any(|(to, text)| to.to_string() == PHONE && status(text) == 503));
    assert_eq!(site.revokes(), 1);
}

#[test]
fn a_bye_from_the_client_passes_and_ends_the_grants() {
    let mut site = Site::new();
    let mut alice = phone();
    set_up(&mut site, &mut alice);
    // No shard remembers the dialog.
    site.start(1);
    let (to, bye) = site.send(PHONE, alice.request("BYE", "sip:pbx@10.0.0.2:5060", "", "")).pop().unwrap();
    assert_eq!(to.to_string(), PBX);
    assert_eq!(site.revokes(), 1);
    let (to, ok) = site.send(PBX, reply(&bye, 200, "")).pop().unwrap();
    assert_eq!((to.to_string().as_str(), status(&ok)), (PHONE, 200));
}

/// Sets up a call without media.
fn set_up_without_media(site: &mut Site, alice: &mut Caller) {
    let signed = alice.signed(site, "INVITE", "sip:pbx@example.net", "", "");
    let invite = site.send(PHONE, signed)[0].1.clone();
    let ok = site.send(PBX, reply(&invite, 200, "")).pop().unwrap().1;
    alice.take_dialog(&ok);
    site.send(PHONE, alice.request("ACK", "sip:pbx@10.0.0.2:5060", "", ""));
}

#[test]
fn the_end_of_a_call_for_which_nothing_was_opened_costs_gates_nothing() {
    let mut site = Site::new();
    let mut alice = phone();
    set_up_without_media(&mut site, &mut alice);
    let (to, bye) = site.send(PHONE, alice.request("BYE", "sip:pbx@10.0.0.2:5060", "", "")).pop().unwrap();
    assert_eq!((to.to_string().as_str(), site.revokes()), (PBX, 0));
    assert_eq!(site.metrics[0].count(Count::CallsEnded), 1);
    assert_eq!(status(&site.send(PBX, reply(&bye, 200, ""))[0].1), 200);
    // A later request opened something.
    let mut alice = Caller { call_id: "with-media-later".into(), ..phone() };
    set_up_without_media(&mut site, &mut alice);
    let uri = "sip:pbx@10.0.0.2:5060";
    let signed = alice.signed(&mut site, "INVITE", uri, "", AUDIO);
    let invite = site.send(PHONE, signed)[0].1.clone();
    site.send(PBX, reply(&invite, 200, ANSWER));
    site.send(PHONE, alice.request("BYE", uri, "", ""));
    assert_eq!(site.revokes(), 1, "although no gate has answered yet");
}

#[test]
fn nothing_is_opened_for_a_call_that_was_hung_up_meanwhile() {
    let mut site = Site::new();
    let mut alice = phone();
    set_up_without_media(&mut site, &mut alice);
    let uri = "sip:pbx@10.0.0.2:5060";
    let signed = alice.signed(&mut site, "INVITE", uri, "", AUDIO);
    let invite = site.send(PHONE, signed)[0].1.clone();
    assert!(invite.starts_with("INVITE "));
    assert_eq!(site.send(PHONE, alice.request("BYE", uri, "", ""))[0].0.to_string(), PBX);
    site.send(PBX, reply(&invite, 200, ANSWER));
    assert!(site.asked().is_empty());
}

#[test]
fn a_call_that_gates_may_have_yet_to_tell_of_is_not_ended_by_a_481() {
    let mut site = Site::new();
    let mut alice = phone();
    set_up(&mut site, &mut alice);
    let known = site.ledger.rows()[0].clone();
    let delta = site.ledger.delta(known.id).unwrap();
    site.ledger = Arc::new(Ledger::new(1_000));
    site.start(1);
    site.ledger.set_partial(true);
    let bye = alice.request("BYE", "sip:pbx@10.0.0.2:5060", "", "");
    assert!(site.send(PHONE, &bye).is_empty(), "it comes again");
    let flow = Flow { connection: ConnectionId::new(0, 1), ..Flow::datagrams(0, PHONE.parse().unwrap()) };
    assert_eq!(site.send_over(flow, &bye), [503], "over a connection it does not");
    // The gate tells of it.
    let (address, ports) = (known.gate_address.unwrap(), known.gate_ports);
    let active = ActiveGrant { delta, address, ports, bytes_used: 0, flows: 1 };
    site.ledger.active(&active, &known.gate).unwrap();
    assert_eq!(site.send(PHONE, &bye)[0].0.to_string(), PBX);
    assert_eq!(site.revokes(), 1);
    // It is over now, whatever gates have yet to tell.
    assert_eq!(site.send(PHONE, &bye)[0].0.to_string(), PBX, "the same again");
    let another = alice.request("BYE", "sip:pbx@10.0.0.2:5060", "", "");
    assert_eq!(status(&site.send(PHONE, &another)[0].1), 481);
}

#[test]
fn a_service_ends_an_abusive_client_at_once() {
    let mut site = Site::new();
    let mut alice = phone();
    set_up(&mut site, &mut alice);
    let (to, bye) = site.send(PBX, bye_of_service(&alice)).pop().unwrap();
    assert_eq!(site.revokes(), 1);
    assert_eq!(to.to_string(), PHONE, "to where the client's INVITE came from");
    assert!(!bye.contains("Route: <sip:203.0.113.1"));
}

#[test]
fn a_forged_cookie_opens_no_way_in_either_direction() {
    let mut site = Site::new();
    let mut alice = phone();
    set_up(&mut site, &mut alice);
    let good = bye_of_service(&alice);
    for (from, to) in [(";sg=", ";sg=A"), (";sv=pbx", ";sv=web"), (";cl=", ";cl=B"), ("call-of-alice", "other-call")] {
        let sent = site.send("198.51.100.66:5060", good.replacen(from, to, 1));
        assert_eq!(sent.len(), 1);
        assert_eq!(status(&sent[0].1), 481, "{from}");
    }
    assert_eq!(site.revokes(), 0);
}

#[test]
fn a_response_whose_branch_is_not_ours_goes_nowhere() {
    let mut site = Site::new();
    let mut alice = phone();
    let invite = relayed(&mut site, &mut alice);
    let ok = reply(&invite, 200, ANSWER);
    let branch = header(&ok, "Via").unwrap().split("branch=").nth(1).unwrap().split(';').next().unwrap().to_owned();
    let mut forged = branch.clone().into_bytes();
    let last = forged.len() - 3;
    forged[last] = if forged[last] == b'A' { b'B' } else { b'A' };
    let forged = ok.replacen(&branch, std::str::from_utf8(&forged).unwrap(), 1);
    assert!(site.send("198.51.100.66:5060", forged).is_empty());
    assert!(site.asked().is_empty());
    assert_eq!(site.metrics[0].count(Count::ResponsesUnmatched), 1);
}

#[test]
fn a_response_at_another_shard_is_handed_to_its_owner() {
    let mut site = Site::with(2, Tables::default());
    let mut alice = phone();
    let invite = relayed(&mut site, &mut alice);
    assert!(site.send_to(1, PBX, reply(&invite, 180, "")).is_empty());
    let handed = site.events.iter().find_map(|event| match event {
        Event::HandOver { shard: 0, flow, datagram } => Some((*flow, datagram.clone())),
        _ => None,
    });
    let (flow, bytes) = handed.unwrap();
    assert_eq!(status(&site.tell(0, Input::Datagram { flow, bytes })[0].1), 180);
}

#[test]
fn a_reinvite_is_authenticated_and_renews_the_same_grants() {
    let mut site = Site::new();
    let mut alice = phone();
    set_up(&mut site, &mut alice);
    let before = site.ledger.rows();
    site.pass(Duration::from_secs(100));
    let uri = "sip:pbx@10.0.0.2:5060";
    let stranger = site.send(PHONE, alice.request("INVITE", uri, "", AUDIO)).pop().unwrap();
    assert_eq!(status(&stranger.1), 407);
    let signed = alice.signed(&mut site, "INVITE", uri, "", AUDIO);
    let sent = site.send(PHONE, signed);
    assert!(sent[0].0.to_string() == PBX && sent[0].1.starts_with("INVITE sip:pbx@10.0.0.2:5060 "), "{sent:?}");
    assert!(!sent[0].1.contains("\r\nRoute:"));
    let sent = site.send(PBX, reply(&sent[0].1, 200, ANSWER));
    assert_eq!(status(&sent[0].1), 200, "which does not wait for what is open already");
    site.gate_opens();
    let after = site.ledger.rows();
    assert_eq!((after.len(), after[0].id, after[0].not_after), (1, before[0].id, before[0].not_after + 100));
}

#[test]
fn what_comes_by_a_distant_gate_is_spared_in_front_of_the_frontend() {
    let mut site = Site::new();
    let spared = |site: &Site| site.shards[0].spared(site.instant).iter().map(ToString::to_string).collect::<Vec<_>>();
    assert!(spared(&site).is_empty());
    let keys = RelayKeys::derive(&SessionKeys::from_bytes([[3; 16], [4; 16]]), 1);
    let standing = Some(Standing { address: "203.0.113.9:31000".parse().unwrap(), keys });
    site.tell(0, Input::Standing { service: "pbx".into(), standing });
    assert_eq!(spared(&site), ["203.0.113.9/32"]);
    site.tell(0, Input::Standing { service: "pbx".into(), standing: None });
    assert!(spared(&site).is_empty());
}

#[test]
fn a_service_behind_a_distant_gate_is_reached_at_the_gates_address() {
    let mut site = Site::new();
    let address: std::net::SocketAddr = "203.0.113.9:31000".parse().unwrap();
    let keys = RelayKeys::derive(&SessionKeys::from_bytes([[3; 16], [4; 16]]), 1);
    let standing = Some(Standing { address, keys: keys.clone() });
    site.tell(0, Input::Standing { service: "pbx".into(), standing });
    let mut alice = phone();
    let signed = alice.signed(&mut site, "INVITE", "sip:pbx@example.net", "", AUDIO);
    let trace = |site: &Site| site.traces.read("alice", 0, site.instant, 0).unwrap().0.messages;
    trace(&site);
    let sent = site.send_raw(PHONE, signed);
    let (to, invite) = &sent[0];
    assert_eq!(*to, address);
    let copy = trace(&site).into_iter().find(|message| message.to == address).unwrap();
    assert_eq!(copy.bytes, invite[..invite.len() - TRAILER_LEN]);
    assert!(invite.starts_with(b"INVITE sip:pbx@10.0.0.2:5060 "));
    let own: std::net::SocketAddr = FRONTEND.parse().unwrap();
    let ends = Ends { client: (own.ip(), own.port()), gate_port: address.port() };
    assert_eq!(keys.keys().to_service.check(keys.sender(0), &ends, invite).unwrap().seq, 1);
    // What comes from the gate's address counts only if the gate has sealed it, and once.
    let (text, _) = invite.split_last_chunk::<TRAILER_LEN>().unwrap();
    let ringing = reply(std::str::from_utf8(text).unwrap(), 180, "");
    assert!(site.send("203.0.113.9:31000", &ringing).is_empty());
    let trailer = keys.keys().to_client.trailer(keys.sender(0), Purpose::Datagram, 1, &ends, ringing.as_bytes());
    let sealed = [ringing.as_bytes(), &trailer].concat();
    assert_eq!(status(&site.send("203.0.113.9:31000", &sealed)[0].1), 180);
    assert!(site.send("203.0.113.9:31000", &sealed).is_empty());
    assert_eq!(site.metrics[0].count(Count::RelayUnproved), 2);
    // A datagram that would not fit one packet with its trailer is refused rather than lost.
    let mut bob = Caller { call_id: "long".into(), ..phone() };
    let long = format!("Subject: {}\r\n", "x".repeat(1_200));
    let signed = bob.signed(&mut site, "INVITE", "sip:pbx@example.net", &long, AUDIO);
    assert_eq!(status(&site.send(PHONE, signed)[0].1), 513);
}

#[test]
fn an_agent_is_called_where_it_registered_and_its_answer_carries_grants() {
    let mut site = Site::new();
    site.bind_agent();
    let mut dave = Caller::new("dave", PHONE).agent().calls("files");
    let offer = PORTS.replace("service-ports:80", "service-ports:22");
    let signed = dave.signed(&mut site, "INVITE", "sip:files@example.net", "", &offer);
    let sent = site.send(PHONE, signed);
    assert!(sent[0].0.to_string() == AGENT && sent[0].1.starts_with("INVITE sip:files@10.0.0.3:5070 "), "{sent:?}");
    let answer = "v=0\r\no=- 1 1 IN IP4 10.0.0.3\r\ns=-\r\nc=IN IP4 10.0.0.3\r\nt=0 0\r\n\
        m=application 22 TCP sluicegate\r\na=setup:passive\r\na=service-ports:22\r\n";
    site.send(AGENT, reply(&sent[0].1, 200, answer));
    assert_eq!(site.gates.service, "files");
    let ok = site.gate_opens().pop().unwrap().1;
    assert!(ok.contains("application/vnd.sluicegate.grant") && ok.contains("a=service-ports:22"), "{ok}");
    assert!(ok.contains("m=application 20000 TCP sluicegate") && !ok.contains("c=IN IP4 10.0.0.3"));
}

#[test]
fn an_agent_that_declines_keeps_everything_shut() {
    let mut site = Site::new();
    site.bind_agent();
    let mut dave = Caller::new("dave", PHONE).agent().calls("files");
    let offer = PORTS.replace("service-ports:80", "service-ports:22");
    let signed = dave.signed(&mut site, "INVITE", "sip:files@example.net", "", &offer);
    let invite = site.send(PHONE, signed).remove(0).1;
    let sent = site.send(AGENT, reply(&invite, 603, ""));
    assert!(sent.iter().any(|(to, text)| to.to_string() == PHONE && status(text) == 603));
    assert!(site.asked().is_empty());
}

#[test]
fn hops_are_counted() {
    let mut site = Site::new();
    let mut alice = phone();
    let signed = alice.signed(&mut site, "INVITE", "sip:pbx@example.net", "", AUDIO);
    let sent = site.send(PHONE, signed.replacen("Max-Forwards: 70", "Max-Forwards: 0", 1));
    assert_eq!(status(&sent[0].1), 483);
}

#[test]
fn early_media_that_the_gate_refuses_do_not_hinder_the_call() {
    let mut site = Site::new();
    let mut alice = phone();
    let invite = relayed(&mut site, &mut alice);
    assert!(site.send(PBX, reply(&invite, 183, ANSWER)).is_empty());
    let sent = site.pass(Duration::from_millis(500));
    let (_, progress) = sent.iter().find(|(to, _)| to.to_string() == PHONE).unwrap();
    assert!(status(progress) == 183 && !progress.contains("m=audio"), "{progress}");
    site.asked();
    assert!(site.send(PBX, reply(&invite, 200, ANSWER)).is_empty());
    assert_eq!(status(&site.gate_opens()[0].1), 200);
}

#[test]
fn a_200_that_overtakes_the_opening_of_early_media_is_the_one_passed_on() {
    let mut site = Site::new();
    let mut alice = phone();
    let invite = relayed(&mut site, &mut alice);
    site.send(PBX, reply(&invite, 183, ANSWER));
    site.asked();
    site.send(PBX, reply(&invite, 200, ANSWER));
    let sent = site.gate_opens();
    assert_eq!(sent.iter().map(|(_, text)| status(text)).collect::<Vec<_>>(), [200]);
}
