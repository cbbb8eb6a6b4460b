//! A node in one file: what is exported while it runs, and what becomes of it elsewhere.

use std::{collections::BTreeSet, fs, os::unix::fs::PermissionsExt, path::Path};

use crate::support::{
    agent::connect_to,
    lab::{FRONTEND, GATE, Lab},
    node::{Config, Node, join, service},
    until,
};

on_packet!(a_node_that_was_exported_while_it_ran_is_the_same_again_after_an_import, &["tar"], same_again);
on_packet!(a_frontend_that_was_imported_is_known_to_the_gates_that_had_joined, &[], joined_before);
on_packet!(a_damaged_archive_or_one_for_a_node_that_is_there_changes_nothing, &[], refused);

/// What a node elsewhere does without: sockets and locks, the log, and flows with what they were opened by.
const LEFT_BEHIND: [&str; 10] = [
    "audit/",
    "control.sock",
    // Telephones register again by themselves.
    "frontend/contacts.redb",
    "frontend.lock",
    "frontend.sock",
    "gate/gate.journal.",
    "gate/gate.lock",
    "gate/gate.state",
    "gate/router.seed",
    "running.toml",
];

fn start(lab: &Lab, datapath: &'static str) -> Node {
    Node::up(lab, &Config::new(datapath, &service("web", "\"tcp/80\"", "")))
}

fn site_key(node: &Node) -> String {
    node.json(&["status"])["frontend"]["site_key"].as_str().expect("a site key").to_owned()
}

/// Files below `directory`, relative to it.
fn files(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).expect("a directory").flatten();
    let below = entries.flat_map(|entry| {
        let name = entry.file_name().into_string().expect("UTF-8");
        match entry.file_type().expect("a type").is_dir() {
            true => files(&entry.path()).into_iter().map(|path| format!("{name}/{path}")).collect(),
            false => vec![name],
        }
    });
    below.collect()
}

fn same_again(datapath: &'static str) {
    let lab = Lab::new();
    let mut node = start(&lab, datapath);
    let (key, state, archive) = (site_key(&node), lab.path("up.state"), lab.path("site.tar"));
    let archive = archive.to_str().expect("UTF-8");
    let said = node.cli(&["export", archive]).expect("export");
    assert!(said.contains("keys"), "{said}");
    assert_eq!(fs::metadata(archive).expect("a file").permissions().mode() & 0o777, 0o600);
    let again = node.cli(&["export", archive]);
    assert!(!again.status.success() && again.err.contains("site.tar"), "it overwrites nothing: {}", again.err);

    let listed = std::process::Command::new("tar").args(["-tf", archive]).output().expect("tar");
    let listed = String::from_utf8(listed.stdout).expect("UTF-8");
    for path in files(&state) {
        let stays = LEFT_BEHIND.iter().any(|left| path.starts_with(left));
        assert!(stays || listed.lines().any(|line| line == path), "{path} is in no archive");
    }
    for path in ["keyholder/secrets.redb", "keyholder/site.key", "frontend/store.redb", "gate/gate.pem"] {
        assert!(listed.lines().any(|line| line == path), "{path}: {listed}");
    }
    assert_eq!(files(&state).iter().find(|path| path.starts_with(".export")), None, "nothing is left of it");

    // Somebody who came later is not in it.
    node.add_user(&lab, "carol", Some("staff"));
    let running = node.cli(&["import", archive, "--replace"]);
    assert!(!running.status.success() && running.err.contains("stop it first"), "{}", running.err);
    assert!(node.program.stop(), "it ends");
    // Another host.
    fs::rename(&state, lab.path("lost.state")).expect("a rename");
    fs::rename(lab.path("site.toml"), lab.path("lost.toml")).expect("a rename");
    node.cli(&["import", archive]).expect("import");
    node.restart(&lab);
    assert_eq!(site_key(&node), key);
    let users = node.json(&["user", "ls"]);
    let names: Vec<_> = users.as_array().expect("users").iter().filter_map(|user| user["name"].as_str()).collect();
    assert_eq!(names, ["alice", "bob", "mallory"]);
    let agent = connect_to(&lab, GATE, "web", &["-L", "8080:80", "--site-key", &key]);
    agent.says("ready");
}

