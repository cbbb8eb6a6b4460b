//! A gate as one would write it down: what is allowed, what is open, and nothing fast.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use sluicegate_grant::GrantId;
use sluicegate_wire::Port;

pub const GATE: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1));
/// A `nat` service, another that may start flows, and two `filter` services.
pub const TARGET: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 10));
pub const TALKER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 20));
pub const FILTERED: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 80));
pub const FILTERED6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 8, 0, 0, 0, 0, 1));
pub const HOSTS: [IpAddr; 4] = [TARGET, TALKER, FILTERED, FILTERED6];
pub const CLIENTS: [IpAddr; 5] = [
    IpAddr::V4(Ipv4Addr::new(198, 51, 100, 7)),
    IpAddr::V4(Ipv4Addr::new(198, 51, 100, 8)),
    IpAddr::V4(Ipv4Addr::new(100, 64, 7, 7)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 7, 0, 0, 0, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 7, 0, 0, 0, 0, 2)),
];

pub type End = (IpAddr, u16);

/// Idle times in seconds, by RFC 4787, RFC 5382, RFC 5508, RFC 5597.
const IDLE_S: u64 = 300;
const IDLE_ECHO_S: u64 = 60;
const IDLE_OPENING_S: u64 = 240;
const IDLE_ESTABLISHED_S: u64 = 7_440;

pub const fn has_ports(protocol: u8) -> bool {
    matches!(protocol, 6 | 17 | 33 | 136)
}

pub const fn is_echo(protocol: u8) -> bool {
    matches!(protocol, 1 | 58)
}

/// Whether its packets open, confirm and end connections.
const fn is_talk(protocol: u8) -> bool {
    matches!(protocol, 6 | 33)
}

/// The type of a request.
pub const fn request(protocol: u8) -> u16 {
    if protocol == 1 { 8 } else { 128 }
}

/// Both ends of a packet. Of an echo: identifier and type; of what has no ports: zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tuple {
    pub protocol: u8,
    pub src: End,
    pub dst: End,
}

impl Tuple {
    /// The tuple of the answer.
    pub fn reversed(self) -> Self {
        if !is_echo(self.protocol) {
            return Self { src: self.dst, dst: self.src, ..self };
        }
        let answer = match self.dst.1 {
            8 => 0,
            0 => 8,
            128 => 129,
            _ => 128,
        };
        Self { src: (self.dst.0, self.src.1), dst: (self.src.0, answer), ..self }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Talk {
    Open,
    Answer,
    Confirm,
    Data,
    Reset,
}

/// What a packet says of its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    pub talk: Talk,
    pub seq: u32,
    pub ack: u32,
    /// Bytes that it carries.
    pub len: usize,
    /// Its numbers lie outside of every window.
    wild: bool,
}

impl Step {
    pub const fn talk(talk: Talk) -> Self {
        Self { talk, seq: 1, ack: 1, len: 0, wild: false }
    }
}

pub struct Grant {
    pub id: GrantId,
    pub protocol: u8,
    pub client: IpAddr,
    pub target: End,
    pub gate: End,
    pub ends_s: u64,
    pub live: bool,
}

struct Flow {
    inbound: Tuple,
    outbound: Tuple,
    /// Index of the grant; `None`: a service may start it.
    grant: Option<usize>,
    /// Whether it keeps a binding of its inside end.
    is_bound: bool,
    seen_s: u64,
    /// Who opened it, and the last step of opening or ending it; the next numbers of the opener and the other side.
    opener: Port,
    talk: Talk,
    next: [u32; 2],
}

impl Flow {
    fn idle_s(&self) -> u64 {
        match self.inbound.protocol {
            protocol if is_echo(protocol) => IDLE_ECHO_S,
            _ if self.stands() => IDLE_ESTABLISHED_S,
            protocol if is_talk(protocol) => IDLE_OPENING_S,
            _ => IDLE_S,
        }
    }

    /// Whether it is a connection that both ends have opened and none has ended.
    fn stands(&self) -> bool {
        is_talk(self.inbound.protocol) && self.talk == Talk::Confirm
    }

