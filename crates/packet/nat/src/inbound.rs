//! Packets from outside.

use core::time::Duration;

use sluicegate_flow::{FlowLine, Kind};
use sluicegate_grant::mac::TRAILER_LEN;
use sluicegate_pinhole::{Evidence, Found, Located, Names, Pinhole, Proof, Tuple, names};
use sluicegate_wire::{Instant, Port, Reason};

use crate::{
    aside::Seldom,
    flows::{
        ANCHORED, ANSWERED, CHARGED, FROM_INSIDE, Family, Flows, GUARDED, MOVED, NewFlow, TRANSLATED, UNHEARD, WAITING,
    },
    lifecycle::{charge, establish, settle},
    ports::Holder,
    rewrite::{LineRef, NewEnds, Rewrite},
    rules::Rules,
    transport::{
        Packet, Segment, Selector, Signal, State, Tracking,
        tcp::{self, Attempt, Connection, Resync},
    },
};

/// For so long after its last word nobody opens the same connection with other numbers.
const OPENING: Duration = Duration::from_secs(1);

/// Decides about a packet from outside and keeps account of it.
///
/// Costs one hash and one line for an established UDP flow, two lines for TCP; under a grant that demands packet MACs also
/// its entry beside the pinholes and one hash over the datagram.
#[inline]
pub(crate) fn inbound<L: Family>(
    flows: &mut Flows<L>,
    rules: &mut Rules,
    now: Instant,
    packet: &Packet<'_>,
    evidence: &Evidence<'_>,
) -> Result<Rewrite, Reason> {
    // Only what turns round at the gate comes from its address, and that does not come in here: nobody outside may use the
    // lines of it.
    if rules.pinholes.is_gate(packet.tuple.src.0) {
        return Err(Reason::AddressInvalid);
    }
    // A closed port needs no look-up: what a flood hits most costs least.
    let found = if is_closed(rules, packet) { None } else { flows.find(Kind::Inbound, &packet.tuple) };
    match found {
        Some(index) => follow(flows, rules, now, index, packet, evidence),
        None => match open_from_outside(flows, rules, now, packet, evidence)? {
            Some((index, strip)) => {
                let passage = pass(flows, rules, now, index, packet, evidence, Kind::Inbound)?;
                Ok(Rewrite { strip, ..passage })
            }
            None => Ok(Rewrite::unchanged(Port::INSIDE)),
        },
    }
}

/// Lets a packet from outside through by its line, if it proves what the line's grant demands.
#[inline]
pub(crate) fn follow<L: Family>(
    flows: &mut Flows<L>,
    rules: &mut Rules,
    now: Instant,
    index: u32,
    packet: &Packet<'_>,
    evidence: &Evidence<'_>,
) -> Result<Rewrite, Reason> {
    let (flags, owner) = (flows.line(index).rewrite().2, flows.line(index).owner());
    // Where nothing is translated, all pinholes of a client have the same line.
    let is_shared = flags & TRANSLATED == 0;
    let rightful = if is_shared { rules.pinholes.rightful(now, &packet.tuple, evidence, owner) } else { None };
    let (index, strip) = match rightful {
        Some(slot) => open_inbound(flows, rules, now, packet, slot, evidence)?,
        None => (index, flags & GUARDED != 0 && rules.pinholes.prove(owner, &packet.tuple, evidence)?.strip),
    };
    let passage = pass(flows, rules, now, index, packet, evidence, Kind::Inbound)?;
    Ok(Rewrite { strip, ..passage })
}

/// Whether nobody holds the gate's port that a packet is for, so that no line can know it.
#[inline]
fn is_closed(rules: &Rules, packet: &Packet<'_>) -> bool {
    let (address, port) = packet.tuple.dst;
    packet.transport.selector == Selector::Ports
        && rules.pinholes.is_gate(address)
        && rules.ports.holder(packet.tuple.protocol, port).is_none()
}

/// What a packet does to its flow besides the time and the budget.
enum Step {
    Nothing,
    /// New numbers of both halves, and maybe another state.
    Numbers(Connection),
    /// A SYN that counts when the other side answers it.
    Attempt(Attempt),
    /// Another state.
    State(State),
}

