//! The torture messages of RFC 4475 and RFC 5118, sent to a running frontend.

use std::{
    fs,
    net::{IpAddr, SocketAddr, UdpSocket},
    time::Duration,
};

use sluicegate_sip::message::Message;

use crate::support::{
    lab::{CLIENT, CLIENT_V6, FRONTEND, FRONTEND_V6, Lab},
    node::{Config, Node},
    phone::token,
};

#[path = "../../../protocol/sip/tests/torture/answers.rs"]
mod answers;

on_packet!(each_torture_message_gets_the_answer_of_its_rfc_over_each_transport, &[], torture);

/// How often all of them are sent to see whether any of them leaves something.
const ROUNDS: usize = 100;
/// What a process may take more after that, in kB: some 20 bytes a message.
const GROWTH_MAX_KB: u64 = 256;
/// Longer than any answer takes.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// Something that carries messages to the frontend and back.
struct Carrier {
    name: &'static str,
    socket: UdpSocket,
}

impl Carrier {
    fn udp(lab: &Lab, name: &'static str, own: impl Into<IpAddr>, frontend: impl Into<IpAddr>) -> Self {
        let socket = lab.udp("client", own, 0);
        socket.connect(SocketAddr::new(frontend.into(), 5060)).expect("a route");
        socket.set_read_timeout(Some(ANSWER_TIME)).expect("a timeout");
        Self { name, socket }
    }

    /// What comes back for a message: all that comes before the answer to an OPTIONS that is sent behind it. Both take the same
    /// way, so that they come in their order.
    fn exchange(&self, message: &[u8]) -> Vec<Vec<u8>> {
        let call_id = token();
        let local = self.socket.local_addr().expect("a bound socket");
        let options = format!(
            "OPTIONS sip:{realm} SIP/2.0\r\nVia: SIP/2.0/UDP {local};branch=z9hG4bK{call_id};rport\r\nMax-Forwards: 70\r\n\
             From: <sip:{realm}>;tag=1\r\nTo: <sip:{realm}>\r\nCall-ID: {call_id}\r\nCSeq: 1 OPTIONS\r\n\
             Content-Length: 0\r\n\r\n",
            realm = answers::REALM,
        );
        self.socket.send(message).expect("a route");
        self.socket.send(options.as_bytes()).expect("a route");
        let mut answers = Vec::new();
        loop {
            let mut answer = vec![0; 65_536];
            let len = self.socket.recv(&mut answer).unwrap_or_else(|error| panic!("{}: {error}", self.name));
            answer.truncate(len);
            if Message::parse(&answer).is_ok_and(|answer| answer.call_id() == Ok(call_id.as_bytes())) {
                return answers;
            }
            answers.push(answer);
        }
    }
}

fn torture(datapath: &'static str) {
    let lab = Lab::new();
    let listen = format!("listen = [\"udp/{FRONTEND}:5060\", \"udp/[{FRONTEND_V6}]:5060\"]\n");
    let config = Config::new(datapath, "").frontend(&(listen + "unproved_answers_per_s = 1000000\n"));
    let file = config.write_frontend(&lab, FRONTEND.into());
    let text = fs::read_to_string(&file).expect("the configuration");
    let realm = format!("realm = \"{}\"", answers::REALM);
    fs::write(&file, text.replace("realm = \"example.net\"", &realm)).expect("the lab's directory is writable");
    let node = Node::start(&lab, "frontend", "frontend", &file);
    node.ready();

    let carriers = [
        Carrier::udp(&lab, "UDP over IPv4", CLIENT, FRONTEND),
        Carrier::udp(&lab, "UDP over IPv6", CLIENT_V6, FRONTEND_V6),
    ];
    for carrier in &carriers {
        println!("{}", carrier.name);
        for row in answers::ROWS {
            answers::check(row, &carrier.exchange(row.message));
        }
    }
    let all = || {
        for (carrier, row) in carriers.iter().flat_map(|carrier| answers::ROWS.iter().map(move |row| (carrier, row))) {
            answers::check(row, &carrier.exchange(row.message));
        }
    };
    all();
    let before = resident_kb(node.program.pid());
    (0..ROUNDS).for_each(|_| all());
    let after = resident_kb(node.program.pid());
    println!("{before} kB before, {after} kB after {} messages", ROUNDS * carriers.len() * answers::ROWS.len());
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
