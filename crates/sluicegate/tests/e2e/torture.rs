//! The torture messages of RFC 4475 and RFC 5118, sent to a running frontend.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use sluicegate_sip::message::{Message, Transport};

use crate::support::{
    lab::{CLIENT, CLIENT_V6, FRONTEND, FRONTEND_V6, Lab},
    line::Line,
    node::{Config, Node},
    phone::token,
};

#[path = "../../../protocol/sip/tests/torture/answers.rs"]
mod answers;

use answers::{Behind, Row};

on_packet!(each_torture_message_gets_the_answer_of_its_rfc_over_each_transport, &[], torture);

/// How often all of them are sent to see whether any of them leaves something.
const ROUNDS: usize = 100;
/// What a process may take more after that, in kB: some 20 bytes a message.
const GROWTH_MAX_KB: u64 = 256;
/// Longer than any answer takes.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// How long a frontend has to show that it waits for the rest of a message.
const WAITING_TIME: Duration = Duration::from_secs(1);
/// What carries messages to the frontend and back.
const CARRIERS: [(&str, Transport, IpAddr); 4] = [
    ("UDP over IPv4", Transport::Udp, IpAddr::V4(FRONTEND)),
    ("UDP over IPv6", Transport::Udp, IpAddr::V6(FRONTEND_V6)),
    ("TCP over IPv4", Transport::Tcp, IpAddr::V4(FRONTEND)),
    ("TCP over IPv6", Transport::Tcp, IpAddr::V6(FRONTEND_V6)),
];

/// Sends a message and one that is known to be answered behind it, which shows what comes of the first; and judges that.
fn exchange(line: &Line, row: &Row) {
    let call_id = token();
    let (local, transport) = (line.local(), line.transport().name());
    let options = format!(
        "OPTIONS sip:{realm} SIP/2.0\r\nVia: SIP/2.0/{transport} {local};branch=z9hG4bK{call_id};rport\r\nMax-Forwards: 70\r\n\
         From: <sip:{realm}>;tag=1\r\nTo: <sip:{realm}>\r\nCall-ID: {call_id}\r\nCSeq: 1 OPTIONS\r\n\
         Content-Length: 0\r\n\r\n",
        realm = answers::REALM,
    );
    let is_stream = line.transport() != Transport::Udp;
    let is_endless = is_stream && row.on_stream().1 == Behind::Within;
    line.send(row.message);
    // What has no end would take it for its own, and a stream may be closed already.
    if !is_endless {
        let _ = line.try_send(options.as_bytes());
    }
    let is_last = |answer: &[u8]| Message::parse(answer).is_ok_and(|own| own.call_id() == Ok(call_id.as_bytes()));
    let mut answers = Vec::new();
    let behind = loop {
        match line.receive(if is_endless { WAITING_TIME } else { ANSWER_TIME }) {
            Some(answer) if is_last(&answer) => break Behind::Message,
            Some(answer) => answers.push(answer),
            None if line.ends(Duration::from_millis(1)) => break Behind::Close,
            None => break Behind::Within,
        }
    };
    if is_stream {
        return answers::check_on_stream(row, &answers, behind);
    }
    assert_eq!(behind, Behind::Message, "the answer to OPTIONS is missing");
    answers::check(row, &answers);
}

fn torture(datapath: &'static str) {
    let lab = Lab::new();
    let all = ["udp", "tcp"].map(|by| format!("\"{by}/{FRONTEND}:5060\", \"{by}/[{FRONTEND_V6}]:5060\""));
    let listen = format!("listen = [{}]\n", all.join(", "));
    let config = Config::new(datapath, "").frontend(&(listen + "unproved_answers_per_s = 1000000\n"));
    let file = config.write_frontend(&lab, FRONTEND.into());
    let text = fs::read_to_string(&file).expect("the configuration");
    let realm = format!("realm = \"{}\"", answers::REALM);
    fs::write(&file, text.replace("realm = \"example.net\"", &realm)).expect("the lab's directory is writable");
    let node = Node::start(&lab, "frontend", "frontend", &file);
    node.ready();

    let line = |transport, to: IpAddr| {
        let to = SocketAddr::new(to, 5060);
        match transport {
            Transport::Udp if to.is_ipv4() => Line::udp(&lab, "client", CLIENT, to),
            Transport::Udp => Line::udp(&lab, "client", CLIENT_V6, to),
            _ => Line::tcp(&lab, "client", to),
        }
    };
    let datagrams: Vec<Line> = CARRIERS[..2].iter().map(|(_, by, to)| line(*by, *to)).collect();
    for (name, by, to) in CARRIERS {
        println!("{name}");
        // One message may end a connection.
        answers::ROWS.iter().for_each(|row| exchange(&line(by, to), row));
    }
    let all = || {
        for (line, row) in datagrams.iter().flat_map(|line| answers::ROWS.iter().map(move |row| (line, row))) {
            exchange(line, row);
        }
    };
    all();
    let before = resident_kb(node.program.pid());
    (0..ROUNDS).for_each(|_| all());
    let after = resident_kb(node.program.pid());
    println!("{before} kB before, {after} kB after {} messages", ROUNDS * datagrams.len() * answers::ROWS.len());
    assert!(after <= before + GROWTH_MAX_KB, "{before} kB, then {after} kB");
    for table in node.json(&["status"])["frontend"]["tables"].as_array().expect("tables") {
        println!("{table}");
        assert!(table["used"] == 0, "{table}");
    }
}

/// Memory of a process that no file stands behind.
fn resident_kb(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).expect("a size")
}
