//! One gate with two services behind it, and packets to throw at it. All checksums of whatever the gate lets out are
//! verified here, in every test.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]

pub mod packets;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use packets::*;
use sluicegate_grant::{ANY_PORTS, DataMode, Grant, GrantId};
use sluicegate_nat::{
    Config, Translator,
    transport::{TRANSPORTS, Transports},
};
use sluicegate_node::{Firewall, Forwarding};
use sluicegate_pinhole::{Opened, Permission, PinholeSpec, Service, ServiceMode};
use sluicegate_wire::{FrameBuf, Instant, Port, Reason, UnixTime, Verdict, ip::Summary};

pub const GATE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
pub const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 7));
pub const OTHER_CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 8));
pub const STRANGER: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 99));
/// The `nat` service.
pub const TARGET: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 10));
/// A `nat` service that may start flows.
pub const TALKER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 20));
/// The `filter` services.
pub const FILTERED: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 80));
pub const FILTERED_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, 0x80));
pub const CLIENT_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0xff, 0, 0, 0, 0, 7));
pub const STRANGER_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0xff, 0, 0, 0, 0, 99));

pub const TARGET_ID: u16 = 1;
pub const TALKER_ID: u16 = 2;
pub const FILTERED_ID: u16 = 3;
pub const FILTERED_V6_ID: u16 = 4;

pub const START: UnixTime = UnixTime(1_800_000_000);
pub const UDP: u8 = 17;
pub const TCP: u8 = 6;
pub const ICMP: u8 = 1;
pub const ICMPV6: u8 = 58;

pub struct Site {
    pub gate: Firewall,
    pub now: Instant,
    pub unix: UnixTime,
    grants: u32,
}

/// What the gate made of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Out {
    pub verdict: Verdict,
    pub packet: Vec<u8>,
}

impl Out {
    /// The packet, which must have been forwarded out of `port`.
    #[track_caller]
    pub fn forwarded(self, port: Port) -> Vec<u8> {
        assert_eq!(self.verdict, Verdict::Forward(port));
        self.packet
    }

    #[track_caller]
    pub fn inside(self) -> Vec<u8> {
        self.forwarded(Port::INSIDE)
    }

    #[track_caller]
    pub fn outside(self) -> Vec<u8> {
        self.forwarded(Port::OUTSIDE)
    }

    #[track_caller]
    pub fn dropped(self) -> Reason {
        let Verdict::Drop(reason) = self.verdict else { panic!("{:?} is no drop", self.verdict) };
        reason
    }
}

pub fn config() -> Config {
    Config {
        gate_address: GATE,
        external_ports: (20_000, 20_999),
        flows_max: 4_096,
        flows_v6_max: 1_024,
        pinholes_max: 256,
        ..Config::default()
    }
}

fn forwarding(config: &Config) -> Forwarding {
    let icmp_errors_per_s = config.icmp_errors_per_s;
    Forwarding { address: config.gate_address, mtu: config.mtu, icmp_errors_per_s, ..Forwarding::default() }
}

/// A gate that knows nothing yet.
pub fn firewall(config: Config, hash_key: [u8; 16], random_seed: u64) -> Firewall {
    let forwarding = forwarding(&config);
    Firewall::new(Translator::new(config, hash_key, random_seed), forwarding, &hash_key)
}

pub fn services() -> Vec<Service> {
    let service = |id, mode, address, outbound_all| Service { id, mode, address, outbound_all, open: false };
    vec![
        service(TARGET_ID, ServiceMode::Nat, TARGET, false),
        service(TALKER_ID, ServiceMode::Nat, TALKER, true),
        service(FILTERED_ID, ServiceMode::Filter, FILTERED, false),
        service(FILTERED_V6_ID, ServiceMode::Filter, FILTERED_V6, false),
    ]
}

impl Site {
    pub fn new() -> Self {
        Self::with(config())
    }

    pub fn with(config: Config) -> Self {
        Self::with_transports(config, &TRANSPORTS)
    }

    pub fn with_transports(config: Config, transports: &'static Transports) -> Self {
        let forwarding = forwarding(&config);
        let translator = Translator::with_transports(config, [7; 16], 1, transports);
        Self::of(Firewall::new(translator, forwarding, &[7; 16]))
    }

    /// With room for so many packets in virtual reassembly, and so many fragments that wait.
    pub fn with_fragments(config: Config, fragmented_packets_max: u16, fragments_held_max: u16) -> Self {
        let forwarding = Forwarding { fragmented_packets_max, fragments_held_max, ..forwarding(&config) };
        Self::of(Firewall::new(Translator::new(config, [7; 16], 1), forwarding, &[7; 16]))
    }

    fn of(mut gate: Firewall) -> Self {
        gate.translator.set_services(&services()).unwrap();
        Self { gate, now: Instant::from_secs(1_000), unix: START, grants: 0 }
    }

    /// A grant for `client`: one hour, 1 MB, any port.
    pub fn grant(&mut self, protocol: u8, client: IpAddr) -> Grant {
        self.grants += 1;
        let unspecified: IpAddr =
            if client.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        Grant {
            flags: 0,
            least_mode: DataMode::Pinhole,
            protocol,
            id: GrantId::of_call([9; 12], self.grants),
            issuer: [1; 8],
            epoch: 0,
            not_before: self.unix,
            not_after: self.unix.plus_secs(3_600),
            bytes: 1_000_000,
            client_id: 0,
            flows: 0,
            rate_100kbps: 0,
            client_address: client,
            client_ports: ANY_PORTS,
            gate_address: unspecified,
            gate_ports: (0, 0),
            holder: [0; 32],
            // Everybody is a user of their own.
            user_pseudonym: u64::from(self.grants).to_be_bytes(),
        }
    }

