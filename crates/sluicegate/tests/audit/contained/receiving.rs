//! What the gate's own host receives.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use sluicegate_datapath::raw;

use crate::support::{
    lab::{CLIENT, FRONTEND, GATE, Lab, SERVICE, STRANGER},
    let_run,
    node::{Config, Node, join, service},
    phone::{Phone, Wish},
    program::run_on,
    until,
};

on_each_datapath!(alone security_16_a_forged_peer_reaches_no_port_of_the_gates_host, &[], super::forged_peer);
on_each_datapath!(security_25_a_neighbour_teaches_the_gate_no_route, &["ip"], super::advertised);
on_each_datapath!(alone fragments_reach_the_gates_host_only_behind_a_listed_first_one, &[], super::fragments);
on_each_datapath!(alone security_29_a_flood_of_one_local_entry_does_not_touch_another, &[], super::entries);

/// Forged packets, in turn to every port.
const FORGED: u32 = 100_000;
const FEED_PORT: u16 = 7443;
/// Frames of one send.
const PART: usize = 500;

/// A link on which anything can be sent: from the router in front of the gate.
struct Forger {
    socket: raw::Socket,
    link: [u8; 14],
}

impl Forger {
    fn new(lab: &Lab) -> Self {
        let socket = lab.host("core").run_in(|| raw::Socket::open("to_gate", &raw::Options::send_only()));
        let socket = socket.and_then(|socket| socket).expect("a raw socket");
        let mut link = [0; 14];
        link[..6].copy_from_slice(&lab.mac("gate", "outside"));
        link[6..12].copy_from_slice(&lab.mac("core", "to_gate"));
        link[12..].copy_from_slice(&[0x08, 0x00]);
        Self { socket, link }
    }

