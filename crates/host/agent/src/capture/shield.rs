//! Keeps the connections of a captured service from this host's own kernel: it has no sockets for them where packets
//! arrive, so a segment that comes without a header, whoever sent it, would be answered by a reset that ends the connection.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Mutex, PoisonError},
};

use sluicegate_netlink::nft::Unheard;
use sluicegate_policy::PortProtocol;
use tracing::warn;

use super::redirects::Target;

const NFT_TABLE: &str = "sluicegate_agent";

/// Addresses and ports of gates that stand for services, in use now.
#[derive(Debug)]
pub(super) struct Shield {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    filter: Option<Unheard>,
    gates: HashMap<Target, SocketAddr>,
}

impl Shield {
    /// Packets come by `interface`.
    pub(super) fn new(interface: &str) -> Self {
        let filter = Unheard::open(NFT_TABLE, interface).inspect_err(complain).ok();
        Self { state: Mutex::new(State { filter, gates: HashMap::new() }) }
    }

    /// Packets come by another interface.
    pub(super) fn set_interface(&self, interface: &str) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(filter) = &mut state.filter {
            filter.set_interface(interface);
        }
        state.apply();
    }

    /// Connections to `target` run through this address and port of its gate; `None`: no longer.
    pub(super) fn set(&self, target: Target, gate: Option<SocketAddr>) {
        if target.protocol != PortProtocol::Tcp {
            return;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = match gate {
            Some(gate) => state.gates.insert(target, gate),
            None => state.gates.remove(&target),
        };
        if before == gate {
            return;
        }
        state.apply();
    }
}

impl State {
    fn apply(&mut self) {
        let mut gates: Vec<SocketAddr> = self.gates.values().copied().collect();
        gates.sort_unstable();
        gates.dedup();
        if let Some(filter) = &mut self.filter
            && let Err(error) = filter.set(&gates)
        {
            complain(&error);
        }
    }
}

fn complain(error: &sluicegate_netlink::Error) {
    warn!(%error, "a packet without a header can end captured connections: the kernel hears it");
}