    fn take(&mut self, port: Port, step: &Step) {
        if !is_talk(self.inbound.protocol) {
            return;
        }
        self.talk = if step.talk == Talk::Data { self.talk } else { step.talk };
        let sent = usize::from(port != self.opener);
        let control = u32::from(matches!(step.talk, Talk::Open | Talk::Answer));
        self.next[sent] = step.seq + step.len as u32 + control;
    }
}

/// What leaves, and by which port. A port or identifier that the gate chose is not known before it is seen.
#[derive(Debug, Clone, Copy)]
pub struct Out {
    pub port: Port,
    pub src: (IpAddr, Option<u16>),
    pub dst: End,
    /// The flow that begins with it.
    new: Option<New>,
}

#[derive(Debug, Clone, Copy)]
struct New {
    outbound: Tuple,
    grant: Option<usize>,
    step: Step,
    /// Of a hairpin packet, whose second flow begins as well: under this grant.
    turns: Option<usize>,
}

pub enum Error {
    /// It depends on more than the naive gate knows.
    Unjudged,
    Refused,
    Passed(Reported),
}

/// An error that passed: where it leaves, and what it then quotes.
pub struct Reported {
    pub port: Port,
    pub quoted: Tuple,
}

#[derive(Default)]
pub struct Gate {
    pub now_s: u64,
    pub grants: Vec<Grant>,
    flows: HashMap<u32, Flow>,
    by_inbound: HashMap<Tuple, u32>,
    by_outbound: HashMap<Tuple, u32>,
    bindings: HashMap<(u8, End), u16>,
    /// The flows of some time ago.
    known: Vec<u32>,
    numbers: u32,
}

impl Gate {
    pub fn flows_len(&self) -> usize {
        self.flows.len()
    }

    pub fn bindings_len(&self) -> usize {
        self.bindings.len()
    }

    pub fn grants_len(&self) -> usize {
        self.grants.iter().filter(|grant| grant.live).count()
    }

    /// Whether somebody has this port of the gate.
    pub fn holds(&self, protocol: u8, port: u16) -> bool {
        let granted = |grant: &&Grant| grant.live && grant.protocol == protocol && grant.gate == (GATE, port);
        has_ports(protocol) && self.grants.iter().any(|grant| granted(&grant))
            || self.bindings.iter().any(|((of, _), bound)| (*of, *bound) == (protocol, port))
    }

    pub fn is_granted(&self, protocol: u8, client: IpAddr, target: End) -> bool {
        self.grant(|grant| (grant.protocol, grant.client, grant.target) == (protocol, client, target)).is_some()
    }

    fn grant(&self, fits: impl Fn(&Grant) -> bool) -> Option<usize> {
        self.grants.iter().rposition(|grant| grant.live && fits(grant))
    }

    pub fn wait(&mut self, seconds: u64) {
        self.now_s += seconds;
        for at in 0..self.grants.len() {
            if self.grants[at].live && self.grants[at].ends_s <= self.now_s {
                self.end_grant(at);
            }
        }
        // The oldest are of no use but to packets that must not pass.
        if self.grants.len() > 2_000 && self.grants[..1_000].iter().all(|grant| !grant.live) {
            self.grants.drain(..1_000);
            for flow in self.flows.values_mut() {
                flow.grant = flow.grant.map(|at| at - 1_000);
            }
        }
        let now_s = self.now_s;
        let idle = self.flows.iter().filter(|(_, flow)| now_s - flow.seen_s >= flow.idle_s());
        for number in idle.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.end_flow(number);
        }
        self.known = self.flows.keys().copied().collect();
        self.known.sort_unstable();
    }

