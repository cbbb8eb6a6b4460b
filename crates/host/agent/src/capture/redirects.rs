//! Where packets to a service go once its gate is open: a `nat` service has an address and port at the gate, which
//! programs need not know.

use std::{collections::HashMap, net::SocketAddr, sync::Arc, time::Duration};

use sluicegate_policy::PortProtocol;
use sluicegate_wire::{
    Frame, Instant, IpProtocol,
    capability::ClientId,
    checksum::Delta,
    ip::{Ports, Summary},
};

use crate::{opening::Reach, seal::Sealer};

/// Ports of services in use at once.
pub(super) const WAYS_MAX: usize = 1_024;
/// Packets that wait for one sign-in.
const WAITING_MAX: usize = 8;
/// A refused sign-in is tried again after this.
const REFUSED_FOR: Duration = Duration::from_secs(2);

/// What programs send to: one port of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Target {
    /// The file's entry.
    pub(super) entry: usize,
    pub(super) protocol: PortProtocol,
    /// As programs name it.
    pub(super) to: SocketAddr,
}

/// What becomes of a packet to a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// It has its new destination.
    Go,
    /// It waits, and somebody must sign in.
    Ask(Target),
    /// It waits, or too many do.
    Wait,
    /// Nobody may send this.
    Refuse,
}

#[derive(Debug)]
enum Way {
    Asked(Vec<Box<[u8]>>),
    Open(Reach),
    Refused(Instant),
}

/// All services that are used, keyed by what programs send to.
#[derive(Debug, Default)]
pub(super) struct Redirects {
    ways: HashMap<Target, Way>,
    /// By the gate's address and port: whom programs took it for, the client id, and what seals requests.
    back: HashMap<(IpProtocol, SocketAddr), (SocketAddr, Reach)>,
}

impl Redirects {
    /// Sends a packet to a service of `entry` on its way.
    pub(super) fn outbound(&mut self, now: Instant, entry: usize, frame: &mut Frame<'_>) -> Step {
        let Some((mut summary, ports, protocol)) = parts(frame) else { return Step::Refuse };
        let target = Target { entry, protocol, to: SocketAddr::new(summary.dst, ports.dst) };
        match self.ways.get_mut(&target) {
            Some(Way::Open(reach)) if reach.address.is_ipv4() == summary.dst.is_ipv4() => {
                if let Some(sealer) = &reach.seal {
                    sealer.count(frame.bytes().len());
                }
                let new = reach.address;
                let delta = summary.set_dst(frame.bytes_mut(), new.ip());
                set_port(&summary, frame, 2, new.port(), delta);
                Step::Go
            }
            Some(Way::Open(..)) => Step::Refuse,
            Some(Way::Asked(waiting)) => {
                if waiting.len() < WAITING_MAX {
                    waiting.push(frame.bytes().into());
                }
                Step::Wait
            }
            Some(Way::Refused(until)) if *until > now => Step::Refuse,
            known => {
                if known.is_none() && self.ways.len() >= WAYS_MAX {
                    return Step::Refuse;
                }
                self.ways.insert(target, Way::Asked(vec![frame.bytes().into()]));
                Step::Ask(target)
            }
        }
    }

    /// Makes an answer of a gate look as if the destination that programs know had sent it.
    pub(super) fn inbound(&self, frame: &mut Frame<'_>) {
        let Some((mut summary, ports, _)) = parts(frame) else { return };
        let from = SocketAddr::new(summary.src, ports.src);
        let Some((known, _)) = self.back.get(&(summary.protocol, from)).filter(|(known, _)| *known != from) else {
            return;
        };
        let delta = summary.set_src(frame.bytes_mut(), known.ip());
        set_port(&summary, frame, 0, known.port(), delta);
    }

    /// The gate is open, or has moved. Returns the packets that waited for it.
    pub(super) fn opened(&mut self, target: Target, reach: Reach) -> Vec<Box<[u8]>> {
        self.forget(target);
        let protocol = IpProtocol(target.protocol.number(target.to.ip()));
        self.back.insert((protocol, reach.address), (target.to, reach.clone()));
        match self.ways.insert(target, Way::Open(reach)) {
            Some(Way::Asked(waiting)) => waiting,
            _ => Vec::new(),
        }
    }

    /// Nobody may use this now. Returns the packets that waited for it.
    pub(super) fn refused(&mut self, now: Instant, target: Target) -> Vec<Box<[u8]>> {
        self.forget(target);
        match self.ways.insert(target, Way::Refused(now + REFUSED_FOR)) {
            Some(Way::Asked(waiting)) => waiting,
            _ => Vec::new(),
        }
    }

    /// The grant has ended: the next packet signs in again.
    pub(super) fn closed(&mut self, target: Target) {
        self.forget(target);
        if matches!(self.ways.get(&target), Some(Way::Open(..))) {
            self.ways.remove(&target);
        }
    }

    fn forget(&mut self, target: Target) {
        if let Some(Way::Open(reach)) = self.ways.get(&target) {
            self.back.remove(&(IpProtocol(target.protocol.number(target.to.ip())), reach.address));
        }
    }

    /// The client id of the grant for this protocol, address and port.
    pub(super) fn client_id(&self, protocol: IpProtocol, remote: SocketAddr) -> Option<ClientId> {
        self.back.get(&(protocol, remote)).map(|(_, reach)| ClientId(reach.client_id))
    }

