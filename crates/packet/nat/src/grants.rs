//! Installing, renewing and revoking grants.

use alloc::vec::Vec;
use core::time::Duration;

use sluicegate_flow::Budget;
use sluicegate_grant::{Grant, GrantError, GrantId};
use sluicegate_wire::{Instant, UnixTime};

use crate::{
    Translator,
    config::{EndCause, Ended, Event, FLOWS_PER_GRANT_MAX, InstallError, Opened, PinholeSpec, ServiceMode},
    lifecycle::{end_flows, reclaim},
    pinhole::{Holder, Life, NO_SLOT, NewPinhole, Pinhole, burst, rate},
    ports,
    revoked::Revoked,
    rules::account,
    transport::{Selector, Transport},
};

/// How much earlier than its `not_before` a grant opens: the clock skew between frontend and gate that is no alarm.
const SKEW_MAX: Duration = Duration::from_secs(2);
/// What a packet, or a command, looks at of what is due to end, so that a mass expiry does not stall packets.
const SWEEP_LOOKS: u32 = 100;
/// Ended pinholes that are looked at when ports are needed.
const RESTING_LOOKS: usize = 64;
/// External ports that are then looked at for a block of them.
const RESTING_PORT_LOOKS: u32 = 256;
/// The port for datagrams that mean nothing (RFC 863).
const DISCARD: u16 = 9;
const NANOS_PER_SEC: i128 = 1_000_000_000;

/// Where Unix time lies on the monotonic clock.
///
/// Unix time comes in whole seconds, so each look is up to a second late; the earliest of all looks is kept.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Clock {
    offset_nanos: Option<i128>,
}

impl Clock {
    pub(crate) fn look(&mut self, now: Instant, unix: UnixTime) {
        let seen = i128::from(now.as_nanos()) - i128::from(unix.0) * NANOS_PER_SEC;
        self.offset_nanos = match self.offset_nanos {
            // More than the skew apart: somebody set the wall clock.
            Some(known) if (seen - known).abs() <= SKEW_MAX.as_nanos() as i128 => Some(known.min(seen)),
            _ => Some(seen),
        };
    }

    /// When `unix` is, or was; the start of the clock if it was before that.
    pub(crate) fn instant(&self, unix: UnixTime) -> Instant {
        let nanos = i128::from(unix.0) * NANOS_PER_SEC + self.offset_nanos.unwrap_or(0);
        Instant::from_nanos(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX - 1))
    }
}

impl Translator {
    /// Says when exactly the second `unix` began. Without it grants end up to a second late, because the other calls name
    /// Unix time in whole seconds only.
    pub fn set_clock(&mut self, began: Instant, unix: UnixTime) {
        self.clock.look(began, unix);
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
        self.clock.look(now, unix);
        self.rules.revoked.expire(unix, 2);
        let grant = &spec.grant;
        grant.check()?;
        let can_open = |transport: &Transport| spec.filter || transport.is_translatable;
        if !self.rules.transports.of(grant.protocol).is_some_and(can_open) {
            return Err(InstallError::Protocol(grant.protocol));
        }
        if grant.client_address.is_ipv4() != spec.target.is_ipv4() {
            return Err(GrantError::AddressFamily.into());
        }
        if unix >= grant.not_after {
            return Err(InstallError::Expired);
        }
        if let Some(slot) = self.rules.pinholes.by_id(grant.id) {
            return self.renew((now, unix), slot, spec);
        }
        if self.rules.revoked.refuses(grant) {
            return Err(InstallError::Revoked(grant.id));
        }
        let mode = if spec.filter { ServiceMode::Filter } else { ServiceMode::Nat };
        let service = self.rules.hosts.service(spec.service);
        if !service.is_some_and(|service| service.address == spec.target && service.mode == mode) {
            return Err(InstallError::Service(spec.service));
        }
        let target_ports = self.target_ports(grant, spec.target_ports)?;
        let times = self.times(grant);
        let budget = Budget::new(grant.bytes);
        self.open((now, unix), spec, target_ports, times, budget)
    }

