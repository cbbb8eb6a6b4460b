//! A gate against a naive one made of hash maps: the same packets, the same fate. Every transport, fragments in any order,
//! errors, hairpin, grants that come and go. 10^7 packets in release, fewer in debug.

#[path = "model/naive.rs"]
#[allow(unreachable_pub)]
mod naive;
mod site;

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use naive::{CLIENTS, FILTERED, FILTERED6, GATE, Gate, Grant as Permission, HOSTS, Step, TALKER, TARGET, Talk, Tuple};
use site::{Anywhere, START, UNIX, packets};
use sluicegate_grant::Grant;
use sluicegate_nat::Config;
use sluicegate_node::Node;
use sluicegate_pinhole::{PinholeSpec, Service, ServiceMode};
use sluicegate_wire::{Instant, IpProtocol, Port, dccp, icmp, ip::Summary, ipv4, tcp};

const PACKETS: u64 = if cfg!(debug_assertions) { 100_000 } else { 10_000_000 };
const PROTOCOLS: [u8; 9] = [17, 136, 6, 33, 1, 47, 50, 51, 89];
const STRANGER: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 99));
const STRANGER6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0xff, 0, 0, 0, 0, 99));
/// A router on the way, from which errors come.
const MIDWAY: IpAddr = IpAddr::V4(Ipv4Addr::new(100, 64, 0, 1));

fn a_gate() -> Node<Anywhere> {
    let service = |id: usize| Service {
        id: id as u16,
        mode: if [TARGET, TALKER].contains(&HOSTS[id]) { ServiceMode::Nat } else { ServiceMode::Filter },
        address: HOSTS[id],
        outbound_all: HOSTS[id] == TALKER,
        open: false,
    };
    let config = Config { flows_max: 65_536, pinholes_max: 1_024, flows_v6_max: 4_096, ..site::config() };
    site::gate_of(config, site::forwarding(), &[0, 1, 2, 3].map(service))
}

/// xorshift64*, so that a failure is the same failure again.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// How often each kind of thing happened: a test in which none did tests nothing.
#[derive(Debug, Default)]
struct Seen {
    passed: u64,
    refused: u64,
    by_protocol: BTreeMap<u8, u64>,
    fragmented: u64,
    split: u64,
    errors_in: u64,
    errors_out: u64,
    too_big: u64,
    hairpins: u64,
    forged: u64,
    ended: u64,
}

struct Run {
    dice: Dice,
    node: Node<Anywhere>,
    naive: Gate,
    grants: u32,
    fragment_id: u16,
    packets: u64,
    seen: Seen,
}

impl Run {
    fn now(&self) -> Instant {
        START + Duration::from_secs(self.naive.now_s)
    }

    /// Hands packets to the node, one after the other; gives what leaves.
    fn send(&mut self, port: Port, packets: &[Vec<u8>]) -> Vec<(Port, Vec<u8>)> {
        let now = self.now();
        self.packets += packets.len() as u64;
        packets.iter().flat_map(|packet| site::step(&mut self.node, now, port, site::frame(port, packet))).collect()
    }

    /// Seconds pass, not a divisor of any timer, and what is due is done.
    fn wait(&mut self, seconds: u64) {
        let end = self.now() + Duration::from_secs(seconds);
        while let Some(due) = self.node.poll_timeout().filter(|due| *due <= end) {
            self.node.handle_timeout(due);
        }
        self.node.handle_timeout(end);
        self.naive.wait(seconds);
        self.node.beat();
        self.compare_tables();
    }

    fn compare_tables(&mut self) {
        let gauge = |name: &str| {
            let found = self.node.pipeline.firewall().unwrap().translator.gauges().find(|gauge| gauge.name == name);
            found.unwrap_or_else(|| panic!("no gauge {name}")).used as usize
        };
        let flows = gauge("flows") + gauge("flows_v6");
        assert_eq!(flows, self.naive.flows_len(), "flows at {} s", self.naive.now_s);
        assert_eq!(gauge("bindings"), self.naive.bindings_len(), "bindings at {} s", self.naive.now_s);
        assert_eq!(gauge("pinholes"), self.naive.grants_len() + 1, "pinholes at {} s", self.naive.now_s);
    }

