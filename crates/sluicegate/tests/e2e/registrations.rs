//! Telephones that register with a running frontend, and what becomes of that when it ends.

use std::{
    fs,
    net::SocketAddr,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use serde_json::Value;
use sluicegate_sip::message::HeaderName;

use crate::support::{
    lab::{CLIENT, FRONTEND, Lab},
    let_run,
    node::{Config, Node, PASSWORD, service},
    phone::Phone,
    until,
};

on_packet!(telephones_are_registered_over_a_restart_until_an_operator_or_their_time_ends_it, &[], restart);
on_packet!(alone a_frontend_that_is_killed_while_many_register_knows_what_was_written, &[], killed);
on_packet!(who_is_refused_for_wrong_passwords_is_listed_and_an_operator_has_them_try_again, &[], limits);

/// More than passes between a registration and its being on disk.
const WRITTEN: Duration = Duration::from_secs(3);
const USERS: usize = 200;
const KILLS: u32 = 6;

/// A frontend alone.
fn frontend(lab: &Lab) -> Node {
    let file = Config::new("packet", &service("echo", "\"udp/7000\"", "")).write_frontend(lab, FRONTEND.into());
    let node = Node::start(lab, "frontend", "frontend", &file);
    node.ready();
    node.add_people(lab);
    node
}

fn phone(lab: &Lab, user: &str) -> Phone {
    Phone::new(lab, "client", CLIENT, SocketAddr::new(FRONTEND.into(), 5060), user)
}

/// Contacts of a user, as `user show` has them.
fn contacts(node: &Node, user: &str) -> Vec<Value> {
    let shown = node.json(&["user", "show", user]);
    assert_eq!(shown["name"], user);
    shown["contacts"].as_array().expect("a running frontend knows").clone()
}

fn restart(_: &'static str) {
    let lab = Lab::new();
    let mut node = frontend(&lab);
    let (alice, bob) = (phone(&lab, "alice"), phone(&lab, "bob"));
    let answer = alice.register("Contact: <sip:alice@192.168.0.9>;q=0.5\r\nExpires: 600\r\n");
    assert_eq!((answer.status, answer.header(HeaderName::Contact).is_some()), (200, true));
    assert_eq!(bob.register("Contact: <sip:bob@192.168.0.9>\r\n").status, 200);
    let before = contacts(&node, "alice");
    let [contact] = &before[..] else { panic!("{before:?}") };
    assert_eq!(contact["uri"], "sip:alice@192.168.0.9");
    assert_eq!((&contact["peer"], &contact["q"]), (&Value::from(alice.local().to_string()), &Value::from(0.5)));
    let text = node.cli(&["user", "show", "alice"]).expect("user show");
    assert!(text.contains("alice: staff") && text.contains(&alice.local().to_string()), "{text}");

    assert!(node.program.stop());
    let text = node.cli(&["user", "show", "alice"]).expect("user show of a frontend that does not run");
    assert!(text.contains("the frontend does not run"), "{text}");
    node.restart(&lab);
    let after = contacts(&node, "alice");
    let (then, now) = (before[0]["expires_at"].as_u64(), after[0]["expires_at"].as_u64());
    assert!(then.zip(now).is_some_and(|(then, now)| then.abs_diff(now) <= 3), "{before:?} {after:?}");

    // What an operator ended is on disk when the command returns.
    let text = node.cli(&["user", "unregister", "alice"]).expect("user unregister");
    assert_eq!(text, "ended 1 contacts of user alice\n");
    node.program.kill();
    node.restart(&lab);
    assert_eq!((contacts(&node, "alice").len(), contacts(&node, "bob").len()), (0, 1));
    assert!(!node.cli(&["user", "unregister", "nobody"]).status.success());

    node.cli(&["user", "disable", "bob"]).expect("user disable");
    assert_eq!(contacts(&node, "bob").len(), 0);
    assert_eq!(bob.register("Contact: <sip:bob@192.168.0.9>\r\n").status, 401);
    node.cli(&["user", "enable", "bob"]).expect("user enable");
    assert_eq!(contacts(&node, "bob").len(), 0, "it registers anew");
    assert_eq!(bob.register("Contact: <sip:bob@192.168.0.9>\r\n").status, 200);
    node.cli(&["user", "rm", "bob"]).expect("user rm");
    node.program.kill();
    node.restart(&lab);
    node.add_user(&lab, "bob", None);
    assert_eq!(contacts(&node, "bob").len(), 0, "another bob");
}

fn limits(_: &'static str) {
    let lab = Lab::new();
    let node = frontend(&lab);
    let contact = "Contact: <sip:alice@192.168.0.9>\r\n";
    let mut alice = phone(&lab, "alice");
    alice.password = "guess".to_owned();
    let answers: Vec<u16> = (0..12).map(|_| alice.register(contact).status).collect();
    assert_eq!((answers[0], answers[11]), (401, 503), "{answers:?}");
    alice.password = PASSWORD.to_owned();
    assert_eq!(alice.register(contact).status, 503, "not looked at");
    let listed = node.json(&["limit", "ls"]);
    let (kind, source, user) = (&listed[0]["kind"], &listed[0]["source"], &listed[0]["user"]);
    assert_eq!(
        (kind, source, user),
        (&"passwords".into(), &format!("{CLIENT}/32").into(), &"alice".into()),
        "{listed}"
    );
    let text = node.cli(&["limit", "forgive", "alice"]).expect("limit forgive");
    assert_eq!(text, "wrong passwords of alice are forgotten, from 1 places\n");
    assert_eq!(alice.register(contact).status, 200);
    assert_eq!(node.json(&["limit", "ls"]), Value::Array(Vec::new()));
    assert!(!node.cli(&["limit", "forgive", "nobody"]).status.success());

    node.cli(&["limit", "lift", "198.51.100.0/24", "--for", "90", "--reason", "the office"]).expect("limit lift");
    let listed = node.json(&["limit", "ls"]);
    assert_eq!((&listed[0]["kind"], &listed[0]["reason"]), (&"lifted".into(), &"the office".into()), "{listed}");
    let text = node.cli(&["limit", "ls"]).expect("limit ls");
    assert!(text.contains("198.51.100.0/24") && text.contains("90m"), "{text}");
    node.cli(&["limit", "restore", "198.51.100.0/24"]).expect("limit restore");
    assert!(!node.cli(&["limit", "restore", "198.51.100.0/24"]).status.success(), "nothing is lifted");
    let no_reason = ["limit", "lift", "198.51.100.0/24", "--for", "1", "--reason", " "];
    assert!(!node.cli(&no_reason).status.success());
}

/// The names of users that are registered.
fn registered(node: &Node) -> usize {
    let tables = node.json(&["status"])["frontend"]["tables"].clone();
    let table = tables.as_array().expect("tables").iter().find(|table| table["table"] == "contacts").cloned();
    table.and_then(|table| table["used"].as_u64()).expect("a number") as usize
}

fn killed(_: &'static str) {
    let lab = Lab::new();
    let mut node = frontend(&lab);
    let list = (0..USERS).map(|nth| format!("user-{nth}:{PASSWORD}\n")).collect::<String>();
    let list = lab.write("users", &list).display().to_string();
    node.cli(&["user", "add", "--no-agent", "--from", &list]).expect("user add");
    let phones: Vec<Phone> = (0..USERS).map(|nth| phone(&lab, &format!("user-{nth}"))).collect();
    let one = "Contact: <sip:me@192.168.0.9>\r\n";
    for phone in &phones[..USERS / 2] {
        assert_eq!(phone.register(one).status, 200);
    }
    let_run(WRITTEN);
    let (stop, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        // These go on and on, whether there is a frontend or not.
        for part in phones[USERS / 2..].chunks(USERS / 8) {
            scope.spawn(|| {
                for phone in part.iter().cycle().take_while(|_| !stop.load(Ordering::Relaxed)) {
                    done.fetch_add(usize::from(phone.register_once(one)), Ordering::Relaxed);
                }
            });
        }
        for nth in 0..KILLS {
            let before = done.load(Ordering::Relaxed);
            until("telephones register", || (done.load(Ordering::Relaxed) > before + USERS / 2).then_some(()));
            // At another moment between two writes each time.
            let_run(Duration::from_millis(570) * nth);
            node.program.kill();
            node.restart(&lab);
            let known = registered(&node);
            println!("{known} telephones are known after a kill");
            assert!(known >= USERS / 2, "{known} of {USERS}");
        }
        stop.store(true, Ordering::Relaxed);
    });
    let size = fs::metadata(lab.path("frontend.state/frontend/contacts.redb")).map(|data| data.len());
    println!("{} registrations, {size:?} bytes", done.load(Ordering::Relaxed));
}
