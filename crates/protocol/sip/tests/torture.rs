//! The messages of RFC 4475: what is valid is accepted, what is not gets the answer that the RFC names, and what a
//! proxy may pass on passes.

use std::{fs, path::Path};

use sluicegate_sip::{
    digest::{Authorization, DigestError},
    message::{Fault, HeaderName, Message, ParseError, Transport},
    sdp::Session,
    uri::{Scheme, Uri},
    write::{ForwardError, ForwardRequest, ForwardResponse, Response, ViaLine},
};

fn torture(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/torture").join(name).with_extension("dat");
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What a proxy does before it looks at anything else.
fn accept(bytes: &[u8]) -> Result<Message<'_>, ParseError> {
    let message = Message::parse(bytes)?;
    message.essentials()?;
    Ok(message)
}

fn via<'a>() -> ViaLine<'a> {
    ViaLine {
        transport: Transport::Udp,
        sent_by: "203.0.113.1:5060".parse().unwrap(),
        branch: b"z9hG4bKus",
        rport: false,
    }
}

fn forward<'m, 'a>(request: &'m Message<'a>) -> ForwardRequest<'m, 'a> {
    ForwardRequest {
        request,
        source: "192.0.2.7:5060".parse().unwrap(),
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

#[test]
fn the_thirteen_valid_messages_are_accepted_and_can_be_forwarded() {
    let names = [
        "wsinv",
        "intmeth",
        "esc01",
        "escnull",
        "esc02",
        "lwsdisp",
        "longreq",
        "dblreq",
        "semiuri",
        "transports",
        "mpart01",
        "unreason",
        "noreason",
    ];
    for name in names {
        let bytes = torture(name);
        let message = accept(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut out = Vec::new();
        if message.method().is_some() {
            forward(&message).write(&mut out).unwrap();
            let forwarded = accept(&out).unwrap_or_else(|error| panic!("{name} forwarded: {error}"));
            assert_eq!(forwarded.body(), message.body(), "{name}");
            assert_eq!(forwarded.essentials().unwrap().to.uri, message.essentials().unwrap().to.uri);
        }
    }
}

#[test]
fn invalid_messages_get_the_answer_that_the_rfc_names() {
    let expected = [
        ("badinv01", Some(400)),
        ("clerr", Some(400)),
        ("ncl", Some(400)),
        ("scalar02", Some(400)),
        ("scalarlg", None),
        ("quotbal", Some(400)),
        ("ltgtruri", Some(400)),
        ("lwsruri", Some(400)),
        ("lwsstart", Some(400)),
        ("trws", Some(400)),
        ("escruri", Some(400)),
        ("badaspec", Some(400)),
        ("baddn", Some(400)),
        ("badvers", Some(505)),
        ("mismatch01", Some(400)),
        ("mismatch02", Some(501)),
        ("bigcode", None),
        ("badbranch", Some(400)),
        ("insuf", Some(400)),
        ("multi01", Some(400)),
        ("mcl01", Some(400)),
    ];
    for (name, status) in expected {
        let bytes = torture(name);
        let error = accept(&bytes).err().unwrap_or_else(|| panic!("{name} was accepted"));
        assert_eq!(error.status(), status, "{name}: {error}");
    }
}

#[test]
fn every_refused_request_can_be_answered() {
    for name in ["badinv01", "clerr", "ncl", "ltgtruri", "lwsruri", "lwsstart", "trws", "escruri", "badvers", "mcl01"] {
        let bytes = torture(name);
        let request = Message::parse(&bytes).ok().or_else(|| Message::salvage(&bytes)).unwrap();
        let mut out = Vec::new();
        Response::to(&request, 400).source("192.0.2.7:5060".parse().unwrap()).to_tag(b"t").begin(&mut out).finish();
        let answer = Message::parse(&out).unwrap_or_else(|error| panic!("{name}: {error}"));
        for field in [HeaderName::Via, HeaderName::From, HeaderName::To, HeaderName::CallId, HeaderName::CSeq] {
            assert!(answer.header(field).is_some(), "{name}: {}", field.as_str());
        }
        assert_eq!(answer.call_id(), request.call_id(), "{name}");
    }
}

#[test]
fn what_a_proxy_does_not_act_on_passes() {
    for name in ["baddate", "regbadct", "novelsc", "unksm2", "bext01", "invut", "sdp01", "regescrt", "inv2543"] {
        let bytes = torture(name);
        let message = accept(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut out = Vec::new();
        forward(&message).write(&mut out).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn a_registrar_refuses_a_contact_that_should_have_been_in_brackets() {
    let bytes = torture("regbadct");
    let error = accept(&bytes).unwrap().contact().unwrap_err();
    assert_eq!((error.fault, error.status()), (Fault::Malformed(HeaderName::Contact), Some(400)));
    let bytes = torture("regescrt");
    let contact = accept(&bytes).unwrap().contact().unwrap().unwrap();
    assert_eq!(Uri::parse(contact.uri).unwrap().headers, b"Route=%3Csip:sip.example.com%3E");
}

#[test]
fn parameters_belong_to_the_header_or_to_the_uri() {
    let bytes = torture("cparam01");
    let contact = accept(&bytes).unwrap().contact().unwrap().unwrap();
    assert!(contact.params.find(b"unknownparam").is_some());
    assert_eq!(Uri::parse(contact.uri).unwrap().params, b"");
    let bytes = torture("cparam02");
    let contact = accept(&bytes).unwrap().contact().unwrap().unwrap();
    assert!(contact.params.find(b"unknownparam").is_none());
    assert_eq!(Uri::parse(contact.uri).unwrap().params, b";unknownparam");
}

#[test]
fn the_tortuous_invite_means_what_it_says() {
    let bytes = torture("wsinv");
    let message = accept(&bytes).unwrap();
    let fields = message.essentials().unwrap();
    assert_eq!((fields.max_forwards, fields.cseq.number), (Some(68), 9));
    assert_eq!((fields.to.tag, fields.from.tag), (Some(&b"1918181833n"[..]), Some(&b"98asjd8"[..])));
    assert_eq!(fields.via.branch, Some(&b"390skdjuw"[..]));
    assert_eq!(message.headers(HeaderName::Via).count(), 3);
    assert_eq!(message.routes().count(), 1);
    let contact = message.contact().unwrap().unwrap();
    assert_eq!(contact.params.value(b"q"), Some(&b"0.33"[..]));
    assert_eq!(Session::parse(message.body()).unwrap().wanted().count(), 2);
}

#[test]
fn escapes_are_resolved_only_where_they_are_escapes() {
    let bytes = torture("esc01");
    let message = accept(&bytes).unwrap();
    assert!(Uri::parse(message.request_uri().unwrap()).unwrap().user_is("sips:user@example.com"));
    assert!(Uri::parse(message.to().unwrap().uri).unwrap().user_is("user"));
    assert!(Uri::parse(message.from().unwrap().uri).unwrap().user_is("I have spaces"));

    let bytes = torture("esc02");
    let message = accept(&bytes).unwrap();
    assert_eq!(message.method().unwrap().as_bytes(), b"RE%47IST%45R");
    assert_eq!(message.contacts().count(), 2);

    let bytes = torture("escnull");
    let message = accept(&bytes).unwrap();
    let users: Vec<_> = message.contacts().map(|contact| Uri::parse(contact.unwrap().uri).unwrap()).collect();
    assert!(users[0].user_is("\0") && users[1].user_is("\0\0"));
    assert!(!users[0].names_same_address(&users[1]));

    let bytes = torture("semiuri");
    let uri = Uri::parse(accept(&bytes).unwrap().request_uri().unwrap()).unwrap();
    assert!(uri.user_is("user;par=u@example.net") && uri.params.is_empty());
}

#[test]
fn noise_behind_the_body_is_no_second_request() {
    let bytes = torture("dblreq");
    let message = accept(&bytes).unwrap();
    assert_eq!((message.method().unwrap().as_bytes(), message.body()), (&b"REGISTER"[..], &b""[..]));
    assert!(message.as_bytes().len() < bytes.len());
    let mut out = Vec::new();
    forward(&message).write(&mut out).unwrap();
    assert!(!out.windows(6).any(|window| window == b"INVITE"));
}

#[test]
fn unknown_schemes_and_zero_hops_are_told_apart_from_malformed_requests() {
    for name in ["unkscm", "novelsc"] {
        let bytes = torture(name);
        let uri = Uri::parse(accept(&bytes).unwrap().request_uri().unwrap()).unwrap();
        assert!(matches!(uri.scheme, Scheme::Other(_)), "{name}: answered with 416");
    }
    let bytes = torture("zeromf");
    let message = accept(&bytes).unwrap();
    assert_eq!(forward(&message).write(&mut Vec::new()), Err(ForwardError::NoHops));
}

#[test]
fn an_unknown_authorisation_scheme_is_not_malformed() {
    let bytes = torture("regaut01");
    let value = accept(&bytes).unwrap().header(HeaderName::Authorization).unwrap();
    assert_eq!(Authorization::parse(value), Err(DigestError::Scheme));
}

#[test]
fn a_response_is_not_forwarded_to_a_broadcast_address() {
    let bytes = torture("bcast");
    let response = accept(&bytes).unwrap();
    let back = ForwardResponse { response: &response, remove: &[], add: &[], body: None };
    assert_eq!(back.write(&mut Vec::new()), Err(ForwardError::NextVia));
}
