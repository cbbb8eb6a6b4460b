//! Every day's use of agents: large downloads, ordinary NATs, first packets, other networks.

use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use sluicegate_datapath::raw::{Options, Socket};
use sluicegate_wire::{build, tcp};

use crate::support::{
    BINARY,
    agent::{self, UdpEcho, connect_to},
    capture::Capture,
    lab::{CLIENT, CLIENT_ALIAS, GATE, Lab, SERVICE},
    node::{Config, Node, REALM, password_file, service},
    program::{Done, Program, run_on},
    stolen, until,
};

on_each_datapath!(alone a_large_download_by_native_carriage_is_never_answered_in_plain, &["curl", "nft"], super::download);
on_packet!(a_plain_packet_of_a_captured_connection_does_not_end_it, &[], plain_packet);
on_packet!(two_hosts_behind_an_ordinary_nat_reach_a_service_without_being_told_how, &["curl", "nft"], behind_nat);
on_packet!(the_first_datagram_to_a_service_waits_for_the_sign_in, &["bash"], first_datagram);
on_each_datapath!(alone a_client_with_a_new_address_goes_on_within_five_seconds, &["ip"], super::roaming);
on_packet!(a_link_is_enough_to_connect_and_once_saved_the_services_name_is, &[], by_name);
on_packet!(alone a_frontend_that_falls_silent_is_replaced_by_another_that_answers, &["nft"], another_frontend);
on_packet!(alone a_frontend_that_does_not_answer_is_told_of_within_five_seconds, &[], silent_frontend);

/// What programs call the service.
const KNOWN: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 77));
const LIMIT: Duration = Duration::from_secs(60);
const DOWNLOAD_LEN: usize = 100_000_000;

/// A web server on the service's host whose every answer is so long, until the test ends.
fn web(lab: &Lab, len: usize) {
    let listener = lab.listen("service", SERVICE, 80);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || give(stream, len));
        }
    });
}

fn give(mut stream: TcpStream, len: usize) -> std::io::Result<()> {
    let _ = stream.read(&mut [0; 4096])?;
    stream.write_all(format!("HTTP/1.0 200 OK\r\nContent-Length: {len}\r\n\r\n").as_bytes())?;
    stream.write_all(&vec![b'x'; len])
}

/// The file of an agent that captures the service of this name for alice.
fn capture_file(lab: &Lab, name: &str, more: &str) -> String {
    let text = format!(
        "[agent]\nfrontend = \"{GATE}:5060\"\nrealm = \"{REALM}\"\npassword_file = \"{}\"\n\
         [[capture]]\nto = \"{KNOWN}\"\nservice = \"alice@{name}\"\n{more}",
        password_file(lab).display()
    );
    lab.write("capture.toml", &text).display().to_string()
}

/// `sluicegate agent run` of curl on a host.
fn fetch(lab: &Lab, host: &str, file: &str) -> Done {
    let (form, url) = ("%{http_code} %{size_download} %{time_connect}", format!("http://{KNOWN}/"));
    let words = ["agent", "run", file, "--", "curl", "-s", "-o", "/dev/null", "-w", form, "--max-time", "50", &url];
    run_on(lab, host, BINARY, &words, LIMIT)
}

fn download(datapath: &'static str) {
    let lab = Lab::new();
    web(&lab, DOWNLOAD_LEN);
    let _node = Node::up(&lab, &Config::new(datapath, &service("web", "\"tcp/80\"", "")));
    let file = capture_file(&lab, "web", "carriage = \"native\"\n");
    let rules = format!(
        "table ip plain {{\n chain seen {{\n type filter hook forward priority 0\n \
         ip protocol tcp ip saddr {GATE} ip daddr {CLIENT} counter\n \
         ip protocol tcp ip saddr {CLIENT} ip daddr {GATE} counter\n }}\n }}"
    );
    run_on(&lab, "core", "nft", &[&rules], LIMIT).expect("two counters");
    let done = fetch(&lab, "client", &file);
    assert!(done.out.starts_with(&format!("200 {DOWNLOAD_LEN}")), "{}\n{}", done.out, done.err);
    let counted = run_on(&lab, "core", "nft", &["list", "table", "ip", "plain"], LIMIT).expect("the counters");
    assert_eq!(counted.matches("counter packets 0 ").count(), 2, "no packet of it is plain either way: {counted}");
}

