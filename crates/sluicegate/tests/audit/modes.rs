//! What a packet has to prove, and to whom.

mod capability;
mod ports;

use std::time::Duration;

use sluicegate_datapath::raw::{Options, Socket};
use sluicegate_grant::mac::{Ends, Purpose, SessionKeys, client_id_of};
use sluicegate_wire::{
    Reason, build,
    capability::{Algorithm, CAPABILITY_ONLY, ClientId, PROTOCOL, Repr, shim},
    ip::Summary,
};

use crate::support::{
    agent::{Sniffer, TRAILER, UdpEcho, connect, payload, program, talk, with_payload},
    capture::{Capture, Seen},
    lab::{CLIENT, FRONTEND, GATE, Lab, SERVICE},
    let_run,
    node::{Config, Node, service},
    phone::{AUDIO_PORT, Phone, Wish},
    until,
};

on_each_datapath!(security_01_a_sniffer_gets_no_capability_for_a_mac_grant, &[], super::asking_sniffer);
on_each_datapath!(security_13_an_agents_udp_takes_answers_from_its_gate_alone, &[], super::answers);
on_each_datapath!(security_14_a_telephones_pinhole_is_for_the_ports_that_it_named, &[], super::neighbour);
on_each_datapath!(conformance_02_a_forged_address_gets_nothing_through_to_an_agents_service, &[], super::forged_client);

/// Requests that the sniffer makes.
const REQUESTS: usize = 20;

/// A request for a capability in the client's name, on nothing.
fn request(seen: &Seen, client_id: u32) -> Vec<u8> {
    let repr = Repr::request(Algorithm::SipHash, ClientId(client_id), 4, CAPABILITY_ONLY);
    build::packet(seen.from, seen.to, &repr)
}

/// Whether a packet of the gate brings capabilities.
fn grants(seen: &Seen) -> bool {
    let Ok(summary) = Summary::parse(&seen.bytes) else { return false };
    let Ok(Some(found)) = shim::find(&summary, &seen.bytes) else { return false };
    found.packet(&seen.bytes).return_info().is_some_and(|ret| ret.list.is_some_and(|(limits, _)| limits.is_some()))
}

/// Reads the client id off the wire and asks the gate for a capability with it, from the client's own address.
fn asking_sniffer(datapath: &'static str) {
    let lab = Lab::new();
    let echo = UdpEcho::start(&lab);
    let node = Node::up(&lab, &Config::new(datapath, &service("echo", "\"udp/5004\"", "")));
    let mut sniffer = Sniffer::new(&lab);
    let _agent = connect(&lab, GATE, &["-L", "5004:5004/udp"]);
    let socket = program(&lab);
    talk(&socket, "honest");
    let seen = sniffer.capture.seen().last().expect("datagrams were seen").clone();
    let sealed = payload(&seen.bytes);
    let id = u32::from_be_bytes(*sealed[sealed.len() - TRAILER..].first_chunk().expect("a trailer"));

    let answers = Capture::start(&lab, ("core", "to_gate"), |seen| seen.to == CLIENT && seen.protocol == PROTOCOL.0);
    let reached = Capture::start(&lab, ("service", "eth0"), |seen| seen.from == CLIENT);
    let honest = echo.heard();
    sniffer.send(&vec![request(&seen, id); REQUESTS]);
    // A request is answered within 20 ms if nothing else carries the answer.
    let_run(Duration::from_millis(500));
    assert!(!answers.seen().iter().any(grants), "the gate answers with a capability: {:?}", answers.seen().first());
    assert_eq!(reached.count(), 0, "{:?}", reached.seen().first());
    assert_eq!(echo.heard(), honest);
    talk(&socket, "still honest");
    drop(node);
}

#[test]
fn security_22_a_public_client_id_is_worth_nothing_without_the_key() {
    // The client id is in the clear in each trailer: what is asked with it alone gives nothing.
    let keys = SessionKeys::from_bytes([[1; 16], [2; 16]]);
    let ends = Ends::of_request(GATE.into(), CAPABILITY_ONLY);
    let sealed = keys.to_service.trailer(7, Purpose::Request, 1, &ends, b"");
    assert_eq!(client_id_of(&sealed), Some(7));
    assert!(keys.to_service.check(7, &ends, &sealed).is_ok());
    for other in [Purpose::Datagram, Purpose::Translated, Purpose::Proof] {
        let stolen = keys.to_service.trailer(7, other, 1, &ends, b"");
        let as_request = [&stolen[..4], &[Purpose::Request as u8], &stolen[5..]].concat();
        assert_eq!(keys.to_service.check(7, &ends, &as_request), Err(Reason::MacForged), "{other:?}");
    }
}