/// Lets a packet through by its line: window, budget, timers.
#[inline]
pub(crate) fn pass<L: Family>(
    flows: &mut Flows<L>,
    rules: &mut Rules,
    now: Instant,
    index: u32,
    packet: &Packet<'_>,
    evidence: &Evidence<'_>,
    from: Kind,
) -> Result<Rewrite, Reason> {
    let to = if from == Kind::Inbound { Port::INSIDE } else { Port::OUTSIDE };
    let line = flows.line(index);
    let seal = if from == Kind::Outbound { sealer(rules, line, packet)? } else { None };
    let added = if seal.is_some() { TRAILER_LEN } else { 0 };
    if packet.ip.dont_fragment && !rules.fits(packet.ip.total_len + added, to) {
        // Answered, if its grant has not had its share of answers.
        let is_answered = rules.pinholes.admit_error_of(now, line.owner());
        return Err(if is_answered { Reason::PacketTooBig } else { Reason::IcmpRate });
    }
    let (address, port, flags) = line.rewrite();
    let is_answer = (flags & FROM_INSIDE != 0) == (from == Kind::Inbound) && line.notes() & ANSWERED == 0;
    let step = match &packet.signal {
        // A translator where the client is now knows nothing of the connection before the client has said something there,
        // and resets what it does not know.
        Signal::Tcp(segment) if segment.is_reset() && from == Kind::Inbound && line.notes() & UNHEARD != 0 => {
            rules.pinholes.waive(Reason::TcpState).map(|()| Step::Nothing)?
        }
        Signal::Tcp(segment) => match judge(flows, now, index, segment, from) {
            Ok((step, moves)) => {
                if moves {
                    packet.verify(evidence.bytes)?;
                }
                step
            }
            Err(reason) => rules.pinholes.waive(reason).map(|()| Step::Nothing)?,
        },
        Signal::Typed(kind) => match judge_type(line.state(), packet, *kind, from) {
            Ok(Step::Nothing) => Step::Nothing,
            Ok(step) => packet.verify(evidence.bytes).map(|()| step)?,
            Err(reason) => rules.pinholes.waive(reason).map(|()| Step::Nothing)?,
        },
        Signal::None | Signal::Error => Step::Nothing,
    };
    if is_answer {
        packet.verify(evidence.bytes)?;
    }
    if flags & CHARGED == 0 || from == Kind::Outbound {
        flows.line(index).touch(sluicegate_flow::Tick::at(now));
    } else if let Err(reason) = charge(flows, rules, now, index, packet.len()) {
        rules.pinholes.waive(reason)?;
    }
    match step {
        Step::Nothing => {}
        Step::Numbers(next) => take(flows, rules, now, index, &next),
        Step::Attempt(attempt) => flows.asides.set_attempt(flows.flow_of(index), Some(attempt)),
        Step::State(state) => {
            let flow = flows.flow_of(index);
            flows.set_state(flow, state, flows.line(flow).notes());
            settle(flows, rules, now, flow);
        }
    }
    let line = flows.line(index);
    if from == Kind::Inbound && line.notes() & UNHEARD != 0 {
        flows.set_state(flows.flow_of(index), State::from_code(line.state()), line.notes() & !UNHEARD);
    }
    if is_answer {
        let flow = flows.flow_of(index);
        flows.set_state(flow, State::from_code(line.state()), line.notes() | ANSWERED);
        settle(flows, rules, now, flow);
    }
    let line = flows.line(index);
    let translated = (flags & TRANSLATED != 0).then(|| (L::unpack(address), port));
    let moved = (line.notes() & MOVED != 0).then(|| flows.outside_of_peer(index));
    let (src, dst) = if from == Kind::Inbound { (moved, translated) } else { (translated, moved) };
    let ends = NewEnds { src, dst };
    Ok(Rewrite { to, ends, strip: false, seal, line: Some(LineRef { index, generation: line.generation() }) })
}

/// The pinhole under whose key a packet from inside gets a trailer, if one does.
///
/// # Errors
/// [`Reason::MacMissing`] for a fragment: a trailer covers a whole datagram, and the rest of this one is elsewhere.
#[inline]
fn sealer<L: FlowLine>(rules: &mut Rules, line: &L, packet: &Packet<'_>) -> Result<Option<u32>, Reason> {
    let slot = line.owner();
    if line.rewrite().2 & GUARDED == 0 || !packet.is_udp() || !rules.pinholes.macs.seals_answers(slot) {
        return Ok(None);
    }
    if packet.ip.fragment.is_some() {
        return rules.pinholes.waive(Reason::MacMissing).map(|()| None);
    }
    Ok(Some(slot))
}

