//! A frontend whose datagrams come as frames, and which answers them as frames.

use std::{net::SocketAddr, time::Duration};

use crate::support::{
    BINARY, PATIENCE,
    lab::{CLIENT, CLIENT_V6, FRONTEND, FRONTEND_V6, Lab},
    let_run,
    node::{Config, Node, join, service},
    pbx::Pbx,
    phone::{Phone, Wish, token},
    program::run_on,
    until,
};

on_packet!(phones_call_over_frames_of_both_versions_and_over_fragments, &[], calls);
on_packet!(where_frames_cannot_be_had_it_is_said_why, &[], mistakes);
on_packet!(what_a_frontend_has_no_time_for_is_refused_by_frames, &[], refusals);

on_packet!(what_is_too_much_is_refused_where_it_comes_by_an_interface, &[], at_the_interface);

const FRAMES: &str = "datapath = \"xdp\"\n";
const LISTEN: [(&str, u16); 2] = [("198.51.100.130", 5060), ("[2001:db8:3::2]", 5060)];
/// More than an Ethernet frame carries.
const LONG: usize = 3_000;

fn frontend(lab: &Lab, more: &str) -> (Node, Config) {
    let listen = LISTEN.map(|(address, port)| format!("\"udp/{address}:{port}\"")).join(", ");
    let more = format!("listen = [{listen}]\n{more}");
    let pbx = service("pbx", "\"udp/10000-10009\"", "kind = \"sip\"\n");
    let config = Config::new("packet", &(pbx + &service("echo", "\"udp/7000-7009\"", ""))).frontend(&more);
    let node = Node::start(lab, "frontend", "frontend", &config.write_frontend(lab, FRONTEND.into()));
    node.ready();
    node.add_people(lab);
    (node, config)
}

/// What its status says of frames.
fn counted(node: &Node, what: &str) -> u64 {
    node.json(&["status"])["frontend"]["frames"][what].as_u64().unwrap_or(0)
}

fn phones(lab: &Lab) -> [Phone; 2] {
    let at = |ip| SocketAddr::new(ip, 5060);
    [
        Phone::new(lab, "client", CLIENT, at(FRONTEND.into()), "alice"),
        Phone::new(lab, "client", CLIENT_V6, at(FRONTEND_V6.into()), "alice"),
    ]
}

fn calls(_: &'static str) {
    let lab = Lab::new();
    let (frontend, config) = frontend(&lab, FRAMES);
    let gate_file = config.write_gate(&lab);
    join(&lab, &frontend, &gate_file);
    let gate = Node::start(&lab, "gate", "gate", &gate_file);
    gate.ready();
    frontend.has_gate();
    let pbx = Pbx::apart(&lab);
    for phone in phones(&lab) {
        let before = counted(&frontend, "answered");
        assert_eq!(phone.register("Expires: 60\r\n").status, 200);
        // The challenge, and the answer.
        until("both were answered by frames", || (counted(&frontend, "answered") >= before + 2).then_some(()));
    }
    let [phone, _] = phones(&lab);
    let call = phone.call("pbx", Wish::Audio);
    assert_eq!(phone.bye(call).status, 200);
    assert!(pbx.heard_of("INVITE ") > 0);
    until("the call is over", || frontend.grants().is_empty().then_some(()));

    // In fragments it comes by the socket, and is one call with what comes by frames.
    let pad = format!("X-Pad: {}\r\n", "x".repeat(LONG));
    let (call_id, from_tag) = (token(), token());
    let invite = |cseq, more: &str| phone.invite("echo", Wish::Audio, (&call_id, &from_tag, cseq), more);
    let first = invite(1, "");
    let challenge = phone.ask(&first);
    assert_eq!(challenge.status, 407);
    phone.acknowledge(&first, &challenge);
    let credentials = phone.credentials(&challenge, "INVITE", "sip:echo@example.net");
    let long = invite(2, &format!("{credentials}{pad}"));
    assert!(long.len() > LONG);
    // Its thread tells what it counted a second later at most.
    let received = || {
        let_run(Duration::from_secs(2));
        counted(&frontend, "received")
    };
    let before = received();
    // And what comes again is no other call.
    for _ in 0..2 {
        let answer = phone.ask(&long);
        assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.bytes));
    }
    assert_eq!((frontend.grants().len(), received()), (1, before), "it came by the socket");
    let status = frontend.json(&["status"]);
    assert_eq!(status["frontend"]["shards"], 1, "one thread has them all");
    assert!(status["frontend"]["frames"]["dropped checksum_wrong"].is_null(), "{status}");
}

