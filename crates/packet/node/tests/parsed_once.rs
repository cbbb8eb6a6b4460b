//! A node parses each packet once, and once more where a capability header was taken off, or out of what an error quotes:
//! counted over every role and many kinds of packet. All in one test, as the counter is one for all threads.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::atomic::Ordering::Relaxed,
    time::Duration,
};

use sluicegate_capability::{
    host::{self, ClientIds, ClientPolicy, Host, ServerConfig, ServerPolicy},
    router::{Router, RouterConfig},
    secrets::Seed,
};
use sluicegate_grant::{ANY_PORTS, DataMode, Grant, GrantId};
use sluicegate_nat::{Config, PinholeSpec, Service, ServiceMode, Translator};
use sluicegate_node::{
    EdgePipeline, Fairness, GatePipeline, Gauge, HostPolicy, Labels, NextHop, Node, Pipeline, RouterPipeline,
};
use sluicegate_wire::{
    FrameBuf, HEADROOM, Instant, IpProtocol, Packet, Port, Reason, UnixTime,
    capability::{ClientId, Limits, shim::Carriage},
    ethernet::{self, EtherType},
    icmpv4, icmpv6,
    ip::{FragmentOffset, PARSES},
    ipv4, ipv6, tcp, udp,
};

const CLIENT: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
const CLIENT6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 7, 0, 0, 0, 0, 1);
/// Private and routed, private and translated, open.
const FILTERED: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 80);
const FILTERED6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 8, 0, 0, 0, 0, 1);
const HIDDEN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 10);
const OPEN: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 90);
const GATE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
const CLIENT_ID: u32 = 77;
const PORT: u16 = 5_000;
const UNIX: UnixTime = UnixTime(1_800_000_000);
const LINKS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];

/// Everybody is the next hop.
struct Anywhere;

impl NextHop for Anywhere {
    fn link_address(&mut self, _: Port, _: IpAddr) -> Result<[u8; 6], Reason> {
        Ok([2, 0, 0, 0, 0, 9])
    }

    fn own_link_address(&self, port: Port) -> [u8; 6] {
        LINKS[usize::from(port.0)]
    }

    fn gauges(&self) -> Vec<Gauge> {
        Vec::new()
    }
}

fn a_router() -> Router {
    Router::new(
        RouterConfig {
            lines_max: 1_024,
            lines6_max: 1_024,
            revocations_max: 16,
            boundary: [true, true],
            least: Limits::LEAST,
            seed: Seed([1; 32]),
            tag_key: [2; 16],
            first_seconds: UNIX.0,
            started_at: Instant::from_secs(100),
        },
        [3; 16],
    )
}

fn node(pipeline: Pipeline) -> Node<Anywhere> {
    let config =
        Config { gate_address: GATE, flows_max: 4_096, flows_v6_max: 512, pinholes_max: 64, ..Config::default() };
    Node::new(Translator::new(config, [4; 16], 4), pipeline, [None, None], Anywhere)
}

fn labels() -> Labels {
    Labels::new(Fairness::default())
}