/// A segment without a header, as a gate that has forgotten the connection, or anybody who forges its address, may send.
fn plain_segment(gate: SocketAddr, port: u16) -> Vec<u8> {
    let ack = tcp::Repr { ack: Some(0), ..tcp::Repr::new(gate.port(), port, tcp::Control::None, 0) };
    build::packet(gate.ip(), CLIENT, &ack)
}

fn plain_packet(datapath: &'static str) {
    let lab = Lab::new();
    let listener = lab.listen("service", SERVICE, 80);
    let _node = Node::up(&lab, &Config::new(datapath, &service("web", "\"tcp/80\"", "")));
    let agent = Program::start(&lab, "client", "tun", BINARY, &["agent", "tun", &capture_file(&lab, "web", "")]);
    agent.says("capturing");
    let mut client = lab.connect("client", SocketAddr::new(KNOWN, 80)).expect("the service answers");
    let (mut service, _) = listener.accept().expect("it has come");
    let log = agent.log();
    let gate = log.split(" gate=").nth(1).and_then(|rest| rest.split_whitespace().next()).expect("it is logged");
    let gate: SocketAddr = gate.parse().expect("an address");
    let resets = Capture::start(&lab, ("core", "to_client"), |seen| seen.from == CLIENT && seen.protocol == 6);
    let wire = lab.host("core").run_in(|| Socket::open("to_client", &Options::send_only())).expect("a namespace");
    let mut wire = wire.expect("a raw socket");
    let ethernet = [&lab.mac("client", "eth0")[..], &lab.mac("core", "to_client"), &[0x08, 0x00]].concat();
    let send = |wire: &mut Socket, gate| {
        let port = client.local_addr().expect("an address").port();
        let frame = [&ethernet[..], &plain_segment(gate, port)].concat();
        assert_eq!(wire.send(&[frame]).expect("the interface is up").sent, 1);
    };
    // Any other port of the same host is a stranger, whom the kernel answers.
    send(&mut wire, SocketAddr::new(gate.ip(), gate.port() ^ 1));
    until("the kernel hears strangers", || (resets.count() == 1).then_some(()));
    send(&mut wire, gate);
    client.write_all(b"still here").expect("the connection stands");
    let mut text = [0; 10];
    service.read_exact(&mut text).expect("the connection stands");
    assert_eq!((&text, resets.count()), (b"still here", 1));
}

/// Newcomer 1.6.
fn behind_nat(datapath: &'static str) {
    let lab = Lab::new();
    web(&lab, 200_000);
    let rules =
        "table ip nat {\n chain out {\n type nat hook postrouting priority 100\n oifname to_gate masquerade\n }\n }";
    run_on(&lab, "core", "nft", &[rules], LIMIT).expect("an ordinary NAT");
    let _node = Node::up(&lab, &Config::new(datapath, &service("web", "\"tcp/80\"", "")));
    let file = capture_file(&lab, "web", "");
    let both = |host: &'static str| {
        let stolen_before = stolen();
        let done = fetch(&lab, host, &file);
        let words: Vec<&str> = done.out.split(' ').collect();
        assert_eq!(words[..2], ["200", "200000"], "{host}: {}\n{}", done.out, done.err);
        let connected = Duration::from_secs_f64(words[2].parse().expect("a number"));
        let limit = Duration::from_millis(3_500) + (stolen() - stolen_before);
        assert!(connected < limit, "{host} was connected after {connected:?}\n{}", done.err);
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| both("stranger"));
        both("client");
        other.join().expect("the other host as well");
    });
}

