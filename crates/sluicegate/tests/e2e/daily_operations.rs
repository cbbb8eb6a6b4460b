//! Every day's use: what those who run a node take for granted.

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    os::unix::fs::{PermissionsExt, symlink},
    process::Command,
    thread,
    time::Duration,
};

use nix::sys::signal::Signal;
use regex::Regex;
use serde_json::Value;

use crate::support::{
    BINARY, PATIENCE,
    agent::connect_to,
    lab::{CLIENT, GATE, Lab, SERVICE},
    node::{Config, Node, PASSWORD, REALM, service},
    program::{Done, Program, run},
    until,
};

on_packet!(the_audit_log_says_who_signed_in_what_opened_and_ended_and_what_operators_changed, &[], audit_log);
on_packet!(a_failed_sign_in_is_what_the_fail2ban_filter_takes_with_its_address, &[], failed_sign_in);
on_packet!(an_audit_log_on_a_full_disk_is_an_alarm_and_service_goes_on, &[], full_disk);

on_packet!(a_disabled_user_loses_every_grant_and_signs_in_no_more_until_enabled, &[], disabled);
on_packet!(a_reload_puts_services_and_rules_in_place_and_refuses_what_needs_a_restart, &[], reload);
on_packet!(a_renamed_node_serves_as_before_and_its_old_name_is_gone, &[], renamed);
on_packet!(a_revoked_grant_ends_connections_and_the_agent_says_what_became_of_it, &[], revoked);
on_packet!(a_start_that_nobody_confirms_opens_the_interfaces_again, &[], unconfirmed);
on_packet!(check_says_what_cannot_work_and_what_it_could_not_try, &[], check);
on_packet!(operators_change_users_services_and_gates_whole_or_not_at_all, &[], changes);

/// A node with the service "web", which answers everybody who connects.
fn up(lab: &Lab, datapath: &'static str) -> Node {
    let node = Node::up(lab, &Config::new(datapath, &service("web", "\"tcp/80\"", "")));
    answering(lab);
    node
}

/// The service, which sends back what it gets.
fn answering(lab: &Lab) {
    let listener = lab.listen("service", SERVICE, 80);
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut bytes = [0; 1_024];
                while let Ok(len @ 1..) = stream.read(&mut bytes) {
                    let _ = stream.write_all(&bytes[..len]);
                }
            });
        }
    });
}

