//! A hundred clients behind one address: what one of them does is no other's fault.

use super::*;
use crate::samples::{GATE_ADDRESS, TARGET};
use sluicegate_grant::GrantId;
use sluicegate_wire::capability::{UDP_PORT, shim::Carriage};
use std::net::SocketAddrV4;

const CLIENTS: usize = 100;
/// The one that does not keep to what it was granted.
const BAD: usize = 42;
/// How often it sends every packet.
const COPIES: usize = 60;
const GRANT_BYTES: u64 = 200_000;
const GATE_AT: End = (0, Port::OUTSIDE);
const SERVICE_AT: End = (0, Port::INSIDE);
/// The port that agents send their headers from, and the first one that the address translator shows instead.
const AGENT_PORT: u16 = 49_152;
const SHOWN_PORT: u16 = 20_000;
/// The first port of the clients' programs.
const PROGRAM_PORT: u16 = 5_000;
const SERVICE_PORT: u16 = 5_004;

fn id_of(client: usize) -> u32 {
    1_000 + client as u32
}

fn address_of(client: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 1, 0, client as u8 + 1)
}

fn grant_of(client: usize) -> Grant {
    Grant {
        id: GrantId::of_call([client as u8 + 1; 12], 0),
        bytes: GRANT_BYTES,
        ..grant_for(id_of(client), DataMode::Capability).0
    }
}

/// The gate, and where it opened each client's grant.
fn gate() -> (Node<Hops>, Vec<SocketAddrV4>) {
    let IpAddr::V4(gate_address) = GATE_ADDRESS else { panic!() };
    let tables = sluicegate_nat::Config {
        gate_address,
        flows_max: 1_024,
        flows_v6_max: 64,
        pinholes_max: 256,
        ..Default::default()
    };
    let service = Service { id: 0, mode: ServiceMode::Nat, address: TARGET, outbound_all: false, open: false };
    let mut node = node_with(Role::Gate, samples::firewall(tables, &[service]), |told| told.peers_max = 256);
    let opened = (0..CLIENTS).map(|client| {
        let grant = grant_of(client);
        node.pipeline.opened(&grant);
        let target_ports = (SERVICE_PORT, SERVICE_PORT);
        let keys = Some(keys_of(id_of(client)));
        let spec = PinholeSpec { grant, service: 0, target: TARGET, target_ports, filter: false, keys };
        let opened = samples::translator(&mut node).install(START, UnixTime(samples::VALID.0.0 + 10), spec).unwrap();
        SocketAddrV4::new(gate_address, opened.ports.0)
    });
    let opened = opened.collect();
    (node, opened)
}

fn packet(from: SocketAddrV4, to: SocketAddrV4, payload: &[u8]) -> Vec<u8> {
    samples::udp_frame(Port::OUTSIDE, from, to, payload)[ethernet::HEADER_LEN..].to_vec()
}

/// Ports of a datagram.
fn ports(packet: &[u8]) -> (u16, u16) {
    let ip = Summary::parse(packet).unwrap();
    let datagram = udp::Packet::new_checked(ip.transport(packet)).expect("a datagram");
    (datagram.src_port(), datagram.dst_port())
}

/// The address translator in front of the clients: writes one end of a datagram anew, and its checksums.
fn translate(packet: &mut [u8], end: SocketAddrV4, is_source: bool) {
    let mut ip = ipv4::Packet::new_unchecked(&mut packet[..]);
    if is_source {
        ip.set_src(*end.ip());
    } else {
        ip.set_dst(*end.ip());
    }
    ip.fill_checksum();
    let (src, dst) = (ip.src(), ip.dst());
    let mut datagram = udp::Packet::new_unchecked(&mut packet[ipv4::HEADER_LEN..]);
    if is_source {
        datagram.set_src_port(end.port());
    } else {
        datagram.set_dst_port(end.port());
    }
    datagram.fill_checksum(src.into(), dst.into());
}

struct Crowd {
    chain: Chain,
    opened: Vec<SocketAddrV4>,
    /// By client: datagrams and bytes of IP packets that reached the service, and answers that came back.
    served: Vec<(usize, u64, usize)>,
}

impl Crowd {
    fn new() -> Self {
        let (gate, opened) = gate();
        let carriage = Carriage::Encapsulated { src_port: AGENT_PORT };
        let agents = (0..CLIENTS).map(|client| {
            let mut node = agent(id_of(client));
            let host = Host::new(
                sluicegate_capability::host::Config { carriage, peers_max: 16, remotes_max: 16, ..Default::default() },
                [client as u8; 32],
            );
            let ids = ClientIds::Fixed(ClientId(id_of(client)));
            let policy = HostPolicy::Client(ClientPolicy::new(ids, Limits::new(100, 10).unwrap()));
            node.pipeline = Pipeline::Edge(Box::new(EdgePipeline::new(host, policy, forwarder())));
            node
        });
        let nodes = std::iter::once(gate).chain(agents).collect();
        let mut chain = Chain::new(nodes, &[]);
        chain.agents = id_of(0)..id_of(CLIENTS);
        Self { chain, opened, served: vec![(0, 0, 0); CLIENTS] }
    }

