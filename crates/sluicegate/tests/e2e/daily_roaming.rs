//! Every day's use on the move: a connection that stands goes on from each address that its client gets.

use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use crate::support::{
    BINARY,
    agent::connect_to,
    lab::{CLIENT, CLIENT_ALIAS, FRONTEND, GATE, Lab, SERVICE},
    node::{Config, Node, REALM, join, password_file, service},
    program::{Program, run_on},
    stolen, until,
};

on_each_datapath!(alone a_download_through_agent_tun_goes_on_from_each_new_address, &["ip"], super::tun_roams);
on_packet!(alone a_command_of_agent_run_keeps_its_connection_from_each_new_address, &["ip", "curl"], run_roams);
on_packet!(alone captured_connections_go_on_by_another_interface, &["ip"], another_interface);
on_each_datapath!(alone a_forward_goes_on_when_the_nat_in_front_gets_another_address, &["nft"], super::behind_nat);

on_each_datapath!(alone a_client_that_reaches_frontend_and_gate_by_different_networks_gets_in, &["ip"], super::two_networks);

const LIMIT: Duration = Duration::from_secs(90);
/// What programs call the service.
const KNOWN: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 77));
/// The service sends so much so often: a download that never waits for its client.
const PIECE: [u8; 1_000] = [b'x'; 1_000];
const PIECE_INTERVAL: Duration = Duration::from_millis(20);
/// How long a move may interrupt a connection.
const PAUSE_MAX: Duration = Duration::from_secs(7);

/// A service that sends pieces for as long as somebody reads, and says who.
fn stream(lab: &Lab) -> mpsc::Receiver<SocketAddr> {
    let listener = lab.listen("service", SERVICE, 80);
    let (say, said) = mpsc::channel();
    thread::spawn(move || {
        while let Ok((mut stream, peer)) = listener.accept() {
            let _ = say.send(peer);
            thread::spawn(move || {
                let _ = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n");
                while stream.write_all(&PIECE).is_ok() {
                    thread::sleep(PIECE_INTERVAL);
                }
            });
        }
    });
    said
}

/// Reads on while the client moves, and sees that no pause is too long and the connection stands.
fn reads_on(stream: &mut TcpStream, log: &dyn Fn() -> String, moves: impl FnOnce()) {
    stream.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
    let mut buffer = [0; 65_536];
    let mut read_some = |stream: &mut TcpStream| match stream.read(&mut buffer) {
        Ok(0) => panic!("the connection has ended\n{}", log()),
        Ok(len) => len,
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => 0,
        Err(error) => panic!("{error}\n{}", log()),
    };
    until("it runs", || (read_some(stream) > 0).then_some(()));
    moves();
    let (moved_at, stolen_before, mut got) = (Instant::now(), stolen(), 0);
    while got < 40 * PIECE.len() {
        let len = read_some(stream);
        // Before that it may be what had come already.
        if moved_at.elapsed() > Duration::from_millis(500) {
            got += len;
        }
        let limit = PAUSE_MAX + (stolen() - stolen_before);
        assert!(moved_at.elapsed() < limit, "silent for {:?}\n{}", moved_at.elapsed(), log());
    }
}

fn capture_file(lab: &Lab, more: &str) -> String {
    let text = format!(
        "[agent]\nfrontend = \"{GATE}:5060\"\nrealm = \"{REALM}\"\npassword_file = \"{}\"\n\
         [[capture]]\nto = \"{KNOWN}\"\nservice = \"alice@web\"\n{more}",
        password_file(lab).display()
    );
    lab.write("capture.toml", &text).display().to_string()
}

fn lose(lab: &Lab, address: Ipv4Addr) {
    let (old, interface) = (format!("{address}/26"), "eth0");
    run_on(lab, "client", "ip", &["address", "del", &old, "dev", interface], LIMIT).expect("an address");
}

fn get(lab: &Lab, address: Ipv4Addr) {
    let (new, interface) = (format!("{address}/26"), "eth0");
    run_on(lab, "client", "ip", &["address", "add", &new, "dev", interface], LIMIT).expect("an address");
}

fn keep_secondaries(lab: &Lab) {
    lab.host("client").set("net/ipv4/conf/all/promote_secondaries", "1").expect("a kernel setting");
}

fn tun_roams(datapath: &'static str) {
    for carriage in ["native", "encapsulated"] {
        let lab = Lab::new();
        let peers = stream(&lab);
        let node = Node::up(&lab, &Config::new(datapath, &service("web", "\"tcp/80\"", "")));
        keep_secondaries(&lab);
        let file = capture_file(&lab, &format!("carriage = \"{carriage}\"\n"));
        let agent = Program::start(&lab, "client", "tun", BINARY, &["agent", "tun", &file]);
        agent.says("capturing");
        let mut client = lab.connect("client", SocketAddr::new(KNOWN, 80)).expect("the service answers");
        let seen = peers.recv_timeout(LIMIT).expect("it has come");
        assert_eq!(seen.ip(), CLIENT);
        let log = || format!("{}\n{}", agent.log(), node.program.log());
        lose(&lab, CLIENT_ALIAS);
        for (old, new) in [(CLIENT, CLIENT_ALIAS), (CLIENT_ALIAS, CLIENT), (CLIENT, CLIENT_ALIAS)] {
            reads_on(&mut client, &log, || {
                get(&lab, new);
                lose(&lab, old);
            });
        }
        // A new connection is one of the new address.
        let _new = lab.connect("client", SocketAddr::new(KNOWN, 80)).expect("the service answers");
        assert_eq!(peers.recv_timeout(LIMIT).expect("it has come").ip(), CLIENT_ALIAS);
        assert_eq!(node.grants().len(), 1, "it is the same grant");
    }
}

