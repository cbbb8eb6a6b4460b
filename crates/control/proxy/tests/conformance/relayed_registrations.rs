//! Telephones that are registered at a SIP server by way of the frontend (RFC 3327): `register = "relay"`.

use std::{num::NonZeroU32, time::Duration};

use sluicegate_policy::Registering;
use sluicegate_proxy::{ConnectionId, Event, Flow, Phones};

use crate::{
    inbound::{OTHER, TO_ALICE, answered, codes, methods, switch, to},
    passing::{Edits, Wire, check_answer, check_request, check_response},
    site::{ANNEX, ANSWER, AUDIO, Caller, FRONTEND, PBX, PHONE, Site, header, status},
};

const SERVER: &str = "sip:example.net";
const HERE: &str = "<sip:alice@192.168.0.9:5060;line=1>";
const AT_HOME: &str = "Contact: <sip:alice@192.168.0.9:5060;line=1>\r\n";
/// Where the telephone is inside its own network, which is the Request-URI of what it gets.
const URI: &str = "sip:alice@192.168.0.9:5060;line=1";
const IDENTITY: (&str, &str) = ("P-Asserted-Identity", "<sip:alice@example.net>");

/// A site whose PBX takes registrations.
fn site() -> Site {
    let mut site = Site::new();
    site.registers_at(&["pbx"]);
    site
}

fn telephone(user: &str, from: &str) -> Caller {
    Caller { to: format!("sip:{user}@example.net"), call_id: format!("of-{from}"), ..Caller::new(user, from) }
}

/// A REGISTER as the PBX got it.
fn relayed(site: &mut Site, phone: &mut Caller, headers: &str) -> String {
    let signed = phone.signed(site, "REGISTER", SERVER, headers, "");
    let sent = site.send(&phone.from, signed);
    assert_eq!(sent.len(), 1, "{sent:?}");
    assert_eq!(sent[0].0.to_string(), PBX, "{sent:?}");
    sent[0].1.clone()
}

/// The PBX's answer with these further lines.
fn reply(request: &str, code: u16, more: &[(&str, &str)]) -> String {
    let request = Wire::of(request);
    let mut answer = Wire::of(&format!("SIP/2.0 {code} As it likes\r\nContent-Length: 0\r\n\r\n"));
    for name in ["Via", "From", "To", "Call-ID", "CSeq"] {
        answer = request.all(name).into_iter().fold(answer, |answer, value| answer.with(name, value));
    }
    more.iter().fold(answer, |answer, (name, value)| answer.with(name, value)).to_string()
}

/// Registers alice's telephone; the Path that the PBX remembers.
fn path_of(site: &mut Site, from: &str) -> String {
    let request = relayed(site, &mut telephone("alice", from), AT_HOME);
    let path = header(&request, "Path").unwrap().to_owned();
    let ok = site.send(PBX, reply(&request, 200, &[("Contact", &format!("{HERE};expires=60"))]));
    assert_eq!(codes(&ok, from), [200]);
    path
}

/// The PBX, or who says so, calls by this Route; what came of it.
fn calls_by(site: &mut Site, caller: Caller, route: &str) -> Vec<(std::net::SocketAddr, String)> {
    let from = caller.from.clone();
    let mut caller = Caller { route: Some(route.to_owned()), ..caller };
    let invite = caller.signed(site, "INVITE", URI, "", ANSWER);
    site.send(&from, invite)
}

