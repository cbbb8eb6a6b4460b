//! Two hosts, a chain of small capability routers between them, and a virtual clock.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    time::Duration,
};

use sluicegate_capability::{
    host::{Config, Host, Inbound, Policy},
    secrets::{PathTagger, Secrets, Seed},
};
use sluicegate_wire::{
    FrameBuf, Instant, IpProtocol, Reason, build,
    capability::{
        Capability, ClientId, FlowNonce, Kind, Limits, PathId, Repr,
        shim::{self, Found},
    },
    ip, tcp, udp,
};

pub(crate) const A: usize = 0;
pub(crate) const B: usize = 1;

/// The IPv4 addresses of both sides.
pub(crate) fn address(side: usize) -> IpAddr {
    if side == A { "192.0.2.1".parse().unwrap() } else { "198.51.100.2".parse().unwrap() }
}

struct Line {
    nonce: FlowNonce,
    capability: Capability,
    limits: Limits,
    ttl_end: Instant,
    expires: u64,
}

impl Line {
    /// Which of two capabilities of a flow is the newer one.
    fn order(limits: Limits, expires: u64) -> (u64, u8, u16) {
        let less = Limits::KILOBYTES_MAX - limits.kilobytes();
        (expires - u64::from(limits.seconds()), limits.seconds(), less)
    }
}

/// A capability router that forgets a line as soon as its ttl has passed, and counts what each capability carried.
pub(crate) struct Router {
    secrets: Secrets,
    tagger: Option<PathTagger>,
    lines: HashMap<(IpAddr, IpAddr, ClientId), Line>,
    /// Bytes by source and capability; nothing ever leaves this map.
    pub(crate) charged: HashMap<(IpAddr, u64), (u64, u64)>,
    pub(crate) demoted: u64,
    /// Packets with a valid capability whose N was used up.
    pub(crate) overrun: u64,
    pub(crate) regular: u64,
}

impl Router {
    pub(crate) fn new(seed: u8, boundary: bool) -> Self {
        Self {
            secrets: Secrets::new(&Seed([seed; 32]), 0),
            tagger: boundary.then(|| PathTagger::new([seed; 16])),
            lines: HashMap::new(),
            charged: HashMap::new(),
            demoted: 0,
            overrun: 0,
            regular: 0,
        }
    }

    /// Loses its secret and all lines.
    pub(crate) fn restart(&mut self, seed: u8) {
        self.secrets = Secrets::new(&Seed([seed; 32]), 0);
        self.lines.clear();
    }

    pub(crate) fn pass(&mut self, now: Instant, from: usize, bytes: &mut [u8]) {
        self.secrets.turn(now.as_nanos() / 1_000_000_000 + 77);
        let summary = ip::Summary::parse(bytes).unwrap();
        let Ok(Some(found)) = shim::find(&summary, bytes) else { return };
        let repr = Repr::parse(&found.packet(bytes)).unwrap();
        let ok = match repr {
            Repr::Request { demoted: true, .. } | Repr::Regular { demoted: true, .. } => return,
            Repr::Request { algorithm, client_id, slots, entries, .. } => {
                let pre = self.secrets.mint(algorithm, summary.src, summary.dst, client_id);
                let tag = self.tagger.as_ref().map_or(PathId::NONE, |tagger| tagger.tag(from as u64));
                stamp(bytes, &found, entries.len(), slots, pre, tag)
            }
            Repr::Regular { .. } => self.regular(now, &summary, &found, bytes, &repr),
        };
        if !ok {
            self.demoted += 1;
            shim::edit(bytes, &found, |packet| packet.set_demoted(true));
        }
    }

    fn regular(&mut self, now: Instant, summary: &ip::Summary, found: &Found, bytes: &mut [u8], repr: &Repr) -> bool {
        let Repr::Regular { algorithm, kind, nonce, client_id, limits, list, pointer, .. } = *repr else {
            return false;
        };
        let key = (summary.src, summary.dst, client_id);
        self.lines.retain(|_, line| line.ttl_end > now);
        let cached = self.lines.get(&key).filter(|line| line.nonce == nonce);
        let (capability, limits, expires) = match (cached, limits, list.get(usize::from(pointer))) {
            (Some(line), ..) => (line.capability, line.limits, line.expires),
            (None, Some(limits), Some(capability)) => {
                let checked = self.secrets.check(algorithm, summary.src, summary.dst, client_id, limits, &capability);
                let Ok(checked) = checked else { return false };
                let held = self.lines.get(&key).map(|line| Line::order(line.limits, line.expires));
                if held.is_some_and(|held| held > Line::order(limits, checked.expires)) {
                    return false;
                }
                (capability, limits, checked.expires)
            }
            _ => return false,
        };
        if self.secrets.seconds() > expires {
            return false;
        }
        let len = summary.total_len as u64;
        let (used, _) = self.charged.entry((summary.src, capability.0)).or_insert((0, limits.bytes()));
        if *used + len > limits.bytes() {
            self.overrun += 1;
            return false;
        }
        *used += len;
        let ttl = Duration::from_nanos(len * u64::from(limits.seconds()) * 1_000_000_000 / limits.bytes());
        let ttl_end = cached.map_or(now, |line| line.ttl_end) + ttl;
        self.lines.insert(key, Line { nonce, capability, limits, ttl_end, expires });
        self.regular += 1;
        let fresh = self.secrets.mint(algorithm, summary.src, summary.dst, client_id);
        shim::edit(bytes, found, |packet| {
            if kind == Kind::Renewal {
                packet.set_capability(usize::from(pointer), fresh);
            }
            packet.set_pointer(pointer + 1);
        });
        true
    }
}

