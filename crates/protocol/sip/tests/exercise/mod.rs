//! What must hold for any bytes at all. Shared by the property tests and the fuzz targets.

#![allow(dead_code, reason = "each fuzz target uses one of these functions")]

mod transactions;

use std::net::IpAddr;

use sluicegate_sip::{
    cookie::CookieKey,
    dialog::Dialog,
    digest::{Algorithm, Authorization, Challenge, VALUE_LEN_MAX, ha1, strongest, verify},
    message::{
        BODY_LEN_MAX, HEADERS_MAX, HeaderName, MESSAGE_LEN_MAX, Message, NameAddr, Peek, PeekAck, Transport, Via, part,
        part_range,
    },
    nonce::NonceKey,
    sdp::{self, MediaAnswer, MediaEdit, Session},
    stream::{Framer, Item},
    stun::{BindingRequest, is_stun},
    uri::{Host, Uri, unescape},
    write::{ForwardRequest, ForwardResponse, NewBody, Response, ViaLine, ack_for_final, cancel_for, with_part},
};

const SOURCE: &str = "198.51.100.7:40000";

/// Parses a datagram, reads every field, answers it and forwards it; what is written can be read back.
pub(crate) fn message(datagram: &[u8]) {
    let peek = Peek::at(datagram);
    let message = match Message::parse(datagram) {
        Ok(message) => message,
        Err(error) => {
            let _ = (error.status(), error.to_string());
            if let Some(salvaged) = Message::salvage(datagram) {
                read_all(&salvaged);
                answer(&salvaged);
            }
            return;
        }
    };
    assert!(peek.is_none_or(|peek| peek.method == message.method()));
    if let (Some(peek), Ok(fields)) = (PeekAck::at(datagram), message.essentials()) {
        let read = (fields.via, fields.call_id, fields.from.tag, fields.to.tag);
        assert_eq!((peek.via, peek.call_id, peek.from_tag, Some(peek.to_tag)), read);
    }
    assert!(message.as_bytes().len() <= datagram.len());
    assert!(message.as_bytes().ends_with(message.body()));
    let again = Message::parse(message.as_bytes()).expect("a message without the noise around it");
    assert_eq!((again.start(), again.body()), (message.start(), message.body()));
    read_all(&message);
    if message.method().is_some() {
        answer(&message);
        forward(&message);
        let _ = cancel_for(&message, &mut Vec::new());
        let _ = ack_for_final(&message, &message, &mut Vec::new());
    } else {
        let back = ForwardResponse { response: &message, remove: &[], add: &[], body: None };
        let mut out = Vec::new();
        if back.write(&mut out).is_ok() && out.len() <= MESSAGE_LEN_MAX {
            let forwarded = Message::parse(&out).expect("a forwarded response");
            assert_eq!(forwarded.headers(HeaderName::Via).count() + 1, message.headers(HeaderName::Via).count());
        }
    }
    let _ = Dialog::from_response(&message);
    let _ = Dialog::from_request(&message, b"tag");
}

/// Reads STUN, and the same with a header of its own before it, and answers with no more than what is promised.
pub(crate) fn stun(bytes: &[u8]) {
    let len = (bytes.len() as u16).to_be_bytes();
    let headed = [&[0, 1, len[0], len[1], 0x21, 0x12, 0xa4, 0x42], &[7; 12][..], bytes].concat();
    for request in [bytes, &headed] {
        let Ok(binding) = BindingRequest::parse(request) else { continue };
        let mut answer = Vec::new();
        for source in [SOURCE, "[2001:db8::1]:5060"] {
            binding.answer(source.parse().expect("an address"), &mut answer);
            assert!(is_stun(request) && answer.len() <= BindingRequest::ANSWER_LEN_MAX);
            assert!(answer.len() * 10 <= request.len() * 22 && answer[4..20] == request[4..20]);
        }
    }
}

/// Cuts a stream into messages: the same ones whatever the pieces are that it comes in, of which the first byte tells the
/// sizes.
pub(crate) fn stream(bytes: &[u8]) {
    let Some((first, stream)) = bytes.split_first() else { return };
    let whole = framed(stream, &[stream.len().max(1)]);
    assert_eq!(framed(stream, &[1]), whole);
    let sizes = [first % 16 + 1, first / 16 + 1, 1].map(usize::from);
    assert_eq!(framed(stream, &sizes), whole);
    for message in whole.iter().flatten() {
        let parsed = Message::parse(message).map(|message| message.as_bytes().len());
        assert!(parsed.is_ok_and(|len| len == message.len()), "framer and parser see different ends");
    }
}

