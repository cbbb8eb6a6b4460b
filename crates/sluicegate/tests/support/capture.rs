//! Raw captures: what an interface receives, before any kernel has an opinion about it.

use std::{
    net::IpAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use sluicegate_datapath::raw::{Options, Socket};
use sluicegate_wire::ip::{Ports, Summary};

use super::lab::Lab;

/// Packets kept of one capture; more are only counted.
const KEPT_MAX: usize = 1 << 18;
const ETHERNET_LEN: usize = 14;

/// One IP packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    /// When the kernel received it, in nanoseconds since 1970.
    pub(crate) at_ns: u64,
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    /// IP protocol number.
    pub(crate) protocol: u8,
    /// Source and destination port; zero where there are none.
    pub(crate) ports: (u16, u16),
    /// The packet from its IP header on, as far as it was captured.
    pub(crate) bytes: Vec<u8>,
}

/// A capture that runs until it is dropped.
#[derive(Debug)]
pub(crate) struct Capture {
    kept: Arc<Mutex<Vec<Seen>>>,
    count: Arc<AtomicU64>,
    lost: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<std::io::Result<()>>>,
}

impl Capture {
    /// Starts capturing the IP packets that `interface` of `host` receives and `keep` agrees to. Packets between
    /// neighbours (link-local and multicast) are no traffic and never kept.
    pub(crate) fn start(
        lab: &Lab,
        (host, interface): (&str, &'static str),
        keep: impl Fn(&Seen) -> bool + Send + 'static,
    ) -> Self {
        let (kept, count, lost) = (Arc::<Mutex<Vec<Seen>>>::default(), Arc::default(), Arc::default());
        let stop = Arc::new(AtomicBool::new(false));
        let (ready, opened) = std::sync::mpsc::channel();
        let (shared, counter, missed, flag) =
            (Arc::clone(&kept), Arc::clone(&count), Arc::<AtomicU64>::clone(&lost), Arc::clone(&stop));
        let thread = lab.host(host).thread("capture", move || {
            let options = Options { receive_slots: 1 << 15, ..Options::default() };
            let mut socket = Socket::open(interface, &options)?;
            let _ = ready.send(());
            while !flag.load(Ordering::Relaxed) {
                socket.wait(Duration::from_millis(10))?;
                socket.receive(usize::MAX, &mut |frame| {
                    let Some(seen) = parse(frame.bytes, frame.timestamp_ns).filter(is_traffic) else {
                        return;
                    };
                    if keep(&seen) {
                        AtomicU64::fetch_add(&counter, 1, Ordering::Relaxed);
                        let mut kept = shared.lock().expect("not poisoned");
                        if kept.len() < KEPT_MAX {
                            kept.push(seen);
                        }
                    }
                });
                missed.fetch_add(socket.statistics()?.dropped, Ordering::Relaxed);
            }
            Ok(())
        });
        let thread = thread.expect("a thread in the namespace");
        opened.recv_timeout(Duration::from_secs(10)).unwrap_or_else(|_| panic!("no capture on {host} {interface}"));
        Self { kept, count, lost, stop, thread: Some(thread) }
    }

    /// How many packets.
    pub(crate) fn count(&self) -> u64 {
        self.settle();
        self.count.load(Ordering::Relaxed)
    }

    /// The packets.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.settle();
        self.kept.lock().expect("not poisoned").clone()
    }

    /// Packets received between two times, in nanoseconds since 1970.
    pub(crate) fn between(&self, from_ns: u64, to_ns: u64) -> Vec<Seen> {
        self.seen().into_iter().filter(|seen| (from_ns..to_ns).contains(&seen.at_ns)).collect()
    }

    /// Packets are read at least every 10 ms; what the kernel had before this call is in the counts after it.
    ///
    /// # Panics
    /// If the capture itself missed some.
    fn settle(&self) {
        super::let_run(Duration::from_millis(50));
        assert_eq!(self.lost.load(Ordering::Relaxed), 0, "the capture missed packets");
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn parse(frame: &[u8], at_ns: u64) -> Option<Seen> {
    let packet = frame.get(ETHERNET_LEN..)?;
    let summary = Summary::parse(packet).ok()?;
    let ports = Ports::parse(summary.transport(packet)).ok();
    let has_ports = matches!(summary.protocol.0, 6 | 17);
    let ports = ports.filter(|_| has_ports).map_or((0, 0), |ports| (ports.src, ports.dst));
    let (from, to, protocol) = (summary.src, summary.dst, summary.protocol.0);
    Some(Seen { at_ns, from, to, protocol, ports, bytes: packet.to_vec() })
}

fn is_traffic(seen: &Seen) -> bool {
    let between_neighbours = match (seen.from, seen.to) {
        (IpAddr::V6(from), _) => from.is_unicast_link_local() || from.is_unspecified(),
        _ => false,
    };
    !between_neighbours && !seen.to.is_multicast()
}
