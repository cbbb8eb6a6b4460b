//! Many registrations and calls of a stock SIP program, over a network that loses, doubles and reorders packets.

use std::{fs, path::Path, time::Duration};

use sluicegate_site::{Process, worker};
use sluicegate_traffic::emulator::{EmulateSpec, LineOptions};

use super::is_long;
use crate::support::{
    BINARY, PATIENCE,
    lab::{GATE, Lab, host},
    node::{Config, Node, PASSWORD, service},
    program::{Program, children},
    until,
};

on_packet!(alone stock_sipp_registers_and_calls_over_udp_whose_packets_are_lost_doubled_and_reordered, &["sipp"], over_udp);
on_packet!(alone stock_sipp_registers_and_calls_over_tcp_whose_packets_are_lost_doubled_and_reordered, &["sipp"], over_tcp);

/// Registrations, and calls after them: in the short form, and in the long one.
const COUNT: (usize, usize) = (400, 10_000);
/// How many of either begin each second.
const RATE: (&str, &str) = ("50", "100");
/// One call of so many may be told to come again, by a gate whose answer a busy machine kept from the frontend for too long.
const POSTPONED_ONE_OF: usize = 10;
/// What requests end, and what is kept besides until what is under way can no longer come (RFC 3261 section 17).
const TABLES: [&str; 4] = ["grants", "calls", "exchanges", "service_legs"];
const TABLES_OF_TIME: [&str; 3] = ["server_transactions", "client_transactions", "unacknowledged"];
/// Gate and frontend may each hold so much more after all of that than after the first tenth.
const KEPT_KB_MAX: u64 = 32 << 10;
/// Longer than the long form takes.
const FOREVER_S: u32 = 3_600;
/// As often as RFC 3261 has a message sent again: for 64 * T1 (sections 17.1.1.2 and 17.1.2.2).
const RETRANSMISSIONS: [&str; 6] = ["-max_retrans", "10", "-max_invite_retrans", "6", "-max_non_invite_retrans", "10"];
/// What comes unexpectedly, a late challenge say, is another message each time, and ends nothing. What arrives while a
/// program may not run is not lost.
const PATIENT: [&str; 4] = ["-default_behaviors", "all,-abortunexp", "-buff_size", "400000"];
const SCENARIOS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sipp");

fn over_udp(datapath: &'static str) {
    load(datapath, "u1");
}

fn over_tcp(datapath: &'static str) {
    load(datapath, "t1");
}

fn load(datapath: &'static str, transport: &str) {
    let count = if is_long() { COUNT.1 } else { COUNT.0 };
    let lab = lab();
    let pbx = service(
        "pbx",
        "\"udp/10000-10009\"",
        "kind = \"sip\"\nsip_port = 5060\ngrant = { bytes_max = \"1MB\", lifetime_s = 300, rate = \"100kbit\", flows_max = 4 }\n",
    );
    let frontend = format!(
        "listen = [\"udp/{GATE}:5060\", \"tcp/{GATE}:5060\"]\ndigest = [\"MD5\"]\nunproved_answers_per_s = 100000\n\
         per_user = {{ grants_max = 20000, ports_max = 40000, flows_max = 60000 }}\n\
         tables = {{ transactions_per_user_max = 60000, replays_per_user_max = 100000 }}\n"
    );
    // A call's ports rest for a while after it.
    let gate = "external_ports = \"20000-65000\"\nlocal = [\"udp/5060\", \"tcp/5060\"]\nper_user = { flows_max = 60000, ports_max = 40000 }\n";
    let node = Node::up(&lab, &Config::new(datapath, &pbx).frontend(&frontend).gate(gate));
    let mut path = impair(&lab);

    let place = ["-i", "10.4.0.2", "-p", "5060", "-nostdin", "-callid_slash_ign"];
    let answers = scenario(&lab, "answers");
    let callee = [&["-sf", &answers][..], &place, &RETRANSMISSIONS, &PATIENT].concat();
    let _callee = Program::start(&lab, "service", "callee", "sipp", &callee);
    let sipp = |name: &str, count: usize| play(&lab, (name, transport), count);
    // What it remembers at most it has after a part of that.
    for name in ["registrations", "calls"] {
        sipp(name, count / 10);
    }
    let before = memory_kb(&node);
    for name in ["registrations", "calls"] {
        sipp(name, count);
    }
    // The short form does not wait for what time alone ends.
    let of_time = is_long().then_some(TABLES_OF_TIME).into_iter().flatten();
    for table in TABLES.into_iter().chain(of_time) {
        until(&format!("no {table} are left"), || (used(&node, table) == 0).then_some(()));
    }
    until("the gate holds no grants", || node.grants().is_empty().then_some(()));
    path.close_input();
    let path = path.event("result", PATIENCE).expect("what the path did");
    for way in ["a_to_b", "b_to_a"] {
        println!("{way}: {}", path[way]);
        for what in ["lost", "doubled", "overtaken"] {
            assert!(path[way][what].as_u64() > Some(0), "{what}: {path}");
        }
    }
    let after = memory_kb(&node);
    println!("gate and frontend hold {before:?} KB before, {after:?} KB after");
    for (before, after) in before.into_iter().zip(after) {
        assert!(after < before + KEPT_KB_MAX, "{before} KB before, {after} KB after");
    }
}

