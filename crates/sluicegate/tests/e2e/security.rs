//! Who is let in: answers to wrong requests, and to right ones that come again.

use std::net::SocketAddr;

use sluicegate_sip::message::HeaderName;

use crate::support::{
    lab::{CLIENT, CLIENT_ALIAS, Lab, STRANGER},
    node::{Config, Node, REALM, service},
    phone::{Phone, Response, Wish, token},
};

on_packet!(a_replayed_authorisation_is_refused_from_every_port_and_by_every_shard, &[], replays);
on_packet!(a_replayed_authorisation_is_refused_after_a_restart, &[], replay_after_restart);
on_packet!(a_wrong_password_and_an_unknown_user_get_the_same_answer, &[], wrong_credentials);
on_packet!(a_stale_nonce_is_named_stale_and_a_fresh_one_works, &[], stale_nonces);
on_packet!(malformed_requests_get_the_answer_of_the_rfc, &[], malformed);
on_packet!(a_user_whom_no_rule_allows_gets_the_answer_of_a_service_that_does_not_exist, &[], denied);

/// Source ports tried, so that each of two shards is met with all but certainty.
const PORTS: usize = 24;

fn frontend() -> SocketAddr {
    "203.0.113.1:5060".parse().expect("an address")
}

fn node(lab: &Lab, datapath: &'static str) -> Node {
    let config = Config::new(datapath, &service("echo", "\"udp/7000-7009\"", "")).frontend("shards = 2\n");
    Node::up(lab, &config)
}

/// The same request under another branch: no retransmission, but something new.
fn with_new_branch(request: &[u8]) -> Vec<u8> {
    let text = String::from_utf8(request.to_vec()).expect("text");
    let (head, rest) = text.split_once("branch=z9hG4bK").expect("a branch");
    let (_, rest) = rest.split_once(';').expect("parameters behind the branch");
    format!("{head}branch=z9hG4bK{};{rest}", token()).into_bytes()
}

fn replays(datapath: &'static str) {
    let lab = Lab::new();
    let node = node(&lab, datapath);
    let phone = Phone::new(&lab, "client", CLIENT, frontend(), "alice");
    let call = phone.call("echo", Wish::Audio);
    let grants = node.grants();
    assert_eq!(grants.len(), 1);
    assert_eq!(node.json(&["status"])["frontend"]["shards"], 2);

    let refused = phone.ask(&with_new_branch(&call.authorised));
    assert_eq!((refused.status, refused.is_stale()), (407, true), "the same port");
    for _ in 0..PORTS {
        let other = Phone::new(&lab, "client", CLIENT, frontend(), "alice");
        let refused = other.ask(&with_new_branch(&call.authorised));
        assert_eq!((refused.status, refused.is_stale()), (407, true), "port {}", other.local().port());
        // Byte for byte, branch and all: whatever the frontend thinks of it, it is no way in from here.
        let answers = other.try_ask(&call.authorised);
        assert!(answers.iter().all(|answer| answer.status == 407), "port {}: {answers:?}", other.local().port());
    }
    for (host, address) in [("client", CLIENT_ALIAS), ("stranger", STRANGER)] {
        let other = Phone::new(&lab, host, address, frontend(), "alice");
        let refused = other.ask(&with_new_branch(&call.authorised));
        assert_eq!((refused.status, refused.is_stale()), (407, true), "{address}");
    }
    assert_eq!(node.grants(), grants, "no replay opened anything");
    // A user who was in the middle of it all is not harmed.
    phone.call("echo", Wish::Audio);
    assert_eq!(node.grants().len(), 2);
}

fn replay_after_restart(datapath: &'static str) {
    let lab = Lab::new();
    let mut node = node(&lab, datapath);
    let phone = Phone::new(&lab, "client", CLIENT, frontend(), "alice");
    let call = phone.call("echo", Wish::Audio);
    // A nonce that was never used: only its key is gone.
    let unused = phone.ask(&phone.invite("echo", Wish::Audio, (&token(), &token(), 1), ""));
    let fresh = phone.credentials(&unused, "INVITE", &format!("sip:echo@{REALM}"));
    let fresh = phone.invite("echo", Wish::Audio, (&token(), &token(), 2), &fresh);
    assert!(node.program.stop(), "`up` ends well when it is asked to");
    node.restart(&lab);
    let grants = node.grants();
    for request in [call.authorised.clone(), with_new_branch(&call.authorised), fresh] {
        let refused = phone.ask(&request);
        assert_eq!((refused.status, refused.is_stale()), (407, true));
    }
    assert_eq!(node.grants(), grants, "no replay opened anything");
}

/// What an outsider can see of an answer, without what is random in every one.
fn shape(response: &Response) -> Vec<String> {
    let text = String::from_utf8_lossy(&response.bytes).into_owned();
    let blank = |line: &str| {
        let mut line = line.to_owned();
        for (name, end) in [("nonce=\"", '"'), ("tag=", ';'), ("branch=", ';'), ("Call-ID: ", '\r')] {
            if let Some(at) = line.find(name).map(|at| at + name.len()) {
                let rest = line[at..].find(end).map_or(line.len(), |length| at + length);
                line.replace_range(at..rest, &"x".repeat(rest - at));
            }
        }
        line
    };
    let own = |line: &&str| {
        !["Via", "From", "To", "Call-ID", "v:", "f:", "t:", "i:"].iter().any(|name| line.starts_with(name))
    };
    text.lines().filter(own).map(blank).collect()
}

