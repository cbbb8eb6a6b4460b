//! The directory of grants: what was asked of which gate, what it answered, and how much of it is used.
//!
//! It is a view, not an authority: gates keep their own pinholes and fail static. A row is made when an opening is sent
//! to a gate or when a gate reports a grant that outlived the frontend; it goes when the grant ends.

mod partial;
mod trunks;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use sluicegate_api::{GrantState, GrantStatus};
use sluicegate_bounded::Gauge;
use sluicegate_feed::{ActiveGrant, GrantDelta, GrantUsage, Revokes, Selected, Selector};
use sluicegate_grant::{DataMode, Grant, GrantId};
use sluicegate_policy::{PortProtocol, ServiceMode, Share};
use sluicegate_wire::{Instant, UnixTime};

pub(crate) use self::trunks::Begun;
use crate::{
    calls::{CallId, Calls, Refused},
    guesses::Table,
};

/// How long a row outlives its grant, in seconds: a gate's clock may be that far behind.
const GRACE_SECS: u64 = 5;
/// How long a revoke may be on its way to a gate that is connected, in seconds.
const REVOKE_SECS: u64 = 30;
/// Most revokes of operators that are on their way.
const REVOKES_MAX: usize = 1_024;
/// Most ended calls that are on their way, and most of one user.
const CALL_REVOKES_MAX: (usize, usize) = (8_192, 128);

/// What one gate was told of a grant, and what it said.
#[derive(Debug, Clone)]
struct AtGate {
    /// Told last.
    delta: GrantDelta,
    state: GrantState,
    address: Option<IpAddr>,
    ports: (u16, u16),
    bytes_used: u64,
    /// Of these, what the client sent: without ICMP errors, such as say that it hears no longer.
    bytes_said: u64,
    flows: u16,
    /// The shard that waits for its answer.
    shard: Option<u8>,
}

/// One grant. Each gate that it was sent to, or that reported it first, has its own state: what one gate answers says
/// nothing of what another does.
#[derive(Debug, Clone)]
struct Row {
    /// As issued last.
    grant: Grant,
    user: String,
    service: String,
    not_before: u64,
    not_after: u64,
    share: Share,
    gates: BTreeMap<String, AtGate>,
}

/// What a grant opens at its service.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KnownGrant {
    pub(crate) id: GrantId,
    /// IP protocol.
    pub(crate) protocol: u8,
    /// Ports of the service, first and last.
    pub(crate) ports: (u16, u16),
    /// Where it is open at its gate, if it is.
    pub(crate) open_at: Option<(IpAddr, (u16, u16))>,
}

#[derive(Debug)]
struct Rows {
    by_id: BTreeMap<GrantId, Row>,
    /// When each ends, so that nobody looks at those that last.
    by_end: BTreeSet<(u64, GrantId)>,
    /// What each user's grants hold together.
    per_user: HashMap<String, Share>,
    /// Grants of each client id.
    per_client: HashMap<u32, u32>,
    /// What operators revoked lately: a gate's report that crossed the revoke brings nothing back.
    revoked: Revokes<Selector>,
    /// The same for calls that users ended, apart so that they push out no operator's.
    ended: Revokes<Selector>,
    calls: Calls,
}

impl Default for Rows {
    fn default() -> Self {
        Self {
            by_id: BTreeMap::new(),
            by_end: BTreeSet::new(),
            per_user: HashMap::new(),
            per_client: HashMap::new(),
            revoked: Revokes::new(REVOKES_MAX, REVOKES_MAX),
            ended: Revokes::new(CALL_REVOKES_MAX.0, CALL_REVOKES_MAX.1),
            calls: Calls::default(),
        }
    }
}

/// The directory has as many grants as it may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the frontend holds as many grants as it may ({0}); raise grants_max or shorten lifetimes")]
pub struct LedgerFull(usize);

