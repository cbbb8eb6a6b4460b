//! What a transaction takes, from its first message to its end: counted, not promised.

use std::{
    hint::black_box,
    net::{IpAddr, Ipv4Addr},
    num::NonZeroU32,
    time::Duration,
};

use allocation_counter::measure;
use sluicegate_sip::{
    message::Message,
    transaction::{ClientTransactions, Received, Reply, Role, ServerTransactions},
    write::{Response, ack_for_final},
};
use sluicegate_wire::Instant;

const KEY: [u8; 16] = [9; 16];
/// How many of one kind are looked at: enough that what is there once for all does not count.
const MANY: u32 = 8_192;
/// What a transaction has beside its slot and its message while it is under way or keeps one. Room for as many again may have
/// been made.
const RECORD: u64 = 96;

/// Where messages go, as the proxy says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Peer {
    ip: IpAddr,
    listener: u8,
    port: u16,
    scope_id: u32,
    connection: Option<NonZeroU32>,
}

const PEER: Peer =
    Peer { ip: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), listener: 0, port: 5060, scope_id: 0, connection: None };

type Server = ServerTransactions<Peer>;
type Client = ClientTransactions<Peer>;

fn now() -> Instant {
    Instant::from_secs(1_000)
}

fn request(method: &str, nth: u32) -> Vec<u8> {
    let head = format!(
        "{method} sip:b@example.net SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.1;branch=z9hG4bK{nth}\r\nMax-Forwards: 70\r\n\
        From: <sip:a@example.net>;tag=a\r\nTo: <sip:b@example.net>\r\nCall-ID: call-{nth:08}\r\nCSeq: 1 {method}\r\n"
    );
    format!("{head}Content-Length: 600\r\n\r\n{:600}", "").into_bytes()
}

fn response(request: &[u8], code: u16) -> Vec<u8> {
    let mut out = Vec::new();
    let request = Message::parse(request).unwrap();
    Response::to(&request, code).to_tag(b"t").begin(&mut out).body("application/sdp", &[b'x'; 500]);
    out
}

/// Opens as many transactions as there is room for, and answers each.
fn opened(method: &str, role: Role, code: u16) -> Server {
    let mut table = Server::new(MANY as usize, KEY);
    for nth in 0..MANY {
        let request = request(method, nth);
        let message = Message::parse(&request).unwrap();
        let token = table.open(now(), &message, &message.essentials().unwrap(), PEER, role).unwrap();
        assert!(table.respond(now(), token, 100, &response(&request, 100)));
        assert!(table.respond(now(), token, code, &response(&request, code)));
    }
    table
}

/// The same after the ACK to each.
fn acknowledged(role: Role, code: u16) -> Server {
    let mut table = opened("INVITE", role, code);
    for nth in 0..MANY {
        let ack = String::from_utf8(request("ACK", nth)).unwrap();
        // To a 2xx it has a branch of its own.
        let ack = if code < 300 { ack.replace("branch=z9hG4bK", "branch=z9hG4bKack") } else { ack };
        let ack = Message::parse(ack.as_bytes()).unwrap();
        let received = table.receive(now(), &ack, &ack.essentials().unwrap());
        assert_eq!(received == Received::New, role == Role::Proxy && code < 300);
    }
    table
}

/// Asks as much as there is room for, which is all answered, and released unless it is to be kept.
fn asked(method: &str, code: u16, is_kept: bool) -> Client {
    let mut table = Client::new(MANY as usize, KEY);
    for nth in 0..MANY {
        let request = request(method, nth);
        let token = table.start(now(), &Message::parse(&request).unwrap(), PEER).unwrap();
        let reply = table.receive(now(), &Message::parse(&response(&request, code)).unwrap(), |peer| peer == PEER);
        assert!(matches!(reply, Reply::Deliver(_) | Reply::DeliverAndAck(_)));
        if !is_kept {
            table.release(token);
        }
    }
    table
}

/// Bytes that each transaction takes which `make` leaves behind.
fn each<T>(what: &str, make: impl FnOnce() -> T) -> u64 {
    let mut made = None;
    let bytes = measure(|| made = Some(make())).bytes_current.cast_unsigned() / u64::from(MANY);
    drop(made);
    println!("{what:54} {bytes:5} bytes");
    bytes
}

#[test]
fn a_slot_takes_64_bytes_at_most_with_all_that_its_table_needs_for_it() {
    for max in [1_000, 1_024, 16_384, 65_536, 65_537, 100_000, 1 << 20] {
        let made =
            [measure(|| drop(black_box(Server::new(max, KEY)))), measure(|| drop(black_box(Client::new(max, KEY))))];
        for bytes in made.map(|made| made.bytes_max) {
            println!("{max:8} slots: {bytes:9} bytes, {:.1} a slot", bytes as f64 / max as f64);
            assert!(bytes <= 64 * max as u64);
        }
    }
}

#[test]
fn a_transaction_that_is_over_takes_64_bytes_and_what_may_have_to_be_sent_again() {
    use Role::{Proxy, UserAgent};

    let invite = request("INVITE", 0);
    let (ok, busy) = (response(&invite, 200), response(&invite, 486));
    let mut ack = Vec::new();
    ack_for_final(&Message::parse(&invite).unwrap(), &Message::parse(&busy).unwrap(), &mut ack).unwrap();
    let (asks, answers, acks) = (invite.len() as u64, ok.len() as u64, ack.len() as u64);
    // Numbers in the messages have up to four digits.
    let is_kept = |bytes: u64, message: u64| (64 + message..=64 + message + 2 * RECORD + 16).contains(&bytes);

    let is_over = [
        each("relayed INVITE, 2xx acknowledged", || acknowledged(Proxy, 200)),
        each("relayed INVITE, refusal acknowledged", || acknowledged(Proxy, 486)),
        each("our own 2xx, acknowledged", || acknowledged(UserAgent, 200)),
        each("our own refusal, acknowledged", || acknowledged(UserAgent, 486)),
        each("INVITE of ours, accepted and released", || asked("INVITE", 200, false)),
        each("BYE of ours, answered and released", || asked("BYE", 200, false)),
    ];
    assert!(is_over.iter().all(|bytes| *bytes <= 64), "{is_over:?}");
    assert!(is_kept(each("relayed INVITE, 2xx on its way", || opened("INVITE", Proxy, 200)), answers));
    assert!(is_kept(each("INVITE, refusal on its way", || opened("INVITE", UserAgent, 486)), answers));
    assert!(is_kept(each("request other than INVITE, answered", || opened("INFO", UserAgent, 200)), answers));
    assert!(is_kept(each("INVITE of ours, accepted", || asked("INVITE", 200, true)), asks));
    assert!(is_kept(each("INVITE of ours, refused", || asked("INVITE", 486, false)), acks));
}

#[test]
fn a_burst_leaves_no_memory_behind() {
    let mut table = None;
    let burst = measure(|| table = Some(opened("INVITE", Role::Proxy, 486))).bytes_current;
    let mut table = table.unwrap();
    let late = now() + Duration::from_secs(60);
    let left = burst + measure(|| while table.poll(late).is_some() {}).bytes_current;
    println!("in the burst {burst} bytes, and after it {left}");
    assert!(burst > i64::from(MANY) * 700);
    assert!(left <= i64::from(MANY) * 64 + 8_192);
    assert_eq!(table.gauge().used, 0);
}
