//! Fragments for the gate's own host, told once for every back end.

use std::{
    fs,
    net::{IpAddr, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use sluicegate_datapath::{Action, Backend, Device, FRAGMENTED_MAX, monotonic_now, raw};
use sluicegate_wire::{Reason, checksum};

use super::{
    Host, is_root,
    scenario::{count, open},
    site::{
        CLIENT, CLIENT6, GATE_INSIDE, GATE_INSIDE6, GATE_OUTSIDE, GATE_OUTSIDE6, Router, SERVICE, SERVICE6, Site,
        State, ip, options,
    },
};

const PATIENCE: Duration = Duration::from_secs(30);

/// What waits on a socket, if it is this long.
fn arrives(socket: &UdpSocket, bytes: &[u8]) -> bool {
    let mut buffer = [0; 65_535];
    socket.recv(&mut buffer).is_ok_and(|len| buffer[..len] == *bytes)
}

pub fn datagrams_in_fragments_arrive_whole(backend: Backend) {
    if !is_root() {
        return;
    }
    let (site, state) = (Site::new(), State::new());
    let mut device = open(backend, &state);
    let mut router = Router::new();
    let long: Vec<u8> = (0..4_000_u32).map(|number| number as u8).collect();
    for (host, remote, gate) in [
        (&site.client, CLIENT, GATE_OUTSIDE),
        (&site.client, CLIENT6, GATE_OUTSIDE6),
        (&site.service, SERVICE, GATE_INSIDE),
        (&site.service, SERVICE6, GATE_INSIDE6),
    ] {
        let remote_socket = Site::udp(host, remote, 5060);
        let listed = Site::udp(&site.gate, gate, 5060);
        let unlisted = Site::udp(&site.gate, gate, 5062);
        for size in [1_800, 2_952, 4_000] {
            let long = &long[..size];
            router.drive(&mut device, "a listed port receives all fragments", |_| {
                remote_socket.send_to(long, (gate, 5060)).unwrap();
                arrives(&listed, long)
            });
            router.drive(&mut device, "the host's answer in fragments leaves", |_| {
                listed.send_to(long, (remote, 5060)).unwrap();
                arrives(&remote_socket, long)
            });
        }
        remote_socket.send_to(&long, (gate, 5062)).unwrap();
        while device.poll(Duration::from_millis(50), &mut |_, _| Action::Drop).unwrap() > 0 {}
        assert!(!arrives(&unlisted, &long), "an unlisted port received a datagram in fragments");
    }
    device.close(false).unwrap();
}

/// A fragment of a datagram to the gate's outside address.
#[derive(Clone, Copy)]
struct Part {
    from: IpAddr,
    to: IpAddr,
    protocol: u8,
    id: u32,
    offset: u16,
    len: u16,
    more: bool,
    port: u16,
}

impl Part {
    fn first(from: &str, to: &str, id: u32) -> Self {
        Self { from: ip(from), to: ip(to), protocol: 17, id, offset: 0, len: 64, more: true, port: 5060 }
    }

    fn last(self) -> Self {
        Self { offset: self.len, more: false, ..self }
    }

    fn frame(self, [to, from]: [u8; 2]) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from];
        let mut payload = vec![0; usize::from(self.len)];
        for (at, byte) in [4000_u16, self.port, 200, 0].into_iter().flat_map(u16::to_be_bytes).enumerate() {
            if let Some(place) = payload.get_mut(at).filter(|_| self.offset == 0) {
                *place = byte;
            }
        }
        match (self.from, self.to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let mut header = vec![0x45, 0];
                header.extend((20 + self.len).to_be_bytes());
                header.extend((self.id as u16).to_be_bytes());
                header.extend(((self.offset / 8) | (u16::from(self.more) << 13)).to_be_bytes());
                header.extend([64, self.protocol, 0, 0]);
                header.extend([from.octets(), to.octets()].concat());
                let sum = checksum::internet(&header);
                header[10..12].copy_from_slice(&sum.to_be_bytes());
                frame.extend([0x08, 0x00]);
                frame.extend(header);
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                frame.extend((8 + self.len).to_be_bytes());
                frame.extend([44, 64]);
                frame.extend([from.octets(), to.octets()].concat());
                frame.extend([self.protocol, 0]);
                frame.extend((self.offset | u16::from(self.more)).to_be_bytes());
                frame.extend(self.id.to_be_bytes());
            }
            _ => panic!("mixed families"),
        }
        frame.extend(payload);
        frame
    }
}

