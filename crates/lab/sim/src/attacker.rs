//! Senders that mean harm.

use std::{net::IpAddr, time::Duration};

use sluicegate_wire::{
    FrameBuf, Instant, IpProtocol,
    capability::{
        Algorithm, CAPABILITIES_MAX, Capability, ClientId, FlowNonce, Kind, PathId, Repr, Return, Slot, SlotList, shim,
    },
    ip::Summary,
    udp,
};

use crate::{Interface, Io, Node, packet, rng::Rng};

/// Payload of a flood's datagrams at most, in bytes.
const PAYLOAD_MAX: usize = 1_400;
/// Headers of a datagram over IPv4, in bytes.
const HEADERS: usize = 28;
/// Packets that show their capabilities before the nonce alone is sent.
const LISTED: u32 = 8;
/// How long a granted attacker waits for the answer to its request before it asks again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// What an attacker floods with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flood {
    /// Plain packets.
    Legacy,
    /// Requests, with this many path identifiers already in place: random ones, new for each packet.
    Requests {
        /// How many, at most 7.
        forged: u8,
    },
    /// Asks once, and from the answer on floods with what it was granted, for ever. It neither renews nor stops.
    Authorised,
}

/// An attacker: one host that sends at a steady rate.
#[derive(Debug)]
pub struct Attacker {
    address: IpAddr,
    target: IpAddr,
    flood: Flood,
    packet_bytes: usize,
    gap: Duration,
    next: Instant,
    stop: Instant,
    grant: Option<Grant>,
    sent: u64,
    first_authorised: Option<Instant>,
}

#[derive(Debug)]
struct Grant {
    ret: Return,
    nonce: FlowNonce,
    listed: u32,
}

impl Attacker {
    /// Sends packets of `packet_bytes` bytes (IPv4, capability header left out) at `rate_bps` from `start` until before
    /// `stop`.
    #[must_use]
    pub fn new(
        (address, target): (IpAddr, IpAddr),
        flood: Flood,
        packet_bytes: usize,
        rate_bps: u64,
        (start, stop): (Instant, Instant),
    ) -> Self {
        let gap = Duration::from_nanos((packet_bytes as u64 * 8_000_000_000 / rate_bps.max(1)).max(1));
        let (grant, first_authorised) = (None, None);
        Self { address, target, flood, packet_bytes, gap, next: start, stop, grant, sent: 0, first_authorised }
    }

    /// Packets sent.
    #[must_use]
    pub const fn sent(&self) -> u64 {
        self.sent
    }

    /// When the flood with a capability began.
    #[must_use]
    pub const fn first_authorised(&self) -> Option<Instant> {
        self.first_authorised
    }

    fn shoot(&mut self, io: &mut Io<'_>) {
        static ZEROS: [u8; PAYLOAD_MAX] = [0; PAYLOAD_MAX];
        let now = io.now();
        let header = match (self.flood, &mut self.grant) {
            (Flood::Legacy, _) => None,
            (Flood::Requests { forged }, _) => Some(forged_request(forged, io.rng())),
            (Flood::Authorised, Some(grant)) => {
                self.first_authorised.get_or_insert(now);
                Some(grant.header())
            }
            (Flood::Authorised, None) => {
                self.next = now + ASK_AGAIN;
                let request =
                    Repr::request(Algorithm::SipHash, ClientId::NONE, CAPABILITIES_MAX as u8, IpProtocol::UDP);
                self.send(io, &ZEROS[..16], Some(&request));
                return;
            }
        };
        self.next = self.next + self.gap;
        let len = self.packet_bytes.saturating_sub(HEADERS).min(PAYLOAD_MAX);
        self.send(io, &ZEROS[..len], header.as_ref());
    }

    fn send(&mut self, io: &mut Io<'_>, payload: &[u8], header: Option<&Repr>) {
        let packet = self.packet(payload, header);
        self.sent += 1;
        io.send(Interface(0), packet);
    }

    fn packet(&self, payload: &[u8], header: Option<&Repr>) -> FrameBuf {
        let datagram = udp::Repr { src_port: 5_004, dst_port: 5_004, payload };
        let mut packet = packet::ip(self.address, self.target, &datagram);
        if let Some(header) = header {
            packet
                .with(|frame| shim::insert(frame, header, shim::Carriage::Native))
                .expect("an attacker's header fits its packet");
        }
        packet
    }

    /// The answer to the request, if the packet has one.
    fn learn(&mut self, io: &mut Io<'_>, bytes: &[u8]) -> Option<()> {
        let summary = Summary::parse(bytes).ok()?;
        let found = shim::find(&summary, bytes).ok()??;
        let ret = found.packet(bytes).return_info()?;
        let (limits, list) = ret.list.as_ref()?;
        if self.flood == Flood::Authorised && self.grant.is_none() && limits.is_some() && !list.is_empty() {
            self.grant = Some(Grant { ret, nonce: FlowNonce::from_low_bits(io.rng().bits()), listed: 0 });
            self.next = io.now();
        }
        Some(())
    }
}

impl Grant {
    fn header(&mut self) -> Repr {
        let (algorithm, client_id) = (Algorithm::SipHash, ClientId::NONE);
        let nonce = Repr::nonce_only(algorithm, client_id, self.nonce, IpProtocol::UDP);
        self.listed += 1;
        match (self.ret.list, nonce) {
            (Some((limits, list)), Repr::Regular { nonce, pointer, demoted, upper, ret, .. })
                if self.listed <= LISTED =>
            {
                let kind = Kind::Capabilities;
                Repr::Regular { algorithm, kind, nonce, client_id, limits, list, pointer, demoted, upper, ret }
            }
            (_, nonce) => nonce,
        }
    }
}

/// A request whose first slots hold what no router put there.
fn forged_request(forged: u8, rng: &mut Rng) -> Repr {
    let slots = CAPABILITIES_MAX as u8;
    let mut slot = || Slot { path_id: PathId(rng.bits() as u16 | 1), capability: Capability(rng.bits()) };
    let entries: SlotList = (0..forged.min(slots - 1)).map(|_| slot()).collect();
    let (algorithm, client_id, upper) = (Algorithm::SipHash, ClientId::NONE, IpProtocol::UDP);
    Repr::Request { algorithm, client_id, slots, entries, demoted: false, upper, ret: None }
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
