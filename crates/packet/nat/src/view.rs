//! What the tables hold, for people and metrics.

use core::net::IpAddr;

use sluicegate_bounded::Gauge;
use sluicegate_grant::{DataMode, GrantId};
use sluicegate_wire::Instant;

use crate::{
    Translator,
    config::{EndCause, Opened},
    lifecycle::lent,
    mac::Seal,
    pinhole::{Holder, Life, Pinhole},
};

/// Whom a pinhole is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PinholeKind {
    /// The client of this grant.
    Granted(GrantId),
    /// The frontends.
    Standing,
    /// The service itself: flows that it starts.
    Service,
}

/// A pinhole as it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PinholeView {
    /// Whom it is for.
    pub kind: PinholeKind,
    /// The service, see [`crate::Service::id`].
    pub service: u16,
    /// IP protocol number; 0 for all that the service starts.
    pub protocol: u8,
    /// The client's address and first and last port, if it is for a grant whose client has one.
    pub client: Option<(IpAddr, (u16, u16))>,
    /// Where it listens.
    pub gate: Opened,
    /// The service's own address.
    pub target: IpAddr,
    /// The service's first and last port.
    pub target_ports: (u16, u16),
    /// The weakest data mode that its packets from outside may use.
    pub mode: DataMode,
    /// Whether the key of its packet MACs is here; `false` where there are none.
    pub has_key: bool,
    /// Whether nothing is translated.
    pub filter: bool,
    /// Flows under it now.
    pub flows: u32,
    /// Flows under it at most.
    pub flows_max: u32,
    /// IP bytes that its client sent, over all renewals.
    pub bytes_used: u64,
    /// IP bytes that its client may still send.
    pub bytes_left: u64,
    /// Whether the budget is spent.
    pub spent: bool,
    /// When it ends; `None`: never.
    pub ends_at: Option<Instant>,
    /// Why it ended, if it is only remembered.
    pub ended: Option<EndCause>,
}

/// What a grant has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// IP bytes that its client sent, over all renewals.
    pub bytes_used: u64,
    /// IP bytes that it may still send.
    pub bytes_left: u64,
    /// Its flows now.
    pub flows: u32,
}

impl Translator {
    /// What a grant has used; `None` if it is not installed or over.
    #[must_use]
    pub fn usage(&self, id: GrantId) -> Option<Usage> {
        let slot = self.rules.pinholes.by_id(id)?;
        let pinhole = self.rules.pinholes.at(slot).filter(|pinhole| pinhole.is_live())?;
        let lent = self.lent(slot);
        Some(Usage {
            bytes_used: pinhole.budget.taken().saturating_sub(lent),
            bytes_left: pinhole.budget.left().saturating_add(lent),
            flows: pinhole.flows,
        })
    }

    /// All pinholes, live and remembered, in no order.
    pub fn pinholes(&self) -> impl Iterator<Item = PinholeView> {
        self.rules.pinholes.iter().map(|(slot, pinhole)| self.view(slot, pinhole))
    }

    pub(crate) fn lent(&self, slot: u32) -> u64 {
        if self.is_ipv4(slot) { lent(&self.v4, &self.rules, slot) } else { lent(&self.v6, &self.rules, slot) }
    }

    fn view(&self, slot: u32, pinhole: &Pinhole) -> PinholeView {
        let lent = self.lent(slot);
        let kind = match &pinhole.holder {
            Holder::Granted(grant) => PinholeKind::Granted(grant.id),
            Holder::Standing { .. } => PinholeKind::Standing,
            Holder::Service => PinholeKind::Service,
        };
        PinholeView {
            kind,
            service: pinhole.service,
            protocol: pinhole.protocol,
            client: pinhole.grant().and_then(|grant| Some((pinhole.client?, grant.client_ports))),
            gate: pinhole.gate,
            target: pinhole.target,
            target_ports: pinhole.target_ports,
            mode: pinhole.grant().map_or(DataMode::Pinhole, |grant| grant.least_mode),
            has_key: self.rules.seals.at(slot).is_some_and(Seal::has_key),
            filter: pinhole.filter,
            flows: pinhole.flows,
            flows_max: pinhole.flows_max,
            bytes_used: pinhole.budget.taken().saturating_sub(lent),
            bytes_left: pinhole.budget.left().saturating_add(lent),
            spent: pinhole.spent,
            ends_at: (pinhole.not_after != Instant::from_nanos(u64::MAX)).then_some(pinhole.not_after),
            ended: if let Life::Ended(cause) = pinhole.life { Some(cause) } else { None },
        }
    }

    /// How full each table is. Ended pinholes that are only remembered give way to new ones.
    pub fn gauges(&self) -> impl Iterator<Item = Gauge> {
        let rules = &self.rules;
        let gauge = |name, (used, max): (u32, u32)| Gauge { name, used: used.into(), max: max.into() };
        let ports = rules.ports.used().map(move |(name, used)| gauge(name, (used, rules.ports.max())));
        let flows =
            [gauge("flows", (self.v4.flows, self.v4.flows_max)), gauge("flows_v6", (self.v6.flows, self.v6.flows_max))];
        let others = [
            gauge("packet_macs", rules.seals.used_and_max()),
            rules.users.gauge(),
            gauge("revoked_grants", rules.revoked.used_and_max()),
            rules.bindings.gauge(),
            gauge("services", (rules.hosts.services().len() as u32, rules.hosts.max().into())),
            rules.events_gauge(),
        ];
        flows.into_iter().chain(rules.pinholes.gauges()).chain(others).chain(ports)
    }
}
