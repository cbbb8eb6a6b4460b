//! ICMP and ICMPv6: echo is a transport of its own, errors are about others (RFC 5508).

use sluicegate_wire::{
    Checksum, IpProtocol, Reason, icmpv4, icmpv6,
    ip::{Ports, Version},
};

use super::{Header, NO_PORTS, Quote, Selector, Signal, Transport};

/// The row of ICMP. Without it errors about other transports do not pass.
pub const ICMP: Transport = Transport {
    protocol: IpProtocol::ICMP,
    version: Some(Version::V4),
    selector: Selector::Ident,
    space: Some("external_idents_icmp"),
    // Covers no address; the identifier is replaced with its own correction.
    checksum: Checksum::None,
    parse: parse_v4,
    quoted,
    idle: |_, timers| timers.icmp,
    ..Transport::BY_ADDRESSES
};

/// The row of ICMPv6.
pub const ICMPV6: Transport = Transport {
    protocol: IpProtocol::ICMPV6,
    version: Some(Version::V6),
    space: None,
    is_translatable: false,
    parse: parse_v6,
    ..ICMP
};

const REQUEST: u16 = icmpv4::Type::ECHO_REQUEST.0 as u16;
const REPLY: u16 = icmpv4::Type::ECHO_REPLY.0 as u16;
const REQUEST_V6: u16 = icmpv6::Type::ECHO_REQUEST.0 as u16;
const REPLY_V6: u16 = icmpv6::Type::ECHO_REPLY.0 as u16;

/// Both types of echo, as in a tuple: the request first.
pub(crate) const fn echo_types(protocol: u8) -> [u16; 2] {
    if protocol == IpProtocol::ICMP.0 { [REQUEST, REPLY] } else { [REQUEST_V6, REPLY_V6] }
}

/// The type that answers, or asked for, this one. No type of one version is one of the other's.
pub(super) const fn opposite(kind: u16) -> u16 {
    match kind {
        REQUEST => REPLY,
        REPLY => REQUEST,
        REQUEST_V6 => REPLY_V6,
        _ => REQUEST_V6,
    }
}

fn parse_v4(transport: &[u8], is_cut: bool) -> Result<Header, Reason> {
    let message = icmpv4::Packet::new_checked(transport)?;
    let kind = message.kind();
    if [icmpv4::Type::ECHO_REQUEST, icmpv4::Type::ECHO_REPLY].contains(&kind) {
        return Ok(echo(message.ident(), kind.0.into()));
    }
    // RFC 5508 REQ-10c: no source quench; a redirect from outside would steer the service's traffic.
    let is_forwarded =
        matches!(kind, icmpv4::Type::UNREACHABLE | icmpv4::Type::TIME_EXCEEDED | icmpv4::Type::PARAMETER_PROBLEM);
    error(is_forwarded, is_cut)
}

fn parse_v6(transport: &[u8], is_cut: bool) -> Result<Header, Reason> {
    let message = icmpv6::Packet::new_checked(transport)?;
    let kind = message.kind();
    if [icmpv6::Type::ECHO_REQUEST, icmpv6::Type::ECHO_REPLY].contains(&kind) {
        return Ok(echo(message.ident(), kind.0.into()));
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

const fn echo(ident: u16, kind: u16) -> Header {
    let opens = matches!(kind, REQUEST | REQUEST_V6);
    Header { ports: Ports { src: ident, dst: kind }, opens, signal: Signal::None }
}

const fn error(is_forwarded: bool, is_cut: bool) -> Result<Header, Reason> {
    match (is_forwarded, is_cut) {
        (true, false) => Ok(Header { ports: NO_PORTS, opens: false, signal: Signal::Error }),
        // The quoted packet cannot be checked in half an error.
        (true, true) => Err(Reason::FragmentInvalid),
        (false, _) => Err(Reason::IcmpType),
    }
}

/// An echo of either version; of other messages no error speaks.
fn quoted(transport: &[u8]) -> Option<Quote> {
    let [kind, _, _, _, ident @ ..] = transport else { return None };
    let kind = u16::from(*kind);
    let is_echo = matches!(kind, REQUEST | REPLY | REQUEST_V6 | REPLY_V6);
    let ident = u16::from_be_bytes(*ident.first_chunk().filter(|_| is_echo)?);
    Some(Quote { ports: Ports { src: ident, dst: kind }, seq: None })
}
