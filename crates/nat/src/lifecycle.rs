//! How flows come and go under a pinhole, and what its budget pays.

use core::time::Duration;

use sluicegate_flow::{Key, Kind, NO_LINE, Tick};
use sluicegate_wire::{Instant, IpProtocol, Reason};

use crate::{
    config::{EndCause, Event},
    flows::{ANSWERED, BOUND, FROM_INSIDE, Family, Flows, LASTING, NewFlow, is_echo},
    rules::{Rules, account},
    tcp::State,
};

/// How long an answered UDP or ICMP flow must be silent before a new flow of the same grant may take its place.
const RECYCLE_IDLE_MIN: Duration = Duration::from_secs(10);
/// How many answered flows are looked at for that.
const RECYCLE_TRIES: usize = 4;

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
    if pinhole.flows >= pinhole.flows_max && !recycle(flows, rules, now, new.owner) {
        return Err(Reason::FlowLimit);
    }
    let flow = flows.insert(now, new).ok_or(Reason::FlowTableFull)?;
    if let Some(pinhole) = rules.pinholes.at_mut(new.owner) {
        pinhole.flows += 1;
        flows.push_back(&mut pinhole.recent, flow);
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
    if pinhole.recent.head != NO_LINE {
        let flow = pinhole.recent.head;
        end_flow(flows, rules, flow);
        return true;
    }
    for _ in 0..RECYCLE_TRIES {
        let flow = pinhole.lasting.head;
        if flow == NO_LINE {
            return false;
        }
        let is_tcp = flows.line(flow).state() != State::None as u8;
        if !is_tcp && flows.idle(flow, now) >= RECYCLE_IDLE_MIN {
            end_flow(flows, rules, flow);
            return true;
        }
        flows.unlink(&mut pinhole.lasting, flow);
        flows.push_back(&mut pinhole.lasting, flow);
    }
    false
}

/// Frees a flow, its binding if it was the last, and gives back what its line was lent.
pub(crate) fn end_flow<L: Family>(flows: &mut Flows<L>, rules: &mut Rules, flow: u32) {
    let line = flows.line(flow);
    let (owner, lent, notes, (_, _, flags)) = (line.owner(), line.lent(), line.notes(), line.rewrite());
    let tuple = L::tuple_of(&line.key());
    if let Some(pinhole) = rules.pinholes.at_mut(owner) {
        pinhole.budget.give_back(lent);
        pinhole.flows -= 1;
        flows.unlink(pinhole.list(notes & LASTING != 0), flow);
    }
    if flags & BOUND != 0 {
        let port = if is_echo(tuple.protocol) { tuple.src.1 } else { tuple.dst.1 };
        rules.bindings.leave(tuple.protocol, port, &mut rules.ports);
    }
    if flags & FROM_INSIDE != 0 {
        rules.sources.remove(tuple.src.0);
    }
    flows.free(flow);
}

/// Ends all flows of a pinhole.
pub(crate) fn end_flows<L: Family>(flows: &mut Flows<L>, rules: &mut Rules, slot: u32) {
    while let Some(pinhole) = rules.pinholes.at(slot) {
        let flow = if pinhole.recent.head == NO_LINE { pinhole.lasting.head } else { pinhole.recent.head };
        if flow == NO_LINE {
            return;
        }
        end_flow(flows, rules, flow);
    }
}

/// Puts a flow whose state or notes changed into the list and under the timer where it now belongs.
pub(crate) fn settle<L: Family>(flows: &mut Flows<L>, rules: &mut Rules, now: Instant, flow: u32) {
    let line = flows.line(flow);
    let (state, notes, owner) = (State::from_code(line.state()), line.notes(), line.owner());
    let is_tcp = IpProtocol(line.key().protocol()) == IpProtocol::TCP;
    let lasts = if is_tcp { state.is_lasting() } else { notes & ANSWERED != 0 };
    let lasted = notes & LASTING != 0;
    if lasts == lasted {
        return;
    }
    if let Some(pinhole) = rules.pinholes.at_mut(owner) {
        flows.unlink(pinhole.list(lasted), flow);
        flows.push_back(pinhole.list(lasts), flow);
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
    flows: &Flows<L>,
    rules: &mut Rules,
    now: Instant,
    index: u32,
    len: u32,
) -> Result<(), Reason> {
    let line = flows.line(index);
    if !line.spend(len, Tick::at(now)) {
        charge_pinhole(flows, rules, now, index, len)?;
    }
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
        line.set_lent(line.lent().saturating_add(paid.len));
    }
}

#[cold]
fn charge_pinhole<L: Family>(
    flows: &Flows<L>,
    rules: &mut Rules,
    now: Instant,
    index: u32,
    len: u32,
) -> Result<(), Reason> {
    let line = flows.line(index);
    let slot = line.owner();
    let need = len.saturating_sub(line.lent());
    let Some(pinhole) = rules.pinholes.at_mut(slot) else { return Err(Reason::NoPinhole) };
    let slice_max = pinhole.slice_max;
    let mut slice = if pinhole.spent { None } else { pinhole.budget.lend(need, slice_max) };
    if slice.is_none() && !pinhole.spent {
        // Other lines may hold what they do not need.
        reclaim(flows, rules, slot);
        let pinhole = rules.pinholes.at_mut(slot).ok_or(Reason::NoPinhole)?;
        // This line's own slice came back too, so it needs the whole packet now.
        slice = pinhole.budget.lend(len, slice_max);
        if slice.is_none() {
            let ended = account(pinhole, EndCause::Spent);
            rules.pinholes.change(slot, |pinhole| pinhole.spent = true);
            if let Some(ended) = ended {
                rules.push_event(Event::Ended(ended));
            }
        }
    }
    let Some(slice) = slice else { return Err(Reason::BudgetSpent) };
    let Some(pinhole) = rules.pinholes.at_mut(slot) else { return Err(Reason::NoPinhole) };
    let need = len.saturating_sub(line.lent());
    let mut take = |tokens: u32| pinhole.bucket.as_mut().is_none_or(|bucket| bucket.take(now, tokens));
    let paid = if take(slice) { Some(slice) } else { take(need).then_some(need) };
    pinhole.budget.give_back(slice - paid.unwrap_or(0));
    line.set_lent(line.lent() + paid.ok_or(Reason::RateExceeded)?);
    line.spend(len, Tick::at(now));
    Ok(())
}

/// Takes back every slice that lines of a pinhole hold.
pub(crate) fn reclaim<L: Family>(flows: &Flows<L>, rules: &mut Rules, slot: u32) {
    let Some(pinhole) = rules.pinholes.at_mut(slot) else { return };
    for head in [pinhole.recent.head, pinhole.lasting.head] {
        let mut flow = (head != NO_LINE).then_some(head);
        while let Some(at) = flow {
            let line = flows.line(at);
            pinhole.budget.give_back(line.lent());
            line.set_lent(0);
            flow = flows.next(at);
        }
    }
}

/// What lines of a pinhole hold and have not spent.
pub(crate) fn lent<L: Family>(flows: &Flows<L>, rules: &Rules, slot: u32) -> u64 {
    let Some(pinhole) = rules.pinholes.at(slot) else { return 0 };
    let mut sum = 0;
    for head in [pinhole.recent.head, pinhole.lasting.head] {
        let mut flow = (head != NO_LINE).then_some(head);
        while let Some(at) = flow {
            sum += u64::from(flows.line(at).lent());
            flow = flows.next(at);
        }
    }
    sum
}