    /// Opens `target` for a grant.
    #[track_caller]
    pub fn install(&mut self, grant: Grant, target: IpAddr, target_ports: (u16, u16)) -> Opened {
        self.gate.translator.install(self.now, self.unix, spec(grant, target, target_ports)).unwrap()
    }

    /// A pinhole for [`CLIENT`] to one port of [`TARGET`].
    #[track_caller]
    pub fn open(&mut self, protocol: u8, target_port: u16) -> (Grant, (IpAddr, u16)) {
        let grant = self.grant(protocol, CLIENT);
        let opened = self.install(grant.clone(), TARGET, (target_port, target_port));
        (grant, (opened.address, opened.ports.0))
    }

    /// Throws one packet at the gate and checks what comes out.
    #[track_caller]
    pub fn send(&mut self, port: Port, packet: &[u8]) -> Out {
        self.send_with(port, packet, Permission::NONE)
    }

    /// As [`Self::send`], a packet with which something came that proves this.
    #[track_caller]
    pub fn send_with(&mut self, port: Port, packet: &[u8], permission: Permission) -> Out {
        let mut frame = FrameBuf::from_bytes(packet);
        let Ok(mut ip) = Summary::parse(packet) else {
            let verdict = frame.with(|frame| self.gate.on_packet(self.now, port, frame));
            return Out { verdict, packet: frame.bytes().to_vec() };
        };
        let verdict = frame.with(|frame| self.gate.on_parsed(self.now, port, frame, &mut ip, permission));
        let out = frame.bytes().to_vec();
        if let Verdict::Forward(_) = verdict {
            assert_eq!(Summary::parse(&out), Ok(ip), "what is known of a packet is what it has become");
        }
        match verdict {
            Verdict::Forward(_) | Verdict::Reply => check_checksums(&out),
            _ => {}
        }
        Out { verdict, packet: out }
    }

    #[track_caller]
    pub fn outside_sends(&mut self, packet: &[u8]) -> Out {
        self.send(Port::OUTSIDE, packet)
    }

    #[track_caller]
    pub fn inside_sends(&mut self, packet: &[u8]) -> Out {
        self.send(Port::INSIDE, packet)
    }

    /// Everything that was held and may leave now.
    #[track_caller]
    pub fn released(&mut self) -> Vec<(Port, Vec<u8>)> {
        let mut all = Vec::new();
        loop {
            let mut frame = FrameBuf::from_bytes(&[0; 2_048]);
            let Some(port) = frame.with(|frame| self.gate.poll_output(self.now, frame)) else { return all };
            check_checksums(frame.bytes());
            all.push((port, frame.bytes().to_vec()));
        }
    }

    /// Lets time pass and does what is due, as a daemon would.
    pub fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(due) = self.gate.poll_timeout().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.gate.handle_timeout(self.now);
        }
        self.now = end;
        self.unix = self.unix.plus_secs(time.as_secs());
        self.gate.handle_timeout(self.now);
    }

    pub fn used(&self, gauge: &str) -> u32 {
        self.gauge(gauge).0
    }

    pub fn gauge(&self, gauge: &str) -> (u32, u32) {
        let found = self.gate.gauges().find(|found| found.name == gauge).unwrap();
        (found.used as u32, found.max as u32)
    }

    pub fn drops(&self, reason: Reason) -> u64 {
        self.gate.dropped(reason)
    }
}

/// Whether headers and, for whole packets, transports have right checksums and no padding.
#[track_caller]
pub fn check_checksums(packet: &[u8]) {
    let ip = Summary::parse(packet).expect("what leaves is a valid IP packet");
    assert_eq!(ip.total_len, packet.len());
    assert!(ip.verify_transport_checksum(packet), "transport checksum of {packet:02x?}");
}

pub fn spec(grant: Grant, target: IpAddr, target_ports: (u16, u16)) -> PinholeSpec {
    let service = services().into_iter().find(|service| service.address == target).unwrap();
    PinholeSpec {
        grant,
        service: service.id,
        target,
        target_ports,
        filter: service.mode == ServiceMode::Filter,
        keys: None,
    }
}

/// Source and destination of a packet with ports.
pub fn ends(packet: &[u8]) -> ((IpAddr, u16), (IpAddr, u16)) {
    let ip = Summary::parse(packet).unwrap();
    let transport = ip.transport(packet);
    let port = |at: usize| u16::from_be_bytes([transport[at], transport[at + 1]]);
    ((ip.src, port(0)), (ip.dst, port(2)))
}

/// The UDP payload of length `len` that most tests send.
pub fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|at| at as u8).collect()
}

/// A UDP exchange that opens a flow: one packet in, one back.
#[track_caller]
pub fn exchange(site: &mut Site, client: (IpAddr, u16), gate: (IpAddr, u16), target: (IpAddr, u16)) {
    let inside = site.outside_sends(&udp(client, gate, b"ping")).inside();
    assert_eq!(ends(&inside), (client, target));
    let outside = site.inside_sends(&udp(target, client, b"pong")).outside();
    assert_eq!(ends(&outside), (gate, client));
}
