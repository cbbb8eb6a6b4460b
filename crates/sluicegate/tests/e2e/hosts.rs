//! Hosts that send and receive with capabilities: `agent run` for one command, `agent tun` for a whole host.

use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener},
    thread,
    time::Duration,
};

use crate::support::{
    BINARY,
    capture::{Capture, Seen},
    lab::{CLIENT, GATE, Lab, SERVICE, STRANGER},
    node::{Config, Node, REALM, password_file, service},
    program::{Done, Program, run_on},
    until,
};

on_packet!(a_commands_transfer_carries_capabilities_both_ways_and_its_first_packet_adds_no_round_trip, &["curl"], both);
on_packet!(a_far_end_without_capabilities_is_reached_plainly_at_once, &["curl"], legacy);
on_packet!(a_captured_host_keeps_its_address_and_leaves_nothing_behind, &["curl"], whole_host);
on_packet!(a_name_is_captured_and_its_record_says_how, &["curl"], record);
on_packet!(a_captured_service_is_opened_by_signing_in_on_the_first_packet, &["curl"], signs_in);
on_packet!(a_commands_exit_status_is_returned_and_its_end_follows_the_agents, &[], status);

const LIMIT: Duration = Duration::from_secs(60);
const PORT: u16 = 8080;
const NATIVE: u8 = 253;
const UDP: u8 = 17;
const BODY_LEN: usize = 200_000;

/// A web server that sends [`BODY_LEN`] bytes to whoever asks, until the test ends.
fn web(lab: &Lab, host: &str, address: Ipv4Addr, port: u16) {
    let listener = lab.listen(host, address, port);
    thread::spawn(move || serve(&listener));
}

fn serve(listener: &TcpListener) {
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else { return };
        let mut request = [0; 4096];
        let _ = stream.read(&mut request);
        let head = format!("HTTP/1.0 200 OK\r\nContent-Length: {BODY_LEN}\r\n\r\n");
        let _ = stream.write_all(head.as_bytes());
        let _ = stream.write_all(&vec![b'x'; BODY_LEN]);
    }
}

/// `sluicegate agent run` of curl on the client, which must fetch the whole body.
fn fetch(lab: &Lab, file: &str, url: &str) -> Done {
    let form = "%{http_code} %{size_download}";
    let words = ["agent", "run", file, "--", "curl", "-s", "-o", "/dev/null", "-w", form, "--max-time", "30", url];
    let done = run_on(lab, "client", BINARY, &words, LIMIT);
    assert_eq!(done.out, format!("200 {BODY_LEN}"), "{}\n{}", done.status, done.err);
    done
}

fn write(lab: &Lab, name: &str, text: &str) -> String {
    lab.write(name, text).display().to_string()
}

/// `sluicegate agent tun` that serves everybody.
fn server(lab: &Lab, host: &str) -> Program {
    let file = write(lab, "server.toml", "[agent]\npolicy = \"server\"\n[[capture]]\nto = \"0.0.0.0/0\"\n");
    let program = Program::start(lab, host, "server", BINARY, &["agent", "tun", &file]);
    program.says("capturing");
    program
}

/// What the stranger's wire sees of the client.
fn wire(lab: &Lab) -> Capture {
    Capture::start(lab, ("stranger", "eth0"), |seen| seen.from == CLIENT)
}

fn of(seen: &[Seen], protocol: u8) -> usize {
    seen.iter().filter(|seen| seen.protocol == protocol).count()
}

fn both(_: &'static str) {
    let lab = Lab::new();
    web(&lab, "stranger", STRANGER, PORT);
    let mut server = server(&lab, "stranger");
    let file = write(&lab, "capture.toml", &format!("[[capture]]\nto = \"{STRANGER}\"\n"));
    let there = wire(&lab);
    let back = Capture::start(&lab, ("client", "eth0"), |seen| seen.from == STRANGER);
    fetch(&lab, &file, &format!("http://{STRANGER}:{PORT}/"));
    let (there, back) = (there.seen(), back.seen());
    assert_eq!(of(&there, NATIVE), there.len(), "nothing goes without a header");
    assert_eq!(of(&back, NATIVE), back.len(), "nothing comes back without a header");
    // Type, in the header's first byte: 0 a request; the upper protocol behind it: TCP.
    let head = |seen: &Seen| (seen.bytes[20] & 0x03, seen.bytes[21]);
    assert_eq!(head(&there[0]), (0, 6), "the SYN itself is the request");
    assert_eq!((head(&back[0]).1, back[0].bytes[20] & 0x04), (6, 4), "the SYN/ACK brings the answer");
    assert!(there[1].at_ns > back[0].at_ns, "and nothing else went before it");
    let nonces = there.iter().filter(|seen| head(seen).0 == 2).count();
    assert!(nonces * 2 > there.len(), "{nonces} of {} packets carry the nonce only", there.len());
    assert!(server.stop());
}

fn legacy(_: &'static str) {
    let lab = Lab::new();
    web(&lab, "stranger", STRANGER, PORT);
    let file = write(&lab, "capture.toml", &format!("[[capture]]\nto = \"{STRANGER}\"\n"));
    let seen = wire(&lab);
    let done = fetch(&lab, &file, &format!("http://{STRANGER}:{PORT}/"));
    assert!(done.err.contains("speaks no capabilities"), "{}", done.err);
    let seen = seen.seen();
    assert_eq!((seen[0].protocol, of(&seen, NATIVE)), (NATIVE, 1), "one request told");
    assert!(of(&seen, 6) > 10, "the rest goes plain, from the host's own address");
}