/// What a segment does to its connection, and whether that changes more than its numbers.
#[inline]
fn judge<L: Family>(
    flows: &mut Flows<L>,
    now: Instant,
    index: u32,
    segment: &Segment,
    from: Kind,
) -> Result<(Step, bool), Reason> {
    let line = flows.line(index);
    let before = connection(line, flows.line(line.peer()));
    if segment.is_rare() {
        return judge_rare(flows, now, index, &before, segment, from).map(|step| (step, true));
    }
    let next = tcp::judge(from, &before, segment)?;
    Ok((Step::Numbers(next), (before.state, before.resync) != (next.state, next.resync)))
}

/// What a packet does to a connection whose packets have types.
fn judge_type(state: u8, packet: &Packet<'_>, kind: u8, from: Kind) -> Result<Step, Reason> {
    let Tracking::ByType(advance) = packet.transport.tracking else { return Ok(Step::Nothing) };
    let state = State::from_code(state);
    let next = advance(state, from, kind)?;
    Ok(if next == state { Step::Nothing } else { Step::State(next) })
}

/// As [`judge`], for a segment with SYN or RST.
#[cold]
fn judge_rare<L: Family>(
    flows: &mut Flows<L>,
    now: Instant,
    index: u32,
    before: &Connection,
    segment: &Segment,
    from: Kind,
) -> Result<Step, Reason> {
    let flow = flows.flow_of(index);
    if let Some(attempt) = tcp::attempt(from, before, segment) {
        let stands = !matches!(before.state, State::Closing | State::Reset);
        // Hosts end a connection that they have answered but not seen opened at the sight of another SYN.
        let is_opening = matches!(before.state, State::SynIn | State::SynOut | State::AnsweredIn | State::AnsweredOut);
        if is_opening && flows.line(index).seen().age(now) < OPENING {
            return Err(Reason::TcpState);
        }
        if stands && !flows.asides.admit(now, flow, Seldom::syn(from)) {
            return Err(Reason::TcpState);
        }
        return Ok(Step::Attempt(attempt));
    }
    tcp::judge(from, before, segment).map(Step::Numbers).or_else(|reason| {
        let attempt = flows.asides.attempt(flow);
        let next = attempt.and_then(|attempt| attempt.answered(from, segment)).ok_or(reason)?;
        Ok(Step::Numbers(next))
    })
}

/// Writes what a segment changed.
#[inline]
fn take<L: Family>(flows: &mut Flows<L>, rules: &mut Rules, now: Instant, index: u32, next: &Connection) {
    let line = flows.line(index);
    let before = connection(line, flows.line(line.peer()));
    line.set_tcp(&next.own);
    flows.line(line.peer()).set_tcp(&next.peer);
    if (before.state, before.resync) != (next.state, next.resync) {
        flows.asides.set_attempt(flows.flow_of(index), None);
        change(flows, rules, now, index, next);
    }
}

#[inline]
fn connection<L: FlowLine>(own: &L, peer: &L) -> Connection {
    let notes = own.notes();
    let resync = match (notes & WAITING != 0, notes & ANCHORED != 0) {
        (false, false) => Resync::Done,
        (true, _) => Resync::Waiting,
        (false, true) => Resync::Anchored,
    };
    Connection { state: State::from_code(own.state()), resync, own: own.tcp(), peer: peer.tcp() }
}

#[cold]
fn change<L: Family>(flows: &mut Flows<L>, rules: &mut Rules, now: Instant, index: u32, next: &Connection) {
    let flow = flows.flow_of(index);
    let notes = flows.line(flow).notes() & !(WAITING | ANCHORED);
    let notes = match next.resync {
        Resync::Done => notes,
        Resync::Waiting => notes | WAITING,
        Resync::Anchored => notes | ANCHORED,
    };
    flows.set_state(flow, next.state, notes);
    settle(flows, rules, now, flow);
}

/// The pinhole for a packet from outside that no line knows.
pub(crate) fn locate(rules: &Rules, now: Instant, tuple: &Tuple, names: Names) -> Located {
    let pinholes = &rules.pinholes;
    if !pinholes.is_gate(tuple.dst.0) {
        return pinholes.locate_filtered(now, tuple, names);
    }
    let found = match rules.ports.holder(tuple.protocol, tuple.dst.1) {
        _ if rules.transports.selector(tuple.protocol) != Selector::Ports => {
            pinholes.table.by_inbound(now, tuple, names)
        }
        Some(Holder::Pinhole(slot)) => match pinholes.table.at(slot) {
            Some(pinhole) if !pinhole.admits_inbound(tuple) => Found::Nothing,
            Some(pinhole) if pinhole.is_open(now) => Found::Open(slot),
            Some(_) => Found::Closed(slot),
            None => Found::Nothing,
        },
        Some(Holder::Binding(_)) | None => Found::Nothing,
    };
    pinholes.opened(now, found)
}

