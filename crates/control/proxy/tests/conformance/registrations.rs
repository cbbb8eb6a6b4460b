//! Users register themselves (RFC 3261 section 10.3).

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use sluicegate_bounded::Gauge;
use sluicegate_policy::User;
use sluicegate_proxy::{ConnectionId, Contact, Event, Flow, Input, Tables};

use crate::site::{AGENT, Caller, PHONE, Sent, Site, header, status};

const REGISTRAR: &str = "sip:example.net";
const AT_HOME: &str = "Contact: <sip:alice@192.168.0.9:5060>\r\n";
const INSTANCE: &str = "+sip.instance=\"<urn:uuid:00000000-0000-1000-8000-AABBCCDDEEFF>\"";

/// A telephone of a user that has one.
fn telephone(user: &str) -> Caller {
    Caller { to: format!("sip:{user}@example.net"), ..Caller::new(user, PHONE) }
}

/// A REGISTER with credentials, and its answer.
fn register(site: &mut Site, caller: &mut Caller, headers: &str) -> String {
    caller.sign_in(site, "REGISTER", REGISTRAR, headers, "")
}

/// Registers with a Call-ID of its own; the status.
fn registered(site: &mut Site, user: &str, call_id: &str, headers: &str) -> u16 {
    let mut caller = Caller { call_id: call_id.into(), ..telephone(user) };
    status(&register(site, &mut caller, headers))
}

/// The Contact values of an answer.
fn contacts(answer: &str) -> Vec<&str> {
    answer.lines().filter_map(|line| line.strip_prefix("Contact: ")).collect()
}

/// What is registered of a user now.
fn known(site: &Site, user: &str) -> Vec<Contact> {
    site.locations.of(site.instant, user).iter().map(|contact| Contact::clone(contact)).collect()
}

fn uris(site: &Site, user: &str) -> Vec<String> {
    known(site, user).iter().map(|contact| String::from_utf8(contact.uri.clone()).unwrap()).collect()
}

#[test]
fn d05_a_telephone_registers_and_is_called_where_it_registered_from() {
    let mut site = Site::new();
    let answer = register(&mut site, &mut telephone("alice"), AT_HOME);
    assert_eq!(status(&answer), 200, "{answer}");
    assert_eq!(contacts(&answer), ["<sip:alice@192.168.0.9:5060>;expires=3600"]);
    assert_eq!(header(&answer, "Date"), Some("Fri, 15 Jan 2027 08:00:00 GMT"));
    let known = known(&site, "alice");
    assert_eq!((known[0].flow, &known[0].uri[..]), (flow(PHONE), &b"sip:alice@192.168.0.9:5060"[..]));
    assert_eq!((known[0].q, known[0].route.len()), (1_000, 0));
}

fn flow(peer: &str) -> Flow {
    Flow::datagrams(0, peer.parse().unwrap())
}

#[test]
fn every_shard_knows_where_a_user_registered() {
    let mut site = Site::with(2, Tables::default());
    let mut alice = telephone("alice");
    register(&mut site, &mut alice, AT_HOME);
    let plain = alice.request("REGISTER", REGISTRAR, "", "");
    let (_, challenge) = site.send_to(1, PHONE, plain).pop().unwrap();
    let asked = alice.answered(&challenge, "REGISTER", REGISTRAR, "", "");
    assert_eq!(contacts(&site.send_to(1, PHONE, asked)[0].1).len(), 1);
}

