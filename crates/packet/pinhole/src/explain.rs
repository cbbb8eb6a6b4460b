//! A pinhole in words.

use alloc::{format, string::String, vec::Vec};

use sluicegate_grant::{DataMode, Grant, Protocol};
use sluicegate_wire::{Instant, Reason, UnixTime};

use crate::{mac::Seal, pinhole::Pinhole, pinholes::Pinholes};

impl Pinhole {
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
}

impl Pinholes {
    /// What a grant's pinhole is worth now, and what its packets must prove, one sentence each.
    #[must_use]
    pub fn explain(&self, now: Instant, unix: UnixTime, slot: u32, unspent: u64) -> Vec<String> {
        let mut steps = Vec::new();
        let Some(pinhole) = self.table.at(slot) else { return steps };
        let Some(grant) = pinhole.grant() else { return steps };
        steps.push(format!(
            "Grant {}: {} of {} bytes used, {} of {} flows, valid from {} to {} (now {unix}).",
            grant.id,
            pinhole.usage(unspent).bytes_used,
            grant.bytes,
            pinhole.flows,
            pinhole.flows_max,
            grant.not_before,
            grant.not_after,
        ));
        if pinhole.is_live() && now < pinhole.not_before {
            steps.push(String::from("The grant is not valid yet: compare the clocks of frontend and gate."));
        }
        steps.extend(self.explain_mode(slot, grant));
        if pinhole.spent {
            steps.push(String::from(Reason::BudgetSpent.explanation()));
        }
        steps
    }

    fn explain_mode(&self, slot: u32, grant: &Grant) -> Option<String> {
        let text = match (grant.least_mode, self.seals.at(slot).is_some_and(Seal::has_key)) {
            (DataMode::Pinhole, _) => "Mode pinhole: address and ports are the proof.",
            (DataMode::Mac, true) if grant.protocol == Protocol::UDP => {
                "Mode mac: a datagram from outside must carry a packet MAC, or a capability of this client."
            }
            (DataMode::Mac, _) if grant.protocol == Protocol::UDP => {
                "Mode mac, but this gate has not got the key (again): it comes with the frontend's feed."
            }
            (DataMode::Mac, _) => {
                "Mode mac, which only UDP has: a packet from outside needs a capability of this client."
            }
            (DataMode::Capability, _) => "Mode capability: a packet from outside needs a capability of this client.",
        };
        Some(String::from(text))
    }
}
