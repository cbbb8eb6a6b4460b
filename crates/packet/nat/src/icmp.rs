//! ICMP errors: only those about a live flow pass, translated inside and out (RFC 5508 REQ-3 to REQ-7). They never
//! change a flow (RFC 5508 REQ-6, RFC 5382 REQ-10).

use core::net::IpAddr;

use sluicegate_flow::Kind;
use sluicegate_grant::mac::TRAILER_LEN;
use sluicegate_pinhole::{ServiceMode, Tuple};
use sluicegate_wire::{Frame, Instant, Port, Reason, icmp, ip::Summary};

use crate::{
    aside::Seldom,
    flows::{CHARGED, Family, Flows, GUARDED, MOVED, TRANSLATED},
    lifecycle::charge,
    rewrite::{NewEnds, set_len},
    rules::Rules,
    transport::{State, Transport, Transports},
};

/// How far behind the newest byte a quoted segment may start, at least.
const QUOTED_BEHIND_MIN: u32 = 66_000;

/// The longest ICMP error that is forwarded, by IP version: what an Internet host must take (RFC 1812 4.3.2.3, RFC 4443
/// 2.4c). Whoever quotes more only sends bytes.
const ERROR_LEN_MAX: [usize; 2] = [576, 1_280];

/// Judges and rewrites an ICMP error; says where it leaves.
///
/// It is somebody's packet about a flow, and the flow's grant answers for it: its own share of errors, and its bytes for
/// what comes from outside. Nothing is changed in an error that is refused.
pub(crate) fn translate<L: Family>(
    flows: &mut Flows<L>,
    rules: &mut Rules,
    now: Instant,
    from: Port,
    ip: &mut Summary,
    frame: &mut Frame<'_>,
) -> Result<Port, Reason> {
    ip.check_addresses()?;
    if from != Port::INSIDE && (rules.pinholes.is_gate(ip.src) || rules.pinholes.hosts.find(ip.src).is_some()) {
        return Err(Reason::AddressInvalid);
    }
    if !ip.verify_transport_checksum(frame.bytes()) {
        return Err(Reason::TransportHeaderInvalid);
    }
    let kind = if from == Port::INSIDE { Kind::Outbound } else { Kind::Inbound };
    let turns = kind == Kind::Outbound && rules.pinholes.is_gate(ip.dst);
    let to = if turns { Port::INSIDE } else { from.opposite() };
    let crossings = match crossings(flows, rules, ip, frame.bytes(), kind, turns) {
        Ok(crossings) => crossings,
        Err(reason) if is_filtered(rules, if from == Port::INSIDE { ip.src } else { ip.dst }) => {
            rules.pinholes.waive(reason)?;
            return Ok(to);
        }
        Err(reason) => return Err(reason),
    };
    let len = ip.total_len.min(ERROR_LEN_MAX[usize::from(!ip.src.is_ipv4())]);
    for crossing in crossings.iter().flatten() {
        admit(flows, rules, now, ip, frame.bytes(), crossing, len)?;
    }
    if !rules.admit_icmp(now) {
        return Err(Reason::IcmpRate);
    }
    if len < ip.total_len {
        cut(ip, frame, len);
    }
    for crossing in crossings.iter().flatten() {
        if crossing.kind == Kind::Inbound && rules.pinholes.macs.seals_answers(flows.line(crossing.line).owner()) {
            leave_room(ip, frame.bytes_mut());
        }
        crossing.apply(ip, frame.bytes_mut());
    }
    Ok(to)
}

fn is_filtered(rules: &Rules, service: IpAddr) -> bool {
    rules.pinholes.hosts.find(service).is_some_and(|host| host.mode == ServiceMode::Filter)
}

/// Whether nothing but the gate's own translation may show this address outside, or have the gate for its owner there.
fn is_hidden(rules: &Rules, inside: IpAddr) -> bool {
    rules.pinholes.is_gate(inside)
        || rules.pinholes.hosts.find(inside).is_some_and(|host| host.mode == ServiceMode::Nat)
}

