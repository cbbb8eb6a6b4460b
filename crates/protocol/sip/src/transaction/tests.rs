use std::{format, string::String, vec::Vec};

use super::*;
use crate::{message::Message, write::Response};
use sluicegate_wire::Instant;

mod order;

const KEY: [u8; 16] = [9; 16];

fn peer() -> SocketAddr {
    "192.0.2.1:5060".parse().unwrap()
}

fn ms(ms: u64) -> Instant {
    Instant::from_millis(ms)
}

fn request(method: &str, branch: &str, number: u32) -> String {
    format!(
        "{method} sip:b@example.net SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.1;branch={branch}\r\nMax-Forwards: 70\r\n\
        From: <sip:a@example.net>;tag=a\r\nTo: <sip:b@example.net>\r\nCall-ID: c\r\nCSeq: {number} {method}\r\n\r\n"
    )
}

fn answer(request: &str, code: u16) -> Vec<u8> {
    let message = Message::parse(request.as_bytes()).unwrap();
    let mut out = Vec::new();
    Response::to(&message, code).to_tag(b"t").begin(&mut out).finish();
    out
}

fn receive(table: &mut ServerTransactions, at: Instant, text: &str) -> Received {
    let message = Message::parse(text.as_bytes()).unwrap();
    table.receive(at, &message, &message.essentials().unwrap())
}

fn open(table: &mut ServerTransactions, at: Instant, text: &str, role: Role) -> Token {
    let message = Message::parse(text.as_bytes()).unwrap();
    let fields = message.essentials().unwrap();
    assert_eq!(table.receive(at, &message, &fields), Received::New);
    table.open(at, &message, &fields, peer(), role).unwrap()
}

/// Runs the virtual clock until nothing is due; gives the times of transmissions, and of the failure if there was one.
fn drain_server(table: &mut ServerTransactions) -> (Vec<u64>, Option<u64>) {
    let (mut sent, mut failed) = (Vec::new(), None);
    while let Some(at) = table.poll_timeout() {
        while let Some(due) = table.poll(at) {
            match due {
                Due::Transmit { .. } | Due::Cancel(_) => sent.push(at.as_nanos() / 1_000_000),
                Due::TimedOut(_) => failed = Some(at.as_nanos() / 1_000_000),
            }
        }
    }
    (sent, failed)
}

/// The same; a CANCEL counts as a transmission.
fn drain_client(table: &mut ClientTransactions) -> (Vec<u64>, Option<u64>) {
    let (mut sent, mut failed) = (Vec::new(), None);
    while let Some(at) = table.poll_timeout() {
        while let Some(due) = table.poll(at) {
            match due {
                Due::Transmit { .. } | Due::Cancel(_) => sent.push(at.as_nanos() / 1_000_000),
                Due::TimedOut(_) => failed = Some(at.as_nanos() / 1_000_000),
            }
        }
    }
    (sent, failed)
}

#[test]
fn a_repeated_request_gets_the_last_response_again() {
    let mut table = ServerTransactions::new(4, KEY);
    let invite = request("INVITE", "z9hG4bK1", 1);
    let token = open(&mut table, ms(0), &invite, Role::UserAgent);
    assert_eq!(receive(&mut table, ms(1), &invite), Received::Absorbed);
    assert!(table.respond(ms(2), token, 180, b"ringing"));
    assert_eq!(receive(&mut table, ms(500), &invite), Received::Resend(token));
    assert_eq!(table.response(token), Some((&b"ringing"[..], peer())));
    assert!(table.respond(ms(600), token, 486, b"busy"));
    assert_eq!(receive(&mut table, ms(700), &invite), Received::Resend(token));
    assert!(!table.respond(ms(800), token, 200, b"too late"));
    assert_eq!(table.response(token), Some((&b"busy"[..], peer())));
}