/// A connection of the client through its agent's forward, over which `text` came back.
fn talk(lab: &Lab, text: &[u8]) -> TcpStream {
    let mut stream = lab.connect("client", "127.0.0.1:8080".parse().expect("an address")).expect("the agent listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.write_all(text).expect("it stands");
    let mut answer = vec![0; text.len()];
    stream.read_exact(&mut answer).expect("the service answers");
    assert_eq!(answer, text);
    stream
}

/// `connect` of alice with a password that is not hers.
fn guess(lab: &Lab) -> Program {
    let wrong = lab.path("wrong");
    fs::write(&wrong, "wrong-horse-battery-staple\n").expect("the lab's directory is writable");
    fs::set_permissions(&wrong, fs::Permissions::from_mode(0o600)).expect("a mode");
    let (frontend, wrong) = (format!("{GATE}:5060"), wrong.display().to_string());
    let how = ["connect", "alice@web", "--frontend", &frontend, "--realm", REALM, "--password-file", &wrong];
    Program::start(lab, "client", "guess", BINARY, &[&how[..], &["-L", "8081:80"]].concat())
}

/// The text of a file of the node's audit log.
fn log(lab: &Lab, name: &str) -> String {
    fs::read_to_string(lab.path("up.state").join("audit").join(name)).expect("the audit log")
}

/// A line of the audit log with this event that `fits`, once it is there.
fn line(lab: &Lab, name: &str, event: &str, fits: impl Fn(&Value) -> bool) -> Value {
    until(&format!("{event} in {name}"), || {
        let text = log(lab, name);
        let mut lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON in each line"));
        lines.find(|line| line["event"] == event && fits(line))
    })
}

fn audit_log(datapath: &'static str) {
    let lab = Lab::new();
    let node = up(&lab, datapath);
    let guess = guess(&lab);
    let failed = line(&lab, "failed.log", "sign_in_failed", |_| true);
    assert_eq!((failed["user"].as_str(), failed["address"].as_str()), (Some("alice"), Some(&*CLIENT.to_string())));
    drop(guess);
    let agent = connect_to(&lab, GATE, "web", &["-L", "8080:80"]);
    agent.says("ready");
    let stream = talk(&lab, &[7; 700]);
    let signed_in = line(&lab, "audit.log", "signed_in", |line| line["user"] == "alice");
    assert_eq!(signed_in["address"], CLIENT.to_string());
    let opened = line(&lab, "audit.log", "grant_opened", |line| line["user"] == "alice");
    node.cli(&["grant", "revoke", "--user", "alice"]).expect("grant revoke");
    let ended = line(&lab, "audit.log", "grant_ended", |line| line["grant"] == opened["grant"]);
    assert_eq!(ended["cause"], "revoked");
    assert!(ended["bytes_used"].as_u64() >= Some(700), "{ended}");
    drop(stream);
    node.cli(&["user", "rm", "bob"]).expect("user rm");
    node.cli(&["observe", "on"]).expect("observe");
    let own = u64::from(nix::unistd::Uid::current().as_raw());
    for (change, of) in [("user add", "alice"), ("grant revoke", "user alice"), ("user rm", "bob"), ("observe", "on")] {
        let changed = line(&lab, "audit.log", "changed", |line| line["change"] == change && line["of"] == of);
        assert_eq!(changed["uid"].as_u64(), Some(own), "{changed}");
    }
    for text in [log(&lab, "audit.log"), log(&lab, "failed.log"), node.program.log()] {
        assert!(!text.contains(PASSWORD) && !text.contains("horse"), "{text}");
    }
    assert!(node.program.log().contains("grant_ended"), "journald has it too");
    let mode = fs::metadata(lab.path("up.state").join("audit/audit.log")).expect("a file").permissions().mode();
    assert_eq!(mode & 0o077, 0, "nobody else reads it");
}

fn failed_sign_in(datapath: &'static str) {
    let lab = Lab::new();
    let node = up(&lab, datapath);
    // Who forges a source address gets no nonce there, and what he makes up is nobody's failure.
    forge(&lab);
    let _guess = guess(&lab);
    line(&lab, "failed.log", "sign_in_failed", |_| true);
    let filter =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/fail2ban/filter.d/sluicegate.conf"));
    let filter = filter.expect("the filter");
    let rule = filter.lines().find_map(|line| line.strip_prefix("failregex = ")).expect("a failregex");
    let rule = Regex::new(&rule.replace("<ADDR>", "(?P<address>[0-9a-fA-F.:]+)")).expect("a regular expression");
    for line in log(&lab, "failed.log").lines() {
        let found = rule.captures(line).unwrap_or_else(|| panic!("the filter does not take {line}"));
        assert_eq!(&found["address"], CLIENT.to_string());
    }
    assert!(!log(&lab, "audit.log").lines().any(|line| rule.is_match(line)));
    let path = lab.path("up.state").join("audit/failed.log").display().to_string();
    let filter = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/fail2ban/filter.d/sluicegate.conf");
    let mut command = Command::new("fail2ban-regex");
    match command.args([path.as_str(), filter]).output() {
        Err(_) => println!("no fail2ban-regex here: its own engine was not asked"),
        Ok(_) => {
            let told = run(&mut command, PATIENCE).expect("fail2ban-regex");
            assert!(told.contains(", 0 missed"), "{told}");
        }
    }
    drop(node);
}

/// Credentials with a made-up nonce, from an address that the client does not have.
fn forge(lab: &Lab) {
    let socket = lab.udp("client", CLIENT, 0);
    let request = format!(
        "INVITE sip:web@{REALM} SIP/2.0\r\nVia: SIP/2.0/UDP 198.51.100.66:5060;branch=z9hG4bK1;rport\r\nFrom: <sip:alice@{REALM}>;tag=1\r\n\
         To: <sip:web@{REALM}>\r\nCall-ID: 1\r\nCSeq: 1 INVITE\r\nMax-Forwards: 70\r\nContent-Length: 0\r\nProxy-Authorization: Digest \
         username=\"forged\", realm=\"{REALM}\", nonce=\"AAAAAAAAAAAAAAAAAAAAAA\", uri=\"sip:web@{REALM}\", response=\"{0}\", \
         algorithm=SHA-256, qop=auth, nc=00000001, cnonce=\"1\"\r\n\r\n",
        "0".repeat(64)
    );
    socket.send_to(request.as_bytes(), (GATE, 5060)).expect("sent");
    socket.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
    let mut answer = [0; 2_048];
    let len = socket.recv(&mut answer).expect("a challenge");
    assert!(String::from_utf8_lossy(&answer[..len]).starts_with("SIP/2.0 407"), "a new nonce, not a failure");
    assert!(!log(lab, "failed.log").contains("forged"));
}

fn full_disk(datapath: &'static str) {
    let lab = Lab::new();
    let audit = lab.path("audit");
    fs::create_dir(&audit).expect("a directory");
    symlink("/dev/full", audit.join("audit.log")).expect("a disk that is full");
    let lines = format!("[audit]\ndirectory = \"{}\"\nkeep = 0\n", audit.display());
    let node = Node::up(&lab, &Config::new(datapath, &(lines + &service("web", "\"tcp/80\"", ""))));
    answering(&lab);
    let agent = connect_to(&lab, GATE, "web", &["-L", "8080:80"]);
    agent.says("ready");
    talk(&lab, b"still here");
    let status = node.cli(&["status"]).expect("status");
    let first: Vec<&str> = status.lines().take(2).collect();
    assert!(first[0] == "one thing is not well" && first[1].contains("the audit log is not written"), "{status}");
    assert!(node.program.log().contains("grant_opened"), "the node's own log has what the file has not");
}

fn disabled(datapath: &'static str) {
    let lab = Lab::new();
    let node = up(&lab, datapath);
    let agent = connect_to(&lab, GATE, "web", &["-L", "8080:80"]);
    agent.says("ready");
    let _stream = talk(&lab, b"before");
    assert_eq!(node.grants().len(), 1);
    node.cli(&["user", "disable", "alice"]).expect("user disable");
    until("her grant is gone", || node.grants().is_empty().then_some(()));
    drop(agent);
    let failures = || log(&lab, "failed.log").lines().count();
    let before = failures();
    let again = connect_to(&lab, GATE, "web", &["-L", "8082:80"]);
    until("her sign-in fails", || (failures() > before).then_some(()));
    assert!(!again.log().contains("ready; end"), "{}", again.log());
    assert_eq!(node.grants().len(), 0);
    drop(again);
    node.cli(&["user", "enable", "alice"]).expect("user enable");
    let agent = connect_to(&lab, GATE, "web", &["-L", "8080:80"]);
    agent.says("ready");
    talk(&lab, b"after");
}

fn changes(datapath: &'static str) {
    let lab = Lab::new();
    let node = up(&lab, datapath);
    let refused = |arguments: &[&str], says: &str| {
        let done = node.cli(arguments);
        assert!(!done.status.success() && done.err.contains(says), "{arguments:?}: {done:?}");
    };
    let wrong = lab.path("wrong");
    fs::write(&wrong, "another-horse-battery-staple\n").expect("the lab's directory is writable");
    fs::set_permissions(&wrong, fs::Permissions::from_mode(0o600)).expect("a mode");
    let wrong = wrong.display().to_string();
    refused(
        &["user", "add", "bob", "--password-file", &wrong],
        "user \"bob\" exists; change it with `sluicegate user mod`",
    );
    refused(&["user", "add", "carol", "--group", "staf", "--password-file", &wrong], "there is no group \"staf\"");
    refused(&["user", "mod", "bob", "--add-group", "staf"], "there is no group \"staf\"");
    refused(&["user", "mod", "nobody", "--group", "staff"], "there is no user \"nobody\"");
    refused(&["user", "disable", "nobody"], "there is no user \"nobody\"");
    refused(&["group", "rm", "staff"], "user alice, user bob, service web");
    node.cli(&["user", "mod", "bob", "--remove-group", "staff"]).expect("user mod");
    assert_eq!(node.cli(&["policy", "test", "bob", "web"]).status.code(), Some(1));
    node.cli(&["user", "mod", "bob", "--group", "staff"]).expect("user mod");
    node.cli(&["policy", "test", "bob", "web"]).expect("he may again");
    let written = |name: &str, services: &[(&str, u16)]| {
        let table = |(name, port): &(&str, u16)| {
            format!(
                "[[service]]\nname = \"{name}\"\naddress = \"{SERVICE}\"\nports = [\"tcp/{port}\"]\nallow = [\"group:staff\"]\n"
            )
        };
        lab.write(name, &services.iter().map(table).collect::<String>()).display().to_string()
    };
    let listed = || node.cli(&["service", "ls"]).expect("service ls");
    refused(&["service", "add", &written("a", &[("one", 81), ("web", 82)])], "web");
    assert!(!listed().contains("one"), "all or none");
    node.cli(&["service", "add", &written("b", &[("one", 81), ("two", 82)])]).expect("service add");
    refused(&["service", "mod", &written("c", &[("one", 91), ("three", 93)])], "there is no service \"three\"");
    assert!(listed().contains("tcp/81"), "all or none");
    let changed = node.cli(&["service", "mod", &written("d", &[("one", 91)])]).expect("service mod");
    assert!(changed.contains("its grants were revoked") && listed().contains("tcp/91"), "{changed}");
    refused(&["service", "mod", &written("e", &[("web", 80)])], "stands in the configuration file");
    node.cli(&["user", "passwd", "alice", "--password-file", &wrong]).expect("user passwd");
    let old = connect_to(&lab, GATE, "web", &["-L", "8080:80"]);
    line(&lab, "failed.log", "sign_in_failed", |line| line["user"] == "alice");
    drop(old);
    let gates = node.cli(&["gate", "ls"]).expect("gate ls");
    assert!(gates.contains("up-1") && gates.contains("yes"), "{gates}");
    refused(&["gate", "rm", "nobody"], "there is no gate \"nobody\"");
    node.cli(&["gate", "rm", "up-1"]).expect("gate rm");
    assert!(!node.cli(&["gate", "ls"]).expect("gate ls").contains("up-1"));
}

/// Newcomer 1.20.
fn check(datapath: &'static str) {
    let lab = Lab::new();
    let config = Config::new(datapath, &service("web", "\"tcp/80\"", ""));
    let file = config.write_up(&lab);
    let good = fs::read_to_string(&file).expect("the configuration");
    let check = |text: &str| {
        let file = lab.write("checked.toml", text);
        let mut command = Command::new(BINARY);
        command.arg("check").arg(&file);
        let done = lab.host("gate").run_in(|| run(&mut command, PATIENCE)).expect("a namespace");
        (done.status.success(), done.out + &done.err)
    };
    let (passes, said) = check(&good);
    assert!(passes && !said.contains("warning") && said.contains("not tried: whether there are such users"), "{said}");
    let address = format!("address = \"{SERVICE}\"");
    let cases = [
        ("inside = \"inside\"", "inside = \"lo\"", false, "reaches nothing but this host"),
        ("udp/203.0.113.1:5060", "udp/203.0.113.9:5060", false, "this host has no address 203.0.113.9"),
        (&address, "address = \"203.0.113.1\"", false, "is this host itself"),
        (&address, "address = \"198.51.100.200\"", true, "leave by \"outside\", not by inside"),
        (&address, "address = \"10.4.0.77\"", true, "nobody on \"inside\" answers for 10.4.0.77"),
    ];
    for (right, wrong, passes, what) in cases {
        let text = good.replacen(right, wrong, 1);
        assert_ne!(text, good, "{wrong}");
        let (passed, said) = check(&text);
        assert!(passed == passes && said.contains(what), "{wrong}: {what}\n{said}");
    }
    let swapped = good.replace("outside = \"outside\"", "outside = \"swap\"");
    let swapped = swapped.replace("inside = \"inside\"", "inside = \"outside\"");
    let swapped = swapped.replace("outside = \"swap\"", "outside = \"inside\"\naddress = \"10.4.0.1\"");
    let (_, said) = check(&swapped);
    assert!(said.contains("are the two swapped?"), "{said}");
    // With a frontend that runs, also who is not there; the gate that runs keeps nobody from asking.
    let _node = Node::up(&lab, &config);
    let (passes, said) = check(&good);
    assert!(passes && !said.contains("warning") && !said.contains("not tried"), "{said}");
    let (passes, said) = check(&good.replacen("group:staff", "group:staf", 1));
    assert!(
        passes && said.contains("there is no group \"staf\"\n  hint: add it with: sluicegate group add staf"),
        "{said}"
    );
}

/// Newcomer 1.13.
fn reload(datapath: &'static str) {
    let lab = Lab::new();
    let node = up(&lab, datapath);
    let file = lab.path("site.toml");
    let good = fs::read_to_string(&file).expect("the configuration");
    let put = |text: &str| fs::write(&file, text).expect("the lab's directory is writable");
    let reload = || {
        let done = on_gate(&lab, &["reload".as_ref(), file.as_os_str()]);
        (done.status.success(), done.out + &done.err)
    };
    let names = || -> Vec<String> {
        let rows = node.json(&["service", "ls"]);
        rows.as_array().into_iter().flatten().map(|row| row["name"].as_str().unwrap_or_default().to_owned()).collect()
    };
    let agent = connect_to(&lab, GATE, "web", &["-L", "8080:80"]);
    agent.says("ready");
    let mut standing = talk(&lab, b"before");
    // One bad line, and what a running node cannot change: all stays as it is, and is named.
    for (right, wrong, what) in [
        ("[\"group:staff\"]", "\"staff\"", "site.toml:"),
        ("local = [\"udp/5060\"]", "local = [\"udp/5060\", \"tcp/22\"]", "restart: [gate] local"),
        ("realm = \"example.net\"", "realm = \"example.org\"", "restart: [frontend] realm"),
        ("ports = [\"tcp/80\"]", "ports = [\"tcp/80\"]\noutbound = \"all\"", "restart: default or outbound of web"),
    ] {
        let more = service("mail", "\"tcp/25\"", "address = \"10.4.0.9\"\n");
        put(&(good.replacen(right, wrong, 1) + &more));
        let (passed, said) = reload();
        assert!(!passed && said.contains(what) && said.contains("nothing was changed"), "{wrong}: {said}");
        put(&good);
        assert_eq!(names(), ["web"]);
    }
    // A service more; what stands goes on.
    put(&(good.clone() + &service("mail", "\"tcp/25\"", "address = \"10.4.0.9\"\n")));
    let (passed, said) = reload();
    assert!(passed && said.contains("in place"), "{said}");
    assert_eq!(names(), ["web", "mail"]);
    standing.write_all(b"during").expect("it stands");
    standing.read_exact(&mut [0; 6]).expect("the service answers");
    // By a signal too, and who may no longer gets in no more.
    put(&good.replacen("group:staff", "user:mallory", 1));
    node.program.signal(Signal::SIGHUP);
    until("the signal is followed", || (names() == ["web"]).then_some(()));
    let refused = connect_to(&lab, GATE, "web", &["-L", "8081:80"]);
    refused.says("403");
    // A service that is reached otherwise loses its grants, and the operator hears it.
    put(&good.replacen("\"tcp/80\"", "\"tcp/81\"", 1));
    let (passed, said) = reload();
    assert!(passed && said.contains("the grants of web have ended"), "{said}");
    until("they have", || node.grants().is_empty().then_some(()));
    // What is not running has nothing to reload.
    drop(node);
    fs::remove_dir_all(lab.path("up.state")).expect("the state is there");
    let (passed, said) = reload();
    assert!(!passed && said.contains("no node runs"), "{said}");
}

fn on_gate(lab: &Lab, arguments: &[&std::ffi::OsStr]) -> Done {
    let mut command = Command::new(BINARY);
    command.args(arguments);
    lab.host("gate").run_in(|| run(&mut command, PATIENCE)).expect("a namespace")
}

/// Newcomer 1.13.
fn unconfirmed(datapath: &'static str) {
    let lab = Lab::new();
    let file = Config::new(datapath, &service("web", "\"tcp/80\"", "")).write_up(&lab);
    let start = || {
        let file = file.display().to_string();
        let node = Program::start(&lab, "gate", "up", BINARY, &["up", &file, "--confirm", "15"]);
        node.says("ready took_ms");
        node
    };
    // Somebody at the gate's own host, which `local` leaves out.
    let listener = lab.listen("gate", GATE, 22);
    let reaches = || lab.connect("client", (GATE, 22).into()).is_ok();
    assert!(reaches(), "without a gate");
    let mut node = start();
    assert!(!reaches(), "the gate lets nothing in");
    assert!(!node.finished(PATIENCE), "it ends by itself");
    assert!(node.log().contains("nobody confirmed within 15 s"), "{}", node.log());
    assert!(reaches(), "as before the gate");
    let node = start();
    let done = on_gate(&lab, &["confirm".as_ref(), file.as_os_str()]);
    assert!(done.status.success(), "{done:?}");
    thread::sleep(Duration::from_secs(16));
    assert!(!reaches() && node.log().contains("confirmed"), "it stays");
    drop((node, listener));
}

/// Newcomer 1.7.
fn renamed(datapath: &'static str) {
    let lab = Lab::new();
    let mut node = up(&lab, datapath);
    let gates = |node: &Node| node.json(&["gate", "ls"]);
    assert_eq!((&gates(&node)[0]["name"], gates(&node).as_array().map(Vec::len)), (&"up-1".into(), Some(1)));
    assert!(node.program.stop(), "it ends");
    let file = lab.path("site.toml");
    let text = fs::read_to_string(&file).expect("the configuration");
    fs::write(&file, text.replace("name = \"up-1\"", "name = \"gate-ams-1\""))
        .expect("the lab's directory is writable");
    node.restart(&lab);
    let agent = connect_to(&lab, GATE, "web", &["-L", "8080:80"]);
    agent.says("ready");
    talk(&lab, b"as before");
    let gates = gates(&node);
    assert_eq!((&gates[0]["name"], gates.as_array().map(Vec::len)), (&"gate-ams-1".into(), Some(1)), "{gates}");
    assert_eq!(gates[0]["connected"], true);
}

/// Newcomer 1.19.
fn revoked(datapath: &'static str) {
    let lab = Lab::new();
    let node = up(&lab, datapath);
    let agent = connect_to(&lab, GATE, "web", &["-L", "8080:80"]);
    agent.says("ready");
    let mut stream = talk(&lab, b"before");
    node.cli(&["grant", "revoke", "--user", "alice"]).expect("a revoke");
    // The program hears it, and the next connection has a grant of its own.
    assert!(stream.read(&mut [0; 1]).is_err_and(|error| error.kind() == ErrorKind::ConnectionReset), "a reset");
    agent.says("signed in again: the ");
    let mut stream = talk(&lab, b"again");
    // Of somebody who is stopped there is no again.
    node.cli(&["user", "disable", "alice"]).expect("a change");
    assert!(stream.read(&mut [0; 1]).is_err_and(|error| error.kind() == ErrorKind::ConnectionReset), "a reset");
    agent.says("closed: this is no longer permitted");
}
