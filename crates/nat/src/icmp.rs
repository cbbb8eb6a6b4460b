//! ICMP errors: only those about a live flow pass, translated inside and out (RFC 5508 REQ-3 to REQ-7). They never
//! change a flow (RFC 5508 REQ-6, RFC 5382 REQ-10).

use core::net::IpAddr;

use sluicegate_flow::Kind;
use sluicegate_wire::{
    Instant, IpProtocol, Port, Reason, icmpv4, icmpv6,
    ip::{Ports, Summary},
};

use crate::{
    Translator,
    config::Mode,
    flows::{Family, Flows, TRANSLATED},
    packet::{EchoType, Tuple},
    rules::Rules,
};

/// How far behind the newest byte a quoted segment may start, at least.
const QUOTED_BEHIND_MIN: u32 = 66_000;

/// Judges and rewrites the ICMP error in `bytes`; says where it leaves.
pub(crate) fn translate(
    translator: &mut Translator,
    now: Instant,
    from: Port,
    ip: &mut Summary,
    bytes: &mut [u8],
) -> Result<Port, Reason> {
    let rules = &mut translator.rules;
    if ip.src.is_ipv4() {
        error(&mut translator.v4, rules, now, from, ip, bytes)
    } else {
        error(&mut translator.v6, rules, now, from, ip, bytes)
    }
}

fn error<L: Family>(
    flows: &mut Flows<L>,
    rules: &mut Rules,
    now: Instant,
    from: Port,
    ip: &mut Summary,
    bytes: &mut [u8],
) -> Result<Port, Reason> {
    ip.check_addresses()?;
    if from != Port::INSIDE && (rules.is_gate(ip.src) || rules.hosts.find(ip.src).is_some()) {
        return Err(Reason::AddressInvalid);
    }
    if !ip.verify_transport_checksum(bytes) {
        return Err(Reason::TransportHeaderInvalid);
    }
    let kind = if from == Port::INSIDE { Kind::Outbound } else { Kind::Inbound };
    let to = from.opposite();
    match one_way(flows, rules, ip, bytes, kind) {
        Ok(()) => {}
        Err(reason) if is_filtered(rules, ip) => {
            rules.waive(reason)?;
            return Ok(to);
        }
        Err(reason) => return Err(reason),
    }
    rules.admit_icmp(now)?;
    if kind == Kind::Outbound && rules.is_gate(ip.dst) {
        // RFC 5508 REQ-7: errors about hairpin packets turn round as those do.
        one_way(flows, rules, ip, bytes, Kind::Inbound)?;
        return Ok(Port::INSIDE);
    }
    Ok(to)
}

fn is_filtered(rules: &Rules, ip: &Summary) -> bool {
    [ip.src, ip.dst].iter().any(|end| rules.hosts.find(*end).is_some_and(|host| host.mode == Mode::Filter))
}

/// Finds the flow that an error is about and translates the error for one crossing of the gate.
fn one_way<L: Family>(
    flows: &Flows<L>,
    rules: &Rules,
    ip: &mut Summary,
    bytes: &mut [u8],
    kind: Kind,
) -> Result<(), Reason> {
    let quoted = quoted(ip, bytes);
    let inner = Summary::parse_quoted(quoted).map_err(|_| Reason::IcmpNoFlow)?;
    let tuple = quoted_tuple(&inner, quoted).ok_or(Reason::IcmpNoFlow)?;
    if inner.src != ip.dst {
        return Err(Reason::IcmpNoFlow);
    }
    // The quoted packet went the other way; its answers have the line that the error travels by.
    let index = flows.find(kind, &tuple.reversed()).ok_or(Reason::IcmpNoFlow)?;
    let line = flows.line(index);
    if inner.protocol == IpProtocol::TCP {
        let half = line.tcp();
        let behind = (u32::from(half.window) << half.shift).max(QUOTED_BEHIND_MIN);
        let seq = quoted_seq(&inner, quoted).ok_or(Reason::IcmpNoFlow)?;
        // RFC 5927 4.1: the quoted segment must be one that may still be in flight.
        if half.peer_end.wrapping_sub(seq) > behind {
            return Err(Reason::IcmpNoFlow);
        }
    }
    let (address, port, flags) = line.rewrite();
    if flags & TRANSLATED != 0 {
        rewrite(ip, bytes, inner, &tuple, (L::unpack(address), port), kind);
    } else if kind == Kind::Outbound && rules.is_gate(ip.src) {
        return Err(Reason::AddressInvalid);
    }
    Ok(())
}

fn quoted<'a>(ip: &Summary, bytes: &'a [u8]) -> &'a [u8] {
    let message = ip.transport(bytes);
    let len = if ip.src.is_ipv4() {
        icmpv4::Packet::new_unchecked(message).quoted().len()
    } else {
        icmpv6::Packet::new_unchecked(message).quoted().len()
    };
    // Both headers are 8 bytes long.
    message.get(icmpv4::HEADER_LEN..icmpv4::HEADER_LEN + len).unwrap_or_default()
}

fn quoted_tuple(inner: &Summary, quoted: &[u8]) -> Option<Tuple> {
    if !inner.has_transport_header() {
        return None;
    }
    let transport = inner.transport(quoted);
    let (src_port, dst_port) = match inner.protocol {
        IpProtocol::UDP | IpProtocol::TCP => {
            let ports = Ports::parse(transport).ok()?;
            (ports.src, ports.dst)
        }
        IpProtocol::ICMP | IpProtocol::ICMPV6 => {
            let [kind, _, _, _, id0, id1, ..] = *transport else { return None };
            EchoType::of(inner.protocol.0, kind.into())?;
            (u16::from_be_bytes([id0, id1]), kind.into())
        }
        _ => return None,
    };
    Some(Tuple { protocol: inner.protocol.0, src: (inner.src, src_port), dst: (inner.dst, dst_port) })
}

fn quoted_seq(inner: &Summary, quoted: &[u8]) -> Option<u32> {
    let bytes = inner.transport(quoted).get(4..8)?;
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

/// Writes the other side's view into the error: outer and quoted addresses, quoted port or identifier, all checksums.
fn rewrite(
    ip: &mut Summary,
    bytes: &mut [u8],
    mut inner: Summary,
    tuple: &Tuple,
    (address, port): (IpAddr, u16),
    kind: Kind,
) {
    {
        let mut message = icmpv4::Packet::new_unchecked(ip.transport_mut(bytes));
        let quoted = message.quoted_mut();
        let old = Ports { src: tuple.src.1, dst: tuple.dst.1 };
        let (delta, new) = if kind == Kind::Inbound {
            (inner.set_src(quoted, address), Ports { src: port, ..old })
        } else {
            (inner.set_dst(quoted, address), Ports { dst: port, ..old })
        };
        if inner.protocol == IpProtocol::ICMP {
            icmpv4::Packet::new_unchecked(inner.transport_mut(quoted)).replace_ident(port);
        } else {
            let ports = old.replace(inner.transport_mut(quoted), new);
            inner.adjust_transport_checksum(quoted, delta.and(ports));
        }
        message.fill_checksum();
    }
    if kind == Kind::Inbound {
        ip.set_dst(bytes, address);
    } else {
        ip.set_src(bytes, address);
    }
}