    /// Grants somebody something, unless they have it.
    fn install(&mut self) {
        let host = self.dice.of(&HOSTS);
        let clients: Vec<IpAddr> = CLIENTS.into_iter().filter(|it| it.is_ipv4() == host.is_ipv4()).collect();
        // A hairpin's client is on this side.
        let hairpin = host == TARGET && self.dice.below(4) == 0;
        let client = if hairpin { self.dice.of(&[GATE, TALKER]) } else { self.dice.of(&clients) };
        let protocol = match self.dice.of(&PROTOCOLS) {
            1 if !host.is_ipv4() => 58,
            protocol => protocol,
        };
        let is_nat = [TARGET, TALKER].contains(&host);
        let has_ports = naive::has_ports(protocol);
        if (is_nat && protocol == 51) || (!has_ports && (hairpin || host == TALKER)) {
            return;
        }
        let port = if has_ports { 1 + self.dice.below(3) as u16 } else { 0 };
        if self.naive.is_granted(protocol, client, (host, port)) {
            return;
        }
        self.grants += 1;
        let lifetime_s = 7 * self.dice.below(100) as u64 + 3;
        let unix = UNIX.plus_secs(self.naive.now_s);
        let grant = Grant {
            not_before: unix,
            not_after: unix.plus_secs(lifetime_s),
            bytes: 1 << 40,
            flows: 400,
            client_id: 0,
            ..site::grant(self.grants, client, protocol)
        };
        let service = HOSTS.iter().position(|it| *it == host).unwrap() as u16;
        let id = grant.id;
        let spec =
            PinholeSpec { grant, service, target: host, target_ports: (port, port), filter: !is_nat, keys: None };
        let now = self.now();
        let opened = site::translator(&mut self.node).install(now, unix, spec).unwrap();
        let ends_s = self.naive.now_s + lifetime_s;
        let gate = (opened.address, opened.ports.0);
        if is_nat && has_ports {
            assert!(!self.naive.holds(protocol, gate.1), "one holder a port");
        }
        self.naive.grants.push(Permission { id, protocol, client, target: (host, port), gate, ends_s, live: true });
    }

    fn revoke(&mut self) {
        if self.naive.grants.is_empty() {
            return;
        }
        let at = self.dice.below(self.naive.grants.len());
        let (id, now) = (self.naive.grants[at].id, self.now());
        let ended = site::translator(&mut self.node).revoke(now, id);
        assert_eq!(ended.is_some(), self.naive.grants[at].live);
        self.naive.end_grant(at);
        self.seen.ended += 1;
    }

    /// A packet that a client of some grant might send to it, or to something near it.
    fn tuple_in(&mut self) -> Option<Tuple> {
        let at = self.naive.grants.len().checked_sub(1 + self.dice.below(60))?;
        let Permission { protocol, client, gate, .. } = self.naive.grants[at];
        let (client, odd) = match self.dice.below(20) {
            0 => (if client.is_ipv4() { STRANGER } else { STRANGER6 }, true),
            // Who has an address of this side, outside.
            1 if client.is_ipv4() => (self.dice.of(&[GATE, TARGET, FILTERED]), true),
            _ => (client, false),
        };
        let near = |dice: &mut Dice| 1 + dice.below(4) as u16;
        let tuple = if naive::has_ports(protocol) {
            let wrong = self.dice.below(30) == 0;
            let port = if wrong { 20_000 + self.dice.below(500) as u16 } else { gate.1 };
            Tuple { protocol, src: (client, near(&mut self.dice)), dst: (gate.0, port) }
        } else if naive::is_echo(protocol) {
            Tuple { protocol, src: (client, near(&mut self.dice)), dst: (gate.0, naive::request(protocol)) }
        } else {
            Tuple { protocol, src: (client, 0), dst: (gate.0, 0) }
        };
        self.seen.forged += u64::from(odd);
        Some(tuple)
    }

