//! Configuration mistakes that only a host of interfaces can show; the others are in `tests/config.rs`.

use std::{fs, net::SocketAddr, path::Path, process::Command};

use crate::support::{
    BINARY, PATIENCE,
    lab::{CLIENT, GATE, Lab, SERVICE},
    node::{Config, Node, service},
    phone::{AUDIO_PORT, Phone, Wish},
    program::{Done, run},
    stolen,
    traffic::Stream,
    until,
};

on_packet!(a_gate_that_cannot_stand_where_it_is_told_to_says_where_and_why_and_changes_nothing, &[], mistakes);
on_packet!(a_refused_start_does_not_disturb_the_node_that_runs, &[], running);
on_packet!(manage_forwarding_switches_the_kernels_forwarding_off, &[], forwarding);

fn on_gate(lab: &Lab, verb: &str, file: &Path) -> Done {
    let mut command = Command::new(BINARY);
    command.arg(verb).arg(file);
    lab.host("gate").run_in(|| run(&mut command, PATIENCE)).expect("a namespace")
}

/// Line of `text` that begins with `start`, counted from 1.
fn line_of(text: &str, start: &str) -> usize {
    1 + text.lines().position(|line| line.starts_with(start)).unwrap_or_else(|| panic!("no line {start}"))
}

fn forwards(lab: &Lab) -> String {
    let read = || fs::read_to_string("/proc/sys/net/ipv4/ip_forward").expect("a kernel setting");
    lab.host("gate").run_in(read).expect("a namespace").trim().to_owned()
}

fn mistakes(datapath: &'static str) {
    let lab = Lab::new();
    let file = Config::new(datapath, &service("echo", "\"udp/7000\"", "")).write_up(&lab);
    let good = fs::read_to_string(&file).expect("the configuration");
    let done = on_gate(&lab, "check", &file);
    assert!(done.status.success() && done.out.contains("no errors"), "{done:?}");
    let cases = [
        ("outside = \"outside\"", "outside = \"eth7\"", "outside = ", "this host has: "),
        ("inside = \"inside\"", "inside = \"outside\"", "inside = ", "two different interfaces"),
        ("datapath", "address = \"203.0.113.77\"\ndatapath", "address = ", "ip address add 203.0.113.77"),
        ("datapath", "address = \"10.4.0.1\"\ndatapath", "address = ", "use an address of \"outside\""),
    ];
    for (right, wrong, start, what) in cases {
        let text = good.replacen(right, wrong, 1);
        let file = lab.write("wrong.toml", &text);
        let place = format!("{}:{}: error: ", file.display(), line_of(&text, start));
        for verb in ["check", "up"] {
            let done = on_gate(&lab, verb, &file);
            let said = done.out + &done.err;
            assert!(!done.status.success(), "{verb} {wrong}");
            assert!(said.contains(&place) && said.contains(what), "{verb} {wrong}: {place}{what}\n{said}");
        }
    }
    lab.host("gate").forward(true).expect("a kernel setting");
    for verb in ["check", "up"] {
        let done = on_gate(&lab, verb, &file);
        let said = done.out + &done.err;
        assert!(!done.status.success(), "{verb} while the kernel forwards");
        assert!(said.contains(&format!("{}:", file.display())), "{said}");
        assert!(said.contains("manage_forwarding = true") && said.contains("sysctl -w"), "{said}");
    }
    assert_eq!(forwards(&lab), "1", "the kernel's forwarding is as it was");
    assert!(!lab.path("up.state").exists(), "no state was made");
}

fn running(datapath: &'static str) {
    let lab = Lab::new();
    let node = Node::up(&lab, &Config::new(datapath, &service("echo", "\"udp/7000\"", "")));
    let serving = Stream::start(lab.udp("service", SERVICE, 7000), None);
    let phone = Phone::new(&lab, "client", CLIENT, SocketAddr::new(GATE.into(), 5060), "alice");
    let client = Stream::start(lab.udp("client", CLIENT, AUDIO_PORT), Some(phone.call("echo", Wish::Audio).gate));
    let flows = |what: &str| {
        let from = std::time::Instant::now();
        until(what, || (serving.arrivals.since(from).min(client.arrivals.since(from)) > 30).then_some(()));
    };
    flows("the stream flows");
    let (before, stolen_before) = (std::time::Instant::now(), stolen());
    // The same file a second time; the same interfaces under another state; a file with a mistake.
    let file = lab.path("site.toml");
    let text = fs::read_to_string(&file).expect("the configuration");
    let elsewhere = text.replace("up.state", "other.state").replace(":5060", ":5070").replace("/5060", "/5070");
    let other = lab.write("other.toml", &elsewhere.replace("[gate]", "feed = \"127.0.0.1:7444\"\n[gate]"));
    let wrong = lab.write("wrong.toml", &text.replace("realm", "relm"));
    for (what, file) in [("the same file", &file), ("another state", &other), ("a mistake", &wrong)] {
        let done = on_gate(&lab, "up", file);
        assert!(!done.status.success(), "{what}");
        assert!(done.err.len() > 20, "{what}: {done:?}");
        println!("{what}: {}", done.err.trim());
    }
    flows("the stream flows as before");
    let silence = client.arrivals.longest_silence(before);
    let limit = std::time::Duration::from_secs(1) + (stolen() - stolen_before);
    assert!(silence < limit, "nothing stopped the stream: {silence:?}");
    assert_eq!(node.grants().len(), 1);
}

fn forwarding(datapath: &'static str) {
    let lab = Lab::new();
    lab.host("gate").forward(true).expect("a kernel setting");
    let config = Config::new(datapath, &service("echo", "\"udp/7000\"", "")).gate("manage_forwarding = true\n");
    let _node = Node::up(&lab, &config);
    let per_interface = || {
        ["outside", "inside"].map(|name| {
            let path = format!("/proc/sys/net/ipv4/conf/{name}/forwarding");
            fs::read_to_string(path).expect("a kernel setting").trim().to_owned()
        })
    };
    assert_eq!(lab.host("gate").run_in(per_interface).expect("a namespace"), ["0", "0"]);
}
