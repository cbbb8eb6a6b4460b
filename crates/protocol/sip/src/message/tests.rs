use super::*;
use std::{format, string::String, vec::Vec};

const INVITE: &[u8] = b"INVITE sip:bob@example.net SIP/2.0\r\n\
Via: SIP/2.0/UDP 192.0.2.1:5062;branch=z9hG4bKabc;rport, SIP/2.0/UDP inner.example;branch=z9hG4bKdef\r\n\
Max-Forwards: 70\r\n\
f: \"Alice, A.\" <sip:alice@example.net;user=phone>;tag=\r\n\t 1928\r\n\
To: Bob <sip:bob@example.net>\r\n\
i: a84b4c76e66710@192.0.2.1\r\n\
CSeq: 314159 INVITE\r\n\
Contact: <sip:alice@192.0.2.1:5062>, sip:other@192.0.2.2;q=0.3\r\n\
Supported: 100rel , SluiceGate\r\n\
Content-Type: application/sdp;charset=x\r\n\
Content-Length: 4\r\n\r\nv=0\nnoise";

fn refused(text: &[u8]) -> (Fault, Option<u16>) {
    let error = Message::parse(text).unwrap_err();
    (error.fault, error.status())
}

#[test]
fn fields_come_out_as_a_proxy_needs_them() {
    let message = Message::parse(INVITE).unwrap();
    let fields = message.essentials().unwrap();
    assert_eq!(message.method(), Some(Method::Invite));
    assert_eq!(message.request_uri(), Some(&b"sip:bob@example.net"[..]));
    assert_eq!(fields.via.branch, Some(&b"z9hG4bKabc"[..]));
    assert_eq!((fields.via.port, fields.via.rport), (Some(5062), Rport::Asked));
    assert_eq!(fields.via.host.address(), Some("192.0.2.1".parse().unwrap()));
    assert_eq!(fields.from.tag, Some(&b"1928"[..]));
    assert_eq!(fields.from.uri, b"sip:alice@example.net;user=phone");
    assert_eq!((fields.to.tag, fields.to.display), (None, &b"Bob"[..]));
    assert_eq!(fields.call_id, b"a84b4c76e66710@192.0.2.1");
    assert_eq!(fields.cseq, CSeq { number: 314_159, method: Method::Invite });
    assert_eq!(fields.max_forwards, Some(70));
    assert_eq!(message.content_type(), Some(&b"application/sdp"[..]));
    assert_eq!(message.body(), b"v=0\n");
    assert!(message.as_bytes().ends_with(b"v=0\n"));
    assert!(message.lists(HeaderName::Supported, b"sluicegate"));
    assert_eq!(message.headers(HeaderName::Via).count(), 2);
    let contacts: Vec<_> = message.contacts().map(|contact| contact.unwrap().uri).collect();
    assert_eq!(contacts, [&b"sip:alice@192.0.2.1:5062"[..], b"sip:other@192.0.2.2"]);
}

#[test]
fn line_breaks_before_the_start_line_are_skipped() {
    let text = [b"\r\n\r\n", INVITE].concat();
    assert!(Message::parse(&text).is_ok());
    assert_eq!(refused(b"\r\n\r\n"), (Fault::Empty, None));
    assert_eq!(refused(b""), (Fault::Empty, None));
}

#[test]
fn line_breaks_that_another_element_may_see_differently_are_refused() {
    let text = String::from_utf8(INVITE.to_vec()).unwrap();
    for (from, to) in [("70\r\n", "70\n"), ("70\r\n", "70\r"), ("Max-Forwards: 70", "Subject: a\rb")] {
        assert_eq!(refused(text.replace(from, to).as_bytes()), (Fault::LineEnding, Some(400)));
    }
    assert_eq!(refused(b"INVITE sip:a@b SIP/2.0\r\nTo: x\r\n"), (Fault::Unterminated, Some(400)));
}

#[test]
fn sizes_and_counts_are_bounded() {
    let head = "OPTIONS sip:a@b SIP/2.0\r\n";
    let full = format!("{head}{}\r\n", "X: y\r\n".repeat(HEADERS_MAX));
    assert_eq!(Message::parse(full.as_bytes()).unwrap().lines().count(), HEADERS_MAX);
    let over = format!("{head}{}\r\n", "X: y\r\n".repeat(HEADERS_MAX + 1));
    assert_eq!(refused(over.as_bytes()), (Fault::HeaderCount, Some(513)));
    let long = format!("{head}X: {}\r\n\r\n", "y".repeat(MESSAGE_LEN_MAX));
    assert_eq!(refused(long.as_bytes()), (Fault::MessageLength, Some(513)));
    let body = format!("{head}\r\n{}", "y".repeat(BODY_LEN_MAX + 1));
    assert_eq!(refused(body.as_bytes()), (Fault::BodyLength, Some(413)));
    let name = format!("{head}{}: y\r\n\r\n", "y".repeat(256));
    assert_eq!(refused(name.as_bytes()), (Fault::HeaderLine, Some(400)));
}

