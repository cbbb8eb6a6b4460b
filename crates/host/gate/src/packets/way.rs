//! What a node does with IP packets, by its role.

use super::{edge::EdgeWay, gate::GateWay, path::Fate, router::RouterWay};
use crate::board::{Gauge, Reading};
use sluicegate_grant::{Grant, GrantId};
use sluicegate_nat::{Explanation, Probe, Translator};
use sluicegate_scheduler::Label;
use sluicegate_wire::{Frame, Instant, Port, Reason, Verdict};
use std::net::IpAddr;

/// The part of the packet path that the role decides.
pub(crate) enum Way {
    Gate(Box<GateWay>),
    Router(Box<RouterWay>),
    Edge(Box<EdgeWay>),
}

impl Way {
    /// Judges an IP packet that came in by `port` from the neighbour with that link address.
    pub(crate) fn judge(
        &mut self,
        now: Instant,
        port: Port,
        neighbour: u64,
        frame: &mut Frame<'_>,
        translator: &mut Translator,
    ) -> Result<Fate, Reason> {
        match self {
            Self::Gate(way) => way.judge(now, port, neighbour, frame, translator),
            Self::Router(way) => way.judge(now, port, neighbour, frame, translator),
            Self::Edge(way) => way.judge(now, port, frame, translator),
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
                Self::Gate(way) => way.held_label(frame.bytes()),
                // Parts of packets that were too long: nothing of them can be checked further on.
                Self::Router(_) | Self::Edge(_) => Label::LEGACY,
            };
            return Some((out, label));
        }
        match self {
            Self::Gate(way) => way.poll_output(now, frame),
            Self::Router(_) => None,
            Self::Edge(way) => way.poll_output(now, frame),
        }
    }

    /// When [`Self::poll_output`] or [`Self::handle_timeout`] has something to do.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Self::Gate(way) => way.poll_timeout(),
            Self::Router(way) => way.poll_timeout(),
            Self::Edge(way) => way.poll_timeout(),
        }
    }

    /// Does what is due.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        match self {
            Self::Gate(way) => way.handle_timeout(now),
            Self::Router(way) => way.handle_timeout(now),
            Self::Edge(way) => way.handle_timeout(now),
        }
    }

    /// Adds what the role counts.
    pub(crate) fn report(&self, reading: &mut Reading) {
        match self {
            Self::Gate(way) => way.report(reading),
            Self::Router(way) => way.report(reading),
            Self::Edge(_) => {}
        }
    }

    /// A grant was opened or renewed.
    pub(crate) fn opened(&mut self, grant: &Grant) {
        if let Self::Gate(way) = self {
            way.opened(grant);
        }
    }

    /// A grant ended by itself.
    pub(crate) fn ended(&mut self, id: GrantId) {
        if let Self::Gate(way) = self {
            way.ended(id);
        }
    }

    /// A grant to this address was revoked.
    pub(crate) fn revoked(&mut self, now: Instant, id: GrantId, ends: Option<(IpAddr, IpAddr)>) {
        if let Self::Gate(way) = self {
            way.revoked(now, id, ends);
        }
    }

    /// What becomes of any packet, for roles that do not ask who sent it.
    pub(crate) fn explain(&self, probe: &Probe) -> Option<Explanation> {
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
            Self::Gate(way) => way.gauges(now),
            Self::Router(way) => way.gauges(),
            Self::Edge(way) => way.gauges(now),
        }
    }
}
