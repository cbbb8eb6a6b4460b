//! The services behind the gate, and the pinholes that they have without a grant.

use core::net::IpAddr;

use alloc::vec::Vec;

use sluicegate_grant::Protocol;
use sluicegate_pinhole::{
    EndCause, FLOWS_PER_GRANT_MAX, Holder, InstallError, Opened, PEERS_MAX, Pinhole, Service, ServiceMode,
    ServicesError, StandingSpec,
};
use sluicegate_wire::Instant;

use crate::Translator;

/// What is looked at at once of a pinhole whose service is gone.
const CLOSE_LOOKS: u32 = 20;

impl Translator {
    /// Replaces the list of services. Grants of services that are gone stay until they end; flows that such a service
    /// started itself, and its standing pinhole, end now.
    ///
    /// # Errors
    /// See [`ServicesError`]; the old list stays in force then.
    pub fn set_services(&mut self, services: &[Service]) -> Result<(), ServicesError> {
        let now = self.now;
        self.rules.pinholes.hosts.check(services, self.rules.config.gate_address)?;
        let mut starting: Vec<u16> = Vec::with_capacity(services.len());
        for service in services.iter().filter(|service| service.outbound_all && !service.open) {
            self.open_for_service(now, service)?;
            starting.push(service.id);
        }
        starting.sort_unstable();
        let starts = |id: u16| starting.binary_search(&id).is_ok();
        let gone: Vec<u16> =
            self.rules.pinholes.service_slots.iter().map(|(id, _)| *id).filter(|id| !starts(*id)).collect();
        for id in gone {
            self.close_for_service(now, id);
        }
        let mut known: Vec<(u16, IpAddr)> = services.iter().map(|service| (service.id, service.address)).collect();
        known.sort_unstable();
        let is_gone = |slot: &u32| {
            let pinhole = self.rules.pinholes.table.at(*slot);
            pinhole.is_some_and(|pinhole| known.binary_search(&(pinhole.service, pinhole.target)).is_err())
        };
        let gone: Vec<u32> = self.rules.pinholes.standing_slots.iter().copied().filter(is_gone).collect();
        for slot in gone {
            self.rules.pinholes.standing_slots.retain(|known| *known != slot);
            self.close_soon(now, slot);
        }
        self.rules.looks += services.len() as u32;
        self.rules.pinholes.hosts.replace(services);
        Ok(())
    }

    /// Opens a service's SIP port (UDP) to the frontends, which prove to be that by packet MACs, and the frontends to the
    /// service from that port; what it sends is sealed for them. Never expires. Installing the same again changes nothing;
    /// other peers, keys or another rate replace the old ones and keep the external port.
    ///
    /// # Errors
    /// See [`InstallError`].
    pub fn install_standing(&mut self, now: Instant, spec: StandingSpec) -> Result<Opened, InstallError> {
        self.open_standing(now, spec, (0, 0))
    }

    /// As [`Self::install_standing`], at these external ports if they are free.
    pub(crate) fn open_standing(
        &mut self,
        now: Instant,
        spec: StandingSpec,
        mut wanted: (u16, u16),
    ) -> Result<Opened, InstallError> {
        let service = self.rules.pinholes.hosts.service(spec.service);
        let unknown = InstallError::Service(spec.service);
        let filter =
            service.filter(|service| service.address == spec.target).ok_or(unknown)?.mode == ServiceMode::Filter;
        let same_family = spec.peers.iter().all(|peer| peer.is_ipv4() == spec.target.is_ipv4());
        if spec.peers.is_empty() || spec.peers.len() > PEERS_MAX || !same_family {
            return Err(InstallError::Peers);
        }
        if spec.target_port == 0 {
            return Err(InstallError::Ports(1));
        }
        if let Some((slot, opened, is_same)) = self.find_standing(&spec) {
            if is_same {
                self.rules.pinholes.macs.relays.put(slot, &spec.relays);
                return Ok(opened);
            }
            wanted = opened.ports;
            self.rules.pinholes.standing_slots.retain(|known| *known != slot);
            self.drop_pinhole(now, slot);
        }
        let target_ports = (spec.target_port, spec.target_port);
        let listens = (spec.target, target_ports);
        let (slot, gate) = self.rules.listen(Protocol::UDP, filter, listens, wanted)?;
        let peers = spec.peers.clone().into();
        let holder = Holder::Standing { peers, rate_bytes_per_s: spec.rate_bytes_per_s };
        let pinhole = Pinhole {
            protocol: Protocol::UDP,
            service: spec.service,
            filter,
            space: self.rules.space(Protocol::UDP, filter),
            target_ports,
            flows_max: self.rules.config.flows_per_service.min(FLOWS_PER_GRANT_MAX.into()),
            ..Pinhole::new(now, holder, (gate, spec.target), spec.rate_bytes_per_s)
        };
        self.rules.put(now, slot, pinhole)?;
        self.note_due();
        self.rules.pinholes.standing_slots.push(slot);
        self.rules.pinholes.macs.relays.put(slot, &spec.relays);
        spec.peers.iter().for_each(|peer| self.rules.pinholes.sources.add(*peer));
        Ok(gate)
    }

