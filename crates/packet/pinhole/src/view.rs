//! What pinholes are worth, for people, metrics and whoever mints capabilities. Lines hold slices of budgets: whoever has
//! lines says how much of them is `unspent`.

use core::net::IpAddr;

use sluicegate_grant::{DataMode, GrantId};
use sluicegate_wire::Instant;

use crate::{
    config::{EndCause, Opened},
    mac::{Seal, has_seal},
    pinhole::{Holder, Life, Pinhole},
    pinholes::Pinholes,
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

/// The rest of a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// Address that its client sends from; `None` before it has proved one.
    pub client: Option<IpAddr>,
    /// Whether only a request under the session key may make a capability of it.
    pub wants_seal: bool,
    /// Address that its client sends to.
    pub address: IpAddr,
    /// IP bytes that its client may still send.
    pub bytes_left: u64,
    /// Bytes a second that it may send; 0: no limit.
    pub rate_bytes_per_s: u64,
    /// When it ends.
    pub ends_at: Instant,
}

impl Pinhole {
    /// What its grant has used.
    #[must_use]
    pub fn usage(&self, unspent: u64) -> Usage {
        Usage {
            bytes_used: self.budget.taken().saturating_sub(unspent),
            bytes_left: self.budget.left().saturating_add(unspent),
            flows: self.flows,
        }
    }

    /// What a live grant still allows at `now`; `None` if it is not open, over or spent.
    #[must_use]
    pub fn allowance(&self, now: Instant, unspent: u64) -> Option<Allowance> {
        let grant = self.grant().filter(|_| self.is_open(now) && !self.spent)?;
        Some(Allowance {
            client: self.client,
            wants_seal: has_seal(grant),
            address: self.gate.address,
            bytes_left: self.usage(unspent).bytes_left,
            rate_bytes_per_s: u64::from(grant.rate_100kbps) * 12_500,
            ends_at: self.not_after,
        })
    }
}

impl Pinholes {
    /// A pinhole as it is now.
    #[must_use]
    pub fn view(&self, slot: u32, pinhole: &Pinhole, unspent: u64) -> PinholeView {
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
            has_key: self.seals.at(slot).is_some_and(Seal::has_key),
            filter: pinhole.filter,
            flows: pinhole.flows,
            flows_max: pinhole.flows_max,
            bytes_used: pinhole.budget.taken().saturating_sub(unspent),
            bytes_left: pinhole.budget.left().saturating_add(unspent),
            spent: pinhole.spent,
            ends_at: (pinhole.not_after != Instant::from_nanos(u64::MAX)).then_some(pinhole.not_after),
            ended: if let Life::Ended(cause) = pinhole.life { Some(cause) } else { None },
        }
    }
}
