//! A transport that nobody knows takes one row of the table and what the row points to. This file is all of it: ports, a
//! checksum at a place of its own, a first packet that opens, two states.

use std::{net::IpAddr, time::Duration};

use crate::site::{packets::*, *};
use sluicegate_flow::Kind;
use sluicegate_nat::{
    Probe, Translator,
    transport::{Header, ICMP, Quote, Selector, Signal, State, Timers, Tracking, Transport, Transports},
};
use sluicegate_pinhole::Tuple;
use sluicegate_wire::{
    Checksum, IpProtocol, Port, Reason, Verdict, checksum,
    ip::{Ports, Summary},
};

const TOY: IpProtocol = IpProtocol(200);
const HELLO: u8 = 1;
const DATA: u8 = 2;

/// `source port 2 | destination port 2 | type 1 | 0 | checksum 2`, then data.
static TRANSPORTS: Transports = Transports::new(&[ICMP, ROW]);

const ROW: Transport = Transport {
    protocol: TOY,
    version: None,
    selector: Selector::Ports,
    space: Some("external_ports_toy"),
    is_translatable: true,
    checksum: Checksum::Plain(6),
    parse,
    quoted: |bytes| Some(Quote { ports: Ports::parse(bytes).ok()?, seq: None }),
    tracking: Tracking::ByType(advance),
    idle,
};

fn parse(bytes: &[u8], _: bool) -> Result<Header, Reason> {
    let kind = *bytes.get(4).filter(|_| bytes.len() >= 8).ok_or(Reason::TransportHeaderInvalid)?;
    Ok(Header { ports: Ports::parse(bytes)?, opens: kind == HELLO, signal: Signal::Typed(kind) })
}

fn advance(state: State, from: Kind, kind: u8) -> Result<State, Reason> {
    match (state, from, kind) {
        (State::None, Kind::Inbound, HELLO) => Ok(State::SynIn),
        (State::None, Kind::Outbound, HELLO) => Ok(State::SynOut),
        (State::SynIn, Kind::Outbound, HELLO) | (State::SynOut, Kind::Inbound, HELLO) => Ok(State::Established),
        (State::Established, _, DATA) => Ok(state),
        _ => Err(Reason::TcpState),
    }
}

fn idle(state: State, timers: &Timers) -> Duration {
    if state == State::Established { timers.udp } else { Duration::from_secs(10) }
}

fn toy(src: End, dst: End, kind: u8) -> Vec<u8> {
    let mut bytes = [&src.1.to_be_bytes()[..], &dst.1.to_be_bytes(), &[kind, 0, 0, 0], b"data"].concat();
    let sum = sum(src.0, dst.0, &bytes);
    bytes[6..8].copy_from_slice(&(!sum).to_be_bytes());
    ip(src.0, dst.0, TOY, &bytes)
}

fn sum(src: IpAddr, dst: IpAddr, bytes: &[u8]) -> u16 {
    let pseudo = checksum::pseudo(src, dst, TOY, bytes.len() as u32);
    checksum::combine(&[pseudo, checksum::ones_complement(bytes)])
}

#[track_caller]
fn check(packet: &[u8]) {
    let ip = Summary::parse(packet).unwrap();
    assert_eq!(!sum(ip.src, ip.dst, ip.transport(packet)), 0, "{packet:02x?}");
}

const PEER: End = (CLIENT, 9);
const SERVER: End = (TARGET, 7);

/// A connection that stands, and where.
fn connected() -> (Site, End) {
    let mut site = Site::with_transports(config(), &TRANSPORTS);
    let (_, gate) = site.open(TOY.0, SERVER.1);
    let inside = site.outside_sends(&toy(PEER, gate, HELLO)).inside();
    check(&inside);
    assert_eq!(ends(&inside), (PEER, SERVER));
    let outside = site.inside_sends(&toy(SERVER, PEER, HELLO)).outside();
    check(&outside);
    assert_eq!(ends(&outside), (gate, PEER));
    (site, gate)
}

#[test]
fn it_is_opened_tracked_and_ended() {
    let (mut site, gate) = connected();
    site.outside_sends(&toy(PEER, gate, DATA)).inside();
    assert_eq!(site.outside_sends(&toy(PEER, gate, HELLO)).dropped(), Reason::TcpState);
    assert_eq!(site.outside_sends(&toy((CLIENT, 10), gate, DATA)).dropped(), Reason::TcpState);
    assert_eq!(site.outside_sends(&toy((STRANGER, 9), gate, HELLO)).dropped(), Reason::NoPinhole);
    assert_eq!(site.used("external_ports_toy"), 1);
    site.outside_sends(&toy((CLIENT, 10), gate, HELLO)).inside();
    site.wait(Duration::from_secs(20));
    assert_eq!(site.used("flows"), 1, "what was not answered ends after 10 s");
    site.wait(Duration::from_secs(300));
    assert_eq!(site.used("flows"), 0);
}

#[test]
fn errors_fragments_hairpins_and_probes_know_it() {
    let (mut site, gate) = connected();
    let seen = site.outside_sends(&toy(PEER, gate, DATA)).inside();
    let error = site.inside_sends(&unreachable(SERVER.0, PEER.0, &seen, 8)).outside();
    let quoted = Summary::parse_quoted(&error[28..]).unwrap();
    assert_eq!((quoted.src, quoted.dst, &error[48..50]), (PEER.0, gate.0, &[0, 9][..]));
    assert_eq!(error[50..52], gate.1.to_be_bytes());

    let parts = fragments(&toy(PEER, gate, DATA), 3, 8);
    let parts: Vec<_> = parts.iter().map(|part| site.outside_sends(part).inside()).collect();
    check(&reassemble(&parts));

    let grant = site.grant(TOY.0, GATE.into());
    let opened = site.install(grant, TARGET, (8, 8));
    let turned = site.inside_sends(&toy((TALKER, 5), (opened.address, opened.ports.0), HELLO)).inside();
    check(&turned);
    assert_eq!(ends(&turned).1, (TARGET, 8));

    let tuple = Tuple { protocol: TOY.0, src: (PEER.0, 9), dst: gate };
    let probe = Probe { tuple, port: Port::OUTSIDE };
    let explained = site.gate.translator.explain(site.now, site.unix, &probe);
    assert_eq!(explained.verdict, Verdict::Forward(Port::INSIDE));
    let translated = format!("It is translated to {} port {}.", SERVER.0, SERVER.1);
    assert!(explained.steps.contains(&translated), "{:?}", explained.steps);
}

#[test]
fn it_survives_a_restart_and_its_client_may_move() {
    let (mut site, gate) = connected();
    let mut bytes = Vec::new();
    sluicegate_nat::Export::whole(&site.gate.translator, &mut |part| bytes.extend_from_slice(part));
    site.gate.translator = Translator::with_transports(config(), [9; 16], 9, &TRANSPORTS);
    site.gate.translator.set_services(&services()).unwrap();
    sluicegate_nat::import(&mut site.gate.translator, site.now, site.unix, &bytes).unwrap();
    let inside = site.outside_sends(&toy(PEER, gate, DATA)).inside();
    assert_eq!(ends(&inside), (PEER, SERVER));
}

#[test]
fn without_its_row_it_goes_by_its_addresses() {
    let mut site = Site::new();
    let (_, gate) = site.open(TOY.0, SERVER.1);
    site.outside_sends(&toy(PEER, gate, DATA)).inside();
}