    fn find_standing(&self, spec: &StandingSpec) -> Option<(u32, Opened, bool)> {
        self.rules.pinholes.standing_slots.iter().find_map(|slot| {
            let (slot, pinhole) = (*slot, self.rules.pinholes.table.at(*slot)?);
            let Holder::Standing { peers, rate_bytes_per_s } = &pinhole.holder else { return None };
            let is_it = pinhole.is_live()
                && (pinhole.service, pinhole.target) == (spec.service, spec.target)
                && pinhole.target_ports.0 == spec.target_port;
            let is_same = peers[..] == spec.peers[..] && *rate_bytes_per_s == spec.rate_bytes_per_s;
            is_it.then_some((slot, pinhole.gate, is_same))
        })
    }

    fn open_for_service(&mut self, now: Instant, service: &Service) -> Result<(), ServicesError> {
        if let Some(slot) = self.rules.pinholes.service_slot(service.id) {
            let is_same = self.rules.pinholes.table.at(slot).is_some_and(|pinhole| pinhole.target == service.address);
            if is_same {
                return Ok(());
            }
            self.close_for_service(now, service.id);
        }
        let full = ServicesError::PinholesFull(self.rules.config.pinholes_max);
        let slot = self.rules.reserve().ok_or(full)?;
        let gate = Opened { address: service.address, ports: (0, 0) };
        let pinhole = Pinhole {
            service: service.id,
            filter: service.mode == ServiceMode::Filter,
            flows_max: self.rules.config.flows_per_service,
            ..Pinhole::new(now, Holder::Service, (gate, service.address), 0)
        };
        self.rules.put(now, slot, pinhole).map_err(|_| full)?;
        self.note_due();
        let slots = &mut self.rules.pinholes.service_slots;
        let at = slots.partition_point(|(id, _)| *id < service.id);
        slots.insert(at, (service.id, slot));
        Ok(())
    }

    fn close_for_service(&mut self, now: Instant, id: u16) {
        if let Some(slot) = self.rules.pinholes.service_slot(id) {
            self.rules.pinholes.service_slots.retain(|(known, _)| *known != id);
            self.close_soon(now, slot);
        }
    }

    /// Closes a pinhole without grant to new flows; those that it has end in the next turns.
    fn close_soon(&mut self, now: Instant, slot: u32) {
        if let Some(pinhole) = self.rules.pinholes.table.at_mut(slot) {
            pinhole.not_after = now;
            let serial = pinhole.serial;
            self.closing.push_back((slot, serial));
        }
        self.expire(now, CLOSE_LOOKS);
        self.note_due();
    }

    /// Ends a pinhole without grant and forgets it at once.
    pub(crate) fn drop_pinhole(&mut self, now: Instant, slot: u32) {
        let peers = match self.rules.pinholes.table.at(slot).map(|pinhole| &pinhole.holder) {
            Some(Holder::Standing { peers, .. }) => peers.to_vec(),
            _ => Vec::new(),
        };
        peers.iter().for_each(|peer| self.rules.pinholes.sources.remove(*peer));
        self.end_pinhole(now, slot, EndCause::Revoked);
        self.rules.forget(slot);
    }
}
