//! What all steps of a shard share.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use siphasher::sip::SipHasher24;
use sluicegate_api::Decision;
use sluicegate_bounded::Gauge;
use sluicegate_feed::{Selected, Selector};
use sluicegate_grant::GrantId;
use sluicegate_policy::{Policy, SipPeer, is_name};
use sluicegate_sip::message::Message;
use sluicegate_wire::{Instant, Pace};

use super::{
    Now, derive,
    events::Event,
    keys::{Caller, Keys, Route, Side},
    ladder::{Asked, Rung},
    settings::Settings,
    shedding::GateWaits,
    unproved::Unproved,
    watch::{rung_of, shown},
};
use crate::{
    calls::CallId,
    decisions::Decided,
    guesses::{Allowance, Table},
    ledger::Ledger,
    metrics::{Count, Kind, Outcome, ShardMetrics},
    proofs::Proofs,
    stories::{Happened, Who, call_text},
    transmits::{Flow, Transmits},
};

/// Notes about senders that are not proved, per second.
const UNPROVED_NOTES_PER_SEC: u32 = 20;
/// Notes about users at a limit of their own requests, per second.
const LIMIT_NOTES_PER_SEC: u32 = 20;
/// Responses to one request that is passed on without state: its sender repeats it eleven times (RFC 3261, timers E and F),
/// each is answered, and some more than once.
const PER_BRANCH: Allowance = Allowance { burst: 24, interval: Duration::from_secs(4) };
/// Branches for which that is counted.
const PASSED_MAX: usize = 4_096;
/// Stands in notes for what is no name of a user or service.
const NO_NAME: &str = "(no name)";

/// What every step may look at, and how it tells others what it does. No request is remembered here, nor any client whose
/// digest was not right: the ledger has calls and grants, and all else is of a fixed size.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) settings: Settings,
    pub(super) keys: Keys,
    pub(super) policy: Arc<Policy>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) metrics: Arc<ShardMetrics>,
    /// When the present datagram, input or timer came.
    pub(super) now: Now,
    /// Whether the present datagram came from another shard, so that it is not handed over again.
    pub(super) handed_over: bool,
    /// What was proved over the connection that the present message came over.
    pub(super) proofs: Option<Arc<Proofs>>,
    /// Whether the present response is our own word for a receiver that could not be reached.
    pub(super) is_undelivered: bool,
    /// How many answers strangers still get.
    pub(super) unproved: Unproved,
    /// How often what was passed on without state was answered.
    passed: Table,
    /// The message that is being written.
    pub(super) scratch: Vec<u8>,
    /// What is to be sent.
    pub(super) out: Transmits,
    /// What is asked of the shard's surroundings. Added to by [`Self::raise`] alone, which bounds it.
    pub(super) events: VecDeque<Event>,
    /// Notes about senders that are not proved.
    unproved_notes: Pace,
    /// Notes about users at a limit.
    limit_notes: Pace,
    /// How long gates took to open since it was measured last.
    pub(super) gates: GateWaits,
    /// Counts calls and requests of our own, for names that are never used twice.
    numbers: u64,
}

impl Context {
    pub(super) fn new(
        settings: Settings,
        policy: Arc<Policy>,
        ledger: Arc<Ledger>,
        metrics: Arc<ShardMetrics>,
    ) -> Self {
        let keys = Keys::new(&settings);
        Self {
            unproved: Unproved::new(keys.unproved, settings.unproved_answers_per_s),
            settings,
            keys,
            policy,
            ledger,
            metrics,
            now: Now::default(),
            handed_over: false,
            proofs: None,
            is_undelivered: false,
            scratch: Vec::new(),
            out: Transmits::default(),
            events: VecDeque::new(),
            unproved_notes: Pace::per_second(UNPROVED_NOTES_PER_SEC),
            limit_notes: Pace::per_second(LIMIT_NOTES_PER_SEC),
            gates: GateWaits::default(),
            numbers: 0,
            passed: Table::new("responses_passed", PASSED_MAX),
        }
    }

    /// Whether one more response may pass whose branch names the way. The branch proves that it was asked for, once.
    pub(super) fn may_pass(&mut self, response: &Message<'_>) -> bool {
        let branch = response.top_via().ok().and_then(|via| via.branch).unwrap_or_default();
        let tag = SipHasher24::new_with_key(&self.keys.tables).hash(branch);
        self.passed.take(self.now.instant, tag, &PER_BRANCH)
    }