/// The gate runs on meanwhile.
fn joined_before(datapath: &'static str) {
    let lab = Lab::new();
    let config = Config::new(datapath, &service("web", "\"tcp/80\"", ""));
    let mut frontend = Node::start(&lab, "frontend", "frontend", &config.write_frontend(&lab, FRONTEND.into()));
    frontend.ready();
    frontend.add_people(&lab);
    let gate_file = config.write_gate(&lab);
    join(&lab, &frontend, &gate_file);
    let gate = Node::start(&lab, "gate", "gate", &gate_file);
    gate.ready();
    let (archive, of_gate) = (lab.path("site.tar").display().to_string(), lab.path("gate.tar").display().to_string());
    frontend.cli(&["export", &archive]).expect("export");
    gate.cli(&["export", &of_gate]).expect("export of a gate alone");
    // What the archive knows nothing of: a grant, and that somebody is gone.
    let agent = connect_to(&lab, FRONTEND, "web", &["-L", "8080:80"]);
    agent.says("ready");
    frontend.cli(&["user", "rm", "bob"]).expect("user rm");
    drop(agent);
    assert!(frontend.program.stop(), "it ends");
    fs::remove_dir_all(lab.path("frontend.state")).expect("a lost disk");
    frontend.cli(&["import", &archive]).expect("import");
    frontend.restart(&lab);
    frontend.has_gate();
    let agent = connect_to(&lab, FRONTEND, "web", &["-L", "8080:80"]);
    agent.says("ready");
    assert_eq!(gate.grants().len(), 2, "what was open stayed so");
    assert!(frontend.cli(&["user", "ls"]).expect("users").contains("bob"), "as the page says");
    frontend.cli(&["user", "disable", "alice"]).expect("a change");
    until("both grants are over", || gate.grants().is_empty().then_some(()));
}

fn refused(datapath: &'static str) {
    let lab = Lab::new();
    let mut node = start(&lab, datapath);
    let (key, state, archive) = (site_key(&node), lab.path("up.state"), lab.path("site.tar"));
    let archive = archive.to_str().expect("UTF-8");
    node.cli(&["export", archive]).expect("export");
    node.add_user(&lab, "carol", Some("staff"));
    assert!(node.program.stop(), "it ends");
    let before = files(&state);
    let refuses = |node: &Node, why: &str, arguments: &[&str]| {
        let done = node.cli(arguments);
        assert!(!done.status.success() && done.err.contains(why), "{arguments:?}: {}", done.err);
        assert_eq!(files(&state), before, "{arguments:?}");
    };
    refuses(&node, "--replace", &["import", archive]);
    let bytes = fs::read(archive).expect("the archive");
    let damaged = lab.path("damaged.tar");
    let named = damaged.to_str().expect("UTF-8");
    for (cut, flipped) in [(bytes.len() / 2, None), (bytes.len(), Some(bytes.len() / 2)), (100, None)] {
        let mut bytes = bytes[..cut].to_vec();
        flipped.into_iter().for_each(|at: usize| bytes[at] ^= 1);
        fs::write(&damaged, bytes).expect("the lab's directory is writable");
        refuses(&node, "archive", &["import", named, "--replace"]);
    }
    fs::write(&damaged, [0x1b; 2_000]).expect("the lab's directory is writable");
    refuses(&node, "no archive", &["import", named, "--replace"]);
    assert!(!node.cli(&["import", named, "--replace"]).err.contains('\x1b'), "no terminal is told what to do");
    let said = node.cli(&["import", archive, "--replace"]).expect("import");
    assert!(said.contains("before-import-"), "{said}");
    node.restart(&lab);
    assert_eq!(site_key(&node), key);
    assert!(node.cli(&["user", "ls"]).expect("users").contains("alice"));
    assert!(!node.cli(&["user", "ls"]).expect("users").contains("carol"), "she came after the export");
}
