//! Agents register services.

use std::time::Duration;

use sluicegate_proxy::Event;

use crate::site::{AGENT, Caller, PORTS, Site, header, status};

const REALM_URI: &str = "sip:example.net";
const CONTACT: &str = "Contact: <sip:files@192.168.7.7:9999>\r\n";

fn registrar(service: &str) -> Caller {
    Caller::new("registrar", AGENT).agent().calls(service)
}

#[test]
fn a_registrar_binds_its_service_to_where_it_registers_from() {
    let mut site = Site::new();
    let ok = registrar("files").sign_in(&mut site, "REGISTER", REALM_URI, CONTACT, "");
    assert_eq!(status(&ok), 200);
    assert_eq!(header(&ok, "Contact"), Some("<sip:files@192.168.7.7:9999>;expires=120"));
    let bound = site.events.iter().any(
        |event| matches!(event, Event::Bind(binding) if binding.service == "files" && binding.flow.peer.to_string() == AGENT),
    );
    assert!(bound);
}

#[test]
fn nobody_else_registers_a_service() {
    for (user, service) in [("alice", "files"), ("registrar", "pbx"), ("registrar", "web"), ("registrar", "void")] {
        let mut site = Site::new();
        let mut caller = Caller::new(user, AGENT).agent().calls(service);
        let answer = caller.sign_in(&mut site, "REGISTER", REALM_URI, CONTACT, "");
        assert_eq!(status(&answer), 403, "{user} {service}");
    }
}

#[test]
fn a_registration_ends_by_its_time_or_by_being_taken_back() {
    let mut site = Site::new();
    let mut registrar = registrar("files");
    let calls = |site: &mut Site, n: u32| {
        let mut alice = Caller::new("alice", "198.51.100.7:40000").agent().calls("files");
        alice.call_id = format!("call-{n}");
        status(&alice.invite(site, &PORTS.replace("service-ports:80", "service-ports:22")))
    };
    assert_eq!(calls(&mut site, 1), 480);
    registrar.sign_in(&mut site, "REGISTER", REALM_URI, &format!("{CONTACT}Expires: 60\r\n"), "");
    site.pass(Duration::from_secs(59));
    assert_eq!(calls(&mut site, 2), 100);
    site.pass(Duration::from_secs(2));
    assert_eq!(calls(&mut site, 3), 480);
    registrar.sign_in(&mut site, "REGISTER", REALM_URI, CONTACT, "");
    let gone = registrar.sign_in(&mut site, "REGISTER", REALM_URI, &format!("{CONTACT}Expires: 0\r\n"), "");
    assert_eq!((status(&gone), header(&gone, "Contact")), (200, None));
    assert_eq!(calls(&mut site, 4), 480);
}

#[test]
fn a_registration_that_is_too_short_is_refused_with_the_shortest() {
    let mut site = Site::new();
    let answer = registrar("files").sign_in(&mut site, "REGISTER", REALM_URI, &format!("{CONTACT}Expires: 5\r\n"), "");
    assert_eq!((status(&answer), header(&answer, "Min-Expires")), (423, Some("10")));
}

#[test]
fn a_repeated_register_is_answered_from_memory() {
    let mut site = Site::new();
    let mut registrar = registrar("files");
    let signed = registrar.signed(&mut site, "REGISTER", REALM_URI, CONTACT, "");
    let first = site.send(AGENT, &signed);
    assert_eq!(site.send(AGENT, &signed), first);
}
