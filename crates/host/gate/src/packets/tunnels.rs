//! The tunnels of agents, as the packet thread sees them: each has an address of its own that its packets come from. A packet
//! from a tunnel is judged like any that came from outside, and one for a tunnel's address goes there instead.

use sluicegate_bounded::Gauge;
use sluicegate_grant::GrantId;
use sluicegate_wire::{
    Frame, HEADROOM, Port, Reason,
    ethernet::{self, EtherType},
    ipv4,
};
use std::{collections::HashMap, net::Ipv4Addr};
use tokio::sync::mpsc;

/// Tunnels at once.
pub(crate) const TUNNELS_MAX: usize = 1_024;
/// Packets of all tunnels that wait for the packet thread.
pub(crate) const ARRIVED_MAX: usize = 1_024;
/// Packets that wait for one agent to read them.
pub(crate) const ANSWERS_MAX: usize = 512;
/// Packets taken in one turn.
const PER_TURN_MAX: usize = 256;
/// Addresses that are tried for one that no grant knows.
const TRIES_MAX: usize = 64;
/// What tunnels' addresses are taken from: the range of carriers' translators (RFC 6598), which no host on the Internet has.
const FIRST: u32 = u32::from_be_bytes([100, 64, 0, 0]);
const COUNT: u32 = 1 << 22;
/// The link address of what goes into a tunnel or came out of one; locally administered.
const LINK: [u8; 6] = [0x02, b't', b'u', b'n', 0, 0];

/// A packet that came through the tunnel with this address.
pub(crate) type Arrived = (Ipv4Addr, Vec<u8>);

/// All tunnels; none are possible where the gate does not listen for any.
pub(crate) struct Tunnels {
    arrived: Option<mpsc::Receiver<Arrived>>,
    by_address: HashMap<Ipv4Addr, (GrantId, mpsc::Sender<Vec<u8>>)>,
    by_grant: HashMap<GrantId, Ipv4Addr>,
    next: u32,
    buffer: Box<[u8]>,
    counted: [(Reason, u64); 3],
}

/// Whether this is an address of a tunnel's.
pub(crate) const fn is_tunnels(address: Ipv4Addr) -> bool {
    address.to_bits().wrapping_sub(FIRST) < COUNT
}

/// The link address of tunnels.
pub(crate) const fn link_address() -> [u8; 6] {
    LINK
}

impl Tunnels {
    pub(crate) fn none() -> Self {
        Self::taking(None, 0)
    }

    /// Takes packets from `arrived`. Addresses begin at a random place, so that none is likely to be one of before a restart.
    pub(crate) fn taking(arrived: Option<mpsc::Receiver<Arrived>>, random: u32) -> Self {
        Self {
            arrived,
            by_address: HashMap::new(),
            by_grant: HashMap::new(),
            next: random % COUNT,
            buffer: vec![0; 2 * HEADROOM + 2_048].into_boxed_slice(),
            counted: [(Reason::TunnelSource, 0), (Reason::TunnelFull, 0), (Reason::TunnelGone, 0)],
        }
    }

    /// Opens the tunnel of a grant, whose last one ends. `None` if there are too many. An address for which `is_taken` may be some
    /// grant's client.
    pub(crate) fn open(
        &mut self,
        id: GrantId,
        answers: mpsc::Sender<Vec<u8>>,
        is_taken: impl Fn(Ipv4Addr) -> bool,
    ) -> Option<Ipv4Addr> {
        self.end(id);
        if self.by_address.len() >= TUNNELS_MAX {
            self.by_address.retain(|_, (_, answers)| !answers.is_closed());
            let left = &self.by_address;
            self.by_grant.retain(|_, address| left.contains_key(address));
        }
        if self.arrived.is_none() || self.by_address.len() >= TUNNELS_MAX {
            return None;
        }
        let address = (0..TRIES_MAX).find_map(|_| {
            self.next = (self.next + 1) % COUNT;
            let address = Ipv4Addr::from_bits(FIRST + self.next);
            (!self.by_address.contains_key(&address) && !is_taken(address)).then_some(address)
        })?;
        self.by_address.insert(address, (id, answers));
        self.by_grant.insert(id, address);
        Some(address)
    }

    /// A grant has ended, and its tunnel with it.
    pub(crate) fn end(&mut self, id: GrantId) {
        if let Some(address) = self.by_grant.remove(&id) {
            self.by_address.remove(&address);
        }
    }