/// RFC 3327 section 5.5, message by message, with a challenge of each of the two.
#[test]
fn a_register_passes_to_the_pbx_with_a_path_and_its_answer_back_without() {
    let (mut site, mut alice) = (site(), telephone("alice", PHONE));
    let fields = format!("{AT_HOME}Expires: 600\r\nSupported: gruu\r\nUser-Agent: phone/1\r\n");
    let f1 = alice.request("REGISTER", SERVER, &fields, "");
    let sent = site.send(PHONE, &f1);
    let challenged = check_answer(&f1, PHONE, to(&sent, PHONE)[0], 407, &["Proxy-Authenticate"]).to_string();
    let own = alice.authorization(&challenged, "REGISTER", SERVER);
    // The PBX asks for a password of its own, which passes.
    let stale = own.replace("Proxy-Authorization", "Authorization");
    let others =
        "Authorization: Digest username=\"alice\",realm=\"pbx\",nonce=\"1\",uri=\"sip:example.net\",response=\"0\"\r\n";
    let f3 = alice.request("REGISTER", SERVER, &format!("{fields}{own}{others}"), "");
    let sent = site.send(PHONE, &f3);
    assert_eq!(sent.len(), 1, "{sent:?}");
    let f4 = to(&sent, PBX)[0].to_owned();
    let path = header(&f4, "Path").unwrap().to_owned();
    assert!(path.starts_with(&format!("<sip:{FRONTEND};lr;sv=pbx;us=alice;pc=")), "{path}");
    let added = [("Path", &*path), ("Supported", "path"), IDENTITY];
    let edits =
        Edits { uri: Some("sip:10.0.0.2:5060"), removed: &["Proxy-Authorization"], added: &added, ..Edits::default() };
    check_request(&f3, PHONE, &f4, edits);

    let challenge = [("WWW-Authenticate", "Digest realm=\"pbx\", nonce=\"2\"")];
    let f5 = reply(&f4, 401, &challenge);
    let sent = site.send(PBX, &f5);
    check_response(&f5, to(&sent, PHONE)[0], Edits::default());

    // What we were asked for when we were the registrar ourselves goes no further.
    let f6 = relayed(&mut site, &mut alice, &format!("{fields}{stale}{others}"));
    assert!(!f6.contains("realm=\"example.net\"") && f6.contains("realm=\"pbx\""), "{f6}");
    let path = header(&f6, "Path").unwrap().to_owned();
    let desk = "<sip:600@10.0.0.7:5060>;expires=50";
    let f7 = reply(
        &f6,
        200,
        &[
            ("Contact", &format!("{HERE};q=0.5;expires=600, {desk}")),
            ("Path", &format!("{path}, <sip:edge.example.com;lr>")),
            ("Service-Route", "<sip:10.0.0.2;lr>"),
            ("Server", "pbx/1"),
        ],
    );
    let sent = site.send(PBX, &f7);
    let edits = Edits {
        removed: &["Contact", "Path", "Service-Route"],
        added: &[("Contact", &format!("{HERE};q=0.5;expires=600")), ("Path", "<sip:edge.example.com;lr>")],
        ..Edits::default()
    };
    check_response(&f7, to(&sent, PHONE)[0], edits);
    assert!(site.locations.of(site.instant, "alice").is_empty(), "the PBX remembers where she is, and nobody here");
}

#[test]
fn paths_of_proxies_in_between_stay_behind_ours() {
    let mut site = site();
    let fields = format!("{AT_HOME}Path: <sip:edge.example.com;lr>, <sip:p2.example.com;lr>\r\nSupported: path\r\n");
    let request = Wire::of(&relayed(&mut site, &mut telephone("alice", PHONE), &fields));
    let paths = request.all("Path");
    assert!(paths[0].contains(";pc="));
    assert_eq!(paths[1..], ["<sip:edge.example.com;lr>", "<sip:p2.example.com;lr>"]);
    assert_eq!(request.all("Supported"), ["path"]);
    let mut unaware = Caller { call_id: "unaware".into(), ..telephone("alice", PHONE) };
    let answer = unaware.sign_in(&mut site, "REGISTER", SERVER, &fields.replace("Supported: path\r\n", ""), "");
    assert_eq!((status(&answer), header(&answer, "Unsupported")), (420, Some("path")));
}

