//! What became of calls, for `trace --call` and the call log: whose they are, what was opened for them, and why they ended.
//!
//! Shards, gates and operators say what happens; a call's line in the log is written a moment after its end, when gates have
//! said what it used.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    net::{IpAddr, SocketAddr},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use sluicegate_api::{CallEnd, CallStep, CallStory, GrantState, GrantStatus};
use sluicegate_bounded::Gauge;
use sluicegate_feed::{ActiveGrant, EndCause, Selected, Selector};
use sluicegate_grant::{GrantId, GrantIdError};
use sluicegate_policy::{PortProtocol, PortRange};
use sluicegate_wire::UnixTime;

use crate::{
    calls::CallId,
    decisions::Decided,
    ledger::Ledger,
    metrics::{Outcome, labelled},
};

/// How long gates have to say what an ended call used, in seconds.
const PATIENCE_S: u64 = 5;
/// When it is looked first whether a call lives, and how long after its time is over, in seconds.
const LOOK_S: u64 = 30;
const LOOK_AFTER_S: u64 = 1;
/// Different things that are remembered of one call. More of the same are counted.
const STEPS_MAX: usize = 24;
/// Grants of one call whose use is known apart.
const GRANTS_MAX: usize = 64;

labelled! {
    /// Who does something to a call.
    Who {
        /// The user, by a telephone or agent.
        User = "user",
        /// The service.
        Service = "service",
        /// The frontend itself.
        Frontend = "frontend",
        /// Whoever administers it.
        Operator = "operator",
    }
}

labelled! {
    /// Why a call ended, or never began.
    Why {
        /// A BYE.
        HungUp = "hung_up",
        /// Its caller gave up before there was an answer, or another telephone answered.
        Cancelled = "cancelled",
        /// The other side would not.
        Declined = "declined",
        /// It is not allowed, or asks for what there is not.
        Refused = "refused",
        /// It is allowed and could not be carried out.
        Failed = "failed",
        /// The caller never acknowledged the answer.
        Unacknowledged = "unacknowledged",
        /// Nobody renewed it in time.
        Expired = "expired",
        /// It was ended by whoever administers the site.
        Revoked = "revoked",
    }
}

/// Something that a shard saw of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happened {
    /// It was accepted, so long after it was asked for.
    Answered(Who, Duration),
    /// A change or a refresh of it was accepted.
    WentOn(Who),
    /// It, or a change of it, was not: the status says why.
    Declined(Who, u16),
    /// A BYE.
    HungUp(Who),
    /// The ACK never came.
    Unacknowledged,
}

#[derive(Debug, Clone, Copy)]
struct End {
    unix: UnixTime,
    why: Why,
    by: Who,
    status: Option<u16>,
}

/// Small, as each call that lives has one.
#[derive(Debug, Clone)]
struct Story {
    user: Box<str>,
    service: Box<str>,
    call_id: Box<str>,
    caller: Who,
    client: SocketAddr,
    unix: UnixTime,
    setup_ms: Option<u32>,
    answered: Option<UnixTime>,
    /// What grants have used that are over.
    bytes: u64,
    /// What each grant that it has open has used, as far as it is known.
    open: Vec<(GrantId, u64)>,
    end: Option<End>,
    steps: Vec<CallStep>,
    steps_left_out: u64,
    /// When to look at it next.
    due: UnixTime,
}

#[derive(Debug)]
struct Over {
    call: Option<CallId>,
    story: Story,
    /// Whether the log has still to have it.
    is_unlogged: bool,
}

#[derive(Debug, Default)]
struct Inner {
    living: HashMap<CallId, Story>,
    due: BTreeSet<(UnixTime, CallId)>,
    /// Those whose steps are remembered, as long as they live, oldest first.
    stepped: VecDeque<CallId>,
    /// Those that are over, the newest last.
    over: VecDeque<Over>,
}

/// All calls that live, and the last ones that are over. Shared by hub and control.
#[derive(Debug)]
pub struct Stories {
    inner: Mutex<Inner>,
    max: usize,
}

impl Stories {
    /// Most calls remembered that are over.
    pub const OVER_MAX: usize = 2_048;
    /// Most calls that live whose steps are remembered: the latest. Of all it is known how they began, and what they used.
    pub const STEPPED_MAX: usize = 4_096;

