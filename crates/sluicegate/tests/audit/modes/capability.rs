//! Grants whose packets have to prove a capability: from configuration through sign-in, feed and gate to the wire.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    time::Duration,
};

use sluicegate_grant::mac::{Ends, Purpose, SessionKeys};
use sluicegate_wire::{
    build,
    capability::{Capability, Kind, shim},
    ip::Summary,
    ipv4, udp,
};

use super::{grants, request};
use crate::support::{
    BINARY,
    agent::{Sniffer, TRAILER, UdpEcho, exchange, talk},
    capture::{Capture, Seen},
    lab::{CLIENT, GATE, Lab, SERVICE, STRANGER},
    let_run,
    node::{Config, Node, REALM, password_file, service},
    phone::{Phone, Wish},
    program::{Program, run_on},
    until,
};

on_each_datapath!(conformance_05_a_grant_of_mode_capability_takes_nothing_that_proves_less, &[], super::forging);
on_packet!(conformance_05_who_proves_less_than_is_demanded_gets_no_grant, &[], refused);

/// Of each kind of forgery.
const COPIES: usize = 200;
/// What programs on the client's host know the services by.
const ECHO: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 77);
const OTHER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 78);
/// IP protocol of the capability header.
const NATIVE: u8 = 253;

fn demands(name: &str, ports: &str) -> String {
    let grant = "bytes_max = \"500MB\", lifetime_s = 300, rate = \"400Mbit\", least_mode = \"capability\"";
    service(name, ports, &format!("grant = {{ {grant} }}\n"))
}

/// `agent tun` on the client's host, signed in to both services by their first packets.
fn tun(lab: &Lab) -> Program {
    let mut text = format!(
        "[agent]\nfrontend = \"{GATE}:5060\"\nrealm = \"{REALM}\"\npassword_file = \"{}\"\n",
        password_file(lab).display()
    );
    for (to, name) in [(ECHO, "echo"), (OTHER, "other")] {
        text.push_str(&format!("[[capture]]\nto = \"{to}\"\nservice = \"alice@{name}\"\n"));
    }
    let file = lab.write("tun.toml", &text).display().to_string();
    let agent = Program::start(lab, "client", "tun", BINARY, &["agent", "tun", &file]);
    agent.says("capturing");
    agent
}

fn program(lab: &Lab, to: SocketAddr) -> UdpSocket {
    let socket = lab.udp("client", Ipv4Addr::UNSPECIFIED, 0);
    socket.connect(to).expect("a route");
    socket.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
    socket
}

/// A packet with a capability header, taken apart.
struct Taken {
    seen: Seen,
    kind: Kind,
    client_id: u32,
    header_at: usize,
    payload_at: usize,
    /// The gate's port, if it carries a datagram.
    gate_port: Option<u16>,
}

impl Taken {
    fn of(seen: &Seen) -> Option<Self> {
        let summary = Summary::parse(&seen.bytes).ok()?;
        let found = shim::find(&summary, &seen.bytes).ok()??;
        let header = found.packet(&seen.bytes);
        let inner = udp::Packet::new_checked(seen.bytes.get(found.payload_at..)?).ok();
        Some(Self {
            seen: seen.clone(),
            kind: header.kind(),
            client_id: header.client_id().0,
            header_at: found.header_at,
            payload_at: found.payload_at,
            gate_port: inner.filter(|_| header.upper_protocol().0 == 17).map(|inner| inner.dst_port()),
        })
    }

    /// The packet with its bytes changed and checksums right again.
    fn with(&self, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
        let mut bytes = self.seen.bytes.clone();
        change(&mut bytes);
        let mut packet = ipv4::Packet::new_unchecked(&mut bytes[..]);
        packet.fill_checksum();
        let (src, dst) = (packet.src(), packet.dst());
        if let Ok(mut inner) = udp::Packet::new_checked(&mut bytes[self.payload_at..]) {
            inner.fill_checksum(src.into(), dst.into());
        }
        bytes
    }

    fn from(&self, address: Ipv4Addr) -> Vec<u8> {
        self.with(|bytes| ipv4::Packet::new_unchecked(bytes).set_src(address))
    }

    fn to_port(&self, port: u16) -> Vec<u8> {
        self.with(|bytes| udp::Packet::new_unchecked(&mut bytes[self.payload_at..]).set_dst_port(port))
    }

