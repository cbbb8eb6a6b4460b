//! Places of connections that have not said hello yet. Everyone may take one, so nobody may keep them: a newcomer always
//! gets a place, and somebody who only greets gives way.

use std::{
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use sluicegate_bounded::Gauge;
use sluicegate_wire::ip::sender_of;
use tokio::sync::oneshot;

use crate::config::GATES_MAX;

/// Strangers that greet at once.
pub(crate) const STRANGERS_MAX: usize = 32;
/// Connections that greet at once from addresses of known gates. Apart, so that strangers take none of them: nobody who
/// only forges such an address gets as far as a TCP connection.
pub(crate) const KNOWN_MAX: usize = GATES_MAX;
/// Connections that greet at once from one address, or from one IPv6 /64.
pub(crate) const PER_SOURCE_MAX: usize = 4;

/// All places.
#[derive(Debug, Default)]
pub(crate) struct Places {
    lots: Mutex<Lots>,
}

#[derive(Debug, Default)]
struct Lots {
    strangers: Vec<Place>,
    known: Vec<Place>,
    next: u64,
}

#[derive(Debug)]
struct Place {
    number: u64,
    source: IpAddr,
    /// Dropped when the place is taken away.
    _keeps: oneshot::Sender<()>,
}

/// One connection's place, free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Greeting {
    places: Arc<Places>,
    number: u64,
    is_known: bool,
    /// Resolves when the place was given to somebody else.
    pub(crate) gives_way: oneshot::Receiver<()>,
}

impl Places {
    /// A place for a connection from `source`. Of one source too many, its oldest gives way; of all too many, the oldest
    /// of the source that has most.
    pub(crate) fn enter(self: &Arc<Self>, source: IpAddr, is_known: bool) -> Greeting {
        let source = sender_of(source);
        let (keeps, gives_way) = oneshot::channel();
        let mut lots = self.lock();
        let number = lots.next;
        lots.next += 1;
        let (lot, max) = lots.lot(is_known);
        let crowded = |lot: &[Place], source| lot.iter().filter(|place| place.source == source).count();
        if crowded(lot, source) >= PER_SOURCE_MAX {
            give_way(lot, source);
        } else if lot.len() >= max {
            // The first of the largest: places are in the order in which they were taken.
            let most = lot.iter().map(|place| crowded(lot, place.source)).max().unwrap_or(0);
            let oldest = lot.iter().find(|place| crowded(lot, place.source) == most).map(|place| place.source);
            oldest.into_iter().for_each(|source| give_way(lot, source));
        }
        lot.push(Place { number, source, _keeps: keeps });
        drop(lots);
        Greeting { places: Arc::clone(self), number, is_known, gives_way }
    }

    /// Places of strangers, and of addresses of known gates.
    pub(crate) fn gauges(&self) -> [Gauge; 2] {
        let lots = self.lock();
        [
            Gauge::of("feed_greetings_strangers", lots.strangers.len(), STRANGERS_MAX),
            Gauge::of("feed_greetings_known", lots.known.len(), KNOWN_MAX),
        ]
    }

    fn lock(&self) -> MutexGuard<'_, Lots> {
        self.lots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lots {
    const fn lot(&mut self, is_known: bool) -> (&mut Vec<Place>, usize) {
        if is_known { (&mut self.known, KNOWN_MAX) } else { (&mut self.strangers, STRANGERS_MAX) }
    }
}

impl Drop for Greeting {
    fn drop(&mut self) {
        let mut lots = self.places.lock();
        lots.lot(self.is_known).0.retain(|place| place.number != self.number);
    }
}

fn give_way(lot: &mut Vec<Place>, source: IpAddr) {
    if let Some(at) = lot.iter().position(|place| place.source == source) {
        lot.remove(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(host: u8) -> IpAddr {
        IpAddr::from([198, 51, 100, host])
    }

    fn is_here(greeting: &mut Greeting) -> bool {
        greeting.gives_way.try_recv() == Err(oneshot::error::TryRecvError::Empty)
    }

    #[test]
    fn the_oldest_of_a_source_gives_way_to_its_fifth() {
        let places = Arc::new(Places::default());
        let mut first: Vec<Greeting> = (0..4).map(|_| places.enter(source(1), false)).collect();
        let mut other = places.enter(source(2), false);
        let mut fifth = places.enter(source(1), false);
        assert_eq!(first.iter_mut().map(is_here).collect::<Vec<_>>(), [false, true, true, true]);
        assert!(is_here(&mut other) && is_here(&mut fifth));
    }

    #[test]
    fn full_places_are_taken_from_the_source_that_has_most() {
        let places = Arc::new(Places::default());
        let mut lonely = places.enter(source(200), false);
        let mut crowd: Vec<Greeting> = (1..)
            .flat_map(|host| (0..3).map(move |_| host))
            .take(31)
            .map(|host| places.enter(source(host), false))
            .collect();
        let mut newcomer = places.enter(source(201), false);
        assert!(is_here(&mut lonely) && is_here(&mut newcomer));
        assert_eq!(crowd.iter_mut().map(is_here).filter(|is_here| !is_here).count(), 1);
        assert_eq!(places.gauges()[0], Gauge::of("feed_greetings_strangers", 32, 32));
    }

    #[test]
    fn strangers_take_no_place_of_known_addresses_and_dropped_places_are_free() {
        let places = Arc::new(Places::default());
        let mut gate = places.enter(source(9), true);
        let strangers: Vec<Greeting> = (0..255).map(|host| places.enter(source(host), false)).collect();
        assert!(is_here(&mut gate));
        assert_eq!(places.gauges().map(|gauge| gauge.used), [32, 1]);
        drop((gate, strangers));
        assert_eq!(places.gauges().map(|gauge| gauge.used), [0, 0]);
    }

    #[test]
    fn an_ipv6_host_is_one_source_whatever_address_it_takes() {
        let places = Arc::new(Places::default());
        let address = |host: u16| IpAddr::from([0x2001, 0xdb8, 1, 0, 0, 0, 0, host]);
        let _greetings: Vec<Greeting> = (0..100).map(|host| places.enter(address(host), false)).collect();
        assert_eq!(places.gauges()[0].used, PER_SOURCE_MAX as u64);
    }
}
