//! The directory of grants: what was asked of which gate, what it answered, and how much of it is used.
//!
//! It is a view, not an authority: gates keep their own pinholes and fail static. A row is made when an opening is sent
//! to a gate or when a gate reports a grant that outlived the frontend; it goes when the grant ends.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::{Mutex, MutexGuard, PoisonError},
};

use sluicegate_api::{GrantState, GrantStatus};
use sluicegate_feed::{ActiveGrant, GrantDelta, Revokes, Selected, Selector};
use sluicegate_grant::{DataMode, Grant, GrantId};
use sluicegate_policy::{PortProtocol, ServiceMode, Share};
use sluicegate_wire::{Instant, UnixTime};

use crate::calls::{CallId, Calls, Refused};

/// How long a row outlives its grant, in seconds: a gate's clock may be that far behind.
const GRACE_SECS: u64 = 5;
/// How long a revoke may be on its way to a gate that is connected, in seconds.
const REVOKE_SECS: u64 = 30;
/// Most revokes of operators that are on their way.
const REVOKES_MAX: usize = 1_024;
/// Most ended calls that are on their way, and most of one user.
const CALL_REVOKES_MAX: (usize, usize) = (8_192, 128);

#[derive(Debug, Clone)]
struct Row {
    shown: GrantStatus,
    delta: GrantDelta,
    client_id: u32,
    share: Share,
    /// The shard that waits for the gate's answer.
    shard: Option<u8>,
}

#[derive(Debug)]
struct Rows {
    by_id: BTreeMap<GrantId, Row>,
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
}

impl Ledger {
    /// A directory with room for so many grants.
    #[must_use]
    pub fn new(grants_max: usize) -> Self {
        Self { rows: Mutex::default(), grants_max }
    }