/// Newcomer 1.18.
fn first_datagram(datapath: &'static str) {
    let lab = Lab::new();
    let echo = UdpEcho::start(&lab);
    let node = Node::up(&lab, &Config::new(datapath, &service("echo", "\"udp/5004\"", "")));
    let file = capture_file(&lab, "echo", "");
    // One query, and the line that answers it, from a shell that repeats nothing.
    let query = format!("exec 3<>/dev/udp/{KNOWN}/5004; echo query >&3; timeout 8 head -n 1 <&3");
    let done = run_on(&lab, "client", BINARY, &["agent", "run", &file, "--", "bash", "-c", &query], LIMIT);
    assert_eq!(done.out.trim(), "query", "{}", done.err);
    assert_eq!((echo.heard().len(), node.dropped("mac_missing")), (1, 0), "once");
}

/// Newcomer 1.21.
fn silent_frontend(_: &'static str) {
    let lab = Lab::new();
    // It takes everything and says nothing.
    let _frontend = lab.udp("gate", GATE, 5060);
    let (started, stolen_before) = (Instant::now(), stolen());
    let agent = connect_to(&lab, GATE, "web", &["-L", "8080:80"]);
    agent.says("has not answered");
    let took = started.elapsed();
    assert!(took < Duration::from_millis(5_500) + (stolen() - stolen_before), "{took:?}");
}

/// Newcomer 1.9.
fn roaming(datapath: &'static str) {
    let lab = Lab::new();
    web(&lab, 1_000);
    let echo = UdpEcho::start(&lab);
    let objects = service("web", "\"tcp/80\", \"udp/5004\"", "");
    let node = Node::up(&lab, &Config::new(datapath, &objects));
    let address = |what: &str, address: IpAddr| {
        let (address, interface) = (format!("{address}/26"), "eth0");
        run_on(&lab, "client", "ip", &["address", what, &address, "dev", interface], LIMIT).expect("an address");
    };
    let agent = connect_to(&lab, GATE, "web", &["-L", "8080:80", "-L", "5004:5004/udp"]);
    agent.says("ready");
    let fetch = || -> std::io::Result<usize> {
        let mut stream = lab.connect("client", "127.0.0.1:8080".parse().expect("an address"))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)
    };
    let program = lab.udp("client", std::net::Ipv4Addr::LOCALHOST, 0);
    program.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
    let asked = || {
        let _ = program.send_to(b"here", "127.0.0.1:5004");
        program.recv(&mut [0; 16]).is_ok()
    };
    assert!(fetch().expect("the service answers") > 1_000);
    until("the service answers", || asked().then_some(()));
    let mut standing = lab.connect("client", "127.0.0.1:8080".parse().expect("an address")).expect("the agent listens");
    standing.set_read_timeout(Some(LIMIT)).expect("a timeout");
    lab.host("client").set("net/ipv4/conf/all/promote_secondaries", "1").expect("a kernel setting");
    // To another address and back, twice; what stood hears that it is over.
    for old in [CLIENT, CLIENT_ALIAS].repeat(2) {
        let (moved_at, stolen_before) = (Instant::now(), stolen());
        address("del", old.into());
        until("the service answers there", || fetch().is_ok_and(|len| len > 1_000).then_some(()));
        until("also over UDP", || asked().then_some(()));
        let limit = Duration::from_secs(5) + (stolen() - stolen_before);
        assert!(moved_at.elapsed() < limit, "after {:?}", moved_at.elapsed());
        assert_eq!(node.grants().len(), 2, "they are the same");
        address("add", old.into());
    }
    assert!(standing.read(&mut [0; 1]).is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset));
    assert!(!echo.heard().is_empty());
}

