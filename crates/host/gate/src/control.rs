//! The handle by which the API, the metrics endpoint and the terminal ask and steer a running gate.

use crate::{
    clock,
    config::{Config, protocol_label},
    error::ControlError,
    feed::usage,
    ledger::Entry,
    metrics,
    packets::{COMMANDS_MAX, Command},
    shared::{Shared, WAITING_MAX},
    state::Saved,
};
use sluicegate_api::{
    FlowTrace, GateStatus, GrantState, GrantStatus, Label, LaneStatus, PortStatus, RecentDrop, Role, RouterStatus,
    SavedStatus, ServiceStatus, TableStatus,
};
use sluicegate_bounded::Gauge;
use sluicegate_datapath::LocalRule;
use sluicegate_feed::Selector;
use sluicegate_grant::GrantId;
use sluicegate_nat::Probe;
use sluicegate_node::{DroppedPacket, KINDS, LANES, LaneReading, Reading};
use sluicegate_pinhole::Tuple;
use sluicegate_policy::ServiceDefault;
use sluicegate_telemetry::Metric;
use sluicegate_wire::{Instant, Port, Reason, Verdict};
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, PoisonError, atomic::Ordering::Relaxed},
};

/// A running gate's control handle. Cheap to clone.
#[derive(Clone)]
pub struct Control {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").field("gate", &self.shared.config.name).finish_non_exhaustive()
    }
}

impl Control {
    pub(crate) const fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    pub(crate) fn config(&self) -> &Config {
        &self.shared.config
    }

    /// How the gate is doing. Reads published numbers only; never waits for the packet thread.
    #[must_use]
    pub fn status(&self) -> GateStatus {
        let shared = &*self.shared;
        let now = clock::monotonic();
        let reading = shared.published.reading();
        let gauges = shared.published.gauges().into_iter().chain(self.queues());
        let ports = [("outside", Port::OUTSIDE), ("inside", Port::INSIDE)].map(|(port, index)| {
            let sent = reading.sent[usize::from(index.0)];
            PortStatus { port: port.into(), sent_packets: sent.packets, sent_bytes: sent.bytes }
        });
        // Each lock is let go of before the next is taken.
        let grants = shared.books.read().grants_len();
        let journal_error = shared.books.error();
        let saved = shared.saved.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut status = GateStatus {
            gate: shared.config.name.clone(),
            role: shared.config.role,
            mode: shared.mode(),
            backend: shared.backend.0.to_owned(),
            backend_why: shared.backend.1.clone(),
            outside: shared.config.outside.clone(),
            inside: shared.config.inside.clone(),
            addresses: shared.config.addresses.clone(),
            uptime_s: now.since(shared.started).as_secs(),
            heartbeat_age_ms: shared.published.heartbeat().map(|at| millis(now, at)),
            closed: shared.published.closed(),
            longest_turn_us: reading.turn[0].div_ceil(1_000),
            turn_looks: reading.turn[1],
            received_packets: reading.received,
            ports: ports.into(),
            dropped: by_reason(&reading.dropped),
            observed: by_reason(&reading.observed),
            lanes: lanes(&reading),
            router: (shared.config.role != Role::Edge).then(|| router(&reading)),
            tables: gauges.map(|Gauge { name, used, max }| TableStatus { table: name.into(), used, max }).collect(),
            services: self.services(),
            grants,
            feeds: shared.feeds.iter().map(|feed| feed.status(now)).collect(),
            saved: saved_status(now, saved, journal_error),
            alarms: Vec::new(),
        };
        status.alarms = metrics::alarms(&status);
        status
    }

    /// The queues between the tasks, the fullest of each kind.
    fn queues(&self) -> [Gauge; 2] {
        let shared = &*self.shared;
        let outbox = shared.feeds.iter().map(|feed| WAITING_MAX - feed.outbox.capacity()).max().unwrap_or(0);
        [
            Gauge::of("control_questions", shared.commander.waiting(), COMMANDS_MAX),
            Gauge::of("feed_outbox", outbox, WAITING_MAX),
        ]
    }