/// RFC 3581: one that does not know it listens at the port in its Via.
#[test]
fn a_telephone_that_sends_from_another_port_than_it_listens_at_is_called_where_it_listens() {
    let mut site = Site::new();
    let mut alice = telephone("alice");
    let signed = alice.signed(&mut site, "REGISTER", REGISTRAR, AT_HOME, "");
    let signed = signed.replace(";rport\r\n", "\r\n").replace("UDP 198.51.100.7:40000", "UDP 198.51.100.7:5062");
    assert_eq!(site.send(PHONE, &signed)[0].0.to_string(), "198.51.100.7:5062");
    assert_eq!(known(&site, "alice")[0].flow, flow("198.51.100.7:5062"));
    // Never to another address.
    let elsewhere = alice.signed(&mut site, "REGISTER", REGISTRAR, AT_HOME, "");
    let elsewhere = elsewhere.replace(";rport\r\n", "\r\n").replace("UDP 198.51.100.7:40000", "UDP 203.0.113.66:5062");
    site.send(PHONE, &elsewhere);
    assert_eq!(known(&site, "alice")[0].flow, flow(PHONE));
}

#[test]
fn nobody_registers_anybody_else() {
    for (user, to, from, expected) in [
        ("alice", "sip:bob@example.net", "alice", 403),
        ("alice", "sip:alice@example.net", "bob", 403),
        ("alice", "sip:alice@example.net", "anonymous", 403),
        ("bob", "sip:alice@example.net", "alice", 403),
        ("alice", "sip:ALICE@example.net", "alice", 403),
        ("alice", "sip:alice@elsewhere.example", "alice", 404),
        ("alice", "sip:pbx@example.net", "alice", 403),
        ("alice", "sip:example.net", "alice", 403),
        ("alice", "tel:alice", "alice", 403),
        ("carol", "sip:carol@example.net", "carol", 401),
        ("dave", "sip:dave@example.net", "dave", 401),
        ("alice", "sip:%61lice@203.0.113.1", "alice", 200),
    ] {
        let mut site = Site::new();
        let mut caller = telephone(user);
        caller.to = to.into();
        let plain = caller.request("REGISTER", REGISTRAR, AT_HOME, "");
        let (_, challenge) = site.send(PHONE, plain).pop().unwrap();
        let signed = caller.answered(&challenge, "REGISTER", REGISTRAR, AT_HOME, "");
        let signed = signed.replace(&format!("From: <sip:{user}@"), &format!("From: <sip:{from}@"));
        let answer = site.send(PHONE, signed).pop().unwrap().1;
        assert_eq!(status(&answer), expected, "{user} {to} {from}: {answer}");
        assert_eq!(site.locations.gauge().used, u64::from(expected == 200), "{user} {to} {from}");
    }
    let mut site = Site::new();
    let elsewhere = telephone("alice").sign_in(&mut site, "REGISTER", "sip:elsewhere.example", AT_HOME, "");
    assert_eq!((status(&elsewhere), site.locations.gauge().used), (404, 0));
    // An agent registers services; what it is answered is proved, and a telephone's answer is not.
    let mut site = Site::new();
    let agent = telephone("alice").agent().sign_in(&mut site, "REGISTER", REGISTRAR, AT_HOME, "");
    assert_eq!((status(&agent), site.locations.gauge().used), (403, 0));
}

#[test]
fn d24_every_contact_of_one_request_is_registered_with_its_own_time_and_preference() {
    let mut site = Site::new();
    let fields = "Contact: <sip:alice@10.9.0.1>;q=0.2;expires=120, <sip:alice@10.9.0.2;transport=tcp>;q=0.7\r\n\
        m: sip:alice@10.9.0.3;methods=\"INVITE, BYE\"\r\nExpires: 600\r\n";
    let answer = register(&mut site, &mut telephone("alice"), fields);
    let expected = [
        "<sip:alice@10.9.0.3>;methods=\"INVITE, BYE\";expires=600",
        "<sip:alice@10.9.0.2;transport=tcp>;q=0.7;expires=600",
        "<sip:alice@10.9.0.1>;q=0.2;expires=120",
    ];
    assert_eq!(contacts(&answer), expected);
    site.pass(Duration::from_secs(119));
    assert_eq!(uris(&site, "alice").len(), 3);
    let asked = register(&mut site, &mut Caller { call_id: "asks".into(), ..telephone("alice") }, "");
    assert_eq!(contacts(&asked)[2], "<sip:alice@10.9.0.1>;q=0.2;expires=1");
    site.pass(Duration::from_secs(1));
    assert_eq!(uris(&site, "alice"), ["sip:alice@10.9.0.3", "sip:alice@10.9.0.2;transport=tcp"]);
}

