//! The follower's state, and what it publishes: per port, routes by longest prefix and neighbours by address.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use ipnet::IpNet;
use prefix_trie::joint::map::JointPrefixMap;
use sluicegate_netlink::{Error, Neighbour, RouteEntry, Rtnetlink};
use sluicegate_wire::Port;

/// Most neighbours kept, over both ports.
pub const NEIGHBOURS_MAX: usize = 4096;
/// Most routes kept, per port. The longest-prefix rule needs them all: a default route is always kept.
pub const ROUTES_MAX: usize = 1024;
/// An address is asked for at most this often.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// What the packet thread reads. Never changes; a newer one replaces it.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    ports: [PortView; 2],
}

#[derive(Debug, Default)]
struct PortView {
    /// The gateway of each route; `None`: destinations are neighbours.
    routes: JointPrefixMap<IpNet, Option<IpAddr>>,
    neighbours: HashMap<IpAddr, Entry>,
}

#[derive(Debug, Clone)]
struct Entry {
    mac: [u8; 6],
    /// Set by look-ups, read and cleared by the follower.
    used: Arc<AtomicBool>,
}

impl Snapshot {
    /// The next hop towards `destination`: a gateway, or the destination itself.
    pub(super) fn next_hop(&self, port: Port, destination: IpAddr) -> Option<IpAddr> {
        let view = self.ports.get(usize::from(port.0))?;
        let (_, gateway) = view.routes.get_lpm(&destination.into())?;
        Some(gateway.unwrap_or(destination))
    }

    /// The gateways of all routes of a port, at most half of what the resolver's queue holds.
    pub(super) fn gateways(&self, port: Port) -> Vec<IpAddr> {
        let routes = self.ports.get(usize::from(port.0)).into_iter().flat_map(|view| &view.routes);
        let mut gateways: Vec<IpAddr> = routes.filter_map(|(_, gateway)| *gateway).collect();
        gateways.sort_unstable();
        gateways.dedup();
        gateways.truncate(super::REQUESTS_MAX / 2);
        gateways
    }

    /// The hardware address of a next hop.
    pub(super) fn mac(&self, port: Port, next_hop: IpAddr) -> Option<[u8; 6]> {
        let entry = self.ports.get(usize::from(port.0))?.neighbours.get(&next_hop)?;
        if !entry.used.load(Ordering::Relaxed) {
            entry.used.store(true, Ordering::Relaxed);
        }
        Some(entry.mac)
    }

    /// Neighbours and routes in all.
    pub(super) fn sizes(&self) -> (usize, usize) {
        let neighbours = self.ports.iter().map(|view| view.neighbours.len()).sum();
        let routes = self.ports.iter().map(|view| view.routes.len()).sum();
        (neighbours, routes)
    }
}

/// What the follower knows.
#[derive(Debug)]
pub(super) struct State {
    indexes: [u32; 2],
    routes: [Vec<RouteEntry>; 2],
    neighbours: HashMap<(u8, IpAddr), Known>,
    asked: HashMap<(u8, IpAddr), Instant>,
}

#[derive(Debug)]
struct Known {
    entry: Entry,
    stale: bool,
}

impl State {
    pub(super) fn new(indexes: [u32; 2]) -> Self {
        Self { indexes, routes: Default::default(), neighbours: HashMap::new(), asked: HashMap::new() }
    }

    /// The interface index of a port.
    pub(super) fn index(&self, port: Port) -> Option<u32> {
        self.indexes.get(usize::from(port.0)).copied()
    }

    fn port(&self, index: u32) -> Option<usize> {
        self.indexes.iter().position(|own| *own == index)
    }