fn grant(number: u32, client: IpAddr, protocol: u8) -> Grant {
    let any = if client.is_ipv4() { IpAddr::from(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
    Grant {
        flags: 0,
        least_mode: DataMode::Pinhole,
        protocol,
        id: GrantId::of_call([9; 12], number),
        issuer: [1; 8],
        epoch: 0,
        not_before: UNIX,
        not_after: UNIX.plus_secs(3_600),
        bytes: 100_000_000,
        client_id: CLIENT_ID,
        flows: 0,
        rate_100kbps: 0,
        client_address: client,
        client_ports: ANY_PORTS,
        gate_address: any,
        gate_ports: (0, 0),
        holder: [0; 32],
        user_pseudonym: u64::from(number).to_be_bytes(),
    }
}

/// A gate with all kinds of services, which the client may use by UDP, TCP and ping; and its external UDP port.
fn a_gate() -> (Node<Anywhere>, u16) {
    let host = host::Config { answers_only: true, ..host::Config::default() };
    let gate = GatePipeline::new(a_router(), Host::new(host, [5; 32]), labels(), false);
    let mut node = node(Pipeline::Gate(Box::new(gate)));
    let service = |id, mode, address: IpAddr, open| Service { id, mode, address, outbound_all: true, open };
    let services = [
        service(0, ServiceMode::Filter, FILTERED.into(), false),
        service(1, ServiceMode::Nat, HIDDEN.into(), false),
        service(2, ServiceMode::Filter, OPEN.into(), true),
        service(3, ServiceMode::Filter, FILTERED6.into(), false),
    ];
    node.translator.set_services(&services.map(|one| Service { outbound_all: !one.open, ..one })).unwrap();
    let mut external = 0;
    let mut number = 0;
    for (service, target, client) in [
        (0, IpAddr::from(FILTERED), IpAddr::from(CLIENT)),
        (1, HIDDEN.into(), CLIENT.into()),
        (3, FILTERED6.into(), CLIENT6.into()),
    ] {
        for protocol in [17, 6, if client.is_ipv4() { 1 } else { 58 }] {
            number += 1;
            let grant = grant(number, client, protocol);
            let spec = PinholeSpec {
                grant: grant.clone(),
                service,
                target,
                target_ports: (PORT, PORT),
                filter: service != 1,
                keys: None,
            };
            let opened = node.translator.install(Instant::from_secs(100), UNIX, spec).unwrap();
            node.pipeline.opened(&Grant { gate_address: opened.address, ..grant });
            if service == 1 && protocol == 17 {
                external = opened.ports.0;
            }
        }
    }
    (node, external)
}

fn edge(carriage: Carriage) -> Node<Anywhere> {
    let host = Host::new(host::Config { carriage, ..host::Config::default() }, [6; 32]);
    let policy = ClientPolicy::new(ClientIds::Fixed(ClientId(CLIENT_ID)), Limits::new(100, 10).unwrap());
    node(Pipeline::Edge(Box::new(EdgePipeline::new(host, HostPolicy::Client(policy)))))
}

fn server_edge() -> Node<Anywhere> {
    let policy = ServerPolicy::new(ServerConfig::default(), [7; 16]);
    let host = Host::new(host::Config::default(), [8; 32]);
    node(Pipeline::Edge(Box::new(EdgePipeline::new(host, HostPolicy::Server(Box::new(policy))))))
}

fn ip(src: IpAddr, dst: IpAddr, protocol: IpProtocol, payload: &[u8]) -> Vec<u8> {
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let repr = ipv4::Repr { dont_fragment: false, ..ipv4::Repr::new(src, dst, protocol, payload.len() as u16) };
            let mut packet = [vec![0; repr.buffer_len()], payload.to_vec()].concat();
            repr.emit(&mut ipv4::Packet::new_unchecked(&mut packet[..]));
            packet
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let repr = ipv6::Repr::new(src, dst, protocol, payload.len() as u16);
            let mut packet = [vec![0; repr.buffer_len()], payload.to_vec()].concat();
            repr.emit(&mut ipv6::Packet::new_unchecked(&mut packet[..]));
            packet
        }
        _ => panic!("mixed families"),
    }
}

fn datagram(src: IpAddr, dst: IpAddr, ports: (u16, u16), len: usize) -> Vec<u8> {
    let payload = vec![7; len];
    let repr = udp::Repr { src_port: ports.0, dst_port: ports.1, payload: &payload };
    let mut bytes = vec![0; repr.buffer_len()];
    repr.emit(&mut udp::Packet::new_unchecked(&mut bytes[..]), src, dst);
    ip(src, dst, IpProtocol::UDP, &bytes)
}

fn syn(src: IpAddr, dst: IpAddr) -> Vec<u8> {
    let repr = tcp::Repr { src_port: 9, dst_port: PORT, ..tcp::Repr::new(0, 0, tcp::Control::Syn, 1) };
    let mut bytes = vec![0; repr.buffer_len()];
    repr.emit(&mut tcp::Packet::new_unchecked(&mut bytes[..]), src, dst);
    ip(src, dst, IpProtocol::TCP, &bytes)
}

fn ping(src: IpAddr, dst: IpAddr) -> Vec<u8> {
    if src.is_ipv4() {
        let repr = icmpv4::Repr::EchoRequest { ident: 5, seq: 1, data: b"ping" };
        let mut bytes = vec![0; repr.buffer_len()];
        repr.emit(&mut icmpv4::Packet::new_unchecked(&mut bytes[..]));
        return ip(src, dst, IpProtocol::ICMP, &bytes);
    }
    let repr = icmpv6::Repr::EchoRequest { ident: 5, seq: 1, data: b"ping" };
    let mut bytes = vec![0; repr.buffer_len()];
    repr.emit(&mut icmpv6::Packet::new_unchecked(&mut bytes[..]), src, dst);
    ip(src, dst, IpProtocol::ICMPV6, &bytes)
}

