use std::vec;

use sluicegate_grant::{GrantId, mac::Direction};

use super::*;

const FRONTEND: &str = "203.0.113.1:5060";

fn ha1() -> EpochHa1 {
    EpochHa1::from_bytes([4; 32])
}

fn replica() -> ReplicaKey {
    ReplicaKey::from_seed(&[5; 32])
}

fn proposal() -> Proposal<'static> {
    Proposal {
        method: b"INVITE",
        uri: b"sip:web@example.net",
        nonces: (b"nonce", b"cnonce"),
        supported: b"sluicegate",
        contact: b"<sip:alice@198.51.100.7:5070>",
        body: b"v=0",
        dialled: FRONTEND.parse().unwrap(),
    }
}

/// The 200 that carries message 2 and a tag.
fn answer(message: [u8; MESSAGE_LEN], secret: &SessionSecret, contact: &str, body: &str) -> String {
    let tag = answer_tag(secret, contact.as_bytes(), body.as_bytes());
    std::format!(
        "SIP/2.0 200 OK\r\nVia: SIP/2.0/UDP a;branch=z9hG4bK1\r\nFrom: <sip:a@b>;tag=1\r\nTo: <sip:c@b>;tag=2\r\n\
         Call-ID: 1\r\nCSeq: 1 INVITE\r\nContact: {contact}\r\n{}: {}\r\nContent-Length: {}\r\n\r\n{body}",
        HEADER.as_str(),
        Answer { message, tag }.to_text(),
        body.len()
    )
}

#[test]
fn both_ends_know_the_same_and_the_agent_believes_what_the_tag_covers() {
    let (agent, first) = Initiator::begin([6; 32], replica().public(), &ha1(), &proposal()).unwrap();
    let (second, secret) = respond([7; 32], &replica(), &ha1(), &proposal(), &first).unwrap();
    let text = answer(second, &secret, "<sip:web@203.0.113.1>", "granted");
    assert_eq!(agent.finish(&Message::parse(text.as_bytes()).unwrap()), Ok(secret));
    for (old, new) in [("granted", "altered"), ("web@203", "web@204")] {
        let (agent, first) = Initiator::begin([6; 32], replica().public(), &ha1(), &proposal()).unwrap();
        let (second, secret) = respond([7; 32], &replica(), &ha1(), &proposal(), &first).unwrap();
        let text = answer(second, &secret, "<sip:web@203.0.113.1>", "granted").replace(old, new);
        assert_eq!(agent.finish(&Message::parse(text.as_bytes()).unwrap()), Err(SignInError::Answer));
    }
}

#[test]
fn whatever_is_changed_on_the_way_makes_it_fail() {
    let (_, first) = Initiator::begin([6; 32], replica().public(), &ha1(), &proposal()).unwrap();
    let own = proposal();
    let elsewhere = "198.51.100.66:5060".parse().unwrap();
    let changed = vec![
        Proposal { method: b"REGISTER", ..own },
        Proposal { uri: b"sip:pbx@example.net", ..own },
        Proposal { nonces: (b"nonce2", b"cnonce"), ..own },
        Proposal { nonces: (b"noncec", b"nonce"), ..own },
        Proposal { supported: b"", ..own },
        Proposal { contact: b"<sip:alice@198.51.100.66>", ..own },
        Proposal { body: b"v=1", ..own },
        Proposal { dialled: elsewhere, ..own },
    ];
    for changed in changed {
        let result = respond([7; 32], &replica(), &ha1(), &changed, &first);
        assert_eq!(result.err(), Some(SignInError::Handshake), "{changed:?}");
    }
    let others = [
        respond([7; 32], &ReplicaKey::from_seed(&[8; 32]), &ha1(), &own, &first),
        respond([7; 32], &replica(), &EpochHa1::from_bytes([9; 32]), &own, &first),
    ];
    assert!(others.iter().all(|other| *other == Err(SignInError::Handshake)));
    for bit in 0..MESSAGE_LEN * 8 {
        let mut altered = first;
        altered[bit / 8] ^= 1 << (bit % 8);
        // The top bit of an X25519 key is ignored, but the handshake hash covers it.
        assert!(respond([7; 32], &replica(), &ha1(), &own, &altered).is_err(), "bit {bit}");
    }
}

#[test]
fn a_frontend_without_its_key_is_not_believed() {
    let forger = ReplicaKey::from_seed(&[8; 32]);
    // It knows the user's HA1, even the whole request, but not the key that the site certified.
    let (agent, _) = Initiator::begin([6; 32], replica().public(), &ha1(), &proposal()).unwrap();
    let (_, own_first) = Initiator::begin([6; 32], forger.public(), &ha1(), &proposal()).unwrap();
    let (second, secret) = respond([7; 32], &forger, &ha1(), &proposal(), &own_first).unwrap();
    let text = answer(second, &secret, "", "granted");
    assert_eq!(agent.finish(&Message::parse(text.as_bytes()).unwrap()), Err(SignInError::Handshake));
    let (agent, _) = Initiator::begin([6; 32], replica().public(), &ha1(), &proposal()).unwrap();
    let bare =
        text.lines().filter(|line| !line.starts_with(HEADER.as_str())).collect::<Vec<_>>().join("\r\n") + "\r\n\r\n";
    assert_eq!(agent.finish(&Message::parse(bare.as_bytes()).unwrap()), Err(SignInError::Malformed));
}

/// All that was on the wire, the user's HA1 and the frontend's stored key do not give the session key: the ephemeral
/// keys are gone.
#[test]
fn a_capture_with_password_and_frontend_key_later_does_not_give_the_session_key() {
    let (_, first) = Initiator::begin([6; 32], replica().public(), &ha1(), &proposal()).unwrap();
    let (_, secret) = respond([7; 32], &replica(), &ha1(), &proposal(), &first).unwrap();
    // The thief plays the frontend on the captured message with keys and password, but an ephemeral key of its own.
    let (_, stolen) = respond([8; 32], &replica(), &ha1(), &proposal(), &first).unwrap();
    let id = GrantId([1; 16]);
    assert!(secret.key(id, Direction::ToService) != stolen.key(id, Direction::ToService));
}

#[test]
fn what_a_request_carries_is_read_back() {
    let hello = Hello { message: [9; MESSAGE_LEN], dialled: FRONTEND.parse().unwrap() };
    let request = |value: &str| {
        std::format!(
            "INVITE sip:a@b SIP/2.0\r\nVia: SIP/2.0/UDP a;branch=z9hG4bK1\r\nFrom: <sip:a@b>;tag=1\r\nTo: <sip:c@b>\r\n\
             Call-ID: 1\r\nCSeq: 1 INVITE\r\n{}: {value}\r\nContent-Length: 0\r\n\r\n",
            HEADER.as_str()
        )
    };
    let text = request(&hello.to_text());
    assert_eq!(Hello::of(&Message::parse(text.as_bytes()).unwrap()), Ok(hello));
    for wrong in ["", "x", ";to=203.0.113.1:5060", &"A".repeat(64), &(("A".repeat(64)) + ";to=example.net")] {
        let text = request(wrong);
        assert_eq!(Hello::of(&Message::parse(text.as_bytes()).unwrap()), Err(SignInError::Malformed));
    }
}