    /// With another nonce, so that it stands for nothing that was cached.
    fn renonced(&self, number: usize, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
        self.with(|bytes| {
            let nonce = &mut bytes[self.header_at + 2..self.header_at + 8];
            nonce.copy_from_slice(&(0x5eed_0000_0000 + number as u64).to_be_bytes()[2..]);
            change(bytes);
        })
    }

    fn with_client_id(&self, number: usize, id: u32) -> Vec<u8> {
        self.renonced(number, |bytes| bytes[self.header_at + 8..self.header_at + 12].copy_from_slice(&id.to_be_bytes()))
    }

    fn with_forged_list(&self, number: usize) -> Vec<u8> {
        self.renonced(number, |bytes| {
            let summary = Summary::parse(bytes).expect("a packet");
            let found = shim::find(&summary, bytes).expect("a header").expect("a header");
            let len = found.header_len;
            let mut header = sluicegate_wire::capability::Packet::new_unchecked(&mut bytes[self.header_at..][..len]);
            // The first is the sender's own, which no router looks at.
            for index in 0..usize::from(header.count()) {
                let was = header.capability(index).expect("a capability").0;
                header.set_capability(index, Capability(was ^ 1 << (number % 56)));
            }
        })
    }
}

/// What an attacker on the client's path makes of what it sees there, under the name of each kind.
fn forgeries(taken: &[Taken], (echo, other): (u16, u16)) -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let of = |port: u16, kinds: &[Kind]| {
        let fits = |one: &&Taken| one.gate_port == Some(port) && kinds.contains(&one.kind);
        taken.iter().rfind(fits).unwrap_or_else(|| panic!("no packet of {kinds:?} to {port}"))
    };
    let listed = of(echo, &[Kind::Capabilities]);
    let asked = of(echo, &[Kind::Request]);
    let foreign = of(other, &[Kind::Capabilities]);
    let nonce_only = of(echo, &[Kind::Nonce]);
    let id = listed.client_id;
    assert_ne!(id, foreign.client_id);
    let port = |at: usize| u16::try_from(at).expect("few");
    let ends = |at: usize| ((IpAddr::from(CLIENT), 20_000 + port(at)), SocketAddr::from((GATE, echo)));
    let own_keys = SessionKeys::from_bytes([[0x42; 16], [0x43; 16]]);
    let sealed = |at: usize| {
        let (client, gate) = ends(at);
        let ends = Ends { client, gate_port: gate.port() };
        let trailer = own_keys.to_service.trailer(id, Purpose::Datagram, at as u64 + 1, &ends, b"FORGED");
        build::datagram(client, gate, &[b"FORGED", &trailer[..]].concat())
    };
    let unsealed = |at: usize| {
        // The honest request with another payload, and with nothing that seals it.
        asked.with(|bytes| {
            let end = bytes.len() - TRAILER;
            bytes[asked.payload_at + 8..end].fill(b'F');
            bytes[end..].fill(at as u8);
        })
    };
    let resealed = |at: usize| asked.with(|bytes| bytes[asked.payload_at + 8] ^= 1 + at as u8);
    let all = |make: &dyn Fn(usize) -> Vec<u8>| (0..COPIES).map(make).collect::<Vec<_>>();
    vec![
        ("plain", all(&|at| build::datagram(ends(at).0, ends(at).1, b"FORGED"))),
        ("a packet MAC and no capability", all(&sealed)),
        ("a capability from another address", all(&|_| listed.from(STRANGER))),
        ("a nonce from another address", all(&|_| nonce_only.from(STRANGER))),
        ("another grant's capability", all(&|_| foreign.to_port(echo))),
        ("another grant's capability under this client id", all(&|at| foreign.with_client_id(at, id))),
        ("a capability under another client id", all(&|at| listed.with_client_id(at, foreign.client_id))),
        ("a forged capability", all(&|at| listed.with_forged_list(at))),
        ("a nonce of nobody", all(&|at| nonce_only.renonced(at, |_| ()))),
        ("a request on nothing", all(&|_| request(&listed.seen, id))),
        ("a request that is not sealed", all(&unsealed)),
        ("a request that is sealed for another payload", all(&resealed)),
        ("a copy of the client's request", all(&|_| asked.seen.bytes.clone())),
        ("a copy from another address", all(&|_| asked.from(STRANGER))),
    ]
}

