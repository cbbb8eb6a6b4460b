//! Agents: what their handshake binds, what nobody in the way can change, and epochs that come and go.

use std::{sync::Arc, time::Duration};

use sluicegate_grant::{DataMode, epoch::Epoch};
use sluicegate_proxy::{Input, Kind, Outcome};
use sluicegate_signin::{HEADER, SignInError};
use sluicegate_sip::nonce::WINDOW_S;
use sluicegate_wire::UnixTime;

use crate::site::{Caller, PHONE, PORTS, Site, agent_keys, status};

const WEB: &str = "sip:web@example.net";

fn udp() -> String {
    PORTS.replace("TCP sluicegate", "UDP sluicegate").replace("service-ports:80", "service-ports:5004")
}

/// An agent's signed request, and what comes of it if somebody in the way does this to it.
fn changed(change: impl Fn(&str) -> String) -> u16 {
    let mut site = Site::new();
    let signed = Caller::new("alice", PHONE).agent().signed(&mut site, "INVITE", WEB, "", &udp());
    let altered = change(&signed);
    assert_ne!(signed, altered);
    let answer = site.send(PHONE, altered).pop().unwrap().1;
    assert!(site.asked().is_empty(), "nothing is opened");
    assert_eq!(site.metrics[0].requests(Kind::Invite, Outcome::Handshake), 1);
    status(&answer)
}

#[test]
fn nobody_in_the_way_changes_what_an_agent_asked_for() {
    let without = |name: &str, text: &str| {
        let lines = text.split_inclusive("\r\n").filter(|line| !line.starts_with(name));
        lines.collect::<String>()
    };
    assert_eq!(changed(|text| without("Supported", text)), 403);
    assert_eq!(changed(|text| without(HEADER.as_str(), text)), 403);
    assert_eq!(changed(|text| text.replace("service-ports:5004", "service-ports:5005")), 403);
    assert_eq!(
        changed(|text| text.replace("Contact: <sip:alice@198.51.100.7", "Contact: <sip:alice@198.51.100.6")),
        403
    );
    assert_eq!(changed(|text| text.replace("Contact: ", "Contact: <sip:a@203.0.113.66>\r\nContact: ")), 403);
    assert_eq!(changed(|text| text.replace("Supported: sluicegate", "Supported: sluicegate, 100rel")), 403);
    assert_eq!(changed(|text| text.replace(";to=203.0.113.1:5060", ";to=203.0.113.1:5061")), 403);
}

#[test]
fn an_agent_that_dialled_somebody_else_is_not_let_in_through_it() {
    let relay = "203.0.113.66:5060".parse().unwrap();
    let sign_in = |site: &mut Site| {
        let mut alice = Caller { dialled: relay, ..Caller::new("alice", PHONE).agent() };
        status(&alice.sign_in(site, "INVITE", WEB, "", &udp()))
    };
    let mut site = Site::new();
    assert_eq!(sign_in(&mut site), 403);
    // Unless it is the frontend's own address in front of a NAT.
    let mut site = Site::new();
    site.advertise = vec![relay];
    site.start(1);
    assert_eq!(sign_in(&mut site), 100);
}

#[test]
fn who_uses_the_epochs_realm_is_an_agent_whatever_its_headers_say() {
    let mut site = Site::new();
    let mut alice = Caller::new("alice", PHONE).agent();
    let plain = alice.request("INVITE", WEB, "", &udp());
    let challenge = site.send(PHONE, plain).pop().unwrap().1;
    alice.is_agent = false;
    let signed = alice.answered(&challenge, "INVITE", WEB, "", &udp());
    assert!(!signed.contains("Supported"));
    assert_eq!(status(&site.send(PHONE, signed).pop().unwrap().1), 100);
    assert_eq!(site.asked()[0].grant.least_mode, DataMode::Mac);
}

#[test]
fn the_agent_believes_only_the_frontend_and_only_what_it_said() {
    let answer = |change: &dyn Fn(String) -> String| {
        let mut site = Site::new();
        let mut alice = Caller::new("alice", PHONE).agent();
        alice.sign_in(&mut site, "INVITE", WEB, "", PORTS);
        site.gate_opens();
        // The grants are bytes; each of them is one character here and there.
        let text: String = site.last.iter().map(|byte| char::from(*byte)).collect();
        let bytes: Vec<u8> = change(text).chars().map(|byte| u8::try_from(byte).unwrap()).collect();
        alice.believes(&bytes).map(drop)
    };
    assert_eq!(answer(&|text| text), Ok(()));
    assert_eq!(answer(&|text| text.replace("c=IN IP4 203.0.113.9", "c=IN IP4 203.0.113.6")), Err(SignInError::Answer));
    assert_eq!(
        answer(&|text| text.replace("Contact: <sip:web@203.0.113.1", "Contact: <sip:web@203.0.113.6")),
        Err(SignInError::Answer)
    );
    let without = |text: String| {
        let value = text.split(HEADER.as_str()).nth(1).and_then(|rest| rest.split("\r\n").next()).unwrap().to_owned();
        text.replace(&format!("{}{value}\r\n", HEADER.as_str()), "")
    };
    assert_eq!(answer(&without), Err(SignInError::Malformed));
}

#[test]
fn a_new_epoch_begins_without_a_restart_and_the_old_one_ends() {
    let mut site = Site::new();
    let today = Epoch::at(site.unix);
    site.pass(Duration::from_secs(today.next().start().0 - site.unix.0 - 10));
    let sign_in = |site: &mut Site, id: &str| {
        let mut alice = Caller::new("alice", PHONE).agent();
        alice.call_id = id.into();
        status(&alice.sign_in(site, "INVITE", WEB, "", PORTS))
    };
    assert_eq!(sign_in(&mut site, "before"), 100);
    // The key holder gave tomorrow's keys an hour ago.
    site.tell(0, Input::Agents(Arc::new(agent_keys(&[today, today.next()]))));
    let mut late = Caller::new("alice", PHONE).agent();
    let signed = late.signed(&mut site, "INVITE", WEB, "", PORTS);
    site.pass(Duration::from_secs(20));
    assert_eq!(sign_in(&mut site, "after"), 100);
    assert_eq!(status(&site.send(PHONE, signed).pop().unwrap().1), 100, "a nonce of yesterday lives for its minute");
    site.pass(Duration::from_secs(WINDOW_S));
    site.tell(0, Input::Agents(Arc::new(agent_keys(&[today.next()]))));
    assert_eq!(sign_in(&mut site, "later"), 100);
    // Without keys for the epoch, agents are told to come back, and telephones call.
    site.pass(Duration::from_secs(86_400));
    assert_eq!(Epoch::at(UnixTime(site.unix.0)), today.next().next());
    let mut alice = Caller::new("alice", PHONE).agent();
    let plain = alice.request("INVITE", WEB, "", PORTS);
    assert_eq!(status(&site.send(PHONE, plain).pop().unwrap().1), 503);
}