#[test]
fn a_refused_invite_is_repeated_until_its_ack() {
    let mut table = ServerTransactions::new(4, KEY);
    let invite = request("INVITE", "z9hG4bK1", 1);
    let token = open(&mut table, ms(0), &invite, Role::Proxy);
    table.respond(ms(0), token, 486, b"busy");
    assert_eq!(table.poll(ms(500)), Some(Due::Transmit { peer: peer(), bytes: b"busy" }));
    assert_eq!(table.poll(ms(500)), None);
    let ack = request("ACK", "z9hG4bK1", 1);
    assert_eq!(receive(&mut table, ms(600), &ack), Received::Acknowledged(token));
    assert_eq!(receive(&mut table, ms(700), &ack), Received::Absorbed);
    assert_eq!(receive(&mut table, ms(700), &invite), Received::Absorbed);
    assert_eq!(drain_server(&mut table), (Vec::new(), None));
    assert_eq!(table.gauge().used, 0);
    assert_eq!(receive(&mut table, ms(6_000), &invite), Received::New);
}

#[test]
fn a_refused_invite_without_ack_fails_after_64_t1() {
    let mut table = ServerTransactions::new(4, KEY);
    let token = open(&mut table, ms(0), &request("INVITE", "z9hG4bK1", 1), Role::UserAgent);
    table.respond(ms(0), token, 486, b"busy");
    let times = [500, 1_500, 3_500, 7_500, 11_500, 15_500, 19_500, 23_500, 27_500, 31_500];
    assert_eq!(drain_server(&mut table), (times.to_vec(), Some(32_000)));
}

#[test]
fn our_own_2xx_is_repeated_until_the_ack_with_its_own_branch() {
    let mut table = ServerTransactions::new(4, KEY);
    let invite = request("INVITE", "z9hG4bK1", 1);
    let token = open(&mut table, ms(0), &invite, Role::UserAgent);
    table.respond(ms(0), token, 200, b"ok");
    assert_eq!(receive(&mut table, ms(400), &invite), Received::Absorbed);
    assert_eq!(table.poll(ms(500)), Some(Due::Transmit { peer: peer(), bytes: b"ok" }));
    let ack = request("ACK", "z9hG4bKother", 1);
    assert_eq!(receive(&mut table, ms(600), &request("ACK", "z9hG4bKother", 2)), Received::New);
    assert_eq!(receive(&mut table, ms(600), &ack), Received::Acknowledged(token));
    assert_eq!(receive(&mut table, ms(601), &ack), Received::Absorbed);
    assert_eq!(drain_server(&mut table), (Vec::new(), None));
}

#[test]
fn our_own_2xx_without_ack_fails_and_the_call_is_to_be_ended() {
    let mut table = ServerTransactions::new(4, KEY);
    let token = open(&mut table, ms(0), &request("INVITE", "z9hG4bK1", 1), Role::UserAgent);
    table.respond(ms(0), token, 200, b"ok");
    let (sent, failed) = drain_server(&mut table);
    assert_eq!((sent.len(), failed), (10, Some(32_000)));
}

#[test]
fn a_relayed_2xx_and_its_ack_only_pass_through() {
    let mut table = ServerTransactions::new(4, KEY);
    let invite = request("INVITE", "z9hG4bK1", 1);
    let token = open(&mut table, ms(0), &invite, Role::Proxy);
    assert!(table.respond(ms(0), token, 200, b"ok"));
    assert!(table.respond(ms(1), token, 200, b"ok again"));
    assert!(!table.respond(ms(1), token, 486, b"no"));
    assert_eq!(table.response(token), Some((&b"ok"[..], peer())), "until it has arrived");
    assert_eq!(receive(&mut table, ms(2), &request("ACK", "z9hG4bKother", 1)), Received::New);
    assert_eq!((table.response(token), table.peer(token)), (None, Some(peer())));
    assert!(table.respond(ms(2), token, 200, b"of another branch"));
    assert!(!table.respond(ms(2), token, 486, b"no"));
    assert_eq!(receive(&mut table, ms(2), &request("ACK", "z9hG4bKother", 1)), Received::New, "as often as it comes");
    assert_eq!(receive(&mut table, ms(3), &invite), Received::Absorbed);
    assert_eq!(drain_server(&mut table), (Vec::new(), None));
}

#[test]
fn a_non_invite_keeps_its_answer_for_64_t1() {
    let mut table = ServerTransactions::new(4, KEY);
    let bye = request("BYE", "z9hG4bK1", 2);
    let token = open(&mut table, ms(0), &bye, Role::UserAgent);
    table.respond(ms(0), token, 200, b"ok");
    assert_eq!(receive(&mut table, ms(31_999), &bye), Received::Resend(token));
    assert_eq!(table.poll_timeout(), Some(ms(32_000)));
    assert_eq!(drain_server(&mut table), (Vec::new(), None));
}

