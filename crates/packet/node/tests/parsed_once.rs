//! A node parses each packet once, and once more where a capability header was taken off, or out of what an error quotes:
//! counted over every role and many kinds of packet. All in one test, as the counter is one for all threads.

// Other builds count nothing.
#![cfg(debug_assertions)]

mod site;

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::atomic::Ordering::Relaxed,
    time::Duration,
};

use site::{
    packets::{self, echo, fragments, ip, udp},
    *,
};
use sluicegate_node::Node;
use sluicegate_wire::{Instant, IpProtocol, Packet, Port, capability::shim::Carriage, ip::PARSES, ipv4, tcp};

/// A datagram of `len` bytes that routers may cut.
fn datagram(src: IpAddr, dst: IpAddr, ports: (u16, u16), len: usize) -> Vec<u8> {
    let mut packet = udp((src, ports.0), (dst, ports.1), &vec![7; len]);
    if src.is_ipv4() {
        packet[6] = 0;
        ipv4::Packet::new_unchecked(&mut packet[..]).fill_checksum();
    }
    packet
}

fn syn(src: IpAddr, dst: IpAddr) -> Vec<u8> {
    packets::tcp((src, 9), (dst, PORT), tcp::Repr::new(0, 0, tcp::Control::Syn, 1))
}

fn ping(src: IpAddr, dst: IpAddr) -> Vec<u8> {
    echo(src, dst, 5, true)
}

/// "Port unreachable" about a packet.
fn error(src: IpAddr, dst: IpAddr, about: &[u8]) -> Vec<u8> {
    packets::unreachable(src, dst, about, usize::MAX - 20)
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
        let parsed = Packet::parse(packet).unwrap();
        let has_header = matches!(parsed.header, Ok(Some(_)));
        let is_error = matches!(parsed.ip.protocol, IpProtocol::ICMP | IpProtocol::ICMPV6);
        let before = PARSES.load(Relaxed);
        let left = step(node, self.now, port, frame(port, packet));
        let parses = PARSES.load(Relaxed) - before;
        let most = if has_header || is_error { 2 } else { 1 };
        assert!((1..=most).contains(&parses), "{parses} times: {packet:02x?}");
        self.packets += 1;
        self.with_header += u32::from(has_header);
        self.forwarded += u32::from(!left.is_empty());
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
    // Plain packets at a gate, a router and an edge, both ways, whole and broken, wanted and not.
    let (mut gate, external) = a_gate(config());
    let mut middle = router();
    let mut plain_edge = edge(Carriage::Native);
    let long = datagram(CLIENT, FILTERED, (9, PORT), 1_600);
    let mut expiring = datagram(CLIENT, FILTERED, (9, PORT), 20);
    ipv4::Packet::new_unchecked(&mut expiring[..]).set_ttl(1);
    ipv4::Packet::new_unchecked(&mut expiring[..]).fill_checksum();
    let sent = datagram(FILTERED, CLIENT, (PORT, 9), 20);
    let mut inward = vec![
        datagram(CLIENT, FILTERED, (9, PORT), 20),
        datagram(CLIENT, FILTERED, (9, 1), 20),
        datagram(CLIENT, GATE, (9, external), 20),
        datagram(Ipv4Addr::new(8, 8, 8, 8).into(), GATE, (9, external), 20),
        datagram(CLIENT, OPEN, (9, 1), 20),
        datagram(CLIENT6, FILTERED6, (9, PORT), 20),
        syn(CLIENT, FILTERED),
        syn(CLIENT6, FILTERED6),
        ping(CLIENT, FILTERED),
        ping(CLIENT6, FILTERED6),
        error(CLIENT, FILTERED, &sent),
        error(CLIENT, OPEN, &datagram(OPEN, CLIENT, (1, 9), 20)),
        expiring,
        long.clone(),
        ip(CLIENT, FILTERED, IpProtocol(89), &[1; 20]),
    ];
    inward.extend(fragments(&long, 5, 16));
    let outward = [
        sent,
        datagram(HIDDEN, CLIENT, (PORT, 9), 20),
        datagram(HIDDEN, CLIENT, (PORT, 10), 1_600),
        datagram(HIDDEN, GATE, (6, external), 20),
        datagram(OPEN, CLIENT, (1, 9), 20),
        datagram(FILTERED6, CLIENT6, (PORT, 9), 20),
        ping(HIDDEN, CLIENT),
        error(FILTERED, CLIENT, &datagram(CLIENT, FILTERED, (9, PORT), 20)),
    ];
    for _ in 0..2 {
        for node in [&mut gate, &mut middle, &mut plain_edge] {
            inward.iter().for_each(|packet| drop(count.send(node, Port::OUTSIDE, packet)));
            outward.iter().for_each(|packet| drop(count.send(node, Port::INSIDE, packet)));
        }
    }
    assert_eq!(count.with_header, 0);

    // Requests, answers, lists, nonces, renewals, native and in UDP, through edge, router and gate, and edge, router, edge.
    for carriage in [Carriage::Native, Carriage::Encapsulated { src_port: 50_000 }] {
        for private in [true, false] {
            let mut users = edge(carriage);
            let mut middle = router();
            let mut far = if private { a_gate(config()).0 } else { server_edge() };
            let mut line = [&mut users, &mut middle, &mut far];
            for turn in 0..100 {
                let len = if turn % 3 == 0 { 1_200 } else { 40 };
                count.travel(&mut line, &datagram(CLIENT, FILTERED, (9, PORT), len), false);
                count.travel(&mut line, &datagram(FILTERED, CLIENT, (PORT, 9), 40), true);
                count.now = count.now + Duration::from_millis(100);
            }
        }
    }
    assert!(count.with_header > 1_000, "{} of {} packets had headers", count.with_header, count.packets);
    assert!(count.forwarded > count.packets / 2, "{} of {} packets were forwarded", count.forwarded, count.packets);
}
