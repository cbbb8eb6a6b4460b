use sluicegate_bounded::{Cache, Entry, Handle};
use sluicegate_wire::ip::octets;

use super::{policy::Flow, random::Keyed};

#[derive(Debug, Clone, Copy)]
struct Route {
    hash: u64,
    peer: Handle,
}

impl Default for Route {
    fn default() -> Self {
        Self { hash: 0, peer: Handle::NONE }
    }
}

impl Entry for Route {
    fn is_vacant(&self) -> bool {
        self.peer == Handle::NONE
    }
}

/// Which peer a flow answers: what comes back to several clients behind one address must go out under the client id
/// of the right one. A direct-mapped memory: an entry that is overwritten costs a request, no packet.
#[derive(Debug)]
pub(super) struct Routes {
    routes: Cache<Route, 1>,
    keyed: Keyed,
}

impl Routes {
    pub(super) fn new(peers_max: u32, keyed: Keyed) -> Self {
        Self { routes: Cache::new("capability_routes", peers_max * 4), keyed }
    }

    /// Remembers that packets of `flow` answer `peer`. `takes_over` decides about an entry of another peer.
    pub(super) fn learn(&mut self, flow: &Flow, peer: Handle, takes_over: impl Fn(Handle) -> bool) {
        for hash in [hash(&self.keyed, flow, true), hash(&self.keyed, flow, false)] {
            let route = self.routes.place(hash, |route| route.hash == hash, |_| ());
            if route.peer == peer || takes_over(route.peer) {
                *route = Route { hash, peer };
            }
        }
    }

    /// The peer that `flow` answers, and whether by its ports; if not, it is whoever was the last of this pair.
    pub(super) fn find(&self, flow: &Flow) -> Option<(Handle, bool)> {
        [true, false].into_iter().find_map(|with_ports| {
            let hash = hash(&self.keyed, flow, with_ports);
            let route = self.routes.find(hash, |route| route.hash == hash)?;
            Some((route.peer, with_ports))
        })
    }
}

pub(super) fn hash(keyed: &Keyed, flow: &Flow, with_ports: bool) -> u64 {
    let mut bytes = [0; 38];
    bytes[..16].copy_from_slice(&octets(flow.local));
    bytes[16..32].copy_from_slice(&octets(flow.remote));
    if with_ports {
        bytes[32] = 1;
        bytes[33] = flow.protocol.0;
        let ports = flow.ports.map_or((0, 0), |ports| (ports.src, ports.dst));
        bytes[34..36].copy_from_slice(&ports.0.to_be_bytes());
        bytes[36..].copy_from_slice(&ports.1.to_be_bytes());
    }
    keyed.hash(&bytes)
}
