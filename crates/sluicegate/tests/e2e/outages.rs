//! Processes that die without a word.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use sluicegate_site::clock::unix_ns;

use crate::support::{
    capture::Capture,
    lab::{CLIENT, FRONTEND, GATE, Lab, SERVICE},
    let_run,
    node::{Config, Node, join, service},
    phone::{AUDIO_PORT, Phone, Wish},
    stolen,
    traffic::{Echo, Stream, Talk},
    until,
};

/// How long the gate stays dead.
const OUTAGE: Duration = Duration::from_secs(5);
/// What was on its way when a process was killed has arrived after this.
const IN_FLIGHT_NS: u64 = 100_000_000;

on_each_datapath!(alone a_killed_frontend_stops_no_flow_and_its_restart_closes_none, &[], super::frontend_killed);
on_each_datapath!(
    alone while_a_killed_gate_is_down_nothing_passes_and_its_restart_brings_flows_back,
    &[],
    super::gate_killed
);

/// A UDP stream and a TCP connection of one client, both through the gate.
struct Flows {
    client: Stream,
    service: Stream,
    talk: Talk,
    _echo: Echo,
}

impl Flows {
    fn start(lab: &Lab, phone: &Phone) -> Self {
        let service = Stream::start(lab.udp("service", SERVICE, 7000), None);
        let echo = Echo::start(lab.listen("service", SERVICE, 7000));
        let audio = phone.call("echo", Wish::Audio);
        let tcp = phone.call("echo", Wish::Tcp(7000, 7000));
        let client = Stream::start(lab.udp("client", CLIENT, AUDIO_PORT), Some(audio.gate));
        let talk = Talk::start(lab.connect("client", tcp.gate).expect("a connection through the gate"));
        let flows = Self { client, service, talk, _echo: echo };
        flows.flow_since(Instant::now());
        flows
    }

    /// Waits until all three move after `from`.
    fn flow_since(&self, from: Instant) {
        for (what, arrivals) in [
            ("datagrams reach the service", &self.service.arrivals),
            ("datagrams reach the client", &self.client.arrivals),
            ("TCP records come back", &self.talk.arrivals),
        ] {
            until(what, || (arrivals.since(from) >= 20).then_some(()));
        }
        assert_eq!(self.talk.broken(), None);
    }
}

const SERVICES: &str = "\"tcp/7000\", \"udp/7000\"";

fn frontend_killed(datapath: &'static str) {
    let lab = Lab::new();
    let config = Config::new(datapath, &service("echo", SERVICES, ""));
    let frontend_file = config.write_frontend(&lab, FRONTEND.into());
    let mut frontend = Node::start(&lab, "frontend", "frontend", &frontend_file);
    frontend.ready();
    frontend.add_people(&lab);
    let gate_file = config.write_gate(&lab);
    join(&lab, &frontend, &gate_file);
    let gate = Node::start(&lab, "gate", "gate", &gate_file);
    gate.ready();
    frontend.has_gate();
    let phone = Phone::new(&lab, "client", CLIENT, SocketAddr::new(FRONTEND.into(), 5060), "alice");
    let flows = Flows::start(&lab, &phone);
    let grants = frontend.grants();
    assert_eq!((grants.len(), gate.grants()), (2, grants.clone()));

    let (killed, stolen_before) = (Instant::now(), stolen());
    frontend.program.kill();
    let_run(Duration::from_secs(3));
    flows.flow_since(Instant::now());
    assert_eq!(gate.grants(), grants, "the gate fails static");
    frontend.restart(&lab);
    frontend.has_gate();
    until("the frontend knows the grants again", || (frontend.grants() == grants).then_some(()));
    let_run(Duration::from_secs(2));
    flows.flow_since(Instant::now());
    assert_eq!(gate.grants(), grants, "the restart closed nothing");
    let silence = flows.service.arrivals.longest_silence(killed);
    println!("longest silence of the stream from the kill on: {silence:?}");
    let taken = stolen() - stolen_before;
    assert!(silence < Duration::from_secs(1) + taken, "the stream never paused: {silence:?}, {taken:?} stolen");
    // And what it knows again, it can end.
    frontend.cli(&["grant", "revoke", "--user", "alice"]).expect("grant revoke");
    until("the gate closes what the frontend revokes", || gate.grants().is_empty().then_some(()));
}

fn gate_killed(datapath: &'static str) {
    let lab = Lab::new();
    let mut node = Node::up(&lab, &Config::new(datapath, &service("echo", SERVICES, "")));
    let phone = Phone::new(&lab, "client", CLIENT, SocketAddr::new(GATE.into(), 5060), "alice");
    let flows = Flows::start(&lab, &phone);
    let grants = node.grants();
    // What the gate has on disk is some moments old, seconds on a slow machine: these flows are to be in it.
    let flowing = Instant::now();
    until("a checkpoint has the flows", || {
        let age_ms = node.json(&["status"])["gate"]["saved"]["checkpoint_age_ms"].as_u64()?;
        (Duration::from_millis(age_ms) < flowing.elapsed()).then_some(())
    });

    // Everything that leaves the gate's host: towards the service, and towards the Internet.
    let inward = Capture::start(&lab, ("service", "eth0"), |_| true);
    let outward = Capture::start(&lab, ("core", "to_gate"), |_| true);
    // And what is offered to it meanwhile.
    let offers = || [("client", "eth0"), ("service", "eth0")].map(|(host, interface)| lab.sent(host, interface));
    let_run(Duration::from_millis(300));
    assert!(inward.count() > 10 && outward.count() > 10, "the captures see the flows");
    node.program.kill();
    let (killed_ns, before) = (unix_ns(), offers());
    let_run(OUTAGE + Duration::from_millis(200));
    let ended_ns = unix_ns();
    for (what, capture) in [("towards the service", &inward), ("towards the Internet", &outward)] {
        let passed = capture.between(killed_ns + IN_FLIGHT_NS, ended_ns);
        assert!(passed.is_empty(), "{} packets {what}, the first: {:?}", passed.len(), passed.first());
    }
    for (what, (after, before)) in ["the client", "the service"].into_iter().zip(offers().into_iter().zip(before)) {
        assert!(after - before > 100, "{what} went on sending: {} packets", after - before);
    }

    let restarted = Instant::now();
    node.restart(&lab);
    flows.flow_since(Instant::now());
    println!("flows moved again {:?} after the restart began", restarted.elapsed());
    assert_eq!(node.grants(), grants, "the same grants as before");
}
