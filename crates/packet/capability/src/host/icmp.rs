//! ICMP errors about packets of this host: the far end does not know the header, or the header made them too large.

use sluicegate_wire::{
    Frame, IpProtocol,
    capability::{Capability, FlowNonce, Kind, NONCE_LEN, PROTOCOL, Packet, UDP_PORT},
    icmp,
    ip::{self, Ports},
    udp,
};

use super::table::Key;

const V4_PROTOCOL_UNREACHABLE: u8 = 2;
const V4_PORT_UNREACHABLE: u8 = 3;
const V6_PORT_UNREACHABLE: u8 = 4;
const V6_UNRECOGNIZED_NEXT_HEADER: u8 = 1;

/// What an error says about capabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The far end does not take packets with the header.
    Unreachable,
    /// This is the largest packet that the path carries.
    TooBig {
        mtu: u16,
    },
    Other,
}

/// What an error quotes.
pub(super) struct Quote {
    pub(super) key: Key,
    /// The first entry of a request or the nonce: only who saw the packet knows it.
    pub(super) proof: Proof,
    pub(super) upper: IpProtocol,
    /// What the shortest header of a regular packet costs there.
    pub(super) overhead: usize,
}

pub(super) enum Proof {
    Request(Capability),
    Regular(FlowNonce),
}

/// What an ICMP error says that quotes a packet with a capability header; `None` if it is anything else.
pub(super) fn read(summary: &ip::Summary, bytes: &[u8]) -> Option<(Meaning, Quote)> {
    let version = icmp::version(summary.protocol)?;
    let packet = icmp::Packet::new_checked(version, summary.transport(bytes)).ok()?;
    let is_whole = packet.kind().is_error() && packet.verify_checksum(summary.src, summary.dst);
    let quote = quote(summary, packet.quoted()).filter(|_| is_whole)?;
    let meaning = match (version, packet.kind(), packet.code()) {
        (ip::Version::V4, icmp::Kind::Unreachable, V4_PROTOCOL_UNREACHABLE | V4_PORT_UNREACHABLE)
        | (ip::Version::V6, icmp::Kind::Unreachable, V6_PORT_UNREACHABLE)
        | (ip::Version::V6, icmp::Kind::ParameterProblem, V6_UNRECOGNIZED_NEXT_HEADER) => Meaning::Unreachable,
        (_, icmp::Kind::PacketTooBig, _) => Meaning::TooBig { mtu: u16::try_from(packet.mtu()).unwrap_or(u16::MAX) },
        _ => Meaning::Other,
    };
    Some((meaning, quote))
}

/// The quoted packet, if it is one of ours with a whole capability header.
fn quote(error: &ip::Summary, quoted: &[u8]) -> Option<Quote> {
    let inner = ip::Summary::parse_quoted(quoted).ok()?;
    let transport = inner.transport(quoted);
    let (outer_len, header) = match inner.protocol {
        PROTOCOL => (0, transport),
        IpProtocol::UDP => {
            let ports = Ports::parse(transport).ok()?;
            let is_ours = ports.dst == UDP_PORT || ports.src == UDP_PORT;
            (udp::HEADER_LEN, transport.get(udp::HEADER_LEN..).filter(|_| is_ours)?)
        }
        _ => return None,
    };
    if inner.src != error.dst || inner.fragment.is_some() {
        return None;
    }
    let packet = Packet::new_checked(header).ok()?;
    let proof = match packet.kind() {
        Kind::Request => Proof::Request(packet.capability(0)?),
        _ => Proof::Regular(packet.nonce()),
    };
    Some(Quote {
        key: Key { local: inner.src, remote: inner.dst, client_id: packet.client_id() },
        proof,
        upper: packet.upper_protocol(),
        overhead: outer_len + NONCE_LEN,
    })
}

/// Writes the MTU that is left for plain packets into a "packet too big".
pub(super) fn lower_mtu(frame: &mut Frame<'_>, mtu: u16) {
    let Ok(summary) = ip::Summary::parse(frame.bytes()) else { return };
    let Some(version) = icmp::version(summary.protocol) else { return };
    if let Ok(mut packet) = icmp::Packet::new_checked(version, summary.transport_mut(frame.bytes_mut())) {
        packet.set_mtu(mtu.into());
        packet.fill_checksum(summary.src, summary.dst);
    }
}
