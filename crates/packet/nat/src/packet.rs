//! A packet as the translator sees it.

use core::net::IpAddr;

use sluicegate_wire::{
    IpProtocol, Reason, icmpv4, icmpv6,
    ip::{Ports, Summary},
    udp,
};

use crate::tcp::Segment;

/// Both ends of a packet. For ICMP echo the source port is the identifier and the destination port the ICMP type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tuple {
    pub(crate) protocol: u8,
    pub(crate) src: (IpAddr, u16),
    pub(crate) dst: (IpAddr, u16),
}

impl Tuple {
    /// The tuple of an answer.
    pub(crate) fn reversed(&self) -> Self {
        match EchoType::of(self.protocol, self.dst.1) {
            Some(kind) => Self {
                protocol: self.protocol,
                src: (self.dst.0, self.src.1),
                dst: (self.src.0, kind.opposite(self.protocol)),
            },
            None => Self { protocol: self.protocol, src: self.dst, dst: self.src },
        }
    }
}

/// Request or reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EchoType {
    Request,
    Reply,
}

impl EchoType {
    /// What this number means as ICMP type; `None` for other protocols and types.
    pub(crate) const fn of(protocol: u8, number: u16) -> Option<Self> {
        match (IpProtocol(protocol), number) {
            (IpProtocol::ICMP, 8) | (IpProtocol::ICMPV6, 128) => Some(Self::Request),
            (IpProtocol::ICMP, 0) | (IpProtocol::ICMPV6, 129) => Some(Self::Reply),
            _ => None,
        }
    }

    const fn opposite(self, protocol: u8) -> u16 {
        match (self, IpProtocol(protocol)) {
            (Self::Request, IpProtocol::ICMP) => 0,
            (Self::Reply, IpProtocol::ICMP) => 8,
            (Self::Request, _) => 129,
            (Self::Reply, _) => 128,
        }
    }
}

/// What the transport header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Udp,
    Tcp(Segment),
    Echo(EchoType),
    /// An ICMP error. The tuple has no ports.
    Error,
}

/// A whole packet, or a first fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) ip: Summary,
    pub(crate) tuple: Tuple,
    pub(crate) transport: Transport,
}

impl Packet {
    /// Reads the transport header.
    #[inline]
    pub(crate) fn parse(ip: Summary, bytes: &[u8]) -> Result<Self, Reason> {
        let transport = ip.transport(bytes);
        let is_cut = ip.fragment.is_some();
        let (ports, transport) = match ip.protocol {
            IpProtocol::UDP => (udp_ports(transport, is_cut)?, Transport::Udp),
            IpProtocol::TCP => {
                let segment = Segment::parse(transport, is_cut)?;
                (real_ports(transport)?, Transport::Tcp(segment))
            }
            IpProtocol::ICMP if ip.src.is_ipv4() => icmp(transport, is_cut)?,
            IpProtocol::ICMPV6 if !ip.src.is_ipv4() => icmp_v6(transport, is_cut)?,
            _ => return Err(Reason::ProtocolUnsupported),
        };
        let tuple = Tuple { protocol: ip.protocol.0, src: (ip.src, ports.src), dst: (ip.dst, ports.dst) };
        Ok(Self { ip, tuple, transport })
    }

    /// Holds the transport checksum against the packet's bytes, before anything is remembered of it: what the receiver
    /// will not believe must not be believed here. A first fragment cannot be checked.
    ///
    /// # Errors
    /// [`Reason::TransportHeaderInvalid`].
    pub(crate) fn verify(&self, bytes: &[u8]) -> Result<(), Reason> {
        let is_right = self.ip.fragment.is_some() || self.ip.verify_transport_checksum(bytes);
        if is_right { Ok(()) } else { Err(Reason::TransportHeaderInvalid) }
    }

    /// IP bytes.
    #[inline]
    pub(crate) const fn len(&self) -> u32 {
        self.ip.total_len as u32
    }
}

#[inline]
fn udp_ports(transport: &[u8], is_cut: bool) -> Result<Ports, Reason> {
    let datagram = udp::Packet::new_unchecked(transport);
    let checked = if is_cut { datagram.check_header() } else { datagram.check_len() };
    checked?;
    real_ports(transport)
}

/// RFC 768 has a source port 0 for "no answer wanted"; a NAT cannot bind it, and nobody listens on port 0.
#[inline]
fn real_ports(transport: &[u8]) -> Result<Ports, Reason> {
    let ports = Ports::parse(transport)?;
    if ports.src == 0 || ports.dst == 0 { Err(Reason::TransportHeaderInvalid) } else { Ok(ports) }
}

fn icmp(transport: &[u8], is_cut: bool) -> Result<(Ports, Transport), Reason> {
    let message = icmpv4::Packet::new_checked(transport)?;
    let kind = message.kind();
    if let Some(echo) = EchoType::of(IpProtocol::ICMP.0, u16::from(kind.0)) {
        let ports = Ports { src: message.ident(), dst: u16::from(kind.0) };
        return Ok((ports, Transport::Echo(echo)));
    }
    // RFC 5508 REQ-10c: no source quench; a redirect from outside would steer the service's traffic.
    let is_forwarded =
        matches!(kind, icmpv4::Type::UNREACHABLE | icmpv4::Type::TIME_EXCEEDED | icmpv4::Type::PARAMETER_PROBLEM);
    error(is_forwarded, is_cut)
}

fn icmp_v6(transport: &[u8], is_cut: bool) -> Result<(Ports, Transport), Reason> {
    let message = icmpv6::Packet::new_checked(transport)?;
    let kind = message.kind();
    if let Some(echo) = EchoType::of(IpProtocol::ICMPV6.0, u16::from(kind.0)) {
        let ports = Ports { src: message.ident(), dst: u16::from(kind.0) };
        return Ok((ports, Transport::Echo(echo)));
    }
    let is_forwarded = matches!(
        kind,
        icmpv6::Type::UNREACHABLE
            | icmpv6::Type::PACKET_TOO_BIG
            | icmpv6::Type::TIME_EXCEEDED
            | icmpv6::Type::PARAMETER_PROBLEM
    );
    error(is_forwarded, is_cut)
}

const fn error(is_forwarded: bool, is_cut: bool) -> Result<(Ports, Transport), Reason> {
    match (is_forwarded, is_cut) {
        (true, false) => Ok((Ports { src: 0, dst: 0 }, Transport::Error)),
        // The quoted packet cannot be checked in half an error.
        (true, true) => Err(Reason::FragmentInvalid),
        (false, _) => Err(Reason::IcmpType),
    }
}
