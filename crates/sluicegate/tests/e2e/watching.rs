//! What an operator sees of a call: its messages as other people's programs read them.

use std::{fs, path::Path, process::Command, time::Duration};

use crate::support::{
    BINARY,
    lab::{CLIENT, GATE, Lab, SERVICE},
    node::{Config, Node, PASSWORD, service},
    pbx::Pbx,
    phone::{Phone, Wish},
    program::{Program, run},
    until,
};

const LIMIT: Duration = Duration::from_secs(60);

on_packet!(a_users_messages_are_written_as_tshark_and_sngrep_read_them, &["tshark", "sngrep"], pcap);

fn pcap(datapath: &'static str) {
    let lab = Lab::new();
    let pbx = service("pbx", "\"udp/10000-10009\"", "kind = \"sip\"\nsip_port = 5060\n");
    let _node = Node::up(&lab, &Config::new(datapath, &pbx));
    let _pbx = Pbx::start(&lab);
    let file = lab.path("alice.pcap");
    let (shown, config) = (file.display().to_string(), lab.path("site.toml").display().to_string());
    let arguments = ["trace", "--user", "alice", "--pcap", &shown, "--seconds", "600", "--config", &config];
    let mut trace = Program::start(&lab, "gate", "trace", BINARY, &arguments);
    until("the capture begins", || fs::metadata(&file).ok().filter(|file| file.len() >= 24));

    let phone = |user: &str| Phone::new(&lab, "client", CLIENT, (GATE, 5060).into(), user);
    let (alice, bob) = (phone("alice"), phone("bob"));
    bob.bye(bob.call("pbx", Wish::Audio));
    let bye = alice.bye(alice.call("pbx", Wish::Audio));
    assert_eq!(bye.status, 200);
    let has = |text: &str| String::from_utf8_lossy(&fs::read(&file).unwrap_or_default()).matches(text).count();
    until("the BYE and its answer are written on both legs", || (has(" BYE\r\n") >= 4).then_some(()));
    trace.signal(nix::sys::signal::Signal::SIGINT);
    let _ = trace.finished(LIMIT);

    let read = run(
        Command::new("tshark").args(["-n", "-r", &shown, "-T", "fields", "-E", "separator= "]).args(
            ["ip.src", "ip.dst", "sip.Method", "sip.Status-Code", "sip.CSeq.method"]
                .iter()
                .flat_map(|field| ["-e", *field]),
        ),
        LIMIT,
    )
    .expect("tshark");
    let (client, gate, pbx) = (CLIENT.to_string(), GATE.to_string(), SERVICE.to_string());
    let hop = |from: &str, to: &str, what: &str| format!("{from} {to} {what}");
    let lines: Vec<&str> = read.lines().collect();
    for message in [
        hop(&client, &gate, "INVITE  INVITE"),
        hop(&gate, &client, " 407 INVITE"),
        hop(&client, &gate, "ACK  ACK"),
        hop(&gate, &pbx, "INVITE  INVITE"),
        hop(&pbx, &gate, " 200 INVITE"),
        hop(&gate, &client, " 200 INVITE"),
        hop(&gate, &pbx, "ACK  ACK"),
        hop(&client, &gate, "BYE  BYE"),
        hop(&gate, &pbx, "BYE  BYE"),
        hop(&pbx, &gate, " 200 BYE"),
        hop(&gate, &client, " 200 BYE"),
    ] {
        assert!(lines.contains(&message.as_str()), "{message:?} is not in\n{read}");
    }
    let bytes = fs::read(&file).expect("a capture");
    let text = String::from_utf8_lossy(&bytes);
    assert!(!text.contains("sip:bob@") && !text.contains(PASSWORD));
    assert!(text.contains("response=\"xxxxxxxx"), "credentials are masked");
    assert_eq!(sngrep(&file), 1, "one call");
}

/// How many calls sngrep finds, whose captures hold what it understood.
fn sngrep(file: &Path) -> usize {
    let copy = file.with_extension("sngrep");
    let mut command = Command::new("sngrep");
    command.args(["-N", "-q", "-I"]).arg(file).arg("-O").arg(&copy);
    let done = run(&mut command, LIMIT);
    let bytes = fs::read(&copy).unwrap_or_else(|error| panic!("{error}: {done:?}"));
    usize::from(String::from_utf8_lossy(&bytes).contains("INVITE sip:pbx@"))
}
