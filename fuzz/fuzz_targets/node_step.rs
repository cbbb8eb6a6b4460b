//! An edge, a router and a gate (or an edge in front of a server) in a line, whose packets are made up, changed, repeated,
//! lost and handed to whom they are not for.
#![no_main]

#[path = "../../crates/packet/node/tests/site/mod.rs"]
mod site;

use std::{
    collections::{HashSet, VecDeque},
    net::IpAddr,
    time::Duration,
};

use libfuzzer_sys::fuzz_target;
use site::{
    Anywhere, CLIENT, CLIENT6, FILTERED, FILTERED6, GATE, HIDDEN, OPEN, PORT, START, config,
    packets::{echo, fragments, ip, tcp, udp, unreachable},
};
use sluicegate_nat::Config;
use sluicegate_node::{Forwarding, Node};
use sluicegate_wire::{
    Instant, IpProtocol, Port,
    capability::shim::Carriage,
    ip::{FragmentOffset, Summary},
    tcp,
};

const INSIDE: [IpAddr; 4] = [FILTERED, HIDDEN, OPEN, FILTERED6];
const STRANGER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(203, 0, 113, 99));
const PORTS: [u16; 6] = [9, PORT, 20_000, 20_001, 20_002, 40_000];
const CONTROLS: [tcp::Control; 4] = [tcp::Control::None, tcp::Control::Syn, tcp::Control::Fin, tcp::Control::Rst];
/// Packets on their way; more are lost.
const FLYING_MAX: usize = 16;
const STEPS_MAX: usize = 256;

struct Flying {
    to: usize,
    port: Port,
    packet: Vec<u8>,
}

struct Play {
    now: Instant,
    /// Of users, of a network, of services.
    nodes: [Node<Anywhere>; 3],
    is_gate: bool,
    flying: VecDeque<Flying>,
    last: Vec<u8>,
    /// Whom a service has spoken to, besides those who have grants.
    told: HashSet<IpAddr>,
}

impl Play {
    fn new(kind: u8) -> Self {
        let small = Config {
            external_ports: (20_000, 20_063),
            flows_max: 16,
            flows_v6_max: 8,
            pinholes_max: 16,
            services_max: 8,
            ..config()
        };
        let forwarding = Forwarding { fragments_held_max: 4, fragmented_packets_max: 4, ..site::forwarding() };
        let carriage = if kind & 1 == 0 { Carriage::Native } else { Carriage::Encapsulated { src_port: 40_000 } };
        let is_gate = kind & 2 == 0;
        let far = if is_gate { site::a_gate_with(small, forwarding).0 } else { site::server_edge() };
        let nodes = [site::edge(carriage), site::router(), far];
        Self { now: START, nodes, is_gate, flying: VecDeque::new(), last: Vec::new(), told: HashSet::new() }
    }

    fn step(&mut self, action: u8, choice: u8, bytes: &[u8]) {
        match action % 7 {
            0 => self.arrive(usize::from(choice % 3), Port(choice >> 2 & 1), bytes.to_vec()),
            1 => self.made(choice, bytes),
            2 => self.parts(choice, bytes),
            3 => self.error(choice),
            4 | 5 => self.deliver(bytes),
            _ => self.wait(bytes),
        }
    }

    /// A good packet from somebody, by whichever way it goes.
    fn made(&mut self, choice: u8, bytes: &[u8]) {
        let Some((to, port, packet)) = self.make(choice, bytes) else { return };
        self.arrive(to, port, packet);
    }

    fn make(&self, choice: u8, bytes: &[u8]) -> Option<(usize, Port, Vec<u8>)> {
        let [ports, to, kind, payload @ ..] = bytes else { return None };
        let port = |at: u8| PORTS[usize::from(at) % PORTS.len()];
        let service = INSIDE[usize::from(*to) % INSIDE.len()];
        let user = match (service.is_ipv4(), choice & 4 == 0) {
            (true, true) => CLIENT,
            (true, false) => STRANGER,
            (false, _) => CLIENT6,
        };
        let service = if choice & 8 == 0 || !user.is_ipv4() { service } else { GATE };
        let (at, src, dst) = if choice & 1 == 0 { (0, user, service) } else { (2, service, user) };
        let (src, dst) = ((src, port(ports & 15)), (dst, port(ports >> 4)));
        let packet = match kind % 4 {
            0 => udp(src, dst, payload),
            1 => {
                let repr = tcp::Repr::new(0, 0, CONTROLS[usize::from(kind >> 2) % 4], u32::from(*kind));
                tcp(src, dst, tcp::Repr { ack: (kind >> 4 != 0).then_some(1), payload, ..repr })
            }
            2 => echo(src.0, dst.0, src.1, kind & 4 == 0),
            _ => ip(src.0, dst.0, IpProtocol(kind >> 2), payload),
        };
        // Strangers are in the network.
        let (at, port) = if src.0 == STRANGER { (2, Port::OUTSIDE) } else { (at, Port::INSIDE) };
        Some((at, port, packet))
    }

