//! Who may connect to the feed at all.

use std::{
    collections::HashSet,
    sync::atomic::{AtomicBool, Ordering},
};

use arc_swap::ArcSwap;
use sluicegate_store::{
    Directory, DirectoryError, Gate,
    feed::tls::{Admission, Peer},
};
use sluicegate_wire::UnixTime;

/// Certificates of the gates that have joined, and whether a join secret is open. Read during handshakes, so it never
/// touches the store.
#[derive(Debug, Default)]
pub(crate) struct Door {
    known: ArcSwap<HashSet<[u8; 32]>>,
    joins_open: AtomicBool,
}

impl Door {
    /// Reads both from the store.
    pub(crate) fn refresh(&self, directory: &Directory, now: UnixTime) -> Result<(), DirectoryError> {
        let known = directory.all::<Gate>(now)?.into_iter().map(|gate| gate.certificate).collect();
        self.known.store(std::sync::Arc::new(known));
        self.joins_open.store(directory.open_joins(now)? > 0, Ordering::Relaxed);
        Ok(())
    }
}

impl Admission for Door {
    fn admits(&self, peer: &Peer) -> bool {
        self.known.load().contains(&peer.cert_hash) || self.joins_open.load(Ordering::Relaxed)
    }
}