/// One crossing of the gate by an error.
#[derive(Debug, Clone, Copy)]
struct Crossing {
    kind: Kind,
    /// The line of the quoted packet's answers, which the error travels by.
    line: u32,
    transport: &'static Transport,
    /// What the quoted packet is on arrival.
    tuple: Tuple,
    /// The quoted packet's ends on the other side.
    ends: NewEnds,
}

/// The flows that an error is about: one, or two where it turns round as hairpin packets do (RFC 5508 REQ-7).
fn crossings<L: Family>(
    flows: &Flows<L>,
    rules: &Rules,
    ip: &Summary,
    bytes: &[u8],
    kind: Kind,
    turns: bool,
) -> Result<[Option<Crossing>; 2], Reason> {
    let quoted = quoted(ip, bytes);
    let inner = Summary::parse_quoted(quoted).map_err(|_| Reason::IcmpNoFlow)?;
    let (tuple, seq) = quoted_tuple(rules.transports, &inner, quoted).ok_or(Reason::IcmpNoFlow)?;
    if inner.src != ip.dst {
        return Err(Reason::IcmpNoFlow);
    }
    let first = crossing(flows, rules, kind, (&tuple, seq))?;
    if first.ends.dst.is_none() && kind == Kind::Outbound && is_hidden(rules, ip.src) {
        return Err(Reason::AddressInvalid);
    }
    let second = match first.ends.dst {
        Some(dst) if turns => Some(crossing(flows, rules, Kind::Inbound, (&Tuple { dst, ..tuple }, seq))?),
        _ => None,
    };
    Ok([Some(first), second])
}

/// Finds the line of one crossing.
fn crossing<L: Family>(
    flows: &Flows<L>,
    rules: &Rules,
    kind: Kind,
    (tuple, seq): (&Tuple, Option<u32>),
) -> Result<Crossing, Reason> {
    let transport = rules.transports.of(tuple.protocol).ok_or(Reason::IcmpNoFlow)?;
    // The quoted packet went the other way; its answers have the line that the error travels by.
    let index = flows.find(kind, &transport.selector.reversed(tuple)).ok_or(Reason::IcmpNoFlow)?;
    let line = flows.line(index);
    if let Some(seq) = seq {
        let half = line.tcp();
        let behind = (u32::from(half.window) << half.shift).max(QUOTED_BEHIND_MIN);
        // RFC 5927 4.1: the quoted segment must be one that may still be in flight.
        if half.peer_end.wrapping_sub(seq) > behind {
            return Err(Reason::IcmpNoFlow);
        }
    }
    let (address, port, flags) = line.rewrite();
    let translated = (flags & TRANSLATED != 0).then(|| (L::unpack(address), port));
    let moved = (line.notes() & MOVED != 0).then(|| flows.outside_of_peer(index));
    // It went the other way than the line's packets do.
    let (src, dst) = if kind == Kind::Inbound { (translated, moved) } else { (moved, translated) };
    Ok(Crossing { kind, line: index, transport, tuple: *tuple, ends: NewEnds { src, dst } })
}

/// Takes an error of `len` bytes from the shares of the flow that it is about: nobody proved its source.
fn admit<L: Family>(
    flows: &mut Flows<L>,
    rules: &mut Rules,
    now: Instant,
    ip: &Summary,
    bytes: &[u8],
    crossing: &Crossing,
    len: usize,
) -> Result<(), Reason> {
    let line = flows.line(crossing.line);
    let (owner, flags, seen) = (line.owner(), line.rewrite().2, line.seen());
    let is_open = State::from_code(line.state()).is_synchronised();
    if crossing.kind == Kind::Inbound && (flags & GUARDED != 0 || is_open) {
        // What neither a MAC covers nor a host heeds can at most say that packets are too long, and that seldom.
        if !is_too_big(ip, bytes) {
            return Err(Reason::IcmpType);
        }
        if !flows.asides.admit(now, crossing.line, Seldom::Error) {
            return Err(Reason::IcmpRate);
        }
    }
    if !rules.pinholes.admit_error_of(now, owner) {
        return Err(Reason::IcmpRate);
    }
    if crossing.kind == Kind::Inbound && flags & CHARGED != 0 {
        let charged = charge(flows, rules, now, crossing.line, len as u32);
        // RFC 4787 REQ-6: an error keeps no flow alive.
        flows.line(crossing.line).touch(seen);
        match charged {
            Ok(()) => rules.pinholes.note_error(owner, len as u32),
            Err(reason) => rules.pinholes.waive(reason)?,
        }
    }
    Ok(())
}