    /// A long packet in fragments, from the last to the first or from the first to the last.
    fn parts(&mut self, choice: u8, bytes: &[u8]) {
        let Some((to, port, packet)) = self.make(choice, bytes) else { return };
        let starts_packet = |packet: &[u8]| Summary::parse(packet).is_ok_and(|ip| ip.fragment.is_none());
        if !starts_packet(&packet) {
            return;
        }
        let mut parts = fragments(&packet, choice.into(), 64);
        if choice & 16 != 0 {
            parts.reverse();
        }
        parts.into_iter().for_each(|part| self.arrive(to, port, part));
    }

    /// An error about what left somewhere last.
    fn error(&mut self, choice: u8) {
        let Ok(about) = Summary::parse(&self.last) else { return };
        if about.src.is_ipv4() {
            let sender = if choice & 4 == 0 { about.dst } else { STRANGER };
            let error = unreachable(sender, about.src, &self.last, 200);
            self.arrive(usize::from(choice % 3), Port(choice >> 3 & 1), error);
        }
    }

    /// The next packet on its way arrives, as it is or with some bytes changed; the highest bit keeps a copy.
    fn deliver(&mut self, changes: &[u8]) {
        let Some(Flying { to, port, mut packet }) = self.flying.pop_front() else { return };
        if changes.first().is_some_and(|first| first & 0x80 != 0) {
            self.flying.push_back(Flying { to, port, packet: packet.clone() });
        }
        for change in changes.get(1..).unwrap_or_default().chunks_exact(2) {
            if let Some(byte) = packet.get_mut(usize::from(change[0])) {
                *byte = change[1];
            }
        }
        self.arrive(to, port, packet);
    }

    fn arrive(&mut self, to: usize, port: Port, packet: Vec<u8>) {
        let left = site::step(&mut self.nodes[to], self.now, port, site::frame(port, &packet));
        self.left(to, left);
    }

    fn wait(&mut self, bytes: &[u8]) {
        let ms = bytes.first_chunk::<2>().map_or(20, |bytes| u64::from(u16::from_le_bytes(*bytes)));
        self.now = self.now + Duration::from_millis(ms);
        for to in 0..self.nodes.len() {
            self.nodes[to].handle_timeout(self.now);
            let left = site::released(&mut self.nodes[to], self.now);
            self.left(to, left);
            for gauge in self.nodes[to].published(self.now, &[]).1 {
                assert!(gauge.used <= gauge.max, "{}: {} of {}", gauge.name, gauge.used, gauge.max);
            }
        }
    }

    fn left(&mut self, at: usize, left: Vec<(Port, Vec<u8>)>) {
        for (port, packet) in left {
            self.check(at, port, &packet);
            // The first node's outside is the others' side; a router's outside faces the first.
            let next = match (at, port) {
                (0, Port::OUTSIDE) => Some((1, Port::OUTSIDE)),
                (1, Port::OUTSIDE) => Some((0, Port::OUTSIDE)),
                (1, Port::INSIDE) => Some((2, Port::OUTSIDE)),
                (2, Port::OUTSIDE) => Some((1, Port::INSIDE)),
                _ => None,
            };
            self.last.clone_from(&packet);
            if let Some((to, port)) = next.filter(|_| self.flying.len() < FLYING_MAX) {
                self.flying.push_back(Flying { to, port, packet });
            }
        }
    }

    /// Whatever leaves is a packet, and at a gate one that somebody permitted.
    fn check(&mut self, at: usize, port: Port, packet: &[u8]) {
        let ip = Summary::parse(packet).expect("what leaves is a valid IP packet");
        assert_eq!(ip.total_len, packet.len());
        if at != 2 || !self.is_gate {
            return;
        }
        if port == Port::OUTSIDE {
            assert_ne!(ip.src, HIDDEN, "a private address got out");
            self.told.insert(ip.dst);
            return;
        }
        assert!(INSIDE.contains(&ip.dst) || ip.dst == GATE, "{} is no service", ip.dst);
        let is_first = ip.fragment.is_none_or(|fragment| fragment.offset == FragmentOffset::ZERO);
        let is_error = matches!(ip.protocol, IpProtocol::ICMP | IpProtocol::ICMPV6);
        if ip.dst != OPEN && is_first && !is_error {
            let permitted = [CLIENT, CLIENT6, GATE].contains(&ip.src) || self.told.contains(&ip.src);
            assert!(permitted, "{} has no permission for {}", ip.src, ip.dst);
        }
    }
}

// One byte of settings, then steps: an action, a choice, a length, and so many bytes.
fuzz_target!(|bytes: &[u8]| {
    let Some((kind, mut rest)) = bytes.split_first() else { return };
    let mut play = Play::new(*kind);
    for _ in 0..STEPS_MAX {
        let Some(([action, choice, len], more)) = rest.split_first_chunk() else { return };
        let (bytes, more) = more.split_at(usize::from(*len).min(more.len()));
        play.step(*action, *choice, bytes);
        rest = more;
    }
});
