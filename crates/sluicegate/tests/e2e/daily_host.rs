//! A good host: what runs on the gate's machine beside the gate.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::support::{
    PATIENCE as LONGEST,
    agent::connect_to,
    lab::{FRONTEND, GATE, Lab, SERVICE, STRANGER},
    node::{Config, Node, service},
    program::run_on,
    until,
};

on_each_datapath!(alone the_gates_host_keeps_what_it_starts_itself_also_in_a_flood, &["ping"], super::keeps);
on_each_datapath!(
    pings_of_the_gates_host_and_of_a_service_come_back_with_any_identifier,
    &["nft", "ping"],
    super::pings
);
on_each_datapath!(alone nobody_opens_a_port_of_the_gates_host_by_forging_answers, &[], super::forged);
on_each_datapath!(alone an_inside_interface_made_again_is_taken_up_and_connections_go_on, &["ip"], super::made_again);
on_packet!(a_filter_that_somebody_flushed_is_installed_again, &["nft"], flushed);

const ASKING: u16 = 40_000;
/// So many packets of a stranger arrive while the host asks, and no more than so many are tried.
const FLOOD_MIN: u32 = 50_000;
const FLOOD_MAX: usize = 5_000_000;
const PATIENCE: Duration = Duration::from_secs(3);

fn start(datapath: &'static str) -> (Lab, Node) {
    let lab = Lab::new();
    let node = Node::up(&lab, &Config::new(datapath, &service("web", "\"tcp/80\"", "")));
    (lab, node)
}

/// Sends back whatever comes, until the test ends.
fn echo_udp(socket: UdpSocket) {
    thread::spawn(move || {
        let mut bytes = [0; 512];
        while let Ok((len, from)) = socket.recv_from(&mut bytes) {
            let _ = socket.send_to(&bytes[..len], from);
        }
    });
}

fn echo_tcp(listener: TcpListener) {
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut bytes = [0; 4];
            let _ = stream.read_exact(&mut bytes).and_then(|()| stream.write_all(&bytes));
        }
    });
}

