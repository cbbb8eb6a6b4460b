//! Bindings of flows that the inside started: (protocol, inside address, port) <-> external port, the same for every
//! remote end (RFC 4787 REQ-1). A binding lives as long as a flow uses it.

use core::net::IpAddr;

use sluicegate_bounded::{Bounded, Gauge, Index, Slab};
use sluicegate_flow::Hasher;
use sluicegate_wire::ip::octets;

use crate::{
    ports::{Holder, Ports},
    random::Random,
};

#[derive(Debug, Clone, Copy)]
struct Binding {
    protocol: u8,
    inside: (IpAddr, u16),
    port: u16,
    /// Flows that use it.
    flows: u32,
}

/// All bindings, in a fixed table.
#[derive(Debug)]
pub(crate) struct Bindings {
    slots: Slab<Binding>,
    by_inside: Index,
    hasher: Hasher,
}

impl Bindings {
    pub(crate) fn new(bindings_max: u32, hash_key: &[u8; 16]) -> Self {
        Self {
            slots: Slab::new("bindings", bindings_max),
            by_inside: Index::new("bindings", bindings_max, bindings_max),
            hasher: Hasher::new(hash_key),
        }
    }

    pub(crate) fn gauge(&self) -> Gauge {
        self.slots.gauge()
    }

    /// The external port of an inside endpoint, bound now if it was not, and one more flow that uses it.
    pub(crate) fn join(
        &mut self,
        protocol: u8,
        inside: (IpAddr, u16),
        ports: &mut Ports,
        random: &mut Random,
        looks: &mut u32,
    ) -> Option<u16> {
        if let Some(slot) = self.find(protocol, inside) {
            let binding = self.slots.get_mut(slot)?;
            binding.flows += 1;
            return Some(binding.port);
        }
        let slot = self.slots.vacant()?;
        let port = ports.take(protocol, (1, inside.1), Holder::Binding(slot), random, looks)?;
        self.put(Binding { protocol, inside, port, flows: 1 });
        Some(port)
    }

    /// As [`Self::join`], with the port that the endpoint had before a restart.
    pub(crate) fn rejoin(&mut self, protocol: u8, inside: (IpAddr, u16), port: u16, ports: &mut Ports) -> bool {
        if let Some(slot) = self.find(protocol, inside) {
            let binding = self.slots.get_mut(slot).filter(|binding| binding.port == port);
            return binding.map(|binding| binding.flows += 1).is_some();
        }
        let Some(slot) = self.slots.vacant() else { return false };
        let taken = ports.take_exactly(protocol, (port, port), Holder::Binding(slot));
        if taken {
            self.put(Binding { protocol, inside, port, flows: 1 });
        }
        taken
    }

    /// One flow less; without flows the port is free again.
    pub(crate) fn leave(&mut self, protocol: u8, port: u16, ports: &mut Ports) {
        let Some(Holder::Binding(slot)) = ports.holder(protocol, port) else { return };
        let Some(binding) = self.slots.get_mut(slot) else { return };
        binding.flows -= 1;
        if binding.flows == 0 {
            self.slots.remove(slot);
            self.by_inside.remove(slot);
            ports.give_back(protocol, (port, port));
        }
    }

    fn put(&mut self, binding: Binding) {
        let hash = Self::hash(&self.hasher, binding.protocol, binding.inside);
        if let Ok(handle) = self.slots.insert(binding) {
            self.by_inside.insert(hash, handle.index());
        }
    }

    fn find(&self, protocol: u8, inside: (IpAddr, u16)) -> Option<u32> {
        let is_it = |slot: &u32| {
            self.slots.get(*slot).is_some_and(|known| known.protocol == protocol && known.inside == inside)
        };
        self.by_inside.matches(Self::hash(&self.hasher, protocol, inside)).find(is_it)
    }

    fn hash(hasher: &Hasher, protocol: u8, inside: (IpAddr, u16)) -> u64 {
        let mut input = [0; 19];
        input[0] = protocol;
        input[1..3].copy_from_slice(&inside.1.to_le_bytes());
        input[3..].copy_from_slice(&octets(inside.0));
        hasher.hash(&input)
    }
}