#[test]
fn a_request_that_its_user_forgets_frees_its_slot() {
    let mut table = ServerTransactions::new(4, KEY);
    open(&mut table, ms(0), &request("INVITE", "z9hG4bK1", 1), Role::Proxy);
    assert_eq!(drain_server(&mut table), (Vec::new(), Some(UNANSWERED_MS)));
    assert_eq!(table.gauge().used, 0);
}

#[test]
fn a_cancel_finds_its_invite_and_is_a_transaction_of_its_own() {
    let mut table = ServerTransactions::new(4, KEY);
    let token = open(&mut table, ms(0), &request("INVITE", "z9hG4bK1", 1), Role::UserAgent);
    let text = request("CANCEL", "z9hG4bK1", 1);
    let cancel = Message::parse(text.as_bytes()).unwrap();
    let fields = cancel.essentials().unwrap();
    assert_eq!(table.receive(ms(1), &cancel, &fields), Received::New);
    assert_eq!(table.invite_of(&fields), Some(token));
    let other = request("CANCEL", "z9hG4bK2", 1);
    let other = Message::parse(other.as_bytes()).unwrap();
    assert_eq!(table.invite_of(&other.essentials().unwrap()), None);
}

#[test]
fn the_same_branch_from_another_sender_or_for_another_method_is_another_transaction() {
    let mut table = ServerTransactions::new(8, KEY);
    let invite = request("INVITE", "z9hG4bK1", 1);
    open(&mut table, ms(0), &invite, Role::Proxy);
    open(&mut table, ms(0), &request("BYE", "z9hG4bK1", 1), Role::Proxy);
    open(&mut table, ms(0), &invite.replace("UDP 192.0.2.1", "UDP 192.0.2.2"), Role::Proxy);
    assert_eq!(table.gauge().used, 3);
}

#[test]
fn rfc_2543_clients_are_told_apart_without_a_branch() {
    let mut table = ServerTransactions::new(8, KEY);
    let one = request("INVITE", "1", 1);
    open(&mut table, ms(0), &one, Role::Proxy);
    assert_eq!(receive(&mut table, ms(0), &one), Received::Absorbed);
    open(&mut table, ms(0), &request("INVITE", "1", 2), Role::Proxy);
    open(&mut table, ms(0), &one.replace("Call-ID: c", "Call-ID: d"), Role::Proxy);
}

#[test]
fn a_peer_is_whatever_the_caller_calls_it_and_nobody_else_answers_for_it() {
    let mut table = ClientTransactions::<(u8, u32)>::new(1, KEY);
    let text = request("BYE", "z9hG4bK1", 1);
    let message = Message::parse(text.as_bytes()).unwrap();
    let token = table.start(ms(0), &message, (1, 7)).unwrap();
    assert_eq!(table.poll(ms(500)), Some(Due::Transmit { peer: (1, 7), bytes: text.as_bytes() }));
    let ok = answer(&text, 200);
    let ok = Message::parse(&ok).unwrap();
    assert_eq!(table.receive(ms(600), &ok, |peer| peer == (2, 7)), Reply::Unmatched);
    assert_eq!(table.receive(ms(600), &ok, |(listener, _)| listener == 1), Reply::Deliver(token));
}

#[test]
fn a_full_table_says_so() {
    let mut table = ServerTransactions::new(2, KEY);
    for number in 0..2 {
        open(&mut table, ms(0), &request("INVITE", &format!("z9hG4bK{number}"), 1), Role::Proxy);
    }
    let text = request("INVITE", "z9hG4bKx", 1);
    let message = Message::parse(text.as_bytes()).unwrap();
    let fields = message.essentials().unwrap();
    assert_eq!(table.open(ms(0), &message, &fields, peer(), Role::Proxy), Err(TableFull));
    assert_eq!((table.gauge().used, table.gauge().max), (2, 2));

    let mut table = ClientTransactions::new(1, KEY);
    table.start(ms(0), &message, peer()).unwrap();
    assert_eq!(table.start(ms(0), &message, peer()), Err(StartError::Full(TableFull)));
}

