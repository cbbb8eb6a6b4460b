//! What an operator sees of a frontend while it serves.

use sluicegate_proxy::{Flow, Input, answers};

use crate::site::{AUDIO, Caller, FRONTEND, PBX, PHONE, Site, phone, set_up};

/// Who sent what to whom, of a traced user's messages.
fn traced(site: &Site, user: &str) -> Vec<String> {
    let (got, _) = site.traces.read(user, 0, site.instant, 0).unwrap();
    let first_line = |bytes: &[u8]| String::from_utf8_lossy(bytes).lines().next().unwrap_or_default().to_owned();
    got.messages
        .iter()
        .map(|message| format!("{} {} {}", message.from, message.to, first_line(&message.bytes)))
        .collect()
}

#[test]
fn a_traced_users_messages_are_copied_on_both_legs_and_nobody_elses() {
    let mut site = Site::new();
    assert!(traced(&site, "alice").is_empty());
    set_up(&mut site, &mut phone());
    Caller::new("bob", "198.51.100.8:5060").invite(&mut site, AUDIO);
    let hop = |from: &str, to: &str, what: &str| format!("{from} {to} {what}");
    let expected = [
        hop(PHONE, FRONTEND, "INVITE sip:pbx@example.net SIP/2.0"),
        hop(FRONTEND, PHONE, "SIP/2.0 407 Proxy Authentication Required"),
        hop(PHONE, FRONTEND, "INVITE sip:pbx@example.net SIP/2.0"),
        hop(FRONTEND, PBX, "INVITE sip:pbx@10.0.0.2:5060 SIP/2.0"),
        hop(FRONTEND, PHONE, "SIP/2.0 100 Trying"),
        hop(PBX, FRONTEND, "SIP/2.0 200 OK"),
        hop(FRONTEND, PHONE, "SIP/2.0 200 OK"),
        hop(PHONE, FRONTEND, "ACK sip:pbx@10.0.0.2:5060 SIP/2.0"),
        hop(FRONTEND, PBX, "ACK sip:pbx@10.0.0.2:5060 SIP/2.0"),
    ];
    assert_eq!(traced(&site, "alice"), expected);
}

#[test]
fn what_one_shard_hands_to_another_is_copied_once() {
    let mut site = Site::new();
    traced(&site, "alice");
    let (flow, bytes) =
        (Flow::datagrams(0, PHONE.parse().unwrap()), phone().request("BYE", "sip:x", "", "").into_bytes());
    site.send(PHONE, &bytes);
    let before = traced(&site, "alice").len();
    site.tell(0, Input::Datagram { flow, bytes });
    assert_eq!((before, traced(&site, "alice").len()), (2, 3), "its answer is another");
}

#[test]
fn answers_are_counted_by_method_class_and_transport_once_however_often_they_are_looked_at() {
    let mut site = Site::new();
    set_up(&mut site, &mut phone());
    site.send(PHONE, phone().request("OPTIONS", "sip:example.net", "", ""));
    site.shards[0].transmits();
    let counted = answers(site.metrics.iter().map(|metrics| &**metrics)).counted();
    let expected =
        ["invite 1xx udp", "invite 2xx udp", "invite 4xx udp", "options 2xx udp"].map(|name| (name.to_owned(), 1));
    assert_eq!(counted, expected.into());
}
