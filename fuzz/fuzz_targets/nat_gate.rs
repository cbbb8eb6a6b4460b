//! A gate between clients, strangers and its services, which all send what they like in any order.
#![no_main]

#[path = "../../crates/packet/node/tests/firewall/site/mod.rs"]
mod site;

use std::{net::IpAddr, time::Duration};

use libfuzzer_sys::fuzz_target;
use site::{
    CLIENT, CLIENT_V6, FILTERED, FILTERED_V6, GATE, OTHER_CLIENT, STRANGER, STRANGER_V6, Site, TALKER, TARGET, TCP,
    UDP, check_checksums, config,
    packets::{tcp, udp},
};
use sluicegate_nat::Config;
use sluicegate_wire::{Port, Verdict, build, icmp, ip::Summary, ipv4, tcp};

const OUTSIDE: [IpAddr; 5] = [CLIENT, OTHER_CLIENT, STRANGER, CLIENT_V6, STRANGER_V6];
const INSIDE: [IpAddr; 4] = [TARGET, TALKER, FILTERED, FILTERED_V6];
const PORTS: [u16; 6] = [22, 5_004, 20_000, 20_001, 20_002, 40_000];
const CONTROLS: [tcp::Control; 4] = [tcp::Control::None, tcp::Control::Syn, tcp::Control::Fin, tcp::Control::Rst];
const STEPS_MAX: usize = 256;
const PACKET_LEN_MAX: usize = 1_500;

struct Play {
    site: Site,
    /// The packet that left last, and where.
    last: Option<(Port, Vec<u8>)>,
}

impl Play {
    fn new() -> Self {
        let mut site = Site::with(Config {
            external_ports: (20_000, 20_007),
            flows_max: 16,
            flows_v6_max: 8,
            pinholes_max: 8,
            ..config()
        });
        for (protocol, client, target) in
            [(UDP, CLIENT, TARGET), (TCP, CLIENT, TARGET), (UDP, OTHER_CLIENT, FILTERED), (TCP, CLIENT_V6, FILTERED_V6)]
        {
            let grant = site.grant(protocol, client);
            site.install(grant, target, (5_004, 5_004));
        }
        Self { site, last: None }
    }

    fn step(&mut self, action: u8, choice: u8, bytes: &[u8]) {
        let from = if choice & 1 == 0 { Port::OUTSIDE } else { Port::INSIDE };
        let packet = match action % 6 {
            0 => Some(bytes.to_vec()),
            1 => datagram(from, choice, bytes),
            2 => segment(from, choice, bytes),
            3 => self.error(from, choice),
            4 => self.changed(bytes),
            _ => {
                let ms = bytes.first_chunk::<2>().map_or(20, |bytes| u64::from(u16::from_le_bytes(*bytes)));
                self.site.wait(Duration::from_millis(ms));
                None
            }
        };
        if let Some(packet) = packet.filter(|packet| packet.len() <= PACKET_LEN_MAX) {
            let out = self.site.send(from, &packet);
            if let Verdict::Forward(port) = out.verdict {
                self.left(port, out.packet);
            }
        }
        for (port, packet) in self.site.released() {
            self.left(port, packet);
        }
        for gauge in self.site.gate.gauges() {
            assert!(gauge.used <= gauge.max, "{}: {} of {}", gauge.name, gauge.used, gauge.max);
        }
    }

    /// No private address gets out, and what comes in goes to a service.
    fn left(&mut self, port: Port, packet: Vec<u8>) {
        check_checksums(&packet);
        let summary = Summary::parse(&packet).expect("what leaves is a valid IP packet");
        if port == Port::INSIDE {
            assert!(INSIDE.contains(&summary.dst), "{} is no service", summary.dst);
        } else {
            assert!(![TARGET, TALKER].contains(&summary.src), "{} is private", summary.src);
        }
        self.last = Some((port, packet));
    }

    /// An error about the packet that left last, from whom it went to or from anybody.
    fn error(&self, from: Port, choice: u8) -> Option<Vec<u8>> {
        let (_, quoted) = self.last.as_ref()?;
        let summary = Summary::parse(quoted).ok().filter(|summary| summary.src.is_ipv4())?;
        let quote = icmp::Quote::new(quoted).ok()?;
        let message = if choice & 2 == 0 {
            icmp::Repr::Unreachable { why: icmp::Unreachable::Port, quote }
        } else {
            icmp::Repr::PacketTooBig { mtu: 1_400, quote }
        };
        let source = if choice & 4 == 0 { summary.dst } else { far(from, choice, true)? };
        Some(build::packet(source, summary.src, &message))
    }

    /// The packet that left last with some bytes changed and a right checksum of its IPv4 header.
    fn changed(&self, changes: &[u8]) -> Option<Vec<u8>> {
        let (_, mut packet) = self.last.clone()?;
        for change in changes.chunks_exact(2) {
            if let Some(byte) = packet.get_mut(usize::from(change[0])) {
                *byte = change[1];
            }
        }
        if let Ok(mut header) = ipv4::Packet::new_checked(&mut packet[..]) {
            header.fill_checksum();
        }
        Some(packet)
    }
}

/// Somebody on this side, of this version.
fn far(from: Port, choice: u8, v4: bool) -> Option<IpAddr> {
    let all = if from == Port::OUTSIDE { &OUTSIDE[..] } else { &INSIDE[..] };
    let fitting: Vec<_> = all.iter().filter(|address| address.is_ipv4() == v4).collect();
    fitting.get(usize::from(choice >> 4) % fitting.len()).map(|address| **address)
}

fn ends(from: Port, choice: u8, bytes: &[u8]) -> Option<((IpAddr, u16), (IpAddr, u16))> {
    let [ports, to, ..] = *bytes else { return None };
    let port = |at: u8| PORTS[usize::from(at) % PORTS.len()];
    let v4 = choice & 2 == 0;
    let source = far(from, choice, v4)?;
    let destination = match (from, to % 4) {
        (Port::OUTSIDE, 0) if v4 => GATE.into(),
        (port, _) => far(port.opposite(), to, v4)?,
    };
    Some(((source, port(ports & 15)), (destination, port(ports >> 4))))
}

fn datagram(from: Port, choice: u8, bytes: &[u8]) -> Option<Vec<u8>> {
    let (source, destination) = ends(from, choice, bytes)?;
    Some(udp(source, destination, bytes.get(2..)?))
}

fn segment(from: Port, choice: u8, bytes: &[u8]) -> Option<Vec<u8>> {
    let (source, destination) = ends(from, choice, bytes)?;
    let [control, seq, ack, payload @ ..] = bytes.get(2..)? else { return None };
    let repr = tcp::Repr::new(0, 0, CONTROLS[usize::from(control % 4)], u32::from(*seq) << (control >> 4));
    let ack = (control & 4 == 0).then_some(u32::from(*ack) << (control >> 4));
    Some(tcp(source, destination, tcp::Repr { ack, payload, ..repr }))
}

// Steps: an action, a choice, a length, and so many bytes.
fuzz_target!(|bytes: &[u8]| {
    let (mut play, mut rest) = (Play::new(), bytes);
    for _ in 0..STEPS_MAX {
        let Some(([action, choice, len], more)) = rest.split_first_chunk() else { return };
        let (bytes, more) = more.split_at(usize::from(*len).min(more.len()));
        play.step(*action, *choice, bytes);
        rest = more;
    }
});