fn stamp(bytes: &mut [u8], found: &Found, at: usize, slots: u8, pre: Capability, tag: PathId) -> bool {
    if at >= usize::from(slots) {
        return false;
    }
    shim::edit(bytes, found, |packet| {
        packet.set_capability(at, pre);
        packet.set_path_id(at, tag);
        packet.set_pointer(at as u8 + 1);
    });
    true
}

/// A packet as it was seen on the wire when it left a host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sighting {
    pub(crate) at: Instant,
    pub(crate) from: usize,
    pub(crate) kind: Option<Kind>,
    pub(crate) alone: bool,
    pub(crate) len: usize,
}

/// A packet that a host handed to its local side.
#[derive(Debug, Clone)]
pub(crate) struct Delivery {
    pub(crate) at: Instant,
    pub(crate) to: usize,
    pub(crate) bytes: Vec<u8>,
    pub(crate) how: Inbound,
    pub(crate) demoted: bool,
}

/// What happens to a packet on the way: lost, or so late.
pub(crate) type Fate = Box<dyn FnMut(Instant, usize) -> Option<Duration>>;

pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) hosts: [Host; 2],
    pub(crate) policies: [Box<dyn Policy>; 2],
    pub(crate) routers: Vec<Router>,
    pub(crate) fate: Fate,
    /// Whether the host understands capabilities; a legacy one answers them with an ICMP error.
    pub(crate) legacy: [bool; 2],
    pub(crate) wire: Vec<Sighting>,
    pub(crate) delivered: Vec<Delivery>,
    pub(crate) refused: Vec<Reason>,
    flying: BTreeMap<(Instant, u64), (usize, Vec<u8>)>,
    sent: u64,
}

impl World {
    pub(crate) fn new(policy_a: Box<dyn Policy>, policy_b: Box<dyn Policy>, routers: usize) -> Self {
        Self::with_config(Config { peers_max: 64, remotes_max: 64, ..Config::default() }, policy_a, policy_b, routers)
    }

    pub(crate) fn with_config(
        config: Config,
        policy_a: Box<dyn Policy>,
        policy_b: Box<dyn Policy>,
        routers: usize,
    ) -> Self {
        Self {
            now: Instant::from_secs(1_000),
            hosts: [Host::new(config, [1; 32]), Host::new(config, [2; 32])],
            policies: [policy_a, policy_b],
            routers: (0..routers).map(|n| Router::new(n as u8 + 10, n % 2 == 0)).collect(),
            fate: Box::new(|_, _| Some(Duration::from_millis(25))),
            legacy: [false, false],
            wire: Vec::new(),
            delivered: Vec::new(),
            refused: Vec::new(),
            flying: BTreeMap::new(),
            sent: 0,
        }
    }

    /// A local host of this side sends a plain packet.
    pub(crate) fn send(&mut self, from: usize, packet: &[u8]) -> Result<(), Reason> {
        let mut frame = FrameBuf::from_bytes(packet);
        if !self.legacy[from] {
            let (host, policy) = (&mut self.hosts[from], &mut self.policies[from]);
            let outcome = frame.with(|frame| host.outbound(self.now, &mut **policy, frame));
            if let Err(reason) = outcome {
                self.refused.push(reason);
                return Err(reason);
            }
        }
        self.launch(from, frame.bytes());
        self.flush(from);
        Ok(())
    }

    /// A packet enters the network as it is.
    pub(crate) fn inject(&mut self, from: usize, packet: &[u8]) {
        self.sent += 1;
        self.flying.insert((self.now, self.sent), (1 - from, packet.to_vec()));
    }

    pub(crate) fn run(&mut self, millis: u64) {
        let until = self.now + Duration::from_millis(millis);
        while let Some(next) = self.next().filter(|next| *next <= until) {
            self.now = self.now.max(next);
            self.step();
        }
        self.now = until;
    }

    /// Deliveries to this side since the start.
    pub(crate) fn got(&self, side: usize) -> Vec<&Delivery> {
        self.delivered.iter().filter(|delivery| delivery.to == side).collect()
    }

    /// Packets of this kind that this side has sent.
    pub(crate) fn count(&self, from: usize, kind: Option<Kind>) -> usize {
        self.wire.iter().filter(|seen| seen.from == from && seen.kind == kind).count()
    }