/// ```text
/// client ── path ── outside [gate] inside ── eth0 [service]
/// ```
fn lab() -> Lab {
    let hosts =
        vec![host("client", &[]), host("path", &[]), host("gate", &[]), host("service", &[("0.0.0.0/0", "10.4.0.1")])];
    let wires = [
        ("client:eth0 203.0.113.2/24", "path:a"),
        ("path:b", "gate:outside 203.0.113.1/24"),
        ("gate:inside 10.4.0.1/24", "service:eth0 10.4.0.2/24"),
    ];
    Lab::of(hosts, &wires)
}

/// Loses, doubles and delays packets on the path, until the process is told to end.
fn impair(lab: &Lab) -> Process {
    let line = |seed| LineOptions {
        loss_ppm: 10_000,
        duplicate_ppm: 10_000,
        reorder_ppm: 50_000,
        reorder_us: (2_000, 20_000),
        seed,
        ..LineOptions::default()
    };
    let spec = EmulateSpec { a: "a".into(), b: "b".into(), a_to_b: line(1), b_to_a: line(2), seconds: FOREVER_S };
    let command = worker::command(Path::new(BINARY), "emulate", &spec);
    let path = lab.host("path").spawn("path", command).expect("the emulator starts");
    path.event("ready", PATIENCE).expect("a path");
    path
}

/// Has SIPp play a scenario so often: all of it has to succeed, by its own account.
fn play(lab: &Lab, (name, transport): (&str, &str), count: usize) {
    let scenario = scenario(lab, name);
    let uri = if name == "registrations" { "example.net" } else { "pbx@example.net" };
    let statistics = lab.path(&format!("{name}.{count}.csv"));
    let errors = lab.path(&format!("{name}.errors")).display().to_string();
    let (count_text, file) = (count.to_string(), statistics.display().to_string());
    let rate = if is_long() { RATE.1 } else { RATE.0 };
    let what = ["-sf", &scenario, "-s", "pbx", "-auth_uri", uri, "-m", &count_text, "-r", rate, "-l", "5000"];
    let place = ["-t", transport, "-i", "203.0.113.2", "-p", "5066", "-nostdin"];
    // Whoever waits in vain has failed.
    let how = ["-recv_timeout", "40000"];
    let trace = ["-trace_err", "-error_file", &errors, "-trace_stat", "-stf", &file, "-fd", "1"];
    let arguments = [&["203.0.113.1:5060"][..], &what, &place, &how, &RETRANSMISSIONS, &PATIENT, &trace].concat();
    let mut caller = Program::start(lab, "client", name, "sipp", &arguments);
    let is_content = caller.finished(Duration::from_secs(240));
    let text = fs::read_to_string(&statistics).expect("SIPp's statistics");
    let value = |column: &str| {
        let fields = |line: &str| line.split(';').map(str::to_owned).collect::<Vec<_>>();
        let names = fields(text.lines().next().expect("names"));
        let at = names.iter().position(|name| name == column).expect("a column");
        fields(text.lines().last().expect("values"))[at].clone()
    };
    let [done, failed, again, time] =
        ["SuccessfulCall(C)", "FailedCall(C)", "Retransmissions(C)", "ElapsedTime(C)"].map(value);
    println!("{name} over {transport}: {done} done, {failed} failed, {again} retransmissions, in {time}");
    let shown = || fs::read_to_string(&errors).unwrap_or_default().chars().take(4_000).collect::<String>();
    assert_eq!((done.as_str(), failed.as_str()), (count_text.as_str(), "0"), "{}", shown());
    assert!(is_content, "{}", shown());
    if name == "calls" {
        let postponed: usize = value("postponed(C)").parse().expect("a number");
        println!("{postponed} of them were told to come again, and did");
        assert!(postponed <= count / POSTPONED_ONE_OF, "{postponed} of {count} calls were told to come again");
    }
}

/// A scenario of this directory with the password in it.
fn scenario(lab: &Lab, name: &str) -> String {
    let text = fs::read_to_string(format!("{SCENARIOS}/{name}.xml")).expect("a scenario");
    lab.write(&format!("{name}.xml"), &text.replace("PASSWORD", PASSWORD)).display().to_string()
}

/// What all shards together hold in one of their tables.
fn used(node: &Node, table: &str) -> u64 {
    let tables = node.json(&["status"])["frontend"]["tables"].clone();
    let rows = tables.as_array().into_iter().flatten().filter(|row| row["table"] == table);
    rows.map(|row| row["used"].as_u64().expect("a number")).sum()
}

/// The memory of the gate's process, and that of its child, the frontend, with the process that holds its keys.
fn memory_kb(node: &Node) -> [u64; 2] {
    let gate = node.program.pid();
    [resident_kb(gate), children(gate).into_iter().map(all_resident_kb).sum()]
}

fn all_resident_kb(pid: u32) -> u64 {
    resident_kb(pid) + children(pid).into_iter().map(all_resident_kb).sum::<u64>()
}

fn resident_kb(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("its memory");
    line.split_whitespace().nth(1).and_then(|text| text.parse().ok()).expect("a number")
}