/// All grants that this frontend knows of. Shared by shards, feed and control.
#[derive(Debug)]
pub struct Ledger {
    rows: Mutex<Rows>,
    grants_max: usize,
    /// When somebody has to look whether media flow, as Unix time; [`NEVER`] if there are none.
    next_look: AtomicU64,
    /// Whether gates have yet to say what they have had open since before this start.
    is_partial: AtomicBool,
    /// How many calls peers began lately.
    rates: Mutex<Table>,
}

/// Stands for no time at all.
const NEVER: u64 = u64::MAX;

impl Ledger {
    /// A directory with room for so many grants.
    #[must_use]
    pub fn new(grants_max: usize) -> Self {
        let rates = Mutex::new(Table::new("peer_rates", trunks::RATES_MAX));
        let (next_look, is_partial) = (AtomicU64::new(NEVER), AtomicBool::default());
        Self { rows: Mutex::default(), grants_max, next_look, is_partial, rates }
    }

    fn lock(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the grant is being opened or renewed at `gate` and that `shard` waits for the answer.
    ///
    /// # Errors
    /// [`LedgerFull`] for a new grant when there is no room.
    pub fn opening(&self, delta: &GrantDelta, gate: &str, shard: u8) -> Result<(), LedgerFull> {
        self.put(delta, gate, Some(shard))
    }

    /// Merges a grant that a gate reports as live, such as one issued before a restart.
    pub fn active(&self, active: &ActiveGrant, gate: &str) -> Result<(), LedgerFull> {
        let (delta, id) = (&active.delta, active.delta.grant.id);
        if self.lock().is_revoked(delta) {
            return Ok(());
        }
        // Nor does a gate get a grant, with its keys, by saying that it has it.
        if self.lock().by_id.get(&id).is_some_and(|row| !row.gates.contains_key(gate)) {
            return Ok(());
        }
        self.put(delta, gate, None)?;
        self.opened(gate, id, active.address, active.ports);
        let ActiveGrant { bytes_used, flows, .. } = *active;
        self.used(gate, &GrantUsage { id, bytes_used, error_bytes: 0, flows });
        Ok(())
    }

    fn put(&self, delta: &GrantDelta, gate: &str, shard: Option<u8>) -> Result<(), LedgerFull> {
        let grant = &delta.grant;
        let mut rows = self.lock();
        let rows = &mut *rows;
        rows.calls.keep(grant.id.call(), (&delta.user, &delta.service), grant.not_after, self.grants_max);
        rows.calls.opens(grant.id.call());
        // An agent renews its own grants.
        if !grant.proves_address() {
            rows.calls.watch(grant.id.call(), (grant.not_before, grant.not_after));
            self.set_next_look(rows);
        }
        if let Some(row) = rows.by_id.get_mut(&grant.id) {
            row.not_before = row.not_before.max(grant.not_before.0);
            rows.by_end.remove(&(row.not_after, grant.id));
            row.not_after = row.not_after.max(grant.not_after.0);
            rows.by_end.insert((row.not_after, grant.id));
            let at_gate = row.gates.entry(gate.to_owned()).or_insert_with(|| AtGate::new(delta));
            at_gate.shard = shard.or(at_gate.shard);
            if shard.is_some() {
                at_gate.delta = delta.clone();
                let share = share_of(delta);
                let before = std::mem::replace(&mut row.share, share);
                if let Some(held) = rows.per_user.get_mut(&row.user) {
                    *held = held.minus(before).plus(share);
                }
                *rows.per_client.entry(grant.client_id).or_default() += 1;
                take_one(&mut rows.per_client, &row.grant.client_id);
                row.grant = grant.clone();
            }
            return Ok(());
        }
        if rows.by_id.len() >= self.grants_max {
            return Err(LedgerFull(self.grants_max));
        }
        let share = share_of(delta);
        let held = rows.per_user.entry(delta.user.clone()).or_default();
        *held = held.plus(share);
        *rows.per_client.entry(grant.client_id).or_default() += 1;
        let row = Row {
            grant: grant.clone(),
            user: delta.user.clone(),
            service: delta.service.clone(),
            not_before: grant.not_before.0,
            not_after: grant.not_after.0,
            share,
            gates: BTreeMap::from([(gate.to_owned(), AtGate { shard, ..AtGate::new(delta) })]),
        };
        rows.by_end.insert((row.not_after, grant.id));
        rows.by_id.insert(grant.id, row);
        Ok(())
    }

    /// A grant at this gate, as it is known now.
    pub fn row(&self, gate: &str, id: GrantId) -> Option<GrantStatus> {
        let rows = self.lock();
        let row = rows.by_id.get(&id)?;
        row.gates.get(gate).map(|at_gate| row.shown(gate, at_gate))
    }

    /// The gate has opened a grant. Returns the shard that waits for it. What a gate says about grants that it was not sent
    /// counts for nothing, here and below.
    pub fn opened(&self, gate: &str, id: GrantId, address: IpAddr, ports: (u16, u16)) -> Option<u8> {
        let mut rows = self.lock();
        let at_gate = rows.at_gate(gate, id)?;
        (at_gate.state, at_gate.address, at_gate.ports) = (GrantState::Open, Some(address), ports);
        at_gate.shard.take()
    }

    /// The gate has refused a grant. A grant that was already open there stays: only its renewal failed.
    pub fn refused(&self, gate: &str, id: GrantId) -> Option<u8> {
        let mut rows = self.lock();
        let at_gate = rows.at_gate(gate, id)?;
        let shard = at_gate.shard.take();
        if at_gate.state == GrantState::Opening {
            rows.remove_at(gate, id);
        }
        shard
    }

    /// A gate reports how much is used.
    pub fn used(&self, gate: &str, used: &GrantUsage) {
        if let Some(at_gate) = self.lock().at_gate(gate, used.id) {
            (at_gate.bytes_used, at_gate.flows) = (used.bytes_used, used.flows);
            at_gate.bytes_said = used.bytes_used.saturating_sub(used.error_bytes);
        }
    }

    /// A grant has ended at a gate.
    pub fn ended(&self, gate: &str, id: GrantId) -> Option<GrantStatus> {
        self.lock().remove_at(gate, id)
    }

    /// Removes and gives what has expired.
    pub fn expire(&self, now: UnixTime) -> Vec<GrantStatus> {
        let mut rows = self.lock();
        rows.revoked.forget(now);
        rows.ended.forget(now);
        rows.calls.expire(now);
        let mut over = Vec::new();
        while let Some((end, id)) = rows.by_end.first().copied() {
            if UnixTime(end).plus_secs(GRACE_SECS) > now {
                break;
            }
            rows.by_end.pop_first();
            over.extend(rows.remove(id).iter().flat_map(Row::all_shown));
        }
        over
    }

    /// What a revocation names.
    pub fn matching(&self, selector: &Selector) -> Vec<GrantStatus> {
        let rows = self.lock();
        rows.selected(selector).into_iter().filter_map(|id| rows.by_id.get(&id)).flat_map(Row::all_shown).collect()
    }

    /// Removes what a revocation names, and gives the calls that are over by it. Grants issued after `now` are not meant.
    /// `user`: who ended this by ending a call or changing what it has open, and not an operator.
    pub fn revoke(&self, now: UnixTime, selector: &Selector, user: Option<&str>) -> Vec<CallId> {
        let mut rows = self.lock();
        let issued_before = selector.issued_before.or(Some(now.plus_secs(1)));
        let (until, kept) = (now.plus_secs(REVOKE_SECS), Selector { issued_before, ..selector.clone() });
        match user {
            Some(user) => rows.ended.keep(now, user, until, kept),
            None => rows.revoked.keep(now, "", until, kept),
        }
        let ids = rows.selected(selector);
        let mut over: Vec<CallId> = ids.iter().map(GrantId::call).collect();
        ids.into_iter().for_each(|id| drop(rows.remove(id)));
        match &selector.what {
            Selected::Call(call) => over.push(*call),
            Selected::User(name) => over.extend(rows.calls.end_all(|user, _| user == name)),
            Selected::Service(name) => over.extend(rows.calls.end_all(|_, service| service == name)),
            Selected::Grant(_) => {}
        }
        over.sort_unstable();
        over.dedup();
        // A call that gave up one of its grants goes on, even without any.
        let goes_on = user.is_some() && matches!(selector.what, Selected::Grant(_));
        over.retain(|call| !goes_on && rows.of_call(*call).next().is_none());
        for call in &over {
            rows.calls.end(*call);
        }
        over
    }

    /// Whose a call is, or a grant, and when what it has ends by itself. Nobody's if it has nothing.
    pub fn end_of(&self, what: &Selected) -> (String, UnixTime) {
        let rows = self.lock();
        let meant = rows.selected(&Selector::all(what.clone()));
        let mut meant = meant.iter().filter_map(|id| rows.by_id.get(id)).peekable();
        let user = meant.peek().map(|row| row.user.clone()).unwrap_or_default();
        (user, UnixTime(meant.map(|row| row.not_after).max().unwrap_or_default()))
    }

    /// Whether a call has anything open, or on its way.
    pub(crate) fn has_grants(&self, call: CallId) -> bool {
        self.lock().of_call(call).next().is_some()
    }

    /// What a call has open.
    pub(crate) fn grants_of(&self, call: CallId) -> Vec<KnownGrant> {
        let rows = self.lock();
        let known = rows.of_call(call).filter_map(|(id, row)| {
            let at_gate = row.gates.values().next()?;
            let open_at = at_gate.address.filter(|_| at_gate.state == GrantState::Open);
            Some(KnownGrant {
                id: *id,
                protocol: row.grant.protocol,
                ports: at_gate.delta.target_ports,
                open_at: open_at.map(|address| (address, at_gate.ports)),
            })
        });
        known.collect()
    }

    /// What gates were told last of the grants of a call, of those that its packets prove nothing for but where they come
    /// from.
    pub(crate) fn plain_grants_of(&self, call: CallId) -> Vec<GrantDelta> {
        let rows = self.lock();
        let plain = rows.of_call(call).filter(|(_, row)| !row.grant.proves_address());
        plain.filter_map(|(_, row)| row.gates.values().next().map(|at_gate| at_gate.delta.clone())).collect()
    }

    /// When to [look](Self::look) next.
    pub(crate) fn next_look(&self) -> Option<UnixTime> {
        Some(UnixTime(self.next_look.load(Ordering::Relaxed))).filter(|at| at.0 != NEVER)
    }

    /// The calls whose grants end soon although their media flow, `max` at most; each is told to one caller only.
    pub(crate) fn look(&self, now: UnixTime, max: usize) -> Vec<CallId> {
        let mut rows = self.lock();
        let rows = &mut *rows;
        let by_id = &rows.by_id;
        let carried =
            |call| of_call(by_id, call).flat_map(|(_, row)| row.gates.values()).map(|gate| gate.bytes_said).sum();
        let flowing = rows.calls.look(now, max, carried);
        self.set_next_look(rows);
        flowing
    }

    fn set_next_look(&self, rows: &Rows) {
        self.next_look.store(rows.calls.next_look().map_or(NEVER, |at| at.0), Ordering::Relaxed);
    }

    /// Until when a call lives; `None` if it does not.
    pub(crate) fn lasts_until(&self, call: CallId) -> Option<UnixTime> {
        self.lock().calls.until(call)
    }

    /// Whether a BYE has ended this call lately.
    pub(crate) fn was_hung_up(&self, now: Instant, call: CallId) -> bool {
        self.lock().calls.was_hung_up(now, call)
    }

    /// A relayed call lives, with grants or before it has any, until `until` at least. `false` if there is no room.
    pub(crate) fn keep_call(&self, call: CallId, of: (&str, &str), until: UnixTime) -> bool {
        self.lock().calls.keep(call, of, until, self.grants_max)
    }

    /// A relayed call was answered: it lives until then, however long it might have rung.
    pub(crate) fn answered(&self, call: CallId, until: UnixTime) {
        self.lock().calls.answered(call, until);
    }

    /// Whether this call lives, and if so whose it is and for which service.
    pub(crate) fn call(&self, call: CallId) -> Option<(String, String)> {
        self.lock().calls.of(call).map(|(user, service)| (user.to_owned(), service.to_owned()))
    }

    /// How often the sides of a call have agreed on media.
    pub(crate) fn agreed(&self, call: CallId) -> u32 {
        self.lock().calls.agreed(call)
    }

    /// They have once more.
    pub(crate) fn agree(&self, call: CallId) {
        self.lock().calls.agree(call);
    }

    /// Takes one request out of what may be said in a call.
    pub(crate) fn say(&self, now: Instant, call: CallId, per_s: u32) -> Result<(), Refused> {
        self.lock().calls.say(now, call, per_s)
    }

    /// Whether this is the BYE again that has ended the call.
    pub(crate) fn was_ended_by(&self, now: Instant, call: CallId, cseq: u32) -> bool {
        self.lock().calls.was_ended_by(now, call, cseq)
    }

    /// What gates were told last of this grant, with its session key if this frontend has it.
    pub fn delta(&self, id: GrantId) -> Option<GrantDelta> {
        let rows = self.lock();
        let row = rows.by_id.get(&id)?;
        let latest = row.gates.values().find(|at_gate| at_gate.delta.grant == row.grant);
        latest.or_else(|| row.gates.values().next()).map(|at_gate| at_gate.delta.clone())
    }

    /// Whether a grant has this client id.
    pub fn has_client(&self, client_id: u32) -> bool {
        self.lock().per_client.contains_key(&client_id)
    }

    /// The weakest least mode of a call's grants; `None` if none is known.
    pub(crate) fn least_mode_of(&self, call: [u8; 12]) -> Option<DataMode> {
        self.lock().of_call(call).map(|(_, row)| row.grant.least_mode).min()
    }

    /// What the user's grants hold together, without those of the call `besides`.
    pub fn held_by(&self, user: &str, besides: Option<[u8; 12]>) -> Share {
        let rows = self.lock();
        let all = rows.per_user.get(user).copied().unwrap_or_default();
        let renewed = besides.map_or(Share::default(), |call| {
            let own = rows.of_call(call).map(|(_, row)| row).filter(|row| row.user == user);
            own.fold(Share::default(), |sum, row| sum.plus(row.share))
        });
        all.minus(renewed)
    }

    /// Every grant at every gate, in order of id.
    #[must_use]
    pub fn rows(&self) -> Vec<GrantStatus> {
        self.lock().by_id.values().flat_map(Row::all_shown).collect()
    }

    /// What a gate that connects must be told: its live grants. A snapshot only adds, so leaving one out closes nothing.
    pub fn snapshot(&self, gate: &str) -> Vec<GrantDelta> {
        let rows = self.lock();
        rows.by_id.values().filter_map(|row| row.gates.get(gate)).map(|at_gate| at_gate.delta.clone()).collect()
    }

    /// Grants, and calls that live.
    #[must_use]
    pub fn gauges(&self) -> [Gauge; 2] {
        let rows = self.lock();
        [Gauge::of("grants", rows.by_id.len(), self.grants_max), Gauge::of("calls", rows.calls.len(), self.grants_max)]
    }
}

impl AtGate {
    fn new(delta: &GrantDelta) -> Self {
        Self {
            delta: delta.clone(),
            state: GrantState::Opening,
            address: None,
            ports: (0, 0),
            bytes_used: 0,
            bytes_said: 0,
            flows: 0,
            shard: None,
        }
    }
}

impl Row {
    fn is_selected(&self, selector: &Selector) -> bool {
        selector.selects(&self.grant, &self.user, &self.service)
    }

