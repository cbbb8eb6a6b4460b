use std::{format, string::String, vec, vec::Vec};

use super::*;
use crate::message::{BODY_LEN_MAX, HeaderName};

/// An item with its bytes.
#[derive(Debug, PartialEq, Eq)]
enum Got {
    Message(Vec<u8>),
    Ping,
    Broken(Fault, Option<u16>),
}

/// What comes of a stream that arrives in these pieces.
fn framed<'p>(pieces: impl IntoIterator<Item = &'p [u8]>) -> Vec<Got> {
    let (mut framer, mut got) = (Framer::new(), Vec::new());
    for mut rest in pieces {
        loop {
            match framer.next(rest) {
                Ok(Some((used, item))) => {
                    got.push(match item {
                        Item::Message(bytes) => Got::Message(bytes.to_vec()),
                        Item::Ping => Got::Ping,
                    });
                    rest = &rest[used..];
                }
                Ok(None) => break,
                Err(broken) => got.push(Got::Broken(broken.error.fault, broken.error.status())),
            }
        }
        assert!(framer.held() <= MESSAGE_LEN_MAX);
    }
    got
}

fn options(body: &str) -> String {
    format!(
        "OPTIONS sip:a@b SIP/2.0\r\nVia: SIP/2.0/TCP c;branch=z9hG4bKx\r\nl: {}\r\nCSeq: 1 OPTIONS\r\n\r\n{body}",
        body.len()
    )
}

fn message(text: &str) -> Got {
    Got::Message(text.as_bytes().to_vec())
}

#[test]
fn two_messages_in_one_piece_and_one_in_many_are_the_same() {
    let (first, second) = (options("v=0\r\n\r\nv=1"), options(""));
    let both = [&first[..], &second].concat();
    let expected = vec![message(&first), message(&second)];
    assert_eq!(framed([both.as_bytes()]), expected);
    assert_eq!(framed(both.as_bytes().chunks(1)), expected);
    for at in 0..both.len() {
        let (head, tail) = both.as_bytes().split_at(at);
        assert_eq!(framed([head, tail]), expected, "split at {at}");
    }
}

#[test]
fn two_line_breaks_are_a_ping_and_one_is_nothing() {
    let text = options("");
    let stream = format!("\r\n{text}\r\n\r\n\r\n{text}\r\n\r\n");
    let expected = [message(&text), Got::Ping, message(&text), Got::Ping];
    assert_eq!(framed([stream.as_bytes()]), expected);
    assert_eq!(framed(stream.as_bytes().chunks(1)), expected);
}

#[test]
fn a_message_that_does_not_say_how_long_it_is_ends_the_stream() {
    let text = options("");
    let without = text.replace("l: 0\r\n", "");
    let missing = Fault::Missing(HeaderName::ContentLength);
    for (stream, fault, status) in [
        (without, missing, Some(400)),
        (text.replace("l: 0", "l: 0\r\nContent-Length: 0"), Fault::ContentLength, Some(400)),
        (text.replace("l: 0", "l: -1"), Fault::ContentLength, Some(400)),
        (text.replace("l: 0", "l: 99999999999999999999999"), Fault::ContentLength, Some(400)),
        (text.replace("l: 0", &format!("l: {}", BODY_LEN_MAX + 1)), Fault::BodyLength, Some(413)),
        (text.replace("CSeq", "CSeq : 1\nCSeq"), Fault::LineEnding, Some(400)),
        (text.replace("SIP/2.0\r\nVia", "SIP/7.0\r\nVia"), Fault::Version, Some(505)),
        ("GET / HTTP/1.1\r\n\r\n".into(), Fault::StartLine, Some(400)),
        ("SIP/2.0 200 OK\r\nCSeq: 1 INVITE\r\n\r\n".into(), missing, None),
        ("ACK sip:a@b SIP/2.0\r\nCSeq: 1 ACK\r\n\r\n".into(), missing, None),
        ("\n".into(), Fault::LineEnding, None),
        ("\r\n\rOPTIONS".into(), Fault::LineEnding, None),
    ] {
        let stream = stream + &text;
        let expected = [Got::Broken(fault, status)];
        assert_eq!(framed([stream.as_bytes()]), expected, "{stream}");
        assert_eq!(framed(stream.as_bytes().chunks(1)), expected, "{stream}");
    }
}

#[test]
fn what_never_ends_is_refused_at_the_largest_size() {
    let endless = format!("OPTIONS sip:a@b SIP/2.0\r\nSubject: {}", "x".repeat(2 * MESSAGE_LEN_MAX));
    let expected = [Got::Broken(Fault::MessageLength, Some(513))];
    assert_eq!(framed([endless.as_bytes()]), expected);
    assert_eq!(framed(endless.as_bytes().chunks(1_000)), expected);
    let filler = "x".repeat(MESSAGE_LEN_MAX - BODY_LEN_MAX);
    let body = "y".repeat(BODY_LEN_MAX);
    let sum = options(&body).replace("CSeq", &format!("Subject: {filler}\r\nCSeq"));
    assert_eq!(framed(sum.as_bytes().chunks(1_000)), expected, "header fields and body together");
}

#[test]
fn the_longest_message_passes() {
    let body = "y".repeat(BODY_LEN_MAX);
    let room = MESSAGE_LEN_MAX - options(&body).len() - "Subject: \r\n".len();
    let longest = options(&body).replace("CSeq", &format!("Subject: {}\r\nCSeq", "x".repeat(room)));
    assert_eq!(longest.len(), MESSAGE_LEN_MAX);
    for size in [7, 1_000, MESSAGE_LEN_MAX] {
        assert_eq!(framed(longest.as_bytes().chunks(size)), [message(&longest)]);
    }
}

#[test]
fn nothing_is_held_between_messages() {
    let text = options("v=0");
    let mut framer = Framer::new();
    assert_eq!(framer.next(b"\r\n"), Ok(None));
    assert_eq!((framer.is_within(), framer.held()), (false, 0));
    assert_eq!(framer.next(&text.as_bytes()[..9]), Ok(None));
    assert!(framer.is_within() && framer.held() > 0);
    assert!(framer.next(&text.as_bytes()[9..]).unwrap().is_some());
    assert_eq!(framer.next(b""), Ok(None));
    assert_eq!((framer.is_within(), framer.held()), (false, 0));
}
