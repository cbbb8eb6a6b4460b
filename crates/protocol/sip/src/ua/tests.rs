use core::time::Duration;
use std::{vec, vec::Vec};

use super::*;
use crate::{
    digest::{Algorithm, Authorization, ha1, verify},
    message::{HeaderName, Method},
    write::Response,
};

const T0: Instant = Instant::from_secs(1);
const CONTACT: (&str, &str) = ("Contact", "<sip:pbx@203.0.113.1>");
const CHALLENGE: (&str, &str) =
    ("Proxy-Authenticate", "Digest realm=\"example.net\", nonce=\"n1\", algorithm=SHA-256, qop=\"auth\"");
const ALICE: Parties<'_> =
    Parties { from: "sip:alice@example.net", to: "sip:pbx@example.net", uri: "sip:pbx@example.net", contact: "alice" };

fn at(port: u16) -> SocketAddr {
    ([192, 0, 2, 1], port).into()
}

fn settings(local: u16, target: u16) -> Settings {
    Settings {
        transport: Transport::Udp,
        local: at(local),
        target: at(target),
        requests_max: 8,
        answers_max: 8,
        patience: None,
        has_short_t2: false,
    }
}

/// A user agent that calls, and what it sent last.
struct Caller {
    ua: UserAgent<Password>,
    leg: LegId,
    sent: Vec<u8>,
}

impl Caller {
    fn with(settings: Settings) -> Self {
        let mut ua = UserAgent::new(settings, [1; 16]);
        let password = Password::new("alice", "example.net", "secret");
        let content = Content::default().header("Supported", "x").body("application/sdp", "v=0\r\n");
        let leg = ua.start(T0, Method::Invite, ALICE, content, Some(password)).unwrap();
        let mut caller = Self { ua, leg, sent: Vec::new() };
        caller.send();
        caller
    }

    fn new() -> Self {
        Self::with(settings(5_060, 5_061))
    }

    /// The next message is sent; its method and sequence number.
    fn send(&mut self) -> (Method<'static>, u32) {
        self.sent = self.ua.poll_output().expect("something to send").bytes;
        let cseq = Message::parse(&self.sent).unwrap().cseq().unwrap();
        let known = [Method::Invite, Method::Ack, Method::Bye, Method::Cancel];
        (known.into_iter().find(|known| *known == cseq.method).unwrap(), cseq.number)
    }

    /// Answers the request that was sent last.
    fn hears(&mut self, now: Instant, status: u16, headers: &[(&str, &str)]) {
        let request = self.sent.clone();
        self.hears_of(now, &request, status, headers);
    }

    fn hears_of(&mut self, now: Instant, request: &[u8], status: u16, headers: &[(&str, &str)]) {
        let request = Message::parse(request).unwrap();
        let mut out = Vec::new();
        let writer = Response::to(&request, status).to_tag(b"srv").begin(&mut out);
        headers.iter().fold(writer, |writer, (name, value)| writer.header(name, value)).finish();
        let target = self.ua.target();
        self.ua.handle_input(now, target, &out);
    }

    /// Sequence number and status of what was answered.
    fn answered(&mut self) -> u16 {
        match self.ua.poll_event() {
            Some(Event::Answered { leg, code, .. }) if leg == self.leg => code,
            other => panic!("{other:?}"),
        }
    }

    fn is_quiet(&mut self) -> bool {
        self.ua.poll_output().is_none() && self.ua.poll_event().is_none()
    }

    /// When what is sent again is sent, in milliseconds.
    fn repeats(&mut self, ms: u64) -> Vec<u64> {
        let mut times = Vec::new();
        for now in 1..=ms {
            self.ua.handle_timeout(T0 + Duration::from_millis(now));
            while let Some(again) = self.ua.poll_output() {
                assert_eq!(again.bytes, self.sent);
                times.push(now);
            }
        }
        times
    }

    /// Whether the credentials of what was sent last are right.
    fn is_authorised(&self, algorithm: Algorithm) -> bool {
        let message = Message::parse(&self.sent).unwrap();
        let expected = ha1(algorithm, "alice", "example.net", "secret");
        let value = message.header(HeaderName::ProxyAuthorization);
        value.is_some_and(|value| verify(&Authorization::parse(value).unwrap(), b"INVITE", Some(&expected)))
    }
}

