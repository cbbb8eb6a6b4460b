//! Capabilities on real nodes: two unmodified hosts behind an edge, a router, a gate in front of a public service, and the
//! service behind an edge of its own.
//!
//! ```text
//! one ─┐                    attacker ─┐
//! two ─┴─ lan ── [edge] ── ix ────────┴─ [router] ── [gate] ══ 10 Mbit/s ══ [edge-s] ── service
//! ```

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    path::PathBuf,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use serde_json::Value;
use sluicegate_site::topology::Host;

use crate::support::{
    BINARY,
    lab::{Lab, host},
    program::{Program, run},
    until,
};

on_each_datapath!(alone a_transfer_of_unmodified_hosts_rides_on_capabilities, &[], super::transfer);
on_each_datapath!(alone two_hosts_behind_an_edge_get_through_a_flood_ten_times_the_link, &[], super::flood);
on_packet!(alone a_router_that_is_killed_and_restarted_breaks_no_transfer, &[], restart);

const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 5, 0, 2);
const ATTACKER: Ipv4Addr = Ipv4Addr::new(10, 2, 0, 66);
const PORT: u16 = 80;
/// Rate of the protected link, in bit/s.
const LINK_BPS: u64 = 10_000_000;
/// One transfer of the flood test, as in TVA V.
const TRANSFER_LEN: u64 = 20_000;
const TRANSFERS: usize = 25;
/// Longer than any transfer that is not starved.
const LIMIT: Duration = Duration::from_secs(10);

fn lab() -> Lab {
    let behind = |name: &str, router: &str| host(name, &[("0.0.0.0/0", router)]);
    let hosts = vec![
        behind("one", "10.1.0.1"),
        behind("two", "10.1.0.1"),
        Host::new("lan").switching(),
        behind("edge", "10.2.0.2"),
        Host::new("ix").switching(),
        behind("attacker", "10.2.0.2"),
        host("router", &[("0.0.0.0/0", "10.3.0.2"), ("10.1.0.0/24", "10.2.0.1")]),
        host("gate", &[("0.0.0.0/0", "10.3.0.1"), ("10.5.0.0/24", "10.4.0.2")]),
        behind("edge-s", "10.4.0.1"),
        behind("service", "10.5.0.1"),
    ];
    let wires = [
        ("one:eth0 10.1.0.2/24", "lan:one"),
        ("two:eth0 10.1.0.3/24", "lan:two"),
        ("edge:inside 10.1.0.1/24", "lan:edge"),
        ("edge:outside 10.2.0.1/24", "ix:edge"),
        ("attacker:eth0 10.2.0.66/24", "ix:attacker"),
        ("router:outside 10.2.0.2/24", "ix:router"),
        ("router:inside 10.3.0.1/24", "gate:outside 10.3.0.2/24"),
        ("gate:inside 10.4.0.1/24", "edge-s:outside 10.4.0.2/24"),
        ("edge-s:inside 10.5.0.1/24", "service:eth0 10.5.0.2/24"),
    ];
    Lab::of(hosts, &wires)
}

/// A running node between two interfaces.
struct Node {
    host: &'static str,
    config: PathBuf,
    program: Program,
}

impl Node {
    fn start(lab: &Lab, host: &'static str, datapath: &str, gate: &str, rest: &str) -> Self {
        let state = lab.path(host);
        let text = format!(
            "[node]\nname = \"{host}\"\nstate = {state:?}\n[metrics]\nlisten = \"127.0.0.1:9469\"\n[gate]\n\
             outside = \"outside\"\ninside = \"inside\"\ndatapath = \"{datapath}\"\nlocal = [\"icmp\"]\n{gate}\n{rest}"
        );
        let config = lab.write(&format!("{host}.toml"), &text);
        let node = Self { host, program: Self::run(lab, host, &config), config };
        node.ready();
        node
    }

    fn run(lab: &Lab, host: &str, config: &std::path::Path) -> Program {
        Program::start(lab, host, &format!("node-{host}"), BINARY, &["gate", config.to_str().expect("UTF-8")])
    }