#[test]
fn a_pbx_calls_by_the_path_and_the_call_goes_on_like_any_other() {
    let mut site = site();
    let path = path_of(&mut site, PHONE);
    let mut pbx = Caller { route: Some(path), ..switch() };
    let invite = pbx.signed(&mut site, "INVITE", URI, "", ANSWER);
    let sent = site.send(PBX, invite);
    assert_eq!((codes(&sent, PBX), methods(&sent, PHONE).len()), (vec![100], 0), "not before it is open: {sent:?}");
    let invite = to(&site.gate_opens(), PHONE)[0].to_owned();
    assert!(invite.starts_with(&format!("INVITE {URI} SIP/2.0\r\n")), "{invite}");
    assert!(!invite.contains("\r\nRoute:") && !invite.contains("Proxy-Auth"), "{invite}");
    let ok = site.send(PHONE, answered(&invite, 200, "alice-tag", AUDIO));
    pbx.take_dialog(to(&ok, PBX)[0]);
    let ack = pbx.request("ACK", "sip:alice@192.168.0.9:5060", "", "");
    assert_eq!(methods(&site.send(PBX, ack), PHONE), ["ACK"]);
    let rows = site.ledger.rows();
    assert_eq!((rows.len(), rows[0].user.as_str(), rows[0].client.to_string().as_str()), (1, "alice", "198.51.100.7"));
    let bye = pbx.request("BYE", "sip:alice@192.168.0.9:5060", "", "");
    assert_eq!((methods(&site.send(PBX, bye), PHONE), site.revokes()), (vec!["BYE"], 1));
}

#[test]
fn other_requests_of_the_pbx_go_by_the_path_too() {
    for method in ["OPTIONS", "MESSAGE", "NOTIFY", "INFO"] {
        let mut site = site();
        let route = Some(path_of(&mut site, PHONE));
        let signed = Caller { route, ..switch() }.signed(&mut site, method, URI, "", "");
        let sent = site.send(PBX, signed);
        assert_eq!(methods(&sent, PHONE), [method], "{sent:?}");
    }
}

#[test]
fn a_path_is_worth_nothing_for_others_or_changed_and_one_that_is_over_says_so() {
    let mut site = site();
    site.registers_at(&["annex", "pbx"]);
    let annexed = relayed_to_annex(&mut site);
    site.registers_at(&["pbx"]);
    let path = path_of(&mut site, PHONE);
    let cookie = path.split("pc=").nth(1).unwrap().trim_end_matches('>');
    let flipped = format!("{}{}", if cookie.starts_with('A') { "B" } else { "A" }, &cookie[1..]);
    for (nth, (route, code)) in [
        (path.replace("us=alice", "us=dave"), 403),
        (path.replace("sv=pbx", "sv=annex"), 403),
        (path.replace(cookie, &flipped), 403),
        (path.replace(cookie, &cookie[..20]), 403),
        (path.replace(cookie, ""), 403),
        (path.replace(&format!("pc={cookie}"), "pc"), 403),
        (path.replace(cookie, &"A".repeat(4_000)), 403),
        (annexed.clone(), 403),
        (annexed.replace("sv=annex", "sv=pbx"), 403),
        // Of another place it is none of ours: then it is for nobody here.
        (path.replace(FRONTEND, "203.0.113.77:5060"), 404),
    ]
    .into_iter()
    .enumerate()
    {
        let caller = Caller { call_id: format!("forged-{nth}"), ..switch() };
        let sent = calls_by(&mut site, caller, &route);
        assert_eq!((codes(&sent, PBX).last(), sent.len()), (Some(&code), 1), "{route}: {sent:?}");
        assert!(site.asked().is_empty());
    }
    assert!(notes(&site).contains(&("alice", 403)), "of the annex's Path, which is hers");
    // Who has no SIP server calls nobody by it, himself neither.
    for user in ["alice", "dave"] {
        let caller = Caller { algorithm: switch().algorithm, ..Caller::new(user, OTHER) };
        let request = Caller { route: Some(path.clone()), ..caller }.request("INVITE", URI, "", ANSWER);
        assert_eq!(codes(&site.send(OTHER, request), OTHER), [407]);
    }
    let sent = calls_by(&mut site, Caller::new("alice", OTHER), &path);
    assert_eq!((codes(&sent, OTHER), sent.len()), (vec![403], 1));
    // At its end, and not before: also of a PBX that remembers it longer.
    let life = u64::from(Phones::default().registration_s_max);
    site.pass(Duration::from_secs(life - 1));
    assert_eq!(codes(&calls_by(&mut site, Caller { call_id: "1".into(), ..switch() }, &path), PBX), [100]);
    site.pass(Duration::from_secs(1));
    assert_eq!(codes(&calls_by(&mut site, Caller { call_id: "2".into(), ..switch() }, &path), PBX), [430]);
}

