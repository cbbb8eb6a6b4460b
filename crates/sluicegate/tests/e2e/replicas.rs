//! Two frontends that serve the same users: one of them dies.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::{Duration, Instant},
};

use crate::support::{
    BINARY, PATIENCE,
    agent::{self, LOCAL, UdpEcho},
    capture::{Capture, Seen},
    lab::{CLIENT, FRONTEND, Lab, SERVICE, STRANGER},
    let_run,
    node::{Config, Node, REALM, join, password_file, service},
    program::Program,
    stolen,
    traffic::{Echo, Stream, Talk},
    until,
};

on_packet!(
    alone when_a_frontend_is_killed_flows_go_on_and_its_replica_renews_them_and_signs_in_whom_the_site_lets_in,
    &[],
    killed
);

/// What a grant lasts, in seconds: flows that outlive it several times are renewed.
const LIFETIME_S: u64 = 30;
/// How long a flow may pause while its agent goes over to another frontend: the gate forwards all the time.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The frontend with the key holder, and its replica on another host, with a gate that has joined both.
struct Site {
    lab: Lab,
    first: Node,
    second: Node,
    gate: Node,
}

/// A frontend's file, rewritten for another host.
fn written(lab: &Lab, config: &Config, (name, address): (&str, Ipv4Addr)) -> PathBuf {
    let text = fs::read_to_string(config.write_frontend(lab, address.into())).expect("a configuration");
    lab.write(
        &format!("{name}.toml"),
        &text.replace("frontend-1", name).replace("frontend.state", &format!("{name}.state")),
    )
}

fn status(node: &Node) -> serde_json::Value {
    node.json(&["status"])["frontend"].clone()
}

impl Site {
    fn start(datapath: &'static str) -> Self {
        let lab = Lab::new();
        let limits = format!("grant = {{ bytes_max = \"100MB\", lifetime_s = {LIFETIME_S}, rate = \"50Mbit\" }}\n");
        let config = Config::new(datapath, &service("echo", "\"udp/5004\", \"tcp/7000\"", &limits));
        let file = written(&lab, &config, ("first", FRONTEND));
        let mut first = Node::start(&lab, "frontend", "frontend", &file);
        first.ready();
        let site_key = status(&first)["site_key"].as_str().expect("a key").to_owned();
        let keys = format!("keys = {{ site_key = \"{site_key}\" }}\n");
        let second = written(&lab, &config.clone().frontend(&keys), ("second", STRANGER));
        let second = Node::start(&lab, "stranger", "frontend", &second);
        second.ready();
        let key = status(&second)["frontend_key"].as_str().expect("a key").to_owned();
        let replica = format!("[[frontend.replica]]\nname = \"second\"\nkey = \"{key}\"\nfeed = \"{STRANGER}:7443\"\n");
        let config = Config { objects: replica + &config.objects, ..config };
        written(&lab, &config, ("first", FRONTEND));
        assert!(first.program.stop());
        first.restart(&lab);
        first.add_people(&lab);
        let file = config.write_gate(&lab);
        join(&lab, &first, &file);
        join(&lab, &second, &file);
        let gate = Node::start(&lab, "gate", "gate", &file);
        gate.ready();
        first.has_gate();
        second.has_gate();
        Self { lab, first, second, gate }
    }

    fn has_users(&self, count: u64) {
        until("the replica has the site's users", || {
            (status(&self.second)["users"].as_u64() == Some(count)).then_some(())
        });
    }

    /// `connect` of a user through either frontend.
    fn connect(&self, user: &str, how: &[&str]) -> Program {
        let password = password_file(&self.lab).display().to_string();
        let (target, both) = (format!("{user}@echo"), [format!("{FRONTEND}:5060"), format!("{STRANGER}:5060")]);
        let fixed = ["connect", &target, "--frontend", &both[0], "--frontend", &both[1], "--realm", REALM];
        let with = ["--password-file", &password];
        Program::start(&self.lab, "client", "connect", BINARY, &[&fixed[..], &with[..], how].concat())
    }
}