    /// Whether a grant has this client id.
    pub(super) fn has_client_id(&self, id: ClientId) -> bool {
        self.back.values().any(|(_, reach)| reach.client_id == id.0)
    }

    /// What seals requests of this client id.
    pub(super) fn sealer(&self, id: ClientId) -> Option<&Arc<Sealer>> {
        self.back.values().find(|(_, reach)| reach.client_id == id.0)?.1.seal.as_ref()
    }
}

/// A whole TCP or UDP packet.
pub(super) fn parts(frame: &Frame<'_>) -> Option<(Summary, Ports, PortProtocol)> {
    let summary = Summary::parse(frame.bytes()).ok().filter(|summary| summary.fragment.is_none())?;
    let protocol = match summary.protocol {
        IpProtocol::TCP => PortProtocol::Tcp,
        IpProtocol::UDP => PortProtocol::Udp,
        _ => return None,
    };
    let ports = Ports::parse(summary.transport(frame.bytes())).ok()?;
    Some((summary, ports, protocol))
}

/// Writes the port at `at` of the transport header; `delta` is what the address has changed already.
fn set_port(summary: &Summary, frame: &mut Frame<'_>, at: usize, new: u16, delta: Delta) {
    let bytes = frame.bytes_mut();
    let Some(field) = summary.transport_mut(bytes).get_mut(at..at + 2) else { return };
    let old = u16::from_be_bytes([field[0], field[1]]);
    field.copy_from_slice(&new.to_be_bytes());
    summary.adjust_transport_checksum(bytes, delta.u16(old, new));
}

#[cfg(test)]
mod tests {
    use sluicegate_wire::{FrameBuf, build};

    use super::*;

    const NOW: Instant = Instant::from_secs(1);

    fn datagram(from: &str, to: &str) -> FrameBuf {
        let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
        FrameBuf::from_bytes(&build::datagram(from, to, &[0; 5]))
    }

    fn ends(frame: &FrameBuf) -> (SocketAddr, SocketAddr) {
        let summary = Summary::parse(frame.bytes()).unwrap();
        assert!(summary.verify_transport_checksum(frame.bytes()));
        let ports = Ports::parse(summary.transport(frame.bytes())).unwrap();
        (SocketAddr::new(summary.src, ports.src), SocketAddr::new(summary.dst, ports.dst))
    }

    fn reach() -> Reach {
        Reach { address: "203.0.113.1:24001".parse().unwrap(), client_id: 77, seal: None }
    }

    #[test]
    fn packets_wait_for_the_sign_in_then_go_to_the_gate_and_answers_come_back_as_expected() {
        let mut redirects = Redirects::default();
        let mut packet = datagram("198.51.100.2:5000", "192.0.2.10:53");
        let Step::Ask(target) = packet.with(|frame| redirects.outbound(NOW, 3, frame)) else { panic!("asked") };
        assert_eq!(packet.with(|frame| redirects.outbound(NOW, 3, frame)), Step::Wait);
        assert_eq!(redirects.opened(target, reach()).len(), 2);
        assert_eq!(packet.with(|frame| redirects.outbound(NOW, 3, frame)), Step::Go);
        assert_eq!(ends(&packet), ("198.51.100.2:5000".parse().unwrap(), reach().address));
        let mut answer = datagram("203.0.113.1:24001", "198.51.100.2:5000");
        answer.with(|frame| redirects.inbound(frame));
        assert_eq!(ends(&answer), ("192.0.2.10:53".parse().unwrap(), "198.51.100.2:5000".parse().unwrap()));
        assert_eq!(redirects.client_id(IpProtocol::UDP, reach().address), Some(ClientId(77)));
        assert!(redirects.has_client_id(ClientId(77)) && !redirects.has_client_id(ClientId(78)));
    }

    #[test]
    fn a_refusal_holds_for_a_while_and_an_end_signs_in_again() {
        let mut redirects = Redirects::default();
        let send = |redirects: &mut Redirects, now| {
            datagram("198.51.100.2:5000", "192.0.2.10:53").with(|frame| redirects.outbound(now, 0, frame))
        };
        let Step::Ask(target) = send(&mut redirects, NOW) else { panic!("asked") };
        assert_eq!(redirects.refused(NOW, target).len(), 1);
        assert_eq!(send(&mut redirects, NOW), Step::Refuse);
        assert_eq!(send(&mut redirects, NOW + REFUSED_FOR), Step::Ask(target));
        redirects.opened(target, reach());
        assert_eq!(send(&mut redirects, NOW), Step::Go);
        redirects.closed(target);
        assert_eq!(send(&mut redirects, NOW), Step::Ask(target));
        assert_eq!(redirects.client_id(IpProtocol::UDP, reach().address), None);
    }

    #[test]
    fn a_full_table_refuses_new_ports_and_keeps_the_old() {
        let mut redirects = Redirects::default();
        let send = |redirects: &mut Redirects, port: usize| {
            datagram("198.51.100.2:5000", &format!("192.0.2.10:{port}")).with(|frame| redirects.outbound(NOW, 0, frame))
        };
        for port in 1..=WAYS_MAX {
            assert!(matches!(send(&mut redirects, port), Step::Ask(_)));
        }
        assert_eq!(send(&mut redirects, WAYS_MAX + 1), Step::Refuse);
        assert_eq!(send(&mut redirects, 1), Step::Wait);
    }
}
