//! The tunnels of the book's page about deployment, command by command as they are printed there.

use std::{
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::PathBuf,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
    time::Duration,
};

use sluicegate_site::topology::Host;

use crate::support::{
    BINARY, PATIENCE,
    agent::connect_to,
    lab::{Lab, host},
    node::Node,
    program::{Done, Program, run_on},
    until,
};

on_packet!(alone a_tunnel_of_wireguard_carries_a_service_through_a_flood, &["wg-quick", "wireguard-go", "ip"], wireguard);
on_packet!(alone a_tunnel_without_wireguard_needs_the_line_that_check_asks_for, &["ip"], vxlan);
on_packet!(alone a_tunnel_of_gre_needs_the_line_that_check_asks_for, &["ip"], gre);

const PAGE: &str = "docs/src/operating/deployment.md";
const FILE: &str = "site.toml";
/// The addresses of the page.
const RENTED: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 4, 0, 2);
const STRANGER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 66);
/// What alice fetches, more than one packet after the other.
const FETCHED: usize = 400_000;
/// So many packets of a stranger arrive at the tunnel's port meanwhile, and no more than so many are tried.
const FLOOD_MIN: u32 = 20_000;
const FLOOD_MAX: usize = 2_000_000;

/// A block of the page: what it is written in, for whom, and its text.
struct Block {
    language: String,
    hosts: Vec<String>,
    text: String,
}

/// The blocks between this heading and the next one.
fn blocks(heading: &str) -> Vec<Block> {
    let page = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(PAGE);
    let page = fs::read_to_string(page).expect("the page");
    let (_, section) = page.split_once(&format!("{heading}\n")).expect("the page has this heading");
    let section = section.split("\n#").next().expect("a section");
    let mut found = Vec::new();
    for (index, part) in section.split("\n```").enumerate() {
        let (tag, text) = part.split_once('\n').unwrap_or((part, ""));
        let mut words = tag.split(' ').map(str::to_owned);
        // Every other part is between two fences.
        if let (1, Some(language)) = (index % 2, words.next()) {
            found.push(Block { language, hosts: words.collect(), text: format!("{text}\n") });
        }
    }
    assert!(found.iter().any(|block| block.language == "sh"), "{PAGE}: no commands under {heading:?}");
    found
}

/// What the blocks say in one language to one host, or to both.
fn said(blocks: &[Block], language: &str, hosts: &[&str]) -> String {
    let wanted = |block: &&Block| block.language == language && block.hosts == hosts;
    blocks.iter().filter(wanted).map(|block| block.text.as_str()).collect()
}

/// ```text
/// client ───┐
/// stranger ─┼─ core ── eth0 [rented]
/// site ─────┘
/// ```
fn lab() -> Lab {
    let host = |name: &str, router: &str| host(name, &[("0.0.0.0/0", router)]);
    let hosts = vec![
        Host::new("core").forwarding(),
        host("rented", "203.0.113.254"),
        host("site", "198.51.100.254"),
        host("client", "192.0.2.1"),
        host("stranger", "192.0.2.65"),
    ];
    let wires = [
        ("core:to_rented 203.0.113.254/24", "rented:eth0 203.0.113.1/24"),
        ("core:to_site 198.51.100.254/24", "site:eth0 198.51.100.7/24"),
        ("core:to_client 192.0.2.1/26", "client:eth0 192.0.2.2/26"),
        ("core:to_stranger 192.0.2.65/26", "stranger:eth0 192.0.2.66/26"),
    ];
    Lab::of(hosts, &wires)
}

/// Starts a shell on a host, with directories of its own where WireGuard keeps keys and sockets. What it starts ends with it.
fn shell(lab: &Lab, host: &str, commands: &str) -> Program {
    let mut mounts = String::new();
    for (own, place) in [("keys", "/etc/wireguard"), ("sockets", "/run/wireguard")] {
        let own = lab.path(&format!("{host}.{own}"));
        fs::create_dir_all(&own).expect("the lab's directory is writable");
        mounts += &format!("mkdir -p {place}\nmount --bind '{}' {place}\n", own.display());
    }
    let script = format!("set -eu\n{mounts}{commands}echo done as printed\nexec sleep 600\n");
    Program::start(
        lab,
        host,
        &format!("shell-{host}"),
        "unshare",
        &["-m", "-p", "-f", "--kill-child", "sh", "-c", &script],
    )
}

fn run(lab: &Lab, host: &str, commands: &str) -> Program {
    let shell = shell(lab, host, commands);
    shell.says("done as printed");
    shell
}

/// The gate as the page configures it, with alice.
fn gate(lab: &Lab, configuration: &str) -> Node {
    let password = crate::support::node::password_file(lab);
    let node = Node::start(lab, "rented", "up", &configure(lab, configuration));
    node.ready();
    node.cli(&["user", "add", "alice", "--password-file", &password.display().to_string()]).expect("user add");
    node
}

