//! No bytes make a parser panic, and what is written can be read back: random input, and the torture messages with a few
//! bytes changed.

mod exercise;

use std::{fs, path::Path, sync::LazyLock};

use proptest::{collection::vec, prelude::*, sample::Index};
use sluicegate_sip::{
    digest::{Algorithm, Answer, Authorization, Challenge, ha1, verify},
    message::{Message, Transport as Hop},
    sdp::{ServiceOffer, ServicePorts, Session, Transport, Wanted},
    write::{Party, Request, ViaLine},
};

static MESSAGES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/torture");
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
        .iter()
        .filter(|path| path.extension().is_some_and(|end| end == "dat"))
        .map(|path| fs::read(path).unwrap())
        .collect()
});

/// A torture message with some bytes overwritten, some put in and some taken out.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let interesting =
        prop_oneof![Just(b'\r'), Just(b'\n'), Just(b' '), Just(b','), Just(b';'), Just(b'"'), Just(b'<'), any::<u8>()];
    let edit = (any::<Index>(), interesting, 0..3_u8);
    (any::<Index>(), vec(edit, 0..6)).prop_map(|(which, edits)| {
        let mut bytes = which.get(&MESSAGES).clone();
        for (at, byte, kind) in edits {
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => drop(bytes.remove(at)),
            }
        }
        bytes
    })
}

fn token() -> impl Strategy<Value = String> {
    "[A-Za-z0-9.!%*_+~-]{1,40}"
}

