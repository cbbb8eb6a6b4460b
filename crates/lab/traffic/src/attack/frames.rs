use std::net::{IpAddr, Ipv4Addr};

use fastrand::Rng;
use serde::{Deserialize, Serialize};
use sluicegate_wire::{
    IpProtocol,
    build::{self, Body},
    capability::{self, shim::Carriage},
    checksum::Delta,
    ethernet::{self, EtherType},
    icmp,
    ip::{Fragment, FragmentOffset, Summary},
    ipv4, ipv6, tcp, udp,
};

/// What kind of packet a flood sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// TCP connection requests.
    Syn,
    /// UDP datagrams of random bytes.
    Udp,
    /// ICMP echo requests and forged "port unreachable" errors.
    Icmp,
    /// Fragments of UDP datagrams: first, middle, last, overlapping, in no order.
    Fragment,
    /// What no honest host sends: cut headers, wrong checksums, unknown protocols, random bytes.
    Garbage,
}

/// Where one packet comes from and goes to.
#[derive(Debug, Clone, Copy)]
pub struct Path {
    /// Ethernet address of the next hop.
    pub destination_mac: [u8; 6],
    /// Ethernet address of the sender.
    pub source_mac: [u8; 6],
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Destination port, where there is one.
    pub dst_port: u16,
}

/// A frame that can be sent again with another source.
#[derive(Debug, Clone)]
pub struct Forged {
    bytes: Vec<u8>,
    /// What the IP header says; `None` if it is garbage, which is sent as it is.
    summary: Option<Summary>,
}

impl Forged {
    /// A frame of `kind` with about `frame_len` bytes.
    #[must_use]
    pub fn new(kind: Kind, path: &Path, frame_len: usize, random: &mut Rng) -> Self {
        let payload_len = frame_len.saturating_sub(ethernet::HEADER_LEN + build::header_len(path.dst));
        let packet = match kind {
            Kind::Syn => syn(path, random),
            Kind::Udp => udp(path, payload_len, random),
            Kind::Icmp => icmp(path, payload_len, random),
            Kind::Fragment => fragment(path, payload_len, random),
            Kind::Garbage => garbage(path, payload_len, random),
        };
        Self::of(path, &packet)
    }

    /// A UDP datagram with this payload from this source port.
    #[must_use]
    pub fn datagram(path: &Path, src_port: u16, payload: &[u8]) -> Self {
        Self::of(path, &udp_packet(path, src_port, payload))
    }

    /// A packet of about `frame_len` bytes with this capability header, and a datagram behind it unless it says that
    /// nothing follows.
    #[must_use]
    pub fn capable(path: &Path, header: &capability::Repr, carriage: Carriage, frame_len: usize) -> Self {
        let mut payload = vec![0; header.buffer_len()];
        header.emit(&mut capability::Packet::new_unchecked(&mut payload[..]));
        if capability::Packet::new_unchecked(&payload[..]).upper_protocol() == IpProtocol::UDP {
            let before = ethernet::HEADER_LEN
                + build::header_len(path.dst)
                + carriage.outer_len()
                + payload.len()
                + udp::HEADER_LEN;
            // Encapsulated, the checksum inside knows no addresses.
            let nobody = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
            let (src, dst) = if carriage == Carriage::Native { (path.src, path.dst) } else { (nobody, nobody) };
            let inside = Path { src, dst, ..*path };
            payload.extend(udp_datagram(&inside, path.dst_port, &vec![0; frame_len.saturating_sub(before)]));
        }
        let (src_port, dst_port) = match carriage {
            Carriage::Native => return Self::of(path, &packet(path, &(capability::PROTOCOL, &payload[..]))),
            Carriage::Encapsulated { src_port } => (src_port, capability::UDP_PORT),
            Carriage::Answer { dst_port } => (capability::UDP_PORT, dst_port),
        };
        Self::datagram(&Path { dst_port, ..*path }, src_port, &payload)
    }

    /// This packet.
    pub(super) fn of(path: &Path, packet: &[u8]) -> Self {
        let ethertype = if path.dst.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
        let header = ethernet::Repr { dst: path.destination_mac, src: path.source_mac, ethertype };
        let mut bytes = [&[0; ethernet::HEADER_LEN], packet].concat();
        header.emit(&mut ethernet::Packet::new_unchecked(&mut bytes[..]));
        let summary = Summary::parse(packet).ok();
        Self { bytes, summary }
    }

