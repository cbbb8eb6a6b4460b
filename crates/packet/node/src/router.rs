//! A router: checks the capabilities of whatever passes, in both directions, and forwards everything.

use super::{
    forward::Forwarder,
    labels::Labels,
    node::{Arrived, Outcome},
};
use crate::readings::Reading;
use alloc::vec::Vec;
use sluicegate_bounded::Gauge;
use sluicegate_capability::router::{Arrival, Counters, Router};
use sluicegate_wire::{Instant, Reason};

/// The packet path of `role = "router"`.
pub struct RouterPipeline {
    router: Router,
    pub(crate) forwarder: Forwarder,
    labels: Labels,
    verified_source: bool,
}

impl RouterPipeline {
    /// A router that checks capabilities with `router`. `verified_source`: the networks in front of it refuse forged sources.
    #[must_use]
    pub const fn new(router: Router, forwarder: Forwarder, labels: Labels, verified_source: bool) -> Self {
        Self { router, forwarder, labels, verified_source }
    }

    pub(crate) fn judge(
        &mut self,
        now: Instant,
        Arrived { port, neighbour, frame, packet }: Arrived<'_, '_>,
    ) -> Result<Outcome, Reason> {
        let arrival = Arrival { port, neighbour, verified_source: self.verified_source };
        let class = self.router.judge(now, &arrival, frame, packet)?;
        let verdict = self.forwarder.pass(now, port, frame, &mut packet.ip);
        Outcome::of(verdict, port, || self.labels.label(&class, frame.bytes()))
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        [self.router.poll_timeout(), self.forwarder.poll_timeout()].into_iter().flatten().min()
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        self.router.handle_timeout(now);
        self.forwarder.handle_timeout(now);
    }

    pub(crate) fn report(&self, reading: &mut Reading) {
        report(self.router.counters(), reading);
    }

    pub(crate) fn gauges(&self) -> Vec<Gauge> {
        self.router.gauges().into_iter().chain(self.forwarder.gauges()).collect()
    }
}

/// What a capability router counts.
pub(crate) fn report(counters: &Counters, reading: &mut Reading) {
    let [request, capabilities, nonce, renewal] = counters.passed;
    reading.passed = [request, capabilities, nonce, renewal, counters.plain];
    reading.demoted = counters.demoted;
}
