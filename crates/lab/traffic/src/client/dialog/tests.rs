use sluicegate_sip::{
    digest::{Algorithm, Authorization, ha1, verify},
    message::Method,
    write::Response,
};

use super::*;

const T0: Instant = Instant::from_secs(1);
const SDP: &[u8] =
    b"v=0\r\no=- 1 1 IN IP4 203.0.113.10\r\ns=-\r\nc=IN IP4 203.0.113.10\r\nt=0 0\r\nm=audio 20004 RTP/AVP 0\r\n";

fn dialog(password: &str) -> Dialog {
    let caller = Caller {
        user: "alice".to_owned(),
        password: password.to_owned(),
        address: "sip:alice@example.net".to_owned(),
        service: "sip:pbx@example.net".to_owned(),
        media_port: 4_000,
        service_port: 0,
        patience: Duration::from_secs(32),
    };
    Dialog::new(T0, Arc::new(caller), "198.51.100.2:5060".parse().unwrap(), "c1".to_owned(), 1)
}

/// The next message that the dialog sends.
fn sent(dialog: &mut Dialog) -> Vec<u8> {
    dialog.transmit().expect("something to send")
}

/// Answers `request` and hands the answer to the dialog.
fn answer(dialog: &mut Dialog, now: Instant, request: &[u8], status: u16, headers: &[(&str, &str)], body: &[u8]) {
    let request = Message::parse(request).unwrap();
    let mut out = Vec::new();
    let mut writer = Response::to(&request, status).to_tag(b"srv").begin(&mut out);
    for (name, value) in headers {
        writer = writer.header(name, value);
    }
    if body.is_empty() {
        writer.finish();
    } else {
        writer.body("application/sdp", body);
    }
    dialog.on_response(now, &Message::parse(&out).unwrap());
}

const CHALLENGE: (&str, &str) =
    ("Proxy-Authenticate", "Digest realm=\"example.net\", nonce=\"n1\", algorithm=SHA-256, qop=\"auth\"");

#[test]
fn a_call_is_challenged_authorised_established_and_ended() {
    let mut dialog = dialog("secret");
    let first = sent(&mut dialog);
    answer(&mut dialog, T0, &first, 407, &[CHALLENGE], b"");
    assert_eq!(Message::parse(&sent(&mut dialog)).unwrap().method(), Some(Method::Ack));
    let second = sent(&mut dialog);
    let message = Message::parse(&second).unwrap();
    let value = message.header(HeaderName::ProxyAuthorization).unwrap();
    let expected = ha1(Algorithm::Sha256, "alice", "example.net", "secret");
    assert!(verify(&Authorization::parse(value).unwrap(), b"INVITE", Some(&expected)));
    assert_eq!(message.cseq().unwrap().number, 2);
    assert_eq!(dialog.authorised_invite(), Some(&second[..]));

    let later = T0 + Duration::from_millis(30);
    let contact = ("Contact", "<sip:pbx@203.0.113.1>");
    answer(
        &mut dialog,
        later,
        &second,
        200,
        &[contact, ("Record-Route", "<sip:a;lr>"), ("Record-Route", "<sip:b;lr>")],
        SDP,
    );
    assert_eq!((dialog.state(), dialog.setup_time()), (State::Established, Some(Duration::from_millis(30))));
    assert_eq!(dialog.media(), Some("203.0.113.10:20004".parse().unwrap()));
    let ack = sent(&mut dialog);
    let ack = Message::parse(&ack).unwrap();
    assert_eq!((ack.request_uri(), ack.to().unwrap().tag), (Some(&b"sip:pbx@203.0.113.1"[..]), Some(&b"srv"[..])));
    let routes: Vec<_> = ack.routes().map(|route| route.unwrap().uri).collect();
    assert_eq!(routes, [b"sip:b;lr", b"sip:a;lr"], "the route set is the record-route reversed");

    answer(&mut dialog, later, &second, 200, &[contact], SDP);
    assert_eq!(Message::parse(&sent(&mut dialog)).unwrap().method(), Some(Method::Ack), "a 200 that comes again");
    dialog.bye(later);
    let bye = sent(&mut dialog);
    assert_eq!(Message::parse(&bye).unwrap().cseq().unwrap().number, 3);
    answer(&mut dialog, later, &bye, 200, &[], b"");
    assert_eq!(dialog.state(), State::Ended);
}

#[test]
fn a_stale_nonce_is_tried_again_and_a_wrong_password_is_not() {
    let mut dialog = dialog("wrong");
    let first = sent(&mut dialog);
    answer(&mut dialog, T0, &first, 407, &[CHALLENGE], b"");
    sent(&mut dialog);
    let second = sent(&mut dialog);
    let stale =
        ("Proxy-Authenticate", "Digest realm=\"example.net\", nonce=\"n2\", algorithm=MD5, qop=\"auth\", stale=true");
    answer(&mut dialog, T0, &second, 407, &[stale], b"");
    sent(&mut dialog);
    let third = sent(&mut dialog);
    assert_eq!(dialog.state(), State::Inviting);
    answer(&mut dialog, T0, &third, 407, &[CHALLENGE], b"");
    assert_eq!(dialog.state(), State::Refused(407));
    assert_eq!(Message::parse(&sent(&mut dialog)).unwrap().method(), Some(Method::Ack));
    assert!(dialog.transmit().is_none());
}

#[test]
fn what_is_not_answered_is_sent_again_with_doubled_intervals_and_then_given_up() {
    let mut dialog = dialog("secret");
    let first = sent(&mut dialog);
    let mut times = Vec::new();
    for ms in 1..=40_000 {
        dialog.on_timeout(T0 + Duration::from_millis(ms));
        while let Some(again) = dialog.transmit() {
            assert_eq!(again, first);
            times.push(ms);
        }
    }
    assert_eq!(times, [500, 1_500, 3_500, 7_500, 15_500, 31_500]);
    assert_eq!(dialog.state(), State::TimedOut);
}

#[test]
fn a_provisional_answer_stops_retransmission_and_a_final_refusal_ends_the_call() {
    let mut dialog = dialog("secret");
    let first = sent(&mut dialog);
    answer(&mut dialog, T0, &first, 100, &[], b"");
    dialog.on_timeout(T0 + Duration::from_secs(5));
    assert!(dialog.transmit().is_none());
    answer(&mut dialog, T0, &first, 503, &[], b"");
    assert_eq!(dialog.state(), State::Refused(503));
    assert_eq!(Message::parse(&sent(&mut dialog)).unwrap().method(), Some(Method::Ack));
}