/// "Port unreachable" about a packet.
fn error(src: Ipv4Addr, dst: Ipv4Addr, about: &[u8]) -> Vec<u8> {
    let quote = icmpv4::Quote::new(about).unwrap();
    let repr = icmpv4::Repr::Unreachable { why: icmpv4::Unreachable::Port, quote };
    let mut bytes = vec![0; repr.buffer_len()];
    repr.emit(&mut icmpv4::Packet::new_unchecked(&mut bytes[..]));
    ip(src.into(), dst.into(), IpProtocol::ICMP, &bytes)
}

/// The first fragment of a packet, and the rest.
fn fragments(packet: &[u8]) -> [Vec<u8>; 2] {
    let repr = ipv4::Repr::parse(&ipv4::Packet::new_unchecked(packet)).unwrap();
    [(0, 16, true), (16, packet.len() - 20, false)].map(|(start, end, more)| {
        let part = ipv4::Repr {
            ident: 5,
            dont_fragment: false,
            more_fragments: more,
            fragment_offset: FragmentOffset::from_bytes(start as u16).unwrap(),
            payload_len: (end - start) as u16,
            ..repr
        };
        let mut bytes = [vec![0; 20], packet[20 + start..20 + end].to_vec()].concat();
        part.emit(&mut ipv4::Packet::new_unchecked(&mut bytes[..]));
        bytes
    })
}

/// One run: how many packets were counted, and what they came to.
struct Counted {
    now: Instant,
    packets: u32,
    with_header: u32,
    forwarded: u32,
}

impl Counted {
    /// Hands one packet to a node and counts; gives what leaves, without link headers.
    #[track_caller]
    fn send(&mut self, node: &mut Node<Anywhere>, port: Port, packet: &[u8]) -> Vec<(Port, Vec<u8>)> {
        self.now = self.now + Duration::from_millis(1);
        let is_v4 = packet[0] >> 4 == 4;
        let ethertype = if is_v4 { EtherType::IPV4 } else { EtherType::IPV6 };
        let link = ethernet::Repr { dst: LINKS[usize::from(port.0)], src: [2, 0, 0, 0, 0, 8], ethertype };
        let mut bytes = vec![0; ethernet::HEADER_LEN];
        link.emit(&mut ethernet::Packet::new_unchecked(&mut bytes[..]));
        bytes.extend_from_slice(packet);
        let parsed = Packet::parse(packet).unwrap();
        let has_header = matches!(parsed.header, Ok(Some(_)));
        let is_error = matches!(parsed.ip.protocol, IpProtocol::ICMP | IpProtocol::ICMPV6);
        let mut frame = FrameBuf::from_bytes(&bytes);
        let before = PARSES.load(Relaxed);
        let out = frame.with(|frame| node.on_frame(self.now, port, frame));
        let parses = PARSES.load(Relaxed) - before;
        let most = if has_header || is_error { 2 } else { 1 };
        assert!((1..=most).contains(&parses), "{parses} times: {packet:02x?}");
        self.packets += 1;
        self.with_header += u32::from(has_header);
        self.forwarded += u32::from(out.is_some());
        let mut left: Vec<(Port, Vec<u8>)> =
            out.map(|out| (out, frame.bytes()[ethernet::HEADER_LEN..].to_vec())).into_iter().collect();
        let mut buffer = vec![0; 4 * HEADROOM + 4_096];
        node.release(self.now, &mut buffer, &mut |out, bytes| left.push((out, bytes[ethernet::HEADER_LEN..].to_vec())));
        left
    }

    /// Lets a packet travel through a line of nodes, from the first one's inside to the last one's, or back.
    fn travel(&mut self, nodes: &mut [&mut Node<Anywhere>], packet: &[u8], back: bool) {
        let last = nodes.len() - 1;
        let mut waiting = vec![(if back { last } else { 0 }, Port::INSIDE, packet.to_vec())];
        let mut steps = 0;
        while let Some((at, port, packet)) = waiting.pop() {
            steps += 1;
            assert!(steps < 100, "a packet goes round for ever");
            for (out, packet) in self.send(nodes[at], port, &packet) {
                // The first node's outside is the others' side; a router's outside faces the first.
                let next = match (at, out) {
                    (0, Port::OUTSIDE) => Some((1, Port::OUTSIDE)),
                    (1, Port::OUTSIDE) => Some((0, Port::OUTSIDE)),
                    (1, Port::INSIDE) => Some((2, Port::OUTSIDE)),
                    (2, Port::OUTSIDE) => Some((1, Port::INSIDE)),
                    _ => None,
                };
                waiting.extend(next.filter(|(at, _)| *at <= last).map(|(at, port)| (at, port, packet)));
            }
        }
    }
}