/// The messages of a stream that comes in pieces of these sizes, by turns, with `None` for each ping and in place of what
/// ended the stream.
fn framed(mut stream: &[u8], sizes: &[usize]) -> Vec<Option<Vec<u8>>> {
    let (mut framer, mut items) = (Framer::new(), Vec::new());
    for size in sizes.iter().cycle() {
        let (mut piece, rest) = stream.split_at((*size).min(stream.len()));
        loop {
            match framer.next(piece) {
                Ok(Some((used, item))) => {
                    assert!((1..=piece.len()).contains(&used));
                    items.push(match item {
                        Item::Message(bytes) => Some(bytes.to_vec()),
                        Item::Ping => None,
                    });
                    piece = &piece[used..];
                }
                Ok(None) => break,
                Err(broken) => {
                    let _ = (broken.error.status(), Message::salvage(broken.bytes).map(|salvaged| answer(&salvaged)));
                    items.push(None);
                }
            }
        }
        assert!(framer.held() <= MESSAGE_LEN_MAX);
        stream = rest;
        if stream.is_empty() {
            break;
        }
    }
    items
}

/// Plays requests, responses and time to both tables of transactions.
pub(crate) fn transactions(bytes: &[u8]) {
    transactions::play(bytes);
}

fn read_all(message: &Message<'_>) {
    for name in HeaderName::ALL {
        let raw = message.headers_raw(*name).count();
        let lines = message.lines().filter(|line| line.name == *name).count();
        assert_eq!(raw, lines);
        assert!(message.headers(*name).all(|value| !value.is_empty()));
        assert_eq!(message.header(*name), message.headers_raw(*name).next());
    }
    for address in message.contacts().chain(message.routes()).chain(message.record_routes()).flatten() {
        let _ = Uri::parse(address.uri);
        assert!(address.params.iter().count() <= address.params.as_bytes().len());
    }
    let _ = (message.essentials(), message.expires(), message.content_type());
    assert!(!format!("{message:?}").is_empty());
    if let Some(uri) = message.request_uri() {
        let _ = Uri::parse(uri);
    }
}

fn answer(request: &Message<'_>) {
    let mut out = Vec::new();
    Response::to(request, 400).source(SOURCE.parse().unwrap()).to_tag(b"t").record_route().begin(&mut out).finish();
    // Content-Length may be one header field too many.
    if out.len() > MESSAGE_LEN_MAX || request.lines().count() == HEADERS_MAX {
        return;
    }
    let response = Message::parse(&out).expect("an answer");
    assert_eq!(response.status(), Some(400));
    let Ok(fields) = request.essentials() else { return };
    let answered = response.essentials().expect("an answer to a valid request");
    assert_eq!((answered.call_id, answered.cseq), (fields.call_id, fields.cseq));
    assert_eq!((answered.via.branch, answered.via.host), (fields.via.branch, fields.via.host));
    assert!(answered.to.tag.is_some());
    assert_eq!(response.headers(HeaderName::Via).count(), request.headers(HeaderName::Via).count());
}

fn forward(request: &Message<'_>) {
    let edits = ForwardRequest {
        request,
        source: SOURCE.parse().unwrap(),
        via: ViaLine {
            transport: Transport::Udp,
            sent_by: "[2001:db8::1]:5060".parse().unwrap(),
            branch: b"z9hG4bKus",
            rport: true,
        },
        uri: Some(b"sip:next"),
        record_routes: &[b"<sip:us;lr>"],
        remove_routes: 1,
        remove: &[HeaderName::ProxyAuthorization],
        credentials_of: Some("example.net"),
        add: &[("X-Added", b"x")],
        body: Some(NewBody { content_type: b"application/sdp", bytes: b"v=0" }),
    };
    let mut out = Vec::new();
    let is_written = edits.write(&mut out).is_ok();
    if !is_written || out.len() > MESSAGE_LEN_MAX || request.lines().count() + 8 > HEADERS_MAX {
        return;
    }
    let forwarded = Message::parse(&out).expect("a forwarded request");
    assert_eq!((forwarded.method(), forwarded.body()), (request.method(), &b"v=0"[..]));
    let via = forwarded.top_via().expect("our Via");
    assert_eq!(via.branch, Some(&b"z9hG4bKus"[..]));
    assert_eq!(forwarded.headers(HeaderName::Via).count(), request.headers(HeaderName::Via).count() + 1);
    assert_eq!(forwarded.header(HeaderName::ProxyAuthorization), None);
    if let Ok(fields) = request.essentials() {
        let next = forwarded.essentials().expect("a valid request stays valid");
        assert_eq!(
            (next.call_id, next.from, next.to, next.cseq),
            (fields.call_id, fields.from, fields.to, fields.cseq)
        );
    }
}