    /// Branches whose responses passed lately.
    pub(super) fn gauge(&self, now: Instant) -> Gauge {
        self.passed.gauge(now)
    }

    /// Queues an event; `false` if there was no room for it, or if it opens something for a call that was hung up. Notes leave room
    /// for what opens something, and that for what ends something: who does not hear of that leaves it open.
    pub(super) fn raise(&mut self, event: Event) -> bool {
        if let Event::Open { deltas, .. } = &event
            && deltas.iter().any(|delta| !self.ledger.opens(self.now.instant, delta.grant.id.call()))
        {
            return false;
        }
        let max = self.settings.tables.events_max;
        let max = match event {
            Event::Decided(_) | Event::Told(..) => max / 2,
            Event::Revoke(_) => self.events_max(),
            _ => max,
        };
        if self.events.len() >= max {
            self.metrics.one(Count::EventsDropped);
            return false;
        }
        self.events.push_back(event);
        true
    }

    /// Somebody signed in from here. Who owns the connection is told, unless it knows.
    pub(super) fn note_proved(&mut self, flow: Flow, user: &str) {
        let known = self.proofs.as_ref().and_then(|proofs| proofs.user.as_deref());
        if let Some(connection) = flow.connection.filter(|_| known != Some(user)) {
            self.raise(Event::Proved { connection, user: Arc::from(user) });
        }
    }

    /// Whether the present message came over a connection that this user signed in over.
    pub(super) fn has_signed_in(&self, flow: Flow, user: &str) -> bool {
        let known = self.proofs.as_ref().and_then(|proofs| proofs.user.as_deref());
        let may_sign_in = self.policy.user(user).is_some_and(|user| user.enabled);
        flow.connection.is_some() && known == Some(user) && may_sign_in
    }

    /// The most events that wait.
    pub(super) const fn events_max(&self) -> usize {
        self.settings.tables.events_max.saturating_mul(2)
    }

    /// How many more things may be opened before somebody has heard of those that were.
    pub(super) fn openings_left(&self) -> usize {
        self.settings.tables.events_max.saturating_sub(self.events.len())
    }

    /// Has gates close whatever they opened for a call.
    pub(super) fn revoke(&mut self, call: CallId) -> bool {
        self.raise(Event::Revoke(Selector::all(Selected::Call(call))))
    }

    /// Has gates close single grants of a call that goes on.
    pub(super) fn close(&mut self, ids: impl IntoIterator<Item = GrantId>) {
        for id in ids {
            self.raise(Event::Revoke(Selector::all(Selected::Grant(id))));
        }
    }

    /// Has gates close what a call has open besides this.
    pub(super) fn close_others(&mut self, call: CallId, kept: &[GrantId]) {
        let others = self.ledger.grants_of(call).into_iter().map(|known| known.id);
        self.close(others.filter(|id| !kept.contains(id)));
    }

    /// Gives the present datagram to the shard that owns what it belongs to.
    pub(super) fn hand_over(&mut self, shard: u8, flow: Flow, datagram: &[u8]) {
        self.metrics.one(Count::HandedOver);
        self.raise(Event::HandOver { shard, flow, datagram: datagram.to_vec() });
    }

    /// Leaves a note for `trace`.
    pub(super) fn decided<S: Into<String>>(
        &mut self,
        asked: Asked<'_>,
        user: &str,
        verdict: (Outcome, u16),
        steps: impl IntoIterator<Item = S>,
    ) {
        self.decided_of(None, asked, user, verdict, steps);
    }

    /// Leaves a note about a request that begins this call, or goes on with it.
    pub(super) fn decided_of<S: Into<String>>(
        &mut self,
        call: Option<CallId>,
        asked: Asked<'_>,
        user: &str,
        (outcome, status): (Outcome, u16),
        steps: impl IntoIterator<Item = S>,
    ) {
        // A flood of wrong passwords must not push out everything else.
        let is_unproved = matches!(outcome, Outcome::BadDigest | Outcome::Guessing | Outcome::Replay);
        let left_out = if is_unproved { self.unproved_notes.admit(self.now.instant) } else { Some(0) };
        if let Some(left_out) = left_out {
            self.note_asked(call, asked, user, (outcome, status), (rung_of(outcome), left_out), steps);
        }
    }

