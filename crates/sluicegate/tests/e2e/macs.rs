//! Somebody on the client's path who sees every datagram of an agent, and can copy, change and send whatever he likes
//! with the client's address.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;

use crate::support::{
    PATIENCE,
    agent::{
        HONEST, Sniffer, TRAILER, UdpEcho, connect, exchange, payload, program, socks_exchange, talk, with_payload,
    },
    capture::{Capture, Seen},
    lab::{CLIENT, FRONTEND, GATE, Lab},
    let_run,
    node::{Config, Node, join, service},
    until, within,
};

on_each_datapath!(alone a_sniffer_that_copies_forges_or_replays_on_the_path_gets_no_byte_through, &[], super::sniffer);
on_packet!(a_gate_without_the_key_says_so_until_the_feed_brings_it_again, &[], gate_without_key);
on_packet!(after_a_restart_of_everything_the_next_renewal_brings_a_new_key, &[], all_restarted);

/// How often each captured datagram is sent again.
const COPIES: usize = 50;

/// The mode of the only grant.
fn mode(node: &Node) -> String {
    let rows = node.json(&["grant", "ls"]);
    assert_eq!(rows.as_array().map(Vec::len), Some(1), "{rows}");
    rows[0]["mode"].as_str().unwrap_or_default().to_owned()
}

fn sniffer(datapath: &'static str) {
    let lab = Lab::new();
    let echo = UdpEcho::start(&lab);
    let node = Node::up(&lab, &Config::new(datapath, &service("echo", "\"udp/5004\"", "")));
    let mut sniffer = Sniffer::new(&lab);
    let agent = connect(&lab, GATE, &["-L", "5004:5004/udp", "--socks", "127.0.0.1:1080"]);
    assert_eq!(mode(&node), "mac");
    agent.says("mode=mac");

    let socket = program(&lab);
    talk(&socket, "honest");
    // Proofs of the address, which the agent sends now and then, are nothing but a trailer.
    let is_datagram = |seen: &Seen| payload(&seen.bytes).len() != TRAILER;
    let seen: Vec<Seen> = sniffer.capture.seen().into_iter().filter(is_datagram).collect();
    let texts: Vec<&[u8]> = seen.iter().map(|seen| payload(&seen.bytes)).collect();
    assert!(texts[0].starts_with(b"honest 0") && texts[0].len() == b"honest 0".len() + TRAILER, "{:?}", texts[0]);
    let honest = echo.heard();
    let reached = Capture::start(&lab, ("service", "eth0"), |seen| seen.from == CLIENT);

    let replayed: Vec<Vec<u8>> = (0..COPIES).flat_map(|_| seen.iter().map(|seen| seen.bytes.clone())).collect();
    let last = seen.last().expect("datagrams were seen");
    let sealed = payload(&last.bytes);
    let at = sealed.len() - TRAILER;
    let change = |at: usize, flip: u8| {
        let mut text = sealed.to_vec();
        text[at] ^= flip;
        with_payload(last, last.ports.0, &text)
    };
    // Another payload; the next sequence number; another tag.
    let forged: Vec<Vec<u8>> = [0, at + 11, at + 12, sealed.len() - 1]
        .iter()
        .flat_map(|at| (0..8).map(move |bit| (*at, 1 << bit)))
        .map(|(at, flip)| change(at, flip))
        .collect();
    let mut bare: Vec<Vec<u8>> = (0..8).map(|bit| change(at + 3, 1 << bit)).collect();
    for port in [last.ports.0, 40_000] {
        let texts: [&[u8]; 3] = [b"", b"short", &[0x58; 200]];
        bare.extend(texts.map(|text| with_payload(last, port, text)));
    }
    sniffer.send(&replayed);
    sniffer.send(&forged);
    sniffer.send(&bare);
    for (reason, packets) in [("mac_replayed", &replayed), ("mac_forged", &forged), ("mac_missing", &bare)] {
        let judged = within(PATIENCE, || (node.dropped(reason) >= packets.len() as u64).then_some(()));
        assert!(judged.is_some(), "{reason}: {} of {}", node.dropped(reason), packets.len());
        assert_eq!(node.dropped(reason), packets.len() as u64, "each is counted once, under {reason}");
    }
    assert_eq!(reached.count(), 0, "{:?}", reached.seen().first());
    assert_eq!(echo.heard(), honest, "the service got what the client sent, and nothing else");

    talk(&socket, "still honest");
    let through_socks = socks_exchange(&lab, b"by way of SOCKS");
    assert_eq!(through_socks, b"by way of SOCKS");
    assert!(
        echo.heard()
            .iter()
            .all(|text| text.starts_with(b"honest") || text.starts_with(b"still") || text.starts_with(b"by"))
    );
    assert_eq!(mode(&node), "mac");

    // One byte more than fits the path's MTU together with the trailer.
    socket.send(&[0x4d; 1_453]).expect("the agent listens");
    agent.says("does not fit the path's MTU");
    assert!(agent.log().contains("bytes_max=1452"), "{}", agent.log());
    assert!(exchange(&socket, &"M".repeat(1_452)), "the longest datagram that fits arrives");
}

