//! Agents of the real binary, a UDP service behind them, and somebody on the path between client and gate.

use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use sluicegate_datapath::raw::{Options, Socket};
use sluicegate_wire::{build, ipv4, udp};

use super::{
    BINARY,
    capture::{Capture, Seen},
    lab::{CLIENT, Lab, SERVICE},
    let_run,
    node::{REALM, password_file},
    program::Program,
};

/// Where the agent's forward listens.
pub(crate) const LOCAL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 5004);
/// Bytes of a packet MAC.
pub(crate) const TRAILER: usize = 20;
/// Datagrams that the sniffer may learn from, and honest ones after his attack.
pub(crate) const HONEST: usize = 20;

/// A UDP service that sends back what it gets, and remembers it.
pub(crate) struct UdpEcho {
    heard: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl UdpEcho {
    pub(crate) fn start(lab: &Lab) -> Self {
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

    pub(crate) fn heard(&self) -> Vec<Vec<u8>> {
        self.heard.lock().expect("not poisoned").clone()
    }
}

/// `sluicegate connect` of alice in the background, to the service "echo", once it is ready.
pub(crate) fn connect(lab: &Lab, frontend: Ipv4Addr, how: &[&str]) -> Program {
    let agent = connect_to(lab, frontend, "echo", how);
    agent.says("ready");
    agent
}

/// `sluicegate connect` of alice in the background.
pub(crate) fn connect_to(lab: &Lab, frontend: Ipv4Addr, service: &str, how: &[&str]) -> Program {
    let (target, frontend) = (format!("alice@{service}"), format!("{frontend}:5060"));
    let password = password_file(lab).display().to_string();
    let fixed = ["connect", &target, "--frontend", &frontend, "--realm", REALM, "--password-file", &password];
    Program::start(lab, "client", "connect", BINARY, &[&fixed[..], how].concat())
}

/// A program on the client's host that talks through the agent's forward.
pub(crate) fn program(lab: &Lab) -> UdpSocket {
    let socket = lab.udp("client", Ipv4Addr::LOCALHOST, 0);
    socket.connect(LOCAL).expect("a socket");
    socket.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
    socket
}

/// Sends `text` until it comes back.
pub(crate) fn exchange(socket: &UdpSocket, text: &str) -> bool {
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

pub(crate) fn talk(socket: &UdpSocket, what: &str) {
    for number in 0..HONEST {
        let text = format!("{what} {number}");
        assert!(exchange(socket, &text), "{text:?} does not come back");
    }
}

/// A sniffer between client and gate.
pub(crate) struct Sniffer {
    socket: Socket,
    ethernet: Vec<u8>,
    pub(crate) capture: Capture,
}

impl Sniffer {
    pub(crate) fn new(lab: &Lab) -> Self {
        let is_sealed = |seen: &Seen| seen.from == CLIENT && seen.protocol == 17 && seen.ports.1 != 5060;
        let socket = lab.host("core").run_in(|| Socket::open("to_gate", &Options::send_only())).expect("a namespace");
        let ethernet = [&lab.mac("gate", "outside")[..], &lab.mac("core", "to_gate"), &[0x08, 0x00]].concat();
        let capture = Capture::start(lab, ("core", "to_client"), is_sealed);
        Self { socket: socket.expect("a raw socket"), ethernet, capture }
    }

    /// Sends packets in the client's name, slowly enough for every one of them to be judged.
    pub(crate) fn send(&mut self, packets: &[Vec<u8>]) {
        for part in packets.chunks(50) {
            let frames: Vec<Vec<u8>> = part.iter().map(|packet| [&self.ethernet[..], packet].concat()).collect();
            assert_eq!(self.socket.send(&frames).expect("the interface is up").sent, frames.len());
            let_run(Duration::from_millis(5));
        }
    }
}

pub(crate) fn payload(packet: &[u8]) -> &[u8] {
    &packet[ipv4::HEADER_LEN + udp::HEADER_LEN..]
}

/// The packet with another payload and source port, checksums right.
pub(crate) fn with_payload(seen: &Seen, src_port: u16, payload: &[u8]) -> Vec<u8> {
    build::datagram((seen.from, src_port), (seen.to, seen.ports.1), payload)
}

/// One datagram through the agent's SOCKS5 proxy and back (RFC 1928 section 7).
pub(crate) fn socks_exchange(lab: &Lab, text: &[u8]) -> Vec<u8> {
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
    let head = [&[0, 0, 0, 3, 4][..], b"echo", &5004_u16.to_be_bytes()].concat();
    socket.send_to(&[&head[..], text].concat(), relay).expect("the relay listens");
    let mut answer = [0; 2048];
    let len = socket.recv(&mut answer).expect("an answer through the relay");
    answer[10..len].to_vec()
}
