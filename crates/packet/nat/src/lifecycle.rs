//! How flows come and go under a pinhole, and what its budget pays.

use core::{net::IpAddr, time::Duration};

use sluicegate_bounded::List;
use sluicegate_flow::{Kind, Tick};
use sluicegate_wire::{Instant, Port, Reason};

use crate::{
    flows::{ANSWERED, BOUND, CHARGED, FROM_INSIDE, Family, Flows, LASTING, NewFlow},
    owner::Borrowers,
    rewrite::Rewrite,
    rules::Rules,
    transport::{Selector, State, Transport},
};

/// How long an answered UDP or ICMP flow must be silent before a new flow of the same grant may take its place.
const RECYCLE_IDLE_MIN: Duration = Duration::from_secs(10);
/// How many answered flows are looked at for that.
const RECYCLE_TRIES: usize = 4;
/// Lines of one flow.
pub(crate) const LINES: u32 = 2;

/// Makes the lines of a new flow, if need be in place of an older flow of the same pinhole.
///
/// # Errors
/// [`Reason::FlowLimit`], [`Reason::FlowTableFull`], or [`Reason::TcpState`] if the same ends are already connected
/// through another pinhole.
pub(crate) fn establish<L: Family>(
    flows: &mut Flows<L>,
    rules: &mut Rules,
    now: Instant,
    new: &NewFlow,
) -> Result<u32, Reason> {
    for (kind, tuple) in [(Kind::Inbound, &new.inbound), (Kind::Outbound, &new.outbound)] {
        if let Some(index) = flows.find(kind, tuple) {
            // The newest grant wins, except over a connection that stands.
            let other = flows.flow_of(index);
            if State::from_code(flows.line(other).state()).is_lasting() {
                return Err(Reason::TcpState);
            }
            end_flow(flows, rules, other);
        }
    }
    rules.pinholes.table.at(new.owner).ok_or(Reason::NoPinhole)?;
    if !rules.pinholes.has_room(new.owner) && !recycle(flows, rules, now, new.owner) {
        return Err(Reason::FlowLimit);
    }
    let flow = flows.insert(now, new).ok_or(Reason::FlowTableFull)?;
    rules.pinholes.join(new.owner);
    if let Some(owner) = rules.owner_mut(new.owner) {
        owner.recent.push_back(&mut flows.links[..], flow);
    }
    if new.flags & FROM_INSIDE != 0 {
        rules.pinholes.sources.add(new.inbound.src.0);
    }
    flows.schedule(now, flow, &rules.config.timers);
    Ok(flow)
}

/// Ends the oldest flow that may be recycled; `false` if there is none.
fn recycle<L: Family>(flows: &mut Flows<L>, rules: &mut Rules, now: Instant, slot: u32) -> bool {
    if let Some(flow) = rules.owner(slot).and_then(|owner| owner.recent.front()) {
        end_flow(flows, rules, flow);
        return true;
    }
    for _ in 0..RECYCLE_TRIES {
        rules.looks += 1;
        let Some(owner) = rules.owner_mut(slot) else { return false };
        let Some(flow) = owner.lasting.front() else { return false };
        let has_state = flows.line(flow).state() != State::None as u8;
        if !has_state && flows.idle(flow, now) >= RECYCLE_IDLE_MIN {
            end_flow(flows, rules, flow);
            return true;
        }
        owner.lasting.remove(&mut flows.links[..], flow);
        owner.lasting.push_back(&mut flows.links[..], flow);
    }
    false
}

/// Frees a flow, its binding if it was the last, and gives back what its line was lent.
pub(crate) fn end_flow<L: Family>(flows: &mut Flows<L>, rules: &mut Rules, flow: u32) {
    rules.looks += LINES;
    take_back(flows, rules, flow);
    let line = flows.line(flow);
    let (owner, notes, (_, _, flags)) = (line.owner(), line.notes(), line.rewrite());
    let tuple = L::tuple_of(&line.key());
    rules.pinholes.leave(owner);
    if let Some(owner) = rules.owner_mut(owner) {
        owner.borrowers.remove(flow);
        owner.list(notes & LASTING != 0).remove(&mut flows.links[..], flow);
    }
    if flags & BOUND != 0 {
        let port = flows.selector(flow).external(&tuple);
        rules.bindings.leave(tuple.protocol, port, &mut rules.ports);
    }
    if flags & FROM_INSIDE != 0 {
        rules.pinholes.sources.remove(tuple.src.0);
    }
    flows.free(flow);
}