#[test]
fn a_registration_lasts_as_long_as_asked_within_bounds_and_too_short_a_one_is_told_the_shortest() {
    for (fields, expected) in [
        (AT_HOME.to_owned(), Ok(3_600)),
        (format!("{AT_HOME}Expires: 60\r\n"), Ok(60)),
        (format!("{AT_HOME}Expires: 1000000\r\n"), Ok(7_200)),
        (format!("{AT_HOME}Expires: 4294967296\r\n"), Ok(3_600)),
        (format!("{AT_HOME}Expires: soon\r\n"), Ok(3_600)),
        (AT_HOME.replace(">\r", ">;expires=90\r"), Ok(90)),
        (format!("{}Expires: 7\r\n", AT_HOME.replace(">\r", ">;expires=90\r")), Ok(90)),
        (format!("{AT_HOME}Expires: 59\r\n"), Err(423)),
        (AT_HOME.replace(">\r", ">;expires=1\r"), Err(423)),
    ] {
        let mut site = Site::new();
        let answer = register(&mut site, &mut telephone("alice"), &fields);
        let listed = contacts(&answer).first().map(|value| value.rsplit_once('=').unwrap().1.parse::<u64>().unwrap());
        let got = listed.ok_or(status(&answer));
        assert_eq!(got, expected, "{fields}");
        let min = header(&answer, "Min-Expires");
        assert_eq!(min, expected.err().map(|_| "60"), "{answer}");
    }
}

#[test]
fn all_or_nothing_of_a_request_is_done() {
    let mut site = Site::new();
    let mut alice = telephone("alice");
    register(&mut site, &mut alice, AT_HOME);
    for (fields, expected) in [
        ("Contact: <sip:alice@10.9.0.1>, <sip:alice@192.168.0.9:5060>;expires=5\r\n", 423),
        ("Contact: <sip:alice@10.9.0.1>, <sip:alice@10.9.0.300>\r\n", 400),
        ("Contact: <sip:alice@10.9.0.1>\r\nContact: <sip:alice\r\n", 400),
        ("Contact: <sip:alice@10.9.0.1>;q=1.5\r\n", 400),
        ("Contact: <sip:alice@10.9.0.1>, <SIP:alice@10.9.0.1;x=y>\r\n", 500),
        ("Contact: *, <sip:alice@10.9.0.1>\r\nExpires: 0\r\n", 400),
        ("Contact: *\r\nExpires: 60\r\n", 400),
        ("Contact: *\r\n", 400),
    ] {
        let answer = register(&mut site, &mut alice, fields);
        assert_eq!(status(&answer), expected, "{fields}");
        assert_eq!(uris(&site, "alice"), ["sip:alice@192.168.0.9:5060"], "{fields}");
    }
}

#[test]
fn a_star_ends_all_registrations_of_its_user_and_of_nobody_else() {
    let mut site = Site::new();
    for (user, call_id) in [("alice", "a"), ("alice", "b"), ("bob", "c")] {
        let contact = format!("Contact: <sip:{user}@10.9.0.1:{}>\r\n", 5_000 + u16::from(call_id.as_bytes()[0]));
        assert_eq!(registered(&mut site, user, call_id, &contact), 200);
    }
    let answer = register(&mut site, &mut telephone("alice"), "Contact: *\r\nExpires: 0\r\n");
    assert_eq!((status(&answer), contacts(&answer).len()), (200, 0));
    assert_eq!((uris(&site, "alice").len(), uris(&site, "bob").len()), (0, 1));
}