    /// Reads everything from the kernel.
    pub(super) fn read(&mut self, netlink: &mut Rtnetlink) -> Result<(), Error> {
        let (routes, ignored) = netlink.routes(|(routes, ignored): &mut ([Vec<RouteEntry>; 2], usize), route| {
            let Some(port) = self.port(route.index) else { return };
            if routes[port].len() < ROUTES_MAX {
                routes[port].push(route);
            } else if route.prefix_len == 0 {
                routes[port][0] = route;
            } else {
                *ignored += 1;
            }
        })?;
        if ignored > 0 {
            tracing::warn!(ignored, max = ROUTES_MAX, "more routes than the gate keeps; summarise them");
        }
        self.routes = routes;
        let seen = netlink.neighbours(|seen: &mut Vec<Neighbour>, neighbour| seen.push(neighbour))?;
        let mut old = std::mem::take(&mut self.neighbours);
        for neighbour in seen {
            if let Some(port) = self.port(neighbour.index)
                && let Some(known) = old.remove(&(port as u8, neighbour.address))
            {
                self.neighbours.insert((port as u8, neighbour.address), known);
            }
            self.neighbour(neighbour);
        }
        Ok(())
    }

    /// Takes over one neighbour; `true` if the snapshot must be renewed.
    pub(super) fn neighbour(&mut self, neighbour: Neighbour) -> bool {
        let Some(port) = self.port(neighbour.index) else { return false };
        let key = (port as u8, neighbour.address);
        let Some(mac) = neighbour.mac else { return self.neighbours.remove(&key).is_some() };
        self.asked.remove(&key);
        if let Some(known) = self.neighbours.get_mut(&key) {
            known.stale = neighbour.stale;
            return std::mem::replace(&mut known.entry.mac, mac) != mac;
        }
        if self.neighbours.len() == NEIGHBOURS_MAX {
            self.forget_unused();
        }
        let full = self.neighbours.len() == NEIGHBOURS_MAX;
        if !full {
            let entry = Entry { mac, used: Arc::new(AtomicBool::new(false)) };
            self.neighbours.insert(key, Known { entry, stale: neighbour.stale });
        }
        !full
    }

    /// Makes room: an entry that no look-up used since the last refresh goes first; if all are in use, none goes.
    fn forget_unused(&mut self) {
        let unused = self.neighbours.iter().find(|(_, known)| !known.entry.used.load(Ordering::Relaxed));
        if let Some(key) = unused.map(|(key, _)| *key) {
            self.neighbours.remove(&key);
        }
    }

    /// Whether the kernel is to be asked for this address: not if it was just asked.
    pub(super) fn may_request(&mut self, port: Port, address: IpAddr) -> bool {
        let key = (port.0, address);
        if self.asked.get(&key).is_some_and(|since| since.elapsed() < ASK_AGAIN) {
            return false;
        }
        if self.asked.len() >= NEIGHBOURS_MAX {
            self.asked.retain(|_, since| since.elapsed() < ASK_AGAIN);
        }
        if self.asked.len() >= NEIGHBOURS_MAX {
            return false;
        }
        self.asked.insert(key, Instant::now());
        true
    }

    /// Entries that look-ups used since the last call and that the kernel is about to forget.
    pub(super) fn stale_in_use(&mut self) -> Vec<(Port, IpAddr)> {
        self.neighbours
            .iter()
            .filter(|(_, known)| known.entry.used.swap(false, Ordering::Relaxed) && known.stale)
            .map(|((port, address), _)| (Port(*port), *address))
            .collect()
    }

    /// What the packet thread is to see from now on.
    pub(super) fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for (view, routes) in snapshot.ports.iter_mut().zip(&self.routes) {
            view.routes = by_prefix(routes);
        }
        for ((port, address), known) in &self.neighbours {
            if let Some(view) = snapshot.ports.get_mut(usize::from(*port)) {
                view.neighbours.insert(*address, known.entry.clone());
            }
        }
        snapshot
    }
}

