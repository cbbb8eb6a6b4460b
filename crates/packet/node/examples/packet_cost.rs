//! What a packet costs in the firewall alone, in ns: `cargo run --release -p sluicegate-node --example packet_cost`.
//!
//! Hot: one flow again and again. Random: 200,000 flows in random order, so that every line comes from memory. The
//! packet is made anew each time; that is measured apart and taken off.

use std::{
    hint::black_box,
    net::{IpAddr, Ipv4Addr},
};

use sluicegate_bounded::Gauge;
use sluicegate_grant::{ANY_PORTS, DataMode, Grant, GrantId};
use sluicegate_nat::{Config, Translator};
use sluicegate_node::{Firewall, Forwarding};
use sluicegate_pinhole::{PinholeSpec, Service, ServiceMode};
use sluicegate_wire::{
    Frame, HEADROOM, Instant, IpProtocol, Port, UnixTime, Verdict,
    checksum::Delta,
    ipv4,
    tcp::{self, Control},
    udp,
};

const GATE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const TARGET: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 10);
const NOW: Instant = Instant::from_secs(1_000);
const UNIX: UnixTime = UnixTime(1_800_000_000);
const CLIENTS: u32 = 4_000;
const FLOWS_PER_CLIENT: u32 = 50;
const FLOWS: usize = (CLIENTS * FLOWS_PER_CLIENT) as usize;
const PACKETS: usize = 2_000_000;
const RUNS: usize = 5;
const UDP: u8 = 17;
const TCP: u8 = 6;

type Buffer = [u8; HEADROOM + 2_048];

fn main() {
    let (mut gate, ports) = gate();
    let from_client = |n: usize, packet: &mut [u8]| {
        let (client, port) = flow(n);
        patch(packet, (client, port), (GATE, ports[n % CLIENTS as usize]));
    };
    let from_service = |n: usize, packet: &mut [u8]| patch(packet, (TARGET, 53), flow(n));
    let forged = |n: usize, packet: &mut [u8]| {
        let source = Ipv4Addr::from_bits(0x0b00_0000 + n as u32 * 77);
        patch(packet, (source, 1_024), (GATE, ports[n % CLIENTS as usize]));
    };
    let closed = |n: usize, packet: &mut [u8]| {
        patch(packet, (Ipv4Addr::from_bits(0x0b00_0000 + n as u32 * 77), 9), (GATE, 9));
    };
    let order = shuffled(PACKETS, FLOWS);
    let hot = vec![0; PACKETS];
    let datagram = udp_packet((TARGET, 53), (GATE, 9));

    let once: Vec<usize> = (0..FLOWS).collect();
    let opened = measure(&mut gate, &Row(Port::OUTSIDE, &datagram, &from_client, &once, true));
    println!("new UDP flow, 200 k of them           {opened:7.1} ns (one run)");
    show(&mut gate, "established UDP 64 B in, hot          ", &Row(Port::OUTSIDE, &datagram, &from_client, &hot, true));
    show(&mut gate, "established UDP 64 B out, hot         ", &Row(Port::INSIDE, &datagram, &from_service, &hot, true));
    show(
        &mut gate,
        "established UDP 64 B in, 200 k random ",
        &Row(Port::OUTSIDE, &datagram, &from_client, &order, true),
    );
    show(
        &mut gate,
        "established UDP 64 B out, 200 k random",
        &Row(Port::INSIDE, &datagram, &from_service, &order, true),
    );
    show(&mut gate, "forged, closed port                   ", &Row(Port::OUTSIDE, &datagram, &closed, &order, false));
    show(&mut gate, "forged source, open ports, random     ", &Row(Port::OUTSIDE, &datagram, &forged, &order, false));
    let segment = tcp_connection(&mut gate);
    show(&mut gate, "established TCP segment in, hot       ", &Row(Port::OUTSIDE, &segment, &|_, _| {}, &hot, true));
    let mut bytes = Vec::new();
    for _ in 0..2 {
        bytes.clear();
        let start = cpu_nanos();
        gate.translator.export_state(&mut |part| bytes.extend_from_slice(part));
        let millis = (cpu_nanos() - start) as f64 / 1e6;
        println!("export of 200 k flows: {millis:.1} ms, {:.1} MB", bytes.len() as f64 / 1e6);
    }
    println!("floor: one dependent random read in 64 MB {:3.1} ns", memory_floor(&order));
    for Gauge { name, used, max } in gate.gauges().filter(|gauge| gauge.used > 0) {
        println!("  {name}: {used} of {max}");
    }
}