fn start(table: &mut ClientTransactions, text: &str) -> Token {
    table.start(ms(0), &Message::parse(text.as_bytes()).unwrap(), peer()).unwrap()
}

fn reply(table: &mut ClientTransactions, at: Instant, text: &str, code: u16) -> Reply {
    table.receive(at, &Message::parse(&answer(text, code)).unwrap(), |_| true)
}

#[test]
fn an_invite_without_answer_is_repeated_at_doubling_times() {
    let mut table = ClientTransactions::new(4, KEY);
    start(&mut table, &request("INVITE", "z9hG4bK1", 1));
    let times = [500, 1_500, 3_500, 7_500, 15_500, 31_500];
    assert_eq!(drain_client(&mut table), (times.to_vec(), Some(32_000)));
    assert_eq!(table.gauge().used, 0);
}

#[test]
fn a_non_invite_without_answer_is_repeated_at_most_every_t2() {
    let mut table = ClientTransactions::new(4, KEY);
    start(&mut table, &request("REGISTER", "z9hG4bK1", 1));
    let times = [500, 1_500, 3_500, 7_500, 11_500, 15_500, 19_500, 23_500, 27_500, 31_500];
    assert_eq!(drain_client(&mut table), (times.to_vec(), Some(32_000)));
    let mut table = ClientTransactions::new(4, KEY).with_short_t2();
    start(&mut table, &request("REGISTER", "z9hG4bK1", 1));
    let (times, end) = drain_client(&mut table);
    assert_eq!((&times[..4], times.len(), end), (&[500, 1_500, 2_500, 3_500][..], 32, Some(32_000)));
}

/// RFC 3261 section 16.8.
#[test]
fn a_ringing_invite_is_not_repeated_and_cancelled_by_timer_c() {
    let mut table = ClientTransactions::new(4, KEY);
    let invite = request("INVITE", "z9hG4bK1", 1);
    let token = start(&mut table, &invite);
    assert_eq!(reply(&mut table, ms(100), &invite, 100), Reply::Deliver(token));
    assert_eq!(reply(&mut table, ms(1_000), &invite, 180), Reply::Deliver(token));
    assert_eq!(reply(&mut table, ms(60_000), &invite, 100), Reply::Deliver(token), "which timer C does not count");
    let rang = 1_000 + TIMER_C_MS;
    assert_eq!(table.poll(ms(rang - 1)), None);
    assert_eq!(table.poll(ms(rang)), Some(Due::Cancel(token)));
    assert!(!table.cancel(ms(rang), token), "one CANCEL is enough");
    assert_eq!(reply(&mut table, ms(rang + 1), &invite, 180), Reply::Absorbed, "nor does it ring on");
    assert_eq!(drain_client(&mut table), (Vec::new(), Some(rang + 32_000)));
}

/// RFC 3261 section 9.1.
#[test]
fn a_cancelled_invite_waits_for_its_final_response_for_64_t1() {
    let mut table = ClientTransactions::new(4, KEY);
    let invite = request("INVITE", "z9hG4bK1", 1);
    let token = start(&mut table, &invite);
    assert!(!table.cancel(ms(50), token), "it might overtake the INVITE");
    reply(&mut table, ms(100), &invite, 180);
    assert!(table.cancel(ms(200), token));
    assert_eq!(table.poll_timeout(), Some(ms(32_200)));
    assert_eq!(reply(&mut table, ms(300), &invite, 487), Reply::DeliverAndAck(token));
    assert_eq!(drain_client(&mut table), (Vec::new(), None));
}

#[test]
fn what_answers_an_invite_that_was_given_up_is_delivered_if_it_made_a_call() {
    for rings in [false, true] {
        let mut table = ClientTransactions::new(4, KEY);
        let invite = request("INVITE", "z9hG4bK1", 1);
        let token = start(&mut table, &invite);
        if rings {
            reply(&mut table, ms(100), &invite, 180);
            assert!(table.cancel(ms(200), token));
        }
        let mut late = ms(0);
        while let Some(at) = table.poll_timeout().filter(|_| late == ms(0)) {
            while let Some(due) = table.poll(at) {
                late = if due == Due::TimedOut(token) { at } else { late };
            }
        }
        assert_eq!(late, ms(if rings { 32_200 } else { 32_000 }));
        assert_eq!(reply(&mut table, late, &invite, 180), Reply::Absorbed);
        assert_eq!(reply(&mut table, late, &invite, 200), Reply::Deliver(token));
        assert_eq!(reply(&mut table, late, &invite, 200), Reply::Deliver(token));
        assert!(table.request(token).unwrap().0.starts_with(b"INVITE"), "to end it by");
        assert_eq!(reply(&mut table, late, &invite, 487), Reply::Ack(token));
        assert_eq!(drain_client(&mut table), (Vec::new(), None));
        assert_eq!(reply(&mut table, ms(70_000), &invite, 200), Reply::Unmatched);
    }
}