/// RFC 3261 section 10.3 (7): "the update MUST be aborted and the request fails", which is a 500.
#[test]
fn d24_a_request_that_was_overtaken_changes_nothing() {
    let mut site = Site::new();
    let mut alice = Caller { cseq: 100, ..telephone("alice") };
    register(&mut site, &mut alice, AT_HOME);
    let cseq = alice.cseq;
    for fields in [AT_HOME.into(), format!("{AT_HOME}Expires: 0\r\n"), "Contact: *\r\nExpires: 0\r\n".to_owned()] {
        // The challenge takes one number, the request the next.
        alice.cseq = cseq - 2;
        assert_eq!(status(&register(&mut site, &mut alice, &fields)), 500, "the same number again: {fields}");
        alice.cseq = 1;
        assert_eq!(status(&register(&mut site, &mut alice, &fields)), 500, "a lower number: {fields}");
        assert_eq!(uris(&site, "alice").len(), 1);
    }
    // Another contact is not concerned, nor does a telephone that was started anew with another Call-ID wait for its number.
    alice.cseq = 1;
    assert_eq!(status(&register(&mut site, &mut alice, "Contact: <sip:alice@10.9.0.1>\r\n")), 200);
    assert_eq!(registered(&mut site, "alice", "after-a-restart", &format!("{AT_HOME}Expires: 0\r\n")), 200);
    assert_eq!(uris(&site, "alice"), ["sip:alice@10.9.0.1"]);
}

#[test]
fn contacts_are_found_again_by_the_rules_of_uris() {
    let mut site = Site::new();
    registered(
        &mut site,
        "alice",
        "1",
        "Contact: <sip:%61lice@Desk.Example;transport=udp?Subject=x&Priority=urgent>\r\n",
    );
    assert_eq!(uris(&site, "alice"), ["sip:%61lice@Desk.Example;transport=udp"], "without what no Request-URI has");
    let same = "Contact: <sip:alice@desk.example;Transport=UDP;x=y?priority=urgent&subject=x>\r\n";
    registered(&mut site, "alice", "2", same);
    assert_eq!(uris(&site, "alice"), ["sip:alice@desk.example;Transport=UDP;x=y"]);
    let other = "Contact: <sip:alice@desk.example:5060>\r\n";
    registered(&mut site, "alice", "3", other);
    assert_eq!(uris(&site, "alice").len(), 2);
    let answer = register(&mut site, &mut telephone("alice"), &format!("{same}Expires: 0\r\n"));
    assert_eq!(contacts(&answer), ["<sip:alice@desk.example:5060>;expires=3600"]);
}

/// RFC 5626 section 6.
#[test]
fn a_telephone_that_is_started_anew_replaces_its_own_binding_and_no_others() {
    let mut site = Site::new();
    let contact = |port: u16, of: &str| format!("Contact: <sip:alice@10.9.0.1:{port}>;{of}\r\n");
    let other = INSTANCE.replace("AABB", "0000");
    for (call_id, port, of) in [
        ("1", 1, INSTANCE.to_owned()),
        ("2", 2, INSTANCE.to_lowercase()),
        ("3", 3, other.clone()),
        ("4", 4, format!("{other};reg-id=1")),
        ("5", 5, format!("reg-id=1;{other}")),
        ("6", 6, format!("{other};reg-id=2")),
        // Without an instance it means nothing.
        ("7", 7, "reg-id=2".to_owned()),
    ] {
        assert_eq!(registered(&mut site, "alice", call_id, &contact(port, &of)), 200);
    }
    let ports: Vec<String> =
        uris(&site, "alice").iter().map(|uri| uri.rsplit_once(':').unwrap().1.to_owned()).collect();
    assert_eq!(ports, ["7", "6", "5", "3", "2"]);
    // Two telephones behind two NATs may have the same private address.
    assert_eq!(registered(&mut site, "alice", "8", &contact(2, &other)), 200);
    assert_eq!(uris(&site, "alice").iter().filter(|uri| uri.ends_with(":2")).count(), 2);
}