    /// Remembers so many calls that live.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self { inner: Mutex::default(), max }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It was decided about a call: it begins, is refused, or may go on or not.
    pub fn decided(&self, decided: &Decided) {
        let Decided { decision, renewal, call, caller, .. } = decided;
        let unix = UnixTime(decision.unix);
        let is_allowed = is(decided, &[Outcome::Admitted]);
        let mut inner = self.lock();
        let Some(call) = *call else {
            if decision.call_id.is_some() && !renewal {
                inner.refused(decided);
            }
            return;
        };
        let begins = !renewal && decision.call_id.is_some() && inner.living.len() < self.max;
        match inner.living.get_mut(&call) {
            Some(story) => story.go_on(decided),
            None if begins => inner.begin(unix, call, Story::begin(decided)),
            None => return,
        }
        if !is_allowed && !renewal {
            let (why, by) = match decision.status {
                487 => (Why::Cancelled, *caller),
                _ if is(decided, &[Outcome::Unavailable]) => (Why::Failed, Who::Frontend),
                _ => (Why::Refused, Who::Frontend),
            };
            inner.end(unix, call, (why, by, Some(decision.status)));
        }
    }

    /// A shard saw something of a call.
    pub fn happened(&self, unix: UnixTime, call: CallId, what: Happened) {
        let mut inner = self.lock();
        let Some(story) = inner.living.get_mut(&call) else { return };
        match what {
            Happened::Answered(by, after) => {
                let after_ms = u32::try_from(after.as_millis()).unwrap_or(u32::MAX);
                story.step(unix, format!("the {} answered after {after_ms} ms", by.label()));
                (story.setup_ms, story.answered) = (Some(after_ms), Some(unix));
            }
            Happened::WentOn(by) => story.step(unix, format!("the {} accepted a change or refresh", by.label())),
            Happened::Declined(by, code) => {
                story.step(unix, format!("the {} answered {code}", by.label()));
                if story.answered.is_none() {
                    let why = if code == 487 { Why::Cancelled } else { Why::Declined };
                    inner.end(unix, call, (why, by, Some(code)));
                }
            }
            Happened::HungUp(by) => inner.end(unix, call, (Why::HungUp, by, None)),
            Happened::Unacknowledged => inner.end(unix, call, (Why::Unacknowledged, Who::Frontend, None)),
        }
    }

    /// A gate has opened or prolonged a grant, which stood like `row` before.
    pub fn opened(&self, unix: UnixTime, row: &GrantStatus, (address, ports): (IpAddr, (u16, u16))) {
        let mut inner = self.lock();
        let Some(story) = inner.living.get_mut(&row.id.call()) else { return };
        let done = if row.state == GrantState::Open { "prolonged" } else { "opened" };
        let what = place(row.protocol, address, ports);
        let target = place(row.protocol, row.target, row.target_ports);
        story.step(unix, format!("gate {} {done} {what} to {target} for {}", row.gate, row.client));
        story.used(row.id, row.bytes_used.unwrap_or(0));
    }

    /// A gate says that a grant is over.
    pub fn grant_ended(&self, unix: UnixTime, gate: &str, id: GrantId, (cause, bytes): (EndCause, u64)) {
        let mut inner = self.lock();
        let Some(story) = inner.living.get_mut(&id.call()) else { return };
        let cause = match cause {
            EndCause::Expired => "its time was over",
            EndCause::Spent => "its bytes were spent",
            EndCause::Revoked => "it was told to",
        };
        story.step(unix, format!("gate {gate} closed grant {id}, as {cause}; {bytes} bytes went through"));
        story.open.retain(|(known, _)| *known != id);
        story.bytes = story.bytes.saturating_add(bytes);
        if story.end.is_some() && story.open.is_empty() {
            inner.close(id.call());
        }
    }