#[test]
fn a_refused_invite_is_acknowledged_as_often_as_the_refusal_comes() {
    let mut table = ClientTransactions::new(4, KEY);
    let invite = request("INVITE", "z9hG4bK1", 1);
    let token = start(&mut table, &invite);
    assert_eq!(reply(&mut table, ms(100), &invite, 407), Reply::DeliverAndAck(token));
    let (bytes, to) = table.request(token).unwrap();
    let ack = Message::parse(bytes).unwrap();
    assert_eq!((ack.method(), to), (Some(crate::message::Method::Ack), peer()));
    assert_eq!(ack.to().unwrap().tag, Some(&b"t"[..]));
    assert_eq!(reply(&mut table, ms(600), &invite, 407), Reply::Ack(token));
    assert_eq!(reply(&mut table, ms(700), &invite, 180), Reply::Absorbed);
    assert_eq!(drain_client(&mut table), (Vec::new(), None));
    assert_eq!(reply(&mut table, ms(40_000), &invite, 407), Reply::Unmatched);
}

#[test]
fn each_2xx_to_an_invite_is_delivered_for_its_user_to_acknowledge() {
    let mut table = ClientTransactions::new(4, KEY);
    let invite = request("INVITE", "z9hG4bK1", 1);
    let token = start(&mut table, &invite);
    assert_eq!(reply(&mut table, ms(100), &invite, 200), Reply::Deliver(token));
    assert_eq!(reply(&mut table, ms(600), &invite, 200), Reply::Deliver(token));
    assert_eq!(reply(&mut table, ms(600), &invite, 486), Reply::Absorbed);
    assert_eq!(drain_client(&mut table), (Vec::new(), None));
}

#[test]
fn a_non_invite_is_answered_once() {
    let mut table = ClientTransactions::new(4, KEY);
    let register = request("REGISTER", "z9hG4bK1", 1);
    let token = start(&mut table, &register);
    assert_eq!(reply(&mut table, ms(100), &register, 200), Reply::Deliver(token));
    assert_eq!(reply(&mut table, ms(100), &register, 200), Reply::Absorbed);
    assert_eq!(table.poll_timeout(), Some(ms(100 + T4_MS)));
    assert_eq!(drain_client(&mut table), (Vec::new(), None));
}

#[test]
fn a_response_to_another_branch_or_method_is_unmatched() {
    let mut table = ClientTransactions::new(4, KEY);
    let token = start(&mut table, &request("INVITE", "z9hG4bK1", 1));
    assert_eq!(reply(&mut table, ms(1), &request("INVITE", "z9hG4bK2", 1), 200), Reply::Unmatched);
    assert_eq!(reply(&mut table, ms(1), &request("CANCEL", "z9hG4bK1", 1), 200), Reply::Unmatched);
    table.forget(token);
    assert_eq!(reply(&mut table, ms(1), &request("INVITE", "z9hG4bK1", 1), 200), Reply::Unmatched);
    assert_eq!(table.poll_timeout(), None);
}

#[test]
fn a_request_that_was_answered_stays_until_it_is_released_and_its_answers_are_known_all_the_same() {
    for method in ["INVITE", "BYE"] {
        let mut table = ClientTransactions::new(4, KEY);
        let text = request(method, "z9hG4bK1", 1);
        let token = start(&mut table, &text);
        table.release(token);
        assert_eq!(table.request(token), Some((text.as_bytes(), peer())), "it is not answered yet");
        assert_eq!(reply(&mut table, ms(100), &text, 200), Reply::Deliver(token));
        assert_eq!(table.request(token), Some((text.as_bytes(), peer())));
        table.release(token);
        assert_eq!((table.request(token), table.peer(token)), (None, Some(peer())));
        let again = if method == "INVITE" { Reply::Deliver(token) } else { Reply::Absorbed };
        assert_eq!(reply(&mut table, ms(600), &text, 200), again);
        let ok = answer(&text, 200);
        assert_eq!(table.receive(ms(600), &Message::parse(&ok).unwrap(), |_| false), Reply::Unmatched);
        assert_eq!(drain_client(&mut table), (Vec::new(), None));
        assert_eq!(table.peer(token), None);
    }
}

