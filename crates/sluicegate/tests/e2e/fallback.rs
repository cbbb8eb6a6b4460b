//! A network that lets no UDP pass: the agent signs in over TLS, and its packets go through a tunnel to the gate.

use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream},
    os::unix::net::UnixDatagram,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use rustls::{ClientConnection, StreamOwned, pki_types::ServerName};
use sluicegate_feed::tls::{Identity, client_config};

use crate::{
    authority::Authority,
    support::{
        PATIENCE,
        agent::{LOCAL, UdpEcho, connect_to, exchange, program},
        lab::{GATE, Lab, SERVICE},
        node::{Config, Node, service},
        program::{Program, run_on},
        until,
    },
};

on_each_datapath!(fallback_carries_tcp_and_udp_over_tls_and_goes_back_when_udp_passes_again, &["nft"], super::carries);
on_packet!(fallback_ends_with_its_grant_and_begins_anew_where_that_is_permitted, &["nft"], ends);
on_packet!(fallback_takes_no_certificate_that_it_was_not_given_and_says_what_is_missing, &["nft"], refuses);
on_packet!(fallback_lets_honest_agents_in_beside_strangers_and_forged_proofs, &["nft"], strangers);

const TLS: SocketAddr = SocketAddr::new(IpAddr::V4(GATE), 5061);
const TUNNEL: SocketAddr = SocketAddr::new(IpAddr::V4(GATE), 4443);
const FORWARD: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
/// How much is carried each way.
const LEN: u64 = 20_000_000;

/// A site whose frontend speaks TLS, and whose gate has this tunnel, if any.
fn site(lab: &Lab, datapath: &'static str, tunnel: Option<SocketAddr>) -> (Node, Authority) {
    let authority = Authority::new();
    let (certificate, key) = authority.sign("frontend", &GATE.to_string());
    let frontend = format!(
        "listen = [\"udp/{GATE}:5060\", \"tls/{TLS}\"]\ntls = {{ certificate = {certificate:?}, key = {key:?} }}\n"
    );
    let tunnel = tunnel.map(|at| format!("tunnel = \"{at}\"\n")).unwrap_or_default();
    let gate = format!("local = [\"udp/5060\", \"tcp/5061\"]\n{tunnel}");
    let config = Config::new(datapath, &service("web", "\"tcp/80\", \"udp/5004\"", ""));
    (Node::up(lab, &config.frontend(&frontend).gate(&gate)), authority)
}

/// The hash of the certificate that the gate shows to agents.
fn hash(node: &Node) -> String {
    let log = node.program.log();
    let at = log.find("sha256:").expect("the gate says which certificate it has");
    log[at..].chars().take("sha256:".len() + 64).collect()
}

fn agent(lab: &Lab, certificates: &[&str], more: &[&str]) -> Program {
    let certificates: Vec<&str> = certificates.iter().flat_map(|one| ["--certificate", one]).collect();
    connect_to(lab, GATE, "web", &[&certificates[..], &["-L", "8080:80"], more].concat())
}

fn nft(lab: &Lab, words: &str) {
    let words: Vec<&str> = words.split_whitespace().collect();
    run_on(lab, "core", "nft", &words, PATIENCE).expect("nft");
}

/// Nothing of UDP gets from or to the client.
fn block_udp(lab: &Lab) {
    nft(lab, "add table inet block");
    nft(lab, "add chain inet block forward { type filter hook forward priority 0 ; }");
    nft(lab, "add rule inet block forward meta l4proto udp iifname to_client counter drop");
    nft(lab, "add rule inet block forward meta l4proto udp oifname to_client counter drop");
}

/// A service that sends as many bytes as it is asked for, or takes as many and says so.
fn serve(lab: &Lab) {
    let listener = lab.listen("service", SERVICE, 80);
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            thread::spawn(move || answer(stream));
        }
    });
}

fn answer(mut stream: TcpStream) -> Option<()> {
    let (mut how, mut len, mut piece) = ([0], [0; 8], vec![7; 65_536]);
    stream.read_exact(&mut how).ok()?;
    stream.read_exact(&mut len).ok()?;
    let mut left = u64::from_be_bytes(len);
    while left > 0 {
        let now = left.min(piece.len() as u64) as usize;
        left -= match how[0] {
            b'd' => stream.write(&piece[..now]).ok()? as u64,
            _ => stream.read(&mut piece[..now]).ok().filter(|len| *len > 0)? as u64,
        };
    }
    stream.write_all(b"!").ok()
}