#[test]
fn outbound_is_confirmed_to_a_telephone_that_is_reached_directly() {
    let mut site = Site::new();
    let contact = format!("Contact: <sip:alice@10.9.0.1>;reg-id=1;{INSTANCE}\r\n");
    let answer = register(&mut site, &mut telephone("alice"), &format!("{contact}Supported: outbound, path\r\n"));
    assert_eq!((status(&answer), header(&answer, "Require")), (200, Some("outbound")));
    assert!(contacts(&answer)[0].contains(";reg-id=1"), "{answer}");
    let plain = register(&mut site, &mut telephone("bob"), &contact.replace("alice", "bob"));
    assert_eq!(header(&plain, "Require"), None);
    let two = format!("{}, <sip:alice@10.9.0.2>\r\n", contact.trim_end());
    assert_eq!(registered(&mut site, "alice", "two", &two), 400);
}

#[test]
fn a_path_is_kept_confirmed_and_refused_to_who_does_not_know_it() {
    const PATH: &str = "Path: <sip:edge.example;lr;ob>\r\n";
    let mut site = Site::new();
    let through = |site: &mut Site, fields: &str| {
        let call_id = fields.len().to_string();
        let via = format!("Via: SIP/2.0/UDP edge.example;branch=z9hG4bKedge{call_id}\r\nVia: ");
        let mut alice = Caller { call_id, ..telephone("alice") };
        let signed = alice.signed(site, "REGISTER", REGISTRAR, fields, "");
        site.send(PHONE, signed.replacen("Via: ", &via, 1)).pop().unwrap().1
    };
    let answer = through(&mut site, &format!("{AT_HOME}{PATH}Path: <sip:phone-side.example;lr>\r\n"));
    assert_eq!((status(&answer), header(&answer, "Unsupported")), (420, Some("path")));
    let answer = through(&mut site, &format!("{AT_HOME}{PATH}Supported: path\r\n"));
    assert_eq!((status(&answer), header(&answer, "Path")), (200, Some("<sip:edge.example;lr;ob>")));
    assert_eq!(known(&site, "alice")[0].route, [b"<sip:edge.example;lr;ob>"]);
    // A proxy that does not keep flows is no first hop for a telephone that wants that.
    let wanted = format!("Contact: <sip:alice@10.9.0.1>;reg-id=1;{INSTANCE}\r\nSupported: path, outbound\r\n");
    assert_eq!(status(&through(&mut site, &wanted)), 439);
    assert_eq!(status(&through(&mut site, &format!("{wanted}{}", PATH.replace(";ob", "")))), 439);
    assert_eq!(status(&through(&mut site, &format!("{wanted}{PATH}"))), 200);
    let long = format!("{AT_HOME}Supported: path\r\n{}", PATH.repeat(9));
    assert_eq!(status(&through(&mut site, &long)), 400);
}

#[test]
fn what_a_registrar_has_to_know_may_be_demanded_of_it() {
    let mut site = Site::new();
    let demand = |tag: &str| format!("{AT_HOME}Require: {tag}\r\n");
    assert_eq!(registered(&mut site, "alice", "1", &demand("path")), 200);
    assert_eq!(registered(&mut site, "alice", "2", &demand("outbound")), 200);
    let refused = site.send(PHONE, telephone("alice").request("REGISTER", REGISTRAR, &demand("gruu"), "")).remove(0).1;
    assert_eq!((status(&refused), header(&refused, "Unsupported")), (420, Some("gruu")));
}

