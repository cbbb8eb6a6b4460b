use std::{format, string::String, vec::Vec};

use super::*;
use crate::message::{HeaderName, Message, Transport};

const INVITE: &[u8] = b"INVITE sip:bob@example.net SIP/2.0\r\n\
Via: SIP/2.0/UDP 10.0.0.1:5062;rport;branch=z9hG4bKabc;received=1.2.3.4 , SIP/2.0/UDP inner;branch=z9hG4bKdef\r\n\
v: SIP/2.0/UDP last;branch=z9hG4bKghi\r\n\
Max-Forwards: 70\r\n\
Record-Route: <sip:p1;lr>\r\n\
Route: <sip:me,too;lr>, <sip:next;lr>\r\n\
Route: <sip:third;lr>\r\n\
f: <sip:alice@example.net>;tag=1928\r\n\
To: Bob\r\n <sip:bob@example.net>\r\n\
i: a84b4c\r\n\
CSeq: 7 INVITE\r\n\
Proxy-Authorization: Digest username=\"alice\"\r\n\
X-Odd:  as  it  is\r\n\
c: application/sdp\r\n\
l: 3\r\n\r\nv=0noise";

fn source() -> SocketAddr {
    "198.51.100.7:40000".parse().unwrap()
}

fn via<'a>() -> ViaLine<'a> {
    ViaLine {
        transport: Transport::Udp,
        sent_by: "203.0.113.1:5060".parse().unwrap(),
        branch: b"z9hG4bKours",
        rport: false,
    }
}

