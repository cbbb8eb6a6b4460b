//! Somebody on the client's path who sees every datagram of an agent, and can copy, change and send whatever he likes
//! with the client's address.

use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use sluicegate_datapath::raw::{Options, Socket};
use sluicegate_wire::{IpProtocol, ipv4, udp};

use crate::support::{
    BINARY, PATIENCE,
    capture::{Capture, Seen},
    lab::{CLIENT, FRONTEND, GATE, Lab, SERVICE},
    let_run,
    node::{Config, Node, REALM, join, password_file, service},
    program::Program,
    until, within,
};

on_each_datapath!(a_sniffer_that_copies_forges_or_replays_on_the_path_gets_no_byte_through, &[], super::sniffer);
on_packet!(a_gate_without_the_key_says_so_until_the_feed_brings_it_again, &[], gate_without_key);
on_packet!(after_a_restart_of_everything_the_next_renewal_brings_a_new_key, &[], all_restarted);

const LOCAL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 5004);
const TRAILER: usize = 20;
/// Datagrams that the sniffer may learn from, and honest ones after his attack.
const HONEST: usize = 20;
/// How often each captured datagram is sent again.
const COPIES: usize = 50;

/// A UDP service that sends back what it gets, and remembers it.
struct Echo {
    heard: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Echo {
    fn start(lab: &Lab) -> Self {
        let socket = lab.udp("service", SERVICE, 5004);
        let heard = Arc::<Mutex<Vec<Vec<u8>>>>::default();
        let all = Arc::clone(&heard);
        // Ends with the test process; it holds nothing but a socket.
        thread::spawn(move || {
            let mut bytes = [0; 2048];
            while let Ok((len, from)) = socket.recv_from(&mut bytes) {
                all.lock().expect("not poisoned").push(bytes[..len].to_vec());
                let _ = socket.send_to(&bytes[..len], from);
            }
        });
        Self { heard }
    }

    fn heard(&self) -> Vec<Vec<u8>> {
        self.heard.lock().expect("not poisoned").clone()
    }
}

/// `sluicegate connect` of alice in the background.
fn connect(lab: &Lab, frontend: Ipv4Addr, how: &[&str]) -> Program {
    let (password, frontend) = (password_file(lab).display().to_string(), format!("{frontend}:5060"));
    let fixed = ["connect", "alice@echo", "--frontend", &frontend, "--realm", REALM, "--password-file", &password];
    let agent = Program::start(lab, "client", "connect", BINARY, &[&fixed[..], how].concat());
    agent.says("ready");
    agent
}

/// A program on the client's host that talks through the agent's forward.
fn program(lab: &Lab) -> UdpSocket {
    let socket = lab.udp("client", Ipv4Addr::LOCALHOST, 0);
    socket.connect(LOCAL).expect("a socket");
    socket.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
    socket
}

/// Sends `text` until it comes back.
fn exchange(socket: &UdpSocket, text: &str) -> bool {
    let mut answer = [0; 2048];
    for _ in 0..4 {
        socket.send(text.as_bytes()).expect("the agent listens");
        while let Ok(len) = socket.recv(&mut answer) {
            if answer[..len] == *text.as_bytes() {
                return true;
            }
        }
    }
    false
}

fn talk(socket: &UdpSocket, what: &str) {
    for number in 0..HONEST {
        let text = format!("{what} {number}");
        assert!(exchange(socket, &text), "{text:?} does not come back");
    }
}

/// The mode of the only grant.
fn mode(node: &Node) -> String {
    let rows = node.json(&["grant", "ls"]);
    assert_eq!(rows.as_array().map(Vec::len), Some(1), "{rows}");
    rows[0]["mode"].as_str().unwrap_or_default().to_owned()
}

/// A sniffer between client and gate.
struct Sniffer {
    socket: Socket,
    ethernet: Vec<u8>,
    capture: Capture,
}

impl Sniffer {
    fn new(lab: &Lab) -> Self {
        let is_sealed = |seen: &Seen| seen.from == CLIENT && seen.protocol == 17 && seen.ports.1 != 5060;
        let socket = lab.host("core").run_in(|| Socket::open("to_gate", &Options::send_only())).expect("a namespace");
        let ethernet = [&lab.mac("gate", "outside")[..], &lab.mac("core", "to_gate"), &[0x08, 0x00]].concat();
        let capture = Capture::start(lab, ("core", "to_client"), is_sealed);
        Self { socket: socket.expect("a raw socket"), ethernet, capture }
    }

