//! What each process of a node may do, and that they live and die together.

use std::{collections::HashMap, fs, net::SocketAddr, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::support::{
    lab::{CLIENT, GATE, Lab},
    node::{Config, Node, service},
    phone::{Phone, Wish},
    program::children,
    until,
};

on_each_datapath!(security_20_the_process_that_parses_sip_has_no_rights_at_all, &[], super::rights);
on_packet!(security_20_gate_and_frontend_end_together, &[], ends_together);
on_packet!(security_17_a_start_leaves_no_join_token_open, &[], tokens);

/// CAP_NET_ADMIN, CAP_NET_RAW, CAP_IPC_LOCK, CAP_SYS_NICE, CAP_PERFMON, CAP_BPF.
const GATE_RIGHTS: u64 = 1 << 12 | 1 << 13 | 1 << 14 | 1 << 23 | 1 << 38 | 1 << 39;
/// Join tokens that may be open at once.
const TOKENS_MAX: usize = 64;

/// What the kernel says of a thread.
struct Thread(HashMap<String, String>);

impl Thread {
    fn number(&self, field: &str) -> u64 {
        let text = self.0.get(field).unwrap_or_else(|| panic!("{field}"));
        u64::from_str_radix(text, if field.starts_with("Cap") { 16 } else { 10 }).expect("a number")
    }
}

fn threads(pid: u32) -> Vec<Thread> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("a process");
    let status = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("status")).ok());
    let fields = |text: String| {
        let field = |line: &str| line.split_once(':').map(|(key, value)| (key.to_owned(), value.trim().to_owned()));
        Thread(text.lines().filter_map(field).collect())
    };
    status.map(fields).collect()
}

fn node(lab: &Lab, datapath: &'static str) -> Node {
    Node::up(lab, &Config::new(datapath, &service("echo", "\"udp/7000-7009\"", "")))
}

fn call(lab: &Lab) {
    Phone::new(lab, "client", CLIENT, SocketAddr::from((GATE, 5060)), "alice").call("echo", Wish::Audio);
}

fn rights(datapath: &'static str) {
    let lab = Lab::new();
    let node = node(&lab, datapath);
    call(&lab);
    let gate = node.program.pid();
    let [frontend] = children(gate)[..] else { panic!("one child: {:?}", children(gate)) };
    for thread in threads(frontend) {
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(thread.number(set), 0, "{set}");
        }
        assert_eq!((thread.number("NoNewPrivs"), thread.number("Seccomp")), (1, 2));
        for ids in ["Uid", "Gid"] {
            assert!(thread.0[ids].split_whitespace().all(|id| id != "0"), "{ids}: {}", thread.0[ids]);
        }
        assert_eq!(thread.0["Groups"], "");
    }
    for thread in threads(gate) {
        for set in ["CapPrm", "CapEff", "CapBnd"] {
            assert_eq!(thread.number(set) & !GATE_RIGHTS, 0, "{set}");
        }
        assert_eq!((thread.number("CapInh"), thread.number("CapAmb")), (0, 0));
        assert_eq!(thread.number("NoNewPrivs"), 1);
    }
    // The two serve one node: users were added through the gate's socket, and both are in its status and metrics.
    let status = node.json(&["status"]);
    assert!(status["frontend"]["users"].as_u64().is_some_and(|users| users >= 3), "{status}");
    assert_eq!(status["gate"]["grants"], 1);
}

fn ends_together(datapath: &'static str) {
    let lab = Lab::new();
    let mut node = node(&lab, datapath);
    let [frontend] = children(node.program.pid())[..] else { panic!("one child") };
    let gone = |pid: u32| (!fs::exists(format!("/proc/{pid}/exe")).unwrap_or(false)).then_some(());
    node.program.kill();
    until("the frontend ends when the gate is killed", || gone(frontend));
    node.restart(&lab);
    call(&lab);
    let [frontend] = children(node.program.pid())[..] else { panic!("one child") };
    kill(Pid::from_raw(frontend.cast_signed()), Signal::SIGKILL).expect("it runs");
    assert!(!node.program.finished(Duration::from_secs(10)), "a node whose frontend died says so");
    node.restart(&lab);
    let [frontend] = children(node.program.pid())[..] else { panic!("one child") };
    assert!(node.program.stop(), "it ends well when it is asked to");
    until("the frontend has ended", || gone(frontend));
}

fn tokens(datapath: &'static str) {
    let lab = Lab::new();
    let mut node = node(&lab, datapath);
    for _ in 0..2 {
        assert!(node.program.stop());
        node.restart(&lab);
    }
    for number in 0..TOKENS_MAX {
        node.cli(&["gate-join", "--new"]).expect(&format!("token {number}"));
    }
}