/// A path that carries so much carries less of what the service sends, which gets a trailer here.
fn leave_room(ip: &Summary, bytes: &mut [u8]) {
    if !is_too_big(ip, bytes) {
        return;
    }
    let (src, dst) = (ip.src, ip.dst);
    let mut message = icmp::Packet::new_unchecked(ip.version(), ip.transport_mut(bytes));
    // Old routers name no MTU.
    message.set_mtu(message.mtu().saturating_sub(TRAILER_LEN as u32));
    message.fill_checksum(src, dst);
}

/// "Fragmentation needed" or "packet too big".
fn is_too_big(ip: &Summary, bytes: &[u8]) -> bool {
    icmp::Packet::new_unchecked(ip.version(), ip.transport(bytes)).kind() == icmp::Kind::PacketTooBig
}

/// Cuts an error to `len` bytes at most; RFC 4884's extensions stand behind the quote and go.
fn cut(ip: &mut Summary, frame: &mut Frame<'_>, len: usize) {
    let header_len = ip.transport_offset + icmp::HEADER_LEN;
    let quote_len = quoted(ip, frame.bytes()).len().min(len.saturating_sub(header_len));
    set_len(ip, frame, header_len + quote_len);
    let (src, dst) = (ip.src, ip.dst);
    let mut message = icmp::Packet::new_unchecked(ip.version(), ip.transport_mut(frame.bytes_mut()));
    message.clear_quoted_length();
    message.fill_checksum(src, dst);
}

fn quoted<'a>(ip: &Summary, bytes: &'a [u8]) -> &'a [u8] {
    let message = ip.transport(bytes);
    let len = icmp::Packet::new_unchecked(ip.version(), message).quoted().len();
    message.get(icmp::HEADER_LEN..icmp::HEADER_LEN + len).unwrap_or_default()
}

/// Both ends of the quoted packet, and its sequence number if it has one.
fn quoted_tuple(transports: &Transports, inner: &Summary, quoted: &[u8]) -> Option<(Tuple, Option<u32>)> {
    let transport = transports.of(inner.protocol.0).filter(|_| inner.has_transport_header())?;
    let quote = (transport.quoted)(inner.transport(quoted))?;
    let (src, dst) = ((inner.src, quote.ports.src), (inner.dst, quote.ports.dst));
    Some((Tuple { protocol: inner.protocol.0, src, dst }, quote.seq))
}

impl Crossing {
    /// Writes the other side's view into the error: outer and quoted addresses, quoted port or identifier, all checksums.
    fn apply(&self, ip: &mut Summary, bytes: &mut [u8]) {
        let NewEnds { src, dst } = self.ends;
        if self.ends == NewEnds::NONE {
            return;
        }
        // The error goes to the quoted packet's sender. Its own sender is the other end, or a router between.
        let own = dst.filter(|_| self.kind == Kind::Outbound || ip.src == self.tuple.dst.0);
        NewEnds { src: own, dst: src }.write_addresses(ip, bytes);
        let (src, dst) = (ip.src, ip.dst);
        let mut message = icmp::Packet::new_unchecked(ip.version(), ip.transport_mut(bytes));
        let quoted = message.quoted_mut();
        if let Ok(mut inner) = Summary::parse_quoted(quoted) {
            self.ends.write(self.transport, &self.tuple, &mut inner, quoted);
        }
        message.fill_checksum(src, dst);
    }
}