#[test]
fn the_ack_to_a_refusal_stays_whatever_its_user_releases() {
    let mut table = ClientTransactions::new(4, KEY);
    let invite = request("INVITE", "z9hG4bK1", 1);
    let token = start(&mut table, &invite);
    assert_eq!(reply(&mut table, ms(100), &invite, 486), Reply::DeliverAndAck(token));
    table.release(token);
    assert_eq!(reply(&mut table, ms(600), &invite, 486), Reply::Ack(token));
    assert!(table.request(token).unwrap().0.starts_with(b"ACK"));
}

/// Timers D, I, J and K of RFC 3261, Table 4; H, L and M are what they are (RFC 6026 section 8).
#[test]
fn over_a_reliable_transport_nothing_is_kept_for_retransmissions() {
    let ends = |table: &ServerTransactions| table.poll_timeout().unwrap().as_nanos() / 1_000_000;
    let mut table = ServerTransactions::new(4, KEY).over_reliable(true);
    let token = open(&mut table, ms(5), &request("OPTIONS", "z9hG4bK1", 1), Role::UserAgent);
    table.respond(ms(10), token, 200, b"ok");
    assert_eq!((table.response(token), ends(&table)), (Some((&b"ok"[..], peer())), 10), "J");
    assert_eq!(table.poll(ms(10)), None);
    assert_eq!(table.gauge().used, 0);
    let token = open(&mut table, ms(10), &request("INVITE", "z9hG4bK2", 1), Role::Proxy);
    table.respond(ms(10), token, 486, b"busy");
    assert_eq!(ends(&table), 32_010, "H");
    assert_eq!(receive(&mut table, ms(20), &request("ACK", "z9hG4bK2", 1)), Received::Acknowledged(token));
    assert_eq!(ends(&table), 20, "I");
    assert_eq!(table.poll(ms(20)), None);
    assert_eq!(table.gauge().used, 0);
    let token = open(&mut table, ms(30), &request("INVITE", "z9hG4bK3", 1), Role::Proxy);
    table.respond(ms(30), token, 200, b"ok");
    assert_eq!(ends(&table), 32_030, "L");

    let mut table = ClientTransactions::new(4, KEY).over_reliable(true);
    let cases = [("BYE", 200, None, "K"), ("INVITE", 486, Some(100), "D"), ("INVITE", 200, Some(32_100), "M")];
    for (method, code, end, timer) in cases {
        let text = request(method, "z9hG4bK1", 1);
        let token = start(&mut table, &text);
        reply(&mut table, ms(100), &text, code);
        assert!(table.request(token).is_some(), "until its user has it");
        table.release(token);
        assert_eq!(table.poll_timeout(), end.map(ms), "{timer}");
        assert_eq!(drain_client(&mut table), (Vec::new(), None));
        assert_eq!(table.gauge().used, 0);
    }
}

/// A request that came by two ways, or one who wants a crowd under one key.
#[test]
fn of_invites_that_an_ack_may_be_for_the_newest_gets_it_and_the_others_end_all_the_same() {
    let mut table = ServerTransactions::new(64, KEY);
    let tokens: Vec<_> = (0..64)
        .map(|nth| {
            let token = open(&mut table, ms(0), &request("INVITE", &format!("z9hG4bK{nth}"), 1), Role::UserAgent);
            table.respond(ms(0), token, 200, b"ok");
            token
        })
        .collect();
    let ack = request("ACK", "z9hG4bKother", 1);
    assert_eq!(receive(&mut table, ms(1), &ack), Received::Acknowledged(tokens[63]));
    assert_eq!(receive(&mut table, ms(1), &ack), Received::Absorbed);
    let (sent, failed) = drain_server(&mut table);
    assert_eq!((sent.len(), failed), (63 * 10, Some(32_000)));
    assert_eq!(table.gauge().used, 0);
    assert_eq!(receive(&mut table, ms(40_000), &ack), Received::New);
}