#[test]
fn each_packet_is_parsed_once_and_once_more_where_a_header_was_taken_off() {
    let mut count = Counted { now: Instant::from_secs(100), packets: 0, with_header: 0, forwarded: 0 };
    let (client, filtered): (IpAddr, IpAddr) = (CLIENT.into(), FILTERED.into());

    // Plain packets at a gate, a router and an edge, both ways, whole and broken, wanted and not.
    let (mut gate, external) = a_gate();
    let mut router = node(Pipeline::Router(Box::new(RouterPipeline::new(a_router(), labels(), false))));
    let mut plain_edge = edge(Carriage::Native);
    let long = datagram(client, filtered, (9, PORT), 1_600);
    let mut expiring = datagram(client, filtered, (9, PORT), 20);
    ipv4::Packet::new_unchecked(&mut expiring[..]).set_ttl(1);
    ipv4::Packet::new_unchecked(&mut expiring[..]).fill_checksum();
    let sent = datagram(filtered, client, (PORT, 9), 20);
    let mut inward = vec![
        datagram(client, filtered, (9, PORT), 20),
        datagram(client, filtered, (9, 1), 20),
        datagram(client, GATE.into(), (9, external), 20),
        datagram(Ipv4Addr::new(8, 8, 8, 8).into(), GATE.into(), (9, external), 20),
        datagram(client, OPEN.into(), (9, 1), 20),
        datagram(CLIENT6.into(), FILTERED6.into(), (9, PORT), 20),
        syn(client, filtered),
        syn(CLIENT6.into(), FILTERED6.into()),
        ping(client, filtered),
        ping(CLIENT6.into(), FILTERED6.into()),
        error(CLIENT, FILTERED, &sent),
        error(CLIENT, OPEN, &datagram(OPEN.into(), client, (1, 9), 20)),
        expiring,
        long.clone(),
        ip(client, filtered, IpProtocol(89), &[1; 20]),
    ];
    inward.extend(fragments(&long));
    let outward = [
        sent,
        datagram(HIDDEN.into(), client, (PORT, 9), 20),
        datagram(HIDDEN.into(), client, (PORT, 10), 1_600),
        datagram(HIDDEN.into(), GATE.into(), (6, external), 20),
        datagram(OPEN.into(), client, (1, 9), 20),
        datagram(FILTERED6.into(), CLIENT6.into(), (PORT, 9), 20),
        ping(HIDDEN.into(), client),
        error(FILTERED, CLIENT, &datagram(client, filtered, (9, PORT), 20)),
    ];
    for _ in 0..2 {
        for node in [&mut gate, &mut router, &mut plain_edge] {
            inward.iter().for_each(|packet| drop(count.send(node, Port::OUTSIDE, packet)));
            outward.iter().for_each(|packet| drop(count.send(node, Port::INSIDE, packet)));
        }
    }
    assert_eq!(count.with_header, 0);

    // Requests, answers, lists, nonces, renewals, native and in UDP, through edge, router and gate, and edge, router, edge.
    for carriage in [Carriage::Native, Carriage::Encapsulated { src_port: 50_000 }] {
        for private in [true, false] {
            let mut users = edge(carriage);
            let mut middle = node(Pipeline::Router(Box::new(RouterPipeline::new(a_router(), labels(), false))));
            let mut far = if private { a_gate().0 } else { server_edge() };
            let mut line = [&mut users, &mut middle, &mut far];
            for turn in 0..100 {
                let len = if turn % 3 == 0 { 1_200 } else { 40 };
                count.travel(&mut line, &datagram(client, filtered, (9, PORT), len), false);
                count.travel(&mut line, &datagram(filtered, client, (PORT, 9), 40), true);
                count.now = count.now + Duration::from_millis(100);
            }
        }
    }
    assert!(count.with_header > 1_000, "{} of {} packets had headers", count.with_header, count.packets);
    assert!(count.forwarded > count.packets / 2, "{} of {} packets were forwarded", count.forwarded, count.packets);
}
