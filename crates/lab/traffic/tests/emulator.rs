//! The link emulator between two hosts.

use std::{
    io::Write,
    net::UdpSocket,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use sluicegate_site::{
    Lab, Process,
    namespace::may_make_namespaces,
    topology::{Host, Plan, Via},
    worker,
};
use sluicegate_traffic::{
    attack::{FloodSpec, Kind, Target},
    emulator::{EmulateSpec, LineOptions},
};

const PATIENCE: Duration = Duration::from_secs(20);

fn namespaces_allowed() -> bool {
    let allowed = may_make_namespaces();
    if !allowed {
        let _ = writeln!(std::io::stderr(), "skipped: no right to make network namespaces (run as root)");
    }
    allowed
}

fn worker<S: serde::Serialize>(role: &str, spec: &S) -> Command {
    worker::command(Path::new(env!("CARGO_BIN_EXE_lab-worker")), role, spec)
}

/// Two hosts, and between them one on which the emulator runs.
fn lab() -> Lab {
    let hosts = vec![
        Host::new("left"),
        Host::new("middle"),
        Host::new("right").route("198.18.0.0/15".parse().unwrap(), Via::Blackhole),
    ];
    let wires = [("left:eth0 10.9.0.1/24", "middle:a"), ("middle:b", "right:eth0 10.9.0.2/24")];
    Plan::of(hosts, &wires).and_then(|plan| plan.build()).unwrap()
}

fn emulator(lab: &Lab, line: LineOptions) -> Process {
    let spec = EmulateSpec { a: "a".to_owned(), b: "b".to_owned(), a_to_b: line, b_to_a: line, seconds: 60 };
    let emulator = lab.host("middle").unwrap().spawn("emulator", worker("emulate", &spec)).unwrap();
    emulator.event("ready", PATIENCE).unwrap();
    emulator
}

#[test]
fn a_datagram_takes_the_delay_there_and_back() {
    if !namespaces_allowed() {
        return;
    }
    let lab = lab();
    let mut emulator = emulator(&lab, LineOptions { delay_us: 20_000, ..LineOptions::default() });
    let bind =
        |host: &str, text: &'static str| lab.host(host).unwrap().run_in(|| UdpSocket::bind(text)).unwrap().unwrap();
    let (left, right) = (bind("left", "10.9.0.1:7"), bind("right", "10.9.0.2:7"));
    for socket in [&left, &right] {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    let start = Instant::now();
    left.send_to(b"there", "10.9.0.2:7").unwrap();
    let mut buffer = [0; 16];
    let (len, from) = right.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..len], b"there");
    right.send_to(b"back", from).unwrap();
    left.recv_from(&mut buffer).unwrap();
    // Address resolution goes through the emulator as well; sooner than twice the delay is impossible.
    assert!(start.elapsed() >= Duration::from_millis(40));
    emulator.close_input();
    let result = emulator.event("result", PATIENCE).unwrap();
    assert!(result["a_to_b"]["delivered"].as_u64() >= Some(1), "{result}");
}

#[test]
fn the_ceiling_is_measured_and_said() {
    if !namespaces_allowed() {
        return;
    }
    let lab = lab();
    let _emulator = emulator(&lab, LineOptions::default());
    let flood = FloodSpec {
        interface: "eth0".to_owned(),
        destination_mac: lab.mac("right", "eth0").unwrap(),
        source_mac: lab.mac("left", "eth0").unwrap(),
        targets: vec![Target { address: "10.9.0.2".parse().unwrap(), first: 9, last: 9 }],
        mix: vec![(Kind::Udp, 1)],
        datagrams: Vec::new(),
        sources: vec!["198.18.0.0/15".parse().unwrap()],
        clients: Vec::new(),
        mark: 0,
        clients_percent: 0,
        frame_bytes: vec![106],
        per_s: 2_000_000,
        seconds: 1,
        frames_max: u64::MAX,
        seed: 1,
    };
    let read = || (lab.counters("middle", "a").unwrap(), lab.counters("right", "eth0").unwrap());
    let (before, started) = (read(), Instant::now());
    let flood = lab.host("left").unwrap().spawn("flood", worker("flood", &flood)).unwrap();
    flood.event("result", PATIENCE).unwrap();
    let (after, seconds) = (read(), started.elapsed().as_secs_f64());
    let offered = after.0.since(&before.0).rx_packets as f64 / seconds;
    let carried = after.1.since(&before.1).rx_packets as f64 / seconds;
    assert!(carried > 0.0 && offered > 0.0);
    eprintln!("emulator ceiling: {carried:.0} frames a second of {offered:.0} offered");
}