    /// Ends a grant now, and for good: it is refused until its end, over restarts too. Gives its account, which does not
    /// come as an event; `None` if it is not installed (any more). Looks at all its lines.
    pub fn revoke(&mut self, now: Instant, id: GrantId) -> Option<Ended> {
        self.expire(now, SWEEP_LOOKS);
        let slot = self.rules.pinholes.by_id(id)?;
        let pinhole = self.rules.pinholes.at_mut(slot)?;
        if let Some(grant) = pinhole.grant() {
            self.rules.revoked.add(id, Revoked::of(grant));
        }
        let pinhole = self.rules.pinholes.at_mut(slot)?;
        match pinhole.life {
            Life::Live => self.end_pinhole(now, slot, EndCause::Revoked),
            _ => {
                // A renewal that comes late must not open it again.
                pinhole.life = Life::Ended(EndCause::Revoked);
                self.rules.seals.forget_key(slot);
                None
            }
        }
    }

    pub(crate) fn times(&self, grant: &Grant) -> (Instant, Instant) {
        (self.clock.instant(grant.not_before) - SKEW_MAX, self.clock.instant(grant.not_after))
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
        times: (Instant, Instant),
        budget: Budget,
    ) -> Result<Opened, InstallError> {
        let PinholeSpec { grant, service, target, filter, keys, .. } = spec;
        let (protocol, wanted) = (grant.protocol, grant.gate_ports);
        let flows_max = self.flows_max(&grant);
        let needed =
            if filter { 0 } else { u32::from(target_ports.1 - target_ports.0) + u32::from(target_ports.0 != 0) };
        let ports_max = self.rules.users.limits.ports_max;
        let user = self.rules.users.find(&grant);
        let held = user.and_then(|user| self.rules.users.at(user)).map_or(0, |user| user.ports);
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
            self.rules.pinholes.give_up(slot);
            return Err(InstallError::NoExternalPort);
        };
        let seal = grant.clone();
        // There is a place: every other user that is not idle has a pinhole, and this one has its slot already.
        let user = self.rules.users.join(now, &grant).unwrap_or(NO_SLOT);
        if let Some(user) = self.rules.users.at_mut(user) {
            user.ports += needed;
        }
        let new = NewPinhole {
            holder: Holder::Granted(grant.into()),
            protocol,
            has_ports: self.has_ports(protocol),
            service,
            filter,
            gate,
            target,
            target_ports,
            times,
            budget,
            rate_bytes_per_s,
            flows_max: flows_max.into(),
            user,
        };
        self.put(now, slot, new.build(now))?;
        self.rules.put_seal(slot, unix, &seal, keys);
        if let Some(client) = self.rules.pinholes.at(slot).and_then(|pinhole| pinhole.client) {
            self.rules.sources.add(client);
        }
        Ok(gate)
    }

    /// A slot: a free one, or that of the pinhole that ended longest ago.
    pub(crate) fn reserve(&mut self) -> Option<u32> {
        if let Some(slot) = self.rules.pinholes.reserve() {
            return Some(slot);
        }
        let oldest = self.rules.pinholes.oldest_ended()?;
        self.rules.forget(oldest);
        self.rules.pinholes.reserve()
    }

    /// Fills a reserved slot; if the index is full, remembered pinholes make room.
    pub(crate) fn put(&mut self, now: Instant, slot: u32, pinhole: Pinhole) -> Result<(), InstallError> {
        while !self.rules.pinholes.put(now, slot, pinhole.clone()) {
            let Some(oldest) = self.rules.pinholes.oldest_ended() else {
                if crate::rules::owns_ports(&pinhole) {
                    self.rules.ports.give_back(pinhole.protocol, pinhole.gate.ports);
                }
                if let Some(user) = self.rules.users.at_mut(pinhole.user) {
                    user.ports -= pinhole.ports_len();
                }
                self.rules.users.end(pinhole.user);
                self.rules.users.leave(pinhole.user);
                self.rules.pinholes.give_up(slot);
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
            let pinhole = rules.pinholes.at(slot)?;
            Some((rules.users.at(pinhole.user)?.ports_resting, pinhole.gate.ports))
        };
        let mut found: Vec<(u32, (u16, u16))> = Vec::with_capacity(RESTING_LOOKS);
        found.extend(rules.pinholes.resting(protocol).take(RESTING_LOOKS).filter_map(weighed));
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

    fn has_ports(&self, protocol: u8) -> bool {
        self.rules.transports.selector(protocol) == Selector::Ports
    }

    fn flows_max(&self, grant: &Grant) -> u16 {
        let flows = if grant.flows == 0 { self.rules.config.flows_per_grant } else { grant.flows };
        flows.min(FLOWS_PER_GRANT_MAX)
    }

    fn renew(
        &mut self,
        (now, unix): (Instant, UnixTime),
        slot: u32,
        spec: PinholeSpec,
    ) -> Result<Opened, InstallError> {
        let times = self.times(&spec.grant);
        let conflict = InstallError::Conflict(spec.grant.id);
        let target_ports = self.target_ports(&spec.grant, spec.target_ports)?;
        let pinhole = self.rules.pinholes.at(slot).ok_or(conflict)?;
        let known = pinhole.grant().ok_or(conflict)?;
        // Where a client signs in from may change if that is not where its packets come from.
        let same_client = known.client_address == spec.grant.client_address || known.proves_address();
        let is_same = same_client
            && (known.protocol, known.flags) == (spec.grant.protocol, spec.grant.flags)
            && (pinhole.target, pinhole.target_ports) == (spec.target, target_ports)
            && (pinhole.service, pinhole.filter) == (spec.service, spec.filter)
            // Its lines would not know of another mode.
            && known.least_mode == spec.grant.least_mode;
        if !is_same {
            return Err(conflict);
        }
        let (gate, life, is_later) = (pinhole.gate, pinhole.life, spec.grant.not_after > known.not_after);
        match life {
            Life::Ended(EndCause::Revoked) => return Err(InstallError::Revoked(spec.grant.id)),
            Life::Ended(_) if !is_later => return Err(InstallError::Expired),
            Life::Ended(_) => {
                let client = pinhole.client;
                self.rules.pinholes.revive(slot);
                if let Some(client) = client {
                    self.rules.sources.add(client);
                }
                self.rest_ports(slot, false);
                let user = self.rules.pinholes.at(slot).map_or(NO_SLOT, |pinhole| pinhole.user);
                self.rules.users.begin(now, user, &spec.grant);
            }
            _ if !is_later => {
                // A snapshot after a restart: what it brings is the key.
                if spec.grant.client_id == known.client_id {
                    self.rules.put_seal(slot, unix, &spec.grant, spec.keys);
                }
                return Ok(gate);
            }
            _ => self.reclaim(slot),
        }
        let flows_max = self.flows_max(&spec.grant);
        let pinhole = self.rules.pinholes.at_mut(slot).ok_or(conflict)?;
        self.rules.users.renew(now, pinhole.user, &spec.grant);
        let rate_changed = pinhole.grant().is_none_or(|grant| grant.rate_100kbps != spec.grant.rate_100kbps);
        if rate_changed {
            let bytes_per_s = u64::from(spec.grant.rate_100kbps) * 12_500;
            let before = pinhole.bucket.take();
            (pinhole.bucket, pinhole.slice_max) = rate(now, bytes_per_s);
            // A renewal brings no fresh burst.
            if let (Some(bucket), Some(before)) = (&mut pinhole.bucket, before) {
                *bucket = before;
                bucket.reshape(now, bytes_per_s, burst(bytes_per_s));
            }
        }
        (pinhole.not_before, pinhole.not_after) = times;
        pinhole.budget.renew(spec.grant.bytes);
        pinhole.flows_max = flows_max.into();
        let PinholeSpec { grant, keys, .. } = spec;
        self.rules.put_seal(slot, unix, &grant, keys);
        self.rules.pinholes.change(slot, |pinhole| {
            pinhole.spent = false;
            pinhole.holder = Holder::Granted(grant.into());
        });
        self.rules.pinholes.schedule(now, slot);
        self.note_due();
        Ok(gate)
    }

    fn reclaim(&mut self, slot: u32) {
        if self.is_ipv4(slot) {
            reclaim(&mut self.v4, &mut self.rules, slot);
        } else {
            reclaim(&mut self.v6, &mut self.rules, slot);
        }
    }

    pub(crate) fn is_ipv4(&self, slot: u32) -> bool {
        self.rules.pinholes.at(slot).is_some_and(|pinhole| pinhole.target.is_ipv4())
    }

    /// Ends a pinhole with all its flows and remembers it.
    pub(crate) fn end_pinhole(&mut self, now: Instant, slot: u32, cause: EndCause) -> Option<Ended> {
        self.end_flows(slot, u32::MAX);
        let rest = self.rules.config.timers.port_rest;
        let pinhole = self.rules.pinholes.at(slot)?;
        let ended = account(pinhole, cause);
        let user = pinhole.user;
        if let Some(client) = pinhole.client {
            self.rules.sources.remove(client);
        }
        if cause == EndCause::Revoked {
            self.rules.seals.forget_key(slot);
        }
        self.rest_ports(slot, true);
        self.rules.users.end(user);
        self.rules.pinholes.end(now, slot, cause, rest);
        self.note_due();
        ended
    }

    /// The user's ports of this pinhole rest from now on, or are in use again.
    fn rest_ports(&mut self, slot: u32, rest: bool) {
        let Some(pinhole) = self.rules.pinholes.at(slot) else { return };
        let (ports, user) = (pinhole.ports_len(), pinhole.user);
        if let Some(user) = self.rules.users.at_mut(user) {
            let (from, to) = if rest {
                (&mut user.ports, &mut user.ports_resting)
            } else {
                (&mut user.ports_resting, &mut user.ports)
            };
            *from -= ports;
            *to += ports;
        }
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
                Some((slot, serial)) if self.rules.pinholes.at(slot).is_some_and(|at| at.serial == serial) => slot,
                Some(_) => continue,
                None => match self.rules.pinholes.pop_due(now) {
                    Some(slot) => slot,
                    None => break,
                },
            };
            self.end_or_forget(now, slot, looks_max);
        }
        self.note_due();
    }

    fn end_or_forget(&mut self, now: Instant, slot: u32, looks_max: u32) {
        let Some(pinhole) = self.rules.pinholes.at(slot) else { return };
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
            Life::Live => self.rules.pinholes.schedule(now, slot),
            Life::Ended(_) if now < forget_at => self.rules.pinholes.schedule_at(now, slot, forget_at),
            Life::Ended(_) => self.rules.forget(slot),
        }
    }

    /// Ends a pinhole whose time is over and whose flows have ended.
    fn close(&mut self, now: Instant, slot: u32) {
        let Some(pinhole) = self.rules.pinholes.at(slot) else { return };
        let (is_granted, spent) = (pinhole.grant().is_some(), pinhole.spent);
        if !is_granted {
            return self.drop_pinhole(now, slot);
        }
        let ended = self.end_pinhole(now, slot, EndCause::Expired);
        // Spending the budget was reported when it happened.
        if let Some(ended) = ended.filter(|_| !spent) {
            self.rules.push_event(Event::Ended(ended));
        }
    }

    pub(crate) fn note_due(&mut self) {
        self.due = match self.closing.front() {
            Some(_) => Instant::ZERO,
            None => self.rules.pinholes.next_due().unwrap_or(Instant::from_nanos(u64::MAX)),
        };
    }
}
