//! Bindings of flows that the inside started: (protocol, inside address, port) <-> external port, the same for every
//! remote end (RFC 4787 REQ-1). A binding lives as long as a flow uses it.

use alloc::{boxed::Box, vec, vec::Vec};
use core::net::IpAddr;

use sluicegate_bounded::Index;
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
    slots: Box<[Option<Binding>]>,
    free: Vec<u32>,
    by_inside: Index,
    hasher: Hasher,
}

impl Bindings {
    pub(crate) fn new(bindings_max: u32, hash_key: &[u8; 16]) -> Self {
        Self {
            slots: vec![None; bindings_max as usize].into_boxed_slice(),
            free: (0..bindings_max).rev().collect(),
            by_inside: Index::new("bindings", bindings_max, bindings_max),
            hasher: Hasher::new(hash_key),
        }
    }

    pub(crate) fn used(&self) -> u32 {
        (self.slots.len() - self.free.len()) as u32
    }

    pub(crate) fn max(&self) -> u32 {
        self.slots.len() as u32
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
            let binding = self.slots[slot as usize].as_mut()?;
            binding.flows += 1;
            return Some(binding.port);
        }
        let slot = *self.free.last()?;
        let port = ports.take(protocol, (1, inside.1), Holder::Binding(slot), random, looks)?;
        self.put(slot, Binding { protocol, inside, port, flows: 1 });
        Some(port)
    }

    /// As [`Self::join`], with the port that the endpoint had before a restart.
    pub(crate) fn rejoin(&mut self, protocol: u8, inside: (IpAddr, u16), port: u16, ports: &mut Ports) -> bool {
        if let Some(slot) = self.find(protocol, inside) {
            let binding = self.slots[slot as usize].as_mut().filter(|binding| binding.port == port);
            return binding.map(|binding| binding.flows += 1).is_some();
        }
        let Some(slot) = self.free.last().copied() else { return false };
        let taken = ports.take_exactly(protocol, (port, port), Holder::Binding(slot));
        if taken {
            self.put(slot, Binding { protocol, inside, port, flows: 1 });
        }
        taken
    }

    /// One flow less; without flows the port is free again.
    pub(crate) fn leave(&mut self, protocol: u8, port: u16, ports: &mut Ports) {
        let Some(Holder::Binding(slot)) = ports.holder(protocol, port) else { return };
        let Some(binding) = self.slots[slot as usize].as_mut() else { return };
        binding.flows -= 1;
        if binding.flows == 0 {
            self.slots[slot as usize] = None;
            self.by_inside.remove(slot);
            self.free.push(slot);
            ports.give_back(protocol, (port, port));
        }
    }

    fn put(&mut self, slot: u32, binding: Binding) {
        self.free.pop();
        self.by_inside.insert(Self::hash(&self.hasher, binding.protocol, binding.inside), slot);
        self.slots[slot as usize] = Some(binding);
    }

    fn find(&self, protocol: u8, inside: (IpAddr, u16)) -> Option<u32> {
        let is_it = |slot: &u32| {
            self.slots[*slot as usize].is_some_and(|known| known.protocol == protocol && known.inside == inside)
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