/// Of whom it was noted what, with which status.
fn notes(site: &Site) -> Vec<(&str, u16)> {
    let decided = site.events.iter().filter_map(|event| match event {
        Event::Decided(decided) => Some(&decided.decision),
        _ => None,
    });
    decided.map(|decision| (decision.user.as_str(), decision.status)).collect()
}

/// The Path that the annex got of alice's telephone.
fn relayed_to_annex(site: &mut Site) -> String {
    let mut alice = Caller { call_id: "annexed".into(), ..telephone("alice", PHONE) };
    let signed = alice.signed(site, "REGISTER", SERVER, AT_HOME, "");
    let sent = site.send(PHONE, signed);
    header(to(&sent, ANNEX)[0], "Path").unwrap().to_owned()
}

#[test]
fn who_is_disabled_or_may_use_the_service_no_more_is_not_called_by_a_path_from_before() {
    let mut site = site();
    let path = path_of(&mut site, PHONE);
    type Change = fn(&mut sluicegate_policy::User);
    let changes: [(Change, u16); 3] =
        [(|user| user.enabled = false, 404), (|user| user.phone = false, 404), (|user| user.groups.clear(), 403)];
    let before = std::sync::Arc::clone(&site.policy);
    for (nth, (change, code)) in changes.into_iter().enumerate() {
        site.policy = std::sync::Arc::clone(&before);
        let policy = site.with_users(|mut user| {
            if user.name == "alice" {
                change(&mut user);
            }
            Some(user)
        });
        site.tell(0, sluicegate_proxy::Input::Policy(policy));
        let sent = calls_by(&mut site, Caller { call_id: nth.to_string(), ..switch() }, &path);
        assert_eq!((codes(&sent, PBX).last(), methods(&sent, PHONE).len()), (Some(&code), 0), "{nth}");
    }
    site.policy = before;
    site.registers_at(&[]);
    let sent = calls_by(&mut site, Caller { call_id: "back".into(), ..switch() }, &path);
    assert_eq!(codes(&sent, PBX), [430], "the frontend is the registrar again");
}

#[test]
fn a_path_outlasts_a_restart_unless_it_leads_over_a_connection() {
    let mut site = site();
    let path = path_of(&mut site, PHONE);
    site.start(1);
    assert_eq!(codes(&calls_by(&mut site, switch(), &path), PBX), [100]);
    let connection = Some(ConnectionId(NonZeroU32::new(7).unwrap()));
    let flow = Flow { connection, ..Flow::datagrams(0, OTHER.parse().unwrap()) };
    let mut alice = telephone("alice", OTHER);
    let plain = alice.request("REGISTER", SERVER, AT_HOME, "");
    let over = |site: &mut Site, text: String| {
        site.send_over(flow, text);
        String::from_utf8(site.last.clone()).unwrap()
    };
    let challenge = over(&mut site, plain);
    let signed = alice.answered(&challenge, "REGISTER", SERVER, AT_HOME, "");
    let request = over(&mut site, signed);
    let path = header(&request, "Path").unwrap().to_owned();
    assert_eq!(codes(&calls_by(&mut site, Caller { call_id: "1".into(), ..switch() }, &path), PBX), [100]);
    site.start(1);
    assert_eq!(codes(&calls_by(&mut site, Caller { call_id: "2".into(), ..switch() }, &path), PBX), [430]);
}

#[test]
fn whose_user_may_use_no_such_service_is_registered_here_and_asked_in_the_same_way() {
    let mut site = site();
    let ask = |site: &mut Site, user: &str| {
        let request = telephone(user, PHONE).request("REGISTER", SERVER, "Contact: <sip:x@192.168.0.9>\r\n", "");
        Wire::of(&site.send(PHONE, request)[0].1)
    };
    let names = |wire: &Wire| (wire.status(), wire.all("Proxy-Authenticate").len());
    let users = ["alice", "bob", "carol", "nobody"].map(|user| ask(&mut site, user));
    assert!(users.iter().all(|wire| names(wire) == (407, 2)), "{users:?}");
    let bob = telephone("bob", OTHER).sign_in(&mut site, "REGISTER", SERVER, "Contact: <sip:bob@192.168.0.9>\r\n", "");
    assert_eq!((status(&bob), site.locations.of(site.instant, "bob").len()), (200, 1));
    // Agents know us as a registrar.
    site.bind_agent();
    // Without such a service nobody is asked in another way than before.
    site.registers_at(&[]);
    assert_eq!(ask(&mut site, "alice").status(), 401);
}

