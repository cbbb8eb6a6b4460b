//! Somebody who knows everything about a TCP connection but its sequence numbers.

use std::{
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use sluicegate_datapath::raw::{Options, Socket};
use sluicegate_wire::{IpProtocol, ipv4, tcp};

use crate::support::{
    capture::{Capture, Seen},
    lab::{CLIENT, GATE, Lab, SERVICE},
    node::{Config, Node, service},
    phone::{Phone, Wish},
    traffic::{Echo, Talk},
    until,
};

on_each_datapath!(alone a_million_tcp_segments_outside_the_window_do_not_pass, &[], super::million);

/// Segments that the gate must have judged.
const SEGMENTS: u64 = 1_000_000;
const LIMIT: Duration = Duration::from_secs(300);
/// Different segments; they are sent again and again.
const POOL: u32 = 16_384;
/// Nothing within this of the right number is sent: far more than any window here.
const MARGIN: u32 = 1 << 24;
/// Segments a second to begin with, and at least. The gate's own speed sets what is in between: a segment that its
/// receive ring drops was not judged.
const RATE: u64 = 60_000;
const RATE_MIN: u64 = 4_000;

fn million(datapath: &'static str) {
    let lab = Lab::new();
    let node = Node::up(&lab, &Config::new(datapath, &service("echo", "\"tcp/7000\"", "")));
    let _echo = Echo::start(lab.listen("service", SERVICE, 7000));
    let phone = Phone::new(&lab, "client", CLIENT, SocketAddr::new(GATE.into(), 5060), "alice");
    let call = phone.call("echo", Wish::Tcp(7000, 7000));

    let own = Capture::start(&lab, ("core", "to_client"), |seen| seen.from == CLIENT && seen.protocol == 6);
    let stream = lab.connect("client", call.gate).expect("a connection through the gate");
    let talk = Talk::start(stream.try_clone().expect("a second handle"));
    until("records come back", || (talk.arrivals.since(Instant::now() - Duration::from_secs(9)) > 5).then_some(()));
    drop(talk);
    // Quiet from now on, but open: whatever reaches the service is not the connection's own.
    until("the connection is quiet", || {
        let count = own.count();
        crate::support::let_run(Duration::from_millis(300));
        (own.count() == count).then_some(())
    });
    let pool = pool(&lab, own.seen().last().expect("the connection was seen"));
    drop(own);

    let passed = Capture::start(&lab, ("service", "eth0"), |seen| seen.from == CLIENT);
    let socket = lab.host("client").run_in(|| Socket::open("eth0", &Options::send_only())).expect("a namespace");
    let (judged, sent, took) = bombard(&node, socket.expect("a raw socket"), &pool);
    println!("{sent} segments sent in {took:.1?}, {judged} judged and dropped, {} passed", passed.count());
    assert!(judged >= SEGMENTS, "only {judged} of {sent} segments were judged within {LIMIT:?}");
    assert_eq!(passed.count(), 0, "{:?}", passed.seen().first());
    // The connection never noticed, and its own segments pass.
    let talk = Talk::start(stream);
    until("records come back as before", || {
        (talk.arrivals.since(Instant::now() - Duration::from_secs(9)) > 5).then_some(())
    });
    assert_eq!(talk.broken(), None);
    assert!(passed.count() > 5);
}

/// Frames with the connection's addresses and ports, every kind of flag, and sequence numbers far from the window. No
/// bare SYN: one a second may pass, because a host that crashed comes back so, and the service's stack challenges it.
fn pool(lab: &Lab, last: &Seen) -> Vec<Vec<u8>> {
    let (IpAddr::V4(src), IpAddr::V4(dst)) = (last.from, last.to) else { panic!("IPv4") };
    let segment = tcp::Packet::new_checked(&last.bytes[ipv4::HEADER_LEN..]).expect("a segment");
    let (seq, ack) = (segment.seq(), segment.ack());
    let ethernet = [&lab.mac("core", "to_client")[..], &lab.mac("client", "eth0"), &[0x08, 0x00]].concat();
    let flags = [
        tcp::Flags::ACK,
        tcp::Flags::ACK.with(tcp::Flags::PSH),
        tcp::Flags::ACK.with(tcp::Flags::FIN),
        tcp::Flags::ACK.with(tcp::Flags::RST),
        tcp::Flags::RST,
        tcp::Flags::ACK.with(tcp::Flags::SYN),
    ];
    let span = u32::MAX - 2 * MARGIN;
    (0..POOL)
        .map(|index| {
            let flags = flags[index as usize % flags.len()];
            let payload = if flags.has(tcp::Flags::PSH) { &[0x58; 100][..] } else { &[] };
            let len = ipv4::HEADER_LEN + tcp::HEADER_LEN + payload.len();
            let mut packet = vec![0; len];
            let tcp_len = u16::try_from(len - ipv4::HEADER_LEN).expect("short");
            ipv4::Repr::new(src, dst, IpProtocol(6), tcp_len).emit(&mut ipv4::Packet::new_unchecked(&mut packet[..]));
            let mut segment = tcp::Packet::new_unchecked(&mut packet[ipv4::HEADER_LEN..]);
            segment.set_header_len(tcp::HEADER_LEN);
            segment.set_src_port(last.ports.0);
            segment.set_dst_port(last.ports.1);
            // Spread over the whole circle but the margin.
            segment.set_seq(seq.wrapping_add(MARGIN + (u64::from(index) * u64::from(span) / u64::from(POOL)) as u32));
            segment.set_ack(if flags.has(tcp::Flags::ACK) { ack } else { 0 });
            segment.set_flags(flags);
            segment.set_window(1_000);
            segment.payload_mut().copy_from_slice(payload);
            segment.fill_checksum(src.into(), dst.into());
            [&ethernet[..], &packet].concat()
        })
        .collect()
}

/// Sends until enough were judged: (judged, sent, how long it took).
fn bombard(node: &Node, mut socket: Socket, pool: &[Vec<u8>]) -> (u64, u64, Duration) {
    let judged = || node.dropped("tcp_window") + node.dropped("tcp_state");
    let (before, mut full) = (judged(), node.dropped("receive_full"));
    let (start, mut sent, mut rate) = (Instant::now(), 0_u64, RATE);
    let mut next = pool.iter().cycle();
    while start.elapsed() < LIMIT {
        // A second of it, a hundredth at a time.
        for _ in 0..100 {
            let began = Instant::now();
            let batch: Vec<&Vec<u8>> = next.by_ref().take((rate / 100) as usize).collect();
            sent += socket.send(&batch).expect("the interface is up").sent as u64;
            crate::support::let_run(Duration::from_millis(10).saturating_sub(began.elapsed()));
        }
        let (done, lost) = (judged() - before, node.dropped("receive_full"));
        if done >= SEGMENTS {
            return (done, sent, start.elapsed());
        }
        rate = if lost > full { (rate * 3 / 4).max(RATE_MIN) } else { rate + rate / 20 };
        full = lost;
    }
    (judged() - before, sent, start.elapsed())
}