    /// An IPv4 packet with the first bytes of its transport: enough for who judges by ports.
    fn packet(&self, (from, from_port): (Ipv4Addr, u16), protocol: u8, port: u16) -> Vec<u8> {
        let mut header = [0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, protocol, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        header[12..16].copy_from_slice(&from.octets());
        header[16..].copy_from_slice(&GATE.octets());
        let sum = !folded(&header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        let mut transport = [0; 20];
        transport[..2].copy_from_slice(&from_port.to_be_bytes());
        transport[2..4].copy_from_slice(&port.to_be_bytes());
        if protocol == 17 {
            transport[4..6].copy_from_slice(&20u16.to_be_bytes());
        } else {
            // A first segment, with room for data.
            transport[12..16].copy_from_slice(&[0x50, 0x02, 0x20, 0]);
            let mut pseudo = [from.octets(), GATE.octets()].concat();
            pseudo.extend([0, protocol, 0, 20]);
            pseudo.extend(transport);
            let sum = !folded(&pseudo);
            transport[16..18].copy_from_slice(&sum.to_be_bytes());
        }
        [&self.link[..], &header, &transport].concat()
    }

    fn send(&mut self, frames: &[Vec<u8>]) {
        for part in frames.chunks(PART) {
            self.socket.send(part).expect("the link is up");
            let_run(Duration::from_millis(2));
        }
    }
}

/// The ones' complement sum.
fn folded(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).expect("folded")
}

/// A file of `/proc/net` as the gate's host sees it.
fn proc_net(lab: &Lab, name: &str) -> String {
    let path = format!("/proc/thread-self/net/{name}");
    lab.host("gate").run_in(|| std::fs::read_to_string(path)).and_then(|text| text).expect("a file")
}

/// A counter of the gate's kernel.
fn counter(lab: &Lab, protocol: &str, name: &str) -> u64 {
    let text = proc_net(lab, "snmp");
    let mut lines = text.lines().filter(|line| line.starts_with(&format!("{protocol}: ")));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let at = names.split(' ').position(|known| known == name).expect("a counter");
    values.split(' ').nth(at).and_then(|value| value.parse().ok()).expect("a number")
}

/// The gate's end of its connection to the feed.
fn own_port(lab: &Lab) -> u16 {
    let table = proc_net(lab, "tcp");
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let feed = rows.filter(|row| row.len() > 3 && row[2].ends_with(&format!(":{FEED_PORT:04X}")) && row[3] == "01");
    let local = feed.map(|row| row[1].to_owned()).next().expect("a connection to the feed");
    u16::from_str_radix(local.rsplit(':').next().expect("a port"), 16).expect("a port")
}

fn forged_peer(datapath: &'static str) {
    let lab = Lab::new();
    let config = Config::new(datapath, &service("echo", "\"udp/7000-7009\"", "")).gate("local = []\n");
    let frontend = Node::start(&lab, "frontend", "frontend", &config.write_frontend(&lab, FRONTEND.into()));
    frontend.ready();
    frontend.add_people(&lab);
    let file = config.write_gate(&lab);
    join(&lab, &frontend, &file);
    let gate = Node::start(&lab, "gate", "gate", &file);
    gate.ready();
    let feed = own_port(&lab);
    let mut forger = Forger::new(&lab);
    let counts = || {
        let udp = counter(&lab, "Udp", "InDatagrams") + counter(&lab, "Udp", "NoPorts");
        (udp, counter(&lab, "Tcp", "OutRsts"), counter(&lab, "Ip", "InReceives"))
    };
    let before = counts();
    let ports = (0..=u16::MAX).cycle().take(FORGED as usize + 2).enumerate();
    let frames: Vec<Vec<u8>> = ports
        .filter(|(_, port)| *port != feed)
        .map(|(number, port)| {
            // The second time round the other protocol, and at the feed's own port never its own.
            let protocol = if number <= usize::from(u16::MAX) { 17 } else { 6 };
            forger.packet((FRONTEND, FEED_PORT), protocol, port)
        })
        .collect();
    assert!(frames.len() >= FORGED as usize);
    forger.send(&frames);
    forger.send(&[forger.packet((FRONTEND, FEED_PORT), 17, feed)]);
    let_run(Duration::from_millis(200));
    let after = counts();
    assert_eq!((after.0, after.1), (before.0, before.1), "forged packets in the host's kernel (UDP, resets)");
    let received = after.2 - before.2;
    assert!(received < 500, "the feed's own packets alone: {received}");
    let status = gate.json(&["status"]);
    assert_eq!(status["gate"]["feeds"][0]["state"], "connected");
    Phone::new(&lab, "client", CLIENT, SocketAddr::from((FRONTEND, 5060)), "alice").call("echo", Wish::Audio);
}

fn advertised(datapath: &'static str) {
    let lab = Lab::new();
    let _node = Node::up(&lab, &Config::new(datapath, &service("echo", "\"udp/7000-7009\"", "")));
    // Somebody switches it on again: what holds then is the filter.
    for setting in ["accept_ra", "accept_redirects", "accept_ra_defrtr"] {
        lab.host("gate").set(&format!("net/ipv6/conf/outside/{setting}"), "1").expect("a setting");
    }
    let mut forger = Forger::new(&lab);
    let (router, all): (Ipv6Addr, Ipv6Addr) = ("fe80::bad".parse().expect("IPv6"), "ff02::1".parse().expect("IPv6"));
    // Router advertisement: hop limit 64, lifetime 1,800 s, high preference.
    let mut message = [134, 0, 0, 0, 64, 0x08, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut pseudo = [router.octets(), all.octets()].concat();
    pseudo.extend([0, 0, 0, 16, 0, 0, 0, 58]);
    pseudo.extend(message);
    let sum = !folded(&pseudo);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut frame = vec![0x33, 0x33, 0, 0, 0, 1];
    frame.extend(lab.mac("core", "to_gate"));
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 16, 58, 255]);
    frame.extend(router.octets());
    frame.extend(all.octets());
    frame.extend(message);
    forger.send(&vec![frame; 5]);
    let_run(Duration::from_millis(500));
    let routes = run_on(&lab, "gate", "ip", &["-6", "route"], Duration::from_secs(5)).expect("ip -6 route");
    assert!(!routes.contains("fe80::bad"), "{routes}");
}