#[test]
fn a_binding_over_a_connection_ends_with_it() {
    let mut site = Site::new();
    let mut alice = telephone("alice");
    let over = |number: u32| Flow { connection: NonZeroU32::new(number).map(ConnectionId), ..flow(PHONE) };
    for number in [1, 2] {
        let contact = format!("Contact: <sip:alice@10.9.0.{number};transport=tcp>\r\n");
        let signed = alice.signed(&mut site, "REGISTER", REGISTRAR, &contact, "");
        assert_eq!(site.send_over(over(number), signed), [200]);
    }
    register(&mut site, &mut alice, AT_HOME);
    assert_eq!(known(&site, "alice")[1].flow, over(2));
    let closed = over(2).connection.unwrap();
    assert_eq!(site.tell(0, Input::Closed(closed)), Sent::new());
    assert_eq!(uris(&site, "alice"), ["sip:alice@192.168.0.9:5060", "sip:alice@10.9.0.1;transport=tcp"]);
    site.tell(0, Input::Closed(closed));
    assert_eq!(uris(&site, "alice").len(), 2);
}

/// No one user takes the places of others, nor more than its own with one request.
#[test]
fn contacts_are_bounded_by_user_and_in_all() {
    let tables = Tables { contacts_max: 5, contacts_per_user_max: 3, transactions_max: 256, ..Tables::default() };
    let mut site = Site::with(1, tables);
    let many: Vec<String> = (1..=4).map(|nth| format!("<sip:alice@10.9.0.{nth}>")).collect();
    assert_eq!(registered(&mut site, "alice", "many", &format!("Contact: {}\r\n", many.join(", "))), 403);
    assert_eq!(registered(&mut site, "alice", "three", &format!("Contact: {}\r\n", many[..3].join(", "))), 200);
    assert_eq!(registered(&mut site, "alice", "one-more", &format!("Contact: {}\r\n", many[3])), 403);
    assert_eq!(registered(&mut site, "alice", "again", &format!("Contact: {}\r\n", many[2])), 200);
    for nth in 1..=2 {
        let contact = format!("Contact: <sip:bob@10.9.0.{nth}>\r\n");
        assert_eq!(registered(&mut site, "bob", &format!("b{nth}"), &contact), 200);
    }
    assert_eq!(site.locations.gauge(), Gauge { name: "contacts", used: 5, max: 5 });
    assert_eq!(registered(&mut site, "bob", "b3", "Contact: <sip:bob@10.9.0.3>\r\n"), 503);
    assert_eq!(registered(&mut site, "bob", "b4", "Contact: <sip:bob@10.9.0.2>\r\n"), 200, "what is there may stay");
    site.pass(Duration::from_secs(3_600));
    assert_eq!(registered(&mut site, "bob", "b5", "Contact: <sip:bob@10.9.0.3>\r\n"), 200);
    site.locations.expire(site.instant);
    assert_eq!(site.locations.gauge().used, 1);
}

#[test]
fn ten_thousand_contacts_and_endless_ones_are_refused_and_cost_little() {
    let mut site = Site::with(1, Tables { transactions_max: 256, ..Tables::default() });
    let many = vec!["<sip:a@b>"; 3_000].join(",");
    let long = "x".repeat(600);
    let parts = ";a=b".repeat(40);
    for (nth, fields) in [
        format!("Contact: {many}\r\n"),
        "Contact: <sip:a@b>\r\n".repeat(40),
        format!("Contact: <sip:{long}@b>\r\n"),
        format!("Contact: <sip:a@b>;x={long}\r\n"),
        format!("Contact: <sip:a@b{parts}>\r\n"),
    ]
    .iter()
    .enumerate()
    {
        let expected = if nth < 2 { 403 } else { 400 };
        assert_eq!(registered(&mut site, "alice", &nth.to_string(), fields), expected, "{nth}");
    }
    assert_eq!(site.locations.gauge().used, 0);
}

