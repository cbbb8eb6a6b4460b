//! The lab: who is where.

use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    path::PathBuf,
    time::Duration,
};

use sluicegate_site::{
    Lab as Built, Namespace, Scratch,
    topology::{Host, Plan, Wire},
};

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
pub(crate) const FRONTEND_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 3, 0, 0, 0, 0, 2);
/// The gate's outside address; also of the frontend in the same process.
pub(crate) const GATE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
pub(crate) const GATE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x203, 0, 0, 0, 0, 1);
/// The service behind the gate.
pub(crate) const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 4, 0, 2);
/// The service's public addresses, for `filter` services.
pub(crate) const PUBLIC: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);
pub(crate) const PUBLIC_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x192, 0, 0, 0, 0, 0x10);

/// The number of a wire that is laid later: no plan here has so many.
const LAID_LATER: u8 = 200;

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
    pub(crate) dir: Scratch,
}

impl Lab {
    /// Builds the lab. Nothing runs in it yet.
    pub(crate) fn new() -> Self {
        let (all, all_v6) = ("0.0.0.0/0", "::/0");
        let hosts = vec![
            host("core", &[("192.0.2.10/32", "203.0.113.1"), ("2001:db8:192::10/128", "2001:db8:203::1")]).forwarding(),
            host(
                "gate",
                &[
                    (all, "203.0.113.254"),
                    (all_v6, "2001:db8:203::fe"),
                    ("192.0.2.10/32", "10.4.0.2"),
                    ("2001:db8:192::10/128", "2001:db8:4::2"),
                ],
            ),
            host("service", &[(all, "10.4.0.1"), (all_v6, "2001:db8:4::1")]),
            host("client", &[(all, "198.51.100.1"), (all_v6, "2001:db8:1::1")]),
            host("stranger", &[(all, "198.51.100.65"), (all_v6, "2001:db8:2::1")]),
            host("frontend", &[(all, "198.51.100.129"), (all_v6, "2001:db8:3::1")]),
        ];
        let wires = [
            (
                "core:to_client 198.51.100.1/26 2001:db8:1::1/64",
                "client:eth0 198.51.100.2/26 198.51.100.3/26 2001:db8:1::2/64",
            ),
            ("core:to_stranger 198.51.100.65/26 2001:db8:2::1/64", "stranger:eth0 198.51.100.66/26 2001:db8:2::2/64"),
            ("core:to_frontend 198.51.100.129/26 2001:db8:3::1/64", "frontend:eth0 198.51.100.130/26 2001:db8:3::2/64"),
            ("core:to_gate 203.0.113.254/24 2001:db8:203::fe/64", "gate:outside 203.0.113.1/24 2001:db8:203::1/64"),
            (
                "gate:inside 10.4.0.1/24 2001:db8:4::1/64",
                "service:eth0 10.4.0.2/24 192.0.2.10/32 2001:db8:4::2/64 2001:db8:192::10/128",
            ),
        ];
        Self::of(hosts, &wires)
    }

    /// Builds another lab: its hosts, and the ends of its wires as `"host:interface address..."`.
    pub(crate) fn of(hosts: Vec<Host>, wires: &[(&str, &str)]) -> Self {
        let hosts = Plan::of(hosts, wires).and_then(|plan| plan.build()).expect("the lab can be built");
        Self { hosts, dir: Scratch::make("sluicegate-test").expect("a temporary directory") }
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

    /// Lays a wire besides those of the plan, or again where its interfaces were deleted.
    pub(crate) fn lay(&self, a: &str, b: &str) {
        let wire = Wire::between(a, b).expect("two ends");
        self.hosts.lay(LAID_LATER, &wire).expect("a wire");
    }

    /// A TCP connection from a host.
    pub(crate) fn connect(&self, host: &str, to: SocketAddr) -> io::Result<TcpStream> {
        self.inside(host, || TcpStream::connect_timeout(&to, Duration::from_secs(5)))
    }

    fn inside<T: Send>(&self, host: &str, f: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        self.host(host).run_in(f).and_then(|result| result)
    }
}

/// A host of a lab with these routes.
pub(crate) fn host(name: &str, routes: &[(&str, &str)]) -> Host {
    Host::with_routes(name, routes).expect("routes")
}
