//! Next hops: a mirror of the kernel's routes and neighbours for the packet thread.
//!
//! A thread of its own follows netlink and publishes snapshots; a look-up reads the newest without a lock. A miss asks
//! that thread, through a bounded queue, to have the kernel resolve the address. The kernel's own neighbour table stays
//! the only truth: it does ARP and neighbour discovery, and ages entries; those that look-ups use are confirmed before
//! it forgets them.

mod snapshot;

use std::{
    net::IpAddr,
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use sluicegate_netlink::{Change, Error, Monitor, Rtnetlink};
use sluicegate_wire::{Port, Reason};

use crate::{Interface, sys, wake::Wake};
pub use snapshot::{NEIGHBOURS_MAX, ROUTES_MAX};
use snapshot::{Snapshot, State};

/// Addresses waiting for the resolver thread; more are forgotten, the next look-up asks again.
const REQUESTS_MAX: usize = 256;
/// How often used entries that went stale are confirmed.
const REFRESH: Duration = Duration::from_secs(5);
/// How long changes of routes are gathered before all are read again.
const SETTLE: Duration = Duration::from_millis(100);

/// Finds the hardware address of the next hop.
#[derive(Debug)]
pub struct Table {
    shared: Arc<Shared>,
    follower: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    snapshot: ArcSwap<Snapshot>,
    requests: SyncSender<(Port, IpAddr)>,
    wake: Wake,
    stop: AtomicBool,
}

impl Table {
    /// Reads the routes and neighbours of the two interfaces (outside, inside) and follows them from then on, in the
    /// calling thread's network namespace.
    ///
    /// # Errors
    /// If netlink or the thread cannot be set up.
    pub fn open(ports: &[Interface; 2]) -> Result<Self, Error> {
        let (monitor, mut netlink) = (Monitor::open()?, Rtnetlink::open()?);
        let mut state = State::new([ports[0].index, ports[1].index]);
        state.read(&mut netlink)?;
        let (requests, queue) = sync_channel(REQUESTS_MAX);
        let shared = Arc::new(Shared {
            snapshot: ArcSwap::from_pointee(state.snapshot()),
            requests,
            wake: Wake::new()?,
            stop: AtomicBool::new(false),
        });
        let followed = Arc::clone(&shared);
        let follower = thread::Builder::new()
            .name("neighbours".into())
            .spawn(move || follow(&followed, state, (monitor, netlink), &queue))?;
        Ok(Self { shared, follower: Some(follower) })
    }

    /// The hardware address to which a packet for `destination` goes on `port`. Costs well under a microsecond.
    ///
    /// # Errors
    /// [`Reason::NoRoute`] if no route leads there by this port; [`Reason::NoNeighbour`] while the next hop is unknown,
    /// which also starts its resolution.
    pub fn lookup(&self, port: Port, destination: IpAddr) -> Result<[u8; 6], Reason> {
        let snapshot = self.shared.snapshot.load();
        let next_hop = snapshot.next_hop(port, destination).ok_or(Reason::NoRoute)?;
        if let Some(mac) = snapshot.mac(port, next_hop) {
            return Ok(mac);
        }
        drop(snapshot);
        self.request(port, next_hop);
        Err(Reason::NoNeighbour)
    }

    /// Has the next hop towards `destination` resolved ahead of the first packet.
    pub fn resolve(&self, port: Port, destination: IpAddr) {
        let next_hop = self.shared.snapshot.load().next_hop(port, destination);
        if let Some(next_hop) = next_hop {
            self.request(port, next_hop);
        }
    }

    /// Has the gateways of all routes resolved ahead of the first packet.
    pub fn resolve_gateways(&self) {
        let snapshot = self.shared.snapshot.load();
        for port in [Port::OUTSIDE, Port::INSIDE] {
            snapshot.gateways(port).into_iter().for_each(|gateway| self.request(port, gateway));
        }
    }

    fn request(&self, port: Port, next_hop: IpAddr) {
        match self.shared.requests.try_send((port, next_hop)) {
            Ok(()) => self.shared.wake.wake(),
            // A full queue: the thread is awake and busy, and the next packet asks again.
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
        }
    }

    /// Neighbours and routes known, with their maxima: `(name, used, max)`.
    #[must_use]
    pub fn gauges(&self) -> [(&'static str, usize, usize); 2] {
        let (neighbours, routes) = self.shared.snapshot.load().sizes();
        [("neighbours", neighbours, NEIGHBOURS_MAX), ("routes", routes, 2 * ROUTES_MAX)]
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake.wake();
        if let Some(thread) = self.follower.take() {
            let _ = thread.join();
        }
    }
}

/// The thread: waits for notifications and requests, keeps the state, publishes snapshots.
fn follow(
    shared: &Shared,
    mut state: State,
    (mut monitor, mut netlink): (Monitor, Rtnetlink),
    queue: &Receiver<(Port, IpAddr)>,
) {
    let mut routes_changed: Option<Instant> = None;
    let mut refreshed = Instant::now();
    while !shared.stop.load(Ordering::Acquire) {
        let wait = if routes_changed.is_some() { SETTLE } else { REFRESH };
        let ready = sys::wait_readable(&[monitor.as_fd(), shared.wake.as_fd()], wait);
        shared.wake.clear();
        if ready.is_err() {
            thread::sleep(SETTLE);
        }
        let mut changed = false;
        let outcome = monitor.changes(&mut |change| match change {
            Change::Neighbour(neighbour) => changed |= state.neighbour(neighbour),
            Change::Routes => {
                routes_changed.get_or_insert_with(Instant::now);
            }
        });
        if outcome.is_err() || routes_changed.is_some_and(|since| since.elapsed() >= SETTLE) {
            // Notifications were lost, or routes changed: read everything again.
            match state.read(&mut netlink) {
                Ok(()) => routes_changed = None,
                Err(error) => {
                    tracing::warn!(%error, "cannot read routes and neighbours; keeping the known ones, reading again");
                    routes_changed.get_or_insert_with(Instant::now);
                }
            }
            changed = true;
        }
        for (port, address) in queue.try_iter().take(REQUESTS_MAX) {
            if state.may_request(port, address) {
                resolve(&mut netlink, &state, port, address);
            }
        }
        if refreshed.elapsed() >= REFRESH {
            refreshed = Instant::now();
            for (port, address) in state.stale_in_use() {
                resolve(&mut netlink, &state, port, address);
            }
        }
        if changed {
            shared.snapshot.store(Arc::new(state.snapshot()));
        }
    }
}

fn resolve(netlink: &mut Rtnetlink, state: &State, port: Port, address: IpAddr) {
    let Some(index) = state.index(port) else { return };
    if let Err(error) = netlink.resolve(index, address) {
        tracing::debug!(%address, %error, "cannot resolve");
    }
}
