//! Packets from inside.

use core::net::IpAddr;

use sluicegate_flow::Kind;
use sluicegate_pinhole::{Evidence, Host, Located, Names, ServiceMode, Tuple, names};
use sluicegate_wire::{Instant, Port, Reason};

use crate::{
    flows::{BOUND, FROM_INSIDE, Family, Flows, NewFlow},
    inbound::{check_opens, flags_of, follow, locate, open_inbound, pass, start},
    lifecycle::establish,
    rewrite::{NewEnds, Rewrite},
    rules::Rules,
    transport::{Packet, Selector},
};

/// Decides about a packet from inside and keeps account of it. A packet to the gate's own external address turns round
/// (hairpin, RFC 4787 REQ-9) and takes the cost of both directions.
#[inline]
pub(crate) fn outbound<L: Family>(
    flows: &mut Flows<L>,
    rules: &mut Rules,
    now: Instant,
    packet: &Packet<'_>,
    evidence: &Evidence<'_>,
) -> Result<Rewrite, Reason> {
    if rules.pinholes.is_gate(packet.tuple.dst.0) {
        return hairpin(flows, rules, now, packet, evidence);
    }
    let index = match flows.find(Kind::Outbound, &packet.tuple) {
        Some(index) => index,
        None => match open_from_inside(flows, rules, now, packet, evidence)? {
            Some(index) => index,
            None => return Ok(Rewrite::unchanged(Port::OUTSIDE)),
        },
    };
    pass(flows, rules, now, index, packet, evidence, Kind::Outbound)
}

/// The pinhole under which a packet from inside may start a flow: that of the client it is for, or else that of its
/// own service.
pub(crate) fn locate_outbound(rules: &Rules, now: Instant, tuple: &Tuple, host: &Host) -> Located {
    let found = rules.pinholes.opened(now, rules.pinholes.table.by_outbound(now, tuple));
    match (found, host.outbound.and_then(|service| rules.pinholes.service_slot(service))) {
        (Ok(slot), _) | (Err(_), Some(slot)) => Ok(slot),
        (Err((Reason::NoPinhole, slot)), None) => Err((Reason::OutboundDisabled, slot)),
        (Err(closed), None) => Err(closed),
    }
}

#[inline(never)]
fn open_from_inside<L: Family>(
    flows: &mut Flows<L>,
    rules: &mut Rules,
    now: Instant,
    packet: &Packet<'_>,
    evidence: &Evidence<'_>,
) -> Result<Option<u32>, Reason> {
    packet.ip.check_addresses()?;
    packet.verify(evidence.bytes)?;
    let host = rules.pinholes.hosts.find(packet.tuple.src.0).ok_or(Reason::AddressInvalid)?;
    if rules.pinholes.hosts.find(packet.tuple.dst.0).is_some() {
        // From one service to another by their own addresses: that is no way through the gate.
        return Err(Reason::NotForService);
    }
    let result = locate_outbound(rules, now, &packet.tuple, &host)
        .map_err(|(reason, _)| reason)
        .and_then(|slot| open_outbound(flows, rules, now, packet, slot, None));
    match result {
        Ok(index) => Ok(Some(index)),
        // An untranslated packet never leaves, so observe mode has nothing to forward for `nat`.
        Err(reason) if host.mode == ServiceMode::Filter => rules.pinholes.waive(reason).map(|()| None),
        Err(reason) => Err(reason),
    }
}

/// Makes the flow of an admitted packet; gives the index of its outbound line. `flags` replaces those of the pinhole.
fn open_outbound<L: Family>(
    flows: &mut Flows<L>,
    rules: &mut Rules,
    now: Instant,
    packet: &Packet<'_>,
    slot: u32,
    flags: Option<u16>,
) -> Result<u32, Reason> {
    check_opens(packet, Reason::OutboundDisabled)?;
    let pinhole = rules.pinholes.table.at(slot).ok_or(Reason::OutboundDisabled)?;
    let tuple = packet.tuple;
    let mut flags = flags.unwrap_or(flags_of(pinhole)) | FROM_INSIDE;
    let selector = packet.transport.selector;
    let mut inbound = selector.reversed(&tuple);
    let mut bound = None;
    if !pinhole.filter {
        if !packet.transport.is_translatable {
            return Err(Reason::ProtocolUnsupported);
        }
        let is_own = selector == Selector::Ports && pinhole.target == tuple.src.0;
        let own = if is_own { pinhole.gate_port(tuple.src.1) } else { None };
        if own.is_none() && selector != Selector::None {
            flags |= BOUND;
            bound =
                rules.bindings.join(tuple.protocol, tuple.src, &mut rules.ports, &mut rules.random, &mut rules.looks);
        }
        let port = own.or(bound);
        inbound.dst.0 = IpAddr::V4(rules.config.gate_address);
        match selector {
            Selector::Ports => inbound.dst.1 = port.ok_or(Reason::NoExternalPort)?,
            Selector::Ident => inbound.src.1 = port.ok_or(Reason::NoExternalPort)?,
            // Another service that speaks with this address has it, and keeps it.
            Selector::None if flows.find(Kind::Inbound, &inbound).is_some() => return Err(Reason::NoExternalPort),
            Selector::None => {}
        }
    }
    let new = NewFlow { owner: slot, inbound, outbound: tuple, flags };
    let flow = match establish(flows, rules, now, &new) {
        Ok(flow) => flow,
        Err(reason) => {
            if let Some(port) = bound {
                rules.bindings.leave(tuple.protocol, port, &mut rules.ports);
            }
            return Err(reason);
        }
    };
    start(flows, flow, Kind::Outbound, packet);
    Ok(sluicegate_flow::FlowLine::peer(flows.line(flow)))
}

