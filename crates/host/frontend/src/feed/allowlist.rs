//! Who may connect to the feed at all.

use std::{
    collections::HashSet,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use arc_swap::ArcSwap;
use sluicegate_feed::tls::{Admission, Peer};
use sluicegate_store::{Directory, DirectoryError, Gate};
use sluicegate_wire::UnixTime;

/// Certificates of the gates that have joined, and whether a join secret is open. Read during handshakes, so it never
/// touches the store.
#[derive(Debug, Default)]
pub(crate) struct Allowlist {
    known: ArcSwap<HashSet<[u8; 32]>>,
    /// Where those gates dialled from last.
    addresses: ArcSwap<HashSet<IpAddr>>,
    joins_open: AtomicBool,
}

impl Allowlist {
    /// Reads both from the store.
    pub(crate) fn refresh(&self, directory: &Directory, now: UnixTime) -> Result<(), DirectoryError> {
        let gates = directory.all::<Gate>()?;
        self.known.store(Arc::new(gates.iter().map(|gate| gate.certificate).collect()));
        self.addresses.store(Arc::new(gates.iter().filter_map(|gate| gate.seen_at).collect()));
        self.joins_open.store(directory.open_joins(now)? > 0, Ordering::Relaxed);
        Ok(())
    }

    /// Whether a known gate dialled from this address last.
    pub(crate) fn knows_address(&self, address: IpAddr) -> bool {
        self.addresses.load().contains(&address.to_canonical())
    }
}

impl Admission for Allowlist {
    fn admits(&self, peer: &Peer) -> bool {
        self.known.load().contains(&peer.cert_hash) || self.joins_open.load(Ordering::Relaxed)
    }
}