    fn lock(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that `grant` is being opened or renewed at `gate` and that `shard` waits for the answer.
    ///
    /// # Errors
    /// [`LedgerFull`] for a new grant when there is no room.
    pub fn opening(&self, delta: &GrantDelta, grant: &Grant, gate: &str, shard: u8) -> Result<(), LedgerFull> {
        self.put(delta, grant, gate, Some(shard))
    }

    /// Merges a grant that a gate reports as live, such as one issued before a restart.
    pub fn active(&self, active: &ActiveGrant, grant: &Grant, gate: &str) -> Result<(), LedgerFull> {
        let delta = &active.delta;
        if self.lock().is_revoked(grant, delta) {
            return Ok(());
        }
        if self.lock().by_id.get(&grant.id).is_some_and(|row| row.shown.gate != gate) {
            return Ok(());
        }
        self.put(delta, grant, gate, None)?;
        self.opened(gate, grant.id, active.address, active.ports);
        self.used(gate, grant.id, active.bytes_used, active.flows);
        Ok(())
    }

    fn put(&self, delta: &GrantDelta, grant: &Grant, gate: &str, shard: Option<u8>) -> Result<(), LedgerFull> {
        let mut rows = self.lock();
        let rows = &mut *rows;
        rows.calls.keep(grant.id.call(), (&delta.user, &delta.service), grant.not_after, self.grants_max);
        if let Some(row) = rows.by_id.get_mut(&grant.id) {
            row.shown.not_before = row.shown.not_before.max(grant.not_before.0);
            row.shown.not_after = row.shown.not_after.max(grant.not_after.0);
            row.shown.gate.clear();
            row.shown.gate.push_str(gate);
            row.shard = shard.or(row.shard);
            if shard.is_some() {
                let share = share_of(delta, grant);
                let before = std::mem::replace(&mut row.share, share);
                if let Some(held) = rows.per_user.get_mut(&row.shown.user) {
                    *held = held.minus(before).plus(share);
                }
                row.delta = delta.clone();
                let before = std::mem::replace(&mut row.client_id, grant.client_id);
                *rows.per_client.entry(grant.client_id).or_default() += 1;
                take_one(&mut rows.per_client, &before);
            }
            return Ok(());
        }
        if rows.by_id.len() >= self.grants_max {
            return Err(LedgerFull(self.grants_max));
        }
        let (client_id, share) = (grant.client_id, share_of(delta, grant));
        let held = rows.per_user.entry(delta.user.clone()).or_default();
        *held = held.plus(share);
        *rows.per_client.entry(client_id).or_default() += 1;
        let row = Row { shown: row_of(delta, grant, gate), delta: delta.clone(), client_id, share, shard };
        rows.by_id.insert(grant.id, row);
        Ok(())
    }

    /// A grant of this gate, as it is known now.
    pub fn row(&self, gate: &str, id: GrantId) -> Option<GrantStatus> {
        self.lock().of_gate(gate, id).map(|row| row.shown.clone())
    }

    /// The gate has opened a grant. Returns the shard that waits for it. What a gate says about another gate's grants
    /// counts for nothing, here and below.
    pub fn opened(&self, gate: &str, id: GrantId, address: IpAddr, ports: (u16, u16)) -> Option<u8> {
        let mut rows = self.lock();
        let row = rows.of_gate(gate, id)?;
        row.shown.state = GrantState::Open;
        row.shown.gate_address = Some(address);
        row.shown.gate_ports = ports;
        row.shard.take()
    }

    /// The gate has refused a grant. A grant that was already open stays: only its renewal failed.
    pub fn refused(&self, gate: &str, id: GrantId) -> Option<u8> {
        let mut rows = self.lock();
        let row = rows.of_gate(gate, id)?;
        let shard = row.shard.take();
        if row.shown.state == GrantState::Opening {
            rows.remove(id);
        }
        shard
    }

    /// A gate reports how much is used.
    pub fn used(&self, gate: &str, id: GrantId, bytes: u64, flows: u16) {
        if let Some(row) = self.lock().of_gate(gate, id) {
            row.shown.bytes_used = Some(bytes);
            row.shown.flows = Some(flows.into());
        }
    }

    /// A grant has ended.
    pub fn ended(&self, gate: &str, id: GrantId) -> Option<GrantStatus> {
        let mut rows = self.lock();
        rows.of_gate(gate, id)?;
        rows.remove(id)
    }

    /// Removes and gives what has expired.
    pub fn expire(&self, now: UnixTime) -> Vec<GrantStatus> {
        let mut rows = self.lock();
        rows.revoked.forget(now);
        rows.ended.forget(now);
        rows.calls.expire(now);
        let is_over = |row: &Row| UnixTime(row.shown.not_after).plus_secs(GRACE_SECS) <= now;
        let over: Vec<GrantId> = rows.by_id.iter().filter(|(_, row)| is_over(row)).map(|(id, _)| *id).collect();
        over.into_iter().filter_map(|id| rows.remove(id)).collect()
    }

    /// What a revocation names.
    pub fn matching(&self, selector: &Selector) -> Vec<GrantStatus> {
        self.lock().by_id.values().filter(|row| row.is_selected(selector)).map(|row| row.shown.clone()).collect()
    }

    /// Removes what a revocation names, and gives the calls that are over by it. Grants issued after `now` are not meant.
    pub fn revoke(&self, now: UnixTime, selector: &Selector) -> Vec<CallId> {
        let mut rows = self.lock();
        let issued_before = selector.issued_before.or(Some(now.plus_secs(1)));
        let (until, kept) = (now.plus_secs(REVOKE_SECS), Selector { issued_before, ..selector.clone() });
        match selector.what {
            Selected::Call(call) => {
                let user = rows.of_call(call).map(|row| row.shown.user.clone()).unwrap_or_default();
                rows.ended.keep(now, &user, until, kept);
            }
            _ => rows.revoked.keep(now, "", until, kept),
        }
        let ids: Vec<GrantId> =
            rows.by_id.iter().filter(|(_, row)| row.is_selected(selector)).map(|(id, _)| *id).collect();
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
        over.retain(|call| !rows.has_grants(*call));
        for call in &over {
            rows.calls.end(*call);
        }
        over
    }

    /// Whose call this is, and when the last of its grants ends by itself.
    pub fn end_of_call(&self, call: [u8; 12]) -> Option<(String, UnixTime)> {
        let rows = self.lock();
        let of_call = || rows.by_id.range(GrantId::of_call(call, 0)..).take_while(|(id, _)| id.call() == call);
        let user = of_call().next()?.1.shown.user.clone();
        Some((user, UnixTime(of_call().map(|(_, row)| row.shown.not_after).max()?)))
    }

    /// A relayed call lives, with grants or before it has any, until `until` at least. `false` if there is no room.
    pub(crate) fn keep_call(&self, call: CallId, of: (&str, &str), until: UnixTime) -> bool {
        self.lock().calls.keep(call, of, until, self.grants_max)
    }

    /// Whether this call lives, and if so whose it is and for which service.
    pub(crate) fn call(&self, call: CallId) -> Option<(String, String)> {
        self.lock().calls.of(call).map(|(user, service)| (user.to_owned(), service.to_owned()))
    }

    /// Takes one request out of what may be said in a call.
    pub(crate) fn say(&self, now: Instant, call: CallId, per_s: u32) -> Result<(), Refused> {
        self.lock().calls.say(now, call, per_s)
    }

    /// The call is over at once, for every shard. `bye`: by a BYE with this number, which may come again.
    pub(crate) fn end_call(&self, now: Instant, call: CallId, bye: Option<u32>) -> bool {
        let mut rows = self.lock();
        let lived = rows.calls.end(call);
        if let Some(cseq) = bye.filter(|_| lived) {
            rows.calls.ended_by(now, call, cseq);
        }
        lived
    }

    /// Whether this is the BYE again that has ended the call.
    pub(crate) fn was_ended_by(&self, now: Instant, call: CallId, cseq: u32) -> bool {
        self.lock().calls.was_ended_by(now, call, cseq)
    }

    /// Calls that live, and how many may.
    pub fn calls_gauge(&self) -> (u64, u64) {
        (self.lock().calls.len() as u64, self.grants_max as u64)
    }

    /// What the gate was told last of this grant, with its session key if this frontend has it.
    pub fn delta(&self, id: GrantId) -> Option<GrantDelta> {
        self.lock().by_id.get(&id).map(|row| row.delta.clone())
    }

    /// Whether a grant has this client id.
    pub fn has_client(&self, client_id: u32) -> bool {
        self.lock().per_client.contains_key(&client_id)
    }

    /// The weakest least mode of a call's grants; `None` if none is known.
    pub(crate) fn least_mode_of(&self, call: [u8; 12]) -> Option<DataMode> {
        let rows = self.lock();
        let of_call = rows.by_id.range(GrantId::of_call(call, 0)..).take_while(|(id, _)| id.call() == call);
        of_call.filter_map(|(_, row)| row.delta.grant().ok()).map(|grant| grant.least_mode).min()
    }

    /// What the user's grants hold together, without those of the call `besides`.
    pub fn held_by(&self, user: &str, besides: Option<[u8; 12]>) -> Share {
        let rows = self.lock();
        let all = rows.per_user.get(user).copied().unwrap_or_default();
        let renewed = besides.map_or(Share::default(), |call| {
            let of_call = rows.by_id.range(GrantId::of_call(call, 0)..).take_while(|(id, _)| id.call() == call);
            let own = of_call.map(|(_, row)| row).filter(|row| row.shown.user == user);
            own.fold(Share::default(), |sum, row| sum.plus(row.share))
        });
        all.minus(renewed)
    }

    /// Every grant, in order of id.
    #[must_use]
    pub fn rows(&self) -> Vec<GrantStatus> {
        self.lock().by_id.values().map(|row| row.shown.clone()).collect()
    }

    /// What a gate that connects must be told: its live grants. A snapshot only adds, so leaving one out closes nothing.
    pub fn snapshot(&self, is_for_gate: impl Fn(&GrantStatus) -> bool) -> Vec<GrantDelta> {
        self.lock().by_id.values().filter(|row| is_for_gate(&row.shown)).map(|row| row.delta.clone()).collect()
    }

    /// Used and maximum.
    #[must_use]
    pub fn gauge(&self) -> (u64, u64) {
        (self.lock().by_id.len() as u64, self.grants_max as u64)
    }
}

impl Row {
    fn is_selected(&self, selector: &Selector) -> bool {
        self.delta.grant().is_ok_and(|grant| selector.selects(&grant, &self.shown.user, &self.shown.service))
    }
}

impl Rows {
    fn of_call(&self, call: [u8; 12]) -> Option<&Row> {
        let (id, row) = self.by_id.range(GrantId::of_call(call, 0)..).next()?;
        (id.call() == call).then_some(row)
    }