    pub(crate) fn demoted(&self) -> u64 {
        self.routers.iter().map(|router| router.demoted).sum()
    }

    fn next(&self) -> Option<Instant> {
        let packet = self.flying.keys().next().map(|(at, _)| *at);
        let timer = self.hosts.iter().filter_map(Host::poll_timeout).min();
        packet.into_iter().chain(timer).min()
    }

    fn step(&mut self) {
        for side in [A, B] {
            self.flush(side);
        }
        while let Some(entry) = self.flying.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let (to, bytes) = entry.remove();
            self.arrive(to, &bytes);
        }
    }

    fn flush(&mut self, from: usize) {
        loop {
            let mut frame = FrameBuf::from_bytes(&[0; 40]);
            if !frame.with(|frame| self.hosts[from].poll_output(self.now, frame)) {
                return;
            }
            self.launch(from, frame.bytes());
        }
    }

    fn launch(&mut self, from: usize, packet: &[u8]) {
        let mut bytes = packet.to_vec();
        let summary = ip::Summary::parse(&bytes).unwrap();
        let found = shim::find(&summary, &bytes).unwrap();
        let header = found.map(|found| found.packet(&bytes));
        self.wire.push(Sighting {
            at: self.now,
            from,
            // A request without slots asks for nothing: it is a plain packet in other clothes.
            kind: header
                .filter(|header| header.kind() != Kind::Request || header.count() > 0)
                .map(|header| header.kind()),
            alone: header.is_some_and(|header| header.upper_protocol() == IpProtocol::NO_NEXT_HEADER),
            len: summary.total_len,
        });
        let Some(delay) = (self.fate)(self.now, from) else { return };
        let order: Vec<usize> =
            if from == A { (0..self.routers.len()).collect() } else { (0..self.routers.len()).rev().collect() };
        for router in order {
            self.routers[router].pass(self.now, from, &mut bytes);
        }
        self.sent += 1;
        self.flying.insert((self.now + delay, self.sent), (1 - from, bytes));
    }

    fn arrive(&mut self, to: usize, bytes: &[u8]) {
        let summary = ip::Summary::parse(bytes).unwrap();
        let found = shim::find(&summary, bytes).ok().flatten();
        if self.legacy[to] {
            if found.is_none() {
                self.delivered.push(Delivery {
                    at: self.now,
                    to,
                    bytes: bytes.to_vec(),
                    how: Inbound::Plain,
                    demoted: false,
                });
            }
            return;
        }
        let demoted = found.is_some_and(|found| found.packet(bytes).is_demoted());
        let mut frame = FrameBuf::from_bytes(bytes);
        let (host, policy) = (&mut self.hosts[to], &mut self.policies[to]);
        match frame.with(|frame| host.inbound(self.now, &mut **policy, frame)) {
            Ok(Inbound::Consumed) => {}
            Ok(how) => {
                let bytes = frame.bytes().to_vec();
                self.delivered.push(Delivery { at: self.now, to, bytes, how, demoted });
            }
            Err(reason) => self.refused.push(reason),
        }
        self.flush(to);
    }
}

/// An IP packet from one side to the other.
pub(crate) fn packet(from: usize, protocol: IpProtocol, transport: &[u8]) -> Vec<u8> {
    packet_between(address(from), address(1 - from), protocol, transport)
}

pub(crate) fn packet_between(src: IpAddr, dst: IpAddr, protocol: IpProtocol, transport: &[u8]) -> Vec<u8> {
    build::packet(src, dst, &(protocol, transport))
}

/// A UDP packet with `len` bytes of payload.
pub(crate) fn datagram(from: usize, len: usize) -> Vec<u8> {
    let payload = vec![7; len];
    let (src_port, dst_port) = if from == A { (40_000, 443) } else { (443, 40_000) };
    let repr = udp::Repr { src_port, dst_port, payload: &payload };
    let mut bytes = vec![0; repr.buffer_len()];
    repr.emit(&mut udp::Packet::new_unchecked(&mut bytes[..]), address(from), address(1 - from));
    packet(from, IpProtocol::UDP, &bytes)
}

/// A TCP segment from a client at A to a server at B, or back.
pub(crate) fn segment(from: usize, control: tcp::Control, seq: u32, ack: Option<u32>, len: usize) -> Vec<u8> {
    let payload = vec![9; len];
    let (src_port, dst_port) = if from == A { (40_000, 80) } else { (80, 40_000) };
    let mut repr = tcp::Repr::new(src_port, dst_port, control, seq);
    repr.ack = ack;
    repr.payload = &payload;
    repr.mss = (control == tcp::Control::Syn).then_some(1_460);
    let mut bytes = vec![0; repr.buffer_len()];
    repr.emit(&mut tcp::Packet::new_unchecked(&mut bytes[..]), address(from), address(1 - from));
    packet(from, IpProtocol::TCP, &bytes)
}