/// Takes a URI, an address and a Via value apart.
pub(crate) fn uri(text: &[u8]) {
    if let Ok(uri) = Uri::parse(text) {
        assert!(uri.names_same_address(&uri));
        let _ = (uri.param(b"lr"), uri.host_is("example.net"), uri.user_is("alice"));
        if let Some(host) = uri.host {
            assert_eq!(Host::parse(host.to_string().as_bytes()), Some(host));
        }
    }
    if let Some(address) = NameAddr::parse(text) {
        assert_eq!(address.tag, address.params.value(b"tag"));
    }
    if let Ok(via) = Via::parse(text) {
        assert!(via.len <= text.len() && via.head.len() <= via.len);
    }
    assert!(unescape(text).count() <= text.len());
}

/// Takes a session description apart, rewrites and answers it; what is written can be read back.
pub(crate) fn sdp(body: &[u8]) {
    let Ok(session) = Session::parse(body) else { return };
    let _ = session.wanted().count();
    let gate: IpAddr = "203.0.113.1".parse().unwrap();
    let edits: Vec<_> = (0..session.media().len())
        .step_by(2)
        .map(|media| MediaEdit { media, address: gate, port: 20_000 + media as u16, rtcp_port: Some(30_000) })
        .collect();
    let mut out = Vec::new();
    sdp::Rewrite { session: &session, address: gate, edits: &edits }.write(&mut out);
    if out.len() <= BODY_LEN_MAX {
        let rewritten = Session::parse(&out).expect("a rewritten description");
        assert_eq!(rewritten.media().len(), session.media().len());
        for (position, (new, old)) in rewritten.media().iter().zip(session.media()).enumerate() {
            let is_edited = position % 2 == 0;
            assert_eq!(new.port, if is_edited { 20_000 + position as u16 } else { old.port });
            assert_eq!(new.address, if is_edited { Some(gate) } else { old.address.or(new.address) });
            assert_eq!((new.kind, new.protocol, new.formats), (old.kind, old.protocol, old.formats));
        }
    }
    let media = [MediaAnswer::Accepted { address: gate, port: 20_000 }; 3];
    let mut out = Vec::new();
    sdp::Answer { offer: &session, session_id: 1, version: 1, address: gate, media: &media }.write(&mut out);
    if out.len() <= BODY_LEN_MAX {
        let answer = Session::parse(&out).expect("an answer");
        assert_eq!(answer.media().len(), session.media().len());
        assert!(answer.media().iter().skip(3).all(|media| media.port == 0));
    }
}

/// What no description may say any more once another has taken its place.
const SECRET: &str = "v=0 10.0.0.222";
const PARTS_DEPTH_MAX: u8 = 3;

/// Takes a body of several parts apart and puts another description in. The first byte chooses: a body as it is, with a kind
/// before it; or one that is put together of parts and parts of parts, some of them descriptions.
pub(crate) fn multipart(bytes: &[u8]) {
    let Some((choice, rest)) = bytes.split_first() else { return };
    if choice & 1 == 0 {
        let (kind, body) = rest.split_at(rest.len().min(usize::from(choice >> 1)));
        let kind: Vec<u8> = kind.iter().copied().filter(|byte| !byte.is_ascii_control()).collect();
        return with_other_part(&kind, body, false);
    }
    let mut choices = rest.iter().copied();
    let (kind, body) = several_parts(&mut choices, PARTS_DEPTH_MAX);
    with_other_part(kind.as_bytes(), body.as_bytes(), true);
}