    /// Some of the packets that came, as frames for the node, whose own link address is `own`.
    pub(crate) fn take(
        &mut self,
        own: [u8; 6],
        mut judge: impl FnMut(&mut Frame<'_>) -> Option<Port>,
        mut send: impl FnMut(Port, &[u8]),
    ) {
        for _ in 0..PER_TURN_MAX {
            let Some(Ok((from, packet))) = self.arrived.as_mut().map(mpsc::Receiver::try_recv) else { return };
            if !self.by_address.contains_key(&from) {
                self.count(Reason::TunnelGone);
                continue;
            }
            if source(&packet) != Some(from) {
                self.count(Reason::TunnelSource);
                continue;
            }
            let mut buffer = std::mem::take(&mut self.buffer);
            if let Some(mut frame) = framed(&mut buffer, own, &packet)
                && let Some(out) = judge(&mut frame)
                && !self.takes(out, frame.bytes())
            {
                send(out, frame.bytes());
            }
            self.buffer = buffer;
        }
    }

    /// Whether packets are left that came.
    pub(crate) fn has_more(&self) -> bool {
        self.arrived.as_ref().is_some_and(|arrived| !arrived.is_empty())
    }

    /// Whether a frame that came by `port` of the gate claims to be from a tunnel.
    pub(crate) fn is_forged(&mut self, port: Port, frame: &[u8]) -> bool {
        let packet = frame.get(ethernet::HEADER_LEN..).unwrap_or_default();
        let is_forged = self.arrived.is_some()
            && port == Port::OUTSIDE
            && frame.get(12..ethernet::HEADER_LEN) == Some(&[0x08, 0x00])
            && source(packet).is_some_and(is_tunnels);
        if is_forged {
            self.count(Reason::TunnelSource);
        }
        is_forged
    }

    /// Takes a frame that leaves by `out` if it is for a tunnel; whether it was.
    pub(crate) fn takes(&mut self, out: Port, frame: &[u8]) -> bool {
        if out != Port::OUTSIDE || !frame.starts_with(&LINK) {
            return false;
        }
        let packet = frame.get(ethernet::HEADER_LEN..).unwrap_or_default();
        let found = destination(packet).and_then(|to| self.by_address.get(&to));
        let reason = match found.map(|(_, answers)| answers.try_send(packet.to_vec())) {
            Some(Ok(())) => return true,
            Some(Err(mpsc::error::TrySendError::Full(_))) => Reason::TunnelFull,
            Some(Err(mpsc::error::TrySendError::Closed(_))) | None => Reason::TunnelGone,
        };
        self.count(reason);
        true
    }

    fn count(&mut self, reason: Reason) {
        for (_, count) in self.counted.iter_mut().filter(|(counted, _)| *counted == reason) {
            *count += 1;
        }
    }

    /// What was dropped here.
    pub(crate) fn counters(&self) -> [(Reason, u64); 3] {
        self.counted
    }

    /// How many tunnels there are, and may be.
    pub(crate) fn gauge(&self) -> Gauge {
        Gauge::of("tunnels", self.by_address.len(), TUNNELS_MAX)
    }
}

fn source(packet: &[u8]) -> Option<Ipv4Addr> {
    address(packet, 12)
}

fn destination(packet: &[u8]) -> Option<Ipv4Addr> {
    address(packet, 16)
}

fn address(packet: &[u8], at: usize) -> Option<Ipv4Addr> {
    let header = packet.get(..ipv4::HEADER_LEN).filter(|header| header[0] >> 4 == 4)?;
    header.get(at..)?.first_chunk::<4>().map(|octets| Ipv4Addr::from(*octets))
}

/// A frame in `buffer`, with room for more headers.
fn framed<'b>(buffer: &'b mut [u8], own: [u8; 6], packet: &[u8]) -> Option<Frame<'b>> {
    let at = 2 * HEADROOM;
    buffer.get_mut(at..at + packet.len())?.copy_from_slice(packet);
    let mut frame = Frame::new(buffer, at, packet.len())?;
    let header = frame.push_front(ethernet::HEADER_LEN)?;
    let link = ethernet::Repr { dst: own, src: LINK, ethertype: EtherType::IPV4 };
    link.emit(&mut ethernet::Packet::new_unchecked(header));
    Some(frame)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_wire::build;

    const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const OTHER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

    fn id(number: u32) -> GrantId {
        let mut id = [0; 16];
        id[..4].copy_from_slice(&number.to_be_bytes());
        GrantId(id)
    }

    fn tunnels() -> (Tunnels, mpsc::Sender<Arrived>) {
        let (came, arrived) = mpsc::channel(ARRIVED_MAX);
        (Tunnels::taking(Some(arrived), 7), came)
    }

    fn answer(to: Ipv4Addr) -> Vec<u8> {
        let packet = build::datagram((OTHER, 1), (to, 2), b"x");
        [&LINK[..], &OWN, &[0x08, 0x00], &packet].concat()
    }

    #[test]
    fn the_full_table_opens_no_tunnel_until_one_has_ended() {
        let (mut tunnels, _came) = tunnels();
        let mut kept = Vec::new();
        for number in 0..TUNNELS_MAX as u32 {
            let (answers, waiting) = mpsc::channel(1);
            assert!(tunnels.open(id(number), answers, |_| false).is_some());
            kept.push(waiting);
        }
        assert_eq!((tunnels.gauge().used, tunnels.gauge().max), (TUNNELS_MAX as u64, TUNNELS_MAX as u64));
        let mut open = |number| tunnels.open(id(number), mpsc::channel(1).0, |_| false);
        assert!(open(u32::MAX).is_none());
        assert!(open(3).is_some(), "the same grant's next takes the place of its last");
        kept.pop();
        assert!(open(u32::MAX).is_some(), "one that has ended gives way");
    }

    #[test]
    fn an_address_that_some_grant_may_know_is_given_to_nobody_else() {
        let (mut tunnels, _came) = tunnels();
        let first = tunnels.open(id(1), mpsc::channel(1).0, |_| false).unwrap();
        let taken = Ipv4Addr::from_bits(first.to_bits() + 1);
        let second = tunnels.open(id(2), mpsc::channel(1).0, |address| address == taken).unwrap();
        assert_eq!(second.to_bits(), first.to_bits() + 2);
        assert!(is_tunnels(first) && is_tunnels(second) && !is_tunnels(OTHER));
        assert!(tunnels.open(id(3), mpsc::channel(1).0, |_| true).is_none());
    }

    #[test]
    fn a_packet_from_a_tunnel_has_the_tunnels_own_address_and_no_other_has_it() {
        let (mut tunnels, came) = tunnels();
        let (answers, _waiting) = mpsc::channel(1);
        let own = tunnels.open(id(1), answers, |_| false).unwrap();
        let other = Ipv4Addr::from_bits(own.to_bits() + 1);
        let packet = |from| build::datagram((from, 1), (OTHER, 2), b"x");
        for (through, from) in [(own, own), (own, other), (own, OTHER), (other, other)] {
            came.try_send((through, packet(from))).unwrap();
        }
        came.try_send((own, vec![0x45])).unwrap();
        let mut judged = Vec::new();
        tunnels.take(
            OWN,
            |frame| {
                judged.push(frame.bytes().to_vec());
                None
            },
            |_, _| {},
        );
        assert_eq!(judged, [[&OWN[..], &LINK, &[0x08, 0x00], &packet(own)].concat()]);
        assert!(tunnels.is_forged(Port::OUTSIDE, &judged[0]) && !tunnels.is_forged(Port::INSIDE, &judged[0]));
        let counted = [(Reason::TunnelSource, 4), (Reason::TunnelFull, 0), (Reason::TunnelGone, 1)];
        assert_eq!(tunnels.counters(), counted);
    }

    #[test]
    fn an_agent_that_does_not_read_is_sent_no_more_than_its_queue_holds() {
        let (mut tunnels, _came) = tunnels();
        let (answers, mut waiting) = mpsc::channel(2);
        let own = tunnels.open(id(1), answers, |_| false).unwrap();
        (0..5).for_each(|_| assert!(tunnels.takes(Port::OUTSIDE, &answer(own))));
        assert_eq!(tunnels.counters()[1], (Reason::TunnelFull, 3));
        waiting.try_recv().unwrap();
        assert!(tunnels.takes(Port::OUTSIDE, &answer(own)));
        tunnels.end(id(1));
        assert!(tunnels.takes(Port::OUTSIDE, &answer(own)));
        assert_eq!(tunnels.counters()[2], (Reason::TunnelGone, 1));
        assert!(!tunnels.takes(Port::INSIDE, &answer(own)));
    }
}
