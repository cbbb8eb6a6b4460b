//! Every day's use: what people take for granted.

use std::{
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use crate::support::{
    agent::connect_to,
    lab::{GATE, Lab, SERVICE},
    node::{Config, Node, service},
    program::{Program, run_on},
    stolen,
};

/// A grant that is spent in two seconds.
const SMALL: &str = "grant = { bytes_max = \"10MB\", lifetime_s = 300, rate = \"40Mbit\" }\n";
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// The client's receive buffers, smallest to greatest: however much the kernel takes at once, it has to acknowledge every
/// few segments.
const TCP_RMEM: &str = "4096 16384 16384";

on_each_datapath!(alone an_upload_of_three_budgets_goes_on_and_renewals_say_why, &[], super::upload);
on_packet!(operators_see_ports_and_ends_and_hear_what_did_not_happen, &[], operators);
on_packet!(socks_reaches_the_service_by_its_name_and_nothing_else, &["curl"], socks);
on_packet!(a_busy_local_port_is_said_before_anybody_signs_in, &[], busy);
on_packet!(alone a_download_whose_acknowledgements_spend_a_budget_goes_on, &[], download);

/// A client's connection to a service on port 80 through `connect -L`, and the service's end of it.
struct Forwarded {
    client: TcpStream,
    service: TcpStream,
    agent: Program,
    node: Node,
    _lab: Lab,
}

impl Forwarded {
    fn start(datapath: &'static str, grant: &str) -> Self {
        let lab = Lab::new();
        lab.host("client")
            .run_in(|| fs::write("/proc/sys/net/ipv4/tcp_rmem", TCP_RMEM))
            .and_then(|written| written)
            .expect("the lab's own host");
        let node = Node::up(&lab, &Config::new(datapath, &service("web", "\"tcp/80\"", grant)));
        let listener = lab.listen("service", SERVICE, 80);
        let agent = connect_to(&lab, GATE, "web", &["-L", "8080:80"]);
        agent.says("ready");
        let client = lab.connect("client", "127.0.0.1:8080".parse().expect("an address")).expect("the agent listens");
        let (service, _) = listener.accept().expect("the gate lets it in");
        Self { client, service, agent, node, _lab: lab }
    }
}

/// Sends so many bytes and reads them at the other end without a pause.
fn carry(from: &TcpStream, to: &TcpStream, bytes: usize) {
    let (mut from, mut to) = (from, to);
    let stolen_before = stolen();
    to.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    let longest = thread::scope(|scope| {
        from.set_write_timeout(Some(Duration::from_secs(30))).expect("a timeout");
        scope.spawn(move || {
            let part = [7; 65_536];
            let mut left = bytes;
            while left > 0 {
                let len = left.min(part.len());
                from.write_all(&part[..len]).expect("the connection stands");
                left -= len;
            }
        });
        let (mut part, mut left, mut last, mut longest) = ([0; 65_536], bytes, Instant::now(), Duration::ZERO);
        while left > 0 {
            let len = to.read(&mut part).expect("something comes within half a minute");
            assert_ne!(len, 0, "it ended with {left} bytes to come");
            (longest, last) = (longest.max(last.elapsed()), Instant::now());
            left -= len;
        }
        longest
    });
    let taken = stolen() - stolen_before;
    println!("longest pause {longest:?}, {taken:?} stolen");
    assert!(longest < PAUSE_MAX + taken, "it stood still for {longest:?}, and {taken:?} were stolen");
}

fn upload(datapath: &'static str) {
    let forwarded = Forwarded::start(datapath, SMALL);
    carry(&forwarded.client, &forwarded.service, 30_000_000);
    forwarded.agent.says("half of its budget is used");
}

fn download(datapath: &'static str) {
    let grant = "grant = { bytes_max = \"1MB\", lifetime_s = 300, rate = \"40Mbit\" }\n";
    let forwarded = Forwarded::start(datapath, grant);
    carry(&forwarded.service, &forwarded.client, 200_000_000);
    forwarded.agent.says("half of its budget is used");
}

/// Newcomer 1.17, 1.19 and 1.21.
fn operators(datapath: &'static str) {
    let forwarded = Forwarded::start(datapath, "");
    let node = &forwarded.node;
    let listed = node.cli(&["grant", "ls"]).expect("grant ls");
    let row = listed.lines().nth(1).expect("one grant");
    assert!(row.contains(" tcp/80 ") && !row.trim_end().ends_with('-'), "{listed}");
    let nobody = node.cli(&["grant", "revoke", "--user", "nobody"]);
    assert!(nobody.status.code() == Some(1) && nobody.err.contains("no grant is open of user nobody"), "{nobody:?}");
    node.cli(&["grant", "revoke", "--user", "alice"]).expect("grant revoke");
    node.cli(&["policy", "test", "alice", "web"]).expect("she may");
    let denied = node.cli(&["policy", "test", "mallory", "web"]);
    assert_eq!(denied.status.code(), Some(1), "{denied:?}");
}

/// Newcomer 1.15.
fn socks(datapath: &'static str) {
    let lab = Lab::new();
    let node = Node::up(&lab, &Config::new(datapath, &service("web", "\"tcp/80\"", "")));
    let listener = lab.listen("service", SERVICE, 80);
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 1_024]);
            let _ = stream.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\nours");
        }
    });
    let agent = connect_to(&lab, GATE, "web", &["--socks", "127.0.0.1:1080"]);
    agent.says("ready");
    let fetch = |url: &str| {
        let proxy = ["--silent", "--max-time", "20", "--proxy", "socks5h://127.0.0.1:1080", url];
        run_on(&lab, "client", "curl", &proxy, Duration::from_secs(30))
    };
    let refused = |stranger: &str| {
        let done = fetch(stranger);
        assert!(!done.status.success() && !done.out.contains("ours"), "{stranger}: {done:?}");
    };
    refused("http://google.com/");
    refused("http://web.example.org/");
    agent.says("this proxy reaches the service alone");
    assert_eq!(node.grants().len(), 0, "nobody signed in for that");
    for own in [&format!("http://{GATE}/"), "http://web/", "http://web.example.net/"] {
        assert_eq!(fetch(own).expect(own), "ours");
    }
    refused("http://192.0.2.200/");
}

/// Newcomer 1.21.
fn busy(datapath: &'static str) {
    let lab = Lab::new();
    let node = Node::up(&lab, &Config::new(datapath, &service("web", "\"tcp/80\"", "")));
    let _holder = lab.listen("client", Ipv4Addr::LOCALHOST, 8080);
    let agent = connect_to(&lab, GATE, "web", &["-L", "8080:80"]);
    agent.says("cannot listen at 127.0.0.1:8080");
    assert!(!agent.log().contains("ready; end"), "{}", agent.log());
    assert_eq!(node.grants().len(), 0);
}