fn gate_without_key(datapath: &'static str) {
    let lab = Lab::new();
    let _echo = UdpEcho::start(&lab);
    let config = Config::new(datapath, &service("echo", "\"udp/5004\"", ""));
    let frontend = Node::start(&lab, "frontend", "frontend", &config.write_frontend(&lab, FRONTEND.into()));
    frontend.ready();
    frontend.add_people(&lab);
    let gate_file = config.write_gate(&lab);
    join(&lab, &frontend, &gate_file);
    let mut gate = Node::start(&lab, "gate", "gate", &gate_file);
    gate.ready();
    frontend.has_gate();
    let sniffer = Sniffer::new(&lab);
    let _agent = connect(&lab, FRONTEND, &["-L", "5004:5004/udp"]);
    let socket = program(&lab);
    talk(&socket, "before");
    assert_eq!(mode(&gate), "mac");

    // What a killed gate remembers of sequence numbers is what its last checkpoint has.
    let talked = Instant::now();
    until("a checkpoint has what was said", || {
        let age = gate.json(&["status"])["gate"]["saved"]["checkpoint_age_ms"].as_u64()?;
        (u128::from(age) < talked.elapsed().as_millis()).then_some(())
    });
    // The frontend hears and says nothing for a while; the gate dies meanwhile.
    frontend.program.signal(Signal::SIGSTOP);
    let_run(Duration::from_millis(600));
    gate.program.kill();
    gate.program = Node::start(&lab, "gate", "gate", &gate_file).program;
    until("the gate refuses what it cannot check", || {
        socket.send(b"during").expect("the agent listens");
        within(Duration::from_secs(1), || gate.try_dropped("mode_too_weak").filter(|count| *count > 0))
    });
    let seen = sniffer.capture.seen().last().expect("datagrams were seen").clone();
    let steps = trace(&gate, &seen);
    assert!(steps.contains("this gate has not got the key"), "{steps}");
    let mut buffer = [0; 64];
    while socket.recv(&mut buffer).is_ok() {}

    frontend.program.signal(Signal::SIGCONT);
    until("datagrams pass again", || exchange(&socket, "after").then_some(()));
    talk(&socket, "after");
    // What was captured before the gate died is as old as ever.
    let mut sniffer = sniffer;
    let before: Vec<Vec<u8>> = sniffer.capture.seen().into_iter().map(|seen| seen.bytes).take(HONEST).collect();
    sniffer.send(&before);
    until("replays of what was sent before the restart are counted", || {
        (gate.dropped("mac_replayed") >= before.len() as u64).then_some(())
    });
}

/// What `trace` says of a packet that was seen.
fn trace(gate: &Node, seen: &Seen) -> String {
    let source = SocketAddr::new(seen.from, seen.ports.0);
    let flow = format!("udp {source} > {}", SocketAddr::new(seen.to, seen.ports.1));
    gate.json(&["trace", "--flow", &flow]).to_string()
}

fn all_restarted(datapath: &'static str) {
    let lab = Lab::new();
    let _echo = UdpEcho::start(&lab);
    let short = "grant = { bytes_max = \"10MB\", lifetime_s = 16, rate = \"10Mbit\" }\n";
    let mut node = Node::up(&lab, &Config::new(datapath, &service("echo", "\"udp/5004\"", short)));
    let agent = connect(&lab, GATE, &["-L", "5004:5004/udp"]);
    let socket = program(&lab);
    talk(&socket, "before");
    // A renewal goes on with key and numbers.
    agent.says("renewed");
    talk(&socket, "renewed");
    node.program.kill();
    node.restart(&lab);
    let down = Instant::now();
    until("datagrams pass again", || exchange(&socket, "after").then_some(()));
    println!("datagrams passed again {:?} after the restart", down.elapsed());
    talk(&socket, "after");
    assert_eq!((mode(&node).as_str(), node.grants().len()), ("mac", 1));
}
