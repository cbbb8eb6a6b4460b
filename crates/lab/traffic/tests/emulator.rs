//! The link emulator between two hosts.

use std::{
    io::Write,
    net::UdpSocket,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use sluicegate_site::{
    Process,
    namespace::may_make_namespaces,
    topology::{End, Host, Plan, Wire},
    worker,
};
use sluicegate_traffic::emulator::{EmulateSpec, LineOptions, ceiling};

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

#[test]
fn a_datagram_takes_the_delay_there_and_back() {
    if !namespaces_allowed() {
        return;
    }
    let address = |text: &str| [text.parse().unwrap()];
    let plan = Plan {
        hosts: ["left", "middle", "right"].map(Host::new).to_vec(),
        wires: vec![
            Wire { ends: [End::new("left", "eth0", &address("10.9.0.1/24")), End::new("middle", "a", &[])] },
            Wire { ends: [End::new("middle", "b", &[]), End::new("right", "eth0", &address("10.9.0.2/24"))] },
        ],
    };
    let lab = plan.build().unwrap();
    let delay = LineOptions { delay_us: 20_000, ..LineOptions::default() };
    let spec = EmulateSpec { a: "a".to_owned(), b: "b".to_owned(), a_to_b: delay, b_to_a: delay, seconds: 60 };
    let emulator = lab.host("middle").unwrap().spawn("emulator", worker("emulate", &spec)).unwrap();
    emulator.event("ready", PATIENCE).unwrap();
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
    let mut emulator: Process = emulator;
    emulator.close_input();
    let result = emulator.event("result", PATIENCE).unwrap();
    assert!(result["a_to_b"]["delivered"].as_u64() >= Some(1), "{result}");
}

#[test]
fn the_ceiling_is_measured_and_said() {
    if !namespaces_allowed() {
        return;
    }
    let ceiling = ceiling(1, |host, spec| {
        let flood = host.spawn("flood", worker("flood", spec))?;
        flood.event("result", PATIENCE).map(drop)
    });
    let ceiling = ceiling.unwrap();
    assert!(ceiling.carried_per_s > 0 && ceiling.offered_per_s > 0, "{ceiling:?}");
    eprintln!("emulator ceiling: {ceiling:?}");
}
