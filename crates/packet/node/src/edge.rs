//! An edge: gets and renews capabilities for the unmodified hosts behind it.

use super::{
    forward::Forwarder,
    node::{Arrived, Outcome},
};
use alloc::{boxed::Box, vec::Vec};
use sluicegate_bounded::Gauge;
use sluicegate_capability::host::{ClientPolicy, Host, Inbound, Policy, ServerPolicy};
use sluicegate_scheduler::Label;
use sluicegate_wire::{Frame, Instant, Port, Reason, Verdict};

/// Whose requests the edge grants.
pub enum HostPolicy {
    /// Those that answer a host's own.
    Client(ClientPolicy),
    /// Everyone's.
    Server(Box<ServerPolicy>),
}

impl HostPolicy {
    fn as_dyn(&mut self) -> &mut dyn Policy {
        match self {
            Self::Client(policy) => policy,
            Self::Server(policy) => policy.as_mut(),
        }
    }
}

/// The packet path of `role = "edge"`.
pub struct EdgePipeline {
    host: Host,
    policy: HostPolicy,
    pub(crate) forwarder: Forwarder,
}

impl EdgePipeline {
    /// An edge whose hosts are spoken for by `host`, which grants what `policy` allows.
    #[must_use]
    pub const fn new(host: Host, policy: HostPolicy, forwarder: Forwarder) -> Self {
        Self { host, policy, forwarder }
    }

    pub(crate) fn judge(&mut self, now: Instant, arrived: Arrived<'_, '_>) -> Result<Outcome, Reason> {
        if arrived.port == Port::INSIDE { self.outbound(now, arrived) } else { self.inbound(now, arrived) }
    }

    fn outbound(&mut self, now: Instant, Arrived { frame, packet, .. }: Arrived<'_, '_>) -> Result<Outcome, Reason> {
        let verdict = self.forwarder.pass(now, Port::INSIDE, frame, &mut packet.ip);
        if !matches!(verdict, Verdict::Forward(_)) {
            return Outcome::of(verdict, Port::INSIDE, || Label::LEGACY);
        }
        let verdict = match self.host.put(now, self.policy.as_dyn(), frame, &packet.ip) {
            Ok(()) => verdict,
            // The host learns what fits once the header is in front.
            Err(Reason::PacketTooBig) => self.forwarder.refuse_too_big(now, self.host.plain_mtu(), frame, &packet.ip),
            Err(reason) => return Err(reason),
        };
        Outcome::of(verdict, Port::INSIDE, || Label::LEGACY)
    }

    fn inbound(&mut self, now: Instant, Arrived { frame, packet, .. }: Arrived<'_, '_>) -> Result<Outcome, Reason> {
        match self.host.take(now, self.policy.as_dyn(), frame, packet)? {
            // Without a grant the packet is as good as one without a header, and hosts take those.
            Inbound::Deliver | Inbound::Refused | Inbound::Plain => {
                let verdict = self.forwarder.pass(now, Port::OUTSIDE, frame, &mut packet.ip);
                Outcome::of(verdict, Port::OUTSIDE, || Label::LEGACY)
            }
            Inbound::Consumed => Ok(Outcome::Kept),
        }
    }

    pub(crate) fn poll_output(&mut self, now: Instant, frame: &mut Frame<'_>) -> Option<(Port, Label)> {
        self.host.poll_output(now, frame).then_some((Port::OUTSIDE, Label::LEGACY))
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        [self.host.poll_timeout(), self.forwarder.poll_timeout()].into_iter().flatten().min()
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        self.host.handle_timeout(now);
        self.forwarder.handle_timeout(now);
    }

    pub(crate) fn gauges(&self, now: Instant) -> Vec<Gauge> {
        let policy = match &self.policy {
            HostPolicy::Client(_) => Vec::new(),
            HostPolicy::Server(policy) => policy.gauges(now).into(),
        };
        [self.host.gauges(now).into(), policy, self.forwarder.gauges().into()].concat()
    }
}
