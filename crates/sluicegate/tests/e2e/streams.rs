//! SIP over TCP and TLS: calls, messages in pieces, and what strangers do with connections.

use std::{
    net::{SocketAddr, TcpStream},
    thread,
    time::Duration,
};

use sluicegate_sip::message::{HeaderName, Message, Transport};

use crate::authority::Authority;
use crate::support::{
    PATIENCE,
    lab::{GATE, Lab, SERVICE},
    let_run,
    line::Line,
    node::{Config, Node, service},
    pbx::{Pbx, request_within},
    phone::{Call, Phone, Wish, token},
    until,
};

on_packet!(phones_call_over_tcp_and_tls_and_are_called_off_whichever_thread_has_their_connection, &[], calls);
on_packet!(messages_come_byte_by_byte_and_two_in_one_segment, &[], pieces);
on_packet!(a_slow_sender_is_cut_and_a_flood_of_idle_connections_keeps_nobody_out, &[], floods);
on_packet!(one_account_keeps_no_more_connections_than_one_may, &[], one_account);
on_packet!(over_tls_everybody_shows_a_certificate_where_that_is_asked, &[], certificates);

const TCP: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(GATE), 5060);
pub(crate) const TLS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(GATE), 5061);
/// Phones at once: that all their connections are of one of two threads happens once in 2,000 runs.
const PHONES: usize = 12;

/// A node whose frontend speaks everything, in two threads, with `more` in its section.
pub(crate) fn node(lab: &Lab, datapath: &'static str, authority: &Authority, more: &str) -> Node {
    let (certificate, key) = authority.sign("frontend", &GATE.to_string());
    let client_ca =
        if more.contains("# client_ca") { format!(", client_ca = {:?}", authority.ca()) } else { String::new() };
    let pbx = service("pbx", "\"udp/10000-10099\"", "kind = \"sip\"\n");
    let frontend = format!(
        "shards = 2\nlisten = [\"udp/{TCP}\", \"tcp/{TCP}\", \"tls/{TLS}\"]\n\
         tls = {{ certificate = {certificate:?}, key = {key:?}{client_ca} }}\n{more}\n"
    );
    let local = "local = [\"udp/5060\", \"tcp/5060\", \"tcp/5061\"]\n";
    Node::up(lab, &Config::new(datapath, &pbx).frontend(&frontend).gate(local))
}

fn tcp_phone(lab: &Lab) -> Phone {
    Phone::over(Line::tcp(lab, "client", TCP), "alice")
}

fn calls(datapath: &'static str) {
    let (lab, authority) = (Lab::new(), Authority::new());
    let node = node(&lab, datapath, &authority, "");
    let pbx = Pbx::start(&lab);
    let tls = authority.client(None);
    let phones = (0..PHONES).map(|number| match number % 2 {
        0 => tcp_phone(&lab),
        _ => Phone::over(Line::tls(&lab, "client", TLS, tls.clone()), "alice"),
    });
    let calls: Vec<(Phone, Call)> = phones.map(|phone| (phone.call("pbx", Wish::Audio), phone)).map(swap).collect();
    assert_eq!(node.grants().len(), PHONES);
    let used = |table: &str| {
        let status = node.json(&["status"]);
        let tables = status["frontend"]["tables"].as_array().expect("tables");
        tables.iter().find(|row| row["table"] == table).expect("a table")["used"].as_u64()
    };
    until("all of them are counted", || {
        let counted = (used("connections"), used("unproved_connections"));
        (counted == (Some(PHONES as u64), Some(0))).then_some(())
    });
    for (number, (phone, call)) in calls.into_iter().enumerate() {
        if number < 2 {
            assert_eq!(phone.bye(call).status, 200);
            continue;
        }
        pbx.send(TCP, &bye_of_pbx(&pbx, &call));
        let bye = phone.line.receive(PATIENCE).expect("the PBX's BYE");
        let bye = Message::parse(&bye).expect("a message");
        assert!(bye.method().is_some_and(|method| method.as_bytes() == b"BYE"), "{bye:?}");
        let mut ok = Vec::new();
        sluicegate_sip::write::Response::to(&bye, 200).begin(&mut ok).finish();
        phone.line.send(&ok);
        let call_id = text(&bye, HeaderName::CallId);
        until("the PBX has the answer to its BYE", || {
            pbx.heard().iter().any(|heard| heard.starts_with("SIP/2.0 200") && heard.contains(&call_id)).then_some(())
        });
    }
    until("no grant is left", || node.grants().is_empty().then_some(()));
}

fn swap((call, phone): (Call, Phone)) -> (Phone, Call) {
    (phone, call)
}

fn text(message: &Message<'_>, name: HeaderName) -> String {
    String::from_utf8_lossy(message.header(name).unwrap_or_default()).into_owned()
}

/// The BYE by which the PBX ends a call: From and To change places.
fn bye_of_pbx(pbx: &Pbx, call: &Call) -> Vec<u8> {
    let authorised = Message::parse(&call.authorised).expect("an INVITE");
    let call_id = text(&authorised, HeaderName::CallId);
    let heard = pbx.heard();
    let invite =
        heard.iter().find(|heard| heard.starts_with("INVITE") && heard.contains(&call_id)).expect("its INVITE");
    request_within(invite.as_bytes(), ("BYE", 1), (Transport::Udp, (SERVICE, 5060).into()), ("", ""))
}