#[test]
fn a_call_is_challenged_authorised_established_and_ended() {
    let mut caller = Caller::new();
    caller.hears(T0, 407, &[CHALLENGE]);
    assert_eq!(caller.send(), (Method::Ack, 1));
    assert_eq!(caller.send(), (Method::Invite, 2));
    assert!(caller.is_authorised(Algorithm::Sha256));
    assert_eq!(caller.ua.waiting(caller.leg), Some(&caller.sent[..]));
    let invite = caller.sent.clone();
    assert_eq!(Message::parse(&invite).unwrap().body(), b"v=0\r\n");

    let headers = [CONTACT, ("Record-Route", "<sip:a;lr>"), ("Record-Route", "<sip:b;lr>")];
    caller.hears(T0, 200, &headers);
    assert_eq!((caller.answered(), caller.send()), (200, (Method::Ack, 2)));
    let ack = Message::parse(&caller.sent).unwrap();
    assert_eq!((ack.request_uri(), ack.to().unwrap().tag), (Some(&b"sip:pbx@203.0.113.1"[..]), Some(&b"srv"[..])));
    let routes: Vec<_> = ack.routes().map(|route| route.unwrap().uri).collect();
    assert_eq!(routes, [b"sip:b;lr", b"sip:a;lr"], "the route set is the record-route reversed");

    caller.hears_of(T0, &invite, 200, &headers);
    assert_eq!(caller.send(), (Method::Ack, 2), "a 200 that comes again");
    assert!(caller.is_quiet());
    caller.ua.end(T0, caller.leg, Content::default()).unwrap();
    assert_eq!(caller.send(), (Method::Bye, 3));
    caller.hears(T0, 200, &[]);
    assert_eq!(caller.ua.poll_event(), Some(Event::Ended { leg: caller.leg }));
}

#[test]
fn a_stale_nonce_is_tried_again_and_a_wrong_password_is_not() {
    let mut caller = Caller::new();
    caller.hears(T0, 407, &[CHALLENGE]);
    caller.send();
    caller.send();
    let stale = "Digest realm=\"example.net\", nonce=\"n2\", algorithm=MD5, qop=\"auth\", stale=true";
    caller.hears(T0, 407, &[("Proxy-Authenticate", stale)]);
    caller.send();
    assert_eq!(caller.send(), (Method::Invite, 3));
    assert!(caller.is_authorised(Algorithm::Md5));
    caller.hears(T0, 407, &[CHALLENGE]);
    assert_eq!((caller.answered(), caller.send()), (407, (Method::Ack, 3)));
    assert!(caller.is_quiet());
}

#[test]
fn a_challenge_of_another_realm_is_not_answered_however_strong() {
    let other = ("Proxy-Authenticate", "Digest realm=\"evil\", nonce=\"n\", algorithm=SHA-256, qop=\"auth\"");
    let weak = ("Proxy-Authenticate", "Digest realm=\"example.net\", nonce=\"n\", algorithm=MD5, qop=\"auth\"");
    let mut caller = Caller::new();
    caller.hears(T0, 407, &[other, weak]);
    caller.send();
    caller.send();
    assert!(caller.is_authorised(Algorithm::Md5));
    let mut caller = Caller::new();
    caller.hears(T0, 407, &[other]);
    assert_eq!(caller.answered(), 407);
}

#[test]
fn what_is_not_answered_is_sent_again_with_doubled_intervals_and_then_given_up() {
    let mut caller = Caller::new();
    assert_eq!(caller.repeats(40_000), [500, 1_500, 3_500, 7_500, 15_500, 31_500]);
    let silent = Event::Failed { leg: caller.leg, failure: Failure::Silent };
    assert_eq!(caller.ua.poll_event(), Some(silent.clone()));

    let mut caller = Caller::with(Settings { transport: Transport::Tcp, ..settings(5_060, 5_061) });
    assert!(caller.sent.windows(11).any(|window| window == b"SIP/2.0/TCP"));
    assert_eq!(caller.repeats(40_000), [0; 0], "nothing is lost over a stream");
    assert_eq!(caller.ua.poll_event(), Some(silent));
}

#[test]
fn a_provisional_answer_stops_retransmission_and_a_final_refusal_ends_the_call() {
    let mut caller = Caller::new();
    caller.hears(T0, 100, &[]);
    assert_eq!(caller.repeats(5_000), [0; 0]);
    caller.hears(T0, 503, &[]);
    assert_eq!((caller.answered(), caller.send()), (503, (Method::Ack, 1)));
}

#[test]
fn a_call_is_cancelled_once_it_is_known_to_have_arrived_and_ended_if_that_was_too_late() {
    let mut caller = Caller::new();
    let invite = caller.sent.clone();
    caller.ua.end(T0, caller.leg, Content::default()).unwrap();
    assert!(caller.is_quiet(), "a CANCEL might overtake the INVITE");
    caller.hears(T0, 180, &[]);
    assert_eq!(caller.send(), (Method::Cancel, 1));
    caller.hears(T0, 200, &[]);
    assert!(caller.is_quiet());
    caller.hears_of(T0, &invite, 487, &[]);
    assert_eq!((caller.answered(), caller.send()), (487, (Method::Ack, 1)));

    let mut caller = Caller::new();
    caller.ua.end(T0, caller.leg, Content::default()).unwrap();
    caller.hears(T0, 200, &[CONTACT]);
    assert_eq!((caller.send(), caller.send()), ((Method::Ack, 1), (Method::Bye, 2)));
}