    /// A packet that a service might send to some client, or, as hairpin packets are, to a port of the gate.
    fn tuple_out(&mut self) -> Tuple {
        let host = self.dice.of(&[TARGET, TALKER, TALKER, TALKER, FILTERED, FILTERED6]);
        let clients: Vec<IpAddr> = CLIENTS.into_iter().filter(|it| it.is_ipv4() == host.is_ipv4()).collect();
        let protocol = match self.dice.of(&PROTOCOLS) {
            1 if !host.is_ipv4() => 58,
            protocol => protocol,
        };
        let (port, far) = (1 + self.dice.below(3) as u16, 1 + self.dice.below(4) as u16);
        let to_gate = self.dice.below(6) == 0;
        let grant = self.naive.grants.len().checked_sub(1 + self.dice.below(60));
        match grant.filter(|_| to_gate).map(|at| &self.naive.grants[at]) {
            Some(grant) if host.is_ipv4() && grant.gate.0 == GATE && naive::has_ports(grant.protocol) => {
                return Tuple { protocol: grant.protocol, src: (host, port), dst: grant.gate };
            }
            _ => {}
        }
        let client = self.dice.of(&clients);
        if naive::has_ports(protocol) {
            Tuple { protocol, src: (host, port), dst: (client, far) }
        } else if naive::is_echo(protocol) {
            Tuple { protocol, src: (host, far), dst: (client, naive::request(protocol)) }
        } else {
            Tuple { protocol, src: (host, 0), dst: (client, 0) }
        }
    }

    /// Something that may come next, and from which side.
    fn pick(&mut self) -> Option<(Port, Tuple, Step)> {
        let (port, tuple) = match self.dice.below(10) {
            0..5 => self.naive.any_flow(self.dice.next())?,
            5..8 => (Port::OUTSIDE, self.tuple_in()?),
            _ => (Port::INSIDE, self.tuple_out()),
        };
        let may_open = self.dice.below(10) > 0;
        let step = self.naive.next_step(port, &tuple, may_open, self.dice.next())?;
        Some((port, tuple, step))
    }

    /// Sends something and holds what leaves against what would leave the naive gate.
    fn exchange(&mut self) {
        let Some((port, tuple, step)) = self.pick() else { return };
        let len = if self.dice.below(20) == 0 { 1_700 } else { 12 + self.dice.below(40) };
        let packet = packet(&tuple, &step, len);
        if self.dice.below(200) == 0 {
            self.last_hop(port, packet);
            return;
        }
        let is_long = packet.len() > 1_500;
        let (parts, is_complete) = match self.dice.below(3) {
            0 if packet.len() > 100 || is_long => self.cut(&packet),
            _ if is_long && self.dice.below(2) == 0 && tuple.src.0.is_ipv4() => {
                return self.too_long(port, &tuple, packet);
            }
            _ if is_long && !tuple.src.0.is_ipv4() => return,
            _ => (vec![may_be_cut(packet.clone())], true),
        };
        let is_cut = parts.len() > 1;
        self.seen.fragmented += u64::from(is_cut);
        // Held parts whose first never comes are forgotten before others might meet them.
        let expected = if is_complete { self.naive.judge(port, &tuple, &step) } else { None };
        let left = self.send(port, &parts);
        let what = format!("{tuple:?} {step:?} by {port:?}, {} parts, at {} s", parts.len(), self.naive.now_s);
        let Some(out) = expected else {
            assert!(left.is_empty(), "{what}: {} packets passed", left.len());
            self.seen.refused += 1;
            if !is_complete {
                self.wait(7);
            }
            return;
        };
        assert!(!left.is_empty(), "{what} was refused, wanted {out:?}: {:?}", self.node.drops.recent(1, |_| true));
        assert!(left.iter().all(|(port, _)| *port == out.port), "{what} leaves by {:?}", left[0].0);
        assert!(left.iter().all(|(_, part)| Summary::parse(part).unwrap().ttl == 63), "{what}: a hop");
        self.seen.split += u64::from(left.len() > 1 && !is_cut);
        let parts: Vec<Vec<u8>> = left.into_iter().map(|(_, packet)| packet).collect();
        let whole = if parts.len() == 1 { parts.into_iter().next().unwrap() } else { packets::reassemble(&parts) };
        let found = read(&whole);
        let learnt = self.naive.learn(&out, &found);
        assert!(learnt, "{what}: became {found:?}, wanted {out:?}");
        check(&packet, &whole, &what);
        self.seen.passed += 1;
        *self.seen.by_protocol.entry(tuple.protocol).or_default() += 1;
        self.seen.hairpins += u64::from(port == Port::INSIDE && out.port == Port::INSIDE);
    }