/// Two tables over a link that loses some of its first six messages.
struct Lossy {
    client: ClientTransactions,
    server: ServerTransactions,
    to_server: Vec<Vec<u8>>,
    to_client: Vec<Vec<u8>>,
    lost: u32,
    requests_seen: u32,
    responses_seen: u32,
}

impl Lossy {
    fn loses(&mut self) -> bool {
        let lost = self.lost & 1 == 1;
        self.lost >>= 1;
        lost
    }

    fn serve(&mut self, now: Instant, bytes: &[u8]) {
        let message = Message::parse(bytes).unwrap();
        let fields = message.essentials().unwrap();
        match self.server.receive(now, &message, &fields) {
            Received::New if message.method() == Some(crate::message::Method::Invite) => {
                self.requests_seen += 1;
                let token = self.server.open(now, &message, &fields, peer(), Role::UserAgent).unwrap();
                let busy = answer(core::str::from_utf8(bytes).unwrap(), 486);
                self.server.respond(now, token, 486, &busy);
                self.to_client.push(busy);
            }
            Received::Resend(token) => self.to_client.push(self.server.response(token).unwrap().0.to_vec()),
            _ => {}
        }
    }

    fn take(&mut self, now: Instant, bytes: &[u8]) {
        let token = match self.client.receive(now, &Message::parse(bytes).unwrap(), |_| true) {
            Reply::DeliverAndAck(token) => {
                self.responses_seen += 1;
                token
            }
            Reply::Ack(token) => token,
            _ => return,
        };
        self.to_server.push(self.client.request(token).unwrap().0.to_vec());
    }

    fn deliver(&mut self, now: Instant) {
        while !self.to_server.is_empty() || !self.to_client.is_empty() {
            for bytes in core::mem::take(&mut self.to_server) {
                if !self.loses() {
                    self.serve(now, &bytes);
                }
            }
            for bytes in core::mem::take(&mut self.to_client) {
                if !self.loses() {
                    self.take(now, &bytes);
                }
            }
        }
    }

    fn tick(&mut self) -> Option<Instant> {
        let now = [self.client.poll_timeout(), self.server.poll_timeout()].into_iter().flatten().min()?;
        while let Some(due) = self.client.poll(now) {
            if let Due::Transmit { bytes, .. } = due {
                self.to_server.push(bytes.to_vec());
            }
        }
        while let Some(due) = self.server.poll(now) {
            if let Due::Transmit { bytes, .. } = due {
                self.to_client.push(bytes.to_vec());
            }
        }
        Some(now)
    }
}

#[test]
fn whichever_messages_are_lost_each_user_sees_the_other_once() {
    for lost in 0..64 {
        let invite = request("INVITE", "z9hG4bK1", 1);
        let mut link = Lossy {
            client: ClientTransactions::new(2, KEY),
            server: ServerTransactions::new(2, KEY),
            to_server: std::vec![invite.clone().into_bytes()],
            to_client: Vec::new(),
            lost,
            requests_seen: 0,
            responses_seen: 0,
        };
        start(&mut link.client, &invite);
        link.deliver(ms(0));
        while let Some(now) = link.tick() {
            link.deliver(now);
        }
        assert_eq!((link.requests_seen, link.responses_seen), (1, 1), "lost {lost:#08b}");
        assert_eq!((link.client.gauge().used, link.server.gauge().used), (0, 0));
    }
}

#[test]
fn an_answer_from_elsewhere_is_to_no_request_of_ours() {
    let mut table = ClientTransactions::new(4, KEY);
    let invite = request("INVITE", "z9hG4bK1", 1);
    let token = start(&mut table, &invite);
    let answer = answer(&invite, 403);
    let answer = Message::parse(&answer).unwrap();
    let elsewhere = SocketAddr::new(peer().ip(), peer().port() + 1);
    assert_eq!(table.receive(ms(1), &answer, |asked| asked == elsewhere), Reply::Unmatched);
    assert_eq!(table.receive(ms(2), &answer, |asked| asked == peer()), Reply::DeliverAndAck(token));
}