/// A connection through the agent's forward, on which this is asked for.
fn ask(lab: &Lab, how: u8, len: u64) -> TcpStream {
    let mut stream = lab.connect("client", FORWARD).expect("the agent listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.write_all(&[&[how][..], &len.to_be_bytes()].concat()).expect("the agent reads");
    stream
}

fn transfers(lab: &Lab, len: u64, log: &dyn Fn() -> String) {
    let began = Instant::now();
    let mut got = Vec::new();
    ask(lab, b'd', len).read_to_end(&mut got).unwrap_or_else(|error| panic!("{error}\n{}", log()));
    assert_eq!(got.len() as u64, len + 1, "{}", log());
    let (down, began) = (began.elapsed(), Instant::now());
    let mut stream = ask(lab, b'u', len);
    let piece = [5; 65_536];
    let mut left = len;
    while left > 0 {
        let now = left.min(piece.len() as u64) as usize;
        left -= stream.write(&piece[..now]).unwrap_or_else(|error| panic!("{error}\n{}", log())) as u64;
    }
    stream.read_exact(&mut [0]).unwrap_or_else(|error| panic!("{error}\n{}", log()));
    let mbit_per_s = |took: Duration| len as f64 * 8.0 / took.as_secs_f64() / 1e6;
    println!("{len} bytes: {:.0} Mbit/s down, {:.0} Mbit/s up", mbit_per_s(down), mbit_per_s(began.elapsed()));
}

fn tunnels(node: &Node) -> u64 {
    let status = node.json(&["status"]);
    let tables = status["gate"]["tables"].as_array().expect("tables");
    tables.iter().find(|row| row["table"] == "tunnels").expect("a table")["used"].as_u64().expect("a number")
}

/// What a service manager is told, which is there from now on.
fn manager(lab: &Lab) -> UnixDatagram {
    // Programs find it by their environment, which those of one lab share with nobody.
    let place = lab.path("notify");
    let manager = UnixDatagram::bind(&place).expect("a socket");
    manager.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    manager
}

/// Waits until it is told this.
fn is_told(manager: &UnixDatagram, expected: &str) {
    let mut text = [0; 512];
    while let len = manager.recv(&mut text).expect("it is told")
        && String::from_utf8_lossy(&text[..len]).trim() != expected
    {}
}

fn carries(datapath: &'static str) {
    let lab = Lab::new();
    let (node, authority) = site(&lab, datapath, Some(TUNNEL));
    let manager = manager(&lab);
    serve(&lab);
    let echo = UdpEcho::start(&lab);
    block_udp(&lab);
    let (ca, gate, tunnel) = (authority.ca().display().to_string(), hash(&node), TUNNEL.to_string());
    let agent = agent(&lab, &[&ca, &gate], &["--tunnel", &tunnel, "-L", "5004:5004/udp"]);
    agent.says("no frontend answers over UDP, so this goes on over TLS");
    is_told(&manager, "STATUS=over TLS, SIP and data: no frontend answers over UDP");
    agent.says("ready");
    let log = || format!("{}\n{}", agent.log(), node.program.log());
    transfers(&lab, LEN, &log);
    let socket = program(&lab);
    assert_eq!(socket.peer_addr().ok(), Some(LOCAL));
    until("a datagram comes back", || exchange(&socket, "through the tunnel").then_some(()));
    assert!(echo.heard().iter().any(|heard| heard == b"through the tunnel"), "its MAC ends at the gate");
    assert_eq!(tunnels(&node), 2, "one for each grant");

    nft(&lab, "delete table inet block");
    agent.says("goes on over UDP");
    is_told(&manager, "STATUS=over UDP");
    until("a datagram comes back past the tunnel", || exchange(&socket, "past the tunnel").then_some(()));
    transfers(&lab, 100_000, &log);
    assert_eq!(agent.log().matches("goes on over TLS").count(), 1, "said once");
}

fn ends(datapath: &'static str) {
    let lab = Lab::new();
    let (node, authority) = site(&lab, datapath, Some(TUNNEL));
    serve(&lab);
    block_udp(&lab);
    let (ca, gate, tunnel) = (authority.ca().display().to_string(), hash(&node), TUNNEL.to_string());
    let agent = agent(&lab, &[&ca, &gate], &["--tunnel", &tunnel]);
    agent.says("ready");
    let mut stream = ask(&lab, b'd', u64::MAX);
    stream.read_exact(&mut vec![0; 100_000]).expect("it flows");
    node.cli(&["grant", "revoke", "--user", "alice"]).expect("grant revoke");
    let mut piece = vec![0; 65_536];
    until("it has ended", || stream.read(&mut piece).map_or(Some(()), |len| (len == 0).then_some(())));
    until("the agent signs in again", || {
        let mut stream = ask(&lab, b'd', 1_000);
        let mut got = Vec::new();
        (stream.read_to_end(&mut got).is_ok() && got.len() == 1_001).then_some(())
    });
    // Nobody may any more.
    node.cli(&["user", "disable", "alice"]).expect("user disable");
    agent.says("no longer permitted");
    until("no tunnel is left", || (tunnels(&node) == 0).then_some(()));
}

fn refuses(datapath: &'static str) {
    let lab = Lab::new();
    let (node, authority) = site(&lab, datapath, None);
    block_udp(&lab);
    let (ca, tunnel) = (authority.ca().display().to_string(), TUNNEL.to_string());
    let other = Authority::new();
    let others = other.ca().display().to_string();
    let wrong = format!("sha256:{}", "00".repeat(32));
    for (certificates, told) in [
        (&[][..], "give the certificates of the site (--certificate)"),
        (&[&others[..]], "over TLS neither"),
        (&[&wrong[..]], "over TLS neither"),
    ] {
        let mut agent = agent(&lab, certificates, &[]);
        assert!(!agent.finished(2 * PATIENCE), "{}", agent.log());
        assert!(agent.log().contains(told), "{told}: {}", agent.log());
    }
    // The gate takes no tunnels.
    for (more, told) in
        [(&[][..], "(--tunnel, `tunnel` in its [gate])"), (&["--tunnel", &tunnel][..], "cannot be used")]
    {
        let mut agent = agent(&lab, &[&ca], more);
        assert!(!agent.finished(PATIENCE), "{}", agent.log());
        assert!(agent.log().contains(told), "{told}: {}", agent.log());
    }
    assert!(node.grants().is_empty(), "what cannot be used is given back");
}

/// What a stranger at the tunnel's port gets for these bytes.
fn says(lab: &Lab, gate: &str, hello: &[u8]) -> Vec<u8> {
    let mut pinned = [0; 32];
    for (byte, at) in pinned.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(&gate["sha256:".len()..][at..at + 2], 16).expect("a hash");
    }
    let config =
        client_config(&Identity::generate("stranger").expect("a certificate"), pinned).expect("a configuration");
    let mut config = Arc::unwrap_or_clone(config);
    config.alpn_protocols.clear();
    let name = ServerName::try_from("gate.invalid").expect("a name");
    let connection = ClientConnection::new(Arc::new(config), name).expect("a connection");
    let socket = lab.connect("stranger", TUNNEL).expect("the gate listens");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut stream = StreamOwned::new(connection, socket);
    stream.write_all(hello).expect("the gate reads");
    let mut got = Vec::new();
    let _ = stream.read_to_end(&mut got);
    got
}