    /// Sends packets in the client's name, slowly enough for every one of them to be judged.
    fn send(&mut self, packets: &[Vec<u8>]) {
        for part in packets.chunks(50) {
            let frames: Vec<Vec<u8>> = part.iter().map(|packet| [&self.ethernet[..], packet].concat()).collect();
            assert_eq!(self.socket.send(&frames).expect("the interface is up").sent, frames.len());
            let_run(Duration::from_millis(5));
        }
    }
}

fn payload(packet: &[u8]) -> &[u8] {
    &packet[ipv4::HEADER_LEN + udp::HEADER_LEN..]
}

/// The packet with another payload and source port, checksums right.
fn with_payload(seen: &Seen, src_port: u16, payload: &[u8]) -> Vec<u8> {
    let (IpAddr::V4(src), IpAddr::V4(dst)) = (seen.from, seen.to) else { panic!("IPv4") };
    let datagram = udp::Repr { src_port, dst_port: seen.ports.1, payload };
    let len = u16::try_from(datagram.buffer_len()).expect("short");
    let mut packet = vec![0; ipv4::HEADER_LEN + datagram.buffer_len()];
    ipv4::Repr::new(src, dst, IpProtocol::UDP, len).emit(&mut ipv4::Packet::new_unchecked(&mut packet[..]));
    datagram.emit(&mut udp::Packet::new_unchecked(&mut packet[ipv4::HEADER_LEN..]), src.into(), dst.into());
    packet
}

fn sniffer(datapath: &'static str) {
    let lab = Lab::new();
    let echo = Echo::start(&lab);
    let node = Node::up(&lab, &Config::new(datapath, &service("echo", "\"udp/5004\"", "")));
    let mut sniffer = Sniffer::new(&lab);
    let agent = connect(&lab, GATE, &["-L", "5004:5004/udp", "--socks", "127.0.0.1:1080"]);
    assert_eq!(mode(&node), "mac");
    agent.says("mode=\"mac\"");

    let socket = program(&lab);
    talk(&socket, "honest");
    let seen = sniffer.capture.seen();
    let texts: Vec<&[u8]> = seen.iter().map(|seen| payload(&seen.bytes)).collect();
    assert!(texts[0].starts_with(b"honest 0") && texts[0].len() == b"honest 0".len() + TRAILER, "{:?}", texts[0]);
    let honest = echo.heard();
    let reached = Capture::start(&lab, ("service", "eth0"), |seen| seen.from == CLIENT);

    let replayed: Vec<Vec<u8>> = (0..COPIES).flat_map(|_| seen.iter().map(|seen| seen.bytes.clone())).collect();
    let last = seen.last().expect("datagrams were seen");
    let sealed = payload(&last.bytes);
    let at = sealed.len() - TRAILER;
    let change = |at: usize, flip: u8| {
        let mut text = sealed.to_vec();
        text[at] ^= flip;
        with_payload(last, last.ports.0, &text)
    };
    // Another payload; the next sequence number; another tag.
    let forged: Vec<Vec<u8>> = [0, at + 11, at + 12, sealed.len() - 1]
        .iter()
        .flat_map(|at| (0..8).map(move |bit| (*at, 1 << bit)))
        .map(|(at, flip)| change(at, flip))
        .collect();
    let mut bare: Vec<Vec<u8>> = (0..8).map(|bit| change(at + 3, 1 << bit)).collect();
    for port in [last.ports.0, 40_000] {
        let texts: [&[u8]; 3] = [b"", b"short", &[0x58; 200]];
        bare.extend(texts.map(|text| with_payload(last, port, text)));
    }
    sniffer.send(&replayed);
    sniffer.send(&forged);
    sniffer.send(&bare);
    for (reason, packets) in [("mac_replayed", &replayed), ("mac_forged", &forged), ("mac_missing", &bare)] {
        let judged = within(PATIENCE, || (node.dropped(reason) >= packets.len() as u64).then_some(()));
        assert!(judged.is_some(), "{reason}: {} of {}", node.dropped(reason), packets.len());
        assert_eq!(node.dropped(reason), packets.len() as u64, "each is counted once, under {reason}");
    }
    assert_eq!(reached.count(), 0, "{:?}", reached.seen().first());
    assert_eq!(echo.heard(), honest, "the service got what the client sent, and nothing else");

    talk(&socket, "still honest");
    let through_socks = socks_exchange(&lab, b"by way of SOCKS");
    assert_eq!(through_socks, b"by way of SOCKS");
    assert!(
        echo.heard()
            .iter()
            .all(|text| text.starts_with(b"honest") || text.starts_with(b"still") || text.starts_with(b"by"))
    );
    assert_eq!(mode(&node), "mac");

    // One byte more than fits the path's MTU together with the trailer.
    socket.send(&[0x4d; 1_453]).expect("the agent listens");
    agent.says("does not fit the path's MTU");
    assert!(agent.log().contains("bytes_max=1452"), "{}", agent.log());
    assert!(exchange(&socket, &"M".repeat(1_452)), "the longest datagram that fits arrives");
}

/// One datagram through the agent's SOCKS5 proxy and back (RFC 1928 section 7).
fn socks_exchange(lab: &Lab, text: &[u8]) -> Vec<u8> {
    let mut control = lab.connect("client", "127.0.0.1:1080".parse().expect("an address")).expect("the proxy listens");
    control.write_all(&[5, 1, 0]).expect("a greeting");
    let (mut hello, mut reply) = ([0; 2], [0; 10]);
    control.read_exact(&mut hello).expect("an answer");
    control.write_all(&[5, 3, 0, 1, 0, 0, 0, 0, 0, 0]).expect("a request");
    control.read_exact(&mut reply).expect("a reply");
    assert_eq!((hello, reply[1]), ([5, 0], 0), "{reply:?}");
    let relay = SocketAddr::from(([127, 0, 0, 1], u16::from_be_bytes([reply[8], reply[9]])));
    let socket = lab.udp("client", Ipv4Addr::LOCALHOST, 0);
    socket.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
    let head = [&[0, 0, 0, 1][..], &SERVICE.octets(), &5004_u16.to_be_bytes()].concat();
    socket.send_to(&[&head[..], text].concat(), relay).expect("the relay listens");
    let mut answer = [0; 2048];
    let len = socket.recv(&mut answer).expect("an answer through the relay");
    answer[head.len()..len].to_vec()
}

fn gate_without_key(datapath: &'static str) {
    let lab = Lab::new();
    let _echo = Echo::start(&lab);
    let config = Config::new(datapath, &service("echo", "\"udp/5004\"", ""));
    let frontend = Node::start(&lab, "frontend", "frontend", &config.write_frontend(&lab, FRONTEND.into()));
    frontend.ready();
    frontend.add_people(&lab);
    let gate_file = config.write_gate(&lab);
    join(&lab, &frontend, &gate_file);
    let mut gate = Node::start(&lab, "gate", "gate", &gate_file);
    gate.ready();
    frontend.has_gate();
    let sniffer = Sniffer::new(&lab);
    let _agent = connect(&lab, FRONTEND, &["-L", "5004:5004/udp"]);
    let socket = program(&lab);
    talk(&socket, "before");
    assert_eq!(mode(&gate), "mac");

    // What a killed gate remembers of sequence numbers is what its last checkpoint has.
    let talked = Instant::now();
    until("a checkpoint has what was said", || {
        let age = gate.json(&["status"])["gate"]["saved"]["checkpoint_age_ms"].as_u64()?;
        (u128::from(age) < talked.elapsed().as_millis()).then_some(())
    });
    // The frontend hears and says nothing for a while; the gate dies meanwhile.
    frontend.program.signal(Signal::SIGSTOP);
    let_run(Duration::from_millis(600));
    gate.program.kill();
    gate.program = Node::start(&lab, "gate", "gate", &gate_file).program;
    until("the gate refuses what it cannot check", || {
        socket.send(b"during").expect("the agent listens");
        within(Duration::from_secs(1), || gate.try_dropped("mode_too_weak").filter(|count| *count > 0))
    });
    let seen = sniffer.capture.seen().last().expect("datagrams were seen").clone();
    let steps = trace(&gate, &seen);
    assert!(steps.contains("this gate has not got the key"), "{steps}");
    let mut buffer = [0; 64];
    while socket.recv(&mut buffer).is_ok() {}

    frontend.program.signal(Signal::SIGCONT);
    until("datagrams pass again", || exchange(&socket, "after").then_some(()));
    talk(&socket, "after");
    // What was captured before the gate died is as old as ever.
    let mut sniffer = sniffer;
    let before: Vec<Vec<u8>> = sniffer.capture.seen().into_iter().map(|seen| seen.bytes).take(HONEST).collect();
    sniffer.send(&before);
    until("replays of what was sent before the restart are counted", || {
        (gate.dropped("mac_replayed") >= before.len() as u64).then_some(())
    });
}

/// What `trace` says of a packet that was seen.
fn trace(gate: &Node, seen: &Seen) -> String {
    let source = SocketAddr::new(seen.from, seen.ports.0);
    let flow = format!("udp {source} > {}", SocketAddr::new(seen.to, seen.ports.1));
    gate.json(&["trace", "--flow", &flow]).to_string()
}

fn all_restarted(datapath: &'static str) {
    let lab = Lab::new();
    let _echo = Echo::start(&lab);
    let short = "grant = { bytes_max = \"10MB\", lifetime_s = 16, rate = \"10Mbit\" }\n";
    let mut node = Node::up(&lab, &Config::new(datapath, &service("echo", "\"udp/5004\"", short)));
    let agent = connect(&lab, GATE, &["-L", "5004:5004/udp"]);
    let socket = program(&lab);
    talk(&socket, "before");
    // A renewal goes on with key and numbers.
    agent.says("renewed");
    talk(&socket, "renewed");
    node.program.kill();
    node.restart(&lab);
    let down = Instant::now();
    until("datagrams pass again", || exchange(&socket, "after").then_some(()));
    println!("datagrams passed again {:?} after the restart", down.elapsed());
    talk(&socket, "after");
    assert_eq!((mode(&node).as_str(), node.grants().len()), ("mac", 1));
}
