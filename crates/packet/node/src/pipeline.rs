//! What a node does with IP packets, by its pipeline.

use super::{
    edge::EdgePipeline,
    firewall::Firewall,
    forward::Forwarder,
    gate::GatePipeline,
    node::{Arrived, Outcome},
    router::RouterPipeline,
};
use crate::readings::Reading;
use alloc::{borrow::ToOwned, boxed::Box, vec, vec::Vec};
use sluicegate_bounded::Gauge;
use sluicegate_grant::{Grant, GrantId};
use sluicegate_nat::{Explanation, Probe};
use sluicegate_pinhole::Ended;
use sluicegate_scheduler::Label;
use sluicegate_wire::{Frame, Instant, Port, Reason, UnixTime, Verdict};

/// What a node does with IP packets besides sending them on.
pub enum Pipeline {
    /// In front of services, to which nothing passes without permission.
    Gate(Box<GatePipeline>),
    /// Anywhere on the way: checks and marks.
    Router(Box<RouterPipeline>),
    /// In front of hosts that know nothing of capabilities.
    Edge(Box<EdgePipeline>),
}

impl Pipeline {
    /// Judges an IP packet.
    pub(crate) fn judge(&mut self, now: Instant, arrived: Arrived<'_, '_>) -> Result<Outcome, Reason> {
        match self {
            Self::Gate(pipeline) => pipeline.judge(now, arrived),
            Self::Router(pipeline) => pipeline.judge(now, arrived),
            Self::Edge(pipeline) => pipeline.judge(now, arrived),
        }
    }

    /// The firewall of a gate; other roles ask nobody for permission.
    pub const fn firewall(&self) -> Option<&Firewall> {
        if let Self::Gate(pipeline) = self { Some(&pipeline.firewall) } else { None }
    }

    /// As [`Self::firewall`], to change what it permits.
    pub const fn firewall_mut(&mut self) -> Option<&mut Firewall> {
        if let Self::Gate(pipeline) = self { Some(&mut pipeline.firewall) } else { None }
    }

    const fn forwarder(&self) -> &Forwarder {
        match self {
            Self::Gate(pipeline) => &pipeline.firewall.forwarder,
            Self::Router(pipeline) => &pipeline.forwarder,
            Self::Edge(pipeline) => &pipeline.forwarder,
        }
    }

    /// A packet that was held or made here: written into `frame`, and where it leaves. Call until `None`.
    pub(crate) fn poll_output(&mut self, now: Instant, frame: &mut Frame<'_>) -> Option<(Port, Label)> {
        // Parts of packets that were too long: nothing of them can be checked further on.
        let part = |out| (out, Label::LEGACY);
        match self {
            Self::Gate(pipeline) => pipeline.poll_output(now, frame),
            Self::Router(pipeline) => pipeline.forwarder.poll_output(frame).map(part),
            Self::Edge(pipeline) => match pipeline.forwarder.poll_output(frame) {
                Some(out) => Some(part(out)),
                None => pipeline.poll_output(now, frame),
            },
        }
    }

    /// When [`Self::poll_output`] or [`Self::handle_timeout`] has something to do.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Self::Gate(pipeline) => pipeline.poll_timeout(),
            Self::Router(pipeline) => pipeline.poll_timeout(),
            Self::Edge(pipeline) => pipeline.poll_timeout(),
        }
    }

    /// Does what is due.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        match self {
            Self::Gate(pipeline) => pipeline.handle_timeout(now),
            Self::Router(pipeline) => pipeline.handle_timeout(now),
            Self::Edge(pipeline) => pipeline.handle_timeout(now),
        }
    }

    /// Adds what the role counts.
    pub(crate) fn report(&self, reading: &mut Reading) {
        for (total, dropped) in reading.dropped.iter_mut().zip(self.forwarder().dropped()) {
            *total += dropped;
        }
        match self {
            Self::Gate(pipeline) => pipeline.report(reading),
            Self::Router(pipeline) => pipeline.report(reading),
            Self::Edge(_) => {}
        }
    }

    /// A grant was opened or renewed.
    pub fn opened(&mut self, grant: &Grant) {
        if let Self::Gate(pipeline) = self {
            pipeline.opened(grant);
        }
    }

    /// What happened unasked at a gate. Call until `None`.
    pub fn poll_event(&mut self) -> Option<Ended> {
        if let Self::Gate(pipeline) = self { pipeline.poll_event() } else { None }
    }

    /// Ends a grant at a gate, and what was made of it; gives its account, see [`sluicegate_nat::Translator::revoke`].
    pub fn revoke(&mut self, now: Instant, id: GrantId) -> Option<Ended> {
        if let Self::Gate(pipeline) = self { pipeline.revoke(now, id) } else { None }
    }

    /// What would become of a packet, and why.
    pub fn explain(&self, now: Instant, unix: UnixTime, probe: &Probe) -> Explanation {
        let step = match self {
            Self::Gate(pipeline) => return pipeline.firewall.translator.explain(now, unix, probe),
            Self::Router(_) => {
                "This node is a router: it forwards every packet, and its capability header decides the lane."
            }
            Self::Edge(_) => {
                "This node is an edge: it forwards every packet, and adds or takes off capability headers."
            }
        };
        let verdict = Verdict::Forward(probe.port.opposite());
        Explanation { verdict, pinhole: None, steps: vec![step.to_owned()] }
    }

    /// Fill of the role's tables.
    pub(crate) fn gauges(&self, now: Instant) -> Vec<Gauge> {
        match self {
            Self::Gate(pipeline) => pipeline.gauges(now),
            Self::Router(pipeline) => pipeline.gauges(),
            Self::Edge(pipeline) => pipeline.gauges(now),
        }
    }
}
