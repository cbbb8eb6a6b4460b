//! A client and a server on one wire.

use std::{
    net::{SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

use sluicegate_datapath::{Interface, UdpQueue, raw};
use sluicegate_wire::{Reason, build};

use super::{
    End, Host, connect,
    site::{Site, ip, received},
};

pub const PORT: u16 = 5060;
pub const CLIENT: [&str; 2] = ["198.51.100.2", "2001:db8:1::2"];
pub const SERVER: [&str; 2] = ["198.51.100.1", "2001:db8:1::1"];
pub const SERVER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A client and a server on one wire, and the server's sockets of both versions. The calling thread is in the server's
/// namespace.
pub struct Wire {
    pub client: Host,
    _server: Host,
    pub queues: Vec<UdpQueue>,
    pub sockets: [UdpSocket; 2],
}

pub fn at(host: [&str; 2], version: usize, port: u16) -> SocketAddr {
    SocketAddr::new(ip(host[version]), port)
}

pub fn listeners() -> [(u8, SocketAddr); 2] {
    [(3, at(SERVER, 0, PORT)), (5, at(SERVER, 1, PORT))]
}

impl Wire {
    /// With `offloads` both kernels leave checksums half done.
    pub fn new(offloads: bool) -> Self {
        Self::with(offloads, |interface| UdpQueue::open(interface, &listeners()).unwrap())
    }

    /// With what `open` makes of the server's interface.
    pub fn with(offloads: bool, open: impl FnOnce(&Interface) -> Vec<UdpQueue>) -> Self {
        let (client, server) = (Host::new(), Host::new());
        let end = |name, number, [v4, v6]: [&str; 2]| End { offloads, ..End::new(name, number, &[(v4, 24), (v6, 64)]) };
        connect((&client, end("c0", 1, CLIENT)), (&server, end("f0", 2, SERVER)));
        server.enter();
        let queues = open(&Interface::read("f0").unwrap());
        if let Some(queue) = queues.first() {
            eprintln!("{}", queue.describe());
        }
        let sockets = SERVER.map(|address| Site::udp(&server, address, PORT));
        let wire = Self { client, _server: server, queues, sockets };
        wire.resolve();
        wire
    }

    /// Has both kernels find each other's hardware addresses, and duplicate address detection end.
    fn resolve(&self) {
        for version in 0..2 {
            let from = Site::udp(&self.client, CLIENT[version], 9);
            let to = Site::udp(&self._server, SERVER[version], 9);
            let until = Instant::now() + PATIENCE;
            while received(&to).is_none() {
                assert!(Instant::now() < until, "the hosts do not reach each other");
                let _ = from.send_to(b"?", at(SERVER, version, 9));
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    /// Sends these frames from the client.
    pub fn send(&self, frames: &[Vec<u8>]) {
        self.client.run(|| {
            let mut socket = raw::Socket::open("c0", &raw::Options::send_only()).unwrap();
            assert_eq!(socket.send(frames).unwrap().sent, frames.len());
        });
    }

    /// What comes as frames until so many were looked at: listener, peer, whether it is known how long it waited, payload.
    pub fn take(&mut self, frames: usize) -> Vec<(u8, SocketAddr, bool, Vec<u8>)> {
        let (mut got, mut seen) = (Vec::new(), 0);
        let until = Instant::now() + PATIENCE;
        while seen < frames {
            assert!(Instant::now() < until, "{seen} of {frames} frames came: {:?}", self.queues[0].counts());
            for queue in &mut self.queues {
                seen += queue.receive(|listener, peer, waited, bytes| {
                    got.push((listener, peer, waited.is_some_and(|waited| waited < PATIENCE), bytes.to_vec()));
                });
            }
        }
        got
    }

    pub fn dropped(&mut self, reason: Reason) -> u64 {
        let all = self.queues[0].counts().dropped();
        all.iter().filter(|(counted, _)| *counted == reason).map(|(_, count)| count).sum()
    }
}

/// An Ethernet frame to the server around a packet.
pub fn frame(packet: &[u8]) -> Vec<u8> {
    let ethertype = if packet[0] >> 4 == 4 { [0x08, 0x00] } else { [0x86, 0xdd] };
    [&SERVER_MAC[..], &[2, 0, 0, 0, 0, 1], &ethertype, packet].concat()
}

pub fn datagram(from: (&str, u16), to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    frame(&build::datagram((ip(from.0), from.1), to, payload))
}