    /// Every client sends one datagram; 20 ms pass.
    fn round(&mut self) {
        for client in 0..CLIENTS {
            let from = SocketAddrV4::new(address_of(client), PROGRAM_PORT + client as u16);
            let len = if client == BAD { 1_200 } else { 400 };
            let sent = packet(from, self.opened[client], &vec![client as u8; len]);
            self.chain.send((1 + client, Port::INSIDE), &sent);
            self.carry();
        }
        self.chain.wait(Duration::from_millis(20));
        self.carry();
    }

    /// Carries what waits, until nothing does.
    fn carry(&mut self) {
        while !self.chain.arrived.is_empty() {
            for (end, packet) in std::mem::take(&mut self.chain.arrived) {
                self.deliver(end, packet);
            }
        }
    }

    fn deliver(&mut self, end: End, mut packet: Vec<u8>) {
        match end {
            GATE_AT => {
                // What is not for an agent would find no program: it opened no such mapping.
                let (from, to) = ports(&packet);
                let client = usize::from(to.wrapping_sub(SHOWN_PORT));
                if from == UDP_PORT && client < CLIENTS {
                    translate(&mut packet, SocketAddrV4::new(address_of(client), AGENT_PORT), false);
                    self.chain.send((1 + client, Port::OUTSIDE), &packet);
                }
            }
            SERVICE_AT => {
                let (from, _) = ports(&packet);
                let client = usize::from(from - PROGRAM_PORT);
                let len = packet.len() as u64;
                assert_eq!(payload(&packet)[0], client as u8);
                self.served[client].0 += 1;
                self.served[client].1 += len;
                let IpAddr::V4(service) = TARGET else { panic!() };
                let (service, peer) = (SocketAddrV4::new(service, SERVICE_PORT), SocketAddrV4::new(CLIENT, from));
                self.chain.send(SERVICE_AT, &self::packet(service, peer, &[client as u8; 100]));
            }
            (agent, Port::INSIDE) => self.served[agent - 1].2 += 1,
            (agent, _) => {
                let client = agent - 1;
                if ports(&packet).1 != UDP_PORT {
                    return;
                }
                translate(&mut packet, SocketAddrV4::new(CLIENT, SHOWN_PORT + client as u16), true);
                for _ in 0..if client == BAD { COPIES } else { 1 } {
                    self.chain.send(GATE_AT, &packet);
                }
            }
        }
    }

    /// Lets every client send `rounds` times and expects all datagrams of the others at the service, and the answers
    /// back.
    #[track_caller]
    fn others_are_served(&mut self, rounds: usize) {
        let before = self.served.clone();
        (0..rounds).for_each(|_| self.round());
        for client in (0..CLIENTS).filter(|client| *client != BAD) {
            let (there, _, back) = self.served[client];
            assert_eq!((there - before[client].0, back - before[client].2), (rounds, rounds), "client {client}");
        }
    }
}

#[test]
fn one_bad_client_of_a_hundred_behind_one_address_ends_with_its_grant_and_the_others_are_served() {
    let mut crowd = Crowd::new();
    // The first packet asks.
    (0..3).for_each(|_| crowd.round());
    crowd.others_are_served(40);
    let (_, bytes, _) = crowd.served[BAD];
    assert!(bytes > GRANT_BYTES / 2 && bytes <= GRANT_BYTES, "{bytes} of {GRANT_BYTES}");
    let used = samples::translator(&mut crowd.chain.nodes[0]).usage(grant_of(BAD).id);
    assert!(used.is_none_or(|used| used.bytes_used <= GRANT_BYTES), "{used:?}");
    let sent = 43 * COPIES as u64 * 1_200;
    assert!(bytes * 10 < sent, "it tried {sent}");
}

#[test]
fn revoking_one_of_a_hundred_clients_behind_one_address_ends_that_one_alone() {
    let mut crowd = Crowd::new();
    (0..3).for_each(|_| crowd.round());
    assert!(crowd.served[BAD].0 > 0, "it was a client like any other");
    let (now, id) = (crowd.chain.now, grant_of(BAD).id);
    let gate = &mut crowd.chain.nodes[0];
    gate.pipeline.revoke(now, id).expect("it was open");
    let before = crowd.served[BAD].0;
    crowd.others_are_served(20);
    assert_eq!(crowd.served[BAD].0, before);
}
