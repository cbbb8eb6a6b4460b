//! What a pinhole gets when it opens: a slot, and for `nat` external ports.

use alloc::vec::Vec;
use core::net::IpAddr;

use sluicegate_flow::Budget;
use sluicegate_grant::Grant;
use sluicegate_pinhole::{
    FLOWS_PER_GRANT_MAX, Holder as Owner, InstallError, Life, NO_SLOT, Opened, Pinhole, PinholeSpec, Users,
};
use sluicegate_wire::{Instant, UnixTime};

use crate::{ports::Holder, rules::Rules, transport::Selector};

/// Ended pinholes that are looked at when ports are needed.
const RESTING_LOOKS: usize = 64;
/// External ports that are then looked at for a block of them.
const RESTING_PORT_LOOKS: u32 = 256;
/// The port for datagrams that mean nothing (RFC 863).
const DISCARD: u16 = 9;

impl Rules {
    /// The ports of a service that a grant may name; none where its protocol has none.
    ///
    /// # Errors
    /// [`InstallError::Ports`].
    pub(crate) fn target_ports(&self, grant: &Grant, ports: (u16, u16)) -> Result<(u16, u16), InstallError> {
        if !self.has_ports(grant.protocol) {
            return Ok((0, 0));
        }
        let ports_max = self.config.ports_per_pinhole;
        let is_right = ports.0 != 0 && ports.0 <= ports.1 && ports.1 - ports.0 < ports_max;
        if is_right { Ok(ports) } else { Err(InstallError::Ports(ports_max)) }
    }

