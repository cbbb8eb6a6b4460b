//! RFC 3665 section 2: registrations. Bob is an agent, and what he registers is where his service is.

use super::*;
use crate::site::AGENT;

const SERVER: &str = "sip:example.net";
const HERE: &str = "Contact: <sip:files@10.0.0.3:5070>\r\n";
/// What an agent is told besides: with which key the frontend proves itself.
const PROVED: &str = "Sluicegate-Noise";

fn bob() -> Caller {
    Caller::new("registrar", AGENT).agent().calls("files")
}

/// F1 to F4 of section 2.1 with these fields: asked once, and let in. The answer's Contacts.
fn registered(site: &mut Site, bob: &mut Caller, headers: &str) -> Vec<String> {
    let f1 = bob.request("REGISTER", SERVER, headers, "");
    let [f2] = exactly(site.send(AGENT, &f1), [AGENT]);
    check_answer(&f1, AGENT, &f2, 401, &["WWW-Authenticate", PROVED]);
    let f3 = bob.answered(&f2, "REGISTER", SERVER, headers, "");
    let [f4] = exactly(site.send(AGENT, &f3), [AGENT]);
    let has_contact = Wire::of(&f4).all("Contact").len() == 1;
    let more = if has_contact { &["Contact", PROVED][..] } else { &[PROVED] };
    let ok = check_answer(&f3, AGENT, &f4, 200, more);
    ok.all("Contact").into_iter().map(str::to_owned).collect()
}

#[test]
fn s2_1_new_registration() {
    let mut site = Site::new();
    assert_eq!(registered(&mut site, &mut bob(), HERE), ["<sip:files@10.0.0.3:5070>;expires=120"]);
}

/// One place for a service: what is registered later takes the place of what was before.
#[test]
fn s2_2_update_of_contact_list() {
    let mut site = Site::new();
    let mut bob = bob();
    registered(&mut site, &mut bob, HERE);
    let later = "Contact: <sip:files@10.0.0.3:5071>;expires=60\r\n";
    assert_eq!(registered(&mut site, &mut bob, later), ["<sip:files@10.0.0.3:5071>;expires=60"]);
}

#[test]
fn s2_3_request_for_current_contact_list() {
    let mut site = Site::new();
    let mut bob = bob();
    assert!(registered(&mut site, &mut bob, "").is_empty());
    registered(&mut site, &mut bob, HERE);
    site.pass(Duration::from_secs(20));
    assert_eq!(registered(&mut site, &mut bob, ""), ["<sip:files@10.0.0.3:5070>;expires=100"]);
}

#[test]
fn s2_4_cancellation_of_registration() {
    let mut site = Site::new();
    let mut bob = bob();
    registered(&mut site, &mut bob, HERE);
    assert!(registered(&mut site, &mut bob, "Expires: 0\r\nContact: *\r\n").is_empty());
    assert!(registered(&mut site, &mut bob, "").is_empty());
}

#[test]
fn s2_5_unsuccessful_registration() {
    let mut site = Site::new();
    let mut bob = Caller { password: "wrong".into(), ..bob() };
    let f1 = bob.request("REGISTER", SERVER, HERE, "");
    let [f2] = exactly(site.send(AGENT, &f1), [AGENT]);
    let f3 = bob.answered(&f2, "REGISTER", SERVER, HERE, "");
    let [f4] = exactly(site.send(AGENT, &f3), [AGENT]);
    let refused = check_answer(&f3, AGENT, &f4, 401, &["WWW-Authenticate", PROVED]);
    assert!(!refused.one("WWW-Authenticate").contains("stale=true"), "the nonce was not at fault");
    assert_ne!(refused.one("WWW-Authenticate"), Wire::of(&f2).one("WWW-Authenticate"), "another nonce");
    bob.password = crate::site::PASSWORD.into();
    assert!(registered(&mut site, &mut bob, "").is_empty(), "nothing was registered");
}
