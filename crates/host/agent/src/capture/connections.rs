//! Programs' connections to services: which address of this host each has, and what may be said once more for it.
//!
//! A program's socket keeps the address that it began with. When this host moves to another network, its packets leave from
//! the address of now, and the gate knows the client by that. A program that only waits for data says nothing by itself, so
//! its last acknowledgement is said again: without it a translator on the way lets nothing back in.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use sluicegate_policy::PortProtocol;
use sluicegate_wire::{Frame, Instant, IpProtocol, ip::Summary, tcp};

use super::redirects::parts;

const CONNECTIONS_MAX: usize = 4_096;
/// One that was silent for so long gives way to another when there are too many, and nothing is said for it again.
const SILENT_FOR: Duration = Duration::from_secs(60);
/// After so long without an answer the last acknowledgement is said again.
const UNHEARD_FOR: Duration = Duration::from_secs(2);
/// Longest IPv4 or IPv6 header without options, TCP header with all of them.
const ACK_LEN_MAX: usize = 40 + 60;

/// A connection as the network sees it, but for this host's address.
type Ends = (PortProtocol, u16, SocketAddr);

#[derive(Debug)]
struct Connection {
    /// The address that the program knows.
    known: IpAddr,
    said_at: Instant,
    heard_at: Instant,
    /// What comes next is not the program's.
    repeats: bool,
    /// One side has ended it: who is told of it again resets it.
    is_ending: bool,
    /// The last packet without data of a TCP connection, as the program's kernel sent it.
    ack: ([u8; ACK_LEN_MAX], usize),
}

/// All that are used.
#[derive(Debug, Default)]
pub(super) struct Connections(HashMap<Ends, Connection>);

impl Connections {
    /// Lets a packet of a program to a gate leave from `current`; `ack` is the packet as it came, if it may be said again.
    /// `false`: there is no room for one more connection.
    pub(super) fn outbound(
        &mut self,
        now: Instant,
        current: IpAddr,
        frame: &mut Frame<'_>,
        ack: Option<&[u8]>,
    ) -> bool {
        let Some((mut summary, ports, protocol)) = parts(frame) else { return false };
        let key = (protocol, ports.src, SocketAddr::new(summary.dst, ports.dst));
        if self.0.len() >= CONNECTIONS_MAX && !self.0.contains_key(&key) {
            self.0.retain(|_, one| now.since(one.said_at.max(one.heard_at)) < SILENT_FOR);
            if self.0.len() >= CONNECTIONS_MAX {
                return false;
            }
        }
        let known = summary.src;
        let fresh = || Connection {
            known,
            said_at: now,
            heard_at: now,
            repeats: false,
            is_ending: false,
            ack: ([0; ACK_LEN_MAX], 0),
        };
        let one = self.0.entry(key).or_insert_with(fresh);
        if one.known != summary.src {
            // The port is another connection's now.
            *one = fresh();
        }
        if !std::mem::take(&mut one.repeats) {
            one.said_at = now;
        }
        match flags(&summary, frame) {
            Some(flags) if flags.has(tcp::Flags::SYN) => one.is_ending = false,
            Some(flags) => one.is_ending |= ends(flags),
            None => {}
        }
        if let Some((place, ack)) = ack.and_then(|ack| Some((one.ack.0.get_mut(..ack.len())?, ack))) {
            place.copy_from_slice(ack);
            one.ack.1 = ack.len();
        }
        if summary.src != current {
            let delta = summary.set_src(frame.bytes_mut(), current);
            summary.adjust_transport_checksum(frame.bytes_mut(), delta);
        }
        true
    }

    /// Gives an answer of a gate the address that its program knows.
    pub(super) fn inbound(&mut self, now: Instant, frame: &mut Frame<'_>) {
        let Some((mut summary, ports, protocol)) = parts(frame) else { return };
        let key = (protocol, ports.dst, SocketAddr::new(summary.src, ports.src));
        let Some(one) = self.0.get_mut(&key) else { return };
        one.heard_at = now;
        one.is_ending |= flags(&summary, frame).is_some_and(ends);
        if summary.dst != one.known {
            let delta = summary.set_dst(frame.bytes_mut(), one.known);
            summary.adjust_transport_checksum(frame.bytes_mut(), delta);
        }
    }

    /// What is to be said again, of those that were used lately: for all, or for those that have heard nothing since.
    pub(super) fn acks(&mut self, now: Instant, for_all: bool) -> Vec<Box<[u8]>> {
        let mut acks = Vec::new();
        for one in self.0.values_mut() {
            let is_used = now.since(one.said_at) < SILENT_FOR && !one.is_ending;
            if one.ack.1 > 0 && is_used && (for_all || now.since(one.heard_at) >= UNHEARD_FOR) {
                // Not again before as long.
                (one.heard_at, one.repeats) = (now, true);
                acks.push(one.ack.0[..one.ack.1].into());
            }
        }
        acks
    }
}

/// Of a TCP segment.
fn flags(summary: &Summary, frame: &Frame<'_>) -> Option<tcp::Flags> {
    let is_tcp = summary.protocol == IpProtocol::TCP;
    is_tcp
        .then(|| tcp::Packet::new_checked(summary.transport(frame.bytes())).ok())
        .flatten()
        .map(|segment| segment.flags())
}

fn ends(flags: tcp::Flags) -> bool {
    flags.has(tcp::Flags::FIN) || flags.has(tcp::Flags::RST)
}