    /// Makes the pinhole of a grant that is new here.
    pub(crate) fn open(
        &mut self,
        (now, unix): (Instant, UnixTime),
        spec: PinholeSpec,
        target_ports: (u16, u16),
        flows_max: u32,
    ) -> Result<Opened, InstallError> {
        let PinholeSpec { grant, service, target, filter, keys, .. } = spec;
        let protocol = grant.protocol;
        let (not_before, not_after) = self.pinholes.times(&grant);
        let needed =
            if filter { 0 } else { u32::from(target_ports.1 - target_ports.0) + u32::from(target_ports.0 != 0) };
        let ports_max = self.pinholes.users.ports_max(protocol, self.ports.max());
        let user = self.pinholes.users.find(&grant);
        let (held, ports_held) =
            user.and_then(|user| self.pinholes.users.at(user)).map_or((0, 0), |user| (user.live, user.ports));
        if ports_held + needed > ports_max {
            return Err(InstallError::UserPorts(ports_max));
        }
        let (left, max) = (self.pinholes.table.left(), self.pinholes.table.max());
        if left > 0 && held >= Users::pinholes_max(left, max) {
            return Err(InstallError::UserPinholes(held));
        }
        let (slot, gate) = self.listen(protocol, filter, (target, target_ports), grant.gate_ports)?;
        // There is a place: every other user that is not idle has a pinhole, and this one has its slot already.
        let user = self.pinholes.users.join(now, &grant).unwrap_or(NO_SLOT);
        if let Some(user) = self.pinholes.users.at_mut(user) {
            user.ports += needed;
            self.pinholes.users.note_ports(protocol, needed, true);
        }
        let (budget, rate_bytes_per_s) = (Budget::new(grant.bytes), u64::from(grant.rate_100kbps) * 12_500);
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
            ..Pinhole::new(now, Owner::Granted(grant.into()), (gate, target), rate_bytes_per_s)
        };
        self.put(now, slot, pinhole)?;
        self.pinholes.put_seal(slot, unix, keys);
        if let Some(client) = self.pinholes.table.at(slot).and_then(|pinhole| pinhole.client) {
            self.pinholes.sources.add(client);
        }
        Ok(gate)
    }

    /// A slot for a pinhole, and where that listens: at the service's own address and ports (`filter`), or at the gate's
    /// with external ports, those that are `wanted` if they are free.
    pub(crate) fn listen(
        &mut self,
        protocol: u8,
        filter: bool,
        (target, target_ports): (IpAddr, (u16, u16)),
        wanted: (u16, u16),
    ) -> Result<(u32, Opened), InstallError> {
        let slot = self.reserve().ok_or(InstallError::Full(self.config.pinholes_max))?;
        let ports = match (filter, self.has_ports(protocol)) {
            (true, true) => Some(target_ports),
            (true, false) => Some(self.place_of_proof(protocol, DISCARD)),
            (false, true) => self.external(slot, protocol, target_ports, wanted),
            (false, false) => Some(self.place_of_proof(protocol, self.config.external_ports.0)),
        };
        let Some(ports) = ports else {
            self.pinholes.table.give_up(slot);
            return Err(InstallError::NoExternalPort);
        };
        let address = if filter { target } else { self.config.gate_address.into() };
        Ok((slot, Opened { address, ports }))
    }

    /// A slot: a free one, or that of the pinhole that ended longest ago.
    pub(crate) fn reserve(&mut self) -> Option<u32> {
        if let Some(slot) = self.pinholes.table.reserve() {
            return Some(slot);
        }
        let oldest = self.pinholes.table.oldest_ended()?;
        self.forget(oldest);
        self.pinholes.table.reserve()
    }

    /// Fills a reserved slot; if the index is full, remembered pinholes make room.
    pub(crate) fn put(&mut self, now: Instant, slot: u32, pinhole: Pinhole) -> Result<(), InstallError> {
        while !self.pinholes.table.put(now, slot, pinhole.clone()) {
            let Some(oldest) = self.pinholes.table.oldest_ended() else {
                self.free_ports(&pinhole);
                if let Some(user) = self.pinholes.users.at_mut(pinhole.user) {
                    user.ports -= pinhole.ports_len();
                    self.pinholes.users.note_ports(pinhole.protocol, pinhole.ports_len(), false);
                }
                self.pinholes.users.end(pinhole.user);
                self.pinholes.users.leave(pinhole.user);
                self.pinholes.table.give_up(slot);
                return Err(InstallError::Full(self.config.pinholes_max));
            };
            self.forget(oldest);
        }
        Ok(())
    }

    /// External ports for as many target ports: the wanted ones if they are free, else random ones, else those of
    /// pinholes that ended and rest.
    fn external(
        &mut self,
        slot: u32,
        protocol: u8,
        (first, last): (u16, u16),
        wanted: (u16, u16),
    ) -> Option<(u16, u16)> {
        let (holder, more) = (Holder::Pinhole(slot), last - first);
        if wanted.0 != 0 && wanted.1 - wanted.0 == more && self.ports.take_exactly(protocol, wanted, holder) {
            return Some(wanted);
        }
        if let Some(port) = self.ports.take(protocol, (more + 1, first), holder, &mut self.random, &mut self.looks) {
            return Some((port, port + more));
        }
        let block = self.resting_block(protocol, more, first)?;
        self.ports.take_exactly(protocol, block, holder).then_some(block)
    }

    /// Ports that rest give way: a block of one pinhole, or else one made of what is free and of several pinholes that
    /// ended, whatever the length of theirs. First those of whoever has most at rest, so that nobody's calls cut the rest of others' ports short.
    fn resting_block(&mut self, protocol: u8, more: u16, like: u16) -> Option<(u16, u16)> {
        let weighed = |slot: u32| {
            let pinhole = self.pinholes.table.at(slot)?;
            Some((self.pinholes.users.at(pinhole.user)?.ports_resting, pinhole.gate.ports))
        };
        let mut found: Vec<(u32, (u16, u16))> = Vec::with_capacity(RESTING_LOOKS);
        let space = self.transports.space(protocol)? as u8;
        found.extend(self.pinholes.table.resting(space).take(RESTING_LOOKS).filter_map(weighed));
        self.looks += found.len() as u32;
        // Stable: of those with the same weight the one that ended first.
        found.sort_by_key(|(weight, ..)| core::cmp::Reverse(*weight));
        let looks_max = self.looks + RESTING_PORT_LOOKS;
        for (of_one, in_parity) in [(true, true), (false, true), (false, false)] {
            for &(_, (first, last)) in found.iter().filter(|(_, (first, last))| !of_one || last - first >= more) {
                let before = if of_one { first } else { first.saturating_sub(more) };
                let starts = (first..=last).chain((before..first).rev());
                for start in starts.filter(|start| ((start ^ like) & 1 == 0) == in_parity) {
                    if self.looks >= looks_max {
                        return None;
                    }
                    let block = (start, start.saturating_add(more));
                    if self.rests(protocol, block) {
                        self.forget_block(protocol, block);
                        return Some(block);
                    }
                }
            }
        }
        None
    }

    /// Whether each of these external ports is free or rests after the end of a pinhole.
    fn rests(&mut self, protocol: u8, (first, last): (u16, u16)) -> bool {
        (first..=last).all(|port| {
            self.looks += 1;
            match self.ports.holder(protocol, port) {
                None => self.ports.contains(port),
                Some(Holder::Binding(_)) => false,
                Some(Holder::Pinhole(slot)) => {
                    self.pinholes.table.at(slot).is_some_and(|pinhole| matches!(pinhole.life, Life::Ended(_)))
                }
            }
        })
    }

    /// Forgets the pinholes whose ports rest among these.
    fn forget_block(&mut self, protocol: u8, (first, last): (u16, u16)) {
        for port in first..=last {
            if let Some(Holder::Pinhole(slot)) = self.ports.holder(protocol, port) {
                self.forget(slot);
            }
        }
    }

    /// Where the client of what has no ports proves its address: this port of UDP, which stays what else it is. Who only has
    /// echoes proves none.
    fn place_of_proof(&self, protocol: u8, port: u16) -> (u16, u16) {
        if self.transports.selector(protocol) == Selector::None { (port, port) } else { (0, 0) }
    }

    /// Of which space the external ports of a pinhole are, if it gets some.
    pub(crate) fn space(&self, protocol: u8, filter: bool) -> Option<u8> {
        let space = self.transports.space(protocol).filter(|_| !filter && self.has_ports(protocol))?;
        Some(space as u8)
    }

    fn has_ports(&self, protocol: u8) -> bool {
        self.transports.selector(protocol) == Selector::Ports
    }

    /// Flows that a grant may have at once.
    pub(crate) fn flows_max(&self, grant: &Grant) -> u32 {
        let flows = if grant.flows == 0 { self.config.flows_per_grant } else { grant.flows };
        flows.min(FLOWS_PER_GRANT_MAX).into()
    }
}
