//! What an operator sees of a call: its messages as other people's programs read them.

use std::{fs, path::Path, process::Command, time::Duration};

use serde_json::Value;

use crate::{
    authority::Authority,
    streams,
    support::{
        BINARY,
        lab::{CLIENT, GATE, Lab, SERVICE},
        line::Line,
        node::{Config, Node, PASSWORD, service},
        pbx::Pbx,
        phone::{Phone, Wish},
        program::{Program, run},
        until,
    },
};

const LIMIT: Duration = Duration::from_secs(60);

on_packet!(a_users_messages_are_written_as_tshark_and_sngrep_read_them, &["tshark", "sngrep"], pcap);

fn pcap(datapath: &'static str) {
    let (lab, authority) = (Lab::new(), Authority::new());
    let _node = streams::node(&lab, datapath, &authority, "");
    let _pbx = Pbx::start(&lab);
    let file = lab.path("alice.pcap");
    let (shown, config) = (file.display().to_string(), lab.path("site.toml").display().to_string());
    let arguments = ["trace", "--user", "alice", "--pcap", &shown, "--seconds", "600", "--config", &config];
    let mut trace = Program::start(&lab, "gate", "trace", BINARY, &arguments);
    until("the capture begins", || fs::metadata(&file).ok().filter(|file| file.len() >= 24));

    // By TLS, whose messages nobody else can read.
    let alice = Phone::over(Line::tls(&lab, "client", streams::TLS, authority.client(None)), "alice");
    let bob = Phone::new(&lab, "client", CLIENT, (GATE, 5060).into(), "bob");
    bob.bye(bob.call("pbx", Wish::Audio));
    let bye = alice.bye(alice.call("pbx", Wish::Audio));
    assert_eq!(bye.status, 200);
    let has = |text: &str| String::from_utf8_lossy(&fs::read(&file).unwrap_or_default()).matches(text).count();
    until("the BYE and its answer are written on both legs", || (has(" BYE\r\n") >= 4).then_some(()));
    // A shell that starts the tests in the background has them ignore SIGINT, and what they start.
    let _ = trace.stop();

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

on_packet!(a_call_is_told_by_trace_and_in_the_call_log, &[], story);

fn story(datapath: &'static str) {
    let lab = Lab::new();
    let pbx = service("pbx", "\"udp/10000-10009\"", "kind = \"sip\"\nsip_port = 5060\n");
    let node = Node::up(&lab, &Config::new(datapath, &pbx));
    let _pbx = Pbx::start(&lab);
    let alice = Phone::new(&lab, "client", CLIENT, (GATE, 5060).into(), "alice");
    let call = alice.call("pbx", Wish::Audio);
    let grant = node.grants().remove(0);

    let living = node.traced(&["trace", "--call", &grant], "goes on, set up in ");
    let place = format!("at {GATE} to udp/10000-10001 at {SERVICE} for {CLIENT}");
    for text in ["from alice to pbx", "admitted (200) by rules", "gate up-1 opened udp/", &place] {
        assert!(living.contains(text), "{text:?} is not in\n{living}");
    }
    let stories = node.json(&["trace", "--call", &grant]);
    let call_id = stories[0]["call_id"].as_str().expect("a Call-ID").to_owned();
    assert_eq!(stories[0]["grants"][0]["id"], grant.as_str());
    let by_user = node.json(&["trace", "--user", "alice"]);
    assert_eq!((&by_user[0]["call_id"], &by_user[0]["call"]), (&stories[0]["call_id"], &stories[0]["call"]));

    alice.bye(call);
    let log = lab.path("up.state").join("audit/calls.log");
    let line = until("the call is logged", || {
        let text = fs::read_to_string(&log).ok()?;
        serde_json::from_str::<Value>(text.lines().next()?).ok()
    });
    for (field, value) in [
        ("event", "call_ended"),
        ("user", "alice"),
        ("service", "pbx"),
        ("caller", "user"),
        ("ended", "hung_up"),
        ("by", "user"),
    ] {
        assert_eq!(line[field], value, "{line}");
    }
    assert_eq!((&line["call_id"], &line["call"]), (&stories[0]["call_id"], &stories[0]["call"]));
    assert!(
        line["setup_ms"].is_u64() && line["duration_s"].is_u64() && line["address"] == CLIENT.to_string(),
        "{line}"
    );
    let over = node.cli(&["trace", "--call", &call_id]).expect("trace --call");
    assert!(over.contains("over: hung_up by the user") && over.contains("closed grant"), "{over}");

    // One that the service never heard of, and one that nobody knows.
    let mallory = Phone::new(&lab, "client", CLIENT, (GATE, 5060).into(), "mallory");
    assert_eq!(mallory.try_call("pbx", Wish::Audio).expect_err("no permission").status, 403);
    node.traced(&["trace", "--user", "mallory"], "403");
    let refused = node.json(&["trace", "--user", "mallory"]);
    let refused = node.json(&["trace", "--call", refused[0]["call_id"].as_str().expect("a Call-ID")]);
    assert_eq!((&refused[0]["end"]["why"], &refused[0]["end"]["status"]), (&Value::from("refused"), &Value::from(403)));
    assert_eq!(node.json(&["trace", "--call", "nobody"]), Value::Array(Vec::new()));
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
