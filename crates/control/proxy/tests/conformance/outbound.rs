//! Flows that telephones keep (RFC 5626): one binding for each, and a call goes over the next one where one has failed.

use std::time::Duration;

use sluicegate_proxy::{ConnectionId, Flow, Input};

use crate::{
    inbound::{OTHER, TO_ALICE, answered, codes, methods, register, switch, to},
    site::{ANSWER, Caller, PBX, PHONE, Sent, Site, header, status},
};

const INSTANCE: &str = ";+sip.instance=\"<urn:uuid:00000000-0000-1000-8000-AABBCCDDEEFF>\"";
const REGISTRAR: &str = "sip:example.net";
const ANYWHERE: &str = "192.0.2.77:5060";

/// The answer to a REGISTER with these fields that came over this flow.
fn registered(site: &mut Site, flow: Flow, fields: &str) -> String {
    let mut alice = Caller { to: TO_ALICE.into(), call_id: fields.len().to_string(), ..Caller::new("alice", PHONE) };
    let signed = alice.signed(site, "REGISTER", REGISTRAR, fields, "");
    assert_eq!(site.send_over(flow, signed), [200], "{fields}");
    String::from_utf8(site.last.clone()).unwrap()
}

fn udp(peer: &str) -> Flow {
    Flow::datagrams(0, peer.parse().unwrap())
}

/// A telephone of alice with these flows, the last of which is tried first.
fn with_flows(site: &mut Site, flows: &[&str]) {
    for (from, nth) in flows.iter().zip(1..) {
        register(site, "alice", from, &format!("{INSTANCE};reg-id={nth}"));
    }
}

/// The SIP server calls alice; its INVITE, and what went to telephones once it is open.
fn called(site: &mut Site, switch: &mut Caller) -> (String, Sent) {
    let invite = switch.signed(site, "INVITE", TO_ALICE, "", ANSWER);
    site.send(PBX, &invite);
    (invite, site.gate_opens())
}

/// Sections 4.4 and 6: connections are told for how long nothing may come, before they are closed.
#[test]
fn who_keeps_a_connection_is_told_how_often_and_others_are_not() {
    let contact = format!("Contact: <sip:alice@10.9.0.1>{INSTANCE};reg-id=1\r\n");
    let wanted = format!("{contact}Supported: outbound, path\r\n");
    let connected = Flow { connection: ConnectionId::new(0, 1), ..udp(PHONE) };
    for (flow, fields, expected) in [
        (connected, wanted.clone(), (Some("outbound"), Some("480"))),
        (udp(PHONE), wanted.clone(), (Some("outbound"), None)),
        (connected, contact, (None, None)),
        (connected, wanted.replace(";reg-id=1", ""), (None, None)),
        (connected, wanted.replace(INSTANCE, ""), (None, None)),
    ] {
        let answer = registered(&mut Site::new(), flow, &fields);
        assert_eq!((header(&answer, "Require"), header(&answer, "Flow-Timer")), expected, "{fields}");
    }
    let mut site = Site::new();
    // The proxy in between says it of the flow that it keeps.
    let by_proxy = format!("{wanted}Path: <sip:edge.example;lr;ob>\r\n");
    let mut alice = Caller { to: TO_ALICE.into(), ..Caller::new("alice", PHONE) };
    let signed = alice.signed(&mut site, "REGISTER", REGISTRAR, &by_proxy, "");
    site.send_over(connected, signed.replacen("Via: ", "Via: SIP/2.0/TCP edge.example;branch=z9hG4bKe\r\nVia: ", 1));
    let answer = String::from_utf8(site.last.clone()).unwrap();
    assert_eq!((header(&answer, "Require"), header(&answer, "Flow-Timer")), (Some("outbound"), None), "{answer}");
}