    pub fn end_grant(&mut self, at: usize) {
        self.grants[at].live = false;
        let its = self.flows.iter().filter(|(_, flow)| flow.grant == Some(at));
        for number in its.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.end_flow(number);
        }
    }

    fn end_flow(&mut self, number: u32) {
        let flow = self.flows.remove(&number).unwrap();
        self.by_inbound.remove(&flow.inbound);
        self.by_outbound.remove(&flow.outbound);
        let inside = (flow.inbound.protocol, flow.outbound.src);
        let others = |other: &Flow| other.is_bound && (other.inbound.protocol, other.outbound.src) == inside;
        if flow.is_bound && !self.flows.values().any(others) {
            self.bindings.remove(&inside);
        }
    }

    /// Begins a flow. The newest grant wins, except over a connection that stands: `false`.
    fn open(
        &mut self,
        port: Port,
        (inbound, outbound): (Tuple, Tuple),
        grant: Option<usize>,
        is_bound: bool,
        step: &Step,
    ) -> bool {
        for (port, tuple) in [(Port::OUTSIDE, &inbound), (Port::INSIDE, &outbound)] {
            let Some(number) = self.find(port, tuple) else { continue };
            if self.flows[&number].stands() {
                return false;
            }
            self.end_flow(number);
        }
        self.numbers += 1;
        let seen_s = self.now_s;
        let mut flow =
            Flow { inbound, outbound, grant, is_bound, seen_s, opener: port, talk: Talk::Open, next: [0; 2] };
        flow.take(port, step);
        self.by_inbound.insert(inbound, self.numbers);
        self.by_outbound.insert(outbound, self.numbers);
        self.flows.insert(self.numbers, flow);
        true
    }

    /// What the flow might get next, by some port; of a hairpin flow also what only a forger sends.
    pub fn any_flow(&self, random: u64) -> Option<(Port, Tuple)> {
        let number = self.known.get((random >> 1) as usize % self.known.len().max(1))?;
        let flow = self.flows.get(number)?;
        Some(if random & 1 == 0 { (Port::OUTSIDE, flow.inbound) } else { (Port::INSIDE, flow.outbound) })
    }

    pub fn knows(&self, port: Port, tuple: &Tuple) -> bool {
        self.find(port, tuple).is_some() && !self.is_forged(port, tuple)
    }

    fn find(&self, port: Port, tuple: &Tuple) -> Option<u32> {
        if port == Port::OUTSIDE { self.by_inbound.get(tuple) } else { self.by_outbound.get(tuple) }.copied()
    }

    fn is_forged(&self, port: Port, tuple: &Tuple) -> bool {
        port == Port::OUTSIDE && (tuple.src.0 == GATE || HOSTS.contains(&tuple.src.0))
    }

    /// What its sender could say next, if anything.
    pub fn next_step(&self, port: Port, tuple: &Tuple, may_open: bool, random: u64) -> Option<Step> {
        if !is_talk(tuple.protocol) {
            return Some(Step::talk(Talk::Data));
        }
        let Some(number) = self.find(port, tuple) else {
            return Some(Step { seq: 1_000, ..Step::talk(if may_open { Talk::Open } else { Talk::Data }) });
        };
        let flow = &self.flows[&number];
        let is_opener = flow.opener == port;
        let [own, other] = if is_opener { [0, 1] } else { [1, 0] };
        let (seq, ack) = (flow.next[own], flow.next[other]);
        let talk = match (flow.talk, is_opener) {
            (Talk::Open, true) => return Some(Step { seq: seq - 1, ..Step::talk(Talk::Open) }),
            (Talk::Open, false) => return Some(Step { seq: 5_000, ack, ..Step::talk(Talk::Answer) }),
            (Talk::Answer, true) => Talk::Confirm,
            (Talk::Confirm, _) if random.is_multiple_of(50) => Talk::Reset,
            (Talk::Confirm, _) => Talk::Data,
            _ => return None,
        };
        let wild = talk == Talk::Data && tuple.protocol == 6 && random % 50 == 1;
        let len = if talk == Talk::Data { (random % 8) as usize } else { 0 };
        Some(Step { talk, seq: if wild { seq.wrapping_add(1 << 30) } else { seq }, ack, len, wild })
    }

    /// Whether a packet passes, and as what.
    pub fn judge(&mut self, port: Port, tuple: &Tuple, step: &Step) -> Option<Out> {
        if self.is_forged(port, tuple) || step.wild {
            return None;
        }
        match (port, tuple.dst.0) {
            (Port::OUTSIDE, _) => self.inward(tuple, tuple, step),
            (_, GATE) => self.hairpin(tuple, step),
            (_, host) if HOSTS.contains(&host) => None,
            _ => self.outward(tuple, step),
        }
    }

    fn pass(&mut self, number: u32, port: Port, step: &Step) -> (Tuple, Tuple) {
        let now_s = self.now_s;
        let flow = self.flows.get_mut(&number).unwrap();
        flow.seen_s = now_s;
        flow.take(port, step);
        (flow.inbound, flow.outbound)
    }

    /// `wanted` is what its sender wrote, before the gate's address stood for the sender.
    fn inward(&mut self, tuple: &Tuple, wanted: &Tuple, step: &Step) -> Option<Out> {
        let inside = match self.by_inbound.get(tuple) {
            Some(number) => self.pass(*number, Port::OUTSIDE, step).1.reversed(),
            None => {
                let grant = self.grant_inward(wanted).filter(|_| opens(tuple, step))?;
                self.open_inward(tuple, grant, step)?
            }
        };
        Some(Out { port: Port::INSIDE, src: (inside.src.0, Some(inside.src.1)), dst: inside.dst, new: None })
    }

    fn open_inward(&mut self, tuple: &Tuple, grant: usize, step: &Step) -> Option<Tuple> {
        let target = self.grants[grant].target;
        let port = if has_ports(tuple.protocol) { target.1 } else { tuple.dst.1 };
        let inside = Tuple { dst: (target.0, port), ..*tuple };
        self.open(Port::OUTSIDE, (*tuple, inside.reversed()), Some(grant), false, step).then_some(inside)
    }

    /// The grant for a packet from outside, or for one that turns round: its client has its own address, or the gate's.
    fn grant_inward(&self, tuple: &Tuple) -> Option<usize> {
        let Tuple { protocol, src, dst } = *tuple;
        let port = if has_ports(protocol) { dst.1 } else { 0 };
        let by = |client| {
            self.grant(|grant| {
                let end =
                    if dst.0 == GATE && has_ports(protocol) { grant.gate } else { (grant.gate.0, grant.target.1) };
                (grant.protocol, grant.client, end) == (protocol, client, (dst.0, port))
            })
        };
        by(src.0).or_else(|| by(GATE).filter(|_| HOSTS.contains(&src.0)))
    }

    fn outward(&mut self, tuple: &Tuple, step: &Step) -> Option<Out> {
        if let Some(number) = self.by_outbound.get(tuple).copied() {
            let outside = self.pass(number, Port::INSIDE, step).0.reversed();
            return Some(Out {
                port: Port::OUTSIDE,
                src: (outside.src.0, Some(outside.src.1)),
                dst: outside.dst,
                new: None,
            });
        }
        let Tuple { protocol, src, dst } = *tuple;
        let port = if has_ports(protocol) { src.1 } else { 0 };
        let grant =
            self.grant(|grant| (grant.protocol, grant.client, grant.target) == (protocol, dst.0, (src.0, port)));
        if !opens(tuple, step) || (grant.is_none() && src.0 != TALKER) {
            return None;
        }
        if ![TARGET, TALKER].contains(&src.0) {
            let opened = self.open(Port::INSIDE, (tuple.reversed(), *tuple), grant, false, step);
            return opened.then_some(Out { port: Port::OUTSIDE, src: (src.0, Some(src.1)), dst, new: None });
        }
        let own = grant.filter(|_| has_ports(protocol)).map(|at| self.grants[at].gate.1);
        let new = New { outbound: *tuple, grant, step: *step, turns: None };
        if protocol == 51 {
            return None;
        }
        if let Some(port) = own {
            return self.begin(&new, port, false);
        }
        if !has_ports(protocol) && !is_echo(protocol) {
            let inbound = seen_as(tuple, 0).reversed();
            return if self.by_inbound.contains_key(&inbound) { None } else { self.begin(&new, 0, false) };
        }
        match self.bindings.get(&(protocol, src)).copied() {
            Some(port) => self.begin(&new, port, true),
            None => Some(Out { port: Port::OUTSIDE, src: (GATE, None), dst, new: Some(new) }),
        }
    }

    /// A flow from a translated service, seen outside at `port`.
    fn begin(&mut self, new: &New, port: u16, is_bound: bool) -> Option<Out> {
        let inbound = seen_as(&new.outbound, port).reversed();
        let opened = self.open(Port::INSIDE, (inbound, new.outbound), new.grant, is_bound, &new.step);
        let src = (GATE, Some(if has_ports(inbound.protocol) || is_echo(inbound.protocol) { port } else { 0 }));
        opened.then_some(Out { port: Port::OUTSIDE, src, dst: new.outbound.dst, new: None })
    }

    /// Out with the gate's address, and in again.
    fn hairpin(&mut self, tuple: &Tuple, step: &Step) -> Option<Out> {
        let src = match self.by_outbound.get(tuple).copied() {
            Some(number) => self.pass(number, Port::INSIDE, step).0.dst,
            None => {
                if tuple.src.0 != TALKER || !has_ports(tuple.protocol) || !opens(tuple, step) {
                    return None;
                }
                let grant = self.grant_inward(tuple)?;
                let new = New { outbound: *tuple, grant: None, step: *step, turns: Some(grant) };
                match self.bindings.get(&(tuple.protocol, tuple.src)).copied() {
                    Some(port) => {
                        self.begin(&new, port, true)?;
                        (GATE, port)
                    }
                    None => {
                        let dst = self.grants[grant].target;
                        return Some(Out { port: Port::INSIDE, src: (GATE, None), dst, new: Some(new) });
                    }
                }
            }
        };
        self.inward(&Tuple { src, ..*tuple }, tuple, step)
    }

    /// Whether what left is what had to, and what it says of the gate's choices.
    pub fn learn(&mut self, out: &Out, found: &Tuple) -> bool {
        if out.src.0 != found.src.0 || out.dst != found.dst || out.src.1.is_some_and(|port| port != found.src.1) {
            return false;
        }
        let Some(new) = out.new else { return true };
        let (protocol, port) = (found.protocol, found.src.1);
        if self.holds(protocol, port) {
            return false;
        }
        self.bindings.insert((protocol, new.outbound.src), port);
        let turned = Tuple { src: found.src, ..new.outbound };
        self.begin(&new, port, true).is_some()
            && new.turns.is_none_or(|grant| self.open_inward(&turned, grant, &new.step).is_some())
    }

    /// What becomes of an error that comes by `port` about a packet whose answer would be `answer`.
    pub fn error(&self, port: Port, answer: &Tuple) -> Error {
        let Some(number) = self.find(port, answer) else { return Error::Refused };
        let flow = &self.flows[&number];
        if flow.inbound.src.0 == GATE || answer.protocol == 6 {
            return Error::Unjudged;
        }
        let is_synchronised = is_talk(answer.protocol) && matches!(flow.talk, Talk::Confirm | Talk::Reset);
        match port {
            // Hosts heed none that are about an open connection.
            Port::OUTSIDE if is_synchronised => Error::Refused,
            Port::OUTSIDE => Error::Passed(Reported { port: Port::INSIDE, quoted: flow.outbound }),
            _ => Error::Passed(Reported { port: Port::OUTSIDE, quoted: flow.inbound }),
        }
    }
}

/// Whether a flow may begin with it.
fn opens(tuple: &Tuple, step: &Step) -> bool {
    match tuple.protocol {
        protocol if is_talk(protocol) => step.talk == Talk::Open,
        protocol if is_echo(protocol) => tuple.dst.1 == request(protocol),
        _ => true,
    }
}

/// A packet from a translated service as it is seen outside.
fn seen_as(tuple: &Tuple, port: u16) -> Tuple {
    Tuple { src: (GATE, port), ..*tuple }
}
