//! What pinholes are worth, in figures for whoever counts and mints capabilities, and in words. Lines hold slices of
//! budgets: whoever has lines says how much of them is `unspent`.

use alloc::{format, string::String, vec::Vec};
use core::net::IpAddr;

use sluicegate_grant::{DataMode, Grant, Protocol};
use sluicegate_wire::{Instant, Reason, UnixTime};

use crate::{
    mac::{Seal, has_seal},
    pinhole::Pinhole,
};

/// What a grant has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// IP bytes that its client sent, over all renewals.
    pub bytes_used: u64,
    /// Of these, bytes of ICMP errors: whoever sent them, they do not show that the client is there.
    pub error_bytes: u64,
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
            error_bytes: self.error_bytes,
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

    /// Where it listens, and for whom.
    #[must_use]
    pub fn describe(&self) -> String {
        let ports = |(first, last): (u16, u16)| {
            if self.has_ports { format!(" port {first}-{last}") } else { String::new() }
        };
        format!(
            "Pinhole of service {}: {}{} stands for {}{}.",
            self.service,
            self.gate.address,
            ports(self.gate.ports),
            self.target,
            ports(self.target_ports),
        )
    }

    /// What a grant's pinhole is worth now, and what its packets must prove, one sentence each. `seal`: what that is
    /// checked with.
    #[must_use]
    pub fn explain(&self, seal: Option<&Seal>, (now, unix): (Instant, UnixTime), unspent: u64) -> Vec<String> {
        let mut steps = Vec::new();
        let Some(grant) = self.grant() else { return steps };
        steps.push(format!(
            "Grant {}: {} of {} bytes used, {} of {} flows, valid from {} to {} (now {unix}).",
            grant.id,
            self.usage(unspent).bytes_used,
            grant.bytes,
            self.flows,
            self.flows_max,
            grant.not_before,
            grant.not_after,
        ));
        if self.is_live() && now < self.not_before {
            steps.push(String::from("The grant is not valid yet: compare the clocks of frontend and gate."));
        }
        steps.push(String::from(explain_mode(grant, seal.is_some_and(Seal::has_key))));
        if self.spent {
            steps.push(String::from(Reason::BudgetSpent.explanation()));
        }
        steps
    }
}

fn explain_mode(grant: &Grant, has_key: bool) -> &'static str {
    match (grant.least_mode, has_key) {
        (DataMode::Pinhole, _) => "Mode pinhole: address and ports are the proof.",
        (DataMode::Mac, true) if grant.protocol == Protocol::UDP => {
            "Mode mac: a datagram from outside must carry a packet MAC, or a capability of this client."
        }
        (DataMode::Mac, _) if grant.protocol == Protocol::UDP => {
            "Mode mac, but this gate has not got the key (again): it comes with the frontend's feed."
        }
        (DataMode::Mac, _) => "Mode mac, which only UDP has: a packet from outside needs a capability of this client.",
        (DataMode::Capability, _) => "Mode capability: a packet from outside needs a capability of this client.",
    }
}
