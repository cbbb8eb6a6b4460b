//! The feed's door, and what each end of the feed may have the other do.

use std::{
    fs,
    io::{self, Read},
    net::{SocketAddr, TcpStream},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use sluicegate_feed::{Decoder, Delta, Event, FeedReceiver, FeedSender, Selected, Selector, SenderOptions, ToGate};
use sluicegate_grant::{CALL_ID_LEN, IssuerKey};
use sluicegate_wire::{Instant, UnixTime};

use crate::support::{
    BINARY,
    capture::Capture,
    lab::{CLIENT, FRONTEND, GATE, Lab, PUBLIC, SERVICE, STRANGER},
    let_run,
    node::{Config, Node, REALM, join, password_file, service},
    phone::{Phone, Wish},
    program::Program,
    traffic::Stream,
    until,
};

on_packet!(alone security_09_idle_connections_to_the_feed_keep_no_gate_away, &[], idle_connections);
on_each_datapath!(security_18_a_frontend_cannot_make_a_service_open_to_everyone, &[], super::open_to_everyone);
on_packet!(security_18_the_gates_own_file_bounds_what_a_frontend_opens, &[], bounded_issuer);
on_packet!(security_30_who_only_connects_to_the_feed_fills_no_log, &[], quiet_log);
on_packet!(security_34_an_agents_service_is_reached_at_once_after_a_restart, &[], restarted);

fn feed() -> SocketAddr {
    SocketAddr::new(FRONTEND.into(), 7443)
}

/// A frontend on a host of its own with these services, and its gate, whose file also has `more`.
fn frontend_and_gate(lab: &Lab, config: &Config, more: impl FnOnce(&Path) -> String) -> (Node, Node) {
    let frontend = Node::start(lab, "frontend", "frontend", &config.write_frontend(lab, FRONTEND.into()));
    frontend.ready();
    frontend.add_people(lab);
    let file = config.write_gate(lab);
    join(lab, &frontend, &file);
    let text = fs::read_to_string(&file).expect("the gate's file");
    let text = text + &more(&lab.path("gate.state/gate/feeds"));
    fs::write(&file, text).expect("the lab's directory is writable");
    let gate = Node::start(lab, "gate", "gate", &file);
    gate.ready();
    frontend.has_gate();
    (frontend, gate)
}

/// Connections of the stranger that say nothing: more than there are places.
const IDLE: usize = 48;

/// One connection after the other that says nothing: when one is closed, the next is opened.
fn stay_idle(stop: &AtomicBool) -> io::Result<()> {
    while !stop.load(Ordering::Relaxed) {
        if let Ok(mut stream) = TcpStream::connect_timeout(&feed(), Duration::from_millis(500)) {
            let _ = stream.set_read_timeout(Some(Duration::from_secs(6)));
            let _ = stream.read(&mut [0]);
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn idle_connections(datapath: &'static str) {
    let lab = Lab::new();
    let config = Config::new(datapath, &service("echo", "\"udp/7000\"", ""));
    let (mut frontend, mut gate) = frontend_and_gate(&lab, &config, |_| String::new());
    let stop = Arc::new(AtomicBool::new(false));
    let idle: Vec<_> = (0..IDLE)
        .map(|_| {
            let flag = Arc::clone(&stop);
            lab.host("stranger").thread("idle", move || stay_idle(&flag)).expect("a thread in the namespace")
        })
        .collect();
    // Either end may be the one that starts anew: both, while the connections stand.
    gate.program.kill();
    frontend.program.kill();
    frontend.restart(&lab);
    let_run(Duration::from_millis(300));
    gate.restart(&lab);
    stop.store(true, Ordering::Relaxed);
    drop(idle);
    let phone = Phone::new(&lab, "client", CLIENT, SocketAddr::new(FRONTEND.into(), 5060), "alice");
    phone.call("echo", Wish::Audio);
}

fn open_to_everyone(datapath: &'static str) {
    let lab = Lab::new();
    let public = "[[service]]\nname = \"public\"\nmode = \"filter\"\naddress = \"192.0.2.10\"\ndefault = \"open\"\n";
    let config = Config::new(datapath, public);
    let (frontend, _gate) = frontend_and_gate(&lab, &config, |_| String::new());
    let reached = Capture::start(&lab, ("service", "eth0"), |seen| seen.from == STRANGER);
    let stranger = lab.udp("stranger", STRANGER, 0);
    for _ in 0..50 {
        let _ = stranger.send_to(b"anybody there?", SocketAddr::new(PUBLIC.into(), 7000));
        let_run(Duration::from_millis(10));
    }
    let_run(Duration::from_millis(200));
    assert_eq!(reached.count(), 0, "a frontend opened what the gate's file keeps shut");
    let refused = frontend.json(&["status"])["frontend"]["gates"][0]["refused"]["public"].clone();
    assert!(refused.as_str().is_some_and(|reason| reason.contains("own file")), "{refused}");
}

fn bounded_issuer(datapath: &'static str) {
    let lab = Lab::new();
    let small = "grant = { bytes_max = \"2MB\", lifetime_s = 60, rate = \"1Mbit\" }\n";
    let objects = service("small", "\"udp/7000\"", small)
        + &service("large", "\"udp/7000\"", "address = \"10.4.0.3\"\n")
        + &service("other", "\"udp/7000\"", &format!("address = \"10.4.0.4\"\n{small}"));
    let rule = |feeds: &Path| {
        let joined = fs::read_to_string(feeds).expect("the gate has joined");
        let key = joined.split_ascii_whitespace().nth(2).expect("a key").to_owned();
        format!(
            "[[issuer]]\nkey = \"{key}\"\nservices = [\"small\", \"large\"]\nbytes_max = \"2MB\"\nlifetime_s = 60\n"
        )
    };
    let (frontend, gate) = frontend_and_gate(&lab, &Config::new(datapath, &objects), rule);
    let phone = Phone::new(&lab, "client", CLIENT, SocketAddr::new(FRONTEND.into(), 5060), "alice");
    phone.call("small", Wish::Audio);
    for service in ["large", "other"] {
        let refused = phone.try_call(service, Wish::Audio).expect_err("the gate does not open it");
        assert_eq!(refused.status, 503, "{service}");
    }
    assert_eq!((frontend.grants().len(), gate.grants().len()), (1, 1));
}

fn quiet_log(datapath: &'static str) {
    let lab = Lab::new();
    let config = Config::new(datapath, &service("echo", "\"udp/7000\"", ""));
    let frontend = Node::start(&lab, "frontend", "frontend", &config.write_frontend(&lab, FRONTEND.into()));
    frontend.ready();
    let before = frontend.program.log().lines().count();
    for _ in 0..300 {
        drop(lab.connect("stranger", feed()));
    }
    let_run(Duration::from_millis(800));
    let lines = frontend.program.log().lines().count() - before;
    assert!((1..=60).contains(&lines), "{lines} lines from 300 connections");
}

fn restarted(datapath: &'static str) {
    let lab = Lab::new();
    let host = service("host", "\"udp/7000\"", "kind = \"agent\"\nregistrar = \"host-agent\"\n");
    let mut node = Node::up(&lab, &Config::new(datapath, &host));
    node.add_user(&lab, "host-agent", None);
    let text = format!(
        "[agent]\nfrontend = \"{GATE}:5060\"\nrealm = \"{REALM}\"\nuser = \"host-agent\"\npassword_file = \"{}\"\n\
         service = \"host\"\naddress = \"{SERVICE}\"\nports = [\"udp/7000\"]\n",
        password_file(&lab).display(),
    );
    let file = lab.write("agent.toml", &text).display().to_string();
    let agent = Program::start(&lab, "service", "agent", BINARY, &["agent", &file, "--serve"]);
    agent.says("registered");
    let _answering = Stream::start(lab.udp("service", SERVICE, 7000), None);
    // Longer than a registration takes to reach the disk.
    let_run(Duration::from_millis(2_500));
    node.program.kill();
    node.restart(&lab);
    let began = std::time::Instant::now();
    let phone = Phone::new(&lab, "client", CLIENT, SocketAddr::new(GATE.into(), 5060), "alice");
    let call = phone.call("host", Wish::Udp(7000, 7000));
    let client = Stream::start(lab.udp("client", CLIENT, 0), Some(call.gate));
    until("datagrams come back", || (client.arrivals.since(began) > 5).then_some(()));
}

const NOW: UnixTime = UnixTime(1_000_000);

/// What a gate that was away all the time is told to end when it comes back.
fn told_to_end(sender: &mut FeedSender, key: &IssuerKey) -> Vec<Selected> {
    let mut receiver = FeedReceiver::new(key.public(), "gate-1", None);
    let _hello = receiver.connect(Instant::ZERO, NOW);
    let mut ended = Vec::new();
    for frame in sender.welcome(NOW, None, Vec::new).expect("a welcome") {
        let mut decoder = Decoder::<ToGate>::new();
        assert_eq!(decoder.push(&frame), frame.len());
        let message = decoder.poll().expect("a frame").expect("a whole message");
        for event in receiver.handle(Instant::ZERO, NOW, message).expect("what the issuer signed") {
            if let Event::Revoke(selector) = event {
                ended.push(selector.what);
            }
        }
    }
    ended
}

#[test]
fn security_33_one_users_calls_push_out_nobodys_revoke() {
    let key = IssuerKey::from_seed([7; 32]);
    let mut sender = FeedSender::new(IssuerKey::from_seed([7; 32]), 1, "frontend", SenderOptions::default());
    let (mut now, mut frames) = (Instant::ZERO, 0);
    sender.push(now, NOW, Delta::Revoke(Selector::all(Selected::User("mallory".into())))).expect("room");
    let bobs = Selected::Call([0xB0; CALL_ID_LEN]);
    sender.push_call_end(now, NOW, ("bob", NOW.plus_secs(300)), Selector::all(bobs.clone())).expect("room");
    for number in 0..20_000_u32 {
        let mut call = [0; CALL_ID_LEN];
        call[..4].copy_from_slice(&number.to_be_bytes());
        let ended = Selector::all(Selected::Call(call));
        sender.push_call_end(now, NOW, ("alice", NOW.plus_secs(300)), ended).expect("room");
        now = now + Duration::from_millis(20);
        frames += usize::from(sender.poll_transmit(now, NOW).is_some());
    }
    assert!(frames > 0, "the changes went out meanwhile");
    let ended = told_to_end(&mut sender, &key);
    assert!(ended.contains(&Selected::User("mallory".into())), "the administrator's revoke is still told");
    assert!(ended.contains(&bobs), "and so is the end of another user's call");
    assert!(ended.len() < 1_000, "while alice's own are bounded: {}", ended.len());
}