/// Ends flows of a pinhole until `looks_max` has been looked at in this turn; `true`: it has none left.
pub(crate) fn end_flows<L: Family>(flows: &mut Flows<L>, rules: &mut Rules, slot: u32, looks_max: u32) -> bool {
    while let Some(owner) = rules.owner(slot) {
        let Some(flow) = owner.recent.front().or(owner.lasting.front()) else { return true };
        if rules.looks >= looks_max {
            return false;
        }
        end_flow(flows, rules, flow);
    }
    true
}

/// Ends flows that were idle for too long, among `flows_max` that may be.
pub(crate) fn end_idle<L: Family>(flows: &mut Flows<L>, rules: &mut Rules, now: Instant, flows_max: usize) {
    let timers = rules.config.timers;
    let mut looks = flows_max;
    while let Some(flow) = flows.pop_idle(now, &timers, &mut looks) {
        end_flow(flows, rules, flow);
        // Counted once, below.
        rules.looks -= LINES;
    }
    rules.looks += (flows_max - looks) as u32 * LINES;
}

/// Has all flows of a pinhole's client go on from `to`, with the ports that they have; the service goes on seeing the address
/// that it knows. Pings end: the next is another flow.
pub(crate) fn move_flows<L: Family>(flows: &mut Flows<L>, rules: &mut Rules, now: Instant, slot: u32, to: IpAddr) {
    for lasting in [false, true] {
        let Some(owner) = rules.owner_mut(slot) else { return };
        let mut waiting = core::mem::replace(owner.list(lasting), List::EMPTY);
        while let Some(flow) = waiting.pop_front(&flows.links[..]) {
            rules.looks += LINES;
            let tuple = L::tuple_of(&flows.line(flow).key());
            // What turns round at the gate has another end there.
            let moves = tuple.src.0 != to && !rules.pinholes.is_gate(tuple.src.0);
            if moves {
                take_back(flows, rules, flow);
            }
            let moved =
                if moves && flows.selector(flow) != Selector::Ident { flows.move_outside(flow, to) } else { Err(flow) };
            let (Ok(name) | Err(name)) = moved;
            if let Some(owner) = rules.owner_mut(slot) {
                if moves {
                    owner.borrowers.remove(flow);
                }
                owner.list(lasting).push_back(&mut flows.links[..], name);
            }
            flows.schedule(now, name, &rules.config.timers);
            if moves && moved.is_err() {
                end_flow(flows, rules, name);
            } else if moved.is_ok() && flows.line(name).rewrite().2 & FROM_INSIDE != 0 {
                rules.pinholes.sources.remove(tuple.src.0);
                rules.pinholes.sources.add(to);
            }
        }
    }
}

/// Puts a flow whose state or notes changed into the list and under the timer where it now belongs.
pub(crate) fn settle<L: Family>(flows: &mut Flows<L>, rules: &mut Rules, now: Instant, flow: u32) {
    let line = flows.line(flow);
    let (state, notes, owner) = (State::from_code(line.state()), line.notes(), line.owner());
    let is_tracked = flows.transport(flow).is_some_and(Transport::is_tracked);
    let lasts = if is_tracked { state.is_lasting() } else { notes & ANSWERED != 0 };
    let lasted = notes & LASTING != 0;
    if lasts == lasted {
        return;
    }
    if let Some(owner) = rules.owner_mut(owner) {
        owner.list(lasted).remove(&mut flows.links[..], flow);
        owner.list(lasts).push_back(&mut flows.links[..], flow);
    }
    flows.set_state(flow, state, if lasts { notes | LASTING } else { notes & !LASTING });
    if !lasts {
        // The shorter timer starts now; the longer one is found when the shorter ends.
        flows.schedule(now, flow, &rules.config.timers);
    }
}

/// Pays for `len` bytes of an inbound line: from its slice, or with a new slice from the pinhole.
///
/// # Errors
/// [`Reason::BudgetSpent`], [`Reason::RateExceeded`].
#[inline]
pub(crate) fn charge<L: Family>(
    flows: &mut Flows<L>,
    rules: &mut Rules,
    now: Instant,
    index: u32,
    len: u32,
) -> Result<(), Reason> {
    if !flows.line(index).spend(len, Tick::at(now)) {
        charge_pinhole(flows, rules, now, index, len)?;
    }
    let line = flows.line(index);
    rules.paid = Some(Paid { is_ipv4: L::IS_IPV4, index, generation: line.generation(), len });
    Ok(())
}