/// Makes the flow of a packet that no line knows, and says whether it carries a trailer. `None`: a `filter` service in observe mode, forwarded all the same.
#[inline(never)]
fn open_from_outside<L: Family>(
    flows: &mut Flows<L>,
    rules: &mut Rules,
    now: Instant,
    packet: &Packet<'_>,
    evidence: &Evidence<'_>,
) -> Result<Option<(u32, bool)>, Reason> {
    packet.ip.check_addresses()?;
    rules.pinholes.check_source(packet.tuple.src.0)?;
    // Its own client id says best whose it is, and it may be what proves where its client is.
    let located = match rules.pinholes.claimed(now, &packet.tuple, evidence) {
        Some(slot)
            if rules.pinholes.table.at(slot).is_some_and(|pinhole| pinhole.protocol == packet.tuple.protocol) =>
        {
            Ok(slot)
        }
        _ => locate(rules, now, &packet.tuple, names(evidence)),
    };
    let result =
        located.map_err(|(reason, _)| reason).and_then(|slot| open_inbound(flows, rules, now, packet, slot, evidence));
    match result {
        Ok(opened) => Ok(Some(opened)),
        // Without a translation there is nothing to forward; what the packet itself lacks is no policy either.
        Err(reason) if !rules.pinholes.is_gate(packet.tuple.dst.0) && reason != Reason::NotForService => {
            rules.pinholes.waive(reason).map(|()| None)
        }
        Err(reason) => Err(reason),
    }
}

/// Makes the flow of an admitted packet that proves what the grant demands; `true`: by a trailer.
pub(crate) fn open_inbound<L: Family>(
    flows: &mut Flows<L>,
    rules: &mut Rules,
    now: Instant,
    packet: &Packet<'_>,
    slot: u32,
    evidence: &Evidence<'_>,
) -> Result<(u32, bool), Reason> {
    check_opens(packet, Reason::NoPinhole)?;
    let pinhole = rules.pinholes.table.at(slot).ok_or(Reason::NoPinhole)?;
    if pinhole.spent {
        return Err(Reason::BudgetSpent);
    }
    packet.verify(evidence.bytes)?;
    let tuple = packet.tuple;
    let port = if pinhole.has_ports { pinhole.target_port(tuple.dst.1) } else { tuple.dst.1 };
    let outbound = packet.transport.selector.reversed(&Tuple { dst: (pinhole.target, port), ..tuple });
    let new = NewFlow { owner: slot, inbound: tuple, outbound, flags: flags_of(pinhole) };
    let proof = if new.flags & GUARDED != 0 { rules.pinholes.prove(slot, &tuple, evidence)? } else { Proof::NONE };
    if !rules.pinholes.is_client(slot, tuple.src.0) {
        if !proof.sealed {
            return Err(Reason::NoPinhole);
        }
        rules.pinholes.move_client(slot, tuple.src.0);
    }
    let strip = proof.strip;
    let flow = establish(flows, rules, now, &new)?;
    start(flows, flow, Kind::Inbound, packet);
    Ok((flow, strip))
}

/// The flags that lines under this pinhole have.
pub(crate) fn flags_of(pinhole: &Pinhole) -> u16 {
    let flag = |on: bool, flag: u16| if on { flag } else { 0 };
    flag(!pinhole.filter, TRANSLATED) | flag(pinhole.is_charged(), CHARGED) | flag(pinhole.is_guarded(), GUARDED)
}

/// Whether a flow may begin with this packet; if not, `closed` where its protocol keeps no state.
pub(crate) const fn check_opens(packet: &Packet<'_>, closed: Reason) -> Result<(), Reason> {
    match packet.opens {
        true => Ok(()),
        false if packet.transport.is_tracked() => Err(Reason::TcpState),
        false => Err(closed),
    }
}

/// Writes the first numbers of a new connection. Where types of packets tell, the packet itself does, as it passes.
pub(crate) fn start<L: Family>(flows: &Flows<L>, flow: u32, from: Kind, packet: &Packet<'_>) {
    if let Signal::Tcp(segment) = &packet.signal {
        let connection = tcp::open(from, segment);
        let (inside, outside) =
            if from == Kind::Inbound { (connection.own, connection.peer) } else { (connection.peer, connection.own) };
        let line = flows.line(flow);
        line.set_tcp(&inside);
        flows.line(line.peer()).set_tcp(&outside);
        flows.set_state(flow, connection.state, 0);
    }
}
