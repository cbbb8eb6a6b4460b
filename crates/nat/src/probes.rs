//! Which clients' addresses knock at closed ports: somebody behind the same address, or who forges it, looks for the
//! pinholes there.

use alloc::{boxed::Box, vec};
use core::{net::IpAddr, time::Duration};

use sluicegate_flow::Hasher;
use sluicegate_wire::Instant;

use crate::pinhole::octets;

const SETS: usize = 256;
const WAYS: usize = 4;
/// Different closed ports in a row that one address may try before its pinholes take no more flows. Of 12,768 ports a
/// scan has seen one in 800 by then.
pub(crate) const PROBES_MAX: u16 = 16;
/// How long after its last probe an address is forgotten.
const QUIET: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy)]
struct Place {
    /// Of the address; 0: free.
    hash: u64,
    last: Instant,
    probes: u16,
    port: u16,
}

/// The addresses that probed lately, in a table of fixed size: 1,024 places of 24 bytes. A full set forgets whoever
/// probed least.
#[derive(Debug)]
pub(crate) struct Probes {
    sets: Box<[[Place; WAYS]]>,
    hasher: Hasher,
}

impl Probes {
    pub(crate) fn new(hash_key: &[u8; 16]) -> Self {
        let free = Place { hash: 0, last: Instant::ZERO, probes: 0, port: 0 };
        Self { sets: vec![[free; WAYS]; SETS].into_boxed_slice(), hasher: Hasher::new(hash_key) }
    }

    /// A packet from `address` met a port where it has nothing. The same port again is no search.
    pub(crate) fn note(&mut self, now: Instant, address: IpAddr, port: u16) {
        let hash = self.hash(address);
        let set = &mut self.sets[hash as usize % SETS];
        let weight = |place: &Place| if is_over(place, now) { 0 } else { place.probes };
        let known = set.iter().position(|place| place.hash == hash);
        let Some(at) = known.or_else(|| (0..WAYS).min_by_key(|at| weight(&set[*at]))) else { return };
        let place = &mut set[at];
        if known.is_none() || is_over(place, now) {
            *place = Place { hash, last: now, probes: 1, port };
        } else if place.port != port {
            *place = Place { last: now, probes: place.probes.saturating_add(1), port, ..*place };
        }
    }

    /// Whether somebody at this address looks for open ports.
    pub(crate) fn is_probing(&self, now: Instant, address: IpAddr) -> bool {
        let hash = self.hash(address);
        let places = &self.sets[hash as usize % SETS];
        places.iter().any(|place| place.hash == hash && place.probes > PROBES_MAX && !is_over(place, now))
    }

    fn hash(&self, address: IpAddr) -> u64 {
        self.hasher.hash(&octets(address)) | 1 << 63
    }
}

fn is_over(place: &Place, now: Instant) -> bool {
    now.since(place.last) >= QUIET
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: u32) -> IpAddr {
        IpAddr::from(n.to_be_bytes())
    }

    #[test]
    fn a_search_is_seen_and_forgotten_when_it_is_over() {
        let mut probes = Probes::new(&[1; 16]);
        let start = Instant::from_secs(50);
        for port in 0..=PROBES_MAX {
            assert!(!probes.is_probing(start, address(1)));
            probes.note(start, address(1), port);
        }
        assert!(probes.is_probing(start, address(1)) && !probes.is_probing(start, address(2)));
        assert!(probes.is_probing(start + Duration::from_secs(9), address(1)));
        assert!(!probes.is_probing(start + Duration::from_secs(10), address(1)));
    }

    #[test]
    fn one_closed_port_however_often_is_no_search() {
        let mut probes = Probes::new(&[1; 16]);
        for _ in 0..1_000 {
            probes.note(Instant::from_secs(5), address(1), 5_004);
        }
        assert!(!probes.is_probing(Instant::from_secs(5), address(1)));
    }

    #[test]
    fn many_addresses_that_try_one_port_each_hide_no_search() {
        let mut probes = Probes::new(&[1; 16]);
        let now = Instant::from_secs(5);
        for port in 0..=PROBES_MAX {
            probes.note(now, address(1), port);
        }
        for n in 2..100_000 {
            probes.note(now, address(n), 1);
        }
        assert!(probes.is_probing(now, address(1)));
    }
}
