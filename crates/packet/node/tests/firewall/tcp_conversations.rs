//! Two honest TCP endpoints over a lossy path: the gate must not get in their way, whatever they do.

use crate::site::{packets::*, *};
use proptest::prelude::*;
use sluicegate_wire::{
    Port, Verdict,
    tcp::{self, Control, Repr, WindowScale},
};

const S: End = (TARGET, 22);
const C: End = (CLIENT, 40_000);

/// One endpoint: go-back-N, in-order receiver, a window whose right edge never moves back.
struct Endpoint {
    isn: u32,
    /// Next to send, first not acknowledged, highest ever sent.
    next: u32,
    una: u32,
    high: u32,
    /// Next expected.
    expected: u32,
    /// Right edge offered to the peer, and by the peer.
    offered: u32,
    allowed: u32,
    shift: u8,
    peer_shift: u8,
    finished: bool,
}

fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

impl Endpoint {
    fn new(isn: u32, shift: u8) -> Self {
        let next = isn.wrapping_add(1);
        Self {
            isn,
            next,
            una: next,
            high: next,
            expected: 0,
            offered: 0,
            allowed: 0,
            shift,
            peer_shift: 0,
            finished: false,
        }
    }

    /// The window to offer: grows by `room`, never back.
    fn offer(&mut self, room: u32) -> u16 {
        let edge = self.expected.wrapping_add(room);
        if before(self.offered, edge) {
            self.offered = edge;
        }
        let window = (self.offered.wrapping_sub(self.expected) >> self.shift).min(65_535);
        self.offered = self.expected.wrapping_add(window << self.shift);
        window as u16
    }

