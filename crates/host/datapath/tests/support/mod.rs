//! Network namespaces for tests: each test gets fresh ones, which end with it.
#![allow(dead_code, unreachable_pub)]

pub mod scenario;
pub mod site;

use std::{
    fs::File,
    io::Write,
    net::IpAddr,
    os::fd::AsFd,
    sync::mpsc,
    thread::{self, JoinHandle},
};

use nix::sched::{CloneFlags, setns, unshare};
use sluicegate_datapath::offload;
use sluicegate_netlink::Rtnetlink;

/// Whether this process may make network namespaces; says so on standard error if not.
pub fn is_root() -> bool {
    if nix::unistd::geteuid().is_root() {
        return true;
    }
    // Past the test harness, which would keep it to itself.
    let _ = std::io::stderr().write_all(b"skipped: needs root\n");
    false
}

type Job = Box<dyn FnOnce() + Send>;

/// A network namespace with a thread in it that runs what it is given.
pub struct Host {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    file: File,
}

impl Host {
    /// A new namespace with its loopback up.
    pub fn new() -> Self {
        let (jobs, queue) = mpsc::channel::<Job>();
        let (ready, file) = mpsc::channel();
        let thread = thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace");
            ready.send(File::open("/proc/thread-self/ns/net").expect("own namespace")).expect("the test waits");
            // Link-local addresses are usable at once.
            std::fs::write("/proc/sys/net/ipv6/conf/default/accept_dad", "0").expect("no address detection");
            Rtnetlink::open().expect("netlink").set_up("lo").expect("loopback up");
            for job in queue {
                job();
            }
        });
        let file = file.recv().expect("the namespace");
        Self { jobs: Some(jobs), thread: Some(thread), file }
    }

    /// Runs `job` in the namespace and returns its result.
    pub fn run<R: Send + 'static>(&self, job: impl FnOnce() -> R + Send + 'static) -> R {
        let (send, receive) = mpsc::channel();
        let job: Job = Box::new(move || {
            let _ = send.send(job());
        });
        self.jobs.as_ref().expect("alive").send(job).expect("the host's thread lives");
        receive.recv().expect("the job panicked")
    }

    /// Enters the namespace with the calling thread.
    pub fn enter(&self) {
        setns(&self.file, CloneFlags::CLONE_NEWNET).expect("enter the namespace");
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// One end of a cable: interface name, hardware address, addresses.
#[derive(Clone)]
pub struct End {
    pub name: &'static str,
    pub mac: [u8; 6],
    pub addresses: Vec<(IpAddr, u8)>,
    /// Leave checksums and segmentation to a card that is not there.
    pub offloads: bool,
}

impl End {
    pub fn new(name: &'static str, number: u8, addresses: &[(&str, u8)]) -> Self {
        let addresses = addresses.iter().map(|(text, len)| (text.parse().expect("an address"), *len)).collect();
        Self { name, mac: [2, 0, 0, 0, 0, number], addresses, offloads: false }
    }
}

/// Connects two hosts by a veth pair without offloads, both ends up.
pub fn connect(left: (&Host, End), right: (&Host, End)) {
    let peer = right.0.file.try_clone().expect("a file descriptor");
    let (name, peer_name) = (left.1.name, right.1.name);
    left.0.run(move || {
        Rtnetlink::open().expect("netlink").create_veth(name, peer_name, Some(peer.as_fd())).expect("a veth pair");
    });
    for (host, end) in [left, right] {
        host.run(move || {
            let mut netlink = Rtnetlink::open().expect("netlink");
            netlink.set_mac(end.name, end.mac).expect("hardware address");
            if !end.offloads {
                offload::disable(end.name).expect("offloads off");
            }
            for (address, len) in end.addresses {
                netlink.add_address(end.name, address, len).expect("address");
            }
            netlink.set_up(end.name).expect("up");
        });
    }
}
