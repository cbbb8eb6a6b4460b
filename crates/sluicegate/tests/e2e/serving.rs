//! A service that answers for itself, through an agent beside it.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use sluicegate_site::clock::unix_ns;

use crate::support::{
    BINARY,
    capture::Capture,
    lab::{CLIENT, CLIENT_ALIAS, GATE, Lab, SERVICE},
    let_run,
    node::{Config, Node, REALM, password_file, service},
    phone::{Phone, Wish},
    program::Program,
    traffic::Stream,
    until,
};

on_each_datapath!(alone the_services_agent_ends_a_flooding_client_within_a_second, &[], super::flood);
on_packet!(the_services_agent_refuses_by_local_policy_and_only_its_registrar_may_serve, &[], local_policy);

/// The flood: 1,000 datagrams of 1,200 bytes a second, five times what the agent allows, and for the gate no excess.
const FLOOD_PER_S: u64 = 1_000;
const FLOOD_BYTES: usize = 1_200;

fn frontend() -> SocketAddr {
    SocketAddr::new(GATE.into(), 5060)
}

fn node(lab: &Lab, datapath: &'static str) -> Node {
    let config = service("host", "\"udp/7000\"", "kind = \"agent\"\nregistrar = \"host-agent\"\n");
    let node = Node::up(lab, &Config::new(datapath, &config));
    node.add_user(lab, "host-agent", None);
    node
}

/// `sluicegate agent --serve` on the service's host.
fn serve(lab: &Lab, user: &str, more: &str) -> Program {
    let password = password_file(lab);
    let text = format!(
        "[agent]\nfrontend = \"{}\"\nrealm = \"{REALM}\"\nuser = \"{user}\"\npassword_file = \"{}\"\n\
         service = \"host\"\naddress = \"{SERVICE}\"\nports = [\"udp/7000\"]\n{more}",
        frontend(),
        password.display(),
    );
    let file = lab.write("agent.toml", &text).display().to_string();
    Program::start(lab, "service", "agent", BINARY, &["agent", &file, "--serve"])
}

fn flood(datapath: &'static str) {
    let lab = Lab::new();
    let node = node(&lab, datapath);
    let agent = serve(&lab, "host-agent", "interface = \"eth0\"\nabuse_rate = \"2Mbit\"\n");
    agent.says("registered");
    let _answering = Stream::start(lab.udp("service", SERVICE, 7000), None);
    let honest = Phone::new(&lab, "client", CLIENT_ALIAS, frontend(), "bob");
    let greedy = Phone::new(&lab, "client", CLIENT, frontend(), "alice");
    let honest_call = honest.call("host", Wish::Udp(7000, 7000));
    let greedy_call = greedy.call("host", Wish::Udp(7000, 7000));
    let _stream = Stream::start(lab.udp("client", CLIENT_ALIAS, 0), Some(honest_call.gate));
    let flooding = Capture::start(&lab, ("service", "eth0"), |seen| seen.from == CLIENT && seen.ports.1 == 7000);
    let calm = Capture::start(&lab, ("service", "eth0"), |seen| seen.from == CLIENT_ALIAS && seen.ports.1 == 7000);
    until("the honest stream flows", || (calm.count() > 50).then_some(()));

    let stop = Arc::new(AtomicBool::new(false));
    let (socket, flag) = (lab.udp("client", CLIENT, 0), Arc::clone(&stop));
    let flood = thread::spawn(move || {
        let (start, mut sent) = (Instant::now(), 0);
        while !flag.load(Ordering::Relaxed) {
            while sent < start.elapsed().as_millis() as u64 * FLOOD_PER_S / 1_000 {
                let _ = socket.send_to(&[0x58; FLOOD_BYTES], greedy_call.gate);
                sent += 1;
            }
            thread::sleep(Duration::from_millis(1));
        }
        sent
    });
    let_run(Duration::from_secs(4));
    stop.store(true, Ordering::Relaxed);
    let sent = flood.join().expect("the flood");
    let ended_ns = unix_ns();

    assert!(sent > 3 * FLOOD_PER_S, "the client went on: {sent} datagrams");
    let packets = flooding.seen();
    let first = packets.first().expect("the flood arrived at first").at_ns;
    let last = packets.last().map_or(first, |seen| seen.at_ns);
    let lasted = Duration::from_nanos(last - first);
    println!("{} of {sent} datagrams of the flood arrived, over {lasted:?}", packets.len());
    assert!(packets.len() > 100, "it was a flood: {} datagrams", packets.len());
    assert!(lasted < Duration::from_secs(1), "the flood was ended after {lasted:?}");
    let kept = calm.between(ended_ns - 1_000_000_000, ended_ns).len();
    assert!(kept > 60, "the honest client kept its grant: {kept} datagrams in the last second");
    assert_eq!(node.grants().len(), 1);
}

fn local_policy(datapath: &'static str) {
    let lab = Lab::new();
    let node = node(&lab, datapath);
    let mut impostor = serve(&lab, "bob", "");
    assert!(!impostor.finished(Duration::from_secs(30)), "bob may not serve");
    assert!(impostor.log().contains("is bob its registrar?"), "{}", impostor.log());
    let phone = |user: &str| Phone::new(&lab, "client", CLIENT, frontend(), user);
    let absent = phone("alice").try_call("host", Wish::Udp(7000, 7000)).expect_err("nobody serves");
    assert_eq!(absent.status, 480);

    let mut agent = serve(&lab, "host-agent", "deny = [\"bob\"]\n");
    agent.says("registered");
    let refused = phone("bob").try_call("host", Wish::Udp(7000, 7000)).expect_err("denied by the service");
    assert!(refused.status == 403 || refused.status == 603, "{}", refused.status);
    assert_eq!(node.grants().len(), 0);
    phone("alice").call("host", Wish::Udp(7000, 7000));
    assert_eq!(node.grants().len(), 1);
    assert!(agent.stop(), "the agent ends well when it is asked to");
    let absent = phone("alice").try_call("host", Wish::Udp(7000, 7000)).expect_err("nobody serves any more");
    assert_eq!(absent.status, 480);
}
