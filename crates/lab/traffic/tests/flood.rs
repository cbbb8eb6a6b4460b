//! The harm that the gate must prevent, shown without a gate: a flood takes down a call over plain forwarding.

use std::{
    io::Write,
    net::{IpAddr, SocketAddr},
    path::Path,
    time::Duration,
};

use sluicegate_netlink::LinkCounters;
use sluicegate_site::{
    Prefix, Process,
    namespace::may_make_namespaces,
    topology::{Site, SiteOptions},
    worker,
};
use sluicegate_traffic::{
    attack::{FloodSpec, Kind, Target},
    client::{
        call::{CallSpec, CallSummary, Calls, SinkSpec},
        haul::ServeSpec,
        transfer::TransferSpec,
    },
    count::CountSpec,
};

const SECONDS: u32 = 4;
const PATIENCE: Duration = Duration::from_secs(20);

fn start<S: serde::Serialize>(site: &Site, host: &str, role: &str, spec: &S) -> Process {
    let command = worker::command(Path::new(env!("CARGO_BIN_EXE_lab-worker")), role, spec);
    let process = site.lab.host(host).unwrap().spawn(&format!("{role} on {host}"), command).unwrap();
    process.event("ready", PATIENCE).unwrap();
    process
}

/// What became of calls, of transfers (started, complete), and what a counter on the service's interface saw.
struct Outcome {
    call: CallSummary,
    transfers: (u64, u64),
    counted: serde_json::Value,
    /// What arrived before the bottleneck while the call lasted.
    offered: LinkCounters,
}

/// Runs a call to both services and transfers from one, under the flood if there is one.
fn use_services(site: &Site, flood: Option<&FloodSpec>) -> Outcome {
    let targets: [SocketAddr; 2] = [(Site::NAT, 5004).into(), (Site::WEB, 5004).into()];
    let sinks = [("pbx", targets[0]), ("web", targets[1])]
        .map(|(host, address)| start(site, host, "sink", &SinkSpec { listen: vec![address], seconds: 60 }));
    let alice = vec![Prefix::from(IpAddr::from(Site::address("alice").unwrap()))];
    let classes = vec![("call".to_owned(), alice), ("wire".to_owned(), Site::own_wire())];
    let counter = start(
        site,
        "pbx",
        "count",
        &CountSpec { interface: "eth0".to_owned(), classes, marks: Vec::new(), seconds: 60 },
    );
    let web = SocketAddr::from((Site::WEB, 80));
    let mut server = start(site, "web", "serve", &ServeSpec { listen: vec![web], silence_s: 10, seconds: 60 });
    let attacker = flood.map(|flood| start(site, "core", "flood", flood));
    let spec = CallSpec {
        to: targets.to_vec(),
        first_flow: 1,
        from_ports: Vec::new(),
        per_s: 50,
        bytes: 200,
        seconds: SECONDS,
    };
    let caller = start(site, "alice", "call", &spec);
    let transfers = TransferSpec {
        to: web,
        from: None,
        bytes: 20_000,
        deadline_ms: 3_000,
        per_minute: 180,
        parallel_max: 0,
        upload: false,
        seconds: SECONDS,
    };
    let transfers = start(site, "bob", "transfer", &transfers);
    let mut calls = Calls::default();
    let before = site.lab.counters("bypass", Site::OUTSIDE).unwrap();
    while let Some(line) = caller.line(PATIENCE) {
        calls.take(&line);
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        if line["event"] == "result" {
            assert!(line["stamped"].as_u64() >= line["sent"].as_u64().map(|sent| sent / 10 * 9), "{line}");
        }
    }
    let offered = site.lab.counters("bypass", Site::OUTSIDE).unwrap().since(&before);
    let transfers = transfers.event("result", PATIENCE).unwrap();
    server.close_input();
    if let Some(mut attacker) = attacker {
        attacker.close_input();
        attacker.event("result", PATIENCE).unwrap();
    }
    for mut sink in sinks {
        sink.close_input();
        while let Some(line) = sink.line(PATIENCE) {
            calls.take(&line);
        }
    }
    let mut counter = counter;
    counter.close_input();
    Outcome {
        call: calls.summary(0, u64::MAX, |_| true),
        transfers: (transfers["started"].as_u64().unwrap(), transfers["complete"].as_u64().unwrap()),
        counted: counter.event("result", PATIENCE).unwrap(),
        offered,
    }
}

fn class(result: &serde_json::Value, name: &str) -> u64 {
    let classes = result["classes"].as_array().unwrap();
    classes.iter().find(|class| class["name"] == name).unwrap()["packets"].as_u64().unwrap()
}

#[test]
fn a_flood_ten_times_the_link_takes_the_call_down_and_no_flood_loses_nothing() {
    if !may_make_namespaces() {
        let _ = writeln!(std::io::stderr(), "skipped: no right to make network namespaces (run as root)");
        return;
    }
    let options = SiteOptions { link_rate_bps: 5_000_000, queue_packets: 60 };
    let site = Site::build(options).unwrap();
    site.gate_off().unwrap();
    let Outcome { call: calm, transfers, counted, .. } = use_services(&site, None);
    assert!(transfers.0 >= 10 && transfers.0 == transfers.1, "{transfers:?}");
    // A busy machine skips what it is late for.
    let wanted = u64::from(SECONDS) * 50 * 2;
    assert!(calm.sent >= wanted / 2 && calm.received == calm.sent, "{calm:?}");
    assert_eq!(class(&counted, "stranger"), 0);
    assert!(class(&counted, "call") >= wanted / 4);

    let bypass = site.lab.mac("bypass", Site::OUTSIDE).unwrap();
    let core = site.lab.mac("core", "to_bypass").unwrap();
    let flood = FloodSpec {
        mark: 0,
        interface: "to_bypass".to_owned(),
        destination_mac: bypass,
        source_mac: core,
        targets: [Site::NAT, Site::WEB]
            .map(|address| Target { address: address.into(), first: 1, last: 65_535 })
            .to_vec(),
        mix: vec![(Kind::Udp, 4), (Kind::Syn, 1)],
        datagrams: Vec::new(),
        sources: vec![Site::SPOOFED],
        clients: Vec::new(),
        clients_percent: 0,
        frame_bytes: vec![1_400],
        // Twenty-five times 5 Mbit/s, so that a busy machine still sends ten times; SYNs are smaller.
        per_s: 14_000,
        seconds: 60,
        frames_max: 10_000_000,
        seed: 7,
    };
    let Outcome { call: flooded, transfers, counted, offered } = use_services(&site, Some(&flood));
    assert!(offered.rx_bytes * 8 >= 10 * options.link_rate_bps * u64::from(SECONDS), "{offered:?}");
    assert!(flooded.sent >= wanted / 2 && flooded.loss >= 0.2, "{flooded:?}");
    assert!(class(&counted, "stranger") > 1_000, "the flood reaches the service");
    let queue = site.lab.queue_counters("link", "to_lan").unwrap();
    assert!(queue.dropped > offered.rx_packets / 2, "{queue:?} of {offered:?}");
    eprintln!("calm {calm:?}\nflooded {flooded:?}, transfers {transfers:?}\noffered {offered:?}");
}