#[test]
fn the_first_service_by_name_that_the_user_may_use_takes_the_registration() {
    let mut site = Site::new();
    site.registers_at(&["pbx", "annex"]);
    relayed_to_annex(&mut site);
    assert_eq!(site.policy.registers_at("alice").map(|service| service.name.as_str()), Some("annex"));
    assert_eq!(site.policy.registers_at("bob"), None);
    assert!(site.policy.services().any(|service| service.register == Registering::Relay));
}

#[test]
fn nobody_registers_anybody_else_at_the_pbx() {
    let mut site = site();
    for (nth, (uri, to, from, code)) in [
        (SERVER, "sip:dave@example.net", "alice", 403),
        (SERVER, "sip:alice@elsewhere.net", "alice", 404),
        ("sip:elsewhere.net", TO_ALICE, "alice", 404),
        (SERVER, TO_ALICE, "dave", 403),
    ]
    .into_iter()
    .enumerate()
    {
        let mut alice = Caller { to: to.into(), call_id: nth.to_string(), ..Caller::new("alice", PHONE) };
        let signed = alice.signed(&mut site, "REGISTER", uri, AT_HOME, "");
        let sent = site.send(PHONE, signed.replace("From: <sip:alice@", &format!("From: <sip:{from}@")));
        assert_eq!((codes(&sent, PHONE), sent.len()), (vec![code], 1), "{to} {from}: {sent:?}");
    }
}

#[test]
fn a_pbx_that_asks_for_our_passwords_gets_none() {
    for challenge in [
        "Digest realm=\"example.net\", nonce=\"1\"",
        "Digest nonce=\"1\",realm=\"example.net;e=5\"",
        "Digest realm=\"exampl\\e.net\", nonce=\"1\"",
        "Digest nonce=\"1\"",
    ] {
        for (code, field) in [(401, "WWW-Authenticate"), (407, "Proxy-Authenticate")] {
            let mut site = site();
            let request = relayed(&mut site, &mut telephone("alice", PHONE), AT_HOME);
            let sent = site.send(PBX, reply(&request, code, &[(field, challenge)]));
            assert_eq!(codes(&sent, PHONE), [500]);
            assert!(!to(&sent, PHONE)[0].contains("Authenticate"));
            assert!(notes(&site).contains(&("alice", 500)));
            site.pass(Duration::from_secs(100));
            assert!(site.shards[0].gauges(site.instant).iter().all(|table| table.used == 0 || table.name == "replays"));
        }
    }
}

#[test]
fn a_registration_ends_for_its_telephone_no_later_than_its_path() {
    let max = Phones::default().registration_s_max;
    for (fields, expected) in [
        (vec![("Contact", format!("{HERE};expires=86400"))], max),
        (vec![("Contact", format!("{HERE};expires=300"))], 300),
        (vec![("Contact", format!("{HERE};expires=0"))], 0),
        (vec![("Contact", HERE.to_owned()), ("Expires", "86400".to_owned())], max),
        (vec![("Contact", HERE.to_owned()), ("Expires", "120".to_owned())], 120),
        (vec![("Contact", HERE.to_owned())], max),
        (vec![("Contact", format!("{HERE};expires=99999999999999999999"))], max),
    ] {
        let mut site = site();
        let request = relayed(&mut site, &mut telephone("alice", PHONE), AT_HOME);
        let fields: Vec<_> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let ok = Wire::of(to(&site.send(PBX, reply(&request, 200, &fields)), PHONE)[0]);
        assert_eq!((ok.one("Contact"), ok.all("Expires").len()), (&*format!("{HERE};expires={expected}"), 0));
    }
}