fn wrong_credentials(datapath: &'static str) {
    let lab = Lab::new();
    let node = node(&lab, datapath);
    let mut wrong = Phone::new(&lab, "client", CLIENT, frontend(), "alice");
    wrong.password = "guess".to_owned();
    let nobody = Phone::new(&lab, "client", CLIENT, frontend(), "nobody");
    let [wrong, nobody] = [wrong, nobody].map(|phone| {
        let refused = phone.try_call("echo", Wish::Audio).expect_err("not let in");
        assert_eq!((refused.status, refused.is_stale()), (407, false));
        refused
    });
    assert_eq!(shape(&wrong), shape(&nobody), "nobody learns which names exist");
    assert_eq!(node.grants().len(), 0);
    node.traced(&["trace", "--user", "alice"], "198.51.100.2");
}

fn stale_nonces(datapath: &'static str) {
    let lab = Lab::new();
    let node = node(&lab, datapath);
    let uri = format!("sip:echo@{REALM}");
    let phone = Phone::new(&lab, "client", CLIENT, frontend(), "alice");
    let other = Phone::new(&lab, "client", CLIENT_ALIAS, frontend(), "alice");
    let foreign = other.ask(&other.invite("echo", Wish::Audio, (&token(), &token(), 1), ""));
    let own = phone.ask(&phone.invite("echo", Wish::Audio, (&token(), &token(), 1), ""));
    let nonce = |response: &Response| {
        let value = response.header(HeaderName::ProxyAuthenticate).expect("a challenge");
        value.split("nonce=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("a nonce").to_owned()
    };
    let mut changed = nonce(&own).into_bytes();
    let last = changed.last_mut().expect("a nonce");
    *last = if *last == b'A' { b'B' } else { b'A' };
    let changed = String::from_utf8(changed).expect("text");
    let forged = |made_up: &str| {
        let text = String::from_utf8_lossy(&own.bytes).replace(&nonce(&own), made_up);
        Response { status: 407, bytes: text.into_bytes() }
    };
    // Of another address, changed in one place, cut, and made up: with the right password each time.
    for challenge in [foreign, forged(&changed), forged(&nonce(&own)[1..]), forged("made-up")] {
        let (call_id, tag) = (token(), token());
        let credentials = phone.credentials(&challenge, "INVITE", &uri);
        let refused = phone.ask(&phone.invite("echo", Wish::Audio, (&call_id, &tag, 2), &credentials));
        assert_eq!((refused.status, refused.is_stale()), (407, true), "{}", nonce(&challenge));
        // A client that tries again with what it was given gets in without asking its user anything.
        let credentials = phone.credentials(&refused, "INVITE", &uri);
        let request = phone.invite("echo", Wish::Audio, (&call_id, &tag, 3), &credentials);
        assert_eq!(phone.ask(&request).status, 200);
    }
    assert_eq!(node.grants().len(), 4);
}

/// Complete but for the nonce, and the header field that comes next.
const NO_NONCE: &str = "Proxy-Authorization: Digest username=\"alice\", realm=\"example.net\", \
                        uri=\"sip:echo@example.net\", qop=auth, nc=00000001, cnonce=\"1\", response=\"0\"\r\nContact:";

fn malformed(datapath: &'static str) {
    let lab = Lab::new();
    let node = node(&lab, datapath);
    let phone = Phone::new(&lab, "client", CLIENT, frontend(), "alice");
    let good = || {
        let bytes = phone.invite("echo", Wish::Audio, (&token(), &token(), 1), "");
        String::from_utf8(bytes).expect("text")
    };
    let without = |name: &str| {
        let text = good();
        let lines = text.split_inclusive("\r\n").filter(|line| !line.starts_with(name));
        lines.collect::<String>()
    };
    let cases = [
        ("no Call-ID", without("Call-ID"), 400),
        ("no CSeq", without("CSeq"), 400),
        ("no From", without("From"), 400),
        ("no To", without("To"), 400),
        ("CSeq of another method", good().replace("1 INVITE", "1 BYE"), 400),
        ("CSeq without a number", good().replace("CSeq: 1", "CSeq: x"), 400),
        ("a body shorter than announced", good().replace("Content-Length: ", "Content-Length: 9"), 400),
        ("two Call-IDs that differ", good().replace("Max-Forwards: 70", "Call-ID: another"), 400),
        ("an unknown version", good().replace(" SIP/2.0\r\nVia", " SIP/7.0\r\nVia"), 505),
        ("credentials without a nonce", good().replace("Contact:", NO_NONCE), 400),
        ("an unknown method", good().replace("INVITE", "FROBNICATE"), 407),
    ];
    for (what, request, status) in cases {
        let answers = phone.try_ask(request.as_bytes());
        let codes: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
        assert_eq!(codes.first(), Some(&status), "{what}: {codes:?}");
    }
    // What is no SIP at all is not answered, and harms no one.
    for noise in [&b""[..], b"\r\n\r\n", b"\x00\x01\x02", b"GET / HTTP/1.1\r\n\r\n", &[0xff; 1400]] {
        let answers = phone.try_ask(noise);
        assert!(answers.iter().all(|answer| answer.status >= 400), "{answers:?}");
    }
    phone.call("echo", Wish::Audio);
    assert_eq!(node.grants().len(), 1);
}

fn denied(datapath: &'static str) {
    let lab = Lab::new();
    let node = node(&lab, datapath);
    let mallory = Phone::new(&lab, "client", CLIENT, frontend(), "mallory");
    let [known, unknown] =
        ["echo", "nothing"].map(|service| mallory.try_call(service, Wish::Audio).expect_err("not let in"));
    assert_eq!((known.status, unknown.status), (403, 403));
    assert_eq!(shape(&known), shape(&unknown), "nobody learns which services exist");
    let test = node.cli(&["policy", "test", "mallory", "echo"]);
    assert!(test.out.contains("deny") && test.status.code() == Some(1), "{test:?}");
    node.traced(&["trace", "--user", "mallory"], "403");
}