/// The port that packets come by, their template, how the n-th differs from it, which are sent, and whether they pass.
struct Row<'a>(Port, &'a [u8], &'a dyn Fn(usize, &mut [u8]), &'a [usize], bool);

/// Writes other ends into a packet. All checksums stay right; UDP has none.
fn patch(packet: &mut [u8], src: (Ipv4Addr, u16), dst: (Ipv4Addr, u16)) {
    let word = |at: usize, packet: &[u8]| u16::from_be_bytes([packet[at], packet[at + 1]]);
    let ports = Delta::NONE.u16(word(20, packet), src.1).u16(word(22, packet), dst.1);
    packet[20..22].copy_from_slice(&src.1.to_be_bytes());
    packet[22..24].copy_from_slice(&dst.1.to_be_bytes());
    let is_tcp = packet[9] == TCP;
    let mut view = ipv4::Packet::new_unchecked(&mut *packet);
    let delta = Delta::NONE.u32(view.src().to_bits(), src.0.to_bits()).u32(view.dst().to_bits(), dst.0.to_bits());
    view.set_src(src.0);
    view.set_dst(dst.0);
    view.set_checksum(delta.apply(view.checksum()));
    if is_tcp {
        let checksum = delta.and(ports).apply(word(36, packet));
        packet[36..38].copy_from_slice(&checksum.to_be_bytes());
    } else {
        packet[26..28].copy_from_slice(&[0, 0]);
    }
}

/// A gate with 4,000 granted clients and 200,000 flows to come.
fn gate() -> (Firewall, Vec<u16>) {
    let config = Config {
        gate_address: GATE,
        external_ports: (20_000, 32_767),
        flows_max: FLOWS as u32 + 1_000,
        pinholes_max: CLIENTS + 10,
        ..Config::default()
    };
    let forwarding = Forwarding { address: config.gate_address, ..Forwarding::default() };
    let key = *b"a key for a test";
    let mut gate = Firewall::new(Translator::new(config, key, 1), forwarding, &key);
    let target = IpAddr::V4(TARGET);
    gate.translator
        .set_services(&[Service { id: 1, mode: ServiceMode::Nat, address: target, outbound_all: false, open: false }])
        .unwrap();
    let ports = (0..CLIENTS)
        .map(|n| {
            let opened = gate.translator.install(NOW, UNIX, spec(n, client(n), UDP, 53)).unwrap();
            opened.ports.0
        })
        .collect();
    (gate, ports)
}

fn client(n: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0xc633_0000 + n)
}

fn flow(n: usize) -> (Ipv4Addr, u16) {
    (client(n as u32 % CLIENTS), 10_000 + (n as u32 / CLIENTS) as u16)
}

fn spec(n: u32, client: Ipv4Addr, protocol: u8, port: u16) -> PinholeSpec {
    let grant = Grant {
        flags: 0,
        least_mode: DataMode::Pinhole,
        protocol,
        id: GrantId::of_call([protocol; 12], n),
        issuer: [1; 8],
        epoch: 0,
        not_before: UNIX,
        not_after: UNIX.plus_secs(86_400),
        bytes: 1 << 50,
        client_id: 0,
        flows: 64,
        rate_100kbps: 0,
        client_address: client.into(),
        client_ports: ANY_PORTS,
        gate_address: Ipv4Addr::UNSPECIFIED.into(),
        gate_ports: (0, 0),
        holder: [0; 32],
        user_pseudonym: u64::from(n).to_be_bytes(),
    };
    PinholeSpec { grant, service: 1, target: TARGET.into(), target_ports: (port, port), filter: false, keys: None }
}

fn ip_packet(src: Ipv4Addr, dst: Ipv4Addr, protocol: IpProtocol, payload: &[u8]) -> Vec<u8> {
    let repr = ipv4::Repr::new(src, dst, protocol, payload.len() as u16);
    let mut packet = vec![0; repr.buffer_len()];
    repr.emit(&mut ipv4::Packet::new_unchecked(&mut packet));
    packet.extend_from_slice(payload);
    packet
}

/// An Ethernet frame of 64 bytes carries 46 bytes of IP.
fn udp_packet(src: (Ipv4Addr, u16), dst: (Ipv4Addr, u16)) -> Vec<u8> {
    let repr = udp::Repr { src_port: src.1, dst_port: dst.1, payload: &[0x55; 18] };
    let mut datagram = vec![0; repr.buffer_len()];
    repr.emit(&mut udp::Packet::new_unchecked(&mut datagram), src.0.into(), dst.0.into());
    ip_packet(src.0, dst.0, IpProtocol::UDP, &datagram)
}