/// From one inside host to another by the gate's external address: out with the external source, and in again.
fn hairpin<L: Family>(
    flows: &mut Flows<L>,
    rules: &mut Rules,
    now: Instant,
    packet: &Packet<'_>,
    evidence: &Evidence<'_>,
) -> Result<Rewrite, Reason> {
    let index = match flows.find(Kind::Outbound, &packet.tuple) {
        Some(index) => index,
        None => open_hairpin(flows, rules, now, packet, evidence)?,
    };
    let out = pass(flows, rules, now, index, packet, evidence, Kind::Outbound)?;
    let src = out.ends.src.ok_or(Reason::NoPinhole)?;
    let (transport, opens, signal) = (packet.transport, packet.opens, packet.signal);
    let turned = Packet { ip: &mut { *packet.ip }, transport, tuple: Tuple { src, ..packet.tuple }, opens, signal };
    let back = match flows.find(Kind::Inbound, &turned.tuple) {
        Some(index) => follow(flows, rules, now, index, &turned, evidence)?,
        None => {
            let names = names(evidence);
            let slot = locate_hairpin(rules, now, &packet.tuple, names).map_err(|(reason, _)| reason)?;
            let (index, strip) = open_inbound(flows, rules, now, &turned, slot, evidence)?;
            Rewrite { strip, ..pass(flows, rules, now, index, &turned, evidence, Kind::Inbound)? }
        }
    };
    // What turns round is checked here and never leaves: it has no trailer of the gate's.
    Ok(Rewrite { ends: NewEnds { src: Some(src), ..back.ends }, seal: None, ..back })
}

/// The pinhole that a hairpin packet is for. Its client may have been seen with its inside address, by a frontend on
/// this side, or with the gate's.
pub(crate) fn locate_hairpin(rules: &Rules, now: Instant, tuple: &Tuple, names: Names) -> Located {
    let as_gate = Tuple { src: (IpAddr::V4(rules.config.gate_address), tuple.src.1), ..*tuple };
    locate(rules, now, tuple, names).or_else(|_| {
        // The external port is not known yet, so a grant for certain client ports does not match here.
        locate(rules, now, &as_gate, names)
    })
}

#[inline(never)]
fn open_hairpin<L: Family>(
    flows: &mut Flows<L>,
    rules: &mut Rules,
    now: Instant,
    packet: &Packet<'_>,
    evidence: &Evidence<'_>,
) -> Result<u32, Reason> {
    packet.ip.check_addresses()?;
    packet.verify(evidence.bytes)?;
    let host = rules.pinholes.hosts.find(packet.tuple.src.0).ok_or(Reason::AddressInvalid)?;
    if host.mode != ServiceMode::Nat || packet.transport.selector != Selector::Ports {
        return Err(Reason::NoPinhole);
    }
    let names = names(evidence);
    let target = locate_hairpin(rules, now, &packet.tuple, names).map_err(|(reason, _)| reason)?;
    let knows_inside = rules.pinholes.table.at(target).is_some_and(|pinhole| pinhole.admits_client(packet.tuple.src));
    let slot = match host.outbound.and_then(|service| rules.pinholes.service_slot(service)) {
        Some(slot) => slot,
        None if knows_inside => target,
        None => return Err(Reason::OutboundDisabled),
    };
    // The way out is not charged; the way back in is.
    open_outbound(flows, rules, now, packet, slot, Some(crate::flows::TRANSLATED))
}
