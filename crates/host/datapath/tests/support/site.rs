//! A client, a gate and a service in three namespaces, and a handler that forwards between them like a router.

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    path::Path,
    time::{Duration, Instant},
};

use sluicegate_datapath::{
    Action, Backend, Device, Interface, LocalRule, Options, OwnAddress, Peer, Rules, Side, monotonic_now,
    neighbour::Table, raw,
};
use sluicegate_netlink::{Route, Rtnetlink};
use sluicegate_wire::{Frame, Port};

use super::{End, Host, connect};

pub const CLIENT: &str = "198.51.100.2";
pub const GATE_OUTSIDE: &str = "198.51.100.1";
pub const GATE_INSIDE: &str = "10.0.0.1";
pub const SERVICE: &str = "10.0.0.2";
pub const CLIENT6: &str = "2001:db8:1::2";
pub const GATE_OUTSIDE6: &str = "2001:db8:1::1";
pub const GATE_INSIDE6: &str = "2001:db8:2::1";
pub const SERVICE6: &str = "2001:db8:2::2";
/// How long something that should happen may take before the test gives up.
const PATIENCE: Duration = Duration::from_secs(10);

/// The three hosts, connected and routed. The calling thread is in the gate's namespace.
pub struct Site {
    pub client: Host,
    pub gate: Host,
    pub service: Host,
}

impl Site {
    pub fn new() -> Self {
        Self::with_offloads(false)
    }

    /// As [`Self::new`]; with `offloads` the client's kernel leaves its checksums half done.
    pub fn with_offloads(offloads: bool) -> Self {
        let (client, gate, service) = (Host::new(), Host::new(), Host::new());
        connect(
            (&client, End { offloads, ..End::new("c0", 1, &[(CLIENT, 24), (CLIENT6, 64)]) }),
            (&gate, End::new("g0", 2, &[(GATE_OUTSIDE, 24), (GATE_OUTSIDE6, 64)])),
        );
        connect(
            (&gate, End::new("g1", 3, &[(GATE_INSIDE, 24), (GATE_INSIDE6, 64)])),
            (&service, End::new("s0", 4, &[(SERVICE, 24), (SERVICE6, 64)])),
        );
        client.run(|| routes("c0", GATE_OUTSIDE, GATE_OUTSIDE6));
        service.run(|| routes("s0", GATE_INSIDE, GATE_INSIDE6));
        gate.enter();
        Self { client, gate, service }
    }

    /// A UDP socket on one of the hosts, with a receive timeout.
    pub fn udp(host: &Host, address: &str, port: u16) -> UdpSocket {
        let address = SocketAddr::new(ip(address), port);
        host.run(move || {
            let socket = UdpSocket::bind(address).expect("a UDP socket");
            socket.set_nonblocking(true).expect("non-blocking");
            socket
        })
    }
}

fn routes(interface: &str, gateway: &str, gateway6: &str) {
    let mut netlink = Rtnetlink::open().expect("netlink");
    netlink.add_route(&Route::default_by(ip(gateway), interface)).expect("IPv4 route");
    netlink.add_route(&Route::default_by(ip(gateway6), interface)).expect("IPv6 route");
}

pub fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// The gate's end of its one connection.
pub const OWN_PORT: u16 = 9000;

fn local(protocol: u8, first: u16, last: u16) -> LocalRule {
    LocalRule { protocol, first, last, side: Side::Both, address: None, rate_pps: 1000 }
}

pub fn options(backend: Backend, state: &Path) -> Options {
    Options {
        backend,
        outside: "g0".into(),
        inside: "g1".into(),
        rules: Rules {
            local: vec![local(17, 5060, 5061), local(6, 22, 22)],
            own: [GATE_OUTSIDE, GATE_INSIDE, GATE_OUTSIDE6, GATE_INSIDE6]
                .map(|text| OwnAddress { address: ip(text), side: Side::Both })
                .to_vec(),
            peers: vec![Peer { remote: SocketAddr::new(ip(SERVICE), 7443), own_port: OWN_PORT }],
            ..Rules::default()
        },
        state_dir: state.to_path_buf(),
    }
}

/// Forwards everything except what comes from `stranger`'s port; counts what it saw.
pub struct Router {
    pub table: Table,
    macs: [[u8; 6]; 2],
    pub forwarded: usize,
    pub refused: usize,
}

/// UDP source port of a stranger.
pub const STRANGER: u16 = 6666;