/// Section 6: a binding is of address of record, instance and reg-id, and its flow the one that was registered over last.
#[test]
fn a_flow_that_is_registered_anew_from_elsewhere_takes_the_place_of_its_own_binding_alone() {
    let mut site = Site::new();
    with_flows(&mut site, &[PHONE, OTHER]);
    let flows = |site: &Site| -> Vec<String> {
        site.locations.of(site.instant, "alice").iter().map(|contact| contact.flow.peer.to_string()).collect()
    };
    assert_eq!(flows(&site), [OTHER, PHONE]);
    register(&mut site, "alice", ANYWHERE, &format!("{INSTANCE};reg-id=1"));
    assert_eq!(flows(&site), [ANYWHERE, OTHER]);
}

/// Section 7, second rule.
#[test]
fn a_call_whose_flow_has_failed_goes_over_the_next_flow_of_the_same_telephone() {
    let mut site = Site::new();
    with_flows(&mut site, &[ANYWHERE, OTHER, PHONE]);
    let mut switch = switch();
    let (_, sent) = called(&mut site, &mut switch);
    assert_eq!([PHONE, OTHER, ANYWHERE].map(|peer| methods(&sent, peer).len()), [1, 0, 0], "one at a time");
    let failed = site.send(PHONE, answered(to(&sent, PHONE)[0], 430, "edge", ""));
    assert!(codes(&failed, PBX).is_empty(), "{failed:?}");
    let sent = site.gate_opens();
    assert_eq!([PHONE, OTHER, ANYWHERE].map(|peer| methods(&sent, peer).len()), [0, 1, 0], "{sent:?}");
    let sent = site.send(OTHER, answered(to(&sent, OTHER)[0], 486, "alice", ""));
    assert_eq!(codes(&sent, PBX), [486], "the telephone has spoken (third rule)");
    assert!(site.gate_opens().is_empty());
}

#[test]
fn the_last_flow_to_fail_is_the_answer_and_a_cancelled_call_goes_nowhere_else() {
    let mut site = Site::new();
    with_flows(&mut site, &[OTHER, PHONE]);
    let mut caller = switch();
    let (_, sent) = called(&mut site, &mut caller);
    site.send(PHONE, answered(to(&sent, PHONE)[0], 430, "edge", ""));
    let sent = site.gate_opens();
    let sent = site.send(OTHER, answered(to(&sent, OTHER)[0], 430, "edge", ""));
    assert_eq!(codes(&sent, PBX), [430]);

    let mut caller = Caller { call_id: "cancelled".into(), ..switch() };
    let (asked, sent) = called(&mut site, &mut caller);
    let invite = to(&sent, PHONE)[0].to_owned();
    site.send(PHONE, answered(&invite, 180, "alice", ""));
    let cancel = caller.request("CANCEL", TO_ALICE, "", "");
    let own = header(&cancel, "Via").unwrap().to_owned();
    let cancel = cancel.replace(&own, header(&asked, "Via").unwrap());
    assert_eq!(methods(&site.send(PBX, cancel), PHONE), ["CANCEL"]);
    let sent = site.send(PHONE, answered(&invite, 430, "edge", ""));
    assert_eq!(codes(&sent, PBX), [430]);
    assert!(site.gate_opens().is_empty());
}

/// A NAT that forgot the flow: nothing comes back at all. And a connection that cannot be written to.
#[test]
fn a_flow_over_which_nothing_comes_back_has_failed_too() {
    let mut site = Site::new();
    with_flows(&mut site, &[ANYWHERE, OTHER, PHONE]);
    let mut switch = switch();
    called(&mut site, &mut switch);
    let passed = site.pass(Duration::from_secs(32));
    assert!(!codes(&passed, PBX).contains(&408), "{passed:?}");
    let sent = site.gate_opens();
    let invite = to(&sent, OTHER)[0].to_owned();
    let sent = site.tell(0, Input::Undelivered { flow: udp(OTHER), message: invite.into_bytes() });
    assert!(codes(&sent, PBX).is_empty(), "{sent:?}");
    let sent = site.gate_opens();
    let ok = site.send(ANYWHERE, answered(to(&sent, ANYWHERE)[0], 200, "alice", crate::site::AUDIO));
    assert_eq!(status(to(&ok, PBX)[0]), 200);
}