#[test]
fn what_else_the_pbx_knows_of_the_user_is_told_to_no_telephone() {
    let inside = "<sip:alice@10.0.0.7:5060>;expires=60";
    for (fields, code) in [("", 200), ("Contact: *\r\nExpires: 0\r\n", 200), (AT_HOME, 302), (AT_HOME, 200)] {
        let mut site = site();
        let request = relayed(&mut site, &mut telephone("alice", PHONE), fields);
        let sent = site.send(PBX, reply(&request, code, &[("Contact", inside)]));
        assert_eq!(codes(&sent, PHONE), [code]);
        assert!(!to(&sent, PHONE)[0].contains("10.0.0.7"), "{sent:?}");
    }
    // A body of the answer opens nothing: a REGISTER makes no call.
    let mut site = site();
    let request = relayed(&mut site, &mut telephone("alice", PHONE), AT_HOME);
    let mut ok = Wire::of(&reply(&request, 200, &[("Content-Type", "application/sdp")]));
    ok.body = ANSWER.to_owned();
    let sent = site.send(PBX, ok.to_string());
    assert_eq!((codes(&sent, PHONE), site.asked().len()), (vec![200], 0));
    assert!(!to(&sent, PHONE)[0].contains("10.0.0.2"), "{sent:?}");
}

/// A Contact may name whom it likes: what comes for it goes to the telephone that said so.
#[test]
fn a_contact_that_names_hosts_inside_sends_no_call_there() {
    for uri in ["sip:10.0.0.1:5060", "sip:pbx@10.0.0.2", "sip:web@example.net", "sip:pbx@203.0.113.1"] {
        let mut site = site();
        let request = relayed(&mut site, &mut telephone("alice", PHONE), &format!("Contact: <{uri}>\r\n"));
        let route = header(&request, "Path").map(str::to_owned);
        let signed = Caller { route, ..switch() }.signed(&mut site, "INVITE", uri, "", ANSWER);
        assert_eq!(codes(&site.send(PBX, signed), PBX), [100], "{uri}");
        let sent = site.gate_opens();
        assert!(sent.iter().all(|(peer, _)| peer.to_string() == PHONE), "{sent:?}");
        assert_eq!(methods(&sent, PHONE), ["INVITE"]);
    }
}

#[test]
fn ten_thousand_registers_are_charged_to_their_user() {
    let tables = sluicegate_proxy::Tables {
        transactions_max: 256,
        transactions_per_user_max: 32,
        replays_max: 1_024,
        replays_per_user_max: 512,
        ..Default::default()
    };
    let mut site = Site::with(1, tables);
    site.registers_at(&["pbx"]);
    let mut alice = telephone("alice", PHONE);
    let mut passed = 0;
    for _ in 0..10_000 {
        let signed = alice.signed(&mut site, "REGISTER", SERVER, AT_HOME, "");
        let sent = site.send(PHONE, signed);
        passed += methods(&sent, PBX).len();
    }
    assert_eq!(passed, 32);
    let mut others = Caller { to: "sip:bob@example.net".into(), ..Caller::new("bob", OTHER) };
    let answer = others.sign_in(&mut site, "REGISTER", SERVER, "Contact: <sip:bob@192.168.0.9>\r\n", "");
    assert_eq!(status(&answer), 200);
    // Nobody answers, and nothing is left.
    site.pass(Duration::from_secs(100));
    let left = site.shards[0].gauges(site.instant).into_iter().filter(|table| table.name.ends_with("transactions"));
    assert_eq!(left.map(|table| table.used).sum::<u64>(), 0);
}

#[test]
fn many_or_long_contacts_are_refused_before_the_pbx_sees_them() {
    let parts = ";a=b".repeat(40);
    for (nth, (contact, code)) in [
        (["<sip:a@b>"; 11].join(","), 403),
        (format!("<sip:a@b{parts}>"), 400),
        (format!("<sip:{}@b>", "x".repeat(600)), 400),
        ("<sip:a@b".to_owned(), 400),
    ]
    .into_iter()
    .enumerate()
    {
        let (mut site, mut alice) = (site(), Caller { call_id: nth.to_string(), ..telephone("alice", PHONE) });
        let answer = alice.sign_in(&mut site, "REGISTER", SERVER, &format!("Contact: {contact}\r\n"), "");
        assert_eq!(status(&answer), code, "{nth}: {answer}");
    }
}
