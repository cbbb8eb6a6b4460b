//! Why a packet would pass or not: the same look-ups as for a packet, in words, without any effect.

use alloc::{format, string::String, vec::Vec};
use sluicegate_flow::Kind;
use sluicegate_grant::GrantId;
use sluicegate_pinhole::{Holder, Located, Names, Tuple};
use sluicegate_wire::{Instant, Port, Reason, UnixTime, Verdict};

use crate::{
    flows::{ANSWERED, Family, Flows, TRANSLATED},
    inbound::locate,
    lifecycle::lent,
    outbound::{locate_hairpin, locate_outbound},
    rules::Rules,
    transport::{Selector, State, Transports, icmp},
};

/// A packet to ask about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// Both ends of it. ICMP means echo: no type has to be named.
    pub tuple: Tuple,
    /// The port by which it would come in.
    pub port: Port,
}

/// The answer to a [`Probe`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// What would become of the packet, TCP numbers and budget apart.
    pub verdict: Verdict,
    /// The grant it belongs to, live or ended.
    pub pinhole: Option<GrantId>,
    /// How the verdict was found, one sentence each.
    pub steps: Vec<String>,
}

/// See [`crate::Translator::explain`].
pub(crate) fn explain<L: Family>(
    flows: &Flows<L>,
    rules: &Rules,
    (now, unix): (Instant, UnixTime),
    probe: &Probe,
) -> Explanation {
    let Probe { tuple: Tuple { src, dst, .. }, port } = *probe;
    let inside = if port == Port::INSIDE { src.0 } else { dst.0 };
    if rules.pinholes.hosts.is_open(inside) {
        let steps = alloc::vec![String::from("The service is open: its packets need no grant.")];
        return Explanation { verdict: Verdict::Forward(port.opposite()), pinhole: None, steps };
    }
    let mut explanation = explain_private(flows, rules, now, probe);
    if let Some(id) = explanation.pinhole
        && let Some(slot) = rules.pinholes.table.by_id(id)
        && let Some(pinhole) = rules.pinholes.table.at(slot)
    {
        let seal = rules.pinholes.macs.seals.at(slot);
        explanation.steps.extend(pinhole.explain(seal, (now, unix), lent(flows, rules, slot)));
    }
    explanation
}

fn explain_private<L: Family>(flows: &Flows<L>, rules: &Rules, now: Instant, probe: &Probe) -> Explanation {
    let from_inside = probe.port == Port::INSIDE;
    let kind = if from_inside { Kind::Outbound } else { Kind::Inbound };
    let to = if from_inside && !rules.pinholes.is_gate(probe.tuple.dst.0) { Port::OUTSIDE } else { Port::INSIDE };
    for tuple in tuples(rules.transports, &probe.tuple).into_iter().flatten() {
        if let Some(index) = flows.find(kind, &tuple) {
            return explain_line(rules, flows, now, index, to);
        }
    }
    let mut steps = alloc::vec![String::from("No flow has this packet: it would have to start one.")];
    let Some(tuple) = tuples(rules.transports, &probe.tuple)[0] else {
        steps.push(String::from(Reason::ProtocolUnsupported.explanation()));
        return Explanation { verdict: Verdict::Drop(Reason::ProtocolUnsupported), pinhole: None, steps };
    };
    let located =
        if from_inside { locate_from_inside(rules, now, &tuple) } else { locate(rules, now, &tuple, Names::NONE) };
    let (slot, verdict) = match located {
        Ok(slot) => (Some(slot), admitted(rules, slot, to, from_inside)),
        Err((reason, slot)) => (slot, Verdict::Drop(reason)),
    };
    if let Verdict::Drop(reason) = verdict {
        steps.push(String::from(reason.explanation()));
        if rules.pinholes.observe && slot.is_none() {
            steps.push(String::from("Observe mode is on: for a `filter` service it would be counted and forwarded."));
        }
    } else {
        steps.push(String::from("A pinhole admits it."));
    }
    let pinhole = slot.and_then(|slot| rules.pinholes.table.at(slot));
    if let Some(pinhole) = pinhole {
        steps.push(pinhole.describe());
    }
    Explanation { verdict, pinhole: pinhole.and_then(|pinhole| Some(pinhole.grant()?.id)), steps }
}

/// What stands in the way of a new flow under a pinhole that is open.
fn admitted(rules: &Rules, slot: u32, to: Port, from_inside: bool) -> Verdict {
    let Some(pinhole) = rules.pinholes.table.at(slot) else { return Verdict::Drop(Reason::NoPinhole) };
    if from_inside {
        return Verdict::Forward(to);
    }
    if let Some(reason) = rules.pinholes.macs.unprovable(slot, pinhole.protocol) {
        return Verdict::Drop(reason);
    }
    if pinhole.spent { Verdict::Drop(Reason::BudgetSpent) } else { Verdict::Forward(to) }
}

fn locate_from_inside(rules: &Rules, now: Instant, tuple: &Tuple) -> Located {
    let Some(host) = rules.pinholes.hosts.find(tuple.src.0) else { return Err((Reason::AddressInvalid, None)) };
    if rules.pinholes.is_gate(tuple.dst.0) {
        return locate_hairpin(rules, now, tuple, Names::NONE);
    }
    if rules.pinholes.hosts.find(tuple.dst.0).is_some() {
        return Err((Reason::NotForService, None));
    }
    locate_outbound(rules, now, tuple, &host)
}

/// The packets that a probe may mean: an echo is a request or a reply.
fn tuples(transports: &Transports, asked: &Tuple) -> [Option<Tuple>; 2] {
    let Tuple { protocol, src, dst } = *asked;
    match transports.of(protocol).map(|transport| transport.selector) {
        Some(Selector::Ident) => {
            icmp::echo_types(protocol).map(|kind| Some(Tuple { protocol, src, dst: (dst.0, kind) }))
        }
        Some(Selector::Ports) => [Some(*asked), None],
        Some(Selector::None) => [Some(Tuple { protocol, src: (src.0, 0), dst: (dst.0, 0) }), None],
        None => [None, None],
    }
}

fn explain_line<L: Family>(rules: &Rules, flows: &Flows<L>, now: Instant, index: u32, to: Port) -> Explanation {
    let line = flows.line(index);
    let (address, port, flags) = line.rewrite();
    let state = match State::from_code(line.state()) {
        State::None if line.notes() & ANSWERED != 0 => "answered",
        State::None => "not answered",
        state => state.label(),
    };
    let idle = line.seen().age(now);
    let translated = (flags & TRANSLATED != 0).then(|| (L::unpack(address), port));
    let mut steps = alloc::vec![format!("A flow has this packet: {state}, last packet {} s ago.", idle.as_secs())];
    if let Some((address, port)) = translated {
        steps.push(match flows.selector(index) {
            Selector::Ident => format!("It is translated to {address}, identifier {port}."),
            Selector::Ports => format!("It is translated to {address} port {port}."),
            Selector::None => format!("It is translated to {address}."),
        });
    }
    let pinhole = rules.pinholes.table.at(line.owner());
    let verdict = admitted(rules, line.owner(), to, to == Port::OUTSIDE);
    if let Some(Holder::Service) = pinhole.map(|pinhole| &pinhole.holder) {
        steps.push(String::from("The service started it."));
    }
    Explanation { verdict, pinhole: pinhole.and_then(|pinhole| Some(pinhole.grant()?.id)), steps }
}