fn configure(lab: &Lab, configuration: &str) -> PathBuf {
    let state = lab.path("state");
    lab.write(FILE, &format!("[node]\nstate = \"{}\"\n\n{configuration}", state.display()))
}

fn check(lab: &Lab) -> Done {
    let file = lab.path(FILE).display().to_string();
    run_on(lab, "rented", BINARY, &["check", &file], PATIENCE)
}

/// A service of the site that sends a page to whoever asks.
fn serve(lab: &Lab) {
    let listener: TcpListener = lab.listen("site", SERVICE, 80);
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut asked = [0; 4];
            let _ = stream.read_exact(&mut asked).and_then(|()| stream.write_all(&vec![7; FETCHED]));
        }
    });
}

/// Fetches the page through alice's forward.
fn fetch(lab: &Lab) -> Result<usize, std::io::Error> {
    let mut stream = lab.connect("client", SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(b"page")?;
    let mut page = Vec::new();
    stream.read_to_end(&mut page)?;
    Ok(page.len())
}

fn use_service(lab: &Lab) -> Program {
    let agent = connect_to(lab, RENTED, "web", &["-L", "8080:80"]);
    agent.says("ready");
    assert_eq!(fetch(lab).expect("the service is reached through the tunnel"), FETCHED);
    agent
}

fn wireguard(_: &'static str) {
    let lab = lab();
    let page = blocks("## A rented machine upstream, and a tunnel");
    let keys = said(&page, "sh", &["rented", "site"]);
    for host in ["rented", "site"] {
        drop(run(&lab, host, &keys));
    }
    for (from, to) in [("rented", "site"), ("site", "rented")] {
        let key = lab.path(&format!("{from}.keys")).join("wg0.pub");
        fs::copy(key, lab.path(&format!("{to}.keys")).join("peer.pub")).expect("a key");
    }
    let _tunnel = ["rented", "site"].map(|host| run(&lab, host, &said(&page, "sh", &[host])));
    let configuration = said(&page, "toml", &["rented"]);
    assert!(!configuration.contains("51820") && !configuration.contains("4789"), "`local` names the tunnel");
    let node = gate(&lab, &configuration);
    check(&lab).expect("nothing is wrong with it");
    serve(&lab);
    let _agent = use_service(&lab);
    // A flood at the tunnel's port costs the tunnel nothing.
    let stranger = lab.udp("stranger", STRANGER, 51_820);
    let (sent, ended) = (AtomicU32::new(0), AtomicBool::new(false));
    let before = node.dropped("no_pinhole");
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..FLOOD_MAX {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let left = stranger.send_to(&[4; 148], (RENTED, 51_820)).is_ok();
                // Faster than the kernel's queue between the lab's hosts takes, it would lose what anybody sends.
                if sent.fetch_add(left.into(), Ordering::Relaxed) % 20 == 19 {
                    thread::sleep(Duration::from_millis(1));
                }
            }
        });
        while sent.load(Ordering::Relaxed) < FLOOD_MIN {
            assert_eq!(fetch(&lab).expect("the service is reached in the flood"), FETCHED);
        }
        ended.store(true, Ordering::Relaxed);
    });
    until("the flood is dropped", || (node.dropped("no_pinhole") > before + FLOOD_MIN as u64 / 2).then_some(()));
}

fn vxlan(_: &'static str) {
    listed(&lab(), "### Without WireGuard, on a network of your own", "udp/4789");
}

fn gre(_: &'static str) {
    let lab = lab();
    let probe =
        run_on(&lab, "site", "ip", &["link", "add", "probe", "type", "gretap", "remote", "203.0.113.1"], PATIENCE);
    if !probe.status.success() && probe.err.contains("Unknown device type") {
        // Not a matter of what is installed: CI says it at its end.
        let _ = std::io::stderr().write_all(b"not played here: a tunnel of GRE, which this kernel lacks\n");
        return;
    }
    run_on(&lab, "site", "ip", &["link", "delete", "probe"], PATIENCE);
    listed(&lab, "### With GRE", "gre");
}

/// A tunnel whose packets are nobody's answers, and which `local` has to list as `entry`.
fn listed(lab: &Lab, heading: &str, entry: &str) {
    let page = blocks(heading);
    let _tunnel = ["rented", "site"].map(|host| run(lab, host, &said(&page, "sh", &[host])));
    let base = said(&blocks("## A rented machine upstream, and a tunnel"), "toml", &["rented"]);
    let line = said(&page, "toml", &["rented"]);
    let lists_it: Vec<&str> =
        base.lines().map(|old| if old.starts_with("local =") { line.trim() } else { old }).collect();
    // Without the line: refused, with the line to write.
    configure(lab, &base);
    let refused = check(lab);
    let told = format!("{}{}", refused.out, refused.err);
    assert!(!refused.status.success() && told.contains("\"vx0\" is a tunnel to 198.51.100.7"), "{told}");
    assert!(told.contains(&format!("add \"{entry}\" to local")), "{told}");
    let _node = gate(lab, &lists_it.join("\n"));
    serve(lab);
    let _agent = use_service(lab);
}