fn killed(datapath: &'static str) {
    let mut site = Site::start(datapath);
    let _udp = UdpEcho::start(&site.lab);
    let _tcp = Echo::start(site.lab.listen("service", SERVICE, 7000));
    site.has_users(3);
    let refused = site.second.cli(&["user", "rm", "bob"]);
    assert!(!refused.status.success() && refused.err.contains("change them there"), "{refused:?}");

    let is_sip = |seen: &Seen| seen.from == CLIENT && seen.ports.1 == 5060;
    let capture = Capture::start(&site.lab, ("frontend", "eth0"), is_sip);
    let alice = site.connect("alice", &["-L", "5004:5004/udp", "-L", "7000:7000"]);
    alice.says("ready");
    let local: SocketAddr = "127.0.0.1:7000".parse().expect("an address");
    let talk = Talk::start(site.lab.connect("client", local).expect("the agent listens"));
    let stream = Stream::start(site.lab.udp("client", Ipv4Addr::LOCALHOST, 0), Some(LOCAL));
    let flow_since = |from: Instant| {
        until("TCP comes back", || (talk.arrivals.since(from) >= 20).then_some(()));
        until("datagrams come back", || (stream.arrivals.since(from) >= 20).then_some(()));
    };
    flow_since(Instant::now());
    let grants = site.first.grants();
    assert_eq!((grants.len(), site.gate.grants()), (2, grants.clone()));
    assert!(site.second.grants().is_empty());

    // Who is removed at the one is gone at the other.
    site.first.cli(&["user", "rm", "bob"]).expect("user rm");
    site.has_users(2);
    let third = capture.seen().into_iter().rfind(|seen| {
        let text = String::from_utf8_lossy(agent::payload(&seen.bytes)).into_owned();
        text.starts_with("INVITE ") && text.contains("Authorization")
    });
    let third = third.expect("a request with credentials");

    let (killed, stolen_before) = (Instant::now(), stolen());
    site.first.program.kill();
    alice.says("another frontend answers");
    until("the replica goes on with the same grants", || (site.second.grants() == grants).then_some(()));
    // Well beyond what the dead frontend's grants lasted.
    while killed.elapsed() < Duration::from_secs(5 * LIFETIME_S / 2) {
        let_run(Duration::from_secs(1));
        assert_eq!(talk.broken(), None, "{}", alice.log());
    }
    flow_since(Instant::now());
    assert_eq!(site.gate.grants(), grants, "the pinholes are the same");
    let limit = PAUSE_MAX + (stolen() - stolen_before);
    for (what, arrivals) in [("TCP", &talk.arrivals), ("UDP", &stream.arrivals)] {
        let silence = arrivals.longest_silence(killed);
        println!("longest silence of {what} from the kill on: {silence:?}");
        assert!(silence < limit, "{what}: {silence:?}");
    }

    // New sign-ins, of those whom the site lets in alone.
    let again = site.connect("alice", &["-L", "5014:5004/udp"]);
    again.says("ready");
    let bob = site.connect("bob", &["-L", "5024:5004/udp"]);
    bob.says("does not accept the password of bob");

    // What signed in at the one opens nothing at the other.
    let thief = site.lab.udp("client", CLIENT, 0);
    thief.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let before = site.second.grants();
    thief.send_to(agent::payload(&third.bytes), (STRANGER, 5060)).expect("sent");
    let mut answer = [0; 2_048];
    let len = thief.recv(&mut answer).expect("an answer");
    let answer = String::from_utf8_lossy(&answer[..len]).into_owned();
    assert!(answer.starts_with("SIP/2.0 407"), "{answer}");
    assert_eq!(site.second.grants(), before);

    // It comes back, and closes nothing.
    site.first.restart(&site.lab);
    let_run(Duration::from_secs(5));
    flow_since(Instant::now());
    assert_eq!(talk.broken(), None);
    assert!(grants.iter().all(|grant| site.gate.grants().contains(grant)));
}
