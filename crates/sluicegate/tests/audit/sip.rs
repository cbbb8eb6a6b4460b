//! Defects of the SIP server that let somebody in or out. D4 and D21 are security 8 and 19, D17 is security 24.

use std::net::SocketAddr;

use crate::support::{
    lab::{CLIENT, FRONTEND, GATE, Lab},
    node::{Config, Node, service},
    pbx::Pbx,
    phone::{Phone, Wish},
};

on_packet!(sip_d18_no_inside_address_leaves_in_a_contact, &[], contacts);
on_packet!(sip_d26_a_gate_that_is_away_does_not_flood_the_log, &[], log);

fn contacts(datapath: &'static str) {
    let lab = Lab::new();
    let config = service("pbx", "\"udp/10000-10009\"", "kind = \"sip\"\n");
    let _node = Node::up(&lab, &Config::new(datapath, &config));
    let pbx = Pbx::start(&lab);
    let phone = Phone::new(&lab, "client", CLIENT, SocketAddr::new(GATE.into(), 5060), "alice");
    let mut call = phone.call("pbx", Wish::Audio);
    assert!(!call.target().contains("10.4.0."), "{}", call.target());
    // And what the phone was told leads to the SIP server all the same.
    call.cseq += 1;
    let options = phone.ask(&phone.in_dialog(&call, "OPTIONS", call.cseq));
    assert_eq!(options.status, 200);
    assert!(!String::from_utf8_lossy(&options.bytes).contains("10.4.0."));
    assert_eq!(pbx.heard_of("OPTIONS sip:pbx@10.4.0.2:5060 "), 1);
}

fn log(datapath: &'static str) {
    const CALLS: usize = 30;
    let lab = Lab::new();
    let config = Config::new(datapath, &service("echo", "\"udp/7000-7009\"", ""));
    let node = Node::start(&lab, "frontend", "frontend", &config.write_frontend(&lab, FRONTEND.into()));
    node.ready();
    node.add_people(&lab);
    let phone = Phone::new(&lab, "client", CLIENT, SocketAddr::new(FRONTEND.into(), 5060), "alice");
    let before = std::time::Instant::now();
    for _ in 0..CALLS {
        assert_eq!(phone.try_call("echo", Wish::Audio).expect_err("no gate").status, 503);
    }
    let seconds = usize::try_from(before.elapsed().as_secs()).expect("not that long");
    let lines = node.program.log().lines().filter(|line| line.contains("a grant could not be opened")).count();
    assert!((1..=2 * (seconds + 2)).contains(&lines), "{lines} lines of {CALLS} calls in {seconds} s");
}