    /// What these grants have used, which are about to be forgotten.
    pub fn used<'r>(&self, rows: impl IntoIterator<Item = &'r GrantStatus>) {
        let mut inner = self.lock();
        for row in rows.into_iter().filter(|row| row.state == GrantState::Open) {
            if let Some(story) = inner.living.get_mut(&row.id.call()) {
                story.used(row.id, row.bytes_used.unwrap_or(0));
            }
        }
    }

    /// A gate has a grant of a call that began before this frontend was started.
    pub fn known(&self, unix: UnixTime, active: &ActiveGrant) {
        let (delta, call) = (&active.delta, active.delta.grant.id.call());
        let mut inner = self.lock();
        if inner.living.contains_key(&call) || inner.living.len() >= self.max {
            return;
        }
        let client = SocketAddr::new(delta.grant.client_address.to_canonical(), 0);
        let begun = delta.grant.not_before;
        let mut story = Story::new((&delta.user, &delta.service, ""), (Who::User, client), begun);
        story.answered = Some(begun);
        story.step(unix, "known from a gate; began before this frontend was started".to_owned());
        inner.begin(unix, call, story);
    }

    /// Whoever administers the site has ended this call.
    pub fn revoked(&self, unix: UnixTime, call: CallId) {
        self.lock().end(unix, call, (Why::Revoked, Who::Operator, None));
    }

    /// Looks at the calls whose time has come; those that the log has to have now.
    pub fn sweep(&self, unix: UnixTime, ledger: &Ledger) -> Vec<CallStory> {
        let mut inner = self.lock();
        let inner = &mut *inner;
        while let Some((_, call)) = inner.due.first().copied().filter(|(due, _)| *due <= unix) {
            let Some(story) = inner.living.get(&call) else {
                inner.due.pop_first();
                continue;
            };
            match ledger.lasts_until(call) {
                _ if story.end.is_some() => inner.close(call),
                Some(until) => inner.look_at(call, until.max(unix).plus_secs(LOOK_AFTER_S)),
                None => inner.end(unix, call, (Why::Expired, Who::Frontend, None)),
            }
        }
        inner.take_unlogged()
    }

    /// Those that are over and not in the log, although gates may still say what they used: for a process that ends.
    pub fn take_over(&self) -> Vec<CallStory> {
        let mut inner = self.lock();
        let over: Vec<CallId> =
            inner.living.iter().filter(|(_, story)| story.end.is_some()).map(|(call, _)| *call).collect();
        over.into_iter().for_each(|call| inner.close(call));
        inner.take_unlogged()
    }

    /// Calls of this Call-ID, of this grant, or of this id, the newest first.
    pub fn of(&self, id: &str, ledger: &Ledger) -> Vec<CallStory> {
        let grant = id.parse().or_else(|_| grant_of(id)).ok();
        let call = grant.map(|grant: GrantId| grant.call());
        let meant = |own: Option<CallId>, story: &Story| {
            let is_it = &*story.call_id == id || (own.is_some() && own == call);
            is_it.then(|| story.shown(own))
        };
        let mut found: Vec<CallStory> = {
            let inner = self.lock();
            let living = inner.living.iter().filter_map(|(call, story)| meant(Some(*call), story));
            living.chain(inner.over.iter().filter_map(|over| meant(over.call, &over.story))).collect()
        };
        found.sort_by_key(|story| std::cmp::Reverse(story.unix));
        for story in &mut found {
            let grants = grant_of(&story.call).map(|grant| Selector::all(Selected::Call(grant.call())));
            story.grants = grants.map(|selector| ledger.matching(&selector)).unwrap_or_default();
        }
        found
    }

    /// Calls that live.
    pub fn gauge(&self) -> Gauge {
        Gauge::of("stories", self.lock().living.len(), self.max)
    }
}

impl Inner {
    fn begin(&mut self, unix: UnixTime, call: CallId, story: Story) {
        self.living.insert(call, story);
        self.stepped.push_back(call);
        if self.stepped.len() > Stories::STEPPED_MAX
            && let Some(story) = self.stepped.pop_front().and_then(|oldest| self.living.get_mut(&oldest))
        {
            story.steps_left_out += std::mem::take(&mut story.steps).len() as u64;
        }
        self.look_at(call, unix.plus_secs(LOOK_S));
    }

    /// One that ended before it had an id.
    fn refused(&mut self, decided: &Decided) {
        let is_proved = !is(decided, &[Outcome::BadDigest, Outcome::Guessing, Outcome::Replay, Outcome::Handshake]);
        let (unix, status) = (UnixTime(decided.decision.unix), Some(decided.decision.status));
        let mut story = Story::begin(decided);
        story.end = Some(End { unix, why: Why::Refused, by: Who::Frontend, status });
        self.finish(None, story, is_proved);
    }

    fn look_at(&mut self, call: CallId, due: UnixTime) {
        let Some(story) = self.living.get_mut(&call) else { return };
        self.due.remove(&(story.due, call));
        story.due = due;
        self.due.insert((due, call));
    }

    /// A call is over; of one that had nothing open everything is known.
    fn end(&mut self, unix: UnixTime, call: CallId, (why, by, status): (Why, Who, Option<u16>)) {
        let Some(story) = self.living.get_mut(&call).filter(|story| story.end.is_none()) else { return };
        story.end = Some(End { unix, why, by, status });
        if story.open.is_empty() {
            self.close(call);
        } else {
            self.look_at(call, unix.plus_secs(PATIENCE_S));
        }
    }

    fn close(&mut self, call: CallId) {
        let Some(story) = self.living.remove(&call) else { return };
        self.due.remove(&(story.due, call));
        self.finish(Some(call), story, true);
    }