    fn all_shown(&self) -> impl Iterator<Item = GrantStatus> {
        self.gates.iter().map(|(gate, at_gate)| self.shown(gate, at_gate))
    }

    fn shown(&self, gate: &str, at_gate: &AtGate) -> GrantStatus {
        GrantStatus {
            id: self.grant.id,
            user: self.user.clone(),
            service: self.service.clone(),
            gate: gate.to_owned(),
            client: self.grant.client_address,
            mode: self.grant.least_mode,
            protocol: self.grant.protocol,
            target: at_gate.delta.target,
            target_ports: at_gate.delta.target_ports,
            gate_address: at_gate.address,
            gate_ports: at_gate.ports,
            not_before: self.not_before,
            not_after: self.not_after,
            bytes_max: self.grant.bytes,
            bytes_used: Some(at_gate.bytes_used),
            flows: Some(at_gate.flows.into()),
            state: at_gate.state,
        }
    }
}

impl Rows {
    /// The grants of a call, by the part of their ids that they share.
    fn of_call(&self, call: CallId) -> impl Iterator<Item = (&GrantId, &Row)> {
        of_call(&self.by_id, call)
    }

    /// What a selector names. Only what names a user or a service looks at every grant.
    fn selected(&self, selector: &Selector) -> Vec<GrantId> {
        let is_selected = |(id, row): (&GrantId, &Row)| row.is_selected(selector).then_some(*id);
        match &selector.what {
            Selected::Grant(id) => self.by_id.get_key_value(id).and_then(is_selected).into_iter().collect(),
            Selected::Call(call) => self.of_call(*call).filter_map(is_selected).collect(),
            Selected::User(_) | Selected::Service(_) => self.by_id.iter().filter_map(is_selected).collect(),
        }
    }