/// Somebody on the client's network, and on the way, sends answers to every port of the client; and a copy, a change and
/// a reflection of what the gate sends, with the gate's own address.
fn answers(datapath: &'static str) {
    let lab = Lab::new();
    let _echo = UdpEcho::start(&lab);
    let _node = Node::up(&lab, &Config::new(datapath, &service("echo", "\"udp/5004\"", "")));
    let sniffer = Sniffer::new(&lab);
    let back = Capture::start(&lab, ("core", "to_gate"), |seen| {
        seen.to == CLIENT && seen.protocol == 17 && seen.ports.0 != 5060
    });
    let _agent = connect(&lab, GATE, &["-L", "5004:5004/udp"]);
    let socket = program(&lab);
    talk(&socket, "honest");
    let sent = sniffer.capture.seen().last().expect("datagrams were seen").clone();
    let answer = back.seen().into_iter().rfind(|seen| payload(&seen.bytes).starts_with(b"honest")).expect("an answer");

    let wire = lab.host("core").run_in(|| Socket::open("to_client", &Options::send_only())).expect("a namespace");
    let mut wire = wire.expect("a raw socket");
    let ethernet = [&lab.mac("client", "eth0")[..], &lab.mac("core", "to_client"), &[0x08, 0x00]].concat();
    let text = payload(&answer.bytes);
    let mut changed = text.to_vec();
    changed[0] ^= 1;
    let mut packets = vec![answer.bytes.clone(), with_payload(&answer, answer.ports.0, &changed)];
    packets.push(with_payload(&answer, answer.ports.0, b"AN ANSWER FROM A STRANGER"));
    // What the client itself sent, turned round.
    packets.push(with_payload(&answer, answer.ports.0, payload(&sent.bytes)));
    let stranger = Seen { from: FRONTEND.into(), ..answer.clone() };
    packets.push(with_payload(&stranger, answer.ports.0, b"AN ANSWER FROM A STRANGER"));
    packets.push(with_payload(&stranger, answer.ports.0, text));
    let frames: Vec<Vec<u8>> = packets.iter().map(|packet| [&ethernet[..], packet].concat()).collect();
    assert_eq!(wire.send(&frames).expect("the interface is up").sent, frames.len());
    let mut heard = [0; 2048];
    assert!(socket.recv(&mut heard).is_err(), "{:?}", String::from_utf8_lossy(&heard));
    talk(&socket, "still honest");
}

/// Packets with the client's address, to the published port of a `filter` service and to the gate's port of a `nat` one.
fn forged_client(datapath: &'static str) {
    let lab = Lab::new();
    let _echo = UdpEcho::start(&lab);
    let _listener = lab.listen("service", SERVICE, 5005);
    let _node = Node::up(&lab, &Config::new(datapath, &service("echo", "\"udp/5004\", \"tcp/5005\"", "")));
    let mut sniffer = Sniffer::new(&lab);
    let agent = connect(&lab, GATE, &["-L", "5004:5004/udp", "-L", "5005:5005"]);
    let socket = program(&lab);
    talk(&socket, "honest");
    let sent = sniffer.capture.seen().last().expect("datagrams were seen").clone();
    let reached = Capture::start(&lab, ("service", "eth0"), |seen| seen.from == CLIENT);
    let bare: Vec<Vec<u8>> = (0..200_u16).map(|port| with_payload(&sent, 20_000 + port, &[0x58; 200])).collect();
    sniffer.send(&bare);
    let_run(Duration::from_millis(300));
    assert_eq!(reached.count(), 0, "{:?}", reached.seen().first());
    // TCP: before the agent has proved where it is, nobody has opened anything.
    let port = until("the agent says where TCP is open", || tcp_port(&agent.log()));
    assert!(lab.connect("client", (GATE, port).into()).is_err(), "a sign-in alone opens nothing");
    talk(&socket, "still honest");
}

/// The gate's port that stands for the service's TCP port.
fn tcp_port(log: &str) -> Option<u16> {
    let line = log.lines().find(|line| line.contains("range=tcp/5005"))?;
    line.split_once("gate=")?.1.split_whitespace().next()?.rsplit_once(':')?.1.parse().ok()
}

/// Somebody behind the client's address, such as a neighbour behind the same NAT, sends to the telephone's pinhole.
fn neighbour(datapath: &'static str) {
    let lab = Lab::new();
    let _echo = UdpEcho::start(&lab);
    let node = Node::up(&lab, &Config::new(datapath, &service("echo", "\"udp/5004\"", "")));
    let phone = Phone::new(&lab, "client", CLIENT, (GATE, 5060).into(), "alice");
    let call = phone.call("echo", Wish::Audio);
    let reached = Capture::start(&lab, ("service", "eth0"), |seen| seen.from == CLIENT && seen.ports.0 != AUDIO_PORT);
    let before = node.dropped("no_pinhole");
    for port in 20_000..20_100 {
        lab.udp("client", CLIENT, port).send_to(b"a neighbour", call.gate).expect("sent");
    }
    until("its packets are dropped", || (node.dropped("no_pinhole") >= before + 100).then_some(()));
    assert_eq!(reached.count(), 0, "{:?}", reached.seen().first());
    let own = lab.udp("client", CLIENT, AUDIO_PORT);
    own.connect(call.gate).expect("a socket");
    own.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
    talk(&own, "the telephone");
}
