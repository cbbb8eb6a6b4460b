//! What grants may open, how they are renewed, and how they end.

use core::time::Duration;

use sluicegate_grant::{Grant, GrantError, GrantId};
use sluicegate_wire::{Instant, UnixTime};

use crate::{
    clock::SKEW_MAX,
    config::{EndCause, Ended, InstallError, Opened, PinholeSpec, ServiceMode},
    pinhole::{Holder, Life, NO_SLOT, Pinhole, burst, rate},
    pinholes::Pinholes,
    revoked::Revoked,
};

impl Pinholes {
    /// Whether a grant may open what it is meant to. `can_open`: its protocol can pass. `Some`: its pinhole is known here, and
    /// it renews that.
    ///
    /// # Errors
    /// See [`InstallError`].
    pub fn check(
        &mut self,
        now: Instant,
        unix: UnixTime,
        spec: &PinholeSpec,
        can_open: bool,
    ) -> Result<Option<u32>, InstallError> {
        self.clock.look(now, unix);
        self.revoked.expire(unix, 2);
        let grant = &spec.grant;
        grant.check()?;
        if !can_open {
            return Err(InstallError::Protocol(grant.protocol));
        }
        if grant.client_address.is_ipv4() != spec.target.is_ipv4() {
            return Err(GrantError::AddressFamily.into());
        }
        if unix >= grant.not_after {
            return Err(InstallError::Expired);
        }
        if let Some(slot) = self.table.by_id(grant.id) {
            return Ok(Some(slot));
        }
        if self.revoked.refuses(grant) {
            return Err(InstallError::Revoked(grant.id));
        }
        let mode = if spec.filter { ServiceMode::Filter } else { ServiceMode::Nat };
        let service = self.hosts.service(spec.service);
        let is_known = service.is_some_and(|service| service.address == spec.target && service.mode == mode);
        if is_known { Ok(None) } else { Err(InstallError::Service(spec.service)) }
    }

    /// When a grant opens and ends here.
    #[must_use]
    pub fn times(&self, grant: &Grant) -> (Instant, Instant) {
        (self.clock.instant(grant.not_before) - SKEW_MAX, self.clock.instant(grant.not_after))
    }

    /// Whether a grant ends later than the one that a pinhole was made from.
    #[must_use]
    pub fn is_extended_by(&self, slot: u32, grant: &Grant) -> bool {
        let known = self.table.at(slot).and_then(Pinhole::grant);
        known.is_some_and(|known| grant.not_after > known.not_after)
    }

    /// Whether a grant lets its client in from elsewhere than the one that a pinhole was made from, whose client proves no
    /// address itself: what it has open ends, as it is another's.
    #[must_use]
    pub fn is_moved_by(&self, slot: u32, grant: &Grant) -> bool {
        let known = self.table.at(slot).and_then(Pinhole::grant);
        known.is_some_and(|known| {
            let is_elsewhere = known.client_address != grant.client_address;
            is_elsewhere && !known.proves_address() && grant.not_after > known.not_after
        })
    }

    /// Renews a pinhole, whose lines have given back their slices if it [is extended](Self::is_extended_by), and which has none
    /// if it [is moved](Self::is_moved_by).
    ///
    /// # Errors
    /// [`InstallError::Conflict`], [`InstallError::Revoked`], [`InstallError::Expired`].
    pub fn renew(
        &mut self,
        (now, unix): (Instant, UnixTime),
        slot: u32,
        spec: PinholeSpec,
        target_ports: (u16, u16),
        flows_max: u32,
    ) -> Result<Opened, InstallError> {
        let times = self.times(&spec.grant);
        let conflict = InstallError::Conflict(spec.grant.id);
        let pinhole = self.table.at(slot).ok_or(conflict)?;
        let known = pinhole.grant().ok_or(conflict)?;
        // Where a client signs in from may change if that is not where its packets come from.
        let (address, is_moved) = (spec.grant.client_address, self.is_moved_by(slot, &spec.grant));
        let same_client = known.client_address == address || known.proves_address() || is_moved;
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
                self.table.revive(slot);
                if let Some(client) = client {
                    self.sources.add(client);
                }
                self.rest_ports(slot, false);
                let user = self.table.at(slot).map_or(NO_SLOT, |pinhole| pinhole.user);
                self.users.begin(now, user, &spec.grant);
            }
            _ if !is_later => {
                // A snapshot after a restart: what it brings is the key.
                if spec.grant.client_id == known.client_id {
                    self.put_seal(slot, unix, spec.keys);
                }
                return Ok(gate);
            }
            _ => {}
        }
        let pinhole = self.table.at_mut(slot).ok_or(conflict)?;
        self.users.renew(now, pinhole.user, &spec.grant);
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
        pinhole.flows_max = flows_max;
        self.table.change(slot, |pinhole| {
            pinhole.spent = false;
            pinhole.holder = Holder::Granted(spec.grant.into());
        });
        if is_moved {
            self.move_client(slot, address);
        }
        self.put_seal(slot, unix, spec.keys);
        self.table.schedule(now, slot);
        Ok(gate)
    }

    /// Remembers that a grant is refused from now on. Gives the slot of its pinhole if that is live: its flows end, and then
    /// it.
    pub fn revoke(&mut self, id: GrantId) -> Option<u32> {
        let slot = self.table.by_id(id)?;
        if let Some(grant) = self.table.at(slot)?.grant() {
            self.revoked.add(id, Revoked::of(grant));
        }
        let pinhole = self.table.at_mut(slot)?;
        if pinhole.is_live() {
            return Some(slot);
        }
        // A renewal that comes late must not open it again.
        pinhole.life = Life::Ended(EndCause::Revoked);
        self.macs.seals.forget_key(slot);
        None
    }

    /// Ends a pinhole without flows, and remembers it for as long as its ports `rest`.
    pub fn end(&mut self, now: Instant, slot: u32, cause: EndCause, rest: Duration) -> Option<Ended> {
        let pinhole = self.table.at(slot)?;
        let (ended, user) = (pinhole.account(cause), pinhole.user);
        if let Some(client) = pinhole.client {
            self.sources.remove(client);
        }
        if cause == EndCause::Revoked {
            self.macs.seals.forget_key(slot);
        }
        self.rest_ports(slot, true);
        self.users.end(user);
        self.table.end(now, slot, cause, rest);
        ended
    }

    /// The user's ports of this pinhole rest from now on, or are in use again.
    fn rest_ports(&mut self, slot: u32, rest: bool) {
        let Some(pinhole) = self.table.at(slot) else { return };
        let (ports, protocol, user) = (pinhole.ports_len(), pinhole.protocol, pinhole.user);
        if let Some(user) = self.users.at_mut(user) {
            let (from, to) = if rest {
                (&mut user.ports, &mut user.ports_resting)
            } else {
                (&mut user.ports_resting, &mut user.ports)
            };
            *from -= ports;
            *to += ports;
            self.users.note_ports(protocol, ports, !rest);
        }
    }
}