fn entries(datapath: &'static str) {
    let lab = Lab::new();
    let local = "local = [\"udp/5060\", { port = \"tcp/2222\", side = \"outside\", rate_pps = 1000 }]\n\
                 local_rate_pps = 300\n";
    let node = Node::up(&lab, &Config::new(datapath, &service("echo", "\"udp/7000-7009\"", "")).gate(local));
    let _ssh = lab.listen("gate", Ipv4Addr::UNSPECIFIED, 2222);
    let mut forger = Forger::new(&lab);
    let flood = vec![forger.packet((STRANGER, 4000), 17, 5060); PART];
    for _ in 0..10 {
        forger.send(&flood);
        let connected = lab.connect("client", SocketAddr::from((GATE, 2222)));
        assert!(connected.is_ok(), "the administrator gets in beside a SIP flood: {connected:?}");
    }
    until("the flood was limited", || (node.dropped("local_rate") > 1000).then_some(()));
    // The entry is for one side, and the inside's address is not for the outside.
    let reached = |host: &str, to: Ipv4Addr| {
        let to = SocketAddr::new(IpAddr::V4(to), 2222);
        let dial = || std::net::TcpStream::connect_timeout(&to, Duration::from_millis(700)).is_ok();
        lab.host(host).run_in(dial).expect("a namespace")
    };
    let inside = Ipv4Addr::new(10, 4, 0, 1);
    assert!(!reached("service", inside) && !reached("service", GATE), "{SERVICE} reaches an entry of the outside");
    run_on(&lab, "core", "ip", &["route", "add", "10.4.0.0/24", "via", "203.0.113.1"], Duration::from_secs(5))
        .expect("a route");
    assert!(!reached("client", inside), "an inside address, from outside");
}

fn fragments(datapath: &'static str) {
    let lab = Lab::new();
    let config = Config::new(datapath, &service("echo", "\"udp/7000-7009\"", "")).gate("local = [\"udp/5060\"]\n");
    let node = Node::up(&lab, &config);
    let mut forger = Forger::new(&lab);
    let reached = || counter(&lab, "Ip", "ReasmReqds");
    let part = |port: u16, id: u8, more_offset: [u8; 2]| {
        let mut frame = forger.packet((STRANGER, 4000), 17, port);
        // 16 bytes of payload, and a header whose sum is right.
        frame.truncate(14 + 20 + 16);
        (frame[16], frame[17], frame[19]) = (0, 36, id);
        frame[20..22].copy_from_slice(&more_offset);
        frame[24..26].fill(0);
        let sum = !folded(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        frame
    };
    let before = reached();
    let refused: Vec<Vec<u8>> = (0..100)
        .flat_map(|id| [part(5060, id, [0, 2]), part(5061, 100 + id, [0x20, 0]), part(5061, 100 + id, [0, 2])])
        .collect();
    let listed = [part(5060, 250, [0x20, 0]), part(5060, 250, [0, 2])];
    let refusals = node.dropped("no_pinhole");
    forger.send(&refused);
    until("what follows nothing is dropped", || (node.dropped("no_pinhole") >= refusals + 300).then_some(()));
    assert_eq!(reached(), before, "fragments in the host's kernel");
    forger.send(&listed);
    until("a listed datagram arrives whole", || (reached() == before + 2).then_some(()));
    let table = node.json(&["status"])["gate"]["tables"].clone();
    let mut rows = table.as_array().expect("tables").iter();
    let row = rows.find(|row| row["table"] == "local_fragmented").expect("the table of such datagrams");
    assert!(row["used"].as_u64() <= row["max"].as_u64(), "{row}");
    for setting in ["ipv4/ipfrag_time", "ipv6/ip6frag_time"] {
        let path = format!("/proc/sys/net/{setting}");
        let value = lab.host("gate").run_in(|| std::fs::read_to_string(path)).and_then(|text| text).expect("a setting");
        assert_eq!(value.trim(), "1", "{setting}");
    }
}