#[test]
fn a_silent_server_is_given_up_and_the_next_is_asked_from_the_beginning() {
    let patience = Some(Duration::from_secs(4));
    let mut caller = Caller::with(Settings { patience, ..settings(5_060, 5_061) });
    assert_eq!(caller.repeats(5_000), [500, 1_500, 3_500]);
    assert!(matches!(caller.ua.poll_event(), Some(Event::Failed { failure: Failure::Silent, .. })));

    let mut caller = Caller::new();
    caller.hears(T0, 407, &[CHALLENGE]);
    caller.send();
    caller.send();
    caller.ua.fail_over(T0, Transport::Udp, at(6_060), at(6_061));
    let again = caller.ua.poll_output().unwrap();
    let message = Message::parse(&again.bytes).unwrap();
    assert_eq!((again.peer, message.cseq().unwrap().number), (at(6_061), 3));
    assert_eq!(message.header(HeaderName::ProxyAuthorization), None, "the nonce was the other server's");
    assert_eq!(message.header(HeaderName::Contact), Some(&b"<sip:alice@192.0.2.1:6060>"[..]));
    caller.hears(T0, 200, &[CONTACT]);
    assert!(caller.is_quiet(), "the first one's answer comes too late");
}

/// Lets in whoever says so in its Server field.
struct Suspicious;

impl Credentials for Suspicious {
    fn answer(&mut self, _: Challenged<'_, '_>) -> Option<Vec<Field>> {
        Some(vec![("Authorization", b"Riddle".to_vec())])
    }

    fn believe(&mut self, response: &Message<'_>) -> bool {
        response.header(HeaderName::Server) == Some(b"the real one")
    }
}

#[test]
fn a_success_that_is_not_believed_is_not_acknowledged_and_challenges_end() {
    let mut ua = UserAgent::new(settings(5_060, 5_061), [1; 16]);
    let start = |ua: &mut UserAgent<_>| {
        ua.start(T0, Method::Invite, ALICE, Content::default(), Some(Suspicious)).unwrap();
        ua.poll_output().unwrap().bytes
    };
    let answer = |ua: &mut UserAgent<_>, request: &[u8], code| {
        let mut out = Vec::new();
        let request = Message::parse(request).unwrap();
        Response::to(&request, code).to_tag(b"srv").begin(&mut out).header(CONTACT.0, CONTACT.1).finish();
        ua.handle_input(T0, at(5_061), &out);
    };
    let invite = start(&mut ua);
    answer(&mut ua, &invite, 200);
    assert!(matches!(ua.poll_event(), Some(Event::Failed { failure: Failure::Distrusted, .. })));
    assert_eq!(ua.poll_output(), None);

    let mut invite = start(&mut ua);
    for _ in 0..CHALLENGES_MAX {
        answer(&mut ua, &invite, 401);
        assert_eq!((ua.poll_output().is_some(), ua.poll_event()), (true, None), "acknowledged");
        invite = ua.poll_output().unwrap().bytes;
    }
    answer(&mut ua, &invite, 401);
    assert!(matches!(ua.poll_event(), Some(Event::Answered { code: 401, .. })));
}

/// Two user agents, one of which calls the other.
struct Pair {
    ours: UserAgent<Password>,
    theirs: UserAgent<Password>,
}

impl Pair {
    fn new() -> (Self, LegId) {
        let mut ours = UserAgent::new(settings(5_060, 5_061), [1; 16]);
        let theirs = UserAgent::new(settings(5_061, 5_060), [2; 16]);
        let leg = ours.start(T0, Method::Invite, ALICE, Content::default(), None).unwrap();
        (Self { ours, theirs }, leg)
    }

    /// Until nobody has anything to say; how many messages there were.
    fn talk(&mut self) -> usize {
        let mut messages = 0;
        loop {
            let (to_them, to_us) = (self.ours.poll_output(), self.theirs.poll_output());
            if to_them.is_none() && to_us.is_none() {
                return messages;
            }
            if let Some(Transmit { bytes, .. }) = to_them {
                self.theirs.handle_input(T0, at(5_060), &bytes);
                messages += 1;
            }
            if let Some(Transmit { bytes, .. }) = to_us {
                self.ours.handle_input(T0, at(5_061), &bytes);
                messages += 1;
            }
        }
    }

