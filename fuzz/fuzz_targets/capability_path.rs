//! Two hosts with capabilities and a router between them, whose packets are lost, changed, repeated and made up.
#![no_main]

use std::{collections::VecDeque, time::Duration};

use libfuzzer_sys::fuzz_target;
use sluicegate_capability::host::{ClientIds, ClientPolicy, Config, Host, Inbound, Policy, ServerConfig, ServerPolicy};
use sluicegate_capability::router::{Arrival, Router, RouterConfig};
use sluicegate_capability::secrets::Seed;
use sluicegate_wire::{
    FrameBuf, Instant, IpProtocol, Packet, Port,
    capability::{ClientId, Limits, shim::Carriage},
    ip::Summary,
    ipv4, udp,
};

const ADDRESSES: [[u8; 4]; 2] = [[192, 0, 2, 1], [198, 51, 100, 2]];
/// Packets on their way; more are lost.
const FLYING_MAX: usize = 16;
const STEPS_MAX: usize = 512;

struct Path {
    now: Instant,
    hosts: [Host; 2],
    policies: [Box<dyn Policy>; 2],
    router: Router,
    /// Packets, and which host they are for.
    flying: VecDeque<(usize, FrameBuf)>,
}

impl Path {
    fn new(kind: u8) -> Self {
        let limits = Limits::new(8, 10).expect("8 kB in 10 s are possible");
        let carriage = if kind & 1 == 0 { Carriage::Native } else { Carriage::Encapsulated { src_port: 40_000 } };
        let config =
            Config { peers_max: 4, remotes_max: 4, carriage, answers_only: kind & 2 != 0, ..Config::default() };
        let client = ClientPolicy::new(ClientIds::Fixed(ClientId(9)), limits);
        let server =
            ServerPolicy::new(ServerConfig { limits, flood_bytes_per_s: u64::MAX, ..ServerConfig::default() }, [1; 16]);
        let router = RouterConfig {
            lines_max: 8,
            lines6_max: 2,
            revocations_max: 2,
            boundary: [true, false],
            least: Limits::new(1, 63).expect("1 kB in 63 s are possible"),
            seed: Seed([3; 32]),
            tag_key: [3; 16],
            first_seconds: 3_000,
            started_at: Instant::ZERO,
        };
        Self {
            now: Instant::from_secs(1),
            hosts: [Host::new(Config { answers_only: false, ..config }, [1; 32]), Host::new(config, [2; 32])],
            policies: [Box::new(client), Box::new(server)],
            router: Router::new(router, [3; 16]),
            flying: VecDeque::new(),
        }
    }

    fn step(&mut self, action: u8, bytes: &[u8]) {
        let side = usize::from(action >> 7);
        match action % 5 {
            0 => self.send(side, datagram(side, bytes)),
            1 => self.send(side, FrameBuf::from_bytes(bytes)),
            2 => self.arrive(side, FrameBuf::from_bytes(bytes)),
            3 => self.deliver(bytes),
            _ => self.wait(bytes),
        }
        self.collect();
    }

    /// A local host's packet.
    fn send(&mut self, side: usize, mut frame: FrameBuf) {
        let (now, host, policy) = (self.now, &mut self.hosts[side], &mut self.policies[side]);
        if frame.with(|frame| host.outbound(now, policy.as_mut(), frame)).is_ok() {
            self.fly(1 - side, frame);
        }
    }

    fn fly(&mut self, to: usize, frame: FrameBuf) {
        if self.flying.len() < FLYING_MAX {
            self.flying.push_back((to, frame));
        }
    }

    /// The next packet on its way arrives, as it is or with some bytes changed; the highest bit keeps a copy.
    fn deliver(&mut self, changes: &[u8]) {
        let Some((to, mut frame)) = self.flying.pop_front() else { return };
        if changes.first().is_some_and(|first| first & 0x80 != 0) {
            self.fly(to, frame.clone());
        }
        frame.with(|frame| {
            for change in changes.get(1..).unwrap_or_default().chunks_exact(2) {
                if let Some(byte) = frame.bytes_mut().get_mut(usize::from(change[0])) {
                    *byte = change[1];
                }
            }
        });
        self.arrive(to, frame);
    }

    fn arrive(&mut self, to: usize, mut frame: FrameBuf) {
        let arrival =
            Arrival { port: if to == 1 { Port::OUTSIDE } else { Port::INSIDE }, neighbour: 7, verified_source: false };
        let (now, router) = (self.now, &mut self.router);
        let Ok(mut packet) = Packet::parse(frame.bytes()) else { return };
        if frame.with(|frame| router.judge(now, &arrival, frame, &mut packet)).is_err() {
            return;
        }
        let _ = frame.with(|frame| router.vouches(now, frame, &packet));
        let (host, policy) = (&mut self.hosts[to], &mut self.policies[to]);
        let taken = frame.with(|frame| host.take(now, policy.as_mut(), frame, &mut packet));
        if !matches!(taken, Err(_) | Ok(Inbound::Consumed)) {
            // What is known of it is what it is.
            assert_eq!(Summary::parse(frame.bytes()), Ok(packet.ip));
        }
    }

    fn wait(&mut self, bytes: &[u8]) {
        let ms = bytes.first_chunk::<2>().map_or(20, |bytes| u64::from(u16::from_le_bytes(*bytes)));
        self.now = self.now + Duration::from_millis(ms);
        for host in &mut self.hosts {
            host.handle_timeout(self.now);
        }
        self.router.handle_timeout(self.now);
    }

    /// Packets of the hosts' own.
    fn collect(&mut self) {
        for side in 0..2 {
            for _ in 0..FLYING_MAX {
                let mut frame = FrameBuf::from_bytes(&[0; 256]);
                let (now, host) = (self.now, &mut self.hosts[side]);
                if !frame.with(|frame| host.poll_output(now, frame)) {
                    break;
                }
                self.fly(1 - side, frame);
            }
        }
    }
}

fn datagram(from: usize, payload: &[u8]) -> FrameBuf {
    let (src, dst) = (ADDRESSES[from].into(), ADDRESSES[1 - from].into());
    let repr = udp::Repr { src_port: 9, dst_port: 9, payload };
    let mut bytes = vec![0; ipv4::HEADER_LEN + repr.buffer_len()];
    let header = ipv4::Repr::new(src, dst, IpProtocol::UDP, repr.buffer_len() as u16);
    repr.emit(&mut udp::Packet::new_unchecked(&mut bytes[ipv4::HEADER_LEN..]), src.into(), dst.into());
    header.emit(&mut ipv4::Packet::new_unchecked(&mut bytes[..]));
    FrameBuf::from_bytes(&bytes)
}

// One byte of settings, then steps: an action, a length, and so many bytes.
fuzz_target!(|bytes: &[u8]| {
    let Some((kind, mut rest)) = bytes.split_first() else { return };
    let mut path = Path::new(*kind);
    for _ in 0..STEPS_MAX {
        let Some(([action, len], more)) = rest.split_first_chunk() else { return };
        let (bytes, more) = more.split_at(usize::from(*len).min(more.len()));
        path.step(*action, bytes);
        rest = more;
    }
});
