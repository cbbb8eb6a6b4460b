use alloc::{boxed::Box, vec};
use core::net::IpAddr;

use sluicegate_flow::Hasher;
use sluicegate_wire::ip::octets;

const PLACES: usize = 1 << 16;

/// Which outside addresses have something open here: a counting filter of fixed size with false positives and no
/// false negatives. Fragments without ports are judged by it before they may take memory.
#[derive(Debug)]
pub struct Sources {
    counts: Box<[u16]>,
    hasher: Hasher,
}

impl Sources {
    /// Empty.
    pub fn new(hash_key: &[u8; 16]) -> Self {
        Self { counts: vec![0; PLACES].into_boxed_slice(), hasher: Hasher::new(hash_key) }
    }

    /// One more thing is open for this address.
    pub fn add(&mut self, address: IpAddr) {
        let count = &mut self.counts[Self::place(&self.hasher, address)];
        *count = count.saturating_add(1);
    }

    /// One thing less is.
    pub fn remove(&mut self, address: IpAddr) {
        let count = &mut self.counts[Self::place(&self.hasher, address)];
        // A saturated count has lost its number and stays.
        if *count != u16::MAX {
            *count = count.saturating_sub(1);
        }
    }

    /// Whether something may be open for this address. `false` is certain.
    #[inline]
    pub fn may_contain(&self, address: IpAddr) -> bool {
        self.counts[Self::place(&self.hasher, address)] != 0
    }

    fn place(hasher: &Hasher, address: IpAddr) -> usize {
        hasher.hash(&octets(address)) as usize % PLACES
    }
}