    /// Fragments of a packet in any order, and whether that is all of them.
    fn cut(&mut self, packet: &[u8]) -> (Vec<Vec<u8>>, bool) {
        self.fragment_id = self.fragment_id.wrapping_add(1);
        let mut parts = packets::fragments(packet, self.fragment_id, 64 * (1 + self.dice.below(12)));
        if parts.len() > 8 {
            parts = packets::fragments(packet, self.fragment_id, 640);
        }
        for at in (1..parts.len()).rev() {
            parts.swap(at, self.dice.below(at + 1));
        }
        if parts.len() > 1 && self.dice.below(40) == 0 {
            let first = parts.iter().position(|part| Summary::parse(part).unwrap().has_transport_header()).unwrap();
            parts.remove(first);
            return (parts, false);
        }
        (parts, true)
    }

    /// A packet that has come too far leaves nothing behind, and nobody is told: there may be nobody here.
    fn last_hop(&mut self, port: Port, mut packet: Vec<u8>) {
        if packet[0] >> 4 == 4 {
            let mut header = ipv4::Packet::new_unchecked(&mut packet[..]);
            header.set_ttl(1);
            header.fill_checksum();
        } else {
            packet[7] = 1;
        }
        assert_eq!(self.send(port, &[packet]), [], "a last hop");
    }

    /// A packet of a flow that may not be cut is answered.
    fn too_long(&mut self, port: Port, tuple: &Tuple, packet: Vec<u8>) {
        // Answers are rare.
        self.wait(7);
        if !self.naive.knows(port, tuple) {
            return;
        }
        let left = self.send(port, &[packet]);
        let [(out, answer)] = &left[..] else { panic!("{tuple:?}: {} answers", left.len()) };
        assert_eq!((*out, packets::message(answer).kind()), (port, icmp::Kind::PacketTooBig));
        assert_eq!(Summary::parse(answer).unwrap().dst, tuple.src.0);
        self.seen.too_big += 1;
    }

    /// An error about what went the other way: it passes where there is a flow that it is about.
    fn error(&mut self) {
        self.wait(7);
        let Some((side, answer)) = self.naive.any_flow(self.dice.next()) else { return };
        if !answer.src.0.is_ipv4() {
            return;
        }
        // What left by `side` and would be answered by `answer`.
        let mut about = answer.reversed();
        let is_strange = self.dice.below(5) == 0;
        if is_strange {
            if naive::has_ports(about.protocol) { about.dst.1 += 1_000 } else { about.dst.0 = STRANGER }
        }
        let quoted = packet(&about, &Step::talk(Talk::Data), 24);
        let router = if side == Port::OUTSIDE { MIDWAY } else { answer.src.0 };
        let error = packets::unreachable(router, about.src.0, &quoted, 64);
        let expected = self.naive.error(side, &about.reversed());
        let left = self.send(side, &[error]);
        let what = format!("an error by {side:?} about {about:?}");
        match expected {
            naive::Error::Unjudged => {}
            naive::Error::Refused => assert!(left.is_empty(), "{what} passed"),
            naive::Error::Passed(out) => {
                let [(port, error)] = &left[..] else { panic!("{what}: {} packets", left.len()) };
                assert_eq!(*port, out.port, "{what}");
                assert_eq!(read(packets::message(error).quoted()), out.quoted, "{what}");
                assert_eq!(Summary::parse(error).unwrap().dst, out.quoted.src.0, "{what}");
                if side == Port::OUTSIDE { self.seen.errors_in += 1 } else { self.seen.errors_out += 1 }
            }
        }
    }
}

/// What of a packet a gate must not change, and that it made right what it changed.
fn check(before: &[u8], after: &[u8], what: &str) {
    let (old, new) = (Summary::parse(before).unwrap(), Summary::parse(after).unwrap());
    assert_eq!(new.total_len, old.total_len, "{what}");
    assert!(new.verify_transport_checksum(after), "{what}: the transport's checksum");
    let kept = |ip: &Summary| match ip.protocol {
        IpProtocol::TCP => 20,
        IpProtocol::DCCP => 16,
        protocol if protocol.has_ports() => 8,
        IpProtocol::ICMP | IpProtocol::ICMPV6 => 8,
        _ => 0,
    };
    assert!(old.transport(before)[kept(&old)..] == new.transport(after)[kept(&new)..], "{what}: its payload");
}