fn run_roams(datapath: &'static str) {
    let lab = Lab::new();
    let peers = stream(&lab);
    let _node = Node::up(&lab, &Config::new(datapath, &service("web", "\"tcp/80\"", "")));
    keep_secondaries(&lab);
    let (file, url) = (capture_file(&lab, ""), format!("http://{KNOWN}/"));
    // Silent for longer than it may be, it gives up.
    let words = ["agent", "run", &file, "--", "curl", "-sN", "--speed-limit", "100", "--speed-time", "8", &url];
    let agent = Program::start(&lab, "client", "run", BINARY, &words);
    peers.recv_timeout(LIMIT).expect("it has come");
    lose(&lab, CLIENT_ALIAS);
    let (mut old, mut new) = (CLIENT, CLIENT_ALIAS);
    for _ in 0..3 {
        thread::sleep(Duration::from_secs(3));
        get(&lab, new);
        lose(&lab, old);
        (old, new) = (new, old);
    }
    thread::sleep(Duration::from_secs(10));
    let got = agent.log().len();
    until("curl goes on", || (agent.log().len() > got + 10_000).then_some(()));
    assert!(peers.try_recv().is_err(), "by the same connection");
}

/// From one network to another by another interface, as from Wi-Fi to a phone.
fn another_interface(datapath: &'static str) {
    let lab = Lab::new();
    let peers = stream(&lab);
    let _node = Node::up(&lab, &Config::new(datapath, &service("web", "\"tcp/80\"", "")));
    lab.lay("client:phone 198.51.100.194/26", "core:to_phone 198.51.100.193/26");
    let agent = Program::start(&lab, "client", "tun", BINARY, &["agent", "tun", &capture_file(&lab, "")]);
    agent.says("capturing");
    let mut client = lab.connect("client", SocketAddr::new(KNOWN, 80)).expect("the service answers");
    assert_eq!(peers.recv_timeout(LIMIT).expect("it has come").ip(), CLIENT);
    let ip = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        run_on(&lab, "client", "ip", &words, LIMIT).expect("ip");
    };
    let log = || agent.log();
    reads_on(&mut client, &log, || {
        ip("link set eth0 down");
        ip("route replace default via 198.51.100.193 dev phone");
    });
    reads_on(&mut client, &log, || {
        ip("link set eth0 up");
        ip("link set phone down");
        ip("route replace default via 198.51.100.1 dev eth0");
    });
}

/// An ordinary router's public address changes, as once a night, while the host behind it keeps its own.
fn behind_nat(datapath: &'static str) {
    let lab = Lab::new();
    let peers = stream(&lab);
    let node = Node::up(&lab, &Config::new(datapath, &service("web", "\"tcp/80\"", "")));
    let mut zone = 0;
    // Another zone knows nothing of the connections of the last.
    let mut public = |last: u8| {
        zone += 1;
        for (what, last) in [("add", last), ("del", last ^ 1)] {
            let address = format!("203.0.113.{last}/24");
            let done = run_on(&lab, "core", "ip", &["address", what, &address, "dev", "to_gate"], LIMIT);
            assert!(what == "del" || done.status.success(), "{}", done.err);
        }
        let rules = format!(
            "flush ruleset; table ip nat {{\n chain zone {{\n type filter hook prerouting priority raw\n ct zone set {zone}\n }}\n \
             chain in {{\n type filter hook input priority 0\n iifname to_gate meta l4proto {{ tcp, udp }} drop\n }}\n \
             chain out {{\n type nat hook postrouting priority srcnat\n \
             ip saddr 198.51.100.0/26 oifname to_gate snat to 203.0.113.{last}\n }}\n }}"
        );
        run_on(&lab, "core", "nft", &[&rules], LIMIT).expect("a router with one public address");
    };
    public(10);
    let agent = connect_to(&lab, GATE, "web", &["-L", "8080:80"]);
    agent.says("ready");
    let mut client = lab.connect("client", "127.0.0.1:8080".parse().expect("an address")).expect("it listens");
    let seen = peers.recv_timeout(LIMIT).expect("it has come");
    assert_eq!(seen.ip(), Ipv4Addr::new(203, 0, 113, 10));
    let log = || format!("{}\n{}", agent.log(), node.program.log());
    for last in [11, 10, 11] {
        reads_on(&mut client, &log, || public(last));
    }
}

/// Newcomer 1.9: two uplinks, of which the routes take one to the frontend and the other to the gate.
fn two_networks(datapath: &'static str) {
    let lab = Lab::new();
    let peers = stream(&lab);
    let config = Config::new(datapath, &service("web", "\"tcp/80\"", ""));
    let frontend = Node::start(&lab, "frontend", "frontend", &config.write_frontend(&lab, FRONTEND.into()));
    frontend.ready();
    frontend.add_people(&lab);
    let gate_file = config.write_gate(&lab);
    join(&lab, &frontend, &gate_file);
    let gate = Node::start(&lab, "gate", "gate", &gate_file);
    gate.ready();
    frontend.has_gate();
    lab.lay("client:phone 198.51.100.194/26", "core:to_phone 198.51.100.193/26");
    let to_gate = format!("{GATE}/32");
    let words = ["route", "add", &to_gate, "via", "198.51.100.193", "dev", "phone"];
    run_on(&lab, "client", "ip", &words, LIMIT).expect("another way to the gate");
    let agent = connect_to(&lab, FRONTEND, "web", &["-L", "8080:80"]);
    agent.says("ready");
    let _client = lab.connect("client", "127.0.0.1:8080".parse().expect("an address")).expect("it listens");
    let seen = peers.recv_timeout(LIMIT).expect("it has come");
    assert_eq!(seen.ip(), Ipv4Addr::new(198, 51, 100, 194), "by the way to the gate");
}
