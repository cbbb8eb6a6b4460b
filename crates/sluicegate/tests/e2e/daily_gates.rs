//! Several gates of one frontend, each in front of services of its own (newcomer 1.11).

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr},
    thread,
    time::Duration,
};

use sluicegate_site::topology::Host;

use crate::support::{
    agent::connect_to,
    lab::{FRONTEND, Lab, host},
    node::{Node, REALM, join_on, service},
    program::Program,
    until,
};

on_packet!(each_service_is_opened_at_the_gate_whose_inside_routes_lead_to_it, &[], chosen);

const FILES: Ipv4Addr = Ipv4Addr::new(10, 6, 0, 2);

/// ```text
/// client ───┐         ┌─ outside [east] inside ── eth0 [web]
///           ├─ core ──┤
/// frontend ─┘         └─ outside [west] inside ── eth0 [files]
/// ```
fn lab() -> Lab {
    let host = |name: &str, router: &str| host(name, &[("0.0.0.0/0", router)]);
    let hosts = vec![
        Host::new("core").forwarding(),
        host("client", "198.51.100.1"),
        host("frontend", "198.51.100.129"),
        host("east", "203.0.113.254"),
        host("west", "192.0.2.254"),
        host("web", "10.4.0.1"),
        host("files", "10.6.0.1"),
    ];
    let wires = [
        ("core:to_client 198.51.100.1/26", "client:eth0 198.51.100.2/26"),
        ("core:to_frontend 198.51.100.129/26", "frontend:eth0 198.51.100.130/26"),
        ("core:to_east 203.0.113.254/24", "east:outside 203.0.113.1/24"),
        ("core:to_west 192.0.2.254/24", "west:outside 192.0.2.1/24"),
        ("east:inside 10.4.0.1/24", "web:eth0 10.4.0.2/24"),
        ("west:inside 10.6.0.1/24", "files:eth0 10.6.0.2/24"),
    ];
    Lab::of(hosts, &wires)
}

/// Says its name to whoever connects.
fn serve(lab: &Lab, host: &'static str, address: Ipv4Addr) {
    let listener = lab.listen(host, address, 80);
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(host.as_bytes());
        }
    });
}

fn gate(lab: &Lab, frontend: &Node, name: &str, datapath: &str) -> Node {
    let state = lab.path(&format!("{name}.state"));
    let text = format!(
        "[node]\nname = \"{name}\"\nstate = \"{}\"\n[gate]\noutside = \"outside\"\ninside = \"inside\"\ndatapath = \"{datapath}\"\n",
        state.display()
    );
    let file = lab.write(&format!("{name}.toml"), &text);
    join_on(lab, name, frontend, &file);
    let node = Node::start(lab, name, "gate", &file);
    node.ready();
    node
}

/// What the service behind this local port says, through a forward of its own.
fn says(lab: &Lab, service: &str, port: u16) -> (String, Program) {
    let agent = connect_to(lab, FRONTEND, service, &["-L", &format!("{port}:80")]);
    agent.says("ready");
    let mut stream = lab.connect("client", SocketAddr::from((Ipv4Addr::LOCALHOST, port))).expect("the forward listens");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
    let mut said = String::new();
    stream.read_to_string(&mut said).expect("the service is reached");
    (said, agent)
}

fn chosen(datapath: &'static str) {
    let lab = lab();
    let services = service("web", "\"tcp/80\"", "") + &service("files", "\"tcp/80\"", "address = \"10.6.0.2\"\n");
    let text = format!(
        "[node]\nname = \"frontend\"\nstate = \"{}\"\n[frontend]\nlisten = [\"udp/{FRONTEND}:5060\"]\nrealm = \"{REALM}\"\nfeed = \"{FRONTEND}:7443\"\n{services}",
        lab.path("frontend.state").display()
    );
    let frontend = Node::start(&lab, "frontend", "frontend", &lab.write("frontend.toml", &text));
    frontend.ready();
    frontend.add_people(&lab);
    serve(&lab, "web", Ipv4Addr::new(10, 4, 0, 2));
    serve(&lab, "files", FILES);
    let mut gates = ["east", "west"].map(|name| gate(&lab, &frontend, name, datapath));
    let (said, _web) = says(&lab, "web", 8080);
    assert_eq!(said, "web");
    let (said, _files) = says(&lab, "files", 8081);
    assert_eq!(said, "files");
    assert_eq!(gates.each_ref().map(|gate| gate.grants().len()), [1, 1]);
    // Nobody takes over what another gate stands before.
    gates[1].program.kill();
    until("the gate is away", || {
        let gates = frontend.json(&["status"])["frontend"]["gates"].clone();
        gates.as_array()?.iter().any(|gate| gate["gate"] == "west" && gate["connected"] == false).then_some(())
    });
    let refused = connect_to(&lab, FRONTEND, "files", &["-L", "8082:80"]);
    until("the agent is refused", || refused.log().contains("refused").then_some(()));
    assert_eq!(gates[0].grants().len(), 1);
    // A route that goes takes the service with it, and is said.
    let status = || frontend.json(&["status"])["frontend"]["gates"][0].clone();
    assert!(status()["unreached"]["files"].as_str().is_some_and(|why| why.contains("10.6.0.2")), "{}", status());
    assert!(status()["unreached"].get("web").is_none(), "{}", status());
}