fn whole_host(_: &'static str) {
    let lab = Lab::new();
    web(&lab, "stranger", STRANGER, PORT);
    let mut server = server(&lab, "stranger");
    let file = write(&lab, "capture.toml", &format!("[[capture]]\nto = \"{STRANGER}\"\n"));
    let mut agent = Program::start(&lab, "client", "agent", BINARY, &["agent", "tun", &file]);
    agent.says("capturing");
    let seen = wire(&lab);
    let url = format!("http://{STRANGER}:{PORT}/");
    let curl = || run_on(&lab, "client", "curl", &["-s", "-o", "/dev/null", "-w", "%{size_download}", &url], LIMIT);
    assert_eq!(curl().expect("curl"), BODY_LEN.to_string());
    let packets = seen.seen();
    assert_eq!(of(&packets, NATIVE), packets.len());
    agent.kill();
    // The device and its routes went with the process.
    assert_eq!(curl().expect("curl"), BODY_LEN.to_string());
    assert!(of(&seen.seen(), 6) > 0, "plain as before");
    assert!(server.stop());
}

/// A name server for one name: its address, and the record that says how its host speaks capabilities.
fn name_server(lab: &Lab, record: &'static str) -> SocketAddr {
    let socket = lab.udp("stranger", STRANGER, 53);
    thread::spawn(move || {
        let mut bytes = [0; 512];
        while let Ok((len, from)) = socket.recv_from(&mut bytes) {
            let _ = socket.send_to(&reply(&bytes[..len], record), from);
        }
    });
    SocketAddr::new(STRANGER.into(), 53)
}

/// The answer to a query (RFC 1035 section 4): the address for type A, the record for TXT, nothing else.
fn reply(query: &[u8], record: &str) -> Vec<u8> {
    let end = 12 + query[12..].iter().position(|byte| *byte == 0).expect("a name") + 5;
    let kind = query[end - 3];
    let data = match kind {
        1 => STRANGER.octets().to_vec(),
        16 => [&[record.len() as u8][..], record.as_bytes()].concat(),
        _ => Vec::new(),
    };
    let answers = u8::from(!data.is_empty());
    let mut bytes = [&query[..2], &[0x81, 0x80, 0, 1, 0, answers, 0, 0, 0, 0], &query[12..end]].concat();
    if answers == 1 {
        // The name by reference, type, class IN, 60 s.
        bytes.extend([0xc0, 12, 0, kind, 0, 1, 0, 0, 0, 60, 0, data.len() as u8]);
        bytes.extend(data);
    }
    bytes
}

fn record(_: &'static str) {
    let lab = Lab::new();
    web(&lab, "stranger", STRANGER, PORT);
    let mut server = server(&lab, "stranger");
    let resolver = name_server(&lab, "v=1 carriage=encapsulated");
    let text = format!("[agent]\nresolver = \"{resolver}\"\n[[capture]]\nto = \"web.example.net\"\n");
    let file = write(&lab, "capture.toml", &text);
    let seen = Capture::start(&lab, ("stranger", "eth0"), |seen| seen.from == CLIENT && seen.ports.1 != 53);
    let done = fetch(&lab, &file, &format!("http://{STRANGER}:{PORT}/"));
    assert!(done.err.contains("web.example.net"), "{}", done.err);
    let seen = seen.seen();
    let encapsulated = seen.iter().filter(|seen| seen.protocol == UDP && seen.ports.1 == 7253).count();
    assert_eq!(encapsulated, seen.len(), "from the first packet on");
    assert!(server.stop());
}

fn signs_in(datapath: &'static str) {
    let lab = Lab::new();
    web(&lab, "service", SERVICE, 80);
    let node = Node::up(&lab, &Config::new(datapath, &service("web", "\"tcp/80\"", "")));
    let password = password_file(&lab);
    // Programs know the service by an address of its own; the gate's address and port stay between agent and gate.
    let known = IpAddr::from([192, 0, 2, 77]);
    let text = format!(
        "[agent]\nfrontend = \"{GATE}:5060\"\nrealm = \"{REALM}\"\npassword_file = \"{}\"\n\
         [[capture]]\nto = \"{known}\"\nservice = \"alice@web\"\n",
        password.display()
    );
    let file = write(&lab, "capture.toml", &text);
    let outside = Capture::start(&lab, ("gate", "outside"), |seen| seen.from == CLIENT && seen.ports.1 != 5060);
    fetch(&lab, &file, &format!("http://{known}/"));
    let seen = outside.seen();
    assert!(seen.iter().all(|seen| seen.to == GATE), "{:?}", seen.first());
    assert_eq!(seen.first().map(|seen| seen.protocol), Some(NATIVE), "the first packet asks for a capability");
    assert_eq!(node.grants().len(), 0, "the goodbye ended the grant");
}

fn status(_: &'static str) {
    let lab = Lab::new();
    let file = write(&lab, "capture.toml", &format!("[[capture]]\nto = \"{STRANGER}\"\n"));
    let done = run_on(&lab, "client", BINARY, &["agent", "run", &file, "--", "sh", "-c", "exit 7"], LIMIT);
    assert_eq!(done.status.code(), Some(7), "{}", done.err);
    let mark = lab.path("started");
    let script = format!("touch {}; exec sleep 1000", mark.display());
    let mut agent =
        Program::start(&lab, "client", "agent", BINARY, &["agent", "run", &file, "--", "sh", "-c", &script]);
    until("the command runs", || mark.exists().then_some(()));
    let second = run_on(&lab, "client", BINARY, &["agent", "run", &file, "--", "true"], LIMIT);
    assert!(!second.status.success() && second.err.contains("in use"), "{}", second.err);
    agent.kill();
    // The command went with it, and the next agent finds a clean host.
    until("the next agent runs", || {
        let done = run_on(&lab, "client", BINARY, &["agent", "run", &file, "--", "true"], LIMIT);
        done.status.success().then_some(())
    });
}