fn pieces(datapath: &'static str) {
    let (lab, authority) = (Lab::new(), Authority::new());
    let _node = node(&lab, datapath, &authority, "");
    let phone = tcp_phone(&lab);
    let options = |call_id: &str| {
        format!(
            "OPTIONS sip:example.net SIP/2.0\r\nVia: SIP/2.0/TCP {local};branch=z9hG4bK{branch}\r\nMax-Forwards: 70\r\n\
             From: <sip:alice@example.net>;tag=1\r\nTo: <sip:example.net>\r\nCall-ID: {call_id}\r\nCSeq: 1 OPTIONS\r\n\
             Content-Length: 4\r\n\r\nbody",
            local = phone.local(),
            branch = token(),
        )
    };
    let answered = || {
        let answer = phone.line.receive(PATIENCE).expect("an answer");
        text(&Message::parse(&answer).expect("a message"), HeaderName::CallId)
    };
    for byte in options("one").bytes() {
        phone.send(&[byte]);
    }
    assert_eq!(answered(), "one");
    phone.send((options("two") + "\r\n\r\n" + &options("three")).as_bytes());
    assert_eq!([answered(), answered()], ["two", "three"]);
    // Without a length nobody knows where it ends: it is answered, and the connection ends.
    let endless = options("four").replace("Content-Length: 4\r\n", "");
    let refusal = phone.ask(endless.as_bytes());
    assert_eq!(refusal.status, 400);
    assert!(phone.line.ends(PATIENCE));
}

fn floods(datapath: &'static str) {
    let (lab, authority) = (Lab::new(), Authority::new());
    // Idle connections may stay as long as the test: nothing but crowding ends them.
    let connections = "connections = { total_max = 200, unproved_max = 60, per_source_max = 150, per_source_per_s = 100000, \
                       first_message_s = 600, message_s = 1 }";
    let node = node(&lab, datapath, &authority, connections);
    let _pbx = Pbx::start(&lab);
    let slow = tcp_phone(&lab);
    slow.send(&slow.invite("pbx", Wish::Audio, ("slow", "tag", 1), ""));
    assert!(slow.line.receive(PATIENCE).is_some());
    slow.send(b"INVITE sip:pbx@example.net SIP/2.0\r\nSubject: ");
    thread::scope(|scope| {
        scope.spawn(|| {
            // A byte now and then does not help.
            while slow.line.try_send(b"x").is_ok() {
                let_run(Duration::from_millis(100));
            }
        });
        until("the slow sender is cut", || (ended(&node, "slow") == 1).then_some(()));
    });

    let signed_in = tcp_phone(&lab);
    let call = signed_in.call("pbx", Wish::Audio);
    let idle = |host: &str| -> Vec<TcpStream> {
        (0..400).map(|_| lab.connect(host, TCP).expect("the frontend takes connections")).collect()
    };
    let _held = [idle("stranger"), idle("client")];
    until("they crowd each other out", || (ended(&node, "crowded") > 500).then_some(()));
    // Those that come then get in, from the flooder's own address too; who was there before has lost nothing.
    let late = tcp_phone(&lab);
    assert_eq!(late.line.transport(), Transport::Tcp);
    let another = late.call("pbx", Wish::Audio);
    assert_eq!((late.bye(another).status, signed_in.bye(call).status), (200, 200));
}

fn one_account(datapath: &'static str) {
    let (lab, authority) = (Lab::new(), Authority::new());
    let node = node(&lab, datapath, &authority, "connections = { per_user_max = 1 }");
    let _pbx = Pbx::start(&lab);
    let calls: Vec<_> =
        (0..PHONES).map(|_| tcp_phone(&lab)).map(|phone| (phone.call("pbx", Wish::Audio), phone)).collect();
    // One with each of two threads is left.
    until("the others have ended", || (ended(&node, "user") >= PHONES as u64 - 2).then_some(()));
    let (call, last) = calls.into_iter().next_back().expect("calls");
    assert_eq!(last.bye(call).status, 200);
}

/// How many connections ended for this reason.
fn ended(node: &Node, reason: &str) -> u64 {
    node.json(&["status"])["frontend"]["connections"][format!("ended {reason}")].as_u64().unwrap_or(0)
}

fn certificates(datapath: &'static str) {
    let (lab, authority, other) = (Lab::new(), Authority::new(), Authority::new());
    let _node = node(&lab, datapath, &authority, "# client_ca");
    let _pbx = Pbx::start(&lab);
    let line = |config| Line::tls(&lab, "client", TLS, config);
    let known = Phone::over(line(authority.client(Some(&authority))), "alice");
    let call = known.call("pbx", Wish::Audio);
    assert_eq!(known.bye(call).status, 200);
    for config in [authority.client(None), authority.client(Some(&other))] {
        let stranger = Phone::over(line(config), "alice");
        // TLS 1.3: the client learns of it when it reads.
        let _ = stranger.line.try_send(&stranger.invite("pbx", Wish::Audio, ("call", "tag", 1), ""));
        assert!(stranger.line.ends(PATIENCE));
    }
}
