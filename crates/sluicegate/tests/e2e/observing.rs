//! Filter services, observe mode, and explanations.

use std::{
    net::{IpAddr, SocketAddr},
    time::Instant,
};

use crate::support::{
    capture::Capture,
    lab::{CLIENT, CLIENT_V6, GATE, GATE_V6, Lab, PUBLIC, PUBLIC_V6, STRANGER, STRANGER_V6},
    let_run,
    node::{Config, Node, service},
    phone::{AUDIO_PORT, Phone, Wish},
    traffic::{Echo, Stream, Talk},
    until,
};

on_each_datapath!(a_filter_service_is_reached_by_its_own_address_over_both_ip_versions, &[], super::filter);
on_each_datapath!(observe_mode_counts_what_it_would_drop_and_lets_it_pass, &[], super::observe);
on_packet!(trace_explains_a_drop_with_its_reason, &[], trace);

/// Datagrams of a stranger.
const DATAGRAMS: u64 = 50;

fn public() -> String {
    let ports = "\"udp/9000\", \"tcp/9000\"";
    service("public", ports, "mode = \"filter\"\naddress = \"192.0.2.10\"\n")
        + &service("public-v6", ports, "mode = \"filter\"\naddress = \"2001:db8:192::10\"\n")
}

/// Sends [`DATAGRAMS`] from a stranger, and gives how many arrive.
fn strangers(lab: &Lab, to: SocketAddr) -> u64 {
    let from: IpAddr = if to.is_ipv4() { STRANGER.into() } else { STRANGER_V6.into() };
    let arrived = Capture::start(lab, ("service", "eth0"), move |seen| seen.from == from);
    let socket = lab.udp("stranger", from, 4000);
    for _ in 0..DATAGRAMS {
        socket.send_to(b"let me in", to).expect("a route");
        let_run(std::time::Duration::from_millis(2));
    }
    let_run(std::time::Duration::from_millis(200));
    arrived.count()
}

fn filter(datapath: &'static str) {
    let lab = Lab::new();
    let listen = format!("listen = [\"udp/{GATE}:5060\", \"udp/[{GATE_V6}]:5060\"]\n");
    let node = Node::up(&lab, &Config::new(datapath, &public()).frontend(&listen));
    let sides: [(&str, IpAddr, IpAddr, IpAddr); 2] = [
        ("public", CLIENT.into(), GATE.into(), PUBLIC.into()),
        ("public-v6", CLIENT_V6.into(), GATE_V6.into(), PUBLIC_V6.into()),
    ];
    for (name, client, frontend, service) in sides {
        let _udp = Stream::start(lab.udp("service", service, 9000), None);
        let _tcp = Echo::start(lab.listen("service", service, 9000));
        assert_eq!(strangers(&lab, SocketAddr::new(service, 9000)), 0, "{name}");
        assert!(lab.connect("stranger", SocketAddr::new(service, 9000)).is_err(), "{name}");

        let phone = Phone::new(&lab, "client", client, SocketAddr::new(frontend, 5060), "alice");
        let (udp, tcp) = (phone.call(name, Wish::Audio), phone.call(name, Wish::Tcp(9000, 9000)));
        // No translation: the service's own address and port.
        assert_eq!((udp.gate, tcp.gate), (SocketAddr::new(service, 9000), SocketAddr::new(service, 9000)));
        let stream = Stream::start(lab.udp("client", client, AUDIO_PORT), Some(udp.gate));
        let talk = Talk::start(lab.connect("client", tcp.gate).expect("a connection through the gate"));
        let from = Instant::now();
        until("datagrams come back", || (stream.arrivals.since(from) > 50).then_some(()));
        until("records come back", || (talk.arrivals.since(from) > 20).then_some(()));
        // The pinhole is the client's alone.
        assert_eq!(strangers(&lab, SocketAddr::new(service, 9000)), 0, "{name}");
    }
    assert!(node.dropped("no_pinhole") >= 4 * DATAGRAMS);
}

fn observe(datapath: &'static str) {
    let lab = Lab::new();
    let node = Node::up(&lab, &Config::new(datapath, &public()).gate("mode = \"observe\"\n"));
    let target = SocketAddr::new(PUBLIC.into(), 9000);
    assert_eq!(strangers(&lab, target), DATAGRAMS, "observing drops nothing");
    let status = node.json(&["status"]);
    assert_eq!(status["gate"]["mode"], "observe");
    assert_eq!(status["gate"]["observed"]["no_pinhole"], DATAGRAMS, "{}", status["gate"]["observed"]);
    let text = node.cli(&["status"]).expect("status");
    assert!(text.lines().any(|line| line.trim().starts_with("longest_turn_us ")), "{text}");
    node.cli(&["observe", "off"]).expect("observe off");
    assert_eq!(strangers(&lab, target), 0, "enforcing does");
    assert_eq!(node.dropped("no_pinhole"), DATAGRAMS);
    node.cli(&["observe", "on"]).expect("observe on");
    assert_eq!(strangers(&lab, target), DATAGRAMS);
}

fn trace(datapath: &'static str) {
    let lab = Lab::new();
    let node = Node::up(&lab, &Config::new(datapath, &public()));
    assert_eq!(strangers(&lab, SocketAddr::new(PUBLIC.into(), 9000)), 0);
    let flow = format!("udp {STRANGER}:4000 > {PUBLIC}:9000");
    let trace = node.json(&["trace", "--flow", &flow]);
    assert_eq!((&trace["verdict"], &trace["reason"]), (&"dropped".into(), &"no_pinhole".into()), "{trace}");
    assert!(trace["explanation"].as_str().is_some_and(|text| text.contains("No grant opened this")), "{trace}");
    assert_eq!(trace["recent"][0]["source"], "198.51.100.66:4000", "the drop itself is remembered: {trace}");
    let text = node.cli(&["trace", "--flow", &flow]).expect("trace");
    assert!(text.contains("no_pinhole") && text.contains("No grant opened this"), "{text}");

    let phone = Phone::new(&lab, "client", CLIENT, SocketAddr::new(GATE.into(), 5060), "alice");
    phone.call("public", Wish::Audio);
    let flow = format!("udp {CLIENT}:{AUDIO_PORT} > {PUBLIC}:9000");
    let trace = node.json(&["trace", "--flow", &flow]);
    assert_eq!((&trace["reason"], &trace["grant"]["user"]), (&serde_json::Value::Null, &"alice".into()), "{trace}");
    let text = node.cli(&["trace", "--flow", &flow]).expect("trace");
    assert!(text.starts_with("forwarded to the inside\n") && text.contains("grant of alice for public: "), "{text}");
    // What `local` lets in is the host's, not nobody's (newcomer 1.16).
    let trace = node.json(&["trace", "--flow", &format!("udp {STRANGER}:4000 > {GATE}:5060")]);
    assert_eq!(trace["verdict"], "received by the gate's own host", "{trace}");
    let text = node.traced(&["trace", "--user", "alice"], "Z public from");
    assert!(text.starts_with("20"), "a time that people read: {text}");
    let unknown = node.json(&["trace", "--flow", "udp 198.51.100.2:4000 > 192.0.2.77:9000"]);
    assert_eq!(unknown["reason"], "not_for_service", "{unknown}");
}