    fn ready(&self) {
        until(&format!("{} is ready", self.host), || {
            (self.status()?["heartbeat_age_ms"].as_u64()? < 1_000).then_some(())
        });
    }

    /// Ends it without a chance to say anything, and starts it again.
    fn kill_and_restart(&mut self, lab: &Lab) {
        self.program.kill();
        self.program = Self::run(lab, self.host, &self.config);
        self.ready();
    }

    fn status(&self) -> Option<Value> {
        let config = self.config.to_str().expect("UTF-8");
        let done = run(Command::new(BINARY).args(["status", "--json", "--config", config]), LIMIT);
        let status: Value = serde_json::from_str(&done.out).ok()?;
        Some(status["gate"].clone())
    }

    fn number(&self, path: &str) -> u64 {
        self.status().and_then(|status| status.pointer(path)?.as_u64()).unwrap_or(0)
    }

    /// Packets that left inwards in a lane, and packets that found no room there.
    fn lane(&self, lane: &str) -> (u64, u64) {
        let status = self.status().expect("a status");
        let lanes = status["lanes"].as_array().expect("a list of lanes");
        let found = lanes.iter().find(|row| row["port"] == "inside" && row["lane"] == lane).expect("the lane");
        (found["packets"].as_u64().expect("a number"), found["dropped"].as_u64().expect("a number"))
    }
}

/// All nodes of the chain.
struct Chain {
    edge: Node,
    router: Node,
    gate: Node,
    edge_s: Node,
}

impl Chain {
    fn start(lab: &Lab, datapath: &str) -> Self {
        let link = format!("link_rate = \"{LINK_BPS}bit\"\n");
        let service =
            format!("[[service]]\nname = \"web\"\nmode = \"filter\"\ndefault = \"open\"\naddress = \"{SERVICE}\"\n");
        let router = format!("role = \"router\"\nboundary = true\n{link}");
        let chain = Self {
            edge: Node::start(lab, "edge", datapath, "role = \"edge\"", ""),
            router: Node::start(lab, "router", datapath, &router, ""),
            gate: Node::start(lab, "gate", datapath, &link, &service),
            edge_s: Node::start(lab, "edge-s", datapath, "role = \"edge\"\npolicy = \"server\"", ""),
        };
        // The first packet to a neighbour that has not answered yet is lost: not what is measured here.
        until("the path is known", || fetch(lab, "one", 100).filter(|took| *took < Duration::from_millis(500)));
        until("the path is known", || fetch(lab, "two", 100).filter(|took| *took < Duration::from_millis(500)));
        chain
    }
}

/// Gives every client as many bytes as it asks for in its first eight.
fn serve(listener: TcpListener) {
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || give(stream));
        }
    });
}

fn give(mut stream: TcpStream) -> std::io::Result<()> {
    let mut wanted = [0; 8];
    stream.read_exact(&mut wanted)?;
    let mut left = u64::from_be_bytes(wanted);
    while left > 0 {
        let part = left.min(16_384);
        stream.write_all(&vec![7; part as usize])?;
        left -= part;
    }
    Ok(())
}

/// Fetches `len` bytes from the service and says how long it took; `None` if it failed.
fn fetch(lab: &Lab, host: &str, len: u64) -> Option<Duration> {
    let start = Instant::now();
    let mut stream = lab.connect(host, SocketAddr::new(SERVICE.into(), PORT)).ok()?;
    stream.set_read_timeout(Some(LIMIT)).expect("a timeout");
    stream.write_all(&len.to_be_bytes()).ok()?;
    let mut got = 0;
    let mut buffer = [0; 16_384];
    while got < len {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return None,
            Ok(part) => got += part as u64,
        }
    }
    Some(start.elapsed())
}