    fn is_revoked(&self, grant: &Grant, delta: &GrantDelta) -> bool {
        let mut lately = self.revoked.iter().chain(self.ended.iter());
        lately.any(|selector| selector.selects(grant, &delta.user, &delta.service))
    }

    fn of_gate(&mut self, gate: &str, id: GrantId) -> Option<&mut Row> {
        self.by_id.get_mut(&id).filter(|row| row.shown.gate == gate)
    }

    fn has_grants(&self, call: CallId) -> bool {
        self.by_id.range(GrantId::of_call(call, 0)..).next().is_some_and(|(id, _)| id.call() == call)
    }

    fn remove(&mut self, id: GrantId) -> Option<GrantStatus> {
        let row = self.by_id.remove(&id)?;
        if let Some(held) = self.per_user.get_mut(&row.shown.user) {
            *held = held.minus(row.share);
            if held.grants == 0 {
                self.per_user.remove(&row.shown.user);
            }
        }
        take_one(&mut self.per_client, &row.client_id);
        Some(row.shown)
    }
}

/// What one grant holds of its user's share.
pub fn share_of(delta: &GrantDelta, grant: &Grant) -> Share {
    let has_ports = PortProtocol::from_number(grant.protocol).is_some_and(PortProtocol::has_ports)
        && delta.mode == ServiceMode::Nat;
    let (first, last) = delta.target_ports;
    let ports = if has_ports { u64::from(last.saturating_sub(first)) + 1 } else { 0 };
    Share::of_grant(grant, ports)
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

fn row_of(delta: &GrantDelta, grant: &Grant, gate: &str) -> GrantStatus {
    GrantStatus {
        id: grant.id,
        user: delta.user.clone(),
        service: delta.service.clone(),
        gate: gate.to_owned(),
        client: grant.client_address,
        mode: grant.least_mode,
        protocol: grant.protocol,
        target: delta.target,
        target_ports: delta.target_ports,
        gate_address: None,
        gate_ports: (0, 0),
        not_before: grant.not_before.0,
        not_after: grant.not_after.0,
        bytes_max: grant.bytes,
        bytes_used: Some(0),
        flows: Some(0),
        state: GrantState::Opening,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_feed::Selected;
    use sluicegate_grant::ANY_PORTS;

    const NOW: UnixTime = UnixTime(1_000);

    fn delta(call: u8, index: u32, user: &str) -> (GrantDelta, Grant) {
        let grant = Grant {
            flags: 0,
            least_mode: DataMode::Pinhole,
            protocol: 17,
            id: GrantId::of_call([call; 12], index),
            issuer: [1; 8],
            epoch: 0,
            not_before: NOW,
            not_after: NOW.plus_secs(60),
            bytes: 1_000_000,
            client_id: 1,
            flows: 0,
            rate_100kbps: 0,
            client_address: IpAddr::from([198, 51, 100, 7]),
            client_ports: ANY_PORTS,
            gate_address: IpAddr::from([0, 0, 0, 0]),
            gate_ports: (0, 0),
            holder: [0; 32],
            user_pseudonym: [0; 8],
        };
        let delta = GrantDelta {
            body: grant.encode(),
            user: user.into(),
            service: "web".into(),
            target: IpAddr::from([10, 0, 0, 1]),
            target_ports: (80, 80),
            mode: ServiceMode::Nat,
            keys: None,
        };
        (delta, grant)
    }

    fn open(ledger: &Ledger, call: u8, index: u32, user: &str) -> Result<(), LedgerFull> {
        let (delta, grant) = delta(call, index, user);
        ledger.opening(&delta, &grant, "gate-1", 3)
    }

    fn active(call: u8) -> (ActiveGrant, Grant) {
        let (delta, grant) = delta(call, 0, "alice");
        let address = IpAddr::from([203, 0, 113, 9]);
        (ActiveGrant { delta, address, ports: (20_000, 20_000), bytes_used: 5, flows: 1 }, grant)
    }

    #[test]
    fn a_full_directory_refuses_new_grants_and_renews_old_ones() {
        let ledger = Ledger::new(2);
        open(&ledger, 1, 0, "alice").unwrap();
        open(&ledger, 2, 0, "alice").unwrap();
        assert!(open(&ledger, 3, 0, "alice").is_err());
        open(&ledger, 2, 0, "alice").unwrap();
        assert_eq!(ledger.gauge(), (2, 2));
    }

    #[test]
    fn a_users_grants_are_counted_without_the_call_that_is_renewed() {
        let ledger = Ledger::new(10);
        let held = |besides| ledger.held_by("alice", besides);
        open(&ledger, 1, 0, "alice").unwrap();
        open(&ledger, 1, 1, "alice").unwrap();
        open(&ledger, 2, 0, "alice").unwrap();
        open(&ledger, 3, 0, "bob").unwrap();
        assert_eq!(held(None).grants, 3);
        assert_eq!(held(Some([1; 12])).grants, 1);
        ledger.ended("gate-1", GrantId::of_call([2; 12], 0));
        assert_eq!(held(None).grants, 2);
        assert_eq!(ledger.call([1; 12]), Some(("alice".into(), "web".into())));
        // A budget that is spent can be renewed: the call lives until its time is over.
        assert_eq!(ledger.call([2; 12]), Some(("alice".into(), "web".into())));
        ledger.expire(NOW.plus_secs(60));
        assert_eq!(ledger.call([2; 12]), None);
    }

    #[test]
    fn an_answer_goes_to_the_shard_that_asked_and_only_once() {
        let ledger = Ledger::new(10);
        open(&ledger, 1, 0, "alice").unwrap();
        let id = GrantId::of_call([1; 12], 0);
        let address = IpAddr::from([203, 0, 113, 9]);
        assert_eq!(ledger.opened("gate-1", id, address, (20_000, 20_000)), Some(3));
        assert_eq!(ledger.opened("gate-1", id, address, (20_000, 20_000)), None);
        assert_eq!(ledger.rows()[0].state, GrantState::Open);
        // A refused renewal ends nothing.
        open(&ledger, 1, 0, "alice").unwrap();
        assert_eq!(ledger.refused("gate-1", id), Some(3));
        assert_eq!(ledger.rows().len(), 1);
    }

    #[test]
    fn a_gate_has_no_say_in_another_gates_grants() {
        let ledger = Ledger::new(10);
        open(&ledger, 1, 0, "alice").unwrap();
        let id = GrantId::of_call([1; 12], 0);
        assert_eq!(ledger.opened("gate-2", id, IpAddr::from([203, 0, 113, 66]), (1, 1)), None);
        assert_eq!(ledger.refused("gate-2", id), None);
        assert!(ledger.ended("gate-2", id).is_none());
        assert_eq!(ledger.rows()[0].gate_address, None);
    }

    #[test]
    fn expired_grants_go_after_a_grace() {
        let ledger = Ledger::new(10);
        open(&ledger, 1, 0, "alice").unwrap();
        assert_eq!(ledger.expire(NOW.plus_secs(64)).len(), 0);
        assert_eq!(ledger.expire(NOW.plus_secs(65)).len(), 1);
    }

    #[test]
    fn a_report_that_crossed_a_revoke_brings_nothing_back() {
        let ledger = Ledger::new(10);
        let (report, grant) = active(1);
        ledger.active(&report, &grant, "gate-1").unwrap();
        assert_eq!(ledger.rows()[0].bytes_used, Some(5));
        ledger.revoke(NOW, &Selector::all(Selected::User("alice".into())));
        ledger.active(&report, &grant, "gate-1").unwrap();
        assert!(ledger.rows().is_empty());
        ledger.expire(NOW.plus_secs(REVOKE_SECS));
        ledger.active(&report, &grant, "gate-1").unwrap();
        assert_eq!(ledger.rows().len(), 1);
    }
}