/// A question over TCP, which the far end answers.
fn asks_tcp(lab: &Lab, address: Ipv4Addr) {
    let mut stream = lab.connect("gate", SocketAddr::new(address.into(), 80)).expect("the host's own connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut answer = [0; 4];
    stream.write_all(b"page").and_then(|()| stream.read_exact(&mut answer)).expect("an answer");
    assert_eq!(&answer, b"page");
}

/// Asks three times at most, as resolvers do.
fn asks_udp(socket: &UdpSocket, to: (Ipv4Addr, u16)) {
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut answer = [0; 16];
    let mut ask = || {
        socket.send_to(b"name", to).expect("the query leaves");
        socket.recv_from(&mut answer).ok()
    };
    let (len, from) = ask().or_else(&mut ask).or_else(&mut ask).expect("the answer comes");
    assert_eq!((&answer[..len], from), (&b"name"[..], to.into()));
}

/// Newcomer 1.4: names, pages, pings, and the service inside.
fn asks_everything(lab: &Lab) {
    asks_udp(&lab.udp("gate", GATE, 0), (FRONTEND, 53));
    asks_tcp(lab, FRONTEND);
    asks_tcp(lab, SERVICE);
    let to = FRONTEND.to_string();
    run_on(lab, "gate", "ping", &["-c", "3", "-W", "3", &to], Duration::from_secs(15)).expect("an echo reply");
}

/// Also those identifiers that the gate uses for services, unless it uses them now.
fn pings(datapath: &'static str) {
    let lab = Lab::new();
    let _node = Node::up(&lab, &Config::new(datapath, &service("web", "\"tcp/80\"", "outbound = \"all\"\n")));
    let ping = |host: &str, identifier: u16| {
        let (to, identifier) = (FRONTEND.to_string(), identifier.to_string());
        let words = ["-c", "3", "-i", "0.2", "-W", "3", "-e", &identifier, &to];
        run_on(&lab, host, "ping", &words, Duration::from_secs(15)).expect("an echo reply");
    };
    // What the gate sends for others takes no place among the host's flows.
    let noted = || {
        let rules = run_on(&lab, "gate", "nft", &["list", "ruleset"], Duration::from_secs(5)).expect("nft");
        rules.lines().filter(|line| line.contains("expires")).count()
    };
    let before = noted();
    ping("service", 7);
    assert_eq!(noted(), before);
    ping("gate", 20_001);
    assert_eq!(noted(), before + 1);
    for _ in 0..2 {
        [20_000, 26_000, 32_767, 50_000].into_iter().for_each(|identifier| ping("gate", identifier));
        ping("service", 7);
    }
}

fn keeps(datapath: &'static str) {
    let (lab, node) = start(datapath);
    echo_udp(lab.udp("frontend", FRONTEND, 53));
    echo_tcp(lab.listen("frontend", FRONTEND, 80));
    echo_tcp(lab.listen("service", SERVICE, 80));
    asks_everything(&lab);
    let stranger = lab.udp("stranger", STRANGER, 53);
    let (sent, ended) = (AtomicU32::new(0), AtomicBool::new(false));
    let before = node.dropped("no_pinhole");
    thread::scope(|scope| {
        scope.spawn(|| {
            for port in (33_000..=u16::MAX).cycle().take(FLOOD_MAX) {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let left = stranger.send_to(&[0; 64], (GATE, port)).is_ok();
                // Faster than the kernel's queue between the lab's hosts takes, it would lose what anybody sends.
                if sent.fetch_add(left.into(), Ordering::Relaxed) % 20 == 19 {
                    thread::sleep(Duration::from_millis(1));
                }
            }
        });
        while sent.load(Ordering::Relaxed) < FLOOD_MIN {
            asks_everything(&lab);
        }
        ended.store(true, Ordering::Relaxed);
        println!("{sent:?} packets of a stranger meanwhile");
    });
    until("the strangers' packets are counted", || (node.dropped("no_pinhole") > before + 1_000).then_some(()));
}

fn forged(datapath: &'static str) {
    let (lab, _node) = start(datapath);
    let resolver = lab.udp("frontend", FRONTEND, 53);
    let wrong_port = lab.udp("frontend", FRONTEND, 54);
    let stranger = lab.udp("stranger", STRANGER, 53);
    let (asking, silent) = (lab.udp("gate", GATE, ASKING), lab.udp("gate", GATE, ASKING + 1));
    let _listener = lab.listen("gate", GATE, 8080);
    let mut bytes = [0; 16];
    let forge = || {
        for port in [ASKING, ASKING + 1] {
            stranger.send_to(b"forged", (GATE, port)).expect("it leaves");
            wrong_port.send_to(b"forged", (GATE, port)).expect("it leaves");
        }
        resolver.send_to(b"forged", (GATE, ASKING + 1)).expect("it leaves");
    };
    // Before the host has asked, and after: of all that comes, it hears the one answer.
    resolver.send_to(b"forged", (GATE, ASKING)).expect("it leaves");
    forge();
    asking.send_to(b"name", (FRONTEND, 53)).expect("it leaves");
    resolver.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let (_, from) = resolver.recv_from(&mut bytes).expect("the query");
    forge();
    resolver.send_to(b"answer", from).expect("it leaves");
    asking.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let (len, from) = asking.recv_from(&mut bytes).expect("the answer");
    assert_eq!((&bytes[..len], from), (&b"answer"[..], (FRONTEND, 53).into()));
    for socket in [&asking, &silent] {
        socket.set_read_timeout(Some(Duration::from_millis(300))).expect("a timeout");
        assert!(socket.recv_from(&mut bytes).is_err(), "a stranger got through: {bytes:?}");
    }
    let dial = || TcpStream::connect_timeout(&SocketAddr::new(GATE.into(), 8080), Duration::from_secs(1));
    let dialled = lab.host("stranger").run_in(dial).expect("a namespace");
    assert!(dialled.is_err(), "a stranger reached a port that `local` does not list");
}

fn flushed(datapath: &'static str) {
    let (lab, node) = start(datapath);
    run_on(&lab, "gate", "nft", &["flush", "ruleset"], PATIENCE).expect("nft");
    node.program.says("installed it again");
    let table = ["list", "table", "netdev", "sluicegate_outside_inside"];
    run_on(&lab, "gate", "nft", &table, PATIENCE).expect("the filter stands again");
}

/// Newcomer 1.8: what the restart of a tunnel does, or a card that is plugged in again.
fn made_again(datapath: &'static str) {
    let (lab, node) = start(datapath);
    let listener = lab.listen("service", SERVICE, 80);
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut bytes = [0; 4];
        while stream.read_exact(&mut bytes).and_then(|()| stream.write_all(&bytes)).is_ok() {}
    });
    let agent = connect_to(&lab, GATE, "web", &["-L", "8080:80"]);
    agent.says("ready");
    let local = SocketAddr::from(([127, 0, 0, 1], 8080));
    let mut stream = lab.connect("client", local).expect("the agent listens");
    stream.set_read_timeout(Some(LONGEST)).expect("a timeout");
    let mut talk = || {
        let mut answer = [0; 4];
        stream.write_all(b"page").and_then(|()| stream.read_exact(&mut answer)).expect("an answer");
        assert_eq!(&answer, b"page");
    };
    talk();
    let (pid, grants) = (node.program.pid(), node.grants());
    run_on(&lab, "gate", "ip", &["link", "del", "inside"], Duration::from_secs(5)).expect("ip link del");
    let closed = |node: &Node| node.json(&["status"])["gate"]["closed"].clone();
    until("the alarm says what is gone", || closed(&node).as_str()?.contains("inside").then_some(()));
    lab.lay("gate:inside 10.4.0.1/24", "service:eth0 10.4.0.2/24");
    let back = Instant::now();
    let ip = ["route", "replace", "default", "via", "10.4.0.1"];
    run_on(&lab, "service", "ip", &ip, Duration::from_secs(5)).expect("ip route");
    until("the interface is taken up again", || closed(&node).is_null().then_some(()));
    println!("{datapath}: taken up {:.2} s after the interface was there", back.elapsed().as_secs_f64());
    talk();
    println!("{datapath}: the connection goes on after {:.2} s", back.elapsed().as_secs_f64());
    assert_eq!((node.program.pid(), node.grants()), (pid, grants), "the same process, the same grants");
}