    /// Gives the packet another source address and keeps its checksums as right as they were.
    pub fn respoof(&mut self, src: IpAddr) {
        let Some(summary) = &mut self.summary else { return };
        let Some(packet) = self.bytes.get_mut(ethernet::HEADER_LEN..) else { return };
        let delta = summary.set_src(packet, src);
        summary.adjust_transport_checksum(packet, delta);
    }

    /// Sets the traffic class, which nothing in the lab changes: so what arrives can be told from what an honest client
    /// sends under the same address. Garbage stays as it is.
    pub(crate) fn mark(&mut self, traffic_class: u8) {
        let Some(packet) = self.summary.as_ref().and_then(|_| self.bytes.get_mut(ethernet::HEADER_LEN..)) else {
            return;
        };
        match packet.first().map(|byte| byte >> 4) {
            Some(4) => {
                let mut packet = ipv4::Packet::new_unchecked(packet);
                let delta = Delta::NONE.u16(packet.traffic_class().into(), traffic_class.into());
                packet.set_traffic_class(traffic_class);
                packet.set_checksum(delta.apply(packet.checksum()));
            }
            Some(6) => ipv6::Packet::new_unchecked(packet).set_version_class_and_label(traffic_class, 0),
            _ => {}
        }
    }
}

impl AsRef<[u8]> for Forged {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// An IP packet of either version that carries this.
fn packet(path: &Path, body: &impl Body) -> Vec<u8> {
    build::packet(path.src, path.dst, body)
}

fn syn(path: &Path, random: &mut Rng) -> Vec<u8> {
    let mut segment = tcp::Repr::new(random.u16(1_024..), path.dst_port, tcp::Control::Syn, random.u32(..));
    segment.mss = Some(1_460);
    packet(path, &segment)
}

fn udp(path: &Path, payload_len: usize, random: &mut Rng) -> Vec<u8> {
    let mut payload = vec![0; payload_len.saturating_sub(udp::HEADER_LEN)];
    random.fill(&mut payload);
    udp_packet(path, random.u16(1_024..), &payload)
}

fn udp_packet(path: &Path, src_port: u16, payload: &[u8]) -> Vec<u8> {
    packet(path, &udp::Repr { src_port, dst_port: path.dst_port, payload })
}

fn udp_datagram(path: &Path, src_port: u16, payload: &[u8]) -> Vec<u8> {
    let datagram = udp::Repr { src_port, dst_port: path.dst_port, payload };
    let mut bytes = vec![0; datagram.buffer_len()];
    datagram.emit(&mut udp::Packet::new_unchecked(&mut bytes[..]), path.src, path.dst);
    bytes
}

fn icmp(path: &Path, payload_len: usize, random: &mut Rng) -> Vec<u8> {
    let forged_error = random.bool();
    // The packet that the error pretends to be about: one from the target's port to the forged source.
    let back = Path { src: path.dst, dst: path.src, dst_port: random.u16(1_024..), ..*path };
    let quoted = udp_packet(&back, path.dst_port, &[0; 32]);
    let mut data = vec![0; payload_len.saturating_sub(8)];
    random.fill(&mut data);
    let (ident, seq) = (random.u16(1_024..), 1);
    let message = match icmp::Quote::new(&quoted) {
        Ok(quote) if forged_error => icmp::Repr::Unreachable { why: icmp::Unreachable::Port, quote },
        _ => icmp::Repr::EchoRequest { ident, seq, data: &data },
    };
    packet(path, &message)
}

fn fragment(path: &Path, payload_len: usize, random: &mut Rng) -> Vec<u8> {
    let len = (payload_len.saturating_sub(ipv6::FRAGMENT_HEADER_LEN) / 8 * 8).max(8);
    let mut data = udp_datagram(path, random.u16(1_024..), &vec![0; len]);
    data.truncate(len);
    // Few identifications, so that parts of the same packet meet and overlap.
    let id = random.u32(..512);
    let units = random.u16(..4) * u16::try_from(len / 8).unwrap_or(1);
    let place = Fragment { id, offset: FragmentOffset::from_units(units), more: units == 0 || random.u8(..4) != 0 };
    match (path.src, path.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let mut bytes = [&[0; ipv4::HEADER_LEN], &data[..]].concat();
            let mut repr = ipv4::Repr::new(src, dst, IpProtocol::UDP, u16::try_from(data.len()).unwrap_or(u16::MAX));
            repr.dont_fragment = false;
            repr.ident = u16::try_from(place.id).unwrap_or(0);
            repr.more_fragments = place.more;
            repr.fragment_offset = place.offset;
            repr.emit(&mut ipv4::Packet::new_unchecked(&mut bytes[..]));
            bytes
        }
        _ => {
            let header = ipv6::FragmentRepr { next_header: IpProtocol::UDP, fragment: place }.to_bytes();
            packet(path, &(IpProtocol::IPV6_FRAGMENT, &[&header[..], &data].concat()[..]))
        }
    }
}