/// Opens a connection and gives a segment that can be sent again and again.
fn tcp_connection(gate: &mut Firewall) -> Vec<u8> {
    let peer = client(CLIENTS);
    let opened = gate.translator.install(NOW, UNIX, spec(CLIENTS, peer, TCP, 22)).unwrap();
    let segment = |src: (Ipv4Addr, u16), dst: (Ipv4Addr, u16), repr: tcp::Repr<'_>| {
        let repr = tcp::Repr { src_port: src.1, dst_port: dst.1, ..repr };
        let mut bytes = vec![0; repr.buffer_len()];
        repr.emit(&mut tcp::Packet::new_unchecked(&mut bytes), src.0.into(), dst.0.into());
        ip_packet(src.0, dst.0, IpProtocol::TCP, &bytes)
    };
    let (outside, inside, target) = ((peer, 9_999), (GATE, opened.ports.0), (TARGET, 22));
    let syn = tcp::Repr::new(0, 0, Control::Syn, 1);
    let data = tcp::Repr { ack: Some(101), payload: b"x", ..tcp::Repr::new(0, 0, Control::None, 2) };
    let handshake = [
        (Port::OUTSIDE, segment(outside, inside, syn)),
        (Port::INSIDE, segment(target, outside, tcp::Repr { seq: 100, ack: Some(2), ..syn })),
        (Port::OUTSIDE, segment(outside, inside, tcp::Repr { payload: &[], ..data })),
    ];
    for (port, packet) in handshake {
        run(gate, &Row(port, &packet, &|_, _| {}, &[0], true), &mut [0; HEADROOM + 2_048]);
    }
    segment(outside, inside, data)
}

/// What one dependent read of a cache line costs in a table as large as that of the lines.
fn memory_floor(order: &[usize]) -> f64 {
    let lines = vec![[1u64; 8]; 1 << 20];
    let start = cpu_nanos();
    let mut last = 0;
    for at in order {
        let index = (*at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44;
        last = lines[(index as usize + last as usize) & ((1 << 20) - 1)][3];
    }
    black_box(last);
    (cpu_nanos() - start) as f64 / order.len() as f64
}

/// CPU time of this thread, so that other work on the machine counts less.
fn cpu_nanos() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("the kernel keeps schedstat");
    text.split(' ').next().and_then(|field| field.parse().ok()).expect("the first field is the time on the CPU, in ns")
}

fn shuffled(len: usize, end: usize) -> Vec<usize> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % end
    };
    (0..len).map(|_| next()).collect()
}

fn run(gate: &mut Firewall, row: &Row<'_>, buffer: &mut Buffer) {
    let Row(port, template, differ, order, passes) = row;
    for n in *order {
        let packet = &mut buffer[HEADROOM..HEADROOM + template.len()];
        packet.copy_from_slice(template);
        differ(*n, packet);
        let mut frame = Frame::new(buffer, HEADROOM, template.len()).unwrap();
        let verdict = black_box(gate.on_packet(NOW, *port, &mut frame));
        assert_eq!(matches!(verdict, Verdict::Forward(_)), *passes);
    }
}

/// ns a packet; making it is taken off.
fn measure(gate: &mut Firewall, row: &Row<'_>) -> f64 {
    let Row(_, template, differ, order, _) = row;
    let mut buffer = [0; HEADROOM + 2_048];
    let start = cpu_nanos();
    for n in *order {
        let packet = &mut buffer[HEADROOM..HEADROOM + template.len()];
        packet.copy_from_slice(template);
        differ(*n, packet);
        black_box(&mut buffer);
    }
    let making = cpu_nanos() - start;
    let start = cpu_nanos();
    run(gate, row, &mut buffer);
    (cpu_nanos() - start).saturating_sub(making) as f64 / order.len() as f64
}

fn show(gate: &mut Firewall, name: &str, row: &Row<'_>) {
    let mut costs: Vec<f64> = (0..RUNS).map(|_| measure(gate, row)).collect();
    costs.sort_by(f64::total_cmp);
    println!("{name} {:7.1} ns (median of {RUNS}; {:.1} to {:.1})", costs[RUNS / 2], costs[0], costs[RUNS - 1]);
}
