//! Nodes that only tests need: a router without capabilities, and a source of datagrams.
#![allow(dead_code, reason = "each test file uses some")]

use std::{net::IpAddr, time::Duration};

use sluicegate_sim::{
    Interface, Io, Node, Rng, packet,
    router::{Routes, next_hop},
};
use sluicegate_wire::{
    FrameBuf, Instant, IpProtocol,
    capability::{Algorithm, CAPABILITIES_MAX, Capability, ClientId, PathId, Repr, Slot, SlotList, shim},
    udp,
};

/// A router that forwards every packet alike; the queues are the links' own.
#[derive(Debug)]
pub(crate) struct PlainRouter(pub(crate) Routes);

impl Node for PlainRouter {
    fn on_packet(&mut self, io: &mut Io<'_>, _from: Interface, mut packet: FrameBuf) {
        if let Some((to, _)) = next_hop(&self.0, &mut packet) {
            io.send(to, packet);
        }
    }
}

/// Datagrams at a steady rate.
#[derive(Debug)]
pub(crate) struct Source {
    ends: (IpAddr, IpAddr),
    packet_bytes: usize,
    gap: Duration,
    next: Instant,
    stop: Instant,
    forged: Option<u8>,
}

impl Source {
    /// IPv4 packets of `packet_bytes` bytes at `rate_bps`, from time zero until before `stop`.
    pub(crate) fn new(ends: (IpAddr, IpAddr), packet_bytes: usize, rate_bps: u64, stop: Instant) -> Self {
        let gap = Duration::from_nanos(packet_bytes as u64 * 8_000_000_000 / rate_bps);
        Self { ends, packet_bytes, gap, next: Instant::ZERO, stop, forged: None }
    }

    /// The same in requests with so many path identifiers already in place: random ones, new for each packet.
    pub(crate) fn forging(self, forged: u8) -> Self {
        Self { forged: Some(forged), ..self }
    }
}

impl Node for Source {
    fn on_packet(&mut self, _: &mut Io<'_>, _: Interface, _: FrameBuf) {}

    fn poll_timeout(&self) -> Option<Instant> {
        (self.next < self.stop).then_some(self.next)
    }

    fn on_timeout(&mut self, io: &mut Io<'_>) {
        self.next = self.next + self.gap;
        let payload = &vec![0; self.packet_bytes - 28];
        let datagram = udp::Repr { src_port: 5_004, dst_port: 5_004, payload };
        let mut packet = packet::ip(self.ends.0, self.ends.1, &datagram);
        if let Some(forged) = self.forged {
            let header = forged_request(forged, io.rng());
            packet.with(|frame| shim::insert(frame, &header, shim::Carriage::Native)).unwrap();
        }
        io.send(Interface(0), packet);
    }
}

/// A request whose first slots hold what no router put there.
fn forged_request(forged: u8, rng: &mut Rng) -> Repr {
    let slots = CAPABILITIES_MAX as u8;
    let mut slot = || Slot { path_id: PathId(rng.bits() as u16 | 1), capability: Capability(rng.bits()) };
    let entries: SlotList = (0..forged).map(|_| slot()).collect();
    let (algorithm, client_id, upper) = (Algorithm::SipHash, ClientId::NONE, IpProtocol::UDP);
    Repr::Request { algorithm, client_id, slots, entries, demoted: false, upper, ret: None }
}
