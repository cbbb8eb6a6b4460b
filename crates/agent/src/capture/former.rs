//! Addresses that this host had before it moved to another network, and the connections that programs still have from them.
//! Those to a service go on: the gate knows one client by many addresses in turn, and here they leave from that of now.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use sluicegate_policy::PortProtocol;
use sluicegate_wire::{Frame, Instant};

use super::redirects::parts;

/// Connections from former addresses.
const FLOWS_MAX: usize = 4_096;
/// One that was silent for so long gives way to another when there are too many.
const SILENT_FOR: Duration = Duration::from_secs(300);

/// A connection as the network sees it, but for this host's address.
type Ends = (PortProtocol, u16, SocketAddr);

/// Which connection is from which former address.
#[derive(Debug, Default)]
pub(super) struct Former {
    flows: HashMap<Ends, (IpAddr, Instant)>,
}

impl Former {
    /// Lets a packet of a program to a gate leave from `current`. `false`: it cannot, for lack of room.
    pub(super) fn outbound(&mut self, now: Instant, current: IpAddr, frame: &mut Frame<'_>) -> bool {
        let Some((mut summary, ports, protocol)) = parts(frame) else { return false };
        let ends = (protocol, ports.src, SocketAddr::new(summary.dst, ports.dst));
        if summary.src == current {
            // The port is another connection's now.
            if !self.flows.is_empty() {
                self.flows.remove(&ends);
            }
            return true;
        }
        if self.flows.len() >= FLOWS_MAX && !self.flows.contains_key(&ends) {
            self.flows.retain(|_, (_, at)| now.since(*at) < SILENT_FOR);
            if self.flows.len() >= FLOWS_MAX {
                return false;
            }
        }
        self.flows.insert(ends, (summary.src, now));
        let delta = summary.set_src(frame.bytes_mut(), current);
        summary.adjust_transport_checksum(frame.bytes_mut(), delta);
        true
    }

    /// Gives an answer of a gate the address that its program knows.
    pub(super) fn inbound(&self, frame: &mut Frame<'_>) {
        if self.flows.is_empty() {
            return;
        }
        let Some((mut summary, ports, protocol)) = parts(frame) else { return };
        let ends = (protocol, ports.dst, SocketAddr::new(summary.src, ports.src));
        if let Some((known, _)) = self.flows.get(&ends) {
            let delta = summary.set_dst(frame.bytes_mut(), *known);
            summary.adjust_transport_checksum(frame.bytes_mut(), delta);
        }
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_wire::{
        FrameBuf, IpProtocol,
        ip::{Ports, Summary},
        ipv4, udp,
    };

    use super::*;

    const NOW: Instant = Instant::from_secs(1);
    const GATE: &str = "203.0.113.1:24001";

    fn datagram(from: &str, to: &str) -> FrameBuf {
        let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
        let (IpAddr::V4(src), IpAddr::V4(dst)) = (from.ip(), to.ip()) else { panic!("IPv4") };
        let mut bytes = vec![0; ipv4::HEADER_LEN + udp::HEADER_LEN];
        ipv4::Repr::new(src, dst, IpProtocol::UDP, 8).emit(&mut ipv4::Packet::new_unchecked(&mut bytes[..]));
        udp::Repr { src_port: from.port(), dst_port: to.port(), payload: b"" }.emit(
            &mut udp::Packet::new_unchecked(&mut bytes[ipv4::HEADER_LEN..]),
            from.ip(),
            to.ip(),
        );
        FrameBuf::from_bytes(&bytes)
    }

    fn ends(frame: &FrameBuf) -> (String, String) {
        let summary = Summary::parse(frame.bytes()).unwrap();
        assert!(summary.verify_transport_checksum(frame.bytes()));
        let ports = Ports::parse(summary.transport(frame.bytes())).unwrap();
        (SocketAddr::new(summary.src, ports.src).to_string(), SocketAddr::new(summary.dst, ports.dst).to_string())
    }

    #[test]
    fn a_connection_from_a_former_address_leaves_from_that_of_now_and_its_answers_come_back() {
        let mut former = Former::default();
        for current in ["198.51.100.3", "198.51.100.4"] {
            let mut packet = datagram("198.51.100.2:5000", GATE);
            assert!(packet.with(|frame| former.outbound(NOW, current.parse().unwrap(), frame)));
            assert_eq!(ends(&packet), (format!("{current}:5000"), GATE.to_owned()));
            let mut answer = datagram(GATE, &format!("{current}:5000"));
            answer.with(|frame| former.inbound(frame));
            assert_eq!(ends(&answer).1, "198.51.100.2:5000");
        }
        // One of the address of now, and the port is its own.
        let current = "198.51.100.4";
        let mut packet = datagram(&format!("{current}:5000"), GATE);
        assert!(packet.with(|frame| former.outbound(NOW, current.parse().unwrap(), frame)));
        assert_eq!(ends(&packet).0, format!("{current}:5000"));
        let mut answer = datagram(GATE, &format!("{current}:5000"));
        answer.with(|frame| former.inbound(frame));
        assert_eq!(ends(&answer).1, format!("{current}:5000"));
    }

    #[test]
    fn there_is_room_for_so_many_until_some_fall_silent() {
        let mut former = Former::default();
        let current = "198.51.100.3".parse().unwrap();
        let mut send = |now, port: usize| {
            datagram(&format!("198.51.100.2:{port}"), GATE).with(|frame| former.outbound(now, current, frame))
        };
        assert!((1..=FLOWS_MAX).all(|port| send(NOW, port)));
        assert!(!send(NOW, FLOWS_MAX + 1));
        assert!(send(NOW, 1));
        assert!(send(NOW + SILENT_FOR, FLOWS_MAX + 1));
    }
}