    fn services(&self) -> Vec<ServiceStatus> {
        let ledger = self.shared.books.read();
        let described = ledger.services().map(|listed| ServiceStatus {
            service: listed.service.name.clone(),
            mode: listed.service.mode,
            address: listed.service.address,
            open: listed.service.default == ServiceDefault::Open,
            signalling: self.shared.standing(&listed.service.name).map(|at| at.to_string()),
        });
        described.collect()
    }

    /// The open grants, by id, with what they have used.
    pub async fn grants(&self) -> Vec<GrantStatus> {
        let ids: Vec<GrantId> = self.shared.books.read().grants().map(|(id, _)| id).collect();
        let usage = usage::of(&self.shared, &ids).await;
        let ledger = self.shared.books.read();
        let described = ids.iter().filter_map(|id| {
            let used = usage.get(id);
            let (bytes_used, flows) = (used.map(|used| used.bytes_used), used.map(|used| used.flows));
            Some(GrantStatus { bytes_used, flows, ..self.describe(ledger.grant(*id)?) })
        });
        described.collect()
    }

    /// Ends the selected grants of all issuers now, and tells their frontends. Returns how many there were.
    ///
    /// # Errors
    /// [`ControlError`] if the packet thread cannot take the request; nothing ended then.
    pub async fn revoke(&self, selector: &Selector) -> Result<usize, ControlError> {
        let ids = self.shared.books.read().select(selector, None);
        self.shared.revoke(ids).await
    }

    /// Switches between only counting strangers' packets (`true`) and dropping them. Not kept over a restart.
    ///
    /// # Errors
    /// [`ControlError`] if the packet thread cannot take the request; the mode is unchanged then.
    pub async fn observe(&self, on: bool) -> Result<(), ControlError> {
        self.shared.commander.call(|answer| Command::Observe { on, answer }).await?;
        self.shared.observing.store(on, Relaxed);
        Ok(())
    }

    /// What would happen to this packet now, why, and what happened to those like it. Ports of zero in the probe stand
    /// for any among the recent drops.
    ///
    /// # Errors
    /// [`ControlError`] if the packet thread cannot take the request.
    pub async fn trace(&self, probe: Probe) -> Result<FlowTrace, ControlError> {
        let unix = clock::unix();
        let explained = self.shared.commander.call(|answer| Command::Explain { probe, unix, answer }).await?;
        let now = clock::monotonic();
        let recent = explained.recent.iter().map(|drop| recent(now, drop)).collect();
        let explanation = explained.explanation;
        let reason = if let Verdict::Drop(reason) = explanation.verdict { Some(reason) } else { None };
        if reason == Some(Reason::NoPinhole)
            && let Some(entry) = self.local_entry(&probe)
        {
            return Ok(FlowTrace {
                verdict: "received by the gate's own host".to_owned(),
                reason: None,
                explanation: None,
                grant: None,
                steps: vec![format!("`local` admits it, up to {} packets a second", entry.rate_pps)],
                recent,
            });
        }
        let ledger = self.shared.books.read();
        Ok(FlowTrace {
            verdict: verdict_text(explanation.verdict),
            reason: reason.map(|reason| reason.label().into()),
            explanation: reason.map(|reason| reason.explanation().into()),
            grant: explanation.pinhole.and_then(|id| Some(self.describe(ledger.grant(id)?))),
            steps: explanation.steps.iter().map(ToString::to_string).collect(),
            recent,
        })
    }

    /// A grant without what the packet thread knows of it.
    fn describe(&self, entry: &Entry) -> GrantStatus {
        let grant = &entry.delta.grant;
        GrantStatus {
            id: grant.id,
            user: entry.delta.user.clone(),
            service: entry.delta.service.clone(),
            gate: self.shared.config.name.clone(),
            client: grant.client_address,
            mode: grant.least_mode,
            protocol: grant.protocol,
            target: entry.delta.target,
            target_ports: entry.delta.target_ports,
            gate_address: Some(entry.address),
            gate_ports: entry.ports,
            not_before: grant.not_before.0,
            not_after: grant.not_after.0,
            bytes_max: grant.bytes,
            bytes_used: None,
            flows: None,
            state: GrantState::Open,
        }
    }

