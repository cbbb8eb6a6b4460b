//! The kernel of the gate's host would forward: what holds then.

use std::{
    net::{SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

use crate::support::{
    BINARY,
    capture::Capture,
    lab::{CLIENT, GATE, Lab, SERVICE, STRANGER},
    let_run,
    node::{Config, Node, service},
    phone::{AUDIO_PORT, Phone, Wish},
    program::{Program, run_on},
    traffic::Stream,
    until,
};

on_packet!(security_07_nothing_is_forwarded_before_a_gate_starts, &["ip"], before_the_gate);
on_packet!(security_07_a_gate_refuses_a_host_whose_new_interfaces_forward, &[], default_forwards);
on_each_datapath!(
    security_07_an_interface_that_comes_back_lets_no_stranger_in_and_keeps_the_grants,
    &["ip"],
    super::comes_back
);
on_packet!(security_21_without_a_lasting_place_for_its_program_a_gate_does_without_xdp, &["unshare"], sandboxed);

/// Where a stranger knocks, past every gate.
const BEHIND: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(SERVICE), 9999);

/// The gate's host forwards, and the world has a route to the service through it.
fn forwarding_host(lab: &Lab) -> UdpSocket {
    for setting in ["net/ipv4/ip_forward", "net/ipv4/conf/all/forwarding", "net/ipv4/conf/default/forwarding"] {
        lab.host("gate").set(setting, "1").expect("a setting");
    }
    run_on(lab, "core", "ip", &["route", "add", "10.4.0.0/24", "via", "203.0.113.1"], Duration::from_secs(5))
        .expect("a route");
    lab.udp("stranger", STRANGER, 0)
}

fn strangers(lab: &Lab) -> Capture {
    Capture::start(lab, ("service", "eth0"), |seen| seen.from == STRANGER)
}

fn before_the_gate(datapath: &'static str) {
    let lab = Lab::new();
    let stranger = forwarding_host(&lab);
    let arrived = strangers(&lab);
    until("the host forwards", || {
        stranger.send_to(b"probe", BEHIND).expect("sent");
        (arrived.count() > 0).then_some(())
    });
    let config = Config::new(datapath, "").write_gate(&lab);
    let config = config.to_str().expect("UTF-8");
    run_on(&lab, "gate", BINARY, &["gate-close", config], Duration::from_secs(10)).expect("gate-close");
    let before = arrived.count();
    for _ in 0..20 {
        stranger.send_to(b"probe", BEHIND).expect("sent");
        let_run(Duration::from_millis(10));
    }
    assert_eq!(arrived.count(), before, "forwarded past a closed gate");
}

fn default_forwards(datapath: &'static str) {
    let lab = Lab::new();
    lab.host("gate").set("net/ipv4/conf/default/forwarding", "1").expect("a setting");
    let config = Config::new(datapath, "").write_gate(&lab);
    let node = Program::start(&lab, "gate", "sluicegate-gate", BINARY, &["gate", config.to_str().expect("UTF-8")]);
    node.says("manage_forwarding");
}

/// The interface `outside` of the gate, made anew with its old address, as a tunnel or a card would come back.
fn recreate_outside(lab: &Lab) {
    lab.lay("gate:outside 203.0.113.1/24", "core:to_gate 203.0.113.254/24");
    let ip = |host: &str, arguments: &[&str]| run_on(lab, host, "ip", arguments, Duration::from_secs(5)).expect("ip");
    ip("core", &["route", "replace", "10.4.0.0/24", "via", "203.0.113.1"]);
    ip("gate", &["route", "replace", "default", "via", "203.0.113.254"]);
}

fn comes_back(datapath: &'static str) {
    let lab = Lab::new();
    let stranger = forwarding_host(&lab);
    let config = Config::new(datapath, &service("echo", "\"udp/7000-7009\"", "")).gate("manage_forwarding = true\n");
    let node = Node::up(&lab, &config);
    let frontend = SocketAddr::from((GATE, 5060));
    let phone = Phone::new(&lab, "client", CLIENT, frontend, "alice");
    let _echo = Stream::start(lab.udp("service", SERVICE, 7000), None);
    let call = phone.call("echo", Wish::Audio);
    let client = Stream::start(lab.udp("client", CLIENT, AUDIO_PORT), Some(call.gate));
    let flows_since = |from: Instant| {
        stranger.send_to(b"probe", BEHIND).ok();
        (client.arrivals.since(from) > 10).then_some(())
    };
    let began = Instant::now();
    until("the call flows", || flows_since(began));
    let grants = node.grants();
    let arrived = strangers(&lab);
    // Somebody else on the host wants new interfaces to forward again.
    for setting in ["net/ipv4/conf/default/forwarding", "net/ipv4/conf/all/forwarding"] {
        lab.host("gate").set(setting, "1").expect("a setting");
    }
    run_on(&lab, "gate", "ip", &["link", "del", "outside"], Duration::from_secs(5)).expect("ip link del");
    until("the alarm says what is gone", || {
        let status = node.json(&["status"]);
        let said = status["gate"]["closed"].as_str()?.contains("outside");
        (said && !status["gate"]["alarms"].as_array()?.is_empty()).then_some(())
    });
    recreate_outside(&lab);
    let back = Instant::now();
    until("the call flows again", || flows_since(back));
    println!("{datapath}: the call flows again {:.2} s after the interface was there", back.elapsed().as_secs_f64());
    assert_eq!(node.grants(), grants, "the same grants");
    assert!(node.json(&["status"])["gate"]["closed"].is_null());
    assert_eq!(arrived.count(), 0, "a stranger's packets at the service");
}

fn sandboxed(_: &'static str) {
    let lab = Lab::new();
    let script = "umount -l /sys/fs/bpf 2>/dev/null; exec \"$0\" gate \"$1\"";
    let start = |datapath: &'static str| {
        let config = Config::new(datapath, "").write_gate(&lab);
        let config = config.to_str().expect("UTF-8").to_owned();
        Program::start(&lab, "gate", "sandboxed", "unshare", &["-m", "sh", "-c", script, BINARY, &config])
    };
    let mut refused = start("xdp");
    refused.says("own mounts");
    assert!(!refused.finished(Duration::from_secs(10)), "xdp that was asked for by name is refused");
    let fallen_back = start("auto");
    fallen_back.says("ready");
    let config = lab.path("gate.toml");
    let status = run_on(
        &lab,
        "gate",
        BINARY,
        &["status", "--json", "--config", config.to_str().expect("UTF-8")],
        Duration::from_secs(10),
    );
    let status: serde_json::Value = serde_json::from_str(&status.expect("status")).expect("JSON");
    assert_eq!(status["gate"]["backend"], "packet");
    assert!(status["gate"]["backend_why"].as_str().is_some_and(|why| why.contains("because xdp fails")), "{status}");
}