    fn is_revoked(&self, delta: &GrantDelta) -> bool {
        let mut lately = self.revoked.iter().chain(self.ended.iter());
        lately.any(|selector| selector.selects(&delta.grant, &delta.user, &delta.service))
    }

    fn at_gate(&mut self, gate: &str, id: GrantId) -> Option<&mut AtGate> {
        self.by_id.get_mut(&id)?.gates.get_mut(gate)
    }

    /// Removes a grant at one gate, and all of it with the last.
    fn remove_at(&mut self, gate: &str, id: GrantId) -> Option<GrantStatus> {
        let row = self.by_id.get_mut(&id)?;
        let at_gate = row.gates.remove(gate)?;
        let shown = row.shown(gate, &at_gate);
        if row.gates.is_empty() {
            self.remove(id);
        }
        Some(shown)
    }

    fn remove(&mut self, id: GrantId) -> Option<Row> {
        let row = self.by_id.remove(&id)?;
        self.by_end.remove(&(row.not_after, id));
        if let Some(held) = self.per_user.get_mut(&row.user) {
            *held = held.minus(row.share);
            if held.grants == 0 {
                self.per_user.remove(&row.user);
            }
        }
        take_one(&mut self.per_client, &row.grant.client_id);
        Some(row)
    }
}

fn of_call(by_id: &BTreeMap<GrantId, Row>, call: CallId) -> impl Iterator<Item = (&GrantId, &Row)> {
    by_id.range(GrantId::of_call(call, 0)..).take_while(move |(id, _)| id.call() == call)
}

/// What one grant holds of its user's share.
pub fn share_of(delta: &GrantDelta) -> Share {
    let has_ports = PortProtocol::from_number(delta.grant.protocol).is_some_and(PortProtocol::has_ports)
        && delta.mode == ServiceMode::Nat;
    let (first, last) = delta.target_ports;
    let ports = if has_ports { u64::from(last.saturating_sub(first)) + 1 } else { 0 };
    Share::of_grant(&delta.grant, ports)
}

/// Counts one less; what has none left is forgotten.
fn take_one(counts: &mut HashMap<u32, u32>, key: &u32) {
    if let Some(count) = counts.get_mut(key) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            counts.remove(key);
        }
    }
}

#[cfg(test)]
mod tests;
