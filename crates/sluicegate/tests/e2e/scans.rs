//! A stranger with nmap.

use std::time::Duration;

use crate::support::{
    capture::Capture,
    lab::{CLIENT, Lab, PUBLIC, STRANGER},
    let_run,
    node::{Config, Node, service},
    phone::{Phone, Wish},
    program::run_on,
    traffic::Echo,
};

const LIMIT: Duration = Duration::from_secs(240);

on_each_datapath!(alone nmap_finds_nothing_open_and_the_service_sees_no_packet, &["nmap"], super::nmap);

fn nmap(datapath: &'static str) {
    let lab = Lab::new();
    let objects = service("echo", "\"tcp/7000-7009\", \"udp/7000-7009\"", "")
        + &service("public", "\"tcp/9000-9009\"", "mode = \"filter\"\naddress = \"192.0.2.10\"\n");
    let _node = Node::up(&lab, &Config::new(datapath, &objects));
    // Ports that would answer, and pinholes of somebody else, so that there is something to find.
    let _echo = Echo::start(lab.listen("service", crate::support::lab::SERVICE, 7000));
    let _public = Echo::start(lab.listen("service", PUBLIC, 9000));
    let phone = Phone::new(&lab, "client", CLIENT, "203.0.113.1:5060".parse().expect("an address"), "alice");
    let call = phone.call("echo", Wish::Tcp(7000, 7009));
    phone.call("echo", Wish::Audio);
    drop(lab.connect("client", call.gate).expect("the client itself gets through"));
    assert!((20_000..=32_767).contains(&call.gate.port()), "{}", call.gate);
    // To nmap it is open, for this client.
    let port = call.gate.port().to_string();
    let own = run_on(&lab, "client", "nmap", &["-n", "-Pn", "-sT", "-p", &port, "-oG", "-", "203.0.113.1"], LIMIT);
    let own = own.expect("nmap");
    assert!(own.contains(&format!("{port}/open/tcp")), "{own}");
    // The goodbyes of those connections are no packets of a stranger.
    let_run(Duration::from_secs(1));

    let all = Capture::start(&lab, ("service", "eth0"), |_| true);
    let strangers = Capture::start(&lab, ("service", "eth0"), |seen| seen.from == STRANGER);
    // The gate's own address: low ports, the ports of the service, and every external port. Then the public service.
    // UDP port 5060 is the way in, for everyone, and not scanned.
    let low = "T:1-1024,5060,7000-7443,9469,U:53,123,161,500,4500,7000-7009";
    let external = "T:20000-32767,U:20000-32767";
    for (ports, address) in [(low, "203.0.113.1"), (external, "203.0.113.1"), ("T:1-10000,U:9000-9020", "192.0.2.10")] {
        let arguments = [
            "-n",
            "-Pn",
            "-sS",
            "-sU",
            "--max-retries",
            "0",
            "--min-rate",
            "2000",
            "--host-timeout",
            "180s",
            "--open",
            "-p",
            ports,
            "-oG",
            "-",
            address,
        ];
        let out = run_on(&lab, "stranger", "nmap", &arguments, LIMIT).expect("nmap");
        assert!(out.contains("Nmap done") || out.contains("# Nmap done"), "{out}");
        assert!(!out.contains("Timeout"), "the scan was cut short: {out}");
        // `open|filtered` is what nmap calls a UDP port that says nothing at all.
        assert!(!out.contains("/open/"), "nmap found an open port:\n{out}");
    }
    assert_eq!(strangers.count(), 0, "{:?}", strangers.seen().first());
    assert_eq!(all.count(), 0, "{:?}", all.seen().first());
}