fn garbage(path: &Path, payload_len: usize, random: &mut Rng) -> Vec<u8> {
    let mut payload = vec![0; payload_len.max(8)];
    random.fill(&mut payload);
    match random.u8(..6) {
        // An unknown protocol.
        0 => packet(path, &(IpProtocol(random.u8(140..250)), &payload[..])),
        // A transport header of random bytes, wrong checksum included.
        1 => packet(path, &(IpProtocol::TCP, &payload[..])),
        2 => packet(path, &(IpProtocol::UDP, &payload[..])),
        // A packet that is shorter than it says.
        3 => packet(path, &(IpProtocol::UDP, &payload[..]))[..ipv4::HEADER_LEN + 4].to_vec(),
        // A header length that reaches past the header, which IPv4 takes for options.
        4 => {
            let mut bytes = packet(path, &(IpProtocol::UDP, &payload[..]));
            bytes[0] |= 0x0f;
            bytes
        }
        // No IP at all.
        _ => payload,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [Kind; 4] = [Kind::Syn, Kind::Udp, Kind::Icmp, Kind::Fragment];

    fn path(src: &str, dst: &str) -> Path {
        Path {
            destination_mac: [2; 6],
            source_mac: [4; 6],
            src: src.parse().unwrap(),
            dst: dst.parse().unwrap(),
            dst_port: 5004,
        }
    }

    #[test]
    fn forged_packets_are_valid_before_and_after_a_change_of_source() {
        let mut random = Rng::with_seed(1);
        for (from, to, other) in
            [("198.18.0.1", "203.0.113.10", "198.18.9.9"), ("2001:db8::1", "2001:db8:66::2", "2001:db8::7")]
        {
            for kind in KINDS.repeat(20) {
                let mut forged = Forged::new(kind, &path(from, to), 200, &mut random);
                for source in [from, other] {
                    forged.respoof(source.parse().unwrap());
                    let packet = &forged.as_ref()[ethernet::HEADER_LEN..];
                    let summary = Summary::parse(packet).unwrap();
                    assert_eq!(summary.src, source.parse::<IpAddr>().unwrap());
                    assert!(summary.verify_transport_checksum(packet), "{kind:?} {source}");
                }
            }
        }
    }

    #[test]
    fn a_marked_packet_stays_valid_and_says_its_class() {
        let mut random = Rng::with_seed(4);
        for (from, to) in [("198.18.0.1", "203.0.113.10"), ("2001:db8::1", "2001:db8:66::2")] {
            let mut forged = Forged::new(Kind::Udp, &path(from, to), 200, &mut random);
            forged.mark(0x2c);
            let packet = &forged.as_ref()[ethernet::HEADER_LEN..];
            let summary = Summary::parse(packet).unwrap();
            assert!(summary.verify_transport_checksum(packet));
            assert_eq!(crate::count::traffic_class(packet), Some(0x2c));
        }
    }

    #[test]
    fn frames_have_the_size_asked_for_as_far_as_their_kind_allows() {
        let mut random = Rng::with_seed(2);
        let len = |kind, random: &mut Rng| {
            Forged::new(kind, &path("198.18.0.1", "203.0.113.10"), 1_000, random).as_ref().len()
        };
        assert_eq!(len(Kind::Udp, &mut random), 1_000);
        assert_eq!(len(Kind::Syn, &mut random), 58);
        assert!((980..=1_000).contains(&len(Kind::Fragment, &mut random)));
    }

    #[test]
    fn garbage_of_every_kind_can_be_made_at_any_size() {
        let mut random = Rng::with_seed(3);
        for size in 0..300 {
            for (from, to) in [("198.18.0.1", "203.0.113.10"), ("2001:db8::1", "2001:db8::2")] {
                let mut forged = Forged::new(Kind::Garbage, &path(from, to), size, &mut random);
                forged.respoof(from.parse().unwrap());
                assert!(forged.as_ref().len() > ethernet::HEADER_LEN);
            }
        }
    }
}
