//! The lab: who is where.

use std::{
    fs::{self, File},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::AsFd,
    path::{Path, PathBuf},
    time::Duration,
};

use nix::mount::umount;
use sluicegate_datapath::offload;
use sluicegate_netlink::Rtnetlink;
use sluicegate_site::{
    Lab as Built, Namespace, Prefix,
    topology::{End, Host, Plan, Via, Wire},
};
use tempfile::TempDir;

/// The client's address.
pub(crate) const CLIENT: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
/// A second address of the client.
pub(crate) const CLIENT_ALIAS: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 3);
pub(crate) const CLIENT_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 2);
/// Somebody without permission.
pub(crate) const STRANGER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 66);
pub(crate) const STRANGER_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, 2);
/// A frontend on a host of its own.
pub(crate) const FRONTEND: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 130);
/// The gate's outside address; also of the frontend in the same process.
pub(crate) const GATE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
pub(crate) const GATE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x203, 0, 0, 0, 0, 1);
/// The service behind the gate.
pub(crate) const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 4, 0, 2);
/// The service's public addresses, for `filter` services.
pub(crate) const PUBLIC: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);
pub(crate) const PUBLIC_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x192, 0, 0, 0, 0, 0x10);

/// ```text
/// client ───┐
/// stranger ─┼─ core ── outside [gate] inside ── eth0 [service]
/// frontend ─┘
/// ```
///
/// `core` is a plain router. Offloads are off on every link.
#[derive(Debug)]
pub(crate) struct Lab {
    hosts: Built,
    /// Configurations, states, logs; gone with the lab.
    pub(crate) dir: TempDir,
}

impl Lab {
    /// Builds the lab. Nothing runs in it yet.
    pub(crate) fn new() -> Self {
        Self::of(&plan())
    }

    /// Builds another lab.
    pub(crate) fn of(plan: &Plan) -> Self {
        let hosts = plan.build().expect("the lab can be built");
        Self { hosts, dir: tempfile::tempdir().expect("a temporary directory") }
    }

    pub(crate) fn host(&self, name: &str) -> &Namespace {
        self.hosts.host(name).expect("a host of the lab")
    }

    /// A path in the lab's directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file into the lab's directory.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).expect("the lab's directory is writable");
        path
    }

    /// Ethernet address of an interface.
    pub(crate) fn mac(&self, host: &str, interface: &str) -> [u8; 6] {
        self.hosts.mac(host, interface).expect("an interface of the lab")
    }

    /// Packets that a host has sent by an interface.
    pub(crate) fn sent(&self, host: &str, interface: &str) -> u64 {
        self.hosts.counters(host, interface).expect("an interface of the lab").tx_packets
    }

    /// A UDP socket on a host.
    pub(crate) fn udp(&self, host: &str, address: impl Into<IpAddr>, port: u16) -> UdpSocket {
        let address = SocketAddr::new(address.into(), port);
        self.inside(host, || UdpSocket::bind(address))
            .unwrap_or_else(|error| panic!("udp {address} on {host}: {error}"))
    }

    /// A TCP listener on a host.
    pub(crate) fn listen(&self, host: &str, address: impl Into<IpAddr>, port: u16) -> TcpListener {
        let address = SocketAddr::new(address.into(), port);
        self.inside(host, || TcpListener::bind(address))
            .unwrap_or_else(|error| panic!("tcp {address} on {host}: {error}"))
    }

    /// Makes a wire again whose interfaces were deleted: host, name, addresses of each end.
    pub(crate) fn remake(&self, a: (&str, &str, &[&str]), b: (&str, &str, &[&str])) {
        let there = self.inside(b.0, || File::open("/proc/thread-self/ns/net")).expect("a namespace");
        let made = self.host(a.0).run_in(|| {
            let peer = Some(there.as_fd());
            Rtnetlink::open().expect("netlink").create_veth(a.1, b.1, peer).expect("a pair");
        });
        made.expect("a namespace");
        for (host, name, addresses) in [a, b] {
            let set_up = self.host(host).run_in(|| {
                let mut netlink = Rtnetlink::open().expect("netlink");
                offload::disable(name).expect("offloads");
                for Prefix { address, len } in addresses.iter().map(|text| prefix(text)) {
                    netlink.add_address(name, address, len).expect("an address");
                }
                netlink.set_up(name).expect("up");
            });
            set_up.expect("a namespace");
        }
    }

    /// A TCP connection from a host.
    pub(crate) fn connect(&self, host: &str, to: SocketAddr) -> io::Result<TcpStream> {
        self.inside(host, || TcpStream::connect_timeout(&to, Duration::from_secs(5)))
    }

    fn inside<T: Send>(&self, host: &str, f: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        self.host(host).run_in(f).and_then(|result| result)
    }
}

