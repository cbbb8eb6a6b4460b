use std::net::IpAddr;

use sluicegate_capability::router::{Arrival, Class, Counters, Router, RouterConfig};
use sluicegate_capability::secrets::Seed;
use sluicegate_scheduler::Label;
use sluicegate_wire::{FrameBuf, Instant, Port, capability::Limits, ip::octets};

use super::{Routes, next_hop};
use crate::{Interface, Io, Node, Rng};

/// Room for capability lines.
const LINES_MAX: u32 = 4_096;

/// The product's capability router in the world: judges every packet and hands it to its link under the lane that it
/// earned.
#[derive(Debug)]
pub struct CapabilityRouter {
    routes: Routes,
    inside: Interface,
    router: Router,
    /// Outlives restarts, as a machine's source of randomness does.
    rng: Rng,
    dropped: u64,
}

impl CapabilityRouter {
    /// A router with these routes that has seen nothing. On the far side of `inside`, towards the protected link, everyone is
    /// trusted not to forge path identifiers; requests from all others get one, by interface.
    #[must_use]
    pub fn new(routes: Routes, inside: Interface, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let router = fresh(LINES_MAX, &mut rng);
        Self { routes, inside, router, rng, dropped: 0 }
    }

    /// What happened to packets since the start, or the last restart.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        self.router.counters()
    }

    /// Packets that were no IP packets or had no hop left.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }
}

/// What the link must know of a packet: regular ones are fair to their destinations (TVA III-I).
fn label(class: &Class, dst: IpAddr) -> Label {
    match class {
        Class::Request { path } => Label::request(*path),
        Class::Regular { .. } => Label::regular(u128::from_be_bytes(octets(dst)), 1),
        Class::Legacy { .. } => Label::LEGACY,
    }
}

/// The product's router for itself, which has seen nothing.
pub(crate) fn fresh(lines_max: u32, rng: &mut Rng) -> Router {
    let settings = RouterConfig {
        lines_max,
        lines6_max: lines_max,
        revocations_max: 1_024,
        boundary: [true, false],
        // The paper's slowest capability.
        least: const { Limits::new(4, 10).expect("a possible N and T") },
        seed: Seed(rng.seed()),
        tag_key: rng.key(),
        first_seconds: rng.below(1 << 31),
        started_at: Instant::ZERO,
    };
    Router::new(settings, rng.key())
}

impl Node for CapabilityRouter {
    fn on_packet(&mut self, io: &mut Io<'_>, from: Interface, mut packet: FrameBuf) {
        let port = if from == self.inside { Port::INSIDE } else { Port::OUTSIDE };
        let arrival = Arrival { port, neighbour: from.0 as u64 + 1, verified_source: false };
        let now = io.now();
        let judged = packet.with(|frame| self.router.on_packet(now, &arrival, frame));
        match (judged, next_hop(&self.routes, &mut packet)) {
            (Ok(class), Some((to, dst))) => io.send_as(to, label(&class, dst), packet),
            _ => self.dropped += 1,
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.router.poll_timeout()
    }

    fn on_timeout(&mut self, io: &mut Io<'_>) {
        self.router.handle_timeout(io.now());
    }

    fn restart(&mut self, now: Instant) {
        self.router = fresh(LINES_MAX, &mut self.rng);
        self.router.handle_timeout(now);
    }
}
