//! What is checked of a request, and in which order (RFC 3261 section 16.3, 8.2).

use sluicegate_sip::message::{Message, part};

use crate::site::{ANSWER, AUDIO, Caller, PBX, PHONE, Site, header, phone, relayed, reply, set_up, status};

/// The answer to a request of a telephone without credentials.
fn asked(site: &mut Site, method: &str, uri: &str, change: (&str, &str)) -> String {
    let request = phone().request(method, uri, "", "").replacen(change.0, change.1, 1);
    site.send(PHONE, request).pop().map_or(String::new(), |(_, answer)| answer)
}

const HOPS: &str = "Max-Forwards: 70\r\n";

#[test]
fn d14_what_no_proxy_passes_on_is_refused_before_anybody_is_asked_for_a_password() {
    let mut site = Site::new();
    site.advertise = vec!["192.0.2.9:5060".parse().unwrap()];
    site.start(1);
    let none = ("", "");
    for (method, uri, change, expected) in [
        ("INVITE", "sip:pbx@example.net", none, 407),
        ("INVITE", "nobodyKnowsThisScheme:totallyopaquecontent", none, 416),
        ("OPTIONS", "soap.beep://192.0.2.103:3002", none, 416),
        ("INVITE", "tel:+15550100", none, 416),
        ("REGISTER", "sip:[2001:db8::10", none, 400),
        ("REGISTER", "sip:2001:db8::10", none, 400),
        ("INVITE", "sip:pbx@example.net", (HOPS, "Max-Forwards: 0\r\n"), 483),
        ("REGISTER", "sip:example.net", (HOPS, "Max-Forwards: 0\r\n"), 483),
        ("OPTIONS", "sip:example.net", (HOPS, "Max-Forwards: 0\r\n"), 200),
        ("OPTIONS", "sip:example.net", none, 200),
        ("OPTIONS", "sip:203.0.113.1", none, 200),
        ("OPTIONS", "sip:192.0.2.9", none, 200),
        ("OPTIONS", "sip:elsewhere.example", none, 404),
    ] {
        assert_eq!(status(&asked(&mut site, method, uri, change)), expected, "{method} {uri} {change:?}");
    }
}

#[test]
fn d14_extensions_that_there_are_not_are_named_before_the_password_is_asked_for() {
    let mut site = Site::new();
    let demand = |field: &str| format!("{HOPS}{field}: foo, sluicegate, bar\r\n");
    for (method, field, expected) in [
        ("INVITE", "Proxy-Require", 420),
        ("REGISTER", "Proxy-Require", 420),
        ("OPTIONS", "Proxy-Require", 420),
        ("OPTIONS", "Require", 420),
        ("REGISTER", "Require", 420),
        ("INVITE", "Require", 407),
    ] {
        let answer = asked(&mut site, method, "sip:pbx@example.net", (HOPS, &demand(field)));
        assert_eq!(status(&answer), expected, "{method} {field}");
        let named = answer.lines().filter_map(|line| line.strip_prefix("Unsupported: ")).collect::<Vec<_>>();
        assert_eq!(named, if expected == 420 { &["foo", "bar"][..] } else { &[] }, "{method} {field}");
    }
}

/// RFC 3261 section 16.3 (5): Require is for whoever answers.
#[test]
fn d07_what_a_telephone_demands_of_the_pbx_is_the_pbxs_to_refuse() {
    let mut site = Site::new();
    for tag in ["100rel", "timer", "replaces", "precondition"] {
        let mut alice = Caller { call_id: tag.into(), ..phone() };
        let require = format!("Require: {tag}\r\n");
        let signed = alice.signed(&mut site, "INVITE", "sip:pbx@example.net", &require, AUDIO);
        let sent = site.send(PHONE, signed);
        assert_eq!(sent[0].0.to_string(), PBX, "{tag}: {}", sent[0].1);
        assert_eq!(header(&sent[0].1, "Require"), Some(tag));
    }
}

#[test]
fn d07_what_is_demanded_of_a_proxy_is_ours_to_refuse_within_a_call_too() {
    let mut site = Site::new();
    let mut alice = phone();
    set_up(&mut site, &mut alice);
    let again = alice.request("INVITE", "sip:pbx@10.0.0.2:5060", "Proxy-Require: foo\r\n", AUDIO);
    let (to, answer) = site.send(PHONE, again).remove(0);
    assert_eq!((to.to_string().as_str(), status(&answer), header(&answer, "Unsupported")), (PHONE, 420, Some("foo")));
}

#[test]
fn d07_what_is_demanded_of_a_declared_service_is_ours_to_refuse() {
    let mut site = Site::new();
    for (tag, expected) in [("timer", 100), ("100rel", 420)] {
        let mut alice = Caller { call_id: tag.into(), ..Caller::new("alice", PHONE) };
        let require = format!("Require: {tag}\r\n");
        let answer = alice.sign_in(&mut site, "INVITE", "sip:web@example.net", &require, AUDIO);
        assert_eq!(status(&answer), expected, "{answer}");
    }
}