    fn data<'a>(&mut self, len: u32, room: u32, bytes: &'a [u8]) -> Repr<'a> {
        let free = self.allowed.wrapping_sub(self.next);
        let free = if before(self.allowed, self.next) { 0 } else { free };
        let len = if self.finished { 0 } else { len.min(free) };
        let window = self.offer(room);
        let repr = Repr {
            ack: Some(self.expected),
            window,
            payload: &bytes[..len as usize],
            ..Repr::new(0, 0, Control::None, self.next)
        };
        self.next = self.next.wrapping_add(len);
        if before(self.high, self.next) {
            self.high = self.next;
        }
        repr
    }

    fn receive(&mut self, segment: &tcp::Packet<&[u8]>) {
        if segment.flags().has(tcp::Flags::ACK) {
            let ack = segment.ack();
            if before(self.una, ack) && !before(self.high, ack) {
                self.una = ack;
                if before(self.next, ack) {
                    self.next = ack;
                }
            }
            let edge = ack.wrapping_add(u32::from(segment.window()) << self.peer_shift);
            if before(self.allowed, edge) {
                self.allowed = edge;
            }
        }
        if segment.seq() == self.expected {
            self.expected = self.expected.wrapping_add(segment.sequence_len());
            if before(self.offered, self.expected) {
                self.offered = self.expected;
            }
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Data { client: bool, len: u32, room: u32, lost: bool, twice: bool },
    Rewind { client: bool },
    KeepAlive { client: bool },
    Finish { client: bool },
}

fn step() -> impl Strategy<Value = Step> {
    let data = (any::<bool>(), 0u32..1_400, 0u32..200_000, prop::bool::weighted(0.3), prop::bool::weighted(0.1))
        .prop_map(|(client, len, room, lost, twice)| Step::Data { client, len, room, lost, twice });
    prop_oneof![
        20 => data,
        2 => any::<bool>().prop_map(|client| Step::Rewind { client }),
        1 => any::<bool>().prop_map(|client| Step::KeepAlive { client }),
        1 => any::<bool>().prop_map(|client| Step::Finish { client }),
    ]
}

struct Conversation {
    site: Site,
    gate: End,
    client: Endpoint,
    server: Endpoint,
}

impl Conversation {
    /// Sends one segment through the gate, which must pass it, and delivers it unless it gets lost behind the gate.
    fn pass(&mut self, from_client: bool, repr: Repr<'_>, lost: bool) -> Result<(), TestCaseError> {
        let (port, packet) =
            if from_client { (Port::OUTSIDE, tcp(C, self.gate, repr)) } else { (Port::INSIDE, tcp(S, C, repr)) };
        let out = self.site.send(port, &packet);
        prop_assert_eq!(out.verdict, Verdict::Forward(port.opposite()), "{:?}", repr);
        if !lost {
            let segment = tcp::Packet::new_checked(&out.packet[20..]).unwrap();
            if from_client { &mut self.server } else { &mut self.client }.receive(&segment);
        }
        Ok(())
    }

    fn handshake(&mut self, scaled: bool) -> Result<(), TestCaseError> {
        let (client_isn, server_isn) = (self.client.isn, self.server.isn);
        let scale = |shift| scaled.then(|| WindowScale::new(shift));
        let syn = Repr { window_scale: scale(self.client.shift), ..Repr::new(0, 0, Control::Syn, client_isn) };
        self.server.expected = client_isn;
        self.client.expected = server_isn;
        self.pass(true, syn, false)?;
        let answer = Repr {
            ack: Some(client_isn.wrapping_add(1)),
            window_scale: scale(self.server.shift),
            ..Repr::new(0, 0, Control::Syn, server_isn)
        };
        self.pass(false, answer, false)?;
        (self.client.peer_shift, self.server.peer_shift) =
            if scaled { (self.server.shift, self.client.shift) } else { (0, 0) };
        if !scaled {
            (self.client.shift, self.server.shift) = (0, 0);
        }
        // Windows of SYNs: 65,535 bytes, not scaled.
        self.client.allowed = client_isn.wrapping_add(1 + 65_535);
        self.server.allowed = server_isn.wrapping_add(1 + 65_535);
        self.client.offered = self.server.allowed;
        self.server.offered = self.client.allowed;
        let ack = self.client.data(0, 0, &[]);
        self.pass(true, ack, false)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn honest_endpoints_are_never_hindered(
        isns in any::<(u32, u32)>(),
        shifts in (0u8..=14, 0u8..=14),
        scaled in any::<bool>(),
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut site = Site::new();
        let mut grant = site.grant(TCP, CLIENT);
        grant.bytes = 1 << 40;
        let opened = site.install(grant, TARGET, (22, 22));
        let (client, server) = (Endpoint::new(isns.0, shifts.0), Endpoint::new(isns.1, shifts.1));
        let mut it = Conversation { site, gate: (opened.address, opened.ports.0), client, server };
        it.handshake(scaled)?;
        let bytes = payload(1_400);
        for step in steps {
            match step {
                Step::Data { client, len, room, lost, twice } => {
                    let endpoint = if client { &mut it.client } else { &mut it.server };
                    let repr = endpoint.data(len, room, &bytes);
                    it.pass(client, repr, lost)?;
                    if twice {
                        it.pass(client, repr, lost)?;
                    }
                }
                Step::Rewind { client } => {
                    let endpoint = if client { &mut it.client } else { &mut it.server };
                    endpoint.next = endpoint.una;
                    endpoint.finished = false;
                }
                Step::KeepAlive { client } => {
                    let endpoint = if client { &mut it.client } else { &mut it.server };
                    let window = endpoint.offer(0);
                    let seq = endpoint.una.wrapping_sub(1);
                    let repr = Repr { ack: Some(endpoint.expected), window, ..Repr::new(0, 0, Control::None, seq) };
                    it.pass(client, repr, true)?;
                }
                Step::Finish { client } => {
                    let endpoint = if client { &mut it.client } else { &mut it.server };
                    if !endpoint.finished && before(endpoint.next, endpoint.allowed) {
                        let repr = Repr { control: Control::Fin, ..endpoint.data(0, 0, &[]) };
                        endpoint.next = endpoint.next.wrapping_add(1);
                        if before(endpoint.high, endpoint.next) {
                            endpoint.high = endpoint.next;
                        }
                        endpoint.finished = true;
                        it.pass(client, repr, false)?;
                    }
                }
            }
        }
    }
}
