//! The forwarding proxy as a process: what it passes on, and how long it leaves a server alone.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream, UdpSocket},
    path::Path,
    time::{Duration, Instant},
};

use sluicegate_sip::{
    message::{HeaderName, Message},
    stream::{Framer, Item},
    write::Response,
};
use sluicegate_site::{Process, worker};
use sluicegate_traffic::{
    forward::{ForwardSpec, ForwardedSecond},
    stream::{Connecting, Over},
};

const PATIENCE: Duration = Duration::from_secs(30);

struct Server {
    stream: TcpStream,
    framer: Framer,
    heard: Vec<Vec<u8>>,
}

impl Server {
    /// The next request that comes within this time.
    fn request(&mut self, within: Duration) -> Option<Vec<u8>> {
        let end = Instant::now() + within;
        let mut bytes = [0; 65_536];
        while self.heard.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            self.stream.set_read_timeout(Some(left.max(Duration::from_millis(1)))).unwrap();
            let len = self.stream.read(&mut bytes).ok().filter(|len| *len > 0 && !left.is_zero())?;
            let mut rest = &bytes[..len];
            while let Ok(Some((used, item))) = self.framer.next(rest) {
                if let Item::Message(message) = item {
                    self.heard.push(message.to_vec());
                }
                rest = &rest[used..];
            }
        }
        Some(self.heard.remove(0))
    }

    fn answer(&mut self, request: &[u8], code: u16, retry_after: Option<&str>) {
        let (message, mut out) = (Message::parse(request).unwrap(), Vec::new());
        let headers = Response::to(&message, code).to_tag(b"server").begin(&mut out);
        match retry_after {
            Some(after) => headers.header("Retry-After", after).finish(),
            None => headers.finish(),
        }
        self.stream.write_all(&out).unwrap();
    }
}

fn request(method: &str, call_id: &str, to_tag: &str) -> String {
    let number = if method == "BYE" { 2 } else { 1 };
    format!(
        "{method} sip:office@lab.example SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.1;branch=z9hG4bK{call_id}{number};rport\r\n\
         From: <sip:a@lab.example>;tag=1\r\nTo: <sip:office@lab.example>{to_tag}\r\nCall-ID: {call_id}\r\n\
         CSeq: {number} {method}\r\nMax-Forwards: 70\r\nContent-Length: 0\r\n\r\n"
    )
}

fn status(answer: &[u8]) -> u16 {
    Message::parse(answer).unwrap().status().unwrap()
}

fn branch(request: &[u8]) -> Vec<u8> {
    Message::parse(request).unwrap().top_via().unwrap().branch.unwrap().to_vec()
}

/// What the sender hears next.
fn heard(sender: &UdpSocket) -> Vec<u8> {
    let mut bytes = [0; 65_536];
    sender.set_read_timeout(Some(PATIENCE)).unwrap();
    let len = sender.recv(&mut bytes).unwrap();
    bytes[..len].to_vec()
}

#[test]
fn a_server_that_says_503_gets_no_new_call_for_as_long_as_it_says_and_all_else() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let way = Connecting { over: Over::Tcp, ..Connecting::default() };
    let spec = ForwardSpec { listen, to: listener.local_addr().unwrap(), way, seconds: 120 };
    let command = worker::command(Path::new(env!("CARGO_BIN_EXE_lab-worker")), "forward", &spec);
    let mut forwarder = Process::start("forward", command, |mut command| command.spawn()).unwrap();
    forwarder.event("ready", PATIENCE).unwrap();
    let mut server = Server { stream: listener.accept().unwrap().0, framer: Framer::new(), heard: Vec::new() };
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    sender.connect(listen).unwrap();
    let send = |text: String| sender.send(text.as_bytes()).unwrap();

    // What is sent again has the same branch, and so has its ACK; answers come back without the proxy's Via.
    send(request("INVITE", "one", ""));
    let first = server.request(PATIENCE).unwrap();
    assert_eq!(Message::parse(&first).unwrap().headers(HeaderName::Via).count(), 2);
    send(request("INVITE", "one", ""));
    assert_eq!(branch(&server.request(PATIENCE).unwrap()), branch(&first));
    server.answer(&first, 500, Some("9"));
    let refused = heard(&sender);
    assert_eq!((status(&refused), Message::parse(&refused).unwrap().headers(HeaderName::Via).count()), (500, 1));
    send(request("ACK", "one", ";tag=server"));
    assert_eq!(branch(&server.request(PATIENCE).unwrap()), branch(&first));

    // 500 holds nobody back, and 503 does.
    send(request("INVITE", "two", ""));
    let second = server.request(PATIENCE).unwrap();
    let told = Instant::now();
    server.answer(&second, 503, Some("3"));
    assert_eq!(status(&heard(&sender)), 503);
    send(request("INVITE", "three", ""));
    let held = heard(&sender);
    assert_eq!(status(&held), 503);
    let left = Message::parse(&held).unwrap().header(HeaderName::RetryAfter).unwrap().to_vec();
    assert!((1..=3).contains(&String::from_utf8(left).unwrap().parse::<u32>().unwrap()));
    send(request("ACK", "three", ";tag=held"));
    send(request("BYE", "zero", ";tag=server"));
    let passed = server.request(PATIENCE).unwrap();
    assert!(passed.starts_with(b"BYE "), "{}", String::from_utf8_lossy(&passed));

    // Then calls pass again, and not before.
    let again = loop {
        send(request("INVITE", "four", ""));
        if let Some(request) = server.request(Duration::from_millis(50)) {
            break request;
        }
    };
    assert!(again.starts_with(b"INVITE ") && told.elapsed() >= Duration::from_millis(2_500));
    let mut all = ForwardedSecond::default();
    while all.held == 0 || all.byes == 0 || !all.invite_answers.contains_key(&503) {
        let told = forwarder.event("second", PATIENCE).unwrap();
        let second: ForwardedSecond = serde_json::from_value(told).unwrap();
        all.held += second.held;
        all.byes += second.byes;
        all.invite_answers.extend(second.invite_answers);
    }
    forwarder.close_input();
    assert_eq!(forwarder.event("result", PATIENCE).unwrap()["connections"], 1);
}