fn transfer(datapath: &'static str) {
    let lab = lab();
    serve(lab.listen("service", SERVICE, PORT));
    let chain = Chain::start(&lab, datapath);
    for node in [&chain.router, &chain.gate] {
        // How many acknowledgements a megabyte has is the receiver's affair, and what the first packets are is the time's
        // that an answer takes: it goes on until most of all packets are what a flow's packets usually are.
        until("nearly all packets have passed with a nonce", || {
            let took = fetch(&lab, "one", 1_000_000).expect("a megabyte");
            println!("{datapath}: 1 MB in {took:.2?}");
            // Numbers are published ten times a second.
            thread::sleep(Duration::from_millis(150));
            let (nonces, requests) = (node.number("/router/passed/nonce"), node.number("/router/passed/request"));
            let ((regular, _), (legacy, _)) = (node.lane("regular"), node.lane("legacy"));
            (nonces > 400 && requests > 0 && regular > 100 && regular > 5 * legacy).then_some(())
        });
        let router = node.status().expect("a status")["router"].clone();
        println!("{}: {router}", node.host);
        assert!(router["demoted"].as_object().is_none_or(serde_json::Map::is_empty), "{router}");
    }
    for node in [&chain.edge, &chain.edge_s] {
        assert_eq!(node.number("/dropped/packet_too_big"), 0, "{}", node.host);
    }
}

/// A flood of plain datagrams from somebody without capabilities.
struct Flood {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    const LEN: usize = 1_400;

    fn start(socket: UdpSocket, rate_bps: u64) -> Self {
        socket.connect((SERVICE, 9)).expect("a route to the service");
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (flag, count) = (Arc::clone(&stop), Arc::clone(&sent));
        let thread = thread::spawn(move || {
            let start = Instant::now();
            while !flag.load(Relaxed) {
                let due = start.elapsed().as_micros() as u64 * rate_bps / 8_000_000 / Self::LEN as u64;
                for _ in count.load(Relaxed)..due {
                    // A full socket buffer is no reason to stop.
                    let _ = socket.send(&[1; Self::LEN]);
                    count.fetch_add(1, Relaxed);
                }
                thread::sleep(Duration::from_millis(1));
            }
        });
        Self { stop, sent, thread: Some(thread) }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Transfers of both hosts at once; the times of those that completed.
fn transfers(lab: &Lab) -> Vec<Duration> {
    let of = |host| (0..TRANSFERS).filter_map(move |_| fetch(lab, host, TRANSFER_LEN)).collect::<Vec<_>>();
    let mut times = thread::scope(|scope| {
        let both = ["one", "two"].map(|host| scope.spawn(move || of(host)));
        both.map(|thread| thread.join().expect("no panic")).concat()
    });
    times.sort_unstable();
    times
}

fn flood(datapath: &'static str) {
    let lab = lab();
    serve(lab.listen("service", SERVICE, PORT));
    let chain = Chain::start(&lab, datapath);
    let quiet = transfers(&lab);
    let flood = Flood::start(lab.udp("attacker", ATTACKER, 9), 10 * LINK_BPS);
    until("the flood is felt", || (chain.router.lane("legacy").1 > 1_000).then_some(()));
    let flooded = transfers(&lab);
    let sent = flood.sent.load(Relaxed);
    drop(flood);
    let median = |times: &[Duration]| times.get(times.len() / 2).copied().unwrap_or(Duration::MAX);
    println!("{datapath}: median {:.1?}, under a flood {:.1?}; {sent} packets of it", median(&quiet), median(&flooded));
    assert_eq!((quiet.len(), flooded.len()), (2 * TRANSFERS, 2 * TRANSFERS), "all complete");
    let (_, dropped) = chain.router.lane("regular");
    assert_eq!(dropped, 0, "nothing that is wanted gives way");
}

fn restart(datapath: &str) {
    let lab = lab();
    serve(lab.listen("service", SERVICE, PORT));
    let mut chain = Chain::start(&lab, datapath);
    let all = thread::scope(|scope| {
        let transfer = scope.spawn(|| fetch(&lab, "one", 8_000_000));
        until("the transfer runs", || (chain.router.number("/router/passed/nonce") > 300).then_some(()));
        chain.router.kill_and_restart(&lab);
        until("capabilities pass again", || (chain.router.number("/router/passed/nonce") > 300).then_some(()));
        transfer.join().expect("no panic")
    });
    assert!(all.is_some(), "the transfer ends");
    println!("after the restart: {}", chain.router.status().expect("a status")["router"]);
}
