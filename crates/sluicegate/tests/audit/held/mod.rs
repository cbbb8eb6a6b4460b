//! What held when it was attacked, and is to hold: the matrix of packets that have no permission, sent while a TCP and a
//! UDP pinhole of somebody are open. A recorder stands on the service's own link.

mod signalling;
mod wire;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use sluicegate_datapath::raw::{Options, Socket};
use sluicegate_wire::{ipv4, tcp};

use crate::support::{
    capture::Capture,
    lab::{CLIENT, CLIENT_V6, GATE, GATE_V6, Lab, PUBLIC, PUBLIC_V6, SERVICE, STRANGER, STRANGER_V6},
    let_run,
    node::{Config, Node, service},
    phone::{Phone, Wish},
    traffic::{Echo, Talk},
    until,
};
use wire::{Wire, changed, datagram, fragment, icmp, packet, packet_v6, segment, udp, with_options};

on_each_datapath!(alone held_strangers_and_misfits_reach_nothing_while_pinholes_are_open, &[], super::addresses);
on_each_datapath!(alone held_broken_and_foreign_packets_of_the_client_itself_reach_nothing, &[], super::misfits);
on_each_datapath!(alone held_guessed_segments_of_an_open_connection_reach_nothing, &[], super::guesses);
on_each_datapath!(alone held_ipv6_without_a_grant_reaches_nothing, &[], super::without_grant_v6);

/// What honest datagrams carry; all else at the service is an intruder.
const HONEST: &[u8] = b"honest";

/// Frames at the service that are neither honest nor talk between neighbours.
struct Recorder {
    seen: Arc<Mutex<Vec<Vec<u8>>>>,
    stop: Arc<AtomicBool>,
    _thread: JoinHandle<std::io::Result<()>>,
}

impl Recorder {
    fn start(lab: &Lab) -> Self {
        let (seen, stop) = (Arc::<Mutex<Vec<Vec<u8>>>>::default(), Arc::new(AtomicBool::new(false)));
        let (kept, flag) = (Arc::clone(&seen), Arc::clone(&stop));
        let (ready, opened) = std::sync::mpsc::channel();
        let thread = lab.host("service").thread("recorder", move || {
            let mut socket = Socket::open("eth0", &Options::default())?;
            let _ = ready.send(());
            while !flag.load(Ordering::Relaxed) {
                socket.wait(Duration::from_millis(10))?;
                socket.receive(usize::MAX, &mut |frame| {
                    if is_intruder(frame.bytes) {
                        kept.lock().expect("not poisoned").push(frame.bytes.to_vec());
                    }
                });
            }
            Ok(())
        });
        opened.recv_timeout(Duration::from_secs(10)).expect("the recorder starts");
        Self { seen, stop, _thread: thread.expect("a thread in the namespace") }
    }

