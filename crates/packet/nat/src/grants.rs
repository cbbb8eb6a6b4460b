//! Installing, renewing and revoking grants, and the ends of pinholes.

use sluicegate_grant::GrantId;
use sluicegate_pinhole::{EndCause, Ended, InstallError, Life, Opened, PinholeSpec};
use sluicegate_wire::{Instant, UnixTime};

use crate::{
    Translator,
    flows::of_family,
    lifecycle::{end_flows, reclaim},
    transport::Transport,
};

/// What a packet, or a command, looks at of what is due to end, so that a mass expiry does not stall packets.
const SWEEP_LOOKS: u32 = 100;

impl Translator {
    /// Says when exactly the second `unix` began. Without it grants end up to a second late, because the other calls name
    /// Unix time in whole seconds only.
    pub fn set_clock(&mut self, began: Instant, unix: UnixTime) {
        self.rules.pinholes.clock.look(began, unix);
    }

    /// Opens what a grant permits, or renews it.
    ///
    /// Installing the same grant again changes nothing. The same id with a later end is a renewal: the budget is
    /// refilled to N, ports and flows stay, also if the grant had expired but its ports still rest. The grant opens up
    /// to two seconds before its `not_before`, which is the clock skew that a gate tolerates.
    ///
    /// # Errors
    /// See [`InstallError`]; nothing was changed then.
    pub fn install(&mut self, now: Instant, unix: UnixTime, spec: PinholeSpec) -> Result<Opened, InstallError> {
        self.expire(now, SWEEP_LOOKS);
        let grant = &spec.grant;
        let can_open = |transport: &Transport| spec.filter || transport.is_translatable;
        let can_open = self.rules.transports.of(grant.protocol).is_some_and(can_open);
        let known = self.rules.pinholes.check(now, unix, &spec, can_open)?;
        let target_ports = self.rules.target_ports(grant, spec.target_ports)?;
        let flows_max = self.rules.flows_max(grant);
        let opened = match known {
            None => self.rules.open((now, unix), spec, target_ports, flows_max),
            Some(slot) => {
                if self.rules.pinholes.is_moved_by(slot, grant) {
                    self.end_flows(slot, u32::MAX);
                }
                if self.rules.pinholes.is_extended_by(slot, grant) {
                    let (is_ipv4, rules) = (self.rules.is_ipv4(slot), &mut self.rules);
                    of_family!(is_ipv4, (&mut self.v4, &mut self.v6), |flows| reclaim(flows, rules, slot));
                }
                self.rules.pinholes.renew((now, unix), slot, spec, target_ports, flows_max)
            }
        };
        self.note_due();
        opened
    }

    /// Ends a grant now, and for good: it is refused until its end, over restarts too. Gives its account, which does not
    /// come as an event; `None` if it is not installed (any more). Looks at all its lines.
    pub fn revoke(&mut self, now: Instant, id: GrantId) -> Option<Ended> {
        self.expire(now, SWEEP_LOOKS);
        let slot = self.rules.pinholes.revoke(id)?;
        self.end_pinhole(now, slot, EndCause::Revoked)
    }

    /// Ends a pinhole with all its flows and remembers it.
    pub(crate) fn end_pinhole(&mut self, now: Instant, slot: u32, cause: EndCause) -> Option<Ended> {
        self.end_flows(slot, u32::MAX);
        let ended = self.rules.pinholes.end(now, slot, cause, self.rules.config.timers.port_rest);
        self.note_due();
        ended
    }

    fn end_flows(&mut self, slot: u32, looks_max: u32) -> bool {
        let (is_ipv4, rules) = (self.rules.is_ipv4(slot), &mut self.rules);
        of_family!(is_ipv4, (&mut self.v4, &mut self.v6), |flows| end_flows(flows, rules, slot, looks_max))
    }

    /// Ends pinholes whose time is over and forgets those that were remembered long enough, looking at no more than
    /// about `looks` of them and their lines. What is left is due at once.
    pub(crate) fn expire(&mut self, now: Instant, looks: u32) {
        if now < self.due {
            return;
        }
        let looks_max = self.rules.looks.saturating_add(looks);
        while self.rules.looks < looks_max {
            self.rules.looks += 1;
            let slot = match self.closing.pop_front() {
                // Its slot may have become another's meanwhile.
                Some((slot, serial)) if self.rules.pinholes.table.at(slot).is_some_and(|at| at.serial == serial) => {
                    slot
                }
                Some(_) => continue,
                None => match self.rules.pinholes.table.pop_due(now) {
                    Some(slot) => slot,
                    None => break,
                },
            };
            self.end_or_forget(now, slot, looks_max);
        }
        self.note_due();
    }

    fn end_or_forget(&mut self, now: Instant, slot: u32, looks_max: u32) {
        let Some(pinhole) = self.rules.pinholes.table.at(slot) else { return };
        let (not_after, forget_at, serial) = (pinhole.not_after, pinhole.forget_at, pinhole.serial);
        match pinhole.life {
            Life::Live if now >= not_after => {
                if !self.end_flows(slot, looks_max) {
                    // It takes no new flow any more; the rest of the old ones end in the next turns.
                    self.closing.push_front((slot, serial));
                } else {
                    self.close(now, slot);
                }
            }
            Life::Live => self.rules.pinholes.table.schedule(now, slot),
            Life::Ended(_) if now < forget_at => self.rules.pinholes.table.schedule_at(now, slot, forget_at),
            Life::Ended(_) => self.rules.forget(slot),
        }
    }

    /// Ends a pinhole whose time is over and whose flows have ended.
    fn close(&mut self, now: Instant, slot: u32) {
        let Some(pinhole) = self.rules.pinholes.table.at(slot) else { return };
        let (is_granted, spent) = (pinhole.grant().is_some(), pinhole.spent);
        if !is_granted {
            return self.drop_pinhole(now, slot);
        }
        let ended = self.end_pinhole(now, slot, EndCause::Expired);
        // Spending the budget was reported when it happened.
        if let Some(ended) = ended.filter(|_| !spent) {
            self.rules.pinholes.push_event(ended);
        }
    }

    pub(crate) fn note_due(&mut self) {
        self.due = match self.closing.front() {
            Some(_) => Instant::ZERO,
            None => self.rules.pinholes.table.next_due().unwrap_or(Instant::from_nanos(u64::MAX)),
        };
    }
}
