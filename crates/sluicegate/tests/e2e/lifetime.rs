//! The end of a grant: by revoke, by time, by goodbye.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use sluicegate_site::clock::unix_ns;
use tokio::{net::TcpSocket, runtime, time::timeout};

use crate::support::{
    capture::{Capture, Seen},
    lab::{CLIENT, Lab, SERVICE},
    let_run,
    node::{Config, Node, service},
    phone::{AUDIO_PORT, Call, Phone, Wish},
    traffic::{Echo, Stream},
    until,
};

/// A gate acts on the end of a grant within this.
const ACT_NS: u64 = 1_000_000_000;

on_each_datapath!(alone a_revoked_grant_ends_within_a_second, &[], super::revoke);
on_each_datapath!(alone an_expired_grant_ends_within_a_second, &[], super::expiry);
on_packet!(alone a_goodbye_ends_the_grant_within_a_second, &[], goodbye);
on_packet!(a_service_that_missed_the_end_of_a_connection_takes_the_next_from_the_same_port, &[], half_open);

/// A call with its stream of 100 datagrams a second, both ways, and what arrives of it at the service.
struct Flowing {
    node: Node,
    phone: Phone,
    call: Call,
    arriving: Capture,
    client: Stream,
    _service: Stream,
    _lab: Lab,
}

impl Flowing {
    fn start(datapath: &'static str, grant: &str) -> Self {
        let lab = Lab::new();
        let node = Node::up(&lab, &Config::new(datapath, &service("echo", "\"udp/7000-7009\"", grant)));
        let frontend: SocketAddr = "203.0.113.1:5060".parse().expect("an address");
        let phone = Phone::new(&lab, "client", CLIENT, frontend, "alice");
        let serving = Stream::start(lab.udp("service", SERVICE, 7000), None);
        let arriving = Capture::start(&lab, ("service", "eth0"), |seen| seen.from == CLIENT && seen.protocol == 17);
        let call = phone.call("echo", Wish::Audio);
        let client = Stream::start(lab.udp("client", CLIENT, AUDIO_PORT), Some(call.gate));
        let flowing = Self { node, phone, call, arriving, client, _service: serving, _lab: lab };
        until("the stream flows both ways", || {
            let count = flowing.client.arrivals.since(std::time::Instant::now() - Duration::from_secs(1));
            (count > 60 && flowing.arriving.count() > 150).then_some(())
        });
        flowing
    }

    /// Whether the stream arrived until `until_ns`, and nothing a second later, while the client goes on sending.
    fn ends(&self, from_ns: u64, until_ns: u64) {
        let_run(Duration::from_secs(3));
        let before = self.arriving.between(from_ns - ACT_NS, from_ns).len();
        assert!(before > 60, "it flowed before: {before} packets in the last second");
        let late: Vec<Seen> = self.arriving.between(until_ns + ACT_NS, u64::MAX);
        assert!(late.is_empty(), "{} packets came more than a second after the end", late.len());
        let last = self.arriving.seen().last().map_or(0, |seen| seen.at_ns);
        let (secs, late) = (last.abs_diff(until_ns) as f64 / 1e9, last > until_ns);
        println!("the last packet came {secs:.3} s {} the end", if late { "after" } else { "before" });
        assert_eq!(self.node.grants().len(), 0);
        assert_eq!(self.client.arrivals.since(std::time::Instant::now() - Duration::from_millis(500)), 0, "nor back");
    }
}

fn revoke(datapath: &'static str) {
    let flowing = Flowing::start(datapath, "");
    let [id] = &flowing.node.grants()[..] else { panic!("one grant") };
    let asked_ns = unix_ns();
    flowing.node.cli(&["grant", "revoke", id]).expect("grant revoke");
    flowing.ends(asked_ns, asked_ns);
    // The drop says why.
    let flow = format!("udp {CLIENT}:{AUDIO_PORT} > {}", flowing.call.gate);
    let trace = flowing.node.cli(&["trace", "--flow", &flow]).expect("trace");
    assert!(trace.contains("grant_revoked"), "{trace}");
}

fn expiry(datapath: &'static str) {
    let grant = "grant = { bytes_max = \"500MB\", lifetime_s = 10, rate = \"400Mbit\" }\n";
    let flowing = Flowing::start(datapath, grant);
    let rows = flowing.node.json(&["grant", "ls"]);
    let end = rows[0]["not_after"].as_u64().expect("an end");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    assert!((now..=now + 10).contains(&end), "{end} is at most ten seconds from {now}");
    let end_ns = end * 1_000_000_000;
    until("the grant's time is over", || (unix_ns() > end_ns).then_some(()));
    // A grant ends no earlier than promised, but for the second that it was rounded down by.
    flowing.ends(end_ns - ACT_NS, end_ns);
    let flow = format!("udp {CLIENT}:{AUDIO_PORT} > {}", flowing.call.gate);
    let trace = flowing.node.cli(&["trace", "--flow", &flow]).expect("trace");
    assert!(trace.contains("grant_expired"), "{trace}");
}

fn goodbye(datapath: &'static str) {
    let flowing = Flowing::start(datapath, "");
    let asked_ns = unix_ns();
    let answer = flowing.phone.bye(flowing.call.clone());
    assert_eq!(answer.status, 200);
    flowing.ends(asked_ns, asked_ns);
}

/// RFC 9293 3.5.1: the service challenges the SYN, and the client's answer to that ends what the service still holds.
fn half_open(datapath: &'static str) {
    let lab = Lab::new();
    let node = Node::up(&lab, &Config::new(datapath, &service("echo", "\"tcp/7000\"", "")));
    let phone = Phone::new(&lab, "client", CLIENT, "203.0.113.1:5060".parse().expect("an address"), "alice");
    let _service = Echo::start(lab.listen("service", SERVICE, 7000));
    for time in ["first", "second"] {
        let call = phone.call("echo", Wish::Tcp(7000, 7000));
        let mut stream = from_port(&lab, 45_000, call.gate);
        let mut echo = vec![0; time.len()];
        stream.write_all(time.as_bytes()).and_then(|()| stream.read_exact(&mut echo)).expect("an echo");
        assert_eq!(echo, time.as_bytes());
        // What the gate does not know any more does not tell the service that this connection ends.
        node.cli(&["grant", "revoke", "--user", "alice"]).expect("grant revoke");
        until("the grant has ended", || node.grants().is_empty().then_some(()));
    }
}

/// A TCP connection from this port of the client, which resets it at its end.
fn from_port(lab: &Lab, port: u16, to: SocketAddr) -> TcpStream {
    let connect = async {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind((CLIENT, port).into()).expect("a port");
        socket.set_zero_linger().expect("an option");
        let stream = timeout(Duration::from_secs(5), socket.connect(to)).await.expect("within five seconds");
        stream.and_then(tokio::net::TcpStream::into_std).expect("a connection")
    };
    let connect = || runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(connect);
    let stream = lab.host("client").run_in(connect).expect("a host of the lab");
    stream.set_nonblocking(false).expect("a stream");
    stream
}