/// Pays for a later fragment of a packet, by the line that paid for the first.
///
/// # Errors
/// As [`charge`]; [`Reason::NoPinhole`] if the flow has ended since.
pub(crate) fn pay<L: Family>(
    flows: &mut Flows<L>,
    rules: &mut Rules,
    now: Instant,
    rewrite: &Rewrite,
    len: u32,
) -> Result<(), Reason> {
    let Some(line) = rewrite.line else { return Ok(()) };
    if flows.line(line.index).generation() != line.generation {
        return Err(Reason::NoPinhole);
    }
    let (_, _, flags) = flows.line(line.index).rewrite();
    if rewrite.to != Port::INSIDE || flags & CHARGED == 0 {
        return Ok(());
    }
    charge(flows, rules, now, line.index, len).or_else(|reason| rules.pinholes.waive(reason))
}

/// What a line paid for a packet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Paid {
    pub(crate) is_ipv4: bool,
    index: u32,
    generation: u32,
    len: u32,
}

/// Gives a line back what it paid, if the flow is still the same.
pub(crate) fn refund<L: Family>(flows: &Flows<L>, paid: &Paid) {
    let line = flows.line(paid.index);
    if line.generation() == paid.generation {
        line.lent().add(paid.len);
    }
}

#[cold]
fn charge_pinhole<L: Family>(
    flows: &mut Flows<L>,
    rules: &mut Rules,
    now: Instant,
    index: u32,
    len: u32,
) -> Result<(), Reason> {
    let slot = flows.line(index).owner();
    let Some(pinhole) = rules.pinholes.table.at(slot) else { return Err(Reason::NoPinhole) };
    if pinhole.spent {
        return Err(Reason::BudgetSpent);
    }
    let first = rules.owner_mut(slot).and_then(|owner| owner.borrowers.add(index));
    if let Some(first) = first {
        rules.looks += 1;
        take_back(flows, rules, first);
    }
    let need = len.saturating_sub(flows.line(index).lent().get());
    let (slice, need) = match rules.pinholes.lend(slot, need) {
        Some(slice) => (slice, need),
        None => {
            // Other flows may hold what they do not need.
            reclaim(flows, rules, slot);
            if let Some(owner) = rules.owner_mut(slot) {
                owner.borrowers.add(index);
            }
            let need = len.saturating_sub(flows.line(index).lent().get());
            (rules.pinholes.lend(slot, need).ok_or_else(|| rules.pinholes.spend_all(slot))?, need)
        }
    };
    let line = flows.table.line(index);
    let paid = rules.pinholes.pay(now, slot, &mut flows.shares[index as usize], slice, need)?;
    line.lent().add(paid);
    if line.spend(len, Tick::at(now)) { Ok(()) } else { Err(Reason::RateExceeded) }
}

/// Takes back what a flow holds and has not spent.
fn take_back<L: Family>(flows: &mut Flows<L>, rules: &mut Rules, flow: u32) {
    let line = flows.table.line(flow);
    let lent = line.lent().reclaim();
    if lent != 0 {
        rules.pinholes.give_back(line.owner(), &mut flows.shares[flow as usize], lent);
    }
}

/// Takes back every slice that flows of a pinhole hold.
pub(crate) fn reclaim<L: Family>(flows: &mut Flows<L>, rules: &mut Rules, slot: u32) {
    let Some(owner) = rules.owner_mut(slot) else { return };
    let borrowers = core::mem::replace(&mut owner.borrowers, Borrowers::NONE);
    for flow in borrowers.iter() {
        rules.looks += 1;
        take_back(flows, rules, flow);
    }
}

/// What flows of a pinhole hold and have not spent.
pub(crate) fn lent<L: Family>(flows: &Flows<L>, rules: &Rules, slot: u32) -> u64 {
    let Some(owner) = rules.owner(slot) else { return 0 };
    owner.borrowers.iter().map(|flow| u64::from(flows.line(flow).lent().get())).sum()
}
