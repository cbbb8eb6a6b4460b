//! The key holder: on another host, and killed.

use std::{fs, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use sluicegate_signin::UserSecret;

use super::theft::{files_under, holds};
use crate::support::{
    BINARY, PATIENCE,
    agent::{UdpEcho, connect, exchange, program},
    lab::{FRONTEND, GATE, Lab},
    node::{Config, Node, PASSWORD, REALM, join, password_file, service},
    program::{children, run},
    until,
};

on_packet!(theft_a_frontend_whose_key_holder_is_elsewhere_serves_agents_and_never_holds_a_secret, &[], elsewhere);
on_packet!(security_20_a_key_holder_that_is_killed_is_replaced_within_seconds, &[], killed);

/// Runs a verb on the key holder's host.
fn holder(lab: &Lab, arguments: &[&str]) -> String {
    let mut command = std::process::Command::new(BINARY);
    command.args(arguments).arg("--config").arg(lab.path("keyholder.toml"));
    run(&mut command, PATIENCE).expect("a verb of the key holder").trim().to_owned()
}

fn elsewhere(datapath: &'static str) {
    let lab = Lab::new();
    let _echo = UdpEcho::start(&lab);
    let keyholder = format!("[node]\nstate = {:?}\n[keyholder]\nrealm = \"{REALM}\"\n", lab.path("keyholder.state"));
    lab.write("keyholder.toml", &keyholder);
    let password = password_file(&lab).display().to_string();
    let site = holder(&lab, &["key", "show"]);
    holder(&lab, &["user", "add", "alice", "--password-file", &password]);

    let file = lab.path("frontend.keys");
    let keys = format!("keys = {{ file = {file:?}, site_key = \"{site}\" }}\n");
    let config = Config::new(datapath, &service("echo", "\"udp/5004\"", "")).frontend(&keys);
    let mut frontend = Node::start(&lab, "frontend", "frontend", &config.write_frontend(&lab, FRONTEND.into()));
    frontend.ready();
    frontend.cli(&["group", "add", "staff"]).expect("group add");
    frontend.cli(&["user", "add", "alice", "--no-phone", "--group", "staff"]).expect("a user without a password");
    let status = frontend.json(&["status"])["frontend"].clone();
    assert_eq!(status["agent_epochs"].as_array().map(Vec::len), Some(0), "{status}");

    // What an operator does once, and what a timer does every day.
    let key = status["frontend_key"].as_str().expect("its key").to_owned();
    lab.write("keyholder.toml", &format!("{keyholder}[[keyholder.frontend]]\nname = \"front\"\nkey = \"{key}\"\n"));
    let issued = lab.path("issued");
    holder(&lab, &["key", "issue", &issued.display().to_string()]);
    fs::copy(issued.join("front.keys"), &file).expect("a copy");
    let said = frontend.cli(&["key", "load"]).expect("key load");
    assert!(said.contains("keys of 1 users"), "{said}");

    let gate_file = config.write_gate(&lab);
    join(&lab, &frontend, &gate_file);
    let gate = Node::start(&lab, "gate", "gate", &gate_file);
    gate.ready();
    frontend.has_gate();
    let agent = connect(&lab, FRONTEND, &["-L", "5004:5004/udp"]);
    assert!(exchange(&program(&lab), "with keys from elsewhere"), "{}", agent.log());
    drop(agent);
    // Started anew it reads the file by itself.
    assert!(frontend.program.stop());
    frontend.restart(&lab);
    frontend.has_gate();
    let agent = connect(&lab, FRONTEND, &["-L", "5004:5004/udp"]);
    assert!(exchange(&program(&lab), "after a restart"), "{}", agent.log());

    assert!(children(frontend.program.pid()).is_empty(), "there is no key holder beside it");
    let state = lab.path("frontend.state");
    let secret = UserSecret::from_password("alice", REALM, PASSWORD.as_bytes());
    assert!(!holds(&state, secret.expose()) && !files_under(&state).iter().any(|path| path.ends_with("site.key")));
    assert!(holds(&lab.path("keyholder.state"), secret.expose()), "this is what was looked for");
}

fn killed(datapath: &'static str) {
    let lab = Lab::new();
    let _echo = UdpEcho::start(&lab);
    let mut node = Node::up(&lab, &Config::new(datapath, &service("echo", "\"udp/5004\"", "")));
    let only = |pid: u32| match children(pid)[..] {
        [child] => Some(child),
        _ => None,
    };
    let end = |pid: u32| kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL).expect("it runs");
    let keeper = only(only(node.program.pid()).expect("a frontend")).expect("what keeps the key holder");
    for round in 0..3 {
        let before = only(keeper).expect("a key holder");
        end(before);
        until("another takes its place", || only(keeper).filter(|now| *now != before));
        // It takes secrets, and gives out the keys that come from them.
        node.add_user(&lab, &format!("late-{round}"), Some("staff"));
    }
    node.cli(&["user", "rm", "alice"]).expect("user rm");
    node.add_user(&lab, "alice", Some("staff"));
    let agent = connect(&lab, GATE, &["-L", "5004:5004/udp"]);
    assert!(exchange(&program(&lab), "with a new key"), "{}", agent.log());

    // Without what keeps it there is no other one: the node ends, and says why, for whatever started it to start it again.
    let holder = only(keeper).expect("a key holder");
    end(keeper);
    end(holder);
    assert!(!node.program.finished(Duration::from_secs(10)), "a node without a key holder says so");
    assert!(node.program.log().contains("the key holder is gone"), "{}", node.program.log());
    node.restart(&lab);
    node.add_user(&lab, "last", Some("staff"));
}