/// The packet, if it is a TCP segment that only acknowledges: said twice it means the same.
pub(super) fn bare_ack(frame: &Frame<'_>) -> Option<([u8; ACK_LEN_MAX], usize)> {
    let (summary, _, protocol) = parts(frame)?;
    let len = summary.total_len;
    if protocol != PortProtocol::Tcp || len > ACK_LEN_MAX {
        return None;
    }
    let segment = tcp::Packet::new_checked(summary.transport(frame.bytes())).ok()?;
    let flags = segment.flags();
    let only_acknowledges = flags.has(tcp::Flags::ACK)
        && ![tcp::Flags::SYN, tcp::Flags::FIN, tcp::Flags::RST].into_iter().any(|flag| flags.has(flag));
    if !only_acknowledges || segment.header_len() != summary.transport_len() {
        return None;
    }
    let mut ack = [0; ACK_LEN_MAX];
    ack.get_mut(..len)?.copy_from_slice(frame.bytes().get(..len)?);
    Some((ack, len))
}

#[cfg(test)]
mod tests {
    use sluicegate_wire::{FrameBuf, build, ip::Ports};

    use super::*;

    const NOW: Instant = Instant::from_secs(1);
    const GATE: &str = "203.0.113.1:24001";
    const HERE: &str = "198.51.100.2:5000";

    fn segment(from: &str, to: &str, payload: &[u8]) -> FrameBuf {
        let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
        let ack = Some(1);
        let segment = tcp::Repr { ack, payload, ..tcp::Repr::new(from.port(), to.port(), tcp::Control::None, 1) };
        FrameBuf::from_bytes(&build::packet(from.ip(), to.ip(), &segment))
    }

    fn ends(frame: &FrameBuf) -> (String, String) {
        let summary = Summary::parse(frame.bytes()).unwrap();
        assert!(summary.verify_transport_checksum(frame.bytes()));
        let ports = Ports::parse(summary.transport(frame.bytes())).unwrap();
        (SocketAddr::new(summary.src, ports.src).to_string(), SocketAddr::new(summary.dst, ports.dst).to_string())
    }

    fn says(connections: &mut Connections, now: Instant, current: &str, mut packet: FrameBuf) -> Option<FrameBuf> {
        let current = current.parse().unwrap();
        let passes = packet.with(|frame| {
            let ack = bare_ack(frame);
            connections.outbound(now, current, frame, ack.as_ref().map(|(ack, len)| &ack[..*len]))
        });
        passes.then_some(packet)
    }

    #[test]
    fn a_connection_leaves_from_the_address_of_now_and_its_answers_come_back_even_before_it_said_a_word() {
        let mut connections = Connections::default();
        let at_first = says(&mut connections, NOW, "198.51.100.2", segment(HERE, GATE, b"GET")).unwrap();
        assert_eq!(ends(&at_first).0, HERE);
        for current in ["198.51.100.3", "198.51.100.4"] {
            let mut answer = segment(GATE, &format!("{current}:5000"), b"data");
            answer.with(|frame| connections.inbound(NOW, frame));
            assert_eq!(ends(&answer).1, HERE);
            let packet = says(&mut connections, NOW, current, segment(HERE, GATE, b"")).unwrap();
            assert_eq!(ends(&packet), (format!("{current}:5000"), GATE.to_owned()));
        }
        // One of the address of now, and the port is its own.
        let own = "198.51.100.4:5000";
        assert_eq!(ends(&says(&mut connections, NOW, "198.51.100.4", segment(own, GATE, b"")).unwrap()).0, own);
        let mut answer = segment(GATE, own, b"data");
        answer.with(|frame| connections.inbound(NOW, frame));
        assert_eq!(ends(&answer).1, own);
    }

    #[test]
    fn the_last_acknowledgement_is_said_again_to_whom_nothing_comes_while_it_is_used() {
        let mut connections = Connections::default();
        let ack = segment(HERE, GATE, b"");
        says(&mut connections, NOW, "198.51.100.2", ack.clone()).unwrap();
        says(&mut connections, NOW, "198.51.100.2", segment(HERE, GATE, b"not this")).unwrap();
        assert!(connections.acks(NOW, false).is_empty());
        assert_eq!(connections.acks(NOW, true), [ack.bytes().into()], "at a move");
        let late = NOW + UNHEARD_FOR;
        assert_eq!(connections.acks(late, false), [ack.bytes().into()]);
        assert!(connections.acks(late, false).is_empty(), "not at once again");
        says(&mut connections, late, "198.51.100.2", ack).unwrap();
        segment(GATE, HERE, b"data").with(|frame| connections.inbound(late + UNHEARD_FOR, frame));
        assert!(connections.acks(late + UNHEARD_FOR, false).is_empty(), "something came");
        assert!(connections.acks(NOW + SILENT_FOR, true).is_empty(), "nobody used it for long");
    }

    #[test]
    fn there_is_room_for_so_many_until_some_fall_silent() {
        let mut connections = Connections::default();
        let mut send = |now, port: usize| {
            says(&mut connections, now, "198.51.100.3", segment(&format!("198.51.100.2:{port}"), GATE, b"")).is_some()
        };
        assert!((1..=CONNECTIONS_MAX).all(|port| send(NOW, port)));
        assert!(!send(NOW, CONNECTIONS_MAX + 1));
        assert!(send(NOW, 1));
        assert!(send(NOW + SILENT_FOR, CONNECTIONS_MAX + 1));
    }
}
