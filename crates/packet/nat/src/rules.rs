//! Everything the translator knows besides flows.

use core::net::IpAddr;

use sluicegate_bounded::{Bounded, Gauge, Queue};
use sluicegate_flow::{Hasher, TokenBucket};
use sluicegate_grant::{Grant, mac::SessionKeys};
use sluicegate_wire::{Instant, Port, Reason, UnixTime, ip::octets};

use crate::{
    binding::Bindings,
    config::{Config, EndCause, Ended, Event},
    counters::Counters,
    hosts::Hosts,
    lifecycle::Paid,
    mac::{Seal, Seals},
    pinhole::{Life, Pinhole, Pinholes},
    ports::{Holder, Ports},
    random::Random,
    relayed::Relays,
    revoked::{REVOKED_MAX, RevokedGrants},
    sources::Sources,
    transport::Transports,
    users::Users,
};

/// The tables and switches that decisions are made from.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) config: Config,
    pub(crate) transports: &'static Transports,
    pub(crate) hosts: Hosts,
    pub(crate) pinholes: Pinholes,
    pub(crate) ports: Ports,
    /// What the grants of pinholes demand, by slot.
    pub(crate) seals: Seals,
    /// The frontends of standing pinholes.
    pub(crate) relays: Relays,
    /// Whether the packet that was judged last was a frontend's, and proved it.
    pub(crate) signalling: bool,
    pub(crate) bindings: Bindings,
    pub(crate) sources: Sources,
    pub(crate) users: Users,
    pub(crate) revoked: RevokedGrants,
    pub(crate) random: Random,
    challenges: Hasher,
    /// Lines, ports and pinholes looked at beyond the packets' own, see [`crate::Translator::take_looks`].
    pub(crate) looks: u32,
    pub(crate) counters: Counters,
    /// ICMP errors about flows of private services.
    icmp: TokenBucket,
    /// What the packet that was judged last cost.
    pub(crate) paid: Option<Paid>,
    pub(crate) observe: bool,
    /// The pinhole of each service that may start flows: (service, slot), sorted by service.
    pub(crate) service_slots: alloc::vec::Vec<(u16, u32)>,
    /// The slots of standing pinholes, at most one or two a service.
    pub(crate) standing_slots: alloc::vec::Vec<u32>,
    events: Queue<Event>,
}

impl Rules {
    pub(crate) fn new(
        config: Config,
        (hash_key, random_seed): (&[u8; 16], u64),
        transports: &'static Transports,
    ) -> Self {
        let ports = Ports::new(config.external_ports, transports);
        let per_user = config.per_user.for_ports(ports.max());
        Self {
            hosts: Hosts::new(config.services_max, hash_key),
            pinholes: Pinholes::new(config.pinholes_max, hash_key, transports),
            relays: Relays::default(),
            signalling: false,
            seals: Seals::new(config.pinholes_max.clamp(1, 1 << 24)),
            bindings: Bindings::new(ports.max() * transports.spaces().count() as u32, hash_key),
            ports,
            sources: Sources::new(hash_key),
            users: Users::new(config.pinholes_max.clamp(1, 1 << 24), per_user, hash_key),
            revoked: RevokedGrants::new(REVOKED_MAX),
            random: Random::new(hash_key, random_seed),
            challenges: Hasher::new(hash_key),
            looks: 0,
            counters: Counters::default(),
            icmp: errors(Instant::ZERO, config.icmp_errors_per_s),
            paid: None,
            observe: false,
            service_slots: alloc::vec::Vec::with_capacity(config.services_max.into()),
            standing_slots: alloc::vec::Vec::with_capacity(config.services_max.into()),
            events: Queue::new("events", config.pinholes_max.max(1)),
            transports,
            config,
        }
    }

    /// What only who hears at `address` can repeat for this pinhole, in this period and no other; never 0.
    pub(crate) fn challenge(&self, slot: u32, address: IpAddr, period: u64) -> u64 {
        let serial = self.pinholes.at(slot).map_or(0, |pinhole| pinhole.serial);
        let mut input = [0; 16 + 8 + 8 + 9];
        input[..16].copy_from_slice(&octets(address));
        input[16..24].copy_from_slice(&serial.to_le_bytes());
        input[24..32].copy_from_slice(&period.to_le_bytes());
        input[32..].copy_from_slice(b"challenge");
        self.challenges.hash(&input) | 1
    }

    /// A policy says no: in observe mode it is counted and overruled.
    #[inline]
    pub(crate) fn waive(&mut self, reason: Reason) -> Result<(), Reason> {
        if self.observe {
            self.counters.count_observed(reason);
            Ok(())
        } else {
            Err(reason)
        }
    }