    /// Answers 503 to a request of a user that has begun as many as it may, and leaves a note which limit that is.
    pub(super) fn at_limit(&mut self, asked: Asked<'_>, user: &str, why: &str) {
        let verdict = (Outcome::Unavailable, 503);
        self.metrics.one(Count::TableFull);
        // Nothing else holds up who is here: its flood must not push out everything else either.
        if let Some(left_out) = self.limit_notes.admit(self.now.instant) {
            self.note_asked(None, asked, user, verdict, (Rung::Credentials, left_out), [format!("- {why}")]);
        }
        self.unavailable_once(asked);
    }

    fn note_asked<S: Into<String>>(
        &mut self,
        call: Option<CallId>,
        asked: Asked<'_>,
        user: &str,
        verdict: (Outcome, u16),
        (rung, left_out): (Rung, u64),
        steps: impl IntoIterator<Item = S>,
    ) {
        let mut decision = self.decision((user, &asked.service(), asked.flow), verdict, steps);
        decision.rung = Some(rung.label().into());
        let renewal = asked.kind == Kind::Reinvite;
        let is_call = renewal || asked.kind == Kind::Invite;
        decision.call_id = is_call.then(|| shown(asked.essentials.call_id));
        self.note(decision, (call.filter(|_| is_call), Who::User), (renewal, left_out));
    }

    /// Leaves a note about a call that lives.
    pub(super) fn decided_anew<S: Into<String>>(
        &mut self,
        of: (&str, &str, Flow),
        call: CallId,
        verdict: (Outcome, u16),
        steps: impl IntoIterator<Item = S>,
    ) {
        let decision = self.decision(of, verdict, steps);
        self.note(decision, (Some(call), Who::User), (true, 0));
    }

    pub(super) fn decision<S: Into<String>>(
        &self,
        (user, service, client): (&str, &str, Flow),
        (outcome, status): (Outcome, u16),
        steps: impl IntoIterator<Item = S>,
    ) -> Decision {
        // What is no name is anything that a stranger may write, and an operator's terminal would obey it.
        let is_shown = |text: &str| is_name(SipPeer::name_of(text).unwrap_or(text));
        let named = |text: &str| if is_shown(text) { text.to_owned() } else { NO_NAME.to_owned() };
        Decision {
            unix: self.now.unix.0,
            user: named(user),
            service: named(service),
            client: client.peer,
            outcome: outcome.label().into(),
            status,
            rung: None,
            call: None,
            call_id: None,
            steps: steps.into_iter().map(Into::into).collect(),
        }
    }

    pub(super) fn note(
        &mut self,
        mut decision: Decision,
        (call, caller): (Option<CallId>, Who),
        (renewal, left_out): (bool, u64),
    ) {
        decision.call = call.map(call_text);
        self.raise(Event::Decided(Decided { decision, renewal, call, caller, left_out }));
    }

    /// Something happened to a call.
    pub(super) fn tell(&mut self, call: CallId, what: Happened) {
        self.raise(Event::Told(call, what));
    }

    /// A number that this shard uses once.
    const fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// The branch of a request that this shard sends and remembers. `came`: of one that is relayed, as it came.
    pub(super) fn new_branch(&mut self, came: Option<(Side, &Message<'_>)>) -> Vec<u8> {
        let number = self.next_number();
        self.keys.branch(self.settings.shard, number, came)
    }

    /// Our Record-Route values of a request that begins a call: one for each side where they know us by addresses of
    /// their own, that of the side which it goes to on top (RFC 5658 section 4).
    pub(super) fn record_routes(&self, route: &Route, caller: Caller<'_>, sides: [Flow; 2]) -> Vec<String> {
        let [far, near] = sides.map(|side| self.settings.place(side));
        let value = |place: &str| self.keys.record_route((place, self.now.unix), route, caller);
        if far == near { vec![value(&near)] } else { vec![value(&far), value(&near)] }
    }

    /// A call id that no one can guess and no other shard or start makes.
    pub(super) fn new_call(&mut self) -> CallId {
        let number = self.next_number();
        derive(&self.keys.calls, &number.to_be_bytes()).first_chunk().copied().unwrap_or_default()
    }
}