/// Of equal prefixes the least metric wins, and the first among equals.
fn by_prefix(routes: &[RouteEntry]) -> JointPrefixMap<IpNet, Option<IpAddr>> {
    let mut routes: Vec<&RouteEntry> = routes.iter().collect();
    routes.sort_by_key(|route| route.metric);
    let prefix = |route: &RouteEntry| IpNet::new(route.destination, route.prefix_len).ok().map(|prefix| prefix.trunc());
    routes.iter().rev().filter_map(|route| Some((prefix(route)?, route.gateway))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(destination: &str, prefix_len: u8, gateway: Option<&str>, metric: u32) -> RouteEntry {
        let gateway = gateway.map(|text| text.parse().unwrap());
        RouteEntry { index: 7, destination: destination.parse().unwrap(), prefix_len, gateway, metric }
    }

    fn neighbour(number: u32, mac: Option<[u8; 6]>) -> Neighbour {
        Neighbour { index: 7, address: IpAddr::V4(number.into()), mac, stale: true }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_longest_prefix_wins_and_among_equals_the_least_metric() {
        let mut state = State::new([7, 8]);
        state.routes[0] = vec![
            route("0.0.0.0", 0, Some("192.0.2.254"), 0),
            route("192.0.2.0", 24, None, 0),
            route("198.51.100.0", 24, Some("192.0.2.2"), 20),
            route("198.51.100.0", 24, Some("192.0.2.1"), 10),
            route("198.51.100.7", 32, Some("192.0.2.3"), 0),
            route("2001:db8::", 32, Some("fe80::1"), 0),
        ];
        let snapshot = state.snapshot();
        let hop = |text| snapshot.next_hop(Port::OUTSIDE, ip(text));
        assert_eq!(hop("8.8.8.8"), Some(ip("192.0.2.254")));
        assert_eq!(hop("192.0.2.9"), Some(ip("192.0.2.9")));
        assert_eq!(hop("198.51.100.8"), Some(ip("192.0.2.1")));
        assert_eq!(hop("198.51.100.7"), Some(ip("192.0.2.3")));
        assert_eq!(hop("2001:db8:1::5"), Some(ip("fe80::1")));
        assert_eq!(hop("2001:db9::5"), None);
        assert_eq!(snapshot.next_hop(Port::INSIDE, ip("192.0.2.9")), None);
        assert_eq!(snapshot.next_hop(Port(9), ip("192.0.2.9")), None);
    }

    #[test]
    fn a_full_table_recycles_unused_neighbours_and_otherwise_refuses() {
        let mut state = State::new([7, 8]);
        for number in 0..NEIGHBOURS_MAX as u32 {
            assert!(state.neighbour(neighbour(number, Some([1; 6]))));
        }
        assert!(state.neighbour(neighbour(1_000_000, Some([2; 6]))), "an unused one makes room");
        let snapshot = state.snapshot();
        assert_eq!(snapshot.sizes().0, NEIGHBOURS_MAX);
        for (_, address) in state.neighbours.keys() {
            assert!(snapshot.mac(Port::OUTSIDE, *address).is_some());
        }
        assert!(!state.neighbour(neighbour(2_000_000, Some([3; 6]))), "all are in use");
        assert_eq!(state.neighbours.len(), NEIGHBOURS_MAX);
    }

    #[test]
    fn used_stale_entries_are_confirmed_once_per_refresh() {
        let mut state = State::new([7, 8]);
        state.neighbour(neighbour(1, Some([1; 6])));
        state.neighbour(neighbour(2, Some([2; 6])));
        let snapshot = state.snapshot();
        assert_eq!(snapshot.mac(Port::OUTSIDE, IpAddr::V4(1.into())), Some([1; 6]));
        assert_eq!(state.stale_in_use(), [(Port::OUTSIDE, IpAddr::V4(1.into()))]);
        assert_eq!(state.stale_in_use(), []);
    }

    #[test]
    fn a_forgotten_neighbour_disappears_and_other_interfaces_do_not_matter() {
        let mut state = State::new([7, 8]);
        assert!(state.neighbour(neighbour(1, Some([1; 6]))));
        assert!(!state.neighbour(neighbour(1, Some([1; 6]))), "nothing changed");
        assert!(state.neighbour(neighbour(1, None)));
        assert!(!state.neighbour(Neighbour { index: 99, ..neighbour(1, Some([1; 6])) }));
        assert_eq!(state.snapshot().sizes(), (0, 0));
    }
}