fn several_parts(choices: &mut impl Iterator<Item = u8>, depth: u8) -> (String, String) {
    const KINDS: [(&str, &str); 6] = [
        ("application/sdp", SECRET),
        ("Application/SDP ; charset=utf-8", SECRET),
        ("application/sdp\r\nContent-Transfer-Encoding: base64", SECRET),
        ("application/sdp\r\nContent-Type: text/plain", SECRET),
        ("application/isup", "kept"),
        ("text/plain\r\nContent-ID: <a@b>", "kept too"),
    ];
    let boundary = format!("{}{depth}", "-x".repeat(usize::from(choices.next().unwrap_or(0) & 1)));
    let mut body = String::new();
    for _ in 0..choices.next().unwrap_or(1) % 4 {
        let choice = choices.next().unwrap_or(0);
        let (kind, text) = match KINDS.get(usize::from(choice & 7)) {
            Some((kind, text)) => ((*kind).to_owned(), (*text).to_owned()),
            None if depth > 0 => several_parts(choices, depth - 1),
            None => ("text/plain".to_owned(), String::new()),
        };
        body += &format!("--{boundary}\r\nContent-Type: {kind}\r\n\r\n{text}\r\n");
    }
    // Some have no end.
    let end = if choices.next() == Some(255) { String::new() } else { format!("--{boundary}--\r\n") };
    (format!("multipart/mixed;boundary={boundary}"), body + &end)
}

fn with_other_part(kind: &[u8], body: &[u8], is_put_together: bool) {
    const SDP: &str = "application/sdp";
    const NEW: &[u8] = b"v=0 203.0.113.9";
    // A body that has become empty is of no type.
    let write = |body: &[u8]| {
        let head = format!("OPTIONS sip:a SIP/2.0\r\nContent-Length: {}\r\n", body.len());
        let kind = if body.is_empty() { Vec::new() } else { [b"Content-Type: ", kind, b"\r\n"].concat() };
        [head.as_bytes(), &kind, b"\r\n", body].concat()
    };
    let text = write(body);
    let Ok(message) = Message::parse(&text) else { return };
    let range = part_range(&message, SDP);
    assert_eq!(part(&message, SDP), range.as_ref().map(|range| &body[range.clone()]));
    let (with, without) = (with_part(&message, SDP, Some(NEW)), with_part(&message, SDP, None));
    assert_eq!(with.is_some(), without.is_some());
    let (Some(with), Some(without)) = (with, without) else {
        assert!(range.is_none());
        return;
    };
    assert!(with.len() <= body.len() + NEW.len() && without.len() <= body.len());
    for (new, content) in [(&with, Some(NEW)), (&without, None)] {
        let content = content.filter(|_| range.is_some());
        let text = write(new);
        let Ok(message) = Message::parse(&text) else { continue };
        assert_eq!(part(&message, SDP), content);
        // Nothing more is left to be changed.
        assert!(with_part(&message, SDP, content).is_none_or(|again| again == *new));
        assert!(!is_put_together || !String::from_utf8_lossy(new).contains(SECRET), "{text:?}");
    }
}

/// Takes challenges, authorisations, nonces and cookies apart. Nothing verifies by chance.
pub(crate) fn digest(value: &[u8]) {
    if let Ok(challenge) = Challenge::parse(value) {
        let mut out = Vec::new();
        challenge.write(&mut out);
        if out.len() <= VALUE_LEN_MAX {
            let again = Challenge::parse(&out).expect("a challenge");
            assert_eq!((again.algorithm, again.stale), (challenge.algorithm, challenge.stale));
        }
        let _ = challenge.realm_text();
        assert!(strongest([value].into_iter()).is_some());
    }
    let client = "192.0.2.1".parse().unwrap();
    let nonces = NonceKey::new(&[1; 32], 1, 1, 1);
    if let Ok(authorization) = Authorization::parse(value) {
        let _ = (authorization.username(), authorization.realm_text(), authorization.covers(b"sip:a@b"));
        assert!(!verify(&authorization, b"INVITE", None));
        for algorithm in [Algorithm::Md5, Algorithm::Sha256] {
            assert!(!verify(&authorization, b"INVITE", Some(&ha1(algorithm, "u", "r", "not guessed"))));
        }
        assert!(nonces.check(authorization.nonce, sluicegate_wire::UnixTime(0), client).is_err());
    }
    assert!(nonces.check(value, sluicegate_wire::UnixTime(0), client).is_err());
    let cookies = CookieKey::new([1; 16]);
    assert!(cookies.check_to_tag(value).is_none() && cookies.check_route(value).is_none());
}