    fn finish(&mut self, call: Option<CallId>, story: Story, is_unlogged: bool) {
        if self.over.len() >= Stories::OVER_MAX {
            self.over.pop_front();
        }
        self.over.push_back(Over { call, story, is_unlogged });
    }

    fn take_unlogged(&mut self) -> Vec<CallStory> {
        let take = |over: &mut Over| {
            let is_unlogged = std::mem::take(&mut over.is_unlogged);
            is_unlogged.then(|| over.story.shown(over.call))
        };
        self.over.iter_mut().filter_map(take).collect()
    }
}

impl Story {
    fn new((user, service, call_id): (&str, &str, &str), (caller, client): (Who, SocketAddr), unix: UnixTime) -> Self {
        Self {
            user: user.into(),
            service: service.into(),
            call_id: call_id.into(),
            caller,
            client,
            unix,
            setup_ms: None,
            answered: None,
            bytes: 0,
            open: Vec::new(),
            end: None,
            steps: Vec::new(),
            steps_left_out: 0,
            due: unix,
        }
    }

    fn begin(decided: &Decided) -> Self {
        let Decided { decision, caller, .. } = decided;
        let of = (decision.user.as_str(), decision.service.as_str(), decision.call_id.as_deref().unwrap_or_default());
        let mut story = Self::new(of, (*caller, decision.client), UnixTime(decision.unix));
        story.step(story.unix, verdict("asked for", decided));
        story
    }

    fn go_on(&mut self, decided: &Decided) {
        let what = if decided.renewal { "asked to go on" } else { "to be carried out" };
        self.step(UnixTime(decided.decision.unix), verdict(what, decided));
    }

    /// Notes what happened, or that it happened again.
    fn step(&mut self, unix: UnixTime, text: String) {
        let steps = &mut self.steps;
        if let Some(step) = steps.iter_mut().find(|step| step.text == text) {
            (step.last_unix, step.times) = (unix.0, step.times + 1);
        } else if steps.len() < STEPS_MAX {
            steps.push(CallStep { unix: unix.0, last_unix: unix.0, times: 1, text });
        } else {
            self.steps_left_out += 1;
        }
    }

    fn used(&mut self, id: GrantId, bytes: u64) {
        if let Some((_, used)) = self.open.iter_mut().find(|(known, _)| *known == id) {
            *used = bytes.max(*used);
        } else if self.open.len() < GRANTS_MAX {
            self.open.push((id, bytes));
        }
    }

    /// All of it but what its grants are now.
    fn shown(&self, call: Option<CallId>) -> CallStory {
        let open = self.open.iter().fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes));
        let end = |End { unix, why, by, status }: End| CallEnd {
            unix: unix.0,
            why: why.label().into(),
            by: by.label().into(),
            status,
        };
        CallStory {
            call: call.map(call_text).unwrap_or_default(),
            call_id: self.call_id.as_ref().into(),
            user: self.user.as_ref().into(),
            service: self.service.as_ref().into(),
            caller: self.caller.label().into(),
            client: self.client,
            unix: self.unix.0,
            setup_ms: self.setup_ms.map(u64::from),
            answered_unix: self.answered.map(|answered| answered.0),
            bytes_to_service: self.bytes.saturating_add(open),
            end: self.end.map(end),
            steps: self.steps.clone(),
            steps_left_out: self.steps_left_out,
            grants: Vec::new(),
        }
    }
}

fn is(decided: &Decided, outcomes: &[Outcome]) -> bool {
    outcomes.iter().any(|outcome| decided.decision.outcome == outcome.label())
}

/// What was decided about something, where, and why.
fn verdict(what: &str, Decided { decision, .. }: &Decided) -> String {
    let place = decision.rung.as_ref().map_or_else(String::new, |rung| format!(" by {rung}"));
    format!("{what}: {} ({}){place}: {}", decision.outcome, decision.status, decision.steps.join("; "))
}

/// The id of a call as people read it: what the text of its grants' ids begins with.
pub(crate) fn call_text(call: CallId) -> String {
    let mut text = GrantId::of_call(call, 0).to_string();
    text.truncate(2 * call.len());
    text
}

/// The first grant of the call with this text.
fn grant_of(call: &str) -> Result<GrantId, GrantIdError> {
    format!("{call}00000000").parse()
}

fn place(protocol: u8, address: IpAddr, (first, last): (u16, u16)) -> String {
    let range = PortProtocol::from_number(protocol).map(|protocol| PortRange { protocol, first, last }.to_string());
    format!("{} at {address}", range.unwrap_or_else(|| format!("protocol {protocol}")))
}

#[cfg(test)]
mod tests;
