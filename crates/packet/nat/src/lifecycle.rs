//! How flows come and go under a pinhole, and what its budget pays.

use core::{net::IpAddr, time::Duration};

use sluicegate_bounded::List;
use sluicegate_flow::{Kind, Share, Tick};
use sluicegate_wire::{Instant, Reason};

use crate::{
    borrowers::Borrowers,
    config::{EndCause, Event},
    flows::{ANSWERED, BOUND, FROM_INSIDE, Family, Flows, LASTING, NewFlow},
    rules::{Rules, account},
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
    let pinhole = rules.pinholes.at(new.owner).ok_or(Reason::NoPinhole)?;
    let user = pinhole.user;
    let user_is_full = rules.users.at(user).is_some_and(|user| user.flows >= rules.users.limits.flows_max);
    if (user_is_full || pinhole.flows >= pinhole.flows_max) && !recycle(flows, rules, now, new.owner) {
        return Err(Reason::FlowLimit);
    }
    let flow = flows.insert(now, new).ok_or(Reason::FlowTableFull)?;
    if let Some(pinhole) = rules.pinholes.at_mut(new.owner) {
        pinhole.flows += 1;
        pinhole.recent.push_back(&mut flows.links[..], flow);
    }
    if let Some(user) = rules.users.at_mut(user) {
        user.flows += 1;
    }
    if new.flags & FROM_INSIDE != 0 {
        rules.sources.add(new.inbound.src.0);
    }
    flows.schedule(now, flow, &rules.config.timers);
    Ok(flow)
}