fn forging(datapath: &'static str) {
    let lab = Lab::new();
    let echo = UdpEcho::start(&lab);
    let quiet = lab.udp("service", SERVICE, 5006);
    let objects = demands("echo", "\"udp/5004\"") + &demands("other", "\"udp/5006\"");
    let node = Node::up(&lab, &Config::new(datapath, &objects));
    let mut sniffer = Sniffer::new(&lab);
    let wire = Capture::start(&lab, ("core", "to_client"), |seen| seen.from == CLIENT && seen.protocol == NATIVE);
    let bare = Capture::start(&lab, ("core", "to_client"), |seen| {
        seen.from == CLIENT && seen.protocol == 17 && seen.ports.1 != 5060
    });
    let _agent = tun(&lab);
    let socket = program(&lab, (ECHO, 5004).into());
    until("the first datagram signs in and comes back", || exchange(&socket, "first").then_some(()));
    let beside = program(&lab, (OTHER, 5006).into());
    let mut buffer = [0; 64];
    quiet.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
    for _ in 0..20 {
        until("the other service hears the client", || {
            beside.send(b"other").expect("a route");
            quiet.recv(&mut buffer).ok()
        });
    }
    talk(&socket, "honest");
    assert_eq!(bare.count(), 0, "nothing goes without a header: {:?}", bare.seen().first());

    let rows = node.json(&["grant", "ls"]);
    let rows = rows.as_array().expect("a list");
    assert_eq!(rows.len(), 2, "{rows:?}");
    assert!(rows.iter().all(|row| row["mode"] == "capability"), "{rows:?}");
    let gate_port = |service: &str| {
        let row = rows.iter().find(|row| row["service"] == service).expect("its grant");
        u16::try_from(row["gate_ports"][0].as_u64().expect("a port")).expect("16 bits")
    };
    let (at_echo, at_other) = (gate_port("echo"), gate_port("other"));
    let taken: Vec<Taken> = until("the client shows nothing but its nonce", || {
        let _ = exchange(&socket, "more");
        let taken: Vec<Taken> = wire.seen().iter().filter_map(Taken::of).collect();
        taken.iter().any(|one| one.kind == Kind::Nonce && one.gate_port == Some(at_echo)).then_some(taken)
    });
    let flow = format!("udp {CLIENT}:4000 > {GATE}:{at_echo}");
    let steps = node.json(&["trace", "--flow", &flow]).to_string();
    assert!(steps.contains("Mode capability"), "{steps}");

    let reached = Capture::start(&lab, ("service", "eth0"), |seen| seen.to == SERVICE);
    let answers = Capture::start(&lab, ("core", "to_gate"), |seen| seen.to == STRANGER && seen.protocol == NATIVE);
    let heard = echo.heard().len();
    for (what, packets) in forgeries(&taken, (at_echo, at_other)) {
        sniffer.send(&packets);
        let_run(Duration::from_millis(100));
        assert_eq!(reached.count(), 0, "{what}: {:?}", reached.seen().first());
    }
    assert_eq!(echo.heard().len(), heard);
    assert!(!answers.seen().iter().any(grants), "the gate grants a stranger: {:?}", answers.seen().first());
    talk(&socket, "still honest");
    drop(node);
}

fn refused(datapath: &'static str) {
    let lab = Lab::new();
    let _echo = UdpEcho::start(&lab);
    let node = Node::up(&lab, &Config::new(datapath, &demands("echo", "\"udp/5004\"")));
    let phone = Phone::new(&lab, "client", CLIENT, (GATE, 5060).into(), "alice");
    assert_eq!(phone.try_call("echo", Wish::Audio).unwrap_err().status, 403);
    let (frontend, password) = (format!("{GATE}:5060"), password_file(&lab).display().to_string());
    let words = ["connect", "alice@echo", "--frontend", &frontend, "--realm", REALM, "--password-file", &password];
    let words = [&words[..], &["-L", "5004:5004/udp"]].concat();
    let done = run_on(&lab, "client", BINARY, &words, Duration::from_secs(20));
    assert!(!done.status.success() && done.err.contains("403"), "{}", done.err);
    assert_eq!(node.grants(), Vec::<String>::new());
    let why = node.traced(&["trace", "--user", "alice", "--json"], "capability");
    assert!(why.contains("capability") && why.contains("mac") && why.contains("pinhole"), "{why}");
}
