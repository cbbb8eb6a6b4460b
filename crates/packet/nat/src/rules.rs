//! Everything the translator knows besides flows.

use alloc::{boxed::Box, vec};

use sluicegate_flow::TokenBucket;
use sluicegate_pinhole::{Pinhole, Pinholes, Sizes, errors};
use sluicegate_wire::{Instant, Port};

use crate::{
    binding::Bindings, config::Config, lifecycle::Paid, owner::Owner, ports::Ports, random::Random,
    transport::Transports,
};

/// Permission, and what is given to those who have it: external ports and bindings.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) config: Config,
    pub(crate) transports: &'static Transports,
    pub(crate) pinholes: Pinholes,
    /// The flows of each pinhole, by slot.
    owners: Box<[Owner]>,
    pub(crate) ports: Ports,
    pub(crate) bindings: Bindings,
    pub(crate) random: Random,
    /// Lines, ports and pinholes looked at beyond the packets' own, see [`crate::Translator::take_looks`].
    pub(crate) looks: u32,
    /// ICMP errors about flows of private services.
    icmp: TokenBucket,
    /// What the packet that was judged last cost.
    pub(crate) paid: Option<Paid>,
}

impl Rules {
    pub(crate) fn new(
        config: Config,
        (hash_key, random_seed): (&[u8; 16], u64),
        transports: &'static Transports,
    ) -> Self {
        let ports = Ports::new(config.external_ports, transports);
        let sizes = Sizes {
            pinholes_max: config.pinholes_max,
            services_max: config.services_max,
            per_user: config.per_user.for_ports(ports.max()),
            with_ports: transports.with_ports(),
            spaces: transports.spaces().count() as u8,
        };
        let pinholes = Pinholes::new(&sizes, config.gate_address, hash_key);
        Self {
            owners: vec![Owner::NONE; pinholes.table.max() as usize].into_boxed_slice(),
            pinholes,
            bindings: Bindings::new(ports.max() * u32::from(sizes.spaces), hash_key),
            ports,
            random: Random::new(hash_key, random_seed),
            looks: 0,
            icmp: errors(Instant::ZERO, config.icmp_errors_per_s),
            paid: None,
            transports,
            config,
        }
    }

    /// The flows of a pinhole.
    #[inline]
    pub(crate) fn owner(&self, slot: u32) -> Option<&Owner> {
        self.owners.get(slot as usize)
    }

    /// As [`Self::owner`], to change them.
    #[inline]
    pub(crate) fn owner_mut(&mut self, slot: u32) -> Option<&mut Owner> {
        self.owners.get_mut(slot as usize)
    }

    /// Whether one more ICMP error about a private flow may be sent now. [`Pinholes::admit_error_of`] comes first.
    pub(crate) fn admit_icmp(&mut self, now: Instant) -> bool {
        self.icmp.take(now, 1)
    }

    /// Whether a packet of this length leaves by `to` in one piece.
    #[inline]
    pub(crate) fn fits(&self, len: usize, to: Port) -> bool {
        len <= usize::from(self.config.mtu[usize::from(to.0 & 1)])
    }

    /// Whether a pinhole's flows are those of IPv4.
    pub(crate) fn is_ipv4(&self, slot: u32) -> bool {
        self.pinholes.table.at(slot).is_some_and(|pinhole| pinhole.target.is_ipv4())
    }

    /// Forgets an ended pinhole and frees its ports.
    pub(crate) fn forget(&mut self, slot: u32) {
        self.looks += 1;
        if let Some(pinhole) = self.pinholes.forget(slot) {
            self.free_ports(&pinhole);
        }
    }

    /// Frees the external ports of a pinhole, if it holds some.
    pub(crate) fn free_ports(&mut self, pinhole: &Pinhole) {
        if pinhole.owns_ports() {
            self.ports.give_back(pinhole.protocol, pinhole.gate.ports);
        }
    }
}
