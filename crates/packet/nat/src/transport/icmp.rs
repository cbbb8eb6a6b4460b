//! ICMP and ICMPv6: echo is a transport of its own, errors are about others (RFC 5508).

use sluicegate_wire::{
    Checksum, IpProtocol, Reason,
    icmp::{self, Kind},
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
    parse: |transport, is_cut| parse(Version::V4, transport, is_cut),
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
    parse: |transport, is_cut| parse(Version::V6, transport, is_cut),
    ..ICMP
};

const REQUEST: u16 = 8;
const REPLY: u16 = 0;
const REQUEST_V6: u16 = 128;
const REPLY_V6: u16 = 129;

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

fn parse(version: Version, transport: &[u8], is_cut: bool) -> Result<Header, Reason> {
    let message = icmp::Packet::new_checked(version, transport)?;
    match (message.kind(), is_cut) {
        (Kind::EchoRequest | Kind::EchoReply, _) => Ok(echo(message.ident(), message.number().into())),
        // RFC 5508 REQ-10c: no source quench; a redirect from outside would steer the service's traffic.
        (Kind::OtherError | Kind::Other, _) => Err(Reason::IcmpType),
        // The quoted packet cannot be checked in half an error.
        (_, true) => Err(Reason::FragmentInvalid),
        (_, false) => Ok(Header { ports: NO_PORTS, opens: false, signal: Signal::Error }),
    }
}

const fn echo(ident: u16, kind: u16) -> Header {
    let opens = matches!(kind, REQUEST | REQUEST_V6);
    Header { ports: Ports { src: ident, dst: kind }, opens, signal: Signal::None }
}

/// An echo of either version; of other messages no error speaks.
fn quoted(transport: &[u8]) -> Option<Quote> {
    let [kind, _, _, _, ident @ ..] = transport else { return None };
    let kind = u16::from(*kind);
    let is_echo = matches!(kind, REQUEST | REPLY | REQUEST_V6 | REPLY_V6);
    let ident = u16::from_be_bytes(*ident.first_chunk().filter(|_| is_echo)?);
    Some(Quote { ports: Ports { src: ident, dst: kind }, seq: None })
}
