//! What a node does with IP packets, by its pipeline.

use super::{
    edge::EdgePipeline,
    gate::GatePipeline,
    node::{Arrived, Outcome},
    router::RouterPipeline,
};
use crate::readings::Reading;
use alloc::{borrow::ToOwned, boxed::Box, vec, vec::Vec};
use core::net::IpAddr;
use sluicegate_bounded::Gauge;
use sluicegate_grant::{Grant, GrantId};
use sluicegate_nat::{Explanation, Probe, Translator};
use sluicegate_scheduler::Label;
use sluicegate_wire::{Frame, Instant, Port, Reason, Verdict};

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
    pub(crate) fn judge(
        &mut self,
        now: Instant,
        arrived: Arrived<'_, '_>,
        translator: &mut Translator,
    ) -> Result<Outcome, Reason> {
        match self {
            Self::Gate(pipeline) => pipeline.judge(now, arrived, translator),
            Self::Router(pipeline) => pipeline.judge(now, arrived, translator),
            Self::Edge(pipeline) => pipeline.judge(now, arrived, translator),
        }
    }

    /// Counts bytes that are no valid IP packet.
    pub(crate) fn count_malformed(&mut self, reason: Reason) {
        match self {
            Self::Gate(pipeline) => pipeline.count_malformed(reason),
            Self::Router(pipeline) => pipeline.count_malformed(reason),
            Self::Edge(_) => {}
        }
    }

    /// A packet that was held or made here: written into `frame`, and where it leaves. Call until `None`.
    pub(crate) fn poll_output(
        &mut self,
        now: Instant,
        frame: &mut Frame<'_>,
        translator: &mut Translator,
    ) -> Option<(Port, Label)> {
        if let Some(out) = translator.poll_output(now, frame) {
            let label = match self {
                Self::Gate(pipeline) => pipeline.held_label(frame.bytes()),
                // Parts of packets that were too long: nothing of them can be checked further on.
                Self::Router(_) | Self::Edge(_) => Label::LEGACY,
            };
            return Some((out, label));
        }
        match self {
            Self::Gate(pipeline) => pipeline.poll_output(now, frame),
            Self::Router(_) => None,
            Self::Edge(pipeline) => pipeline.poll_output(now, frame),
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

    /// A grant ended by itself.
    pub fn ended(&mut self, id: GrantId) {
        if let Self::Gate(pipeline) = self {
            pipeline.ended(id);
        }
    }

    /// A grant to this address was revoked.
    pub fn revoked(&mut self, now: Instant, id: GrantId, ends: Option<(IpAddr, IpAddr)>) {
        if let Self::Gate(pipeline) = self {
            pipeline.revoked(now, id, ends);
        }
    }

    /// What becomes of any packet, for roles that do not ask who sent it.
    pub fn explain(&self, probe: &Probe) -> Option<Explanation> {
        let step = match self {
            Self::Gate(_) => return None,
            Self::Router(_) => {
                "This node is a router: it forwards every packet, and its capability header decides the lane."
            }
            Self::Edge(_) => {
                "This node is an edge: it forwards every packet, and adds or takes off capability headers."
            }
        };
        let verdict = Verdict::Forward(probe.port.opposite());
        Some(Explanation { verdict, pinhole: None, line: None, steps: vec![step.to_owned()] })
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