/// Both ends of a packet, as the table of transports has them.
fn read(packet: &[u8]) -> Tuple {
    let ip = Summary::parse_quoted(packet).unwrap();
    let transport = &packet[ip.transport_offset..];
    let word = |at: usize| u16::from_be_bytes([transport[at], transport[at + 1]]);
    let protocol = ip.protocol.0;
    let (src, dst) = match protocol {
        _ if naive::has_ports(protocol) => (word(0), word(2)),
        _ if naive::is_echo(protocol) => (word(4), transport[0].into()),
        _ => (0, 0),
    };
    Tuple { protocol, src: (ip.src, src), dst: (ip.dst, dst) }
}

/// A packet of IPv4 that routers may cut.
fn may_be_cut(mut packet: Vec<u8>) -> Vec<u8> {
    if packet[0] >> 4 == 4 && packet.len() > 1_500 {
        packet[6] &= !0x40;
        ipv4::Packet::new_unchecked(&mut packet[..]).fill_checksum();
    }
    packet
}

fn packet(tuple: &Tuple, step: &Step, len: usize) -> Vec<u8> {
    let Tuple { protocol, src, dst } = *tuple;
    let payload: Vec<u8> = (0..len).map(|at| at as u8 | 1).collect();
    match protocol {
        17 => packets::udp(src, dst, &payload),
        136 => packets::udplite(src, dst, &payload),
        6 => packets::tcp(src, dst, segment(step, &payload)),
        33 => packets::dccp(src, dst, kind(step.talk)),
        1 | 58 => packets::echo(src.0, dst.0, src.1, dst.1 == naive::request(protocol)),
        // A first byte pair that is GRE's version 0, and an index that is not for local use.
        _ => packets::ip(src.0, dst.0, IpProtocol(protocol), &[&[1, 0][..], &payload].concat()),
    }
}

fn segment<'p>(step: &Step, payload: &'p [u8]) -> tcp::Repr<'p> {
    let control = match step.talk {
        Talk::Open | Talk::Answer => tcp::Control::Syn,
        Talk::Reset => tcp::Control::Rst,
        Talk::Confirm | Talk::Data => tcp::Control::None,
    };
    let ack = (step.talk != Talk::Open).then_some(step.ack);
    let payload = if step.talk == Talk::Data { &payload[..step.len] } else { &[] };
    tcp::Repr { control, seq: step.seq, ack, window: 65_000, payload, ..tcp::Repr::new(0, 0, tcp::Control::None, 0) }
}

fn kind(talk: Talk) -> dccp::Type {
    match talk {
        Talk::Open => dccp::Type::REQUEST,
        Talk::Answer => dccp::Type::RESPONSE,
        Talk::Confirm => dccp::Type::ACK,
        Talk::Data => dccp::Type::DATA,
        Talk::Reset => dccp::Type::RESET,
    }
}

#[test]
fn a_gate_does_what_the_naive_one_does() {
    let mut run = Run {
        dice: Dice(0x5157_1ce6),
        node: a_gate(),
        naive: Gate::default(),
        grants: 0,
        fragment_id: 0,
        packets: 0,
        seen: Seen::default(),
    };
    while run.packets < PACKETS {
        match run.dice.below(1_000) {
            0..20 => run.install(),
            20..22 => run.revoke(),
            22..30 => run.wait(7),
            30..34 => run.error(),
            34 if run.dice.below(20) == 0 => run.wait(700),
            _ => run.exchange(),
        }
    }
    run.wait(7_441);
    let Seen { passed, refused, fragmented, split, errors_in, errors_out, too_big, hairpins, forged, ended, .. } =
        run.seen;
    println!("{:?}", run.seen);
    assert!(passed > PACKETS / 4 && refused > PACKETS / 20, "{passed} passed, {refused} did not");
    for protocol in PROTOCOLS.into_iter().chain([58]) {
        assert!(run.seen.by_protocol[&protocol] > PACKETS / 2_000, "hardly any of protocol {protocol}");
    }
    for (what, count) in [
        ("fragmented", fragmented),
        ("cut by the gate", split),
        ("errors from outside", errors_in),
        ("errors from inside", errors_out),
        ("too long", too_big),
        ("hairpin", hairpins),
        ("forged", forged),
        ("revoked", ended),
    ] {
        assert!(count > PACKETS / 20_000, "hardly any packet was {what}: {count}");
    }
}