fn strangers(datapath: &'static str) {
    let lab = Lab::new();
    let (node, authority) = site(&lab, datapath, Some(TUNNEL));
    serve(&lab);
    block_udp(&lab);
    let (ca, gate, tunnel) = (authority.ca().display().to_string(), hash(&node), TUNNEL.to_string());
    // More than the table holds, and they say nothing; more come all the time.
    let silent: Vec<TcpStream> = (0..400).filter_map(|_| lab.connect("stranger", TUNNEL).ok()).collect();
    assert!(silent.len() > 300, "{}", silent.len());
    let first = agent(&lab, &[&ca, &gate], &["--tunnel", &tunnel]);
    first.says("ready");
    let log = || format!("{}\n{}", first.log(), node.program.log());
    let more: Vec<TcpStream> = (0..400).filter_map(|_| lab.connect("stranger", TUNNEL).ok()).collect();
    transfers(&lab, 1_000_000, &log);
    drop((silent, more));
    let id = node.grants().first().cloned().expect("a grant");
    let id: Vec<u8> = (0..32).step_by(2).map(|at| u8::from_str_radix(&id[at..at + 2], 16).expect("an id")).collect();
    assert!(says(&lab, &gate, &[&id[..], &[9; 20]].concat()).is_empty(), "a forged proof");
    assert!(says(&lab, &gate, &[3; 36]).is_empty(), "a proof of no grant");
    assert_eq!(tunnels(&node), 1, "nothing of it ended the agent's");
    transfers(&lab, 1_000_000, &log);
}