    /// The entry of `local` that admits this packet to an address of the gate's.
    fn local_entry(&self, probe: &Probe) -> Option<LocalRule> {
        let (config, Tuple { protocol, dst, .. }) = (&self.shared.config, probe.tuple);
        let fits = |rule: &&LocalRule| {
            rule.protocol == protocol
                && (rule.first..=rule.last).contains(&dst.1)
                && rule.side.has(probe.port)
                && rule.address.map_or_else(|| config.addresses.contains(&dst.0), |address| address == dst.0)
        };
        config.local.iter().find(fits).copied()
    }

    /// Every counter and gauge, for the metrics endpoint.
    #[must_use]
    pub fn metrics(&self) -> Vec<Metric> {
        metrics::of(&self.status())
    }
}

fn millis(now: Instant, then: Instant) -> u64 {
    u64::try_from(now.since(then).as_millis()).unwrap_or(u64::MAX)
}

fn by_reason(counts: &[u64]) -> BTreeMap<Label, u64> {
    let counted = Reason::ALL.iter().zip(counts).filter(|(_, count)| **count > 0);
    counted.map(|(reason, count)| (reason.label().into(), *count)).collect()
}

fn lanes(reading: &Reading) -> Vec<LaneStatus> {
    let ports = ["outside", "inside"].into_iter().zip(&reading.lanes);
    let scheduled = ports.filter_map(|(port, lanes)| Some((port, lanes.as_ref()?)));
    let lanes = scheduled.flat_map(|(port, lanes)| {
        LANES.into_iter().zip(lanes).map(move |(lane, counts)| {
            let LaneReading { packets, bytes, dropped, waiting } = *counts;
            LaneStatus { port: port.into(), lane: lane.into(), packets, bytes, dropped, waiting }
        })
    });
    lanes.collect()
}

fn router(reading: &Reading) -> RouterStatus {
    RouterStatus {
        passed: KINDS.map(Label::from).into_iter().zip(reading.passed).collect(),
        demoted: by_reason(&reading.demoted),
    }
}

fn saved_status(now: Instant, saved: Saved, journal_error: Option<String>) -> SavedStatus {
    SavedStatus {
        checkpoint_age_ms: saved.at.map(|at| millis(now, at)),
        checkpoint_bytes: saved.bytes,
        export_us: u64::try_from(saved.export.as_micros()).unwrap_or(u64::MAX),
        error: journal_error.or(saved.error),
    }
}

fn verdict_text(verdict: Verdict) -> String {
    match verdict {
        Verdict::Forward(Port::INSIDE) => "forwarded to the inside".into(),
        Verdict::Forward(_) => "forwarded to the outside".into(),
        Verdict::Drop(_) => "dropped".into(),
        Verdict::Reply => "answered by the gate".into(),
        Verdict::Queue => "held until the rest of the packet arrives".into(),
        Verdict::Punt => "handed to the control plane".into(),
    }
}

fn recent(now: Instant, drop: &DroppedPacket) -> RecentDrop {
    let end = |(address, port)| match port {
        0 => format!("{address}"),
        port => SocketAddr::new(address, port).to_string(),
    };
    RecentDrop {
        ago_ms: millis(now, drop.at),
        port: if drop.port == Port::OUTSIDE { "outside" } else { "inside" }.into(),
        reason: drop.reason.label().into(),
        explanation: drop.reason.explanation().into(),
        protocol: drop.tuple.map(|tuple| protocol_label(tuple.protocol)),
        source: drop.tuple.map(|tuple| end(tuple.src)),
        destination: drop.tuple.map(|tuple| end(tuple.dst)),
    }
}
