//! Installing, renewing and revoking grants.

use alloc::vec::Vec;
use sluicegate_flow::Budget;
use sluicegate_grant::{Grant, GrantId};
use sluicegate_pinhole::{
    EndCause, Ended, Event, FLOWS_PER_GRANT_MAX, Holder, InstallError, Life, NO_SLOT, Opened, Pinhole, PinholeSpec,
};
use sluicegate_wire::{Instant, UnixTime};

use crate::{
    Translator,
    lifecycle::{end_flows, reclaim},
    ports,
    transport::{Selector, Transport},
};

/// What a packet, or a command, looks at of what is due to end, so that a mass expiry does not stall packets.
const SWEEP_LOOKS: u32 = 100;
/// Ended pinholes that are looked at when ports are needed.
const RESTING_LOOKS: usize = 64;
/// External ports that are then looked at for a block of them.
const RESTING_PORT_LOOKS: u32 = 256;
/// The port for datagrams that mean nothing (RFC 863).
const DISCARD: u16 = 9;

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
        let target_ports = self.target_ports(grant, spec.target_ports)?;
        let flows_max = self.flows_max(grant);
        let Some(slot) = known else { return self.open((now, unix), spec, target_ports, flows_max) };
        if self.rules.pinholes.is_extended_by(slot, grant) {
            self.reclaim(slot);
        }
        let renewed = self.rules.pinholes.renew((now, unix), slot, spec, target_ports, flows_max)?;
        self.note_due();
        Ok(renewed)
    }

    /// Ends a grant now, and for good: it is refused until its end, over restarts too. Gives its account, which does not
    /// come as an event; `None` if it is not installed (any more). Looks at all its lines.
    pub fn revoke(&mut self, now: Instant, id: GrantId) -> Option<Ended> {
        self.expire(now, SWEEP_LOOKS);
        let slot = self.rules.pinholes.revoke(id)?;
        self.end_pinhole(now, slot, EndCause::Revoked)
    }

    pub(crate) fn target_ports(&self, grant: &Grant, ports: (u16, u16)) -> Result<(u16, u16), InstallError> {
        if !self.has_ports(grant.protocol) {
            return Ok((0, 0));
        }
        let ports_max = self.rules.config.ports_per_pinhole;
        let is_right = ports.0 != 0 && ports.0 <= ports.1 && ports.1 - ports.0 < ports_max;
        if is_right { Ok(ports) } else { Err(InstallError::Ports(ports_max)) }
    }

    /// Fills a slot, with ports of its own for `nat`.
    pub(crate) fn open(
        &mut self,
        (now, unix): (Instant, UnixTime),
        spec: PinholeSpec,
        target_ports: (u16, u16),
        flows_max: u32,
    ) -> Result<Opened, InstallError> {
        let PinholeSpec { grant, service, target, filter, keys, .. } = spec;
        let (protocol, wanted) = (grant.protocol, grant.gate_ports);
        let (not_before, not_after) = self.rules.pinholes.times(&grant);
        let budget = Budget::new(grant.bytes);
        let needed =
            if filter { 0 } else { u32::from(target_ports.1 - target_ports.0) + u32::from(target_ports.0 != 0) };
        let ports_max = self.rules.pinholes.users.limits.ports_max;
        let user = self.rules.pinholes.users.find(&grant);
        let held = user.and_then(|user| self.rules.pinholes.users.at(user)).map_or(0, |user| user.ports);
        if held + needed > ports_max {
            return Err(InstallError::UserPorts(ports_max));
        }
        let rate_bytes_per_s = u64::from(grant.rate_100kbps) * 12_500;
        let slot = self.reserve().ok_or(InstallError::Full(self.rules.config.pinholes_max))?;
        let opened = if filter {
            let has_ports = self.has_ports(protocol);
            let ports = if has_ports { target_ports } else { self.place_of_proof(protocol, DISCARD) };
            Some(Opened { address: target, ports })
        } else {
            self.external(slot, protocol, target_ports, wanted)
        };
        let Some(gate) = opened else {
            self.rules.pinholes.table.give_up(slot);
            return Err(InstallError::NoExternalPort);
        };
        let seal = grant.clone();
        // There is a place: every other user that is not idle has a pinhole, and this one has its slot already.
        let user = self.rules.pinholes.users.join(now, &grant).unwrap_or(NO_SLOT);
        if let Some(user) = self.rules.pinholes.users.at_mut(user) {
            user.ports += needed;
        }
        let holder = Holder::Granted(grant.into());
        let pinhole = Pinhole {
            protocol,
            has_ports: self.has_ports(protocol),
            service,
            filter,
            space: self.space(protocol, filter),
            target_ports,
            not_before,
            not_after,
            budget,
            flows_max,
            user,
            ..Pinhole::new(now, holder, (gate, target), rate_bytes_per_s)
        };
        self.put(now, slot, pinhole)?;
        self.rules.pinholes.put_seal(slot, unix, &seal, keys);
        if let Some(client) = self.rules.pinholes.table.at(slot).and_then(|pinhole| pinhole.client) {
            self.rules.pinholes.sources.add(client);
        }
        Ok(gate)
    }

    /// A slot: a free one, or that of the pinhole that ended longest ago.
    pub(crate) fn reserve(&mut self) -> Option<u32> {
        if let Some(slot) = self.rules.pinholes.table.reserve() {
            return Some(slot);
        }
        let oldest = self.rules.pinholes.table.oldest_ended()?;
        self.rules.forget(oldest);
        self.rules.pinholes.table.reserve()
    }

    /// Fills a reserved slot; if the index is full, remembered pinholes make room.
    pub(crate) fn put(&mut self, now: Instant, slot: u32, pinhole: Pinhole) -> Result<(), InstallError> {
        while !self.rules.pinholes.table.put(now, slot, pinhole.clone()) {
            let Some(oldest) = self.rules.pinholes.table.oldest_ended() else {
                self.rules.free_ports(&pinhole);
                if let Some(user) = self.rules.pinholes.users.at_mut(pinhole.user) {
                    user.ports -= pinhole.ports_len();
                }
                self.rules.pinholes.users.end(pinhole.user);
                self.rules.pinholes.users.leave(pinhole.user);
                self.rules.pinholes.table.give_up(slot);
                return Err(InstallError::Full(self.rules.config.pinholes_max));
            };
            self.rules.forget(oldest);
        }
        self.note_due();
        Ok(())
    }

    /// External ports for as many target ports: the wanted ones if they are free, else random ones, else those of
    /// pinholes that ended and rest.
    pub(crate) fn external(
        &mut self,
        slot: u32,
        protocol: u8,
        (first, last): (u16, u16),
        wanted: (u16, u16),
    ) -> Option<Opened> {
        let address = self.rules.config.gate_address.into();
        if !self.has_ports(protocol) {
            return Some(Opened { address, ports: self.place_of_proof(protocol, self.rules.config.external_ports.0) });
        }
        let rules = &mut self.rules;
        let holder = ports::Holder::Pinhole(slot);
        let more = last - first;
        if wanted.0 != 0 && wanted.1 - wanted.0 == more && rules.ports.take_exactly(protocol, wanted, holder) {
            return Some(Opened { address, ports: wanted });
        }
        if let Some(port) = rules.ports.take(protocol, (more + 1, first), holder, &mut rules.random, &mut rules.looks) {
            return Some(Opened { address, ports: (port, port + more) });
        }
        let block = self.resting_block(protocol, more, first)?;
        self.rules.ports.take_exactly(protocol, block, holder).then_some(Opened { address, ports: block })
    }

    /// Ports that rest give way: a block of one pinhole, or else one made of what is free and of several pinholes that
    /// ended, whatever the length of theirs. First those of whoever has most at rest, so that nobody's calls cut the rest of others' ports short.
    fn resting_block(&mut self, protocol: u8, more: u16, like: u16) -> Option<(u16, u16)> {
        let rules = &mut self.rules;
        let weighed = |slot: u32| {
            let pinhole = rules.pinholes.table.at(slot)?;
            Some((rules.pinholes.users.at(pinhole.user)?.ports_resting, pinhole.gate.ports))
        };
        let mut found: Vec<(u32, (u16, u16))> = Vec::with_capacity(RESTING_LOOKS);
        let space = rules.transports.space(protocol)? as u8;
        found.extend(rules.pinholes.table.resting(space).take(RESTING_LOOKS).filter_map(weighed));
        rules.looks += found.len() as u32;
        // Stable: of those with the same weight the one that ended first.
        found.sort_by_key(|(weight, ..)| core::cmp::Reverse(*weight));
        let looks_max = rules.looks + RESTING_PORT_LOOKS;
        for (of_one, in_parity) in [(true, true), (false, true), (false, false)] {
            for &(_, (first, last)) in found.iter().filter(|(_, (first, last))| !of_one || last - first >= more) {
                let before = if of_one { first } else { first.saturating_sub(more) };
                let starts = (first..=last).chain((before..first).rev());
                for start in starts.filter(|start| ((start ^ like) & 1 == 0) == in_parity) {
                    if rules.looks >= looks_max {
                        return None;
                    }
                    let block = (start, start.saturating_add(more));
                    if rules.rests(protocol, block) {
                        rules.forget_block(protocol, block);
                        return Some(block);
                    }
                }
            }
        }
        None
    }

    /// Where the client of what has no ports proves its address: this port of UDP, which stays what else it is. Who only has
    /// echoes proves none.
    fn place_of_proof(&self, protocol: u8, port: u16) -> (u16, u16) {
        if self.rules.transports.selector(protocol) == Selector::None { (port, port) } else { (0, 0) }
    }

    /// Of which space the external ports of a pinhole are, if it gets some.
    pub(crate) fn space(&self, protocol: u8, filter: bool) -> Option<u8> {
        let space = self.rules.transports.space(protocol).filter(|_| !filter && self.has_ports(protocol))?;
        Some(space as u8)
    }

    fn has_ports(&self, protocol: u8) -> bool {
        self.rules.transports.selector(protocol) == Selector::Ports
    }

    fn flows_max(&self, grant: &Grant) -> u32 {
        let flows = if grant.flows == 0 { self.rules.config.flows_per_grant } else { grant.flows };
        flows.min(FLOWS_PER_GRANT_MAX).into()
    }

    fn reclaim(&mut self, slot: u32) {
        if self.is_ipv4(slot) {
            reclaim(&mut self.v4, &mut self.rules, slot);
        } else {
            reclaim(&mut self.v6, &mut self.rules, slot);
        }
    }

    pub(crate) fn is_ipv4(&self, slot: u32) -> bool {
        self.rules.pinholes.table.at(slot).is_some_and(|pinhole| pinhole.target.is_ipv4())
    }

    /// Ends a pinhole with all its flows and remembers it.
    pub(crate) fn end_pinhole(&mut self, now: Instant, slot: u32, cause: EndCause) -> Option<Ended> {
        self.end_flows(slot, u32::MAX);
        let ended = self.rules.pinholes.end(now, slot, cause, self.rules.config.timers.port_rest);
        self.note_due();
        ended
    }

    fn end_flows(&mut self, slot: u32, looks_max: u32) -> bool {
        if self.is_ipv4(slot) {
            end_flows(&mut self.v4, &mut self.rules, slot, looks_max)
        } else {
            end_flows(&mut self.v6, &mut self.rules, slot, looks_max)
        }
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
            self.rules.pinholes.push_event(Event::Ended(ended));
        }
    }

    pub(crate) fn note_due(&mut self) {
        self.due = match self.closing.front() {
            Some(_) => Instant::ZERO,
            None => self.rules.pinholes.table.next_due().unwrap_or(Instant::from_nanos(u64::MAX)),
        };
    }
}
