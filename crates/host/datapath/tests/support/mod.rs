//! Network namespaces for tests: each test gets fresh ones, which end with it.
#![allow(dead_code, unreachable_pub)]

pub mod fragments;
pub mod scenario;
pub mod site;
pub mod wire;

use std::{io::Write, net::IpAddr, os::fd::AsFd};

use nix::sched::{CloneFlags, setns};
use sluicegate_datapath::offload;
use sluicegate_netlink::Rtnetlink;
use sluicegate_site::Namespace;

/// Whether this process may make network namespaces; says so on standard error if not.
pub fn is_root() -> bool {
    if nix::unistd::geteuid().is_root() {
        return true;
    }
    // Past the test harness, which would keep it to itself.
    let _ = std::io::stderr().write_all(b"skipped: needs root\n");
    false
}

/// A host in a network namespace of its own.
pub struct Host(Namespace);

impl Host {
    pub fn new() -> Self {
        Self(Namespace::new("host").expect("a network namespace"))
    }

    /// Runs `job` in the namespace and returns its result.
    pub fn run<R: Send>(&self, job: impl FnOnce() -> R + Send) -> R {
        self.0.run_in(job).expect("the namespace can be entered")
    }

    /// Enters the namespace with the calling thread.
    pub fn enter(&self) {
        setns(self.0.as_fd(), CloneFlags::CLONE_NEWNET).expect("enter the namespace");
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
    left.0.run(|| {
        let mut netlink = Rtnetlink::open().expect("netlink");
        netlink.create_veth(left.1.name, right.1.name, Some(right.0.0.as_fd())).expect("a veth pair");
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