/// RFC 3261 section 7: lines end in CR LF. Who writes otherwise is told.
#[test]
fn d23_lines_that_end_in_a_line_feed_alone_are_answered_400() {
    let mut site = Site::new();
    for method in ["OPTIONS", "INVITE", "REGISTER"] {
        let request = phone().request(method, "sip:example.net", "", "").replace("\r\n", "\n");
        let sent = site.send(PHONE, request);
        assert_eq!(sent.iter().map(|(_, text)| status(text)).collect::<Vec<_>>(), [400], "{method}");
        assert_eq!(header(&sent[0].1, "CSeq"), Some(format!("1 {method}").as_str()));
    }
    let ack = phone().request("ACK", "sip:example.net", "", "").replace("\r\n", "\n");
    assert!(site.send(PHONE, ack).is_empty());
}

/// RFC 5621, as calls from PSTN gateways and of emergencies come.
#[test]
fn d19_a_description_among_other_parts_is_read_and_rewritten_and_the_others_pass() {
    let mut site = Site::new();
    let location = "--b1\r\nContent-Type: application/pidf+xml\r\n\r\n<here/>\r\n";
    let offer = format!("{location}--b1\r\nContent-Type: application/sdp\r\n\r\n{AUDIO}\r\n--b1--\r\n");
    let of_parts = |request: String| {
        request.replace("application/sdp\r\nContent-Length", "multipart/mixed;boundary=b1\r\nContent-Length")
    };
    let mut alice = phone();
    let signed = of_parts(alice.signed(&mut site, "INVITE", "sip:pbx@example.net", "", &offer));
    let (to, invite) = site.send(PHONE, signed).remove(0);
    assert_eq!(to.to_string(), PBX, "{invite}");
    let message = Message::parse(invite.as_bytes()).unwrap();
    assert_eq!(header(&invite, "Content-Type"), Some("multipart/mixed;boundary=b1"));
    let sdp = String::from_utf8(part(&message, "application/sdp").unwrap().to_vec()).unwrap();
    assert!(sdp.contains("c=IN IP4 198.51.100.7") && invite.contains("<here/>") && !invite.contains("192.168.0.9"));

    let answer = format!("--b1\r\nContent-Type: application/sdp\r\n\r\n{ANSWER}\r\n{location}--b1--");
    site.send(PBX, of_parts(reply(&invite, 200, &answer)));
    let ok = site.gate_opens().pop().unwrap().1;
    assert!(ok.contains("m=audio 20000") && ok.contains("<here/>") && !ok.contains("10.0.0.2"), "{ok}");

    let mut declared = Caller { call_id: "declared".into(), ..Caller::new("alice", PHONE) };
    let signed = of_parts(declared.signed(&mut site, "INVITE", "sip:web@example.net", "", &offer));
    assert_eq!(status(&site.send(PHONE, signed)[0].1), 100);
    assert_eq!(site.asked().len(), 1);
}

#[test]
fn d19_a_description_of_sixteen_kilobytes_is_read() {
    let mut site = Site::new();
    let mut alice = phone();
    let invite = relayed(&mut site, &mut alice);
    let long = "a=candidate:1 1 UDP 2130706431 10.0.0.2 4500 typ host\r\n".repeat(250);
    assert!((13_000..16_384).contains(&(ANSWER.len() + long.len())));
    assert!(site.send(PBX, reply(&invite, 200, &format!("{ANSWER}{long}"))).is_empty());
    assert!(site.gate_opens().pop().unwrap().1.contains("m=audio 20000"));
}

/// RFC 4028 section 9, of a service for which we answer. Its grants last 300 s.
#[test]
fn d11_a_session_timer_is_no_longer_than_asked_nor_shorter_than_allowed_and_refreshed_by_who_says_so() {
    for (fields, expected) in [
        ("Supported: timer\r\n", Some("300;refresher=uac")),
        ("Supported: timer\r\nSession-Expires: 90\r\n", Some("90;refresher=uac")),
        ("Supported: timer\r\nx: 1800 ; refresher=uac\r\n", Some("300;refresher=uac")),
        ("Supported: timer\r\nSession-Expires: 100\r\nMin-SE: 200\r\n", Some("200;refresher=uac")),
        ("Supported: timer\r\nSession-Expires: 1800;refresher=uas\r\n", None),
        ("Supported: timer\r\nSession-Expires: 7200\r\nMin-SE: 3600\r\n", None),
        ("Session-Expires: 1800\r\n", None),
    ] {
        let mut site = Site::new();
        let mut alice = Caller::new("alice", PHONE);
        let trying = alice.sign_in(&mut site, "INVITE", "sip:web@example.net", fields, AUDIO);
        assert_eq!(status(&trying), 100, "{fields}");
        let ok = site.gate_opens().pop().unwrap().1;
        assert_eq!((status(&ok), header(&ok, "Session-Expires")), (200, expected), "{fields}");
        assert_eq!(header(&ok, "Require"), expected.map(|_| "timer"), "{fields}");
    }
    let mut site = Site::new();
    let short = "Supported: timer\r\nSession-Expires: 60\r\n";
    let refused = Caller::new("alice", PHONE).sign_in(&mut site, "INVITE", "sip:web@example.net", short, AUDIO);
    assert_eq!((status(&refused), header(&refused, "Min-SE")), (422, Some("90")));
}