/// What the fuzz targets begin with, and what they found.
#[test]
fn what_was_kept_for_the_fuzz_targets_holds() {
    type Exercise = fn(&[u8]);
    let targets: [(&str, Exercise); 4] = [
        ("sip_message", exercise::message),
        ("sip_stream", exercise::stream),
        ("sip_multipart", exercise::multipart),
        ("sip_transaction", exercise::transactions),
    ];
    for (target, exercise) in targets {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus").join(target);
        for kept in fs::read_dir(folder).unwrap() {
            exercise(&fs::read(kept.unwrap().path()).unwrap());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_messages_are_refused_or_stay_consistent(bytes in mutated()) {
        exercise::message(&bytes);
        exercise::sdp(Message::parse(&bytes).map_or(&[][..], |message| message.body()));
    }

    #[test]
    fn a_stream_has_the_same_messages_whatever_its_pieces_are(
        (messages, sizes) in (vec(mutated(), 1..4), any::<u8>()),
    ) {
        // Most messages of the collection are framed by their datagram alone.
        let framed = messages.iter().flat_map(|bytes| {
            let text = String::from_utf8_lossy(bytes).replacen("\r\n\r\n", "\r\nContent-Length: 0\r\n\r\n", 1);
            [bytes.clone(), b"\r\n\r\n".to_vec(), text.into_bytes()].concat()
        });
        exercise::stream(&[sizes].into_iter().chain(framed).collect::<Vec<u8>>());
        exercise::stream(&[&[sizes][..], &messages.concat()].concat());
    }

    #[test]
    fn random_bytes_panic_nothing(bytes in vec(any::<u8>(), 0..400)) {
        exercise::message(&bytes);
        exercise::stream(&bytes);
        exercise::stun(&bytes);
        exercise::uri(&bytes);
        exercise::sdp(&bytes);
        exercise::digest(&bytes);
    }

    #[test]
    fn transactions_do_as_the_rfcs_draw_them(bytes in vec(any::<u8>(), 0..1_200)) {
        exercise::transactions(&bytes);
    }

    #[test]
    fn of_bodies_of_several_parts_nothing_is_left_that_was_replaced(bytes in vec(any::<u8>(), 0..60)) {
        exercise::multipart(&bytes);
    }

    #[test]
    fn text_that_looks_like_sip_panics_nothing(text in "[a-z0-9 <>\"\\\\;,:=@?%/.\\[\\]()*+~-]{0,80}") {
        exercise::uri(text.as_bytes());
        exercise::uri(format!("sip:{text}").as_bytes());
        exercise::uri(format!("SIP/2.0/UDP {text}").as_bytes());
        exercise::digest(format!("Digest {text}").as_bytes());
    }

    #[test]
    fn a_request_reads_back_as_written(
        (method, user, tag) in (token(), "[a-z0-9.]{1,20}", token()),
        (call_id, branch, number) in ("[ -~&&[^ ,]]{1,60}", token(), any::<u32>()),
        body in vec(any::<u8>(), 0..300),
    ) {
        let uri = format!("sip:{user}@example.net");
        let branch = format!("z9hG4bK{branch}");
        let request = Request {
            method: method.as_bytes(),
            uri: uri.as_bytes(),
            via: ViaLine { transport: Hop::Udp, sent_by: "192.0.2.1:5060".parse().unwrap(), branch: branch.as_bytes(), rport: true },
            from: Party { uri: uri.as_bytes(), tag: Some(tag.as_bytes()) },
            to: Party { uri: uri.as_bytes(), tag: None },
            call_id: call_id.as_bytes(),
            cseq: number,
            routes: &[],
        };
        let mut out = Vec::new();
        request.begin(&mut out).body("application/sdp", &body);
        let message = Message::parse(&out).unwrap();
        let fields = message.essentials().unwrap();
        prop_assert_eq!(message.method().unwrap().as_bytes(), method.as_bytes());
        prop_assert_eq!(message.request_uri(), Some(uri.as_bytes()));
        prop_assert_eq!(fields.via.branch, Some(branch.as_bytes()));
        prop_assert_eq!((fields.from.tag, fields.to.tag), (Some(tag.as_bytes()), None));
        prop_assert_eq!((fields.call_id, fields.cseq.number), (call_id.as_bytes(), number));
        prop_assert_eq!(message.body(), &body[..]);
    }

    #[test]
    fn an_authorisation_verifies_for_its_own_password_only(
        (user, realm, password) in ("\\PC{1,30}", "[a-z.;=0-9]{1,30}", "\\PC{0,30}"),
        (nc, sha) in (1_u32.., any::<bool>()),
    ) {
        let algorithm = if sha { Algorithm::Sha256 } else { Algorithm::Md5 };
        let challenge = Challenge { realm: realm.as_bytes(), nonce: b"n", opaque: None, algorithm, stale: false };
        let own = ha1(algorithm, &user, &realm, &password);
        let mut out = Vec::new();
        Answer { challenge: &challenge, username: &user, ha1: &own, method: b"BYE", uri: b"sip:a@b", cnonce: "c", nc }
            .write(&mut out);
        let authorization = Authorization::parse(&out).unwrap();
        prop_assert_eq!(authorization.username().unwrap(), user.as_str());
        prop_assert!(verify(&authorization, b"BYE", Some(&own)));
        let other = ha1(algorithm, &user, &realm, &format!("{password}x"));
        prop_assert!(!verify(&authorization, b"BYE", Some(&other)));
    }

    #[test]
    fn an_agents_offer_reads_back_as_written(ranges in vec((any::<bool>(), 1..=u16::MAX, any::<u16>()), 0..=16)) {
        let ports: Vec<_> = ranges
            .into_iter()
            .map(|(tcp, first, len)| ServicePorts {
                transport: if tcp { Transport::Tcp } else { Transport::Udp },
                first,
                last: first.saturating_add(len),
            })
            .collect();
        let mut out = Vec::new();
        ServiceOffer { session_id: 1, version: 2, address: "2001:db8::5".parse().unwrap(), ports: &ports }.write(&mut out);
        let session = Session::parse(&out).unwrap();
        let wanted: Vec<_> = session.wanted().collect();
        let expected: Vec<_> = ports
            .iter()
            .enumerate()
            .map(|(media, ports)| Wanted::Service { media, transport: ports.transport, first: ports.first, last: ports.last })
            .collect();
        prop_assert_eq!(wanted, expected);
    }
}
