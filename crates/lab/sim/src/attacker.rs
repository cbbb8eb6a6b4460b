//! Senders that mean harm.

use std::{net::IpAddr, time::Duration};

use sluicegate_wire::{
    FrameBuf, Instant, IpProtocol,
    capability::{Algorithm, CAPABILITIES_MAX, CapabilityList, ClientId, FlowNonce, Kind, Limits, Repr, shim},
    udp,
};

use crate::{Interface, Io, Node, packet};

/// Payload of a flood's datagrams at most, in bytes.
const PAYLOAD_MAX: usize = 1_400;
/// Headers of a datagram over IPv4, in bytes.
const HEADERS: usize = 28;
/// Packets that show their capabilities before the nonce alone is sent.
const LISTED: u32 = 8;
/// How long a granted attacker waits for the answer to its request before it asks again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// An attacker: one host that asks once, and from the answer on floods at a steady rate with what it was granted, for ever.
/// It neither renews nor stops.
#[derive(Debug)]
pub struct Attacker {
    address: IpAddr,
    target: IpAddr,
    packet_bytes: usize,
    gap: Duration,
    next: Instant,
    stop: Instant,
    grant: Option<Grant>,
}

#[derive(Debug)]
struct Grant {
    limits: Limits,
    list: CapabilityList,
    nonce: FlowNonce,
    listed: u32,
}

impl Attacker {
    /// Sends packets of `packet_bytes` bytes (IPv4, capability header left out) at `rate_bps` from `start` until before
    /// `stop`.
    #[must_use]
    pub fn new(
        (address, target): (IpAddr, IpAddr),
        packet_bytes: usize,
        rate_bps: u64,
        (start, stop): (Instant, Instant),
    ) -> Self {
        let gap = Duration::from_nanos((packet_bytes as u64 * 8_000_000_000 / rate_bps.max(1)).max(1));
        Self { address, target, packet_bytes, gap, next: start, stop, grant: None }
    }

    fn shoot(&mut self, io: &mut Io<'_>) {
        static ZEROS: [u8; PAYLOAD_MAX] = [0; PAYLOAD_MAX];
        let (header, payload) = match &mut self.grant {
            Some(grant) => {
                self.next = self.next + self.gap;
                (grant.header(), &ZEROS[..self.packet_bytes.saturating_sub(HEADERS).min(PAYLOAD_MAX)])
            }
            None => {
                self.next = io.now() + ASK_AGAIN;
                let slots = CAPABILITIES_MAX as u8;
                (Repr::request(Algorithm::SipHash, ClientId::NONE, slots, IpProtocol::UDP), &ZEROS[..16])
            }
        };
        let datagram = udp::Repr { src_port: 5_004, dst_port: 5_004, payload };
        let mut packet = packet::ip(self.address, self.target, &datagram);
        let inserted = packet.with(|frame| shim::insert(frame, &header, shim::Carriage::Native));
        inserted.expect("an attacker's header fits its packet");
        io.send(Interface(0), packet);
    }

    /// The answer to the request, if the packet has one.
    fn learn(&mut self, io: &mut Io<'_>, bytes: &[u8]) -> Option<()> {
        let (limits, list) = packet::header(bytes)?.return_info()?.list?;
        if self.grant.is_none() && !list.is_empty() {
            let (limits, nonce) = (limits?, FlowNonce::from_low_bits(io.rng().bits()));
            self.grant = Some(Grant { limits, list, nonce, listed: 0 });
            self.next = io.now();
        }
        Some(())
    }
}

impl Grant {
    fn header(&mut self) -> Repr {
        let nonce = Repr::nonce_only(Algorithm::SipHash, ClientId::NONE, self.nonce, IpProtocol::UDP);
        self.listed += 1;
        if self.listed > LISTED { nonce } else { nonce.with_list(Kind::Capabilities, self.limits, self.list) }
    }
}

impl Node for Attacker {
    fn on_packet(&mut self, io: &mut Io<'_>, _from: Interface, packet: FrameBuf) {
        self.learn(io, packet.bytes());
    }

    fn poll_timeout(&self) -> Option<Instant> {
        (self.next < self.stop).then_some(self.next)
    }

    fn on_timeout(&mut self, io: &mut Io<'_>) {
        if io.now() >= self.next {
            self.shoot(io);
        }
    }
}