#[test]
fn a_register_that_was_seen_registers_nobody_again() {
    let mut site = Site::new();
    let mut alice = telephone("alice");
    let signed = alice.signed(&mut site, "REGISTER", REGISTRAR, AT_HOME, "");
    let first = site.send(PHONE, &signed);
    assert_eq!(site.send(PHONE, &signed), first, "a retransmission is answered from memory");
    register(&mut site, &mut alice, &format!("{AT_HOME}Expires: 0\r\n"));
    // Another branch, so that it is no retransmission; and from where the thief wants to be called.
    let replayed = signed.replace("z9hG4bKalice", "z9hG4bKthief");
    assert_eq!(status(&site.send(PHONE, &replayed)[0].1), 401);
    assert_eq!(status(&site.send("203.0.113.66:5060", &replayed)[0].1), 401);
    site.pass(Duration::from_secs(7_200));
    assert_eq!(status(&site.send(PHONE, &replayed)[0].1), 401);
    assert!(known(&site, "alice").is_empty());
}

/// Whatever a Contact names, calls go where it was sent from: nobody makes us call ourselves or a service in its name.
#[test]
fn a_contact_at_our_own_address_or_a_services_sends_no_call_there() {
    let mut site = Site::new();
    for (nth, uri) in
        ["sip:pbx@10.0.0.2:5060", "sip:alice@203.0.113.1:5060", "sip:alice@example.net"].iter().enumerate()
    {
        assert_eq!(registered(&mut site, "alice", &nth.to_string(), &format!("Contact: <{uri}>\r\n")), 200);
    }
    assert!(known(&site, "alice").iter().all(|contact| contact.flow == flow(PHONE)));
}

#[test]
fn a_clock_that_is_set_back_or_forward_moves_no_registration() {
    let mut site = Site::new();
    register(&mut site, &mut telephone("alice"), &format!("{AT_HOME}Expires: 120\r\n"));
    let start = site.unix;
    for unix in [start.0 - 1_000_000, start.0 + 1_000_000] {
        site.unix = sluicegate_wire::UnixTime(unix);
        site.pass(Duration::from_secs(50));
        assert_eq!(uris(&site, "alice").len(), 1);
    }
    site.pass(Duration::from_secs(20));
    assert!(uris(&site, "alice").is_empty());
}

#[test]
fn a_new_registration_is_noted_and_its_refreshment_is_not() {
    let mut site = Site::new();
    let mut alice = telephone("alice");
    for _ in 0..3 {
        register(&mut site, &mut alice, AT_HOME);
    }
    let notes = site.events.iter().filter(|event| matches!(event, Event::Decided(_))).count();
    assert_eq!(notes, 1);
}

#[test]
fn a_service_is_registered_by_its_registrar_as_before() {
    let mut site = Site::new();
    let mut registrar = Caller { to: "sip:files@example.net".into(), ..Caller::new("registrar", AGENT).agent() };
    let answer = register(&mut site, &mut registrar, "Contact: <sip:files@10.0.0.3:5070>\r\n");
    assert_eq!((status(&answer), header(&answer, "Date"), site.locations.gauge().used), (200, None, 0));
}

#[test]
fn who_is_disabled_or_removed_is_called_no_more_whatever_a_shard_took_before_it_knew() {
    for change in [|user: User| Some(User { enabled: false, ..user }), |_: User| None] {
        let mut site = Site::with(2, Tables::default());
        for user in ["alice", "bob"] {
            assert_eq!(registered(&mut site, user, user, "Contact: <sip:a@10.9.0.1>\r\n"), 200);
        }
        let changed = site.with_users(|user| if user.name == "alice" { change(user) } else { Some(user) });
        site.tell(1, Input::Policy(Arc::clone(&changed)));
        assert_eq!((uris(&site, "alice").len(), uris(&site, "bob").len()), (0, 1));
        // The other shard goes by the old policy still.
        assert_eq!(registered(&mut site, "alice", "again", "Contact: <sip:a@10.9.0.1>\r\n"), 200);
        assert_eq!(uris(&site, "alice").len(), 1);
        site.tell(0, Input::Policy(changed));
        assert_eq!((uris(&site, "alice").len(), uris(&site, "bob").len()), (0, 1));
    }
}