fn forward<'m, 'a>(request: &'m Message<'a>) -> ForwardRequest<'m, 'a> {
    ForwardRequest {
        request,
        source: source(),
        via: via(),
        uri: None,
        record_routes: &[],
        remove_routes: 0,
        remove: &[],
        credentials_of: None,
        add: &[],
        body: None,
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn an_answer_copies_what_it_must_and_says_where_the_request_came_from() {
    let request = Message::parse(INVITE).unwrap();
    let mut out = Vec::new();
    Response::to(&request, 200)
        .source(source())
        .to_tag(b"t1")
        .record_route()
        .begin(&mut out)
        .header("Contact", "<sip:us>")
        .body("application/sdp", b"v=0\r\n");
    assert_eq!(
        text(&out),
        "SIP/2.0 200 OK\r\n\
        Via: SIP/2.0/UDP 10.0.0.1:5062;branch=z9hG4bKabc;received=198.51.100.7;rport=40000, \
        SIP/2.0/UDP inner;branch=z9hG4bKdef\r\n\
        Via: SIP/2.0/UDP last;branch=z9hG4bKghi\r\n\
        Record-Route: <sip:p1;lr>\r\n\
        From: <sip:alice@example.net>;tag=1928\r\n\
        To: Bob   <sip:bob@example.net>;tag=t1\r\n\
        Call-ID: a84b4c\r\n\
        CSeq: 7 INVITE\r\n\
        Contact: <sip:us>\r\n\
        Content-Type: application/sdp\r\n\
        Content-Length: 5\r\n\r\nv=0\r\n"
    );
    assert!(Message::parse(&out).unwrap().essentials().is_ok());
}

#[test]
fn numbers_are_written_as_formatting_would() {
    for number in [0, 9, 10, 200, 65_535, 1_000_000_000, u32::MAX] {
        let mut out = Vec::new();
        push_decimal(&mut out, number);
        assert_eq!(text(&out), std::format!("{number}"));
    }
}

#[test]
fn a_tag_that_is_there_is_not_replaced() {
    let request = Message::parse(b"BYE sip:a@b SIP/2.0\r\nTo: <sip:a@b>;tag=x\r\n\r\n").unwrap();
    let mut out = Vec::new();
    Response::to(&request, 481).to_tag(b"y").begin(&mut out).finish();
    assert_eq!(Message::parse(&out).unwrap().to().unwrap().tag, Some(&b"x"[..]));
}

#[test]
fn a_client_that_tells_its_own_address_gets_no_received() {
    let request =
        Message::parse(b"BYE sip:a@b SIP/2.0\r\nVia: SIP/2.0/UDP 198.51.100.7:9;branch=z9hG4bK1\r\n\r\n").unwrap();
    let mut out = Vec::new();
    Response::to(&request, 481).source(source()).begin(&mut out).finish();
    assert!(text(&out).contains("Via: SIP/2.0/UDP 198.51.100.7:9;branch=z9hG4bK1\r\n"));
}

#[test]
fn a_malformed_request_can_be_answered_from_what_was_salvaged() {
    let broken = text(INVITE).replace("Max-Forwards: 70", "garbage").replace("UDP 10.0.0.1:5062", "UDP ;;");
    assert!(Message::parse(broken.as_bytes()).is_err());
    let request = Message::salvage(broken.as_bytes()).unwrap();
    let mut out = Vec::new();
    Response::to(&request, 400).source(source()).to_tag(b"t").begin(&mut out).finish();
    let answer = Message::parse(&out).unwrap();
    assert_eq!(answer.headers_raw(HeaderName::Via).count(), 2);
    assert_eq!(answer.call_id(), Ok(&b"a84b4c"[..]));
}

#[test]
fn a_proxy_edits_only_what_it_must() {
    let request = Message::parse(INVITE).unwrap();
    let mut out = Vec::new();
    let edits = ForwardRequest {
        uri: Some(b"sip:pbx@10.0.0.9"),
        record_routes: &[b"<sip:203.0.113.1;lr;sg=x>"],
        remove_routes: 1,
        remove: &[HeaderName::ProxyAuthorization],
        credentials_of: Some("example.net"),
        add: &[("P-Asserted-Identity", b"<sip:alice@example.net>\r\nEvil: 1")],
        body: Some(NewBody { content_type: b"application/sdp", bytes: b"v=0\r\no=x" }),
        ..forward(&request)
    };
    edits.write(&mut out).unwrap();
    assert_eq!(
        text(&out),
        "INVITE sip:pbx@10.0.0.9 SIP/2.0\r\n\
        Via: SIP/2.0/UDP 203.0.113.1:5060;branch=z9hG4bKours\r\n\
        Via: SIP/2.0/UDP 10.0.0.1:5062;branch=z9hG4bKabc;received=198.51.100.7;rport=40000, \
        SIP/2.0/UDP inner;branch=z9hG4bKdef\r\n\
        Via: SIP/2.0/UDP last;branch=z9hG4bKghi\r\n\
        Record-Route: <sip:203.0.113.1;lr;sg=x>\r\n\
        Max-Forwards: 69\r\n\
        Record-Route: <sip:p1;lr>\r\n\
        Route: <sip:next;lr>\r\n\
        Route: <sip:third;lr>\r\n\
        f: <sip:alice@example.net>;tag=1928\r\n\
        To: Bob\r\n <sip:bob@example.net>\r\n\
        i: a84b4c\r\n\
        CSeq: 7 INVITE\r\n\
        X-Odd:  as  it  is\r\n\
        P-Asserted-Identity: <sip:alice@example.net>  Evil: 1\r\n\
        Content-Type: application/sdp\r\n\
        Content-Length: 8\r\n\r\nv=0\r\no=x"
    );
}

#[test]
fn noise_behind_the_body_is_not_forwarded() {
    let request = Message::parse(INVITE).unwrap();
    let mut out = Vec::new();
    forward(&request).write(&mut out).unwrap();
    assert!(text(&out).ends_with("c: application/sdp\r\nContent-Length: 3\r\n\r\nv=0"));
}

#[test]
fn the_last_hop_is_not_forwarded() {
    let request = text(INVITE).replace("Max-Forwards: 70", "Max-Forwards: 0");
    let request = Message::parse(request.as_bytes()).unwrap();
    assert_eq!(forward(&request).write(&mut Vec::new()), Err(ForwardError::NoHops));
}

#[test]
fn a_response_loses_our_via_and_no_other() {
    let request = Message::parse(INVITE).unwrap();
    let mut out = Vec::new();
    forward(&request).write(&mut out).unwrap();
    let forwarded = out.clone();
    let forwarded = Message::parse(&forwarded).unwrap();
    Response::to(&forwarded, 180).to_tag(b"x").begin(&mut out).finish();
    let ringing = out.clone();
    let ringing = Message::parse(&ringing).unwrap();
    let back = ForwardResponse { response: &ringing, remove: &[], add: &[], body: None };
    back.write(&mut out).unwrap();
    let back = Message::parse(&out).unwrap();
    assert_eq!(back.top_via().unwrap().branch, Some(&b"z9hG4bKabc"[..]));
    assert_eq!(back.headers(HeaderName::Via).count(), 3);

    let ours = b"SIP/2.0 200 OK\r\nVia: SIP/2.0/UDP us;branch=z9hG4bKours\r\n\r\n";
    let ours = Message::parse(ours).unwrap();
    let ends_here = ForwardResponse { response: &ours, remove: &[], add: &[], body: None };
    assert_eq!(ends_here.write(&mut Vec::new()), Err(ForwardError::NoNextVia));
}

#[test]
fn a_request_of_our_own_can_be_read_back() {
    let mut out = Vec::new();
    let request = Request {
        method: b"REGISTER",
        uri: b"sip:example.net",
        via: ViaLine { sent_by: "[2001:db8::1]:5070".parse().unwrap(), rport: true, ..via() },
        from: Party { uri: b"sip:alice@example.net", tag: Some(b"f") },
        to: Party { uri: b"sip:alice@example.net", tag: None },
        call_id: b"c\r\nEvil: 1",
        cseq: 1,
        routes: &[b"<sip:edge;lr>"],
    };
    request.begin(&mut out).header_args("Expires", format_args!("{}", 300)).finish();
    let message = Message::parse(&out).unwrap();
    assert_eq!(message.expires(), Some(300));
    assert!(!message.lines().any(|line| line.name_text == b"Evil"));
    assert_eq!(message.routes().next().unwrap().unwrap().uri, b"sip:edge;lr");
    assert_eq!(message.top_via().unwrap().host.address(), Some("2001:db8::1".parse().unwrap()));
}

#[test]
fn ack_and_cancel_stay_in_the_transaction() {
    let request = Message::parse(INVITE).unwrap();
    let mut busy = Vec::new();
    Response::to(&request, 486).to_tag(b"z").begin(&mut busy).finish();
    let mut out = Vec::new();
    ack_for_final(&request, &Message::parse(&busy).unwrap(), &mut out).unwrap();
    let ack = Message::parse(&out).unwrap();
    let fields = ack.essentials().unwrap();
    assert_eq!((fields.to.tag, fields.cseq.number), (Some(&b"z"[..]), 7));
    assert_eq!(ack.headers(HeaderName::Via).count(), 1);
    assert_eq!(ack.routes().count(), 3);

    let mut out = Vec::new();
    cancel_for(&request, &mut out).unwrap();
    let cancel = Message::parse(&out).unwrap();
    assert_eq!(cancel.essentials().unwrap().to.tag, None);
    assert_eq!(cancel.request_uri(), request.request_uri());
}

#[test]
fn a_message_that_is_ended_evenly_reads_the_same_at_any_length() {
    let request = Message::parse(INVITE).unwrap();
    let mut out = Vec::new();
    for more in 0..130 {
        let answer = || Response::to(&request, 500).source(source()).to_tag(b"t1");
        let name = "x".repeat(more);
        answer().begin(&mut out).header("X-More", &name).header("Retry-After", "17").finish();
        let plain = text(&out);
        answer().begin(&mut out).header("X-More", &name).finish_evenly("Retry-After", "17", 64);
        assert_eq!(out.len(), plain.len().next_multiple_of(64));
        assert_eq!(Message::parse(&out).unwrap().header(HeaderName::RetryAfter), Some(&b"17"[..]));
        let blanks = " ".repeat(out.len() - plain.len());
        assert_eq!(text(&out), plain.replace("Retry-After: ", &format!("Retry-After: {blanks}")));
    }
}
