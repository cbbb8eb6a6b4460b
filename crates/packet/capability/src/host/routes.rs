use alloc::{boxed::Box, vec};

use super::{
    policy::Flow,
    random::Random,
    table::{Ticket, address_bytes},
};

/// Which peer a flow answers: what comes back to several clients behind one address must go out under the client id
/// of the right one. A direct-mapped memory: an entry that is overwritten costs a request, no packet.
#[derive(Debug)]
pub(super) struct Routes {
    entries: Box<[(u64, Ticket)]>,
}

impl Routes {
    pub(super) fn new(peers_max: u32) -> Self {
        let entries = (peers_max as usize * 4).next_power_of_two();
        Self { entries: vec![(0, Ticket::NOBODY); entries].into_boxed_slice() }
    }

    /// Remembers that packets of `flow` answer `peer`. `takes_over` decides about an entry of another peer.
    pub(super) fn learn(&mut self, random: &Random, flow: &Flow, peer: Ticket, takes_over: impl Fn(Ticket) -> bool) {
        for hash in [hash(random, flow, true), hash(random, flow, false)] {
            let at = hash as usize & (self.entries.len() - 1);
            let (_, held) = self.entries[at];
            if held == peer || takes_over(held) {
                self.entries[at] = (hash, peer);
            }
        }
    }

    /// The peer that `flow` answers, and whether by its ports; if not, it is whoever was the last of this pair.
    pub(super) fn find(&self, random: &Random, flow: &Flow) -> Option<(Ticket, bool)> {
        [true, false].into_iter().find_map(|with_ports| {
            let hash = hash(random, flow, with_ports);
            let (held, ticket) = self.entries[hash as usize & (self.entries.len() - 1)];
            (held == hash).then_some((ticket, with_ports))
        })
    }
}

pub(super) fn hash(random: &Random, flow: &Flow, with_ports: bool) -> u64 {
    let mut bytes = [0; 38];
    bytes[..16].copy_from_slice(&address_bytes(flow.local));
    bytes[16..32].copy_from_slice(&address_bytes(flow.remote));
    if with_ports {
        bytes[32] = 1;
        bytes[33] = flow.protocol.0;
        let ports = flow.ports.map_or((0, 0), |ports| (ports.src, ports.dst));
        bytes[34..36].copy_from_slice(&ports.0.to_be_bytes());
        bytes[36..].copy_from_slice(&ports.1.to_be_bytes());
    }
    random.index(&bytes)
}