fn mistakes(_: &'static str) {
    let lab = Lab::new();
    let config = Config::new("packet", &service("echo", "\"udp/7000\"", "")).frontend("datapath = \"xdp\"\n");
    let check = |host, file: std::path::PathBuf| {
        let done = run_on(&lab, host, BINARY, &["check", file.to_str().expect("a path in UTF-8")], PATIENCE);
        format!("{}{}", done.out, done.err)
    };
    let said = check("gate", config.write_up(&lab));
    assert!(said.contains("is at outside, whose packets the gate has") && said.contains("\"socket\""), "{said}");
    let said = check("client", config.write_frontend(&lab, FRONTEND.into()));
    assert!(said.contains("no interface by which packets come has the address"), "{said}");
    let refusing = Config::new("packet", &service("echo", "\"udp/7000\"", ""))
        .frontend("overload = { mode = \"adaptive\", refuse = \"interface\" }\n");
    let said = check("gate", refusing.write_up(&lab));
    assert!(said.contains("is at outside, whose packets the gate has") && said.contains("\"process\""), "{said}");
    // One frontend at a time has an interface.
    let _first = frontend(&lab, FRAMES);
    let other = config.write_frontend(&lab, FRONTEND.into());
    let other_text =
        std::fs::read_to_string(&other).expect("a file").replace(":5060", ":5070").replace(":7443", ":7444");
    let other = lab.write("other.toml", &other_text.replace("frontend.state", "other.state"));
    let done = run_on(&lab, "frontend", BINARY, &["frontend", other.to_str().expect("a path in UTF-8")], PATIENCE);
    assert!(done.err.contains("does not work at eth0"), "{}", done.err);
    assert!(done.err.contains("is in use by another"), "{}", done.err);
}

fn refusals(_: &'static str) {
    let lab = Lab::new();
    let (frontend, _) = frontend(&lab, &format!("{FRAMES}overload = {{ mode = \"paper\", calls_per_s = 1 }}\n"));
    let before = counted(&frontend, "answered");
    let [phone, _] = phones(&lab);
    let mut refused = 0;
    until("calls are refused", || {
        let invite = phone.invite("pbx", Wish::Audio, (&token(), &token(), 1), "");
        let answer = phone.ask(&invite);
        phone.acknowledge(&invite, &answer);
        refused += u64::from(answer.status == 500);
        (refused >= 20).then_some(())
    });
    until("by frames", || (counted(&frontend, "answered") >= before + 20).then_some(()));
}

fn at_the_interface(_: &'static str) {
    for more in ["", FRAMES] {
        let lab = Lab::new();
        // A thread that is to be idle refuses nearly all.
        let overload = "overload = { mode = \"adaptive\", busy = 0.001, refuse = \"interface\" }\n";
        let (frontend, _) = frontend(&lab, &format!("{more}{overload}"));
        for phone in phones(&lab) {
            let before = counted(&frontend, "interface request_refused");
            let ask = || {
                let invite = phone.invite("pbx", Wish::Audio, (&token(), &token(), 1), "");
                let answer = phone.ask(&invite);
                phone.acknowledge(&invite, &answer);
                answer.status
            };
            until("calls are refused by the kernel", || {
                // What comes now and then is not refused there.
                let refused = (0..50).filter(|_| ask() == 500).count();
                (refused >= 20 && counted(&frontend, "interface request_refused") >= before + 20).then_some(())
            });
        }
        assert!(counted(&frontend, "interface refusal_acknowledged") > 0);
        let client = CLIENT.to_string();
        frontend.cli(&["limit", "lift", &client, "--for", "10", "--reason", "a test"]);
        let [phone, _] = phones(&lab);
        let asked = || phone.ask(&phone.invite("pbx", Wish::Audio, (&token(), &token(), 1), "")).status;
        until("the interface knows", || (0..20).all(|_| asked() == 407).then_some(()));
    }
}