fn by_name(datapath: &'static str) {
    let lab = Lab::new();
    web(&lab, 1_000);
    let node = Node::up(&lab, &Config::new(datapath, &service("web", "\"tcp/80\"", "")));
    let link = node.cli(&["link", "web", "--user", "alice"]).expect("a link");
    let link = link.trim();
    assert!(link.starts_with(&format!("sluicegate://alice@{GATE}:5060/web?realm={REALM}&key=")), "{link}");
    assert!(!node.cli(&["link", "mail", "--user", "alice"]).status.success(), "no such service");
    let password = password_file(&lab).display().to_string();
    let connect = |words: &[&str]| {
        let agent = Program::start(&lab, "client", "connect", BINARY, &[&["connect"], words].concat());
        agent.says("ready");
        let mut stream = lab.connect("client", "127.0.0.1:8080".parse().expect("an address")).expect("it listens");
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("it stands");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("the service answers");
        assert!(answer.len() > 1_000);
        agent.log()
    };
    let log = connect(&[link, "--password-file", &password, "-L", "8080:80", "--save"]);
    assert!(!log.contains("first contact"), "the link has the site's key: {log}");
    let log = connect(&["web", "-L", "8080:80"]);
    assert!(!log.contains("first contact"), "the profile has it too: {log}");
    let install = ["connect", "web", "-L", "8080:80", "--install"];
    let mut written = Program::start(&lab, "client", "install", BINARY, &install);
    assert!(written.finished(LIMIT), "{}", written.log());
    let unit = std::fs::read_to_string(lab.path("home/.config/systemd/user/sluicegate-web.service")).expect("a unit");
    assert!(unit.contains("\"connect\" \"alice@web\"") && unit.contains(&password), "{unit}");
    // A link with another site's key leads nowhere.
    let (way, _) = link.rsplit_once("key=").expect("a key");
    let other = node.json(&["status"])["frontend"]["frontend_key"].as_str().expect("a key").to_owned();
    let words = ["connect", &format!("{way}key={other}"), "--password-file", &password, "-L", "8082:80"];
    let refused = Program::start(&lab, "client", "connect", BINARY, &words);
    refused.says("is pinned to");
}

/// Three addresses, at the first of which nobody is, and the second of which is cut off later.
fn another_frontend(datapath: &'static str) {
    let lab = Lab::new();
    let listen = format!("listen = [\"udp/{GATE}:5060\", \"udp/{GATE}:5070\"]\n");
    let short = "grant = { bytes_max = \"100MB\", lifetime_s = 20, rate = \"10Mbit\" }\n";
    let config = Config::new(datapath, &service("echo", "\"udp/5004\"", short));
    let _node = Node::up(&lab, &config.frontend(&listen).gate("local = [\"udp/5060\", \"udp/5070\"]\n"));
    let _echo = UdpEcho::start(&lab);
    let (password, three) = (password_file(&lab).display().to_string(), format!("{GATE}:5099,{GATE},{GATE}:5070"));
    let fixed = ["connect", "alice@echo", "--frontend", &three, "--realm", REALM, "--password-file", &password];
    let began = (Instant::now(), stolen());
    let agent = Program::start(&lab, "client", "connect", BINARY, &[&fixed[..], &["-L", "5004:5004/udp"]].concat());
    agent.says("ready");
    let took = began.0.elapsed();
    assert!(took < Duration::from_secs(5) + (stolen() - began.1), "{took:?}");
    let program = agent::program(&lab);
    agent::talk(&program, "before");
    for rule in [
        "add table ip cut",
        "add chain ip cut forward { type filter hook forward priority 0; }",
        "add rule ip cut forward udp dport 5060 drop",
    ] {
        run_on(&lab, "core", "nft", &rule.split(' ').collect::<Vec<_>>(), LIMIT).expect("nft");
    }
    agent.says("another frontend answers");
    agent.says("signed in again");
    let used_until = Instant::now() + Duration::from_secs(25);
    while Instant::now() < used_until {
        agent::talk(&program, "after");
        thread::sleep(Duration::from_millis(500));
    }
}