/// A raw socket on a wire to the gate.
struct Wire {
    socket: raw::Socket,
    macs: [u8; 2],
}

impl Wire {
    fn new(host: &Host, interface: &'static str, macs: [u8; 2]) -> Self {
        let socket = host.run(move || raw::Socket::open(interface, &raw::Options::send_only()).expect("a raw socket"));
        Self { socket, macs }
    }

    fn send(&mut self, parts: impl IntoIterator<Item = Part>) {
        for part in parts {
            let frame = part.frame(self.macs);
            while self.socket.send(&[&frame[..]]).expect("send").sent == 0 {}
        }
    }
}

/// Fragments that reached the kernel of the calling thread's host, in both families.
fn reached() -> u64 {
    let v4 = fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let mut lines = v4.lines().filter(|line| line.starts_with("Ip:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let at = names.split(' ').position(|name| name == "ReasmReqds").unwrap();
    let v6 = fs::read_to_string("/proc/thread-self/net/snmp6").unwrap();
    let v6 = v6.lines().find_map(|line| line.strip_prefix("Ip6ReasmReqds")).unwrap();
    values.split(' ').nth(at).unwrap().parse::<u64>().unwrap() + v6.trim().parse::<u64>().unwrap()
}

pub fn fragments_without_a_listed_first_one_do_not_reach_the_host(backend: Backend) {
    if !is_root() {
        return;
    }
    let (site, state) = (Site::new(), State::new());
    let mut device = open(backend, &state);
    device.heartbeat(monotonic_now());
    let mut wire = Wire::new(&site.client, "c0", [2, 1]);
    let mut handed = 0;
    let mut judge = |device: &mut Device| {
        device.heartbeat(monotonic_now());
        let mut count = |_, _: &mut sluicegate_wire::Frame<'_>| {
            handed += 1;
            Action::Drop
        };
        while device.poll(Duration::from_millis(50), &mut count).unwrap() > 0 {}
        std::mem::take(&mut handed)
    };
    judge(&mut device);
    for (from, other, to) in [(CLIENT, "198.51.100.3", GATE_OUTSIDE), (CLIENT6, "2001:db8:1::3", GATE_OUTSIDE6)] {
        let first = |id| Part::first(from, to, id);
        let before = reached();
        wire.send([first(1), first(1).last()]);
        judge(&mut device);
        assert_eq!(reached() - before, 2, "the first and the last one");
        let refused = [
            ("no first one", first(2).last()),
            ("an unlisted port", Part { port: 5062, ..first(3) }),
            ("what follows that", first(3).last()),
            ("no datagram but TCP, on a listed port (RFC 1858, RFC 3128)", Part { protocol: 6, port: 22, ..first(4) }),
            ("a tiny one of TCP", Part { protocol: 6, port: 22, len: 8, ..first(5) }),
            ("what would be written over its flags", Part { protocol: 6, offset: 8, ..first(5).last() }),
            ("not the whole header", Part { len: 0, ..first(6) }),
            ("another protocol", Part { protocol: 47, ..first(7) }),
        ];
        for (what, part) in refused {
            let before = reached();
            wire.send([part]);
            let handed = judge(&mut device);
            assert_eq!((reached() - before, handed), (0, 1), "{what} ({from}): the gate has to judge it");
        }
        // Forged in another's name: the datagram of one source does not open the way for another, nor another id of it.
        let before = reached();
        wire.send([
            first(9),
            Part { from: ip(other), ..first(9).last() },
            Part { id: 10, ..first(9).last() },
            Part { id: 17, ..first(9).last() },
            Part { offset: 16_392, ..first(9).last() },
        ]);
        judge(&mut device);
        assert_eq!(reached() - before, 1, "the first one alone");
    }
    // Whole, but dressed as a fragment (RFC 6946).
    let before = reached();
    wire.send([Part { more: false, ..Part::first(CLIENT6, GATE_OUTSIDE6, 20) }]);
    assert_eq!((judge(&mut device), reached() - before), (1, 0));
    if backend == Backend::Xdp {
        // The program goes further than the filter: what overlaps or leaves a gap never gets as far as the kernel.
        let first = Part::first(CLIENT, GATE_OUTSIDE, 30);
        let before = reached();
        wire.send([first, Part { offset: 8, ..first.last() }, Part { offset: 72, ..first.last() }, first.last()]);
        // Nor what comes behind the end.
        wire.send([first.last(), Part { offset: 128, ..first.last() }]);
        assert_eq!((judge(&mut device), reached() - before), (4, 2));
    }
    device.close(false).unwrap();
}

pub fn a_flood_of_first_fragments_is_bounded(backend: Backend) {
    if !is_root() {
        return;
    }
    let (site, state) = (Site::new(), State::new());
    let mut generous = options(backend, state.path());
    generous.rules.local.iter_mut().for_each(|rule| rule.rate_pps = 100_000);
    let mut device = Device::open(&generous).expect("the device opens");
    let mut wires = [Wire::new(&site.client, "c0", [2, 1]), Wire::new(&site.service, "s0", [3, 4])];
    let (mut most, mut sent, mut number, start) = (0, 0, 0_u32, Instant::now());
    let before = reached();
    let seen = |device: &mut Device| {
        device.heartbeat(monotonic_now());
        while device.poll(Duration::ZERO, &mut |_, _| Action::Drop).unwrap() > 0 {}
        let (name, used, max) = device.gauge();
        assert_eq!((name, max), ("local_fragmented", FRAGMENTED_MAX));
        assert!(used <= max, "{used}");
        used
    };
    while most < FRAGMENTED_MAX || count(&mut device, Reason::LocalRate) == 0 {
        assert!(start.elapsed() < PATIENCE, "{most} of {FRAGMENTED_MAX} at once");
        for (wire, (from, to)) in wires.iter_mut().zip([("198.51.100", GATE_OUTSIDE), ("10.0.0", GATE_INSIDE)]) {
            for _ in 0..4 {
                let parts = (0..250).map(|_| {
                    number += 1;
                    Part::first(&format!("{from}.{}", 100 + number / 8 % 64), to, number)
                });
                wire.send(parts);
                sent += 250;
                most = most.max(seen(&mut device));
            }
        }
        thread::sleep(Duration::from_millis(20));
    }
    let dropped = count(&mut device, Reason::LocalRate);
    let reached = reached() - before;
    assert!(reached + dropped <= sent, "{reached} + {dropped} of {sent}");
    assert!(dropped > 0 && reached < sent, "{reached} and {dropped} of {sent}");
    // Those whose addresses end otherwise have a share of their own.
    let honest = Site::udp(&site.client, CLIENT, 5060);
    let listed = Site::udp(&site.gate, GATE_OUTSIDE, 5060);
    let long = [7; 4_000];
    let start = Instant::now();
    loop {
        wires[0].send((0..200).map(|number| Part::first("198.51.100.3", GATE_OUTSIDE, number)));
        honest.send_to(&long, (GATE_OUTSIDE, 5060)).unwrap();
        seen(&mut device);
        if arrives(&listed, &long) {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "the flood of one source took another's share");
    }
    device.close(false).unwrap();
}