/// Ends the oldest flow that may be recycled; `false` if there is none.
fn recycle<L: Family>(flows: &mut Flows<L>, rules: &mut Rules, now: Instant, slot: u32) -> bool {
    let Some(pinhole) = rules.pinholes.at_mut(slot) else { return false };
    if let Some(flow) = pinhole.recent.front() {
        end_flow(flows, rules, flow);
        return true;
    }
    for _ in 0..RECYCLE_TRIES {
        rules.looks += 1;
        let Some(flow) = pinhole.lasting.front() else { return false };
        let has_state = flows.line(flow).state() != State::None as u8;
        if !has_state && flows.idle(flow, now) >= RECYCLE_IDLE_MIN {
            end_flow(flows, rules, flow);
            return true;
        }
        pinhole.lasting.remove(&mut flows.links[..], flow);
        pinhole.lasting.push_back(&mut flows.links[..], flow);
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
    if let Some(pinhole) = rules.pinholes.at_mut(owner) {
        pinhole.borrowers.remove(flow);
        pinhole.flows -= 1;
        pinhole.list(notes & LASTING != 0).remove(&mut flows.links[..], flow);
        if let Some(user) = rules.users.at_mut(pinhole.user) {
            user.flows -= 1;
        }
    }
    if flags & BOUND != 0 {
        let port = tuple.external(flows.selector(flow));
        rules.bindings.leave(tuple.protocol, port, &mut rules.ports);
    }
    if flags & FROM_INSIDE != 0 {
        rules.sources.remove(tuple.src.0);
    }
    flows.free(flow);
}

/// Ends flows of a pinhole until `looks_max` has been looked at in this turn; `true`: it has none left.
pub(crate) fn end_flows<L: Family>(flows: &mut Flows<L>, rules: &mut Rules, slot: u32, looks_max: u32) -> bool {
    while let Some(pinhole) = rules.pinholes.at(slot) {
        let Some(flow) = pinhole.recent.front().or(pinhole.lasting.front()) else { return true };
        if rules.looks >= looks_max {
            return false;
        }
        end_flow(flows, rules, flow);
    }
    true
}

/// Has all flows of a pinhole's client go on from `to`, with the ports that they have; the service goes on seeing the address
/// that it knows. Pings end: the next is another flow.
pub(crate) fn move_flows<L: Family>(flows: &mut Flows<L>, rules: &mut Rules, now: Instant, slot: u32, to: IpAddr) {
    for lasting in [false, true] {
        let Some(pinhole) = rules.pinholes.at_mut(slot) else { return };
        let mut waiting = core::mem::replace(pinhole.list(lasting), List::EMPTY);
        while let Some(flow) = waiting.pop_front(&flows.links[..]) {
            rules.looks += LINES;
            let tuple = L::tuple_of(&flows.line(flow).key());
            // What turns round at the gate has another end there.
            let moves = tuple.src.0 != to && !rules.is_gate(tuple.src.0);
            if moves {
                take_back(flows, rules, flow);
            }
            let moved =
                if moves && flows.selector(flow) != Selector::Ident { flows.move_outside(flow, to) } else { Err(flow) };
            let (Ok(name) | Err(name)) = moved;
            if let Some(pinhole) = rules.pinholes.at_mut(slot) {
                if moves {
                    pinhole.borrowers.remove(flow);
                }
                pinhole.list(lasting).push_back(&mut flows.links[..], name);
            }
            flows.schedule(now, name, &rules.config.timers);
            if moves && moved.is_err() {
                end_flow(flows, rules, name);
            } else if moved.is_ok() && flows.line(name).rewrite().2 & FROM_INSIDE != 0 {
                rules.sources.remove(tuple.src.0);
                rules.sources.add(to);
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
    if let Some(pinhole) = rules.pinholes.at_mut(owner) {
        pinhole.list(lasted).remove(&mut flows.links[..], flow);
        pinhole.list(lasts).push_back(&mut flows.links[..], flow);
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
    let Some(pinhole) = rules.pinholes.at_mut(slot) else { return Err(Reason::NoPinhole) };
    if pinhole.spent {
        return Err(Reason::BudgetSpent);
    }
    if let Some(first) = pinhole.borrowers.add(index) {
        rules.looks += 1;
        take_back(flows, rules, first);
    }
    let slice = match lend(flows, rules, slot, index, len) {
        Some(slice) => slice,
        None => {
            // Other flows may hold what they do not need.
            reclaim(flows, rules, slot);
            if let Some(pinhole) = rules.pinholes.at_mut(slot) {
                pinhole.borrowers.add(index);
            }
            lend(flows, rules, slot, index, len).ok_or_else(|| spent(rules, slot))?
        }
    };
    let line = flows.table.line(index);
    let need = len.saturating_sub(line.lent().get());
    let share = &mut flows.shares[index as usize];
    let paid = if take(rules, now, slot, share, slice) { Some(slice) } else { None };
    let paid = paid.or_else(|| take(rules, now, slot, share, need).then_some(need));
    if let Some(pinhole) = rules.pinholes.at_mut(slot) {
        pinhole.budget.give_back(slice - paid.unwrap_or(0));
    }
    line.lent().add(paid.ok_or(Reason::RateExceeded)?);
    if line.spend(len, Tick::at(now)) { Ok(()) } else { Err(Reason::RateExceeded) }
}

/// A slice of the pinhole's budget, for what this packet needs more than its line holds.
fn lend<L: Family>(flows: &Flows<L>, rules: &mut Rules, slot: u32, index: u32, len: u32) -> Option<u32> {
    let need = len.saturating_sub(flows.line(index).lent().get());
    let pinhole = rules.pinholes.at_mut(slot)?;
    pinhole.budget.lend(need, pinhole.slice_max)
}

/// The budget is spent; says so once.
fn spent(rules: &mut Rules, slot: u32) -> Reason {
    let ended = rules.pinholes.at(slot).and_then(|pinhole| account(pinhole, EndCause::Spent));
    rules.pinholes.change(slot, |pinhole| pinhole.spent = true);
    if let Some(ended) = ended {
        rules.push_event(Event::Ended(ended));
    }
    Reason::BudgetSpent
}

/// Takes bytes of the rate of a pinhole and of its user, for one flow.
fn take(rules: &mut Rules, now: Instant, slot: u32, share: &mut Share, tokens: u32) -> bool {
    let Some(pinhole) = rules.pinholes.at_mut(slot) else { return false };
    if let Some(bucket) = &mut pinhole.bucket
        && !bucket.take(now, share, tokens)
    {
        return false;
    }
    let Some(user) = rules.users.at_mut(pinhole.user) else { return true };
    if user.take(now, &mut pinhole.share, tokens) {
        return true;
    }
    if let Some(bucket) = &mut pinhole.bucket {
        bucket.give_back(share, tokens);
    }
    false
}

/// Takes back what a flow holds and has not spent.
fn take_back<L: Family>(flows: &mut Flows<L>, rules: &mut Rules, flow: u32) {
    let line = flows.table.line(flow);
    let Some(pinhole) = rules.pinholes.at_mut(line.owner()) else { return };
    let lent = line.lent().reclaim();
    if lent == 0 {
        return;
    }
    pinhole.budget.give_back(lent);
    if let Some(bucket) = &mut pinhole.bucket {
        bucket.give_back(&mut flows.shares[flow as usize], lent);
    }
    if let Some(user) = rules.users.at_mut(pinhole.user) {
        user.give_back(&mut pinhole.share, lent);
    }
}

/// Takes back every slice that flows of a pinhole hold.
pub(crate) fn reclaim<L: Family>(flows: &mut Flows<L>, rules: &mut Rules, slot: u32) {
    let Some(pinhole) = rules.pinholes.at_mut(slot) else { return };
    let borrowers = core::mem::replace(&mut pinhole.borrowers, Borrowers::NONE);
    for flow in borrowers.iter() {
        rules.looks += 1;
        take_back(flows, rules, flow);
    }
}

/// What flows of a pinhole hold and have not spent.
pub(crate) fn lent<L: Family>(flows: &Flows<L>, rules: &Rules, slot: u32) -> u64 {
    let Some(pinhole) = rules.pinholes.at(slot) else { return 0 };
    pinhole.borrowers.iter().map(|flow| u64::from(flows.line(flow).lent().get())).sum()
}