#[test]
fn a_response_or_ack_is_never_answered_however_wrong() {
    for text in [&b"SIP/2.0 200 OK\r\nbad line\r\n\r\n"[..], b"ACK sip:a@b SIP/2.0\r\nbad line\r\n\r\n"] {
        assert_eq!(refused(text), (Fault::HeaderLine, None));
        assert!(Message::salvage(text).is_none());
    }
    let response = Message::parse(b"SIP/2.0 200 OK\r\nCSeq: x\r\n\r\n").unwrap();
    assert_eq!(response.essentials().unwrap_err().status(), None);
}

#[test]
fn a_malformed_request_still_gives_what_an_answer_needs() {
    let text = String::from_utf8(INVITE.to_vec()).unwrap();
    for broken in [
        text.replace("Max-Forwards: 70", "no colon here"),
        text.replace("INVITE sip:bob@example.net SIP/2.0", "INVITE <sip:bob@example.net> SIP/2.0"),
        text.replace("Content-Length: 4", "Content-Length: -4"),
        text.replace("\r\n\r\nv=0\nnoise", "\r\n"),
    ] {
        assert!(Message::parse(broken.as_bytes()).is_err());
        let message = Message::salvage(broken.as_bytes()).unwrap();
        assert_eq!(message.call_id(), Ok(&b"a84b4c76e66710@192.0.2.1"[..]));
        assert_eq!(message.top_via().unwrap().branch, Some(&b"z9hG4bKabc"[..]));
        assert!(message.body().is_empty());
    }
}

#[test]
fn folds_do_not_start_a_message() {
    assert_eq!(refused(b"OPTIONS sip:a@b SIP/2.0\r\n folded\r\n\r\n"), (Fault::HeaderLine, Some(400)));
}

#[test]
fn unknown_fields_are_kept_under_their_names() {
    let message = Message::parse(b"OPTIONS sip:a@b SIP/2.0\r\nx-FOO : ;;,,;\r\n\r\n").unwrap();
    let line = message.lines().next().unwrap();
    assert_eq!((line.name, line.name_text, line.value), (HeaderName::Other, &b"x-FOO"[..], &b";;,,;"[..]));
}

#[test]
fn addresses_without_brackets_leave_parameters_to_the_header() {
    let address = NameAddr::parse(b"sip:+19725552222@gw1.example.net;unknownparam").unwrap();
    assert_eq!(address.uri, b"sip:+19725552222@gw1.example.net");
    assert!(address.params.find(b"UnknownParam").is_some());
    let address = NameAddr::parse(b"caller<sip:caller@example.com>;tag=\"3 ;23\"").unwrap();
    assert_eq!((address.display, address.tag), (&b"caller"[..], Some(&b"3 ;23"[..])));
    for bad in [
        &b"\"Mr. J. User <sip:j.user@example.com>"[..],
        b"Bell, Alexander <sip:a@b>",
        b"\"W\" < sip:a@b >",
        b"sip:a@b?Route=x",
        b"<sip:a@b>;;",
        b"<sip:a@b>;tag",
        b"<sip:a@b> x",
        b"<sip:a@b",
        b"",
        b"<>",
        b"\"x\"",
    ] {
        assert_eq!(NameAddr::parse(bad), None, "{}", bad.escape_ascii());
    }
    assert!(NameAddr::parse(b"*").unwrap().is_star());
}

#[test]
fn via_values_with_empty_members_are_refused() {
    for bad in [
        &b"SIP/2.0/UDP 192.0.2.15;;,;,,"[..],
        b"SIP/2.0/UDP a,",
        b"SIP/2.0/UDP a,,SIP/2.0/UDP b",
        b"SIP/2.0/UDP",
        b"SIP/2.0 a",
        b"HTTP/2.0/UDP a",
        b"SIP/2.0/UDP a:0",
        b"SIP/2.0/UDP a:x",
        b"SIP/2.0/UDP a;branch",
        b"SIP/2.0/UDP a;branch=x;branch=y",
        b"SIP/2.0/UDP a;rport=x",
    ] {
        assert_eq!(Via::parse(bad), Err(Fault::Malformed(HeaderName::Via)), "{}", bad.escape_ascii());
    }
    let via = Via::parse(b"SIP / 2.0 / TLS  [2001:db8::9]:5061 ;received=2001:db8::1;rport=99").unwrap();
    assert_eq!((via.transport, via.rport), (Some(Transport::Tls), Rport::Port(99)));
    assert_eq!(via.received, Some(&b"2001:db8::1"[..]));
}