    fn intruders(&self) -> Vec<Vec<u8>> {
        let_run(Duration::from_millis(50));
        self.seen.lock().expect("not poisoned").clone()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn is_intruder(frame: &[u8]) -> bool {
    let ethertype = frame.get(12..14).unwrap_or_default();
    let is_neighbourly = match ethertype {
        [0x08, 0x06] => true,
        // Neighbour discovery, and the kernel's own multicast.
        [0x86, 0xdd] => frame.get(22) == Some(&0xfe) || frame.get(38) == Some(&0xff) || frame.get(54) == Some(&135),
        _ => false,
    };
    !is_neighbourly && !frame.ends_with(HONEST)
}

/// A service with both kinds of ports, and one client with an open pinhole to each.
struct Site {
    lab: Lab,
    node: Node,
    _echo: Echo,
    /// The client's socket of its UDP pinhole, and where it sends to.
    socket: std::net::UdpSocket,
    udp: SocketAddrV4,
    tcp: SocketAddrV4,
    service: std::net::UdpSocket,
    recorder: Recorder,
    wire: Wire,
}

impl Site {
    fn new(datapath: &'static str) -> Self {
        let lab = Lab::new();
        let node = Node::up(&lab, &Config::new(datapath, &service("echo", "\"tcp/7000\", \"udp/7000\"", "")));
        let echo = Echo::start(lab.listen("service", SERVICE, 7000));
        let service = lab.udp("service", SERVICE, 7000);
        service.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
        let phone = Phone::new(&lab, "client", CLIENT, SocketAddr::new(GATE.into(), 5060), "alice");
        let open = |wish| match phone.call("echo", wish).gate {
            SocketAddr::V4(gate) => gate,
            SocketAddr::V6(gate) => panic!("{gate}"),
        };
        let (udp, tcp) = (open(Wish::Audio), open(Wish::Tcp(7000, 7000)));
        // The port that the phone's offer names.
        let socket = lab.udp("client", CLIENT, 6000);
        let wire = Wire::new(&lab);
        let recorder = Recorder::start(&lab);
        let site = Self { lab, node, _echo: echo, socket, udp, tcp, service, recorder, wire };
        site.passes();
        site
    }

    /// Waits until an honest datagram arrives: whatever was sent before it has been judged.
    fn passes(&self) {
        let mut bytes = [0; 64];
        until("an honest datagram arrives", || {
            self.socket.send_to(HONEST, self.udp).expect("a route");
            self.service.recv(&mut bytes).is_ok_and(|len| bytes[..len] == *HONEST).then_some(())
        });
    }

    fn client(&self) -> SocketAddrV4 {
        SocketAddrV4::new(CLIENT, 6000)
    }

    /// Nothing but what is honest has reached the service, and the gate has seen all that was sent.
    fn held(&self, what: &str) {
        self.passes();
        let intruders = self.recorder.intruders();
        assert!(intruders.is_empty(), "{what}: {} frames, the first {:02x?}", intruders.len(), intruders[0]);
        assert!(self.wire.sent > 0 && self.lab.sent("core", "to_gate") >= self.wire.sent, "the gate was sent them");
        assert!(self.node.grants().len() == 2, "{what}: the grants stand");
    }
}

fn at(address: Ipv4Addr, port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(address, port)
}

/// Addresses that may not be where a packet comes from.
const BOGONS: [[u8; 4]; 10] = [
    [203, 0, 113, 1],
    [10, 4, 0, 2],
    [10, 4, 0, 9],
    [127, 0, 0, 1],
    [224, 0, 0, 1],
    [0, 0, 0, 0],
    [255, 255, 255, 255],
    [240, 0, 0, 1],
    [8, 8, 8, 8],
    [169, 254, 1, 1],
];

fn addresses(datapath: &'static str) {
    let mut site = Site::new(datapath);
    let (udp_port, tcp_port, client) = (site.udp, site.tcp, site.client());
    let stranger = at(STRANGER, 6000);
    let own = [at(SERVICE, 7000), at(PUBLIC, 7000)];
    // A stranger at the open ports, at the service's own addresses, and at external ports.
    let spray = (20_000..32_768).step_by(7).map(|port| datagram(stranger, at(GATE, port), b"spray"));
    let mut packets: Vec<Vec<u8>> = spray.collect();
    for to in [udp_port, tcp_port].into_iter().chain(own) {
        packets.push(datagram(stranger, to, b"stranger"));
        packets.push(segment(stranger, to, tcp::Flags::SYN, (1, 0)));
        packets.push(segment(stranger, to, tcp::Flags::ACK.with(tcp::Flags::PSH), (1, 1)));
    }
    site.wire.packets(&packets);
    site.held("a stranger");
    // The client itself at ports that are closed to it, and at the service's own addresses.
    let mut packets = Vec::new();
    for to in [udp_port, tcp_port] {
        for port in [to.port() - 1, to.port() + 1, to.port() ^ 0x0fff, 0, 22, 7000] {
            packets.push(datagram(client, at(GATE, port), b"closed"));
            packets.push(segment(client, at(GATE, port), tcp::Flags::SYN, (1, 0)));
        }
    }
    packets.push(datagram(client, tcp_port, b"the other protocol"));
    packets.push(segment(client, udp_port, tcp::Flags::SYN, (1, 0)));
    for to in own {
        packets.push(datagram(client, to, b"inside"));
        packets.push(segment(client, to, tcp::Flags::SYN, (1, 0)));
    }
    // Forged sources, and LAND: from the open port to itself.
    for source in BOGONS.map(Ipv4Addr::from) {
        packets.push(datagram(at(source, 6000), udp_port, b"bogon"));
        packets.push(segment(at(source, 6000), tcp_port, tcp::Flags::SYN, (1, 0)));
    }
    packets.push(datagram(udp_port, udp_port, b"land"));
    packets.push(segment(tcp_port, tcp_port, tcp::Flags::SYN, (1, 0)));
    site.wire.packets(&packets);
    site.held("closed ports and forged sources");
    icmp_and_foreign_protocols(&mut site);
}

fn icmp_and_foreign_protocols(site: &mut Site) {
    let mut packets = Vec::new();
    for from in [STRANGER, CLIENT] {
        for to in [GATE, SERVICE, PUBLIC] {
            // Echo, its answer, redirect, source quench, timestamp, address mask.
            for (kind, code) in [(8, 0), (0, 0), (5, 1), (4, 0), (13, 0), (17, 0)] {
                packets.push(icmp(from, to, kind, code, b"\x00\x01\x00\x01ping"));
            }
            // An error about a flow that nobody has.
            let quoted = datagram(at(to, 7), at(from, 9), b"no flow");
            packets.push(icmp(from, to, 3, 1, &[&[0; 4][..], &quoted].concat()));
            // GRE, ESP, SCTP, IP in IP, 6in4, UDP-Lite, capabilities natively and in UDP.
            for protocol in [47, 50, 132, 4, 41, 136, 253] {
                packets.push(packet(from, to, protocol, &[0x5a; 64]));
            }
            packets.push(datagram(at(from, 7253), at(to, 7253), &[0x5a; 64]));
        }
    }
    site.wire.packets(&packets);
    site.held("ICMP and foreign protocols");
}

fn misfits(datapath: &'static str) {
    let mut site = Site::new(datapath);
    let (client, to) = (site.client(), site.udp);
    let whole = datagram(client, to, &[0x5a; 64]);
    let tcp = segment(client, site.tcp, tcp::Flags::SYN, (1, 0));
    let mut packets = Vec::new();
    for (number, from) in [STRANGER, CLIENT].into_iter().enumerate() {
        let ident = 100 * (1 + number as u16);
        // The client's first part with the whole UDP header may pass, as its datagrams may; what comes of it may not.
        let own = datagram(at(from, 6000), to, &[&[0x5a; 18], HONEST, &[0x5a; 40]].concat());
        let syn = segment(at(from, 6001), site.tcp, tcp::Flags::SYN, (1, 0));
        // A tiny first part and the rest, a later part alone, and parts that overlap.
        packets.push(fragment(&syn, 0..8, true, ident));
        packets.push(fragment(&syn, 8..20, false, ident));
        packets.push(fragment(&own, 8..72, false, ident + 1));
        packets.push(fragment(&own, 0..32, true, ident + 2));
        packets.push(fragment(&own, 24..72, false, ident + 2));
    }
    packets.push(fragment(&datagram(at(STRANGER, 6000), to, &[0x5a; 64]), 0..8, true, 300));
    site.wire.packets(&packets);
    site.held("fragments");
    // Options: record route, loose and strict source route, timestamp.
    let options: [&[u8]; 4] = [
        &[7, 7, 4, 0, 0, 0, 0, 0],
        &[131, 7, 4, 10, 4, 0, 2, 0],
        &[137, 7, 4, 10, 4, 0, 2, 0],
        &[68, 8, 5, 0, 0, 0, 0, 0],
    ];
    let mut packets: Vec<Vec<u8>> = options.iter().map(|options| with_options(&whole, options)).collect();
    // Lengths that lie, ports of zero, sums that are wrong. (A UDP length below the packet's is no lie: RFC 9868.)
    let payload = udp(client, to, &[0x5a; 64]);
    for length in [0, 7, 73, 4_000_u16] {
        let mut lying = payload.clone();
        lying[4..6].copy_from_slice(&length.to_be_bytes());
        packets.push(packet(CLIENT, GATE, 17, &lying));
    }
    packets.push(datagram(at(CLIENT, 0), to, b"from port 0"));
    packets.push(datagram(client, at(GATE, 0), b"to port 0"));
    packets.push(changed(whole.clone(), |header| header.set_total_len(4_000)));
    packets.push(changed(whole.clone(), |header| header.set_total_len(19)));
    packets.push(changed(whole.clone(), |header| header.set_version_and_header_len(16)));
    let mut wrong_sum = whole.clone();
    wrong_sum[10] ^= 0xff;
    packets.push(wrong_sum);
    packets.push(whole[..ipv4::HEADER_LEN + 4].to_vec());
    packets.push(tcp[..ipv4::HEADER_LEN + 12].to_vec());
    site.wire.packets(&packets);
    site.held("options and lies");
    // What is right from the IP header on, in frames that are not for the gate.
    let tagged: [&[u8]; 4] = [
        &[0x81, 0x00, 0x00, 0x05, 0x08, 0x00],
        &[0x88, 0xa8, 0x00, 0x05, 0x81, 0x00, 0x00, 0x06, 0x08, 0x00],
        &[0x88, 0xb5],
        &[0x88, 0x47, 0x00, 0x01, 0x01, 0x40],
    ];
    for header in tagged {
        site.wire.typed(header, &whole);
    }
    for address in [[0xff; 6], [0x01, 0, 0x5e, 0, 0, 1], [0x02, 0xee, 0, 0, 0, 1]] {
        site.wire.frame(address, &[0x08, 0x00], &whole);
    }
    site.held("frames of another kind or for somebody else");
}

fn guesses(datapath: &'static str) {
    let mut site = Site::new(datapath);
    let own = Capture::start(&site.lab, ("core", "to_client"), |seen| seen.from == CLIENT && seen.protocol == 6);
    let stream = site.lab.connect("client", SocketAddr::V4(site.tcp)).expect("a connection through the gate");
    let began = Instant::now();
    let talk = Talk::start(stream.try_clone().expect("a second handle"));
    until("records come back", || (talk.arrivals.since(began) > 3).then_some(()));
    drop(talk);
    until("the connection is quiet", || {
        let count = own.count();
        let_run(Duration::from_millis(250));
        (own.count() == count).then_some(())
    });
    let last = own.seen().pop().expect("the connection was seen");
    let (IpAddr::V4(from), IpAddr::V4(_)) = (last.from, last.to) else { panic!("IPv4") };
    let sent = tcp::Packet::new_checked(&last.bytes[ipv4::HEADER_LEN..]).expect("a segment");
    let (client, seq, ack) = (at(from, last.ports.0), sent.seq(), sent.ack());
    // The connection's own segments are honest, and over.
    let recorder = Recorder::start(&site.lab);
    let (none, ack_flag, fin, rst) = (tcp::Flags(0), tcp::Flags::ACK, tcp::Flags::FIN, tcp::Flags::RST);
    let (syn, psh) = (tcp::Flags::SYN, tcp::Flags::PSH);
    let kinds = [ack_flag, ack_flag.with(psh), ack_flag.with(fin), ack_flag.with(rst), rst, ack_flag.with(syn)];
    let far = |index: u32| seq.wrapping_add((1 << 24) + index.wrapping_mul(1_048_573) % (u32::MAX - (1 << 25)));
    let mut packets: Vec<Vec<u8>> = (0..2_000)
        .map(|index| segment(client, site.tcp, kinds[index as usize % kinds.len()], (far(index), ack)))
        .collect();
    // Flags that no connection has, with the numbers that it has.
    for flags in [none, syn.with(fin), syn.with(rst), fin, psh, tcp::Flags(0xff)] {
        packets.push(segment(client, site.tcp, flags, (seq, ack)));
    }
    site.wire.packets(&packets);
    site.passes();
    let intruders = recorder.intruders();
    assert!(intruders.is_empty(), "{} segments, the first {:02x?}", intruders.len(), intruders[0]);
    // A host that crashed comes back with a SYN and any number, so a few of those pass; the service challenges them, and
    // they change nothing.
    let syns: Vec<Vec<u8>> = (0..500).map(|index| segment(client, site.tcp, syn, (far(index), 0))).collect();
    site.wire.packets(&syns);
    site.passes();
    let passed = recorder.intruders();
    assert!(passed.len() <= 10 && passed.iter().all(|frame| frame.get(47) == Some(&syn.0)), "{}", passed.len());
    let began = Instant::now();
    let talk = Talk::start(stream);
    until("the connection goes on", || {
        assert_eq!(talk.broken(), None);
        (talk.arrivals.since(began) > 3).then_some(())
    });
}

fn without_grant_v6(datapath: &'static str) {
    let mut site = Site::new(datapath);
    let bytes = [0x5a; 64];
    let fragment = |rest: [u8; 2]| [&[17, 0][..], &rest, &[0, 0, 0, 1], &bytes].concat();
    let mut packets = Vec::new();
    for from in [STRANGER_V6, CLIENT_V6] {
        for to in [PUBLIC_V6, GATE_V6, "2001:db8:4::2".parse().expect("an address")] {
            // UDP, TCP, echo, another IPv6 packet, capabilities, no next header.
            for next in [17, 6, 128, 41, 253, 59] {
                packets.push(packet_v6(from, to, next, &bytes));
            }
            // Hop-by-hop and destination options, routing header 0, then UDP.
            for next in [0, 60] {
                packets.push(packet_v6(from, to, next, &[&[17, 0, 1, 4, 0, 0, 0, 0][..], &bytes].concat()));
            }
            packets.push(packet_v6(from, to, 43, &[&[17, 2, 0, 1, 0, 0, 0, 0][..], &[0; 16], &bytes].concat()));
            // A first part, a later one, and one that is whole.
            for rest in [[0, 1], [0, 8], [0, 0]] {
                packets.push(packet_v6(from, to, 44, &fragment(rest)));
            }
        }
    }
    site.wire.packets(&packets);
    site.held("IPv6 without a grant");
}