impl Router {
    pub fn new() -> Self {
        let ports = [Interface::read("g0").expect("g0"), Interface::read("g1").expect("g1")];
        let macs = [ports[0].mac, ports[1].mac];
        Self { table: Table::open(&ports).expect("neighbours"), macs, forwarded: 0, refused: 0 }
    }

    fn handle(&mut self, port: Port, frame: &mut Frame<'_>) -> Action {
        assert!(frame.start() >= sluicegate_wire::HEADROOM);
        let bytes = frame.bytes_mut();
        let (destination, transport) = match bytes[12..14] {
            [0x08, 0x00] => (IpAddr::from(*bytes[30..].first_chunk::<4>().expect("IPv4")), 34),
            [0x86, 0xdd] => (IpAddr::from(*bytes[38..].first_chunk::<16>().expect("IPv6")), 54),
            _ => return Action::Drop,
        };
        let to = port.opposite();
        let source_port = bytes.get(transport..transport + 2).map_or(0, |two| u16::from_be_bytes([two[0], two[1]]));
        let Ok(mac) = self.table.lookup(to, destination) else { return Action::Drop };
        if source_port == STRANGER {
            self.refused += 1;
            return Action::Drop;
        }
        bytes[0..6].copy_from_slice(&mac);
        bytes[6..12].copy_from_slice(&self.macs[usize::from(to.0)]);
        self.forwarded += 1;
        Action::Send(to)
    }

    /// Runs the device with a fresh heartbeat until `done`, or reports `what` did not happen.
    pub fn drive(&mut self, device: &mut Device, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            device.heartbeat(monotonic_now());
            device.poll(Duration::from_millis(10), &mut |port, frame| self.handle(port, frame)).expect("poll");
            if done(self) {
                return;
            }
        }
        panic!("did not happen: {what}; {:?}", device.kernel_counters());
    }
}

/// The payload waiting on a socket.
pub fn received(socket: &UdpSocket) -> Option<(Vec<u8>, SocketAddr)> {
    let mut buffer = [0; 2048];
    let (len, from) = socket.recv_from(&mut buffer).ok()?;
    Some((buffer[..len].to_vec(), from))
}

/// Waits for a payload while nothing drives a device.
pub fn wait_for(socket: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    socket.set_nonblocking(false).expect("blocking");
    socket.set_read_timeout(Some(Duration::from_secs(3))).expect("timeout");
    let result = received(socket).expect("a packet within three seconds");
    socket.set_nonblocking(true).expect("non-blocking");
    result
}

/// Counts the IP packets that reach a host's interface, ARP and neighbour discovery apart.
pub struct Capture(raw::Socket);

impl Capture {
    pub fn new(host: &Host, interface: &'static str) -> Self {
        Self(host.run(move || raw::Socket::open(interface, &raw::Options::default()).expect("a capture")))
    }

    /// UDP payload bytes of all waiting frames, up to the one with the marker's EtherType.
    pub fn udp_until_marker(&mut self) -> usize {
        let (mut udp, mut marker) = (0, false);
        while !marker {
            assert!(self.0.wait(Duration::from_secs(3)).expect("capture"), "the marker did not come");
            self.0.receive(1, &mut |received| {
                let protocol = match received.bytes.get(12..14) {
                    Some([0x88, 0xb5]) => {
                        marker = true;
                        None
                    }
                    Some([0x08, 0x00]) => received.bytes.get(23).copied(),
                    Some([0x86, 0xdd]) => received.bytes.get(20).copied(),
                    _ => None,
                };
                udp += usize::from(protocol == Some(17));
            });
        }
        udp
    }
}

/// Sends a marker frame out of an interface of the gate, past every back end.
pub fn send_marker(gate: &Host, interface: &'static str) {
    gate.run(move || {
        let mut socket = raw::Socket::open(interface, &raw::Options::send_only()).expect("a raw socket");
        let mut frame = vec![0xff; 6];
        frame.extend([2, 0, 0, 0, 0, 9, 0x88, 0xb5]);
        frame.extend([0; 46]);
        assert_eq!(socket.send(&[frame]).expect("send").sent, 1);
    });
}

/// A state directory; a BPF file system that a failed test left in it goes with it.
pub struct State(tempfile::TempDir);

impl State {
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary directory"))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for State {
    fn drop(&mut self) {
        // Not mounted is the rule.
        let _ = nix::mount::umount2(&self.path().join("bpf"), nix::mount::MntFlags::MNT_DETACH);
    }
}