    /// Whether one more ICMP error about a private flow may be sent now. [`Self::admit_error_of`] comes first.
    pub(crate) fn admit_icmp(&mut self, now: Instant) -> bool {
        self.icmp.take(now, 1)
    }

    /// Whether this pinhole's flows may have one more ICMP error now. One grant so leaves the common ones to others.
    pub(crate) fn admit_error_of(&mut self, now: Instant, slot: u32) -> bool {
        self.pinholes.at_mut(slot).is_some_and(|pinhole| pinhole.errors.take(now, 1))
    }

    /// Notes what a grant that was installed or renewed has its client prove, and under which keys.
    pub(crate) fn put_seal(&mut self, slot: u32, unix: UnixTime, grant: &Grant, keys: Option<SessionKeys>) {
        self.seals.put(slot, unix, grant, keys);
        self.pinholes.list_client_id(slot, self.seals.at(slot).map(Seal::client_id));
    }

    pub(crate) fn push_event(&mut self, event: Event) {
        if self.events.push_over(event).is_some() {
            self.counters.count_event_lost();
        }
    }

    pub(crate) fn pop_event(&mut self) -> Option<Event> {
        self.events.pop()
    }

    pub(crate) fn events_gauge(&self) -> Gauge {
        self.events.gauge()
    }

    /// The slot that holds the flows which this service starts.
    pub(crate) fn service_slot(&self, service: u16) -> Option<u32> {
        let at = self.service_slots.binary_search_by_key(&service, |(id, _)| *id).ok()?;
        Some(self.service_slots[at].1)
    }

    /// Whether a packet to this address is for the gate's own external address.
    #[inline]
    pub(crate) fn is_gate(&self, address: IpAddr) -> bool {
        address == IpAddr::V4(self.config.gate_address) && !self.config.gate_address.is_unspecified()
    }

    /// Whether a packet of this length leaves by `to` in one piece.
    #[inline]
    pub(crate) fn fits(&self, len: usize, to: Port) -> bool {
        len <= usize::from(self.config.mtu[usize::from(to.0 & 1)])
    }

    /// Forgets an ended pinhole and frees its ports.
    pub(crate) fn forget(&mut self, slot: u32) {
        self.looks += 1;
        let Some(pinhole) = self.pinholes.forget(slot) else { return };
        self.pinholes.list_client_id(slot, None);
        self.seals.remove(slot);
        self.relays.remove(slot);
        if owns_ports(&pinhole) {
            self.ports.give_back(pinhole.protocol, pinhole.gate.ports);
        }
        if let Some(user) = self.users.at_mut(pinhole.user) {
            user.ports_resting -= pinhole.ports_len();
        }
        self.users.leave(pinhole.user);
    }

    /// Whether each of these external ports is free or rests after the end of a pinhole.
    pub(crate) fn rests(&mut self, protocol: u8, (first, last): (u16, u16)) -> bool {
        (first..=last).all(|port| {
            self.looks += 1;
            match self.ports.holder(protocol, port) {
                None => self.ports.contains(port),
                Some(Holder::Binding(_)) => false,
                Some(Holder::Pinhole(slot)) => {
                    self.pinholes.at(slot).is_some_and(|pinhole| matches!(pinhole.life, Life::Ended(_)))
                }
            }
        })
    }

    /// Forgets the pinholes whose ports rest among these.
    pub(crate) fn forget_block(&mut self, protocol: u8, (first, last): (u16, u16)) {
        for port in first..=last {
            if let Some(Holder::Pinhole(slot)) = self.ports.holder(protocol, port) {
                self.forget(slot);
            }
        }
    }
}

/// A bucket for so many errors a second, a tenth of them at once.
pub(crate) fn errors(now: Instant, per_s: u32) -> TokenBucket {
    TokenBucket::new(now, per_s.into(), u64::from(per_s).div_ceil(10))
}

/// Whether a pinhole holds external ports.
pub(crate) const fn owns_ports(pinhole: &Pinhole) -> bool {
    !pinhole.filter && pinhole.has_ports && pinhole.gate.ports.0 != 0
}

/// Why packets for a pinhole that is not open are dropped.
pub(crate) fn closed_reason(pinhole: &Pinhole, now: Instant) -> Reason {
    match pinhole.life {
        Life::Ended(EndCause::Revoked) => Reason::GrantRevoked,
        Life::Ended(EndCause::Expired) => Reason::GrantExpired,
        Life::Ended(EndCause::Spent) => Reason::BudgetSpent,
        Life::Live if now >= pinhole.not_after => Reason::GrantExpired,
        Life::Live => Reason::NoPinhole,
    }
}

/// The account of a granted pinhole.
pub(crate) fn account(pinhole: &Pinhole, cause: EndCause) -> Option<Ended> {
    let id = pinhole.grant()?.id;
    Some(Ended { id, cause, bytes_used: pinhole.budget.taken() })
}