    fn invited(&mut self) -> (LegId, bool) {
        self.talk();
        match self.theirs.poll_event() {
            Some(Event::Invited { leg, is_new, .. }) => (leg, is_new),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn who_is_called_answers_is_asked_again_within_the_call_and_hears_its_end() {
    let (mut pair, leg) = Pair::new();
    let (called, is_new) = pair.invited();
    assert!(is_new);
    pair.theirs.respond(T0, called, 180, "pbx", &Content::default());
    pair.theirs.respond(T0, called, 200, "pbx", &Content::default().body("application/sdp", "v=0\r\n"));
    pair.talk();
    assert!(matches!(pair.ours.poll_event(), Some(Event::Answered { code: 200, .. })));
    pair.theirs.handle_timeout(T0 + Duration::from_secs(9));
    assert_eq!(pair.theirs.poll_output(), None, "the ACK came");

    pair.ours.again(T0, leg, Content::default()).unwrap();
    assert_eq!(pair.invited(), (called, false));
    pair.theirs.respond(T0, called, 488, "pbx", &Content::default());
    pair.talk();
    assert!(matches!(pair.ours.poll_event(), Some(Event::Answered { code: 488, .. })), "and the call goes on");

    pair.theirs.end(T0, called, Content::default()).unwrap();
    pair.talk();
    assert_eq!(pair.ours.poll_event(), Some(Event::Ended { leg }));
    assert_eq!(pair.theirs.poll_event(), Some(Event::Ended { leg: called }));
}

#[test]
fn a_call_that_its_caller_cancels_is_over() {
    let (mut pair, leg) = Pair::new();
    let (called, _) = pair.invited();
    pair.theirs.respond(T0, called, 180, "pbx", &Content::default());
    pair.talk();
    pair.ours.end(T0, leg, Content::default()).unwrap();
    pair.talk();
    assert_eq!(pair.theirs.poll_event(), Some(Event::Ended { leg: called }));
    assert!(matches!(pair.ours.poll_event(), Some(Event::Answered { code: 487, .. })));
    pair.theirs.respond(T0, called, 200, "pbx", &Content::default());
    assert_eq!(pair.talk(), 0);
}

#[test]
fn what_belongs_to_no_call_is_refused_and_strangers_are_not_heard() {
    let (mut pair, _) = Pair::new();
    let (called, _) = pair.invited();
    pair.theirs.respond(T0, called, 200, "pbx", &Content::default());
    pair.talk();
    let status = |pair: &mut Pair, from, request: &str| {
        pair.theirs.handle_input(T0, from, request.as_bytes());
        pair.theirs.poll_output().map(|sent| Message::parse(&sent.bytes).unwrap().status().unwrap())
    };
    let request = |method: &str, tag: &str| {
        std::format!(
            "{method} sip:pbx@192.0.2.1 SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.1:5060;branch=z9hG4bK{method}{}\r\n\
             From: <sip:a@b>;tag=1\r\nTo: <sip:b@b>{tag}\r\nCall-ID: 1\r\nCSeq: 1 {method}\r\n\r\n",
            tag.replace([';', '='], "")
        )
    };
    assert_eq!(status(&mut pair, at(9), &request("BYE", &std::format!(";tag={called}"))), None);
    let own = at(5_060);
    assert_eq!(status(&mut pair, own, &request("BYE", &std::format!(";tag={called}"))), Some(481), "another Call-ID");
    assert_eq!(status(&mut pair, own, &request("BYE", "")), Some(481));
    assert_eq!(status(&mut pair, own, &request("INVITE", ";tag=x")), Some(481));
    assert_eq!(status(&mut pair, own, &request("CANCEL", "")), Some(481));
    assert_eq!(status(&mut pair, own, &request("OPTIONS", "")), Some(200));
    assert_eq!(status(&mut pair, own, &request("MESSAGE", "")), Some(405));
    assert_eq!(pair.theirs.poll_event(), None);
    // A tag of ours from before a restart: the call may go on.
    assert_eq!(status(&mut pair, own, &request("INVITE", &std::format!(";tag={:032x}", 7))), None);
    let leg = LegId(7);
    assert!(matches!(pair.theirs.poll_event(), Some(Event::Invited { leg: of, is_new: true, .. }) if of == leg));
}

#[test]
fn whoever_finds_no_room_is_told_when_to_come_back() {
    let mut theirs: UserAgent<Password> = UserAgent::new(settings(5_061, 5_060), [2; 16]);
    let mut ours: UserAgent<Password> = UserAgent::new(Settings { requests_max: 9, ..settings(5_060, 5_061) }, [1; 16]);
    for _ in 0..9 {
        ours.start(T0, Method::Invite, ALICE, Content::default(), None).unwrap();
        theirs.handle_input(T0, at(5_060), &ours.poll_output().unwrap().bytes);
    }
    let refused = theirs.poll_output().unwrap().bytes;
    let refused = Message::parse(&refused).unwrap();
    assert_eq!((refused.status(), refused.header(HeaderName::RetryAfter)), (Some(503), Some(&b"4"[..])));
}