impl Drop for Lab {
    /// A gate that was killed leaves its kernel program in place, as it must; the lab takes it away.
    fn drop(&mut self) {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let points = mounts.lines().filter_map(|line| line.split(' ').nth(1)).map(Path::new);
        for point in points.filter(|point| point.starts_with(self.dir.path())) {
            if let Err(error) = umount(point) {
                eprintln!("{} stays mounted: {error}", point.display());
            }
        }
    }
}

fn plan() -> Plan {
    let core = Host::new("core")
        .forwarding()
        .route(Prefix::host(PUBLIC.into()), via(GATE))
        .route(Prefix::host(PUBLIC_V6.into()), via(GATE_V6));
    let gate = Host::new("gate")
        .route(all_v4(), via(Ipv4Addr::new(203, 0, 113, 254)))
        .route(all_v6(), via(prefix("2001:db8:203::fe/64").address))
        .route(Prefix::host(PUBLIC.into()), via(SERVICE))
        .route(Prefix::host(PUBLIC_V6.into()), via(prefix("2001:db8:4::2/64").address));
    let service = Host::new("service")
        .route(all_v4(), via(Ipv4Addr::new(10, 4, 0, 1)))
        .route(all_v6(), via(prefix("2001:db8:4::1/64").address));
    let edge = |name: &str, router: &str, router_v6: &str| {
        Host::new(name).route(all_v4(), via(prefix(router).address)).route(all_v6(), via(prefix(router_v6).address))
    };
    let hosts = vec![
        core,
        gate,
        service,
        edge("client", "198.51.100.1/26", "2001:db8:1::1/64"),
        edge("stranger", "198.51.100.65/26", "2001:db8:2::1/64"),
        edge("frontend", "198.51.100.129/26", "2001:db8:3::1/64"),
    ];
    let wires = vec![
        wire(
            ("core", "to_client", &["198.51.100.1/26", "2001:db8:1::1/64"]),
            ("client", "eth0", &["198.51.100.2/26", "198.51.100.3/26", "2001:db8:1::2/64"]),
        ),
        wire(
            ("core", "to_stranger", &["198.51.100.65/26", "2001:db8:2::1/64"]),
            ("stranger", "eth0", &["198.51.100.66/26", "2001:db8:2::2/64"]),
        ),
        wire(
            ("core", "to_frontend", &["198.51.100.129/26", "2001:db8:3::1/64"]),
            ("frontend", "eth0", &["198.51.100.130/26", "2001:db8:3::2/64"]),
        ),
        wire(
            ("core", "to_gate", &["203.0.113.254/24", "2001:db8:203::fe/64"]),
            ("gate", "outside", &["203.0.113.1/24", "2001:db8:203::1/64"]),
        ),
        wire(
            ("gate", "inside", &["10.4.0.1/24", "2001:db8:4::1/64"]),
            ("service", "eth0", &["10.4.0.2/24", "192.0.2.10/32", "2001:db8:4::2/64", "2001:db8:192::10/128"]),
        ),
    ];
    Plan { hosts, wires }
}

/// A wire between two interfaces: host, name, addresses.
pub(crate) fn wire(a: (&str, &str, &[&str]), b: (&str, &str, &[&str])) -> Wire {
    let end = |(host, interface, addresses): (&str, &str, &[&str])| {
        let addresses: Vec<Prefix> = addresses.iter().map(|text| prefix(text)).collect();
        End::new(host, interface, &addresses)
    };
    Wire { ends: [end(a), end(b)] }
}

pub(crate) fn prefix(text: &str) -> Prefix {
    text.parse().expect("a prefix")
}

pub(crate) fn via(address: impl Into<IpAddr>) -> Via {
    Via::Gateway(address.into())
}

fn all_v4() -> Prefix {
    prefix("0.0.0.0/0")
}

fn all_v6() -> Prefix {
    prefix("::/0")
}
