//! What the tables hold, for people and metrics.

use core::net::IpAddr;

use sluicegate_bounded::Gauge;
use sluicegate_grant::GrantId;
use sluicegate_pinhole::{Allowance, Pinholes, Usage};
use sluicegate_wire::Instant;

use crate::{Translator, lifecycle::lent};

impl Translator {
    /// What a grant has used; `None` if it is not installed or over.
    #[must_use]
    pub fn usage(&self, id: GrantId) -> Option<Usage> {
        let (slot, pinhole) = self.rules.pinholes.live(id)?;
        Some(pinhole.usage(self.lent(slot)))
    }

    /// What a live grant still allows at `now`; `None` if it is not open, over or spent.
    #[must_use]
    pub fn allowance(&self, now: Instant, id: GrantId) -> Option<Allowance> {
        let (slot, pinhole) = self.rules.pinholes.live(id)?;
        pinhole.allowance(now, self.lent(slot))
    }

    /// Whether somebody at this outside address may have a pinhole here. `false` is certain: it is a stranger.
    #[must_use]
    pub fn knows(&self, source: IpAddr) -> bool {
        self.rules.pinholes.sources.may_contain(source)
    }

    /// Who has permission.
    #[must_use]
    pub const fn pinholes(&self) -> &Pinholes {
        &self.rules.pinholes
    }

    pub(crate) fn lent(&self, slot: u32) -> u64 {
        if self.is_ipv4(slot) { lent(&self.v4, &self.rules, slot) } else { lent(&self.v6, &self.rules, slot) }
    }

    /// How full each table is. Ended pinholes that are only remembered give way to new ones.
    pub fn gauges(&self) -> impl Iterator<Item = Gauge> {
        let rules = &self.rules;
        let gauge = |name, used: u32, max: u32| Gauge { name, used: used.into(), max: max.into() };
        let ports = rules.ports.used().map(move |(name, used)| gauge(name, used, rules.ports.max()));
        let flows =
            [gauge("flows", self.v4.flows, self.v4.flows_max), gauge("flows_v6", self.v6.flows, self.v6.flows_max)];
        flows.into_iter().chain(rules.pinholes.gauges()).chain([rules.bindings.gauge()]).chain(ports)
    }
}
